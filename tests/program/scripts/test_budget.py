"""bench_budget lists the work of a step: FLOPs, bytes and launches against closed formulas."""

import os
import pathlib
import re
import sys

import programs

ROOT = programs.ROOT
sys.path.insert(0, str(ROOT / "bench"))
import budget  # noqa: E402
import compare_gpu  # noqa: E402

BUILD = programs.BIN.parent


def plan_of(case):
    return budget.read_plan(BUILD, case)


def linear_numel(shape):
    """Elements of the weights that products take, the head's too; no norms, no embedding."""
    hidden, keys = shape["hidden"], shape["hidden"] // shape["heads"] * shape["kv_heads"]
    layer = 2 * hidden * hidden + 2 * hidden * keys + 3 * hidden * shape["intermediate"]
    return shape["layers"] * layer + shape["vocab"] * hidden


def total(plan, key, *ops):
    return sum(op[key] * op["count"] for op in plan["ops"] if not ops or op["op"] in ops)


def test_products_of_a_step():
    for case in ("llama3-8b-4", "llama-1b-6"):
        plan, (model, seq, batch, _, _) = plan_of(case), compare_gpu.CASES[case]
        shape = compare_gpu.SHAPES[model]
        attention = total(plan, "flops", "attention", "attention_backward")
        # Two products forward and five backward over T (T + 1) / 2 pairs, 2 FLOPs each.
        pairs = batch * seq * (seq + 1) / 2 * shape["hidden"] * shape["layers"]
        assert attention == 7 * 2 * pairs, (case, attention, pairs)
        linear = total(plan, "flops") - attention
        assert linear == 6 * linear_numel(shape) * seq * batch, (case, linear)


def test_recomputed_blocks():
    plain, again = plan_of("llama3-8b-4"), plan_of("llama3-8b-4-block")
    shape = compare_gpu.SHAPES["llama3-8b"]
    blocks = linear_numel(shape) - shape["vocab"] * shape["hidden"]
    forward = ("linear", "linear_add")
    more = total(again, "flops", *forward) - total(plain, "flops", *forward)
    # The last product of a block feeds the residual stream alone, so it is not made again.
    down = shape["layers"] * shape["hidden"] * shape["intermediate"]
    assert more == 2 * (blocks - down) * plain["tokens"], more
    assert [op["count"] for op in again["ops"] if op["op"] == "attention"] == [2 * shape["layers"]]


def test_bytes_of_updates():
    """AdamW reads the gradient and reads and writes three states: 14 bytes an element in bf16, 28 in fp32."""
    for case, width in (("llama3-8b-4", 2), ("llama-1b-6", 4)):
        shape = compare_gpu.SHAPES[compare_gpu.CASES[case][0]]
        numel = linear_numel(shape) + shape["vocab"] * shape["hidden"]
        numel += (2 * shape["layers"] + 1) * shape["hidden"]
        moved = total(plan_of(case), "bytes", "adamw")
        assert 7 * width * numel <= moved <= 1.0001 * 7 * width * numel, (case, moved, numel)


def test_head():
    """Each chunk of rows but the first reads and writes the weight's gradient once more; the rows of logits
    are read twice in fp32 and written once in bf16."""
    plan, shape = plan_of("llama3-8b-4"), compare_gpu.SHAPES["llama3-8b"]
    head = next(op for op in plan["ops"] if op["op"] == "linear_cross_entropy_backward")
    chunks = -(-plan["tokens"] // int(re.search(r"chunks of (\d+)", head["label"]).group(1)))
    weight = 2 * shape["vocab"] * shape["hidden"]
    bytes_once = 2 * weight + 2 * 2 * plan["tokens"] * shape["hidden"] + 4 * plan["tokens"] + 8
    assert head["bytes"] == bytes_once + 2 * (chunks - 1) * weight, head
    assert head["row_bytes"] == 10 * plan["tokens"] * shape["vocab"], head


def test_document():
    text = "\n".join(budget.document(BUILD, ["llama-1b-6"], {}))
    assert text.count("not measured |") == len(plan_of("llama-1b-6")["ops"])
    assert "gpu_check.sh --only kernels" in text
    measured = {op["label"]: 10.0 for op in plan_of("llama-1b-6")["ops"]}
    text = "\n".join(budget.document(BUILD, ["llama-1b-6"], {"llama-1b-6": measured}))
    launches = sum(op["count"] for op in plan_of("llama-1b-6")["ops"])
    assert "not measured" not in text and f"one kernel after the other: {launches / 100:.1f} ms" in text, text
    assert len(measured) == len(plan_of("llama-1b-6")["ops"]), "labels are unique"


def test_committed_document():
    """bench/results/budget-h200.md is of the step as planned now; measurements may stand beside it."""
    def planned(lines):
        return [line.rsplit("|", 2)[0] if line.startswith("|") else line for line in lines
                if line and not line.startswith("Measured")]

    committed = (ROOT / "bench/results/budget-h200.md").read_text().splitlines()
    assert planned(budget.document(BUILD, ["llama3-8b-4", "llama-1b-6"], {})) == planned(committed), (
        "write it again: bench/budget.py --out bench/results/budget-h200.md")


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print(f"ok      {name}")
