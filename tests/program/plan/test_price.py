"""fsdp_plan --price and --trace: the parts of a step are the whole, the timeline is that step, what is asked
for without a machine is refused, and profiles of files stand for machines."""

import json
import pathlib
import re

import cpu_profile
import programs

work = programs.folder("price")
SHIPPED = ("a100-40", "a100-80", "h100-sxm", "h200", "b200")
MODEL = ("--model", "llama2-7b", "--wrap", "block", "--ranks", 16, "--ranks-per-node", 8, "--backend", "cuda")
TINY = ("--model", "tiny", "-s", 64, "--price", "--profile")


def plan(*arguments, status=0):
    return programs.run("fsdp_plan", *arguments, status=status)


def price(*arguments):
    return json.loads(plan(*MODEL, "--price", "--json", *arguments).stdout)["time"]


def price_on(profile, *more):
    return json.loads(plan(*TINY, profile, *more, "--json").stdout)["time"]


def near(a, b, relative=1e-6):
    return abs(a - b) <= relative * max(abs(a), abs(b))


def check_parts(time):
    assert near(sum(time["parts_ms"].values()), time["step_ms"]), time
    exposed = time["exposed"]
    assert near(sum(exposed["by_axis"].values()), exposed["communication_ms"]), exposed
    assert near(sum(exposed["by_unit"].values()), exposed["communication_ms"]), exposed
    assert time["parts_ms"][time["bound_by"]] == max(time["parts_ms"].values())
    assert all(0 <= busy <= 1.0001 * time["step_ms"] for busy in time["busy_ms"].values()), time


def every_machine():
    for profile in SHIPPED[:: programs.stride(3)]:
        time = price("--profile", profile, "-b", 2, "-s", 2048)
        check_parts(time)
        tokens = 16 * 2 * 2048
        assert near(time["tokens_per_s"], tokens / time["step_ms"] * 1e3)
        assert 0.2 < time["mfu"] < time["mfu_all_pairs"] < 1, time
        changes = {entry["change"] for entry in time["variations"]}
        assert {"--batch-size 1", "--batch-size 3", "--grad-accum 2", "--prefetch 0", "--prefetch 2",
                "--recompute block:1"} <= changes, changes
        assert any(change.startswith("--mesh ") and "tensor=2" in change for change in changes), changes


def factored_axis():
    """Of tensor's eight ranks two share a key/value head: exposed communication is still over one axis. The
    plan is for the profile's device."""
    text = plan("--model", "qwen2.5-7b", "--ranks", 8, "--tensor-parallel", 8, "--profile", "h100-sxm",
                "--price").stdout
    over = re.findall(r"ms +[0-9.]+%  over (.*)$", text, re.MULTILINE)
    assert over == ["tensor"], text
    assert "planned for a GPU, parameters in bf16\n" in text, text


def variations_are_plans():
    """What is said of a setting is what a plan with that setting costs."""
    for wrap in ("block", "size"): # with `size` its threshold changes too
        base = ("--profile", "h100-sxm", "-s", 1024, "-b", 2, "--wrap", wrap)
        entries = price(*base)["variations"]
        chosen = entries[:: programs.stride(4)] + [e for e in entries if "numel-to" in e["change"]]
        assert wrap == "block" or len(chosen) > 2, entries
        for entry in chosen:
            other = price(*base, *entry["change"].split())
            assert near(other["step_ms"], entry["step_ms"]), entry
    # A limit between the plan and some of them: each says what fsdp_plan says of it.
    base = ("--profile", "h100-sxm", "-s", 1024, "-b", 2, "--wrap", "block", "--memory-limit")
    most = sorted(entry["peak_bytes"] for entry in price(*base, "1TB")["variations"])[-2:]
    limit = sum(most) // 2 + (1 << 30)  # beside the arena lies what CUDA takes
    entries = price(*base, limit)["variations"]
    assert {entry["fits"] for entry in entries} == {True, False}, (limit, entries)
    for entry in entries:
        plan(*MODEL, *base, limit, *entry["change"].split(), "--price", status=0 if entry["fits"] else 4)


