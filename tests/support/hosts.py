"""Two hosts on one machine: network namespaces joined by a link, each with a host name of its own, and mpirun
on the first of them. Open MPI sees two nodes; the link can be slowed and cut.

    with hosts.Hosts() as two:
        process = subprocess.Popen(two.command(2, ["fsdp_train", ...]), ...)
        two.cut()
"""

import os
import pathlib
import shutil
import subprocess
import tempfile

NET = "10.77.0"
AGENT = """#!/bin/sh
# Open MPI's way to another host: runs its command on host b.
shift
exec ip netns exec {namespace} {cores} unshare -u sh -c 'hostname b; exec sh -c "$0"' "$*"
"""


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def why_not():
    """What is missing to make two hosts, or None."""
    for program in ("ip", "unshare", "mpirun"):
        if not shutil.which(program):
            return f"no {program} here (packages iproute2, util-linux, openmpi-bin)"
    try:
        with Hosts() as two:
            probe = subprocess.run(two.on_first(["hostname"]), capture_output=True, text=True, timeout=20)
            if probe.stdout.strip() != "a":
                return f"a host with a different name cannot be made: {probe.stderr.strip()}"
            subprocess.run(two.command(1, ["true"]), capture_output=True, check=True, timeout=60)
    except subprocess.CalledProcessError as failure:
        return f"network namespaces cannot be made: {(failure.stderr or str(failure)).strip()}"
    return None


class Hosts:
    """Hosts a (this side of mpirun) and b. `cores` (taskset's list): all that b has."""

    def __init__(self, cores=None):
        self.cores = f"taskset -c {cores}" if cores is not None else ""
        self.first, self.second = f"fsdp-{os.getpid()}-a", f"fsdp-{os.getpid()}-b"
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="fsdp_hosts_"))
        self.agent = self.folder / "agent"

    def __enter__(self):
        try:
            ip("netns", "add", self.first)
            ip("netns", "add", self.second)
            ip("link", "add", "veth", "netns", self.first, "type", "veth", "peer", "name", "veth", "netns",
               self.second)  # fmt: skip
            for number, name in enumerate((self.first, self.second), 1):
                ip("-n", name, "address", "add", f"{NET}.{number}/24", "dev", "veth")
                ip("-n", name, "link", "set", "lo", "up")
                ip("-n", name, "link", "set", "veth", "up")
        except BaseException:
            self.__exit__()
            raise
        self.agent.write_text(AGENT.format(namespace=self.second, cores=self.cores))
        self.agent.chmod(0o755)
        return self

    def __exit__(self, *_):
        for name in (self.first, self.second):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def on_first(self, command):
        """The command, run on host a."""
        script = 'hostname a; exec "$@"'
        return ["ip", "netns", "exec", self.first, "unshare", "-u", "sh", "-c", script, "sh", *command]

    def command(self, ranks, command, options=()):
        """mpirun over `ranks` ranks of each host."""
        net = f"{NET}.0/24"
        mpirun = ["mpirun", "--mca", "plm_rsh_agent", str(self.agent), "--mca", "btl", "tcp,vader,self",
                  "--mca", "btl_tcp_if_include", net, "--mca", "oob_tcp_if_include", net,
                  "--host", f"{NET}.1:{ranks},{NET}.2:{ranks}", "-np", str(2 * ranks)]  # fmt: skip
        return self.on_first([*mpirun, *options, *command])

    def cut(self):
        ip("-n", self.first, "link", "set", "veth", "down")

    def mend(self):
        ip("-n", self.first, "link", "set", "veth", "up")

    def slow(self, rate):
        """Both directions of the link, to `rate` (tc's notation)."""
        for name in (self.first, self.second):
            bucket = ["tbf", "rate", rate, "burst", "32kb", "latency", "400ms"]
            command = ["tc", "-n", name, "qdisc", "replace", "dev", "veth", "root", *bucket]
            subprocess.run(command, check=True, capture_output=True)
