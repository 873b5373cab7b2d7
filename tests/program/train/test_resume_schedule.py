"""Resuming with other options or data: what changed is reported, a schedule that a change has left at its end
is warned of, and --resume-schedule restart begins a new one, once."""

import math
import shutil

import programs
from prepared import ROOT

TEXT = (ROOT / "runtime" / "data" / "builtin_text.txt").read_bytes()
LR = 2e-3
work = programs.folder("schedule")
STEP_BYTES = 32 * 4
SAVED = 40  # steps of the first data


def train(name, *arguments, status=0, lr=LR):
    common = ["-s", 32, "-b", 4, "--lr", lr, "--save-dir", work, "-e", name, "--set", "measure=off"]
    process = programs.run("fsdp_train", *common, *arguments, status=status)
    lines = process.stdout.splitlines()
    process.changed = [line[11:] for line in lines if line.startswith("changed:   ")]
    process.warnings = [line for line in process.stderr.splitlines() if "warning: the learning rate" in line]
    return process


def rates(name):
    return [line["lr"] for line in programs.log_of(work / name / "log.jsonl")]


def cosine(done, steps, lr=LR):
    return lr * (1 + math.cos(math.pi * done / steps)) / 2


def copy(name, *but):
    shutil.copytree(work / "first", work / name)
    return name


def close(found, wanted):
    return len(found) == len(wanted) and all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(found, wanted))


first, second = work / "first.txt", work / "second.txt"
first.write_bytes(TEXT[: SAVED * STEP_BYTES + 1])
second.write_bytes(TEXT[-(2 * STEP_BYTES + 1) :])
train("first", "--data", first, "--ckpt-freq", SAVED // 2)
assert close(rates("first"), [cosine(step, SAVED) for step in range(SAVED)])

# Nothing changed: nothing is reported, even if the last steps of the schedule have rates of nearly 0.
copy("same")
shutil.rmtree(work / "same" / f"step-{SAVED:08d}")
process = train("same", "--data", first, "--log-freq", 1, "--wrap", "block", "--ckpt-freq", SAVED - 1)
assert not process.changed and not process.warnings, process.stdout + process.stderr
assert close(rates("same"), rates("first"))
process = train("same", "--data", first)
assert not process.changed and f"already finished: {SAVED} steps" in process.stdout, process.stdout

# Different data, of two steps per epoch: the rest of the schedule is below a hundredth of --lr.
copy("data")
process = train("data", "--data", second)
assert process.changed == [f"--data {first} → {second}"], process.changed
assert len(process.warnings) == 1 and "below 1% of --lr 0.002" in process.warnings[0], process.stderr
assert "remaining 2 steps" in process.warnings[0] and "--resume-schedule restart" in process.warnings[0]
assert close(rates("data")[SAVED:], [cosine(SAVED + step, SAVED + 2) for step in range(2)])

# The same path with different contents.
copy("contents")
other = work / "other.txt"
other.write_bytes(first.read_bytes())
train("contents", "--data", other, "--max-steps", SAVED + 1, "--num-epochs", 2)
other.write_bytes(second.read_bytes())
process = train("contents", "--data", other, "--max-steps", SAVED + 2, "--num-epochs", 2)
assert process.changed == [f"--data {other} has different contents, --max-steps {SAVED + 1} → {SAVED + 2}"]

# Rows that are made otherwise of the same contents; and new weights, for which a resumed run has no use.
copy("rows")
process = train("rows", "--data", first, "-s", 16, "--max-steps", SAVED + 1, "--init", "random")
assert process.changed == [f"--seq-length 32 → 16, --max-steps none → {SAVED + 1}"], process.changed
assert "; other rows are made of the data by --seq-length: restarting from its first" in process.stdout
assert "note:      --init (command line) has no effect: the weights" in process.stdout, process.stdout
# A restart behind the run's last step makes no schedule, of which a warning could be.
process = train("rows", "--data", first, "--max-steps", 9, "--resume-schedule", "restart")
assert "already finished" in process.stdout and not process.warnings, process.stdout + process.stderr

# A new schedule over the remaining steps, with its warm-up.
more = ["--data", second, "--num-epochs", 5, "--warmup-steps", 4, "--ckpt-freq", 3, "--ckpt-keep", 0]
restart = [*more, "--resume-schedule", "restart"]
copy("restart")
process = train("restart", *restart, lr=1e-3)
wanted = f"--data {first} → {second}, --num-epochs 1 → 5, --lr 0.002 → 0.001, --warmup-steps 0 → 4"
assert process.changed == [wanted], process.changed
assert not process.warnings and f"schedule began after step {SAVED}" in process.stdout, process.stdout
fresh = [1e-3 * (step + 1) / 4 for step in range(4)] + [cosine(step, 6, 1e-3) for step in range(6)]
assert close(rates("restart")[SAVED:], fresh), rates("restart")[SAVED:]

# Resumed in its middle, with or without the option, it is that schedule still.
for name, arguments in (("again", restart), ("on", more)):
    shutil.copytree(work / "restart", work / name)
    for step in (SAVED + 10, SAVED + 9, SAVED + 8, SAVED + 7):
        shutil.rmtree(work / name / f"step-{step:08d}", ignore_errors=True)
    process = train(name, *arguments, lr=1e-3)
    assert not process.changed and not process.warnings, process.stdout + process.stderr
    assert f"schedule began after step {SAVED}" in process.stdout, process.stdout
    assert rates(name) == rates("restart")
# A further change restarts it once more.
process = train("again", *restart[:3], 7, *restart[4:], lr=1e-3)
assert process.changed == ["--num-epochs 5 → 7"], process.changed
assert close(rates("again")[SAVED + 10 :], [1e-3 * (step + 1) / 4 for step in range(4)])

# Another batch makes other steps of an epoch: those of before count as the data that they were of.
copy("batch")
process = train("batch", "-b", 8, "--num-epochs", 2, "--max-steps", 100)
assert f", 2 epochs, {SAVED // 2} per epoch; --num-epochs 2 ends it" in process.stdout, process.stdout
assert len(rates("batch")) == SAVED + SAVED // 2

# A restart that ends before its first save is made by the next start too, until one is saved.
copy("unsaved")
restart = ["--num-epochs", 2, "--resume-schedule", "restart", "--max-steps", SAVED + 4]
train("unsaved", *restart, "--ckpt-freq", 0)
fresh = [cosine(step, 4) for step in range(4)]
assert close(rates("unsaved")[SAVED:], fresh), rates("unsaved")[SAVED:]
kept = work / "unsaved/run.yaml"
assert "\nresume-schedule: " in kept.read_text() and "\nresume: " not in kept.read_text(), kept.read_text()
train("unsaved", "--ckpt-freq", 100)
assert close(rates("unsaved")[SAVED:], fresh), rates("unsaved")[SAVED:]
assert "\nresume" not in kept.read_text(), kept.read_text()

for arguments in (["--resume", "off"], []):
    name = ["-e", "x"] if arguments else []
    restart = ("--resume-schedule", "restart")
    programs.refused("fsdp_train", *restart, *name, *arguments, parts=["--resume-schedule restart"])
