#!/usr/bin/env python3
"""Plans of drawn configurations by two builds: shows where a change of the planner changed a figure.

    compare_plans.py BEFORE/bin AFTER/bin [--draws 300] [--seed 1] [--sharding FILE ...] [--but FIELD ...]
                     [--figures]

Families, meshes, sharding files, rules, op strategies, what is saved, offload, precisions, backends. All of
the JSON plan but the program's hash must be equal to the byte, or both programs refuse the configuration with
one exit status. The exit status is 1 if a plan differs. With --figures only what a user counts with is
compared: mesh, batch, units, valley, peak and their categories, and bytes sent by axis.
"""
import argparse
import collections
import json
import pathlib
import random
import subprocess
import sys
import tempfile

LLAMA = ["tiny", "llama-1b", "llama2-7b", "llama3-8b", "llama3-70b", "mistral-7b", "qwen2.5-7b", "qwen3-8b"]
GPT2 = ["gpt2", "gpt2-xl"]
AXES = ["data", "tensor", "context", "a", "b"]
PRESETS = ["fsdp", "fsdp-tp", "fsdpv2"]
SAVED = {True: ["layernorm", "linear", "attention", "gelu", "block_inputs"],
         False: ["rmsnorm", "linear", "attention", "swiglu", "residual", "block_inputs"]}  # fmt: skip
LAYER = {True: "transformer.h.*.", False: "model.layers.*."}
# By whether it is GPT-2: matrices of a layer, and modules whose outputs a rule may place.
MATRICES = {True: ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"],
            False: ["self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj",
                    "mlp.down_proj"]}  # fmt: skip
OUTPUTS = {True: ["transformer.ln_f", "transformer.h.*", "transformer.h.*.attn", "transformer.h.*.mlp"],
           False: ["model.norm", "model.layers.*", "model.layers.*.self_attn",
                   "model.layers.*.mlp"]}  # fmt: skip


def divisors(number):
    return [d for d in range(1, number + 1) if number % d == 0]


def draw_mesh(random_, ranks, names):
    sizes = []
    for _ in names[1:]:
        sizes.append(random_.choice(divisors(ranks)))
        ranks //= sizes[-1]
    return ",".join(f"{name}={size}" for name, size in zip(names, [ranks, *sizes]))


def draw_rules(random_, gpt2, names):
    """One to three lines: a matrix on two axes, all lines of a kind, or an output of a module."""
    rules, axes = [], names + ["null"] * 2
    for _ in range(random_.randint(1, 3)):
        if random_.random() < 0.6:
            spec = random_.sample(axes, 2)
            rules.append(f"{LAYER[gpt2]}{random_.choice(MATRICES[gpt2])}.weight=[{', '.join(spec)}]")
        else:
            rows = random_.choice(["data", "[data, fsdp]", "fsdp"])
            output, columns = random_.choice(OUTPUTS[gpt2]), random_.choice(axes)
            rules.append(f"{output}=[{rows}, {random_.choice(axes)}, {columns}]")
    return [word for rule in rules for word in ("--shard", rule)]


def draw_operators(random_, gpt2, ranks, path):
    batch = random_.choice(divisors(ranks))
    tensor, lines = ranks // batch, []
    if random_.random() < 0.7:
        out = random_.choice(MATRICES[gpt2])
        bias = f", [{tensor}]" if gpt2 else ""
        lines.append(f"{LAYER[gpt2]}{out}: [[{batch}, 1], [{tensor}, 1]{bias}]")
    if not lines or random_.random() < 0.5:
        last = MATRICES[gpt2][-1]
        bias = ", [1]" if gpt2 else ""
        lines.append(f"{LAYER[gpt2]}{last}: [[{batch}, {tensor}], [1, {tensor}]{bias}]")
    path.write_text("".join(f"{line}\n" for line in dict.fromkeys(lines)))
    return ["--op-strategies", path]


