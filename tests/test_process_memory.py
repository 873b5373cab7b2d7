"""The processes' own memory: the resident set of a rank never passes its two arenas and what the program
takes alone by more than 48 MB, whatever the strategy, and no rank ever holds the model."""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

import programs

ALLOWANCE_BYTES = 48e6  # MPI's buffers, the data, stacks
CONFIG = programs.CONFIG | {"hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 6,
                            "vocab_size": 8000, "num_attention_heads": 8, "num_key_value_heads": 4}
work = pathlib.Path(tempfile.mkdtemp(prefix="fsdp_memory_"))


def peaks(ranks, *arguments):
    """The greatest resident set of every rank in bytes, and the last line of rank 0's log."""
    log = work / "log.jsonl"
    log.unlink(missing_ok=True)
    # A rank's parent is told its peak when it ends.
    watch = ("import resource, subprocess, sys; code = subprocess.call(sys.argv[1:]); "
             "print(f'<peak {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss}>'); sys.exit(code)")
    command = [sys.executable, "-c", watch, str(programs.BIN / "fsdp_train"), "--model", str(work),
               "--init", "random", "-s", "128", "--max-steps", "3", "--log", str(log), *arguments]
    if programs.WITH_MPI:
        command = ["mpirun", "-np", str(ranks), *command]
    process = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert process.returncode == 0, process.stdout + process.stderr
    # Ranks' outputs may be woven into one line.
    sizes = [int(kib) * 1024 for kib in re.findall(r"<peak (\d+)>", process.stdout)]
    return sizes, json.loads(log.read_text().splitlines()[-1])


def check(ranks, *arguments):
    sizes, last = peaks(ranks, *arguments)
    planned = last["arena_bytes"] + last["host_bytes"]
    assert len(sizes) == ranks, sizes
    for size in sizes:
        over = size - planned - alone
        assert over <= ALLOWANCE_BYTES, (
            arguments, f"{size:,} resident, {planned:,} planned, {alone:,} alone, {over:,} over")
    print(f"{ranks} ranks {' '.join(arguments)}: {max(sizes) / 1e6:.0f} MB resident, "
          f"arenas {planned / 1e6:.0f} MB, the program alone {alone / 1e6:.0f} MB")


(work / "config.json").write_text(json.dumps(CONFIG))
alone = programs.resident_alone()
check(1, "--strategy", "full", "--wrap", "block")
if programs.WITH_MPI:
    check(2, "--strategy", "full", "--wrap", "block")
    check(2, "--strategy", "no")
    check(4, "--strategy", "hybrid", "--mesh", "data=2,fsdp=2", "--wrap", "block", "--cpu-offload", "on",
          "--grad-accum", "2")
    check(2, "--strategy", "grad_op", "--wrap", "block", "--param-dtype", "bf16", "--recompute", "block")
