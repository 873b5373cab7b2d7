#!/usr/bin/env python3
"""Mutants: one-line changes that a test must notice. See scripts/mutate.sh for how to run them.

A mutant is a block of `key: value` lines in tests/mutants/*.mutants, blocks separated by blank lines:

  name:  unique
  file:  the source
  find:  text that occurs exactly once in it (~ at the start and end: a space)
  with:  what stands there instead
  tests: the tests that should notice, in the order in which they are run, until one fails
  why:   what the change breaks
  equivalent: instead of tests: why no test can notice

The file's name is the area that its mutants belong to. No line numbers: other changes move lines.
"""
import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDER = os.path.join(ROOT, "tests", "mutants")
KEYS = {"name", "file", "find", "with", "tests", "why", "equivalent"}
AREAS = ("scheduler", "partition", "waits", "memory", "verifier", "executor", "kernels", "checkpoints",
         "search", "launcher")
PER_AREA_MIN, TOTAL_MIN = 5, 60
PROGRAMS = ("fsdp_train", "fsdp_plan", "fsdp_export", "fsdp_profile")
# Warnings are no errors here: a change may leave a variable unused.
SETTINGS = ("-DFSDP_SIMT=OFF", "-DFSDP_WERROR=OFF", "-DCMAKE_BUILD_TYPE=Release")
TEST_TIMEOUT_S = 600
UNTESTED = "not tested"


def unpad(text):
    return re.sub(r"^~|~$", " ", text)


def read_mutants(path):
    area = os.path.basename(path).removesuffix(".mutants")
    with open(path) as lines:
        blocks = re.split(r"\n\s*\n", lines.read().strip())
    for block in blocks:
        mutant = {"area": area, "with": ""}
        for line in block.split("\n"):
            if line.startswith("#"):
                continue
            key, _, value = line.partition(":")
            if key not in KEYS:
                sys.exit(f"{path}: unknown key in '{line}'")
            mutant[key] = value.strip()
        if "name" in mutant:
            yield mutant


def all_mutants():
    names = sorted(name for name in os.listdir(FOLDER) if name.endswith(".mutants"))
    return [mutant for name in names for mutant in read_mutants(os.path.join(FOLDER, name))]


def test_files():
    found = {}
    for folder, _, names in os.walk(os.path.join(ROOT, "tests")):
        for name in names:
            stem, suffix = os.path.splitext(name)
            if stem.startswith("test_") and suffix in (".c", ".py", ".sh"):
                found[stem] = suffix
    return found


def faults(mutants):
    """What is wrong with the mutants as they are written, without running any."""
    names, tests = set(), test_files()
    for m in mutants:
        where = f"{m['area']}/{m['name']}"
        if m["name"] in names:
            yield f"{where}: the name is there twice"
        names.add(m["name"])
        missing = {"file", "find", "why"} - m.keys()
        if missing or ("tests" in m) == ("equivalent" in m):
            yield f"{where}: needs file, find, why, and either tests or equivalent"
            continue
        if not os.path.isfile(os.path.join(ROOT, m["file"])):
            yield f"{where}: {m['file']} does not exist"
            continue
        with open(os.path.join(ROOT, m["file"])) as source:
            count = source.read().count(unpad(m["find"]))
        if count != 1:
            yield f"{where}: its pattern occurs {count} times in {m['file']}"
        if unpad(m["find"]) == unpad(m["with"]):
            yield f"{where}: it changes nothing"
        for test in m.get("tests", "").split():
            if test not in tests:
                yield f"{where}: no test is called {test}"


def shortfalls(mutants):
    for area in AREAS:
        count = sum(m["area"] == area for m in mutants)
        if count < PER_AREA_MIN:
            yield f"{area}: {count} mutants, at least {PER_AREA_MIN}"
    if len(mutants) < TOTAL_MIN:
        yield f"{len(mutants)} mutants, at least {TOTAL_MIN}"


class Copy:
    """A copy of the sources with a build of its own, where mutants are applied one at a time."""

    def __init__(self, folder, settings=SETTINGS):
        self.settings = settings
        self.source, self.build = os.path.join(folder, "source"), os.path.join(folder, "build")
        self.results = os.path.join(folder, "results.tsv")
        self.sound = set()  # tests that pass without a mutant

    def update(self):
        names = subprocess.run(["git", "-C", ROOT, "ls-files", "-co", "--exclude-standard", "-z"], check=True,
                               capture_output=True, text=True).stdout.split("\0")
        wanted = {name for name in names if name and os.path.isfile(os.path.join(ROOT, name))}
        for folder, _, present in os.walk(self.source):
            for name in present:
                path = os.path.join(folder, name)
                if os.path.relpath(path, self.source) not in wanted and not folder.endswith("__pycache__"):
                    os.remove(path)
        for name in wanted:
            copy_if_changed(os.path.join(ROOT, name), os.path.join(self.source, name))
        configure = ["cmake", "-S", self.source, "-B", self.build, "-G", "Ninja", "-DFSDP_CUDA=off",
                     *self.settings]
        if shutil.which("ccache"):
            configure += ["-DCMAKE_C_COMPILER_LAUNCHER=ccache", "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"]
        run(configure, "configuring the copy failed")

    def make(self, tests):
        kinds = test_files()
        targets = [test for test in tests if kinds[test] == ".c"]
        if any(kinds[test] != ".c" for test in tests):
            targets += PROGRAMS
        command = ["cmake", "--build", self.build, "-j", str(os.cpu_count()), "--target", *targets]
        return subprocess.run(command, capture_output=True, text=True).returncode == 0

    def test(self, name):
        result = subprocess.run(["ctest", "--test-dir", self.build, "-R", f"^{name}$", "--timeout",
                                 str(TEST_TIMEOUT_S), "--no-tests=error"], capture_output=True, text=True)
        if "Skipped" in result.stdout or "No tests were found" in result.stdout + result.stderr:
            sys.exit(f"{name} was not run:\n{result.stdout[-2000:]}")
        return result.returncode == 0

    def is_sound(self, test):
        """The sources as they are must pass, or a failing test means nothing."""
        if test not in self.sound and self.make([test]) and self.test(test):
            self.sound.add(test)
        return test in self.sound

    def verdict(self, m):
        """"killed by TEST", "SURVIVED", "does not build" or "TEST fails without it too"."""
        path, tests = os.path.join(self.source, m["file"]), m["tests"].split()
        killer = None
        with open(path) as source:
            text = source.read()
        with open(path, "w") as source:
            source.write(text.replace(unpad(m["find"]), unpad(m["with"])))
        try:
            if not self.make(tests):
                return "does not build"
            killer = next((test for test in tests if not self.test(test)), None)
        finally:
            with open(path, "w") as source:
                source.write(text)
        if not killer:
            return "SURVIVED"
        return f"killed by {killer}" if self.is_sound(killer) else f"{killer} fails without it too"


