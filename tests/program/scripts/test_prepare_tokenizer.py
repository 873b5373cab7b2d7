"""scripts/prepare_data.py with tokenizers: hand-written sequences, and everything else against what the
`tokenizers` package itself makes of the same text. Skipped where that package cannot be had from PyPI."""

import json
import shutil

import prepared
from prepared import FIXTURES, ROOT, Tokens, error_of, prepare, prepare_good
from prepare.environment import TOKENIZERS

TEXT = ROOT / "runtime" / "data" / "builtin_text.txt"

# tests/golden/prepare/alpaca.json, by hand; what is learned follows the bar.
PROMPT = "Write a response that appropriately completes the request . ### Instruction : "
ALPACA = [
    "<s> Below is an instruction that describes a task . " + PROMPT + "Name a bird . ### Response : "
    "| The wren . </s>",
    "<s> Below is an instruction that describes a task , paired with an input that provides further "
    "context . " + PROMPT + "Add one . ### Input : two ### Response : | three </s>",
    "<s> Below is an instruction that describes a task . " + PROMPT + "Say nothing . ### Response : | </s>",
]


def alpaca_is_as_written_by_hand(work):
    words = {i: word for word, i in
             json.loads((FIXTURES / "tokenizer.json").read_text())["model"]["vocab"].items()}
    for arguments in (["--model", FIXTURES], ["--tokenizer", FIXTURES / "tokenizer.json"]):
        tokens = prepare_good(work / "x.tok", *arguments, FIXTURES / "alpaca.json")
        assert (work / "x.tok").read_bytes() == (FIXTURES / "alpaca.tok").read_bytes()
    assert tokens.packed and not tokens.bytes and tokens.vocabulary == 42
    assert (tokens.first, tokens.last) == (1, 2)
    for ids, learned, wanted in zip(tokens.documents(), tokens.learned_ids(), ALPACA, strict=True):
        assert [words[i] for i in ids] == wanted.replace("| ", "").split()
        assert [words[i] for i in learned] == wanted.split("| ")[1].split()
        # What is learned is at the end.
        assert ids[-len(learned):] == learned


