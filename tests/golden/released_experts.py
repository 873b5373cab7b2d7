#!/usr/bin/env python3
"""Two layers of Qwen3-MoE as released (128 experts, 8 a token, 2048 channels; 1,024 words) beside
Transformers: the first step's logits, losses and gradients of 32 tokens, in fp32.

    PYTHON tests/golden/released_experts.py [--build build] [--folder DIR] [--seed N]

PYTHON has torch and transformers. It takes 15 GB of memory and 22 GB of DIR, and nothing of it stays.
Gradients of fsdp_train are read from what one step of AdamW without decay does with epsilon 1: it moves a
parameter by lr g / (|g| + 1), from which g follows exactly. The least distance of a chosen score from the
next one is printed: it has to be far above what rounding makes of scores.
"""
import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
sys.path.insert(0, str(ROOT / "tests/golden"))

from make_golden import Routing, loss_of  # noqa: E402
from price_check import ENVIRONMENT  # noqa: E402

CONFIG = dict(
    vocab_size=1024, hidden_size=2048, intermediate_size=6144, moe_intermediate_size=768, num_hidden_layers=2,
    num_attention_heads=32, num_key_value_heads=4, head_dim=128, num_experts=128, num_experts_per_tok=8,
    norm_topk_prob=True, rms_norm_eps=1e-6, max_position_embeddings=128, output_router_logits=True,
    router_aux_loss_coef=0.01, tie_word_embeddings=False,
)  # fmt: skip
TOKENS = 32
LR = 1e4
WANTED = {"logits": 1e-5, "loss": 1e-6, "gradient": 1e-5}


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=ENVIRONMENT,
                          check=False)  # fmt: skip
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def make(folder, seed):
    """The model in bf16, tokens.bin, golden.safetensors as test_golden reads it, and all gradients."""
    torch.manual_seed(seed)
    rope = dict(rope_type="default", rope_theta=1000000.0)
    config = transformers.AutoConfig.for_model("qwen3_moe", rope_parameters=rope, **CONFIG)
    implementation = dict(attn_implementation="eager", experts_implementation="eager")
    model = transformers.AutoModelForCausalLM.from_config(config, **implementation).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.normal_(1, 0.1)
            else:
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
            parameter.copy_(parameter.bfloat16())
    model.bfloat16().save_pretrained(folder / "model")
    model.float()
    stream = torch.randint(0, CONFIG["vocab_size"], (TOKENS + 1,))
    (folder / "tokens.bin").write_bytes(b"".join(int(n).to_bytes(2, "little") for n in stream))
    tokens, targets = stream[None, :-1], stream[None, 1:]
    routing = Routing(model)
    loss = loss_of(model, tokens, targets)
    loss.backward()
    routing.close()
    with torch.no_grad():
        logits = model(input_ids=tokens, use_cache=False).logits
        ce = loss_of(model, tokens, targets, auxiliary=False)
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    norm = sum(g.double().square().sum() for g in gradients.values()).sqrt().float()
    golden = {"tokens": tokens[None].int(), "targets": targets[None].int(), "logits": logits, "ce": ce,
              "grad_norms": norm[None], "loss": loss.detach()}  # fmt: skip
    save_file({n: t.contiguous() for n, t in golden.items()}, folder / "model/golden.safetensors")
    save_file(gradients, folder / "gradients.safetensors")
    print(json.dumps({"loss": loss.item(), "ce": ce.item(), "norm": norm.item(), "gap": routing.gap}))


class Folder:
    """Tensors of the safetensors files of a folder, by name."""

    def __init__(self, path):
        self.files = [safe_open(file, "pt") for file in sorted(path.glob("*.safetensors"))
                      if file.name != "golden.safetensors"]  # fmt: skip
        self.of = {name: file for file in self.files for name in file.keys()}

    def __getitem__(self, name):
        return self.of[name].get_tensor(name).float()


