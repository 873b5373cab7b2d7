#!/usr/bin/env python3
"""Products grouped by expert on a GPU: ours by each kernel, beside our dense product and PyTorch's.

    bench/gpu/grouped.py [FOLDER] [--only MODEL,...] [--rows N,...] [--products KERNEL,...] [--no-torch]

Runs FOLDER's bench_grouped (build-gpu, or its bundle) and bench/gpu/grouped_torch.py by $FSDP_TORCH_PYTHON
(python3), one after the other. TFLOP/s, and in per cent of the dense product with as many rows. $OUT, if it
is set, gets the lines of both as JSON. Status 1 if results differ or, from 512 rows an expert on, our fastest
kernel has less than 85% of the dense product.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "bench")]

from checking.machine import Machine  # noqa: E402

SHARE_LEAST, ROWS_LEAST = 0.85, 512


def lines_of(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def ours(machine, options, folder):
    file = os.path.join(folder, "grouped.jsonl")
    command = [machine.program("bench_grouped"), "--json", file, *options]
    done = subprocess.run(command, check=False)
    if done.returncode not in (0, 1) or not os.path.exists(file):
        sys.exit(done.returncode or 3)
    with open(file, encoding="utf-8") as written:
        return lines_of(written.read()), done.returncode


def torch(options):
    """PyTorch finds its libraries by itself."""
    environment = os.environ | {"LD_LIBRARY_PATH": os.environ["FSDP_PEER_LIBRARY_PATH"]}
    python = os.environ.get("FSDP_TORCH_PYTHON", "python3")
    command = [python, str(ROOT / "bench" / "gpu" / "grouped_torch.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        print(f"PyTorch: {done.stderr.strip()[-1000:]}", file=sys.stderr)
    return lines_of(done.stdout)


def table(lines):
    """Prints it; returns the least share of our fastest kernel from ROWS_LEAST rows on."""
    cases, least = {}, None
    for line in lines:
        cases.setdefault((line["model"], line["rows"], line["op"]), {})[line["by"]] = line
    names = list(dict.fromkeys(line["by"] for line in lines))
    print("| model | rows | op | dense | " + " | ".join(names) + " |")
    print("| --- | ---: | --- | ---: |" + " ---: |" * len(names))
    for (model, rows, op), found in cases.items():
        dense = next((line["dense_us"] for line in found.values() if "dense_us" in line), None)
        if dense is None:
            continue
        shares = {by: dense / line["us"] for by, line in found.items()}
        cells = [f"{found[by]['tflops']:.0f} ({100 * shares[by]:.0f}%)" if by in found else ""
                 for by in names]
        rate = next(line["dense_tflops"] for line in found.values() if "dense_us" in line)
        print(f"| {model} | {rows} | {op} | {rate:.0f} | " + " | ".join(cells) + " |")
        if rows >= ROWS_LEAST:
            best = max(share for by, share in shares.items() if not by.startswith("torch"))
            least = best if least is None else min(least, best)
    return least


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", nargs="?", default="build-gpu")
    parser.add_argument("--only")
    parser.add_argument("--rows")
    parser.add_argument("--products")
    parser.add_argument("--no-torch", action="store_true")
    args = parser.parse_args()
    machine = Machine(args.folder, os.environ)
    machine.set_environment()
    shapes = [word for name in ("only", "rows") if getattr(args, name)
              for word in (f"--{name}", getattr(args, name))]
    kernels = ["--products", args.products] if args.products else []
    with tempfile.TemporaryDirectory() as folder:
        lines, status = ours(machine, shapes + kernels, os.environ.get("OUT", folder))
    lines += [] if args.no_torch else torch(shapes)
    if os.environ.get("OUT"):
        with open(os.path.join(os.environ["OUT"], "grouped-all.jsonl"), "w", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
    least = table(lines)
    if least is not None:
        print(f"least share from {ROWS_LEAST} rows an expert on: {100 * least:.1f}% (wanted: "
              f"{100 * SHARE_LEAST:.0f}%)")
        status = status or int(least < SHARE_LEAST)
    return status


if __name__ == "__main__":
    sys.exit(main())
