"""Bad inputs, end to end: exact exit status, exactly one message, in it value, place and remedy."""

import concurrent.futures
import json
import os
import pathlib
import struct
import subprocess
import sys

import programs
from programs import CONFIG

work = programs.folder("bad")
failures = []
pending = []
# Most of a case's time is the start of MPI, which waits more than it works.
pool = concurrent.futures.ThreadPoolExecutor(4)


def check(name, process, status, parts, program="fsdp_train"):
    messages = programs.errors(process, program)
    wrong = []
    if process.returncode != status:
        wrong.append(f"exit status {process.returncode}, expected {status}")
    if len(messages) != 1:
        wrong.append(f"{len(messages)} messages, expected 1")
    wrong += [f"no {part!r} in the message" for part in parts if not any(part in m for m in messages)]
    if wrong:
        failures.append(name)
        print(f"FAILED {name}: {'; '.join(wrong)}\n{process.stderr}")


def later(name, run, status, parts, program="fsdp_train"):
    """Runs a case while others run; its verdict comes at the end."""
    pending.append(pool.submit(lambda: check(name, run(), status, parts, program)))


def bad(name, arguments, status, *parts, ranks=None):
    arguments = ["--max-steps", "1", "-s", "64", *arguments]
    later(name, lambda: programs.run("fsdp_train", *arguments, ranks=ranks), status, parts)


def model(name, config=None, spoil=None, **writing):
    """A model folder whose configuration or weights' header `spoil` has changed."""
    config = dict(CONFIG if config is None else config)
    folder = programs.make_model(work / name, config, weights=False)
    header, data_bytes = programs.header_of(CONFIG)
    if spoil:
        spoil(header)
    programs.write_safetensors(folder / "model.safetensors", header, data_bytes, **writing)
    return str(folder)


def without(key):
    return {k: v for k, v in CONFIG.items() if k != key}


good = str(programs.make_model(work / "good"))
asked = ["--tokenizer", "bytes", "--max-steps", "1", "-s", "64"]
process = programs.run("fsdp_train", "--model", good, *asked, status=0)

# Values; more of them in tests/unit/launcher/test_options.c.
bad("unknown strategy", ["--strategy", "zero4"], 2, "--strategy", "'zero4'", "grad_op")
bad("negative number", ["--grad-accum", "-2"], 2, "--grad-accum", "'-2'", "command line")
bad("number beyond range", ["--seq-length", "1e30"], 2, "--seq-length", "'1e30'")
bad("other ranks than were planned", ["--ranks", "2"], 2, "--ranks 2", "mpirun started 1", "mpirun -np 2")
bad("search of the other program", ["--search"], 2, "--search", "of fsdp_plan; --auto searches")
bad("size without a unit's name", ["--memory-limit", "8G"], 2, "'8G'", "80GB")
bad("mesh product", ["--strategy", "hybrid", "--mesh", "data=2,fsdp=2"], 2, "data=2,fsdp=2", "4 ranks", "1")
bad("unknown class to wrap", ["--wrap", "module:NoSuchLayer"], 2, "NoSuchLayer")
bad("a separator beyond the vocabulary", ["--document-separator", "256"], 2, "--document-separator 256 (com",
    "vocabulary is 256")
# Combinations.
bad("full over replicas", ["--strategy", "full", "--mesh", "data=2,fsdp=1"], 2, "data=2,fsdp=1", "hybrid")
bad("no with shards", ["--strategy", "no", "--mesh", "fsdp=2"], 2, "fsdp=2", "hybrid")
# Names of what a layer saves.
for option in ("--recompute", "--offload-activations"):
    where = f"{option} (command line)"
    bad(f"{option}: a misspelt name", [option, "rmsnrom,swiglu"], 2, where, "'rmsnrom'",
        "did you mean rmsnorm?", "attention, swiglu")
    bad(f"{option}: a misspelt module", [option, "linear:up_prj@2"], 2, where, "'linear:up_prj'",
        "did you mean linear:up_proj?")
    bad(f"{option}: nothing like it", [option, "embedding"], 2, where, "'embedding'",
        "block_inputs, residual")
    bad(f"{option}: no such item", [option, "swiglu@0"], 2, where, "'swiglu@0'", "@K")
    bad(f"{option}: layers", [option, "block:9"], 2, where, "9 layers", "has 4")
    bad(f"{option}: twice", [option, "swiglu,swiglu@2"], 2, where, "swiglu twice")
    bad(f"{option}: auto and names", [option, "auto,swiglu"], 2, where, "'auto'", "alone")
