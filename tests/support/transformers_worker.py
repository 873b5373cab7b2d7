"""Does what test_transformers.py asks of Transformers, one JSON object per line: {"do": NAME, ...} on
standard input, the answer on standard output. It runs where torch, transformers and tokenizers are."""

import json
import os
import pathlib
import random
import struct
import sys

import safetensors.torch
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "golden"))
import make_golden  # noqa: E402
import random_cases  # noqa: E402

PROGRAM_STEPS = 3
PROGRAM_EPS = 1e-3  # so large that the sign of a gradient near zero, which is rounding, moves no parameter


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    ).eval()


def families():
    return list(random_cases.DRAW)


def routed_families():
    return [family for family in random_cases.DRAW if family in random_cases.ROUTED]


def case(folder, family, seed):
    """A random case with its golden data; and for fsdp_train steps over one batch, the file tokens.bin, with
    their losses, and the loss and logits after them."""
    rng = random.Random(f"{family} {seed}")
    drawn = random_cases.draw(family, rng) | {"exact": family in random_cases.ROUTED}
    golden, again = None, 0
    while golden is None:
        try:
            golden, _ = make_golden.make_case(drawn, folder, seed + 1_000_003 * again)
        except make_golden.SmallGap:
            again += 1
    model, rows = load(folder), (drawn["batch"], drawn["seq"])
    numbers = [rng.randrange(drawn["config"]["vocab_size"]) for _ in range(rows[0] * rows[1] + 1)]
    pathlib.Path(folder, "tokens.bin").write_bytes(b"".join(n.to_bytes(2, "little") for n in numbers))
    stream = torch.tensor(numbers)
    tokens, targets = stream[:-1].view(rows), stream[1:].view(rows)
    text = str(model)
    repeated = [[part] * PROGRAM_STEPS for part in (tokens, targets)]
    trained = make_golden.train(model, *repeated, {}, {}, eps=PROGRAM_EPS)
    with torch.no_grad():
        logits = model(input_ids=tokens, use_cache=False).logits
        last = make_golden.loss_of(model, tokens, targets, auxiliary=False).item()
    torch.save((tokens, logits), os.path.join(folder, "logits.pt"))
    return {
        "about": random_cases.describe(drawn),
        "tree": text,
        "gap": golden["gap"].item() if golden.get("gap", torch.inf) < torch.inf else None,
        "routed": "gap" in golden,
        "batch": rows[0],
        "seq": rows[1],
        "losses": trained["losses"].tolist(),
        "norms": trained["grad_norms"].tolist(),
        "last_loss": last,
    }


def bf16(folder, seq):
    """The loss of one sequence in bf16: its tokens in one.bin, and what the routers chose in routes.bin, as
    fsdp_train --routing-replay reads it. None for a model without routers."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, attn_implementation="eager", experts_implementation="eager"
    ).eval()
    chosen, rng = [], random.Random(seq)
    for module in model.modules():
        if type(module).__name__.lower().endswith("topkrouter"):
            module.register_forward_hook(lambda router, inputs, output: chosen.append(output[2]))
    numbers = [rng.randrange(model.config.vocab_size) for _ in range(seq + 1)]
    pathlib.Path(folder, "one.bin").write_bytes(b"".join(n.to_bytes(2, "little") for n in numbers))
    stream = torch.tensor(numbers)
    with torch.no_grad():
        logits = model(input_ids=stream[None, :-1], use_cache=False).logits
    if not chosen:
        return None
    routes = torch.stack(chosen, dim=1)  # (tokens, layers, slots)
    config = model.config
    experts = getattr(config, "num_local_experts", None) or config.num_experts
    shape = (routes.shape[1], routes.shape[2], experts, seq, 1)
    header = struct.pack("<8s11q", b"fsdprout", 2, *shape, *[0] * 5)
    data = struct.pack(f"<{routes.numel()}H", *routes.flatten().tolist())
    pathlib.Path(folder, "routes.bin").write_bytes(header + data)
    return torch.nn.functional.cross_entropy(logits[0].float(), stream[1:]).item()


def take_experts_apart(model):
    """Each expert's matrices become parameters of their own, of which Transformers' loop over experts takes
    one: the gradient of one of a stack would be as large as the stack. Returns them by the stack's name."""
    apart = {}
    for path, module in model.named_modules():
        for name, stack in list(module.named_parameters(recurse=False)):
            if stack.dim() < 3:
                continue
            apart[f"{path}.{name}"] = [matrix.requires_grad_() for matrix in stack.detach()]
            delattr(module, name)
            setattr(module, name, apart[f"{path}.{name}"])
    return apart


def gradients_by_name(model, apart):
    """One after the other, each freed behind it."""
    for name, parameter in model.named_parameters():
        yield name, parameter.grad
        parameter.grad = None
    for name, matrices in apart.items():
        yield name, torch.stack([torch.zeros_like(m) if m.grad is None else m.grad for m in matrices])
        for matrix in matrices:
            matrix.grad = None


