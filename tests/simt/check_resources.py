#!/usr/bin/env python3
"""No kernel spills registers. usage: check_resources.py NVCC [ARCHITECTURE...] (80 and 90 unless told)

Compiles each kernels/cuda/*.cu with -Xptxas -v and prints a line a kernel: registers, stack, spills, static
shared memory. Dynamic shared memory is held to every limit where kernels run on the CPU (simt.h).
"""
import glob
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

KERNEL = re.compile(r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
                    r"(\d+) bytes spill loads.*?Used (\d+) registers([^\n]*)", re.S)


def demangle(name):
    try:
        text = subprocess.run(["c++filt", name], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return name
    text = text.replace("(anonymous namespace)::", "").replace("void ", "")
    return re.sub(r"\(.*", "", text)


def compile_one(job):
    nvcc, source, architecture = job
    with tempfile.TemporaryDirectory() as folder:
        command = [nvcc, "-std=c++17", "-O3", "-I.", "-cubin", f"-arch=sm_{architecture}", "-Xptxas", "-v",
                   source, "-o", os.path.join(folder, "out.cubin")]
        result = subprocess.run(command, capture_output=True, text=True)
    return source, architecture, result.returncode, result.stdout + result.stderr


def main():
    nvcc, architectures = sys.argv[1], sys.argv[2:] or ["80", "90"]
    sources = sorted(glob.glob("kernels/cuda/*.cu"))
    jobs = [(nvcc, source, architecture) for source in sources for architecture in architectures]
    kernels = bad = 0
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        for source, architecture, status, log in pool.map(compile_one, jobs):
            if status:
                print(f"{source}: nvcc fails for sm_{architecture}\n{log}")
                bad += 1
            for name, stack, stores, loads, registers, rest in KERNEL.findall(log):
                shared = re.search(r"(\d+) bytes smem", rest)
                spilled = int(stores) + int(loads)
                kernels += 1
                bad += spilled > 0
                print(f"{'SPILLS' if spilled else 'ok    '} sm_{architecture} {os.path.basename(source):30} "
                      f"{registers:>3} registers, stack {stack:>3}, spilled {spilled:>4}, shared "
                      f"{shared.group(1) if shared else 0:>5}  {demangle(name)}")
    print(f"{kernels} kernels, {bad} bad")
    return 1 if bad or not kernels else 0


if __name__ == "__main__":
    sys.exit(main())
