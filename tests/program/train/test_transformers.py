"""From Transformers and back.

Random models of every family, some of each, or `--count N` in all (others with `--seed N`, with `--routed`
of families with experts alone): saved by save_pretrained, compared in logits, loss, gradients and ten or 20
steps with every strategy and kind of wrapping (test_golden), trained by fsdp_train on meshes of tensor,
context and expert to the losses of Transformers, exported, and loaded by from_pretrained, which computes the
same logits. The printed module tree is PyTorch's. Of routed models the least distance of a chosen score from
the next one is printed. With `--released`, the logits, losses and gradients of two layers of Qwen3-MoE as
released and 32 tokens that they continue a text with, and nothing else, which take 16 GB of memory and 25 of
disk.

A small Llama with a trained tokenizer, saved in several files, is prepared for, trained on four ranks,
exported, and loaded by from_pretrained: its loss on held-out text is fsdp's own within 1e-5, in fp32.

Transformers, PyTorch and tokenizers are looked for in FSDP_TORCH_PYTHON, the environment of
bench/compare_torch.py, /opt/venvs/torch and this Python; where none has them, the test is skipped (77).
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import programs

sys.path.insert(0, str(programs.ROOT / "scripts"))
from prepare.models import families  # noqa: E402

SOURCE = pathlib.Path(os.environ.get("FSDP_SOURCE_DIR", "."))
TEXT = SOURCE / "runtime/data/builtin_text.txt"
SEQ, HELD_OUT = 64, 24
EACH = 1 if programs.SLOW else 2  # random models of each family, unless --count says how many in all
STRATEGIES = ("full", "grad_op", "no", "hybrid", "zero1")
MODEL_AXES = ((2, 1), (1, 1), (1, 2), (3, 1), (2, 2), (1, 1), (4, 1))  # tensor, context
ROUTED_AXES = ((1, 1, 2), (1, 1, 1), (2, 1, 1), (1, 1, 3), (1, 2, 1), (2, 1, 2), (1, 1, 4))  # and expert
WRAPS = (["--wrap", "block"], ["--numel-to-wrap", 2000], ["--wrap", "none"], ["--wrap", "module:Embedding"])

# Requires Transformers: `make FOLDER TEXT`, or `loss TOKENS SEQ FOLDER...` (tokens as JSON), which
# prints each folder's.
HELPER = """
import json, sys, torch, transformers
from tokenizers import Tokenizer, models, pre_tokenizers, decoders, trainers
def make(folder, text):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=701, special_tokens=["<s>", "</s>"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train([text], trainer)
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>",
                                                   eos_token="</s>")
    wrapped.save_pretrained(folder)
    torch.manual_seed(1)
    config = transformers.LlamaConfig(vocab_size=len(wrapped), hidden_size=96, intermediate_size=160,
        num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2, max_position_embeddings=256,
        rope_theta=10000.0, initializer_range=0.05, bos_token_id=0, eos_token_id=1)
    model = transformers.LlamaForCausalLM(config)
    model.generation_config.max_new_tokens = 17
    model.save_pretrained(folder, max_shard_size="300KB")
def loss(folder, tokens, seq):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    transformers.AutoTokenizer.from_pretrained(folder)
    ids = torch.tensor(json.load(open(tokens)))
    count = (len(ids) - 1) // seq
    total = 0.0
    with torch.no_grad():
        for i in range(count):
            logits = model(ids[None, i * seq:(i + 1) * seq]).logits[0].double()
            total += torch.nn.functional.cross_entropy(logits, ids[i * seq + 1:(i + 1) * seq + 1]).item()
    print(repr(total / count))
if sys.argv[1] == "make": make(*sys.argv[2:])
if sys.argv[1] == "loss":
    for folder in sys.argv[4:]: loss(folder, sys.argv[2], int(sys.argv[3]))
