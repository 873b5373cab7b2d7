#!/usr/bin/env python3
"""Makes the golden data beside this file with Transformers in fp32 on a CPU: of the cases that are named, or
of those that have no folder yet.

    python3 -m venv /tmp/golden && /tmp/golden/bin/pip install torch transformers safetensors numpy
    /tmp/golden/bin/python tests/golden/make_golden.py [CASE...]

Each folder is a small Hugging Face model (config.json and safetensors) with golden.safetensors beside it:

    tokens, targets    (10, B, T) int32: a batch for each step; a target of -100 is not counted
    dropout            (3) of some: rates of embedding, attention and residual; masks.py has the masks
    starts             (10, B, T) int32, of some: the position of the first token of each position's document
    real               (10, B, T) int32, of some: 1 where a row holds a token, 0 where it fills up a sequence
    loss               () fp32: of the first batch, the mean over counted targets
    grad.NAME          the gradient of that loss by parameter NAME; of a router's correction bias, its
                       experts' loads: E times the rows of each, less the sum over the experts
    norm.NAME          () fp32 and rows.NAME (R) int32, part.NAME (R, C): of a gradient too large to keep,
                       its norm and some of its rows
    losses, grad_norms (10) fp32: of ten AdamW steps over the batches; norms are those before clipping
    after.NAME         of some small parameters, their values after those steps: the losses alone would hardly
                       show a wrong beta; of a case that says how many "steps", of every parameter that they
                       move by more than rounding
    logits, ce         (B, T, V) and () fp32 of a case that is "whole": of the first batch, of rows that hold
                       a token, and its cross-entropy
    eps                () fp32, of some: AdamW's, if not 1e-8
    gap                () fp32: of routed models, the least distance of a chosen score from the next one over
                       all steps, above 1e-5: else rounding would choose

The models differ in what can go wrong: see cases.py. Weights are rounded so that the dtype they are stored in
holds them.
"""

import copy
import json
import os
import shutil
import sys

import masks
import torch
from cases import CASES
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

STEPS = 10
OPTIMIZER = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
CLIP = 1.0
IGNORED = -100
LEAST_GAP = 1e-5
LARGE = 100_000  # elements above which only part of a gradient is kept
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}

# What config.json files had beside the sizes when the first models of a family were published.
OLD_KEYS = {
    "llama": dict(hidden_act="silu", attention_bias=False, bos_token_id=1, eos_token_id=2, pad_token_id=None,
                  pretraining_tp=1, use_cache=True, initializer_range=0.02, rope_theta=10000.0,
                  rope_scaling=None, attention_dropout=0.0, tie_word_embeddings=False,
                  transformers_version="4.37.0"),
    "gpt2": dict(activation_function="gelu_new", attn_pdrop=0.1, bos_token_id=50256, embd_pdrop=0.1,
                 eos_token_id=50256, initializer_range=0.02, layer_norm_epsilon=1e-5, n_ctx=1024,
                 resid_pdrop=0.1, summary_activation=None, summary_first_dropout=0.1,
                 summary_proj_to_labels=True, summary_type="cls_index", summary_use_proj=True,
                 task_specific_params={"text-generation": {"do_sample": True, "max_length": 50}}),
    "qwen2": dict(hidden_act="silu", attention_dropout=0.0, bos_token_id=151643, eos_token_id=151643,
                  initializer_range=0.02, max_window_layers=28, rope_theta=10000.0, sliding_window=131072,
                  tie_word_embeddings=False, use_cache=True, use_mrope=False, use_sliding_window=False,
                  transformers_version="4.40.1"),
    "qwen3": dict(hidden_act="silu", attention_bias=False, attention_dropout=0.0, bos_token_id=151643,
                  eos_token_id=151645, initializer_range=0.02, max_window_layers=36, rope_scaling=None,
                  rope_theta=10000, sliding_window=None, tie_word_embeddings=False, use_cache=True,
                  use_sliding_window=False, transformers_version="4.51.0"),
    "mistral": dict(hidden_act="silu", bos_token_id=1, eos_token_id=2, use_cache=True,
                    initializer_range=0.02, rope_theta=10000.0, sliding_window=4096,
                    tie_word_embeddings=False, transformers_version="4.34.0.dev0"),
}  # fmt: skip


def family_of(case):
    return case.get("family", "llama")


def has_rope(case):
    return family_of(case) != "gpt2"


