"""PyTorch's side of bench/compare_gpu.py: a Llama in plain PyTorch under FSDP2, trained for a few steps on
one GPU (or, to try it out, on a CPU), from the same weights and tokens that fsdp_train draws.

Each decoder layer is compiled by itself and is one unit of fully_shard, as is the head with the final norm;
attention is scaled-dot-product attention by cuDNN or FlashAttention, whichever takes less time at this shape;
AdamW is fused, the loss is compiled.
Prints one JSON object: losses, seconds of each step, bytes at the peak, milliseconds of attention.

With --staged it shares the GPU with its caller. It prints {"stage": "imported"} before it uses the GPU, and
waits for a line. Then it makes the model, runs the first steps, in which everything is compiled, prints
{"stage": "compiled"}, and waits for a second line before the timed steps.
"""
import argparse
import importlib
import json
import math
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

MASK = 0xFFFFFFFF
USED_LATER = ("torch._dynamo", "torch._inductor.compile_fx", "torch.distributed.fsdp")
STAGED_STEPS = 3  # that compile, and so do not count (compare_gpu.py)
ATTENTION = ("CUDNN_ATTENTION", "FLASH_ATTENTION")
ATTENTION_RUNS = 8  # the fastest counts


# ---- The weights that fsdp_train draws (runtime/base/random.h) -------------------------------------------

def xxh64(data):
    """XXH64 with seed 0."""
    p1, p2, p3, p4, p5 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63,
                          0x27D4EB2F165667C5)
    word = (1 << 64) - 1

    def rotate(x, bits):
        return (x << bits | x >> (64 - bits)) & word

    def turn(sum_, lane):
        return rotate((sum_ + lane * p2) & word, 31) * p1 & word

    def lane(at, size):
        return int.from_bytes(data[at:at + size], "little")

    at, total = 0, len(data)
    if total >= 32:
        sums = [(p1 + p2) & word, p2, 0, -p1 & word]
        while at + 32 <= total:
            sums = [turn(s, lane(at + 8 * i, 8)) for i, s in enumerate(sums)]
            at += 32
        value = sum(rotate(s, bits) for s, bits in zip(sums, (1, 7, 12, 18))) & word
        for s in sums:
            value = ((value ^ turn(0, s)) * p1 + p4) & word
    else:
        value = p5
    value = (value + total) & word
    while at + 8 <= total:
        value = (rotate(value ^ turn(0, lane(at, 8)), 27) * p1 + p4) & word
        at += 8
    if at + 4 <= total:
        value = (rotate(value ^ (lane(at, 4) * p1 & word), 23) * p2 + p3) & word
        at += 4
    for byte in data[at:]:
        value = rotate(value ^ (byte * p5 & word), 11) * p1 & word
    value = (value ^ value >> 33) * p2 & word
    value = (value ^ value >> 29) * p3 & word
    return value ^ value >> 32


def philox(seed, stream, index):
    """The four words of Philox-4x32-10 for each counter; 64-bit products keep their bits."""
    c = [index & MASK, index >> 32]
    c += [torch.full_like(index, half) for half in (stream & MASK, stream >> 32)]
    k = [seed & MASK, seed >> 32]
    for _ in range(10):
        p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(p1 >> 32 & MASK) ^ c[1] ^ k[0], p1 & MASK, (p0 >> 32 & MASK) ^ c[3] ^ k[1], p0 & MASK]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return c


