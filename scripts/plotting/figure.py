"""The picture of runs, by matplotlib."""
import math
import os
import tempfile

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from common.errors import InputError

# Bytes of a run, all of one colour.
MEMORY = (("peak_bytes", "peak", "-"), ("valley_bytes", "valley", "--"), ("arena_bytes", "arena", ":"),
          ("host_bytes", "host", "-."))


def _smooth(values, width):
    """The mean of the last `width` values that there are."""
    result, total, count = [], 0.0, 0
    for i, value in enumerate(values):
        if not math.isnan(value):
            total, count = total + value, count + 1
        if i >= width and not math.isnan(values[i - width]):
            total, count = total - values[i - width], count - 1
        result.append(total / count if count else math.nan)
    return result


def _curve(axes, run, xs, field, size=1, **how):
    """A field over `xs`, divided by `size`; its name in an SVG is the field's and the run's."""
    marker = "." if len(xs) == 1 else None  # a line of one point shows nothing
    values = [value / size for value in run.fields[field]]
    axes.plot(xs, values, gid=f"{field}/{run.name}", **{"marker": marker, **how})


def _draw_loss(axes, run, xs, colour, smooth):
    _curve(axes, run, xs, "loss", color=colour, linewidth=1, alpha=0.35 if smooth > 1 else 1)
    if smooth > 1:
        axes.plot(xs, _smooth(run.fields["loss"], smooth), color=colour, linewidth=1.5,
                  gid=f"smooth_loss/{run.name}")
    if run.has("eval_loss"):
        _curve(axes, run, xs, "eval_loss", color=colour, linestyle="none", marker="o", markersize=5,
               markeredgecolor="black", markeredgewidth=0.7)


def _memory_unit(runs):
    """What to divide by, and its name."""
    fields = [field for field, _, _ in MEMORY]
    most = max((value for run in runs for field in fields for value in run.fields[field]
                if not math.isnan(value)), default=0)
    return next(((size, unit) for size, unit in ((1e9, "GB"), (1e6, "MB")) if most >= size), (1e3, "kB"))


def _draw_memory(axes, runs, xs, colours):
    size, unit = _memory_unit(runs)
    shown = []
    for field, name, style in MEMORY:
        for run, x, colour in zip(runs, xs, colours):
            if run.has(field):
                _curve(axes, run, x, field, size, color=colour, linestyle=style, linewidth=1.2)
                shown.append((name, style))
    axes.set_ylabel(f"memory per rank ({unit})")
    axes.set_ylim(bottom=0)
    kinds = [Line2D([], [], color="0.3", linestyle=style) for _, style in dict.fromkeys(shown)]
    if kinds:
        axes.legend(kinds, [name for name, _ in dict.fromkeys(shown)], fontsize=8, ncols=len(kinds))


def _draw_legend(axes, runs, colours):
    marks = [Line2D([], [], color=colour) for colour in colours]
    names = [run.name for run in runs]
    if any(run.has("eval_loss") for run in runs):
        marks.append(Line2D([], [], color="0.6", linestyle="none", marker="o", markeredgecolor="black"))
        names.append("evaluation")
    if len(names) > 1:
        axes.legend(marks, names, fontsize=8)
    else:
        axes.set_title(names[0], fontsize=10)


def draw(runs, x, smooth):
    matplotlib.rcParams["svg.hashsalt"] = "fsdp"  # the same picture again is the same bytes
    matplotlib.rcParams["text.parse_math"] = False  # a run's name is a name
    figure = Figure(figsize=(8, 9), layout="constrained")
    loss, throughput, memory = figure.subplots(3, 1, sharex=True)
    colours = [f"C{i}" if len(runs) <= 10 else matplotlib.colormaps["viridis"](i / (len(runs) - 1))
               for i in range(len(runs))]
    xs = [run.steps if x == "step" else run.hours() for run in runs]
    for run, along, colour in zip(runs, xs, colours):
        _draw_loss(loss, run, along, colour, smooth)
        _curve(throughput, run, along, "tokens_per_s", color=colour, linewidth=1)
    _draw_memory(memory, runs, xs, colours)
    _draw_legend(loss, runs, colours)
    loss.set_ylabel("loss")
    throughput.set_ylabel("tokens/s")
    throughput.set_ylim(bottom=0)
    memory.set_xlabel("step" if x == "step" else "hours")
    for axes in (loss, throughput, memory):
        axes.grid(alpha=0.3)
    return figure


def save(figure, path, form):
    """Writes the picture, whole or not at all."""
    temporary = None
    try:
        folder, name = os.path.split(path)
        handle, temporary = tempfile.mkstemp(prefix=f"{name}.", dir=folder or ".")
        os.close(handle)
        figure.savefig(temporary, format=form, dpi=150, metadata={"Date": None} if form == "svg" else None)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
        temporary = None
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); give another --out") from None
    finally:
        if temporary:
            os.unlink(temporary)
