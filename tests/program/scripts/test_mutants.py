"""The mutants' patterns still match, there are enough of them in each area, those that once went unnoticed
are among them; and mutate.sh's verdicts, in a small tree with tools that only pretend to build and test. The
bugs that it draws: what the rules make of lines, and the same verdicts."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(os.environ.get("FSDP_SOURCE_DIR", "."))
sys.dont_write_bytecode = True
sys.path.append(str(SOURCE / "tests/mutants"))
import bugs
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

# Of what is drawn in them, the tests notice all, nothing and nothing; the last one does not build then.
LINES = """int code(int a, int b) {
  noticed(a < b);
  unnoticed(a < b);
  broken(a < b);
}
"""
# One test is not built on this machine.
DRAWN_CMAKE = """#!/bin/sh
case "$*" in
  *"--target help") printf '%s: phony\\n' test_base test_code && exit ;;
  *test_elsewhere*) exit 1 ;;
  *--build*) grep -qF "  broken(a < b);" "$TREE/build-draw/source/models/code.c" ;;
esac
"""
DRAWN_CTEST = """#!/bin/sh
echo ctest >>"$LOG"
grep -qF "  noticed(a < b);" "$TREE/build-draw/source/models/code.c"
"""
# A line, the one before it, and some of what it could be.
BUGS = [
    ("  for (int i = 0; i < n; i++) {", "{",
     ["  for (int i = 0; i <= n; i++) {", "  for (int i = 1; i < n; i++) {",
      "  for (int i = 0; i < i; i++) {"]),
    ("  if (a && !b) c += d->e;", ";",
     ["  if (a || !b) c += d->e;", "  if (!b) c += d->e;", "  if (a) c += d->e;",
      "  if (!(a && !b)) c += d->e;",
      "  if (a && b) c += d->e;", "  if (a && !b) c -= d->e;", "  if (a && !b) c = d->e;"]),
    ("  x = fmax(a, b + 1);", "{",
     ["  x = fmin(a, b + 1);", "  x = fmax(b + 1, a);", "  x = fmax(a, b);", "  x = fmax(a, b - 1);",
      "  x = fmax(a, b + 2);", ""]),
    ("  return a ? p->x : p->y; // 1 < 2", "}",
     ["  return a ? p->y : p->x; // 1 < 2", "  return a ? p->y : p->y; // 1 < 2", "   // 1 < 2"]),
]
NO_BUGS = ["#define A (1 + 2)", "// a < b", '  FSDP_CHECK(a < b, "%d", 1);', "  free(a);", "  int a;", "}"]


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


def mutate(tree, *arguments, script="mutate.py"):
    (tree / "log").write_text("")
    environment = os.environ | {"PATH": f"{tree}/tools:{os.environ['PATH']}", "TREE": str(tree),
                                "LOG": str(tree / "log")}
    result = subprocess.run([sys.executable, tree / "tests/mutants" / script, *arguments], env=environment,
                            capture_output=True, text=True)
    return result, (tree / "log").read_text().count("ctest")


def verdicts(tree):
    result, tests = mutate(tree)
    assert result.returncode == 1, result.stdout + result.stderr
    for name, verdict in (("killed", "killed by test_code"), ("survivor", "SURVIVED"),
                          ("broken", "does not build"), ("same", "equivalent: it is the same")):
        assert f"| `{name}` | x | {verdict} |" in result.stdout, result.stdout
    assert "4 mutants: 1 killed, 1 equivalent, 2 not killed" in result.stdout, result.stdout
    assert tests == 3, tests  # without a mutant, killed, survivor
    assert (tree / "build-mutate/source/code.c").read_text() == "one two three four\n"
    result, tests = mutate(tree)
    assert (result.returncode, tests) == (1, 1), "only the survivor is tried again"
    result, tests = mutate(tree, "killed", "same")
    assert (result.returncode, tests) == (0, 0), result.stdout
    result, tests = mutate(tree, "killed", "--again")
    assert (result.returncode, tests) == (0, 2), result.stdout
    (tree / "code.c").write_text("one  two three four\n")
    result, tests = mutate(tree, "killed", "--seconds", "1e-9")
    assert (result.returncode, tests) == (0, 0), result.stdout
    assert "0 killed, 0 equivalent, 0 not killed, 1 not tested\n" in result.stdout
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


def could_be(line, before):
    text = f"{before}\n{line}\n"
    changes = [change for _, found in bugs.bugs(bugs.blanked(text).split("\n"), 1) for change in found]
    assert all(start < end or text for start, end, text in changes), line
    return [(line[:start] + text + line[end:]).rstrip() for start, end, text in changes]


def rules():
    for line, before, expected in BUGS:
        found = could_be(line, before)
        assert line not in found, line
        for text in expected:
            assert text in found, (text, found)
    for line in NO_BUGS:
        assert could_be(line, ";") == [], (line, could_be(line, ";"))


def commit(tree):
    author = ["-c", "user.name=x", "-c", "user.email=x"]
    subprocess.run(["git", "-C", tree, "add", "-A"], check=True)
    subprocess.run(["git", "-C", tree, *author, "commit", "-qm", "x"], check=True)


def make_drawn_tree(tree):
    shutil.copytree(SOURCE / "tests/mutants", tree / "tests/mutants",
                    ignore=lambda *_: ["drawn.verdicts"])
    for folder in ("runtime", "kernels", "launcher", "models", "tools"):
        (tree / folder).mkdir(parents=True)
        (tree / folder / "README").write_text("")
    for name in ("unit/base/test_base.c", "program/train/test_train.py", "unit/models/test_code.c",
                 "unit/models/test_elsewhere.c"):
        (tree / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / "tests" / name).write_text("")
    (tree / "tests/mutants/drawn.tests").write_text("models:\n  test_code test_elsewhere\n")
    (tree / "models/code.c").write_text(LINES)
    (tree / ".gitignore").write_text("build*/\n__pycache__/\ntools/\nlog\n")
    for name, text in (("cmake", DRAWN_CMAKE), ("ctest", DRAWN_CTEST)):
        (tree / "tools" / name).write_text(text)
        (tree / "tools" / name).chmod(0o755)
    subprocess.run(["git", "init", "-q", tree], check=True)
    commit(tree)


def draw(tree, count, *arguments):
    return mutate(tree, "--draw", count, "--of", "HEAD", *arguments, script="draw.py")


def draws(tree):
    result, tests = draw(tree, "2", "--seconds", "1e-9")
    assert "0 of 2 drawn" in result.stdout and tests == 0, result.stdout + result.stderr
    result, _ = draw(tree, "2")
    assert result.returncode == 1, result.stdout + result.stderr
    assert "2 of 2 drawn: 1 killed, 1 survived (1 not judged)" in result.stdout, result.stdout
    table = [line for line in result.stdout.split("\n") if line.startswith("| 24-")]
    assert any("`noticed(a < b);`" in line and "| killed by test_code |" in line for line in table), table
    survivor = next(line for line in table if "| survived: not judged |" in line)
    assert "`unnoticed(a < b);`" in survivor and len(table) == 2, table
    assert (tree / "build-draw/source/models/code.c").read_text() == LINES
    result, tests = draw(tree, "2")
    assert tests == 0, "all is known"
    # The line has moved, and tests have become better; or somebody says what it is.
    (tree / "models/code.c").write_text("\n" + LINES)
    result, tests = draw(tree, "2", "--again")
    assert tests > 0 and "1 killed, 1 survived" in result.stdout, result.stdout
    said = f"# Verdicts\n\n{survivor.split()[1]}: equivalent: it is\nthe same\n"
    (tree / "tests/mutants/drawn.verdicts").write_text(said)
    result, tests = draw(tree, "2")
    assert (result.returncode, tests) == (0, 0), result.stdout + result.stderr
    assert "| survived: equivalent: it is the same |" in result.stdout, result.stdout
    assert "Of 1 that change what the programs do, 1 are killed: 100.0%." in result.stdout, result.stdout
    # It is known, and found in a file of another name.
    (tree / "models/code.c").rename(tree / "models/other.c")
    result, tests = draw(tree, "1", "--check")
    assert (result.returncode, tests) == (0, 0), result.stdout + result.stderr
    assert "1 survivors judged, of 0 the line is gone" in result.stdout, result.stdout
    unknown = said + "\n24-999: no bug: x\n"
    for text, count, fault in ((unknown, "1", "not drawn"), (said, "2", "fewer than 2")):
        (tree / "tests/mutants/drawn.verdicts").write_text(text)
        result, _ = draw(tree, count, "--check")
        assert result.returncode == 1 and fault in result.stdout, (text, result.stdout)
    (tree / "models/other.c").rename(tree / "models/code.c")
    # What is known is not tried in another folder.
    (tree / "tests/mutants/drawn.verdicts").write_text(said)
    result, tests = draw(tree, "1", "--folder", str(tree / "build-other"))
    assert (result.returncode, tests) == (0, 0), result.stdout + result.stderr
    assert "0 killed, 1 survived (1 equivalent)" in result.stdout, result.stdout
    # Without CUDA, its lines wait.
    (tree / "kernels/cuda").mkdir(parents=True)
    (tree / "kernels/cuda/code.cu").write_text("void f(int a, int b) {\n  waits(a < b);\n}\n")
    commit(tree)
    shutil.rmtree(tree / "build-draw")
    result, _ = draw(tree, "9", "--no-cuda")
    waiting = [line for line in result.stdout.split("\n") if "| not tried yet |" in line]
    assert waiting and all("kernels/cuda/code.cu" in line for line in waiting), result.stdout + result.stderr


def main():
    patterns_match()
    rules()
    if not shutil.which("git"):
        print("SKIPPED: mutate.sh makes a worktree of git, which is not here")
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="fsdp_mutants_") as folder:
        tree = pathlib.Path(folder)
        make_tree(tree)
        verdicts(tree)
        faults(tree)
    with tempfile.TemporaryDirectory(prefix="fsdp_mutants_") as folder:
        make_drawn_tree(pathlib.Path(folder))
        draws(pathlib.Path(folder))
    print("mutants: patterns match; verdicts, results and faults as they should be; so are drawn bugs")


main()
