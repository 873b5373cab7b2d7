"""Every command in README.md, CONTRIBUTING.md and docs/ runs unchanged, or says why not or which
other test runs it; and quoted lines of a program's output are what it prints (tests/support/documents.py).

The blocks of a document run in one shell, in a folder of its own that looks like the project's root, with
the programs of this build in the PATH. README.md and usage.md start with nothing set for Open MPI, as for a
new user.
"""

import collections
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import documents
import programs

LIMIT_S = 600  # of a document: a command that hangs ends before the test does
FRESH = {"README.md", "docs/usage.md"}
COMMAND = re.compile(r"\s*(mpirun|cmake|ctest|(scripts|bench|tests|build[\w-]*)/\S+|(fsdp|bench)_\w+ -)")
# What uses a package that is installed on first use: the message of one that cannot be had.
PROBES = {
    "tokenizers": "scripts/prepare_data.py --out probe.tok --model tests/golden/prepare "
                  "tests/golden/prepare/alpaca.json",
    "matplotlib": "echo '{\"global_step\": 1, \"loss\": 1}' >probe.jsonl; "
                  "scripts/plot.py probe.jsonl --out probe.svg",
}
UNAVAILABLE = re.compile(r"could not be installed|could not be made|cannot make virtual environments")
TRAIN = """#!/bin/sh
exec {program} "$@" $OPTIONS_IN_THE_TEST
"""


def make_folder(folder):
    """What a block sees: sources and build by links, and programs in bin/, which take the test's options."""
    for entry in programs.ROOT.iterdir():
        if not entry.name.startswith((".", "build", "outputs")):
            (folder / entry.name).symlink_to(entry)
    (folder / "build").symlink_to(programs.BIN.resolve().parent)
    (folder / "bin").mkdir()
    for program in programs.BIN.resolve().iterdir():
        if program.name == "fsdp_train":
            (folder / "bin" / program.name).write_text(TRAIN.format(program=program))
            (folder / "bin" / program.name).chmod(0o755)
        else:
            (folder / "bin" / program.name).symlink_to(program)


def environment(folder, fresh=False):
    result = {name: value for name, value in os.environ.items()
              if not (fresh and name.startswith("OMPI_")) and name != "FSDP_TEST_CASE"}
    return result | {"PATH": f"{folder / 'bin'}:{result['PATH']}", "OPTIONS_IN_THE_TEST": ""}


def shell(script, folder, fresh=False):
    """The status and all output of a script; 124 if it took too long."""
    command = ["timeout", "--kill-after=5", str(LIMIT_S), "bash", "-c", "set -euo pipefail\n" + script]
    process = subprocess.run(command, cwd=folder, env=environment(folder, fresh), text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    return process.returncode, process.stdout


def missing_packages():
    """Names of PROBES that cannot be had here."""
    missing = set()
    for name, probe in PROBES.items():
        with tempfile.TemporaryDirectory() as work:
            folder = pathlib.Path(work)
            make_folder(folder)
            status, output = shell(probe, folder)
            if status and UNAVAILABLE.search(output):
                print(f"{name}: {output.strip().splitlines()[-1]}")
                missing.add(name)
            else:
                assert status == 0, f"{probe}: {output}"
    return missing


def why_not(block, missing):
    """Why a `sh` block is not run here, or None."""
    absent = missing & set(block.marks.get("needs", "").split())
    if "not run" in block.marks:
        return "not run: " + block.marks["not run"]
    if "run by" in block.marks:
        return "run by " + block.marks["run by"]
    return f"not run: {', '.join(absent)} cannot be had" if absent else None


def run_blocks(path, missing):
    """Runs a document's commands; (how many blocks ran, the marks of the others)."""
    wanted = [block for block in documents.blocks(path) if block.language == "sh"]
    left_out = [f"{block}: {why_not(block, missing)}" for block in wanted if why_not(block, missing)]
    wanted = [block for block in wanted if not why_not(block, missing)]
    script = ""
    for block in wanted:
        script += f"echo '@@ {block}'\nOPTIONS_IN_THE_TEST='{block.marks.get('options in the test', '')}'\n"
        script += block.text + "\n"
    if not wanted:
        return 0, left_out
    with tempfile.TemporaryDirectory(prefix="fsdp_documents_") as work:
        folder = pathlib.Path(work)
        make_folder(folder)
        status, output = shell(script, folder, fresh=str(wanted[0].document) in FRESH)
        assert status == 0, f"status {status}, in the last block of:\n{output}"
        for made in [block.marks["makes"] for block in wanted if "makes" in block.marks]:
            same = (folder / pathlib.Path(made).name).read_bytes() == (programs.ROOT / made).read_bytes()
            assert same, f"{made} is not what its command in {wanted[0].document} makes now: run it again"
    return len(wanted), left_out


def check_quoted_lines(path):
    """Each `lines of` block; the number of lines."""
    count = 0
    for block in documents.blocks(path):
        if "lines of" not in block.marks:
            continue
        with tempfile.TemporaryDirectory() as work:
            make_folder(pathlib.Path(work))
            status, output = shell(block.marks["lines of"], pathlib.Path(work))
        assert status == 0, output
        printed = [" ".join(line.split()) for line in output.splitlines()]
        at = 0
        for line in block.text.splitlines():
            pattern = re.escape(" ".join(line.split())).replace(re.escape("..."), ".*")
            found = [i for i in range(at, len(printed)) if re.fullmatch(pattern, printed[i])]
            assert found, f"{block}: '{block.marks['lines of']}' does not print this, or not here:\n{line}"
            at, count = found[0] + 1, count + 1
    return count


def check_marks():
    """Tests that are named exist, no `text` block hides a command, and every sh block is some shell."""
    tests = {file.stem for file in (programs.ROOT / "tests").rglob("test_*.*")}
    for path in documents.paths():
        for block in documents.blocks(path):
            test = block.marks.get("run by", "").split(",")[0]
            assert not test or test in tests, f"{block}: there is no test {test}"
            if block.language == "text":
                hidden = [line for line in block.text.splitlines() if COMMAND.match(line)]
                assert not hidden, f"{block}: a command that no test runs: {hidden[0]}"
            if block.language == "sh":
                syntax = subprocess.run(["bash", "-n"], input=block.text, text=True, capture_output=True)
                assert syntax.returncode == 0, f"{block}: {syntax.stderr}"


def main():
    check_marks()
    if not programs.WITH_MPI:
        print("skipped: the commands start ranks, and this build has no MPI")
        return 77
    missing = missing_packages()
    paths = documents.paths()
    quoted = sum(check_quoted_lines(path) for path in paths)
    counts = collections.Counter()
    with ThreadPoolExecutor(2) as pool:
        for ran, left_out in pool.map(lambda path: run_blocks(path, missing), paths):
            counts["run"] += ran
            for line in left_out:
                print(line)
                counts["run by another test" if ": run by " in line else "not run"] += 1
    print(f"{counts['run']} blocks run, {counts['run by another test']} run by other tests, "
          f"{counts['not run']} not run; {quoted} quoted lines are printed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