bad("what enters a layer, recomputed", ["--recompute", "block_inputs"], 2, "--recompute (command line)",
    "--offload-activations block_inputs")
bad("recomputed and offloaded", ["--recompute", "swiglu", "--offload-activations", "swiglu"], 2,
    "--recompute (command line) and --offload-activations (command line) both name swiglu")
saving = work / "saving.yaml"
saving.write_text("batch-size: 1\nrecompute: [swiglu, rmsnrom]\n")
bad("a misspelt name in a file", ["--config", saving], 2, "saving.yaml:2", "did you mean rmsnorm?")
bad("resume from nothing", ["-e", "run", "--save-dir", work / "out", "--resume", work / "none"], 3,
    "--resume", "holds no checkpoint")
# Bytes are taken for tokens if nothing else can be meant, or if they are requested.
bare = str(programs.make_model(work / "no_tokenizer", CONFIG | {"vocab_size": 256}))
words = work / "words.txt"
words.write_text("words " * 1000)
for data in ([], ["--data", words]):
    bad("weights without a tokenizer", ["--model", bare, *data], 3, bare, "has weights and no tokenizer.json",
        "--tokenizer bytes", "raw bytes")
large = ["--model", programs.make_model(work / "large", weights=False)]
bad("a vocabulary without a tokenizer", large, 3, "a vocabulary of 257 and no tokenizer.json",
    "--tokenizer bytes")
older = programs.make_model(work / "older")
for file in ("vocab.json", "merges.txt"):
    (older / file).write_text("{}")
bad("an older form of tokenizer", ["--model", older, "--data", words], 3, "raw bytes",
    "vocab.json and merges.txt", f"scripts/prepare_data.py --model {older}")  # fmt: skip
preset = ["--model", "llama-1b", "--memory-limit", "80GB", "--host-memory-limit", "80GB"]
for option in ("--data", "--eval-data"):
    bad(f"a preset's vocabulary: {option}", [*preset, option, words], 3, "raw bytes",
        "llama-1b has a vocabulary of 32000", "--tokenizer bytes")
tokens = programs.ROOT / "tests" / "golden" / "prepare" / "alpaca.tok"
bad("tokens where bytes are asked for", ["--tokenizer", "bytes", "--data", tokens, "-s", "8"], 3,
    "alpaca.tok", "holds tokens of a tokenizer", "--tokenizer bytes")
for name, arguments in (("weights", ["--model", bare]), ("vocabulary", large)):
    process = programs.run("fsdp_train", *arguments, *asked)
    assert process.returncode == 0 and "as bytes" in process.stdout, (name, process.stderr)
bad("no such tokenizer", ["--tokenizer", work / "t.json"], 3, "--tokenizer", "t.json", "or bytes")
bad("cuda", ["--backend", "cuda"], 5, "--backend cuda", "--backend cpu")
# The model.
bad("no such preset", ["--model", "llama9"], 2, "--model 'llama9' (command line): no such folder", "tiny")
bad("a name of the hub", ["--model", "meta-llama/Llama-2-7b-hf"], 3,
    "hf download meta-llama/Llama-2-7b-hf --local-dir Llama-2-7b-hf", "--model ./Llama-2-7b-hf")
programs.make_model(work / "llama-1b", weights=False)
later("a preset and a folder", lambda: programs.run("fsdp_train", "--model", "llama-1b", cwd=work), 2,
      ["llama-1b", "./llama-1b"])  # fmt: skip
bad("no such folder below another", ["--model", "./none/model"], 3, "none/model/config.json", "No such file")
bad("no such folder", ["--model", work / "none"], 3, "none", "config.json")
(work / "empty").mkdir()
bad("folder without a configuration", ["--model", work / "empty"], 3, "config.json")
broken = programs.make_model(work / "broken")
(broken / "config.json").write_text('{"hidden_size": 64,')
bad("malformed configuration", ["--model", str(broken)], 3, "config.json")
for key in ("hidden_size", "num_attention_heads", "vocab_size"):
    bad(f"configuration without {key}", ["--model", model(f"without_{key}", without(key))], 3, "config.json",
        key)
bad("heads that do not divide", ["--model", model("heads", CONFIG | {"num_key_value_heads": 3})], 3, "3", "4")
yarn = {"rope_scaling": {"type": "yarn", "factor": 2.0}}
bad("unknown rope scaling", ["--model", model("rope", CONFIG | yarn)], 3, "yarn")
bad("vocabulary too small for bytes",
    ["--model", model("vocabulary", CONFIG | {"vocab_size": 100}), "--init", "random"], 3, "100", "256")
