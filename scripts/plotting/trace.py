"""Reading the timelines that --trace writes (Trace Event format)."""
import dataclasses
import json

from common.errors import InputError, OptionError

# Rows that are no stream.
STEP, EXPOSED = "step", "exposed"
REMEDY = "give a file that --trace wrote"


@dataclasses.dataclass
class Event:
    """An instruction, or a part of a gap; times in milliseconds."""
    name: str
    kind: str
    begin: float
    length: float


@dataclasses.dataclass
class Step:
    """One step of one rank: its rows, each a list of events, and what the file says about it."""
    rank: int
    number: int
    length: float
    parts: dict
    rows: dict


def _load(path):
    try:
        with open(path, encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); {REMEDY}") from None
    except (ValueError, RecursionError, TypeError, KeyError):
        raise InputError(f"{path}: is no timeline in the Trace Event format; {REMEDY}") from None
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise InputError(f"{path}: its \"traceEvents\" are no list of objects; {REMEDY}")
    return events


def _step_number(event):
    return int(event["name"].split()[1])


def _choose(path, steps, rank, number):
    """The event of the step that is asked for: the last one if `number` is None."""
    if not steps:
        raise InputError(f"{path}: has no row \"{STEP}\" with a step; {REMEDY}")
    ranks = sorted({event["pid"] for event in steps})
    if rank not in ranks:
        raise OptionError(f"--rank {rank}: {path} has rank{'s' * (len(ranks) > 1)} "
                          f"{', '.join(map(str, ranks))}")
    steps = {_step_number(event): event for event in steps if event["pid"] == rank}
    number = max(steps) if number is None else number
    if number not in steps:
        raise OptionError(f"--step {number}: {path} has step{'s' * (len(steps) > 1)} "
                          f"{', '.join(map(str, sorted(steps)))}")
    return steps[number]


def read_step(path, rank, number):
    """The step of a rank, with the events of each row in it, cut at its ends, in the rows' order."""
    events = _load(path)
    try:
        names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events
                 if e["ph"] == "M" and e["name"] == "thread_name"}
        order = {(e["pid"], e["tid"]): e["args"]["sort_index"] for e in events
                 if e["ph"] == "M" and e["name"] == "thread_sort_index"}
        spans = [e for e in events if e["ph"] == "X"]
        chosen = _choose(path, [e for e in spans if e["cat"] == STEP], rank, number)
        begin, end = chosen["ts"], chosen["ts"] + chosen["dur"]
        rows = {names[key]: [] for key in sorted(names, key=order.__getitem__)
                if key[0] == rank and names[key] != STEP}
        for event in spans:
            first, last = max(event["ts"], begin), min(event["ts"] + event["dur"], end)
            if event["pid"] != rank or event["cat"] == STEP or last <= first:
                continue
            rows[names[rank, event["tid"]]].append(
                Event(event["name"], event["cat"], (first - begin) / 1e3, (last - first) / 1e3))
        return Step(rank, _step_number(chosen), (end - begin) / 1e3, chosen["args"], rows)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        raise InputError(f"{path}: an event lacks what --trace gives it; {REMEDY}") from None
