"""bench/simulator.py: published runs become the models, meshes and machines that they say; what frameworks
add is as counted; and every line of its output follows from the prices of fsdp_plan."""

import copy
import pathlib
import subprocess
import sys
import tempfile

import programs

ROOT = programs.ROOT
sys.path.insert(0, str(ROOT / "bench"))
from simulating import frameworks, profiles, rows as published, scores  # noqa: E402

ROWS = published.read_rows(ROOT / "bench" / "published" / "published.tsv")
BY_ID = {row.id: row for row in ROWS}


def near(value, wanted, tolerance=1e-9):
    assert abs(value - wanted) <= tolerance * abs(wanted), f"{value}, not {wanted}"


def test_rows():
    assert len(ROWS) == len(BY_ID) == 201
    row = BY_ID["ibm-feb24-34b-a100-80"]
    near(published.network_gbps(row), 400 / 8 * 364.87 / 400)
    assert published.mesh_of(row) == {"data": 1, "fsdp": 128, "tensor": 1, "context": 1}
    assert published.network_gbps(BY_ID["lf-a100-40-mpt7b-s8192-g8-m3a4"]) is None
    kempner = BY_ID["kf-13b-8h200-tp4fsdp2"]  # four NICs of a node of four GPUs
    near(published.network_gbps(kempner), 4 * 400 / 8 * 364.87 / 400)
    for row in ROWS:
        axes = published.mesh_of(row)
        ranks = 1
        for size in axes.values():
            ranks *= size
        assert ranks == row.gpus, (row.id, axes)
        assert row.compute_dtype == "bf16" or row.unscored(), row.id
        if "gsync=every" not in row.notes and row.accum == 1:
            near(row.tok_s_gpu, row.tokens / (row.tp * row.cp) / row.step_ms * 1e3, 0.01)


def parameters(config, seq):
    """Of config.json, by published.md's formulas."""
    if config["model_type"] == "gpt2":
        d, layers = config["n_embd"], config["n_layer"]
        return config["vocab_size"] * d + seq * d + layers * (12 * d * d + 13 * d) + 2 * d
    d, heads, kv = config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]
    width = config["head_dim"]
    layer = d * width * (heads + 2 * kv) + heads * width * d + 3 * d * config["intermediate_size"] + 2 * d
    if config["model_type"] == "qwen2":
        layer += width * (heads + 2 * kv)
    tables = 1 if config["tie_word_embeddings"] else 2
    return config["vocab_size"] * d * tables + config["num_hidden_layers"] * layer + d


def test_models():
    for row in ROWS:
        near(parameters(published.config_of(row), row.seq), row.params, 2e-3)


def test_frameworks():
    row = BY_ID["lf-a100-40-mpt7b-s8192-g8-m3a4"]
    rates = {op: rate for op, rate, _ in frameworks.op_rates(row, 1000.0)}
    near(rates["add_layernorm"], 1000 * 8 / (6 + 4 * 3845.2 / 3364.5))
    near(rates["bias_backward"], 600)
    near(rates["linear_bias_add"], 1000 * 2 / 6)  # delta and h: read 4, written 2; beside the norm's own 4
    added = frameworks.added_seconds(row, 1000.0, 100e12)
    # Divided before it is reduced: 4 bytes a parameter, four micro-batches.
    near(added["copies of gradients and parameters"], 4 * row.params * 4 / 1e12)
    assert row.recompute == "full"
    near(added["gemm repeated: down"],
         2 * 3 * 4 * 8192 * row.layers * row.hidden * 4 * row.hidden / 100e12)
    assert frameworks.attention_kernel(row) == "triton"
    assert frameworks.attention_kernel(BY_ID["ibm-feb24-34b-a100-80"]) == "flash2"
    assert frameworks.attention_kernel(BY_ID["mt-70b-256h100-bf16"]) == "cudnn-9.1"
    assert frameworks.attention_kernel(BY_ID["kf-13b-8h200-tp1fsdp8"]) == "cudnn"
    assert frameworks.attention_kernel(BY_ID["nt-3b-tp4"]) == "flash2"
    assert frameworks.attention_kernel(BY_ID["llmc-124m-8a100"]) == "flash2"
    llama = BY_ID["ibm-feb24-34b-a100-80"]  # 64 heads, 8 of keys
    rates = {op: rate for op, rate, _ in frameworks.op_rates(llama, 1000.0)}
    near(rates["rope"], 1000 * 4 / (34 * 72 / 80))
    near(rates["linear_add"], 1000 * 2 / 6)
    fused = {op: rate for op, rate, _ in frameworks.op_rates(BY_ID["llmc-124m-8a100"], 1000.0)}
    near(fused["linear_bias_add"], 1000 * 2 / 4)  # one kernel for sum and norm: 8 in place of our 2 + 4
    maxtext = BY_ID["mt-70b-256h100-bf16"]
    added = frameworks.added_seconds(maxtext, 1000.0, 1e12)
    near(added["gemm repeated: attention's output"], 2 * 2 * 8192 * 80 * 8192 * 8192 / 1e12)
    for one in ROWS:
        table = frameworks.framework_of(one)
        assert table["source"]
        for ours, theirs, why in table["ops"].values():
            moved = theirs(one) if callable(theirs) else theirs
            assert why and 0 < ours <= moved, (one.id, why)