unweighted = ["--model", programs.make_model(work / "bare", weights=False)]
bad("--init weights without any", [*unweighted, "--init", "weights"], 3, "bare", "model.safetensors")
unread = programs.make_model(work / "shards_without_index")
(unread / "model.safetensors").rename(unread / "model-00001-of-00001.safetensors")
bad("shards without their index", ["--model", str(unread)], 3, "model.safetensors.index.json",
    "--init random")
unread = programs.make_model(work / "pickled", weights=False)
(unread / "pytorch_model-00001-of-00001.bin").write_bytes(b"weights")
(unread / "pytorch_model.bin.index.json").write_text("{}")
bad("weights of another kind", ["--model", str(unread)], 3, "saved again as safetensors", "--init random")
(pathlib.Path(good + "_tokenizer")).mkdir()
for file in ("config.json", "model.safetensors"):
    (pathlib.Path(good + "_tokenizer") / file).write_bytes((pathlib.Path(good) / file).read_bytes())
(pathlib.Path(good + "_tokenizer") / "tokenizer.json").write_text("{}")
bad("text that was not prepared", ["--model", good + "_tokenizer"], 3, "tokenizer.json")
# Its weights.
Q = "model.layers.1.self_attn.q_proj.weight"
bad("header length lies", ["--model", model("lying", header_length=1 << 40)], 3, "model.safetensors")
renamed = model("missing", spoil=lambda h: h.update({"extra.weight": h.pop(Q)}))
bad("missing tensor", ["--model", renamed], 3, Q)
bad("wrong shape", ["--model", model("shape", CONFIG | {"intermediate_size": 128})], 3, "mlp")
bad("wrong dtype", ["--model", model("dtype", spoil=lambda h: h[Q].update(dtype="I32"))], 3, Q)
bad("unknown dtype", ["--model", model("unknown", spoil=lambda h: h[Q].update(dtype="Q4"))], 3, "Q4")


def overlap(header):
    begin, end = header[Q]["data_offsets"]
    header[Q]["data_offsets"] = [begin - 64, end - 64]


def past_the_end(header):
    last = header["lm_head.weight"]
    begin, end = last["data_offsets"]
    last["data_offsets"], last["shape"] = [begin, end + 4 * 64], [258, 64]


bad("overlapping offsets", ["--model", model("overlap", spoil=overlap)], 3, "model.safetensors")
bad("offsets past the end", ["--model", model("past", spoil=past_the_end)], 3, "model.safetensors")
short = pathlib.Path(model("truncated")) / "model.safetensors"
short.write_bytes(short.read_bytes()[:-1000])
bad("truncated weights", ["--model", short.parent], 3, "model.safetensors")
# Data, configuration file, outputs.
(work / "short.txt").write_text("too short")
bad("text too short", ["--data", work / "short.txt"], 3, "short.txt", "--seq-length")
bad("no such text", ["--data", work / "none.txt"], 3, "none.txt")
bad("no such text, of a plan alone", ["--data", work / "none.txt", "--dry-run"], 3, "none.txt",
    "No such file")  # fmt: skip
os.mkfifo(work / "pipe.txt")  # nobody writes to it: opening it must not wait
bad("text from a pipe", ["--data", work / "pipe.txt"], 3, "pipe.txt", "regular file")
os.mkfifo(programs.make_model(work / "piped", weights=False) / "model.safetensors")
bad("weights from a pipe", ["--model", work / "piped"], 3, "model.safetensors", "regular file")
bad("pattern without a match", ["--data", work / "shorts*.txt"], 3, "shorts*.txt", "(short.txt, ",
    "correct the pattern")  # fmt: skip
bad("evaluation pattern without a match", ["--eval-data", work / "none*.tok"], 3, "--eval-data",
    "has no files that end in .tok")  # fmt: skip
# One token in the second half, which the second of two ranks reads.
tokens = [i % 250 for i in range(20_000)]
tokens[17_000] = 300
(work / "large_token.bin").write_bytes(
    struct.pack("<3i", 20240520, 1, len(tokens)) + bytes(1012) + struct.pack(f"<{len(tokens)}H", *tokens))
large = ["--data", work / "large_t*.bin"]
said = ("large_token.bin: token 17000 (from 0) of its 20000 is 300", "a vocabulary of 256")
bad("a token that the model has not", large, 3, *said)
bad("a token that the model has not, when it is used", [*large, "--verify-data", "off", "--max-steps", "400"],
    5, *said, "rank 0 (host ")  # fmt: skip