def parts_of(name, gradient):
    """The tensors of weight files that a parameter of Transformers 5 is, and their gradients."""
    layer, _, last = name.rpartition(".experts.")
    if not layer:
        yield name, gradient
        return
    width = gradient.shape[1] // 2
    for expert, one in enumerate(gradient):
        if last == "down_proj":
            yield f"{layer}.experts.{expert}.down_proj.weight", one
        else:
            yield f"{layer}.experts.{expert}.gate_proj.weight", one[:width]
            yield f"{layer}.experts.{expert}.up_proj.weight", one[width:]


def compare_gradients(folder):
    """The greatest relative difference of a tensor's gradient, and of an expert's."""
    before, after = Folder(folder / "model"), Folder(folder / "exported")
    worst, worst_expert, empty, experts = 0, 0, 0, 0
    with safe_open(folder / "gradients.safetensors", "pt") as theirs:
        for name in theirs.keys():
            difference = norm = 0
            for part, gradient in parts_of(name, theirs.get_tensor(name)):
                moved = ((before[part].double() - after[part].double()) / LR)
                own = moved / (1 - moved.abs())
                apart = (own - gradient.double()).square().sum().item()
                size = gradient.double().square().sum().item()
                difference, norm = difference + apart, norm + size
                if ".experts." in part:
                    experts += 1
                    empty += size == 0
                    assert size or not apart, f"{part} has a gradient without a row"
                    worst_expert = max(worst_expert, (apart / size) ** 0.5 if size else 0)
            worst = max(worst, (difference / norm) ** 0.5)
    print(f"gradients: {worst:.1e} of a tensor at most; of {experts} weights of single experts "
          f"{worst_expert:.1e}, {empty} of them zero on both sides, without a row")
    return worst


def compare(args, folder):
    theirs = json.loads(run(sys.executable, __file__, "--make", "--folder", folder, "--seed", args.seed))
    print(f"Transformers {transformers.__version__}: loss {theirs['loss']:.7f}, of it cross-entropy "
          f"{theirs['ce']:.7f}; least gap of the 8th and the 9th score {theirs['gap']:.1e}", flush=True)
    said = run(args.build / "tests/test_golden", folder / "model", "logits")
    line = next(line for line in said.splitlines() if line.startswith("logits: "))
    print(line, flush=True)
    run(args.build / "bin/fsdp_train", "--backend", "cpu", "--model", folder / "model", "--data",
        folder / "tokens.bin", "-s", TOKENS, "-b", 1, "--max-steps", 1, "--lr", LR, "--lr-schedule",
        "constant", "--eps", 1, "--weight-decay", 0, "--grad-clip", 0, "--moment-dtype", "bf16",
        "--param-dtype", "fp32", "--save-dir", folder, "-e", "run", "--set", "measure=off")  # fmt: skip
    own = json.loads((folder / "run/log.jsonl").read_text().splitlines()[0])
    loss, norm = abs(own["loss"] / theirs["loss"] - 1), abs(own["grad_norm"] / theirs["norm"] - 1)
    aux = (theirs["loss"] - theirs["ce"]) / CONFIG["router_aux_loss_coef"]
    print(f"fsdp_train: loss {own['loss']:.7f}, {loss:.1e} from it; auxiliary loss "
          f"{own['moe/aux_loss']:.6f} for {aux:.6f}; norm {own['grad_norm']:.6f}, {norm:.1e} from it",
          flush=True)
    run(args.build / "bin/fsdp_export", folder / "run", "--to", folder / "exported", "--dtype", "fp32")
    gradient = compare_gradients(folder)
    return loss <= WANTED["loss"] and gradient <= WANTED["gradient"] and theirs["gap"] > 1e-5


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--folder", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--make", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if args.make:
        make(args.folder, args.seed)
        return
    folder = pathlib.Path(tempfile.mkdtemp(prefix="fsdp_released_", dir=args.folder))
    try:
        right = compare(args, folder)
    finally:
        shutil.rmtree(folder)
    sys.exit(not right)


if __name__ == "__main__":
    main()
