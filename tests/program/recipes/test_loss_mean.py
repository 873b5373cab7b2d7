"""The loss of a step over documents: the mean over their tokens, or the mean over documents of each one's
mean (--loss-mean), is one number for the same documents however they are packed, spread over ranks and
accumulated; it is what the documents' own losses give."""

import json
import random

import programs

work = programs.folder("loss_mean")
CONFIG = programs.CONFIG | {"initializer_range": 0.5}
MODEL = programs.make_model(work / "model", CONFIG, weights=False)
# Bytes of each document, which a byte follows that ends it: with a row of 64 they fill four rows.
LENGTHS = [12, 50, 30, 24, 34, 14, 32, 40, 20]
DATA = work / "documents.jsonl"
MPI = programs.WITH_MPI


def write_documents():
    draw = random.Random(5)
    letters = "abcdefghij klmnop"
    texts = ["".join(draw.choice(letters[: 1 + 2 * i]) for _ in range(n)) for i, n in enumerate(LENGTHS)]
    DATA.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def train(name, *arguments, ranks=1, steps=1, seq=64, data=DATA):
    log = work / f"{name}.jsonl"
    text = () if data.suffix == ".bin" else ("--tokenizer", "bytes")
    programs.run(
        "fsdp_train", "--model", MODEL, "--data", data, *text, "-s", seq, "--lr", 0,
        "--weight-decay", 0, "--seed", 3, "--threads", 1, "--max-steps", steps, "--log", log, *arguments,
        ranks=ranks if MPI else None, status=0)  # fmt: skip
    return programs.log_of(log)


def close(found, expected, tolerance=1e-6):
    return abs(found - expected) <= tolerance * abs(expected)


def runs():
    """Arguments, and ranks, of steps that have all documents."""
    off, fit = ["--packing", "off"], ["--packing", "best-fit"]
    yield [*off, "-b", 9], 1
    yield [*off, "-b", 3, "--grad-accum", 3], 1
    yield [*fit, "-b", 4], 1
    yield [*fit, "-b", 1, "--grad-accum", 4], 1
    if not MPI:
        return
    yield [*off, "-b", 1, "--grad-accum", 3], 3
    yield [*fit, "-b", 1, "--grad-accum", 2], 2
    yield [*fit, "-b", 1, "--strategy", "full", "--mesh", "fsdp=4"], 4
    yield [*fit, "-b", 2, "--grad-accum", 2, "--mesh", "fsdp=1,context=3"], 3
    yield [*fit, "-b", 2, "--mesh", "fsdp=2,tensor=2"], 4


write_documents()
alone = train("alone", "--packing", "off", "-b", 1, steps=len(LENGTHS))
tokens, losses = [line["learned_tokens"] for line in alone], [line["loss"] for line in alone]
assert sorted(tokens) == sorted(LENGTHS), tokens
assert "loss_mean" not in alone[0], alone[0]
expected = {
    "tokens": sum(n * loss for n, loss in zip(tokens, losses)) / sum(tokens),
    "documents": sum(losses) / len(losses),
}
assert not close(expected["tokens"], expected["documents"], 1e-3), expected
norms = {"tokens": [], "documents": []}
for arguments, ranks in runs():
    for mean, loss in expected.items():
        line = train("all", "--loss-mean", mean, *arguments, ranks=ranks)[0]
        assert close(line["loss"], loss), (arguments, mean, line["loss"], loss)
        assert line["learned_tokens"] == sum(LENGTHS), line
        assert line.get("loss_mean", "tokens") == mean, line
        norms[mean].append(line["grad_norm"])
for mean, found in norms.items():
    assert all(close(norm, found[0], 2e-6) for norm in found), (mean, found)
assert not close(norms["tokens"][0], norms["documents"][0], 1e-3), norms

# Evaluation: the mean over documents, of which the last batch has fewer.
whole = train("evaluated", "--loss-mean", "documents", "--packing", "off", "-b", 2, "--eval-data", DATA,
              "--eval-at-start", "on", "--eval-freq", 1)  # fmt: skip
