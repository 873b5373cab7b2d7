"""A disk that fills up during a run costs what could not be written, and nothing else: the run ends as it
would have, and what is written once there is room again is whole."""

import json
import resource
import signal
import subprocess
import threading
import time

import programs
from event_records import events

work = programs.folder("full")
MPI = programs.WITH_MPI
shown = []  # the standard output of the run, line by line


def start(*arguments, ranks=None):
    shown.clear()
    process = programs.start("fsdp_train", "-s", 32, "--max-steps", 1000000, "--num-epochs", 1000000,
                             "--log-freq", 1, *arguments, ranks=ranks)
    threading.Thread(target=lambda: shown.extend(process.stdout), daemon=True).start()
    return process


def wait_for(process, what, condition):
    deadline = time.monotonic() + 120
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise AssertionError((what, shown[-20:], process.stderr.read()))
        time.sleep(0.02)


def steps_shown():
    return sum(line.startswith("step ") for line in list(shown))


def saved():
    return [line for line in list(shown) if line.startswith("saved: ")]


def warnings(text):
    return [line for line in text.splitlines() if line.startswith("fsdp_train: warning: ")]


def stop(process):
    process.send_signal(signal.SIGUSR1)
    err = process.stderr.read()
    assert process.wait(timeout=120) == 143, (process.returncode, err)
    while not shown[-1].startswith("memory: "):  # the last line
        time.sleep(0.02)
    return err


def steps_logged(path):
    """Of whole lines: where a disk is full, the last one may lack its end until there is room."""
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line)["global_step"] for line in lines if line.endswith("\n")]


def log_and_events(folder, ranks, fill, empty):
    """`fill` takes all the room there is, in the middle of the run, and `empty` gives it back."""
    log = folder / "log.jsonl"
    process = start("--log", log, "--tensorboard", folder / "events", ranks=ranks)
    wait_for(process, "first steps", lambda: steps_shown() >= 5)
    fill(process)
    full_at = steps_shown()
    wait_for(process, "steps on a full disk", lambda: steps_shown() >= full_at + 40)
    on_disk = steps_logged(log)
    assert len(on_disk) < full_at + 30 and on_disk == list(range(1, len(on_disk) + 1)), on_disk
    empty(process)
    wait_for(process, "steps with room again", lambda: len(steps_logged(log)) >= full_at + 45)
    told = warnings(stop(process))
    assert len(told) == 2 and all("failed (" in line and "training continues" in line for line in told), told
    assert "log.jsonl" in told[0] + told[1] and "tfevents" in told[0] + told[1], told
    done = steps_shown()
    assert steps_logged(log) == list(range(1, done + 1))  # every line is there, in order
    (file,) = (folder / "events").iterdir()
    seen = [event[2] for event in events(file) if 2 in event]  # which checks each record's sums
    assert seen[:5] == [1, 2, 3, 4, 5] and seen[-1] == done and seen == sorted(set(seen))
    assert len(seen) < done  # some steps are missing there, as the warning said


def under_a_limit():
    """A limit on file sizes, which is lowered and raised while the process runs."""
    folder = work / "limited"
    folder.mkdir()
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)

    def fill(process):
        now = max(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (now // 2, resource.RLIM_INFINITY))

    log_and_events(folder, None, fill, lambda process: resource.prlimit(
        process.pid, resource.RLIMIT_FSIZE, unlimited))  # fmt: skip


def fill_disk(folder):
    with open(folder / "filler", "ab", buffering=0) as filler:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    filler.write(bytes(size))
            except OSError:
                pass


def on_a_small_disk(disk):
    ranks = 2 if MPI else None
    log_and_events(disk, ranks, lambda process: fill_disk(disk), lambda process: (disk / "filler").unlink())


def checkpoints_on_a_small_disk(disk):
    ranks = 2 if MPI else None
    process = start("--save-dir", disk, "-e", "run", "--ckpt-freq", 20, "--ckpt-keep", 1, ranks=ranks)
    wait_for(process, "the first save", lambda: len(saved()) >= 1)
    seen, full_at = -1, 0

    def saves_fail():
        """For 70 steps. A save that has its room when the disk is filled removes the one before it, and so
        makes room for the next."""
        nonlocal seen, full_at
        if len(saved()) > seen:
            fill_disk(disk)
            seen, full_at = len(saved()), steps_shown()
        return steps_shown() >= full_at + 70

    wait_for(process, "saves that fail", saves_fail)
    assert list((disk / "run").glob("step-????????"))
    (disk / "filler").unlink()
    before = len(saved())
    wait_for(process, "a save that succeeds", lambda: len(saved()) > before)
    told = warnings(stop(process))
    failed = [line for line in told if "checkpoint of step" in line and "No space left" in line]
    assert len(failed) >= 2 and len(told) <= len(failed) + 1, told  # and once of the log
    assert steps_logged(disk / "run/log.jsonl") == list(range(1, steps_shown() + 1))
    (last,) = (disk / "run").glob("step-*")
    assert int(last.name[5:]) == steps_shown()


under_a_limit()
print("under_a_limit: passed", flush=True)
disk = work / "disk"
disk.mkdir()
for test, size in ((on_a_small_disk, "4m"), (checkpoints_on_a_small_disk, "40m")):
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        print("no tmpfs may be mounted here: only the limit on file sizes was tested")
        break
    try:
        test(disk)
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
    print(f"{test.__name__}: passed", flush=True)
