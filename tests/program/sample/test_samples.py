"""fsdp_eval and what is sampled: the losses and greedy tokens of Transformers (tests/golden/samples.json) on
any mesh, text by a tokenizer, drawn tokens, samples while training, and what is refused."""

import json
import math
import os
import re
import struct

import prepared
import programs
from prepared import FIXTURES, ROOT, prepare_good

BPE = FIXTURES / "bpe"
VOCABULARY = 400
GOLDEN = ROOT / "tests" / "golden"
SAMPLES = json.loads((GOLDEN / "samples.json").read_text())
MESHES = [
    (1, ()),
    (2, ("--tensor-parallel", 2)),
    (2, ("--context-parallel", 2)),
    (3, ("--cpu-offload",)),
    (4, ("--tensor-parallel", 2, "--context-parallel", 2)),
    (4, ("--strategy", "hybrid", "--mesh", "data=2,fsdp=2", "-b", 2)),
    (2, ("--strategy", "zero1")),
]

work = programs.folder("samples")


def call(program, *arguments, ranks=None, status=0, **options):
    return programs.run(program, *arguments, ranks=ranks if programs.WITH_MPI else None, **options,
                        status=status)


def evaluate(*arguments, ranks=None, **options):
    answer = json.loads(call("fsdp_eval", "--json", *arguments, ranks=ranks, **options).stdout)
    for kind in ("valley", "peak"):
        assert answer[f"{kind}_bytes"] == answer[f"planned_{kind}_bytes"], (arguments, answer)
    return answer


def refused(*arguments, words, program="fsdp_eval", ranks=None, **options):
    ranks = ranks if programs.WITH_MPI else None
    programs.refused(program, *arguments, parts=words, ranks=ranks, **options)


def families_are_transformers():
    meshes = MESHES if programs.WITH_MPI else MESHES[:1]
    for index, (name, golden) in enumerate(SAMPLES.items()):
        data = work / f"{name}.bin"
        data.write_bytes(struct.pack(f"<{len(golden['text'])}H", *golden["text"]))
        prompt = ",".join(map(str, golden["prompt"]))
        for ranks, options in meshes[:: programs.stride(3)] if index else meshes:
            found = evaluate("--model", GOLDEN / name, "--wrap", "block", "-s", golden["seq"], "--data", data,
                             "--prompt-tokens", prompt, "--max-new-tokens", len(golden["tokens"]), *options,
                             ranks=ranks)  # fmt: skip
            what = (name, ranks, options, found)
            assert found["prompt_tokens"] == golden["prompt"] and found["tokens"] == golden["tokens"], what
            # The program's numbers are fp32, Transformers' sums double.
            assert math.isclose(found["loss"], golden["loss"], rel_tol=2e-6), what
            assert math.isclose(found["perplexity"], math.exp(golden["loss"]), rel_tol=2e-5), what
            assert found["targets"] == (len(golden["text"]) - 1) // golden["seq"] * golden["seq"], what
    # Without data the sequence is as long as the text, and without --json a person reads it.
    name, golden = next(iter(SAMPLES.items()))
    prompt = ("--prompt-tokens", ",".join(map(str, golden["prompt"])), "--max-new-tokens", 3)
    text = call("fsdp_eval", "--model", GOLDEN / name, *prompt, ranks=2).stdout
    assert ", ".join(map(str, golden["tokens"][:3])) + "\n" in text, text


def draws_depend_on_the_seed_alone():
    model = ("--model", GOLDEN / "grouped", "--prompt-tokens", "1,2,3", "--max-new-tokens", 20)
    mesh, drawn = ("--tensor-parallel", 2) if programs.WITH_MPI else (), {}
    for seed in (1, 2):
        options = ("--temperature", 1.5, "--top-p", 0.95, "--seed", seed)
        drawn[seed] = evaluate(*model, *options)["tokens"]
        assert evaluate(*model, *options, *mesh, ranks=2)["tokens"] == drawn[seed]
    assert drawn[1] != drawn[2] and len(drawn[1]) == 20
    greedy = evaluate(*model)["tokens"]
    assert greedy not in drawn.values()
    # Of the most probable token alone there is nothing to draw.
    assert evaluate(*model, "--temperature", 1, "--top-p", 1e-9)["tokens"] == greedy


