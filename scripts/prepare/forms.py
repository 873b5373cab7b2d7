"""The forms that records have, each used as its own documentation defines it.

Every record becomes one of three: a Text, a Completion (a prompt and what follows it), or a Chat (messages as
chat templates take them, and which of them are learned). What a record holds besides is named: a key that
would change what is learned is refused, any other is counted.
"""
import json
from dataclasses import dataclass, field

from common.errors import InputError

# Stanford Alpaca's prompts (github.com/tatsu-lab/stanford_alpaca, train.py).
WITH_INPUT = ("Below is an instruction that describes a task, paired with an input that provides further "
              "context. Write a response that appropriately completes the request.\n\n"
              "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:")
WITHOUT_INPUT = ("Below is an instruction that describes a task. "
                 "Write a response that appropriately completes the request.\n\n"
                 "### Instruction:\n{instruction}\n\n### Response:")

CHAT_KEYS = ("system", "tools", "functions", "chat_template_kwargs")
FIELDS = ("messages", "conversations", "instruction", "input", "output", "history", "text", "prompt",
          "completion", "system", "tools", "chat_template_kwargs")
FORMS = ("messages", "conversations", "instruction", "text", "prompt")  # by the keys that they need
MEDIA = {"images": "pictures", "videos": "videos", "audios": "sound"}
REFUSED = {"chosen": "preference data", "rejected": "preference data", **MEDIA}
# That are looked at; a table's other columns are not read.
KEYS = (*FIELDS, "functions", "weight", "label", "kto_tag", *REFUSED)

ROLES = {"system": "system", "developer": "system", "user": "user", "human": "user", "assistant": "assistant",
         "gpt": "assistant", "chatgpt": "assistant", "tool": "tool", "function": "tool",
         "observation": "tool", "function_call": "call"}
MESSAGE_KEYS = ("name", "tool_call_id", "reasoning_content", "thinking", "reasoning")  # for the template
# Of a message: OpenAI's "weight", axolotl's "train", and others that say whether it is learned.
MARKS = ("weight", "train", "loss", "loss_weight", "masked")
WEIGHTS = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}


class BadRecord(InputError):
    """One record cannot be used; the others can."""


@dataclass
class Text:
    text: str


@dataclass
class Completion:
    prompt: str
    completion: str
    apart: bool  # no token may lie in both


@dataclass
class Chat:
    messages: list  # "content" is a string, or a list of the strings of its parts
    learned: list  # of each message; None if the record says that it is not, by a weight of 0
    tools: list = None
    options: dict = field(default_factory=dict)  # further variables of the template


@dataclass
class Unlearned:
    """A record of weight 0."""


def _is_empty(value):
    return value is None or value in ("", [], {}, "[]", "{}")  # a list in a table is its JSON


def _string(value, place, names):
    if not isinstance(value, str):
        raise BadRecord(f"{place}: {names} must be strings; fix the record")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRecord(f"{place}: a string has half of a surrogate pair; fix the record") from None
    return value


def _decoded(value, place, name):
    """A list or object that may be given as its JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise BadRecord(f"{place}: {name} is a string that is not JSON; fix the record") from None


# ---- Messages

def text_of(message):
    """What a message says."""
    content = message.get("content", "")
    return content if isinstance(content, str) else "".join(content)


def _check_refused(holder, place, refused, prefix=""):
    for key, why in refused.items():
        if not _is_empty(holder.get(key)):
            raise InputError(f'{place}: has "{prefix}{key}" ({why}), which is not trained; remove the key')


def _content(value, place):
    """A string, or the strings of a list of parts."""
    if isinstance(value, str):
        return _string(value, place, '"content"')
    if not isinstance(value, list):
        raise BadRecord(f'{place}: a message\'s "content" must be a string or a list of parts; fix the '
                        'record')
    texts = []
    for part in value:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            raise BadRecord(f'{place}: a part of a message is {json.dumps(kind)}, but only "text" is '
                            "trained; remove the record")
        texts.append(_string(part.get("text"), place, 'a part\'s "text"'))
    return texts


def _call(call, place):
    """A call of a tool, its arguments an object or one as JSON."""
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadRecord(f'{place}: a call of a tool needs a "function" with a "name"; fix the record')
    arguments = function.get("arguments", {})
    _decoded(arguments, place, 'a call\'s "arguments"')
    more = {"id": call["id"]} if isinstance(call.get("id"), str) else {}
    return {**more, "type": "function", "function": {"name": function["name"], "arguments": arguments}}


def _calls(message, place):
    calls = message.get("tool_calls")
    if _is_empty(calls):
        calls = [] if _is_empty(message.get("function_call")) else [message["function_call"]]
    if not isinstance(calls, list):
        raise BadRecord(f'{place}: "tool_calls" must be a list; fix the record')
    return [_call(call, place) for call in calls]


def _weight(value):
    """True or False; None if it is neither 0 nor 1. A table's values are strings."""
    return WEIGHTS.get(str(value).strip().lower())


