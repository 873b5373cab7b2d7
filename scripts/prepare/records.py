"""Records of .jsonl, .json and tables as documents, in the one form that every tokenizer takes.

A document is a list of parts: (text, counts), where `counts` says whether the loss counts the text's tokens,
or (None, counts) for the token that ends a text. runtime/data/json_text.c reads the plainest of the same
records for models without a tokenizer.
"""
import json

from prepare import chats, forms
from prepare.forms import BadRecord


def _refuse_constant(name):
    raise ValueError(f"{name} is not JSON")


DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


class Document:
    """`whole` says that the parts hold the beginning and the end of the text already (a chat template's), and
    `how` in which way what is learned of it was found (chats.py); `apart` that no token may lie in two parts;
    `hides` that characters stand for names of special tokens."""

    def __init__(self, parts, how=None, apart=False, hides=False):
        self.parts, self.how, self.apart, self.hides = parts, how, apart, hides

    def is_glued(self):
        """Whether nothing stands between a prompt and its completion."""
        prompt, completion = self.parts[0][0], self.parts[1][0]
        return bool(prompt and completion) and not (prompt[-1].isspace() or completion[0].isspace())

    @property
    def whole(self):
        return self.how is not None


def _hide(message, hide, place):
    """Whether something of the message is hidden now."""
    content = message.get("content", "")
    shown = content if isinstance(content, list) else [content]
    hidden = [hide(text, place) for text in shown]
    if hidden == shown:
        return False
    message["content"] = hidden if isinstance(content, list) else hidden[0]
    return True


def _chat(chat, place, options):
    templates = options.encoder.templates
    template = templates.get("tool_use" if chat.tools and "tool_use" in templates else "default")
    if template is None:
        raise chats.missing(place)
    hides = False
    for message in chat.messages if options.hide else ():
        hides |= _hide(message, options.hide, place)
    if options.mask_prompt:
        how, samples = template.samples(chat, place)
    else:
        how, samples = chats.ALL, [template.whole(chat, place)]
    return [Document(parts, how=how, hides=hides) for parts in samples], template.unused(chat)


def parse(record, place, options):
    """(documents, keys that are not used) of one record; no documents if it has no text, None if its weight
    is 0. options: mask_prompt, fields, encoder, hide. BadRecord and InputError as forms.read has them."""
    content, ignored = forms.read(record, place, options.fields)
    if isinstance(content, forms.Chat):
        documents, unused = _chat(content, place, options)
        ignored = ignored | {f"{key} (the chat template has no place for it)" for key in unused}
    elif isinstance(content, forms.Unlearned):
        documents = None
    elif isinstance(content, forms.Text):
        documents = [Document([(content.text, True), (None, True)])] if content.text else []
    else:
        parts = [(content.prompt, not options.mask_prompt), (content.completion, True), (None, True)]
        documents = [Document(parts, apart=content.apart)]
    return documents, ignored


def decode(text, place):
    """One JSON value that is all of `text`."""
    try:
        value, end = DECODER.raw_decode(text)
    except RecursionError:
        raise BadRecord(f"{place}: not valid JSON (nested too deeply); fix it") from None
    except ValueError as error:
        raise BadRecord(f"{place}: not valid JSON ({getattr(error, 'msg', error)}); fix it") from None
    if text[end:].strip(" \t\r\n"):
        raise BadRecord(f"{place}: a line holds one record, but something follows it; break the line there")
    return value
