"""The processes' own memory: the resident set of a rank never passes its two arenas and what the program
takes alone by more than 48 MB, whatever the strategy, and no rank ever holds the model, not even while it
loads or saves. Alone it takes at most 64 MB, also with a CUDA device that is not used."""

import json
import re
import subprocess
import sys

import programs

ALLOWANCE_BYTES = 48e6  # MPI's buffers, the data, stacks
ALONE_BYTES = 64e6      # cuBLASLt, linked, would take 150 MB
CONFIG = programs.CONFIG | {"hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 6,
                            "vocab_size": 8000, "num_attention_heads": 8, "num_key_value_heads": 4}
work = programs.folder("memory")


def peaks(ranks, *arguments, model=("--model", work, "--init", "random"), steps=3):
    """The greatest resident set of every rank in bytes, and the last line of rank 0's log."""
    log = work / "log.jsonl"
    log.unlink(missing_ok=True)
    # A rank's parent learns its peak when it ends.
    watch = ("import resource, subprocess, sys; code = subprocess.call(sys.argv[1:]); "
             "print(f'<peak {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss}>'); sys.exit(code)")
    command = [sys.executable, "-c", watch, str(programs.BIN / "fsdp_train"), *map(str, model), "-s", "64",
               "--tokenizer", "bytes",
               "--max-steps", str(steps), "--log", str(log), *arguments]
    if programs.WITH_MPI:
        command = ["mpirun", "-np", str(ranks), *command]
    process = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert process.returncode == 0, process.stdout + process.stderr
    # Ranks' outputs may be woven into one line.
    sizes = [int(kib) * 1024 for kib in re.findall(r"<peak (\d+)>", process.stdout)]
    return sizes, json.loads(log.read_text().splitlines()[-1])


def check(ranks, *arguments, **options):
    sizes, last = peaks(ranks, *arguments, **options)
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
assert alone <= ALONE_BYTES, f"{alone:,} resident in a program that does nothing"
check(1, "--strategy", "full", "--wrap", "block")
if programs.WITH_MPI:
    check(2, "--strategy", "full", "--wrap", "block")
    check(2, "--strategy", "no")
    check(4, "--strategy", "hybrid", "--mesh", "data=2,fsdp=2", "--wrap", "block", "--cpu-offload", "on",
          "--grad-accum", "2")
    check(2, "--strategy", "zero1", "--wrap", "block", "--grad-accum", "2")
    check(2, "--strategy", "grad_op", "--wrap", "block", "--param-dtype", "bf16", "--recompute", "block")
    # Saved by four ranks from snapshots, which the plan's host memory holds; then eight ranks load the
    # weights of an export, and resume from the checkpoint and save without a snapshot.
    saved = ("--wrap", "block", "--save-dir", str(work), "-e", "saved")
    check(4, *saved)
    exported = work / "exported"
    programs.run("fsdp_export", work / "saved", "--to", exported, "--max-shard-size", "20MB", status=0)
    check(8, "--wrap", "block", model=("--model", exported))
    check(8, *saved, "--ckpt-async", "off", steps=6)