def draw_normal(out, name, seed, deviation, blocks_at_once=1 << 22):
    """Fills a flat tensor with the parameter's numbers."""
    stream = xxh64(name.encode())
    for first in range(0, out.numel(), 4 * blocks_at_once):
        count = min(4 * blocks_at_once, out.numel() - first)
        index = torch.arange(first // 4, first // 4 + (count + 3) // 4, device=out.device)
        words = [word.double() for word in philox(seed, stream, index)]
        parts = []
        for a, b in (words[:2], words[2:]):
            radius = torch.sqrt(-2.0 * torch.log((a + 1.0) * 2.0 ** -32))
            angle = 2 * math.pi * (b * 2.0 ** -32)
            parts += [radius * torch.cos(angle), radius * torch.sin(angle)]
        out[first:first + count] = (torch.stack(parts, 1).flatten()[:count].float() * deviation).to(out.dtype)


# ---- The model -------------------------------------------------------------------------------------------

class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.kv_heads, self.head = c["heads"], c["kv_heads"], c["hidden"] // c["heads"]
        self.q_proj = nn.Linear(c["hidden"], self.heads * self.head, bias=False)
        self.k_proj = nn.Linear(c["hidden"], self.kv_heads * self.head, bias=False)
        self.v_proj = nn.Linear(c["hidden"], self.kv_heads * self.head, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head, c["hidden"], bias=False)

    @staticmethod
    def rotate(x, cosine, sine):
        low, high = x.float().chunk(2, -1)
        return torch.cat((low * cosine - high * sine, high * cosine + low * sine), -1).type_as(x)

    def forward(self, x, cosine, sine):
        shape = (x.shape[0], x.shape[1], -1, self.head)
        q = self.rotate(self.q_proj(x).view(shape), cosine, sine).transpose(1, 2)
        k = self.rotate(self.k_proj(x).view(shape), cosine, sine).transpose(1, 2)
        v = self.v_proj(x).view(shape).transpose(1, 2)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        return self.o_proj(o.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c["hidden"], c["intermediate"], bias=False)
        self.up_proj = nn.Linear(c["hidden"], c["intermediate"], bias=False)
        self.down_proj = nn.Linear(c["intermediate"], c["hidden"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.self_attn, self.mlp = Attention(c), MLP(c)
        self.input_layernorm = nn.RMSNorm(c["hidden"], eps=c["eps"])
        self.post_attention_layernorm = nn.RMSNorm(c["hidden"], eps=c["eps"])

    def forward(self, x, cosine, sine):
        x = x + self.self_attn(self.input_layernorm(x), cosine, sine)
        return x + self.mlp(self.post_attention_layernorm(x))


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab"], c["hidden"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["layers"]))
        self.norm = nn.RMSNorm(c["hidden"], eps=c["eps"])

    def forward(self, tokens, cosine, sine):
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, cosine, sine)
        return self.norm(x)


class Llama(nn.Module):
    """Names of parameters are Hugging Face's, from which the numbers follow."""
    def __init__(self, c):
        super().__init__()
        self.model = Model(c)
        self.lm_head = nn.Linear(c["hidden"], c["vocab"], bias=False)

    def forward(self, tokens, cosine, sine):
        return self.lm_head(self.model(tokens, cosine, sine))


def angles(c, seq, device):
    half = c["hidden"] // c["heads"] // 2
    inv_freq = 1.0 / c["theta"] ** (torch.arange(half, dtype=torch.float64) / half)
    turns = (torch.arange(seq, dtype=torch.float64)[:, None] * inv_freq)[:, None]
    return turns.cos().float().to(device), turns.sin().float().to(device)


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


# ---- Training --------------------------------------------------------------------------------------------

def build(args):
    """Checkpointing, then compilation, then sharding of each layer; memory and weights last."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    state = torch.bfloat16 if args.state == "bf16" else torch.float32
    with torch.device("meta"):
        model = Llama(args.shape).to(state)
    layers = model.model.layers
    for i, layer in enumerate(layers):
        if args.recompute == "block":
            layer = checkpoint_wrapper(layer)
        layers[i] = torch.compile(layer) if args.compile else layer
    if not args.plain:
        # A layer's inputs have its dtype already, but for the angles, which stay in fp32 as ours do.
        policy = MixedPrecisionPolicy(param_dtype=getattr(torch, args.compute), reduce_dtype=state,
                                      cast_forward_inputs=False)
        mesh = dist.device_mesh.init_device_mesh(args.device, (1,))
        # The head's parameters are freed after its backward alone: it is the next to be needed.
        for unit in [model.model.embed_tokens, *layers]:
            fully_shard(unit, mesh=mesh, mp_policy=policy)
        head = [model.model.norm, model.lm_head]
        fully_shard(head, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
        fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device=args.device)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            name = name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "")
            local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            if "norm" in name:
                local.fill_(1.0)
            else:
                draw_normal(local.view(-1), name, 0, 0.02)
    return model


def synchronize(args):
    if args.device == "cuda":
        torch.cuda.synchronize()


def time_attention(args):
    """Milliseconds of a layer's attention, forward and backward, by each implementation that can run it."""
    c, found = args.shape, {}
    dtype = getattr(torch, args.compute)
    head = c["hidden"] // c["heads"]
    q, k, v = (torch.randn(args.batch, heads, args.seq, head, device=args.device, dtype=dtype,
                           requires_grad=True) for heads in (c["heads"], c["kv_heads"], c["kv_heads"]))

    def run():
        synchronize(args)
        began = time.perf_counter()
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=c["heads"] != c["kv_heads"])
        torch.autograd.grad(o, (q, k, v), torch.ones_like(o))
        synchronize(args)
        return time.perf_counter() - began

    for name in ATTENTION:
        try:
            with sdpa_kernel(getattr(SDPBackend, name)):
                found[name] = 1e3 * min(run() for _ in range(ATTENTION_RUNS))
        except RuntimeError as failure:
            print(f"{name} cannot run here: {failure}", flush=True)
    return found


def train_step(args, model, optimizer, loss_function, rows, turns):
    """One step; the loss is looked at, as fsdp_train does in every step."""
    optimizer.zero_grad(set_to_none=True)
    inputs = rows.to(args.device, non_blocking=True)
    with torch.autocast(args.device, getattr(torch, args.compute), enabled=args.plain and args.state == "fp32"
                        and args.compute == "bfloat16"):
        logits = model(inputs[:, :-1].contiguous(), *turns)
        loss = loss_function(logits, inputs[:, 1:].contiguous())
    del logits
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), args.optimizer["grad_clip"])
    optimizer.step()
    return loss.item()


