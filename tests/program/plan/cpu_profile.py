"""A device profile of a CPU with round numbers: each of its ranks has a core."""

TEXT = """
name: {ranks}-cores
device: cpu
source: "round numbers of a test"
processors: {ranks}
memory_gb: 16
memory_gbps: 20
launch_us: 0.2
copy_gbps: {{up: 10, down: 10}}
products:
- {{dtype: fp32, form: any, m: 1024, n: 1024, k: 1024, tflops: 0.1}}
attention:
- {{kernel: ours, dtype: fp32, head_dim: 64, direction: both, tflops: {{128: 0.05, 1024: 0.08}}}}
collectives:
- {{kind: all_gather, link: node, ranks: {ranks}, us: {{1024: 20, 1048576: 400}}}}
- {{kind: reduce_scatter, link: node, ranks: {ranks}, us: {{1024: 20, 1048576: 500}}}}
- {{kind: all_reduce, link: node, ranks: {ranks}, us: {{1024: 30, 1048576: 900}}}}
"""


def write(path, ranks):
    """Writes it, for --profile; returns the path."""
    path.write_text(TEXT.format(ranks=ranks))
    return path
