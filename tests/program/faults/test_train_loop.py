"""scripts/train_loop.sh: a run whose ranks are killed again and again is started again until it is done,
with the undisturbed curve; what cannot succeed is not; signals save and end it. And scripts/train.slurm,
which puts a run that the time limit ends back into the queue."""

import contextlib
import os
import random
import re
import shutil
import signal
import stat
import subprocess
import time

import faults
import programs

work = programs.folder("loop")
root = programs.ROOT.resolve()
LOOP = str(root / "scripts/train_loop.sh")
TRAIN = str((programs.BIN / "fsdp_train").resolve())
STEPS, RANKS, KILLS = 40, 2, 3
OPTIONS = ["-s", "32", "-b", "2", "--lr", "1e-3", "--seed", "3", "--wrap", "block", "--log-freq", "1",
           "--max-steps", str(STEPS), "--ckpt-freq", "4", "--save-dir", str(work)]  # fmt: skip


def loop(*command, options=(), **settings):
    return subprocess.Popen([LOOP, "--wait", "0.1", *options, "--", *command], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, **settings)  # fmt: skip


def train(name, *more):
    command = [TRAIN, *OPTIONS, "-e", name, "--rank-logs", str(work / "logs"), *more]
    return ["mpirun", "--quiet", "-np", str(RANKS), *command] if programs.WITH_MPI else command


def losses(name):
    found = programs.losses(work / name / "log.jsonl")
    assert len(found) == STEPS, found
    return found


def newest(name):
    return max((int(p.name[5:]) for p in (work / name).glob("step-????????")), default=0)


def wait_beyond(name, step, process):
    """Until there is a newer checkpoint than `step`, or the process ends; the newest."""
    while (now := newest(name)) <= step and process.poll() is None:
        time.sleep(0.01)
    return now


def survives_kills():
    calm = loop(*train("calm"))
    assert calm.wait(timeout=120) == 0, calm.communicate()
    draw, process, step = random.Random(2), loop(*train("wild")), 0
    for _ in range(KILLS):
        step = wait_beyond("wild", step, process)
        time.sleep(draw.uniform(0, 0.1) if programs.WITH_MPI else 0)
        ranks = programs.children(process.pid)
        if programs.WITH_MPI:
            ranks = list(faults.processes_of(work / "logs").values())
        with contextlib.suppress(ProcessLookupError, IndexError):  # it may just be over
            os.kill(draw.choice(ranks), signal.SIGKILL)
    out, err = process.communicate(timeout=180)
    assert process.returncode == 0, (process.returncode, out, err)
    # A kill may come in the moment between a run's end and the next one's start.
    restarts = err.count("starting again")
    assert 1 <= restarts <= KILLS and err.count("failure 1 of 3") == restarts, err
    assert losses("wild") == losses("calm")
    print(f"{restarts} restarts after kills; the curve is the undisturbed one")


