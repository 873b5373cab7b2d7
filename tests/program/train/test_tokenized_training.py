"""From text to a trained model with a tokenizer of its own: a byte-pair tokenizer that was trained on the
built-in text (tests/golden/prepare/bpe), the command that the trainer asks for, training, export, and what
does not belong together. Only what needs the tokenizers package is skipped, if PyPI
cannot be reached."""

import json
import math
import shlex
import subprocess
import sys

import prepared
import programs
from prepared import FIXTURES, ROOT, SKIPPED, Tokens, prepare_good

BPE = FIXTURES / "bpe"
VOCABULARY = 400
TEXT = (ROOT / "runtime" / "data" / "builtin_text.txt").read_text()[50_000:130_000]
RANKS = 2 if programs.WITH_MPI else None


def make_model(folder, vocabulary=VOCABULARY, tokenizer=BPE):
    programs.make_model(folder, programs.CONFIG | {"vocab_size": vocabulary})
    if tokenizer:
        prepared.copy_tokenizer(tokenizer, folder)
    return folder


def train(*arguments, ranks=None, status=0):
    return programs.run("fsdp_train", "-s", 64, *arguments, ranks=ranks, cwd=ROOT, status=status)


def refused(*arguments, ranks=None):
    always = ("-s", 64, "--max-steps", 1)
    return programs.refused("fsdp_train", *always, *arguments, ranks=ranks, cwd=ROOT, status=3)


def command_in(message):
    """The call of prepare_data.py that a message asks for."""
    command = message[message.index("scripts/prepare_data.py") : message.index(" and give --data")]
    return shlex.split(command)


def tokens_and_models_must_belong_together(work):
    """With files that are committed: no tokenizer runs."""
    words = make_model(work / "words", 42, FIXTURES)
    train("--model", words, "--data", FIXTURES / "alpaca.tok", "-s", 8, "--max-steps", 1)
    # As many tokens as the data has, of the tokenizer's 42, and none fewer, on every rank alike.
    train("--model", make_model(work / "enough", 41, FIXTURES), "--data", FIXTURES / "alpaca.tok", "-s", 8)
    small = make_model(work / "small", 40, FIXTURES)
    for ranks in (None, RANKS):
        message = refused("--model", small, "--data", FIXTURES / "alpaca.tok", "-s", 8, ranks=ranks)
        assert "add --resize-embeddings 42" in message and "alpaca.tok" in message, message
    message = refused("--model", work / "words", "--data", FIXTURES / "bytes.tok")
    assert "holds bytes" in message and "prepare_data.py --tokenizer" in message, message
    other = make_model(work / "other")
    message = refused("--model", other, "--data", FIXTURES / "alpaca.tok", "-s", 8)
    assert "a different tokenizer" in message and str(other / "tokenizer.json") in message, message
    # A model without a tokenizer takes bytes where its vocabulary holds them, and says so; one with weights,
    # which were trained on something, only where that is asked for.
    bare = make_model(work / "bare", 256, None)
    for data in (FIXTURES / "records.jsonl", FIXTURES / "bytes.tok"):
        message = refused("--model", bare, "--data", data)
        assert data.name in message and "has weights and no tokenizer.json" in message, message
        process = train("--model", bare, "--tokenizer", "bytes", "--data", data, "--max-steps", 1)
        assert "as bytes" in process.stdout, process.stdout
        process = train("--model", bare, "--init", "random", "--data", data, "--max-steps", 1)
        assert "as bytes" in process.stdout, process.stdout
    message = refused("--model", make_model(work / "tiny", 255, None), "--data", FIXTURES / "records.jsonl")
    assert "256" in message and "255" in message, message


def the_message_says_how_to_prepare(work):
    """The text, the printed command, the same tokens as the tokenizer's; returns the prepared file."""
    (work / "book.txt").write_text(TEXT)
    records = [{"instruction": "Name a bird.", "input": "", "output": "The wren."},
               {"instruction": "Add one.", "input": "two", "output": "three"}] * 40
    (work / "talk.json").write_text(json.dumps(records))
    model, bytes_of = make_model(work / "the model's"), prepared.bytes_of_tokens(BPE)
    for name in ("book.txt", "talk.json"):
        message = refused("--model", model, "--data", work / name)
        assert name in message and "tokenizer" in message, message
        command = command_in(message)
        process = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
        if process.returncode == 5:
            return process.stderr.strip()
        assert process.returncode == 0, process.stderr
    tokens = Tokens(work / "book.tok")
    assert tokens.vocabulary == VOCABULARY and tokens.ids[0] == 0 and tokens.ids[-1] == 1
    assert b"".join(bytes_of[i] for i in tokens.ids) == TEXT.encode()
    assert len(tokens.ids) < 0.6 * len(TEXT)  # the merges of letters that it was trained for
    talk = Tokens(work / "talk.tok")
    answers = [b"".join(bytes_of[i] for i in ids) for ids in talk.learned_ids()]
    assert answers == [b"The wren.", b"three"] * 40, answers[:2]
    return None


