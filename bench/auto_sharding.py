#!/usr/bin/env python3
"""Automatic sharding beside data parallel, FSDP and tensor parallel: the experiment of
AlibabaPAI/FlashModels@545b34b, docs/auto_sharding.md. A Llama of four layers (the preset llama-1b), 24 x 2048
tokens a step on four A100-80, bf16, attention without flash.

    bench/auto_sharding.py [--build build] [--out FILE.md]                             # prices
    bench/auto_sharding.py --measured [--rounds 3] [--steps 8] [--cpu-profile FILE]    # and steps on this CPU
    bench/auto_sharding.py --print-profile > plain.yaml                                # what is priced

Prices are fsdp_plan's on the profile a100-80 with attention of separate kernels that write the T x T scores.
Its rates are computed here from the bytes that these kernels move. No published step enters a price.
--measured runs a smaller shape of the same proportions under mpirun, all settings in turn in every round.
Without --cpu-profile this machine is first measured by fsdp_profile, for the search.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import running  # noqa: E402
from simulating import profiles  # noqa: E402

BASE = "a100-80"
RANKS, BATCH, SEQ, HEAD_DIM = 4, 24, 2048, 128
HIDDEN, VOCAB, LAYERS = 4096, 32000, 4
WARM_UP_STEPS = 2

# Samples a second in all and the ratio to FSDP, read off docs/resources/alpaca-result.png there.
PUBLISHED = {"dp": 46, "fsdp": 50, "tp": 33, "auto": 43}
NAMES = {"dp": "data parallel", "fsdp": "FSDP", "tp": "TP + SP", "tp_published": "TP + SP, as published",
         "auto": "automatic, mesh 4,1", "auto_free": "automatic"}


def settings(batch):
    """Options of the three settings by hand, for a global batch."""
    return {"dp": ["--strategy", "no", "--wrap", "block", "-b", str(batch // RANKS)],
            "fsdp": ["--strategy", "full", "--wrap", "block", "-b", str(batch // RANKS)],
            "tp": ["--mesh", f"fsdp=1,tensor={RANKS}", "--sharding", "fsdp-tp", "--wrap", "block",
                   "-b", str(batch)]}


# ---- Attention without flash -----------------------------------------------------------------------------

# Its kernels, and the bytes that each moves of a T x T matrix per element. Scores and their gradients are
# bf16; the softmax is computed in fp32, its result kept in fp32 for the backward and cast for the product
# (CoreAttention in flashmodels/patch/llama_model.py; torchacc turns XLA's softmax fusion off). Scale and
# mask are fused into the kernels that read the scores. Products: q k^T, p v; then dv, dp, dq, dk.
FORWARD = [("q k^T writes", 2), ("maxima of rows read", 2), ("sums of exponentials read", 2),
           ("probabilities: read, written in fp32 and bf16", 2 + 4 + 2), ("p v reads", 2)]
BACKWARD = [("p^T do reads", 2), ("do v^T writes", 2), ("sums of dp * p read", 2 + 4),
            ("gradient of the scores: reads both, written", 2 + 4 + 2), ("its products with k and q read", 4)]
PRODUCTS = {"forward": 2, "backward": 4}  # of T x T x D each


def attention_seconds(kernels, products, seq, head_dim, memory_rate, product_rate):
    """One head of one sequence: products move two T x D operands besides; each takes the greater of its
    bytes and FLOPs."""
    scores = 2 * seq * seq
    product = max((scores + 2 * 2 * seq * head_dim) / memory_rate, 2 * seq * seq * head_dim / product_rate)
    other = sum(width for _, width in kernels) * seq * seq - products * scores
    return products * product + other / memory_rate


def counted_flops(direction, seq, head_dim):
    """What profiles count of a head: causal pairs, two products forward and five backward (flash computes
    the scores again)."""
    return {"forward": 2, "backward": 5}[direction] * head_dim * seq * (seq + 1)


def base_rates():
    """Bytes and FLOPs a second of the shipped profile."""
    return profiles.number(BASE, "memory_gbps") * 1e9, profiles.product_tflops(BASE) * 1e12


def plain_profile():
    """As YAML, based on a100-80."""
    memory, product = base_rates()
    lines = ["# A100 80 GB whose attention is not flash: separate kernels that write the T x T scores.",
             "# bench/auto_sharding.py --print-profile computes it: seconds of a head = sum over kernels of",
             "# bytes / memory_gbps (products: or FLOPs / tflops, if greater), for T x T elements times:"]
    for title, kernels in (("forward", FORWARD), ("backward", BACKWARD)):
        lines += [f"#   {title}: {sum(width for _, width in kernels)} bytes:"]
        lines += [f"#     {name}: {width}" for name, width in kernels]
    lines += ["# and 4 D bytes a row for every product. Rates are FLOPs as flash counts them (causal:",
              "# 2 T (T + 1) D forward, 5 T (T + 1) D backward) over these seconds.",
              f"base: {BASE}", "name: a100-80-plain", "attention:"]
    for direction, kernels in (("forward", FORWARD), ("backward", BACKWARD)):
        rates = []
        for seq in (512, 1024, 2048, 4096, 8192):
            seconds = attention_seconds(kernels, PRODUCTS[direction], seq, HEAD_DIM, memory, product)
            rates.append(f"{seq}: {counted_flops(direction, seq, HEAD_DIM) / seconds / 1e12:.2f}")
        lines += [f"- {{kernel: plain, dtype: bf16, head_dim: {HEAD_DIM}, direction: {direction},",
                  f"   tflops: {{{', '.join(rates)}}},",
                  f'   source: "derived: bytes of its kernels at {memory / 1e9:g} GB/s, the memory rate of '
                  'a100-80"}']
    lines += ["use: {attention: plain}"]
    return "\n".join(lines) + "\n"


# ---- What the published TP + SP does besides -------------------------------------------------------------

def published_tp_collectives():
    """Those of a step: count, kind, bytes, what for. XLA's partitioner leaves them (how this was found: the
    results' page); an all-reduce of which a rank then takes its slice is a reduce-scatter. Norms make fp32
    rows of bf16 ones, for their weights are fp32; every product has its own sum of partial gradients;
    embedding and head are whole on every rank."""
    rows, table = BATCH * SEQ * HIDDEN, VOCAB * HIDDEN
    return [(2 * LAYERS, "all_gather", 4 * rows, "rows of norms, fp32, forward"),
            (2 * LAYERS, "reduce_scatter", 2 * rows, "outputs of attention and MLP, bf16"),
            (2 * LAYERS, "all_gather", 2 * rows, "their gradients, bf16"),
            (5 * LAYERS, "reduce_scatter", 2 * rows, "gradients of the inputs of q, k, v, gate and up, bf16"),
            (1, "all_gather", 4 * BATCH * SEQ * VOCAB, "logits, fp32"),
            (1, "all_reduce", 2 * table, "gradient of the head, bf16"),
            (1, "all_reduce", 4 * table, "gradient of the embedding, fp32")]


# Bytes that the loss moves of each logit: Transformers shifts them by a row and copies, then PyTorch's
# log-softmax and its backward, all in fp32.
LOSS = [("shifted copy: read, written", 4 + 4), ("maxima of rows read", 4), ("sums of exponentials read", 4),
        ("log-probabilities: read, written", 4 + 4), ("their gradient: read, written", 4 + 4)]


def published_tp(time):
    """From the price of TP + SP here, what the published sharding adds to it, in ms, by name. Its collectives
    stand between products that wait for them, so all of their time is exposed."""
    memory, _ = base_rates()
    sent = 1e3 * sum(count * profiles.collective_seconds(profiles.collective_curve(BASE, kind, RANKS), size)
                     for count, kind, size, _ in published_tp_collectives())
    whole = (RANKS - 1) / RANKS
    loss = sum(width for _, width in LOSS) * BATCH * SEQ * VOCAB
    return {"its collectives": sent,
            "less those here": -time["exposed"]["communication_ms"],
            "casts of gathered rows to bf16": 1e3 * 2 * LAYERS * (4 + 2) * BATCH * SEQ * HIDDEN / memory,
            "the loss of all logits on every rank": 1e3 * whole * loss / memory,
            # AdamW reads a gradient, and reads and writes three states, in fp32.
            "the update of embedding and head on every rank": 1e3 * whole * 28 * 2 * VOCAB * HIDDEN / memory}


# ---- Prices ----------------------------------------------------------------------------------------------

class Experiment:
    """A model, a batch and a machine."""

    def __init__(self, args, work, model, seq, batch, machine):
        self.bin, self.work = os.path.join(args.build, "bin"), work
        self.shape = ["--model", model, "-s", str(seq)]
        self.batch, self.machine = batch, machine  # machine: --profile and --backend

    def plan(self, options, *more):
        return running.call([os.path.join(self.bin, "fsdp_plan"), "--ranks", RANKS, *self.shape,
                             *self.machine, *options, *more])

    def price(self, options):
        return json.loads(self.plan(options, "--price", "--json"))

    def search(self, name, mesh):
        """The options of the fastest plan, as a file."""
        path = os.path.join(self.work, f"{name}.yaml")
        self.plan(["--mesh", mesh] if mesh else [], "--search", "--ranks-per-node", RANKS, "--global-batch",
                  self.batch, "--save-plan", path)
        return ["--config", path]

    def all_settings(self):
        return {**settings(self.batch), "auto": self.search("auto", f"{RANKS},1"),
                "auto_free": self.search("auto_free", None)}


def share_text(share):
    if share >= 1:
        return "whole"
    parts = round(1 / share) if share > 0 else 0
    return f"1/{parts}" if parts and abs(parts * share - 1) < 0.01 else f"{share:.2f}"


def shares(plan):
    """Of fp32 parameters, reduced gradients and AdamW's states, what a rank keeps. A rank's reduced
    gradients are those of the states that it updates, unless all ranks have the sum."""
    numel = plan["model"]["parameters"]
    kept = plan["memory"]["valley_by_category"]
    states = kept["optimizer"] / (8 * numel)
    gradients = 1 if plan["comm"]["all_reduce_bytes"] > numel else states
    return kept["parameters"] / (4 * numel), gradients, states


def saved_options(options):
    """What a command has, a saved file's lines included."""
    if options[:1] != ["--config"]:
        return " ".join(options)
    with open(options[1], encoding="utf-8") as file:
        lines = [line.split("#")[0].strip().replace('"', "") for line in file]
    same = ("model:", "profile:", "backend:", "seq-length:", "ranks:", "ranks-per-node:")
    return "; ".join(line for line in lines if line and not line.startswith(same))


