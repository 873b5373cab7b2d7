"""GPT-2 on token files as llm.c writes them, named by a pattern: the shards are one data set, on any number
of ranks and over a resume; evaluation data of its own; a shard that is added later."""

import math
import struct

import programs
from prepared import ROOT

END_OF_TEXT = 256  # of a vocabulary of bytes and this
CONFIG = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": END_OF_TEXT + 1,
          "n_positions": 64, "n_embd": 48, "n_layer": 2, "n_head": 3, "bos_token_id": END_OF_TEXT,
          "eos_token_id": END_OF_TEXT}
SEQ, BATCH, STEPS, MORE = 64, 16, 30, 40
TEXT = (ROOT / "runtime" / "data" / "builtin_text.txt").read_bytes()
work = programs.folder("shards")


def tokens_of(text):
    """Paragraphs as documents, each behind the token that separates them."""
    return [token for part in text.split(b"\n\n") for token in (END_OF_TEXT, *part)]


def write(name, tokens):
    header = struct.pack("<3i", 20240520, 1, len(tokens)) + bytes(1012)
    (work / name).write_bytes(header + struct.pack(f"<{len(tokens)}H", *tokens))


def train(name, *arguments, ranks=1, steps=STEPS, shards="text_train_*.bin"):
    ranks = ranks if programs.WITH_MPI else 1
    return programs.run(
        "fsdp_train", "--model", work / "model", "-s", SEQ, "-b", BATCH // ranks, "--wrap", "block",
        "--lr", "3e-3", "--lr-schedule", "constant", "--save-dir", work, "-e", name, "--max-steps", steps,
        "--data", work / shards, "--eval-data", work / "text_val_*.bin", *arguments,
        ranks=ranks if ranks > 1 else None, status=0)  # fmt: skip


def log(name, key="loss"):
    lines = programs.log_of(work / name / "log.jsonl")
    return [line[key] for line in lines if key in line]


def check_close(found, wanted):
    assert len(found) == len(wanted), (len(found), len(wanted))
    for step, (a, b) in enumerate(zip(found, wanted), 1):
        assert math.isclose(a, b, rel_tol=1e-4), (step, a, b)


programs.make_model(work / "model", CONFIG, weights=False)
tokens = tokens_of(TEXT[:150_000])
# Of different lengths, none a multiple of the sequence, written in another order than their names.
cuts = [0, 20_001, 52_345, 90_000, 90_007, len(tokens)]
for i in (3, 0, 4, 2, 1):
    write(f"text_train_{i:06d}.bin", tokens[cuts[i] : cuts[i + 1]])
write("whole.bin", tokens)
for i in range(2):
    write(f"text_val_{i:06d}.bin", tokens_of(TEXT[-3_000 * (i + 1) : len(TEXT) - 3_000 * i]))

whole = train("whole", shards="whole.bin", steps=MORE)
train("shards", ranks=4)
losses = log("shards")
assert abs(losses[0] - math.log(CONFIG["vocab_size"])) < 0.1, losses[0]
assert losses[-1] < losses[0] - 2, losses
process = train("shards", ranks=2, steps=MORE)
said = f"{work}/text_train_*.bin, 5 files, llm.c's uint16 tokens, of a tokenizer that they do not name: "
assert said + f"{len(tokens):,} tokens\n" in process.stdout, process.stdout
changed = [line for line in process.stdout.splitlines() if line.startswith("changed:   ")]
assert "\nstep 31/40" in process.stdout and not any("--data" in line for line in changed), process.stdout
check_close(log("shards"), log("whole"))
check_close(log("shards", "eval_loss")[-1:], log("whole", "eval_loss")[-1:])
assert "evaluate:  on" in whole.stdout and "text_val_*.bin, 2 files," in whole.stdout, whole.stdout

# One shard more is other data, though --data is the same text.
write("text_train_000005.bin", tokens_of(TEXT[150_000:160_000]))
process = train("shards", ranks=2, steps=MORE + 1)
assert "has different contents" in process.stdout and "6 files" in process.stdout, process.stdout