def train(folder, kind):
    """A small tokenizer like GPT-2's or Llama 2's, of the built-in text, as a Hugging Face folder."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    text = TEXT.read_text()[:150_000]
    folder.mkdir()
    if kind == "gpt":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        special, alphabet = ["<|endoftext|>"], pre_tokenizers.ByteLevel.alphabet()
        config = {"eos_token": "<|endoftext|>"}
    else:
        tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
        special, alphabet = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)], []
        config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}}
        text = "\n".join(text.split())
    tokenizer.train_from_iterator(text.split("\n"), trainers.BpeTrainer(
        vocab_size=900, special_tokens=special, initial_alphabet=alphabet, show_progress=False))
    if kind == "llama":
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.enable_truncation(7)  # as some folders have it; text must not be cut
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer.no_truncation()
    return tokenizer


def a_long_text_is_as_if_encoded_whole(work):
    text = TEXT.read_text() + "\n\n\nÄ 🐦 \n \n" + TEXT.read_text()
    (work / "a.txt").write_text(text)
    for kind in ("gpt", "llama"):
        tokenizer = train(work / kind, kind)
        whole = tokenizer.encode(text, add_special_tokens=False).ids
        first, last = ([], [0]) if kind == "gpt" else ([1], [2])
        contents = []
        for processes in (1, 2, 8):
            options = ["--model", work / kind, "--procs", processes]
            tokens = prepare_good(work / "x.tok", *options, work / "a.txt")
            contents.append((work / "x.tok").read_bytes())
        assert contents[0] == contents[1] == contents[2]
        assert tokens.ids == first + whole + last
        assert tokens.learned == [False] + [True] * (len(tokens.ids) - 1)


def records_are_as_encoded_one_by_one(work):
    lines = [line for line in TEXT.read_text().split("\n") if line.strip()]
    texts = ["\n".join(lines[i:i + 5]) for i in range(0, len(lines), 5)]
    for name in ("a.jsonl", "c.jsonl"):
        (work / name).write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    pairs = [(lines[i], lines[i + 1]) for i in range(0, 2000, 2)]
    (work / "b.json").write_text(json.dumps([{"instruction": a, "output": b} for a, b in pairs]))
    files = [work / "a.jsonl", work / "b.json", work / "c.jsonl"]
    for kind in ("gpt", "llama"):
        tokenizer = train(work / kind, kind)
        first, last = ([], [0]) if kind == "gpt" else ([1], [2])
        contents = []
        for processes in (1, 2, 8):
            tokens = prepare_good(work / "x.tok", "--model", work / kind, "--procs", processes, *files)
            contents.append((work / "x.tok").read_bytes())
        assert contents[0] == contents[1] == contents[2]
        documents, learned = tokens.documents(), tokens.learned_ids()
        plain = tokenizer.encode_batch(texts, add_special_tokens=False)
        encoded = [first + item.ids + last for item in plain]
        assert documents[:len(texts)] == encoded and documents[-len(texts):] == encoded
        assert learned[:len(texts)] == [ids[1:] for ids in encoded]
        for (_, answer), ids in zip(pairs, learned[len(texts):]):
            assert ids[-1:] == last and tokenizer.decode(ids[:-1]).strip() == answer.strip()


def chat(folder, template):
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))


def conversations_follow_the_template(work):
    tokenizer = train(work / "llama", "llama")
    talk = [{"role": "user", "content": "How was the ball?"}, {"role": "assistant", "content": "Very fine."},
            {"role": "user", "content": "And the carriage?"}, {"role": "assistant", "content": "Late."}]
    (work / "a.jsonl").write_text(json.dumps({"messages": talk}) + "\n")

    command = ["--out", work / "y.tok", "--model", work / "llama", work / "a.jsonl"]

    def made(*arguments):
        texts = "<|im_end|>, which ends 2 of 2 answers, is text" if "chatml" in arguments else None
        return prepare_good(work / "x.tok", "--model", work / "llama", *arguments, work / "a.jsonl",
                            warning=texts)

    message = error_of(prepare(*command), 2)
    assert "has no chat template" in message and "--chat-template chatml" in message, message
    plain = made("--chat-template", "chatml")
    wanted = "".join(f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in talk)
    assert plain.ids == tokenizer.encode(wanted, add_special_tokens=False).ids
    learned = tokenizer.decode(plain.learned_ids()[0], skip_special_tokens=False)
    assert learned == "Very fine.<|im_end|>\nLate.<|im_end|>\n", learned

    chat(work / "llama", "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] "
         "{{ m.content }} [/INST]{% else %}{% generation %} {{ m.content }} {{ eos_token }}"
         "{% endgeneration %}{% endif %}{% endfor %}")
    rendered = ("<s>[INST] How was the ball? [/INST] Very fine. </s>"
                "[INST] And the carriage? [/INST] Late. </s>")
    templated = made()
    assert templated.ids == tokenizer.encode(rendered, add_special_tokens=False).ids
    learned = tokenizer.decode(templated.learned_ids()[0], skip_special_tokens=False)
    assert learned.split() == "Very fine. </s> Late. </s>".split(), learned
    assert made("--special-tokens", "off").ids == templated.ids
    assert made("--chat-template", "chatml").ids == plain.ids
    # ShareGPT's turns are the same conversation; a completion takes no template.
    speakers = {"user": "human", "assistant": "gpt"}
    turns = [{"from": speakers[turn["role"]], "value": turn["content"]} for turn in talk]
    (work / "b.jsonl").write_text(json.dumps({"conversations": turns}) + "\n")
    shared = prepare_good(work / "z.tok", "--model", work / "llama", work / "b.jsonl")
    assert shared.ids == templated.ids and shared.learned == templated.learned
    (work / "c.jsonl").write_text(json.dumps({"prompt": "How was", "completion": " the ball?"}) + "\n")
    completed = prepare_good(work / "z.tok", "--model", work / "llama", work / "c.jsonl")
    assert completed.ids == tokenizer.encode("How was the ball?").ids + [2]
    learned = tokenizer.decode(completed.learned_ids()[0], skip_special_tokens=False)
    assert learned.strip() == "the ball?</s>", learned
    assert sum(made("--mask-prompt", "off").learned) == len(templated.ids) - 1

    chat(work / "llama", "{% for m in messages %}{{ m.role }}: {{ m.content }}.\n{% endfor %}"
         "{% if add_generation_prompt %}assistant: {% endif %}")
    process = prepare(*command, status=0)
    assert "no special token ends 1 of 1 answers" in process.stderr, process.stderr
    learned = tokenizer.decode(Tokens(work / "y.tok").learned_ids()[0], skip_special_tokens=False)
    assert learned == "Very fine..\n Late..\n", learned

    # Neither a beginning of the whole, nor an answer behind its prompt.
    chat(work / "llama", "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}")
    message = error_of(prepare(*command), 3)
    assert "a.jsonl:1: " in message and "--mask-prompt off" in message, message
    chat(work / "llama", "{{ raise_exception('roles must take turns') }}")
    message = error_of(prepare(*command), 3)
    assert "a.jsonl:1: " in message and "roles must take turns" in message, message
    chat(work / "llama", "{% for %}")
    message = error_of(prepare(*command), 3)
    assert "chat template cannot be read" in message, message


def conversations_with_tools_have_their_own_template(work):
    """Where the tokenizer has one, in either of two places."""
    tokenizer = train(work / "llama", "llama")
    talk = [{"role": "user", "content": "How was the ball?"}, {"role": "assistant", "content": "Very fine."}]
    said = "{% for m in messages %}{{ m.content }}</s>{% endfor %}"
    chat(work / "llama", [{"name": "default", "template": said},
                          {"name": "tool_use", "template": "<s>{{ tools | length }}" + said}])
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    records = [{"messages": talk}, {"messages": talk, "tools": tools}]
    (work / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    plain = "".join(f"{turn['content']}</s>" for turn in talk)
    ids = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
    made = lambda: prepare_good(work / "x.tok", "--model", work / "llama", work / "a.jsonl").documents()
    assert made() == [ids(plain), ids(f"<s>1{plain}")]
    other = work / "llama/additional_chat_templates/tool_use.jinja"
    other.parent.mkdir()
    other.write_text("<s>{{ tools[0].function.name }}" + said)
    assert made() == [ids(plain), ids(f"<s>f{plain}")]


def generation_must_stop_where_answers_end(work):
    """A warning where no answer ends with a token at which what generates stops, by the model's files."""
    train(work / "llama", "llama")  # <s> is 1, </s> 2
    talk = [{"role": "user", "content": "How was the ball?"}, {"role": "assistant", "content": "Very fine."}]
    (work / "a.jsonl").write_text(json.dumps({"messages": talk}) + "\n")
    answer = "{{% for m in messages %}}{{{{ m.content }}}}{end}{{% endfor %}}"
    files = {"generation_config.json": None, "config.json": None}

    def said(end, generation=None, config=None):
        (work / "t.jinja").write_text(answer.format(end=end))
        for name, stops in zip(files, (generation, config), strict=True):
            path = work / "llama" / name
            path.unlink(missing_ok=True)
            if stops is not None:
                path.write_text(json.dumps({"eos_token_id": stops} if stops else {}))
        process = prepare("--out", work / "x.tok", "--model", work / "llama", "--chat-template",
                          work / "t.jinja", work / "a.jsonl")  # fmt: skip
        assert process.returncode == 0 and "ends of answers: 1 learned of 1\n" in process.stdout, process
        return process.stderr

    assert said("</s>") == "" == said("</s>", 1)  # the tokenizer's own end
    text = said("<done>")
    assert "warning: <done>, which ends 1 of 1 answers, is text of several tokens to this model" in text, text
    assert "stops at </s> alone" in text and "as a stop string" in text, text
    token = said("<s>")
    assert "<s>, which ends 1 of 1 answers, is no token that ends a text to this model" in token, token
    assert "add it to eos_token_id in the model's generation_config.json" in token, token
    assert said("<s>", [1, 2]) == "" == said("<s>", None, 1) == said("<s>", 1)
    assert said("<s>", 2, 1) and said("<s>", [], 1), "generation_config.json wins, also if it names none"


