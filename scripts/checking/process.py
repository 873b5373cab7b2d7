"""Running a step's command with a time limit: its lines as they arrive, and no process left behind, also
where the check itself is killed (keeper.py)."""
import os
import pathlib
import queue
import signal
import subprocess
import sys
import threading
import time

OVER_LIMIT = 124
TERM_S = 2  # seconds that a command has to end by itself
live = []  # running commands, for end_all
keeper = None  # ends them if this process cannot


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


def end_sessions(sessions):
    """Ends commands with all that they have started, which holds memory of the GPU."""
    for session in sessions:
        signal_session(session, signal.SIGTERM)
    deadline = time.monotonic() + TERM_S
    while any(map(in_session, sessions)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for session in sessions:
        signal_session(session, signal.SIGKILL)


def end(process):
    end_sessions([process.pid])
    process.wait()
    if process in live:
        forget(process)


def keep(process):
    """The keeper is a process of its own: nothing else runs once this one is killed."""
    global keeper
    if keeper is None:
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "keeper.py")
        keeper = subprocess.Popen([sys.executable, path], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                  text=True, start_new_session=True)
    live.append(process)
    tell_keeper(f"+{process.pid}")


def forget(process):
    live.remove(process)
    tell_keeper(f"-{process.pid}")


def tell_keeper(line):
    try:
        keeper.stdin.write(line + "\n")
        keeper.stdin.flush()
    except BrokenPipeError:
        pass  # somebody has ended it; our own ends remain


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
    keep(process)
    return process, lines


def finish(process):
    """The status of a command whose output has ended."""
    status = process.wait()
    forget(process)
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