"""


def call(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


def tokens_of(path):
    """The tokens of a prepared file whose tokens take two bytes (runtime/data/token_file.h)."""
    data = path.read_bytes()
    width, count = int.from_bytes(data[16:20], "little"), int.from_bytes(data[32:40], "little")
    return [int.from_bytes(data[128 + width * i : 128 + width * (i + 1)], "little") for i in range(count)]


def train(*arguments, ranks):
    return programs.run("fsdp_train", "-s", SEQ, *arguments, ranks=ranks if programs.WITH_MPI else None,
                        status=0)


class Worker:
    """tests/support/transformers_worker.py, asked by worker(NAME, argument=...)."""

    def __init__(self, python):
        command = [python, str(SOURCE / "tests/support/transformers_worker.py")]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, what, **arguments):
        print(json.dumps({"do": what, **arguments}), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        assert line, f"transformers_worker.py ended at {what} {arguments}"
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(60) == 0


def check_tree(folder, expected):
    """`expected` is what PyTorch prints of the model."""
    options = ["--ranks", 1, "-s", 2, "--wrap", "none", "--print-model"]
    done = programs.run("fsdp_plan", "--model", folder, *options, status=0)
    lines = done.stdout.split("\n\n")[0].splitlines()
    assert lines[0] == "FullyShardedDataParallel(" and lines[-1] == ")", lines
    tree = [line[2:] for line in lines[1:-1]]
    tree[0] = tree[0].removeprefix("(_fsdp_wrapped_module): ")
    assert tree == expected.splitlines(), "\n".join(tree)


def axes_of(case, number):
    """Ranks on tensor, context and expert."""
    if not programs.WITH_MPI:
        return 1, 1, 1
    if "num_experts_per_tok" not in case["about"]:
        return *MODEL_AXES[number % len(MODEL_AXES)], 1
    tensor, context, expert = ROUTED_AXES[number % len(ROUTED_AXES)]
    return tensor, context, expert if case["routed"] and case["batch"] % expert == 0 else 1


def check_program(worker, folder, case, number):
    """Three steps over one batch, evaluated, exported, loaded; what was run and how far it differs."""
    work = folder.parent
    tensor, context, expert = axes_of(case, number)
    model = tensor * context * expert
    parts = [n for n in (1, 2, 3, 4) if case["batch"] % (n * expert) == 0 and n * model <= 4]
    parts = max(parts) if programs.WITH_MPI else 1  # of the batch, beside expert's
    ranks = parts * model
    strategy = STRATEGIES[number % len(STRATEGIES)] if programs.WITH_MPI else "full"
    data = parts if strategy == "no" else 2 if strategy == "hybrid" and parts % 2 == 0 else 1
    mesh = f"data={data},fsdp={parts // data},tensor={tensor},context={context}"
    mesh += f",expert={expert}" if expert > 1 else ""
    options = ["--strategy", strategy, "--mesh", mesh, *WRAPS[number // 4 % 4]]
    off = number % 4 == 3 or "output_router_logits=True" in case["about"]
    options += ["--sequence-parallel", "off" if off else "on"] * (tensor > 1)
    options += ["--expert-capacity", (0.25, 0.5, 1, 2)[number % 4]] * (expert > 1)
    options += ["--recompute", "block"] * (number % 3 == 0) + ["--cpu-offload"] * (number % 5 == 0)
    tokens = folder / "tokens.bin"
    programs.run(
        "fsdp_train", "--model", folder, "--data", tokens, "--eval-data", tokens, "-s", case["seq"],
        "-b", case["batch"] // (parts * expert), "--num-epochs", 3, "--lr", "1e-3", "--lr-schedule",
        "constant", "--beta2", 0.95, "--eps", "1e-3", "--weight-decay", 0.1, "--save-dir", work, "-e",
        f"run{number}", *options, ranks=ranks if ranks > 1 else None, status=0)  # fmt: skip
    log = (work / f"run{number}/log.jsonl").read_text()
    lines = [json.loads(line) for line in log.splitlines()]
    worst = 0
    for own, loss, norm in zip(lines, case["losses"], case["norms"], strict=True):
        worst = max(worst, abs(own["loss"] / loss - 1))
        assert abs(own["grad_norm"] / norm - 1) <= 1e-4, (own, norm)
    worst = max(worst, abs(lines[-1]["eval_loss"] / case["last_loss"] - 1))
    assert worst <= 1e-5, (lines, case)
    programs.run("fsdp_export", work / f"run{number}", "--to", work / f"exported{number}", status=0)
    difference = worker("logits", folder=str(folder), exported=str(work / f"exported{number}"))
    assert difference <= 1e-4, difference
    command = " ".join(map(str, options))
    return f"{ranks} ranks {command}: losses {worst:.1e}, exported logits {difference:.1e}"


def check_bf16(worker, folder, case):
    """A sequence in bf16 of as many tokens as there are positions, so that roundings are averaged, which go
    to the experts that Transformers chose in bf16."""
    seq = int(re.search(r"max_position_embeddings=(\d+)", case["about"])[1])
    loss = worker("bf16", folder=str(folder), seq=seq)
    if loss is None:
        return
    work = folder.parent
    programs.run(
        "fsdp_train", "--backend", "cpu", "--model", folder, "--data", folder / "one.bin", "-s", seq,
        "--param-dtype", "bf16", "--max-steps", 1, "--router-aux-coef", 0, "--ckpt-freq", 0,
        "--routing-replay", folder / "routes.bin", "--save-dir", work, "-e", "bf16", status=0)  # fmt: skip
    own = json.loads((work / "bf16/log.jsonl").read_text().splitlines()[0])["loss"]
    print(f"    bf16, routing replayed: loss {own:.5f}, {abs(own / loss - 1):.1e} from Transformers")
    assert abs(own / loss - 1) <= 2e-3, (own, loss)


def check_random_models(python, work, count, seed, routed=False):
    worker, gaps = Worker(python), []
    drawn = worker("families")
    assert drawn == list(families()), "tests/golden/random_cases.py does not draw every family"
    if routed:
        drawn = worker("routed_families")
    for number in range(count or EACH * len(drawn)):
        family, folder = drawn[number % len(drawn)], work / f"model{number}"
        case = worker("case", folder=str(folder), family=family, seed=seed + number)
        print(f"{number + 1}: {case['about']}", flush=True)
        test_golden = programs.BIN.parent / "tests/test_golden"
        found = subprocess.run([test_golden, folder], capture_output=True, text=True, timeout=900)
        assert found.returncode == 0, found.stdout + found.stderr
        for line in found.stdout.splitlines():
            if line.startswith(("logits: ", "gradient of ")) or " plans: " in line:
                print("   ", line)
        if case["gap"] is not None:
            print(f"    least gap of scores {case['gap']:.1e}")
            gaps.append(case["gap"])
        if family != "llama":  # whose tree is that of an earlier release
            check_tree(folder, case["tree"])
        print("   ", check_program(worker, folder, case, number), flush=True)
        if "num_experts_per_tok" in case["about"]:
            check_bf16(worker, folder, case)
        for left in work.iterdir():
            shutil.rmtree(left)
    worker.close()
    if gaps:
        print(f"least gap of scores of all: {min(gaps):.1e}")
        assert min(gaps) > 1e-5


def check_released(python, work):
    """One after the other, each with little but the model in memory. Gradients are AdamW's first moments
    after a step that takes nothing of those before: expert blocks whose gradients are used up one by one."""
    seq, prompt, count = 32, 8, 32
    worker, folder = Worker(python), work / "released"
    found = worker("released", folder=str(folder), seq=seq, prompt=prompt, count=count)
    worker.close()
    print(f"least gap of scores {found['gap']:.1e}, of logits {found['token_gap']:.1e}", flush=True)
    assert found["gap"] > 1e-5 and found["token_gap"] > 1e-4
    test_golden = programs.BIN.parent / "tests/test_golden"
    said = call(test_golden, folder, "logits")
    print(next(line for line in said.splitlines() if line.startswith("logits: ")), flush=True)
    tokens = ",".join(map(str, found["prompt"]))
    said = call(programs.BIN / "fsdp_eval", "--backend", "cpu", "--model", folder, "-s", prompt + count, "-b",
                1, "--prompt-tokens", tokens, "--max-new-tokens", count)  # fmt: skip
    made = next(line for line in said.splitlines() if re.fullmatch(r"[\d, ]+", line))
    print(f"{count} tokens: {made}", flush=True)
    assert [int(token) for token in made.split(",")] == found["made"], found["made"]
    call(programs.BIN / "fsdp_train", "--backend", "cpu", "--model", folder, "--data", folder / "tokens.bin",
         "-s", seq, "-b", 1, "--max-steps", 1, "--beta1", 0, "--lr", 0, "--grad-clip", 0, "--wrap", "block",
         "--expert-blocks", 8, "--prefetch", 0, "--ckpt-async", "off", "--save-dir", work, "-e", "run")
    line = json.loads((work / "run/log.jsonl").read_text())
    loss, norm = abs(line["loss"] / found["loss"] - 1), abs(line["grad_norm"] / found["norm"] - 1)
    worker = Worker(python)
    differences = worker("gradients", folder=str(folder), checkpoint=str(work / "run/step-00000001"),
                         floor=1e-3 * found["norm"])  # fmt: skip
    worker.close()
    for name, difference in differences.items():
        print(f"{name}: {difference:.1e}")
    print(f"loss with the auxiliary one {loss:.1e}, gradients' norm {norm:.1e}, "
          f"{len(differences)} gradients at most {max(differences.values()):.1e}")  # fmt: skip
    assert loss <= 1e-6 and norm <= 1e-5 and max(differences.values()) <= 1e-5


def check_round_trip(python, work):
    helper, model, exported = work / "helper.py", work / "model", work / "exported"
    helper.write_text(HELPER)
    text = TEXT.read_text()
    (work / "train.txt").write_text(text[:100_000])
    (work / "held.txt").write_text(text[200_000:212_000])
    call(python, helper, "make", model, work / "train.txt")
    assert len(list(model.glob("*.safetensors"))) > 1
    for part in ("train", "held"):
        call(python, SOURCE / "scripts/prepare_data.py", "--model", model, "--out", work / f"{part}.tok",
             work / f"{part}.txt")  # fmt: skip
    # As many held-out samples as a step can take: the loss of that step is the mean over all of them.
    held = tokens_of(work / "held.tok")[: SEQ * HELD_OUT + 1]
    (work / "held.json").write_text(json.dumps(held))
    (work / "held.bin").write_bytes(b"".join(token.to_bytes(2, "little") for token in held))
    common = ["--model", model, "--save-dir", work, "-e", "run", "--lr", "2e-3"]
    train(*common, "--data", work / "train.tok", "-b", 2, "--max-steps", 20, ranks=4)
    programs.run("fsdp_export", work / "run", "--to", exported, "--max-shard-size", "200kB", status=0)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (exported / name).read_bytes() == (model / name).read_bytes(), name
    # fsdp's loss of the checkpoint: that of the next step, before its update.
    batch = HELD_OUT // (4 if programs.WITH_MPI else 1)
    train(*common, "--data", work / "held.bin", "-b", batch, "--max-steps", 21, "--ckpt-freq", 0, ranks=4)
    lines = programs.log_of(work / "run/log.jsonl")
    own, trained_from = lines[20]["loss"], lines[0]["loss"]
    found = call(python, helper, "loss", work / "held.json", SEQ, exported, model).split()
    theirs, before = map(float, found)
    print(f"held-out loss: {before:.6f} before, {theirs:.8f} after for Transformers, {own:.8f} for fsdp")
    assert abs(own - theirs) <= 1e-5 * theirs, (own, theirs)
    assert theirs < before - 0.2 and trained_from > theirs


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--routed", action="store_true")
    parser.add_argument("--released", action="store_true")
    arguments = parser.parse_args()
    python = programs.python_with("torch", "transformers", "tokenizers", "jinja2")
    work = programs.folder("transformers")
    if arguments.released:
        check_released(python, work)
    else:
        check_random_models(python, work, arguments.count, arguments.seed, arguments.routed)
    if not (arguments.count or arguments.released):
        check_round_trip(python, work)


main()
