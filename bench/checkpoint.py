#!/usr/bin/env python3
"""Time that a step loses to a checkpoint: saved while it waits, and saved from a snapshot in the background.

usage: bench/checkpoint.py [--ranks N] [--saves N] [--rounds N] [--layers N] [--hidden N] [--seq-length N]
                           [--steps-between N] [--folder DIR]

Each round runs both ways, one after the other; the figures are the medians of the rounds.

`waited` is what steps themselves waited (the log's time/checkpoint, the mean of the saves); `longer` is how
much longer all steps of the run took together than as many median ones without a save, divided by the saves,
so it holds what the writer thread takes from the cores too, and whatever else the machine does.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import tempfile

import running

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = pathlib.Path(os.environ.get("FSDP_BIN_DIR", ROOT / "build" / "bin"))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--saves", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps-between", type=int, default=6)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--seq-length", type=int, default=32)
    parser.add_argument("--folder", default=None, help="folder to save in (default: a temporary one)")
    return parser.parse_args()


def make_model(folder, options):
    config = running.llama(hidden_size=options.hidden, intermediate_size=options.hidden * 8 // 3,
                           num_hidden_layers=options.layers, num_attention_heads=options.hidden // 64,
                           vocab_size=32000, max_position_embeddings=2048)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))


def measure(work, mode, options):
    """The log's steps of a run in which every step but the first is comparable."""
    steps = options.saves * options.steps_between + options.steps_between - 1
    said = running.call([BIN / "fsdp_train", "--model", work / "model", "--tokenizer", "bytes",
                         "--wrap", "block", "-s", options.seq_length, "-b", 1, "--max-steps", steps,
                         "--set", "measure=off", "--save-dir", work, "-e", mode,
                         "--ckpt-freq", options.steps_between, "--ckpt-async", mode, "--ckpt-keep", 1],
                        ranks=options.ranks)
    lines = running.log_of(work / mode / "log.jsonl")
    size = sum(p.stat().st_size for p in (work / mode).glob("step-*/*"))
    parameters = next(line for line in said.splitlines() if line.startswith("model:"))
    shutil.rmtree(work / mode)
    return lines, size, parameters.split(",", 1)[1].rsplit(",", 1)[0].strip()


def summarize(lines, saves):
    """Milliseconds per save that steps waited, and by how much they took longer. A record's time/checkpoint
    was caused by the step before it and is part of this record's time/total."""
    steps = lines[1:]
    quiet = statistics.median(s["time/total"] for s in steps if s["time/checkpoint"] < 1)
    waited = sum(s["time/checkpoint"] for s in steps) / saves
    longer = sum(s["time/total"] - quiet for s in steps) / saves
    return waited, longer, quiet


def report(rounds, what, options):
    print(f"{what}, {options.ranks} ranks, {options.rounds} rounds of {options.saves} saves\n")
    print("| saved | waited (ms) | longer (ms) | step without a save (ms) | longer, by round |")
    print("| --- | --- | --- | --- | --- |")
    medians = {}
    for mode, name in (("off", "while the step waits"), ("on", "in the background")):
        waited, longer, quiet = medians[mode] = [statistics.median(c) for c in zip(*rounds[mode])]
        by_round = ", ".join(f"{row[1]:.0f}" for row in rounds[mode])
        print(f"| {name} | {waited:.0f} | {longer:.0f} | {quiet:.0f} | {by_round} |")
    parts = [100 * medians["on"][i] / medians["off"][i] for i in range(2)]
    print(f"\nin the background: {parts[0]:.1f}% of the other's waiting, {parts[1]:.1f}% of its lengthening")


def main():
    options = arguments()
    work = pathlib.Path(tempfile.mkdtemp(prefix="fsdp_bench_", dir=options.folder))
    try:
        make_model(work / "model", options)
        rounds = {"off": [], "on": []}
        for _ in range(options.rounds):
            for mode, found in rounds.items():
                lines, size, parameters = measure(work, mode, options)
                found.append(summarize(lines, options.saves))
        report(rounds, f"{parameters}, {size / 1e9:.2f} GB per checkpoint", options)
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
