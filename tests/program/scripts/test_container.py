"""The Dockerfiles install what scripts/install_deps.sh lists and nothing else, and name files and options
that there are. With FSDP_TEST_ALL=1 the CPU's is built and run where a container tool runs."""

import re
import shutil
import subprocess
import sys

import programs

cmake = (programs.ROOT / "CMakeLists.txt").read_text() + "".join(
    path.read_text() for path in (programs.ROOT / "cmake").glob("*.cmake"))

for name in ("Dockerfile", "Dockerfile.cuda"):
    text = re.sub(r"\\\n", " ", (programs.ROOT / name).read_text())
    steps = [line.split(None, 1) for line in text.splitlines() if line and not line.startswith("#")]
    commands = " ".join(rest for word, rest in steps if word == "RUN")
    assert "scripts/install_deps.sh" in commands, name
    assert not re.search(r"\b(apt|apt-get|pip|dnf|conda)\b", commands), (name, commands)
    for word, rest in steps:
        if word == "COPY":
            assert (programs.ROOT / rest.split()[0]).exists(), (name, rest)
    for script in re.findall(r"(?:^|[ /])(scripts/[\w.]+)", commands):
        assert (programs.ROOT / script).is_file(), (name, script)
    for option in re.findall(r"-D(\w+)=", commands):
        assert re.search(rf"\b{option}\b", cmake), (name, option)

ignored = (programs.ROOT / ".dockerignore").read_text().split()
assert "build*" in ignored and not any(line.startswith("scripts") for line in ignored)

docker = shutil.which("docker")
if not docker or subprocess.run([docker, "info"], capture_output=True).returncode:
    print("not built: no container tool runs here")
    sys.exit()
if programs.ALL:
    subprocess.run([docker, "build", "-t", "fsdp-test", str(programs.ROOT)], check=True)
    train = ["mpirun", "--quiet", "-np", "2", "fsdp_train", "--max-steps", "2"]
    subprocess.run([docker, "run", "--rm", "fsdp-test", *train], check=True)