def a_completion_begins_a_token(work):
    """What a prompt and its completion would have in common is divided: all of the completion is learned, and
    nothing else."""
    prompts = ["The b", "How wa", "a", "1", "The bird", "Ä", "x\n", "said"]
    completions = ["all was", "s the ball?", "b", "2", " sang.", "ä", "\ny", ", of course"]
    for kind in ("gpt", "llama"):
        tokenizer = train(work / kind, kind)
        joined = 0
        for prompt, completion in zip(prompts, completions, strict=True):
            (work / "a.jsonl").write_text(json.dumps({"prompt": prompt, "completion": completion}) + "\n")
            process = prepare("--out", work / "x.tok", "--model", work / kind, work / "a.jsonl", status=0)
            tokens = Tokens(work / "x.tok")
            (learned,), (ids,) = tokens.learned_ids(), tokens.documents()
            end = 0 if kind == "gpt" else 2
            text = tokenizer.decode(learned[:-1], skip_special_tokens=False)
            assert learned[-1] == end and text.strip(" ") == completion.strip(" "), (kind, prompt, text)
            before = ids[:len(ids) - len(learned)]
            own = tokenizer.encode(prompt).ids
            assert before == own, (kind, prompt, before, own)  # as where the model is to complete it
            whole = tokenizer.encode(prompt + completion).ids
            divided = ids[:-1] != whole
            joined += divided
            said = "records whose prompt and completion would have a token in common: 1;" in process.stdout
            assert said == divided, (kind, prompt, completion, process.stdout)
            glued = not (prompt[-1].isspace() or completion[0].isspace())
            said = "prompts with no space before their completion: 1;" in process.stdout
            assert said == glued, (kind, prompt, completion, process.stdout)
            options = ["--model", work / kind, "--mask-prompt", "off"]
            assert prepare_good(work / "y.tok", *options, work / "a.jsonl").ids[:-1] == whole
        assert joined >= 2, joined


