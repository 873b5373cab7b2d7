#!/usr/bin/env python3
"""The same model from the same weights on the same batches, here and in PyTorch: how far apart are the losses
of each of 500 steps? And nanoGPT's setting for a CPU: does it reach the validation loss that nanoGPT states?

    bench/convergence.py --data tinyshakespeare.txt [--build build] [--python PYTHON] [--steps 500]
                         [--only NAME]... [--pictures FOLDER] [--page FILE] [--date YYYY-MM-DD]

A small GPT-2 and a small Llama, each in fp32 and in bf16, on a stream of bytes and on speeches that are
packed into rows (best-fit, each seeing itself alone). PyTorch runs Transformers' models in eager mode; of
packed rows it is given position_ids and a block-diagonal mask, and makes the rows itself, by best-fit
decreasing as runtime/data/packing.h defines it. In bf16 both compute in bf16 from fp32 weights, and reduce,
clip and update in fp32. nanoGPT's setting is that of its README: characters, 4 layers of 128, context 64, 12
sequences a step, 2,000 steps; its page says a validation loss of 1.88.

--python has torch, transformers and safetensors (default: FSDP_TORCH_PYTHON, or this one).
"""
import argparse
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from compare_samples import DATA_ORDER_STREAM, OPTIMIZER, permute
from running import llama, write

ROOT = pathlib.Path(__file__).resolve().parents[1]
SEQ, BATCH = 64, 4
FAMILIES, DTYPES, KINDS = ("gpt2", "llama"), ("fp32", "bf16"), ("stream", "packed")
CASES = [f"{family}-{dtype}-{kind}" for family in FAMILIES for dtype in DTYPES for kind in KINDS]
NANOGPT, PUBLISHED = "nanogpt", 1.88
WANTED = 1e-4  # in fp32
CONFIGS = {
    "gpt2": {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new",
             "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "vocab_size": 256,
             "layer_norm_epsilon": 1e-5, "initializer_range": 0.02, "attn_pdrop": 0.0, "embd_pdrop": 0.0,
             "resid_pdrop": 0.0},
    "llama": llama(hidden_size=64, intermediate_size=176, num_hidden_layers=2, num_attention_heads=4,
                   num_key_value_heads=2, max_position_embeddings=128, vocab_size=256),
}  # fmt: skip


# ---- Batches

def speeches(text):
    """Documents as tokens: a speech of at most SEQ bytes each, and byte 0 at its end."""
    pieces = [piece[:SEQ - 1] for piece in text.split(b"\n\n") if len(piece) > 8]
    return [piece + b"\0" for piece in pieces]


def best_fit(slots, seq):
    """Rows as lists of documents: from the longest on, each into the fullest row that has room; of those the
    one that has been as full for longest."""
    rows, room = [], [[] for _ in range(seq + 1)]  # by what is left
    for document in sorted(range(len(slots)), key=lambda d: (-slots[d], d)):
        left = next((r for r in range(slots[document], seq + 1) if room[r]), None)
        if left is None:
            rows.append([])
            row, left = len(rows) - 1, seq
        else:
            row = room[left].pop(0)
        rows[row].append(document)
        if left > slots[document]:
            room[left - slots[document]].append(row)
    return rows


def samples_of(kind, text):
    """(number of samples, a function from one to its inputs, targets (-100: none) and starts)"""
    if kind == "stream":
        return (len(text) - 1) // SEQ, lambda i: (list(text[i * SEQ:(i + 1) * SEQ]),
                                                  list(text[i * SEQ + 1:(i + 1) * SEQ + 1]), [0] * SEQ)
    documents = speeches(text)
    rows = best_fit([len(document) - 1 for document in documents], SEQ)

    def row(i):
        inputs, targets, starts = [], [], []
        for document in rows[i]:
            tokens = documents[document]
            starts += [len(inputs)] * (len(tokens) - 1)
            inputs += tokens[:-1]
            targets += tokens[1:]
        padding = SEQ - len(inputs)
        starts += range(len(inputs), SEQ)
        return inputs + [0] * padding, targets + [-100] * padding, starts

    return len(rows), row


