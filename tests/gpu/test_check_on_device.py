"""The steps of scripts/gpu_check.sh with the programs that they run on a GPU, here on the emulated one and at
small shapes: each takes the step's options and writes what the runner reads. nvidia-smi is a stand-in. With a
PyTorch in python3, its side runs on the CPU.
"""

import importlib.util
import json
import os
import pathlib
import re
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import programs  # noqa: E402

ROOT = programs.ROOT
BUILD = programs.BIN.parents[1]  # of tests/simt_bin
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "bench")]
import compare_gpu  # noqa: E402
from checking import steps, tools  # noqa: E402
from checking.machine import PROGRAMS, TESTS, Machine  # noqa: E402
from checking.report import Report  # noqa: E402
from checking.runner import Runner  # noqa: E402

SMI = """#!/bin/bash
case "$*" in
  *name,driver*) echo "Emulated, 580.1, 9.0, 143771 MiB" ;;
  *memory.used*) echo 0 ;;
  *) exit 9 ;;
esac
"""
NCCL = "libnccl.so.2"
SIDE = 64  # of the gemm that is the ceiling
# What is not among the emulated programs, and what takes its options.
ELSEWHERE = {"fsdp_plan": "bin/fsdp_plan",
             "gpu_kernels": "tests/simt_kernels", "test_golden": "tests/simt_bin/simt_golden",
             "test_strategies": "tests/test_strategies"}


def make_bundle(work):
    bundle = work / "build-gpu" / "bundle"
    for folder, names in (("bin", PROGRAMS), ("tests", TESTS)):
        (bundle / folder).mkdir(parents=True)
        for name in names:
            (bundle / folder / name).symlink_to(BUILD / ELSEWHERE.get(name, f"tests/simt_bin/{name}"))
    # The emulated NCCL is part of the programs, which name the library all the same, as a bundle has it.
    (bundle / "lib").mkdir()
    (bundle / "lib" / NCCL).touch()
    (bundle / "env.sh").write_text('export FSDP_SIMT=1 LD_LIBRARY_PATH=$here/lib:${LD_LIBRARY_PATH:-}\n')
    smi = work / "cuda" / "nvidia" / "bin" / "nvidia-smi"
    smi.parent.mkdir(parents=True)
    smi.write_text(SMI)
    smi.chmod(0o755)


def make_small():
    """Every case has the name, recomputation and states that it has on a GPU."""
    for name, (_, _, _, recompute, state) in compare_gpu.CASES.items():
        compare_gpu.CASES[name] = ("tiny", 8, 1, recompute, state)
    small = {"llama3-8b": "tiny", "8192": "64"}
    steps.ATTENTION_BATCHES = (2, 1)
    steps.MESH[:] = [small.get(word, word) for word in steps.MESH]


def chosen_steps(machine):
    every = steps.all_steps(machine)
    kept = [step for step in every if step.kind != "run"]
    for step in kept:
        if step.command and step.command[0].endswith("bench_gpu"):
            step.command += ["--side", str(SIDE)]
        if step.kind == "attention":  # every launch takes milliseconds here
            step.command[step.command.index("--repeat") + 1] = "1"
        step.limit_s = 200
    return every, kept


def check_plain_steps(every):
    """Steps that only pass or fail are tests of their own here; they name what there is."""
    names = [step.name for step in every]
    assert len(set(names)) == len(names), names
    for step in every:
        if step.name.startswith("ranks: "):
            assert f'"{step.command[-1]}": ' in pathlib.Path(step.command[1]).read_text(), step
    groups = (ROOT / "tests/simt/twin_main.cpp").read_text()
    tests = [step.command for step in every if step.command and str(step.command[0]).endswith("gpu_kernels")]
    assert tests
    for command in tests:
        for word in command[1:]:
            assert f'"{word}"' in groups or word in ("mma", "wgmma"), (command, word)


def check_training(facts, case):
    figures = facts["train"][case]
    assert len(figures["losses"]) == len(figures["seconds"]) == steps.TRAIN_STEPS, figures
    assert all(0 < loss < 7 for loss in figures["losses"]) and figures["tokens_per_s"] > 0, figures
    assert figures["peak"]["arena"] >= figures["peak"]["planned"] > 0, figures
    # All that the emulated driver has given out, and no other process uses it.
    assert figures["beyond_plan_bytes"] == figures["peak"]["driver"] - figures["peak"]["arena"] >= 0, figures
    assert figures["mfu"] > 0, figures


