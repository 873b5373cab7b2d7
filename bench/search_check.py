#!/usr/bin/env python3
"""Is what the search chooses fast? Searches a plan for four CPU ranks, runs it beside twelve settings that a
person would try, and compares.

    bench/search_check.py [--profile FILE] [--model llama-6m] [--seq 256] [--global-batch 16] [--rounds 3]
                          [--steps 6] [--build build]

Without --profile this machine is measured first (fsdp_profile, two minutes). All settings train on as many
sequences a step. Each round runs all of them in turn; measured is the median of all steps but the first two
of each run, as the log has them (time/total). Status 1 if the choice takes more than 10% longer than the
fastest. Nothing else should run on the machine.
"""
import argparse
import json
import pathlib
import statistics
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench"))

from price_check import SHAPES, WARM_UP_STEPS, write_model  # noqa: E402
from running import call, log_of, measure_profile  # noqa: E402

RANKS = 4
WANTED = 1.10


def settings(batch):
    """Twelve settings by hand, each of `batch` sequences a step over all ranks."""
    each = batch // RANKS
    block = ["--wrap", "block"]
    rows = [["--strategy", strategy, *block, "-b", each] for strategy in ("full", "grad_op", "zero1", "no")]
    rows += [["--strategy", strategy, "--wrap", "none", "-b", each] for strategy in ("full", "no")]
    rows += [["--strategy", "full", *block, "-b", each // 2, "--grad-accum", 2],
             ["--strategy", "zero1", *block, "-b", each // 2, "--grad-accum", 2],
             ["--strategy", "full", *block, "-b", each, "--recompute", "block"],
             ["--strategy", "hybrid", "--mesh", "data=2,fsdp=2", *block, "-b", each],
             ["--strategy", "full", *block, "-b", 2 * each, "--tensor-parallel", 2],
             ["--strategy", "no", *block, "-b", batch, "--tensor-parallel", RANKS]]  # fmt: skip
    return [[str(word) for word in row] for row in rows]


def plan(args, model, *more):
    return [args.build / "bin/fsdp_plan", *model, "--ranks", RANKS, "--ranks-per-node", RANKS, "--profile",
            args.profile, *more]  # fmt: skip


def run_once(args, folder, words):
    """The steps' milliseconds of one run."""
    log = folder / "log.jsonl"
    log.unlink(missing_ok=True)
    call(["mpirun", "-np", RANKS, args.build / "bin/fsdp_train", *words, "--init", "random", "--tokenizer",
          "bytes", "--set", "measure=off", "--max-steps", WARM_UP_STEPS + args.steps,
          "--log", log])  # fmt: skip
    return [line["time/total"] for line in log_of(log)[WARM_UP_STEPS:]]


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--profile", type=pathlib.Path)
    parser.add_argument("--model", choices=SHAPES, default="llama-6m")
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--global-batch", type=int, default=16, help="a multiple of 8")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    args = parser.parse_args()
    if args.global_batch < 8 or args.global_batch % 8:
        parser.error(f"--global-batch {args.global_batch}: give a multiple of 8, which all settings divide")
    return args


def main():
    args = parse()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="search_check_"))
    write_model(args.model, folder)
    if not args.profile:
        args.profile = measure_profile(args.build, RANKS, folder / "here.yaml")
    model = ["--model", folder / args.model, "--backend", "cpu", "-s", args.seq]
    best = folder / "best.yaml"
    call(plan(args, model, "--search", "--global-batch", args.global_batch, "--save-plan", best))
    rows = [{"name": " ".join(words), "words": [*model, *words]} for words in settings(args.global_batch)]
    for row in rows:
        row["priced"] = json.loads(call(plan(args, row["words"], "--price", "--json")))["time"]["step_ms"]
    lines = [line for line in best.read_text().splitlines() if not line.startswith(("#", "model:"))]
    pairs = [line.split(": ", 1) for line in lines]
    options = " ".join(f"--{option} {json.loads(value)}" for option, value in pairs)
    chosen = {"name": f"chosen: {options}", "words": ["--config", best]}
    chosen["priced"] = json.loads(call([args.build / "bin/fsdp_plan", "--config", best, "--ranks", RANKS,
                                        "--ranks-per-node", RANKS, "--profile", args.profile, "--price",
                                        "--json"]))["time"]["step_ms"]  # fmt: skip
    rows.append(chosen)
    steps = [[] for _ in rows]
    for _ in range(args.rounds):
        for times, row in zip(steps, rows):
            times += run_once(args, folder, row["words"])
    for times, row in zip(steps, rows):
        row["measured"] = statistics.median(times)
    print(f"{args.model}, {args.global_batch} x {args.seq} tokens a step on {RANKS} ranks; milliseconds")
    print(f"{'priced':>8} {'measured':>8}")
    for row in sorted(rows, key=lambda row: row["measured"]):
        print(f"{row['priced']:8.1f} {row['measured']:8.1f}  {row['name']}")
    ratio = chosen["measured"] / min(row["measured"] for row in rows[:-1])
    print(f"chosen / fastest by hand: {ratio:.3f} (wanted at most {WANTED:.2f})")
    return 0 if ratio <= WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
