"""Bugs drawn at random: what `scripts/mutate.sh --draw COUNT` runs. See there.

Lines are drawn from the product's sources as they were in one commit (--of), each with the same chance, and
of what bugs.py makes of a line one: the same seed gives the same bugs. They are planted in the sources as
they are now, each at the place that its line has there, in its file or in the one that it moved to. Each is
built with every warning as an error, since nobody would leave one; what does not build, or has no line any
more, is replaced by the next that is drawn.
"""
import argparse
import collections
import functools
import glob
import hashlib
import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tarfile
import time

import bugs
import mutate

FOLDERS = ("runtime", "kernels", "models", "launcher")
SUFFIXES = (".c", ".h", ".cu", ".cuh")
# These are not compiled without a GPU's libraries, or not beside those that this machine has.
LEFT_OUT = ("kernels/cuda/gemm/gemm_cublaslt.cu", "kernels/cpu/gemm/gemm_dnnl.c",
            "kernels/cpu/gemm/gemm_openblas.c", "runtime/comm/nccl_absent.c")
# The fastest build. GCC takes a little for uninitialised at -O1 that is not.
SETTINGS = ("-DFSDP_SIMT=ON", "-DFSDP_WERROR=ON", "-DCMAKE_BUILD_TYPE=Release",
            "-DCMAKE_C_FLAGS_RELEASE=-O1 -Wno-maybe-uninitialized")
TESTS = os.path.join(mutate.FOLDER, "drawn.tests")
VERDICTS = os.path.join(mutate.FOLDER, "drawn.verdicts")
OF = "983f7ec005fb"  # what verdicts are of
GONE = "its line is gone"
AROUND = 3  # lines near it that a line has kept where it moved to a file of another name
UNTRIED, NO_BUILD = "not tried yet", "does not build"
TEST_TIMEOUT_S = 120
TESTS_BUILT = 5
ADDRESS_SPACE_BYTES = 16 << 30  # a bug may ask for any amount of memory

# What runs the CUDA device's own sources, emulated.
DEVICE = "simt_tickets simt_probe_calls simt_golden simt_train simt_ranks simt_check"
# The groups of cases that kernels of one file, by the start of its name, are in; of the others, all.
CUDA = {"adamw": "flat", "checksum": "flat", "flat": "flat", "sums": "flat", "bias": "products",
        "cross": "products", "head": "products", "linear": "products", "logits": "products",
        "columns": "rows", "embedding": "rows", "gelu": "rows", "layernorm": "rows", "norm": "rows",
        "positions": "rows",
        "qk": "rows", "rmsnorm": "rows", "rope": "rows", "swiglu": "rows", "attention": "attention"}
SIMT_TARGETS = {"simt_mutations": ("simt_mutations",), "simt_golden": ("simt_golden",),
                "simt_tickets": ("simt_tickets",), "simt_probe_calls": ("simt_probe_calls",),
                "simt_train": ("simt_fsdp_train",), "simt_ranks": ("simt_fsdp_train",),
                "simt_check": ("simt_fsdp_train", "simt_fsdp_profile", "simt_bench_gpu", *mutate.PROGRAMS)}
# Compares times, or draws for minutes.
NEVER = {"test_auto_sharding", "test_sharding_draws", "test_transformers"}


@functools.lru_cache
def tests_by_folder():
    found, folder = {}, None
    with open(TESTS) as lines:
        for line in lines:
            words = line.split("#")[0].split()
            if line.endswith(":\n"):
                folder = found.setdefault(words[0][:-1], [])
            elif words:
                folder += words
    return found


def number(*key):
    return int(hashlib.sha256(":".join(map(str, key)).encode()).hexdigest(), 16)


def sources_of(commit):
    """The text of every file that lines are drawn from, as it was in the commit."""
    data = subprocess.run(["git", "-C", mutate.ROOT, "archive", commit, *FOLDERS], check=True,
                          capture_output=True).stdout
    found = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            if member.isfile() and member.name.endswith(SUFFIXES) and member.name not in LEFT_OUT:
                found[member.name] = archive.extractfile(member).read().decode()
    return dict(sorted(found.items()))


