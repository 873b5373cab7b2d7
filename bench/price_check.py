#!/usr/bin/env python3
"""Are steps on this machine priced right? Draws configurations, prices each from a device profile that was
measured here, runs each, and compares.

    python3 bench/price_check.py [--profile FILE] [--count 20] [--ranks 1,2,2,4,1,2,3] [--seed N] [--rounds 3]
                                 [--seconds S] [--build build] [--part K/N] [--rows FILE] [--from ROWS ...]
    python3 bench/price_check.py --ops [the same]

Without --profile it is measured first (fsdp_profile, two minutes). Models from 0.8 to about 60 million
parameters of two families, 1 to 4 ranks, both precisions, every strategy, tensor parallelism, recomputation,
offloading and accumulation are drawn. Each round runs all of them, for about --seconds each. Measured is the
median of all steps but the first two of each run, as the log has them (time/total). It prints a line for
each, the median and the greatest error where ranks do not exceed cores and beyond, how many steps lie in the
range that the price states, and whether any two that differ by more than 15% are ranked right; status 1 if
that is not as wanted. Then each op, as the runs' timelines have it beside the simulated ones.

--part K/N takes the K-th of N parts of the configurations: where a machine's speed changes within minutes,
each part can have a profile just before it. --from adds rows that --rows of earlier runs has written; with
--rounds 0 nothing is run.

With --ops all runs have a timeline: each round measures a profile, unless one is given, and then traces a few
steps of every configuration, which are its measured ones. For each op it prints the milliseconds of a step,
priced and measured, the median over configurations and rounds of priced ÷ measured, and the same divided by
that of all ops of the configuration and round together: on a machine whose speed changes within minutes, the
second tells of the op. Ops within 10% are counted, and weighed by their time. Nothing else should run on the
machine.
"""
import argparse
import array
import collections
import itertools
import json
import os
import pathlib
import random
import statistics
import sys
import tempfile

import running

ROOT = pathlib.Path(__file__).resolve().parents[1]
WARM_UP_STEPS = 2
TRACED_STEPS = 5
TOKENS = 400000
STEP_FLOPS_MAX = 1.2e11  # of products, about a second and a half of two cores
WANTED = {True: (0.10, 0.25), False: (0.20, 0.50)}  # by whether each rank has a core: median, greatest
DIFFERENT = 1.15
WITHIN = 0.10
# By name: family, hidden size, layers, heads, key/value heads, intermediate size, vocabulary.
SHAPES = {
    "llama-0.8m": ("llama", 128, 4, 4, 2, 352, 256),
    "llama-6m": ("llama", 256, 6, 4, 4, 704, 2048),
    "llama-22m": ("llama", 384, 8, 6, 3, 1024, 8192),
    "llama-46m": ("llama", 512, 8, 8, 4, 1408, 16384),
    "llama-61m": ("llama", 640, 10, 10, 5, 1728, 8192),
    "gpt2-3m": ("gpt2", 192, 6, 6, 6, 768, 1024),
    "gpt2-16m": ("gpt2", 384, 8, 6, 6, 1536, 4096),
    "gpt2-38m": ("gpt2", 512, 10, 8, 8, 2048, 10000),
}


def write_tokens(vocabulary, file):
    """Tokens as in a text: the k-th most frequent one of the vocabulary occurs by 1/k (Zipf's law)."""
    weights = list(itertools.accumulate(1 / (k + 1) for k in range(vocabulary)))
    drawn = random.Random(1).choices(range(vocabulary), cum_weights=weights, k=TOKENS)
    file.write_bytes(array.array("H", drawn).tobytes())


def write_model(name, folder):
    family, hidden, layers, heads, kv_heads, intermediate, vocabulary = SHAPES[name]
    llama = running.llama(hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers,
                          num_attention_heads=heads, num_key_value_heads=kv_heads, vocab_size=vocabulary,
                          max_position_embeddings=2048)
    gpt2 = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new",
            "n_embd": hidden, "n_inner": intermediate, "n_layer": layers, "n_head": heads,
            "vocab_size": vocabulary, "n_positions": 2048, "layer_norm_epsilon": 1e-5,
            "initializer_range": 0.02}  # fmt: skip
    (folder / name).mkdir()
    (folder / name / "config.json").write_text(json.dumps(llama if family == "llama" else gpt2))
    write_tokens(vocabulary, folder / name / "tokens.bin")


