#!/usr/bin/env python3
"""torch._grouped_mm at bench_grouped's shapes; prints a line of JSON for each op.

    bench/gpu/grouped_torch.py [--only MODEL,...] [--rows N,...]

bf16, random normal operands, the median of 5 measurements by events of at least 5 ms each. The product alone
is "torch"; where ours gathers rows as it loads them, "torch+gather" is an index_select before the product.
"""
import argparse
import json
import statistics

import torch

MODELS = {"mixtral": (4096, 14336, 8, 2), "qwen3-30b": (2048, 768, 128, 8), "olmoe": (2048, 1024, 64, 8)}
MEASURE_MS, REPEATS = 5.0, 5


def time_ms(call, launches):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(launches):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / launches


def median_us(call):
    call()
    launches = max(1, int(MEASURE_MS / time_ms(call, 2)))
    return 1e3 * statistics.median(time_ms(call, launches) for _ in range(REPEATS))


def normal(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def products(channels, intermediate, experts, slots, rows):
    """(op, whether ours gathers, multiply-adds, product of the routed rows)."""
    routed = experts * rows
    tokens = routed // slots
    ends = torch.arange(1, experts + 1, device="cuda", dtype=torch.int32) * rows
    order = torch.cat([torch.randperm(tokens, device="cuda") for _ in range(slots)])
    order = order.view(experts, rows).sort(dim=1).values.flatten()
    for name, out, width in (("up", 2 * intermediate, channels), ("down", channels, intermediate)):
        weight, sizes = normal(experts, out, width), routed * out * width
        x, d_y = normal(routed, width), normal(routed, out)
        x_tokens = normal(tokens, width) if name == "up" else None
        d_y_tokens = normal(tokens, out) if name == "down" else None
        forms = (
            ("", x_tokens, x, lambda a: torch._grouped_mm(a, weight.transpose(1, 2), offs=ends)),
            ("_backward_input", d_y_tokens, d_y, lambda a: torch._grouped_mm(a, weight, offs=ends)),
            ("_backward_weight", x_tokens, x, lambda a: torch._grouped_mm(d_y.t(), a, offs=ends))
            if name == "up" else
            ("_backward_weight", d_y_tokens, d_y, lambda a: torch._grouped_mm(a.t(), x, offs=ends)),
        )
        for form, source, factor, product in forms:
            yield f"expert_{name}{form}", sizes, "torch", lambda: product(factor)
            if source is not None:
                yield (f"expert_{name}{form}", sizes, "torch+gather",
                       lambda: product(source.index_select(0, order)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default=",".join(MODELS))
    parser.add_argument("--rows", default="32,128,512,2048")
    args = parser.parse_args()
    for model in args.only.split(","):
        for rows in map(int, args.rows.split(",")):
            for op, sizes, by, call in products(*MODELS[model], rows):
                us = median_us(call)
                print(json.dumps({"model": model, "rows": rows, "op": op, "by": by, "us": us,
                                  "tflops": 2 * sizes / us / 1e6}), flush=True)


if __name__ == "__main__":
    main()