def released(folder, seq, prompt, count):
    """Two layers of Qwen3-MoE as released but for its words: random weights of 4.9 GB, the logits and losses
    of a sequence of which rounding chooses no expert, its gradients in a file each, and `count` tokens behind
    its first `prompt`. Returns the least distances of a chosen score and of a chosen token's logit from the
    next."""
    torch.manual_seed(1)
    torch.set_num_threads(os.cpu_count())
    config = transformers.Qwen3MoeConfig(
        vocab_size=1024, hidden_size=2048, intermediate_size=6144, moe_intermediate_size=768,
        num_hidden_layers=2, num_attention_heads=32, num_key_value_heads=4, head_dim=128, num_experts=128,
        num_experts_per_tok=8, norm_topk_prob=True, rope_theta=1e6, max_position_embeddings=4096,
        output_router_logits=True, router_aux_loss_coef=0.001, tie_word_embeddings=False,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config, experts_implementation="eager").eval()
    model.save_pretrained(folder)
    gap = 0
    while gap <= make_golden.LEAST_GAP:
        stream = torch.randint(0, config.vocab_size, (1, seq + 1))
        tokens, targets = stream[:, :-1], stream[:, 1:]
        routing = make_golden.Routing(model)
        with torch.no_grad():
            logits = model(input_ids=tokens, use_cache=False).logits
        made = model.generate(tokens[:, :prompt], max_new_tokens=count, do_sample=False, output_logits=True,
                              return_dict_in_generate=True)  # fmt: skip
        routing.close()
        gap = routing.gap
    numbers = stream.flatten().tolist()
    pathlib.Path(folder, "tokens.bin").write_bytes(b"".join(n.to_bytes(2, "little") for n in numbers))
    with torch.no_grad():
        golden = {
            "tokens": tokens[None].int(),
            "targets": targets[None].int(),
            "logits": logits,
            "ce": make_golden.loss_of(model, tokens, targets, auxiliary=False),
            "grad_norms": torch.zeros(1),
        }
    best = torch.cat(made.logits).topk(2, dim=-1)[0]
    golden = {name: tensor.contiguous() for name, tensor in golden.items()}
    safetensors.torch.save_file(golden, os.path.join(folder, "golden.safetensors"))
    apart = take_experts_apart(model)
    loss = make_golden.loss_of(model, tokens, targets)
    loss.backward()
    norm = 0
    for name, gradient in gradients_by_name(model, apart):
        safetensors.torch.save_file({name: gradient}, os.path.join(folder, f"{name}.gradient"))
        norm += sum(part.double().square().sum().item() for part in gradient.flatten().split(1 << 22))
    return {
        "gap": gap,
        "token_gap": (best[:, 0] - best[:, 1]).min().item(),
        "loss": loss.item(),
        "norm": norm**0.5,
        "prompt": numbers[:prompt],
        "made": made.sequences[0, prompt:].tolist(),
    }


def gradient_differences(folder, checkpoint, floor):
    """Of the first moments in a checkpoint of one rank, by parameter, from the gradients in `folder`,
    relative to their norms, or `floor` for those below it."""
    manifest = json.load(open(os.path.join(checkpoint, "checkpoint.json")))
    states = safetensors.safe_open(os.path.join(checkpoint, "rank-00000.safetensors"), "pt")
    sums = {}
    for unit in manifest["units"]:
        flat, at = states.get_tensor("m/" + unit["path"]), 0
        for param in unit["params"]:
            name, shape = param["name"], param["shape"]
            first, count = param.get("cut", {}).get("part", [0, shape[0]])
            file = safetensors.safe_open(os.path.join(folder, f"{name}.gradient"), "pt")
            expected = file.get_slice(name)[first : first + count].flatten()
            own = flat[at : at + expected.numel()]
            at += (expected.numel() + 15) // 16 * 16
            pair = sums.setdefault(name, [0, 0])
            for a, b in zip(own.split(1 << 22), expected.split(1 << 22)):
                pair[0] += (a.double() - b.double()).square().sum().item()
                pair[1] += b.double().square().sum().item()
    left = {path.name for path in pathlib.Path(folder).glob("*.gradient")}
    assert left == {f"{name}.gradient" for name in sums}, left
    return {name: difference**0.5 / max(norm**0.5, floor) for name, (difference, norm) in sums.items()}


def tensors_of(folder):
    tensors = {}
    for file in pathlib.Path(folder).glob("*.safetensors"):
        tensors |= safetensors.torch.load_file(file)
    return tensors


def check_saved_again(model, exported):
    """What Transformers saves of the exported model is what was exported, tensor for tensor."""
    again = exported + "_again"
    model.save_pretrained(again)
    own, theirs = tensors_of(exported), tensors_of(again)
    assert sorted(own) == sorted(theirs), sorted(set(own) ^ set(theirs))
    for name, tensor in own.items():
        assert tensor.dtype == theirs[name].dtype and torch.equal(tensor, theirs[name]), name


def logits_difference(folder, exported):
    """Of the exported model's logits from those after the steps of `case`, relative."""
    tokens, expected = torch.load(os.path.join(folder, "logits.pt"))
    model = load(exported)
    with torch.no_grad():
        logits = model(input_ids=tokens, use_cache=False).logits
    check_saved_again(model, exported)
    return ((logits - expected).norm() / expected.norm()).item()


def main():
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    answers = {"families": families, "routed_families": routed_families, "case": case,
                "logits": logits_difference, "bf16": bf16, "released": released,
                "gradients": gradient_differences}
    for line in sys.stdin:
        request = json.loads(line)
        answer = answers[request.pop("do")](**request)
        print(json.dumps(answer), flush=True)


main()
