"""A byte-level BPE tokenizer in its older form, as GPT-2 had it: vocab.json and merges.txt become
tokenizer.json."""

import contextlib
import os

from common import json_file
from common.errors import InputError

FILES = ("vocab.json", "merges.txt")
CLASSES = ("GPT2Tokenizer", "GPT2TokenizerFast")  # as tokenizer_config.json names it
MODEL_TYPE = "gpt2"  # as config.json does, where that says nothing
END_OF_TEXT = "<|endoftext|>"


def _read(folder, name):
    return json_file.read_object(os.path.join(folder, name), {}, "copy the file again")


def can_be_read(folder):
    """Whether the folder has such files, of a tokenizer that cuts text into words as GPT-2's does: others
    have files of these names too."""
    if not all(os.path.exists(os.path.join(folder, name)) for name in FILES):
        return False
    kind = _read(folder, "tokenizer_config.json").get("tokenizer_class")
    return kind in CLASSES if kind else _read(folder, "config.json").get("model_type") == MODEL_TYPE


def _special_tokens(folder, config):
    """The tokens that are not text, by their names."""
    beside = _read(folder, "special_tokens_map.json")
    found = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        token = config.get(name) or beside.get(name) or END_OF_TEXT
        found[name] = token.get("content") if isinstance(token, dict) else token
    return found


def make(folder):
    """Writes the folder's tokenizer.json and returns its path."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
    config = _read(folder, "tokenizer_config.json")
    vocabulary, merges = (os.path.join(folder, name) for name in FILES)
    try:
        tokenizer = Tokenizer(models.BPE.from_file(vocabulary, merges))
    except Exception as error:  # the package raises nothing narrower
        raise InputError(f"{vocabulary}, {merges}: are not a readable tokenizer ({error})") from None
    prefix = bool(config.get("add_prefix_space"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    known, added = tokenizer.get_vocab(), _read(folder, "added_tokens.json")
    named = _special_tokens(folder, config)
    special = sorted({token for token in (END_OF_TEXT, *named.values()) if token in known}, key=known.get)
    special += sorted(added, key=added.get)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    for token, number in added.items():
        if tokenizer.token_to_id(token) != number:
            raise InputError(f'{os.path.join(folder, "added_tokens.json")}: "{token}" is number {number}, '
                             f"but follows as {tokenizer.token_to_id(token)} on vocab.json; copy the folder "
                             "again")
    begin = named["bos_token"]
    if config.get("add_bos_token") and tokenizer.token_to_id(begin) is not None:
        first = processors.TemplateProcessing(single=[begin, "$A"], pair=[begin, "$A", begin, "$B"],
                                              special_tokens=[(begin, tokenizer.token_to_id(begin))])
        tokenizer.post_processor = processors.Sequence([tokenizer.post_processor, first])
    path = os.path.join(folder, "tokenizer.json")
    partial = f"{path}.partial-{os.getpid()}"
    try:
        with open(partial, "w", encoding="utf-8") as file:
            file.write(tokenizer.to_str(pretty=True))
        os.replace(partial, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); copy the model's folder to where it "
                         "can be") from None
    finally:  # also of one that a signal ends
        with contextlib.suppress(OSError):
            os.unlink(partial)
    return path
