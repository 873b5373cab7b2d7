"""fsdp_plan end to end: what stands on which stream, counts that users know, speed, formulas, pictures."""

import json
import pathlib
import re
import resource
import subprocess

import tempfile
import time
import xml.etree.ElementTree

import programs

work = pathlib.Path(tempfile.mkdtemp(prefix="fsdp_plan_"))
SOURCE = pathlib.Path(__file__).resolve().parent


def plan(*arguments):
    process = programs.run("fsdp_plan", *arguments)
    assert process.returncode == 0, (arguments, process.stderr)
    return process


def plan_json(*arguments):
    return json.loads(plan("--json", *arguments).stdout)


def streams():
    for name in ("7b", "70b"):
        model = ["--model", f"llama2-{name}", "--ranks", "8", "--numel-to-wrap", "1e8", "--print-model"]
        process = plan(*model)
        golden = SOURCE / "accept" / f"llama2-{name}.numel-to-wrap-1e8.tree.txt"
        assert process.stdout == golden.read_text()  # the tree and nothing else, byte for byte
        assert "Verified: yes" in process.stderr
    process = plan()
    assert "Verified: yes" in process.stdout and not process.stderr
    process = plan("--print-program", "--ranks", "2", "--wrap", "block")
    assert "all_gather" in process.stdout and "Verified" not in process.stdout
    assert not plan("--json").stderr


def takes_every_option_of_training():
    """A training command, or its file of options, is planned as it stands."""
    names = {program: set(re.findall(r"--[a-z][a-z0-9-]+", programs.run(program, "--help").stdout))
             for program in ("fsdp_train", "fsdp_plan")}  # fmt: skip
    assert len(names["fsdp_train"]) > 40 and names["fsdp_train"] <= names["fsdp_plan"]
    (work / "run.yaml").write_text("tensorboard: events\nbind: off\nlog: log.jsonl\n")
    plan("--config", work / "run.yaml", "--comm-timeout", "60", "--allow-shared-gpu", "--nccl-register",
         "off")


def gpu_memory_beside_the_arena():
    """1 GB, and 0.3 GB for each of the communicators of more than one rank, count against a limit."""
    for ranks, more, communicators in ((1, (), 0), (4, (), 3), (4, ("--mesh", "data=2,fsdp=2"), 4),
                                       (4, ("--strategy", "no"), 2)):  # fmt: skip
        if "--mesh" in more:
            more += ("--strategy", "hybrid")
        arguments = ("--model", "llama-1b", "--wrap", "block", "--ranks", ranks, *more)
        assert plan_json(*arguments)["memory"]["reserve_bytes"] == 0  # on a CPU
        arguments += ("--backend", "cuda")
        memory = plan_json(*arguments)["memory"]
        reserve = 1_000_000_000 + 300_000_000 * communicators
        assert memory["reserve_bytes"] == reserve, (ranks, more, memory)
        assert re.search(rf"reserve, not measured +{reserve / 1e9:.2f} GB", plan(*arguments).stdout)
        least = memory["arena_bytes"] + reserve
        plan(*arguments, "--memory-limit", least)
        refused = programs.run("fsdp_plan", *arguments, "--memory-limit", least - 1)
        assert refused.returncode == 4 and "of it beside the arena" in refused.stderr, refused.stderr


def unit_counts():
    cases = (
        ("llama2-7b", "1e8", 36),
        ("llama2-70b", "1e8", 323),
        ("llama2-7b", "5e7", 67),
        ("llama2-7b", "2e8", 33),
    )
    cases += (("llama2-7b", "1e9", 2), ("llama2-7b", "1e10", 1), ("llama3-405b", "1e8", 634))
    for model, numel, count in cases:
        report = plan_json("--model", model, "--ranks", "8", "--numel-to-wrap", numel)
        assert len(report["units"]) == count, (model, numel, len(report["units"]))
    assert report["model"]["parameters"] == sum(unit["numel"] for unit in report["units"])


def shape_of_the_json():
    report = plan_json("--model", "llama2-7b", "--ranks", "8")
    assert report["model"]["parameters"] == 6738415616
    assert set(report["units"][0]) == {"path", "class", "numel", "padded_numel"}
    memory = {"valley_bytes", "peak_bytes", "arena_bytes", "peak_at", "host_bytes", "by_category"}
    assert memory <= set(report["memory"])
    comm = {"all_gather_bytes", "reduce_scatter_bytes", "all_reduce_bytes", "scalar_bytes"}
    assert comm == set(report["comm"])
    assert {"instructions", "hash"} <= set(report["program"])
    assert report["verified"] is True


