"""Chat templates of published models: what prepare_data.py makes of conversations against Transformers.

For each template that the package trl carries (and those of --templates FOLDER), drawn conversations, with
what the system says, tools and their calls, parts of text, and one to six answers: the tokens are those of
apply_chat_template, of the conversation or of its beginning where it gives several samples; what is learned
is what Transformers' mask of the assistant's tokens says, where the template has marks, and where trl has a
variant of the template with marks that renders the same, what the variant's mask says; otherwise it is each
answer as the record has it, to the token that ends it, and nothing that the others say.

    test_chat_templates.py [--count 200] [--templates FOLDER]... [--only NAME] [--seed N]

Transformers, tokenizers and trl are looked for in FSDP_TORCH_PYTHON, the environment of
bench/compare_torch.py, /opt/venvs/torch and this Python; where none has them, the test is skipped (77).
"""

import argparse
import collections
import contextlib
import datetime
import importlib.util
import io
import os
import pathlib
import random
import re
import subprocess
import sys

import programs

sys.path.insert(0, str(programs.ROOT / "scripts"))
INSIDE = "FSDP_CHAT_TEMPLATES_INSIDE"
FEW = ("cohere", "deepseekv3_training", "gemma3", "gptoss_training", "llama3", "llama3_1", "llama3_2", "phi3",
       "qwen2_5", "qwen2_5_training", "qwen3", "qwen3_instruct_2507")
WORDS = ["bird", "Wren", "ç'est", "日本", "🐦", "x = 1", "\n", "\n\n",
         "  two", "#", "{}", "don't", "1234", "°C", "a\tb"]
# Reasons for which a conversation is refused that Transformers renders: something of it would be lost.
LOST = ("leaves out what the", "which the chat template does not",
        "does not render an answer behind its prompt")


# ---- Conversations


def says(rng, least=1):
    text = " ".join(rng.choice(WORDS) for _ in range(rng.randint(least, 12)))
    return text if text.strip() else "q"


TOOL = {"type": "function", "function": {"name": "weather", "description": "What it is like outside.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string", "description": "Where"}},
                       "required": ["place"]}}}  # fmt: skip


def draw(rng, tools, parts, reasoning):
    """A record: messages, and perhaps tools."""
    messages = []
    content = lambda text: ([{"type": "text", "text": piece} for piece in (text, " more")]
                            if parts and rng.random() < 0.3 else text)
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": content(says(rng))})
    with_tools = tools and rng.random() < 0.4
    for turn in range(rng.randint(1, 6)):
        messages.append({"role": "user", "content": content(f"question {turn} {says(rng)}")})
        if with_tools and rng.random() < 0.5:
            name = f"call{turn:05}"
            call = {"id": name, "type": "function",
                    "function": {"name": "weather", "arguments": {"place": says(rng).strip()}}}
            beside = f"looking {turn}" if rng.random() < 0.2 else ""
            messages.append({"role": "assistant", "content": beside, "tool_calls": [call]})
            messages.append({"role": "tool", "name": "weather", "tool_call_id": name,
                             "content": rng.choice((f"result {turn}", f'{{"result": "{turn}"}}'))})
        answer = {"role": "assistant", "content": f"answer {turn} {says(rng).strip()}."}
        if reasoning and rng.random() < 0.3:
            answer["reasoning_content"] = f"thought {turn}"
        messages.append(answer)
    if rng.random() < 0.1:
        messages.append({"role": "user", "content": "question, the last"})
    return {"messages": messages, **({"tools": [TOOL]} if with_tools else {})}


# ---- A template on both sides


def special_tokens(source):
    """Names that look like those of tokens, as the template has them."""
    found = re.findall(r"<[|｜]?[a-zA-Z_/▁]+[|｜]?>|\[/?[A-Z_]{3,}\]", source)
    names = {"<bos>", "<eos>", "<|im_start|>", "<|im_end|>", *found}
    return sorted(names - {"<think>", "</think>", "<tool_call>", "</tool_call>", "<tools>", "</tools>"})


class Sides:
    """Transformers' tokenizer of a template, and prepare_data.py's encoder of the same folder."""

    def __init__(self, folder, source, trained):
        import transformers
        from prepare.pipeline import Settings, Worker
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_str(trained)
        theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<bos>",
                                                      eos_token="<eos>")
        theirs.add_special_tokens({"additional_special_tokens": special_tokens(source)})
        theirs.chat_template = source
        theirs.save_pretrained(folder)
        self.theirs, self.marked = theirs, "{% generation" in source.replace("{%-", "{%")
        settings = Settings(tokenizer=str(folder / "tokenizer.json"))
        settings.token_bytes = 4
        with contextlib.redirect_stdout(io.StringIO()):
            self.worker = Worker(settings)

    def ours(self, record):
        """[(ids, learned)] of the record's samples, and how; BadRecord."""
        from prepare import records

        documents, _ = records.parse(record, "record", self.worker)
        made = [(list(ids), [digit == 49 for digit in mask])
                for ids, mask in self.worker.encoder.documents(documents)]
        return made, documents

    def expected(self, record, count, **options):
        """Transformers' (ids, mask) of the first messages."""
        messages = record["messages"][:count]
        import jinja2

        try:
            made = self.theirs.apply_chat_template(messages, tools=record.get("tools"), return_dict=True,
                                                   return_assistant_tokens_mask=self.marked, **options)
        except (jinja2.exceptions.TemplateError, TypeError, ValueError, KeyError, AttributeError):
            return None
        return made["input_ids"], made.get("assistant_masks")


