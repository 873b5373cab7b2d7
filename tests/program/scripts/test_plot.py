"""scripts/plot.py: every curve of its SVG has the log's points where the log has them, whatever a log went
through; what it refuses; and the log of a real run. Skipped where matplotlib cannot be had from PyPI."""

import json
import random
import re
import subprocess
import sys
import xml.etree.ElementTree

import prepared
import programs
from plot import MATPLOTLIB

ROOT = prepared.ROOT
SVG = "{http://www.w3.org/2000/svg}"


def plot(*arguments):
    command = [sys.executable, str(ROOT / "scripts" / "plot.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def plot_good(*arguments, notes=0):
    process = plot(*arguments)
    assert process.returncode == 0, process.stderr
    assert len(process.stderr.splitlines()) == notes, process.stderr
    return process


def error_of(status, *arguments):
    return prepared.error_of(plot(*arguments), status, "plot.py")


def curves(path):
    """The points of each named curve, in the picture's coordinates; markers' where it has no line."""
    result = {}
    for group in xml.etree.ElementTree.parse(path).iter(f"{SVG}g"):
        name = group.get("id", "")
        if "/" not in name:
            continue
        marks = [(float(use.get("x")), float(use.get("y"))) for use in group.iter(f"{SVG}use")]
        lines = [element.get("d") for element in group.findall(f"{SVG}path")]
        pairs = re.findall(r"[ML] (\S+) (\S+)", " ".join(lines))
        result[name] = marks or [(float(x), float(y)) for x, y in pairs]
    return result


def texts(path):
    """Every text, which matplotlib draws as outlines and names in comments."""
    return re.findall(r"<!-- (.*?) -->", path.read_text())


def check_curve(points, xs, ys):
    """The points are those of the data but for the axes' scales, which two of them give."""
    assert len(points) == len(xs), (len(points), len(xs))
    for axis, data in enumerate((xs, ys)):
        found = [point[axis] for point in points]
        low, high = data.index(min(data)), data.index(max(data))
        scale = (found[high] - found[low]) / (data[high] - data[low])
        assert (scale > 0) == (axis == 0), "x runs to the right, y upwards, which is down in an SVG"
        for value, place in zip(data, found):
            assert abs(found[low] + (value - data[low]) * scale - place) < 1e-3, (axis, value, place)


def record(step, draw, **more):
    return {"global_step": step, "loss": 2 + draw.random(), "tokens_per_s": 1000 + 50 * draw.random(),
            "mfu": None, "valley_bytes": 1000000 + draw.randrange(9999), "host_bytes": 512,
            "peak_bytes": 2000000 + draw.randrange(9999), "arena_bytes": 2100000 + draw.randrange(9999),
            "time/total": 500.0 + 100 * draw.random(), **more}  # fmt: skip


def write(path, records, end="\n"):
    path.write_text("\n".join(map(json.dumps, records)) + end)
    return path


def points_are_the_logs(work):
    draw = random.Random(1)
    first = [record(step, draw, **({"eval_loss": 2 + draw.random()} if step % 5 == 0 else {}))
             for step in range(1, 41)]
    second = [record(step, draw) for step in range(1, 31)]
    logs = [write(work / "one.jsonl", first), write(work / "two.jsonl", second)]
    plot_good(*logs, "--out", work / "x.svg")
    found = curves(work / "x.svg")
    for name, records in (("one", first), ("two", second)):
        for field in ("loss", "tokens_per_s", "valley_bytes", "peak_bytes", "arena_bytes"):
            steps, values = zip(*((r["global_step"], r[field]) for r in records))
            check_curve(found.pop(f"{field}/{name}"), steps, values)
        assert len({y for _, y in found.pop(f"host_bytes/{name}")}) == 1
    points = [(r["global_step"], r["eval_loss"]) for r in first if "eval_loss" in r]
    check_curve(found.pop("eval_loss/one"), *zip(*points))
    assert not found, list(found)
    shown = texts(work / "x.svg")
    for text in ("one", "two", "evaluation", "loss", "tokens/s", "memory per rank (MB)", "step", "peak",
                 "valley", "arena", "host"):  # fmt: skip
        assert text in shown, (text, shown)
    before = (work / "x.svg").read_bytes()
    plot_good(*logs, "--out", work / "x.svg")
    assert (work / "x.svg").read_bytes() == before
    # By time, with means of four over the losses.
    plot_good(logs[1], "--out", work / "y.svg", "--x", "hours", "--smooth", 4, "--names", "$a<b")
    found, total, ends = curves(work / "y.svg"), 0.0, []
    for r in second:
        total += r["time/total"] / 3.6e6
        ends.append(total)
    losses = [r["loss"] for r in second]
    check_curve(found["loss/$a<b"], ends, losses)
    means = [sum(part) / len(part) for part in (losses[max(0, i - 3) : i + 1] for i in range(len(losses)))]
    check_curve(found["smooth_loss/$a<b"], ends, means)
    assert "hours" in texts(work / "y.svg")


def logs_may_go_back(work):
    """A run that went on from step 6 after step 10, and from step 2 after that; lines that are not there
    yet, or have no memory."""
    draw = random.Random(2)
    steps = [*range(1, 11), *range(7, 9), *range(3, 21)]
    records = [record(step, draw, peak_bytes=None) for step in steps]
    log = write(work / "log.jsonl", records, end='\n{"global_step": 21, "lo')
    process = plot_good(work, "--out", work / "x.svg", notes=1)
    assert "log.jsonl:31: left out" in process.stderr, process.stderr
    found = curves(work / "x.svg")
    kept = records[:2] + records[12:]
    check_curve(found[f"loss/{work.name}"], *zip(*((r["global_step"], r["loss"]) for r in kept)))
    assert f"peak_bytes/{work.name}" not in found and "peak" not in texts(work / "x.svg")
    # A gap if a loss is not a number.
    records = [record(step, draw) for step in range(1, 11)]
    records[4]["loss"] = None
    plot_good(write(log, records), "--out", work / "x.svg")
    assert len(curves(work / "x.svg")[f"loss/{work.name}"]) == 9
    plot_good(write(log, records[:1]), "--out", work / "x.png")  # a single step
    assert (work / "x.png").read_bytes().startswith(b"\x89PNG\r\n")


def bad_input_is_refused(work):
    good = json.dumps(record(1, random.Random(3)))
    out = work / "x.svg"
    out.write_text("what was there before")
    for content, place, what in [
            (f"{good}\n{{\n", "a.jsonl:2: ", "not valid JSON"), (f"{good}\n[1]\n", "a.jsonl:2: ", "object"),
            ('\n{"loss": 1}\n', "a.jsonl:2: ", "global_step"),
            ('{"global_step": "x"}\n', "a.jsonl:1: ", "global_step"),
            ('{"global_step": 1, "loss": "low"}\n', "a.jsonl:1: ", '"loss" is "low"'),
            ("[" * 100000 + "\n", "a.jsonl:1: ", "JSON"), ("\n", "a.jsonl: ", "no step")]:
        (work / "a.jsonl").write_text(content)
        message = error_of(3, work / "a.jsonl", "--out", out)
        assert f"{work}/{place}" in message and what in message, message
    (work / "a.jsonl").write_bytes(b"\xff\n")
    assert "a.jsonl:1: is not UTF-8" in error_of(3, work / "a.jsonl", "--out", out)
    assert "none.jsonl: cannot be read" in error_of(3, work / "none.jsonl", "--out", out)
    assert "log.jsonl: cannot be read" in error_of(3, work, "--out", out)
    (work / "a.jsonl").write_text(good + "\n")
    log = work / "a.jsonl"
    for status, what, *arguments in [
            (2, "LOG"), (2, "x.pdf", log, "--out", work / "x.pdf"), (2, "--smooth 0", log, "--smooth", 0),
            (2, "2 names for 1", log, "--names", "a,b"), (2, "miles", log, "--x", "miles"),
            (3, "none/x.svg: cannot be written", log, "--out", work / "none" / "x.svg")]:
        assert what in error_of(status, *arguments)
    assert out.read_text() == "what was there before"
    assert sorted(path.name for path in work.iterdir()) == ["a.jsonl", "x.svg"]


def a_real_run_is_drawn(work):
    common = ["-s", 32, "-b", 2, "--lr", "1e-3", "--eval-split", 40, "--eval-freq", 3, "--save-dir", work,
              "-e", "run", "--ckpt-freq", 4]  # fmt: skip
    for steps in (6, 12):
        programs.run("fsdp_train", *common, "--max-steps", steps, status=0)
    plot_good(work / "run", "--out", work / "x.svg")
    lines = programs.log_of(work / "run" / "log.jsonl")
    found = curves(work / "x.svg")
    steps = list(range(1, 13))
    check_curve(found["loss/run"], steps, [line["loss"] for line in lines])
    check_curve(found["tokens_per_s/run"], steps, [line["tokens_per_s"] for line in lines])
    evaluated = [(line["global_step"], line["eval_loss"]) for line in lines if "eval_loss" in line]
    assert [step for step, _ in evaluated] == [3, 6, 9, 12]
    check_curve(found["eval_loss/run"], *zip(*evaluated))


def bars(path):
    """The number of bars of each row and kind of a timeline's picture."""
    return {group.get("id"): len(group.findall(f"{SVG}path"))
            for group in xml.etree.ElementTree.parse(path).iter(f"{SVG}g") if "/" in group.get("id", "")}


def a_real_step_is_drawn(work):
    ranks = 2 if programs.WITH_MPI else None
    trace = work / "trace.json"
    programs.run("fsdp_train", "-s", 32, "-b", 2, "--wrap", "block", "--max-steps", 4,
                 "--trace", trace, ranks=ranks, status=0)
    plot_good("--timeline", trace, "--out", work / "x.svg")
    events = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X" and e["pid"] == 0]
    step = next(e for e in events if e["name"] == "step 4")
    inside = [e for e in events if e["cat"] != "step" and e["dur"] > 0
              and min(e["ts"] + e["dur"], step["ts"] + step["dur"]) > max(e["ts"], step["ts"])]
    found = bars(work / "x.svg")
    for row, kind, tid in (("compute", "op", 2), ("gather", "collective", 3), ("reduce", "collective", 4)):
        count = sum(e["tid"] == tid and e["cat"] == kind for e in inside)
        assert found.get(f"{row}/{kind}", 0) == count and (count > 0 or not ranks), (row, found, count)
    exposed = sum(e["cat"] == "exposed" for e in inside)
    assert found.get("exposed/exposed", 0) == exposed and (exposed > 0 or not ranks), (found, exposed)
    shown = texts(work / "x.svg")
    for text in ("compute", "ms", "op", "h2d", "host"):
        assert text in shown, (text, shown)
    share = 100 * step["args"]["exposed_comm_ms"] / (step["dur"] / 1e3)
    title = next(text for text in shown if text.startswith("trace: step 4 of rank 0"))
    assert title.endswith(f"exposed communication {share:.1f}%"), title
    plot_good("--timeline", trace, "--step", 3, "--rank", ranks - 1 if ranks else 0, "--out", work / "x.png")
    assert (work / "x.png").read_bytes().startswith(b"\x89PNG\r\n")
    (work / "log.jsonl").write_text(json.dumps(record(1, random.Random(4))) + "\n")
    (work / "list.json").write_text("[]")
    (work / "odd.json").write_text('{"traceEvents": [{"ph": "X"}]}')
    (work / "none.json").write_text('{"traceEvents": []}')
    for status, what, *arguments in [
            (2, "--step 9: ", "--timeline", trace, "--step", 9),
            (2, "has steps 3, 4", "--timeline", trace, "--step", 5),
            (2, "--rank 7: ", "--timeline", trace, "--rank", 7),
            (2, "either LOGs or --timeline", work / "log.jsonl", "--timeline", trace),
            (2, "for --timeline", work / "log.jsonl", "--step", 3),
            (2, "for --timeline", work / "log.jsonl", "--rank", 0),
            (2, "are for LOGs", "--timeline", trace, "--smooth", 1),
            (3, "log.jsonl: is no timeline", "--timeline", work / "log.jsonl"),
            (3, "list.json: is no timeline", "--timeline", work / "list.json"),
            (3, "odd.json: an event lacks", "--timeline", work / "odd.json"),
            (3, "none.json: has no row", "--timeline", work / "none.json"),
            (3, "no.json: cannot be read", "--timeline", work / "no.json")]:
        assert what in error_of(status, *arguments), arguments


prepared.run_tests_with(MATPLOTLIB, "plot.py", [
    points_are_the_logs, logs_may_go_back, bad_input_is_refused, a_real_run_is_drawn, a_real_step_is_drawn])