# ---- PyTorch's side: this file again

def make_model(family, folder):
    import torch
    import transformers
    torch.manual_seed(1)
    config = transformers.AutoConfig.for_model(family, **{
        key: value for key, value in CONFIGS[family].items() if key not in ("architectures", "model_type")})
    transformers.AutoModelForCausalLM.from_config(config).float().save_pretrained(folder)


def train_torch(args):
    import torch
    import transformers
    torch.set_num_threads(1)
    family, dtype, kind = args.worker.split("-")
    load = lambda of: transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=of,
                                                                        attn_implementation="eager").train()
    master = load(torch.float32)
    model = master if dtype == "fp32" else load(torch.bfloat16)
    o = OPTIMIZER
    optimizer = torch.optim.AdamW(master.parameters(), lr=o["lr"], betas=(o["beta1"], o["beta2"]),
                                  eps=o["eps"], weight_decay=o["weight_decay"])
    count, sample = samples_of(kind, args.data.read_bytes())
    assert args.steps * BATCH <= count, "more steps than an epoch has"
    losses, column = [], torch.arange(SEQ)
    for step in range(args.steps):
        chosen = [sample(permute(0, DATA_ORDER_STREAM, count, step * BATCH + i)) for i in range(BATCH)]
        inputs, targets, starts = (torch.tensor([part[n] for part in chosen]) for n in range(3))
        more = {}
        if kind == "packed":
            seen = (column[None, None] <= column[None, :, None]) & (column[None, None] >= starts[:, :, None])
            mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
            more = {"position_ids": column - starts, "attention_mask": mask[:, None].to(model.dtype)}
        logits = model(input_ids=inputs, use_cache=False, **more).logits
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        model.zero_grad()
        loss.backward()
        if model is not master:
            for kept, used in zip(master.parameters(), model.parameters()):
                kept.grad = used.grad.float()
        torch.nn.utils.clip_grad_norm_(master.parameters(), o["grad_clip"])
        optimizer.step()
        if model is not master:
            with torch.no_grad():
                for kept, used in zip(master.parameters(), model.parameters()):
                    used.copy_(kept)
        losses.append(loss.item())
    print(json.dumps(losses))


def polyline(values, box, low, high, style):
    """Values from left to right in a box (x, y, width, height), `low` at its bottom."""
    x, y, width, height = box
    points = " ".join(f"{x + width * i / max(len(values) - 1, 1):.1f},"
                      f"{y + height * (1 - (min(max(value, low), high) - low) / (high - low)):.1f}"
                      for i, value in enumerate(values))
    return f'<polyline fill="none" {style} points="{points}"/>'


def text(x, y, words):
    return f'<text x="{x}" y="{y}" font-size="11" font-family="sans-serif">{words}</text>'


def panel(case, curves, x, y):
    """Both curves, and below them the logarithm of their difference, from 1e-8 to 1."""
    ours, theirs = curves
    top, bottom = (x, y + 16, 250, 120), (x, y + 144, 250, 80)
    apart = [math.log10(max(abs(a - b), 1e-8)) for a, b in zip(ours, theirs)]
    parts = [text(x, y + 10, f"{case.replace('-', ', ')}: loss {theirs[0]:.2f} to {theirs[-1]:.2f}"),
             polyline(theirs, top, 1.5, 6, 'stroke="#ff7f0e" stroke-width="3"'),
             polyline(ours, top, 1.5, 6, 'stroke="#1f77b4" stroke-width="1"'),
             polyline(apart, bottom, -8, 0, 'stroke="#d62728" stroke-width="0.7"'),
             polyline([-4, -4], bottom, -8, 0, 'stroke="gray" stroke-dasharray="4"')]
    return parts + [f'<rect x="{bx}" y="{by}" width="{w}" height="{h}" fill="none" stroke="black"/>'
                    for bx, by, w, h in (top, bottom)]


