"""Replicas that drift apart, in whole runs: a bit of one rank's memory is flipped from outside, through
/proc, and the run ends with a message that names unit, part and rank; nothing of it is saved. Replicas that
nobody touches agree, with states that are rounded by random bits too."""

import contextlib
import json
import pathlib
import re
import sys
import time

import programs

work = programs.folder("drift")
COMMON = ["-s", "16", "-b", "1", "--lr", "1e-3", "--wrap", "block", "--save-dir", work, "--log-freq", "9999"]
EVERY_5 = ["--check-replicas", 5, "--ckpt-freq", 0]
HYBRID = ["--strategy", "hybrid", "--mesh", "data=2,fsdp=2"]
# Norms are replicas over tensor.
MESH = ["--context-parallel", 2, "--tensor-parallel", 2]
BF16 = ["--master-dtype", "bf16", "--moment-dtype", "bf16", "--param-dtype", "bf16"]


def processes(parent):
    """All below a process, by their global rank."""
    ranks = {}
    for pid in programs.descendants(parent):
        with contextlib.suppress(OSError):
            environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
            found = re.search(rb"OMPI_COMM_WORLD_RANK=(\d+)", environment)
            if found and pathlib.Path(f"/proc/{pid}/comm").read_text().strip() == "fsdp_train":
                ranks[int(found[1])] = pid
    return ranks


def flip(pid, element):
    """Flips a bit of the fraction of an fp32 in the first tensor of the device's arena: masters of unit 0.
    False where the arena is not there."""
    for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
        if "memfd:" not in line or "device" not in line or "rw" not in line.split()[1]:
            continue
        begin = int(line.split("-")[0], 16)
        with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
            memory.seek(begin + 4 * element + 1)
            byte = memory.read(1)
            memory.seek(begin + 4 * element + 1)
            memory.write(bytes([byte[0] ^ 0x10]))
        return True
    return False


def run_and_flip(name, ranks, rank, *options):
    """Starts a run that would not end, flips a bit of one rank once steps are made, and waits for the end."""
    process = programs.start("fsdp_train", *COMMON, "-e", name, "--max-steps", 1000000, "--num-epochs", 1000,
                             *options, ranks=ranks)
    log, element, deadline = work / name / "log.jsonl", 0, time.monotonic() + 200
    try:
        while not (log.exists() and len(log.read_text().splitlines()) > 12):
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()
            time.sleep(0.1)
        # An update that is under way may overwrite what is flipped beneath it: then a different element.
        while process.poll() is None:
            assert time.monotonic() < deadline, "the drift was not noticed"
            pids = processes(process.pid)
            if rank in pids:
                try:
                    # A rank that ends has none any more.
                    assert flip(pids[rank], element) or element > 0, "no arena to flip a bit of"
                except (FileNotFoundError, ProcessLookupError):
                    pass
                except PermissionError as error:
                    print(f"skipped: another process's memory cannot be written here ({error})")
                    process.kill()
                    sys.exit(77)
            element += 1
            time.sleep(1)
    finally:
        process.kill()
    return programs.finish(process)


def a_flipped_bit_is_found():
    cases = [
        ("every", 2, 1, ["--strategy", "no", *EVERY_5], "rank 0 .*rank 1"),
        ("shards", 4, 3, [*HYBRID, *EVERY_5], "shard 1 of 2.*rank 1 .*rank 3"),
        ("tensor", 4, 3, [*MESH, *EVERY_5], "shard 1 of 2.*rank 2 .*rank 3"),
        ("majority", 3, 2, ["--strategy", "no", *EVERY_5], "rank 2 .*from the 2"),
        ("saves", 2, 0, ["--strategy", "no", "--ckpt-freq", 10, "--ckpt-async", "off"], "rank 0 .*rank 1"),
    ]
    for name, ranks, rank, options, expected in cases:
        process = run_and_flip(name, ranks, rank, *options)
        message = programs.errors(process, "fsdp_train")
        assert process.returncode == 5 and len(message) == 1, (name, process)
        assert "replicas differ after step" in message[0] and "of unit" in message[0], message
        assert "master" in message[0] and re.search(expected, message[0]), (expected, message)
        noticed = int(re.search(r"after step (\d+)", message[0])[1])
        saved = sorted(int(p.name[5:]) for p in (work / name).glob("step-*"))
        if name == "saves":
            assert saved and saved[-1] == noticed - 10, (saved, message)
        else:
            assert not saved and noticed % 5 == 0, (saved, message)
        lines = programs.log_of(work / name / "log.jsonl")
        checked = [line["global_step"] for line in lines if "time/check_replicas" in line]
        assert checked and all(step % 5 == 0 for step in checked), checked


def replicas_agree():
    """Seeds, shards, offload, accumulation, more ranks on tensor than key/value heads: nothing of them makes
    replicas differ."""
    for i, options in enumerate([
        ["--strategy", "no"],
        ["--strategy", "no", *BF16],
        ["--strategy", "no", "--cpu-offload", *BF16],
        [*HYBRID, "--grad-accum", 2, *BF16],
        [*MESH, *BF16],
        ["--tensor-parallel", 4, "--grad-accum", 2, *BF16],
        ["--tensor-parallel", 4, "--cpu-offload", "--sequence-parallel", "off", *BF16],
    ]):
        ranks = 2 if "no" in options else 4
        programs.run("fsdp_train", *COMMON, *options, "--max-steps", 6, "--check-replicas", 1, "-e",
                     f"agree{i}", "--ckpt-freq", 3, ranks=ranks, status=0)
        lines = programs.log_of(work / f"agree{i}" / "log.jsonl")
        assert all(line["time/check_replicas"] > 0 for line in lines) and len(lines) == 6, lines


def without_replicas_nothing_is_compared():
    process = programs.run("fsdp_train", *COMMON, "--max-steps", 2, "--check-replicas", 1)
    assert process.returncode == 0 and "no replicas" in process.stdout, process.stdout
    for options, read in ((["--strategy", "no"], True), (["--strategy", "full"], False)):
        plan = programs.run("fsdp_plan", *options, "--ranks", 4, "--check-replicas", 10, "--json")
        program = json.loads(plan.stdout)["program"]
        assert program["check_bytes"] == (803968 * 12 if read else 0), program


without_replicas_nothing_is_compared()
if programs.WITH_MPI:
    replicas_agree()
    a_flipped_bit_is_found()
