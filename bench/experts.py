#!/usr/bin/env python3
"""Routed experts beside what others measured: memory, prices, and what the search chooses.

    bench/experts.py [--build build] [memory] [prices] [search] [balance]; all but balance if none is named

memory   Qwen3-30B by FSDP over 8 to 64 ranks: planned differences beside published ones
prices   published steps (bench/published/experts.md says where from) beside fsdp_plan --price on shipped
         profiles; what a framework moves beyond our program is counted, never fitted
search   whether the search divides experts, and why the other settings lost
balance  300 steps from random weights on a skewed text: the greatest load of an expert with neither rule,
         with the auxiliary loss and with moving biases, on one rank and on four; takes minutes, on two cores

Nothing here needs a GPU.
"""
import argparse
import dataclasses
import json
import pathlib
import random
import statistics
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench"))

from running import call, log_of  # noqa: E402
from simulating import frameworks, profiles  # noqa: E402

GIB = 1 << 30


def plan(args, *words):
    """What fsdp_plan says, also of what is larger than a limit (4)."""
    return json.loads(call([args.build / "bin/fsdp_plan", *words, "--json"], (0, 4)))


# ---- Memory

# NousResearch/torchtitan pull request 19: FSDP and an expert axis of 8 on B200, 8 sequences of 4096 a rank.
PUBLISHED_GIB = {8: 167.93, 16: 138.75, 32: 124.58, 64: 117.50}


def memory(args):
    """States of 16 bytes a parameter over all ranks: master, moments and gradients in fp32, which two
    micro-batches keep all the time."""
    words = ["--model", "qwen3-30b-a3b", "--backend", "cuda", "--wrap", "block", "-s", 4096, "-b", 8,
             "--recompute", "block", "--reduce-dtype", "fp32", "--grad-accum", 2, "--memory-limit", "1TB"]
    gib = {ranks: plan(args, *words, "--ranks", ranks)["memory"]["peak_bytes"] / GIB
           for ranks in PUBLISHED_GIB}  # fmt: skip
    worst, before = 0, None
    print("| ranks | planned GiB | less than before | published GiB | less than before | planned / states |")
    print("| --- | --- | --- | --- | --- | --- |")
    for ranks, planned in gib.items():
        cells = [str(ranks), f"{planned:.2f}", "", f"{PUBLISHED_GIB[ranks]:.2f}", "", ""]
        if before:
            states = 16 * 30532122624 / GIB * (1 / before - 1 / ranks)
            less = gib[before] - planned
            worst = max(worst, abs(less / states - 1))
            cells[2], cells[4] = f"{less:.2f}", f"{PUBLISHED_GIB[before] - PUBLISHED_GIB[ranks]:.2f}"
            cells[5] = f"{less / states:.4f}"
        print("| " + " | ".join(cells) + " |")
        before = ranks
    print(f"\nThe greatest difference from 16 bytes a parameter: {100 * worst:.2f}% (wanted: at most 3%)")
    for how in ("block", "rmsnorm,expert_up,expert_swiglu", "none"):
        one = plan(args, *words, "-s", 8192, "--recompute", how, "--ranks", 8)["memory"]["peak_bytes"]
        print(f"8 ranks, 8 x 8192, --recompute {how}: planned {one / GIB:.1f} GiB; published (selective, "
              f"mlc-ai/pith-train 79) 141.8 GiB")
    return worst <= 0.03


# ---- Prices

def sizes_of(mesh):
    """{axis: ranks} of "fsdp=2,expert=8"."""
    return {axis.split("=")[0]: int(axis.split("=")[1]) for axis in mesh.split(",")}


@dataclasses.dataclass
class Row:
    """A published step. `number` is that of bench/published/experts.md."""

    number: str
    model: str
    profile: str
    ranks: int
    mesh: str
    batch: int
    accum: int
    seq: int
    recompute: str
    step_s: float
    framework: str
    unknown: str  # what the source does not say
    scored: bool = True
    reduce: str = "fp32"
    grouped: str = "torch"
    ranks_per_node: int = 8

    def tokens(self):
        """Of a step, all ranks together."""
        parts = self.ranks // sizes_of(self.mesh).get("tensor", 1)
        return parts * self.batch * self.accum * self.seq


def of_rate(tokens_per_s, tokens):
    """Seconds of a step of so many tokens a GPU."""
    return tokens / tokens_per_s


SELECTIVE = "rmsnorm,expert_up,expert_swiglu"
# torchtitan's policy by op in 2025 (distributed/activation_checkpoint.py): saved are attention and every
# second product of two matrices; products grouped by expert are made again.
BY_OP = "rmsnorm,qk_norm,linear:k_proj,expert_up,expert_swiglu"
EP8 = {8: 14796, 16: 14380, 32: 14276, 64: 14107, 128: 13856}
MFU_18 = {"FSDP": 0.043, "FSDP + EP": 0.234}
# 6 x active parameters without the embedding, and attention once: FLOPs of a token at 4096.
FLOPS_8X22B = 242.2e9

