"""Dropout's masks as runtime/base/random.h describes them, written by itself, and models that multiply by
them: where GPT-2 has dropout modules, and at the same places of the other families."""

import re

import numpy as np
import torch

WORD, LONG = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
PRIMES = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)


def rotate(value, bits):
    return (value << bits | value >> 64 - bits) & LONG


def xxh64(text):
    """XXH64 of a name with seed 0, by its specification."""
    data, first, second, third, fourth, fifth = text.encode(), *PRIMES
    length = len(data)

    def mix(lane, word):
        return rotate((lane + word * second) & LONG, 31) * first & LONG

    if length >= 32:
        lanes = [(first + second) & LONG, second, 0, -first & LONG]
        while len(data) >= 32:
            for i in range(4):
                lanes[i] = mix(lanes[i], int.from_bytes(data[8 * i : 8 * i + 8], "little"))
            data = data[32:]
        value = sum(rotate(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18))) & LONG
        for lane in lanes:
            value = ((value ^ mix(0, lane)) * first + fourth) & LONG
    else:
        value = fifth
    value = (value + length) & LONG
    while len(data) >= 8:
        value ^= mix(0, int.from_bytes(data[:8], "little"))
        value, data = (rotate(value, 27) * first + fourth) & LONG, data[8:]
    if len(data) >= 4:
        value ^= int.from_bytes(data[:4], "little") * first & LONG
        value, data = (rotate(value, 23) * second + third) & LONG, data[4:]
    for byte in data:
        value ^= byte * fifth & LONG
        value = rotate(value, 11) * first & LONG
    value = (value ^ value >> 33) * second & LONG
    value = (value ^ value >> 29) * third & LONG
    return value ^ value >> 32


def philox(rounds, key, counter):
    """Philox-4x32 of arrays of 64-bit keys and of counters of four 32-bit words: four arrays of words."""
    c = [np.asarray(word, np.uint64) for word in counter]
    k = [np.asarray(key, np.uint64) & np.uint64(WORD), np.asarray(key, np.uint64) >> np.uint64(32)]
    for _ in range(rounds):
        even, odd = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        low, high = np.uint64(WORD), np.uint64(32)
        c = [(odd >> high) ^ c[1] ^ k[0], odd & low, (even >> high) ^ c[3] ^ k[1], even & low]
        k = [(k[0] + np.uint64(0x9E3779B9)) & low, (k[1] + np.uint64(0xBB67AE85)) & low]
    return c


def keys_of_rows(seed, step, sequences, positions):
    """The words of every row of a step as 64-bit numbers: (sequences, positions)."""
    sequence, position = np.meshgrid(np.arange(sequences), np.arange(positions), indexing="ij")
    stream = (xxh64("dropout") + step) & LONG
    words = philox(10, seed, (position, sequence, stream & WORD, stream >> 32))
    return (words[0] | np.uint64(1)) | words[1] << np.uint64(32)


class Masks:
    """The factors of a step's dropout, by the module whose output is dropped."""

    def __init__(self, rates, seed=0):
        self.rates, self.seed, self.step = rates, seed, 0

    def factors(self, module, rate, sequences, positions, columns, heads=1):
        keys = keys_of_rows(self.seed, self.step, sequences, positions) ^ np.uint64(xxh64(module))
        groups = -(-columns // 4)
        shape = (sequences, heads, positions, groups)
        head = np.broadcast_to(np.arange(heads)[None, :, None, None], shape)
        group = np.broadcast_to(np.arange(groups)[None, None, None, :], shape)
        key = np.broadcast_to(keys[:, None, :, None], shape)
        words = np.stack(philox(7, key, (group, 0 * group, head, 0 * head)), -1)
        words = words.reshape(sequences, heads, positions, 4 * groups)[..., :columns]
        kept = words >= np.uint64(int(float(np.float32(rate)) * 2**32))
        return torch.from_numpy(kept.astype(np.float32) / (1 - np.float32(rate)))

    def drop(self, module, rate, x):
        return x * self.factors(module, rate, *x.shape)[:, 0]

    def drop_probabilities(self, module, p):
        sequences, heads, queries, keys = p.shape
        return p * self.factors(module, self.rates[1], sequences, queries, keys, heads)


class MaskedDropout(torch.nn.Module):
    def __init__(self, drop):
        super().__init__()
        self.drop = drop

    def forward(self, x):
        return self.drop(x)


def install(model, masks):
    """Lets the model drop: (embedding, attention, residual) are the rates."""
    embedding, _, residual = masks.rates
    plain = torch.nn.functional.dropout
    current = []

    def hook(module, rate):
        return lambda _, inputs, output: masks.drop(module, rate, output)

    def drop(x, *args, **options):
        attends = current and x.dim() == 4
        return masks.drop_probabilities(current[-1], x) if attends else plain(x, *args, **options)

    for name, module in list(model.named_modules()):
        if name in ("transformer.wte", "model.embed_tokens"):
            if name == "transformer.wte":
                model.transformer.drop = MaskedDropout(lambda x: masks.drop("transformer.wte", embedding, x))
            else:
                module.register_forward_hook(hook(name, embedding))
        elif re.search(r"(self_attn\.o_proj|mlp\.down_proj|attn\.c_proj|mlp\.c_proj)$", name):
            module.register_forward_hook(hook(name, residual))
        elif name.endswith(("self_attn", ".attn")):
            module.register_forward_pre_hook(lambda _, inputs, name=name: current.append(name))
            module.register_forward_hook(lambda _, inputs, output: current.pop() and None)
    torch.nn.functional.dropout = drop