# ---- Configurations

def draw(rng, ranks):
    """Options of one configuration for `ranks` ranks, without its model's folder."""
    name = rng.choice(list(SHAPES))
    options = {"--param-dtype": rng.choice(["fp32", "fp32", "bf16"]),
               "-b": rng.choice([1, 2, 4]), "-s": rng.choice([128, 256, 512, 1024]),
               "--grad-accum": rng.choice([1, 1, 1, 2, 4]), "--wrap": rng.choice(["block", "block", "none"]),
               "--recompute": rng.choice(["none", "none", "block", "block:2"])}  # fmt: skip
    strategies = ["full", "full", "grad_op", "no", "zero1"]
    if ranks == 4:
        strategies += ["hybrid", "hybrid"]
    options["--strategy"] = rng.choice(strategies)
    if options["--strategy"] == "hybrid":
        options["--mesh"] = "data=2,fsdp=2"
    elif ranks in (2, 4) and rng.random() < 0.25:
        options["--tensor-parallel"] = 2
    offload = rng.random()
    if offload < 0.15:
        options["--cpu-offload"] = "on"
    elif offload < 0.3:
        options["--offload-activations"] = "block_inputs"
    return name, options


def step_flops(name, options, ranks):
    family, hidden, layers, _, _, intermediate, vocabulary = SHAPES[name]
    matrices = 3 if family == "llama" else 2
    weights = layers * (4 * hidden**2 + matrices * hidden * intermediate) + hidden * vocabulary
    return 6 * weights * options["-b"] * options["-s"] * options["--grad-accum"] * ranks


def arguments(folder, name, options):
    return ["--model", str(folder / name), "--backend", "cpu",
            *(str(word) for pair in options.items() for word in pair)]  # fmt: skip


def price(args, folder, name, options, ranks, *more):
    """The priced step in milliseconds and its range; None for a combination that is refused."""
    command = [args.build / "bin/fsdp_plan", *arguments(folder, name, options), "--ranks", str(ranks),
               "--ranks-per-node", str(ranks), "--price", "--profile", args.profile, "--json",
               *more]  # fmt: skip
    said = running.call(command, (0, 2))
    if not said:
        return None
    time = json.loads(said)["time"]
    return time["step_ms"], time["step_low_ms"], time["step_high_ms"]