def test_profiles():
    curve = [(100, 1.0), (400, 2.0), (1600, 8.0)]
    for size, seconds in ((50, 1), (100, 1), (200, 2**0.5), (400, 2), (800, 4), (1600, 8), (3200, 16)):
        near(profiles.collective_seconds(curve, size), seconds)
    gather = profiles.collective_curve("a100-80", "all_gather", 8)
    near(profiles.collective_seconds(gather, 1 << 20), 92.79e-6 / 2, 1e-3)  # half of the all-reduce
    near(profiles.collective_seconds(gather, 2 << 30), 2 * 8193e-6 / 2, 1e-3)
    assert 232.4e-6 / 2 < profiles.collective_seconds(gather, 24 << 20) < 358.1e-6 / 2
    # Two GPUs on their six links, not on the eighteen of a switch: 120 GB/s for 268.5; four as by a switch.
    switched = profiles.collective_curve("h200", "all_gather", 2)
    direct = profiles.collective_curve(published.profile_of(BY_ID["kf-7b-2h200-tp2fsdp1"]), "all_gather", 2)
    for (size, slow), (_, fast) in zip(direct, switched, strict=True):
        least = min(seconds for _, seconds in switched)
        near(slow - least, (fast - least) * 268.5 / 120, 1e-4)
        assert size < 1 << 28 or 0.95 < size / 2 / slow / 120e9 < 1.05
    assert published.profile_of(BY_ID["tt-8b-32h200-fp8"]) == "h200"
    assert profiles.collective_curve("h200-4", "reduce_scatter", 4) == profiles.collective_curve(
        "h200", "reduce_scatter", 4)
    for name in ("a100-40", "h200", "h200-4"):  # what a file does not have is its base's
        assert profiles.product_tflops(name) > 200 and profiles.number(name, "memory_gbps") > 1000
    try:
        profiles.collective_curve("a100-80", "all_gather", 7)
    except ValueError as error:
        assert "a100-80" in str(error) and "7 ranks" in str(error), error
    else:
        raise AssertionError("a collective of seven ranks is found")


def test_tensor_parallel():
    row = BY_ID["kf-7b-4h200-tp4fsdp1"]
    added = frameworks.added_communication(row, 1000.0, lambda ranks, size: ranks * size / 1e12)
    tokens = row.micro_batch * row.seq
    near(added["gathers of each projection"], 9 * 32 * row.accum * 4 * 2 * tokens * 4096 / 1e12)
    near(added["whole logits"], row.accum * tokens * 128256 * (4 * 2 / 1e12 + 26 / 1e12))
    assert not frameworks.added_communication(BY_ID["nt-3b-tp4"], 1000.0, None)


def test_scores():
    count, median, ninety, mean, within = scores.summary([0.1, -0.2, 0.3, -0.05])
    assert (count, ninety, within) == (4, 0.3, 0.75)
    near(median, 0.15)
    near(mean, 0.0375)


