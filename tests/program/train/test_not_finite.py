"""Gradients that are not finite, or too large, in whole runs: which steps are skipped, what the log says, how
the run ends, and that no checkpoint or export ever holds such a value."""

import json
import math
import shutil
import struct

import programs

work = programs.folder("finite")
MPI = programs.WITH_MPI
COMMON = ["-s", "32", "--seed", "3", "--save-dir", work, "--log-freq", "100", "--wrap", "block"]


def train(*arguments, ranks=None, status=0):
    process = programs.run("fsdp_train", *COMMON, *arguments, ranks=ranks, status=status)
    assert len(programs.errors(process, "fsdp_train")) == (status != 0), process.stderr
    return process


def refuse_constant(name):
    raise AssertionError(f"{name} is not JSON")


def lines(name):
    text = (work / name / "log.jsonl").read_text()
    return [json.loads(line, parse_constant=refuse_constant) for line in text.splitlines()]


def steps(name):
    return sorted(int(p.name[5:]) for p in (work / name).glob("step-????????"))


def all_finite(name):
    """Reads every value of every file of every checkpoint."""
    count = 0
    for path in (work / name).glob("step-*/rank-*.safetensors"):
        for tensor, (dtype, _, data) in programs.read_safetensors(path).items():
            if tensor == "checksums":
                continue
            halves = struct.unpack(f"<{len(data) // 2}H", data)
            exponents = halves[1::2] if dtype == "F32" else halves
            assert not any(half & 0x7F80 == 0x7F80 for half in exponents), (path, tensor)
            count += len(exponents)
    assert count > 0, name


def measured_as_planned(name):
    for line in lines(name):
        for what in ("valley_bytes", "peak_bytes", "host_valley_bytes", "host_peak_bytes"):
            assert line[what] == line[f"planned_{what}"], line


BF16 = ["--master-dtype", "bf16", "--moment-dtype", "bf16"]
DIVERGES = ["-b", "4", "--lr", "1e5", "--lr-schedule", "constant", "--ckpt-freq", "1"]


def divergence_ends_the_run():
    """Skipped thrice, then status 6; the newest checkpoint is from before and a second run ends likewise."""
    setups = [("one", None, [])]
    if MPI:
        setups += [("full", 2, []), ("no", 2, ["--strategy", "no"]), ("offload", 2, ["--cpu-offload"]),
                   ("grad_op", 2, ["--strategy", "grad_op", *BF16]),
                   ("zero1", 2, ["--strategy", "zero1", "--param-dtype", "bf16", "--cpu-offload"]),
                   ("accumulated", 2, ["--grad-accum", "2", "--accumulate", "local", "--ckpt-async", "off"])]
    for name, ranks, options in setups:
        process = train(*DIVERGES, *options, "--max-steps", 20, "-e", name, ranks=ranks, status=6)
        message = programs.errors(process, "fsdp_train")[0]
        assert "3 steps in a row skipped" in message and "--max-skipped 3" in message, message
        assert "--resume" not in message, message
        log = lines(name)
        skipped = [line["skipped"] for line in log]
        assert skipped[-3:] == [True] * 3 and not skipped[0] and sum(skipped) == 3, skipped
        applied = len(log) - 3
        assert [line["updates"] for line in log] == list(range(1, applied + 1)) + [applied] * 3, log
        for line in log[-3:]:
            assert line["grad_norm"] is None, line
        assert steps(name)[-1] == applied and "skipped" in process.stdout, steps(name)
        all_finite(name)
        measured_as_planned(name)
        newest = (work / name / f"step-{applied:08d}" / "checkpoint.json").read_bytes()
        again = train(*DIVERGES, *options, "--max-steps", 20, "-e", name, ranks=ranks, status=6)
        # A different learning rate alone would not help.
        message = programs.errors(again, "fsdp_train")[0]
        assert f"since the checkpoint of step {applied} skipped" in message, message
        assert "--resume off" in message, message
        assert f"step-{applied:08d}" in again.stdout and len(lines(name)) == applied + 3, again.stdout
        assert (work / name / f"step-{applied:08d}" / "checkpoint.json").read_bytes() == newest
        programs.run("fsdp_export", work / name, "--to", work / f"{name}-hf", status=0)
    patient = train(*DIVERGES, "--max-steps", 20, "--max-skipped", 5, "-e", "patient", status=6)
    assert sum(line["skipped"] for line in lines("patient")) == 5, patient.stderr