def draw_all(args, folder):
    """`count` different configurations, or a part of them: ranks take turns, everything else is drawn."""
    rng, rows, seen = random.Random(args.seed), [], set()
    while len(rows) < args.count:
        ranks = args.ranks[len(rows) % len(args.ranks)]
        name, options = draw(rng, ranks)
        key = (ranks, name, *options.items())
        small = step_flops(name, options, ranks) <= STEP_FLOPS_MAX
        priced = price(args, folder, name, options, ranks) if small and key not in seen else None
        seen.add(key)
        if priced:
            rows.append({"number": len(rows) + 1, "ranks": ranks, "model": name, "options": options,
                         "expected_ms": priced[0], "range_ms": priced[1:], "steps": []})  # fmt: skip
    part, parts = args.part
    return rows[(part - 1) * len(rows) // parts : part * len(rows) // parts]


# ---- Runs

def run(args, folder, row, *more):
    log = folder / "log.jsonl"
    log.unlink(missing_ok=True)
    steps = WARM_UP_STEPS + max(4, min(60, int(1e3 * args.seconds / row["expected_ms"])))
    if more:
        steps = WARM_UP_STEPS + TRACED_STEPS
    words = arguments(folder, row["model"], row["options"])
    running.call(["mpirun", "-np", row["ranks"], args.build / "bin/fsdp_train", *words, "--init", "random",
                  "--data", folder / row["model"] / "tokens.bin", "--set", "measure=off", "--max-steps",
                  steps, "--log", log, *more])  # fmt: skip
    row["steps"] += [line["time/total"] for line in running.log_of(log)[WARM_UP_STEPS:]]


# ---- Ops

def ops_of(file):
    """By the instruction's position in the program: the op's name, and the median of its milliseconds over
    ranks and steps."""
    times, names = collections.defaultdict(list), {}
    for event in json.loads(file.read_text())["traceEvents"]:
        if event["ph"] == "X" and event["cat"] == "op":
            position = event["args"]["section"], event["args"]["position"]
            names[position] = event["args"]["op"]
            times[position].append(event["dur"] / 1e3)
    return {position: (names[position], statistics.median(each)) for position, each in times.items()}


def compare_ops(args, folder, row):
    """One more round of the row: milliseconds a step by op, priced and measured."""
    simulated, measured = folder / "simulated.json", folder / "measured.json"
    price(args, folder, row["model"], row["options"], row["ranks"], "--trace", simulated)
    first = WARM_UP_STEPS + 1
    run(args, folder, row, "--trace", measured, "--trace-steps", f"{first}:{first + TRACED_STEPS - 1}")
    priced, timed = ops_of(simulated), ops_of(measured)
    ops = {}
    for position in priced.keys() & timed.keys():
        name, milliseconds = priced[position]
        assert timed[position][0] == name, (position, name, timed[position])
        sums = ops.setdefault(name, [0, 0])
        sums[0] += milliseconds
        sums[1] += timed[position][1]
    row.setdefault("ops", []).append(ops)


def count_within(what, ratios, share):
    within = [name for name, ratio in ratios.items() if abs(ratio - 1) <= WITHIN]
    print(f"{what} within {100 * WITHIN:.0f}%: {len(within)} of {len(ratios)} ops, "
          f"{100 * sum(share[name] for name in within):.1f}% of their time")


def print_ops(rows):
    """By op: medians over configurations and rounds."""
    sums, ratios, relative = {}, collections.defaultdict(list), collections.defaultdict(list)
    for ops in (ops for row in rows for ops in row["ops"]):
        whole = sum(each[0] for each in ops.values()) / sum(each[1] for each in ops.values())
        for name, (priced, measured) in ops.items():
            ratios[name].append(priced / measured)
            relative[name].append(priced / measured / whole)
            of = sums.setdefault(name, [0, 0])
            of[0] += priced
            of[1] += measured
    rounds, total = sum(len(row["ops"]) for row in rows), sum(measured for _, measured in sums.values())
    share = {name: measured / total for name, (_, measured) in sums.items()}
    ratios = {name: statistics.median(each) for name, each in ratios.items()}
    print(f"{'op':>30} {'priced':>9} {'measured':>9} {'ratio':>6} {'÷ all':>6} {'time':>7}  milliseconds a "
          "step in the mean; medians of the ratios")
    for name in sorted(share, key=lambda each: -share[each]):
        each = relative[name]
        print(f"{name:>30} {sums[name][0] / rounds:9.3f} {sums[name][1] / rounds:9.3f} {ratios[name]:6.2f} "
              f"{statistics.median(each):6.2f} {100 * share[name]:6.2f}%  of {len(each)}")
    count_within("ratio", ratios, share)
    count_within("÷ all", {name: statistics.median(each) for name, each in relative.items()}, share)


# ---- What came of it

def settle(row):
    row["measured_ms"] = statistics.median(row["steps"])
    row["error"] = row["expected_ms"] / row["measured_ms"] - 1
    row["inside"] = row["range_ms"][0] <= row["measured_ms"] <= row["range_ms"][1]


def is_good(rows, cores):
    good = True
    for inside in (True, False):
        errors = sorted(abs(row["error"]) for row in rows if (row["ranks"] <= cores) == inside)
        if not errors:
            continue
        median, most = statistics.median(errors), errors[-1]
        as_wanted = median <= WANTED[inside][0] and most <= WANTED[inside][1]
        good = good and as_wanted
        print(f"{len(errors)} of {'at most' if inside else 'more than'} {cores} ranks: median error "
              f"{100 * median:.1f}%, greatest {100 * most:.1f}%"
              f" (wanted {100 * WANTED[inside][0]:.0f}%, {100 * WANTED[inside][1]:.0f}%)")
    print(f"inside the printed range: {sum(row['inside'] for row in rows)} of {len(rows)}")
    pairs = [pair for pair in itertools.combinations(rows, 2)
             if max(row["measured_ms"] for row in pair) > DIFFERENT * min(row["measured_ms"] for row in pair)]
    wrong = [pair for pair in pairs if (pair[0]["measured_ms"] < pair[1]["measured_ms"])
             != (pair[0]["expected_ms"] < pair[1]["expected_ms"])]  # fmt: skip
    print(f"ranked right: {len(pairs) - len(wrong)} of {len(pairs)} pairs that differ by more than 15%")
    for a, b in wrong:
        print(f"  wrong: {a['number']} and {b['number']}")
    return good and not wrong


def print_rows(rows):
    print(f"{'':>3} {'expected':>9} {'range':>17} {'measured':>9} {'error':>7}  ranks, configuration "
          "(milliseconds a step)")
    for row in rows:
        options = row["options"].items()
        words = " ".join(f"{key} {value}" for key, value in options if value not in (1, "none", "fp32"))
        low, high = row["range_ms"]
        print(f"{row['number']:>3} {row['expected_ms']:9.1f} {low:8.1f} {high:8.1f} "
              f"{row['measured_ms']:9.1f} {100 * row['error']:+6.1f}%  {row['ranks']} {row['model']} {words}")


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--profile", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--ranks", type=lambda text: [int(each) for each in text.split(",")],
                        default=[1, 2, 2, 4, 1, 2, 3], help="ranks of the configurations, in turn")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--part", type=lambda text: [int(each) for each in text.split("/")], default=[1, 1],
                        metavar="K/N", help="the K-th of N parts of the configurations")  # fmt: skip
    parser.add_argument("--rows", type=pathlib.Path, help="every row, as JSON, as soon as it is complete")
    parser.add_argument("--ops", action="store_true", help="runs with a timeline alone")
    parser.add_argument("--from", type=pathlib.Path, nargs="*", default=[], dest="earlier",
                        help="rows of earlier runs")  # fmt: skip
    return parser.parse_args()