(work / "data.xyz").write_text("words " * 1000)
bad("text of another kind", ["--data", work / "data.xyz"], 3, "data.xyz", ".txt")
(work / "run.yaml").write_text("lr: 1e-3\nbatch-size: none\n")
bad("value in a file", ["--config", work / "run.yaml"], 2, "run.yaml:2", "--batch-size", "'none'")
(work / "odd.yaml").write_text("lr: [1e-3\n")
bad("malformed configuration file", ["--config", work / "odd.yaml"], 2, "odd.yaml")
(work / "star.yaml").write_text("lr: 1e-3\ndata: *.bin\n")
bad("a pattern without quotes", ["--config", work / "star.yaml"], 2, "star.yaml:2", "quotes")
bad("no such configuration file", ["--config", work / "none.yaml"], 3, "none.yaml")
bad("a preset's name written otherwise", ["--model", "llama-3-8b"], 2, "(did you mean llama3-8b?)")
bad("no such evaluation data", ["--eval-data", "none.txt"], 3, "--eval-data none.txt (command line)",
    "give a file that is there")  # fmt: skip
bad("a folder as data", ["--data", f"{work}/"], 3, f'give the files in it, as a pattern such as "{work}/*')
(work / "file").write_text("in the place of a folder")
letter = work / "letter.txt"
letter.write_text("Dear reader,\nnot all is a log")
bad("log that is none", ["--log", str(letter)], 3, "letter.txt", "no log", "different file")
assert letter.read_text() == "Dear reader,\nnot all is a log"
bad("log that cannot be written", ["--log", work / "file" / "log.jsonl"], 3, "log.jsonl")
bad("profile that cannot be written", ["--memory-profile", work / "file" / "memory.svg"], 3, "memory.svg")
(work / "folder.svg").mkdir()
bad("profile that is a folder", ["--memory-profile", work / "folder.svg"], 3, "folder.svg' is a folder")
bad("trace that is a folder", ["--trace", work, "--max-steps", "9"], 3, "is a folder", "name a file")
# Memory: the least that would do is named, and enough.
bad("memory of a trace", ["--set", "measure=on", "--grad-accum", "300000"], 4, "--set measure=on",
    "--grad-accum", "--set measure=off")
bad("device memory", ["--memory-limit", "1MB"], 4, "--memory-limit 1.00 MB", "command line")
bad("host memory", ["--cpu-offload", "--host-memory-limit", "100kB"], 4, "--host-memory-limit 100 kB")
bad("machine memory", ["--model", "llama3-405b"], 4, "this machine's memory")
process = programs.run("fsdp_train", "-s", "64", "--max-steps", "1", "--memory-limit", "6MB")
needed = process.stderr.split("needs ")[1].split(" bytes")[0].replace(",", "")
for bytes_allowed, status in ((int(needed), 0), (int(needed) - 1, 4)):
    process = programs.run("fsdp_train", "-s", "64", "--max-steps", "1", "--memory-limit", bytes_allowed)
    if process.returncode != status:
        failures.append("least limit")
        print(f"FAILED least limit: {bytes_allowed} gives {process.returncode}\n{process.stderr}")
# The loss.
diverges = "--lr 1e6 --lr-schedule constant --max-steps 50 --grad-clip 0 --weight-decay 1e5".split()
bad("loss not finite", diverges, 6, "loss", "--lr 1e+06")
# The other program.
for name, arguments, status, parts in (
    ("plan: ranks", ["--ranks", "0"], 2, ["--ranks", "'0'"]),
    ("plan: fp32 products on a GPU",
     ["--backend", "cuda", "--param-dtype", "fp32", "--reduce-dtype", "bf16"], 2,
     ["--reduce-dtype bf16", "--param-dtype bf16"]),
    ("plan: option of the other program", ["--auto"], 2, ["--auto", "of fsdp_train; --search finds"]),
    ("plan: no such profile", ["--profile", "h9", "--price"], 3, ["--profile (command line)", '"h9"']),
    ("plan: limit", ["--model", "llama2-7b", "--ranks", "8", "--memory-limit", "30GB"], 4,
     ["30.0 GB", "or add --"]),
):
    later(name, lambda a=arguments: programs.run("fsdp_plan", *a), status, parts, "fsdp_plan")

later("plan: no such data", lambda: programs.run("fsdp_plan", "--data", work / "none.txt"), 3,
      ["--data", "none.txt", "No such file"], "fsdp_plan")  # fmt: skip
# One rank that needs more than the machine has: nothing about fewer ranks.
for name, text, parts in (
    ("recompute", "recompute: true\n", ("write block for on, none for off",)),
    ("home", "data: ${HOME}/x.txt\n", ("write the whole path", "${HOME}/x.txt")),
    ("tilde", "model: ~/x\n", ("write the whole path", "~/x")),
):
    (work / f"{name}.yaml").write_text(text)
    bad(f"{name} of a file", ["--config", work / f"{name}.yaml"], 2, f"{name}.yaml:1", *parts)