def without_clipping_it_ends_at_once():
    """The update is in the state: the first norm that is not finite ends the run, and it is not saved."""
    for name, options in (("unclipped", []), ("unclipped-sync", ["--ckpt-async", "off"])):
        process = train(*DIVERGES, *options, "--grad-clip", 0, "--max-steps", 20, "-e", name, status=6)
        log = lines(name)
        bad = [line["loss"] is None or line["grad_norm"] is None for line in log]
        saves_failed = "is not saved" in process.stderr and not any(bad)
        assert (bad[-1] and not any(bad[:-1])) or saves_failed, log
        assert not any(line["skipped"] for line in log), log
        assert steps(name) and steps(name)[-1] < len(log) + saves_failed, (steps(name), len(log))
        all_finite(name)
    for option in (["--max-skipped", "4"], ["--skip-grad-norm", "10"]):
        process = train("--grad-clip", 0, *option, status=2)
        assert option[0] in programs.errors(process, "fsdp_train")[0], process.stderr


SPIKES = ["-b", "1", "--lr", "1e-3", "--max-skipped", "100", "--max-steps", "8"]


def spike_between(name):
    """A limit that the run's first three norms are below and its fourth is above."""
    norms = [line["grad_norm"] for line in lines(name)]
    assert norms[3] > 1.2 * max(norms[:3]), norms
    return (norms[3] + max(norms[:3])) / 2


def spikes_are_skipped():
    """A skipped step consumes data and learning rate, not the optimizer's t; so does resuming, to the bit."""
    for name, options in (("spike", []), ("spike-bf16", BF16)):
        train(*SPIKES, *options, "-e", name)
        limit = spike_between(name)
        whole, half = f"{name}-whole", f"{name}-half"
        train(*SPIKES, *options, "--skip-grad-norm", limit, "--ckpt-freq", 4, "-e", whole)
        log, plain = lines(whole), lines(name)
        assert [line["skipped"] for line in log[:4]] == [False] * 3 + [True], log
        assert any(not line["skipped"] for line in log[4:7]), [line["grad_norm"] for line in log]
        for line, other in zip(log, plain):
            assert line["skipped"] == (line["grad_norm"] > limit) and line["lr"] == other["lr"], line
        for line, other in zip(log[:4], plain):
            assert line["loss"] == other["loss"] and line["grad_norm"] == other["grad_norm"], (line, other)
        measured_as_planned(whole)
        # The save after step 4 has waited for a step that counts.
        counts = [s for s in range(5, 9) if not log[s - 1]["skipped"]]
        assert steps(whole) == [counts[0], 8], steps(whole)
        resumed_after = steps(whole)[0]
        shutil.copytree(work / whole, work / half)
        for step in steps(half)[1:]:
            shutil.rmtree(work / half / f"step-{step:08d}")
        process = train(*SPIKES, *options, "--skip-grad-norm", limit, "--ckpt-freq", 4, "-e", half)
        assert f"step {resumed_after}" in process.stdout, process.stdout
        numbers = ("loss", "grad_norm", "skipped", "updates", "lr")
        for line, other in zip(lines(half), log, strict=True):
            assert [line[n] for n in numbers] == [other[n] for n in numbers], (line, other)
        manifest = json.loads((work / whole / f"step-{resumed_after:08d}" / "checkpoint.json").read_text())
        assert manifest["progress"]["updates"] == log[resumed_after - 1]["updates"], manifest["progress"]


