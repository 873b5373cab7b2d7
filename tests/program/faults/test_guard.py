"""What is left when nobody can speak: all ranks of a node killed or stopped at one time, a rank that never
joins, a link that is cut when the run is over. Every job ends by itself within the time limit, with one
message."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import faults
import hosts
import programs

LIMIT_S = 5
CUTS, ENDS = (8, 6) if programs.ALL else (1, 1)
work = programs.folder("guard", memory=True)


def start(two=None):
    run = faults.Run(two, work, LIMIT_S)
    shutil.rmtree(run.folder, ignore_errors=True)
    process = run.start("wild")
    assert run.wait_joined(process), run.text("err")
    return run, process


def is_stopped(pid):
    states = [task.read_text().rsplit(")", 1)[1].split()[0]
              for task in pathlib.Path(f"/proc/{pid}/task").glob("*/stat")]  # fmt: skip
    return set(states) == {"T"}


def stop(pids):
    """With all threads: each one runs on until the signal reaches it, and may speak."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    while not all(is_stopped(pid) for pid in pids):
        time.sleep(0.001)


def struck_all_at_once(number, expected, late=False):
    """`late`: the guard acts only when mpirun has ended, which does not wait for it."""
    run, process = start()
    ranks = faults.processes_of(work / "logs")
    guards = faults.guards_of(work / "logs")
    stop(ranks.values())  # so that none sees a different one end
    # Nor may mpirun, which wakes its children when it sees one end, and when it is continued itself.
    held = [process.pid, *guards] if number == signal.SIGKILL else []
    stop(held)
    for pid in ranks.values():
        os.kill(pid, number)
    for pid in held:
        if not late or pid == process.pid:
            os.kill(pid, signal.SIGCONT)
    if late:
        process.wait(timeout=LIMIT_S)
        os.kill(guards[0], signal.SIGCONT)
    faults.wait_end(run, process, LIMIT_S + faults.GRACE_S)
    (message,) = faults.messages(run.text("err"))
    assert expected in message and process.returncode != 0, (process.returncode, message)
    assert f"Start again with -e wild --save-dir {work} to resume from the newest" in message, message
    assert all(f"rank {rank} (host " in message for rank in ranks), message
    assert faults.comes_into_being(work / "logs" / "error.json")
    failure = json.loads(run.text("logs/error.json"))
    assert failure["rank"] == 0 and failure["process"] == ranks[0], failure


def one_is_killed_while_nobody_can_speak():
    """All others are stopped, and mpirun: the guard reports the killed one, not the stopped ones."""
    run, process = start()
    ranks = faults.processes_of(work / "logs")
    os.kill(process.pid, signal.SIGSTOP)
    try:
        stop([pid for rank, pid in ranks.items() if rank != 1])
        os.kill(ranks[1], signal.SIGKILL)
        deadline = time.monotonic() + LIMIT_S + faults.GRACE_S
        while not faults.messages(run.text("err")) and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        os.kill(process.pid, signal.SIGCONT)
    faults.wait_end(run, process, LIMIT_S + faults.GRACE_S)
    (message,) = faults.messages(run.text("err"))
    assert "a rank has ended: rank 1 (host " in message, message
    assert f"in process {ranks[1]} was killed" in message and "rank 0" not in message, message
    assert process.returncode != 0


def never_joins():
    began = time.monotonic()
    train = [str(programs.BIN / "fsdp_train"), "--comm-timeout", "3"]
    command = ["mpirun", "--quiet", "-np", "2", *train, ":", "-np", "1", "sleep", "60"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    (message,) = programs.errors(process, "fsdp_train")
    assert " could not join the job for 3 s" in message, message
    assert process.returncode == 5 and time.monotonic() - began < 3 + faults.GRACE_S, process


def killed_before_the_join(mpirun_hangs):
    """Ranks that wait for one that never joins, of which one is killed; and an mpirun that then hangs, as
    Open MPI's sometimes does there."""
    logs = work / "logs"
    train = [str(programs.BIN / "fsdp_train"), "--comm-timeout", "10", "--rank-logs", str(logs)]
    command = ["mpirun", "--quiet", "-np", "3", *train, ":", "-np", "1", "sleep", "60"]
    with (work / "err").open("w") as err:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=err)
    deadline = time.monotonic() + 20
    # Each has a guard of its own from before it joins.
    while len(start_guards_of(logs)) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    ranks = faults.processes_of(logs)
    assert len(ranks) == 3, ranks
    if mpirun_hangs:
        os.kill(process.pid, signal.SIGSTOP)
    os.kill(ranks[1], signal.SIGKILL)
    process.wait(timeout=10 + faults.GRACE_S)
    while faults.processes_of(logs) and time.monotonic() < deadline + 20:
        time.sleep(0.02)
    told = faults.messages((work / "err").read_text())
    assert len(told) == 1, told
    message = told[0]
    assert "before all ranks had joined the job: rank 1 (host " in message, message
    assert f"in process {ranks[1]} was killed or crashed" in message, message
    # 1: it did hang, of itself.
    assert process.returncode in ([-signal.SIGKILL] if mpirun_hangs else [137, 1]), process.returncode
    while start_guards_of(logs):  # they leave by themselves
        time.sleep(0.02)


def killed_before_its_guard():
    """By a process that has none: mpirun --quiet says nothing of it."""
    train = [str(programs.BIN / "fsdp_train"), "--comm-timeout", "20"]
    dies = ["sh", "-c", "sleep 2; kill -KILL $$"]
    command = ["mpirun", "--quiet", "-np", "2", *train, ":", "-np", "1", *dies]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    (message,) = programs.errors(process, "fsdp_train")
    assert "mpirun has ended the job before all ranks had joined it" in message, message
    assert process.returncode == 137, process


