"""Reading the JSON logs of fsdp_train."""
import bisect
import json
import math
import os
import sys

from common.errors import InputError

# The fields drawn, if a log has them.
FIELDS = ("loss", "tokens_per_s", "valley_bytes", "peak_bytes", "arena_bytes", "host_bytes", "eval_loss",
          "time/total", "time/evaluation")


class Run:
    """A log's steps, ascending, and one list per field: floats, NaN if a step has none."""

    def __init__(self, name):
        self.name, self.steps, self.fields = name, [], {field: [] for field in FIELDS}

    def append(self, step, record):
        # The run resumed from an older checkpoint: the later steps are void.
        keep = bisect.bisect_left(self.steps, step)
        if keep < len(self.steps):
            del self.steps[keep:]
            for values in self.fields.values():
                del values[keep:]
        self.steps.append(step)
        for field, values in self.fields.items():
            values.append(record[field])

    def hours(self):
        """When each step ended, in hours of computing."""
        ends, now = [], 0.0
        for total, evaluation in zip(self.fields["time/total"], self.fields["time/evaluation"]):
            ends.append((now + (0 if math.isnan(total) else total)) / 3.6e6)
            now = ends[-1] * 3.6e6 + (0 if math.isnan(evaluation) else evaluation)
        return ends

    def has(self, field):
        return not all(map(math.isnan, self.fields[field]))


def _number(record, field, place):
    value = record.get(field)
    if value is None:  # what was not measured is null
        return math.nan
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"{place}\"{field}\" is {json.dumps(value)[:40]}, not a number; give a log of "
                         "fsdp_train")
    try:
        return float(value)
    except OverflowError:
        raise InputError(f"{place}\"{field}\" is too large") from None


def _parse(line, place):
    """A line's step and the fields that are drawn."""
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        raise InputError(f"{place}is not UTF-8; give a log of fsdp_train") from None
    except (ValueError, RecursionError) as error:
        what = getattr(error, "msg", "nested too deeply")
        raise InputError(f"{place}not valid JSON ({what}); give a log of fsdp_train") from None
    if not isinstance(record, dict):
        raise InputError(f"{place}no JSON object; give a log of fsdp_train")
    step = record.get("global_step")
    if isinstance(step, bool) or not isinstance(step, int) or step < 1:
        raise InputError(f"{place}\"global_step\" is missing or no step's number; give a log of fsdp_train")
    return step, {field: _number(record, field, place) for field in FIELDS}


def read_run(path, name):
    file_path = os.path.join(path, "log.jsonl") if os.path.isdir(path) else path
    run = Run(name)
    try:
        with open(file_path, "rb") as file:
            for number, line in enumerate(file, 1):
                place = f"{file_path}:{number}: "
                if not line.endswith(b"\n"):
                    print(f"plot.py: note: {place}left out, because it is incomplete: it is being written, "
                          "or a crash cut it off", file=sys.stderr)
                elif line.strip():
                    run.append(*_parse(line, place))
    except OSError as error:
        raise InputError(f"{file_path}: cannot be read ({error.strerror}); give a log of fsdp_train or an "
                         "experiment's folder") from None
    if not run.steps:
        raise InputError(f"{file_path}: holds no step yet; give the log of a run that has done one")
    return run


def default_names(paths):
    """Short names that distinguish the runs."""
    parts = [os.path.normpath(path).split(os.sep) for path in paths]
    parts = [part[:-1] if part[-1] == "log.jsonl" and len(part) > 1 else part for part in parts]
    for count in range(1, max(map(len, parts)) + 1):
        names = [os.sep.join(part[-count:]) for part in parts]
        if len(set(names)) == len(names):
            break
    return [name[:-6] if name.endswith(".jsonl") else name for name in names]


def read_runs(paths, names=None):
    return [read_run(path, name) for path, name in zip(paths, names or default_names(paths))]
