#!/usr/bin/env python3
"""Resources of each kernel as compiled. usage: check_resources.py NVCC [--markdown FILE] [ARCHITECTURE...]

Compiles each .cu of kernels/cuda for 80 and 90 (with FSDP_TEST_PART=N for 80 alone, with FSDP_TEST_ALL=1 also
for 100 and 120), those named *_hopper* in place of 90 for 90a and for nothing else, and prints one
line per kernel: registers, stack, spills, static shared memory, and its stores to device memory by width. It
fails if registers are spilled, if the compiler makes a wgmma wait for the one before it (it says so where
registers of one in flight are touched), or if a vector is stored in pieces of 4 bytes: neighbouring ones from
one address register, which take the memory bus four times as long as one store of 16. Dynamic shared memory
is checked against every limit when kernels run on the CPU (simt.h).

Widths are read from the disassembly, by the toolkit's nvdisasm or that of PyPI's nvidia-cuda-nvdisasm.
Without either the rest is checked, and the last line says what was not.
"""
import argparse
import collections
import glob
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "scripts"))
from common.environment import Packages  # noqa: E402
from common.errors import EnvironmentFailure  # noqa: E402

KERNEL = re.compile(r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
                    r"(\d+) bytes spill loads.*?Used (\d+) registers([^\n]*)", re.S)
SECTION = re.compile(r"^\.text\.(\w+):", re.M)
# STG.E.128 desc[UR4][R6.64+0x10], R8;  STG.E [R2.64], R4;  LDG.E.U16 R0, desc[UR4][R8.64]
ACCESS = re.compile(r"^(\.L\w*):|"
                    r"\b(STG|LDG)((?:\.\w+)*) (?:\w+, )?(?:desc\[\w+\])?\[(R\w+)?(?:\.64)?([^\]]*)\]", re.M)
SERIALIZED = re.compile(r"wgmma\.mma_async instructions are serialized.*?'(\w+)'", re.S)
HOPPER = re.compile(r"_hopper[a-z_]*\.cu$")
ALL = ["80", "90", "100", "120"]
WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16, "256": 32}
SPLIT_LEAST = 4  # neighbouring stores that a vector of 16 bytes falls into


# ---- The disassembly

def find_disassembler(nvcc):
    """(path, None), or (None, why there is none)."""
    beside = os.path.join(os.path.dirname(os.path.realpath(nvcc)), "nvdisasm")
    path = beside if os.access(beside, os.X_OK) else shutil.which("nvdisasm")
    if path:
        return path, None
    package = Packages("nvdisasm", ["nvidia-cuda-nvdisasm"], ["nvidia_cuda_nvdisasm"])
    folder = package.default_folder()
    try:
        package._make(folder)  # pylint: disable=protected-access
    except EnvironmentFailure as failure:
        return None, str(failure)
    packages = os.path.join(folder, "lib", "python3*", "site-packages")
    for path in glob.glob(os.path.join(packages, "nvidia", "*", "bin", "nvdisasm")):
        os.chmod(path, 0o755)
        return path, None
    return None, f"{folder} holds no nvdisasm"


def width_of(suffixes):
    return next((WIDTHS[part] for part in suffixes.split(".") if part in WIDTHS), 4)


def longest_run(offsets):
    """The most neighbours among the offsets of 4-byte stores."""
    longest = 0
    for at in offsets:
        if at - 4 in offsets:
            continue
        length = 1
        while at + 4 * length in offsets:
            length += 1
        longest = max(longest, length)
    return longest


def read_stores(text):
    """For each kernel: stores by width, and whether a vector is stored in pieces: neighbouring stores of 4
    bytes with no branch and no narrow load between. Loops over single elements, unrolled, load each of
    them."""
    pieces = SECTION.split(text)
    result = {}
    for name, body in zip(pieces[1::2], pieces[2::2]):
        widths, offsets, split = collections.Counter(), collections.defaultdict(set), False
        for label, what, suffixes, register, offset in ACCESS.findall(body):
            width = width_of(suffixes)
            if label or (what == "LDG" and width <= 4):
                offsets.clear()
                continue
            if what == "LDG":
                continue
            widths[width] += 1
            number = re.fullmatch(r"(?:\+(-?0x[0-9a-f]+))?", offset)
            if width == 4 and number:
                offsets[register].add(int(number[1] or "0", 16))
                split = split or longest_run(offsets[register]) >= SPLIT_LEAST
        result[name] = widths, split
    return result


# ---- Compilation

def read_cubin(path):
    """The code for the device that an object holds, which is a file of its own in it."""
    with open(path, "rb") as file:
        data = file.read()
    begin = data.find(b"\x7fELF", 1)
    tables, sizes = struct.unpack_from("<QQ", data, begin + 32), struct.unpack_from("<HHHH", data, begin + 54)
    ends = [tables[0] + sizes[0] * sizes[1], tables[1] + sizes[2] * sizes[3]]  # of programs and of sections
    return data[begin : begin + max(ends)]