ROWS = [
    Row("4", "qwen3-30b-a3b", "h100-sxm", 8, "expert=8", 4, 16, 4096, "block", 21.773, "automodel",
        "which products of a block the recomputation leaves out"),
    Row("5", "qwen3-30b-a3b", "b200", 8, "fsdp=8", 8, 1, 8192, SELECTIVE, of_rate(19500, 65536), "titan",
        "what selective recomputation keeps, the version of torch"),
    *[Row(f"7, {n} GPUs", "qwen3-30b-a3b", "b200", n, f"fsdp={n // 8},expert=8", 8, 1, 4096, BY_OP,
          of_rate(rate, 32768), "titan-eager", "DeepEP's rate on a B200, waits for its counts, the network")
      for n, rate in EP8.items()],
    # Its experts are whole, eight to a node's ranks: as here without an axis tensor, and half of the batch.
    Row("14", "qwen3-235b-a22b", "h100-sxm", 256, "fsdp=32,expert=8", 2, 4, 4096, "block", 17.6,
        "megatron", "the type of its reductions, what its tensor axis sends, whether routing was forced"),
    Row("18, FSDP", "mixtral-8x22b", "h100-sxm", 128, "fsdp=128", 1, 2, 4096, "block",
        8192 * FLOPS_8X22B / 989e12 / MFU_18["FSDP"], "megatron",
        "its program: at 48 GB/s a GPU its traffic alone takes the step, and NCCL's rings reach eight times "
        "that; micro-batch"),
    Row("18, FSDP + EP", "mixtral-8x22b", "h100-sxm", 128, "fsdp=16,expert=8", 1, 2, 4096, "block",
        8192 * FLOPS_8X22B / 989e12 / MFU_18["FSDP + EP"], "megatron",
        "micro-batch (1, as the same cluster's row 19), recomputation, the axis' size"),
    Row("1", "qwen3-30b-a3b", "h100-sxm", 16, "expert=16", 1, 64, 4096, "none", 20.147, "megatron",
        "replicated dense weights there, an exchange in kernels of its own (HybridEP)", False),
    Row("12", "qwen3-30b-a3b", "h100-sxm", 16, "expert=16", 1, 2, 2048, "none", 1.206, "megatron",
        "how many of the packed tokens count, time between steps", False),
    Row("19", "mixtral-8x22b", "h100-sxm", 128, "fsdp=8,expert=8,tensor=2", 1, 4, 4096, "none",
        8192 * FLOPS_8X22B / 465e12, "megatron", "its pipeline stages, which no plan of ours has", False),
    *[Row(f"40, E {experts}", f"llama-{experts}", "h200-4", 8, "fsdp=8", 4, 1, 4096, "block",
          of_rate(rate, 16384), "titan", "whether experts were computed densely", False, ranks_per_node=4)
      for experts, rate in ((8, 6372), (16, 4608))],
    Row("22", "mixtral-8x7b", "h100-sxm", 16, "fsdp=2,expert=8", 1, 8, 4096, "block",
        32768 * 79.7e9 / 130e12, "megatron", "micro-batch, its version (2024)", False),
]


def op_rates(row, memory_gbps):
    """Of frameworks.py, those that no attribute of a row decides."""
    table = {"titan": frameworks.TORCH_LLAMA_COMPILED, "automodel": frameworks.TORCH_LLAMA_COMPILED,
             "titan-eager": frameworks.TITAN_QWEN3_EAGER,
             "megatron": frameworks.MEGATRON}[row.framework]  # fmt: skip
    ops = {**table["ops"], **frameworks.residual_adds(table["ops"])}
    return [(op, memory_gbps * ours / theirs, why) for op, (ours, theirs, why) in ops.items()
            if not callable(theirs)]  # fmt: skip


def added_seconds(row, shape, memory_gbps):
    """What no op of ours stands for, a step: copies of routed rows, and FSDP2's of weights and gradients."""
    sizes = sizes_of(row.mesh)
    rows = row.tokens() / row.ranks * shape["num_experts_per_tok"] * shape["num_hidden_layers"]
    moved = frameworks.ROUTED_ROW_BYTES[row.framework] * rows * shape["hidden_size"]
    if row.framework != "megatron":
        experts = 3 * shape["experts"] * shape["expert_size"] * shape["hidden_size"]
        experts *= shape["num_hidden_layers"]
        gathered = shape["parameters"] - experts
        gathered += experts / sizes.get("expert", 1) if sizes.get("fsdp", 1) > 1 else 0
        moved += frameworks.FSDP2_COPIES[row.reduce] * gathered * row.accum
    return moved / (memory_gbps * 1e9)


