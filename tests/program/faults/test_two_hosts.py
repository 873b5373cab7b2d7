"""Two hosts as network namespaces: hybrid finds two nodes by itself and trains to the losses of one node; a
slow link changes none; nodes with different numbers of cores are measured together; a killed rank, a
stopped rank and a cut link end the job in time, and the restart continues the undisturbed curve (faults.py,
of which FSDP_TEST_ALL=1 takes more). Skipped, with the reason, where namespaces cannot be made."""

import os
import subprocess
import sys

import faults
import hosts
import programs
import yaml

FAULTS = 12 if programs.ALL else 4
work = programs.folder("two_hosts", memory=True)
OPTIONS = ["--model", work / "model", "--init", "random", "-s", 16, "-b", 2, "--lr", "1e-3", "--max-steps", 6,
           "--tokenizer", "bytes"]  # fmt: skip


def train(two, name, *more):
    options = [*map(str, OPTIONS), *more, "--log", str(work / f"{name}.jsonl")]
    command = [str(programs.BIN / "fsdp_train"), *options]
    command = two.command(2, command) if two else ["mpirun", "-np", "4", *command]
    process = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert process.returncode == 0, (process.returncode, process.stdout, process.stderr)
    return process.stdout


def losses(name):
    return [line["loss"] for line in programs.log_of(work / f"{name}.jsonl")]


def same_losses():
    programs.make_model(work / "model", weights=False)
    with hosts.Hosts() as two:
        out = train(two, "two", "--strategy", "hybrid")
        assert "placement: 2 nodes" in out and "(data=2, fsdp=2; data across nodes)" in out, out
        train(None, "one", "--strategy", "hybrid", "--mesh", "data=2,fsdp=2")
        assert len(losses("one")) == 6 and losses("two") == losses("one"), (losses("two"), losses("one"))
        # Shards across both hosts, too.
        train(two, "two-full", "--strategy", "full")
        train(None, "one-full", "--strategy", "full")
        assert losses("two-full") == losses("one-full"), (losses("two-full"), losses("one-full"))
        two.slow("10mbit")
        train(two, "slow", "--strategy", "hybrid", "--comm-timeout", "20")
        assert losses("slow") == losses("one"), (losses("slow"), losses("one"))
    print("two hosts, also behind 10 Mbit/s: the losses of one, to the bit")


def profile_of_different_nodes():
    """The node with fewer cores decides what all of them measure, and so what plans are priced with."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return
    command = [str(programs.BIN / "fsdp_profile"), "--seconds", "1", "--backend", "cpu"]
    with hosts.Hosts(cores=cores[0]) as two:
        command = two.command(2, command)
        process = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert process.returncode == 0, (process.returncode, process.stdout, process.stderr)
    profile = yaml.safe_load(process.stdout)
    assert profile["processors"] == 1 and profile["name"].endswith(", 1 cores"), profile["name"]
    assert {p["ranks"] for p in profile["products"]} == {1}
    links = {(c["link"], c["ranks"]) for c in profile["collectives"]}
    assert links == {("network", 2), ("network", 4), ("node", 2)}, links


def faults_end_in_time():
    rows = []
    with hosts.Hosts() as two:
        faults.faults(two, FAULTS, work, rows.append, timeout_s=5)
    faults.report(rows)
    assert sum("kind" in row for row in rows) == FAULTS and sum("curve" in row for row in rows) >= 1, rows


def main():
    if not programs.WITH_MPI or programs.SLOW:
        print("built without MPI, or with a sanitizer: nothing to run")
        return 0
    os.environ.update(programs.MPI_ENVIRONMENT)
    reason = hosts.why_not()
    if reason:
        print(f"skipped: {reason}")
        return 77
    same_losses()
    profile_of_different_nodes()
    faults_end_in_time()
    return 0


sys.exit(main())
