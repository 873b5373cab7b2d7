"""Conversations as text by a chat template, and which of the text is learned.

What the assistant says is found, in this order: by the template's own {% generation %} marks; by marks put
into a well-known template (known_templates.py); by rendering the conversation up to each answer. A template
that renders an answer in another way once something follows it, as Qwen3's drops reasoning, makes several
samples of a conversation: each is what the model has before it, and says, at that answer.
"""
import contextlib
import dataclasses
import datetime
import json
import re

from common.errors import InputError, OptionError
from prepare import known_templates
from prepare.forms import BadRecord, Chat, text_of

# The form of conversations that ChatML's own page defines, for models without one (--chat-template chatml).
CHATML = ("{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + "
          "'<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
          "{% endif %}")
BEGIN, END = "\ufdd0", "\ufdd1"  # around what a template marks as the assistant's; never characters of a text
HIDDEN = 0xF0000  # the first of the private characters that stand for the special tokens' names in a text
SPECIAL = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")  # tokens whose names templates may use
REASONING = ("reasoning_content", "thinking", "reasoning")  # the same under three names
PROBE = "sphinx"  # a text to look for in what a template renders

# How what is learned was found.
OWN, TURNS, APART, ALL = ("by the chat template's own marks", "by rendering up to each answer",
                          "in a sample for each answer that is rendered differently later",
                          "as a whole (--mask-prompt off)")