def start_on(two, options=()):
    """mpirun over two ranks of each host, and its ranks once each has a guard of its start."""
    logs = work / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    train = [str(programs.BIN / "fsdp_train"), "--comm-timeout", "8", "--rank-logs", str(logs)]
    with (work / "err").open("w") as err:
        command = two.command(2, [*train, *options], ["--quiet"])
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=err)
    deadline = time.monotonic() + 30
    while len(start_guards_of(logs)) < 4 and time.monotonic() < deadline:
        time.sleep(0.002)
    ranks = faults.processes_of(logs)
    assert len(ranks) == 4, ((work / "err").read_text(), ranks)
    return process, ranks


def killed_while_the_other_node_waits(two):
    """A rank of host b that is killed where host a's ranks have joined but for an exchange with it, and which
    mpirun then ends: it is reported once, by its own start's guard. It runs a millisecond at a time, so that
    it is there when host a's guard begins, if that begins before its exchange is over."""
    process, ranks = start_on(two, ["--model", "tiny", "-s", "32", "--max-steps", "200000"])
    victim = ranks[2]
    while process.poll() is None and not faults.guards_of(work / "logs"):
        os.kill(victim, signal.SIGCONT)
        time.sleep(0.001)
        os.kill(victim, signal.SIGSTOP)
    os.kill(victim, signal.SIGKILL)
    process.wait(timeout=8 + faults.GRACE_S)
    told = faults.messages((work / "err").read_text())
    assert len(told) == 1 and "rank 2 (host b)" in told[0], told


def asked_while_mpirun_hangs(two):
    """Ranks that mpirun has asked to end before the join have no cause to report, however long it hangs: of
    another node, which may have, they know nothing."""
    process, ranks = start_on(two, [":", "-np", "1", "sleep", "60"])
    os.kill(process.pid, signal.SIGSTOP)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for rank in (0, 1):
            os.kill(ranks[rank], number)
        time.sleep(0.3)
    process.wait(timeout=8 + faults.GRACE_S)
    assert process.returncode == -signal.SIGKILL, process.returncode
    told = faults.messages((work / "err").read_text())
    assert not told, told


def start_guards_of(folder):
    return faults.guards_of(folder, "fsdp_start")


def cut_when_done(two):
    """mpirun would wait for its daemon without a limit, whatever of the run's end the cut is in. Where it
    sees the lost link itself it ends with 1, and being --quiet says nothing: the run is complete then."""
    run, process = start(two)
    try:
        while process.poll() is None and "done:" not in run.text("out"):
            time.sleep(0.001)
        two.cut()
        faults.wait_end(run, process, LIMIT_S + faults.GRACE_S)
        told = faults.messages(run.text("err"))
        assert process.returncode != 0 if told else process.returncode in (0, 1), (process.returncode, told)
        if told:
            assert len(told) == 1, told
            assert "the run is complete" in told[0] or "cannot be reached" in told[0], told
        return told
    finally:
        two.mend()


def struck_when_done(number, victim=1, two=None):
    """Whenever it falls, a rank that is killed or stopped is named, or had left the job with its run
    complete. Of one that is stopped last nobody else is there to speak; of two hosts the other one, whose
    ranks wait for it too, gives way."""
    run, process = start(two)
    ranks = faults.processes_of(work / "logs")
    while process.poll() is None and "done:" not in run.text("out"):
        time.sleep(0.0005)
    with contextlib.suppress(ProcessLookupError):
        os.kill(ranks[victim], number)
    faults.wait_end(run, process, LIMIT_S + faults.GRACE_S)
    told = faults.messages(run.text("err"))
    assert len(told) == (process.returncode != 0), (process.returncode, told)
    assert not told or f"rank {victim} (host " in told[0], told
    return len(told)


def main():
    if not programs.WITH_MPI or programs.SLOW:
        print("built without MPI, or with a sanitizer: nothing to run")
        return
    os.environ.update(programs.MPI_ENVIRONMENT)
    struck_all_at_once(signal.SIGKILL, "a rank has ended")
    struck_all_at_once(signal.SIGKILL, "a rank has ended", late=True)
    struck_all_at_once(signal.SIGSTOP, "no sign of life")
    one_is_killed_while_nobody_can_speak()
    never_joins()
    killed_before_the_join(mpirun_hangs=False)
    killed_before_the_join(mpirun_hangs=True)
    killed_before_its_guard()
    for number, count in ((signal.SIGKILL, ENDS), (signal.SIGSTOP, ENDS)):
        told = sum(struck_when_done(number) for _ in range(count))
        print(f"{signal.Signals(number).name} of {count} ranks at the end: {told} had not left the job")
    print("nobody could speak: the guard did")
    reason = hosts.why_not()
    if reason:
        print(f"not tested over two hosts: {reason}")
    else:
        with hosts.Hosts() as two:
            told = [message for _ in range(CUTS) for message in cut_when_done(two)]
            stopped = sum(struck_when_done(signal.SIGSTOP, 1 + each % 3, two) for each in range(2 * ENDS))
            killed_while_the_other_node_waits(two)
            asked_while_mpirun_hangs(two)
        print(f"links cut at the end of {CUTS} runs: {len(told)} of them held mpirun up, and it was ended")
        print(f"ranks of two hosts stopped at the end of {2 * ENDS} runs: {stopped} had not left the job")


sys.exit(main())