SHAPES = {
    "qwen3-30b-a3b": (48, 2048, 128, 8, 768, 30532122624),
    "qwen3-235b-a22b": (94, 4096, 128, 8, 1536, 235093634560),
    "mixtral-8x7b": (32, 4096, 8, 2, 14336, 46702792704),
    "mixtral-8x22b": (56, 6144, 8, 2, 16384, 140630071296),
    "llama-8": (24, 2048, 8, 2, 7168, 9230000000),
    "llama-16": (24, 2048, 16, 2, 7168, 17690000000),
}
SHAPE_KEYS = ("num_hidden_layers", "hidden_size", "experts", "num_experts_per_tok", "expert_size",
              "parameters")  # fmt: skip


def model_of(row, folder):
    """A preset, or the folder of KempnerForge's model: Llama 3's head and words, two experts a token."""
    if not row.model.startswith("llama-"):
        return row.model
    layers, hidden, experts, slots, size, _ = SHAPES[row.model]
    path = pathlib.Path(folder) / row.model
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({
        "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "hidden_act": "silu",
        "hidden_size": hidden, "intermediate_size": size, "num_hidden_layers": layers,
        "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 128256, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096, "rope_theta": 500000.0, "num_local_experts": experts,
        "num_experts_per_tok": slots, "tie_word_embeddings": False, "initializer_range": 0.02}))
    return path


def price_row(args, row, folder):
    """Predicted seconds of a step, and the parts of the program's price."""
    gbps = profiles.number(row.profile, "memory_gbps")
    lines = [f"base: {profiles.base_of(row.profile)}",
             f"use: {{attention: cudnn, grouped: {row.grouped}}}", "ops:"]  # fmt: skip
    lines += [f'- {{op: {op}, gbps: {{1: {rate:.6g}}}, source: "{why}"}}'
              for op, rate, why in op_rates(row, gbps)]  # fmt: skip
    profile = pathlib.Path(folder) / "profile.yaml"
    profile.write_text("\n".join(lines) + "\n", encoding="utf-8")
    model = model_of(row, folder)
    answer = plan(args, "--model", model, "--init", "random", "--ranks", row.ranks, "--ranks-per-node",
                  row.ranks_per_node, "--mesh", row.mesh,
                  "--wrap", "block", "-b", row.batch, "-s", row.seq, "--grad-accum", row.accum,
                  "--param-dtype", "bf16", "--reduce-dtype", row.reduce, "--recompute", row.recompute,
                  "--memory-limit", "100TB",
                  "--attention", "general", "--set", "nccl-ctas=default", "--profile", profile, "--price")
    added = added_seconds(row, dict(zip(SHAPE_KEYS, SHAPES[row.model])), gbps)
    return answer["time"]["step_ms"] / 1e3 + added, answer