def training_samples_as_its_checkpoint_does():
    prompt = ("--prompt", "It was\n", "--max-new-tokens", 12)
    options = ("--model", "tiny", "--wrap", "block", "-s", 64, "--max-steps", 5, "--lr", "1e-2")
    options += ("--save-dir", work)
    run = call("fsdp_train", *options, "-e", "run", "--sample-every", 2, *prompt, ranks=2)
    lines = run.stdout.splitlines()
    shown = [line for line in lines if line.startswith("sample after step")]
    assert [line.split(",")[0][-1] for line in shown] == ["2", "4", "5"], shown
    for ranks in (None, 2):
        found = evaluate("-e", "run", "--save-dir", work, *prompt, ranks=ranks)
        assert found["step"] == 5 and found["prompt_tokens"] == list(b"It was\n")
        assert found["text"] == bytes(found["tokens"]).decode(errors="replace").replace("\0", "\ufffd")
        visible = [c if c in "\n\t" or " " <= c != "\x7f" else "?" for c in found["text"]]
        assert lines[lines.index(shown[-1]) + 1] == "".join(visible).split("\n")[0]
    # A person reads which checkpoint it is, not the name of the folder in which that keeps its model.
    small = programs.make_model(work / "small", programs.CONFIG | {"vocab_size": 256}, weights=False)
    call("fsdp_train", "--model", small, *options[2:], "-e", "own")
    for name, model in (("run", "tiny"), ("own", "small")):
        text = call("fsdp_eval", "-e", name, "--save-dir", work, *prompt).stdout
        assert f"model:     {model} of {work}/{name}/step-00000005, " in text, text
    # What it learns does not change by looking.
    plain = call("fsdp_train", *options, "--log", work / "plain.jsonl", ranks=2)
    losses = [[line["loss"] for line in programs.log_of(path)]
              for path in (work / "run" / "log.jsonl", work / "plain.jsonl")]  # fmt: skip
    assert losses[0] == losses[1] and len(losses[0]) == 5 and "sample after" not in plain.stdout
    # The plan has it all, and it takes memory that a plan without samples does not.
    plans = [json.loads(call("fsdp_plan", "--json", *options[:-2], *more).stdout)
             for more in ((), ("--sample-every", 2, *prompt))]  # fmt: skip
    assert plans[0]["program"]["instructions"] < plans[1]["program"]["instructions"]
    assert plans[1]["verified"]


def text_is_the_tokenizers():
    model = programs.make_model(work / "bpe", programs.CONFIG | {"vocab_size": VOCABULARY})
    prepared.copy_tokenizer(BPE, model)
    text, prompt = 'She said: "the weather — naïve",\n and ', work / "prompt.txt"
    prompt.write_text(text)
    asked = ("--model", model, "--prompt", text, "--max-new-tokens", 30, "--temperature", 1)
    process = programs.run("fsdp_eval", "--json", *asked)
    if process.returncode == 5:
        return programs.errors(process, "fsdp_eval")[0]
    found, bytes_of = evaluate(*asked, ranks=2), prepared.bytes_of_tokens(BPE)
    assert json.loads(process.stdout)["text"] == found["text"]
    tokens = prepare_good(work / "prompt.tok", "--model", model, prompt).ids
    assert found["prompt_tokens"] == tokens[:-1], (found, tokens)  # without the end of the text
    expected = b"".join(bytes_of[token] for token in found["tokens"]).decode(errors="replace")
    if not any(token < 2 for token in found["tokens"]):  # special tokens have names
        assert found["text"] == expected, (found["text"], expected)
    # Where text ends, so does the sample: here everywhere.
    config = json.loads((BPE / "tokenizer_config.json").read_text())
    definition = json.loads((BPE / "tokenizer.json").read_text())
    first = evaluate("--model", model, "--prompt", text, "--max-new-tokens", 2)["tokens"][0]
    name = next(token for token, i in definition["model"]["vocab"].items() if i == first)
    (model / "tokenizer_config.json").write_text(json.dumps(config | {"eos_token": name}))
    assert evaluate("--model", model, "--prompt", text, "--max-new-tokens", 2)["tokens"] == []
    # At each token that the model's own files say, as Transformers' generate does.
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    short = ("--model", model, "--prompt", text, "--max-new-tokens", 2)
    for stops, left in ((first, []), ([0, first], []), ([0], None)):
        (model / "generation_config.json").write_text(json.dumps({"eos_token_id": stops}))
        tokens = evaluate(*short, ranks=2)["tokens"]
        assert tokens == left or left is None and tokens[:1] == [first], (stops, tokens)
    (model / "tokenizer.json").write_text("{}")
    refused("--model", model, "--prompt", "a", status=3, words=["tokenizer.json: is not a readable"], ranks=2)
    return None