def _marks(message, place):
    """{key: whether it says that the message is learned}"""
    marks = {key: _weight(message[key]) for key in MARKS if message.get(key) is not None}
    for key, mark in marks.items():
        if mark is None:
            raise BadRecord(f'{place}: a message has the {key} {json.dumps(message[key])}, but only 0 and 1 '
                            "are used; fix the record")
    if "masked" in marks:
        marks["masked"] = not marks["masked"]
    if len(set(marks.values())) > 1:
        raise BadRecord(f"{place}: the {' and the '.join(marks)} of a message contradict each other; leave "
                        "one of them out")
    return marks


class _Messages:
    """Messages of one record, and its keys that were not used."""

    def __init__(self, place):
        self.place, self.messages, self.learned, self.ignored = place, [], [], set()

    def add(self, role, learned, **more):
        self.messages.append({"role": role, **more})
        self.learned.append(learned)

    def add_all(self, turns, name, learned=True):
        if turns == []:
            raise BadRecord(f'{self.place}: "{name}" has no messages; remove the record')
        if not isinstance(turns, list):
            raise BadRecord(f'{self.place}: "{name}" must be a list of messages; fix the record')
        for turn in turns:
            self._add_turn(turn, name, learned)

    def _add_turn(self, turn, name, learned):
        place = self.place
        if not isinstance(turn, dict):
            raise BadRecord(f'{place}: a message of "{name}" must be an object with a "role" or "from", not '
                            f"{json.dumps(turn, ensure_ascii=False)[:60]}; fix the record")
        keys = ("from", "value") if "from" in turn else ("role", "content")
        speaker = turn.get(keys[0])
        role = ROLES.get(speaker) if isinstance(speaker, str) else None
        if role is None:
            raise BadRecord(f'{place}: a message of "{name}" needs a "role" or "from" (system, developer, '
                            'user or '
                            f"human, assistant or gpt, tool), not {json.dumps(speaker)}; fix the record")
        _check_refused(turn, place, MEDIA, f"{name}[].")
        calls = _calls(turn, place)
        content = turn.get(keys[1])
        if role == "call":  # LLaMA-Factory's: the text is the call, or a list of them
            made = _decoded(content, place, 'a "function_call"')
            calls = [_call(call, place) for call in (made if isinstance(made, list) else [made])]
            role, content = "assistant", ""
        more = {key: turn[key] for key in MESSAGE_KEYS if not _is_empty(turn.get(key))}
        if calls:
            more["tool_calls"] = calls
        marks = _marks(turn, place)
        counts = role == "assistant" and (None if False in marks.values() else learned)
        if content is not None or not calls:
            more["content"] = _content(content, place)
        self.add(role, counts, **more)
        used = {*keys, *MESSAGE_KEYS, *MARKS, "tool_calls", "function_call"}
        self.ignored |= {f"{name}[].{key}" for key in turn if key not in used and not _is_empty(turn[key])}
        if not counts:
            self.ignored |= {f"{name}[].{key} (asks to learn what is no answer)"
                             for key, mark in marks.items() if mark}

    def add_system(self, text):
        text = _string(text, self.place, '"system"')
        if any(message["role"] == "system" for message in self.messages):
            raise BadRecord(f'{self.place}: has a "system" beside a system message; fix the record')
        self.messages.insert(0, {"role": "system", "content": text})
        self.learned.insert(0, False)

    def chat(self, record):
        """The conversation, with what stands beside its messages."""
        if not _is_empty(record.get("system")):
            self.add_system(record["system"])
        tools = None
        for key in ("tools", "functions"):
            if not _is_empty(record.get(key)):
                tools = _decoded(record[key], self.place, f'"{key}"')
        if tools is not None and (not isinstance(tools, list) or not all(isinstance(t, dict) for t in tools)):
            raise BadRecord(f'{self.place}: "tools" must be a list of objects; fix the record')
        if tools is not None:
            tools = [tool if "function" in tool else {"type": "function", "function": tool} for tool in tools]
        options = record.get("chat_template_kwargs")
        if not _is_empty(options) and not isinstance(options, dict):
            raise BadRecord(f'{self.place}: "chat_template_kwargs" must be an object; fix the record')
        return Chat(self.messages, self.learned, tools or None, options or {})


