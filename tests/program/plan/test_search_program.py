"""fsdp_plan --search: what it prints can be run, what it saves reads back as the same plan, what is given
stays, and what cannot fit names the least memory."""

import json
import re
import shlex

import cpu_profile
import programs

work = programs.folder("search")
MACHINE = ("--search", "--ranks", 4, "--ranks-per-node", 4, "--profile", "a100-40")
MODEL = ("--model", "llama-1b", "--seq-length", 1024, "--global-batch", 8)


def plan(*arguments, status=0):
    process = programs.run("fsdp_plan", *arguments, timeout=600,
                           status=status)  # sanitizers take five times as long
    assert "\r" not in process.stderr, process.stderr  # progress is for terminals
    return process


def search(*arguments):
    return json.loads(plan(*MACHINE, *MODEL, "--json", *arguments).stdout)


def reads_back():
    saved = work / "best.yaml"
    found = search("--save-plan", saved)
    best = found["plans"][0]
    steps = [p["step_ms"] for p in found["plans"]]
    assert steps == sorted(steps) and 1 < len(steps) <= 10, steps
    again = json.loads(plan("--config", saved, "--price", "--json").stdout)
    assert again["program"]["hash"].endswith(best["hash"]), (again["program"], best["hash"])
    for figure in ("step_ms", "tokens_per_s", "mfu"):
        assert abs(again["time"][figure] / best[figure] - 1) < 1e-9, (figure, again["time"], best)
    # The profile says its own limit: another one, given later, has its own. One above it is kept to.
    assert "memory-limit" in best["options"] and "memory-limit" not in saved.read_text(), saved.read_text()
    for more, warned in ((("--profile", "h100-sxm"), ()), (("--host-memory-limit", "200GB"), ()),
                         (("--memory-limit", "80GB"), ("--memory-limit 80.0 GB (command line)", "40.0 GB")),
                         (("--host-memory-limit", "4TB"), ("--host-memory-limit 4.00 TB", "250 GB"))):
        told = programs.warnings(plan("--config", saved, *more), "fsdp_plan")
        assert len(told) == bool(warned) and all(w in told[0] for w in warned), (more, told)
    assert "mpirun -np 4 fsdp_train --model llama-1b" in best["command"], best["command"]
    sizes = dict(part.split("=") for part in best["options"]["mesh"].split(","))
    ranks = int(sizes["data"]) * int(sizes["fsdp"])
    assert ranks * int(best["options"]["batch-size"]) * int(best["options"]["grad-accum"]) == 8, best


def same_programs(ranks, search, backend="cuda"):
    """What is saved, and all commands that are printed, make the programs that were found."""
    saved = work / "same.yaml"
    found = plan("--search", "--json", "--save-plan", saved, "--ranks", ranks, *search)
    plans = json.loads(found.stdout)["plans"]
    arguments = [["--config", saved], *(shlex.split(p["command"]) for p in plans)]
    for one, wanted in zip(arguments, [plans[0], *plans], strict=True):
        options = one[one.index("fsdp_train") + 1 :] if "fsdp_train" in one else one
        process = plan(*options, "--ranks", ranks, "--json")
        assert "has no effect" not in process.stderr, (one, process.stderr)
        again = json.loads(process.stdout)
        assert again["program"]["hash"] == wanted["hash"], (one, again["program"], wanted["hash"])
        assert again["planned_for"]["device"] == backend, again["planned_for"]
    assert len(plans) > 1, plans
    return saved, plans


def programs_read_back():
    gpu, cpu = ("--profile", "a100-40"), cpu_profile.write(work / "cpu.yaml", 4)
    if programs.stride(2) == 1:  # half of the test's time
        same_programs(8, (*gpu, "--model", "llama2-7b", "--seq-length", 1024, "--memory-limit", "36GB",
                          "--global-batch", 80))  # fmt: skip
    # The profile's memory is the limit.
    same_programs(4, (*gpu, "--model", "llama-1b", "--seq-length", 8192, "--global-batch", 8))
    small = ("--model", "tiny", "--seq-length", 64, "--global-batch", 8)
    saved, plans = same_programs(4, (*small, "--profile", cpu), "cpu")
    if not programs.WITH_MPI:
        return
    for one in (["--config", saved], shlex.split(plans[1]["command"])[4:]):
        run = programs.run("fsdp_train", *one, "--dry-run", ranks=4)
        wanted = plans[0] if one[0] == "--config" else plans[1]
        assert run.returncode == 0 and f"hash {wanted['hash']}" in run.stdout, (one, run.stdout, run.stderr)