def settings():
    """Directions that follow from what the settings do."""
    base = ("--profile", "h100-sxm", "-s", 2048, "-b", 2)
    plain = price(*base)["step_ms"]
    assert price(*base, "--recompute", "block")["step_ms"] > 1.1 * plain
    assert 1.9 < price(*base, "--grad-accum", 2)["step_ms"] / plain < 2.1
    assert price(*base, "--prefetch", 0)["step_ms"] > plain
    slow = profile_of("slow", "network: {gbps_per_node: 10, latency_us: 14}")
    slow_base = ("--profile", slow, "-s", 2048, "-b", 2)
    across = price(*slow_base)
    assert across["bound_by"] == "communication" and across["step_ms"] > 2 * plain, across
    assert price(*slow_base, "--strategy", "hybrid")["step_ms"] < across["step_ms"]


BARE = """name: bare
device: cuda
source: test
processors: 8
memory_gb: 80
memory_gbps: 1000
products: [{dtype: bf16, form: any, m: 512, n: 512, k: 512, tflops: 100}]
attention: [{kernel: ours, dtype: bf16, head_dim: 128, direction: both, tflops: {512: 50}}]
use: {attention: ours}
collectives:
- {kind: all_gather, link: node, ranks: 8, us: {1000: 20}}
- {kind: reduce_scatter, link: node, ranks: 8, us: {1000: 20}}
- {kind: all_reduce, link: node, ranks: 8, us: {1000: 20}}
"""


def offload_has_a_price():
    """On the host a parameter moves 34 bytes through the memory of one of two nodes: its gradient is read for
    the norm and the update, 8, three states are read and written, 24, and its copy in bf16 is written, 2. A
    profile without the host's rates would price this as nothing."""
    bytes_of_a_node = 34 * 6738415616 / 2
    time = price("--profile", "h100-sxm", "--cpu-offload")
    assert near(time["busy_ms"]["host"], 1e3 * bytes_of_a_node / 614.4e9, 0.01), time["busy_ms"]
    bare, copies = work / "bare.yaml", work / "copies.yaml"
    bare.write_text(BARE)
    copies.write_text(BARE + "copy_gbps: {up: 20, down: 20}\n")
    one = ("--model", "llama2-7b", "--ranks", 8, "--wrap", "block")
    plan(*one, "--price", "--profile", bare)
    for asked in ("--price", "--search"):
        for profile, lacks, offload in ((bare, "copy_gbps", ("--cpu-offload", "on")),
                                        (bare, "copy_gbps", ("--offload-activations", "attention")),
                                        (copies, "host_memory_gbps", ("--cpu-offload", "on"))):
            message = plan(*one, asked, "--profile", profile, *offload, status=3).stderr
            assert lacks in message and "offload nothing" in message, message


def shared_cores():
    cpu = work / "cpu.yaml"
    cpu.write_text(BARE.replace("cuda", "cpu").replace("bf16", "fp32").replace("ranks: 8", "ranks: 2"))
    for ranks, told in ((8, False), (9, True)):
        text = plan("--ranks", ranks, "--ranks-per-node", ranks, "--profile", cpu, "--price").stdout
        assert (f"{ranks} ranks share 8 cores" in text) == told, text


def parts_add_up():
    """Also where the host updates while the device computes: without clipping, an update follows its unit's
    reduction, behind the rest of the backward."""
    for more in (("--cpu-offload",), ("--cpu-offload", "--grad-clip", 0), ("--grad-accum", 9),
                 ("--cpu-offload", "--grad-clip", 0, "--grad-accum", 3)):
        time = price("--profile", "h100-sxm", "-s", 1024, "-b", 2, "--strategy", "zero1", *more)
        check_parts(time)
        if "--grad-clip" in more:
            assert time["parts_ms"]["update"] < 0.95 * time["busy_ms"]["host"], (more, time)