def make_model(case, generator):
    keys = dict(case["config"])
    if has_rope(case):
        keys["rope_parameters"] = keys.pop("rope", dict(rope_type="default", rope_theta=10000.0))
    config = AutoConfig.for_model(family_of(case), **keys)
    implementation = dict(attn_implementation="eager", experts_implementation="eager")
    model = AutoModelForCausalLM.from_config(config, **implementation).float().eval()
    stored = DTYPES[case["dtype"]]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            # Larger than a new model's, so that attention is far from uniform and no gradient near zero.
            if parameter.dim() == 1:
                value = 0.2 * noise if name.endswith("bias") else 1 + 0.2 * noise
            else:
                inputs = parameter.shape[0 if ".c_" in name else -1]  # a Conv1D is stored (in, out)
                value = noise * 1.2 / inputs**0.5
            parameter.copy_(value.bfloat16().to(stored).float())
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_((0.3 * torch.randn(buffer.shape, generator=generator)).bfloat16())
    return model


class SmallGap(Exception):
    """Rounding would choose the experts of some row."""


class Routing:
    """What a model's routers choose: experts' loads by router, and the least gap between scores. `real`: of
    which rows, None: of all."""

    def __init__(self, model):
        self.real = None
        self.loads, self.gap, self.handles = {}, float("inf"), []
        for name, module in model.named_modules():
            if type(module).__name__.lower().endswith("topkrouter"):
                self.handles.append(module.register_forward_hook(self.hook(name)))

    def close(self):
        for handle in self.handles:
            handle.remove()

    def hook(self, name):
        def see(router, inputs, output):
            logits, chosen = output[0].detach().float(), output[2]
            if self.real is not None:
                logits, chosen = logits[self.real.flatten() > 0], chosen[self.real.flatten() > 0]
            experts, k = logits.shape[-1], chosen.shape[-1]
            self.loads[name] = experts * torch.bincount(chosen.flatten(), minlength=experts) - chosen.numel()
            if not hasattr(router, "e_score_correction_bias"):
                self.see_gap(logits.softmax(-1), k)
                return
            scores = logits.sigmoid() + router.e_score_correction_bias
            if router.num_group > router.topk_group:
                groups = scores.view(len(scores), router.num_group, -1)
                best = groups.topk(2, dim=-1)[0].sum(-1)
                self.see_gap(best, router.topk_group)
                kept = torch.zeros_like(best).scatter_(1, best.topk(router.topk_group, dim=-1)[1], 1)
                scores = groups.masked_fill(kept[..., None] == 0, -9.0).flatten(1)
            self.see_gap(scores, k)

        return see

    def see_gap(self, scores, k):
        if k < scores.shape[-1]:
            ordered = scores.sort(-1, descending=True)[0]
            self.gap = min(self.gap, (ordered[:, k - 1] - ordered[:, k]).min().item())


