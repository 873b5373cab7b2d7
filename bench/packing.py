#!/usr/bin/env python3
"""What packing documents into rows gives on this machine, and whether a step of such rows is priced right.

    bench/packing.py [--build build] [--profile FILE] [--rounds 5] [--steps 8] [--price-steps 24]
                     [--ranks 1] [--only speed|price] [--page FILE]

Documents of log-normal lengths (of bytes), rows of 2048, a Llama of 0.8 million parameters. Speed: best-fit
rows, one document a row (--packing off) and an unmasked stream of the same documents, one after the other in
each round; real tokens a second of all steps but the first two, and the medians of the rounds' ratios. Price:
for three distributions, the step that fsdp_plan prices with --data from the profile, which is measured first
if none is given, beside the mean over 24 steps of the medians of the rounds' times of each: rows have unequal
work, and a price is that of the mean one. Nothing else should run on the machine; where that cannot be had,
--clock cpu compares speeds by the processor's seconds of one thread, less those of a run that ends where the
counting begins, and leaves out prices.
"""
import argparse
import json
import math
import pathlib
import random
import resource
import statistics
import sys
import tempfile

from running import call, llama, log_of, measure_profile, write

ROOT = pathlib.Path(__file__).resolve().parents[1]
SEQ, WARM_UP_STEPS = 2048, 2
MODEL = llama(hidden_size=128, intermediate_size=352, num_hidden_layers=4, num_attention_heads=4,
              num_key_value_heads=2, vocab_size=256, max_position_embeddings=SEQ)
LENGTHS = ((120, 0.9), (300, 1.0), (700, 0.9))  # mean, deviation of the logarithm
MIDDLE = LENGTHS[1]
WAYS = {"best-fit": ("--packing", "best-fit"), "off": ("--packing", "off"),
        "stream": ("--packing", "stream", "--document-mask", "off")}  # fmt: skip
WANTED = {"off": 5.0, "stream": 1.0}
PRICE_WITHIN = 0.10


def write_documents(path, mean, deviation, count):
    rng = random.Random(f"{mean} {deviation}")
    with open(path, "w", encoding="ascii") as file:
        for _ in range(count):
            length = round(rng.lognormvariate(math.log(mean) - deviation**2 / 2, deviation))
            text = "".join(rng.choices("abcdefgh ", k=max(length - 1, 1)))  # byte 0 ends it
            file.write(json.dumps({"text": text}) + "\n")


def arguments(args, work, data, *options):
    return ["--model", work, "--init", "random", "--tokenizer", "bytes", "--backend", "cpu", "--data", data,
            "-s", SEQ, "-b", 1, *options]


def run(args, work, steps, data, *options):
    """The steps behind the first ones, as the log has them, and the seconds of processors that all took."""
    log = work / "log.jsonl"
    log.unlink(missing_ok=True)
    command = [args.build / "bin/fsdp_train", *arguments(args, work, data, *options), "--set", "measure=off",
               "--max-steps", WARM_UP_STEPS + steps, "--log", log, "--log-freq", 1000]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    call(command, ranks=args.ranks)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return log_of(log)[WARM_UP_STEPS:], after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def rate(args, work, data, options):
    """Real tokens a second."""
    lines, seconds = run(args, work, args.steps, data, *options)
    if args.clock == "cpu":
        seconds -= run(args, work, 0, data, *options)[1]
    else:
        seconds = sum(line["time/total"] for line in lines) / 1e3
    return sum(line["real_tokens"] for line in lines) / seconds


def speed(args, work, data, lines):
    rates = {way: [] for way in WAYS}
    for _ in range(args.rounds):
        for way, options in WAYS.items():
            more = ("--threads", 1) if args.clock == "cpu" else ()
            rates[way].append(rate(args, work, data, (*options, *more)))
    good = True
    lines += ["| rows | real tokens/s, median round | best-fit is faster by |", "| --- | --- | --- |"]
    for way, each in rates.items():
        ratios = [ours / other for ours, other in zip(rates["best-fit"], each)]
        good &= statistics.median(ratios) >= WANTED.get(way, 0)
        lines.append(f"| {way} | {statistics.median(each):,.0f} | {statistics.median(ratios):.2f} "
                     f"({min(ratios):.2f} to {max(ratios):.2f}) |")
    return good


def price(args, work, files, lines):
    expected, measured = {}, {key: [] for key in files}
    for key, data in files.items():
        command = [args.build / "bin/fsdp_plan", *arguments(args, work, data, *WAYS["best-fit"]), "--ranks",
                   args.ranks, "--ranks-per-node", args.ranks, "--price", "--profile", args.profile, "--json"]
        expected[key] = json.loads(call(command))["time"]["step_ms"]
    for _ in range(args.rounds):
        for key, data in files.items():
            steps, _ = run(args, work, args.price_steps, data, *WAYS["best-fit"])
            measured[key].append([line["time/total"] for line in steps])
    good = True
    lines += ["", "| mean length, deviation of its logarithm | priced step, ms | measured, mean step "
              "| fastest and slowest step | error |", "| --- | --- | --- | --- | --- |"]
    for key, rounds in measured.items():
        steps = [statistics.median(each) for each in zip(*rounds, strict=True)]
        error = expected[key] / statistics.mean(steps) - 1
        good &= abs(error) <= PRICE_WITHIN
        lines.append(f"| {key[0]}, {key[1]} | {expected[key]:.1f} | {statistics.mean(steps):.1f} "
                     f"| {min(steps):.1f} to {max(steps):.1f} | {100 * error:+.1f}% |")
    return good


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--profile", type=pathlib.Path, help="of this machine (default: measured first)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--price-steps", type=int, default=24)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--only", choices=("speed", "price"))
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--page", help="write the tables here")
    return parser.parse_args()


def main():
    args, lines = parse(), []
    with tempfile.TemporaryDirectory(prefix="packing_") as folder:
        work = pathlib.Path(folder)
        (work / "config.json").write_text(json.dumps(MODEL))
        files = {}
        for mean, deviation in LENGTHS:
            files[mean, deviation] = work / f"{mean}.jsonl"
            write_documents(files[mean, deviation], mean, deviation, 4_000_000 // mean)
        priced = args.clock == "wall" and args.only != "speed"
        if not args.profile and priced:
            args.profile = measure_profile(args.build, args.ranks, work / "here.yaml")
        good = args.only == "price" or speed(args, work, files[MIDDLE], lines)
        if priced:
            good &= price(args, work, files, lines)
    write(lines, args.page)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
