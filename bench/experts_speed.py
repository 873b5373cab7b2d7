#!/usr/bin/env python3
"""A step of routed experts on CPU ranks: beside Transformers' implementations, and beside its price.

    bench/experts_speed.py [--build build] [--rounds 3] [--steps 6] [--threads 2] [--profile FILE]
                           [--only transformers|prices] [--text]

Four layers of Qwen3-MoE's shape (32 experts, 4 of each token, 512 wide, experts of 256; 8 heads, 4 of keys,
1,024 words), 2,048 tokens a step in sequences of 512, fp32, AdamW, gradients clipped to 1; tokens are drawn,
every word as often, from one file for all. In alternating rounds of one run: fsdp_train on one rank, and one
process of Transformers with `eager` and with `grouped_mm`, as many threads each; `batched_mm`, which copies
an expert's weights for each row, in the last round, on as many tokens as 8 GB hold. Then two ranks of one
thread each: experts gathered, and divided (expert=2), each beside what `fsdp_plan --price` says by --profile
(without it the machine is measured first) and the run's own imbalance; with --text on a text by bytes, whose
rows go to few experts. Medians of all steps but a round's first two. Status 1 if ours is less than 1.5 times
the fastest, or a price is off by more than 15%. Nothing else should run. $FSDP_TORCH_PYTHON is a Python with
torch and transformers.
"""
import argparse
import array
import json
import os
import pathlib
import random
import statistics
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench"))

from running import call, log_of, measure_profile  # noqa: E402

TOKENS, SEQ, WARM_UP = 2048, 512, 2
# 4 layers x 128 x 4 slots x 3 x 512 x 256 weights of 4 bytes are 3.2 GB, and their gradients.
BATCHED_TOKENS = 128
CONFIG = {
    "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "hidden_act": "silu",
    "hidden_size": 512,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64,
    "intermediate_size": 1024, "moe_intermediate_size": 256, "num_experts": 32, "num_experts_per_tok": 4,
    "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "vocab_size": 1024,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False,
    "initializer_range": 0.02, "output_router_logits": False, "use_sliding_window": False,
    "attention_bias": False,
}


def write_tokens(folder, steps):
    drawn = random.Random(1).choices(range(CONFIG["vocab_size"]), k=steps * TOKENS + 1)
    (pathlib.Path(folder) / "tokens.bin").write_bytes(array.array("H", drawn).tobytes())


def read_tokens(folder):
    return array.array("H", (pathlib.Path(folder) / "tokens.bin").read_bytes()).tolist()


