#!/usr/bin/env python3
"""Ranks killed, ranks stopped and links cut at random moments of a run: every job must end by itself within
the time limit, with one message that names the rank, and the restart must continue the undisturbed curve to
the bit.

    tests/program/faults/faults.py --hosts 2 --count 50 --out faults.jsonl     # again: resumes

Needs root for two hosts (hosts.py). FSDP_BIN_DIR is where the programs are. A fault before all ranks have
joined is one of the kinds start-kill and start-stop: there is a message at most, as the ranks do not know of
each other yet.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import hosts  # noqa: E402
import programs  # noqa: E402

GRACE_S = 5
STEPS, FREQ, RANKS = 60, 3, 4
ERROR = "fsdp_train: error: "


class Lost(Exception):
    """A job that did not end, printed no message, or did not continue."""


def processes_of(folder):
    """Ranks of the run that logs to `folder`, by rank: process ids."""
    found = {}
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            if not words[0].endswith(b"fsdp_train") or str(folder).encode() not in words:
                continue
            if (path / "stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX":
                continue
            settings = (path / "environ").read_bytes().split(b"\0")
            variables = dict(setting.split(b"=", 1) for setting in settings if b"=" in setting)
            # Not the small process between a rank and its terminal, which leads a session of its own.
            if os.getsid(int(path.name)) == int(path.name):
                continue
            found[int(variables[b"OMPI_COMM_WORLD_RANK"])] = int(path.name)
        except (OSError, KeyError, IndexError, ValueError):
            continue
    return found


class Run:
    """One experiment, started again and again until it is done."""

    def __init__(self, two, work, timeout_s):
        self.two, self.work, self.timeout_s = two, work, timeout_s
        self.folder = work / "wild"

    def command(self, name, logs):
        options = ["-s", 32, "-b", 2, "--lr", "1e-3", "--seed", 3, "--wrap", "block", "--log-freq", 1,
                   "--max-steps", STEPS, "--ckpt-freq", FREQ, "--save-dir", self.work, "-e", name,
                   "--comm-timeout", self.timeout_s, "--rank-logs", logs]  # fmt: skip
        program = [str(programs.BIN / "fsdp_train"), *map(str, options)]
        if self.two:
            return self.two.command(RANKS // 2, [*program, "--strategy", "hybrid"], ["--quiet"])
        return ["mpirun", "--quiet", "-np", str(RANKS), *program]

    def losses(self, name):
        lines = programs.log_of(self.work / name / "log.jsonl")
        if [line["global_step"] for line in lines] != list(range(1, STEPS + 1)):
            raise Lost(f"the log of {name} has steps {[line['global_step'] for line in lines]}")
        return [line["loss"] for line in lines]

    def start(self, name, keeps_logs=False):
        logs = self.work / "logs"
        if not keeps_logs:
            shutil.rmtree(logs, ignore_errors=True)
        with (self.work / "out").open("w") as out, (self.work / "err").open("w") as err:
            return subprocess.Popen(self.command(name, logs), stdout=out, stderr=err)

    def text(self, name):
        path = self.work / name
        return path.read_text() if path.exists() else ""

    def wait_joined(self, process):
        """Until every rank has a log, which it opens when all have joined; whether they did."""
        while process.poll() is None:
            # Rank 0's error file is opened behind everyone's log.
            if self.text("out").count("\n") > 0 and len(processes_of(self.work / "logs")) == RANKS:
                return True
            time.sleep(0.01)
        return False

    def wait_moment(self, process, draw):
        """To a random moment: soon after the start, in a save, or behind a random number of steps."""
        if not self.wait_joined(process):
            return False
        way = draw.random()
        if way < 0.2:
            time.sleep(draw.uniform(0, 0.5))
        elif way < 0.5:
            while process.poll() is None and not any(self.folder.glob("step-*.tmp")):
                time.sleep(0.0005)
            time.sleep(draw.uniform(0, 0.02))
        else:
            first, steps = self.text("out").count("\nstep "), draw.randint(1, STEPS // 3)
            while process.poll() is None and self.text("out").count("\nstep ") < first + steps:
                time.sleep(0.002)
        return process.poll() is None


def wait_start(run, process, draw):
    """To a random moment before, or at times a little after, all ranks have joined."""
    while process.poll() is None and not processes_of(run.work / "logs"):
        time.sleep(0.002)
    time.sleep(draw.uniform(0, 0.4))
    return process.poll() is None


def guards_of(folder, name="fsdp_guard"):
    """The guards of the run that logs to `folder`, or of its ranks' starts: process ids."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (path / "cmdline").read_bytes().split(b"\0")
            if str(folder).encode() in words and (path / "comm").read_text() == f"{name}\n":
                found.append(int(path.name))
    return found


