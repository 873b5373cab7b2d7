"""The mutants' patterns still match, there are enough of them in each area, those that once went unnoticed
are among them; and mutate.sh's verdicts, in a small tree with tools that only pretend to build and test."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(os.environ.get("FSDP_SOURCE_DIR", "."))
# What no test noticed before.
ONCE_UNNOTICED = ["seed-with-rank", "shard-local-index", "shard-sum-in-reduce-dtype",
                  "full-sum-in-reduce-dtype", "kept-sum-recomputed", "file-before-its-snapshot",
                  "rounding-frozen", "copy-not-refreshed", "replicas-left-out-of-norm"]

CMAKE = """#!/bin/sh
echo "cmake $*" >>"$LOG"
case "$*" in *--build*) ! grep -q BROKEN "$TREE/build-mutate/source/code.c" ;; esac
"""
CTEST = """#!/bin/sh
echo "ctest $*" >>"$LOG"
! grep -q NOTICED "$TREE/build-mutate/source/code.c"
"""
MUTANTS = """name: killed
file: code.c
find: one
with: NOTICED
tests: test_code
why: x

name: survivor
file: code.c
find: two
with: unnoticed
tests: test_code
why: x

name: broken
file: code.c
find: three
with: BROKEN
tests: test_code
why: x

name: same
file: code.c
find: four
with: 4
equivalent: it is the same
why: x
"""


def check(tree):
    return subprocess.run([sys.executable, tree / "tests/mutants/mutate.py", "--check"], capture_output=True,
                          text=True)


def patterns_match():
    result = check(SOURCE)
    assert result.returncode == 0, result.stdout + result.stderr
    text = "".join(path.read_text() for path in (SOURCE / "tests/mutants").glob("*.mutants"))
    for name in ONCE_UNNOTICED:
        assert f"name: {name}\n" in text, name


def make_tree(tree):
    (tree / "tests/mutants").mkdir(parents=True)
    (tree / "tools").mkdir()
    shutil.copy(SOURCE / "tests/mutants/mutate.py", tree / "tests/mutants")
    (tree / "tests/mutants/verifier.mutants").write_text(MUTANTS)
    (tree / "tests/test_code.c").write_text("")
    (tree / "code.c").write_text("one two three four\n")
    (tree / ".gitignore").write_text("build*/\n__pycache__/\ntools/\nlog\n")
    for name, text in (("cmake", CMAKE), ("ctest", CTEST)):
        (tree / "tools" / name).write_text(text)
        (tree / "tools" / name).chmod(0o755)
    subprocess.run(["git", "init", "-q", tree], check=True)


def mutate(tree, *arguments):
    (tree / "log").write_text("")
    environment = os.environ | {"PATH": f"{tree}/tools:{os.environ['PATH']}", "TREE": str(tree),
                                "LOG": str(tree / "log")}
    result = subprocess.run([sys.executable, tree / "tests/mutants/mutate.py", *arguments], env=environment,
                            capture_output=True, text=True)
    return result, (tree / "log").read_text().count("ctest")


def verdicts(tree):
    result, tests = mutate(tree)
    assert result.returncode == 1, result.stdout + result.stderr
    for name, verdict in (("killed", "killed by test_code"), ("survivor", "SURVIVED"),
                          ("broken", "does not build"), ("same", "equivalent: it is the same")):
        assert f"| `{name}` | x | {verdict} | " in result.stdout, result.stdout
    assert "4 mutants: 1 killed, 1 equivalent, 2 not killed" in result.stdout, result.stdout
    assert tests == 3, tests  # without a mutant, killed, survivor
    assert (tree / "build-mutate/source/code.c").read_text() == "one two three four\n"
    result, tests = mutate(tree)
    assert (result.returncode, tests) == (1, 1), "only the survivor is tried again"
    result, tests = mutate(tree, "killed", "same")
    assert (result.returncode, tests) == (0, 0), result.stdout
    result, tests = mutate(tree, "killed", "--again")
    assert (result.returncode, tests) == (0, 2), result.stdout
    table = tree / "build-table.md"
    mutate(tree, "--write", table)
    assert "4 mutants: 1 killed, 1 equivalent, 2 not killed.\n" in table.read_text()
    result, tests = mutate(tree, "killed", "--write", table, "--folder", tree / "build-other")
    assert (result.returncode, tests) == (0, 0), "the table says that it was killed"
    (tree / "code.c").write_text("one  two three four\n")
    result, tests = mutate(tree, "killed", "--write", table, "--seconds", "1e-9")
    assert (result.returncode, tests) == (0, 0), result.stdout
    assert "0 killed, 0 equivalent, 0 not killed, 1 not tested.\n" in table.read_text()
    assert "changed; before, killed by test_code |  |" in table.read_text()
    result, tests = mutate(tree, "killed")
    assert tests == 2, "a changed file is tested again"


def faults(tree):
    assert "verifier: 4 mutants, at least 5" in check(tree).stdout
    for text, fault in (("one one", "occurs 2 times"), ("nil", "occurs 0 times")):
        (tree / "code.c").write_text(text + " two three four\n")
        result, _ = mutate(tree)
        assert result.returncode == 1 and fault in result.stdout, result.stdout
    (tree / "code.c").write_text("one two three four\n")
    (tree / "tests/test_code.c").unlink()
    result = check(tree)
    assert "no test is called test_code" in result.stdout, result.stdout
    result, _ = mutate(tree, "nobody")
    assert result.returncode == 1


def main():
    patterns_match()
    if not shutil.which("git"):
        print("SKIPPED: mutate.sh makes a worktree of git, which is not here")
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="fsdp_mutants_") as folder:
        tree = pathlib.Path(folder)
        make_tree(tree)
        verdicts(tree)
        faults(tree)
    print("mutants: patterns match; verdicts, results and faults as they should be")


main()