def special_tokens_are_as_said(work):
    tokenizer = train(work / "gpt", "gpt")
    (work / "a.jsonl").write_text(json.dumps({"text": "one<|endoftext|>two"}))

    def made(*arguments):
        return prepare_good(work / "x.tok", "--tokenizer", work / "gpt" / "tokenizer.json", *arguments,
                            work / "a.jsonl").ids

    one, two = tokenizer.encode("one").ids, tokenizer.encode("two").ids
    assert made() == one + [0] + two + [0]
    apart = made("--special-tokens", "off")
    assert apart.count(0) == 1 and apart[-1] == 0
    assert tokenizer.decode(apart[:-1], skip_special_tokens=False) == "one<|endoftext|>two"
    assert made("--eos", "none") == one + [0] + two
    assert made("--eos", "17", "--bos", "<|endoftext|>") == [0] + one + [0] + two + [17]
    # The other places in which a folder may say how a text ends.
    config = work / "gpt" / "tokenizer_config.json"
    config.unlink()
    command = ["--out", work / "y.tok", "--model", work / "gpt", work / "a.jsonl"]
    assert "--eos" in error_of(prepare(*command), 2)
    (work / "gpt" / "config.json").write_text('{"eos_token_id": [5, 6]}')
    assert made()[-1] == 5
    (work / "gpt" / "generation_config.json").write_text('{"eos_token_id": 7}')
    assert made()[-1] == 7
    (work / "gpt" / "special_tokens_map.json").write_text('{"eos_token": {"content": "<|endoftext|>"}}')
    assert made()[-1] == 0
    # What the tokenizer puts before a text, and not what stands beside it: as Transformers does.
    path = work / "gpt" / "tokenizer.json"
    definition = json.loads(path.read_text())
    first = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    known = {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}}
    template = {"type": "TemplateProcessing", "single": first, "pair": first[1:], "special_tokens": known}
    for wanted in ("true", "false"):
        config.write_text(f'{{"add_bos_token": {wanted}, "bos_token": "<|endoftext|>"}}')
        path.write_text(json.dumps(definition))
        assert made()[:len(one)] == one
        path.write_text(json.dumps(definition | {"post_processor": template}))
        assert made()[:1 + len(one)] == [0] + one
    path.write_text(json.dumps(definition))
    # Tokens that only the files beside it have follow on its own, with their flags.
    size = len(tokenizer.get_vocab())
    beside = {"added_tokens_decoder": {"3000": {"content": "<L>", "lstrip": True, "special": False}},
              "eos_token": "<|endoftext|>", "pad_token": "<P>", "extra_special_tokens": ["<M>"]}
    config.write_text(json.dumps(beside))
    (work / "a.jsonl").write_text(json.dumps({"text": "one <L>two<M><P>"}))
    assert made() == one + [size] + two + [size + 2, size + 1, 0]
    assert made("--special-tokens", "off")[:1 + len(one)] == one + [size]
    size += 3
    for option, token in (("--eos", size), ("--bos", size), ("--eos", "</x>")):
        message = error_of(prepare(*command[:-1], option, token, work / "a.jsonl"), 2)
        assert f"error: {option} {token}: is not a token of the vocabulary of {size};" in message, message
    config.unlink()
    (work / "gpt" / "special_tokens_map.json").unlink()
    (work / "gpt" / "generation_config.json").write_text('{"eos_token_id": 9999}')
    message = error_of(prepare(*command), 2)
    assert "gpt/tokenizer.json: the files beside it end a text with token 9999" in message, message