# ---- Records

def _refuse_rating(place, key):
    raise InputError(f'{place}: has "{key}", which says whether the answer is good (KTO\'s form); that is '
                     "not trained: keep the records of good ones, without the key")


def _refuse_turns(record, place, keys, beside, remedy):
    """Parts of a conversation beside a form that has no place for them."""
    for key in keys:
        if not _is_empty(record.get(key)):
            raise InputError(f'{place}: has "{key}" beside {beside}; {remedy}')


def _check_answer(record, place, asked, answer, example):
    """The answer to `asked` is there."""
    if record.get(answer) is not None:
        return
    if answer in record:
        raise BadRecord(f'{place}: "{answer}" has no value; give it one, or remove the record')
    raise BadRecord(f'{place}: has "{asked}" and no "{answer}"; say which of its keys that is, as '
                    f"--fields {answer}={example}, or remove the record")


def _check_label(record, place):
    """A conversation's label may also be its class, which is not refused."""
    if str(record.get("label")).lower() in ("true", "false"):
        _refuse_rating(place, "label")


def _spoken(record, place, key):
    _check_label(record, place)
    _refuse_turns(record, place, ["history"], f'"{key}"', "put its questions and answers there as messages")
    made = _Messages(place)
    made.add_all(_decoded(record[key], place, f'"{key}"'), key)  # a table's is JSON
    return made.chat(record), {key, *CHAT_KEYS}, made.ignored


def _alpaca(record, place):
    _check_label(record, place)
    used = {"instruction", "input", "output", "history", *CHAT_KEYS}
    given = record.get("input")
    names = '"instruction", "input" and "output"'
    _check_answer(record, place, "instruction", "output", "response")
    instruction, output = (_string(record.get(key), place, names) for key in ("instruction", "output"))
    asked = "" if given is None else _string(given, place, names)
    if all(part in str(record.get("text")) for part in (instruction, asked, output)):
        used.add("text")  # tatsu-lab's: all of it in one
    if all(_is_empty(record.get(key)) for key in ("history", *CHAT_KEYS)):
        prompt = (WITH_INPUT if asked else WITHOUT_INPUT).format(instruction=instruction, input=asked)
        return Completion(prompt, output, apart=False), used, ()
    # LLaMA-Factory's: with any of these the record is the last turn of a conversation.
    made, history = _Messages(place), record.get("history")
    if not _is_empty(history):
        history = _decoded(history, place, '"history"')
    if not _is_empty(history) and not isinstance(history, list):
        raise BadRecord(f'{place}: "history" must be a list of [question, answer]; fix the record')
    for pair in history or []:
        if not isinstance(pair, list) or len(pair) != 2:
            raise BadRecord(f'{place}: "history" must be a list of [question, answer]; fix the record')
        made.add("user", False, content=_string(pair[0], place, '"history"'))
        made.add("assistant", True, content=_string(pair[1], place, '"history"'))
    made.add("user", False, content=f"{instruction}\n{asked}" if asked else instruction)
    made.add("assistant", True, content=output)
    return made.chat(record), used, ()


def _text(record, place):
    _refuse_turns(record, place, ["system", "history"], '"text"', "remove the key, or put what it says into "
                                                                  'the text')
    return Text(_string(record["text"], place, '"text"')), {"text"}, ()


