"""A search with one option fixed to what the free search did not choose finds nothing faster, by more than
0.5%: over models from tiny to 405B, 1 to 16,384 ranks, batches, sequences, profiles, nodes, limits and states
on the host. Nor is a setting of all options faster: half of them are drawn whole, half differ from the plan
that was found in two to four. What the search cuts without a bound, and what its grid lacks, shows here.

    test_search_pairs.py --pairs 300 --ranks-max 16384 --named    all of them, printed; hours of a core's time
    test_search_pairs.py --pairs 3 --seed 7 --only 12             one free search again
    test_search_pairs.py --settings 2000                          settings of all options
"""

import argparse
import itertools
import json
import random

import programs

TOLERANCE = 0.005
# Pairs of one free search.
FIXED = 3
# Settings of one free search.
SETTINGS = 20
LARGE = ["llama2-7b", "llama3-8b", "mistral-7b", "qwen2.5-7b", "llama2-13b", "llama2-70b", "llama3-405b"]
MODELS = ["tiny", "gpt2"] * 6 + ["gpt2-xl", "llama-1b"] * 3 + LARGE
LONGEST = {"gpt2": 1024, "gpt2-xl": 1024, "llama2-7b": 4096, "llama2-13b": 4096, "llama2-70b": 4096}
PROFILES = {"a100-40": 40e9, "a100-80": 80e9, "h100-sxm": 80e9, "h200": 141e9, "b200": 180e9}
HEADS = {"tiny": 8, "gpt2": 12, "gpt2-xl": 25, "llama-1b": 16, "llama2-13b": 40, "qwen2.5-7b": 28,
         "qwen2.5-14b": 40, "llama2-70b": 64, "llama3-70b": 64, "llama3-405b": 128}  # fmt: skip
