"""A tokenizer that is larger than the model: the data decides whether that matters, and --resize-embeddings
gives the model rows that are the mean of the others, on any ranks and in what is exported."""

import json

import programs
from prepared import ROOT  # noqa: F401  (its path)
from prepare import token_file

work = programs.folder("resize")
HIDDEN, OLD = programs.CONFIG["hidden_size"], programs.CONFIG["vocab_size"]
NEW = OLD + 6
TABLES = ("model.embed_tokens.weight", "lm_head.weight")
model = programs.make_model(work / "model")
tokenizer = json.dumps({"model": {"vocab": {f"t{i}": i for i in range(NEW - 3)}},
                        "added_tokens": [{"id": NEW - 1, "content": "<pad>"}]})
(model / "tokenizer.json").write_text(tokenizer)


def write_tokens(name, tokens):
    """A `.tok` of this tokenizer, which has NEW tokens."""
    writer = token_file.Writer(str(work / name), 2)
    writer.add(token_file.little_endian(tokens, 2), b"0" + b"1" * (len(tokens) - 1), [0])
    writer.finish({"vocabulary": NEW, "packed": True, "bytes": False, "first": -1, "last": -1, "template": "",
                   "tokenizer_hash": token_file.xxh64(tokenizer.encode())})
    return work / name


def train(*arguments, ranks=None, parts=1, status=0):
    """12 sequences a step over `parts` ranks that have their own."""
    return programs.run("fsdp_train", "--model", model, "-s", 16, "-b", 12 // parts, "--max-steps", 1,
                        "--save-dir", work, *arguments, ranks=ranks, status=status)


narrow = write_tokens("narrow.tok", [i * i % OLD for i in range(16 * 12 + 1)])
wide = write_tokens("wide.tok", [i * i % NEW for i in range(16 * 12)] + [NEW - 1])

# No token that the model has not: nothing is said. Otherwise the message names it, and the option.
train("--data", narrow)
message = train("--data", wide, status=3).stderr
given = f"vocabulary of {OLD}; give the model that these tokens were made for (--model), or add "
assert given in message, message
assert f"--resize-embeddings {NEW}, or other data" in message, message
assert "wide.tok: token " in message, message

# The rows of the folder as they are, then means, whoever holds them.
stored = programs.read_safetensors(model / "model.safetensors")
stored = {name: programs.floats(tensor) for name, tensor in stored.items()}
runs = [(None, 1, ("--resize-embeddings",))]
if programs.WITH_MPI:
    runs += [(2, 2, (f"--resize-embeddings={NEW}", "--numel-to-wrap", 1)),
             (4, 2, ("--resize-embeddings", "tokenizer", "--tensor-parallel", 2))]
losses = []
for number, (ranks, parts, arguments) in enumerate(runs):
    name = f"run{number}"
    process = train("--data", wide, "--lr", 0, "-e", name, *arguments, ranks=ranks, parts=parts)
    assert f"the vocabulary grows from {OLD} to {NEW} tokens" in process.stdout, process.stdout
    losses.append(json.loads((work / name / "log.jsonl").read_text())["loss"])
    out = work / f"{name}-exported"
    programs.run("fsdp_export", work / name, "--to", out, status=0)
    assert json.loads((out / "config.json").read_text())["vocab_size"] == NEW
    for tensor, (shape, values) in stored.items():
        found_shape, found = programs.floats(programs.read_safetensors(out / "model.safetensors")[tensor])
        assert found[:len(values)] == values, tensor
        rows = NEW if tensor in TABLES else shape[0]
        assert found_shape == [rows, *shape[1:]], (tensor, found_shape)
        for at in range(len(values), len(found)):
            mean = sum(values[at % HIDDEN::HIDDEN]) / OLD  # of doubles, in the rows' order
            assert abs(found[at] - mean) <= 1e-7 * abs(mean), (tensor, at)
assert all(abs(loss - losses[0]) < 1e-5 for loss in losses), losses

# Its checkpoint is evaluated without a word about it, and so is the folder with the option: all rows, lr 0.
for what in (("-e", "run0"), ("--model", model, "--resize-embeddings", NEW),
             ("--model", work / "run0-exported")):  # fmt: skip
    process = programs.run("fsdp_eval", *what, "-s", 16, "--data", wide, "--save-dir", work, "--json",
                           status=0)
    found = json.loads(process.stdout)
    assert found["samples"] == 12 and abs(found["loss"] - losses[0]) < 1e-5, (what, found, losses)
message = train("--data", wide, "-e", "branch", "--resume", work / "run0", status=3).stderr
assert f"vocab_size {NEW} → {OLD}); add --resize-embeddings {NEW}, use its --model" in message, message

# A run resumes with the same option, and what was exported trains without it.
process = train("--data", wide, "--max-steps", 2, "--num-epochs", 2, "-e", "run0", "--resize-embeddings")
assert "resumed:" in process.stdout and "vocabulary grows" not in process.stdout, process.stdout
process = programs.run("fsdp_train", "--model", work / "run0-exported", "--data", wide, "-s", 16, "-b", 12,
                       status=0)

# Planned without data; and what makes no sense.
plan = programs.run("fsdp_plan", "--model", model, "--resize-embeddings", NEW, "--json")
more = programs.run("fsdp_plan", "--model", model, "--json")
found = [json.loads(process.stdout)["model"]["parameters"] for process in (plan, more)]
assert found[0] - found[1] == 2 * (NEW - OLD) * HIDDEN, found
for arguments, parts, status in (
    (("--resize-embeddings", OLD - 1), (f"--resize-embeddings {OLD - 1}", f"has {OLD} tokens"), 2),
    (("--resize-embeddings", "many"), ("--resize-embeddings 'many'", "tokenizer, or a number"), 2),
    (("--resize-embeddings", "--tokenizer", "bytes"), ("no tokenizer", "as in --resize-embeddings"), 2),
    (("--resize-embeddings", "--tokenizer", model / "config.json"), ("no model.vocab",), 3),
):
    message = train("--data", narrow, *arguments, status=status).stderr
    assert all(part in message for part in parts), (arguments, message)