def given_stays():
    found = search("--mesh", "4,1", "--strategy", "grad_op", "--prefetch", 2)
    for one in found["plans"]:
        assert one["options"]["strategy"] == "grad_op" and one["options"]["prefetch"] == "2", one
        assert one["options"]["mesh"] == "4,1", one
    # Without --global-batch it is that of the options: two of four ranks have sequences of their own.
    # A mesh that the default strategy could not have: the strategy is searched.
    replicas = search("--mesh", "data=2,fsdp=2")["plans"]
    assert {p["options"]["strategy"] for p in replicas} == {"hybrid", "zero1"}, replicas
    as_given = ("--model", "llama-1b", "--json", "--mesh", "2,2", "-b", 3, "--grad-accum", 1)
    assert json.loads(plan(*MACHINE, *as_given).stdout)["plans"], as_given
    text = plan(*MACHINE, *MODEL, "--memory-limit", "9GB", "--tokens", 1e9, "--gpu-hour", 2).stdout
    assert "what lost" in text and "needs at least" in text, text
    assert "\n3% of the device's memory stays free" in text and "\nnot tried: " in text, text
    # What was asked comes first: whether, at which batch, how fast, how long, for how much.
    head, best, run, *rest = text.splitlines()
    first = rest.index(next(line for line in rest if line.startswith(" 1. ")))
    step, tokens = re.match(r" 1\. (.*) a step, (.*) tokens/s", rest[first]).groups()
    assert best == ("best:      plan 1 fits 4 ranks of a100-40: 8 sequences a step in "
                    f"{step}, {tokens} tokens/s"), text  # fmt: skip
    assert run == f"run:       {rest[first + 2].strip()}" and "hours" in run and "cost" in run, text


def links():
    """What a profile lacks is named, where it leaves no plan."""
    cpu = cpu_profile.write(work / "links.yaml", 2)
    small = ("--search", "--profile", cpu, "--model", "tiny", "--seq-length", 64, "--ranks", 4)
    nothing = plan(*small, "--ranks-per-node", 2, status=3).stderr
    assert "says nothing of all_reduce between nodes: give `network`" in nothing, nothing
    divides = plan(*small, "--mesh", "4,1", "--global-batch", 6, status=2).stderr
    assert "divides 6 sequences" in divides, divides


def margin():
    """A search leaves a share of the limit free; a plan is refused at the limit itself."""
    fixed = ("--mesh", "4,1", "--strategy", "full", "--cpu-offload", "off", "--memory-limit")
    best = search(*fixed, 8 * 10**9)["plans"][0]
    assert best["device_bytes"] <= 0.97 * 8e9, best
    limit = int(1.01 * best["device_bytes"])  # the best fits it, but not with the margin

    def found(*more):
        return search(*fixed, limit, *more)["plans"][0]

    usual, none = found(), found("--memory-margin", 0)
    assert usual["device_bytes"] <= 0.97 * limit < best["device_bytes"], (usual, best)
    assert none["device_bytes"] <= limit, none
    assert found("--memory-margin", "2%") == found("--memory-margin", 0.02)
    assert found("--memory-margin", "2%")["device_bytes"] <= 0.98 * limit
    # Where estimates fit, and what packing takes beside them does not, what needs less is found, until there
    # is nothing: no option that the search was free to choose makes a plan of what it refuses.
    for share in ("6%", "9%", "12%", "15%"):
        words = [*MACHINE, *MODEL, "--json", *fixed, limit, "--memory-margin", share]
        free = programs.run("fsdp_plan", *words)
        assert free.returncode in (0, 4), free.stderr
        if free.returncode == 4:
            for option in (("--prefetch", 0), ("--wrap", "none"), ("--recompute", "block")):
                plan(*words, *option, status=4)
    assert free.returncode == 4, free.stdout
    # What leaves nothing free is a plan, and not what a search finds.
    words = shlex.split(none["command"])
    words = words[words.index("fsdp_train") + 1 :]
    words[words.index("--memory-limit") + 1] = str(none["device_bytes"])
    plan(*words, "--ranks", 4)
    tight = plan(*MACHINE, *words[: words.index("--memory-margin")], status=4).stderr
    assert "--memory-margin 3%" in tight and "--memory-margin 0" in tight, tight
    for bad in ("3", "100%", "-1%", "1", "3%%", "much", "%"):
        assert f"--memory-margin '{bad}'" in plan(*MACHINE, "--memory-margin", bad, status=2).stderr, bad


def nothing_is_missed():
    """Tensor parallelism between nodes, and with whole rows, where they are the fastest."""
    few = ("--search", "--json", "--profile", "h100-sxm", "--model", "llama2-7b", "-s", 256,
           "--global-batch", 2, "--ranks", 16)  # fmt: skip
    found = json.loads(plan(*few).stdout)["plans"]
    assert "tensor=16" in found[0]["options"]["mesh"], found[0]
    inside = json.loads(plan(*few, "--tensor-parallel", 8).stdout)["plans"][0]
    assert found[0]["step_ms"] < inside["step_ms"], (found[0], inside)
    rows = json.loads(plan("--search", "--json", "--profile", "h100-sxm", "--model", "llama3-8b", "-s", 128,
                           "--ranks", 8, "--global-batch", 8).stdout)["plans"][0]  # fmt: skip
    assert rows["options"]["sequence-parallel"] == "off", rows