def text_of(message):
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def answers_of(sides, ids, learned):
    """The texts of the runs of learned tokens."""
    runs, before = [], False
    for token, flag in zip(ids, learned):
        if flag and not before:
            runs.append([])
        if flag:
            runs[-1].append(token)
        before = flag
    return [sides.theirs.decode(run) for run in runs]


def check(sides, record, variant, counts):
    """One conversation."""
    from prepare.forms import BadRecord

    messages = record["messages"]
    whole = sides.expected(record, len(messages))
    try:
        made, documents = sides.ours(record)
    except BadRecord as error:
        reason = str(error)
        counts["refused by both" if whole is None else "refused: something would be lost"] += 1
        assert whole is None or any(lost in reason for lost in LOST), reason
        return
    assert whole is not None, "only Transformers refuses it"
    ends = [index + 1 for index, message in enumerate(messages) if message["role"] == "assistant"]
    counts["conversations"] += 1
    counts["samples"] += len(made)
    counts[documents[0].how] += 1
    lengths = [*ends, len(messages)]
    learned_texts = []
    for ids, learned in made:
        same = (length for length in lengths if (sides.expected(record, length) or [None])[0] == ids)
        match = next(same, None)
        assert match, "the tokens are of no beginning of the conversation"
        lengths = [length for length in lengths if length > match]
        learned_texts += answers_of(sides, ids, learned)
        if sides.marked:
            mask = [bool(flag) for flag in sides.expected(record, match)[1]]
            assert learned == [False, *mask[1:]], "the mask differs from Transformers'"
            counts["masks compared"] += 1
        elif variant:
            same = variant.expected(record, match)
            if same and same[0] == ids and len(made) == 1:
                mask = [bool(flag) for flag in same[1]]
                counts[f"masks {'as of' if learned == mask else 'unlike'} trl's variant"] += 1
    if not sides.marked:
        said = "".join(learned_texts)
        for message in messages:
            if message["role"] == "assistant" and message["content"]:
                assert text_of(message).strip() in said, said
        assert "question" not in said and "result" not in said, said
    for document in documents:
        from prepare import chats

        for name, learned in chats.ends_of(document.parts, sides.worker.encoder.ends):
            counts[f"end {name} {'learned' if learned else 'not learned'}"] += 1


def check_prompt(sides, tokenizer, text):
    """fsdp_eval's --prompt with --chat-template auto: the model is to answer a user."""
    from prepare.serve import Codec

    asked = {"tokenizer": str(tokenizer), "template": "auto", "known": None, "folder": None, "first": -2,
             "last": -2}
    content = sides.worker.encoder.templates["default"]._content(text)
    record = {"messages": [{"role": "user", "content": content}]}
    wanted = sides.expected(record, 1, add_generation_prompt=True)
    assert Codec(asked, datetime.datetime.now()).encode(text) == wanted[0], ("the prompt's tokens", text)


def trained_tokenizer():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        (programs.ROOT / "runtime/data/builtin_text.txt").read_text()[:100_000].split("\n"),
        trainers.BpeTrainer(vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                            show_progress=False))  # fmt: skip
    return tokenizer.to_str()


def run(args, work):
    trl = pathlib.Path(importlib.util.find_spec("trl").submodule_search_locations[0]) / "chat_templates"
    folders = (trl, *args.templates)
    sources = {path.stem: path for folder in folders for path in sorted(folder.glob("*.jinja"))}
    chosen = args.only or (list(sources) if args.count else [name for name in FEW if name in sources])
    assert len(chosen) >= 10 or args.only, (trl, chosen)
    count, trained, failures = args.count or programs.draws(12, 3), trained_tokenizer(), 0
    for name in chosen:
        source = sources[name].read_text()
        sides = Sides(work / name, source, trained)
        variant = sources.get(f"{name}_training")
        variant = variant and Sides(work / f"{name}_v", variant.read_text(), trained)
        counts, rng = collections.Counter(), random.Random(f"{args.seed} {name}")
        template = sides.worker.encoder.templates["default"]
        for number in range(count):
            text = f"question {says(rng)}"
            record = draw(rng, "tool_calls" in source, template.takes_parts, "reasoning_content" in source)
            for message in record["messages"] if not template.takes_text else ():
                if isinstance(message["content"], str):
                    message["content"] = [{"type": "text", "text": message["content"]}]
            try:
                check(sides, record, variant, counts)
                check_prompt(sides, work / name / "tokenizer.json", text)
            except AssertionError as error:
                failures += 1
                counts["FAILED"] += 1
                if counts["FAILED"] <= 2:
                    print(f"FAILED  {name}, conversation {number}: {error}\n  {record}")
        print(f"{'FAILED' if counts['FAILED'] else 'ok':7} {name}: "
              + ", ".join(f"{value} {key}" for key, value in counts.items()))
    return 1 if failures else 0


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, help="conversations of each of all templates")
    parser.add_argument("--templates", type=pathlib.Path, action="append", default=[])
    parser.add_argument("--only", action="append")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main():
    args = parse()
    if os.environ.get(INSIDE) != "1":
        python = programs.python_with("transformers", "tokenizers", "jinja2", found=("trl",))
        environment = {**os.environ, INSIDE: "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        return subprocess.run([python, __file__, *sys.argv[1:]], env=environment).returncode
    import transformers

    transformers.utils.logging.set_verbosity_error()
    return run(args, programs.folder("chat_templates"))


if __name__ == "__main__":
    sys.exit(main())
