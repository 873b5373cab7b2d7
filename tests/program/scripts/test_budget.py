"""The prices of bench/results/budget-h200.md, and the FLOPs of a step against closed formulas."""

import json
import re
import shlex
import sys

import programs

sys.path.insert(0, str(programs.ROOT / "bench"))
import compare_gpu  # noqa: E402

DOCUMENT = programs.ROOT / "bench/results/budget-h200.md"


def price_of(case):
    options = [*compare_gpu.plan_options(case), "--profile", "h200", "--price", "--json"]
    return json.loads(programs.run("fsdp_plan", *options).stdout)["time"]


def linear_numel(shape):
    """Elements of the weights that products take, the head's too; no norms, no embedding."""
    hidden, keys = shape["hidden"], shape["hidden"] // shape["heads"] * shape["kv_heads"]
    layer = 2 * hidden * hidden + 2 * hidden * keys + 3 * hidden * shape["intermediate"]
    return shape["layers"] * layer + shape["vocab"] * hidden


def test_flops_of_a_step():
    for case in ("llama3-8b-4", "llama-1b-6"):
        model, seq, batch, _, _ = compare_gpu.CASES[case]
        shape = compare_gpu.SHAPES[model]
        # Two products forward and five backward over T (T + 1) / 2 pairs, 2 FLOPs each.
        attention = 7 * 2 * batch * seq * (seq + 1) / 2 * shape["hidden"] * shape["layers"]
        price = price_of(case)
        assert price["flops"] == 6 * linear_numel(shape) * seq * batch + attention, (case, price["flops"])
        assert abs(sum(price["parts_ms"].values()) / price["step_ms"] - 1) < 1e-9, price


def test_recomputed_blocks():
    model, seq, batch, _, _ = compare_gpu.CASES["llama3-8b-4"]
    shape = compare_gpu.SHAPES[model]
    # The last product of a block feeds the residual stream alone, so it is not made again.
    blocks = linear_numel(shape) - shape["vocab"] * shape["hidden"]
    blocks -= shape["layers"] * shape["hidden"] * shape["intermediate"]
    attention = 2 * 2 * batch * seq * (seq + 1) / 2 * shape["hidden"] * shape["layers"]
    more = price_of("llama3-8b-4-block")["flops"] - price_of("llama3-8b-4")["flops"]
    assert more == 2 * blocks * seq * batch + attention, more


def test_document():
    """What the document's commands print now."""
    blocks = re.findall(r"^```\n\$ fsdp_plan (.*)\n((?:.*\n)*?)```$", DOCUMENT.read_text(), re.M)
    assert len(blocks) == 2
    for options, text in blocks:
        printed = programs.run("fsdp_plan", *shlex.split(options)).stdout
        assert text.strip() and text.rstrip() in printed, f"write it again: {options}\n{printed}"


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print(f"ok      {name}")