def complete(args, folder, row):
    """Traces the row and keeps it, also if what comes after it is cut off."""
    compare_ops(args, folder, row)
    settle(row)
    if args.rows:
        with args.rows.open("a") as file:
            file.write(json.dumps(row) + "\n")


def check_ops(args, folder, given):
    rows = []
    for _ in range(args.rounds):
        if not given:
            args.profile = running.measure_profile(args.build, max(args.ranks), folder / "here.yaml")
        drawn = draw_all(args, folder)
        for row in drawn:
            complete(args, folder, row)
        rows += drawn
    return rows


def check_steps(args, folder, given):
    if args.rounds and not given:
        args.profile = running.measure_profile(args.build, max(args.ranks), folder / "here.yaml")
    drawn = draw_all(args, folder) if args.rounds else []
    for _ in range(args.rounds):
        for row in drawn:
            run(args, folder, row)
    for row in drawn:
        complete(args, folder, row)
    return drawn


def main():
    args = parse()
    given = bool(args.profile)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="price_check_"))
    for name in SHAPES:
        write_model(name, folder)
    earlier = [row for file in args.earlier for row in running.log_of(file)]
    if args.rows:
        args.rows.write_text("")
    drawn = check_ops(args, folder, given) if args.ops else check_steps(args, folder, given)
    rows = sorted(earlier + drawn, key=lambda row: row["number"])
    print_rows(rows)
    print_ops(rows)
    return 0 if is_good(rows, len(os.sched_getaffinity(0))) else 1


if __name__ == "__main__":
    sys.exit(main())
