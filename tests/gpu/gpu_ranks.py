"""On a GPU: one global batch gives the same losses on 1, 2 and 4 ranks, by every strategy and on meshes with
the axes tensor and context, as on the CPU; a job ends when a rank is killed, or stopped; what does not fit is
refused. Ranks share GPUs if there are fewer.

    gpu_ranks.py [PART...]    agree, meshes, kill, stop, save, refuse; all if none is named

Run by scripts/gpu_check.sh, and, smaller, as a test with the device that runs on the CPU (simt/). The exit
status is 77 if a part needs mpirun and there is none.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import programs  # noqa: E402

work = programs.folder("gpu", memory=True)
ON_CPU = "FSDP_SIMT" in os.environ
STEPS, GLOBAL_BATCH, SEQ = (2, 4, 12) if ON_CPU else (5, 8, 64)
SHARED = ("--backend", "cuda", "--set", "allow-shared-gpu=on")
# Relative differences of a loss: sums in a different order; in bf16 every activation is rounded to 8 bits.
TOLERANCE = {"fp32": 1e-4, "bf16": 1e-2}
SETTINGS = (
    (1, "full", ()),
    (1, "full", ("--cpu-offload", "on")),
    (1, "full", ("--recompute", "block", "--grad-accum", 2, "-b", GLOBAL_BATCH // 2)),
    (2, "full", ()),
    (2, "grad_op", ()),
    (2, "no", ()),
    (2, "full", ("--cpu-offload", "on")),
    (4, "full", ()),
    (4, "hybrid", ("--mesh", "data=2,fsdp=2")),
    (2, "zero1", ()),
    (2, "zero1", ("--cpu-offload", "on")),
    (2, "full", ("--recompute", "swiglu", "--offload-activations", "residual,attention@2")),
)
IN_BF16 = (0, 1, 3, 5, 8, 9, 10)  # of them; the rest differ in nothing that a dtype changes
BF16_SUMS = (8,)  # of those: gradients are summed in bf16 too, rounded at each hop of NCCL's rings


def has_launcher():
    return shutil.which("mpirun") is not None


def losses(name, *arguments, ranks=1):
    log = work / f"{name}.jsonl"
    programs.run("fsdp_train", "--model", "tiny", "-s", SEQ, "-b", GLOBAL_BATCH // ranks,
                 "--max-steps", STEPS, "--lr", "1e-3", "--wrap", "block", "--log", log, *arguments,
                 ranks=ranks if ranks > 1 else None, status=0)  # fmt: skip
    return [line["loss"] for line in programs.log_of(log)]


def agree():
    left_out = 0
    for dtype, tolerance in TOLERANCE.items():
        reference = losses(f"cpu_{dtype}", "--backend", "cpu", "--param-dtype", dtype)
        first = 2 if dtype == "fp32" else 0  # of a part of them, others in each dtype
        for index, (ranks, strategy, more) in programs.part(enumerate(SETTINGS), first):
            if dtype == "bf16" and index not in IN_BF16:
                continue
            if ranks > 1 and not has_launcher():
                left_out += 1
                continue
            if dtype == "bf16" and index in BF16_SUMS:
                more += ("--reduce-dtype", "bf16")
            name = f"{dtype} {strategy} on {ranks} {' '.join(map(str, more))}"
            mine = losses(
                name.replace(" ", "_").replace("=", ""),
                *("--strategy", strategy, "--param-dtype", dtype, *SHARED, *more),
                ranks=ranks,
            )
            worst = max(abs(a - b) / abs(b) for a, b in zip(mine, reference))
            assert len(mine) == len(reference) and worst <= tolerance, (name, worst, mine, reference)
            print(f"{name}: losses differ by {worst:.1e} at most", flush=True)
    print(f"ranks agree; {left_out} left out: no mpirun" if left_out else "ranks agree", flush=True)
    return 77 if left_out else 0


# ---- Meshes: losses, gradient norms and memory, against one rank of the CPU

# Three heads and 257 entries of the vocabulary on two ranks, 33 positions in two parts; no vector is whole.
ODD = {"hidden_size": 60, "num_attention_heads": 3, "num_key_value_heads": 3, "intermediate_size": 53}
TIED = ODD | {"tie_word_embeddings": True}
# Attention on tensor cores in bf16; two key/value heads on four ranks.
WIDE = {"hidden_size": 72, "head_dim": 64}
GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 60, "n_head": 3, "n_layer": 2,
        "n_positions": 64, "vocab_size": 257, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5}
# Five experts on two ranks: three of one, two of the other.
ROUTED = ODD | {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "head_dim": 20,
                "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 36,
                "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
                "initializer_range": 0.1}
MODELS = {"odd": programs.CONFIG | ODD, "tied": programs.CONFIG | TIED, "wide": programs.CONFIG | WIDE,
          "routed": programs.CONFIG | ROUTED,
          "gpt2": GPT2}
MESH_SEQ, MESH_BATCH, MESH_STEPS = 33, 2, 2
# Cuts queries, but not keys and values, over context.
QUERIES = pathlib.Path(__file__).resolve().parents[1] / "golden/accept/sharding/llama-fsdp-tp-cp.yaml"
MESHES = (
    # model, ranks, mesh, more options, element types, also on a GPU
    ("odd", 2, "tensor=2", ("--sequence-parallel", "off"), ("fp32", "bf16"), False),
    ("odd", 2, "tensor=2", (), ("fp32", "bf16"), True),
    ("odd", 2, "context=2", (), ("fp32", "bf16"), True),
    ("odd", 4, "tensor=2,context=2", (), ("fp32", "bf16"), False),
    ("odd", 4, "tensor=2,context=2", ("--cpu-offload", "on", "--recompute", "block", "--set", "poison=on"),
     ("fp32",), False),
    ("odd", 2, "context=2", ("--accumulate", "local", "--grad-accum", 2, "-b", 1), ("fp32",), False),
    ("odd", 4, "fsdp=2,tensor=2", ("--offload-activations", "residual,attention", "-b", 1), ("fp32",), False),
    ("tied", 2, "tensor=2", ("--strategy", "no"), ("fp32",), False),
    ("wide", 4, "tensor=2,context=2", ("--reduce-dtype", "bf16", "--nccl-register", "on"), ("bf16",), True),
    ("wide", 4, "tensor=4", (), ("bf16",), False),
    ("gpt2", 4, "tensor=2,context=2", (), ("fp32", "bf16"), False),
    ("odd", 2, "context=2", ("--sharding", QUERIES), ("fp32",), False),
    ("routed", 2, "fsdp=2", ("-b", 1), ("fp32",), True),
    ("routed", 4, "expert=2,tensor=2", ("-b", 1, "--expert-capacity", 0.5), ("fp32",), True),
    ("wide", 4, "tensor=2,context=2", ("--sharding", QUERIES), ("bf16",), False),
)
# Sums in a different order; on a GPU exponentials and gemms round differently too.
MESH_TOLERANCE = {"fp32": 1e-5 if ON_CPU else 1e-4, "bf16": 1e-2}


def mesh_run(model, dtype, *arguments, ranks=1, steps=MESH_STEPS, environment=None):
    """The loss and the gradient norm of every step; the memory must be what was planned."""
    folder = work / model
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(MODELS[model]))
    log = folder / "log.jsonl"
    log.unlink(missing_ok=True)
    programs.run("fsdp_train", "--model", folder, "--init", "random", "--tokenizer", "bytes", "-s", MESH_SEQ,
                 "-b", MESH_BATCH, "--max-steps", MESH_STEPS, "--lr", "1e-3", "--wrap", "block", "--log", log,
                 "--param-dtype", dtype, *arguments, ranks=ranks if ranks > 1 else None, status=0,
                 env=os.environ | (environment or {}))  # fmt: skip
    what = (model, dtype, arguments, environment)
    lines = programs.log_of(log)
    assert len(lines) == steps, (what, lines)
    for line in lines:
        for figure in ("valley_bytes", "peak_bytes", "host_valley_bytes", "host_peak_bytes"):
            assert line[figure] == line["planned_" + figure], (what, figure, line)
    return [number for line in lines for number in (line["loss"], line["grad_norm"])]


def meshes():
    if not has_launcher():
        return 77
    references = {}
    for model, ranks, mesh, more, dtypes, on_gpu in programs.part(MESHES):
        for dtype in dtypes if ON_CPU or on_gpu else ():
            if (model, dtype) not in references:
                references[model, dtype] = mesh_run(model, dtype, "--backend", "cpu")
            mine = mesh_run(model, dtype, *SHARED, "--mesh", mesh, *more, ranks=ranks)
            name = f"{model} {dtype} on {mesh} {' '.join(map(str, more))}"
            check_mesh(name, dtype, mine, references[model, dtype])
    if ON_CPU:
        resume_on_another(references["odd", "fp32"])
        no_order_matters()
    print("meshes agree", flush=True)
    return 0


def check_mesh(name, dtype, mine, reference):
    worst = max(abs(a - b) / abs(b) for a, b in zip(mine, reference))
    assert len(mine) == len(reference) and worst <= MESH_TOLERANCE[dtype], (name, worst, mine, reference)
    print(f"{name}: losses and norms differ by {worst:.1e} at most", flush=True)


def resume_on_another(reference):
    """What one mesh has saved on the device, another one loads there."""
    saving = ("--save-dir", work, "--ckpt-freq", 1, "-e")
    mesh_run("odd", "fp32", *SHARED, "--mesh", "tensor=2,context=2", *saving, "mesh", ranks=4)
    mine = mesh_run("odd", "fp32", *SHARED, "--mesh", "tensor=2", *saving, "other", "--resume",
                    work / "mesh" / "step-00000001", ranks=2, steps=1)
    check_mesh("a step on tensor=2 from a checkpoint of tensor=2,context=2", "fp32", mine, reference[2:])


def no_order_matters():
    """Whatever order the emulation runs the streams in, the numbers are the same, unless nothing waits."""
    arguments = (*SHARED, "--mesh", "tensor=2,context=2")
    results = {str(mesh_run("odd", "bf16", *arguments, ranks=4, environment={"FSDP_SIMT_SEED": str(seed)}))
               for seed in range(2)}
    assert len(results) == 1, results
    try:
        wrong = str(mesh_run("odd", "bf16", *arguments, ranks=4, environment={"FSDP_SIMT_WAITS": "off"}))
    except AssertionError:
        wrong = "ended"
    assert wrong not in results, "leaving out every wait changed nothing"


def children_of(parent):
    children = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        if int(text.rpartition(")")[2].split()[1]) == parent:
            children.append(int(stat.parent.name))
    return sorted(children)


def start(*arguments):
    command = ["mpirun", "-np", "2", str(programs.BIN / "fsdp_train"), "--model", "tiny", "-s", str(SEQ)]
    command += ["--num-epochs", "400", *SHARED, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while True:
        line = process.stdout.readline()
        if line.startswith("step "):
            return process, children_of(process.pid)
        assert line or process.poll() is None, process.stderr.read()


def end_all(process, ranks):
    """What a failed check leaves behind must not stay on the GPU."""
    for pid in [*ranks, process.pid]:
        subprocess.run(["kill", "-KILL", str(pid)], stderr=subprocess.DEVNULL, check=False)


def a_rank_gets(signal, limit_s, words, *arguments):
    process, ranks = start(*arguments)
    try:
        subprocess.run(["kill", f"-{signal}", str(ranks[1])], check=True)
        begin = time.monotonic()
        _, errors = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired as late:
        end_all(process, ranks)
        raise AssertionError(f"the job still runs {limit_s} s after a rank got {signal}") from late
    assert process.returncode != 0 and words in errors, errors
    print(f"{signal} to a rank ends the job after {time.monotonic() - begin:.1f} s", flush=True)


def kill():
    if not has_launcher():
        return 77
    a_rank_gets("KILL", 30, "")
    return 0


def stop():
    if not has_launcher():
        return 77
    a_rank_gets("STOP", 40, "no progress for 5 s", "--comm-timeout", "5")
    return 0


def save():
    """A rank that is slow to save is waited for beyond the time limit; one that is stopped in it is not."""
    if not ON_CPU or not has_launcher():
        return 77
    os.environ["FSDP_SIMT_SLOW_COPY"] = "1:300"  # times three for each of about ten units
    saving = ("--save-dir", work, "--ckpt-freq", 1, "--comm-timeout", 2, "--wrap", "block",
              "--ckpt-async", "off")
    programs.run("fsdp_train", "--model", "tiny", "-s", SEQ, "-b", 1, "--max-steps", 2, *SHARED,
                 *saving, "-e", "saved", ranks=2, status=0)  # fmt: skip
    print("a slow save is waited for", flush=True)
    a_rank_gets("STOP", 40, "no progress for 2 s (--comm-timeout)", *map(str, saving), "-e", "stopped")
    del os.environ["FSDP_SIMT_SLOW_COPY"]
    return 0


def gpu_count():
    if ON_CPU:
        return int(os.environ["FSDP_SIMT_GPUS"])
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True)
    return len(listed.stdout.splitlines())


def refuse():
    print(programs.refused("fsdp_train", "--backend", "cuda", "--model", "llama2-70b", "-s", 64, status=4),
          flush=True)
    if not has_launcher():
        return 77
    too_many = gpu_count() + 1
    process = programs.run("fsdp_train", "--backend", "cuda", "--model", "tiny", "-s", 64, ranks=too_many)
    assert process.returncode == 5 and "GPU" in process.stderr, (process.returncode, process.stderr)
    print(f"{too_many} ranks are refused", flush=True)
    return 0


PARTS = {"agree": agree, "meshes": meshes, "kill": kill, "stop": stop, "save": save, "refuse": refuse}

if __name__ == "__main__":
    results = [PARTS[name]() for name in sys.argv[1:] or PARTS]
    sys.exit(max(results))