def prompts_are_a_users_messages():
    """With a chat template: the text that it writes, encoded as any other."""
    model = programs.make_model(work / "chat", programs.CONFIG | {"vocab_size": VOCABULARY})
    config = {"bos_token": "<|begin|>"}
    prepared.copy_tokenizer(BPE, model)
    (model / "tokenizer_config.json").write_text(
        json.dumps(json.loads((BPE / "tokenizer_config.json").read_text()) | config))
    question = 'why "naïve"?\n'
    chatml = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    source = "{{ bos_token }}[{{ messages[0]['content'] | trim }}]{% if add_generation_prompt %} >{% endif %}"
    own = f"<|begin|>[{question.strip()}] >"
    template = work / "own.jinja"
    template.write_text(source)

    def tokens(text):
        path = work / "rendered.txt"
        path.write_text(text)
        return prepare_good(work / "rendered.tok", "--bos", "none", "--model", model, path).ids[:-1]

    def prompt(*options, **more):
        return evaluate("--prompt", question, "--max-new-tokens", 2, *options, **more)["prompt_tokens"]

    of_model = ("--model", model)
    plain = ("--prompt", question, "--max-new-tokens", 2, *of_model)
    assert prompt(*of_model, "--chat-template", "chatml", ranks=2) == tokens(chatml)
    assert prompt(*of_model, "--chat-template", template) == tokens(own)
    refused(*plain, "--chat-template", "auto", status=2, words=["--chat-template auto", "FILE", "chatml"])
    refused(*plain, "--chat-template", work / "none", status=3, words=[f"{work}/none", "auto, chatml"])
    assert "note:" not in call("fsdp_eval", *plain).stdout
    (model / "chat_template.jinja").write_text(source)
    assert prompt(*of_model, "--chat-template", "auto", ranks=2) == tokens(own)
    assert "note:      --prompt is continued as it is" in call("fsdp_eval", *plain).stdout
    assert "note:" not in call("fsdp_eval", *plain, "--chat-template", "plain").stdout
    # That of the run's data comes first, while it trains and of its checkpoint.
    record = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    (work / "chats.jsonl").write_text((json.dumps(record) + "\n") * 40)
    for name, of in (("by-tokens", of_model), ("by-bytes", ())):
        data = work / f"{name}.tok"
        texts = "<|im_end|>, which ends 40 of 40 answers, is text of several tokens" if of else None
        prepare_good(data, *of, "--chat-template", "chatml", work / "chats.jsonl", warning=texts)
        run = call("fsdp_train", *of, "--data", data, "-s", 128, "--max-steps", 1, "-e", name, "--save-dir",
                   work, "--sample-every", 1, "--prompt", question, "--max-new-tokens", 2,
                   "--chat-template", "auto", ranks=2)  # fmt: skip
        assert "sample after step 1" in run.stdout, run.stdout
        found = prompt("-e", name, "--save-dir", work, "--chat-template", "auto")
        assert found == (tokens(chatml) if of else list(chatml.encode())), name


def learned(name, model, data, *options):
    """What a run that learned `data` by heart continues "hi" with: (prompt's tokens, tokens, text)."""
    call("fsdp_train", *model, "--data", data, "-s", 64, "-b", 2, "--max-steps", 60, "--num-epochs", 99,
         "--lr", "1e-2", "--lr-schedule", "constant", "-e", name, "--save-dir", work)  # fmt: skip
    found = evaluate("-e", name, "--save-dir", work, "--prompt", "hi", "--max-new-tokens", 24, *options,
                     ranks=2)  # fmt: skip
    return found["prompt_tokens"], found["tokens"], found["text"]


def samples_of_bytes_end_as_the_data_does():
    model = programs.make_model(work / "ends", programs.CONFIG | {"vocab_size": 256}, weights=False)
    of, data = ("--model", model), work / "pairs.jsonl"
    data.write_text((json.dumps({"prompt": "hi", "completion": " yo man"}) + "\n") * 60)
    found = learned("of-json", of, data)
    assert found == ([*b"hi"], list(b" yo man"), " yo man"), found
    # A run that samples as it learns takes these from its data, what evaluates from the checkpoint.
    prepare_good(work / "ends.tok", "--tokenizer", "bytes", "--bos", "1", "--eos", "2", data)
    found = learned("of-two", of, work / "ends.tok")
    assert found == ([1, *b"hi"], list(b" yo man"), " yo man"), found
    run = call("fsdp_train", "-e", "of-two", "--save-dir", work, "--max-steps", 61, "--sample-every", 61,
               "--prompt", "hi", "--max-new-tokens", 24)  # fmt: skip
    assert "sample after step 61, 7 tokens:\n yo man\n" in run.stdout, run.stdout
    # Records that end with nothing end nowhere.
    prepare_good(work / "ends.tok", "--tokenizer", "bytes", "--eos", "none", data)
    assert len(learned("of-none", of, work / "ends.tok")[1]) == 24