assert close(whole[0]["eval_loss"], expected["documents"]), (whole[0], expected)


def evaluates_as_the_run(name, *options, seq=64, data=DATA):
    """The last evaluation of a run, which fsdp_eval -e repeats without being told the run's options."""
    run = train(name, *options, "--eval-data", data, "-b", 2, "--save-dir", work, "-e", name, seq=seq,
                data=data)  # fmt: skip
    process = programs.run("fsdp_eval", "-e", name, "--save-dir", work, "--data", data, "--json", status=0)
    assert "is what the run was trained on" in process.stderr, process.stderr
    found = json.loads(process.stdout)
    assert close(found["loss"], run[-1]["eval_loss"]), (options, found, run[-1])
    return found


# An evaluation of an experiment takes over how its rows and its loss were made.
masked = evaluates_as_the_run("run-masked")
unmasked = evaluates_as_the_run("run-unmasked", "--document-mask", "off")
documents = evaluates_as_the_run("run-documents", "--loss-mean", "documents", "--packing", "best-fit")
cut = evaluates_as_the_run("run-cut", "--packing", "best-fit", "--long-documents", "cut", seq=33)
# Token 0 separates the documents of a .bin, or none does.
stream = work / "stream.bin"
stream.write_bytes(b"".join(bytes((letter, 0)) for n in LENGTHS for letter in (*range(97, 97 + n), 0)))
separated, whole = (evaluates_as_the_run(f"run-separator{token}", "--document-separator", token, data=stream)
                    for token in (0, -1))  # fmt: skip
losses = [found["loss"] for found in (masked, unmasked, documents, cut, separated, whole)]
assert all(not close(a, b, 1e-5) for i, a in enumerate(losses) for b in losses[:i]), losses
assert documents["documents"] == len(LENGTHS) and "targets" not in documents, documents
assert cut["targets"] == sum(min(n, 33) for n in LENGTHS), cut

# A run whose data tells no documents has no mask, which is no choice for data that tells them; one that was
# asked for none has chosen it, and so has one that goes on from it.
plain = work / "plain.txt"
plain.write_text("a letter is no document\n" * 40)
for given, loss in (((), "masked"), (("--document-mask", "off"), "unmasked")):
    name = f"run-plain-{loss}"
    for steps in (1, 2):
        train(name, *given, "-b", 2, "--save-dir", work, "-e", name, data=plain, steps=steps)
        given = ()
    found = {key: json.loads(programs.run("fsdp_eval", "-e", name, "--save-dir", work, "--data", DATA,
                                          "--json", *asked).stdout)["loss"]
             for key, asked in (("default", ()), ("masked", ("--document-mask", "on")),
                                ("unmasked", ("--document-mask", "off")))}  # fmt: skip
    assert found["default"] == found[loss] and not close(found["masked"], found["unmasked"], 1e-5), found

# Data that does not say where documents begin has no such mean.
programs.refused("fsdp_train", "--model", MODEL, "--tokenizer", "bytes", "--loss-mean", "documents",
                 "-s", 64, "-b", 1, "--max-steps", 1, status=3, parts=["--loss-mean documents"])  # fmt: skip

# The plan is the trainer's, byte by byte: fsdp_plan knows of the weights too.
arguments = ["--model", MODEL, "--tokenizer", "bytes", "-s", 64, "-b", 2, "--data", DATA]
plans = {
    mean: programs.run("fsdp_plan", "--ranks", 1, "--json", "on", "--loss-mean", mean, *arguments).stdout
    for mean in expected
}
peaks = {mean: json.loads(text) for mean, text in plans.items()}
line = train("planned", "--loss-mean", "documents", "-b", 2)[0]
assert line["peak_bytes"] == line["planned_peak_bytes"], line
found = json.dumps(peaks["documents"])
assert str(line["planned_peak_bytes"]) in found, (line["planned_peak_bytes"], found)