def formulas():
    """Padded parameters P over F shards: 12 P / F bytes of state, and what the collectives send."""
    ranks = 8
    model = ["--model", "llama2-7b", "--ranks", str(ranks), "--wrap", "block"]
    full = plan_json(*model)
    padded = sum(unit["padded_numel"] for unit in full["units"])
    assert full["memory"]["valley_bytes"] == 12 * padded // ranks
    assert full["comm"]["reduce_scatter_bytes"] == 4 * padded * (ranks - 1) // ranks
    grad_op = plan_json(*model, "--strategy", "grad_op")
    assert grad_op["comm"]["all_gather_bytes"] == 4 * padded * (ranks - 1) // ranks
    assert full["comm"]["all_gather_bytes"] <= 2 * grad_op["comm"]["all_gather_bytes"]
    no = plan_json(*model, "--strategy", "no")
    padded = sum(unit["padded_numel"] for unit in no["units"])
    assert no["comm"]["all_reduce_bytes"] == 2 * 4 * padded * (ranks - 1) // ranks
    assert no["comm"]["all_gather_bytes"] == no["comm"]["reduce_scatter_bytes"] == 0
    peaks = [report["memory"]["peak_bytes"] for report in (full, grad_op, no)]
    assert peaks == sorted(peaks) and len(set(peaks)) == 3
    offload = plan_json(*model, "--cpu-offload")
    assert (
        offload["memory"]["valley_bytes"] < 1e6 and offload["memory"]["host_bytes"] > 12 * padded // ranks
    )
    hybrid = plan_json("--model", "llama2-7b", "--ranks", "16", "--wrap", "block", "--strategy", "hybrid")
    assert hybrid["memory"]["valley_bytes"] == full["memory"]["valley_bytes"]  # 8 ranks a node unless told
    assert hybrid["comm"]["all_reduce_bytes"] > 0


def a_gpu_needs_none():
    report = plan_json("--model", "llama2-7b", "--ranks", "8", "--backend", "cuda", "--wrap", "block")
    cpu = plan_json("--model", "llama2-7b", "--ranks", "8", "--wrap", "block", "--param-dtype", "bf16")
    assert report["comm"] == cpu["comm"]  # bf16 is a GPU's default
    there, here = (r["memory"]["valley_by_category"] for r in (report, cpu))
    workspace = there.pop("workspace") - here.pop("workspace")
    assert there == here  # but for what the GPU's matrix products keep, a planned constant
    assert workspace == report["memory"]["valley_bytes"] - cpu["memory"]["valley_bytes"] > 0


def large_plans_are_quick():
    if programs.SLOW:
        return
    for wrap in ([], ["--wrap", "block"]):
        began = time.monotonic()
        command = [
            str(programs.BIN / "fsdp_plan"),
            "--model",
            "llama3-405b",
            "--ranks",
            "512",
            "--json",
            *wrap,
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        assert time.monotonic() - began < 2, time.monotonic() - began
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 1e6  # kB


def pictures():
    for name, arguments in (("one", []), ("many", ["--cpu-offload", "--grad-accum", "4"])):
        model = ["--model", "llama2-7b", "--ranks", "8", "--wrap", "block", *arguments]
        picture, series = work / f"{name}.svg", work / f"{name}.json"
        page = plan(*model, "--memory-profile", picture).stdout
        plan(*model, "--memory-profile", series)
        texts = [
            element.text or ""
            for element in xml.etree.ElementTree.parse(picture).iter()
            if "text" in element.tag
        ]
        for word in (
            "forward",
            "backward",
            "update",
            "activations",
            "gathered parameters",
            "optimizer state",
        ):
            assert any(word in text for text in texts), (name, word)
        profile = json.loads(series.read_text())
        peak, position = profile["device"]["peak_bytes"], profile["device"]["peak_position"]
        assert sum(bytes_at[position] for bytes_at in profile["device"]["bytes"].values()) == peak
        assert f"{peak:,}" in page
        marked = [text for text in texts if text.startswith(f"at instruction {position}: ")]
        assert len(marked) >= 1 and profile["instructions"][position] in marked[0]
        assert not list(work.glob("*.tmp"))


for test in (
    streams,
    takes_every_option_of_training,
    gpu_memory_beside_the_arena,
    unit_counts,
    shape_of_the_json,
    formulas,
    a_gpu_needs_none,
    large_plans_are_quick,
    pictures,
):
    test()
    print(f"{test.__name__}: passed", flush=True)
subprocess.run(["rm", "-rf", str(work)], check=True)