def wait_guard(run):
    """Until it has spoken, where nobody else could. mpirun does not wait for it: of ranks that all end at one
    time it learns no sooner than mpirun, and each takes its time to act on it."""
    deadline = time.monotonic() + 2
    while not messages(run.text("err")) and guards_of(run.work / "logs") and time.monotonic() < deadline:
        time.sleep(0.01)


def wait_end(run, process, limit_s, victim=None):
    """Until mpirun and every rank are gone; the seconds since now, and until no rank but the victim was left.
    Then the run's messages are complete."""
    began, waited_s = time.monotonic(), None
    while time.monotonic() - began < limit_s:
        left = set(processes_of(run.work / "logs"))
        if waited_s is None and not left - {victim}:
            waited_s = time.monotonic() - began
        if process.poll() is not None and not left:
            ended_s = time.monotonic() - began
            wait_guard(run)
            return ended_s, waited_s
        time.sleep(0.02)
    left = processes_of(run.work / "logs")
    raise Lost(f"still there after {limit_s} s: mpirun {process.poll()}, ranks {left}; {run.text('err')}; "
               f"{run.text('out')[-200:]}; {run.work} keeps its files\n{evidence(process.pid, left)}")


def evidence(launcher, ranks):
    """What every thread of mpirun, its daemons and the ranks left waits for."""
    told = []
    processes = {launcher, *ranks.values()}
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (path / "comm").read_text().strip() in ("mpirun", "orted", "fsdp_train"):
                processes.add(int(path.name))
    for pid in sorted(processes):
        for task in sorted(pathlib.Path(f"/proc/{pid}/task").glob("*")):
            with contextlib.suppress(OSError):
                state = (task / "stat").read_text().rsplit(")", 1)[1].split()[:2]
                name, waits = (task / "comm").read_text().strip(), (task / "wchan").read_text()
                told.append(f"{pid}/{task.name} {name} {state} {waits}")
    return "\n".join(told)


def messages(text):
    return [line for line in text.splitlines() if line.startswith(ERROR)]


def comes_into_being(path):
    """Within a second: mpirun does not wait for the process that writes it."""
    deadline = time.monotonic() + 1
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return path.exists()


def check_messages(run, kind, victim):
    """One message in all, one a side of a cut link, and the rank in it; the first one."""
    told = messages(run.text("err"))
    logs = [run.text(f"logs/rank-{rank}.log") for rank in range(RANKS)]
    sides = [messages("\n".join(logs[:2])), messages("\n".join(logs[2:]))]
    if kind == "cut" and len(told) == 1 and not any(sides) and "the run is complete" in told[0]:
        return told[0]  # cut behind the last step, as docs/faults.md says
    if kind == "cut":
        if len(told) != 1 or len(sides[0]) != 1 or len(sides[1]) != 1:
            raise Lost(f"not one message a side of a cut link: {told}, {sides}")
        if "rank 2 (host b)" not in told[0] or "rank 0 (host a)" not in sides[1][0]:
            raise Lost(f"a cut link's message does not name the other side: {sides}")
    elif kind.startswith("start"):
        if len(told) > 1 or "broken invariant" in run.text("err"):
            raise Lost(f"several messages of a start that failed: {told}; {run.text('err')}")
        return told[0] if told else None
    elif len(told) != 1 or f"rank {victim} (host " not in told[0]:
        raise Lost(f"not one message that names rank {victim}: {told}; {run.text('err')}")
    crashed = [text for text in (run.text("err"), *logs) if "Process received signal" in text]
    if crashed or not comes_into_being(run.work / "logs" / "error.json"):
        raise Lost(f"a survivor crashed, or wrote no error.json: {crashed}")
    return told[0]