def longest_run(flags):
    longest = run = 0
    for flag in flags:
        run = run + 1 if flag else 0
        longest = max(longest, run)
    return longest


def only_skips_in_a_row_end_the_run():
    """At a rate that changes no weight the norms are known; more steps are skipped than --max-skipped, but
    never so many in a row."""
    still = ["-b", "1", "--lr", "1e-12", "--lr-schedule", "constant", "--max-steps", "14"]
    train(*still, "-e", "still")
    norms = [line["grad_norm"] for line in lines("still")]
    limits = [(a + b) / 2 for a, b in zip(sorted(norms), sorted(norms)[1:])]
    for limit in limits:
        skipped = [norm > limit for norm in norms]
        if sum(skipped) > longest_run(skipped) + 1:
            break
    else:
        raise AssertionError(f"no limit skips steps apart from each other: {norms}")
    train(*still, "--skip-grad-norm", limit, "--max-skipped", longest_run(skipped) + 1, "-e", "apart")
    assert [line["skipped"] for line in lines("apart")] == skipped
    train(*still, "--skip-grad-norm", limit, "--max-skipped", longest_run(skipped), "-e", "row", status=6)


def bad_weights_are_refused():
    model = programs.make_model(work / "model")
    tokens = work / "tokens.bin"
    tokens.write_bytes(struct.pack("<4096H", *(i * 37 % 257 for i in range(4096))))
    path = model / "model.safetensors"
    good = path.read_bytes()
    length = struct.unpack("<Q", good[:8])[0]
    header = json.loads(good[8 : 8 + length])
    name = "model.layers.1.mlp.up_proj.weight"
    at = 8 + length + header[name]["data_offsets"][0] + 4 * 17
    for value, word in ((math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")):
        path.write_bytes(good[:at] + struct.pack("<f", value) + good[at + 4 :])
        for ranks in (None, 2) if MPI else (None,):
            process = programs.run("fsdp_train", "--model", model, "--data", tokens, "-s", 16,
                                   "--max-steps", 1, ranks=ranks)
            message = programs.errors(process, "fsdp_train")
            assert process.returncode == 3 and len(message) == 1, (process.returncode, process.stderr)
            assert name in message[0] and f" {word} at element 17" in message[0], message


def evaluation_that_is_not_finite():
    """It changes nothing: a warning, null in the log, and the steps decide how the run ends. A step whose
    loss is not finite has a norm that is not, so it is skipped too."""
    model = programs.make_model(work / "loud")
    tokens = work / "tokens.bin"
    path = model / "model.safetensors"
    data = bytearray(path.read_bytes())
    length = struct.unpack("<Q", data[:8])[0]
    begin, end = json.loads(data[8 : 8 + length])["model.norm.weight"]["data_offsets"]
    data[8 + length + begin : 8 + length + end] = struct.pack("<f", 3e38) * ((end - begin) // 4)
    path.write_bytes(data)
    process = train("--model", model, "--data", tokens, "--max-steps", 20, "--eval-split", 4,
                    "--eval-freq", 1, "-e", "loud", "--ckpt-freq", 1, status=6)
    log = lines("loud")
    assert [line["loss"] for line in log] == [None] * 3 and all(line["skipped"] for line in log), log
    assert [line["running_loss"] for line in log] == [None] * 3, log
    assert [line.get("eval_loss", "none") for line in log] == [None, None, "none"], log
    warned = [line for line in process.stderr.splitlines() if "the evaluation's loss" in line]
    assert len(warned) == 2 and not steps("loud"), process.stderr


spikes_are_skipped()
only_skips_in_a_row_end_the_run()
bad_weights_are_refused()
evaluation_that_is_not_finite()
without_clipping_it_ends_at_once()
divergence_ends_the_run()
