"""What scripts/gpu_bundle.sh gathers runs in an empty root: one that holds the C and C++ libraries, a shell
with a few tools, Python, and nothing else of this one: no library of NVIDIA's.

The bundle is gathered from this build; with FSDP_TEST_ALL=1 also built as the script builds it, which takes
minutes, and held to its 64 MiB. Skipped where CUDA is not built or no root can be made.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile

import programs

ROOT = programs.ROOT
BUILD = programs.BIN.resolve().parent
SKIPPED = 77
NAMESPACE = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
TOOLS = ("bash", "awk", "cat", "dirname", "env", "hostname", "ldd", "ls", "nproc", "uname")
IN_ROOT = """
set -e
mount --bind {root} {root}
cd {root}
mkdir -p .{bound} && mount --bind {bound} .{bound} && mount -o remount,bind,ro .{bound}
mkdir -p proc dev tmp repo bundle
mount --bind /proc proc
mount --rbind /dev dev
mount --bind {source} repo
mount --bind {bundle} bundle
exec chroot . /bin/bash -c "$1"
"""
INSIDE = """
export here=/bundle PATH=/bin HOME=/tmp OMPI_MCA_btl_vader_single_copy_mechanism=none
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
source /bundle/env.sh
cd /repo
"""


def libraries_of(path):
    """Paths of a program's libraries, its loader too."""
    listed = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
    fields = [line.split() for line in listed.splitlines()]
    return [f[2] for f in fields if len(f) > 2 and f[1] == "=>" and f[2].startswith("/")] + \
        [f[0] for f in fields if f and f[0].startswith("/")]


def copy_into(root, path, target=None):
    """A file where it lies, links followed."""
    place = root / (target or path).lstrip("/")
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(path), place)


def make_root(root, bundle):
    """Fills the root; returns the folder that is bound into it."""
    machines = (bundle / "machine.txt").read_text().split()
    for program in [*bundle.glob("bin/*"), *bundle.glob("tests/*"), *bundle.glob("lib/*")]:
        for library in libraries_of(program):
            name = os.path.basename(library)
            if name.startswith("ld-linux"):
                copy_into(root, library)
            elif name in machines:
                copy_into(root, library)
    for tool in TOOLS:
        path = shutil.which(tool)
        copy_into(root, path, f"/bin/{tool}")
        for library in libraries_of(path):
            copy_into(root, library)
    copy_into(root, os.path.realpath(sys.executable), "/bin/python3")
    for library in libraries_of(sys.executable):
        copy_into(root, library)
    for module in pathlib.Path(sysconfig.get_path("platstdlib"), "lib-dynload").glob("*.so"):
        for library in libraries_of(str(module)):
            copy_into(root, library)
    return sysconfig.get_path("stdlib")


class Place:
    def __init__(self, work, bundle):
        self.root, self.bundle = pathlib.Path(work) / "root", bundle
        self.root.mkdir()
        bound = make_root(self.root, bundle)
        self.script = IN_ROOT.format(root=self.root, bound=bound, source=ROOT, bundle=bundle)

    def run(self, command):
        return subprocess.run([*NAMESPACE, "bash", "-c", self.script, "_", INSIDE + command],
                              capture_output=True, text=True, timeout=240, check=False)


def gather(work):
    bundle = pathlib.Path(work) / "bundle"
    # A build with oneDNN is larger than what is carried.
    environment = {**os.environ, "FSDP_BUNDLE_FOLDER": str(bundle), "FSDP_BUNDLE_MIB_MAX": "160"}
    process = subprocess.run(["bash", ROOT / "scripts/gpu_bundle.sh", BUILD, "--no-build"], text=True,
                             capture_output=True, env=environment, timeout=240, check=False)
    assert process.returncode == 0, process.stderr
    needs = r"MiB, and \d+ MiB of sources, for a machine with GLIBC_2\."
    assert re.search(needs, process.stdout), process.stdout
    assert re.search(r" libcublasLt\.so\.\d+( |$)", process.stdout), process.stdout
    assert re.search(r" libnccl\.so\.2( |$)", process.stdout), process.stdout  # opened, as that is
    return bundle