def prices(args):
    errors = []
    print("| row | mesh | predicted s | published s | error | exposed s | peak GB | what is not known |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for row in ROWS:
            if args.rows and row.number.split(",")[0] not in args.rows:
                continue
            seconds, answer = price_row(args, row, folder)
            error = seconds / row.step_s - 1
            errors += [error] if row.scored else []
            exposed = answer["time"]["parts_ms"].get("communication", 0) / 1e3
            print(f"| {row.number} | {row.mesh} | {seconds:.2f} | {row.step_s:.2f} | {100 * error:+.1f}%"
                  f"{'' if row.scored else ' (no bound)'} | {exposed:.2f} | "
                  f"{answer['memory']['peak_bytes'] / 1e9:.0f} | {row.unknown} |", flush=True)
    if not errors:
        return True
    sizes = sorted(abs(e) for e in errors)
    print(f"\n{len(errors)} rows: median {100 * statistics.median(sizes):.1f}% (wanted: at most 15%), "
          f"greatest {100 * sizes[-1]:.1f}% (wanted: at most 30%)")
    return statistics.median(sizes) <= 0.15 and sizes[-1] <= 0.3


# ---- The search

SEARCHES = (
    ("Qwen3-30B on 8 H200, 32,768 tokens a rank and micro-step: experts are gathered",
     ["--model", "qwen3-30b-a3b", "--ranks", 8, "--profile", "h200", "-s", 4096, "-b", 8,
      "--global-batch", 64],
     lambda mesh: mesh.get("expert", 1) == 1),
    ("Mixtral-8x22B on 128 H100, 8,192 tokens a rank: experts are divided inside a node",
     ["--model", "mixtral-8x22b", "--ranks", 128, "--profile", "h100-sxm", "-s", 4096, "--global-batch", 256],
     lambda mesh: 1 < mesh.get("expert", 1) <= 8),
)


def search(args):
    right = True
    for what, words, wanted in SEARCHES:
        command = [args.build / "bin/fsdp_plan", "--search", *words, "--ranks-per-node", 8]
        print(f"### {what}\n\n```\n$ {' '.join(map(str, ['fsdp_plan', *command[1:]]))}")
        said = call(command)
        print(said.rstrip() + "\n```\n", flush=True)
        answer = json.loads(call([*command, "--json"]))
        mesh = answer["plans"][0]["options"]["mesh"]
        right &= wanted(sizes_of(mesh))
        print(f"chosen: {mesh}\n")
    return right


# ---- Balance

def skewed_text(path):
    """A text of few words, the first by far the most frequent."""
    numbers = random.Random(1)
    words = ["".join(numbers.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(numbers.randint(2, 7)))
             for _ in range(60)]
    weights = [1 / (rank + 1) ** 2.0 for rank in range(len(words))]
    path.write_text(" ".join(numbers.choices(words, weights, k=90000)), encoding="utf-8")


BALANCES = (
    ("mixtral, neither", "tiny-mixtral", ()),
    ("mixtral, auxiliary loss 0.01", "tiny-mixtral", ("--router-aux-coef", "0.01")),
    ("glm4_moe, neither", "tiny-glm4-moe", ()),
    ("glm4_moe, bias rate 1e-3", "tiny-glm4-moe", ("--router-bias-rate", "1e-3")),
)


def print_curves(curves):
    """The loss, and the greatest load of a layer, over the steps of one rank."""
    print("\n| step | " + " | ".join(what for what, _ in curves) + " |")
    print("| --- |" + " --- |" * len(curves))
    steps = len(curves[0][1])
    for step in sorted({0, *range(steps // 6 - 1, steps, steps // 6), steps - 1}):
        cells = [f"{log[step]['loss']:.3f}, {max(log[step]['moe/load_max']):.2f}" for _, log in curves]
        print(f"| {step + 1} | " + " | ".join(cells) + " |")


def balance(args):
    right, curves = True, []
    print("| run | greatest load of a layer, last 10 steps | of layers together | loss | 4 ranks |")
    print("| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        skewed_text(folder / "skewed.txt")
        for what, model, words in BALANCES:
            logs = []
            for ranks in (1, 4):
                log = folder / f"{ranks}.jsonl"
                log.unlink(missing_ok=True)
                command = [args.build / "bin/fsdp_train", "--model", model, "--init", "random", "--tokenizer",
                           "bytes", "--data", folder / "skewed.txt", "-s", 64, "-b", 16 // ranks,
                           "--max-steps", args.steps, "--lr", args.lr, "--wrap", "block",
                           "--set", "measure=off", "--log", log,
                           "--routing-record", folder / f"{ranks}.routes", *words]
                call(command, ranks=ranks)
                logs.append(log_of(log))
            curves.append((what, logs[0]))
            last = logs[0][-10:]
            layers = max(max(line["moe/load_max"]) for line in last)
            summed = summed_load(folder / "1.routes", len(logs[0]), 10)
            apart = max(abs(a["loss"] / b["loss"] - 1) for a, b in zip(*logs))
            print(f"| {what} | {layers:.2f} | {summed:.2f} | {logs[0][-1]['loss']:.4f} | losses differ by at "
                  f"most {apart:.1e} |", flush=True)
            bound = {"tiny-mixtral": summed, "tiny-glm4-moe": layers}[model]
            right &= apart <= 1e-2 and (not words or bound < 1.5)
    print_curves(curves)
    return right


def summed_load(path, steps, last):
    """The rows of the fullest expert over the mean, summed over layers and the last steps: of a file that
    --routing-record writes (a header of 96 bytes, then uint16 by step, sequence, token, layer and slot)."""
    data = path.read_bytes()
    header = [int.from_bytes(data[8 + 8 * i:16 + 8 * i], "little") for i in range(6)]
    _, layers, slots, experts, seq, batch = header
    each = layers * slots * seq * batch
    counts = [0] * experts
    for step in range(steps - last, steps):
        begin = 96 + 2 * step * each
        for at in range(begin, begin + 2 * each, 2):
            counts[int.from_bytes(data[at:at + 2], "little")] += 1
    return max(counts) * experts / sum(counts)


PARTS = {"memory": memory, "prices": prices, "search": search, "balance": balance}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--rows", nargs="*", help="of prices: their numbers")
    parser.add_argument("--steps", type=int, default=300, help="of balance")
    parser.add_argument("--lr", default="5e-4", help="of balance")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    args = parser.parse_args()
    for name in args.parts:
        if name not in PARTS:
            parser.error(f"'{name}' is no part: use {', '.join(PARTS)}")
    results = []
    for name in args.parts or ("memory", "prices", "search"):
        print(f"## {name}\n", flush=True)
        results.append(PARTS[name](args))
        print(flush=True)
    sys.exit(not all(results))


if __name__ == "__main__":
    main()