def answers_end_as_the_template_has_it():
    model = programs.make_model(work / "answers", programs.CONFIG | {"vocab_size": VOCABULARY}, weights=False)
    prepared.copy_tokenizer(BPE, model)
    record = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo man"}]}
    (work / "answers.jsonl").write_text((json.dumps(record) + "\n") * 60)
    template, data, chat = work / "ends.jinja", work / "answers.tok", ("--chat-template", "auto")
    template.write_text("{% for m in messages %}{{ m.role + ':' + m.content }}{% if m.role == 'assistant' %}"
                        "<|begin|>{% endif %}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}")
    of_model, of_bytes = ("--model", model), ("--model", work / "ends")
    # A token of the tokenizer is no part of the answer; text is no part of its text.
    prepare_good(data, *of_model, "--chat-template", template, work / "answers.jsonl",
                 warning="<|begin|>, which ends 60 of 60 answers, is no token that ends a text")  # fmt: skip
    _, tokens, text = learned("of-token", of_model, data, *chat)
    assert text == "yo man" and 0 < len(tokens) < 24, (tokens, text)
    template.write_text(template.read_text().replace("<|begin|>", "<e>"))
    for name, of, by in (("of-text", of_model, of_model), ("of-bytes", of_bytes, ("--tokenizer", "bytes"))):
        texts = "<e>, which ends 60 of 60 answers, is text" if of == by else None
        prepare_good(data, *by, "--chat-template", template, work / "answers.jsonl", warning=texts)
        _, tokens, text = learned(name, of, data, *chat)
        assert text == "yo man" and 0 < len(tokens) < 24, (name, tokens, text)


def tokens_end_where_the_models_files_say():
    config, note = programs.CONFIG | {"vocab_size": 256}, "no file of the model or data says which token ends"
    model = programs.make_model(work / "stops", config)
    asked = ("--model", model, "--prompt-tokens", "1,2,3", "--max-new-tokens", 6)
    free = evaluate(*asked)["tokens"]
    assert len(free) == 6 and call("fsdp_eval", *asked, ranks=2).stdout.count(note) == 1
    end = free[2]
    until = free[: free.index(end)]  # the end is no part of the text, as with --prompt
    for of_config, of_generation, left in ((end, None, until), ([255, end], None, until), (255, end, until),
                                           (end, [free[0]], []), (end, [], free), (end, 255, free)):
        (model / "config.json").write_text(json.dumps(config | {"eos_token_id": of_config}))
        if of_generation is not None:  # which then counts alone, as for Transformers' generate
            (model / "generation_config.json").write_text(json.dumps({"eos_token_id": of_generation}))
        for ranks in (None, 2):
            assert evaluate(*asked, ranks=ranks)["tokens"] == left, (of_config, of_generation, left)
        known = of_generation != []
        assert call("fsdp_eval", *asked).stdout.count(note) == (not known), (of_config, of_generation)
    (model / "generation_config.json").write_text("{")
    refused(*asked, status=3, words=["generation_config.json"], ranks=2)
    # While it trains, and of its checkpoint: at the end of the data's texts too, byte 0 of JSON.
    (model / "generation_config.json").unlink()
    data = work / "zeros.jsonl"
    data.write_text((json.dumps({"text": "a"}) + "\n") * 400)
    run = call("fsdp_train", "--model", model, "--tokenizer", "bytes", "--data", data, "-s", 32,
               "--lr", "1e-2", "--max-steps", 20, "--num-epochs", 9, "--lr-schedule", "constant",
               "-e", "zeros", "--save-dir", work, "--sample-every", 20, "--prompt-tokens", "0,97",
               "--max-new-tokens", 5, ranks=2)  # fmt: skip
    ended = r"sample after step 20, 0 tokens \(token \d+, which ends a text, came first\):\n"
    assert re.search(ended, run.stdout), run.stdout
    assert note not in run.stdout, run.stdout
    assert evaluate("-e", "zeros", "--save-dir", work, "--prompt-tokens", "0,97")["tokens"] == []


def longer_than_the_model_was_made_for():
    model = programs.make_model(work / "short", programs.CONFIG | {"max_position_embeddings": 16})
    for count in (15, 16):
        process = call("fsdp_eval", "--json", "--model", model, "--prompt-tokens", "1",
                       "--max-new-tokens", count)  # fmt: skip
        told = "fsdp_eval: warning: sequences of 17 tokens are longer than the 16 positions" in process.stderr
        assert told == (count == 16) and len(json.loads(process.stdout)["tokens"]) == count, process


