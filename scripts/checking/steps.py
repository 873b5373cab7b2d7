"""The steps of a check, in order, each with its limit.

What says most comes first. Until the last of TIMED nothing else may use the GPU. The limits sum to less than
540 s, so that a machine lent for ten minutes shows all of it; what steps leave of theirs, others may take.
"""
import dataclasses
import os

import compare_gpu

SKIPPED = 77
TIMED = ("ceilings", "train", "kernels", "mesh kernels")
TRAIN_STEPS = 6
# Kernels that only meshes have, with the shapes of the first of eight ranks.
MESH_KERNELS = "head_,context_,take_columns,put_columns"
MESH = ["--model", "llama3-8b", "--ranks", "8", "--mesh", "context=2,tensor=4", "--wrap", "block", "-b", "1",
        "-s", "8192"]
# Attention's kernels for compute capability 9.0 (docs/cuda_kernels.md).
WGMMA = ("--attention", "wgmma")


@dataclasses.dataclass
class Step:
    name: str
    limit_s: int
    command: list = None  # None: the runner's own
    show: str = ""  # lines that match are printed as they come
    case: str = None  # of bench/compare_gpu.py
    kind: str = "run"  # run, versions, ceilings, train, kernels, mesh kernels, torch
    tool: str = None  # that it needs
    environment: dict = dataclasses.field(default_factory=dict)


def train(case, limit_s, machine):
    log = os.path.join(machine.work, f"train-{case}.jsonl")
    options = compare_gpu.train_options(case, "cuda", TRAIN_STEPS, log)
    return Step(f"train {case}", limit_s, [machine.program("fsdp_train"), "--log-freq", "1", *options],
                show=r"^step |error", case=case, kind="train")


def kernels(case, limit_s, machine):
    json_file = os.path.join(machine.work, f"kernels-{case}.jsonl")
    command = [machine.program("bench_gpu"), "--json", json_file, "--repeat", "3",
               *compare_gpu.plan_options(case)]
    return Step(f"kernels of {case}", limit_s, command, show=r" ms per step|^all kernels|error", case=case,
                kind="kernels")


def mesh_kernels(limit_s, machine):
    json_file = os.path.join(machine.work, "kernels-mesh.jsonl")
    command = [machine.program("bench_gpu"), "--json", json_file, "--repeat", "3", "--kernels", MESH_KERNELS,
               *MESH]
    return Step("kernels of a mesh", limit_s, command, show=r" ms per step|error", kind="mesh kernels")


def sanitized(tool, limit_s, machine, *arguments):
    """Of the kernels' own tests. They do not depend on gemms chosen by time, which takes long."""
    sanitizer = machine.tools["compute-sanitizer"] or "compute-sanitizer"
    command = [sanitizer, "--tool", tool, "--error-exitcode", "1", machine.test("gpu_kernels"), *arguments]
    return Step(f"{tool} of the kernels", limit_s, command, show=r"ERROR SUMMARY|=== .*(Error|hazard)|FAILED",
                tool="compute-sanitizer", environment={"FSDP_GEMM_CANDIDATES": "1"})


def ranks(part, limit_s, machine):
    return Step(f"ranks: {part}", limit_s, ["python3", machine.source("tests/gpu/gpu_ranks.py"), part],
                show="ends the job|refused|differ", environment={"FSDP_GEMM_CANDIDATES": "1"})


def all_steps(machine):
    kernel_tests, bench = machine.test("gpu_kernels"), machine.program("bench_gpu")
    ceilings = os.path.join(machine.work, "ceilings.jsonl")
    return [
        Step("versions", 5, kind="versions"),
        Step("one case of every op", 12, [kernel_tests, "--each"], show="^FAILED"),
        Step("production attention", 12, [kernel_tests, "production"], show="against fp32|^rate"),
        Step("production attention by wgmma", 12, [kernel_tests, *WGMMA, "production"],
             show="against fp32|^rate"),
        Step("golden data", 10, [machine.test("test_golden")], show=r"\[  FAILED"),
        Step("ceilings", 8, [bench, "--ceilings", "--json", ceilings], show="^ceiling", kind="ceilings"),
        train("llama3-8b-4", 42, machine),
        train("llama3-8b-4-block", 35, machine),
        train("llama-1b-6", 20, machine),
        train("llama-1b-24", 20, machine),
        kernels("llama3-8b-4", 30, machine),
        kernels("llama-1b-6", 20, machine),
        mesh_kernels(10, machine),
        # From here on nothing of ours is timed, and PyTorch compiles meanwhile.
        Step("all kernels", 35, [kernel_tests], show="^FAILED"),
        Step("attention by wgmma", 10, [kernel_tests, *WGMMA, "attention_bf16"], show="^FAILED"),
        Step("strategies", 28, [machine.test("test_strategies")], show=r"\[  FAILED"),
        Step("PyTorch FSDP2 llama3-8b-4-block", 45, case="llama3-8b-4-block", kind="torch"),
        sanitized("memcheck", 27, machine),
        sanitized("racecheck", 27, machine, "--each"),
        sanitized("initcheck", 12, machine, "--each"),
        Step("PyTorch FSDP2 llama-1b-6", 20, case="llama-1b-6", kind="torch"),
        ranks("agree", 35, machine),
        ranks("meshes", 16, machine),
        ranks("refuse", 10, machine),
        ranks("kill", 15, machine),
        ranks("stop", 18, machine),
    ]