def check_kernels(facts, case):
    lines = facts["kernels"][case]
    kernels = [line for line in lines if not line["label"].startswith("ceiling")]
    assert len(lines) - len(kernels) == 2 and all(line["us"] > 0 for line in lines), lines
    assert all(line["share"] > 0 and line["count"] > 0 for line in kernels), kernels
    assert len({line["label"] for line in kernels}) == len(kernels) > 30, kernels
    assert all(line["price_us"] > 0 for line in kernels), kernels


def check_attention(lines):
    """Each launch of the backward apart; the forward is one."""
    parts = {line["label"].partition(" ")[0]: [part["kernel"] for part in line.get("parts", [])]
             for line in lines if line["label"].startswith("attention")}
    assert set(parts) == {"attention", "attention_backward"} and not parts["attention"], lines
    assert parts["attention_backward"][0] == "sum_delta" and len(set(parts["attention_backward"])) >= 3, lines
    assert all(part["us"] > 0 for line in lines for part in line.get("parts", [])), lines


def check_mends(out):
    text = (out / "gpu_check.txt").read_text()
    for case in ("llama3-8b-4", "llama-1b-6"):
        assert f"what to change: {case}" in text, text
    assert len(re.findall(r"^  [123]\. [\d.]+ ms to gain: ", text, re.M)) == 6, text


def check_peer(facts, case):
    verdict = facts["verdicts"][case]
    assert verdict["loss"] < 1e-2 and verdict["rate"] > 0, verdict
    assert len(facts["pytorch"][case]["losses"]) == steps.TRAIN_STEPS


def run_steps(work):
    """The facts of gpu_check.json, what steps were run, and the folder of results."""
    make_bundle(work)
    make_small()
    machine = Machine(work / "build-gpu", {**os.environ, "FSDP_TOOLKIT_ROOT": str(work / "cuda")})
    machine.peer_device = "cpu"
    assert machine.gpus == [("Emulated", "580.1", "90", "143771 MiB")], machine.gpus
    every, chosen = chosen_steps(machine)
    check_plain_steps(every)
    os.makedirs(machine.work)
    machine.set_environment()
    # An earlier check's, of more steps.
    (pathlib.Path(machine.work) / "train-llama3-8b-4.jsonl").write_text('{"loss": 1}\n' * 9)
    Runner(machine, Report(str(work / "out")), time.monotonic() + 3600, None).run_all(chosen)
    return json.loads((work / "out" / "gpu_check.json").read_text()), chosen, work / "out"


def check(facts, chosen, out, has_torch):
    results = {row["step"]: row for row in facts["steps"]}
    for step in chosen:
        expected = "skipped" if step.kind == "torch" and not has_torch else "ok"
        assert results[step.name]["result"] == expected, results[step.name]
        if step.kind == "train":
            check_training(facts, step.case)
        elif step.kind == "kernels":
            check_kernels(facts, step.case)
        elif step.kind == "attention":
            check_attention(facts["attention"][step.case])
        elif step.kind == "torch" and has_torch:
            check_peer(facts, step.case)
    check_mends(out)
    assert facts["machine"]["driver"] == "580.1" and "tools" in facts["machine"]
    named = tools.opened_libraries(str(BUILD / "tests/simt_bin/fsdp_train"))
    found = [os.path.basename(os.path.dirname(facts["machine"]["libraries"][name])) for name in named]
    assert named in ([], [NCCL]) and found == ["lib"] * len(named), (named, facts["machine"]["libraries"])
    assert list(facts["ceilings"]) == [f"ceiling: product of {SIDE}^3, bf16",
                                       "ceiling: copy from device to device, read and written"], facts
    meshes = [line["label"] for line in facts["mesh_kernels"]]
    for name in steps.MESH_KERNELS.split(","):
        assert any(label.startswith(name) for label in meshes), (name, meshes)


def main():
    has_torch = importlib.util.find_spec("torch") is not None
    with tempfile.TemporaryDirectory(prefix="fsdp_check_") as work:
        check(*run_steps(pathlib.Path(work)), has_torch)
    print("programs take the options of gpu_check.sh's steps and write what it reads"
          + ("" if has_torch else "; PyTorch is missing, so its side was skipped"))


if __name__ == "__main__":
    main()
