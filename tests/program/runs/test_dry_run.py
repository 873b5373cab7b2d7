"""--dry-run: what a run's start would say of its data and files, found by their headers, and nothing is
written."""

import os

import programs
from prepared import prepare_good

work = programs.folder("dry_run")
RANKS = 2 if programs.WITH_MPI else None
ROWS = 64  # of 32 tokens and the one behind them
text = work / "text.txt"
text.write_text("".join(chr(97 + i * i % 26) for i in range(32 * ROWS + 1)))
records = work / "records.jsonl"
records.write_text("".join('{"text": "%s"}\n' % ("abc" * (1 + i % 9)) for i in range(200)))
prepare_good(work / "records.tok", records)


def run(*arguments, program="fsdp_train", status=0):
    """Lines of its output, by what stands before them."""
    before = sorted(work.rglob("*"))
    process = programs.run(program, "-s", 32, *arguments, ranks=RANKS, cwd=work, status=status)
    if "--dry-run" in arguments:
        assert sorted(work.rglob("*")) == before, arguments
    if status:
        (message,) = programs.errors(process, program)
        return message
    return {line.split(":")[0]: line for line in process.stdout.splitlines() if ":" in line}


def says_what_a_run_says():
    for options in (("--data", text, "-b", 2, "--max-steps", 3),
                    ("--data", work / "records.tok", "--max-steps", 2, "--eval-split", 4),
                    ("--data", f"{text}:0.7,{work / 'records.tok'}:0.3", "--max-steps", 1),
                    ("--data", text, "--eval-data", work / "records.tok", "--max-steps", 1)):  # fmt: skip
        dry, real = run(*options, "--dry-run", "-e", "dry", "--log", work / "log"), run(*options)
        for name in ("data", "packing", "mix", "evaluate", "steps"):
            assert dry.get(name) == real.get(name), (options, name, dry.get(name), real.get(name))
        assert "data" in dry and "steps" in dry and "step 1/" not in "".join(dry), dry
    steps = ROWS // (2 * (RANKS or 1))
    dry = run("--data", text, "-b", 2, "--num-epochs", 9, "--max-steps", steps * 5 // 2, "--dry-run")
    tokens = 2 * (RANKS or 1) * 32
    wanted = f"steps:     {steps * 5 // 2} of {tokens} tokens, 2.5 epochs, {steps} per epoch"
    assert dry["steps"] == wanted, dry["steps"]
    assert dry["not read"].endswith("beyond their headers"), dry
    short = ("--data", text, "-b", 16, "--max-steps", 100)  # whose one epoch is over before
    for lines in (run(*short, "--dry-run"), run(*short)):
        assert lines["steps"].endswith("; --num-epochs 1 ends it before --max-steps 100"), lines["steps"]
    said = run("--data", work / "records.tok", "--model", "tiny", "--dry-run", "-e", "x")
    assert said["not read"].endswith("beyond their headers, checkpoints of -e"), said


def warns_as_a_run():
    (work / "sharding.yaml").write_text("model.layers.*.mlp.up_proj.weight: [tensor, fsdp]\n")
    options = ("-s", 32, "--data", text, "--max-steps", 2, "--warmup-steps", 50)
    options += ("--sharding", "sharding.yaml")
    seen = []
    for more in (("--dry-run",), ()):
        process = programs.run("fsdp_train", *options, *more, ranks=RANKS, cwd=work)
        lines = process.stdout.splitlines() + process.stderr.splitlines()
        seen.append([line for line in lines if line.startswith("note:") or "warning:" in line])
        assert process.stdout.count("hint:") <= 2, process.stdout
    assert seen[0] == seen[1] and "tensor" in "".join(seen[0]) and "--warmup-steps" in "".join(seen[0]), seen


def finds_what_a_start_finds():
    def refused(*arguments, words):
        message = run(*arguments, "--dry-run", status=3)
        assert all(word in message for word in words), message

    cut, spoiled = work / "cut.tok", work / "spoiled.tok"
    whole = (work / "records.tok").read_bytes()
    cut.write_bytes(whole[:-8])
    spoiled.write_bytes(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
    (work / "short.txt").write_text("too short")
    refused("--data", work / "none.txt", words=["none.txt"])
    refused("--data", text, "--eval-data", work / "none.txt", words=["none.txt"])
    refused("--data", cut, words=["cut.tok", "truncated"])
    refused("--data", work / "short.txt", words=["short.txt", "--seq-length"])
    refused("--data", spoiled, "--verify-data", words=["spoiled.tok"])
    run("--data", spoiled, "--dry-run")  # tokens are not read
    small = programs.make_model(work / "small", programs.CONFIG | {"vocab_size": 100}, weights=False)
    refused("--model", small, "--tokenizer", "bytes", "--data", work / "records.tok", words=["256", "100"])
    model = programs.make_model(work / "model")
    weights = model / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 1000)
    refused("--model", model, "--tokenizer", "bytes", words=["model.safetensors"])


def needs_no_data():
    """On a machine that has none: a folder with weights and without a tokenizer, which would refuse text."""
    model = programs.make_model(work / "whole")
    said = run("--model", model, "--dry-run")
    assert said["data"].startswith("data:      not opened: none is given"), said
    assert "tokenizer" in run("--model", model, "--max-steps", 1, status=3)


def of_an_evaluation():
    model = programs.make_model(work / "evaluated", programs.CONFIG | {"vocab_size": 256})
    options = ("--model", model, "--tokenizer", "bytes", "--data", work / "records.tok")
    dry, real = (run(*options, *more, program="fsdp_eval") for more in (["--dry-run"], []))
    assert dry["evaluate"] == real["evaluate"] and "loss" in real and "loss" not in dry, (dry, real)
    for missing in (("--data", work / "none.tok"), ("--data", work / "cut.tok")):
        message = run(*options[:4], *missing, "--dry-run", program="fsdp_eval", status=3)
        assert str(missing[1]) in message, message


programs.run_tests([says_what_a_run_says, warns_as_a_run, finds_what_a_start_finds, needs_no_data,
                    of_an_evaluation])
