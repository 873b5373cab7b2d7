"""The folder of a model: whether fsdp_train trains it, and its tokenizer. The words of a refusal are those of
fsdp_train (runtime/checkpoint/config_json.c, launcher/train/train_files.c)."""
import json
import os

from common.errors import InputError


def _config(folder):
    """config.json, or None where there is none: a folder with a tokenizer alone will do."""
    path = os.path.join(folder, "config.json")
    if not os.path.exists(path):
        return None
    try:
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None
    if not isinstance(config, dict):
        raise InputError(f"{path}: not a JSON object; a model's config.json is one")
    return config


def _shown(value):
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text[:70] + ("..." if len(text) > 70 else "")


def check(folder):
    """Refuses a folder that fsdp_train would refuse for its family."""
    if not os.path.isdir(folder):
        raise InputError(f"{folder}: there is no such folder; --model takes a Hugging Face folder")
    config = _config(folder)
    if config is None:
        return
    path = os.path.join(folder, "config.json")
    kind, names = config.get("model_type"), config.get("architectures")
    if kind is not None and kind != "llama":
        raise InputError(f'{path}: "model_type" is {_shown(kind)}, but only "llama" models can be trained; '
                         "take a Llama model's folder")
    if names is not None and "LlamaForCausalLM" not in (names if isinstance(names, list) else ()):
        raise InputError(f'{path}: "architectures" is {_shown(names)}, but only ["LlamaForCausalLM"] can be '
                         "trained; take a Llama model's folder")


def _has_weights(folder):
    """As runtime/checkpoint/safetensors.c: also weights in a form that is not read."""
    return any(name.endswith((".safetensors", ".safetensors.index.json")) or
               name.startswith("pytorch_model") and ".bin" in name for name in os.listdir(folder))


def tokenizer_of(folder):
    """The path of the folder's tokenizer.json; None where bytes are the model's tokens."""
    path = os.path.join(folder, "tokenizer.json")
    if os.path.exists(path):
        return path
    if os.path.exists(os.path.join(folder, "tokenizer.model")):
        raise InputError(f"{folder}: has a tokenizer.model only; load the tokenizer with Transformers and "
                         "save it again, which writes tokenizer.json")
    config = _config(folder)
    if config is None:
        raise InputError(f"{folder}: has neither tokenizer.json nor config.json; give a model's folder")
    what = "weights" if _has_weights(folder) else f"a vocabulary of {_shown(config.get('vocab_size'))}"
    if what == "a vocabulary of 256":
        return None
    raise InputError(f"the model {folder} has {what} and no tokenizer.json; if its download is not complete, "
                     "add that file; else name one with --tokenizer FILE, or say --tokenizer bytes")