def write_picture(path, width, height, parts):
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">'
    back = '<rect width="100%" height="100%" fill="white"/>'
    path.write_text("\n".join([head, back, *parts, "</svg>"]) + "\n")


def draw(args, results):
    names = [name for name in CASES if name in results["curves"]]
    if names:
        parts = [text(10, 14, "loss by step, 1.5 to 6: PyTorch (wide, orange), fsdp_train (thin, blue); "
                      "below, their difference, 1e-8 to 1, and 1e-4 dashed")]
        for n, name in enumerate(names):
            parts += panel(name, results["curves"][name], 10 + n % 4 * 270, 26 + n // 4 * 240)
        write_picture(args.pictures / f"convergence-{args.date}.svg", 20 + 270 * min(len(names), 4),
                      30 + 240 * ((len(names) + 3) // 4), parts)
    if results["nanogpt"]:
        box, steps = (10, 26, 480, 240), len(results["nanogpt"]["losses"])
        parts = [text(10, 14, f"loss of {steps} steps, 1.5 to 4.5: training (blue), validation (red), "
                      f"{PUBLISHED} dashed"),
                 polyline(results["nanogpt"]["losses"], box, 1.5, 4.5, 'stroke="#1f77b4" stroke-width="0.6"'),
                 polyline([PUBLISHED] * 2, box, 1.5, 4.5, 'stroke="gray" stroke-dasharray="4"')]
        for step, loss in results["nanogpt"]["evaluations"]:
            x, y = 10 + 480 * step / steps, 26 + 240 * (4.5 - loss) / 3
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#d62728"/>')
        write_picture(args.pictures / f"shakespeare-{args.date}.svg", 500, 280, parts)


# ---- Our side

def fsdp_train(args, work, *options):
    """The log's lines."""
    log = work / "log.jsonl"
    log.unlink(missing_ok=True)
    command = [args.build / "bin/fsdp_train", "--backend", "cpu", "--threads", 1, "--log", log, "--log-freq",
               1000000, "--num-epochs", 1000, *options]
    process = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if process.returncode != 0:
        sys.exit(f"convergence: {process.stderr}")
    return [json.loads(line) for line in log.read_text().splitlines()]


def train_ours(args, work, case, model):
    family, dtype, kind = case.split("-")
    data = args.data
    if kind == "packed":
        data = work / "speeches.jsonl"
        documents = speeches(args.data.read_bytes())
        data.write_text("".join(json.dumps({"text": each[:-1].decode()}) + "\n" for each in documents))
    optimizer = [part for name, value in OPTIMIZER.items() for part in (f"--{name.replace('_', '-')}", value)]
    lines = fsdp_train(args, work, "--model", model, "--data", data, "--tokenizer", "bytes", "-b", BATCH,
                       "-s", SEQ, "--packing", "stream" if kind == "stream" else "best-fit", "--param-dtype",
                       dtype, "--lr-schedule", "constant", "--max-steps", args.steps, "--seed", 0, *optimizer)
    return [line["loss"] for line in lines]


def train_nanogpt(args, work):
    """Characters as nanoGPT numbers them, the last tenth for validation."""
    text = args.data.read_text()
    number = {character: i for i, character in enumerate(sorted(set(text)))}
    assert len(number) == 65, "tiny Shakespeare has 65 characters"
    cut = int(len(text) * 0.9)
    for name, part in (("train", text[:cut]), ("val", text[cut:])):
        (work / f"{name}.bin").write_bytes(b"".join(number[each].to_bytes(2, "little") for each in part))
    folder = work / "nanogpt"
    folder.mkdir()
    config = CONFIGS["gpt2"] | {"n_embd": 128, "n_layer": 4, "n_head": 4, "n_positions": 64, "vocab_size": 65}
    (folder / "config.json").write_text(json.dumps(config))
    lines = fsdp_train(args, work, "--model", folder, "--init", "random", "--data", work / "train.bin",
                       "--eval-data", work / "val.bin", "--eval-freq", 250, "-b", 12, "-s", 64, "--max-steps",
                       2000, "--lr", 1e-3, "--min-lr", 1e-4, "--lr-schedule", "cosine", "--warmup-steps", 100,
                       "--beta2", 0.99, "--weight-decay", 0.1, "--decay", "matrices", "--grad-clip", 1)
    evaluations = [(line["global_step"], line["eval_loss"]) for line in lines
                   if line.get("eval_loss") is not None]
    return {"losses": [line["loss"] for line in lines], "evaluations": evaluations}


# ---- The comparison

def torch_side(args, *options):
    command = [args.python, os.path.abspath(__file__), "--data", args.data, "--steps", args.steps, *options]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=environment)
    if process.returncode != 0:
        sys.exit(f"convergence: {process.stderr[-3000:]}")
    return process.stdout.strip().split("\n")[-1]


def both_sides(args, work, case):
    family = case.split("-")[0]
    model = work / family
    if not model.exists():
        torch_side(args, "--make", family, "--model", model)
    theirs = json.loads(torch_side(args, "--worker", case, "--model", model))
    return train_ours(args, work, case, model), theirs


def keep(args, results):
    if args.results:
        args.results.write_text(json.dumps(results))


def compare(args, work):
    results, lines, good = {"curves": {}, "nanogpt": None}, [], True
    if args.results and args.results.exists():
        results = json.loads(args.results.read_text())
    chosen = args.only or [*CASES, NANOGPT]
    if set(chosen) & set(CASES):
        lines += [f"| model, {args.steps} steps | first loss | last loss, here | in PyTorch "
                  "| greatest difference | median |", "| --- | --- | --- | --- | --- | --- |"]
    for case in (case for case in CASES if case in chosen):
        if case not in results["curves"]:
            results["curves"][case] = both_sides(args, work, case)
            keep(args, results)
        ours, theirs = results["curves"][case]
        apart = sorted(abs(a - b) for a, b in zip(ours, theirs, strict=True))
        good &= "fp32" not in case or apart[-1] <= WANTED
        lines.append(f"| {case.replace('-', ', ')} | {ours[0]:.4f} | {ours[-1]:.5f} | {theirs[-1]:.5f} "
                     f"| {apart[-1]:.1e} | {apart[len(apart) // 2]:.1e} |")
        print(lines[-1], file=sys.stderr, flush=True)
    if NANOGPT in chosen:
        results["nanogpt"] = results["nanogpt"] or train_nanogpt(args, work)
        keep(args, results)
        step, loss = results["nanogpt"]["evaluations"][-1]
        good &= loss <= PUBLISHED + 0.005
        lines += ["", f"nanoGPT's setting for a CPU: validation loss {loss:.4f} after {step} steps, over all "
                  f"of its validation data; its README states {PUBLISHED}.", "",
                  "| step | validation loss |", "| --- | --- |"]
        lines += [f"| {step} | {loss:.4f} |" for step, loss in results["nanogpt"]["evaluations"]]
    if args.pictures:
        draw(args, results)
    write(lines, args.page)
    return 0 if good else 1


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--python", default=os.environ.get("FSDP_TORCH_PYTHON") or sys.executable)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--only", action="append", choices=[*CASES, NANOGPT])
    parser.add_argument("--results", type=pathlib.Path,
                        help="keep all losses here; what is there is not run again")
    parser.add_argument("--pictures", type=pathlib.Path, help="write the pictures into this folder")
    parser.add_argument("--page", help="write the table here")
    parser.add_argument("--date", default=time.strftime("%Y-%m-%d"), help="in the pictures' names")
    for name in ("worker", "make", "model"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    args = parse()
    if args.make:
        make_model(args.make, args.model)
    elif args.worker:
        train_torch(args)
    else:
        with tempfile.TemporaryDirectory(prefix="convergence_") as work:
            return compare(args, pathlib.Path(work))
    return 0


if __name__ == "__main__":
    sys.exit(main())