def _completion(record, place):
    used = {"prompt", "completion"}
    if record.get("label") is not None:
        _refuse_rating(place, "label")
    if isinstance(record["prompt"], str):
        _refuse_turns(record, place, ["system", "tools", "history"], '"prompt" and "completion", which are '
                      "joined without a chat template", "make it a conversation with --fields "
                      "instruction=prompt,output=completion")
    else:
        _refuse_turns(record, place, ["history"], '"prompt" and "completion"',
                      "put its questions and answers into the prompt as messages")
    if isinstance(record["prompt"], list):  # TRL's: the completion's messages are learned
        made = _Messages(place)
        made.add_all(record["prompt"], "prompt", learned=False)
        made.add_all(record.get("completion"), "completion")
        return made.chat(record), {*used, *CHAT_KEYS}, made.ignored
    names = '"prompt" and "completion"'
    _check_answer(record, place, "prompt", "completion", "answer")
    prompt, completion = (_string(record.get(key), place, names) for key in ("prompt", "completion"))
    return Completion(prompt, completion, apart=True), used, ()


def _form(record, place, given):
    """`given`: the record's own keys, for messages."""
    if not _is_empty(record.get("kto_tag")):
        _refuse_rating(place, "kto_tag")
    _check_refused(record, place, REFUSED)
    for key in ("messages", "conversations"):
        if record.get(key) is not None:
            return _spoken(record, place, key)
    has_output = record.get("output") is not None or record.get("text") is None
    if record.get("instruction") is not None and has_output:
        return _alpaca(record, place)
    if record.get("text") is not None:
        return _text(record, place)
    if record.get("prompt") is not None:
        return _completion(record, place)
    raise BadRecord(f"{place}: {_formless(record, given)}")


def _quoted(keys):
    return ", ".join(json.dumps(key, ensure_ascii=False) for key in keys)


def _formless(record, given):
    """What is wrong with a record of no form, and what to do."""
    nulls = [json.dumps(key) for key in FORMS if key in record]
    if len(nulls) == 1:
        return f"{nulls[0]} has no value; give it one, or remove the record"
    if nulls:
        return f"{' and '.join(nulls)} have no value; give them one, or remove the record"
    what = f'the record has {_quoted(given[:8]) or "no keys"}, and neither "text", "messages", ' \
           '"conversations", "instruction" with "output" nor "prompt" with "completion"; '
    for key, value in record.items():
        first = value[0] if isinstance(value, list) and value else None
        if isinstance(first, dict) and ("role" in first or "from" in first):
            return f"{what}give --fields messages={key}"
    return f"{what}say which of its keys they are, as --fields prompt=question,completion=answer"


def _unlearned(record, place):
    """Whether the record has a weight, and that is 0."""
    value = record.get("weight")
    if _is_empty(value):
        return False
    weight = _weight(value)
    if weight is None:
        raise InputError(f'{place}: has the "weight" {json.dumps(value, default=str)}, but only 0 (the '
                         "record is not learned) and 1 are used; change it, or remove the key")
    return not weight


def read(record, place, fields):
    """(Text, Completion, Chat or Unlearned; the set of keys that are not used) of one record. `fields`:
    {name: the key that holds it}, also where a record has a key of that name. BadRecord if this record cannot
    be used, InputError if its form cannot."""
    if not isinstance(record, dict):
        is_list = isinstance(record, list) and record and isinstance(record[0], dict)
        raise BadRecord(f"{place}: is a list of records; name the file .json" if is_list else
                        f"{place}: a record must be an object {{..}}; fix it")
    given = list(record)
    renamed = {key: name for name, key in fields.items() if key in record}
    others = {f"{key} (of the record)" if key in fields else key: value for key, value in record.items()
              if key not in renamed}
    record = {**others, **{name: record[key] for key, name in renamed.items()}}
    try:
        unlearned = _unlearned(record, place)
        content, used, ignored = _form(record, place, given)
    except BadRecord as error:
        missing = [f"{name}={key}" for name, key in fields.items() if name not in record]
        if not missing:
            raise
        raise BadRecord(f"{error}; it has no key of --fields {','.join(missing)}") from None
    used |= {"weight"}
    unused = {key for key, value in record.items() if key not in used and not _is_empty(value)}
    return Unlearned() if unlearned else content, unused | set(ignored)
