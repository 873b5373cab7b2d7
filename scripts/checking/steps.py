"""The steps of a check, in order, each with its limit.

What says most comes first. Until the last of TIMED nothing else may use the GPU. The limits sum to less than
540 s, so that a machine lent for ten minutes shows all of it; what steps leave of theirs, others may take.
Cases are those that the GPU has memory for: an H200 trains 8B with all activations at batch 4, a card of
80 GB at batch 1, and with recomputation at the batch that PyTorch has room for too.
"""
import dataclasses
import os

import compare_gpu

SKIPPED = 77
TIMED = ("attention", "ceilings", "train", "kernels", "mesh kernels")
TRAIN_STEPS = 6
# Kernels that only meshes have, with the shapes of the first of eight ranks.
MESH_KERNELS = "head_,context_,take_columns,put_columns"
MESH = ["--model", "llama3-8b", "--ranks", "8", "--mesh", "context=2,tensor=4", "--wrap", "block", "-b", "1",
        "-s", "8192"]
# Kernels of attention by the first compute capability that has them, and the last (docs/cuda_kernels.md).
ATTENTION = {"mma": (80, 999), "wgmma": (90, 90), "general": (80, 999)}
ATTENTION_BATCHES = (4, 1)
SLOW_ATTENTION = "general"  # without tensor cores: at the least batch, and tested by every other step in fp32
KERNELS_CASE = "llama3-8b-4"  # whose kernels are timed one by one, which takes little memory
# The first for which there is memory.
PLAIN_CASES = ("llama3-8b-4", "llama3-8b-2", "llama3-8b-1")
BLOCK_CASES = ("llama3-8b-4-block", "llama3-8b-2-block")
ONE_ALGORITHM = {"FSDP_GEMM_CANDIDATES": "1"}  # of each product: none is measured where speed does not matter


@dataclasses.dataclass
class Step:
    name: str
    limit_s: int
    command: list = None  # None: the runner's own
    show: str = ""  # lines that match are printed as they come
    case: str = None  # of bench/compare_gpu.py
    kind: str = "run"  # run, versions, attention, ceilings, train, kernels, mesh kernels, torch
    tool: str = None  # that it needs
    environment: dict = dataclasses.field(default_factory=dict)
    lacks: str = None  # of this machine: why the step is left out


def chosen_case(cases, machine, is_peer):
    """The first that this GPU has memory for, our side's and, where both are compared, PyTorch's; else the
    last, and what is lacking."""
    for case in cases:
        if all(compare_gpu.has_room(case, machine.gpu_bytes, peer) for peer in (False, is_peer)):
            return case, None
    side = compare_gpu.CASE_GB[cases[-1]][is_peer]
    return cases[-1], f"it takes {side} GB, and this GPU has {machine.gpu_bytes / 1e9:.0f}"


def train(cases, limit_s, machine, is_peer=False):
    case, lacks = chosen_case(cases, machine, is_peer)
    log = os.path.join(machine.work, f"train-{case}.jsonl")
    options = compare_gpu.train_options(case, "cuda", TRAIN_STEPS, log)
    return Step(f"train {case}", limit_s, [machine.program("fsdp_train"), "--log-freq", "1", *options],
                show=r"^step |error", case=case, kind="train", lacks=lacks)


def torch(cases, limit_s, machine):
    case, lacks = chosen_case(cases, machine, is_peer=True)
    return Step(f"PyTorch FSDP2 {case}", limit_s, case=case, kind="torch", lacks=lacks)


def attention_kernels(machine):
    """Those that this GPU has."""
    return [name for name, (first, last) in ATTENTION.items() if first <= machine.capability <= last]


def attention(kernel, batch, limit_s, machine):
    """Forward and backward in the shapes of an 8B model, each launch of the backward apart."""
    json_file = os.path.join(machine.work, f"attention-{kernel}-{batch}.jsonl")
    options = compare_gpu.plan_options(KERNELS_CASE)
    options[options.index("--batch-size") + 1] = str(batch)
    options += ["--attention", kernel, *(["--unfenced"] if kernel == "wgmma" else [])]
    command = [machine.program("bench_gpu"), "--kernels", "attention", "--parts", "--repeat", "5", "--json",
               json_file, *options]
    return Step(f"attention by {kernel}, batch {batch}", limit_s, command, show="^attention|of it|error",
                case=f"{kernel}, batch {batch}", kind="attention")