def copy_if_changed(source, target):
    with open(source, "rb") as file:
        data = file.read()
    if os.path.isfile(target):
        with open(target, "rb") as file:
            if file.read() == data:
                return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    shutil.copy(source, target)


def run(command, message):
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{message}:\n{(result.stdout + result.stderr)[-4000:]}")


def key_of(m):
    """Changes with the mutant and with the file that it changes."""
    with open(os.path.join(ROOT, m["file"]), "rb") as source:
        data = source.read()
    fields = [m.get(key, "") for key in ("name", "file", "find", "with", "tests")]
    return hashlib.sha256("\0".join(fields).encode() + data).hexdigest()[:16]


def read_results(path):
    """Who was killed: the others are tried again, since tests may have become better."""
    if not os.path.exists(path):
        return {}
    with open(path) as lines:
        return dict(line.rstrip("\n").split("\t", 1) for line in lines if "\tkilled by" in line)


def run_mutants(mutants, options):
    """Verdicts by name. After options.seconds, the rest is left untested."""
    copy, began = Copy(options.folder), time.monotonic()
    os.makedirs(options.folder, exist_ok=True)
    results = {} if options.again else read_results(copy.results)
    copy.update()
    keys = {m["name"]: key_of(m) for m in mutants}  # now: the sources may change while the copy is tested
    todo = [m for m in mutants if "tests" in m and keys[m["name"]] not in results]
    # One file after the other, so that little is built again.
    for m in sorted(todo, key=lambda m: (m["file"], m["name"])):
        start = time.monotonic()
        if options.seconds and start - began > options.seconds:
            break
        key = keys[m["name"]]
        results[key] = copy.verdict(m)
        print(f"{m['area']}/{m['name']}: {results[key]} ({time.monotonic() - start:.0f} s)", flush=True)
        with open(copy.results, "a") as file:
            file.write(f"{key}\t{results[key]}\n")
    return {m["name"]: "equivalent: " + m["equivalent"] if "equivalent" in m else
            results.get(keys[m["name"]], UNTESTED) for m in mutants}


def table(mutants, verdicts):
    lines = ["| area | mutant | what it breaks | verdict |", "| --- | --- | --- | --- |"]
    for m in mutants:
        why = m["why"].replace("|", "&#124;")
        lines.append(f"| {m['area']} | `{m['name']}` | {why} | {verdicts[m['name']]} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(prog="mutate.sh", description="Runs mutants and prints who noticed.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants or areas (default: all)")
    parser.add_argument("--check", action="store_true", help="only whether every pattern still matches once")
    parser.add_argument("--again", action="store_true", help="also those that were killed before")
    parser.add_argument("--folder", default=os.path.join(ROOT, "build-mutate"), help="default: build-mutate")
    parser.add_argument("--seconds", type=float, metavar="N", help="begin no other mutant after N seconds")
    options = parser.parse_args()
    mutants = all_mutants()
    found = list(faults(mutants)) + (list(shortfalls(mutants)) if options.check else [])
    print("\n".join(found), end="\n" if found else "")
    if options.check or found:
        print(f"{len(mutants)} mutants, {len(found)} faults")
        return 1 if found else 0
    known = {m["name"] for m in mutants} | set(AREAS)
    for name in options.names:
        if name not in known:
            sys.exit(f"mutate.sh: no mutant or area is called '{name}'")
    names = set(options.names)
    chosen = [m for m in mutants if not names or m["name"] in names or m["area"] in names]
    verdicts = run_mutants(chosen, options)
    count = {start: sum(verdict.startswith(start) for verdict in verdicts.values())
             for start in ("killed by", "equivalent", UNTESTED)}
    bad = len(chosen) - sum(count.values())
    summary = (f"{len(chosen)} mutants: {count['killed by']} killed, {count['equivalent']} equivalent, "
               f"{bad} not killed" + (f", {count[UNTESTED]} not tested" if count[UNTESTED] else ""))
    print(f"{table(chosen, verdicts)}\n\n{summary}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
