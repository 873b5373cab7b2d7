"""Meshes with tensor, sequence and context parallelism end to end: training, evaluation and clipping as on
one rank, of sizes that no axis divides, and what is left of a run that was killed in a save."""

import contextlib
import os
import shutil
import signal
import sys
import time

import programs

work = programs.folder("meshes")
# 6 heads of 10, 3 key/value heads, and sizes that neither 2 nor 4 divides.
CONFIG = programs.CONFIG | {"hidden_size": 60, "intermediate_size": 101, "num_attention_heads": 6,
                            "num_key_value_heads": 3, "initializer_range": 0.2}  # fmt: skip
MODEL = programs.make_model(work / "model", CONFIG, weights=False)
BATCH, STEPS = 12, 4
COMMON = ["--model", MODEL, "-s", 33, "--lr", "1e-2", "--seed", 3, "--threads", 1, "--save-dir", work,
          "--tokenizer", "bytes", "--wrap", "block", "--grad-clip", 0.5]  # fmt: skip


def command(name, mesh, *arguments, steps=STEPS):
    """Of a run on `mesh`, sizes of data, fsdp, context and tensor; and its ranks."""
    data, fsdp, context, tensor = mesh
    sizes = f"data={data},fsdp={fsdp},context={context},tensor={tensor}"
    strategy = "full" if data == 1 else "hybrid" if fsdp > 1 else "no"
    options = ["-e", name, "--max-steps", steps, "--strategy", strategy, "--mesh", sizes]
    options += ["-b", BATCH // (data * fsdp)] if "-b" not in arguments else []
    ranks = data * fsdp * context * tensor
    return ["fsdp_train", *COMMON, *options, *arguments], ranks


def train(name, mesh, *arguments, steps=STEPS):
    words, ranks = command(name, mesh, *arguments, steps=steps)
    return programs.run(*words, ranks=ranks, status=0)


def log(name):
    return programs.log_of(work / name / "log.jsonl")


def close(found, expected):
    return abs(found - expected) <= 2e-5 * abs(expected)


def same_run(name, expected):
    """Losses, norms and evaluations, but for fp32 sums in another order; and memory as planned."""
    lines = log(name)
    assert [line["global_step"] for line in lines] == list(range(1, len(expected) + 1)), (name, lines)
    for line, other in zip(lines, expected):
        for key in ("loss", "grad_norm", "eval_loss"):
            assert (key in line) == (key in other), (name, key)
            assert key not in line or close(line[key], other[key]), (name, key, line, other)
        for key in ("lr", "updates", "epoch_progress"):
            assert line[key] == other[key], (name, key, line, other)
        for space in ("valley_bytes", "peak_bytes"):
            assert line[space] == line["planned_" + space], (name, line)


def drawn():
    """The folder of the weights that every run draws."""
    train("drawn", (1, 1, 1, 1), "--lr", 0, steps=1)
    programs.run("fsdp_export", work / "drawn", "--to", work / "weights", status=0)
    return work / "weights"


def trains_as_one_rank():
    evaluation = ["--eval-split", 7, "--eval-freq", 2, "--ckpt-freq", 0]
    train("one", (1, 1, 1, 1), *evaluation)
    expected = log("one")
    assert any(line["grad_norm"] > 0.5 for line in expected), "nothing is clipped"
    cases = [
        ((1, 2, 1, 2), []),
        ((1, 2, 2, 2), ["--sequence-parallel", "off", "--recompute", "block"]),
        ((2, 1, 1, 3), ["--cpu-offload", "--recompute", "gather"]),
        ((1, 1, 2, 4), ["--grad-accum", 2, "-b", 6, "--accumulate", "local"]),
        ((2, 2, 1, 2), ["--grad-accum", 3, "-b", 1, "--cpu-offload", "--sequence-parallel", "off"]),
        ((1, 1, 1, 6), ["--wrap", "size", "--numel-to-wrap", "1e4", "--prefetch", 0]),
        ((1, 1, 1, 4), ["--model", drawn()]),
        ((1, 2, 2, 2), ["--strategy", "zero1", "--grad-accum", 3, "-b", 2, "--recompute", "block"]),
        ((2, 2, 1, 1), ["--strategy", "zero1", "--cpu-offload"]),
        ((1, 1, 3, 2), ["--strategy", "grad_op", "--offload-activations", "block_inputs"]),
    ]
    for i, (mesh, arguments) in enumerate(cases[:3] if programs.SLOW else cases):
        train(f"mesh{i}", mesh, *evaluation, *arguments)
        same_run(f"mesh{i}", expected)


def kill_in_a_save(name, mesh, steps):
    """Kills the run while its second checkpoint, or a later one, is written."""
    words, ranks = command(name, mesh, "--ckpt-freq", 2, steps=steps)
    with programs.start(*words, ranks=ranks) as process:
        while not (any((work / name).glob("step-????????")) and any((work / name).glob("step-*.tmp"))):
            assert process.poll() is None, "no save was seen"
            time.sleep(0.0005)
        for pid in [*programs.descendants(process.pid), process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def kills_lose_nothing():
    """To the bit on the same mesh, and as any run on another one."""
    train("calm", (1, 2, 1, 2), "--ckpt-freq", 0, steps=20)
    expected = log("calm")
    kill_in_a_save("killed", (1, 2, 1, 2), 20)
    shutil.copytree(work / "killed", work / "elsewhere")
    for name, mesh in (("killed", (1, 2, 1, 2)), ("elsewhere", (1, 1, 2, 2))):
        process = train(name, mesh, "--ckpt-freq", 2, steps=20)
        assert "resumed: " in process.stdout, process.stdout
        assert not list((work / name).glob("*.tmp")), name
    assert [line["loss"] for line in log("killed")] == [line["loss"] for line in expected]
    same_run("elsewhere", expected)


if not programs.WITH_MPI:
    print("skipped: a mesh of several ranks needs MPI")
    sys.exit(77)
trains_as_one_rank()
kills_lose_nothing()
print("meshes: as one rank, and killed without loss")