def reasons_are_true():
    """A bound is a reason only if it is above the plans that are printed."""
    found = json.loads(plan("--search", "--ranks", 8, "--profile", "h100-sxm", "--global-batch", 8,
                            "--json").stdout)  # fmt: skip
    slow = [kind for kind in found["lost"] if kind["outcome"] == "too slow"]
    assert len(found["plans"]) == 10 and slow, found["lost"]
    # What only bounds left out is no faster than what was found, but for how far estimates are off.
    assert found["least_cut_ms"] >= 0.97 * found["plans"][-1]["step_ms"], found
    for kind in slow:
        bound = re.search(r"at least ([0-9.]+) ms", kind["reason"])
        assert not bound or float(bound.group(1)) >= 0.999 * found["plans"][-1]["step_ms"], (kind, found)


def states_on_the_host():
    """What no device holds is offloaded, at a price."""
    found = json.loads(plan("--search", "--model", "llama2-7b", "--ranks", 2, "--profile", "a100-40",
                            "--global-batch", 2, "--strategy", "full", "--prefetch", 1, "--json").stdout)
    best = found["plans"][0]
    assert best["options"]["cpu-offload"] == "on" and best["device_bytes"] <= 40e9, best
    least_ms = 1e3 * 28 * 6738415616 / 409.6e9  # updates through the host's memory
    assert best["step_ms"] > least_ms, (best, least_ms)


def large_steps():
    """A step of ten million sequences: what no memory holds is not even drafted."""
    found = search("--strategy", "full", "--mesh", "4,1", "--cpu-offload", "off", "--global-batch", "1e7")
    best = found["plans"][0]
    options = best["options"]
    assert int(options["batch-size"]) * int(options["grad-accum"]) * 4 == 10**7, options
    assert int(options["grad-accum"]) <= 10**6 and best["device_bytes"] < 40e9, best
    one = search("--strategy", "full", "--mesh", "4,1", "--cpu-offload", "off", "--global-batch", 400)
    assert best["tokens_per_s"] > 0.99 * one["plans"][0]["tokens_per_s"], (best, one["plans"][0])


def refused():
    unfit = plan(*MACHINE, *MODEL, "--memory-limit", "2GB", "--host-memory-limit", "1GB", status=4).stderr
    assert "no plan fits" in unfit and "needs" in unfit, unfit
    small = plan("--search", "--model", "llama2-70b", "--ranks", 2, "--profile", "a100-40",
                 "--cpu-offload", "off", status=4).stderr
    assert "the memory of profile a100-40, less --memory-margin 3%, allows" in small, small
    assert "use GPUs with more memory" in small, small
    unpriced = plan("--search", "--ranks", 4, status=2).stderr
    assert "--profile" in unpriced, unpriced
    mixed = plan(*MACHINE, "--price", status=2).stderr
    assert "--search" in mixed and "--price" in mixed, mixed
    for other in (("--print-strategies", "--sharding", "fsdp"), ("--compare", work / "a.yaml")):
        silent = plan(*MACHINE, *other, status=2).stderr
        assert "--search" in silent and other[0] in silent, silent
    unused = plan("--save-plan", work / "x.yaml", status=2).stderr
    assert "add --search" in unused, unused
    unwritable = plan(*MACHINE, *MODEL, "--save-plan", "/dev/null/x.yaml", status=3)
    assert "/dev/null/x.yaml" in unwritable.stderr and not unwritable.stdout, unwritable  # before it searches
    undivided = plan(*MACHINE, "--model", "llama-1b", "--global-batch", 7, "--mesh", "4,1", status=2).stderr
    assert "--global-batch" in undivided, undivided
    idle = plan(*MACHINE, *MODEL, "--sharding", "fsdpv2", "--mesh", "data=2,fsdp=2", status=2).stderr
    assert "over which nothing lies" in idle, idle


def priced_choices():
    """`auto` takes the fastest of what fits, and an error the fastest single change."""
    one = ("--model", "llama-1b", "--ranks", 4, "--seq-length", 2048, "-b", 4, "--wrap", "block")
    one += ("--profile", "a100-40", "--backend", "cuda", "--memory-limit", "10GB")

    def step_ms(*rules):
        return json.loads(plan(*one, "--price", "--json", *rules).stdout)["time"]["step_ms"]

    block = step_ms("--recompute", "block")
    chosen = step_ms("--recompute", "auto")
    assert chosen < block, (chosen, block)
    assert step_ms("--recompute", "auto", "--offload-activations", "auto") <= chosen * 1.005
    error = plan(*one, status=4).stderr
    advice = re.search(r"or add (--.*?), which needs", error)
    assert advice, error
    advised = step_ms(*advice.group(1).split())
    assert advised <= step_ms("--recompute", "auto") * 1.005, (advice.group(1), advised)


priced_choices()
reads_back()
programs_read_back()
given_stays()
links()
margin()
if not programs.SLOW:  # searches of minutes under a sanitizer
    nothing_is_missed()
reasons_are_true()
states_on_the_host()
large_steps()
refused()