def an_older_form_becomes_tokenizer_json(work):
    """vocab.json and merges.txt of the same tokenizer; test_tokenized_training has a model with them."""
    from prepare.token_file import xxh64
    tokenizer, folder = train(work / "gpt", "gpt"), work / "gpt"
    made, tokens = folder / "tokenizer.json", work / "x.tok"
    tokenizer.model.save(str(folder))
    made.unlink()
    (folder / "added_tokens.json").write_text('{"<two>": 901, "<one>": 900}')
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    (folder / "special_tokens_map.json").write_text('{"eos_token": "<|endoftext|>"}')
    text = "We'll see.\n\n 12 <two>Ä 🐦<|endoftext|> and <one>"
    (work / "a.txt").write_text(text)
    process = prepare("--out", tokens, "--model", folder, work / "a.txt", status=0)
    assert process.stdout.startswith(f"{made}: made of vocab.json and merges.txt\n"), process.stdout
    encode = lambda part: tokenizer.encode(part, add_special_tokens=False).ids
    wanted = encode("We'll see.\n\n 12 ") + [901] + encode("Ä 🐦") + [0] + encode(" and ") + [900, 0]
    assert Tokens(tokens).ids == wanted
    assert Tokens(tokens).hash == xxh64(made.read_bytes())
    again = prepare("--out", tokens, "--tokenizer", folder, work / "a.txt")
    assert "made of" not in again.stdout and Tokens(tokens).ids == wanted
    # Here, without a tokenizer.json, Transformers asks tokenizer_config.json.
    made.unlink()
    config = {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True}
    config["bos_token"] = {"content": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    process = prepare("--out", tokens, "--model", folder, work / "a.txt")
    assert process.returncode == 0 and Tokens(tokens).ids == [0] + wanted, process
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    # Numbers that do not follow, another kind of tokenizer, damaged files.
    made.unlink()
    refused = lambda option: error_of(prepare("--out", tokens, option, folder, work / "a.txt"), 3)
    (folder / "added_tokens.json").write_text('{"<two>": 950}')
    message = refused("--tokenizer")
    assert '"<two>" is number 950, but follows as 900' in message, message
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "RobertaTokenizer"}')
    assert "tokenizer.json: no such file" in refused("--tokenizer")
    assert "has a vocab.json and a merges.txt only" in refused("--model")
    (folder / "tokenizer_config.json").unlink()
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    (folder / "merges.txt").write_text("#version: 0.2\nqqqq zzzz\n")
    assert "merges.txt: are not a readable tokenizer" in refused("--tokenizer")
    assert not made.exists()


def bad_tokenizers_are_refused(work):
    folder = work / "m"
    folder.mkdir()
    command = ["--out", work / "x.tok", "--model", folder, FIXTURES / "alpaca.json"]
    (folder / "tokenizer.model").write_bytes(b"x")
    assert "tokenizer.model only" in error_of(prepare(*command), 3)
    (folder / "tokenizer.json").write_text("{}")
    assert "m/tokenizer.json: is not a readable tokenizer.json" in error_of(prepare(*command), 3)
    shutil.copy(FIXTURES / "tokenizer.json", folder)
    (folder / "tokenizer_config.json").write_text("{")
    assert "tokenizer_config.json: cannot be read" in error_of(prepare(*command), 3)
    (folder / "tokenizer_config.json").unlink()
    (work / "x.bin").write_bytes(bytes([42, 0, 1, 0]))
    message = error_of(prepare("--out", work / "x.tok", "--model", FIXTURES, work / "x.bin"), 3)
    assert "x.bin: has a token 42" in message, message
    assert not (work / "x.tok").exists()


prepared.run_tests_with(TOKENIZERS, "prepare_data.py with tokenizers", [
    alpaca_is_as_written_by_hand, a_long_text_is_as_if_encoded_whole, records_are_as_encoded_one_by_one,
    conversations_follow_the_template, conversations_with_tools_have_their_own_template,
    generation_must_stop_where_answers_end, a_completion_begins_a_token, special_tokens_are_as_said,
    an_older_form_becomes_tokenizer_json, bad_tokenizers_are_refused])