def inject(run, draw, kind, process):
    """The fault; the rank that it struck, or None where the job was over."""
    victim, ranks = draw.randrange(RANKS), processes_of(run.work / "logs")
    if kind.startswith("start") and victim not in ranks:  # it has not been started yet
        victim = next(iter(ranks), victim)
    elif len(ranks) != RANKS:
        return None
    if process.poll() is not None or victim not in ranks:
        return None
    if kind == "cut":
        run.two.cut()
    else:
        os.kill(ranks[victim], signal.SIGKILL if kind.endswith("kill") else signal.SIGSTOP)
    return victim


def one_fault(run, draw, kind):
    """A start that a fault ends. Its delay and message, or None where the run was done before it."""
    process = run.start("wild")
    try:
        wait = wait_start if kind.startswith("start") else Run.wait_moment
        victim = inject(run, draw, kind, process) if wait(run, process, draw) else None
        if victim is None:
            finish(run, process)
            return None
        delay_s, waited_s = wait_end(run, process, run.timeout_s + GRACE_S, None if kind == "cut" else victim)
        if process.returncode == 0:  # struck behind its last step
            return None
        return {"kind": kind, "rank": victim, "delay_s": round(delay_s, 2),
                "waited_s": round(waited_s, 2), "status": process.returncode,
                "message": check_messages(run, kind, victim)}  # fmt: skip
    finally:
        if run.two:
            run.two.mend()
        for pid in [*processes_of(run.work / "logs").values(), process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def finish(run, process):
    process.wait(timeout=240)
    if process.returncode != 0:
        raise Lost(f"a start without a fault ended with {process.returncode}: {run.text('err')}")


def faults(two, count, work, record, timeout_s=5, seed=1, done=0):
    """`count` faults in all, of which `done` lie behind; `record` gets each. Every run is taken to its end,
    and its curve compared."""
    run, draw = Run(two, work, timeout_s), random.Random(f"{seed} {done}")
    kinds = ["kill", "stop", "cut", "start-kill"] if two else ["kill", "stop", "start-kill", "start-stop"]
    finish(run, run.start("calm"))
    calm = run.losses("calm")
    while done < count:
        shutil.rmtree(run.folder, ignore_errors=True)
        complete = False
        while not complete:
            if done < count:
                fault = one_fault(run, draw, kinds[done % len(kinds)])
                complete = fault is None
                if fault:
                    done += 1
                    record(fault | {"number": done})
            else:
                finish(run, run.start("wild"))
                complete = True
        if run.losses("wild") != calm:
            raise Lost("the curve is not the undisturbed one")
        record({"curve": "as undisturbed", "number": done})


def report(rows):
    """Counts and the slowest end by kind."""
    for kind in sorted({row["kind"] for row in rows if "kind" in row}):
        delays = sorted(row["delay_s"] for row in rows if row.get("kind") == kind)
        waits = sorted(row["waited_s"] for row in rows if row.get("kind") == kind)
        told = sum(row["message"] is not None for row in rows if row.get("kind") == kind)
        middle = len(delays) // 2
        print(f"{kind}: {len(delays)} jobs, {told} with a message; no rank waited longer than "
              f"{waits[middle]:.1f} s (median), {waits[-1]:.1f} s (slowest); mpirun had ended after "
              f"{delays[middle]:.1f} s, {delays[-1]:.1f} s")
    print(f"{sum('curve' in row for row in rows)} curves as undisturbed, to the bit; none lost")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, choices=(1, 2), default=1)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=int, default=5, help="--comm-timeout of the jobs, seconds")
    parser.add_argument("--out", type=pathlib.Path, help="JSON lines; what is there counts")
    options = parser.parse_args()
    os.environ.update(programs.MPI_ENVIRONMENT)
    if options.hosts == 2 and (reason := hosts.why_not()):
        print(f"skipped: {reason}")
        return 77
    rows = []
    if options.out and options.out.exists():
        rows = programs.log_of(options.out)

    def record(row):
        rows.append(row)
        if options.out:
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
        if "kind" in row:
            print(f"{row['number']:4d}/{options.count} {row['kind']} rank {row['rank']}: {row['delay_s']} s",
                  flush=True)  # fmt: skip

    work = programs.folder("faults", memory=True)
    done = sum("kind" in row for row in rows)
    with hosts.Hosts() if options.hosts == 2 else contextlib.nullcontext() as two:
        faults(two, options.count, work, record, options.timeout, options.seed, done)
    report(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
