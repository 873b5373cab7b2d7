"""--trace: a measured timeline of all ranks in the Trace Event format, and what it must agree with: the plan,
the log, and itself. With FSDP_TEST_BACKEND=cuda in the environment, on GPUs, emulated ones too."""

import json
import os
import pathlib
import resource
import signal

import programs

work = programs.folder("trace")
RANKS = 2 if programs.WITH_MPI else None
SHORT = ["-s", 32, "-b", 2, "--wrap", "block"]
CUDA = os.environ.get("FSDP_TEST_BACKEND") == "cuda"
if CUDA:  # a small model, for emulated GPUs
    (work / "model").mkdir()
    (work / "model" / "config.json").write_text(json.dumps(programs.CONFIG))
    SHORT += ["-s", 9, "--model", work / "model", "--init", "random", "--tokenizer", "bytes",
              "--backend", "cuda"]


def train(*arguments, ranks=RANKS, status=0, **options):
    return programs.run("fsdp_train", *SHORT, *arguments, ranks=ranks, **options, status=status)


def load(path):
    """The events by phase, the rows' names, and what the file says of itself."""
    trace = json.loads(path.read_text())
    events = {phase: [] for phase in "XMCsf"}
    for event in trace["traceEvents"]:
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int), event
        assert event["ph"] == "M" or event["ts"] >= 0, event
        events[event["ph"]].append(event)
    rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in events["M"] if e["name"] == "thread_name"}
    return events, rows, trace["otherData"]


def check_rows(events, rows):
    """Complete events of one row follow each other."""
    ends = {}
    assert all(e["dur"] >= 0 and e["name"] and e["cat"] for e in events["X"])
    for event in sorted(events["X"], key=lambda e: (e["ts"], e["dur"])):
        row = event["pid"], event["tid"]
        assert row in rows, event
        assert event["ts"] >= ends.get(row, 0) - 1e-4, (rows[row], event)
        ends[row] = event["ts"] + event["dur"]


