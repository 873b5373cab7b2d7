"""SIGKILL at any moment loses nothing but the steps since the newest checkpoint: a run that is killed again
and again, half the times during a save, ends with the curve of the undisturbed run, to the bit.
FSDP_TEST_ALL=1 kills a hundred times in place of twenty."""

import contextlib
import os
import random
import shutil
import signal
import time

import programs

work = programs.folder("kills")
KILLS = programs.draws(20, 3, everything=100)
RANKS = 2 if programs.WITH_MPI else None
STEPS, FREQ = 60, 3
OPTIONS = ["-s", 32, "-b", 2, "--lr", "1e-3", "--seed", 3, "--wrap", "block", "--log-freq", 100,
           "--max-steps", STEPS, "--ckpt-freq", FREQ, "--save-dir", work]  # fmt: skip
WILD = work / "wild"


def losses(name):
    found = programs.losses(work / name / "log.jsonl")
    assert len(found) == STEPS, found
    return found


def start():
    return programs.start("fsdp_train", *OPTIONS, "-e", "wild", ranks=RANKS)


def kill(process, draw):
    """All of it at once, mpirun and its ranks, or one rank, whose end mpirun makes all others'."""
    pids = [*programs.descendants(process.pid), process.pid]
    one = len(pids) > 1 and draw.random() < 0.3
    for pid in [draw.choice(pids[:-1])] if one else pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert process.returncode != 0 or "done:" in out, (process.returncode, out, err)
    return process.returncode != 0


def is_saving():
    return any(WILD.glob("step-*.tmp"))


def newest():
    return max((int(p.name[5:]) for p in WILD.glob("step-????????")), default=0)


def wait_for_save(process, draw):
    """To a random moment of one of the next saves; whether it came."""
    for _ in range(draw.randint(1, 3)):
        while is_saving() and process.poll() is None:
            time.sleep(0.0002)
        while not is_saving() and process.poll() is None:
            time.sleep(0.0002)
    time.sleep(draw.uniform(0, 0.02))
    return process.poll() is None


def wait_anywhere(process, draw, typical_s):
    """To a random moment since the start, or a while after the first step; to the end of a save in which it
    would fall."""
    log = WILD / "log.jsonl"
    if draw.random() < 0.5:
        time.sleep(draw.uniform(0, 1.2 * typical_s))
    else:
        before = log.stat().st_size if log.exists() else 0
        while process.poll() is None and (log.stat().st_size if log.exists() else 0) in (0, before):
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.2))
    while is_saving() and process.poll() is None:
        time.sleep(0.0002)
    return process.poll() is None


class Count:
    kills = during = starts = runs = 0


def run_once(draw, count, typical_s):
    """A run from its beginning to its end, killed on the way as long as kills are left."""
    shutil.rmtree(WILD, ignore_errors=True)
    complete = 0
    while True:
        process = start()
        count.starts += 1
        left = KILLS - count.kills
        if left > 0:
            # As many during saves as at any moment; which of the two came out is counted at the kill.
            in_save = count.during <= count.kills - count.during
            alive = wait_for_save(process, draw) if in_save else wait_anywhere(process, draw, typical_s)
            during = is_saving()
            if alive and kill(process, draw):
                count.kills += 1
                count.during += during
                assert newest() >= complete, "a complete checkpoint is gone"
                complete = newest()
                continue
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, (process.returncode, out, err)
        assert not [line for line in err.splitlines() if "warning" in line], err
        count.runs += 1
        return


def main():
    draw, count = random.Random(5), Count()
    began = time.monotonic()
    programs.run("fsdp_train", *OPTIONS, "-e", "calm", ranks=RANKS, status=0)
    typical_s, calm = time.monotonic() - began, losses("calm")
    while count.runs == 0 or count.kills < KILLS:
        run_once(draw, count, typical_s)
        assert losses("wild") == calm
        assert not list(WILD.glob("*.tmp")) and not list(WILD.glob("*.old"))
    print(f"{count.kills} kills, {count.during} of them during a save; {count.starts} starts, {count.runs} "
          f"runs to the end with the curve of the undisturbed one; {time.monotonic() - began:.0f} s")
    assert 3 * count.during >= count.kills - 2 and 3 * (count.kills - count.during) >= count.kills - 2


main()
