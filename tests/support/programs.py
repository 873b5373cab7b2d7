"""What tests of whole programs share: running them, their messages, and a small model's folder."""

import json
import os
import pathlib
import random
import struct
import subprocess
import sys

ROOT = pathlib.Path(os.environ.get("FSDP_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
BIN = pathlib.Path(os.environ.get("FSDP_BIN_DIR", "build/bin")).resolve()
WITH_MPI = os.environ.get("FSDP_WITH_MPI", "ON").upper() in ("ON", "1", "TRUE")
ALL = os.environ.get("FSDP_TEST_ALL") == "1"
SLOW = bool(os.environ.get("FSDP_SANITIZE"))  # a sanitizer's build, in which nothing is timed
PART = 1 if ALL or SLOW else max(1, int(os.environ.get("FSDP_TEST_PART", 1)))
# What Open MPI requires of root and of more ranks than cores (ctest sets it too).
MPI_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
}

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 257,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "initializer_range": 0.02,
}


def draws(plain, sanitized, everything=None):
    """How many cases to run: `everything` (by default `plain`) with FSDP_TEST_ALL=1, `sanitized` in a
    sanitizer's build (tests/support/draws.h says why)."""
    if ALL:
        return plain if everything is None else everything
    return sanitized if SLOW else max(plain // PART, min(plain, sanitized))


def size(plain, sanitized):
    """A size that a sanitizer's build has smaller."""
    return sanitized if SLOW and not ALL else plain


def part(cases, first=0):
    """Every PARTth of a long list of cases, from `first` on; all if PART is 1."""
    return list(cases)[first % PART :: PART]


def stride(sanitized):
    """How far to go in a list of cases."""
    return sanitized if SLOW and not ALL else 1


def run(program, *arguments, ranks=None, timeout=240, **options):
    """Runs an executable, under mpirun if `ranks` is given; returns the finished process with its output."""
    command = [str(BIN / program), *map(str, arguments)]
    if ranks:
        command = ["mpirun", "-np", str(ranks), *command]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, **options)


def resident_alone():
    """Bytes resident at most in a program that does nothing: itself and its libraries, whose pages are in
    memory as the machine's cache has them."""
    watch = ("import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True); "
             "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
    command = [sys.executable, "-c", watch, str(BIN / "fsdp_train"), "--version"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1]) * 1024


def errors(process, program):
    """The program's error messages on standard error (mpirun adds lines of its own)."""
    return [line for line in process.stderr.splitlines() if line.startswith(f"{program}: error: ")]


def shapes(config):
    """Every parameter's name and shape."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head = hidden // config["num_attention_heads"]
    keys = head * config["num_key_value_heads"]
    result = {"model.embed_tokens.weight": [config["vocab_size"], hidden]}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        result |= {
            layer + "self_attn.q_proj.weight": [hidden, hidden],
            layer + "self_attn.k_proj.weight": [keys, hidden],
            layer + "self_attn.v_proj.weight": [keys, hidden],
            layer + "self_attn.o_proj.weight": [hidden, hidden],
            layer + "mlp.gate_proj.weight": [inner, hidden],
            layer + "mlp.up_proj.weight": [inner, hidden],
            layer + "mlp.down_proj.weight": [hidden, inner],
            layer + "input_layernorm.weight": [hidden],
            layer + "post_attention_layernorm.weight": [hidden],
        }
    return result | {"model.norm.weight": [hidden], "lm_head.weight": [config["vocab_size"], hidden]}


def numel(shape):
    product = 1
    for size in shape:
        product *= size
    return product


def header_of(config):
    """A safetensors header, as an object to spoil, and the number of data bytes."""
    header, offset = {}, 0
    for name, shape in shapes(config).items():
        end = offset + 4 * numel(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    return header, offset


def write_safetensors(path, header, data_bytes, header_length=None, seed=1):
    text = json.dumps(header).encode()
    numbers = random.Random(seed)
    floats = struct.pack(f"<{data_bytes // 4}f", *(numbers.gauss(0, 0.02) for _ in range(data_bytes // 4)))
    length = len(text) if header_length is None else header_length
    pathlib.Path(path).write_bytes(struct.pack("<Q", length) + text + floats)


def make_model(folder, config=None, weights=True):
    """A Hugging Face folder with random weights."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = CONFIG if config is None else config
    (folder / "config.json").write_text(json.dumps(config))
    if weights:
        write_safetensors(folder / "model.safetensors", *header_of(config))
    return folder


def read_safetensors(path):
    """Every tensor's dtype, shape and bytes, by name."""
    data = pathlib.Path(path).read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    result = {}
    for name, info in header.items():
        begin, end = info["data_offsets"]
        result[name] = (info["dtype"], info["shape"], data[8 + length + begin : 8 + length + end])
    return result