def worker(folder, implementation, tokens, steps, threads):
    """Transformers' side: seconds of each step, as JSON."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(folder)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa",
                                             experts_implementation=implementation)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    seconds = []
    drawn = torch.tensor(read_tokens(folder))
    for step in range(steps):
        ids = drawn[step * tokens:(step + 1) * tokens].view(max(1, tokens // SEQ), min(tokens, SEQ))
        begin = time.perf_counter()
        model(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - begin)
    print(json.dumps(seconds))


def theirs(args, folder, implementation, tokens):
    threads = str(args.threads)
    said = call([args.python, __file__, "--worker", implementation, "--folder", folder, "--tokens", tokens,
                 "--steps", args.steps, "--threads", threads], OMP_NUM_THREADS=threads)
    return json.loads(said.splitlines()[-1])[WARM_UP:]


def ours(args, folder, ranks, words=()):
    """Seconds of each step, and the imbalance of each."""
    log = pathlib.Path(folder) / "log.jsonl"
    log.unlink(missing_ok=True)
    data = ["--tokenizer", "bytes"] if args.text else ["--data", pathlib.Path(folder) / "tokens.bin"]
    command = [args.build / "bin/fsdp_train", "--model", folder, "--init", "random", *data, "-s", SEQ,
               "-b", TOKENS // SEQ // ranks, "--wrap", "block", "--lr", "1e-4", "--set", "measure=off",
               "--threads", args.threads if ranks == 1 else 1, "--max-steps", args.steps, "--log", log,
               *words]
    call(command, ranks=ranks)
    lines = log_of(log)[WARM_UP:]
    return [line["time/total"] / 1e3 for line in lines], [line["moe/imbalance"] for line in lines]


def beside_transformers(args, folder):
    sides = {"fsdp_train": (TOKENS, []), "eager": (TOKENS, []), "grouped_mm": (TOKENS, []),
             "batched_mm": (BATCHED_TOKENS, [])}  # fmt: skip
    for number in range(args.rounds):
        for name, (tokens, seconds) in sides.items():
            if name == "batched_mm" and number + 1 < args.rounds:
                continue
            timed = ours(args, folder, 1)[0] if name == "fsdp_train" else theirs(args, folder, name, tokens)
            print(f"round {number + 1}, {name}:", *(f"{1e3 * each:.0f}" for each in timed), "ms",
                  file=sys.stderr, flush=True)  # fmt: skip
            seconds += timed
    print("| | tokens a step | median ms | tokens/s | ours is faster by |\n| --- | --- | --- | --- | --- |")
    rates = {name: tokens / statistics.median(seconds) for name, (tokens, seconds) in sides.items()}
    for name, (tokens, seconds) in sides.items():
        print(f"| {name} | {tokens} | {1e3 * statistics.median(seconds):.1f} | {rates[name]:.0f} | "
              f"{rates['fsdp_train'] / rates[name]:.2f} |")
    fastest = max(rate for name, rate in rates.items() if name != "fsdp_train")
    print(f"\n{rates['fsdp_train'] / fastest:.2f} times the fastest (wanted: 1.5)\n")
    return rates["fsdp_train"] >= 1.5 * fastest


def beside_prices(args, folder):
    if not args.profile:
        args.profile = measure_profile(args.build, 2, pathlib.Path(folder) / "profile.yaml", "--seconds", 60)
    meshes = {"experts gathered": ["--mesh", "fsdp=2"], "expert=2": ["--mesh", "fsdp=1,expert=2"]}
    seconds, loads = {name: [] for name in meshes}, {name: [] for name in meshes}
    for _ in range(args.rounds):
        for name, words in meshes.items():
            timed, imbalances = ours(args, folder, 2, words)
            print(f"{name}:", *(f"{1e3 * each:.0f}" for each in timed), "ms", file=sys.stderr, flush=True)
            seconds[name] += timed
            loads[name] += imbalances
    right = True
    print("| two ranks | imbalance | measured ms | price ms | error |\n| --- | --- | --- | --- | --- |")
    for name, words in meshes.items():
        imbalance = max(1, statistics.median(loads[name]))
        command = [args.build / "bin/fsdp_plan", "--model", folder, "--init", "random", "--ranks", 2,
                   "--backend", "cpu", "-s", SEQ, "-b", TOKENS // SEQ // 2, "--wrap", "block",
                   "--profile", args.profile, "--price", "--json", "--imbalance", imbalance, *words]
        answer = json.loads(call(command))
        price, measured = answer["time"]["step_ms"], 1e3 * statistics.median(seconds[name])
        right &= abs(price / measured - 1) <= 0.15
        print(f"| {name} | {imbalance:.2f} | {measured:.1f} | {price:.1f} | "
              f"{100 * (price / measured - 1):+.1f}% |")
    print("\nwanted: within 15%")
    return right


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--profile", type=pathlib.Path)
    parser.add_argument("--only", choices=("transformers", "prices"))
    parser.add_argument("--text", action="store_true", help="a text by bytes for ours")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--tokens", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.python = os.environ.get("FSDP_TORCH_PYTHON", sys.executable)
    if args.worker:
        worker(args.folder, args.worker, args.tokens, args.steps, args.threads)
        return
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
        write_tokens(folder, args.steps)
        results = []
        if args.only != "prices":
            results.append(beside_transformers(args, folder))
        if args.only != "transformers":
            results.append(beside_prices(args, folder))
    sys.exit(not all(results))


if __name__ == "__main__":
    main()
