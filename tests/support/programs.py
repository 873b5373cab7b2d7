"""What tests of whole programs share: running them, their messages and logs, and a small model's folder."""

import atexit
import contextlib
import json
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time

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


def folder(name, memory=False):
    """A new folder, removed when the test ends. `memory`: on no disk. On one that others write to, a file may
    take seconds to become durable: a rank that makes no progress for the short limits of tests."""
    place = "/dev/shm" if memory and os.access("/dev/shm", os.W_OK) else None
    path = pathlib.Path(tempfile.mkdtemp(prefix=f"fsdp_{name}_", dir=place))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def command(program, *arguments, ranks=None):
    """The words that start an executable, under mpirun if `ranks` is given."""
    launcher = ["mpirun", "-np", str(ranks)] if ranks else []
    return [*launcher, str(BIN / program), *map(str, arguments)]


def run(program, *arguments, ranks=None, status=None, timeout=240, **options):
    """The finished process of an executable, with its output; it must end with `status` if that is given."""
    words = command(program, *arguments, ranks=ranks)
    process = subprocess.run(words, capture_output=True, text=True, timeout=timeout, **options)
    assert status in (None, process.returncode), (words, process.returncode, process.stdout, process.stderr)
    return process


def start(program, *arguments, ranks=None, **options):
    """A process that runs, with pipes for its output."""
    words = command(program, *arguments, ranks=ranks)
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def finish(process, timeout=240):
    """A process of start, when it has ended, as run has it."""
    out, err = process.communicate(timeout=timeout)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def errors(process, program):
    """The program's error messages on standard error (mpirun adds lines of its own)."""
    return [line for line in process.stderr.splitlines() if line.startswith(f"{program}: error: ")]


def check_message(process, program, parts):
    """Returns the one error message, which must have all of `parts`."""
    messages = errors(process, program)
    wrong = len(messages) != 1 or [part for part in parts if part not in messages[0]]
    assert not wrong, (process.args, wrong, process.stderr)
    return messages[0]


def refused(program, *arguments, status=2, parts=(), **options):
    """The one message, with all of `parts`, of an executable that must end with `status`."""
    return check_message(run(program, *arguments, status=status, **options), program, parts)


def warnings(process, program="fsdp_train"):
    """But for that of options that a test gives in the place of those that its runs share."""
    return [line for line in process.stderr.splitlines()
            if line.startswith(f"{program}: warning: ") and " replaces --" not in line]  # fmt: skip


def log_of(path):
    """The lines of a log."""
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


def losses(path):
    """Of a log that has every step once."""
    lines = log_of(path)
    assert [line["global_step"] for line in lines] == list(range(1, len(lines) + 1)), lines
    return [line["loss"] for line in lines]


def close(found, expected):
    """Whether losses are those of another mesh: fp32 sums in another order."""
    return len(found) == len(expected) and all(abs(a - b) <= 2e-5 * b for a, b in zip(found, expected))


def batch_parts(ranks, arguments):
    """The parts of the batch: the ranks that differ in more than tensor and context."""
    parts = ranks or 1
    if "--mesh" in arguments:
        for axis in arguments[arguments.index("--mesh") + 1].split(","):
            parts //= int(axis.split("=")[1]) if axis.startswith(("tensor=", "context=")) else 1
    return parts


def children(pid):
    """The processes that a process has started."""
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, task.read_text().split())
    return found


def descendants(pid):
    return [below for child in children(pid) for below in (child, *descendants(child))]


def run_tests(tests):
    """Calls them one after the other."""
    for test in tests:
        began = time.monotonic()
        test()
        print(f"{test.__name__}: passed in {time.monotonic() - began:.1f} s", flush=True)


def resident(program, *arguments):
    """Bytes that a program of one process had resident at most. It is started by one that is small itself."""
    watch = ("import resource, subprocess, sys; "
             "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
             "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
    words = [sys.executable, "-c", watch, *command(program, *arguments)]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout) * 1024


def resident_alone():
    """Of a program that does nothing: itself and its libraries, whose pages are in memory as the machine's
    cache has them."""
    return resident("fsdp_train", "--version")


def python_with(*packages, found=()):
    """A Python that imports `packages` and has those of `found`: FSDP_TORCH_PYTHON, the environment of
    bench/compare_torch.py, /opt/venvs/torch, or this one. Where none has them, the test ends as skipped."""
    probe = f"import {', '.join(packages)}, importlib.util as u; assert all(map(u.find_spec, {[*found]}))"
    places = [os.environ.get("FSDP_TORCH_PYTHON"), pathlib.Path.home() / ".cache/fsdp/venv/bin/python",
              "/opt/venvs/torch/bin/python", sys.executable]
    for python in places:
        if python and pathlib.Path(python).exists():
            if subprocess.run([str(python), "-c", probe], capture_output=True).returncode == 0:
                return str(python)
    print(f"skipped: no Python here has {', '.join([*packages, *found])}")
    sys.exit(77)


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


def floats(tensor):
    """The shape and numbers of an fp32 tensor of read_safetensors."""
    dtype, shape, data = tensor
    assert dtype == "F32", dtype
    return shape, struct.unpack(f"<{len(data) // 4}f", data)
