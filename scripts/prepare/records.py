"""Records of .jsonl and .json as documents, in the one form that every tokenizer takes.

A document is a list of parts: (text, counts), where `counts` says whether the loss counts the text's tokens,
or (None, counts) for the token that ends a text. runtime/data/json_text.c reads the same records for models
without a tokenizer.
"""
import json

from common.errors import InputError

# Stanford Alpaca's prompts (github.com/tatsu-lab/stanford_alpaca, train.py).
WITH_INPUT = ("Below is an instruction that describes a task, paired with an input that provides further "
              "context. Write a response that appropriately completes the request.\n\n"
              "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:")
WITHOUT_INPUT = ("Below is an instruction that describes a task. "
                 "Write a response that appropriately completes the request.\n\n"
                 "### Instruction:\n{instruction}\n\n### Response:")
KEYS = ("messages", "conversations", "instruction", "input", "output", "text", "prompt", "completion")
ROLES = ("system", "user", "assistant", "tool")


def _refuse_constant(name):
    raise ValueError(f"{name} is not JSON")


DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


class Document:
    """`whole` says that the parts hold the beginning and the end of the text already (a chat template's);
    `apart` that no token may lie in two parts."""

    def __init__(self, parts, whole=False, apart=False):
        self.parts, self.whole, self.apart = parts, whole, apart


def _check_string(value, place, names):
    if not isinstance(value, str):
        raise InputError(f"{place}: {names} must be strings; fix the record")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(f"{place}: a string has half of a surrogate pair; fix the record") from None


def _alpaca(record, place):
    given = record.get("input")
    values = {"instruction": record["instruction"], "input": "" if given is None else given,
              "output": record.get("output")}
    for value in values.values():
        _check_string(value, place, '"instruction", "input" and "output"')
    prompt = WITH_INPUT if values["input"] else WITHOUT_INPUT
    return Document([(prompt.format(**values), False), (values["output"], True), (None, True)])


def _check_messages(messages, place):
    if not isinstance(messages, list) or not messages:
        raise InputError(f'{place}: "messages" must be a list of messages; fix the record')
    for message in messages:
        if (not isinstance(message, dict) or message.get("role") not in ROLES or
                not isinstance(message.get("content"), str)):
            raise InputError(f'{place}: a message needs a "role" (system, user, assistant or tool) and a '
                             'string "content"; fix the record')
        _check_string(message["content"], place, '"content"')


SPEAKERS = {"system": "system", "human": "user", "gpt": "assistant", "user": "user", "assistant": "assistant",
            "tool": "tool"}


def _sharegpt_messages(turns, place):
    """ShareGPT's turns as messages."""
    if not isinstance(turns, list) or not turns:
        raise InputError(f'{place}: "conversations" must be a list of turns; fix the record')
    messages = []
    for turn in turns:
        speaker = turn.get("from") if isinstance(turn, dict) else None
        if (not isinstance(speaker, str) or speaker not in SPEAKERS or
                not isinstance(turn.get("value"), str)):
            raise InputError(f'{place}: a turn of "conversations" needs a "from" (system, human or gpt) and '
                             'a string "value"; fix the record')
        _check_string(turn["value"], place, '"value"')
        messages.append({"role": SPEAKERS[speaker], "content": turn["value"]})
    return messages


def _completion(record, place):
    values = [record["prompt"], record.get("completion")]
    for value in values:
        _check_string(value, place, '"prompt" and "completion"')
    return Document([(values[0], False), (values[1], True), (None, True)], apart=True)


def _chat(messages, place, options):
    if not options.template:
        return _plain_chat(messages)
    if options.mask_prompt:
        return _templated_chat(messages, options.template, place)
    return Document([(options.template(messages, False, place), True)], whole=True)


def _plain_chat(messages):
    """The template of tokenizers that have none."""
    parts, assistant = [], False
    for message in messages:
        assistant = message["role"] == "assistant"
        parts += [(f"<|{message['role']}|>\n", False), (message["content"], assistant)]
        parts.append((None, True) if assistant else ("\n", False))
    return Document(parts if assistant else parts + [(None, False)])


def _templated_chat(messages, template, place):
    """Rendered turn by turn, so that what each assistant's turn adds is known."""
    parts, done = [], ""
    for index, message in enumerate(messages):
        if message["role"] != "assistant" and index + 1 < len(messages):
            continue
        rendered = template(messages[:index + 1], False, place)
        if message["role"] == "assistant":
            prompt = template(messages[:index], True, place)
            if not prompt.startswith(done) or not rendered.startswith(prompt):
                raise InputError(f"{place}: the tokenizer's chat template does not render the beginning of "
                                 "this conversation as the beginning of the whole, so what the assistant "
                                 "says is not found; use --chat-template plain, or --mask-prompt off")
            parts += [(prompt[len(done):], False), (rendered[len(prompt):], True)]
        else:
            parts.append((rendered[len(done):], False))
        done = rendered
    return Document(parts, whole=True)


def parse(record, place, options):
    """The document of one record, or None if it has no text. options: mask_prompt, template (or None)."""
    if not isinstance(record, dict):
        raise InputError(f"{place}: a record must be an object {{..}}; fix it")
    if "messages" in record:
        _check_messages(record["messages"], place)
        document = _chat(record["messages"], place, options)
    elif "conversations" in record:
        document = _chat(_sharegpt_messages(record["conversations"], place), place, options)
    elif "instruction" in record and ("output" in record or "text" not in record):
        document = _alpaca(record, place)
    elif "text" in record:
        _check_string(record["text"], place, '"text"')
        if not record["text"]:
            return None
        document = Document([(record["text"], True), (None, True)])
    elif "prompt" in record:
        document = _completion(record, place)
    else:
        raise InputError(f'{place}: the record has neither "text", "messages", "conversations", '
                         '"instruction" with "output" nor "prompt" with "completion"; rename its keys')
    if not options.mask_prompt:
        document.parts = [(text, True) for text, _ in document.parts]
    return document


def decode(text, place):
    """One JSON value that is all of `text`."""
    try:
        value, end = DECODER.raw_decode(text)
    except RecursionError:
        raise InputError(f"{place}: not valid JSON (nested too deeply); fix it") from None
    except ValueError as error:
        raise InputError(f"{place}: not valid JSON ({getattr(error, 'msg', error)}); fix it") from None
    if text[end:].strip(" \t\r\n"):
        raise InputError(f"{place}: a line holds one record, but something follows it; break the line there")
    return value
