"""GPT-2 on Alpaca's records: a folder with GPT-2's kind of tokenizer, in its newer and its older form, the
records prepared with it, 8 ranks of 8 sequences; what is learned, that the loss falls, and that a run resumes
on fewer ranks. Skipped where the tokenizers package cannot be had from PyPI."""

import json
import math

import prepared
import programs
from prepared import ROOT, Tokens, prepare, prepare_good
from prepare.environment import TOKENIZERS

VOCABULARY = 700
END_OF_TEXT = "<|endoftext|>"
# What the hub's folder has beside the tokenizer.
CONFIG = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": VOCABULARY,
          "n_positions": 128, "n_ctx": 128, "n_embd": 48, "n_layer": 2, "n_head": 3,
          "bos_token_id": VOCABULARY - 1, "eos_token_id": VOCABULARY - 1}  # fmt: skip
TOKENIZER_CONFIG = {"model_max_length": 128}
TEXT = (ROOT / "runtime" / "data" / "builtin_text.txt").read_text()


def records():
    """Alpaca's keys; a third of the records have no input, and outputs are of very different lengths."""
    parts = [" ".join(part.split()) for part in TEXT.split("\n\n") if len(part) > 60][:600]
    return [{"instruction": f"Go on: {part[:25]}", "input": part[25:40] if i % 3 else "", "output": part[40:]}
            for i, part in enumerate(parts)]  # fmt: skip


def train(work, *arguments, ranks=None, status=0):
    return programs.run("fsdp_train", "-s", 64, "--save-dir", work, *arguments, ranks=ranks, status=status)


def refused(work, *arguments):
    return programs.refused("fsdp_train", "-s", 64, "--save-dir", work, *arguments, status=3)


def bytes_must_be_asked_for(work):
    """Neither the preset nor a folder without a tokenizer takes text for bytes by itself."""
    (work / "alpaca.json").write_text(json.dumps(records()))
    data = ["--data", work / "alpaca.json", "--max-steps", 1]
    preset = ["--model", "gpt2", "--memory-limit", "80GB", "--host-memory-limit", "80GB"]
    message = refused(work, *preset, *data)
    assert "the preset gpt2 has a vocabulary of 50257" in message and "--tokenizer bytes" in message, message
    model = programs.make_model(work / "bare", CONFIG, weights=False)
    message = refused(work, "--model", model, *data)
    assert f"a vocabulary of {VOCABULARY} and no tokenizer.json" in message, message
    process = train(work, "--model", model, "--tokenizer", "bytes", *data)
    assert "alpaca.json, as bytes: " in process.stdout and " 600 documents" in process.stdout, process.stdout


def make_tokenizer():
    """Byte-level BPE of the built-in text, with the one special token as GPT-2 has it: behind all others."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.train_from_iterator(TEXT[:200_000].split("\n"), trainers.BpeTrainer(
        vocab_size=VOCABULARY - 1, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.add_special_tokens([END_OF_TEXT])
    assert tokenizer.token_to_id(END_OF_TEXT) == VOCABULARY - 1
    return tokenizer


def make_folders(work, tokenizer):
    """The same model with tokenizer.json, and with vocab.json and merges.txt."""
    newer, older = (programs.make_model(work / name, CONFIG, weights=False) for name in ("newer", "older"))
    tokenizer.save(str(newer / "tokenizer.json"))
    (newer / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_CONFIG))
    tokenizer.model.save(str(older))
    vocabulary = json.loads((older / "vocab.json").read_text()) | {END_OF_TEXT: VOCABULARY - 1}
    (older / "vocab.json").write_text(json.dumps(vocabulary))
    return newer, older


def what_is_learned_are_the_answers(work, tokenizer, newer, older):
    (work / "alpaca.json").write_text(json.dumps(records()))
    tokens = prepare_good(work / "alpaca.tok", "--model", newer, work / "alpaca.json")
    end = VOCABULARY - 1
    assert (tokens.first, tokens.last, tokens.vocabulary, tokens.packed) == (-1, end, VOCABULARY, 1)
    for ids, learned, record in zip(tokens.documents(), tokens.learned_ids(), records(), strict=True):
        text = tokenizer.decode(ids[:-1])
        assert ids[-1] == learned[-1] == end and end not in ids[:-1]
        assert text.startswith("Below is an instruction that describes a task")
        assert record["instruction"] in text and text.endswith("### Response:" + record["output"])
        assert tokenizer.decode(learned[:-1]) == record["output"]
    process = prepare("--out", work / "older.tok", "--model", older, work / "alpaca.json")
    assert process.returncode == 0 and "made of vocab.json and merges.txt" in process.stdout, process.stderr
    again = Tokens(work / "older.tok")
    assert again.ids == tokens.ids and again.learned == tokens.learned
    # The file names its tokenizer, of which it is known which model it is for.
    message = refused(work, "--model", older, "--data", work / "alpaca.tok")
    assert "prepared with a different tokenizer" in message, message
    message = refused(work, "--model", newer, "--data", work / "alpaca.json")
    assert f"scripts/prepare_data.py --tokenizer {newer}/tokenizer.json" in message, message


def training_resumes_on_fewer_ranks(work, newer):
    base = ["--model", newer, "--data", work / "alpaca.tok", "--lr", "3e-3", "--lr-schedule", "constant"]
    # Records are longer than this test's sequences, so their parts are learned behind what comes before them.
    base += ["--packing", "stream", "--document-mask", "off", "-e", "fsdp"]
    ranks = (8, 4) if programs.WITH_MPI else (None, None)
    sizes = (8, 16) if programs.WITH_MPI else (64, 64)
    process = train(work, *base, "--batch-size", sizes[0], "--max-steps", 15, ranks=ranks[0])
    assert "alpaca.tok, prepared with the model's tokenizer: " in process.stdout, process.stdout
    process = train(work, *base, "--batch-size", sizes[1], "--max-steps", 30, ranks=ranks[1])
    assert "\nstep 16/30" in process.stdout, process.stdout
    losses = programs.losses(work / "fsdp" / "log.jsonl")
    assert len(losses) == 30 and abs(losses[0] - math.log(VOCABULARY)) < 0.1, losses
    assert losses[14] < losses[0] - 0.5 and losses[29] < losses[14] - 0.1, losses
    straight = ["--batch-size", 64 // (ranks[1] or 1), "--max-steps", 30, "-e", "straight"]
    train(work, *base, *straight, ranks=ranks[1])
    for loss, other in zip(losses, programs.losses(work / "straight" / "log.jsonl"), strict=True):
        assert math.isclose(loss, other, rel_tol=1e-4), (loss, other)


def with_a_tokenizer(work):
    tokenizer = make_tokenizer()
    newer, older = make_folders(work, tokenizer)
    what_is_learned_are_the_answers(work, tokenizer, newer, older)
    training_resumes_on_fewer_ranks(work, newer)


prepared.run_tests_with(TOKENIZERS, "GPT-2 on Alpaca", [
    bytes_must_be_asked_for, with_a_tokenizer])