def places(sources):
    """Every line that a bug can be made in: (file, index, line, what bugs.py makes of it)."""
    for name, text in sources.items():
        lines, blanked = text.split("\n"), bugs.blanked(text).split("\n")
        for index, line in enumerate(lines):
            found = bugs.bugs(blanked, index)
            if found:
                yield name, index, line, found


def draws(sources, seed):
    """Without an end: drawn bugs, at most one in a line."""
    every, seen = list(places(sources)), set()
    for k in range(len(every)):
        name, index, line, found = every[number(seed, k) % len(every)]
        if (name, index) in seen:
            continue
        seen.add((name, index))
        rule, changes = found[number(seed, k, "rule") % len(found)]
        start, end, text = changes[number(seed, k, "change") % len(changes)]
        yield {"id": f"{seed}-{k + 1:03d}", "file": name, "line": index + 1, "rule": rule, "before": line,
               "after": (line[:start] + text + line[end:]).rstrip(),
               "around": sources[name].split("\n")[max(0, index - 2):index + 3]}


def place_now(bug, lines):
    """The index of the bug's line in the file as it is now, or None where it is gone."""
    found = [i for i, line in enumerate(lines) if line == bug["before"]]
    if len(found) > 1:
        likeness = [sum(line in bug["around"] for line in lines[max(0, i - 2):i + 3]) for i in found]
        best = [i for i, count in zip(found, likeness) if count == max(likeness)]
        found = sorted(best, key=lambda i: abs(i + 1 - bug["line"]))[:1]
    return found[0] if found else None


def sources_now(folder):
    """The lines of every file that a bug may be planted in, by its name."""
    found = {}
    for top in FOLDERS:
        for path in sorted(glob.glob(os.path.join(folder, top, "**"), recursive=True)):
            if path.endswith(SUFFIXES):
                with open(path) as file:
                    found[os.path.relpath(path, folder)] = file.read().split("\n")
    return found


def find_now(bug, sources):
    """The file and the index of the bug's line in it, or None where it is gone."""
    name, found = os.path.basename(bug["file"]), []
    for file, lines in sources.items():
        if bug["before"] not in lines:
            continue
        index = place_now(bug, lines)
        near = sum(line in bug["around"] for line in lines[max(0, index - 2):index + 3])
        if os.path.basename(file) == name or near > AROUND:
            found.append((file != bug["file"], os.path.basename(file) != name, -near, file, index))
    return min(found)[3:] if found else None


def is_of_device(name):
    return re.match(r"runtime/.*(_cuda|_nccl|cuda_self)\.[ch]$", name) is not None


def tests_of(name, costs):
    """What should notice a bug in that file, in the order in which it is run."""
    folder, stem = os.path.dirname(name), os.path.splitext(os.path.basename(name))[0]
    while folder not in tests_by_folder():
        folder = os.path.dirname(folder)
    chosen = list(tests_by_folder()[folder])
    if is_of_device(name):
        return DEVICE.split()
    if folder.startswith("kernels/cuda"):
        group = CUDA.get(stem.split("_")[0])
        others = set(CUDA.values()) - {group} if group else set()
        chosen = [test for test in chosen if test.split("_")[1] not in others]
        return sorted(chosen, key=lambda test: (test.split("_")[1] != group,
                                                ("hopper" in stem) != ("wgmma" in test)))
    kinds, ranks = mutate.test_files(), {}
    if name.startswith("kernels/"):
        chosen += sorted(test for test in kinds if test.startswith("test_kernels_") and test not in chosen)
    # Of partition_convert.c: test_partition_convert and what includes its header, then those of partition.
    words = stem.split("_")
    for count in range(len(words), 0, -1):
        named = "_".join(words[:count])
        header = f'#include "{os.path.dirname(name)}/{named}.h"'
        for test in kinds:
            if test in ("test_" + named, "test_io_" + named, "test_kernels_" + named):
                ranks.setdefault(test, len(words) - count)
            elif header in test_texts().get(test, ""):
                ranks.setdefault(test, len(words) - count + 0.5)
    first = sorted(ranks, key=lambda test: (ranks[test], costs.get(test, 1), test))
    rest = [test for test in kinds if kinds[test] == ".c"]
    rest.sort(key=lambda test: (costs.get(test, 1), test))
    ordered = list(collections.OrderedDict.fromkeys(first + chosen + rest))
    return [test for test in ordered if test not in NEVER]