def simulated_timeline():
    path = work / "trace.json"
    time = json.loads(plan(*MODEL, "--price", "--json", "--profile", "h100-sxm", "--grad-accum", 2, "--trace",
                           path).stdout)["time"]
    trace = json.loads(path.read_text())
    assert trace["otherData"]["kind"] == "simulated"
    rows = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    complete = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert {rows[e["tid"]] for e in complete} >= {"step", "compute", "gather", "reduce"}
    ends = {}
    for event in sorted(complete, key=lambda e: (e["ts"], e["dur"])):
        assert event["ts"] >= ends.get(event["tid"], 0) - 1e-3, event
        ends[event["tid"]] = event["ts"] + event["dur"]
    steps = [e for e in complete if rows[e["tid"]] == "step"]
    assert len(steps) == 2 and near(steps[1]["dur"] / 1e3, time["step_ms"], 1e-5), (steps, time["step_ms"])
    text = plan(*MODEL, "--profile", "h100-sxm", "--trace", path).stdout
    assert text.splitlines()[-1] == f"trace:     two simulated steps in {path}", text
    assert near(steps[1]["args"]["exposed_comm_ms"], time["exposed"]["communication_ms"], 1e-5), steps
    for stream, busy in time["busy_ms"].items():
        spans = [e["dur"] / 1e3 for e in complete if rows[e["tid"]] == stream and e["args"]["step"] == 2]
        resolution = 1e-6 * len(spans)  # a trace's times are whole nanoseconds
        assert abs(sum(spans) - busy) <= 1e-3 * busy + resolution, (stream, sum(spans), busy)


def profile_of(name, text):
    path = work / f"{name}.yaml"
    path.write_text(f"base: h100-sxm\nname: {name}\nsource: test\n{text}\n")
    return path


def ranges():
    """The quartiles of what was measured: a step of one rank takes as many times its compute, and none of the
    collectives'."""
    two = cpu_profile.write(work / "range.yaml", 2)
    assert price_on(two)["step_low_ms"] is None
    with two.open("a") as file:
        file.write("spread: {compute_low: 0.5, compute_high: 2, collective_low: 0.25, collective_high: 4}\n")
    one, both = price_on(two), price_on(two, "--ranks", 2)
    assert near(one["step_low_ms"], one["step_ms"] / 2), one
    assert near(one["step_high_ms"], one["step_ms"] * 2), one
    assert both["step_low_ms"] < both["step_ms"] / 2 and both["step_high_ms"] > both["step_ms"] * 2, both
    text = plan(*TINY, two).stdout
    assert f"\nrange:     {one['step_low_ms']:.2f} to {one['step_high_ms']:.2f} ms a step" in text, text


