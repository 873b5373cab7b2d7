"""bench/auto_sharding.py: its arithmetic against closed formulas, its table against fsdp_plan, and a whole
run of it on a small model."""

import os
import re
import subprocess
import sys
import types

import programs

ROOT = programs.ROOT
sys.path.insert(0, str(ROOT / "bench"))
import auto_sharding as bench  # noqa: E402

work = programs.folder("auto")
CPU = """name: any-cpu
device: cpu
source: test
processors: 2
memory_gb: 8
memory_gbps: 10
peak_tflops: {fp32: 0.1}
launch_us: 1
copy_gbps: {up: 5, down: 5, up_both: 4, down_both: 4}
contention: {compute: 1.1, collective: 1.3}
products:
- {dtype: fp32, form: any, m: 512, n: 512, k: 512, tflops: 0.05}
attention:
- {kernel: ours, dtype: fp32, head_dim: 32, direction: both, tflops: {512: 0.02}}
collectives:
- {kind: all_gather, link: node, ranks: 4, ranks_per_node: 4, us: {1000: 20, 1000000: 1000}}
- {kind: reduce_scatter, link: node, ranks: 4, ranks_per_node: 4, us: {1000: 20, 1000000: 1000}}
- {kind: all_reduce, link: node, ranks: 4, ranks_per_node: 4, us: {1000: 40, 1000000: 2000}}
"""


def near(a, b, relative=1e-9):
    return abs(a - b) <= relative * max(abs(a), abs(b))


def plain_profile():
    path = work / "plain.yaml"
    path.write_text(bench.plain_profile())
    return path


def test_attention_bytes():
    """Memory alone: 16 and 22 bytes a pair, and 4 D a row for each product. Products alone: 2 T T D each."""
    for kernels, products, width in ((bench.FORWARD, 2, 16), (bench.BACKWARD, 4, 22)):
        seconds = bench.attention_seconds(kernels, products, 2048, 128, 1e12, 1e30)
        assert near(seconds, (width * 2048**2 + products * 4 * 2048 * 128) / 1e12), (width, seconds)
        seconds = bench.attention_seconds(kernels, products, 2048, 128, 1e30, 1e12)
        assert near(seconds, products * 2 * 2048**2 * 128 / 1e12, 1e-6), seconds
    pairs = 2048 * 2049 / 2
    assert bench.counted_flops("forward", 2048, 128) == 2 * 2 * 128 * pairs
    assert bench.counted_flops("backward", 2048, 128) == 5 * 2 * 128 * pairs


def plan_of(name, profile):
    args = types.SimpleNamespace(build=programs.BIN.parent)
    machine = ["--profile", profile, "--backend", "cuda"]
    experiment = bench.Experiment(args, work, "llama-1b", bench.SEQ, bench.BATCH, machine)
    return experiment.price(bench.settings(bench.BATCH)[name])


def test_attention_in_a_price():
    """The step's attention is its heads' kernels: 6 sequences, 32 heads, 4 layers."""
    memory, product = bench.base_rates()
    assert 1.4e12 < memory < 2.04e12 and 200e12 < product < 312e12, (memory, product)
    head = sum(bench.attention_seconds(kernels, products, 2048, 128, memory, product)
               for kernels, products in ((bench.FORWARD, 2), (bench.BACKWARD, 4)))
    for name in ("dp", "fsdp", "tp"):
        found = plan_of(name, plain_profile())["time"]["parts_ms"]["attention"]
        assert near(found, 1e3 * head * 6 * 32 * 4, 1e-3), (name, found)


def test_shares():
    texts = {name: [bench.share_text(share) for share in bench.shares(plan_of(name, "a100-80"))]
             for name in ("dp", "fsdp", "tp")}
    assert texts == {"dp": ["whole"] * 3, "fsdp": ["1/4"] * 3, "tp": ["1/4"] * 3}, texts
    assert bench.share_text(0.3) == "0.30" and bench.share_text(0) == "0.00"


