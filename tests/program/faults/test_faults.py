"""Ranks of one host killed and stopped at random moments (faults.py): every job ends in time with one
message that names the rank, and the restart continues the undisturbed curve. FSDP_TEST_ALL=1 takes more.
And --rank-logs: what every rank printed, and the error file of other failures."""

import contextlib
import json
import os
import shutil
import signal
import time

import faults
import programs

FAULTS = 20 if programs.ALL else 4


def rank_logs(work):
    def run(status, *options):
        logs = work / "of" / "ranks"
        ranks = 2 if programs.WITH_MPI else None
        always = ["-s", 32, "-b", 2, "--max-steps", 3, "--rank-logs", logs]
        return logs, programs.run("fsdp_train", *always, *options, ranks=ranks, status=status)

    logs, process = run(0)
    assert "done:" in process.stdout and "done:" in (logs / "rank-0.log").read_text(), process.stdout
    assert not (logs / "error.json").exists()
    # A second start appends to it; a failure known to all belongs to the rank that found it.
    for status, options in ((3, ["--data", work / "none.txt"]), (4, ["--memory-limit", "1MB"])):
        logs, process = run(status, *options)
        failure = json.loads((logs / "error.json").read_text())
        assert failure["status"] == status and failure["rank"] == 0 and failure["step"] == 0, failure
        assert programs.errors(process, "fsdp_train") == [f"fsdp_train: error: {failure['message']}"], failure
        text = (logs / "rank-0.log").read_text()
        assert failure["message"] in text and "done:" in text, text
    run(0)
    assert not (logs / "error.json").exists()
    _, process = run(3, "--rank-logs", "/proc/none")
    assert "--rank-logs" in programs.errors(process, "fsdp_train")[0], process.stderr


def logs_on_a_full_disk(work):
    """One warning, on the terminal; the run is as it would be."""
    logs = work / "full"
    logs.mkdir()
    (logs / "rank-0.log").symlink_to("/dev/full")
    process = programs.run("fsdp_train", "-s", 32, "-b", 2, "--max-steps", 3, "--rank-logs", logs)
    assert process.returncode == 0 and "done:" in process.stdout, (process.returncode, process.stdout)
    (line,) = process.stderr.splitlines()
    assert line.startswith(f"fsdp_train: warning: {logs}/rank-0.log cannot be written (No space left"), line


def logs_on_a_disk_that_hangs(work):
    """A file that takes nothing, not a byte, holds back neither the output nor the message of a fault."""
    logs = work / "logs"
    run = faults.Run(None, work, 3)
    run.folder = work / "hanging"
    logs.mkdir()
    held = []
    for rank in range(faults.RANKS):
        os.mkfifo(logs / f"rank-{rank}.log")
        held.append(os.open(logs / f"rank-{rank}.log", os.O_RDWR | os.O_NONBLOCK))
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(held[rank], bytes(4096))
    (logs / "error.json").mkdir()  # a name that is taken: nothing is written there
    process = run.start("hanging", keeps_logs=True)
    assert run.wait_joined(process), run.text("err")
    while run.text("out").count("\nstep ") < 3:
        time.sleep(0.01)
    os.kill(faults.processes_of(logs)[1], signal.SIGSTOP)
    faults.wait_end(run, process, 3 + faults.GRACE_S)
    (message,) = faults.messages(run.text("err"))
    assert "rank 1 (host " in message and "no sign of life" in message, message
    for file in held[1:]:
        os.close(file)
    shutil.rmtree(logs / "error.json")
    process = programs.run("fsdp_train", "-s", 32, "-b", 2, "--max-steps", 3, "--rank-logs", logs)
    assert process.returncode == 0 and "done:" in process.stdout, (process.returncode, process.stdout)
    assert "rank-0.log may lack its end: its disk hangs" in process.stderr, process.stderr
    os.close(held[0])
    shutil.rmtree(logs)


def a_broken_pipe(work):
    """What a rank gets that sends to one of another node while that is killed ends no rank."""
    run = faults.Run(None, work, 5)
    process = run.start("piped")
    assert run.wait_joined(process), run.text("err")
    while run.text("out").count("\nstep ") < 3:
        time.sleep(0.01)
    for rank in faults.processes_of(work / "logs").values():
        os.kill(rank, signal.SIGPIPE)
    faults.finish(run, process)
    assert "done:" in run.text("out"), run.text("out")


def main():
    work, rows = programs.folder("faults", memory=True), []
    rank_logs(work)
    if not programs.WITH_MPI or programs.SLOW:
        print("built without MPI, or with a sanitizer: nothing to run")
        return
    logs_on_a_full_disk(work)
    os.environ.update(programs.MPI_ENVIRONMENT)
    logs_on_a_disk_that_hangs(work)
    a_broken_pipe(work)
    faults.faults(None, FAULTS, work, rows.append, timeout_s=5)
    faults.report(rows)
    stopped = [row["status"] for row in rows if row.get("kind") == "stop"]
    assert all(status == 5 for status in stopped), stopped
    assert sum("kind" in row for row in rows) == FAULTS and sum("curve" in row for row in rows) >= 1, rows


main()