def price_row(name, plan, base):
    time, memory = plan["time"], plan["memory"]
    rate = BATCH / time["step_ms"] * 1e3
    key = "auto" if name == "auto_free" else name
    published = f"{PUBLISHED[key]} | {PUBLISHED[key] / PUBLISHED['fsdp']:.2f}"
    return (f"| {NAMES[name]} | {time['step_ms']:.1f} | {rate:.1f} | {100 * time['mfu']:.1f}% | "
            f"{memory['valley_bytes'] / 1e9:.2f} | {memory['peak_bytes'] / 1e9:.2f} | "
            f"{', '.join(share_text(share) for share in shares(plan))} | "
            f"{time['exposed']['communication_ms']:.1f} | {base / time['step_ms']:.2f} | {published} |")


def price_table(plans):
    """Lines, and the ratios to FSDP by name."""
    base = plans["fsdp"]["time"]["step_ms"]
    rows = [price_row(name, plan, base) for name, plan in plans.items()]
    ratios = {name: base / plan["time"]["step_ms"] for name, plan in plans.items()}
    added = published_tp(plans["tp"]["time"])
    step = plans["tp"]["time"]["step_ms"] + sum(added.values())
    ratios["tp_published"] = base / step
    rows.append(f"| {NAMES['tp_published']} | {step:.1f} | {BATCH / step * 1e3:.1f} | | | | | | "
                f"{base / step:.2f} | {PUBLISHED['tp']} | {PUBLISHED['tp'] / PUBLISHED['fsdp']:.2f} |")
    head = ["| setting | step, ms | samples/s | MFU | valley, GB | peak, GB | a rank keeps of parameters, "
            "gradients, states | exposed, ms | to FSDP | published samples/s | to FSDP |",
            "| --- | ---: | ---: | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: |"]
    return head + rows, ratios, added


