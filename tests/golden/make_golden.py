#!/usr/bin/env python3
"""Makes the golden data beside this file with Transformers' LlamaForCausalLM in fp32 on a CPU.

    python3 -m venv /tmp/golden && /tmp/golden/bin/pip install torch transformers safetensors numpy
    /tmp/golden/bin/python tests/golden/make_golden.py

Each folder is a small Hugging Face model (config.json and safetensors) with golden.safetensors beside it:

    tokens, targets    (10, B, T) int32: a batch for each step; a target of -100 is not counted
    loss               () fp32: of the first batch, the mean over counted targets
    grad.NAME          the gradient of that loss by parameter NAME
    norm.NAME          () fp32 and rows.NAME (R) int32, part.NAME (R, C): of a gradient too large to keep,
                       its norm and some of its rows
    losses, grad_norms (10) fp32: of ten AdamW steps over the batches; norms are those before clipping
    after.NAME         of some small parameters, their values after those steps: the losses alone would hardly
                       show a wrong beta

The models differ in what can go wrong: see CASES. Weights are rounded so that the dtype they are stored in
holds them.
"""

import json
import os
import shutil
import sys

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

STEPS = 10
OPTIMIZER = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
CLIP = 1.0
IGNORED = -100
LARGE = 100_000  # elements above which only part of a gradient is kept
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}

# `style`: which generation of config.json keys; `omit`: keys left out of it; `shards`: files of the weights.
CASES = {
    "grouped": dict(  # grouped-query attention, untied
        config=dict(
            vocab_size=128,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            rms_norm_eps=1e-5,
            max_position_embeddings=64,
        ),
        dtype="BF16",
        style="new",
        batch=3,
        seq=24,
        whole_sequence_ignored=True,
    ),
    "tied": dict(
        config=dict(
            vocab_size=256,
            hidden_size=32,
            intermediate_size=56,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=16,
            rms_norm_eps=1e-6,
            max_position_embeddings=64,
            tie_word_embeddings=True,
        ),
        dtype="F32",
        style="old",
        batch=2,
        seq=32,
    ),
    "llama3_rope": dict(  # all three regions of the scaling, positions beyond the original ones
        config=dict(
            vocab_size=96,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
            rms_norm_eps=1e-5,
            max_position_embeddings=256,
            rope=dict(
                rope_type="llama3",
                rope_theta=10000.0,
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=32,
            ),
        ),
        dtype="BF16",
        style="new",
        batch=2,
        seq=64,
        shards=2,
        stray=True,
    ),
    "multi_query_257": dict(  # one key/value head, head_dim != hidden / heads, linear scaling, odd vocabulary
        config=dict(
            vocab_size=257,
            hidden_size=40,
            intermediate_size=56,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=1,
            head_dim=12,
            rms_norm_eps=1e-5,
            max_position_embeddings=128,
            rope=dict(rope_type="linear", rope_theta=10000.0, factor=2.5),
        ),
        dtype="F16",
        style="old",
        batch=2,
        seq=29,
    ),
    "odd": dict(  # sizes that no vector width or rank count divides
        config=dict(
            vocab_size=321,
            hidden_size=48,
            intermediate_size=100,
            num_hidden_layers=1,
            num_attention_heads=3,
            num_key_value_heads=3,
            head_dim=16,
            rms_norm_eps=1e-6,
            max_position_embeddings=64,
        ),
        dtype="BF16",
        style="old",
        batch=3,
        seq=17,
        omit=["num_key_value_heads", "head_dim"],
    ),
    "wide_32001": dict(  # a real vocabulary's size plus one
        config=dict(
            vocab_size=32001,
            hidden_size=8,
            intermediate_size=20,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=4,
            rms_norm_eps=1e-5,
            max_position_embeddings=64,
            tie_word_embeddings=True,
        ),
        dtype="BF16",
        style="new",
        batch=2,
        seq=16,
    ),
}


def make_model(case, generator):
    keys = dict(case["config"])
    rope = keys.pop("rope", dict(rope_type="default", rope_theta=10000.0))
    config = LlamaConfig(**keys, rope_parameters=rope, attn_implementation="eager")
    model = LlamaForCausalLM(config).float().eval()
    stored = DTYPES[case["dtype"]]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            # Larger than a new model's, so that attention is far from uniform and no gradient near zero.
            value = 1 + 0.2 * noise if "norm" in name else noise * 1.2 / parameter.shape[-1] ** 0.5
            parameter.copy_(value.bfloat16().to(stored).float())
    return model