def python_is_started_only_for_text():
    fake, mark = work / "fake", work / "started"
    fake.mkdir()
    (fake / "python3").write_text(f"#!/bin/sh\ntouch '{mark}'\n")
    (fake / "python3").chmod(0o755)
    without = {**os.environ, "PATH": f"{fake}:{os.environ['PATH']}"}
    model = programs.make_model(work / "no_python", programs.CONFIG | {"vocab_size": VOCABULARY})
    assert evaluate("--model", model, "--prompt-tokens", "1,2", "--max-new-tokens", 2, env=without)["tokens"]
    bytes_too = ("--tokenizer", "bytes", "--prompt", "ab")
    found = evaluate("--model", model, *bytes_too, "--max-new-tokens", 2, env=without)
    assert found["prompt_tokens"] == [97, 98]
    assert not mark.exists()
    prepared.copy_tokenizer(BPE, model)
    words = ["prepare_data.py --serve", "ended without an answer", "--prompt-tokens"]
    for ranks in (None, 3):
        refused("--model", model, "--prompt", "ab", status=5, words=words, env=without, ranks=ranks)
    assert mark.exists()


def what_cannot_be_is_refused():
    model = ("--model", GOLDEN / "grouped")
    refused(*model, status=2, words=["--data FILE", "--prompt"])
    refused("--data", work / "grouped.bin", status=2, words=["--model DIR", "-e NAME"])
    refused(*model, "-e", "run", "--data", "x", status=2, words=["--model", "--experiment-name"])
    bare = programs.make_model(work / "bare", weights=False)
    for drawn, of, status in (("tiny", "a preset", 2), (bare, "*.safetensors", 3)):
        words = (f"--model {drawn} (command line)", "no weights to evaluate", of, "--init random")
        refused("--model", drawn, "--prompt-tokens", "1", status=status, words=words, ranks=2)
        evaluate("--model", drawn, "--prompt-tokens", "1", "--max-new-tokens", 2, "--init", "random")
    nobody = ("-e", "nobody", "--prompt", "a", "--save-dir", work)
    refused(*nobody, status=3, words=["nobody", "no checkpoint"], ranks=2)
    refused(*model, "--prompt-tokens", "1,x", status=2, words=["'1,x'", "1,2,3"], ranks=2)
    refused(*model, "--prompt-tokens", "1,128", status=2, words=["token 128", "vocabulary of 128"])
    refused(*model, "--prompt", "a", status=3, words=["--prompt", "no tokenizer.json", "--prompt-tokens"])
    refused(*model, "--prompt", "\xff", "--tokenizer", "bytes", status=2, words=["token 195", "of 128"])
    refused(*model, "--prompt-tokens", "1", "-s", 8, status=2, words=["-new-tokens 64", "--seq-length 8"])
    refused(*model, "--prompt-tokens", "1", "--top-p", 0.5, status=2, words=["--top-p 0.5", "--temperature"])
    learned = ("--model", GOLDEN / "gpt2_hub", "--prompt-tokens", "1")  # of 40 positions
    refused(*learned, "--max-new-tokens", 50, status=2, words=["40", "51"])
    refused(*model, "--prompt-tokens", "1", "--memory-limit", "1kB", status=4, words=["--memory-limit"])
    refused(*model, "--prompt-tokens", "1", "--lr", 1, status=2, words=["--lr", "fsdp_train"])
    refused(*model, "--data", work / "nothing.bin", status=3, words=["nothing.bin"], ranks=2)
    train, long = dict(program="fsdp_train"), ("--sample-every", 2, "--prompt", "a", "-s", 32)
    refused("--sample-every", 2, status=2, words=["--sample-every 2", "--prompt"], **train)
    refused("--prompt", "a", status=2, words=["--prompt", "--sample-every"], **train)
    refused(*long, status=2, words=["--seq-length 32"], ranks=2, **train)
    chat = ("--chat-template", "chatml", "--prompt-tokens", "1")
    refused(*model, *chat, status=2, words=["--chat-template chatml", "--prompt TEXT", "prepare_data.py"])


families_are_transformers()
draws_depend_on_the_seed_alone()
training_samples_as_its_checkpoint_does()
what_cannot_be_is_refused()
tokens_end_where_the_models_files_say()
longer_than_the_model_was_made_for()
samples_of_bytes_end_as_the_data_does()
python_is_started_only_for_text()
skipped = text_is_the_tokenizers()
if not skipped:
    prompts_are_a_users_messages()
    answers_end_as_the_template_has_it()
print(f"SKIPPED: no text by a tokenizer was tested: {skipped}" if skipped else "passed")
