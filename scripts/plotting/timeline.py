"""The picture of a step: when each stream of a rank was busy, by matplotlib."""
import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from plotting.trace import EXPOSED

COLOURS = {"op": "#4c78a8", "collective": "#f58518", "copy": "#54a24b", "host": "#b279a2"}
EXPOSED_COLOUR = "#e45756"


def _draw_row(axes, place, row, events):
    """A bar an event; in an SVG a group for each kind in the row."""
    for kind in dict.fromkeys(event.kind for event in events):
        spans = [(event.begin, event.length) for event in events if event.kind == kind]
        colour = EXPOSED_COLOUR if row == EXPOSED else COLOURS.get(kind, "0.5")
        axes.broken_barh(spans, (place - 0.4, 0.8), facecolors=colour, gid=f"{row}/{kind}")


def _draw_legend(axes, step):
    kinds = {event.kind for row, events in step.rows.items() if row != EXPOSED for event in events}
    marks = [Patch(color=colour, label=kind) for kind, colour in COLOURS.items() if kind in kinds]
    if step.rows.get(EXPOSED):
        marks.append(Patch(color=EXPOSED_COLOUR, label="exposed: computing waits"))
    axes.legend(handles=marks, fontsize=8, ncols=len(marks), loc="upper center", bbox_to_anchor=(0.5, -0.16))


def draw(step, name):
    matplotlib.rcParams["svg.hashsalt"] = "fsdp"  # the same picture again is the same bytes
    matplotlib.rcParams["text.parse_math"] = False
    rows = list(step.rows)
    figure = Figure(figsize=(12, 1.6 + 0.4 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(rows):
        _draw_row(axes, place, row, step.rows[row])
    for event in step.rows.get(EXPOSED, ()):  # through all rows
        axes.axvspan(event.begin, event.begin + event.length, color=EXPOSED_COLOUR, alpha=0.15, linewidth=0)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, step.length)
    axes.set_xlabel("ms")
    axes.grid(axis="x", alpha=0.3)
    exposed = step.parts.get("exposed_comm_ms", 0)
    axes.set_title(f"{name}: step {step.number} of rank {step.rank}, {step.length:.4g} ms, "
                   f"exposed communication {100 * exposed / step.length:.1f}%", fontsize=10)
    _draw_legend(axes, step)
    return figure