def peak_bytes(args):
    if args.device != "cuda":
        return {}
    free, total = torch.cuda.mem_get_info()
    return {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved(),
            "driver": total - free}


def stage(args, name):
    if args.staged:
        print(json.dumps({"stage": name}), flush=True)
        if not sys.stdin.readline():
            sys.exit("the caller has ended")


def train(args):
    for module in USED_LATER if args.staged else ():
        importlib.import_module(module)
    stage(args, "imported")
    os.environ.update(LOCAL_RANK="0", GLOO_SOCKET_IFNAME="lo", NCCL_SOCKET_IFNAME="lo")
    if args.device == "cuda":
        torch.cuda.set_device(0)
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo", store=dist.HashStore(), rank=0,
                            world_size=1)
    torch.manual_seed(0)
    with open(args.rows, encoding="utf-8") as file:
        steps = json.load(file)
    args.batch = len(steps[0])
    attention = time_attention(args)
    order = sorted(attention, key=attention.get) + ["EFFICIENT_ATTENTION", "MATH"]
    with sdpa_kernel([getattr(SDPBackend, name) for name in order], set_priority=True):
        result = run_steps(args, steps)
    print(json.dumps({**result, "attention_ms": attention}))
    dist.destroy_process_group()


def run_steps(args, steps):
    """Losses, seconds and bytes at the peak."""
    model = build(args)
    o = args.optimizer
    optimizer = torch.optim.AdamW(model.parameters(), lr=o["lr"], betas=(o["beta1"], o["beta2"]),
                                  eps=o["eps"], weight_decay=o["weight_decay"], fused=True)
    loss_function = torch.compile(loss_of) if args.compile else loss_of
    turns = angles(args.shape, args.seq, args.device)
    text = torch.frombuffer(bytearray(open(args.data, "rb").read()), dtype=torch.uint8)
    losses, seconds = [], []
    for step, samples in enumerate(steps):
        if step == STAGED_STEPS:
            stage(args, "compiled")
        rows = torch.stack([text[i * args.seq:(i + 1) * args.seq + 1] for i in samples]).long()
        synchronize(args)
        began = time.perf_counter()
        losses.append(train_step(args, model, optimizer, loss_function, rows, turns))
        seconds.append(time.perf_counter() - began)
    return {"losses": losses, "seconds": seconds, "peak": peak_bytes(args)}


def measure_peak(args, size=8192, runs=20):
    """FLOP/s of a bf16 (fp32 on a CPU) product on random numbers: the best of three."""
    dtype, size = (torch.bfloat16, size) if args.device == "cuda" else (torch.float32, 1024)
    a, b = (torch.randn(size, size, device=args.device).to(dtype) for _ in range(2))
    best = float("inf")
    for _ in range(3):
        for _ in range(3):
            a @ b
        synchronize(args)
        began = time.perf_counter()
        for _ in range(runs):
            a @ b
        synchronize(args)
        best = min(best, (time.perf_counter() - began) / runs)
    name = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
    print(json.dumps({"flops": 2 * size ** 3 / best, "size": size, "device": name, "torch": torch.__version__,
                      "cuda": torch.version.cuda}))


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["peak", "train"])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--shape", type=json.loads)
    parser.add_argument("--optimizer", type=json.loads)
    parser.add_argument("--seq", type=int)
    parser.add_argument("--state", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--compute", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--recompute", choices=["none", "block"], default="none")
    parser.add_argument("--rows", help="JSON: samples of each step")
    parser.add_argument("--data", help="the text that samples are cut from")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--plain", action="store_true", help="without FSDP2")
    parser.add_argument("--staged", action="store_true", help="wait for a line on the standard input")
    return parser.parse_args()


if __name__ == "__main__":
    arguments = parse()
    measure_peak(arguments) if arguments.what == "peak" else train(arguments)