def make_batches(case, generator):
    shape = (STEPS, case["batch"], case["seq"])
    stream = torch.randint(
        0, case["config"]["vocab_size"], shape[:2] + (shape[2] + 1,), generator=generator
    )
    tokens, targets = stream[..., :-1].clone(), stream[..., 1:].clone()
    targets[torch.rand(shape, generator=generator) < 0.1] = IGNORED
    targets[1, 0, : shape[2] // 2] = IGNORED  # a prompt
    if case.get("whole_sequence_ignored"):
        targets[2, 1] = IGNORED
    return tokens, targets


def loss_of(model, tokens, targets):
    logits = model(input_ids=tokens, use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


def gradients_of(model, tokens, targets):
    out = {}
    loss = loss_of(model, tokens, targets)
    loss.backward()
    out["loss"] = loss.detach().float()
    for name, parameter in model.named_parameters():
        grad = parameter.grad.clone()
        if grad.numel() <= LARGE:
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


def train(model, tokens, targets):
    optimizer = torch.optim.AdamW(model.parameters(), **OPTIMIZER)
    losses, norms = [], []
    for step in range(STEPS):
        loss = loss_of(model, tokens[step], targets[step])
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    out = {"losses": torch.tensor(losses), "grad_norms": torch.tensor(norms)}
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1 or "layers.0.self_attn.k_proj" in name:
            out["after." + name] = parameter.detach().clone()
    return out


def config_json(case, model):
    keys = dict(case["config"])
    if case["style"] == "new":
        text = model.config.to_diff_dict()
        text.pop("_name_or_path", None)
        text.pop("transformers_version", None)
        text.update(
            architectures=["LlamaForCausalLM"], dtype=str(DTYPES[case["dtype"]]).removeprefix("torch.")
        )
        for key in case["config"]:  # a difference to the defaults alone would leave fields out
            if key != "rope":
                text[key] = case["config"][key]
        return text
    rope = keys.pop("rope", None)
    keys.update(
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        hidden_act="silu",
        attention_bias=False,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=None,
        pretraining_tp=1,
        use_cache=True,
        initializer_range=0.02,
        rope_theta=10000.0,
        rope_scaling=None,
        attention_dropout=0.0,
        torch_dtype=str(DTYPES[case["dtype"]]).removeprefix("torch."),
        transformers_version="4.37.0",
    )
    keys.setdefault("tie_word_embeddings", False)
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
    if case.get("stray"):
        weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(
            case["config"]["head_dim"] // 2
        )
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


def check_reads_back(folder, model, tokens, targets):
    """The folder must mean the model that the numbers are of, by Transformers' own reading of it."""
    again = LlamaForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        assert torch.equal(loss_of(again, tokens, targets), loss_of(model, tokens, targets)), folder


def make_case(name, seed, root):
    case = CASES[name]
    folder = os.path.join(root, name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    generator = torch.Generator().manual_seed(seed)
    model = make_model(case, generator)
    tokens, targets = make_batches(case, generator)
    with open(os.path.join(folder, "config.json"), "w") as out:
        json.dump(config_json(case, model), out, indent=2)
        out.write("\n")
    save_weights(case, model, folder)
    check_reads_back(folder, model, tokens[0], targets[0])
    golden = {"tokens": tokens.int(), "targets": targets.int()}
    golden.update(gradients_of(model, tokens[0], targets[0]))
    golden.update(train(model, tokens, targets))
    save_file({n: t.contiguous() for n, t in golden.items()}, os.path.join(folder, "golden.safetensors"))
    size = sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder))
    print(
        f"{name}: {size} bytes, loss {golden['loss'].item():.6f}, "
        f"losses {golden['losses'][0]:.4f} to {golden['losses'][-1]:.4f}, "
        f"norms {golden['grad_norms'].min():.2f} to {golden['grad_norms'].max():.2f}"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for index, case_name in enumerate(CASES):
        make_case(
            case_name, 1000 + index, sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(__file__) or "."
        )
