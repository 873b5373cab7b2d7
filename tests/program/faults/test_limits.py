"""A machine, or a limit, without memory, threads or large enough files for a run: one message that says what
could not be had, how much, and what to do, and status 4; no stack trace. At whatever point it comes."""

import os
import shutil
import subprocess
import sys

import programs

TRAIN = ["fsdp_train", "--model", "tiny", "-s", 32, "--max-steps", 2]
# kB of address space, without the libraries of a build with CUDA: in the start of MPI, between it and the
# arenas, in pools and threads of streams.
SPACES = [86016, 122880, 143360, 258048, 307200, 331776, 348160, 358400]
ALL_SPACES = [*range(65536, 360448, 4096)]
PLAN = ["fsdp_plan", "--model", "llama3-405b", "--ranks", 64, "--search", "--profile", "h100-sxm"]
SELF_TEST = ["fsdp_plan", "-s", 32, "-b", 4, "--ranks", 4, "--mesh", "fsdp=2,tensor=2", "--self-test"]


def limited(limit, command, launcher=""):
    """The command in a shell that sets `limit` (ulimit's) for it alone."""
    words = " ".join([str(programs.BIN / command[0]), *map(str, command[1:])])
    line = f"{launcher} bash -c 'ulimit {limit}; exec {words}'"
    return subprocess.run(line, shell=True, capture_output=True, text=True, timeout=120, check=False)


def mapped(command, least):
    """What the loader maps more than `least` kB, which it needs in a build without CUDA."""
    def starts(space):  # 127: the loader says why not; 139: it has no room itself
        return limited(f"-v {space}", [command, "--version"]).returncode not in (127, 139)

    low, high = least, 4 << 20
    if starts(low):
        return 0
    while high - low > 256:
        middle = (low + high) // 2
        loads = starts(middle)
        low, high = (low, middle) if loads else (middle, high)
    return high - least


def one_message(process, command, *expected):
    assert process.returncode == 4, (process.returncode, process.stderr)
    (message,) = programs.errors(process, command[0])
    assert "broken invariant" not in process.stderr and process.stderr.count("\n") == 1, process.stderr
    assert any(text in message for text in expected), message
    return message


def address_space(libraries):
    """The most of the spaces in which it cannot run: what MPI and the C library take differs by system."""
    refused = []
    for space in ALL_SPACES if programs.ALL else SPACES:
        process = limited(f"-v {space + libraries}", [*TRAIN, "--threads", 1])
        if process.returncode == 0 and not process.stderr and refused:
            continue
        one_message(process, TRAIN, "out of host memory for", "could not be started", "arena of")
        refused.append(space)
    start = limited(f"-v {122880 + libraries}", TRAIN)
    message = one_message(start, TRAIN, "out of host memory for the start of MPI")
    assert "268435456 bytes" in message and "raise the limit (ulimit -v" in message, message
    process = limited(f"-v {500000 + libraries}", [*TRAIN, "--threads", 1])
    assert process.returncode == 0, process.stderr
    search = limited(f"-v {14000 + mapped(PLAN[0], 9000)}", PLAN)
    message = one_message(search, PLAN, "out of host memory for")
    assert "rank" not in message.split(":")[2], message  # it has none
    return max(refused)


def several_ranks(libraries, most):
    """The ranks have joined or have not: one of them speaks, and mpirun returns its status. `most`: a space
    in which one rank cannot run."""
    for space in (122880, min(307200, most)):
        process = limited(f"-v {space + libraries}", TRAIN, "mpirun --quiet -np 3")
        message = one_message(process, TRAIN, "out of host memory for", "could not be started", "arena of")
        assert space > 122880 or "rank " in message, message
    # In the middle of a job, of one rank alone.
    words = " ".join(map(str, [programs.BIN / TRAIN[0], *TRAIN[1:], "--threads", 1]))
    limit = f"ulimit -v {min(360000, most) + libraries}"
    of_one = f'bash -c \'if [ $OMPI_COMM_WORLD_RANK = 1 ]; then {limit}; fi; exec {words}\''
    process = subprocess.run(f"mpirun --quiet -np 3 {of_one}", shell=True, capture_output=True, text=True,
                             timeout=120, check=False)  # fmt: skip
    assert "rank 1 (host " in one_message(process, TRAIN, "out of host memory for", "could not be started")


def sizes_of_files():
    """Too small for the start of MPI, or for memory that ranks share as a file."""
    for kilobytes, launcher in ((50, ""), (4000, ""), (50, "mpirun --quiet -np 3")):
        message = one_message(limited(f"-f {kilobytes}", TRAIN, launcher), TRAIN, "the start of MPI")
        assert f"a file may have {1024 * kilobytes} bytes" in message and "(ulimit -f)" in message, message
    shared = one_message(limited("-f 8000", TRAIN, "mpirun --quiet -np 2"), TRAIN, "the device arena of")
    assert "File too large" in shared and "raise the limit (ulimit -f)" in shared, shared
    assert limited("-f 4096", TRAIN).returncode == 0


def threads():
    """Of a user who has no other processes: root has no limit."""
    user = "setpriv --reuid=54321 --clear-groups"
    probe = limited("-u 100", [*TRAIN, "--version"], user)
    if os.geteuid() != 0 or not shutil.which("setpriv") or probe.returncode != 0:
        print(f"threads: skipped, as there is no user without processes here {probe.stderr.strip()}")
        return
    for count in range(1, 20) if programs.ALL else (1, 12, 14, 18):
        message = one_message(limited(f"-u {count}", [*TRAIN, "--threads", 4], user), TRAIN,
                              "could not be started")  # fmt: skip
        assert "(ulimit -u, the container's pids)" in message and "--threads N" in message, message
    for count in (2, 3):  # ranks are threads
        one_message(limited(f"-u {count}", SELF_TEST, user), SELF_TEST, "could not be started")


def main():
    if programs.SLOW:
        print("built with a sanitizer, which reserves more address space than any limit here: nothing to run")
        return 0
    if not programs.WITH_MPI:
        print("built without MPI, whose start these limits are about: nothing to run")
        return 0
    os.environ.update(programs.MPI_ENVIRONMENT)
    libraries = mapped(TRAIN[0], 61440)
    several_ranks(libraries, address_space(libraries))
    sizes_of_files()
    threads()
    return 0


sys.exit(main())
