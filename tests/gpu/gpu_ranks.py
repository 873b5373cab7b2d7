"""On a GPU: one global batch gives the same losses on 1, 2 and 4 ranks and by every strategy, as on the CPU;
a job ends when a rank is killed, or stopped; what does not fit is refused. Ranks share GPUs if there are
fewer.

    gpu_ranks.py [PART...]    agree, kill, stop, refuse; all if none is named

Run by scripts/gpu_check.sh, and, smaller, as a test with the device that runs on the CPU (simt/). The exit
status is 77 if a part needs mpirun and there is none.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import programs  # noqa: E402

# In memory, if there is such a folder: a slow disk is not to look like a stopped rank.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
work = pathlib.Path(tempfile.mkdtemp(prefix="fsdp_gpu_", dir=MEMORY))
ON_CPU = "FSDP_SIMT" in os.environ
STEPS, GLOBAL_BATCH, SEQ = (2, 4, 12) if ON_CPU else (5, 8, 64)
SHARED = ("--backend", "cuda", "--allow-shared-gpu", "on")
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
    (2, "full", ("--recompute", "swiglu", "--offload-activations", "residual,attention@2")),
)
IN_BF16 = (0, 1, 3, 5, 8)  # of them; the rest differ in nothing that a dtype changes
BF16_SUMS = (8,)  # of those: gradients are summed in bf16 too, rounded at each hop of NCCL's rings


def has_launcher():
    return shutil.which("mpirun") is not None


def losses(name, *arguments, ranks=1):
    log = work / f"{name}.jsonl"
    process = programs.run(
        *("fsdp_train", "--model", "tiny", "-s", SEQ, "-b", GLOBAL_BATCH // ranks, "--max-steps", STEPS),
        *("--lr", "1e-3", "--wrap", "block", "--log", log, *arguments),
        ranks=ranks if ranks > 1 else None,
    )
    assert process.returncode == 0, (name, process.returncode, process.stdout, process.stderr)
    return [json.loads(line)["loss"] for line in log.read_text().splitlines()]


def agree():
    left_out = 0
    for dtype, tolerance in TOLERANCE.items():
        reference = losses(f"cpu_{dtype}", "--backend", "cpu", "--param-dtype", dtype)
        for index, (ranks, strategy, more) in enumerate(SETTINGS):
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
        if line.startswith("step"):
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
    saving = ("-e", "saved", "--save-dir", work, "--ckpt-freq", 1, "--comm-timeout", 2, "--wrap", "block",
              "--ckpt-async", "off")
    process = programs.run("fsdp_train", "--model", "tiny", "-s", SEQ, "-b", 1, "--max-steps", 2, *SHARED,
                           *saving, ranks=2)  # fmt: skip
    assert process.returncode == 0, (process.stdout, process.stderr)
    print("a slow save is waited for", flush=True)
    a_rank_gets("STOP", 40, "no progress for 2 s (--comm-timeout)", *map(str, saving))
    del os.environ["FSDP_SIMT_SLOW_COPY"]
    return 0


def gpu_count():
    if ON_CPU:
        return int(os.environ["FSDP_SIMT_GPUS"])
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True)
    return len(listed.stdout.splitlines())


def refuse():
    process = programs.run("fsdp_train", "--backend", "cuda", "--model", "llama2-70b", "-s", 64)
    assert process.returncode == 4, (process.returncode, process.stderr)
    assert len(programs.errors(process, "fsdp_train")) == 1, process.stderr
    print(programs.errors(process, "fsdp_train")[0], flush=True)
    if not has_launcher():
        return 77
    too_many = gpu_count() + 1
    process = programs.run("fsdp_train", "--backend", "cuda", "--model", "tiny", "-s", 64, ranks=too_many)
    assert process.returncode == 5 and "GPU" in process.stderr, (process.returncode, process.stderr)
    print(f"{too_many} ranks are refused", flush=True)
    return 0


PARTS = {"agree": agree, "kill": kill, "stop": stop, "save": save, "refuse": refuse}

if __name__ == "__main__":
    results = [PARTS[name]() for name in sys.argv[1:] or PARTS]
    shutil.rmtree(work, ignore_errors=True)
    sys.exit(max(results))
