"""The folder of a model: whether fsdp_train trains it, and its tokenizer. The words of a refusal are those of
fsdp_train (models/model.c, launcher/train/train_files.c), and the families those of models/families.def."""
import json
import os
import re

from common import json_file
from common.errors import InputError
from prepare import vocab_merges

FAMILIES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "models", "families.def")


def families():
    """{model_type: architecture}, as fsdp_train knows them."""
    with open(FAMILIES, encoding="utf-8") as file:
        return dict(re.findall(r'^FAMILY\(\w+, "([^"]+)", "([^"]+)"\)$', file.read(), re.M))


def _config(folder):
    """config.json, or None if there is none: a folder with only a tokenizer is enough."""
    return json_file.read_object(os.path.join(folder, "config.json"), None, "a model's config.json is one")


def _shown(value):
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text[:70] + ("..." if len(text) > 70 else "")


def check(folder):
    """Refuses a folder that fsdp_train would refuse for its family."""
    if not os.path.isdir(folder):
        hub = re.fullmatch(r"[\w-][\w.-]*/([\w-][\w.-]*)", folder, re.ASCII)
        name, into = (folder, hub[1]) if hub else ("ORG/NAME", "DIR")
        raise InputError(f"{folder}: there is no such folder; --model takes a Hugging Face folder, as made "
                         f"by hf download {name} --local-dir {into}")
    config = _config(folder)
    if config is None:
        return
    path = os.path.join(folder, "config.json")
    kind, names = config.get("model_type"), config.get("architectures")
    if kind is None and names is None:
        return
    known, listed = families(), names if isinstance(names, list) else ()
    if kind is None:
        kind = next((each for each in known if known[each] in listed), None)
    if not isinstance(kind, str) or kind not in known:
        key, values = ("architectures", known.values()) if kind is None else ("model_type", known)
        these = ", ".join(f'"{value}"' for value in values)
        raise InputError(f'{path}: "{key}" is {_shown(config[key])}, but only these can be trained: {these}; '
                         "take the folder of such a model")
    if names is not None and known[kind] not in listed:
        raise InputError(f'{path}: "architectures" is {_shown(names)}, but of "{kind}" only '
                         f'["{known[kind]}"] can be trained; take the folder of such a model')


def _has_weights(folder):
    """As runtime/checkpoint/safetensors.c: also weights in a form that is not read."""
    return any(name.endswith((".safetensors", ".safetensors.index.json")) or
               name.startswith("pytorch_model") and ".bin" in name for name in os.listdir(folder))


def tokenizer_of(folder):
    """The path of the folder's tokenizer.json, which vocab_merges.py may have to make; None if bytes are the
    model's tokens."""
    path = os.path.join(folder, "tokenizer.json")
    if os.path.exists(path) or vocab_merges.can_be_read(folder):
        return path
    for names in (["tokenizer.model"], vocab_merges.FILES):
        if all(os.path.exists(os.path.join(folder, name)) for name in names):
            raise InputError(f"{folder}: has a {' and a '.join(names)} only; load the tokenizer with "
                             "Transformers and save it again, which writes tokenizer.json")
    config = _config(folder)
    if config is None and os.path.exists(os.path.join(folder, "adapter_config.json")):
        raise InputError(f"{folder}: holds an adapter and no tokenizer; give its base model's folder")
    if config is None:
        raise InputError(f"{folder}: has neither tokenizer.json nor config.json; give a model's folder")
    what = "weights" if _has_weights(folder) else f"a vocabulary of {_shown(config.get('vocab_size'))}"
    if what == "a vocabulary of 256":
        return None
    raise InputError(f"the model {folder} has {what} and no tokenizer.json; if its download is not complete, "
                     "add that file; else name one with --tokenizer FILE, or use --tokenizer bytes")
