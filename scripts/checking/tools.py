"""What a machine with a GPU has: CUDA's tools wherever they are, libraries, a bundle's environment."""
import glob
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import time

# The tools to look for, and what is skipped without them.
TOOLS = {
    "nvidia-smi": "names of the GPU and its driver",
    "nvcc": "building here",
    "cuobjdump": "store widths in the compiled code",
    "compute-sanitizer": "memcheck, racecheck and initcheck",
    "ncu": "counters of single kernels",
    "mpirun": "several ranks",
}


def toolkit_folders(environment):
    """Where the toolkit may lie, the newest of several first."""
    named = [environment[name] for name in ("CUDA_HOME", "CUDA_PATH") if environment.get(name)]
    root = environment.get("FSDP_TOOLKIT_ROOT", "/usr/local")

    def version(path):
        return [int(number) for number in re.findall(r"\d+", os.path.basename(path))]

    return named + sorted(glob.glob(os.path.join(root, "cuda*")), key=version, reverse=True)


def find_tool(name, environment):
    """A tool's path, or None. The driver's own lie under /usr/local/nvidia in some containers; ncu comes with
    Nsight Compute too."""
    found = shutil.which(name, path=environment.get("PATH"))
    if found:
        return found
    root = environment.get("FSDP_TOOLKIT_ROOT", "/usr/local")
    places = [os.path.join(root, "nvidia", "bin")]
    for folder in toolkit_folders(environment):
        places += [os.path.join(folder, "bin"), os.path.join(folder, name)]
    places += sorted(glob.glob("/opt/nvidia/nsight-compute/*"), reverse=True)
    for place in places:
        path = os.path.join(place, name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def output_of(command, environment, limit_s=20):
    """What it prints, or None if it fails or hangs."""
    try:
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                env=environment, timeout=limit_s, stdin=subprocess.DEVNULL, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout if result.returncode == 0 else None


def describe_gpus(environment):
    """[(name, driver, architecture as "90", memory)], empty if there is no GPU."""
    smi = find_tool("nvidia-smi", environment)
    query = "--query-gpu=name,driver_version,compute_cap,memory.total"
    listed = output_of([smi, query, "--format=csv,noheader"], environment) if smi else None
    rows = [[field.strip() for field in line.split(",")] for line in (listed or "").splitlines()]
    return [(row[0], row[1], row[2].replace(".", ""), row[3]) for row in rows if len(row) == 4]


def why_no_gpu(environment):
    """One line: what nvidia-smi says where describe_gpus finds none."""
    smi = find_tool("nvidia-smi", environment)
    if not smi:
        return "there is no nvidia-smi"
    try:
        result = subprocess.run([smi, "-L"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                env=environment, timeout=20, stdin=subprocess.DEVNULL, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{smi}: {type(error).__name__}"
    said = " ".join(result.stdout.split())[:200]
    return f"nvidia-smi shows none{': ' + said if said else ''}"


def used_bytes(environment):
    """Bytes in use on the first GPU, by all processes; None if that cannot be read."""
    smi = find_tool("nvidia-smi", environment)
    query = [smi, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    listed = output_of(query, environment) if smi else None
    numbers = re.findall(r"\d+", listed or "")
    return int(numbers[0]) * 2**20 if numbers else None


def wheel_folders():
    """Folders of CUDA's libraries that came with PyTorch, for a machine whose toolkit has no NCCL."""
    spec = importlib.util.find_spec("torch")
    if not spec or not spec.origin:
        return []
    packages = os.path.dirname(os.path.dirname(spec.origin))
    return sorted(glob.glob(os.path.join(packages, "nvidia", "*", "lib")))


def torch_version():
    """Without importing it."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def bundle_environment(bundle, environment):
    """`environment` with what the bundle's env.sh sets."""
    script = 'here=$1; source "$here/env.sh"; env -0'
    result = subprocess.run(["bash", "-c", script, "_", bundle], stdout=subprocess.PIPE, env=environment,
                            check=True)
    pairs = (item.partition(b"=") for item in result.stdout.split(b"\0") if item)
    return {name.decode(): value.decode(errors="surrogateescape") for name, _, value in pairs}


def opened_libraries(program):
    """Names of CUDA's libraries that our program loads when it uses a GPU."""
    try:
        with open(program, "rb") as file:
            names = re.findall(rb"lib(?:cublasLt|nccl)\.so\.\d+", file.read())
            return sorted({name.decode() for name in names})
    except OSError:
        return []


def find_library(name, environment):
    """Where the dynamic linker finds it, or beside a toolkit; None: nowhere."""
    folders = environment.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    for place in toolkit_folders(environment):
        folders += [os.path.join(place, "lib64"), os.path.join(place, "lib")]
    paths = [os.path.join(folder, name) for folder in folders if folder]
    known = output_of(["ldconfig", "-p"], environment) or ""
    paths += re.findall(rf"^\s*{re.escape(name)} .*=> (\S+)$", known, re.M)
    return next((path for path in paths if os.path.exists(path)), None)


def read_whole(paths, limit_s):
    """Reads files once, so that no step waits for them: one of 540 MB over a network takes seconds. Returns
    the bytes and the seconds."""
    begin, total = time.monotonic(), 0
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while time.monotonic() - begin < limit_s and (count := len(file.read(8 << 20))):
                total += count
    return total, time.monotonic() - begin


def libraries_of(program, environment):
    """(libraries that it is linked to or opens, of CUDA and MPI: name -> path; names that it lacks)."""
    found, lacking = {}, []
    for line in (output_of(["ldd", program], environment) or "").splitlines():
        match = re.match(r"\s*(\S+) => (not found|\S+)", line)
        if match and match[2] == "not found":
            lacking.append(match[1])
        elif match and re.match(r"lib(cu|nccl|mpi)", match[1]):
            found[match[1]] = os.path.realpath(match[2])
    for name in opened_libraries(program):
        path = find_library(name, environment)
        if path:
            found[name] = os.path.realpath(path)
        else:
            lacking.append(name)
    return found, lacking
