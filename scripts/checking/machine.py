"""The machine that is checked: its GPU and tools, and our programs on it, brought along or built."""
import os
import platform
import re

import compare_gpu

from checking import tools

PROGRAMS = ("fsdp_train", "fsdp_plan", "fsdp_profile", "bench_gpu")
TESTS = ("gpu_kernels", "test_golden", "test_strategies")

TYPICAL = ("NVIDIA H200", "", "90", "143771 MiB")  # whose steps are listed where there is no GPU


class Machine:
    def __init__(self, folder, environment):
        self.root, self.folder = compare_gpu.ROOT, os.path.abspath(folder)
        self.environment = dict(environment)
        self.work = os.path.join(self.folder, "gpu_check", "work")
        self.tools = {name: tools.find_tool(name, environment) for name in tools.TOOLS}
        self.gpus = tools.describe_gpus(environment)
        _, _, architecture, memory = self.gpus[0] if self.gpus else TYPICAL
        self.capability, self.gpu_bytes = int(architecture), int(memory.split()[0]) * 2**20
        self.bundle = os.path.join(self.folder, "bundle")
        self.has_bundle = os.path.exists(os.path.join(self.bundle, "env.sh"))
        self.wheels = tools.wheel_folders()
        self.peer_device = "cuda"  # of PyTorch

    def program(self, name):
        return os.path.join(self.bundle if self.has_bundle else self.folder, "bin", name)

    def test(self, name):
        return os.path.join(self.bundle if self.has_bundle else self.folder, "tests", name)

    def source(self, path):
        return os.path.join(self.root, path)

    def build_command(self):
        """NCCL of PyTorch's packages, if the toolkit has none."""
        hints = []
        headers = ["/usr/include/nccl.h"]
        headers += [os.path.join(place, "include", "nccl.h")
                    for place in tools.toolkit_folders(self.environment)]
        for place in self.wheels if not any(map(os.path.exists, headers)) else []:
            library = os.path.join(place, "libnccl.so.2")
            if os.path.exists(library):
                include = os.path.join(os.path.dirname(place), "include")
                hints = [f"-DNCCL_INCLUDE_DIR={include}", f"-DNCCL_LIBRARY={library}"]
        return [self.source("scripts/build.sh"), self.folder, "-DFSDP_CUDA=on",
                f"-DCMAKE_CUDA_ARCHITECTURES={self.gpus[0][2]}", *hints]

    def set_environment(self):
        """PyTorch finds its libraries by itself, without those added here for our executables. In our path
        the toolkit's and PyTorch's come last, for libraries found nowhere else."""
        ours = self.environment
        ours["FSDP_PEER_LIBRARY_PATH"] = ours.get("LD_LIBRARY_PATH", "")
        ours.update(FSDP_SOURCE_DIR=self.root, FSDP_TEST_BACKEND="cuda", PYTHONUNBUFFERED="1")
        smi = self.tools["nvidia-smi"]
        if smi:  # tests/gpu/gpu_ranks.py calls it
            ours["PATH"] = os.pathsep.join([ours.get("PATH", ""), os.path.dirname(smi)])
        if self.has_bundle:
            self.environment = ours = tools.bundle_environment(self.bundle, ours)
            self.tools["mpirun"] = tools.find_tool("mpirun", ours)
        ours["FSDP_BIN_DIR"] = os.path.dirname(self.program("fsdp_train"))
        toolkits = [os.path.join(place, "lib64") for place in tools.toolkit_folders(ours)]
        paths = [ours.get("LD_LIBRARY_PATH", ""), *filter(os.path.isdir, toolkits), *self.wheels]
        ours["LD_LIBRARY_PATH"] = os.pathsep.join(path for path in paths if path)
        os.environ.update(ours)

    def versions(self):
        """Facts by name, and lines that say them."""
        name, driver, architecture, memory = self.gpus[0]
        facts = {"gpu": name, "gpus": len(self.gpus), "driver": driver, "architecture": architecture,
                 "memory": memory, "kernel": platform.release(), "cores": os.cpu_count(),
                 "python": platform.python_version(), "torch": tools.torch_version(), "tools": self.tools}
        lines = [f"{len(self.gpus)} x {name}, {memory}, sm_{architecture}, driver {driver}; "
                 f"{facts['cores']} cores, Linux {facts['kernel']}, Python {facts['python']}, "
                 f"PyTorch {facts['torch'] or 'missing'}"]
        compiler = self.tools["nvcc"]
        told = tools.output_of([compiler, "--version"], self.environment) if compiler else None
        release = re.search(r"release [^\n]*", told or "")
        facts["nvcc"] = release[0] if release else None
        present = [f"{name} {path}" for name, path in self.tools.items() if path]
        lines.append(f"tools: {', '.join(present)}" + (f"; nvcc is {release[0]}" if release else ""))
        for name, use in tools.TOOLS.items():
            if not self.tools[name]:
                lines.append(f"missing: {name}, so there is no {use}")
        return facts, lines