def compile_one(job):
    nvcc, disassembler, source, architecture = job
    with tempfile.TemporaryDirectory() as folder:
        made, cubin = os.path.join(folder, "out.o"), os.path.join(folder, "out.cubin")
        # The build says where the libraries are (kernels/CMakeLists.txt); no kernel depends on it. ccache
        # keeps objects, with what nvcc says of them, but no cubins.
        command = [*filter(None, [shutil.which("ccache")]), nvcc, "-std=c++17", "-O3", "-I.",
                   '-DFSDP_CUBLASLT_FOLDER=""', "-c", "-no-compress", "-Xptxas", "-v", "-gencode",
                   f"arch=compute_{architecture},code=sm_{architecture}", source, "-o", made]  # fmt: skip
        compiled = subprocess.run(command, capture_output=True, text=True, check=False)
        log, stores = compiled.stdout + compiled.stderr, None
        if compiled.returncode == 0 and disassembler:
            with open(cubin, "wb") as file:
                file.write(read_cubin(made))
            listed = subprocess.run([disassembler, "-c", cubin], capture_output=True, text=True, check=False)
            if listed.returncode != 0:
                return source, architecture, listed.returncode, log + listed.stderr, None
            stores = read_stores(listed.stdout)
    return source, architecture, compiled.returncode, log, stores


def demangle(name):
    try:
        text = subprocess.run(["c++filt", name], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return name
    text = text.replace("(anonymous namespace)::", "").replace("void ", "")
    return re.sub(r"\(.*", "", text)


class Kernel:
    """A kernel of one architecture; the verdict is "ok" if nothing is wrong with it."""

    def __init__(self, source, architecture, found, stores, serialized=()):
        name, stack, stored, loaded, registers, rest = found
        shared = re.search(r"(\d+) bytes smem", rest)
        self.source, self.architecture = os.path.basename(source), architecture
        self.name, self.registers, self.stack = demangle(name), int(registers), int(stack)
        self.spilled, self.shared = int(stored) + int(loaded), int(shared[1]) if shared else 0
        widths, split = (stores or {}).get(name, (None, False))
        self.stores = "not read" if widths is None else " ".join(
            f"{widths[width]}x{width}" for width in sorted(widths, reverse=True))
        self.verdict = ("SPILLS" if self.spilled else "SERIAL" if name in serialized else
                        "SPLITS" if split else "ok")

    def line(self):
        return (f"{self.verdict:6} sm_{self.architecture:<3} {self.source:29} {self.registers:>3} registers, "
                f"stack {self.stack:>3}, spilled {self.spilled:>3}, shared {self.shared:>5}, stores "
                f"{self.stores:18} {self.name}")

    def cell(self):
        spilled = f", spills {self.spilled} bytes" if self.spilled else ""
        return f"{self.registers}{spilled}; {self.stores or 'none'}"


def markdown(kernels, architectures):
    """One row per kernel, one column per architecture."""
    cells = {}
    for kernel in kernels:
        # Kernels of sm_90a stand with those of sm_90: no architecture has both.
        architecture = kernel.architecture.rstrip("a")
        cells.setdefault((kernel.source, kernel.name), {})[architecture] = kernel.cell()
    lines = ["# Kernels as compiled", "",
             "Registers, spilled bytes if there are any, and stores to device memory in the code by",
             "width: `2x16` are two of 16 bytes. Those of 4 and 2 bytes beside wide ones are ends of ranges.",
             "Files named `_hopper` are compiled for sm_90a alone.",
             "Made with nvcc 13.0 by `tests/simt/check_resources.py --markdown FILE NVCC 80 90 100 120`.", "",
             "| file | kernel | " + " | ".join(f"sm_{name}" for name in architectures) + " |",
             "| --- | --- |" + " --- |" * len(architectures)]
    for (source, name), found in cells.items():
        row = " | ".join(found.get(architecture, "") for architecture in architectures)
        lines.append(f"| {source} | `{name}` | {row} |")
    return "\n".join(lines) + "\n"


def jobs_of(nvcc, disassembler, source, architecture):
    if not HOPPER.search(source):
        return [(nvcc, disassembler, source, architecture)] if architecture != "90a" else []
    return [(nvcc, disassembler, source, "90a")] if architecture in ("90", "90a") else []


def wanted():
    if os.environ.get("FSDP_TEST_ALL") == "1":
        return ALL
    return ["80", "90a"] if int(os.environ.get("FSDP_TEST_PART", 1)) > 1 else ["80", "90"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("nvcc")
    parser.add_argument("architectures", nargs="*", metavar="ARCHITECTURE", default=wanted())
    parser.add_argument("--markdown", help="write a table here")
    args = parser.parse_args()
    disassembler, why = find_disassembler(args.nvcc)
    sources = sorted(glob.glob("kernels/cuda/**/*.cu", recursive=True))
    jobs = [job for name in args.architectures for source in sources
            for job in jobs_of(args.nvcc, disassembler, source, name)]
    kernels, failed = [], 0
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        for source, architecture, status, log, stores in pool.map(compile_one, jobs):
            if status:
                print(f"{source}: fails for sm_{architecture}\n{log}")
                failed += 1
            for found in KERNEL.findall(log):
                kernels.append(Kernel(source, architecture, found, stores, SERIALIZED.findall(log)))
                print(kernels[-1].line(), flush=True)
    bad = failed + sum(kernel.verdict != "ok" for kernel in kernels)
    print(f"{len(kernels)} kernels, {bad} bad; stores are in bytes")
    if args.markdown:
        with open(args.markdown, "w", encoding="utf-8") as file:
            file.write(markdown(kernels, args.architectures))
    if why:
        print(f"NOT CHECKED: widths of stores, for there is no disassembler: {why}")
    return 1 if bad or not kernels else 0


if __name__ == "__main__":
    sys.exit(main())