def training_and_export_keep_the_tokenizer(work):
    model = work / "the model's"
    options = ["--model", model, "--save-dir", work, "--lr", "3e-3", "-b", 4]
    process = train(*options, "--data", work / "book.tok", "-e", "run", "--max-steps", 60, ranks=RANKS)
    assert "prepared with the model's tokenizer" in process.stdout, process.stdout
    log = programs.log_of(work / "run" / "log.jsonl")
    # Weights of a deviation of 0.02 know nothing: the loss is that of a uniform guess.
    assert abs(log[0]["loss"] - math.log(VOCABULARY)) < 0.1, log[0]
    assert log[-1]["loss"] < log[0]["loss"] - 0.5, log[-1]
    train(*options, "--data", f"{work}/book.tok,{work}/talk.tok", "--max-steps", 2, ranks=RANKS)
    programs.run("fsdp_export", work / "run", "--to", work / "exported", status=0)
    # The exported model takes the same tokens and refuses the same text.
    again = ["--model", work / "exported", "--max-steps", 1, "-b", 4]
    process = train(*again, "--data", work / "book.tok", "--log", work / "again.jsonl")
    assert json.loads((work / "again.jsonl").read_text())["loss"] < log[0]["loss"] - 0.5
    assert "exported/tokenizer.json" in refused(*again, "--data", work / "book.txt")
    # A smaller model may not have them, whatever it calls its tokenizer.
    message = refused("--model", make_model(work / "small", VOCABULARY - 1), "--data", work / "book.tok")
    assert "book.tok" in message and "400" in message and "399" in message, message


def the_named_tokenizer_is_carried_along(work):
    """What --tokenizer names, with the files beside it, and not what the model's folder has."""
    own, named = make_model(work / "own"), work / "named"
    named.mkdir()
    definition = json.loads((BPE / "tokenizer.json").read_text())
    vocabulary = definition["model"]["vocab"]
    vocabulary["a"], vocabulary["e"] = vocabulary["e"], vocabulary["a"]
    config = json.loads((BPE / "tokenizer_config.json").read_text()) | {"model_max_length": 77}
    (named / "tokenizer.json").write_text(json.dumps(definition))
    (named / "tokenizer_config.json").write_text(json.dumps(config))
    (own / "special_tokens_map.json").write_text("{}")  # of another tokenizer
    prepare_good(work / "named.tok", "--tokenizer", named / "tokenizer.json", work / "book.txt")
    relative = ("--tokenizer", "named/tokenizer.json", "--data", "named.tok", "--save-dir", ".")
    for model in (own, make_model(work / "none", tokenizer=None)):
        programs.run("fsdp_train", "--model", model, *relative, "-s", 64, "--max-steps", 1, "-e",
                     f"of-{model.name}", cwd=work, status=0)  # fmt: skip
        run, exported = work / f"of-{model.name}", work / f"{model.name}-exported"
        programs.run("fsdp_export", run, "--to", exported, status=0)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            assert (exported / name).read_bytes() == (named / name).read_bytes(), (model, name)
        assert not (exported / "special_tokens_map.json").exists()
        # It is there wherever the evaluation starts.
        process = programs.run("fsdp_eval", "--json", "-e", run.name, "--save-dir", work, "--prompt", "ae",
                               "--max-new-tokens", 1, cwd=ROOT, status=0)  # fmt: skip
        assert json.loads(process.stdout)["prompt_tokens"][-2:] == [vocabulary["a"], vocabulary["e"]]


work = programs.folder("tokenized")
tokens_and_models_must_belong_together(work)
reason = the_message_says_how_to_prepare(work)
if reason:
    print(f"SKIPPED: nothing that needs a tokenizer was tested: {reason}")
    sys.exit(SKIPPED)
training_and_export_keep_the_tokenizer(work)
the_named_tokenizer_is_carried_along(work)