# Free searches of 405B that found less than one with --tensor-parallel 16, when tensor stayed inside nodes.
NAMED = [(ranks, ranks // 8, option) for ranks in (4096, 16384)
         for option in (["--tensor-parallel", 16], ["--tensor-parallel", 8], ["--prefetch", 3])]  # fmt: skip

# What a free search found nothing of: what is saved with a prefetch that it had not tried it with; units
# inside layers with a deep prefetch, of the best kind; a kind whose estimates from few layers prefer the
# wrong units; weights that nothing shards, cast once a step; units inside layers with a deep prefetch, of
# a kind that is listed sixth; a micro-batch whose offloading waits less for memory; half of the micro-batch,
# where that waits less; attention's values made again where all would fit; tensor of more ranks than heads;
# the MLPs of layers as units, and their attention in the root's; one value made again while another goes to
# the host, where all would fit; rows that tensor does not cut, in the units and prefetch of the best plan of
# another kind; units that leave a part of each layer to the root's, gathered four ahead, of a kind that is
# listed second; context of fewer rows, where no smaller one lets the ranks divide the sequences; tensor of
# more ranks than heads over several nodes, where a step has few rows; a kind that needs more values on the
# host than the usual choices send there; a value on the host alone, where all would fit;
# context of one row, where heads are too few for the ranks too; units by size and finer choices of what is
# saved, of a kind that is listed seventh with a unit for each layer; a value on the host, without which a
# plan of those units waits for memory; units that leave a part of each layer to the root's, one ahead, where
# the same kind's plan is listed with two; such units of a plan that is listed fifth, 0.2% behind the best;
# another strategy than the best plan's, with such units gathered further ahead and a value on the host;
# twice the micro-batch with one unit less gathered ahead, where all that layers save is fifty times the
# memory; MLPs as units, of a kind that is 7% behind the best and not listed with a unit for each layer; six
# units gathered ahead, where the best plan waits for memory with four; tensor outside fsdp, where nodes'
# borders divide its groups unevenly if it is inside; tensor of more ranks than a node outside fsdp;
# context outside data, where nodes' borders divide its groups unevenly if it is inside.
FOUND_FIXED = (
    (["--model", "qwen2.5-7b", "--profile", "h100-sxm", "--ranks", 8, "--ranks-per-node", 2, "-s", 4096,
      "--global-batch", 32, "--memory-limit", 64000000000],
     ["--mesh", "data=1,fsdp=8", "--strategy", "grad_op", "--batch-size", 2, "--grad-accum", 2,
      "--recompute", "none"]),
    (["--model", "llama-1b", "--profile", "a100-40", "--ranks", 4, "-s", 1024, "--global-batch", 8,
      "--mesh", "4,1", "--strategy", "full", "--memory-limit", 12000000000],
     ["--prefetch", 4, "--wrap", "size", "--numel-to-wrap", 16777216]),
    (["--model", "llama3-8b", "--profile", "a100-40", "--ranks", 64, "--ranks-per-node", 2, "-s", 128,
      "--global-batch", 512, "--tensor-parallel", 4],
     ["--prefetch", 2]),
    (["--model", "llama-1b", "--profile", "h200", "--ranks", 4, "-s", 1024, "--global-batch", 3,
      "--memory-limit", 112800000000, "--reduce-dtype", "bf16"],
     ["--strategy", "grad_op"]),
    (["--model", "llama-1b", "--profile", "a100-40", "--ranks", 3, "-s", 4096, "--global-batch", 3,
      "--ranks-per-node", 1, "--memory-limit", 6000000000],
     ["--prefetch", 4]),
    (["--model", "llama3-405b", "--profile", "b200", "--ranks", 24, "-s", 2048, "--global-batch", 192,
      "--ranks-per-node", 1, "--mesh", "data=1,fsdp=24", "--strategy", "full", "--cpu-offload", "on",
      "--recompute", "rmsnorm,swiglu"],
     ["--batch-size", 4]),
    (["--model", "llama2-13b", "--profile", "a100-40", "--ranks", 64, "-s", 4096, "--global-batch", 128,
      "--ranks-per-node", 4, "--memory-limit", 12000000000, "--cpu-offload", "on"],
     ["--grad-accum", 2]),
    (["--model", "tiny", "--profile", "b200", "--ranks", 128, "-s", 2048, "--global-batch", 3,
      "--memory-limit", 144000000000],
     ["--recompute", "attention"]),
    (["--model", "tiny", "--profile", "a100-80", "--ranks", 384, "-s", 1024, "--global-batch", 2,
      "--cpu-offload", "on"],
     ["--tensor-parallel", 6]),
    (["--model", "qwen2.5-7b", "--profile", "a100-40", "--ranks", 64, "-s", 128, "--global-batch", 24],
     ["--wrap", "size", "--numel-to-wrap", 196639556]),
    (["--model", "gpt2-xl", "--profile", "a100-40", "--ranks", 32, "-s", 1024, "--global-batch", 8,
      "--memory-limit", 20000000000, "--host-memory-limit", 64000000000],
     ["--offload-activations", "linear"]),
    (["--model", "llama2-7b", "--profile", "h100-sxm", "--ranks", 4096, "-s", 2048, "--global-batch", 1536,
      "--ranks-per-node", 1, "--memory-limit", 12000000000, "--host-memory-limit", 256000000000,
      "--context-parallel", 2, "--tensor-parallel", 4, "--offload-activations", "none"],
     ["--cpu-offload", "on"]),
    (["--model", "llama-1b", "--profile", "b200", "--ranks", 1, "-s", 512, "--global-batch", 3,
      "--memory-limit", 144000000000, "--host-memory-limit", 16000000000],
     ["--strategy", "grad_op"]),
    (["--model", "gpt2", "--profile", "h200", "--ranks", 6, "-s", 512, "--global-batch", 4,
      "--ranks-per-node", 2, "--memory-limit", 42300000000, "--reduce-dtype", "bf16"],
     ["--context-parallel", 3]),
    (["--model", "qwen2.5-7b", "--profile", "a100-80", "--ranks", 64, "-s", 128, "--global-batch", 4],
     ["--tensor-parallel", 64]),
    (["--model", "llama3-405b", "--profile", "b200", "--ranks", 256, "-s", 8192, "--global-batch", 128],
     ["--strategy", "zero1"]),
    (["--model", "qwen2.5-7b", "--profile", "h200", "--ranks", 8, "-s", 1024, "--global-batch", 8],
     ["--offload-activations", "block_inputs"]),
    (["--model", "gpt2", "--profile", "b200", "--ranks", 16384, "-s", 128, "--global-batch", 1,
      "--ranks-per-node", 4, "--cpu-offload", "on"],
     ["--context-parallel", 32]),
    (["--model", "llama2-13b", "--profile", "a100-80", "--ranks", 4096, "-s", 4096, "--global-batch", 512,
      "--ranks-per-node", 1, "--memory-limit", 12000000000, "--host-memory-limit", 16000000000],
     ["--prefetch", 2]),
    (["--model", "gpt2", "--profile", "a100-40", "--ranks", 2, "-s", 128, "--global-batch", 4,
      "--ranks-per-node", 1, "--memory-limit", 20000000000, "--host-memory-limit", 16000000000,
      "--reduce-dtype", "bf16"],
     ["--offload-activations", "attention"]),
    (["--model", "mistral-7b", "--profile", "a100-40", "--ranks", 256, "-s", 8192, "--global-batch", 4,
      "--memory-limit", 6000000000, "--reduce-dtype", "bf16"],
     ["--prefetch", 1]),
    (["--model", "llama3-405b", "--profile", "h200", "--ranks", 8192, "-s", 2048, "--global-batch", 8,
      "--memory-limit", 112800000000],
     ["--numel-to-wrap", 876366625, "--wrap", "size"]),
    (["--model", "qwen2.5-7b", "--profile", "a100-80", "--ranks", 1024, "-s", 128, "--global-batch", 2048,
      "--ranks-per-node", 2, "--host-memory-limit", 64000000000],
     ["--prefetch", 2]),
    (["--model", "llama3-405b", "--profile", "h100-sxm", "--ranks", 192, "-s", 8192, "--global-batch", 384,
      "--ranks-per-node", 2, "--memory-limit", 24000000000, "--mesh", "data=1,fsdp=96,tensor=2",
      "--strategy", "full", "--cpu-offload", "on"],
     ["--batch-size", 4, "--grad-accum", 1, "--wrap", "size", "--numel-to-wrap", 570425344, "--prefetch", 1,
      "--sequence-parallel", "off", "--recompute", "block", "--offload-activations",
      "block_inputs,residual:post_attention_layernorm,linear:q_proj,linear:gate_proj,attention"]),
    (["--model", "mistral-7b", "--profile", "b200", "--ranks", 96, "-s", 128, "--global-batch", 1536,
      "--memory-limit", 27000000000, "--host-memory-limit", 16000000000],
     ["--mesh", "data=1,fsdp=24,tensor=4", "--strategy", "zero1"]),
    (["--model", "qwen2.5-7b", "--profile", "b200", "--ranks", 3, "-s", 128, "--global-batch", 3,
      "--ranks-per-node", 1, "--memory-limit", 90000000000],
     ["--prefetch", 6]),
    (["--model", "qwen2.5-7b", "--profile", "h200", "--ranks", 12, "-s", 512, "--global-batch", 8,
      "--memory-limit", 42300000000, "--reduce-dtype", "bf16"],
     ["--mesh", "data=1,tensor=6,context=1,fsdp=2"]),
    (["--model", "llama-1b", "--profile", "h200", "--ranks", 32, "-s", 512, "--global-batch", 4,
      "--reduce-dtype", "bf16"],
     ["--mesh", "data=1,tensor=16,fsdp=1,context=2"]),
    (["--model", "tiny", "--profile", "h100-sxm", "--ranks", 12, "-s", 2048, "--global-batch", 2,
      "--memory-limit", 24000000000],
     ["--mesh", "context=6,data=2,fsdp=1", "--strategy", "no"]),
)  # fmt: skip
# Where a free search finds no plan, one of these finds none either.
FRUGAL = (["--prefetch", 0], ["--wrap", "none"], ["--recompute", "block"], ["--recompute", "none"],
          ["--batch-size", 1], ["--accumulate", "reduce"])  # fmt: skip


def divisors(number):
    return [d for d in range(1, number + 1) if number % d == 0]


def draw_scenario(random_, ranks_max):
    model, profile = random_.choice(MODELS), random_.choice(list(PROFILES))
    power = random_.randint(0, ranks_max.bit_length() - 1)
    ranks = min((1 << power) * random_.choice([1, 1, 1, 3]), ranks_max)
    seq = min(random_.choice([128, 512, 1024, 2048, 4096, 8192, 32768]), LONGEST.get(model, 8192))
    words = ["--model", model, "--profile", profile, "--ranks", ranks, "-s", seq]
    each = random_.choice([1, 2, 3, 4, 8, 16])
    words += ["--global-batch", each * random_.choice([1, ranks, max(1, ranks // 8)])]
    if random_.random() < 0.4:
        words += ["--ranks-per-node", random_.choice([d for d in (1, 2, 4, 8, 16) if ranks % d == 0])]
    if random_.random() < 0.5:
        words += ["--memory-limit", int(PROFILES[profile] * random_.choice([0.15, 0.3, 0.5, 0.8]))]
    if random_.random() < 0.2:
        words += ["--host-memory-limit", int(random_.choice([16e9, 64e9, 256e9]))]
    if random_.random() < 0.1:
        words += ["--cpu-offload", "on"]
    if random_.random() < 0.2:
        words += ["--reduce-dtype", "bf16"]
    return words


def draw_mesh(random_, ranks):
    sizes, names = [], ["data", "fsdp"] + random_.sample(["context", "tensor"], random_.randint(0, 2))
    for _ in names[1:]:
        sizes.append(random_.choice(divisors(ranks)))
        ranks //= sizes[-1]
    random_.shuffle(names)
    return ",".join(f"{name}={size}" for name, size in zip(names, [*sizes, ranks]))


def values_of(random_, words, chosen):
    """What each option may be, drawn where there are too many."""
    ranks, model = words[words.index("--ranks") + 1], words[words.index("--model") + 1]
    sizes = dict(part.split("=") for part in chosen["mesh"].split(","))
    tensors = [d for d in divisors(ranks) if d <= 4 * HEADS.get(model, 32)]
    batch = int(chosen["batch-size"]) * int(chosen["grad-accum"])
    layers = random_.randint(1, 40)
    saving = ["none", "block", f"block:{layers}", "linear", "attention", f"attention@{layers}"]
    wraps = [["--wrap", wrap] for wrap in ("block", "none") if wrap != chosen["wrap"]]
    wraps += [["--numel-to-wrap", int(10 ** random_.uniform(5, 9.5)), "--wrap", "size"] for _ in range(2)]
    return {
        "tensor-parallel": [d for d in tensors if str(d) != sizes.get("tensor", "1")],
        "context-parallel": [d for d in divisors(ranks) if d <= 64 and str(d) != sizes.get("context", "1")],
        "mesh": [draw_mesh(random_, ranks)],
        "strategy": ["full", "grad_op", "hybrid", "zero1", "no"],
        "wrap": wraps,
        "prefetch": [0, 1, 2, 3, 4, 6],
        "recompute": saving,
        "offload-activations": ["none", "block_inputs", "attention", "linear"],
        "cpu-offload": ["on", "off"],
        "accumulate": ["reduce", "local"],
        "batch-size": divisors(batch),
        "grad-accum": divisors(batch),
        "sequence-parallel": ["off"],
    }


def draw_fixed(random_, words, chosen):
    """One option and a value that was not chosen."""
    values = values_of(random_, words, chosen)
    name = random_.choice([name for name in values if f"--{name}" not in words])
    choices = [v for v in values[name] if isinstance(v, list) or str(v) != chosen.get(name)]
    if not choices:
        return None
    value = random_.choice(choices)
    return value if isinstance(value, list) else [f"--{name}", value]


def draw_setting(random_, words, chosen):
    """A value of every option: all drawn, or all but two to four as chosen. The micro-batches make the global
    batch with the ranks that divide it, or it is no setting."""
    values = values_of(random_, words, chosen)
    names = ["mesh", "strategy", "wrap", "prefetch", "recompute", "offload-activations", "cpu-offload",
             "accumulate", "grad-accum"]  # fmt: skip
    free = [name for name in names if f"--{name}" not in words]
    changed = free if random_.random() < 0.5 else random_.sample(free, random_.randint(2, 4))
    setting = {name: chosen[name] for name in ("numel-to-wrap", *free) if name in chosen}
    setting.update((name, random_.choice(values[name])) for name in changed)
    if isinstance(wrap := setting["wrap"], list):
        setting.update(zip((word.removeprefix("--") for word in wrap[::2]), wrap[1::2]))
    sizes = dict(part.split("=") for part in setting["mesh"].split(","))
    each = words[words.index("--global-batch") + 1] / int(sizes["data"]) / int(sizes["fsdp"])
    setting["batch-size"] = each / int(setting["grad-accum"])
    if setting["batch-size"] != int(setting["batch-size"]) or setting["batch-size"] < 1:
        return None
    setting["batch-size"] = int(setting["batch-size"])
    return [word for name, value in setting.items() for word in (f"--{name}", value)]


def search(words):
    """The fastest plan, or None if none fits or no mesh divides the batch so."""
    process = programs.run("fsdp_plan", "--search", "--json", *words, timeout=1200)
    assert process.returncode in (0, 2, 4), (words, process.returncode, process.stderr)
    return json.loads(process.stdout)["plans"][0] if process.returncode == 0 else None


def compare(words, free, fixed, failures, say):
    restricted = search([*words, *fixed])
    if not restricted:
        return False
    gain = 1 - restricted["step_ms"] / free["step_ms"]
    line = f"{100 * gain:+7.2f}%  {' '.join(map(str, words))}  |  {' '.join(map(str, fixed))}"
    if say:
        print(line, flush=True)
    if gain > TOLERANCE:
        failures.append(f"{line}\n    free: {free['command']}\n    fixed: {restricted['command']}")
    return True


def named(failures, say):
    for ranks, batch, option in NAMED:
        words = ["--model", "llama3-405b", "--profile", "h100-sxm", "--ranks", ranks, "-s", 8192,
                 "--global-batch", batch]  # fmt: skip
        assert compare(words, search(words), option, failures, say), (words, option)


def scenarios(seed, args, say):
    """Drawn one after the other, or the one that is asked for: the source of what else is drawn for it, its
    options, and what the free search finds."""
    for number in [args.only] if args.only else itertools.count(1):
        random_ = random.Random(f"{seed} {number}")
        words = draw_scenario(random_, args.ranks_max)
        free = search(words)
        if say:
            print(f"{number:4d} {free['step_ms'] if free else 0:10.3f} ms", flush=True)
        yield random_, words, free


def pairs(count, args, failures, say):
    done = 0
    for random_, words, free in scenarios(args.seed, args, say) if count else ():
        if not free:
            fixed = random_.choice(FRUGAL)
            if (found := search([*words, *fixed])) is not None:
                failures.append(f"no plan found of {words}, but with {fixed}: {found['command']}")
        for _ in range(FIXED if free else 0):
            for _ in range(4):  # what cannot be planned so is no pair
                fixed = draw_fixed(random_, words, free["options"])
                if fixed and compare(words, free, fixed, failures, say):
                    done += 1
                    break
        if done >= count:
            break
    return done


def settings(count, args, failures, say):
    done = 0
    for random_, words, free in scenarios(f"settings {args.seed}", args, say) if count else ():
        most = min(done + SETTINGS, count)
        for _ in range(10 * SETTINGS if free else 0):  # what makes no plan is no setting
            setting = draw_setting(random_, words, free["options"])
            done += bool(setting) and compare(words, free, setting, failures, say)
            if done == most:
                break
        if done >= count:
            break
    return done


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--pairs", type=int)
    parser.add_argument("--settings", type=int)
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--ranks-max", type=int, default=256 if programs.ALL else 16)
    parser.add_argument("--named", action="store_true", help="405B on 4,096 and 16,384 ranks too")
    parser.add_argument("--only", type=int, help="one free search, by its number")
    args = parser.parse_args()
    failures = []
    say = args.pairs is not None or args.settings is not None
    count = args.pairs or (0 if say else programs.draws(6, 1, 40))
    setting_count = args.settings or (0 if say else programs.draws(20, 3, 200))
    if args.named:
        named(failures, say)
    for words, fixed in () if args.only or args.settings else programs.part(FOUND_FIXED):
        assert compare(words, search(words), fixed, failures, say), (words, fixed)
    done = pairs(count, args, failures, say)
    print(f"{done} pairs, {len(failures)} of them found something faster")
    before = len(failures)
    done = settings(setting_count, args, failures, say)
    print(f"{done} settings, {len(failures) - before} of them faster than what was found")
    assert not failures, "\n".join(failures)


main()