def test_published_tp():
    """Bytes by kind, from the shape: 49152 rows of 4096 channels, 32000 logits."""
    sizes = {}
    for count, kind, size, _ in bench.published_tp_collectives():
        sizes[kind] = sizes.get(kind, 0) + count * size
    rows, table, logits = 49152 * 4096, 32000 * 4096, 49152 * 32000
    assert sizes == {"all_gather": 8 * 6 * rows + 4 * logits, "reduce_scatter": 28 * 2 * rows,
                     "all_reduce": 6 * table}, sizes
    added = list(bench.published_tp({"exposed": {"communication_ms": 40.0}}).values())
    # A gather or scatter of 1 GiB takes 3.63 ms, an all-reduce 7.26.
    slowest = (sizes["all_gather"] + sizes["reduce_scatter"] + 2 * sizes["all_reduce"]) / 2**30 * 3.6297
    assert slowest < added[0] < 1.1 * slowest and added[1] == -40, (slowest, added)
    rate = bench.base_rates()[0] / 1e3
    assert near(added[2], 48 * rows / rate) and near(added[3], 24 * logits / rate), added
    assert near(added[4], 42 * table / rate), added


def price_of(step_ms, reduced=0, states=0.25):
    return {"model": {"parameters": 1000}, "comm": {"all_reduce_bytes": reduced},
            "memory": {"valley_bytes": 3e9, "peak_bytes": 4e9,
                       "valley_by_category": {"parameters": 1000, "optimizer": 8000 * states}},
            "time": {"step_ms": step_ms, "mfu": 0.5, "exposed": {"communication_ms": 10.0}}}


def test_verdicts():
    plans = {"dp": price_of(109, 8000, 1), "fsdp": price_of(100), "tp": price_of(150), "auto": price_of(99)}
    table, ratios, _ = bench.price_table(plans)
    assert len(table) == 2 + len(plans) + 1
    assert table[3].split("|")[2:4] == [" 100.0 ", " 240.0 "], table[3]
    lines = "\n".join(bench.verdicts(plans, ratios))
    assert "at least as fast as" in lines and "gradients 1/4, of states 1/4" in lines, lines
    assert "FSDP / DP: 1.09, published 1.09, +0%" in lines, lines
    assert "TP + SP / FSDP: 0.67, published 0.66, +1%" in lines, lines
    plans["auto"] = price_of(101)
    assert "slower than FSDP" in bench.verdicts(plans, ratios)[0]


def bench_run(*arguments, status=0):
    command = [sys.executable, str(ROOT / "bench" / "auto_sharding.py"), "--build", programs.BIN.parent,
               *map(str, arguments)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert process.returncode == status, (process.returncode, process.stderr[-2000:])
    return process


def test_whole():
    """Everything once: in prices, and in one round on four ranks."""
    profile, out = work / "cpu.yaml", work / "out.md"
    profile.write_text(CPU)
    measured = programs.WITH_MPI and not programs.SLOW
    arguments = ["--measured", "--rounds", 1, "--steps", 3, "--cpu-profile", profile] if measured else []
    bench_run(*arguments, "--out", out)
    text = out.read_text()
    plain, flash = text.split("## Flash attention")
    for part in (plain, flash):
        assert "is at least as fast as DP, FSDP and TP + SP" in part, text
        assert "of gradients 1/4, of states 1/4" in part, text
    assert text.count("\n| data parallel |") == (3 if measured else 2), text
    if measured and len(os.sched_getaffinity(0)) < 4:
        assert "does not show what 4 machines would" in text, text
    medians = re.findall(r"\| (\d+) \| \d+\.\d\d \|$", text.partition("## Measured")[2], re.M)
    assert len(medians) == (5 if measured else 0), text


def test_errors():
    error = bench_run("--steps", 2, status=2).stderr
    assert "--rounds 3 --steps 2" in error, error


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print(f"ok      {name}")
