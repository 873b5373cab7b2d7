"""Running a step's command with a time limit: its lines as they arrive, and no process left behind."""
import os
import pathlib
import queue
import signal
import subprocess
import threading
import time

OVER_LIMIT = 124
TERM_S = 2  # seconds that a command has to end by itself
live = []  # running commands, for end_all


def in_session(session):
    """Process ids of a session; Open MPI gives each rank a group of its own, but no session."""
    members = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            members.append(int(stat.parent.name))
    return members


def signal_session(session, number):
    for member in in_session(session):
        try:
            os.kill(member, number)
        except ProcessLookupError:
            pass


def end(process):
    """Ends a command with all that it has started, which holds memory of the GPU."""
    signal_session(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + TERM_S
    while in_session(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    signal_session(process.pid, signal.SIGKILL)
    process.wait()
    if process in live:
        live.remove(process)


def end_all():
    for process in list(live):
        end(process)


def start(command, environment, stdin=subprocess.DEVNULL):
    """Starts a command in its own process group; its lines arrive in the returned queue, then None."""
    process = subprocess.Popen([str(part) for part in command], stdin=stdin, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, errors="replace", env=environment,
                               start_new_session=True)
    lines = queue.Queue()

    def read():
        for line in process.stdout:
            lines.put(line.rstrip("\n"))
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    live.append(process)
    return process, lines


def finish(process):
    """The status of a command whose output has ended."""
    status = process.wait()
    live.remove(process)
    return status


def run(command, environment, limit_s, on_line):
    """Calls on_line for every line as it arrives. Returns the exit status, or OVER_LIMIT if the command had
    to be ended."""
    try:
        process, lines = start(command, environment)
    except OSError as error:
        on_line(f"{command[0]}: {error.strerror}")
        return 127
    deadline = time.monotonic() + limit_s
    while True:
        try:
            line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            end(process)
            return OVER_LIMIT
        if line is None:
            return finish(process)
        on_line(line)