def tests_by(kernel, name, limit_s, group, show, machine):
    return Step(f"{name} by {kernel}", limit_s, [machine.test("gpu_kernels"), "--attention", kernel, group],
                show=show)


def kernels(case, limit_s, machine):
    json_file = os.path.join(machine.work, f"kernels-{case}.jsonl")
    command = [machine.program("bench_gpu"), "--json", json_file, "--repeat", "3", "--profile", "h200",
               *compare_gpu.plan_options(case)]
    return Step(f"kernels of {case}", limit_s, command, show=r" ms per step|^all kernels|error", case=case,
                kind="kernels")


def mesh_kernels(limit_s, machine):
    json_file = os.path.join(machine.work, "kernels-mesh.jsonl")
    command = [machine.program("bench_gpu"), "--json", json_file, "--repeat", "3", "--kernels", MESH_KERNELS,
               *MESH]
    return Step("kernels of a mesh", limit_s, command, show=r" ms per step|error", kind="mesh kernels")


def sanitized(tool, limit_s, machine, *options):
    """One case of every op. It does not depend on gemms chosen by time, which takes long."""
    sanitizer = machine.tools["compute-sanitizer"] or "compute-sanitizer"
    command = [sanitizer, "--tool", tool, "--error-exitcode", "1", *options, machine.test("gpu_kernels"),
               "--each"]
    return Step(f"{tool} of the kernels", limit_s, command, show=r"ERROR SUMMARY|=== .*(Error|hazard)|FAILED",
                tool="compute-sanitizer", environment=ONE_ALGORITHM)


def ranks(part, limit_s, machine):
    return Step(f"ranks: {part}", limit_s, ["python3", machine.source("tests/gpu/gpu_ranks.py"), part],
                show="ends the job|refused|differ", environment=ONE_ALGORITHM)


def attention_steps(machine):
    """Speed first, then numbers, by every kernel."""
    here = attention_kernels(machine)
    fast = [kernel for kernel in here if kernel != SLOW_ATTENTION]
    speed = [attention(kernel, batch, 5, machine) for kernel in fast for batch in ATTENTION_BATCHES]
    speed += [attention(kernel, ATTENTION_BATCHES[-1], 6, machine) for kernel in here if kernel not in fast]
    return speed + [tests_by(kernel, "production attention", 18, "production", "against fp32|^rate", machine)
                    for kernel in fast]


def all_steps(machine):
    kernel_tests, bench = machine.test("gpu_kernels"), machine.program("bench_gpu")
    ceilings = os.path.join(machine.work, "ceilings.jsonl")
    return [
        Step("versions", 15, kind="versions"),
        Step("one case of every op", 25, [kernel_tests, "--each"], show="^FAILED"),
        *attention_steps(machine),
        Step("golden data", 14, [machine.test("test_golden")], show=r"\[  FAILED", environment=ONE_ALGORITHM),
        Step("ceilings", 8, [bench, "--ceilings", "--json", ceilings], show="^ceiling", kind="ceilings"),
        train(PLAIN_CASES, 24, machine),
        train(BLOCK_CASES, 16, machine, is_peer=True),
        train(["llama-1b-6"], 8, machine),
        train(["llama-1b-24"], 8, machine),
        kernels(KERNELS_CASE, 12, machine),
        kernels("llama-1b-6", 9, machine),
        mesh_kernels(8, machine),
        # From here on nothing of ours is timed, and PyTorch compiles meanwhile.
        Step("all kernels", 22, [kernel_tests], show="^FAILED"),
        *[tests_by(kernel, "attention cases", 5, "attention_bf16", "^FAILED", machine)
          for kernel in attention_kernels(machine) if kernel == "wgmma"],
        Step("strategies", 18, [machine.test("test_strategies")], show=r"\[  FAILED",
             environment=ONE_ALGORITHM),
        torch(BLOCK_CASES, 35, machine),
        # A sanitizer makes a kernel ten times slower and more.
        sanitized("memcheck", 16, machine),
        # cuBLASLt stores by the tensor memory accelerator, which initcheck does not see: copies are left out.
        sanitized("initcheck", 12, machine, "--check-api-memory-access", "no"),
        torch(["llama-1b-6"], 12, machine),
        ranks("agree", 85, machine),
        ranks("meshes", 40, machine),
        ranks("refuse", 6, machine),
        ranks("kill", 9, machine),
        ranks("stop", 10, machine),
        sanitized("racecheck", 50, machine),
    ]
