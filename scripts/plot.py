#!/usr/bin/env python3
"""Draws the logs of one or several runs: loss, throughput and memory over the steps. Or, with --timeline, one
step: when each stream of a rank was busy, and where computing waited for communication.

A LOG is the JSON log of fsdp_train (--log FILE), or the folder of an experiment, which holds log.jsonl.
Evaluation losses are points. If a log's steps go back, as when a run resumes from an older checkpoint, the
later lines count. If the machine has no matplotlib, it is installed from PyPI into an environment of its own
on first use.
"""
import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from common import program  # noqa: E402
from common.environment import Packages  # noqa: E402
from common.errors import OptionError  # noqa: E402
from plotting.logs import read_runs  # noqa: E402
from plotting.trace import read_step  # noqa: E402

FORMATS = ("svg", "png")
MATPLOTLIB = Packages("plot", requirements=("matplotlib>=3.6,<4",), modules=("matplotlib",))


def parser():
    p = program.Parser(prog="plot.py", description=__doc__,
                       formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("logs", nargs="*", metavar="LOG", help="a JSON log, or an experiment's folder")
    p.add_argument("--out", metavar="FILE", default="plot.svg",
                   help="the picture, .svg or .png (default: %(default)s)")
    p.add_argument("--names", metavar="NAME,...", help="of the runs, for the legend (default: their files')")
    p.add_argument("--smooth", type=int, metavar="N",
                   help="draw the mean of the last N steps' losses over the losses (default: 1, none)")
    p.add_argument("--x", choices=("step", "hours"),
                   help="hours: the time that the steps took, added up (default: step)")
    p.add_argument("--timeline", metavar="FILE", help="a file that --trace wrote, in place of logs")
    p.add_argument("--rank", type=int, metavar="R", help="of --timeline: whose step (default: 0)")
    p.add_argument("--step", type=int, metavar="N", help="of --timeline: which step (default: the last)")
    p.add_argument("--venv", metavar="DIR", default=MATPLOTLIB.default_folder(),
                   help="where matplotlib is installed (default: %(default)s)")
    return p


def draw_timeline(options, ending):
    if options.names or options.smooth is not None or options.x:
        raise OptionError("--names, --smooth and --x are for LOGs: leave them out beside --timeline")
    step = read_step(options.timeline, options.rank or 0, options.step)
    MATPLOTLIB.ensure(options.venv)
    from plotting import figure, timeline
    name = os.path.splitext(os.path.basename(options.timeline))[0]
    figure.save(timeline.draw(step, name), options.out, ending)
    print(f"{options.out}: step {step.number} of rank {step.rank}")


def run(arguments):
    options = parser().parse_args(arguments)
    ending = os.path.splitext(options.out)[1].lower()[1:]
    if ending not in FORMATS:
        raise OptionError(f"--out {options.out}: must end in .svg or .png")
    if bool(options.logs) == bool(options.timeline):
        raise OptionError("give either LOGs or --timeline FILE")
    if options.timeline:
        return draw_timeline(options, ending)
    if options.step is not None or options.rank is not None:
        raise OptionError("--rank and --step are for --timeline: leave them out")
    smooth = 1 if options.smooth is None else options.smooth
    if smooth < 1:
        raise OptionError(f"--smooth {smooth}: give 1 or more")
    names = options.names.split(",") if options.names else None
    if names and len(names) != len(options.logs):
        raise OptionError(f"--names {options.names}: has {len(names)} names for {len(options.logs)} logs")
    runs = read_runs(options.logs, names)
    MATPLOTLIB.ensure(options.venv)
    from plotting import figure
    figure.save(figure.draw(runs, options.x or "step", smooth), options.out, ending)
    steps = ", ".join(f"{run.name} {len(run.steps):,}" for run in runs)
    print(f"{options.out}: steps of {steps}")


if __name__ == "__main__":
    sys.exit(program.main("plot.py", run))