def build_whole(work):
    folder = pathlib.Path(work) / "build-gpu"
    process = subprocess.run(["bash", ROOT / "scripts/gpu_bundle.sh", folder], capture_output=True, text=True,
                             timeout=1200, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    print(process.stdout.splitlines()[-1])
    return folder / "bundle"


def check_size(bundle):
    """One that is too large is refused."""
    folder = str(bundle.parent / "small")
    environment = {**os.environ, "FSDP_BUNDLE_FOLDER": folder, "FSDP_BUNDLE_MIB_MAX": "9"}
    process = subprocess.run(["bash", ROOT / "scripts/gpu_bundle.sh", BUILD, "--no-build"], text=True,
                             capture_output=True, env=environment, timeout=240, check=False)
    assert process.returncode == 4 and "more than 9 MiB" in process.stderr, process


def check_in_root(work, bundle):
    place = Place(work, bundle)
    # The root is as empty as it should be: nothing of ours can come from anywhere but the bundle.
    outside = place.run("ls /bin /usr/lib /lib/x86_64-linux-gnu /opt /home 2>/dev/null")
    for name in ("libjansson", "libyaml", "libxxhash", "libhwloc", "libmpi", "libdnnl", "mpirun", "cmake"):
        assert name not in outside.stdout, (name, outside.stdout)
    process = place.run("for program in $here/bin/* $here/tests/*; do ldd $program; done")
    assert "libmpi.so" in process.stdout and "not found" not in process.stdout, process
    assert not re.search(r"lib(cuda|cublas|nccl|nv)", process.stdout + outside.stdout), process

    process = place.run("fsdp_plan --backend cuda --model llama3-8b -s 4096 -b 4 --wrap block --ranks 8")
    assert process.returncode == 0 and "Verified: yes" in process.stdout, process
    train = "fsdp_train --backend cpu --model tiny -s 64 -b 1 --max-steps 3 --lr 1e-3 --log /tmp/log.jsonl"
    for ranks in ("", "mpirun -np 2 "):
        process = place.run(f"{ranks}{train}; status=$?; cat /tmp/log.jsonl; exit $status")
        assert process.returncode == 0 and '"global_step":' in process.stdout.replace(" ", ""), process
    process = place.run("FSDP_SOURCE_DIR=/repo FSDP_TEST_BACKEND=cpu $here/tests/test_golden")
    assert process.returncode == 0 and "PASSED" in process.stdout + process.stderr, process
    for program, words in (("tests/gpu_kernels", "no GPU here: skipped"),
                           ("bin/bench_gpu", "this machine has no GPU")):
        process = place.run(f"$here/{program}")
        assert process.returncode == SKIPPED and words in process.stdout + process.stderr, process
    process = place.run("bash scripts/gpu_check.sh /tmp/build-gpu")
    assert process.returncode == 5 and process.stderr.count("\n") == 1, process
    machines = ", ".join((bundle / "machine.txt").read_text().split())
    print(f"in an empty root with {machines}: programs start, plan, train on one rank and on two, and find "
          "no GPU")


def main():
    if os.environ.get("FSDP_WITH_CUDA", "ON") != "ON" or not (BUILD / "tests" / "gpu_kernels").exists():
        print("SKIPPED: CUDA is not built here")
        return SKIPPED
    probe = subprocess.run([*NAMESPACE, "bash", "-c", "mount --bind /tmp /tmp"], capture_output=True,
                           text=True, check=False)
    if probe.returncode != 0:
        print(f"SKIPPED: no root can be made here: {probe.stderr.strip()}")
        return SKIPPED
    for make in [gather] + ([build_whole] if programs.ALL else []):
        with tempfile.TemporaryDirectory(prefix="fsdp_bundle_") as work:
            bundle = make(work)
            check_size(bundle)
            check_in_root(work, bundle)
    return 0


if __name__ == "__main__":
    sys.exit(main())
