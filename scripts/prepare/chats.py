"""Conversations as text by a chat template, and which of the text is learned."""
import json
import re

from common.errors import InputError, OptionError
from prepare.forms import BadRecord

# The form of conversations that ChatML's own page defines, for models without one (--chat-template chatml).
CHATML = ("{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + "
          "'<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
          "{% endif %}")
BEGIN, END = "\ufdd0", "\ufdd1"  # around what a template marks as the assistant's; never characters of a text
HIDDEN = 0xF0000  # the first of the private characters that stand for the special tokens' names in a text


def _environment():
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

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                extensions=[Generation, "jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = lambda value, **how: json.dumps(value, ensure_ascii=False, **how)
    environment.globals["raise_exception"] = refuse
    return environment


class Template:
    """A chat template. `special`: the variables that name the tokenizer's special tokens."""

    def __init__(self, source, name, special):
        from jinja2 import meta
        from jinja2.exceptions import TemplateError
        environment = _environment()
        try:
            self.template = environment.from_string(source)
            self.variables = meta.find_undeclared_variables(environment.parse(source))
        except TemplateError as error:
            raise InputError(f"{name}: its chat template cannot be read ({error}); give another with "
                             "--chat-template FILE") from None
        self.source, self.special = source, special
        self.has_marks = re.search(r"{%-?\s*generation\s*-?%}", source) is not None

    def _render(self, chat, count, answer, place):
        from jinja2.exceptions import TemplateError
        try:
            return self.template.render(messages=chat.messages[:count], tools=chat.tools,
                                        add_generation_prompt=answer, **self.special, **chat.options)
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise BadRecord(f"{place}: the chat template refuses this conversation ({error}); fix it, or "
                            "give another with --chat-template FILE") from None

    def _check(self, chat, place):
        """What the template has no place for must not be lost."""
        if chat.tools and "tools" not in self.variables:
            raise BadRecord(f'{place}: has "tools", which the chat template does not use; give one that does '
                            "with --chat-template FILE")
        for message in chat.messages:
            if "tool_calls" in message and "tool_calls" not in self.source:
                raise BadRecord(f"{place}: calls a tool, which the chat template does not render; give "
                                "one that does with --chat-template FILE")
            if any(mark in message["content"] for mark in (BEGIN, END)):
                raise BadRecord(f"{place}: has a character U+FDD0 or U+FDD1, which no text may have; "
                                "remove it")

    def whole(self, chat, place):
        """The conversation's text."""
        self._check(chat, place)
        text = self._render(chat, len(chat.messages), False, place)
        bare = text.replace(BEGIN, "").replace(END, "")
        for message in chat.messages:
            if message["role"] in ("system", "user") and message["content"].strip() not in bare:
                raise BadRecord(f"{place}: the chat template leaves out what the {message['role']} says; "
                                "give one that does not with --chat-template FILE")
        return text

    def parts(self, chat, place):
        """Samples of the conversation, each a list of (text, whether it is learned)."""
        text = self.whole(chat, place)
        if self.has_marks:
            return [self._marked(text, chat, place)]
        return self._by_prefixes(text, chat, place) or self._turn_by_turn(chat, place)

    def _marked(self, text, chat, place):
        """By the template's own marks."""
        learned = [chat.learned[index] for index in self._turns(chat)]
        pieces = re.split(f"{BEGIN}(.*?){END}", text, flags=re.DOTALL)
        if len(pieces) // 2 != len(learned):
            raise BadRecord(f"{place}: the chat template marks {len(pieces) // 2} turns as the "
                            f"assistant's, but the conversation has {len(learned)}; fix the template")
        flags = [bool(index % 2) and learned[index // 2] for index in range(len(pieces))]
        return [(piece, flag) for piece, flag in zip(pieces, flags) if piece]

    def _turns(self, chat):
        return [index for index, message in enumerate(chat.messages) if message["role"] == "assistant"]

    def _by_prefixes(self, text, chat, place):
        """Rendered turn by turn, so that what each turn of the assistant adds is known; None if the template
        renders a beginning other than as the whole's beginning."""
        parts, done = [], ""
        for index in self._turns(chat):
            prompt = self._render(chat, index, True, place)
            said = self._render(chat, index + 1, False, place)
            if not prompt.startswith(done) or not said.startswith(prompt) or not text.startswith(said):
                return None
            parts += [(prompt[len(done):], False), (said[len(prompt):], chat.learned[index])]
            done = said
        return [parts + [(text[len(done):], False)]]

    def _turn_by_turn(self, chat, place):
        """A sample for each turn, where a template renders earlier turns in another way than the last: it is
        what the model has before it, and says, at that turn."""
        samples = []
        for index in self._turns(chat):
            if not chat.learned[index]:
                continue
            prompt = self._render(chat, index, True, place)
            said = self._render(chat, index + 1, False, place)
            if not said.startswith(prompt):
                raise BadRecord(f"{place}: the chat template does not render an answer behind its prompt, "
                                "so what "
                                "the assistant says is not found; give one with {% generation %} marks by "
                                "--chat-template FILE, or use --mask-prompt off")
            samples.append([(prompt, False), (said[len(prompt):], True)])
        return samples


def template_of(settings, beside, name):
    """The template to use: the one requested, the tokenizer's own, or None."""
    source = settings.chat_template or (beside.chat_template() if beside else None)
    if source is None:
        return None
    special = {f"{which}_token": beside and beside.text_of(which) or "" for which in ("bos", "eos")}
    return Template(source, name if not settings.chat_template else "--chat-template", special)


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