def verdicts(plans, ratios):
    """What the experiment asks, with whether it is so."""
    best = plans["auto"]["time"]["step_ms"]
    slower = [NAMES[name] for name in settings(BATCH) if plans[name]["time"]["step_ms"] < 0.9999 * best]
    lines = ["- automatic (mesh 4,1) is " + (f"slower than {', '.join(slower)}" if slower else
                                            "at least as fast as DP, FSDP and TP + SP")]
    _, gradients, states = shares(plans["auto"])
    lines.append(f"- it keeps of gradients {share_text(gradients)}, of states {share_text(states)}")
    for text, ours, published in (("FSDP / DP", 1 / ratios["dp"], PUBLISHED["fsdp"] / PUBLISHED["dp"]),
                                  ("TP + SP / FSDP", ratios["tp"], PUBLISHED["tp"] / PUBLISHED["fsdp"]),
                                  ("TP + SP as published / FSDP", ratios["tp_published"],
                                   PUBLISHED["tp"] / PUBLISHED["fsdp"])):
        lines.append(f"- {text}: {ours:.2f}, published {published:.2f}, {100 * (ours / published - 1):+.0f}%")
    return lines


def prices_document(args, work):
    lines, plain = [], os.path.join(work, "plain.yaml")
    with open(plain, "w", encoding="utf-8") as file:
        file.write(plain_profile())
    for title, profile in (("Plain attention, as published", plain), ("Flash attention", "a100-80")):
        machine = ["--profile", profile, "--backend", "cuda"]
        experiment = Experiment(args, work, "llama-1b", SEQ, BATCH, machine)
        options = experiment.all_settings()
        plans = {name: experiment.price(option) for name, option in options.items()}
        table, ratios, added = price_table(plans)
        lines += [f"## {title}", "", *table, "", *verdicts(plans, ratios), ""]
        lines += ["TP + SP as published is TP + SP with, in ms: " +
                  ", ".join(f"{name} {ms:+.1f}" for name, ms in added.items()) + ".", ""]
        lines += [f"- {NAMES[name]}: `{saved_options(option)}`" for name, option in options.items()] + [""]
    return lines