def draw_sharding(random_, gpt2, folder, files, ranks):
    """Options of how tensors lie on the mesh."""
    names = ["fsdp"] + random_.sample(AXES, random_.randint(1, 2))
    random_.shuffle(names)
    mesh = ["--mesh", draw_mesh(random_, ranks, names)]
    ways = ["strategy", "parallel", "parallel", "preset", "file", "rules", "rules", "operators"]
    way = random_.choice(ways)
    if way == "strategy":
        return ["--strategy", random_.choice(["full", "grad_op", "zero1", "no", "hybrid"])]
    if way == "preset":
        words = [*mesh, "--sharding", random_.choice(PRESETS)]
        return words + (["--extra-data-axis", random_.choice(names)] if random_.random() < 0.3 else [])
    if way == "file" and files and not gpt2:
        names = ["fsdp", "tensor", "context"]
        return ["--mesh", draw_mesh(random_, ranks, names), "--sharding", random_.choice(files)]
    if way == "rules":
        return [*mesh, "--sharding", random_.choice(PRESETS), *draw_rules(random_, gpt2, names)]
    if way == "operators":
        return draw_operators(random_, gpt2, ranks, folder / f"{random_.random()}.yaml")
    tensor = random_.choice([d for d in divisors(ranks) if d <= 16])
    context = random_.choice([d for d in divisors(ranks // tensor) if d <= 4])
    words = ["--tensor-parallel", tensor, "--context-parallel", context]
    words += ["--sequence-parallel", "off"] if tensor > 1 and random_.random() < 0.2 else []
    return words + ["--strategy", random_.choice(["full", "grad_op", "hybrid"])]


def draw_saved(random_, gpt2):
    """One activation, several, all of some layers, or as much as fits a limit."""
    one, two = random_.sample(SAVED[gpt2], 2)
    return random_.choice([one, f"{one},{two}", f"{one}@2", "block", "block:2"])


def draw(random_, folder, files):
    gpt2 = random_.random() < 0.2
    model, ranks = random_.choice(GPT2 if gpt2 else LLAMA), random_.choice([1, 2, 3, 4, 6, 8, 8, 12, 16, 64])
    parts = random_.choice([1, 1, 2, 3])
    words = ["--model", model, "--ranks", ranks, "-b", random_.choice([1, 1, 2, 3]), "--grad-accum", parts]
    words += ["-s", random_.choice([1, 96, 256, 1024])]
    words += draw_sharding(random_, gpt2, folder, files, ranks)
    words += ["--backend", random_.choice(["cpu", "cuda"])]
    wraps = [["--wrap", "block"], ["--wrap", "none"], ["--numel-to-wrap", int(10 ** random_.uniform(4, 9))]]
    words += random_.choice(wraps)
    if random_.random() < 0.4:
        words += ["--recompute", draw_saved(random_, gpt2).replace("block_inputs", "attention")]
    elif random_.random() < 0.4:
        words += ["--offload-activations", draw_saved(random_, gpt2).replace("block:2", "linear")]
    elif random_.random() < 0.2:
        words += ["--recompute", "auto", "--memory-limit", int(10 ** random_.uniform(9, 11))]
    if random_.random() < 0.25:
        words += ["--cpu-offload", "on"]
    if random_.random() < 0.3:
        words += ["--prefetch", random_.choice([0, 2, 3])]
    if parts > 1 and random_.random() < 0.5:
        words += ["--accumulate", random_.choice(["reduce", "local"])]
    for option in ("param", "reduce", "master", "moment"):
        if random_.random() < 0.3:
            words += [f"--{option}-dtype", random_.choice(["bf16", "fp32"])]
    if random_.random() < 0.3:
        words += ["-e", "drawn", "--ckpt-async", random_.choice(["on", "off"])]
    words += ["--grad-clip", random_.choice([0, 1])]
    return [str(word) for word in words]


def plan(folder, words):
    """Exit status, the JSON plan (None if refused) and what was said."""
    command = [pathlib.Path(folder) / "fsdp_plan", "--json", *words]
    process = subprocess.run(command, capture_output=True, text=True)
    made = json.loads(process.stdout) if process.returncode == 0 else None
    return process.returncode, made, process.stderr.strip()


FIGURES = ["mesh", "batch", "units", "comm", "verified"]
BYTES = ["valley_bytes", "peak_bytes", "host_valley_bytes", "host_peak_bytes", "by_category",
         "valley_by_category", "host_by_category"]  # fmt: skip


def figures(made):
    """The part of a JSON plan that users count with."""
    if made is None:
        return None
    return {key: made[key] for key in FIGURES} | {"memory": {key: made["memory"][key] for key in BYTES}}


def differences(a, b, path, but):
    """Places in which two JSON values differ."""
    if path in but:
        return []
    if isinstance(a, dict) and isinstance(b, dict):
        keys = list(dict.fromkeys([*a, *b]))
        return [d for k in keys for d in differences(a.get(k), b.get(k), f"{path}.{k}".lstrip("."), but)]
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [d for i, (x, y) in enumerate(zip(a, b)) for d in differences(x, y, f"{path}[{i}]", but)]
    return [] if a == b else [f"{path}: {str(a)[:160]} | {str(b)[:160]}"]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", help="folder of programs")
    parser.add_argument("after")
    parser.add_argument("--draws", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sharding", nargs="*", default=[], metavar="FILE", help="files to draw from")
    parser.add_argument("--but", nargs="*", default=[], metavar="FIELD", help="fields that may differ")
    parser.add_argument("--only", type=int, help="one draw, by its number")
    parser.add_argument("--figures", action="store_true", help="not the program, waits and the arena")
    options = parser.parse_args()
    random_, seen, differing = random.Random(options.seed), collections.Counter(), 0
    but = {"program.hash", *options.but}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(1, options.draws + 1):
            words = draw(random_, pathlib.Path(folder), options.sharding)
            if options.only not in (None, number):
                continue
            before, after = plan(options.before, words), plan(options.after, words)
            view = figures if options.figures else (lambda made: made)
            found = differences(view(before[1]), view(after[1]), "", but) if before[0] == after[0] else [
                f"exit status {before[0]} | {after[0]}", before[2][:300], after[2][:300]]  # fmt: skip
            seen["equal" if not found and before[1] else "refused by both" if not found else "differing"] += 1
            if not found and before[1] is None and before[2] != after[2]:
                seen["refused with another message"] += 1
                print(f"{number} message: {before[2][:220]}\n    now: {after[2][:220]}")
            if found:
                print(f"{number} differs: {' '.join(words)}", *found[:8], sep="\n    ", flush=True)
                differing += 1
    print(", ".join(f"{count} {name}" for name, count in seen.items()))
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
