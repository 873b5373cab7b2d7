#!/usr/bin/env python3
"""The budget of a training step on one GPU: what each kernel should take at rates that others have reached.

    bench/budget.py [--build build] [--cases llama3-8b-4,llama-1b-6] [--measured FILE] [--out FILE]

Launches, FLOPs and bytes are those of the planned step (bench_budget, from the program itself). --measured
takes what `bench_gpu --json FILE` wrote for the one case given, and fills the last column. The committed
bench/results/budget-h200.md is `bench/budget.py --out bench/results/budget-h200.md`.
"""
import argparse
import json
import os
import subprocess

import compare_gpu
import documents

# A second, on one H200, with who reached it. Data sheet: 989.4 TFLOP/s of bf16, 4.8 TB/s.
RATES = {
    "product": (794e12, "TFLOP/s", "bf16 products, cuBLAS on H100 and H200, as published"),
    "attention": (591e12, "TFLOP/s",
                  "causal, D 128, sequence 4096, forward: cuDNN 9.19 on H200, as published"),
    "attention_backward": (474e12, "TFLOP/s", "the same, backward"),
    "bytes": (3.7e12, "TB/s",
              "RMSNorm both ways on H200, as published (3.7 to 3.8); taken for all that only moves memory"),
}
PEAK_FLOPS = 989.4e12


def rate_of(op):
    """The rate by which an op with FLOPs is priced."""
    return op["op"] if op["op"] in RATES else "product"


def price_s(op):
    """Seconds per launch: the greater of FLOPs at their rate and operands at the memory's rate, plus what
    kernels between the gemms move."""
    moved = op["bytes"] / RATES["bytes"][0]
    computed = op["flops"] / RATES[rate_of(op)][0]
    return max(moved, computed) + op["row_bytes"] / RATES["bytes"][0]


def read_plan(build, case):
    command = [os.path.join(build, "bin", "bench_budget"), *compare_gpu.plan_options(case)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def read_measured(path):
    """Microseconds per launch by label; a truncated file holds fewer."""
    with open(path, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file if line.endswith("\n")]
    return {line["label"]: line["us"] for line in lines}


def op_row(op, measured):
    price, count = price_s(op), op["count"]
    work = f"{op['flops'] / 1e9:.0f}" if op["flops"] else ""
    held = RATES[rate_of(op) if op["flops"] / RATES[rate_of(op)][0] >= op["bytes"] / RATES["bytes"][0]
                 else "bytes"]
    assumed = f"{held[0] / 1e12:g} {held[1]}"
    if op["row_bytes"]:
        assumed += f" + {op['row_bytes'] / 1e9:.1f} GB at {RATES['bytes'][0] / 1e12:g} TB/s"
    us = measured.get(op["label"])
    found = "not measured" if us is None else f"{us * count / 1e3:.2f} ({100e6 * price / us:.0f}%)"
    return (f"| {op['label']} | {count} | {work} | {op['bytes'] / 1e6:.1f} | {assumed} | {1e6 * price:.1f} | "
            f"{1e3 * price * count:.2f} | {found} |")


def total_text(plan, seconds):
    rate = plan["tokens"] / seconds
    return (f"{1e3 * seconds:.1f} ms per step, {rate:,.0f} tokens/s, MFU "
            f"{100 * rate * plan['flops_per_token'] / PEAK_FLOPS:.1f}% of {PEAK_FLOPS / 1e12:.1f} TFLOP/s")


def case_text(case, plan, measured):
    ops = plan["ops"]
    priced = sum(price_s(op) * op["count"] for op in ops)
    lines = [f"## `{case}`: {plan['model']}, {plan['batch']} x {plan['seq']} tokens", "",
             f"`{' '.join(compare_gpu.plan_options(case))}`", "",
             "| kernel | launches | GFLOP | MB | rate assumed | us per launch | ms per step | measured, ms |",
             "| --- | ---: | ---: | ---: | --- | ---: | ---: | --- |",
             *[op_row(op, measured) for op in ops], "", f"Budget: {total_text(plan, priced)}.", ""]
    if all(op["label"] in measured for op in ops):
        spent = sum(measured[op["label"]] * op["count"] for op in ops) / 1e6
        lines += [f"Measured, one kernel after the other: {total_text(plan, spent)}.", ""]
    else:
        lines += ["Measured: not measured; `scripts/gpu_check.sh --only kernels` fills the column.", ""]
    return lines


def document(build, cases, measured):
    """`measured`: microseconds by label, by case."""
    lines = ["# Budget of a step on one H200", "",
             "What each kernel of a planned step should take: its FLOPs or bytes, whichever takes longer, at",
             "these rates. No time between kernels is in it. The percentage beside a measured time is the",
             "budget's share of it.", "", "| rate | assumed | source |", "| --- | --- | --- |",
             *[f"| {name.replace('_', ' ')} | {rate / 1e12:g} {unit} | {source} |"
               for name, (rate, unit, source) in RATES.items()], ""]
    lines += ["MB are operands read and written once; for the head also its weight's gradient once more for",
              "every chunk of rows. Attention at a sequence of 2048 is held to the rate of 4096.", ""]
    for case in cases:
        lines += case_text(case, read_plan(build, case), measured.get(case, {}))
    return lines


def main():
    parser = argparse.ArgumentParser(description="The budget of a training step on one GPU")
    parser.add_argument("--build", default=os.path.join(compare_gpu.ROOT, "build"))
    parser.add_argument("--cases", default="llama3-8b-4,llama-1b-6", type=lambda text: text.split(","))
    parser.add_argument("--measured", help="of bench_gpu --json, for a single case")
    parser.add_argument("--out")
    args = parser.parse_args()
    unknown = [case for case in args.cases if case not in compare_gpu.CASES]
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}; the cases are {', '.join(compare_gpu.CASES)}")
    if args.measured and len(args.cases) != 1:
        parser.error("--measured requires a single --cases")
    measured = {args.cases[0]: read_measured(args.measured)} if args.measured else {}
    documents.write(document(args.build, args.cases, measured), args.out)


if __name__ == "__main__":
    main()
