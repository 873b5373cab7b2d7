"""Dropout by its options: one curve over ranks, meshes and micro-batches, and across a restart; the rates of
a GPT-2 model's configuration; an evaluation drops nothing; and what is refused."""

import programs

work = programs.folder("dropout")
MODEL = programs.make_model(work / "llama", programs.CONFIG | {"initializer_range": 0.2}, weights=False)
GPT2 = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 257, "n_embd": 48,
        "n_layer": 2, "n_head": 4, "n_positions": 64, "embd_pdrop": 0.1, "attn_pdrop": 0.2,
        "resid_pdrop": 0.3}  # fmt: skip
programs.make_model(work / "gpt2", GPT2, weights=False)
MPI = programs.WITH_MPI


def run(name, *arguments, model=MODEL, steps=3, ranks=1, status=0):
    return programs.run(
        "fsdp_train", "--model", model, "--tokenizer", "bytes", "-s", 32, "--seed", 5, "--threads", 1,
        "--lr", "1e-3", "--max-steps", steps, "--save-dir", work, "-e", name, "--ckpt-freq", 0, *arguments,
        ranks=ranks if MPI else None, status=status)  # fmt: skip


def losses(name):
    return programs.losses(work / name / "log.jsonl")


def same(found, expected):
    assert len(found) == len(expected), (found, expected)
    assert all(abs(a - b) <= 1e-6 * abs(b) for a, b in zip(found, expected)), (found, expected)


def refused(*arguments):
    return programs.check_message(run("refused", *arguments, status=2), "fsdp_train", ())


drops = ["--dropout", 0.1]
process = run("one", *drops, "-b", 12)
assert "dropout:   embedding 0.1, attention 0.1, residual 0.1" in process.stdout, process.stdout
curve = losses("one")
run("whole", "-b", 12)
assert abs(losses("whole")[0] / curve[0] - 1) > 1e-4, (losses("whole"), curve)
run("four", *drops, "-b", 3, "--grad-accum", 4)
same(losses("four"), curve)
run("again", *drops, "-b", 12, "--recompute", "block", "--cpu-offload", "on")
same(losses("again"), curve)
if MPI:
    cases = {
        "ranks2": (["-b", 6], 2),
        "ranks4": (["-b", 1, "--grad-accum", 3], 4),
        "ranks6": (["-b", 2], 6),
        "tensor": (["-b", 12, "--mesh", "fsdp=1,tensor=2", "--sequence-parallel", "on"], 2),
        "context": (["-b", 3, "--grad-accum", 4, "--mesh", "fsdp=1,context=2"], 2),
    }
    for name, (arguments, ranks) in cases.items():
        run(name, *drops, *arguments, ranks=ranks)
        same(losses(name), curve)

# A restart goes on with the same elements, to the bit.
steady = ["-b", 4, "--lr-schedule", "constant"]
run("long", *drops, *steady, steps=4)
run("parts", *drops, *steady, steps=2)
run("parts", *drops, *steady, steps=4)
assert losses("parts") == losses("long"), (losses("parts"), losses("long"))

# The three rates of a configuration; an evaluation at the start is that without dropout.
evaluates = ["-b", 4, "--eval-split", 4, "--eval-at-start", "on", "--eval-freq", 2]
process = run("config", "--dropout", "config", *evaluates, model=work / "gpt2")
assert "dropout:   embedding 0.1, attention 0.2, residual 0.3" in process.stdout, process.stdout
assert "not applied" not in process.stdout + process.stderr
process = run("plain", *evaluates, model=work / "gpt2")
assert "--dropout config applies them" in process.stdout + process.stderr, (process.stdout, process.stderr)
first = [programs.log_of(work / name / "log.jsonl")[0]["eval_loss_at_start"] for name in ("config", "plain")]
assert first[0] == first[1], first
assert losses("config")[0] != losses("plain")[0]
process = run("alone", "--attention-dropout", 0.25, "-b", 4)
assert "embedding 0, attention 0.25, residual 0" in process.stdout, process.stdout

assert "configurations of this model's type have no rates" in refused("--dropout", "config", "-b", 4)
for rate in ("1", "-0.1", "some", "nan"):
    assert "rate" in refused("--dropout", rate, "-b", 4), rate