def make_batches(case, generator):
    shape = (case.get("steps", STEPS), case["batch"], case["seq"])
    stream = torch.randint(
        0, case["config"]["vocab_size"], shape[:2] + (shape[2] + 1,), generator=generator
    )
    tokens, targets = stream[..., :-1].clone(), stream[..., 1:].clone()
    targets[torch.rand(shape, generator=generator) < 0.1] = IGNORED
    targets[1, 0, : shape[2] // 2] = IGNORED  # a prompt
    if case.get("whole_sequence_ignored"):
        targets[2, 1] = IGNORED
    return tokens, targets


def draw_documents(tokens, targets, generator):
    """Some documents a row, and padding: their starts. The last token of each has no target."""
    steps, batch, seq = tokens.shape
    starts = torch.arange(seq).repeat(steps, batch, 1)
    for row, targets_row, tokens_row in zip(
        starts.view(-1, seq), targets.view(-1, seq), tokens.view(-1, seq)
    ):
        begin, end = 0, seq - torch.randint(0, 4, (), generator=generator).item()
        while begin < end:
            length = min(end - begin, 1 + torch.randint(0, seq // 2, (), generator=generator).item())
            row[begin : begin + length] = begin
            begin += length
            targets_row[begin - 1] = IGNORED
        targets_row[end:] = IGNORED
        tokens_row[end:] = 0
    return starts


def draw_padding(tokens, targets, generator):
    """Sequences of fewer tokens, at least half of them: which positions hold one."""
    steps, batch, seq = tokens.shape
    ends = torch.randint((seq + 1) // 2, seq + 1, (steps, batch, 1), generator=generator)
    real = torch.arange(seq) < ends
    targets[~real] = IGNORED
    tokens[~real] = 0
    return real.int()


def documents_of(model, starts):
    """Transformers' arguments for rows of documents: positions within them, and what each query sees."""
    position = torch.arange(starts.shape[-1])
    distance = position[:, None] - position[None, :]
    seen = (position[None, None, :] >= starts[:, :, None]) & (distance >= 0)
    window = getattr(model.config, "sliding_window", None)
    if window:
        seen &= distance < window
    mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    return dict(position_ids=position - starts, attention_mask=mask[:, None])


def step_of(rows, step):
    """`rows` are what is given of each row beside tokens and targets: starts of documents, or which are
    real."""
    return {name: tensor[step] for name, tensor in rows.items()}


def logits_of(model, tokens, starts=None, real=None):
    """The output, with the logits and, where the configuration outputs router logits, its auxiliary loss."""
    seen = {} if starts is None else documents_of(model, starts)
    if real is not None:
        seen = dict(attention_mask=real)
    return model(input_ids=tokens, use_cache=False, **seen)


def loss_of(model, tokens, targets, auxiliary=True, **rows):
    """The cross-entropy and, where the configuration outputs router logits, what Transformers adds to it."""
    out = logits_of(model, tokens, **rows)
    loss = torch.nn.functional.cross_entropy(
        out.logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED
    )
    if auxiliary and getattr(out, "aux_loss", None) is not None:
        loss = loss + model.config.router_aux_loss_coef * out.aux_loss
    return loss


def gradients_of(model, tokens, targets, **rows):
    out = {}
    routing = Routing(model)
    routing.real = rows.get("real")
    loss = loss_of(model, tokens, targets, **rows)
    loss.backward()
    routing.close()
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            out["grad." + name] = routing.loads[name.rpartition(".")[0]].float()
    out["loss"] = loss.detach().float()
    for name, parameter in model.named_parameters():
        grad = parameter.grad.clone()
        if grad.numel() <= LARGE or grad.dim() == 3:
            out["grad." + name] = grad
            continue
        seen = torch.unique(torch.cat([tokens.flatten(), targets[targets != IGNORED].flatten()]))
        rows = torch.unique(
            torch.cat([seen, torch.arange(16), torch.arange(grad.shape[0] - 16, grad.shape[0])])
        )
        out["rows." + name] = rows.int()
        out["part." + name] = grad[rows].clone()
        out["norm." + name] = grad.double().norm().float()
    model.zero_grad()
    return out


class Float64:
    """What Transformers computes in fp32 whatever the model's type: norms, softmaxes, rotations."""

    def __enter__(self):
        self.before = torch.float32, torch.float, torch.Tensor.float
        torch.float32 = torch.float = torch.float64
        torch.Tensor.float = torch.Tensor.double

    def __exit__(self, *_):
        torch.float32, torch.float, torch.Tensor.float = self.before


def exact_gradients(model, tokens, targets, **rows):
    """Of the same weights in float64, rounded once; of tensors that are kept whole."""
    whole = copy.deepcopy(model).double()
    with Float64():
        loss_of(whole, tokens, targets, **rows).backward()
    return {
        "exact." + name: parameter.grad.to(torch.get_default_dtype())
        for name, parameter in whole.named_parameters()
        if parameter.grad.numel() <= LARGE or parameter.grad.dim() == 3
    }


def train(model, tokens, targets, gradients, rows, whole=False, **options):
    optimizer = torch.optim.AdamW(model.parameters(), **(OPTIMIZER | options))
    losses, norms, routing = [], [], Routing(model)
    for step in range(len(tokens)):
        if hasattr(model, "masks"):
            model.masks.step = step
        routing.real = rows["real"][step] if "real" in rows else None
        loss = loss_of(model, tokens[step], targets[step], **step_of(rows, step))
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    routing.close()
    out = {"losses": torch.tensor(losses), "grad_norms": torch.tensor(norms)}
    if routing.handles:
        out["gap"] = torch.tensor(routing.gap)
    for name, parameter in model.named_parameters():
        if is_watched(name, parameter, gradients, whole):
            out["after." + name] = parameter.detach().clone()
    return out


def is_watched(name, parameter, gradients, whole):
    """Whether the steps move it by more than rounding. The same number added to all scores changes no
    softmax, so biases of keys have no gradient without RoPE, and little where it rotates slowly; with one
    visible position neither queries nor keys have any."""
    gradient = gradients.get("grad." + name)
    if name.endswith(("c_attn.bias", "k_proj.bias")) or gradient is None or gradient.norm() < 1e-6:
        return False
    return whole or parameter.dim() == 1 or "layers.0.self_attn.k_proj" in name or "h.0.attn.c_proj" in name


def config_json(case, model):
    architectures, dtype = [type(model).__name__], str(DTYPES[case["dtype"]]).removeprefix("torch.")
    if case["style"] == "new":
        text = model.config.to_diff_dict()
        text.pop("_name_or_path", None)
        text.pop("transformers_version", None)
        text.update(architectures=architectures, dtype=dtype)
        for key in case["config"]:  # a difference to the defaults alone would leave fields out
            if key != "rope":
                text[key] = case["config"][key]
        return text
    keys = dict(OLD_KEYS[family_of(case)], architectures=architectures, model_type=family_of(case),
                torch_dtype=dtype)  # fmt: skip
    keys.update(case["config"])
    rope = keys.pop("rope", None)
    if rope:
        keys["rope_scaling"] = {"type": rope["rope_type"], "factor": rope["factor"]}
    for key in case.get("omit", []):
        del keys[key]
    return dict(sorted(keys.items()))


def save_weights(case, model, folder):
    weights = {
        n: p.detach().to(DTYPES[case["dtype"]]).contiguous().clone() for n, p in model.named_parameters()
    }
    shards = case.get("shards", 1)
    if case.get("bare"):
        weights = {name.removeprefix(model.base_model_prefix + "."): t for name, t in weights.items()}
    if case.get("stray") and has_rope(case):
        weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(
            case["config"]["head_dim"] // 2
        )
    elif case.get("stray"):
        positions = case["config"]["n_positions"]
        weights["h.0.attn.bias"] = torch.ones(positions, positions).tril()[None, None]
        weights["h.0.attn.masked_bias"] = torch.tensor(-1e4)
    if shards == 1:
        save_file(weights, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
        return
    names, weight_map = sorted(weights), {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = names[shard * len(names) // shards : (shard + 1) * len(names) // shards]
        save_file({n: weights[n] for n in part}, os.path.join(folder, file), metadata={"format": "pt"})
        weight_map.update({n: file for n in part})
    total = sum(t.numel() * t.element_size() for t in weights.values())
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as out:
        json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, out, indent=1)
        out.write("\n")


def check_reads_back(folder, model, *batch, **rows):
    """The folder must mean the model that the numbers are of, by Transformers' own reading of it."""
    again = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    ).eval()
    with torch.no_grad():
        assert torch.equal(loss_of(again, *batch, **rows), loss_of(model, *batch, **rows)), folder


def make_case(case, folder, seed):
    """Writes the folder; returns the golden tensors and the model after its ten steps."""
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    generator = torch.Generator().manual_seed(seed)
    model = make_model(case, generator)
    tokens, targets = make_batches(case, generator)
    rows = {}
    if case.get("documents"):
        rows["starts"] = draw_documents(tokens, targets, generator)
    if case.get("padded"):
        rows["real"] = draw_padding(tokens, targets, generator)
    first = step_of(rows, 0)
    if case["style"] in ("saved", "fused"):
        stored = copy.deepcopy(model).to(DTYPES[case["dtype"]])
        # Transformers 5 writes experts one by one, as the hub has them, or stacked, as it holds them.
        stored.save_pretrained(
            folder,
            max_shard_size=case.get("shard_size", "1GB"),
            save_original_format=case["style"] == "saved",
        )
    else:
        with open(os.path.join(folder, "config.json"), "w") as out:
            json.dump(config_json(case, model), out, indent=2)
            out.write("\n")
        save_weights(case, model, folder)
    check_reads_back(folder, model, tokens[0], targets[0], **first)
    golden = {"tokens": tokens.int(), "targets": targets.int()}
    golden |= {name: tensor.int() for name, tensor in rows.items()}
    if "dropout" in case:
        model.masks = masks.Masks(case["dropout"])
        masks.install(model, model.masks)
        golden["dropout"] = torch.tensor(case["dropout"])
    golden.update(gradients_of(model, tokens[0], targets[0], **first))
    if case.get("exact"):
        golden.update(exact_gradients(model, tokens[0], targets[0], **first))
    if case.get("whole"):
        with torch.no_grad():
            golden["logits"] = logits_of(model, tokens[0], **first).logits
            golden["ce"] = loss_of(model, tokens[0], targets[0], auxiliary=False, **first)
    options = {"eps": case["eps"]} if "eps" in case else {}
    golden |= {name: torch.tensor(value) for name, value in options.items()}
    golden.update(train(model, tokens, targets, golden, rows, "steps" in case, **options))
    if golden.get("gap", 1) <= LEAST_GAP:
        raise SmallGap(f"{folder}: scores are {golden['gap'].item():.1e} apart: take another seed")
    save_file({n: t.contiguous() for n, t in golden.items()}, os.path.join(folder, "golden.safetensors"))
    return golden, model


def main(names):
    root = os.path.dirname(os.path.abspath(__file__))
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for index, (name, case) in enumerate(CASES.items()):
        folder = os.path.join(root, name)
        if name not in names and (names or os.path.exists(folder)):
            continue
        golden, _ = make_case(case, folder, 1000 + index)
        size = sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder))
        print(
            f"{name}: {size} bytes, loss {golden['loss'].item():.6f}, "
            f"losses {golden['losses'][0]:.4f} to {golden['losses'][-1]:.4f}, "
            f"norms {golden['grad_norms'].min():.2f} to {golden['grad_norms'].max():.2f}"
            + (f", gap {golden['gap'].item():.1e}" if "gap" in golden else "")
        )


if __name__ == "__main__":
    main(sys.argv[1:])
