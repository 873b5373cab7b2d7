"""Encodes and decodes for another program, which asks in JSON, an object a line: fsdp_train and fsdp_eval for
the text that they sample (launcher/text/text_codec.h).

    {"tokenizer": FILE or null,               {"ends": [tokens that end a text, or an answer],
     "template": plain, auto, chatml or FILE,  "end_texts": [the same as text that is no token],
     "known": a template's text or null,       "chats": whether auto would find a chat template}
     "folder": the model's or null,
     "first": a text's first token, -1: none, -2: the tokenizer's own,
     "last": the same of its last token}
    {"encode": TEXT}                          {"tokens": [...]}, as a document that begins so, or as a user's
                                              message and what an answer begins with
    {"decode": [...], "behind": [...]}        {"text": what the former add to the text of the latter}

Without a tokenizer tokens are bytes. An answer may also be {"error": MESSAGE, "status": 2, 3 or 5}.
"""
import json

from common.errors import Failure, OptionError
from prepare import chats
from prepare.encoders import Bytes, Pretrained, templates_beside
from prepare.pipeline import Settings


def option_of(token):
    """A token of a question as --bos and --eos have it."""
    return {-2: None, -1: "none"}.get(token, str(token))


def open_tokenizer(asked, template, now):
    """`template`: the source of a chat template in place of the tokenizer's, or None."""
    path, eos = asked["tokenizer"], option_of(asked["last"])
    settings = dict(tokenizer=path, chat_template=template, now=now, bos=option_of(asked["first"]))
    if path is None:
        return Bytes(Settings(eos=eos, **settings))
    try:
        return Pretrained(Settings(eos=eos, **settings))
    except OptionError:  # nothing says what ends a text, so nothing does
        if eos is not None:
            raise
        return Pretrained(Settings(eos="none", **settings))


class Codec:
    """A tokenizer, and the chat template of prompts if they are a user's messages."""

    def __init__(self, asked, now):
        name = asked["template"]
        source = asked["known"] or (templates_beside(asked["folder"]).get("default") if asked["folder"]
                                    else None)
        if name not in ("plain", "auto"):
            source = chats.read_source(name)
        self.encoder = open_tokenizer(asked, source, now)
        template = self.encoder.templates.get("default")
        self.chats, self.template = template is not None, None if name == "plain" else template
        if name == "auto" and not template:
            raise OptionError("--chat-template auto: neither the data, the model's folder nor the tokenizer "
                              "has a chat template; give the model's as --chat-template FILE, or chatml")

    def ends(self):
        """(tokens, texts) that end what is sampled."""
        tokens, texts = list(self.encoder.stops), []
        for name in self.template.ends(self.encoder.ends) if self.template else ():
            token = self.encoder.id_of(name)
            if token is None:
                texts.append(name)
            else:
                tokens.append(token)
        return tokens, texts

    def encode(self, text):
        if self.template:
            text = self.template.prompt(text)
            return list(text.encode()) if self.encoder.is_bytes else whole(self.encoder, text)
        begin = [] if self.encoder.begin is None else [self.encoder.begin]
        return begin + whole(self.encoder, text)


def whole(encoder, text):
    return encoder.tokenizer.encode(text, add_special_tokens=False).ids


def decode(encoder, tokens, behind):
    """The text of the tokens where they stand: alone, a first word may lose its space."""
    before, whole = encoder.text(behind), encoder.text(behind + tokens)
    return whole[len(before):] if whole.startswith(before) else encoder.text(tokens)


def serve(questions, answers, now):
    codec = None
    for line in questions:
        asked = json.loads(line)
        try:
            if "tokenizer" in asked:
                codec = Codec(asked, now)
                tokens, texts = codec.ends()
                answer = {"ends": tokens, "end_texts": texts, "chats": codec.chats}
            elif "encode" in asked:
                answer = {"tokens": codec.encode(asked["encode"])}
            else:
                answer = {"text": decode(codec.encoder, asked["decode"], asked["behind"])}
        except Failure as failure:
            answer = {"error": str(failure), "status": failure.status}
        print(json.dumps(answer), file=answers, flush=True)