def _environment(now):
    from jinja2 import nodes
    from jinja2.exceptions import TemplateError
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %} .. {% endgeneration %}, as Transformers has it."""
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

        def _mark(self, caller):
            return BEGIN + caller() + END

    def refuse(message):
        raise TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                extensions=[Generation, "jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = (now or datetime.datetime.now()).strftime
    return environment


def _bare(text):
    return text.replace(BEGIN, "").replace(END, "")


class Template:
    """A chat template. `special`: the variables that name the tokenizer's special tokens. `now`: the time for
    templates that write the date."""

    def __init__(self, source, name, special, now=None):
        from jinja2 import meta
        from jinja2.exceptions import TemplateError
        environment = _environment(now)
        self.source, self.special, self.has_marks = source, special, False
        marked, self.family = source, None
        if re.search(r"{%-?\s*generation\s*-?%}", source):
            self.has_marks = True
        else:
            marked, self.family = known_templates.marked(source)
        try:
            self.template = environment.from_string(source)
            self.marked = environment.from_string(marked) if marked else None
            self.variables = meta.find_undeclared_variables(environment.parse(source))
        except TemplateError as error:
            raise InputError(f"{name}: its chat template cannot be read ({error}); give another with "
                             "--chat-template FILE") from None
        self._probe()

    @property
    def writes_the_date(self):
        return "strftime_now" in self.source

    # ---- What the template takes

    def _tried(self, *messages):
        """What it renders of messages, or "" if it refuses them."""
        try:
            return _bare(self._text(self.template, messages, None, False, {}))
        except Exception:  # whatever an unknown template does with what it may not be made for
            return ""

    def _probe(self):
        part = {"type": "text", "text": PROBE}
        in_parts = self._tried({"role": "user", "content": [part]})
        self.takes_parts = PROBE in in_parts and "'type'" not in in_parts
        self.takes_text = not self.takes_parts or PROBE in self._tried({"role": "user", "content": PROBE})

        def calling(arguments, **more):
            function = {"name": "f", "arguments": arguments}
            call = {"id": "000000000", "type": "function", "function": function}
            return self._tried({"role": "user", "content": "q"},
                               {"role": "assistant", "tool_calls": [call], **more})

        self.takes_json = f'{{"{PROBE}": 1}}' in calling(f'{{"{PROBE}": 1}}', content="")
        of_object = calling({PROBE: 1}, content="")  # which some print as Python does, or refuse
        self.takes_object = PROBE in of_object and f"'{PROBE}'" not in of_object or not self.takes_json
        # OpenAI's messages that only call a tool have null for a content, which few templates take.
        self.takes_none = PROBE in calling({PROBE: 1} if self.takes_object else f'{{"{PROBE}": 1}}')
        # What it writes behind the last message alone, as Phi-3's does.
        pair = [{"role": "user", "content": self._content("q")},
                {"role": "assistant", "content": self._content(PROBE)}]
        end, twice = self.special.get("eos_token"), self._tried(*pair, *pair)
        self.tail = twice[twice.index(end):] if end and twice.count(end) == 1 else ""
        if self.tail.strip() != end:
            self.tail = ""

    def _content(self, content):
        if isinstance(content, str) and not self.takes_text:
            content = [content]
        if isinstance(content, list):
            parts = [{"type": "text", "text": text} for text in content]
            return parts if self.takes_parts else "".join(content)
        return content

    def _call(self, call):
        """As the record has the arguments, if the template takes them so."""
        arguments = call["function"]["arguments"]
        if isinstance(arguments, str) and not self.takes_json:
            arguments = json.loads(arguments)
        elif not isinstance(arguments, str) and not self.takes_object:
            arguments = json.dumps(arguments, ensure_ascii=False)
        return {**call, "function": {**call["function"], "arguments": arguments}}

    def _messages(self, chat):
        """The conversation's, as the template takes them."""
        messages = []
        for message in chat.messages:
            made = dict(message)
            if "content" in made or not self.takes_none:
                made["content"] = self._content(made.get("content", ""))
            if "tool_calls" in made:
                made["tool_calls"] = [self._call(call) for call in made["tool_calls"]]
            reasoning = next((made[key] for key in REASONING if key in made), None)
            if reasoning is not None:
                made = {"thinking": reasoning, **made, "reasoning_content": reasoning}
            messages.append(made)
        return messages

    # ---- Rendering

    def _text(self, template, messages, tools, answer, options):
        return template.render(messages=list(messages), tools=tools, documents=None,
                               add_generation_prompt=answer, **{**self.special, **options})

    def _renderer(self, chat, place):
        """A function (template, number of messages, whether an answer is to follow) that renders."""
        from jinja2.exceptions import TemplateError
        self._check(chat, place)
        messages = self._messages(chat)

        def render(template, count, answer=False):
            try:
                return self._text(template, messages[:count], chat.tools, answer, chat.options)
            except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
                remedy = f"{self._remedy(messages)}, or give another with --chat-template FILE"
                raise BadRecord(f"{place}: the chat template refuses this conversation ({error}); "
                                f"{remedy}") from None

        return render

    def _remedy(self, messages):
        """For a conversation that the template refuses."""
        if messages[0]["role"] == "system" and self._tried(*messages[1:]):
            return "it takes no system message: put its text at the beginning of the first question"
        if messages[0]["role"] == "assistant":
            return "it begins with an answer: put a question before that"
        return "fix it"

    def unused(self, chat):
        """Keys that the template has no place for, and that change nothing else."""
        keys = {key for message in chat.messages for key in message}
        reasoning = [key for key in REASONING if key in keys]
        if any(name in self.source for name in REASONING):
            reasoning = []
        name = ["name"] if "name" in keys and "name" not in self.source else []
        options = chat.options.keys() - self.variables
        return {*(f"messages[].{key}" for key in [*reasoning, *name]),
                *(f"chat_template_kwargs.{key}" for key in options)}

    def _check(self, chat, place):
        """What the template has no place for must not be lost."""
        if chat.tools and "tools" not in self.variables:
            raise BadRecord(f'{place}: has "tools", which the chat template does not use; give one that does '
                            "with --chat-template FILE")
        for message in chat.messages:
            if any(mark in text_of(message) for mark in (BEGIN, END)):
                raise BadRecord(f"{place}: has a character U+FDD0 or U+FDD1, which no text may have; "
                                "remove it")

    def _check_rendered(self, chat, text, place, rendered):
        """Refuses a conversation of which the template leaves something out. `text` is what it renders of it,
        and `rendered` a function that renders another: what does not stand in the text as it is (JSON of a
        tool's result) and calls, whose names may stand elsewhere too, are looked for by marks behind them."""
        if all(self._stands_in(text, message) for message in chat.messages):
            return
        marked, whose = _with_marks(chat)
        text = rendered(marked)
        lost = next((what for mark, what in whose.items() if mark not in text), None)
        if lost:
            raise BadRecord(f"{place}: the chat template leaves out {lost}; give one that does not with "
                            "--chat-template FILE")

    def _stands_in(self, text, message):
        content = message.get("content", "")
        texts = content if isinstance(content, list) and self.takes_parts else [text_of(message)]
        return "tool_calls" not in message and all(each.strip() in text for each in texts)

    def whole(self, chat, place):
        """The conversation as one sample, all of it learned but for answers of weight 0."""
        def rendered(chat):
            return _bare(self._renderer(chat, place)(self.template, len(chat.messages)))

        text = rendered(chat)
        self._check_rendered(chat, text, place, rendered)
        if None not in chat.learned:
            return [(text, True)]
        left_out = dataclasses.replace(chat, learned=[learned is None for learned in chat.learned])
        with contextlib.suppress(BadRecord):
            _, (sample, *_), _ = self._samples(left_out, place)
            if "".join(piece for piece, _ in sample) == text:
                return [(piece, not flag) for piece, flag in sample]
        raise BadRecord(f"{place}: where an answer of weight 0 lies in what the chat template renders is not "
                        "found; leave out --mask-prompt off, or remove the record")

    def prompt(self, text):
        """A user's message, and what the template writes before the answer to it."""
        from jinja2.exceptions import TemplateError
        try:
            message = {"role": "user", "content": self._content(text)}
            return _bare(self._text(self.template, [message], None, True, {}))
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise InputError(f"the chat template refuses a user's message alone ({error}); give another with "
                             "--chat-template FILE") from None

    def ends(self, pattern):
        """Names of what an answer to a user's message ends with; `pattern` finds those of special tokens."""
        messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": PROBE}]
        try:
            _, samples = self.samples(Chat(messages, [False, True]), "a probe")
        except BadRecord:  # it does not say where answers end
            return []
        return sorted({name for sample in samples for name, _ in ends_of(sample, pattern) if name})

    # ---- Samples

    def samples(self, chat, place):
        """(how what is learned was found, samples of the conversation), a sample being a list of
        (text, whether it is learned)."""
        def rendered(chat):
            """The whole and the samples: an answer may hold something where it is the last alone."""
            _, samples, text = self._samples(chat, place)
            return text + "".join(piece for sample in samples for piece, _ in sample)

        how, samples, text = self._samples(chat, place)
        self._check_rendered(chat, text, place, rendered)
        return how, samples

    def _samples(self, chat, place):
        """The same, and the text of the whole conversation."""
        render = self._renderer(chat, place)
        count = len(chat.messages)
        known = self.family is not None and not chat.options
        at_once = self.has_marks or known and self.family.keeps(chat)
        text = render(self.marked if at_once else self.template, count)
        how = OWN if self.has_marks else TURNS
        if known:
            how = f"by marks put into {self.family.name}'s chat template"
        if not at_once:
            samples = self._by_answers(text, chat, render, place)
            return (how if len(samples) == 1 else APART), samples, text
        regions = _regions(text)
        learned = self._learned(len(regions) // 2, chat, render, place)
        flags = [bool(index % 2) and learned[index // 2] for index in range(len(regions))]
        return how, [[(piece, flag) for piece, flag in zip(regions, flags) if piece]], _bare(text)

    def _learned(self, found, chat, render, place):
        """Whether each of the regions that the template marks is learned. It may mark several of one answer,
        or none of an empty one, so which are of which matters only where they differ in that."""
        answers = _answers(chat)
        wanted = [bool(chat.learned[index]) for index in answers]
        if found == len(wanted):
            return wanted
        if len(set(wanted)) == 1:
            return wanted[:1] * found
        learned = []
        for index in answers:
            before, after = (self._count(render, count) for count in (index, index + 1))
            if before != len(learned) or after < before:
                break
            learned += [bool(chat.learned[index])] * (after - before)
        if len(learned) == found:
            return learned
        raise BadRecord(f"{place}: the chat template marks {found} parts as the assistant's, and which of "
                        f"the {len(wanted)} answers they are of is not found, but not all are to be learned; "
                        "fix the template's {% generation %} marks")

    def _count(self, render, messages):
        """How many parts of the beginning of a conversation are marked."""
        return len(_regions(render(self.marked, messages))) // 2 if messages else 0

    def _by_answers(self, text, chat, render, place):
        """Rendered up to each answer that is learned. Answers lie in one sample as long as each is rendered
        behind the earlier ones as they were."""
        samples, done = [], None
        for index in (index for index in _answers(chat) if chat.learned[index]):
            prompt, said = self._answer(index, chat, render, place)
            done = done and self._behind(done, prompt, samples[-1])
            if done is None:
                samples.append([])
            samples[-1] += [(prompt[len(done or ""):], False), (said, True)]
            done = prompt + said
        if done is None:
            return [[(text, False)]]
        done = self._behind(done, text, samples[-1])
        if done is not None:
            samples[-1].append((text[len(done):], False))
        return samples

    def _behind(self, done, text, sample):
        """What `text` begins with: what is rendered so far, perhaps without what the template writes at the
        end alone, which is then taken off the sample; None if it begins otherwise."""
        if text.startswith(done):
            return done
        shorter = done.removesuffix(self.tail)
        if not text.startswith(shorter):
            return None
        sample[-1] = (sample[-1][0].removesuffix(self.tail), True)
        return shorter

    def _answer(self, index, chat, render, place):
        """(what stands before an answer, the answer)"""
        if self.family is not None and not chat.options:
            *before, said, behind = _regions(render(self.marked, index + 1))
            return "".join(before), said + behind
        prompt = _bare(render(self.template, index, True))
        whole = _bare(render(self.template, index + 1))
        if not whole.startswith(prompt):
            raise BadRecord(f"{place}: the chat template does not render an answer behind its prompt, so "
                            "what the assistant says is not found; give one with {% generation %} marks by "
                            "--chat-template FILE, or use --mask-prompt off")
        return prompt, whole[len(prompt):]


def _with_marks(chat):
    """The conversation with a mark of its own behind each text and each name of a tool that is called, and
    {mark: what it stands behind}."""
    whose, messages = {}, []

    def put(text, what):
        mark = f"mark{len(whose)}."
        whose[mark] = what
        return text + mark

    for message in chat.messages:
        made, says = dict(message), f"what the {message['role']} says"
        content = made.get("content", "")
        if isinstance(content, list):
            made["content"] = [put(text, says) for text in content]
        elif content.strip():
            made["content"] = put(content, says)
        if "tool_calls" in made:
            made["tool_calls"] = [
                call | {"function": call["function"] | {
                    "name": put(call["function"]["name"], "a tool that the assistant calls")}}
                for call in made["tool_calls"]]
        messages.append(made)
    return dataclasses.replace(chat, messages=messages), whose


def _answers(chat):
    return [index for index, message in enumerate(chat.messages) if message["role"] == "assistant"]


def _regions(text):
    """What lies outside and inside of marks, in turn: one more outside than inside."""
    return re.split(f"{BEGIN}(.*?){END}", text, flags=re.DOTALL)


# ---- Ends of answers

ANY_NAME = r"<[^<>\s]+>"  # that looks like a special token's


def ends_of(sample, pattern):
    """Of each answer in a sample's parts: (the name of what ends it or None, whether it is learned).
    `pattern` finds names of special tokens. An end that is not learned stands behind what is."""
    merged = []
    for text, learned in sample:
        if merged and merged[-1][1] == learned:
            merged[-1] = (merged[-1][0] + text, learned)
        elif text:
            merged.append((text, learned))
    ends = []
    for index, (text, learned) in enumerate(merged):
        if not learned:
            continue
        behind = merged[index + 1][0] if index + 1 < len(merged) else ""
        own, other = _last(pattern.pattern, text), pattern.search(behind)
        if own is None and not pattern.match(behind.lstrip()):
            own = _last(ANY_NAME, text)  # text in the form of one, as ChatML's without its tokens
        if own:
            ends.append((own, True))
        elif other:
            ends.append((other.group(), False))
        elif index + 2 >= len(merged):
            ends.append((None, False))
    return ends


def _last(pattern, text):
    """The name that a text ends with, or None."""
    found = re.search(rf"({pattern})\s*\Z", text)
    return found and found[1]


# ---- Which template

def templates_of(settings, beside, name):
    """{"default" and perhaps "tool_use": Template}: those requested, or the tokenizer's own."""
    if settings.chat_template:
        sources, name = {"default": settings.chat_template}, "--chat-template"
    else:
        sources = beside.chat_templates() if beside else {}
    special = {f"{which}_token": beside.text_of(which) for which in SPECIAL if beside}
    special = {key: text for key, text in special.items() if text}
    return {key: Template(source, name, special, settings.now) for key, source in sources.items()}


def missing(place):
    return OptionError(f"{place}: is a conversation, and the tokenizer has no chat template; give the "
                       "model's with --chat-template FILE, or use --chat-template chatml")


def read_source(value):
    """The source of --chat-template, or None for the tokenizer's own."""
    if value == "auto":
        return None
    if value == "chatml":
        return CHATML
    try:
        with open(value, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{value}: cannot be read as a chat template ({error}); give auto, chatml or a "
                         "template's file") from None
