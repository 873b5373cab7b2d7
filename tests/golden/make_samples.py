#!/usr/bin/env python3
"""Makes samples.json beside this file with Transformers in fp32 on a CPU: of a golden model of each family,
how it continues a prompt greedily, and its loss on a text.

    python3 -m venv /tmp/golden && /tmp/golden/bin/pip install torch transformers safetensors numpy
    /tmp/golden/bin/python tests/golden/make_samples.py

    prompt, tokens   the prompt, and the new tokens of generate(do_sample=False)
    text, seq, loss  tokens; the mean over the next tokens of its whole windows of `seq`

A prompt is drawn until each new token's logit is clear of the second one, so that rounding decides nothing.
"""

import json
import os

import torch
from transformers import AutoModelForCausalLM

MODELS = ["grouped", "gpt2_hub", "mistral_window", "qwen2_tied", "qwen3_heads"]
PROMPT, NEW, SEQ, CLEAR = 5, 14, 24, 0.02


def continued(model, generator):
    """A prompt, its continuation, and the least distance of the first two logits."""
    vocabulary = model.config.vocab_size
    prompt = torch.randint(1, vocabulary, (1, PROMPT), generator=generator)
    made = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=NEW,
                          min_new_tokens=NEW, eos_token_id=None, pad_token_id=0)  # fmt: skip
    logits = model(made).logits[0, PROMPT - 1 : -1]
    best = logits.topk(2).values
    assert torch.equal(logits.argmax(-1), made[0, PROMPT:])
    return prompt[0].tolist(), made[0, PROMPT:].tolist(), (best[:, 0] - best[:, 1]).min().item()


def loss_on(model, text):
    windows = (len(text) - 1) // SEQ
    tokens = text[: windows * SEQ].view(windows, SEQ)
    targets = text[1 : windows * SEQ + 1]
    logits = model(tokens).logits.double()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets).item()


@torch.no_grad()
def sample_of(folder, seed):
    generator = torch.Generator().manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    model.eval()
    while True:
        prompt, tokens, distance = continued(model, generator)
        if distance >= CLEAR and len(set(tokens)) > 4:
            break
    text = torch.randint(0, model.config.vocab_size, (7 * SEQ,), generator=generator)
    loss = loss_on(model, text)
    return {"prompt": prompt, "tokens": tokens, "text": text.tolist(), "seq": SEQ, "loss": loss}


def main():
    root = os.path.dirname(os.path.abspath(__file__))
    torch.set_num_threads(1)
    made = {name: sample_of(os.path.join(root, name), 500 + i) for i, name in enumerate(MODELS)}
    with open(os.path.join(root, "samples.json"), "w") as out:
        lines = ",\n".join(f' "{name}": {json.dumps(sample)}' for name, sample in made.items())
        out.write("{\n" + lines + "\n}\n")
    for name, sample in made.items():
        print(name, sample["prompt"], sample["tokens"], sample["loss"])


if __name__ == "__main__":
    main()
