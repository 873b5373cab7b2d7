"""Packages from PyPI, in a virtual environment of their own that is made on first use."""
import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import sys

from common.errors import EnvironmentFailure

INSIDE = "FSDP_SCRIPT_INSIDE"  # names the environment a program was started in, which must not do so again


def reason_of(output):
    """The line that tells why. Without a connection pip's error is that there is no such package; a warning
    before it says why there is none."""
    broken = re.search(r"connection broken by '(.*)': ", output)
    if broken:
        return "no connection: " + re.sub(r"<[^>]*>[:,] ", "", broken.group(1))
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return next((line for line in lines if "ERROR" in line), lines[-1] if lines else "no reason given")


def _run(command, what, remedy):
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode:
        raise EnvironmentFailure(f"{what} ({reason_of(result.stdout)}); {remedy}")


def _install_venv_module(remedy):
    """Debian and Ubuntu leave what makes environments out of Python."""
    if importlib.util.find_spec("ensurepip"):
        return
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "python3-venv"]
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if not shutil.which("apt-get") or (as_root and not shutil.which("sudo")):
        raise EnvironmentFailure("this Python cannot make virtual environments; install python3-venv")
    print("installing: python3-venv", file=sys.stderr)
    subprocess.run(as_root + ["apt-get", "update", "-qq"], stdout=subprocess.DEVNULL, check=False)
    _run(as_root + command, "python3-venv could not be installed", remedy)


class Packages:
    """What a script needs of PyPI. `requirements` are pip's, of the `modules` that are imported; `otherwise`
    names an alternative if they are not available."""

    def __init__(self, name, requirements, modules, otherwise=None):
        self.name, self.requirements, self.modules = name, requirements, modules
        self.named = " and ".join(modules)
        self.remedy = f"install Python's {self.named} yourself and run again"
        self.remedy += f", or {otherwise}" if otherwise else ""

    def default_folder(self):
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        return os.path.join(cache, "fsdp", f"{self.name}-venv")

    def _make(self, folder):
        """Makes the environment unless it is there, complete and for these requirements."""
        mark = os.path.join(folder, "requirements")
        wanted = "\n".join(self.requirements)
        try:
            os.makedirs(os.path.dirname(folder) or ".", exist_ok=True)
            lock = open(folder + ".lock", "w", encoding="utf-8")
        except OSError as error:
            raise EnvironmentFailure(f"{folder}: cannot be made ({error.strerror}); use a different "
                                     "--venv") from None
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if os.path.exists(mark) and open(mark, encoding="utf-8").read() == wanted:
                return
            if os.path.exists(folder) and not os.path.exists(os.path.join(folder, "pyvenv.cfg")):
                raise EnvironmentFailure(f"{folder}: exists and is not a virtual environment; give another "
                                         "--venv")
            print(f"installing {self.named} into {folder}", file=sys.stderr)
            _install_venv_module(self.remedy)
            # May be an unfinished one, or one of the user's, which stays intact.
            _run([sys.executable, "-m", "venv", folder], f"{folder} could not be made", self.remedy)
            pip = [os.path.join(folder, "bin", "python"), "-m", "pip", "install", "--quiet", "--retries", "1"]
            _run(pip + list(self.requirements), "the packages could not be installed from PyPI", self.remedy)
            with open(mark, "w", encoding="utf-8") as file:
                file.write(wanted)

    def ensure(self, folder):
        """Returns if the packages can be imported; else makes `folder` and restarts the script in it."""
        if all(importlib.util.find_spec(module) for module in self.modules):
            return
        if os.environ.get(INSIDE) == self.name:
            raise EnvironmentFailure(f"{folder}: lacks {' or '.join(self.modules)}; remove it and run again")
        self._make(os.path.abspath(folder))
        python = os.path.join(os.path.abspath(folder), "bin", "python")
        os.execve(python, [python, *sys.argv], {**os.environ, INSIDE: self.name})