# ---- Measured --------------------------------------------------------------------------------------------

SMALL = running.llama(hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=8,
                      num_key_value_heads=8, vocab_size=2000, max_position_embeddings=128, rms_norm_eps=1e-6)
SMALL_SEQ = 128


def step_ms(experiment, options, steps):
    """Of one run: its median step after the warm-up."""
    log = pathlib.Path(experiment.work) / "log.jsonl"
    log.unlink(missing_ok=True)
    running.call([os.path.join(experiment.bin, "fsdp_train"), *experiment.shape, "--backend", "cpu", "--init",
                  "random", "--tokenizer", "bytes", "--max-steps", steps, "--log", log, "--log-freq", 1000000,
                  "--set=measure=off", *options], ranks=RANKS)
    return statistics.median([line["time/total"] for line in running.log_of(log)][WARM_UP_STEPS:])


def measure(args, work):
    """By setting: milliseconds, a value a round; the price of its step; and its options."""
    folder, profile = os.path.join(work, "model"), args.cpu_profile
    os.mkdir(folder)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(SMALL, file)
    if not profile:
        profile = running.measure_profile(pathlib.Path(args.build), RANKS, os.path.join(work, "cpu.yaml"),
                                          "--seconds", args.profile_seconds)
    machine = ["--profile", profile, "--backend", "cpu"]
    experiment = Experiment(args, work, folder, SMALL_SEQ, BATCH, machine)
    options = experiment.all_settings()
    times = {name: [] for name in options}
    for turn in range(args.rounds):
        for name in options if turn % 2 == 0 else reversed(list(options)):
            times[name].append(step_ms(experiment, options[name], args.steps))
    prices = {name: experiment.price(option)["time"]["step_ms"] for name, option in options.items()}
    return times, prices, options


