"""Files that the programs read, cut off at random places and with single random bits flipped: a clear error
(status 3, for a YAML file 2), or the same result as from the whole file. What has no checksum of its own
(weights and configurations of others, text) may give another result, but never a crash.

FSDP_TEST_SEED=N repeats the run of seed N."""

import os
import pathlib
import random
import shutil
import sys

import programs

SEED = int(os.environ.get("FSDP_TEST_SEED", random.SystemRandom().randrange(10**6)))
CASES = programs.draws(6, 2, everything=40)
numbers = random.Random(SEED)
work = programs.folder("torn")
failures = []


def train_losses():
    lines = programs.log_of(work / "log.jsonl")
    return [(line["global_step"], line["loss"], line["grad_norm"]) for line in lines]


def damage(path):
    """Spoils one place of a file; what was done, for a message."""
    data = bytearray(path.read_bytes())
    if numbers.random() < 0.4:
        length = numbers.randrange(len(data))
        path.write_bytes(data[:length])
        return f"cut off at byte {length} of {len(data)}"
    bit = numbers.randrange(8 * len(data))
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    return f"bit {bit % 8} of byte {bit // 8} flipped"


def try_file(kind, path, run, result, program="fsdp_train", status=3, checked=True):
    """Damages `path` CASES times. `run` starts the program; `result` is what must not change, or None."""
    whole = path.read_bytes()
    process = run()
    assert process.returncode == 0, process.stderr
    good = result()
    refused = 0
    for _ in range(CASES):
        what = damage(path)
        process = run()
        messages = programs.errors(process, program)
        wrong = None
        if process.returncode == 0:
            if checked and result() != good:
                wrong = "accepted, with another result"
        elif process.returncode not in ((2, 3) if status == 2 else (3,)):
            wrong = f"exit status {process.returncode}"
        elif len(messages) != 1:
            wrong = f"{len(messages)} messages"
        else:
            refused += 1
        if wrong:
            failures.append(kind)
            print(f"FAILED {kind}: {what}: {wrong}\n{process.stderr[-2000:]}")
        path.write_bytes(whole)
    rest = "the rest read as before" if checked else "the rest without a crash"
    print(f"{kind}: {refused} of {CASES} refused, {rest}")


def train(*arguments):
    log = work / "log.jsonl"
    log.unlink(missing_ok=True)
    common = ["--max-steps", 2, "-s", 16, "-b", 1, "--log", log, "--lr", "1e-3"]
    return programs.run("fsdp_train", *common, *arguments)


model = programs.make_model(work / "model", dict(programs.CONFIG, vocab_size=256))
source = pathlib.Path("tests/golden/prepare")

tokens = shutil.copy(source / "bytes.tok", work / "data.tok")
small = ["--model", model, "--tokenizer", "bytes"]
try_file("tokens", pathlib.Path(tokens), lambda: train(*small, "--data", tokens, "-s", 8), train_losses)
records = pathlib.Path(shutil.copy(source / "records.jsonl", work / "records.jsonl"))
try_file("records", records, lambda: train(*small, "--data", records, "-s", 8), train_losses, checked=False)
try_file("weights", model / "model.safetensors", lambda: train(*small), train_losses, checked=False)
try_file("configuration", model / "config.json", lambda: train(*small), train_losses, checked=False)
yaml = work / "run.yaml"
yaml.write_text("seq-length: 16\nlr: 1e-3\nwrap: block\n")
try_file("options", yaml, lambda: train(*small, "--config", yaml), train_losses, status=2, checked=False)

# A checkpoint: exported, every value is either what was saved or refused.
experiment = ["-e", "run", "--save-dir", work, "--ckpt-freq", 1, "--ckpt-keep", 1]
process = train(*small, *experiment)
assert process.returncode == 0, process.stderr
step = next((work / "run").glob("step-*"))
exported = work / "exported"


def export():
    shutil.rmtree(exported, ignore_errors=True)
    return programs.run("fsdp_export", step, "--to", exported)


def exported_bytes():
    return {path.name: path.read_bytes() for path in exported.iterdir()}


for name in ("checkpoint.json", "rank-00000.safetensors", "model/config.json"):
    try_file(f"checkpoint's {name}", step / name, export, exported_bytes, program="fsdp_export")

if failures:
    again = f"FSDP_TEST_SEED={SEED} python3 tests/program/faults/test_torn_files.py"
    print(f"failed: {sorted(set(failures))}; repeat with {again}")
sys.exit(1 if failures else 0)
