"""CMakePresets.json: every preset configures, with the options that it names, which all exist. `plain`,
which adds nothing to what every build configures, and those whose tools are not here (nvcc, clang) are
checked for their options' names alone. A CUDA compiler that does not work leaves a build for CPUs, and an
option that does not exist is refused, once. Skipped if CMake is older than presets, or Ninja is missing."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import programs

ROOT = programs.ROOT
TOOLS = {"gpu": "nvcc", "fuzz": "clang"}
PRESETS = ["plain", "cpu", "debug", "asan", "tsan", "gpu", "fuzz"]


def read_presets():
    """Every visible configure preset with the cache variables that it and its parents set."""
    file = json.loads((ROOT / "CMakePresets.json").read_text())
    by_name = {preset["name"]: preset for preset in file["configurePresets"]}

    def variables(name):
        preset = by_name[name]
        inherited = variables(preset["inherits"]) if "inherits" in preset else {}
        return inherited | preset.get("cacheVariables", {})

    assert {p["name"] for p in file["buildPresets"]} == set(PRESETS)
    return {name: variables(name) for name, preset in by_name.items() if not preset.get("hidden")}


def options_exist(presets):
    """An option that CMakeLists.txt does not declare would be set and change nothing."""
    text = (ROOT / "CMakeLists.txt").read_text()
    declared = set(re.findall(r"^(?:option|set)\((\w+) ", text, re.M))
    for name, variables in presets.items():
        for variable in variables:
            assert variable.startswith("CMAKE_") or variable in declared, f"{name}: no option {variable}"


def configure(name, variables, folder):
    command = ["cmake", "--preset", name, "-B", str(folder)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    output = process.stdout + process.stderr
    assert process.returncode == 0, f"{name}: {output}"
    assert "not used by the project" not in output, f"{name}: {output}"
    cache = dict(re.findall(r"^(\w+):\w+=(.*)$", (folder / "CMakeCache.txt").read_text(), re.M))
    for variable, value in variables.items():
        found = pathlib.Path(cache[variable]).name if variable.endswith("_COMPILER") else cache[variable]
        assert found == value, f"{name}: {variable} is '{found}', not '{value}'"
    summary = re.findall(r"-- fsdp: (matrix products .*)", output)[0]
    return f"{name}: {summary}"


def broken_compiler_and_misspelt_option(work):
    nvcc = work / "cuda" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text("#!/bin/sh\nexit 1\n")
    nvcc.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "CUDACXX"}

    def run(*options):
        process = subprocess.run(["cmake", "-G", "Ninja", "-S", ROOT, "-B", work / "build", *options],
                                 capture_output=True, text=True, timeout=240,
                                 env=environment | {"CUDA_HOME": str(nvcc.parent.parent)})
        return process.returncode, " ".join((process.stdout + process.stderr).split())

    status, output = run("-DFSDP_TEST=off")
    assert status and "FSDP_TEST is not an option" in output, output
    status, output = run()
    assert status == 0 and f"for CPUs alone, without the CUDA device: {nvcc} does not work" in output, output
    status, output = run("-DFSDP_CUDA=on")
    assert status and f"FSDP_CUDA=on, but {nvcc} does not work" in output, output
    return "a broken nvcc: built for CPUs alone"


def main():
    if not shutil.which("ninja") or subprocess.run(["cmake", "--list-presets"], cwd=ROOT,
                                                   capture_output=True).returncode:
        print("skipped: presets require Ninja and CMake 3.21")
        return 77
    presets = read_presets()
    assert sorted(presets) == sorted(PRESETS), presets.keys()
    options_exist(presets)
    wanted = {name: variables for name, variables in presets.items()
              if name != "plain" and shutil.which(TOOLS.get(name, "cmake"))}
    for name in sorted(TOOLS.keys() - wanted.keys()):
        print(f"{name}: not configured: there is no {TOOLS[name]} here")
    with tempfile.TemporaryDirectory() as work, ThreadPoolExecutor(2) as pool:
        results = [pool.submit(configure, name, variables, pathlib.Path(work, name))
                   for name, variables in wanted.items()]
        results.append(pool.submit(broken_compiler_and_misspelt_option, pathlib.Path(work, "broken")))
        for result in results:
            print(result.result())
    return 0


if __name__ == "__main__":
    sys.exit(main())