def test_ratios():
    """Rows of tokens/s alone: every two that differ in one factor, those next to each other as neighbours."""

    class Priced:
        def __init__(self, name, predicted, **changes):
            self.row = copy.copy(BY_ID["kf-7b-2h200-tp2fsdp1"])
            self.row.id, self.predicted_ms, self.tok_s_gpu = name, 1.0, predicted
            for column, value in changes.items():
                setattr(self.row, column, value)

    results = [Priced("tp1", 90, tp=1, gpus=1, tok_s_gpu=100), Priced("tp2", 66, tp=2, tok_s_gpu=60),
               Priced("tp4", 50, tp=4, gpus=4, tok_s_gpu=50), Priced("more", 45, tp=4, gpus=8, tok_s_gpu=45),
               Priced("long", 20, seq=8192, tok_s_gpu=25), Priced("other", 1, seq=1024, framework="megatron"),
               Priced("unpriced", 1, seq=2048)]
    results[-1].predicted_ms = None
    pairs = {(p.factor, p.first, p.second): p for p in scores.ratios(results)}
    assert set(pairs) == {("tp", "tp1", "tp2"), ("tp", "tp2", "tp4"), ("tp", "tp2", "more"),
                          ("tp", "tp1", "tp4"), ("tp", "tp1", "more"), ("gpus", "tp4", "more"),
                          ("seq", "tp2", "long")}
    assert [k for k, p in pairs.items() if not p.neighbours] == [("tp", "tp1", "tp4"), ("tp", "tp1", "more")]
    pair = pairs["tp", "tp1", "tp2"]
    near(pair.predicted, 66 / 90)
    near(pair.published, 0.6)
    near(pair.error, 66 / 90 / 0.6 - 1)


def run(*arguments, status=0):
    command = [sys.executable, str(ROOT / "bench" / "simulator.py"), "--build", str(programs.BIN.parent)]
    process = subprocess.run(command + list(arguments), capture_output=True, text=True, timeout=240,
                             check=False)
    assert process.returncode == status, process.stderr
    return process


def test_output(folder):
    lines = (ROOT / "bench" / "published" / "published.tsv").read_text(encoding="utf-8").splitlines()
    names = ["lf-a100-40-mpt760m-s2048-g16-m12a1", "lf-a100-40-mpt760m-s2048-g32-m12a1",
             "llmq-0.5b-1h100-fp8", "kf-7b-1h200-tp1fsdp1", "tt-8b-32h200-fp8"]
    chosen = [lines[0]] + [line for line in lines if line.split("\t")[0] in names]
    assert len(chosen) == 6
    path = folder / "rows.tsv"
    path.write_text("\n".join(chosen) + "\n", encoding="utf-8")
    output = run("--rows", str(path)).stdout
    words = {line.split()[0]: line.split() for line in output.splitlines() if line}
    assert words[names[2]][1] == "-" and "fp8" in " ".join(words[names[2]])
    predicted = {name: float(words[name][1]) for name in names if "fp8" not in name}
    for name, value in predicted.items():
        assert value > 0
        near(float(words[name][2]), BY_ID[name].step_ms, 1e-3)
        assert words[name][3] == f"{100 * (value / BY_ID[name].step_ms - 1):+.1f}%" or abs(value) < 1e4
    ratio = next(line.split() for line in output.splitlines() if line.startswith("ratio gpus"))
    first, second = BY_ID[names[0]], BY_ID[names[1]]
    near(float(ratio[4]), predicted[names[0]] / predicted[names[1]], 2e-3)
    near(float(ratio[5]), second.tok_s_gpu / first.tok_s_gpu, 2e-3)
    memory = next(line.split() for line in output.splitlines() if line.startswith("memory kf"))
    assert 0 < float(memory[2]) < 141 and float(memory[4]) == 80.7
    near(float(memory[3]) - float(memory[2]), 6 * 4 * 4096 * 128256 / 1e9, 0.02)
    unpriced = next(line for line in output.splitlines() if line.startswith("memory tt"))
    assert 12 * 8.03 / 32 < float(unpriced.split()[2]) < 51.5 == float(unpriced.split()[4]), unpriced
    assert unpriced.endswith("# planned in bf16, run in fp8-tensorwise"), unpriced
    assert "has no row that begins with nothing" in run("nothing", status=2).stderr