if os.geteuid() != 0:  # who may read everything
    (work / "shut.txt").write_text("shut")
    (work / "shut.txt").chmod(0)
    bad("a file without rights", ["--data", work / "shut.txt"], 3, "Permission denied", "right to read it")
bad("a sequence beyond the machine", ["-s", "1e6", "-b", "64", "--recompute", "block"], 4, "--seq-length")


def into_a_full_disk(program, *arguments):
    with open("/dev/full", "w") as full:
        return subprocess.run([str(programs.BIN / program), *arguments], stdout=full, stderr=subprocess.PIPE,
                              text=True, timeout=240, check=False)  # fmt: skip


for arguments in (["--help"], ["--version"], ["--dry-run", "--print-program"]):
    later(f"full disk: {arguments[0]}", lambda a=arguments: into_a_full_disk("fsdp_train", *a), 3,
          ["standard output cannot be written"])  # fmt: skip

# The training itself is not lost.
FULL = ["-s", "32", "--max-steps", "2", "--save-dir", str(work / "full"), "-e", "run"]
later("full disk: a run", lambda: into_a_full_disk("fsdp_train", *FULL), 3,
      ["standard output cannot be written", "the run itself is complete"])  # fmt: skip

if programs.WITH_MPI:
    # One message from one rank, and every rank leaves.
    bad("2 ranks: unknown strategy", ["--strategy", "zero4"], 2, "'zero4'", ranks=2)
    bad("2 ranks: mesh product", ["--strategy", "hybrid", "--mesh", "data=3,fsdp=1"], 2, "data=3,fsdp=1",
        ranks=2)
    bad("2 ranks: registered", ["--nccl-register", "on", "--backend", "cpu"], 2,
        "is for GPUs, and --backend cpu", ranks=2)
    bad("3 ranks: missing folder", ["--model", work / "none"], 3, "none", ranks=3)
    bad("2 ranks: truncated weights", ["--model", short.parent], 3, "model.safetensors", ranks=2)
    bad("2 ranks: text too short", ["--data", work / "short.txt"], 3, "short.txt", ranks=2)
    bad("2 ranks: a token that the model has not", large, 3, *said, "(rank 1 (host ", ranks=2)
    bad("2 ranks: pattern", ["--data", work / "shorts*.txt"], 3, "shorts*.txt", ranks=2)
    bad("2 ranks: memory", ["--memory-limit", "1MB"], 4, "--memory-limit", ranks=2)
    bad("2 ranks: log", ["--log", work / "file" / "log.jsonl"], 3, "log.jsonl", ranks=2)
    bad("2 ranks: loss not finite", diverges, 6, "loss", ranks=2)

    def apart(name, first, second, status, *parts, folders=(".", ".")):
        """Rank 0 with different arguments, or in a different folder, than two more ranks."""
        command = ["mpirun"]
        for ranks, folder, arguments in ((1, folders[0], first), (2, folders[1], second)):
            command += [":"] if ranks == 2 else []
            command += ["-np", str(ranks), "-wdir", str(pathlib.Path(folder).resolve())]
            command += [str(programs.BIN / "fsdp_train"), "--max-steps", "1", "-s", "64", *arguments]
        run = lambda: subprocess.run(command, capture_output=True, text=True, timeout=300)
        later(name, run, status, parts)

    apart("ranks with other options", ["--lr", "1e-4"], ["--lr", "2e-4"], 2, "rank 1", "--lr", "same options")
    apart("ranks with another program", [], ["--wrap", "block"], 2, "--wrap=block", "--wrap=size")
    apart("one rank with a bad option", [], ["--seed", "x"], 2, "--seed", "'x'")
    other = json.dumps(CONFIG | {"num_hidden_layers": 1})
    for where, text in (("one", other), ("two", json.dumps(CONFIG))):
        (work / where / "m").mkdir(parents=True)
        (work / where / "m" / "config.json").write_text(text)
    # The same options, but the relative path is a different folder.
    folders = (work / "one", work / "two")
    here = ["--model", "./m"]
    apart("ranks with other model files", here, here, 3, "num_hidden_layers 1 → 2", "rank 1", "config.json",
          folders=folders)

for case in pending:
    case.result()
assert (work / "full" / "run" / "step-00000002").is_dir()
print(f"{len(pending)} bad inputs, {len(failures)} failed")
sys.exit(1 if failures else 0)
