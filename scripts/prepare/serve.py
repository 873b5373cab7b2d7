"""Encodes and decodes for another program, which asks in JSON, an object a line: fsdp_train and fsdp_eval for
the text that they sample (launcher/train/text_codec.h).

    {"tokenizer": FILE}                       {"end": the token that ends a text, or null}
    {"encode": TEXT}                          {"tokens": [...]}, as a document that begins so
    {"decode": [...], "behind": [...]}        {"text": what the former add to the text of the latter}

An answer may also be {"error": MESSAGE, "status": 2, 3 or 5}.
"""
import json

from common.errors import Failure, OptionError
from prepare.encoders import Pretrained
from prepare.pipeline import Settings


def open_tokenizer(path):
    try:
        return Pretrained(Settings(tokenizer=path))
    except OptionError:  # nothing says what ends a text, so nothing does
        return Pretrained(Settings(tokenizer=path, eos="none"))


def encode(encoder, text):
    begin = [] if encoder.begin is None else [encoder.begin]
    return begin + encoder.tokenizer.encode(text, add_special_tokens=False).ids


def decode(encoder, tokens, behind):
    """The text of the tokens where they stand: alone, a first word may lose its space."""
    before, whole = encoder.text(behind), encoder.text(behind + tokens)
    return whole[len(before):] if whole.startswith(before) else encoder.text(tokens)


def serve(questions, answers):
    encoder = None
    for line in questions:
        asked = json.loads(line)
        try:
            if "tokenizer" in asked:
                encoder = open_tokenizer(asked["tokenizer"])
                answer = {"end": encoder.end}
            elif "encode" in asked:
                answer = {"tokens": encode(encoder, asked["encode"])}
            else:
                answer = {"text": decode(encoder, asked["decode"], asked["behind"])}
        except Failure as failure:
            answer = {"error": str(failure), "status": failure.status}
        print(json.dumps(answer), file=answers, flush=True)