def test_bad_rows(folder):
    """Rows of others: what is not known has a reason, what is no row a line."""
    lines = (ROOT / "bench" / "published" / "published.tsv").read_text(encoding="utf-8").splitlines()
    row = dict(zip(lines[0].split("\t"), next(line for line in lines if line.startswith("ibm")).split("\t")))
    path = folder / "bad.tsv"

    def write(**changes):
        path.write_text(lines[0] + "\n" + "\t".join({**row, **changes}.values()) + "\n", encoding="utf-8")

    for column, value in (("recompute", "by-moon"), ("framework", "abacus"), ("gpu", "gpu-9000"),
                          ("family", "mixtral"), ("strategy", "zero9"), ("reduce_dtype", "fp16"),
                          ("optimizer_state", "int8"), ("compute_dtype", "fp8-x"), ("inter", "warp"),
                          ("gpus", "7"), ("hidden", "4000000000")):
        write(**{column: value})
        line = run("--rows", path).stdout.splitlines()[0]
        assert line.startswith(f"{row['id']} - ") and value in line and "/tmp" not in line, line
    for column, value in (("layers", "many"), ("layers", "0"), ("layers", "-3"), ("layers", "3_2"),
                          ("hidden", "4096.5"), ("tied", "yes"), ("step_ms", "nan"), ("step_ms", "1e999"),
                          ("step_ms", "0"), ("mem_gb", "lots"), ("mem_gb", "-5"), ("id", "../x"), ("id", "")):
        write(**{column: value})
        said = run("--rows", path, status=2).stderr
        assert f"bad.tsv:2: {column} is '{value}': give " in said, said
    write(step_ms="", tok_s_gpu="")
    assert "step_ms and tok_s_gpu are empty" in run("--rows", path, status=2).stderr

    def refused(text, said):
        path.write_bytes(text)
        error = run("--rows", path, status=2).stderr
        assert said in error, error

    head, cells = lines[0].encode(), "\t".join(row.values()).encode()
    refused(b"", "bad.tsv has no row")
    refused(head + b"\n", "bad.tsv has no row")
    refused(b"a\tb\n1\t2\n", "bad.tsv:2: there is no column id")
    refused(head.replace(b"layers", b"layer") + b"\n" + cells, "bad.tsv:2: there is no column layers")
    refused(head + b"\n" + b"\t".join(cells.split(b"\t")[:9]), "bad.tsv:2: has 9 cells")
    refused(head + b"\n" + cells + b"\tmore", f"bad.tsv:2: has {len(row) + 1} cells")
    refused(head + b"\n" + cells + b"\n" + cells, "is that of line 2 too")
    refused(head + b"\n" + cells + b"\xe9", "in UTF-8")


def test_other_rows(folder):
    """Rows as other programs write them: a mark at the start, CRLF, more columns, a word that stands for
    another; and of step and tokens/s only one."""
    lines = (ROOT / "bench" / "published" / "published.tsv").read_text(encoding="utf-8").splitlines()
    row = dict(zip(lines[0].split("\t"),
                   next(line for line in lines if line.startswith("lf-a100-40-mpt760m-s4")).split("\t")))
    row |= {"more": "x", "strategy": "FULL_SHARD", "reduce_dtype": ""}
    per_gpu = int(row["micro_batch"]) * int(row["accum"]) * int(row["seq"])
    path = folder / "other.tsv"
    said = []
    for step, rate in (("2000", ""), ("", f"{per_gpu / 2}"), ("2000", f"{per_gpu / 2}")):
        row |= {"step_ms": step, "tok_s_gpu": rate}
        path.write_text("\ufeff" + "\t".join(row) + "\r\n" + "\t".join(row.values()) + "\r\n\r\n",
                        encoding="utf-8", newline="")
        said.append(run("--rows", path).stdout)
    assert said[0] == said[1] == said[2] and " 2000.0 " in said[0], said


def test_bad_options(folder):
    assert "none.tsv" in run("--rows", folder / "none.tsv", status=2).stderr
    assert "--jobs 0" in run("--jobs", "0", status=2).stderr


def main():
    test_rows()
    test_models()
    test_frameworks()
    test_profiles()
    test_tensor_parallel()
    test_scores()
    test_ratios()
    with tempfile.TemporaryDirectory() as folder:
        test_output(pathlib.Path(folder))
        test_bad_rows(pathlib.Path(folder))
        test_other_rows(pathlib.Path(folder))
        test_bad_options(pathlib.Path(folder))


if __name__ == "__main__":
    main()
