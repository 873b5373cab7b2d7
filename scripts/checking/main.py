"""scripts/gpu_check.sh in Python: options, the machine, the steps, the exit status."""
import argparse
import os
import re
import signal
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.dirname(HERE), os.path.join(ROOT, "bench")]

from checking import process, tools  # noqa: E402
from checking.machine import PROGRAMS, TESTS, Machine  # noqa: E402
from checking.report import Report  # noqa: E402
from checking.runner import Runner  # noqa: E402
from checking.steps import all_steps  # noqa: E402

BAD_FILE, NO_GPU = 3, 5
BUILD_LIMIT_S = 280


def parse(arguments):
    parser = argparse.ArgumentParser(prog="gpu_check.sh", description=__doc__)
    parser.add_argument("folder", nargs="?", default="build-gpu",
                        help="build folder; one that gpu_bundle.sh has made is used as it is")
    parser.add_argument("--only", default=".", type=re.compile, metavar="WORDS",
                        help="run the steps whose name matches this regular expression")
    parser.add_argument("--minutes", type=float, default=9.5, help="end within so many, the build included")
    parser.add_argument("--python", help="the interpreter that has PyTorch")
    parser.add_argument("--list", action="store_true", help="print the steps with their limits, and stop")
    return parser.parse_args(arguments)


def build(machine, report, limit_s):
    """Whether the programs are there."""
    begin, lines = time.monotonic(), []
    if machine.has_bundle:
        report.row("build", "ok", 0, f"brought along: {machine.bundle}")
        return True
    environment = {**machine.environment, "BUILD_TARGETS": " ".join(PROGRAMS + TESTS)}

    def on_line(line):
        lines.append(line)
        report.log(line)

    status = process.run(machine.build_command(), environment, limit_s, on_line)
    note = lines[-1][:150] if lines else ""
    report.row("build", "ok" if status == 0 else "FAILED", time.monotonic() - begin, note)
    if status != 0:
        print("\n".join(lines[-60:]), flush=True)
    return status == 0


def check(args, machine, begin):
    try:
        os.makedirs(machine.work, exist_ok=True)
        report = Report(os.environ.get("OUT") or os.path.join(machine.folder, "gpu_check"))
    except OSError as error:
        print(f"gpu_check.sh: {error.filename} cannot be written: {error.strerror}; OUT names another folder "
              "for results", file=sys.stderr)
        return BAD_FILE
    deadline = begin + 60 * args.minutes
    machine.set_environment()
    try:
        if build(machine, report, min(BUILD_LIMIT_S, deadline - time.monotonic())):
            runner = Runner(machine, report, deadline, args.python)
            runner.run_all([step for step in all_steps(machine) if args.only.search(step.name)])
    finally:
        process.end_all()
        report.finish()
    return 1 if report.failed() else 0


def main(arguments):
    begin = time.monotonic()
    args = parse(arguments)
    machine = Machine(args.folder, os.environ)
    if args.list:
        for step in all_steps(machine):
            print(f"{step.limit_s:4} s  {step.name}")
        return 0
    if not machine.gpus:
        print(f"gpu_check.sh: this machine has no NVIDIA GPU ({tools.why_no_gpu(os.environ)})",
              file=sys.stderr)
        return NO_GPU
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    return check(args, machine, begin)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