@functools.lru_cache
def test_texts():
    """The sources of all unit tests by name."""
    found = {}
    for path in glob.glob(os.path.join(mutate.ROOT, "tests", "unit", "*", "test_*.c")):
        with open(path) as file:
            found[os.path.splitext(os.path.basename(path))[0]] = file.read()
    return dict(sorted(found.items()))


class Bench(mutate.Copy):
    """The copy that the bugs are planted in, and which tests are known to pass without one."""

    def __init__(self, folder):
        super().__init__(folder, SETTINGS)
        self.sound_path, self.unsound = os.path.join(folder, "sound.txt"), set()
        self.ran_out = False  # the last test
        self.is_prepared = False
        self.targets = None
        if os.path.exists(self.sound_path):
            with open(self.sound_path) as lines:
                self.sound = set(lines.read().split())

    def prepare(self, no_cuda):
        """Brings the copy up to date and builds it, once."""
        if self.is_prepared:
            return
        self.update()
        if not self.make(["test_base", "test_train"] + ([] if no_cuda else ["simt_flat"])):
            sys.exit(f"{self.build} does not build without a bug")
        self.is_prepared = True

    def make(self, tests):
        targets = [target for test in tests for target in targets_of(test)]
        command = ["cmake", "--build", self.build, "-j", str(os.cpu_count()), "--target", *targets]
        return subprocess.run(command, capture_output=True, text=True).returncode == 0

    def has(self, test):
        """Whether it is built here: some need what this machine lacks."""
        if self.targets is None:
            command = ["cmake", "--build", self.build, "--target", "help"]
            text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            self.targets = {line.split(":")[0] for line in text.splitlines() if ":" in line}
        return self.targets.issuperset(targets_of(test))

    def test(self, name):
        """Whether it passes. It is ended with all its processes after TEST_TIMEOUT_S, which is no pass."""
        self.ran_out = False
        command = ["ctest", "--test-dir", self.build, "-R", f"^{name}$", "--no-tests=error"]
        limit = (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   errors="replace", start_new_session=True,
                                   preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit))
        try:
            text, _ = process.communicate(timeout=TEST_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            for number_of_signal in (signal.SIGTERM, signal.SIGKILL):
                os.killpg(process.pid, number_of_signal)
                time.sleep(3)
            process.communicate()
            self.ran_out = True
            return False
        if "No tests were found" in text:
            sys.exit(f"{name} is no test of {self.build}")
        return process.returncode == 0 or "Skipped" in text

    def is_sound(self, test):
        if test not in self.sound | self.unsound:
            if self.make([test]) and self.test(test):
                self.sound.add(test)
                with open(self.sound_path, "a") as file:
                    file.write(test + "\n")
            else:
                self.unsound.add(test)
        return test in self.sound

    def costs(self):
        path = os.path.join(self.build, "Testing", "Temporary", "CTestCostData.txt")
        if not os.path.exists(path):
            return {}
        with open(path) as lines:
            rows = [line.split() for line in lines]
        return {row[0]: float(row[2]) for row in rows if len(row) == 3}

    def try_bug(self, bug, each_s):
        """The verdict, and which tests ran without noticing anything."""
        sources = sources_now(self.source)
        place = find_now(bug, sources)
        if place is None:
            return GONE, []
        path, lines = os.path.join(self.source, place[0]), sources[place[0]]
        text = "\n".join(lines)
        lines[place[1]] = bug["after"]
        changed, passed, began = "\n".join(lines), [], time.monotonic()
        tests, built = [test for test in tests_of(place[0], self.costs()) if self.has(test)], 0
        try:
            write(path, changed)
            for i, test in enumerate(tests):
                if test in self.unsound or (passed and time.monotonic() - began > each_s):
                    continue
                if i >= built:  # a few at a time, since each build looks at all files
                    built = i + (1 if i == 0 else TESTS_BUILT)
                    if not self.make(tests[i:built]):
                        return NO_BUILD, []
                if self.test(test):
                    passed.append(test)
                    continue
                write(path, text)
                why = ", which ran out of time" if self.ran_out else ""
                if self.is_sound(test):
                    return f"killed by {test}{why}", passed
                write(path, changed)
                built = 0
        finally:
            write(path, text)
        return "survived", passed


def targets_of(test):
    if test.startswith("simt_"):
        return SIMT_TARGETS.get(test, ("simt_kernels",))
    return (test,) if mutate.test_files()[test] == ".c" else mutate.PROGRAMS


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def read_records(path):
    if not os.path.exists(path):
        return {}
    with open(path) as lines:
        return {record["id"]: record for record in map(json.loads, lines)}


def read_verdicts():
    """What people said of survivors: {id: text}, from lines `id: text`."""
    if not os.path.exists(VERDICTS):
        return {}
    with open(VERDICTS) as file:
        blocks = re.split(r"\n\s*\n", file.read())
    found = {}
    for block in blocks:
        text = " ".join(line.strip() for line in block.split("\n") if not line.startswith("#"))
        key, colon, verdict = text.partition(": ")
        if colon:
            found[key.strip()] = verdict.strip()
    return found


def known(bug, sources, verdicts):
    """What the file says of a bug, or None: nothing, or its line is gone, so that it is tried."""
    if bug["id"] not in verdicts:
        return None
    gone = find_now(bug, sources) is None
    return bug | {"verdict": GONE if gone else "survived", "passed": []}


def cell(text):
    return "`" + text.strip().replace("|", "\\|") + "`" if text.strip() else "(nothing)"


def summary_of(records, verdicts, asked):
    built = [record for record in records if record["verdict"].startswith(("killed", "survived"))]
    killed = [record for record in built if record["verdict"].startswith("killed")]
    said = collections.Counter(verdicts.get(record["id"], "not judged").split(":")[0]
                               for record in built if record not in killed)
    gone = sum(record["verdict"] == GONE for record in records)
    untried = sum(record["verdict"] == UNTRIED for record in records)
    changing = len(built) - said["equivalent"] - said["no bug"]
    lines = [f"{len(built)} of {asked} drawn: {len(killed)} killed, {len(built) - len(killed)} survived "
             f"({', '.join(f'{count} {what}' for what, count in sorted(said.items())) or 'none'}); besides, "
             f"{len(records) - len(built) - gone - untried} do not build"
             + (f", of {gone} the line is gone" if gone else "")
             + (f", {untried} are not tried yet" if untried else "") + ".",
             f"Of {changing} that change what the programs do, {len(killed)} are killed: "
             f"{100 * len(killed) / max(changing, 1):.1f}%."]
    return "\n".join(lines)


def table_of(records, verdicts):
    lines = ["| bug | place | before | after | verdict |", "| --- | --- | --- | --- | --- |"]
    for record in records:
        verdict = record["verdict"]
        if verdict == "survived":
            verdict += ": " + verdicts.get(record["id"], "not judged").replace("|", "\\|")
        lines.append(f"| {record['id']} | `{record['file']}:{record['line']}` | {cell(record['before'])} | "
                     f"{cell(record['after'])} | {verdict} |")
    return "\n".join(lines)


def check(options, verdicts):
    """Without building anything: of the bugs with a verdict, whose line there is still."""
    sources, waiting, counts = sources_now(mutate.ROOT), set(verdicts), collections.Counter()
    for bug in draws(sources_of(options.of), options.seed):
        if not waiting:
            break
        if bug["id"] in waiting:
            waiting.remove(bug["id"])
            counts[GONE if find_now(bug, sources) is None else "judged"] += 1
    faults = [f"{key} is not drawn from {options.of} with seed {options.seed}" for key in sorted(waiting)]
    if counts["judged"] < options.draw:
        faults.append(f"fewer than {options.draw} have a verdict, and their line")
    print("\n".join([*faults, f"{counts['judged']} survivors judged, of {counts[GONE]} the line is gone"]))
    return int(bool(faults))


def run_draws(options, verdicts):
    bench, began = Bench(options.folder), time.monotonic()
    os.makedirs(options.folder, exist_ok=True)
    path = os.path.join(options.folder, f"drawn-{options.seed}.jsonl")
    records, chosen, built = read_records(path), [], 0
    sources = sources_now(mutate.ROOT)
    for bug in draws(sources_of(options.of), options.seed):
        if built >= options.draw:
            break
        record, start = records.get(bug["id"]), time.monotonic()
        if record is None and not options.afresh:
            record = known(bug, sources, verdicts)
        if record is None and options.no_cuda and (bug["file"].startswith("kernels/cuda/") or
                                                   is_of_device(bug["file"])):
            chosen.append(bug | {"verdict": UNTRIED})
            built += 1  # perhaps
            continue
        again = record and record["verdict"] == "survived" and (options.again or bug["id"] in options.names)
        if record is None or again:
            if options.seconds and start - began > options.seconds:
                if record is None:
                    break
            else:
                bench.prepare(options.no_cuda)
                same = verdicts.get(bug["id"], "").startswith("equivalent")  # one test is enough
                verdict, passed = bench.try_bug(bug, 0 if same else options.each)
                record = bug | {"verdict": verdict, "passed": passed}
                print(f"{bug['id']} {bug['file']}:{bug['line']} {verdict} ({time.monotonic() - start:.0f} s)",
                      flush=True)
                with open(path, "a") as file:
                    file.write(json.dumps(record) + "\n")
        chosen.append(record)
        built += record["verdict"].startswith(("killed", "survived"))
    return chosen


def main(arguments):
    parser = argparse.ArgumentParser(prog="mutate.sh", description="Plants bugs drawn at random.")
    parser.add_argument("names", nargs="*", metavar="ID", help="survivors to try again")
    parser.add_argument("--draw", type=int, required=True, metavar="COUNT", help="how many that build")
    parser.add_argument("--seed", type=int, default=24, help="default: 24")
    parser.add_argument("--of", default=OF, metavar="COMMIT",
                        help=f"whose sources are drawn from; default: {OF}")
    parser.add_argument("--check", action="store_true", help="only whether so many have a verdict")
    parser.add_argument("--again", action="store_true", help="try the survivors again")
    parser.add_argument("--afresh", action="store_true", help="try also those with a verdict")
    parser.add_argument("--no-cuda", action="store_true", help="leave bugs in CUDA's lines for another run")
    parser.add_argument("--each", type=float, default=180, metavar="N",
                        help="begin no other test of a bug after N seconds")
    parser.add_argument("--seconds", type=float, metavar="N", help="begin no other bug after N seconds")
    parser.add_argument("--folder", default=os.path.join(mutate.ROOT, "build-draw"),
                        help="default: build-draw")
    options = parser.parse_args(arguments)
    verdicts = read_verdicts()
    if options.check:
        return check(options, verdicts)
    records = run_draws(options, verdicts)
    shown = [record for record in records if record["verdict"] != NO_BUILD]
    commit = subprocess.run(["git", "-C", mutate.ROOT, "rev-parse", "--short=12", options.of], check=True,
                            capture_output=True, text=True).stdout.strip()
    print(f"\n`scripts/mutate.sh --draw {options.draw} --seed {options.seed} --of {commit}`\n\n"
          f"{summary_of(records, verdicts, options.draw)}\n\n{table_of(shown, verdicts)}")
    return int(any(record["verdict"] == "survived" and record["id"] not in verdicts for record in shown))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