def check_flows(events, rows):
    """Every flow goes from within an event of one row to the begin of one of another row."""
    def holds(row, ts):
        return any((e["pid"], e["tid"]) == row and e["ts"] - 1e-4 <= ts <= e["ts"] + e["dur"] + 1e-4
                   for e in events["X"])

    starts = {e["id"]: e for e in events["s"]}
    assert len(starts) == len(events["s"]) == len(events["f"]) > 0
    assert set(starts) == {e["id"] for e in events["f"]} and all(e["bp"] == "e" for e in events["f"])
    for end in events["f"][:: max(1, len(events["f"]) // 50)]:
        start = starts[end["id"]]
        assert start["pid"] == end["pid"] and start["tid"] != end["tid"] and start["name"] == end["name"]
        assert start["ts"] <= end["ts"] + 1e-4, (start, end)
        assert holds((start["pid"], start["tid"]), start["ts"]), start
        assert holds((end["pid"], end["tid"]), end["ts"]), end


def check_instructions(events, rows, ranks, steps):
    """Every rank ran the same instructions, each in every step as often as its section."""
    ran = {}
    for event in events["X"]:
        row = rows[event["pid"], event["tid"]]
        if row in ("step", "exposed"):
            continue
        arguments = event["args"]
        assert arguments["bytes"] >= 0 and arguments["section"] and arguments["step"] in steps, event
        if event["cat"] == "collective":
            assert arguments["ranks"] > 1 and arguments["over"] and row != "compute", event
        key = arguments["step"], arguments["run"], arguments["position"]
        ran.setdefault(event["pid"], set()).add(key)
        assert (row, event["name"]) == ran.setdefault(key[1:], (row, event["name"]))
    assert all(ran[rank] == ran[0] for rank in range(ranks)), {rank: len(ran[rank]) for rank in range(ranks)}
    counts = [sum(key[0] == step for key in ran[0]) for step in steps]
    assert len(set(counts)) == 1 and counts[0] > 20, counts
    return {key: ran[key] for key in ran if isinstance(key, tuple)}


def check_steps(events, rows, log):
    """A step's parts are all of it, what it exposes is drawn, and the log of rank 0 says the same."""
    for step in (e for e in events["X"] if rows[e["pid"], e["tid"]] == "step"):
        parts = step["args"]
        whole = sum(parts[k] for k in ("work_ms", "exposed_comm_ms", "exposed_h2d_ms", "exposed_d2h_ms",
                                       "other_ms"))
        assert abs(whole - step["dur"] / 1e3) < 1e-3, step
        inside = [e for e in events["X"] if e["pid"] == step["pid"] and rows[e["pid"], e["tid"]] == "exposed"
                  and step["ts"] <= e["ts"] + e["dur"] / 2 < step["ts"] + step["dur"]]
        drawn = sum(e["dur"] for e in inside if e["args"].get("over")) / 1e3
        assert abs(drawn - parts["exposed_comm_ms"]) < 1e-3, (drawn, step)
        by_axes = parts["exposed_comm_ms_by_axes"]
        assert abs(sum(by_axes.values()) - parts["exposed_comm_ms"]) < 1e-3, step
        number = int(step["name"].split()[1])
        # The first traced step has none before it here, but has in the log.
        if step["pid"] == 0 and step["ts"] > 1e3:
            assert abs(log[number]["time/exposed_comm"] - parts["exposed_comm_ms"]) < 0.05, (log, step)


def log_of(path):
    return {line["global_step"]: line for line in map(json.loads, path.read_text().splitlines())}


def simulated_alike(measured):
    """A simulated step of the same program: the same instructions on the same rows."""
    trace = work / "simulated.json"
    programs.run("fsdp_plan", *SHORT, "--grad-accum", 3, "--ranks", RANKS or 1, "--backend", "cuda",
                 "--param-dtype", "fp32", "--profile", "a100-80", "--trace", trace, status=0)
    events, rows, about = load(trace)
    check_rows(events, rows)
    check_flows(events, rows)
    assert about["kind"] == "simulated", about
    steps = {e["args"]["step"] for e in events["X"] if e["cat"] == "op"}
    assert check_instructions(events, rows, 1, steps) == measured
    samples = [sum(e["args"].values()) for e in events["C"] if e["name"] == "device memory"]
    assert max(samples) == about["planned_peak_bytes"]
    for step in (e for e in events["X"] if e["cat"] == "step"):
        assert step["args"]["work_ms"] > 0


def all_ranks_on_one_clock():
    trace, log = work / "two.json", work / "two.jsonl"
    process = train("--grad-accum", 3, "--max-steps", 5, "--trace", trace, "--log", log)
    assert f"trace:     steps 3 to 4 of {RANKS or 1} rank" in process.stdout, process.stdout
    events, rows, about = load(trace)
    check_rows(events, rows)
    check_flows(events, rows)
    measured = check_instructions(events, rows, RANKS or 1, (3, 4))
    if not CUDA:
        simulated_alike(measured)
    lines = log_of(log)
    check_steps(events, rows, lines)
    assert about["kind"] == "measured" and about["strategy"] == "full", about
    for rank in range(RANKS or 1):
        samples = [e["args"] for e in events["C"] if e["pid"] == rank and e["name"] == "device memory"]
        peak = max(sum(sample.values()) for sample in samples)
        assert peak == lines[3]["planned_peak_bytes"] == about["planned_peak_bytes"], peak
    if RANKS:
        gathers = [[e for e in events["X"] if e["pid"] == rank and e["cat"] == "collective"
                    and e["name"].startswith("all_gather") and e["args"]["step"] == 4] for rank in (0, 1)]
        for one, other in zip(*gathers):  # on one clock neither ends before the other begins
            assert one["name"] == other["name"]
            assert one["ts"] + one["dur"] >= other["ts"] and other["ts"] + other["dur"] >= one["ts"]


def other_shapes():
    """Host updates and copies; replicas; a first step and the last."""
    cases = [("offload", ("--cpu-offload", "on", "--grad-clip", 0), None, "1:3"),
             ("poison", ("--set", "poison=on", "--recompute", "block"), None, "2:2")]
    if RANKS and not CUDA:
        cases.append(("hybrid", ("--strategy", "hybrid", "--mesh", "data=2,fsdp=2,tensor=2"), 8, "2:3"))
    for name, arguments, ranks, steps in cases:
        trace, log = work / f"{name}.json", work / f"{name}.jsonl"
        train(*arguments, "--max-steps", 3, "--trace", trace, "--trace-steps", steps, "--log", log,
              ranks=ranks)
        events, rows, about = load(trace)
        check_rows(events, rows)
        check_flows(events, rows)
        first, last = map(int, steps.split(":"))
        check_instructions(events, rows, ranks or 1, range(first, last + 1))
        check_steps(events, rows, log_of(log))
        names = set(rows.values())
        assert ("host" in names) and ("tensor" in names) == (name == "hybrid"), names
        if name == "offload":
            assert any(e["name"] == "host memory" for e in events["C"])
            assert any(e["args"]["exposed_h2d_ms"] > 0 for e in events["X"] if e["cat"] == "step")


def a_resumed_run_counts_its_own_steps():
    run = ("-e", "resumed", "--save-dir", work, "--ckpt-freq", 4)
    train(*run, "--max-steps", 4, ranks=None)
    trace = work / "resumed.json"
    process = train(*run, "--max-steps", 8, "--trace", trace, ranks=None)
    assert "trace:     steps 7 to 8 of 1 rank in" in process.stdout, process.stdout
    events, rows, _ = load(trace)
    check_instructions(events, rows, 1, (7, 8))


def what_cannot_be_written_is_said():
    for status, words, arguments in (
        (2, ("--trace-steps '4:3'", "command line", "A:B"), ("--trace", "t.json", "--trace-steps", "4:3")),
        (2, ("--trace-steps '0:3'",), ("--trace", "t.json", "--trace-steps", "0:3")),
        (2, ("--trace-steps '3'",), ("--trace", "t.json", "--trace-steps", "3")),
        (2, ("--trace-steps '1:x'",), ("--trace", "t.json", "--trace-steps", "1:x")),
        (2, ("--trace-steps 1:101", "at most 100"), ("--trace", "t.json", "--trace-steps", "1:101")),
        (2, ("--trace-steps 1:2", "--trace FILE"), ("--trace-steps", "1:2")),
        (2, ("--trace-steps 3:4 (default)", "makes 2 steps"), ("--trace", work / "t.json", "--max-steps", 2)),
        (3, ("/dev/null/t.json",), ("--trace", "/dev/null/t.json", "--max-steps", 4)),
    ):
        programs.refused("fsdp_train", *SHORT, *arguments, status=status, parts=words)
    assert not pathlib.Path("t.json").exists() and not (work / "t.json").exists()
    # A run that is refused for its last option has written no other file, and replaces none.
    written = work / "written"
    written.mkdir()
    (written / "old.svg").write_text("as it was")
    train("--max-steps", 2, "--trace", written / "t.json", "--tensorboard", written / "board" / "events",
          "--memory-profile", written / "old.svg", "--log", written / "log.jsonl", "-e", "refused",
          "--save-dir", written / "outputs", ranks=None, status=2)  # fmt: skip
    files = [path for path in written.rglob("*") if path.is_file()]
    assert files == [written / "old.svg"] and files[0].read_text() == "as it was", files

    def small_disk():  # MPI's own files have room
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, 8 << 20))

    full = work / "full.json"
    full.write_text("as it was")
    process = train("--max-steps", 101, "--grad-accum", 3, "--trace", full, "--trace-steps", "1:100",
                    ranks=None, preexec_fn=small_disk)
    warning = [line for line in process.stderr.splitlines() if "warning" in line]
    assert len(warning) == 1 and "full.json" in warning[0] and "File too large" in warning[0], warning
    assert "step 101/101" in process.stdout and "training continues" in warning[0], process.stdout
    assert full.read_text() == "as it was" and not list(work.glob("full.json.*")), list(work.iterdir())


tests = [all_ranks_on_one_clock, other_shapes]
if not CUDA:
    tests += [a_resumed_run_counts_its_own_steps, what_cannot_be_written_is_said]
programs.run_tests(tests)
