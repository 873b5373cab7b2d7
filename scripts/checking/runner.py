"""Runs the steps: rows, figures and files as they come."""
import json
import os
import re
import statistics
import time

import compare_gpu

from checking import mends, process, steps, tools
from checking.peer import COMPILED, DONE, IMPORTED, Peer

LEAST_S = 3  # a step with less time than this is not begun
STRETCH = 2  # a step may take so many times its limit, if the later ones keep theirs
LOSS_SLACK, MEMORY_SLACK_BYTES, MEMORY_SLACK = 1e-2, compare_gpu.DEVICE_BYTES_SLACK, 0.02
READ_S = 10  # of the libraries, before the first step needs them


class Failure(Exception):
    """What a step found wrong, beyond its exit status."""


class Runner:
    def __init__(self, machine, report, deadline, python):
        self.machine, self.report, self.deadline, self.python = machine, report, deadline, python
        self.train, self.ceiling_flops = {}, None
        self.peers, self.peers_open, self.used_before = {}, False, None

    # ---- One step

    def run_all(self, chosen):
        # Their imports read gigabytes: not beside the first steps, which read libraries too.
        peers_at = 1 + max((at for at, step in enumerate(chosen) if step.kind == "ceilings"), default=-1)
        for at, step in enumerate(chosen):
            if at == peers_at:
                self.start_peers([step.case for step in chosen if step.kind == "torch" and not step.lacks])
            self.peers_open = not any(later.kind in steps.TIMED for later in chosen[at:])
            self.advance_peers()
            if self.is_done(step):
                continue
            left = self.deadline - time.monotonic()
            if left < LEAST_S:
                self.report.row(step.name, "not run", 0,
                                f"no time was left: scripts/gpu_check.sh --only '{step.name}'")
                continue
            later = sum(other.limit_s for other in chosen[at + 1:] if not self.is_done(other))
            self.run_step(step, min(max(step.limit_s, min(STRETCH * step.limit_s, left - later)), left))
        self.say_mends()

    def is_done(self, step):
        """PyTorch may have had its slot earlier than its place in the list."""
        return step.kind == "torch" and step.name in [row["step"] for row in self.report.rows]

    def run_step(self, step, limit_s):
        if step.lacks:
            self.report.row(step.name, "skipped", 0, step.lacks)
        elif step.kind == "versions":
            self.versions(step)
        elif step.kind == "torch":
            self.time_peer(self.peers[step.case], step.name, limit_s)
        elif step.tool and not self.machine.tools[step.tool]:
            self.report.row(step.name, "skipped", 0, f"{step.tool} is missing")
        else:
            self.run_command(step, limit_s)

    def run_command(self, step, limit_s):
        self.report.log(f"== {step.name}: {' '.join(map(str, step.command))}")
        if step.kind == "train":
            self.used_before = tools.used_bytes(self.machine.environment)
        self.remove_results(step)
        begin, last = time.monotonic(), [""]

        def on_line(line):
            if line.strip():
                last[0] = line.strip()
            if step.show and re.search(step.show, line):
                self.report.say(f"  {line.rstrip()}")
            else:
                self.report.log(line)

        try:
            environment = {**self.machine.environment, **step.environment}
            status = process.run(step.command, environment, limit_s, on_line)
        except SystemExit:
            self.report.row(step.name, "cut off", time.monotonic() - begin, last[0][:150])
            raise
        result, note = self.judge_status(status, limit_s, last[0][:150])
        try:
            note = self.figures(step, note)
        except Failure as failure:
            result, note = "FAILED", str(failure)
        except (OSError, ValueError, KeyError, IndexError, statistics.StatisticsError) as error:
            if result == "ok":
                result, note = "FAILED", f"it left no figures: {error!r}"
        self.report.row(step.name, result, time.monotonic() - begin, note)

    @staticmethod
    def remove_results(step):
        """Of an earlier check in the same folder: a step that fails must not show them."""
        for option, path in zip(step.command, step.command[1:]):
            if option in ("--log", "--json") and os.path.exists(path):
                os.remove(path)

    @staticmethod
    def judge_status(status, limit_s, last):
        if status == 0:
            return "ok", last
        if status == steps.SKIPPED:
            return "skipped", last
        if status == process.OVER_LIMIT:
            return "late", f"over its limit of {limit_s:.0f} s; last: {last}"
        return "FAILED", f"status {status}: {last}"

    # ---- What steps found

    def figures(self, step, note):
        """Reads what the step has written, even if it was ended early. Returns the row's note."""
        if step.kind == "ceilings":
            return self.ceilings(step, note)
        if step.kind == "train":
            return self.train_figures(step)
        if step.kind in ("attention", "kernels"):
            self.report.facts.setdefault(step.kind, {})[step.case] = self.read_lines(step)
        if step.kind == "mesh kernels":
            self.report.facts["mesh_kernels"] = self.read_lines(step)
        return note

    @staticmethod
    def read_lines(step):
        path = step.command[step.command.index("--json") + 1]
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.endswith("\n")]

    def ceilings(self, step, note):
        rates = {line["label"]: line["rate"] for line in self.read_lines(step)}
        self.report.facts["ceilings"] = rates
        for label, rate in rates.items():
            if "product" in label:
                self.ceiling_flops = rate
        return note

    def train_figures(self, step):
        log = step.command[step.command.index("--log") + 1]
        ours, before = compare_gpu.read_log(log), self.used_before
        side = compare_gpu.summary(step.case, [ours], self.ceiling_flops)
        peak = side["peak"]
        if peak["driver"] and before is not None:
            peak["driver"] -= before  # used by other processes
        self.train[step.case] = side
        facts = {**side, "seconds": ours["seconds"]}
        self.report.facts.setdefault("train", {})[step.case] = facts
        self.report.notes.append(compare_gpu.side_text(step.case, "ours", side))
        note = (f"{side['tokens_per_s']:.0f} tokens/s, losses {side['losses'][0]:.4f} -> "
                f"{side['losses'][-1]:.4f}; {compare_gpu.gigabytes(peak)} GB")
        if peak["driver"] and before is not None:
            beyond = facts["beyond_plan_bytes"] = peak["driver"] - peak["arena"]
            note += f"; the driver counts {beyond / 1e6:.0f} MB beyond the plan"
            if beyond > max(MEMORY_SLACK_BYTES, MEMORY_SLACK * peak["arena"]):
                raise Failure(f"{note}: more than {MEMORY_SLACK_BYTES / 1e6:.0f} MB or 2%")
        return note

    def say_mends(self):
        """Last: what the kernels' times ask for."""
        attention = {name.partition(",")[0]: {line["label"]: line["us"] for line in lines}
                     for name, lines in self.report.facts.get("attention", {}).items()
                     if name.endswith(f"batch {steps.ATTENTION_BATCHES[0]}")}
        for case, lines in self.report.facts.get("kernels", {}).items():
            seconds = self.report.facts.get("train", {}).get(case, {}).get("seconds", [])
            shapes = attention if case == steps.KERNELS_CASE else {}
            for line in mends.lines_of(case, lines, shapes, seconds):
                self.report.note(line)
        self.report.save()

    def versions(self, step):
        begin = time.monotonic()
        facts, lines = self.machine.versions()
        program = self.machine.program("fsdp_train")
        facts["libraries"], lacking = tools.libraries_of(program, self.machine.environment)
        self.report.facts["machine"] = facts
        for line in lines:
            self.report.note(line)
        found = ", ".join(f"{name} {path}" for name, path in facts["libraries"].items())
        self.report.note(f"libraries: {found or 'none'}")
        opened = [facts["libraries"][name] for name in tools.opened_libraries(program) if name not in lacking]
        total, seconds = tools.read_whole(opened, READ_S)
        self.report.note(f"read once: {total / 1e6:.0f} MB of libraries in {seconds:.1f} s")
        result = "FAILED" if lacking else "ok"
        note = f"fsdp_train lacks {', '.join(lacking)}" if lacking else lines[0][:150]
        self.report.row(step.name, result, time.monotonic() - begin, note)

    # ---- PyTorch

    def start_peers(self, cases):
        """They import on the CPU beside steps that do not."""
        installed = self.python or tools.torch_version()
        for case in cases if installed else []:
            self.peers[case] = Peer(case, self.report, self.machine, self.python or "python3")
        if not installed:
            self.peers = {case: None for case in cases}

    def advance_peers(self):
        """Opens the slots of the first that is not done, between our steps. One that has compiled is timed at
        once, alone."""
        waiting = [peer for peer in self.peers.values() if peer and not peer.is_over()]
        for peer in waiting:
            peer.poll()
        if not self.peers_open or not waiting:
            return
        peer = waiting[0]
        if peer.stage == IMPORTED and not peer.compiles:
            peer.compiles = True
            peer.go()
        elif peer.stage == COMPILED:
            name = f"PyTorch FSDP2 {peer.case}"
            self.time_peer(peer, name, min(60, self.deadline - time.monotonic()))

    def time_peer(self, peer, name, limit_s):
        begin = time.monotonic()
        if peer is None:
            self.report.row(name, "skipped", 0, "PyTorch is missing")
            return
        end = begin + limit_s
        if not peer.compiles and peer.wait_for(IMPORTED, limit_s):
            peer.compiles = True
            peer.go()
        if peer.wait_for(COMPILED, end - time.monotonic()):
            peer.go()
            peer.wait_for(DONE, end - time.monotonic())
        if peer.result is None:
            result = "FAILED" if peer.failure else "late"
            note = peer.failure or f"over its limit of {limit_s:.0f} s; it came to: {peer.stage}"
            peer.failure = note
            peer.close()
        else:
            result, note = self.peer_figures(peer)
            peer.close(10)
        self.report.row(name, result, time.monotonic() - begin, note)

    def peer_figures(self, peer):
        case = peer.case
        side = compare_gpu.summary(case, [peer.result], self.ceiling_flops)
        facts = {**side, **{name: peer.result.get(name) for name in ("seconds", "attention_ms")}}
        self.report.facts.setdefault("pytorch", {})[case] = facts
        self.report.note(compare_gpu.side_text(case, "fsdp2", side))
        sides = {"fsdp2": side}
        if case in self.train:
            sides["ours"] = self.train[case]
        verdict, text = compare_gpu.judge(case, sides)
        if not verdict:
            return "ok", f"{side['tokens_per_s']:.0f} tokens/s; ours has no figure to compare with"
        self.report.facts.setdefault("verdicts", {})[case] = verdict
        return ("ok" if verdict["loss"] <= LOSS_SLACK else "FAILED"), text
