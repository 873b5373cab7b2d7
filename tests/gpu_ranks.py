"""On a GPU: one global batch gives the same losses on 1, 2 and 4 ranks and by every strategy, as on the CPU;
a job ends when a rank is killed, or stopped; what does not fit is refused. Ranks share GPUs where there are
fewer. scripts/gpu_check.sh runs it, and, smaller, a test with the device that runs on the CPU (simt/)."""

import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time

import programs

work = pathlib.Path(tempfile.mkdtemp(prefix="fsdp_gpu_"))
EMULATED = "FSDP_SIMT" in os.environ
STEPS, GLOBAL_BATCH, SEQ = (2, 4, 12) if EMULATED else (5, 8, 64)
SHARED = ("--backend", "cuda", "--allow-shared-gpu", "on")
# Relative differences of a loss: sums in another order; in bf16 every activation is rounded to 8 bits.
TOLERANCE = {"fp32": 1e-4, "bf16": 1e-2}


def losses(name, *arguments, ranks=1):
    log = work / f"{name}.jsonl"
    process = programs.run(
        *("fsdp_train", "--model", "tiny", "-s", SEQ, "-b", GLOBAL_BATCH // ranks, "--max-steps", STEPS),
        *("--lr", "1e-3", "--wrap", "block", "--log", log, *arguments),
        ranks=ranks,
    )
    assert process.returncode == 0, (name, process.returncode, process.stdout, process.stderr)
    return [json.loads(line)["loss"] for line in log.read_text().splitlines()]


def agree():
    for dtype, tolerance in TOLERANCE.items():
        reference = losses(f"cpu_{dtype}", "--backend", "cpu", "--param-dtype", dtype)
        for ranks, strategy, more in (
            (1, "full", ()),
            (1, "full", ("--cpu-offload", "on")),
            (1, "full", ("--recompute", "block", "--grad-accum", 2, "-b", GLOBAL_BATCH // 2)),
            (2, "full", ()),
            (2, "grad_op", ()),
            (2, "no", ()),
            (2, "full", ("--cpu-offload", "on")),
            (4, "full", ()),
            (4, "hybrid", ("--mesh", "data=2,fsdp=2")),
        ):
            name = f"{dtype} {strategy} on {ranks} {' '.join(map(str, more))}"
            mine = losses(
                name.replace(" ", "_").replace("=", ""),
                *("--strategy", strategy, "--param-dtype", dtype, *SHARED, *more),
                ranks=ranks,
            )
            worst = max(abs(a - b) / abs(b) for a, b in zip(mine, reference))
            assert len(mine) == len(reference) and worst <= tolerance, (name, worst, mine, reference)
            print(f"{name}: losses differ by {worst:.1e} at most", flush=True)


def start(*arguments):
    command = ["mpirun", "-np", "2", str(programs.BIN / "fsdp_train"), "--model", "tiny", "-s", str(SEQ)]
    command += ["--num-epochs", "400", *SHARED, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not process.stdout.readline().startswith("step"):
        assert process.poll() is None, process.stderr.read()
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True)
    return process, [int(child) for child in children.stdout.split()]


def a_killed_rank_ends_the_job():
    process, ranks = start()
    subprocess.run(["kill", "-KILL", str(ranks[1])], check=True)
    begin = time.monotonic()
    process.communicate(timeout=30)
    assert process.returncode != 0
    print(f"a killed rank ends the job after {time.monotonic() - begin:.1f} s", flush=True)


def a_stopped_rank_ends_the_job():
    process, ranks = start("--comm-timeout", "5")
    subprocess.run(["kill", f"-{int(signal.SIGSTOP)}", str(ranks[1])], check=True)
    begin = time.monotonic()
    _, errors = process.communicate(timeout=40)
    assert process.returncode != 0 and "nothing has moved for 5 s" in errors, errors
    print(f"a stopped rank ends the job after {time.monotonic() - begin:.1f} s", flush=True)


def what_does_not_fit_is_refused():
    process = programs.run("fsdp_train", "--backend", "cuda", "--model", "llama2-70b", "-s", 64)
    assert process.returncode == 4, (process.returncode, process.stderr)
    assert len(programs.errors(process, "fsdp_train")) == 1, process.stderr
    if EMULATED:
        too_many = int(os.environ["FSDP_SIMT_GPUS"]) + 1
    else:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True)
        too_many = len(listed.stdout.splitlines()) + 1
    process = programs.run("fsdp_train", "--backend", "cuda", "--model", "tiny", "-s", 64, ranks=too_many)
    assert process.returncode == 5 and "GPU" in process.stderr, (process.returncode, process.stderr)


agree()
a_killed_rank_ends_the_job()
a_stopped_rank_ends_the_job()
what_does_not_fit_is_refused()
print("ranks agree, and end together")
