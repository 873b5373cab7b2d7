"""PyTorch FSDP2 beside the other steps (bench/torch_llama.py --staged).

It imports on the CPU while our steps are timed, makes its model and compiles on the GPU while only
correctness is tested there, and is timed alone. A line to it opens each of these slots.
"""
import json
import os
import queue
import subprocess
import time
import types

import compare_gpu

from checking import process, steps

IMPORTED, COMPILED, DONE = "imported", "compiled", "done"


class Peer:
    def __init__(self, case, report, machine, python):
        self.case, self.report = case, report
        self.stage, self.result, self.failure = None, None, None
        self.child = self.lines = None
        self.compiles = False
        device = machine.peer_device
        args = types.SimpleNamespace(work=machine.work, steps=steps.TRAIN_STEPS, device=device,
                                     compile=device == "cuda")
        arguments = [*compare_gpu.torch_arguments(args, case, "fsdp2"), "--staged"]
        environment = compare_gpu.torch_environment(machine.environment)
        environment["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(machine.work, "inductor")
        command = compare_gpu.torch_command(python, device, arguments)
        try:
            self.child, self.lines = process.start(command, environment, stdin=subprocess.PIPE)
        except OSError as error:
            self.failure = f"{command[0]}: {error.strerror}"

    def take(self, line):
        """A line that it printed; None: it has ended."""
        if line is None:
            status = process.finish(self.child)
            if self.result is None:
                self.failure = f"PyTorch's side ended with status {status}; gpu_check.log has what it said"
            return
        self.report.log(f"pytorch {self.case}: {line}")
        try:
            said = json.loads(line)
        except ValueError:
            return
        if isinstance(said, dict) and "stage" in said:
            self.stage = said["stage"]
        elif isinstance(said, dict) and "losses" in said:
            self.result, self.stage = said, DONE

    def is_over(self):
        return self.failure is not None or self.result is not None

    def poll(self, limit_s=0.0):
        """Takes what it has said; waits for the first line up to the limit."""
        while not self.is_over():
            try:
                line = self.lines.get(timeout=limit_s) if limit_s > 0 else self.lines.get_nowait()
            except queue.Empty:
                return
            self.take(line)
            limit_s = 0.0

    def wait_for(self, stage, limit_s):
        """Whether it came to the stage in time."""
        deadline = time.monotonic() + limit_s
        while not self.is_over() and self.stage != stage:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self.poll(left)
        return self.stage == stage

    def go(self):
        """Opens its next slot."""
        if self.is_over():
            return
        try:
            self.child.stdin.write("go\n")
            self.child.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended; its lines say so

    def close(self, limit_s=0):
        """It keeps memory of the GPU until it has ended: by itself within the limit, or by force."""
        deadline = time.monotonic() + limit_s
        while self.child in process.live:
            try:
                self.take(self.lines.get(timeout=max(0.0, deadline - time.monotonic())))
            except queue.Empty:
                process.end(self.child)