def errors():
    def error(*arguments, **options):
        return programs.refused("fsdp_plan", *arguments, **options)

    assert "--price (command line) needs a machine" in error("--price")
    both = error("--profile", "h100-sxm", "--trace", work / "none.json", "--trace-steps", "1:2")
    assert "--trace-steps 1:2 (command line)" in both and "leave it out" in both, both
    assert not (work / "none.json").exists()
    assert "--trace (command line) needs a machine" in error("--trace", work / "none.json")
    message = error(*MODEL, "--price", "--profile", "a100", status=3)
    assert "h100-sxm" in message, message
    message = error(*MODEL, "--set", "gemm-multiprocessors=133")
    assert "exceeds the GPU's 132: use fewer" in message, message
    message = error("--model", "tiny", "--set", "gemm-multiprocessors=9")
    assert "this plan is for a CPU: leave it out" in message, message
    message = error("--backend", "cpu", "--price", "--profile", "h100-sxm", "--param-dtype", "bf16")
    assert "is of a GPU, and the plan is for a CPU: leave --backend out" in message, message
    two = cpu_profile.write(work / "two.yaml", 2)
    threads = (*TINY, two, "--threads")
    message = error(*threads, 1)
    assert "2 threads for each of 1 rank, " in message and "leave --threads out" in message, message
    for fits in ((2,), (1, "--ranks", 2)):
        plan(*threads, *fits)
    bf16 = profile_of("bf16", "products:\n- {dtype: bf16, form: any, m: 2048, n: 2048, k: 4096, tflops: 700}")
    message = error(*MODEL, "--price", "--profile", bf16, "--param-dtype", "fp32", status=3)
    assert "no rates of products in fp32" in message, message
    bare, half = work / "no-network.yaml", work / "half.yaml"
    bare.write_text(BARE)
    half.write_text(BARE.replace("- {kind: reduce_scatter", "- {kind: all_reduce"))
    two_nodes = ("--ranks", 16, "--ranks-per-node", 8, "--price")
    message = error(*two_nodes, "--profile", bare, status=3)
    assert "says nothing of " in message and "between nodes: give `network`" in message, message
    message = error("--ranks", 8, "--price", "--profile", half, status=3)
    # By the file, which the user named, and by what it says of itself.
    assert f"--profile {half} (bare) says nothing of reduce_scatter inside a node" in message, message
    alone = profile_of("alone", "collectives: []")
    assert "mpirun" in error(*MODEL, "--price", "--profile", alone, "--strategy", "hybrid", status=3)
    assert "/dev/full" in error(*MODEL, "--profile", "h100-sxm", "--trace", "/dev/full", status=3)
    assert pathlib.Path("/dev/full").is_char_device()


def fewer_multiprocessors():
    """Products cut for a part of the GPU take as much longer, and nothing else does."""
    alone = ("--model", "llama-1b", "--profile", "h100-sxm", "-b", 2, "-s", 2048, "--price", "--json")
    whole, part = (json.loads(plan(*alone, *more).stdout)["time"]["parts_ms"]
                   for more in ((), ("--set", "gemm-multiprocessors=99")))
    assert whole["products"] > 0
    ratio = part.pop("products") / whole.pop("products")
    assert 1.25 < ratio <= 132 / 99, ratio  # what gradients that are added to cost in memory is as before
    assert all(near(part[kind], ms, 1e-3) for kind, ms in whole.items()), (whole, part)


def links_of_one_node():
    """Gathers by copy engines where both options allow them and all ranks are on one node; then compute slows
    less beside them, and nothing else changes."""
    ranks = ("--model", "llama-1b", "--ranks", 8, "-b", 2, "-s", 2048, "--price", "--profile", "h200")
    steps = {}
    slowed = "compute slows by 12.6% beside collectives"
    for more, gathers, words in (
        ((), "copies", "gathers by copy engines, as NCCL 2.28 and later make them: compute slows by 2.0% "
                       "beside them, by 12.6% beside other collectives"),
        (("--set", "nccl-ctas=default"), "kernels",
         f"gathers by kernels (by --nccl-register or --set nccl-ctas): {slowed}"),
        (("--nccl-register", "off"), "kernels", "gathers by kernels (by --nccl-register"),
        (("--ranks-per-node", 4), "kernels", f"gathers by kernels (ranks are on several nodes): {slowed}"),
    ):  # fmt: skip
        assert f"\nlinks:     {words}" in plan(*ranks, *more).stdout, (more, plan(*ranks, *more).stdout)
        time = json.loads(plan(*ranks, *more, "--json").stdout)["time"]
        assert time["gathers"] == gathers, (more, time)
        steps[more] = time["step_ms"]
    copied, kernels, unregistered, _ = steps.values()
    assert kernels == unregistered and copied < kernels, steps
    assert "links:" not in plan(*ranks, "--ranks", 1).stdout


programs.run_tests([every_machine, links_of_one_node, fewer_multiprocessors, factored_axis,
                    offload_has_a_price, shared_cores, variations_are_plans, parts_add_up, settings,
                    simulated_timeline, ranges, errors])
