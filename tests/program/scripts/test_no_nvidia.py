"""A build with CUDA on a machine without one library of NVIDIA's: its programs are linked to none, and plan
and train on the CPU. They are hidden in a mount namespace: the toolkit's folders, the driver's and NCCL's
files. What needs a GPU's library then says which and what was tried. With FSDP_TEST_ALL=1 all tests of the
CPU run there too. Skipped where CUDA is not built or no namespace can be made.
"""

import glob
import os
import re
import subprocess
import sys

import programs

BUILD = programs.BIN.resolve().parent
SKIPPED = 77
NAMESPACE = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
NVIDIA = re.compile(r"\blib(cuda|cudart|cublas|cublasLt|nccl|nvidia|nvrtc|nvJitLink|nvToolsExt)[\w-]*\.so")


def executables():
    paths = [path for folder in ("bin", "tests") for path in (BUILD / folder).iterdir()]
    return [path for path in paths if path.is_file() and os.access(path, os.X_OK)]


def nothing_is_linked():
    looked_at = 0
    for path in executables():
        listed = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
        looked_at += "libc.so.6" in listed
        assert not NVIDIA.search(listed), (path, listed)
    assert looked_at >= 2, BUILD
    print(f"none of {looked_at} programs is linked to a library of NVIDIA's", flush=True)


def hidden_places():
    """Folders and files, without those that lie in a hidden folder."""
    toolkits = glob.glob("/usr/local/cuda*") + glob.glob("/usr/local/nvidia")
    folders, files = {os.path.realpath(path) for path in toolkits}, set()
    roots = ["/usr/lib", "/usr/lib64", "/usr/local/lib", "/opt"]
    roots += os.environ.get("LD_LIBRARY_PATH", "").split(":")
    for root in filter(os.path.isdir, roots):
        for folder, _, names in os.walk(root):
            files |= {os.path.realpath(os.path.join(folder, name)) for name in names if NVIDIA.match(name)}
    return sorted(folders), sorted(path for path in files if os.path.exists(path)
                                   and not any(path.startswith(folder + "/") for folder in folders))


class Place:
    def __init__(self, work):
        folders, files = hidden_places()
        self.work = work
        empty = work / "empty"
        empty.mkdir()
        (work / "nothing").touch()
        lines = ["set -e"]
        lines += [f"mount --bind {empty} '{folder}'" for folder in folders]
        lines += [f"mount --bind {work / 'nothing'} '{path}'" for path in files]
        self.script = "\n".join([*lines, 'exec "$@"'])
        self.hidden = folders + files

    def run(self, *command, timeout=240, **environment):
        return subprocess.run([*NAMESPACE, "bash", "-c", self.script, "_", *map(str, command)], text=True,
                              capture_output=True, env=os.environ | environment, timeout=timeout, check=False)


def programs_run(place):
    log = place.work / "log.jsonl"
    plan = place.run(BUILD / "bin" / "fsdp_plan", "--backend", "cuda", "--model", "llama3-8b", "-s", 4096,
                     "-b", 4, "--wrap", "block", "--ranks", 8)
    assert plan.returncode == 0 and "Verified: yes" in plan.stdout, plan
    train = [BUILD / "bin" / "fsdp_train", "--model", "tiny", "-s", 32, "-b", 1, "--max-steps", 2]
    train += ["--log", log]
    for launcher in ([], ["mpirun", "--quiet", "-np", "2"]):
        if launcher and not programs.WITH_MPI:
            continue
        log.unlink(missing_ok=True)
        process = place.run(*launcher, *train)  # the CPU by --backend auto
        assert process.returncode == 0, process
        assert len(log.read_text().splitlines()) == 2, process
    refused = place.run(*train, "--backend", "cuda")
    assert refused.returncode == 5 and "NVIDIA driver" in refused.stderr, refused
    print(f"planned and trained without {', '.join(place.hidden) or 'hiding anything'}", flush=True)


def libraries_are_asked_for(place):
    """By a name, then where they lay when this was built."""
    for library, remedy in (("cuBLASLt", "comes with the CUDA toolkit, to LD_LIBRARY_PATH, or use --backend"),
                            ("NCCL", "with PyTorch, to LD_LIBRARY_PATH, or use one rank, or --backend cpu")):
        process = place.run(BUILD / "tests" / "test_cuda_library", "load", library)
        assert process.returncode == 5 and process.stderr.startswith(f"{library} cannot be loaded ("), process
        name = re.search(r"\((lib\w+\.so\.\d+): [^;]*; (/\S+): ", process.stderr)
        assert name and name[2].endswith("/" + name[1]) and remedy in process.stderr, process
        print(process.stderr.strip(), flush=True)


def all_of_the_cpu(place):
    left_out = "test_(no_nvidia|gpu_bundle|cuda_library|store_widths)"  # of CUDA's own
    process = place.run("ctest", "--test-dir", BUILD, "-L", "unit|program", "-E", left_out,
                        "--output-on-failure", timeout=7200)
    print(process.stdout[-3000:], flush=True)
    assert process.returncode == 0, process.stderr


def main():
    if os.environ.get("FSDP_WITH_CUDA", "ON") != "ON":
        print("SKIPPED: CUDA is not built here")
        return SKIPPED
    work = programs.folder("no_nvidia")
    nothing_is_linked()
    place = Place(work)
    probe = place.run("true")
    if probe.returncode != 0:
        print(f"SKIPPED: no namespace can be made here: {probe.stderr.strip()}")
        return SKIPPED
    programs_run(place)
    libraries_are_asked_for(place)
    if programs.ALL:
        all_of_the_cpu(place)
    return 0


if __name__ == "__main__":
    sys.exit(main())