def measured_lines(times, prices, options, cores):
    medians = {name: statistics.median(values) for name, values in times.items()}
    lines = ["## Measured", "",
             f"{RANKS} ranks on {cores} core{'s' if cores > 1 else ''}, {BATCH} x {SMALL_SEQ} tokens a step, "
             f"fp32, hidden size {SMALL['hidden_size']}, intermediate size {SMALL['intermediate_size']}, "
             f"vocabulary {SMALL['vocab_size']}, {SMALL['num_hidden_layers']} layers: the sizes of llama-1b "
             "divided by 16, but for the layers.", ""]
    if cores < RANKS:
        lines += [f"{RANKS} ranks share {cores} cores, so this does not show what {RANKS} machines would: "
                  "ranks wait for each other's turns, and what one rank communicates takes another's "
                  "core.", ""]
    lines += ["| setting | priced, ms | to FSDP | step of each round, ms | median | to FSDP |",
              "| --- | ---: | ---: | --- | ---: | ---: |"]
    for name, values in times.items():
        rounds = ", ".join(f"{value:.0f}" for value in values)
        lines.append(f"| {NAMES[name]} | {prices[name]:.0f} | {prices['fsdp'] / prices[name]:.2f} | "
                     f"{rounds} | {medians[name]:.0f} | {medians['fsdp'] / medians[name]:.2f} |")
    return lines + [""] + [f"- {NAMES[name]}: `{saved_options(option)}`"
                           for name, option in options.items()] + [""]


def parse():
    parser = argparse.ArgumentParser(description="Automatic sharding beside DP, FSDP and TP + SP",
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--build", default=os.path.join(ROOT, "build"), help="build folder")
    parser.add_argument("--print-profile", action="store_true",
                        help="print the profile with plain attention, and nothing else")
    parser.add_argument("--measured", action="store_true", help="also run a smaller shape on this CPU")
    parser.add_argument("--rounds", type=int, default=3, help="of --measured")
    parser.add_argument("--steps", type=int, default=8, help="of a run of --measured")
    parser.add_argument("--cpu-profile", help="of this machine, by fsdp_profile on four ranks")
    parser.add_argument("--profile-seconds", type=int, default=20, help="to measure this machine in")
    parser.add_argument("--out", help="write the document here instead of printing it")
    args = parser.parse_args()
    if args.rounds < 1 or args.steps <= WARM_UP_STEPS:
        parser.error(f"--rounds {args.rounds} --steps {args.steps}: at least 1 round, and more than the "
                     f"{WARM_UP_STEPS} steps that do not count")
    return args


def main():
    args = parse()
    if args.print_profile:
        sys.stdout.write(plain_profile())
        return
    with tempfile.TemporaryDirectory(prefix="fsdp-auto-") as work:
        lines = prices_document(args, work)
        if args.measured:
            lines += measured_lines(*measure(args, work), len(os.sched_getaffinity(0)))
    running.write(lines, args.out)


if __name__ == "__main__":
    main()