def script(text):
    path = work / "command.sh"
    path.write_text(f"#!/bin/sh\necho start >>{work}/starts\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    (work / "starts").unlink(missing_ok=True)
    return str(path)


def starts():
    return (work / "starts").read_text().count("start")


def gives_up():
    process = loop(script("exit 5"), options=["--max-failures", "4", "--folder", str(work / "none")])
    _, err = process.communicate(timeout=60)
    assert process.returncode == 5 and starts() == 4 and "giving up" in err, (process.returncode, err)
    # Two failures, one with a new checkpoint, two more: never three in a row without one.
    made = work / "made"
    text = (f"n=$(wc -l <{work}/starts); if [ $n = 3 ]; then mkdir -p {made}/step-00000003; "
            f"echo >{made}/step-00000003/checkpoint.json; fi; [ $n = 5 ] && exit 0; exit 137")
    process = loop(script(text), options=["--folder", str(made)])
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0 and starts() == 5, (process.returncode, err)
    for status in (0, 2, 3, 4, 6, 127, 130, 143):
        process = loop(script(f"exit {status}"), options=["--folder", str(made)])
        process.communicate(timeout=60)
        assert process.returncode == status and starts() == 1, (status, process.returncode)
    print("gives up without progress; statuses that a restart cannot mend are not tried again")


def goes_on_from_what_it_saved():
    """--resume names where the first start begins; a restart begins where the run has come to."""
    text = f'echo "$@" >>{work}/words; [ $(wc -l <{work}/starts) -lt 3 ] && exit 5; exit 0'
    for options, words in (
        ((), ["-e x --resume=there --overwrite"] + 2 * ["-e x --resume=there --overwrite {again}"]),
        (("--restarted",), 3 * ["-e x --resume=there --overwrite {again}"]),
    ):
        (work / "words").unlink(missing_ok=True)
        process = loop(script(text), "-e", "x", "--resume=there", "--overwrite", options=options)
        process.communicate(timeout=60)
        expected = [line.format(again="--resume auto --overwrite=off") for line in words]
        found = (work / "words").read_text().splitlines()
        assert process.returncode == 0 and found == expected, (found, expected)


def refuses():
    for arguments, word in (
        (["--max-failures", "0", "--", "true"], "--max-failures"),
        (["--"], "no command"),
        (["--", "true", "-s", "32"], "-e NAME"),
        (["x"], "unknown argument"),
    ):
        process = subprocess.run([LOOP, *arguments], capture_output=True, text=True, timeout=20, check=False)
        assert process.returncode == 2 and word in process.stderr, (arguments, process.stderr)


def stops(number, status):
    name = f"stopped-{number}"
    process = loop(*train(name, "--max-steps", "100000"))
    wait_beyond(name, 0, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == status, (process.returncode, out[-600:], err)
    assert "stopped by SIGUSR1 after step" in out, (out[-600:], err)
    last = int(out.split("stopped by SIGUSR1 after step ")[1].split()[0])
    assert newest(name) == last, (newest(name), last)


def tells_mpirun_signals():
    """What mpirun makes of SIGINT: SIGTERM to the ranks a while later, 1 for itself, and no more of their
    output on the terminal; their own files have it."""
    if not programs.WITH_MPI:
        return
    shutil.rmtree(work / "logs")
    command = ["mpirun", "--quiet", "--mca", "odls_base_sigkill_timeout", "4", *train("told")[2:]]
    process = subprocess.Popen([*command, "--max-steps", "100000"], stdout=subprocess.DEVNULL)
    wait_beyond("told", 0, process)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=120) == 1, process.returncode
    told = (work / "logs/rank-0.log").read_text()[-600:]
    assert "stopped by SIGTERM (which mpirun sends for SIGINT and SIGHUP too) after step" in told, told
    assert newest("told") == int(told.split("too) after step ")[1].split()[0]), told


def requeues():
    """The Slurm script, with what Slurm would set and send."""
    if not programs.WITH_MPI:
        return
    home = work / "slurm"
    (home / "scripts").mkdir(parents=True)
    for name in ("train_loop.sh", "train.slurm"):
        shutil.copy(root / "scripts" / name, home / "scripts")
    settings = os.environ | {"EXPERIMENT": "job", "FSDP_TRAIN": TRAIN, "SLURM_JOB_ID": "77", "WAIT": "0",
                             "REQUEUE": f"echo {home}/requeue", "MPIRUN_OPTIONS": f"-np {RANKS}"}  # fmt: skip
    options = [o for o in OPTIONS if o not in ("--save-dir", str(work))]
    command = ["bash", "scripts/train.slurm", *options]
    # What the script asks Slurm for, and what users write on sbatch's command line, which wins.
    asked = re.search(r"^#SBATCH --signal=B:(\w+)@180$", (home / "scripts/train.slurm").read_text(), re.M)[1]
    for number in (signal.Signals[f"SIG{asked}"], signal.SIGUSR1):
        before = set(home.glob("outputs/job/step-????????"))
        process = subprocess.Popen([*command, "--max-steps", "100000"], cwd=home, env=settings,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # fmt: skip
        while not set(home.glob("outputs/job/step-????????")) - before:
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        process.send_signal(number)
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 143 and f"{home}/requeue 77" in out, (process.returncode, out[-600:])
    assert (home / "outputs/job/ranks/rank-1.log").exists()
    done = int(out.split("after step ")[1].split()[0]) + 2
    # Where the first start of the job began is of no matter for a later one.
    command += ["--max-steps", str(done), "--resume", "elsewhere"]
    for count, status in ((0, 3), (1, 0)):
        out = subprocess.run(command, cwd=home, env=settings | {"SLURM_RESTART_COUNT": str(count)},
                             capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
        assert out.returncode == status and "requeue" not in out.stdout, out
    assert "resumed:   outputs/job/step-" in out.stdout, out


survives_kills()
gives_up()
goes_on_from_what_it_saved()
refuses()
stops(signal.SIGTERM, 143)
stops(signal.SIGINT, 130)
stops(signal.SIGUSR1, 143)
tells_mpirun_signals()
requeues()
