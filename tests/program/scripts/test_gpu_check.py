"""scripts/gpu_check.sh without a GPU: the order and the limits of its steps, lines that are printed when they
are known, what a check that is cut off leaves behind, missing tools, PyTorch's slots. nvidia-smi and the
programs are stand-ins here, shell scripts that print what the real ones would."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import types

import programs

ROOT = programs.ROOT
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "bench")]
import compare_gpu  # noqa: E402
from checking import mends, tools  # noqa: E402
from checking.report import Report  # noqa: E402
from checking.runner import Runner  # noqa: E402
from checking.steps import Step  # noqa: E402

SCRIPT = ROOT / "scripts" / "gpu_check.sh"
WAIT_S = 60

SMI = """case "$*" in
  *name,driver*) echo "${gpu:-NVIDIA H200, 580.1, 9.0, 143771 MiB}" ;;
  *memory.used*) echo 500 ;;
  *) echo "GPU 0: NVIDIA H200" ;;
esac"""
# Writes the log that --log names: six steps of a second, a plan of 100 GB, what the driver counts in $used.
TRAIN = r"""while [ $# -gt 0 ]; do case $1 in --log) log=$2 ;; esac; shift; done
for step in 1 2 3 4 5 6; do
  echo '{"loss": 9.5, "time/total": 1000, "arena_bytes": 100000000000, "planned_peak_bytes": 99000000000,'\
    '"device_used_bytes": '"${used:-100900000000}}"
done >"$log"
echo "step 6 of 6"
"""
BENCH = """while [ $# -gt 0 ]; do case $1 in --json) json=$2 ;; esac; shift; done
echo "ceiling: product of 8192^3, bf16 700 TFLOP/s"
echo '{"label":"ceiling: product of 8192^3, bf16","count":1,"us":1,"flops":1,"bytes":1,"rate":7e14}' >"$json"
echo '{"label":"rmsnorm","count":1,"us":50.0,"flops":0,"bytes":1,"rate":1,"price_us":40}' >>"$json"
"""
# Speaks as bench/torch_llama.py --staged does, and notes when it was allowed to continue.
TORCH = r"""echo '{"stage": "imported"}'; read -r line; date +%s.%N >"$marks/compiles"
echo '{"stage": "compiled"}'; read -r line; date +%s.%N >"$marks/timed"
echo '{"losses": [9.5,9.5,9.5,9.5,9.5,'"${last:-9.45}"'],'\
  '"seconds": [30,2,2,2,2,2], "peak": {"allocated": 90000000000}}'
"""


def script(path, body):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/usr/bin/env bash\n" + body)
    path.chmod(0o755)


class Fake:
    """A machine: a folder of tools, a toolkit's root, a bundle, and what the script is run with."""

    def __init__(self, work, tools=("nvidia-smi", "compute-sanitizer")):
        self.work, self.out = pathlib.Path(work), pathlib.Path(work) / "out"
        self.folder, self.marks = self.work / "build-gpu", self.work / "marks"
        self.marks.mkdir()
        bundle = self.folder / "bundle"
        bundle.mkdir(parents=True)
        (bundle / "env.sh").write_text("export FROM_BUNDLE=yes\n")
        script(bundle / "bin" / "fsdp_train", TRAIN)
        script(bundle / "bin" / "bench_gpu", BENCH)
        for test in ("gpu_kernels", "test_golden", "test_strategies"):
            self.test(test, "echo 0 failed")
        for tool in tools:
            body = {"nvidia-smi": SMI, "compute-sanitizer": "echo ERROR SUMMARY: 0 errors"}[tool]
            script(self.work / "cuda" / "nvidia" / "bin" / tool, body)
        script(self.work / "python-with-torch", TORCH)
        self.environment = {**os.environ, "OUT": str(self.out), "marks": str(self.marks),
                            "FSDP_TOOLKIT_ROOT": str(self.work / "cuda")}

    def test(self, name, body):
        script(self.folder / "bundle" / "tests" / name, body)

    def start(self, *arguments, **environment):
        command = ["bash", str(SCRIPT), str(self.folder), *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                env={**self.environment, **environment})

    def check(self, *arguments, **environment):
        process = self.start(*arguments, **environment)
        output, _ = process.communicate(timeout=120)
        return process.returncode, output

    def facts(self):
        return json.loads((self.out / "gpu_check.json").read_text())

    def results(self):
        return {row["step"]: (row["result"], row["note"]) for row in self.facts()["steps"]}


def read_until(process, words):
    """Reads lines until one has the words."""
    lines = []
    while True:
        line = process.stdout.readline()
        lines.append(line)
        assert line, f"'{words}' never came: {''.join(lines)}"
        if words in line:
            return lines


NOT_RANKS = "^(?!ranks)"  # tests/gpu/gpu_ranks.py is tested on the device that runs on the CPU


def test_no_gpu(work):
    fake = Fake(work, tools=())
    process = subprocess.run(["bash", str(SCRIPT), str(fake.folder)], capture_output=True, text=True,
                             env=fake.environment, timeout=60)
    assert process.returncode == 5 and process.stdout == "", process
    assert process.stderr.count("\n") == 1 and "no NVIDIA GPU" in process.stderr, process.stderr
    assert not fake.out.exists()


def test_broken_driver(work):
    fake = Fake(work)
    smi = fake.work / "cuda" / "nvidia" / "bin" / "nvidia-smi"
    script(smi, 'echo "NVIDIA-SMI has failed:"; echo "no driver"; exit 9')
    status, output = fake.check()
    assert status == 5 and output.count("\n") == 1 and "NVIDIA-SMI has failed: no driver" in output, output


def test_results_cannot_be_written(work):
    fake = Fake(work)
    (fake.work / "file").write_text("")
    status, output = fake.check(OUT=str(fake.work / "file" / "out"))
    assert status == 3 and output.count("\n") == 1 and f"{fake.work}/file" in output, output


def test_limits(work):
    status, output = Fake(work).check("--list")
    limits = [int(limit) for limit in re.findall(r"^ *(\d+) s  ", output, re.M)]
    assert status == 0 and len(limits) > 15 and 300 < sum(limits) < 540, output
    names = [line.split("s  ", 1)[1] for line in output.splitlines()]
    order = ["versions", "one case of every op",
             "attention by mma, batch 4", "attention by mma, batch 1",
             "attention by wgmma, batch 4", "attention by wgmma, batch 1", "attention by general, batch 1",
             "production attention by mma", "production attention by wgmma", "golden data", "ceilings",
             "train llama3-8b-4", "train llama3-8b-4-block", "train llama-1b-6", "train llama-1b-24",
             "kernels of llama3-8b-4", "kernels of llama-1b-6", "kernels of a mesh"]
    assert names[:len(order)] == order and names[-3:] == [
        "ranks: kill", "ranks: stop", "racecheck of the kernels"], names
    # While a library is first read and kernels are first loaded.
    assert all(int(limit) >= 25 for limit in re.findall(r"^ *(\d+) s  one case", output, re.M)), output


H100 = "NVIDIA H100 80GB HBM3, 580.1, 9.0, 81559 MiB"
A100 = "NVIDIA A100-SXM4-40GB, 580.1, 8.0, 40960 MiB"


def names_listed(fake, gpu):
    status, output = fake.check("--list", gpu=gpu)
    assert status == 0, output
    return [line.split("s  ", 1)[1] for line in output.splitlines()]



def test_cases_fit_the_card(work):
    """80 GB: smaller batches, and PyTorch's side at the one that ours is compared at; 40 GB: no 8B model.
    Kernels that the architecture lacks are no steps."""
    fake = Fake(work)
    names = names_listed(fake, H100)
    for name in ("train llama3-8b-1", "train llama3-8b-2-block", "PyTorch FSDP2 llama3-8b-2-block",
                 "train llama-1b-24", "kernels of llama3-8b-4", "attention by wgmma, batch 1"):
        assert name in names, (name, names)
    assert not any("8b-4" in name for name in names if not name.startswith("kernels")), names
    names = names_listed(fake, A100)
    assert "attention by mma, batch 4" in names and not any("wgmma" in name for name in names), names
    status, output = fake.check("--only", "^train", gpu=A100)
    results = fake.results()
    assert status == 0 and results["train llama-1b-6"][0] == "ok", output
    assert results["train llama3-8b-1"] == ("skipped", "it takes 69 GB, and this GPU has 43"), results
    assert results["train llama3-8b-2-block"] == ("skipped", "it takes 79 GB, and this GPU has 43"), results


def test_cases_take_what_was_planned(_):
    """The table by which cases are chosen, against the planner."""
    for case, (ours, theirs) in compare_gpu.CASE_GB.items():
        process = programs.run("fsdp_plan", *compare_gpu.plan_options(case), "--json")
        arena = json.loads(process.stdout)["memory"]["arena_bytes"]
        assert 0 <= ours - arena / 1e9 < 1.2, (case, ours, arena)
        model, seq, batch, _, _ = compare_gpu.CASES[case]
        logits = 3 * 4 * batch * seq * compare_gpu.SHAPES[model]["vocab"]
        assert theirs >= (arena + logits) / 1e9, (case, theirs, arena, logits)
    assert set(compare_gpu.CASE_GB) == {case for case in compare_gpu.CASES if not case.startswith("tiny")}


def test_all_of_it(work):
    fake = Fake(work)
    status, output = fake.check("--only", NOT_RANKS, "--python", str(fake.work / "python-with-torch"))
    results, facts = fake.results(), fake.facts()
    assert status == 0 and {result for result, _ in results.values()} == {"ok"}, output
    # Steady steps of a second, 4 x 4096 tokens each; PyTorch's take two.
    assert facts["train"]["llama3-8b-4"]["tokens_per_s"] == 16384
    assert facts["verdicts"]["llama3-8b-4-block"]["rate"] == 2
    assert facts["train"]["llama3-8b-4"]["beyond_plan_bytes"] == 900e6 - 500 * 2**20
    assert [line["label"] for line in facts["kernels"]["llama-1b-6"]][1] == "rmsnorm"
    assert [line["label"] for line in facts["mesh_kernels"]][1] == "rmsnorm"
    assert "what to change: llama-1b-6" in output, output
    # What can be brought back from a lent machine: few files, plain names.
    names = sorted(path.name for path in fake.out.rglob("*"))
    assert len(names) <= 8 and all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in names), names
    assert {"gpu_check.txt", "gpu_check.json", "gpu_check.log"} <= set(names), names


def test_wgmma_spoils_nothing(work):
    """Kernels that hang or fail are ended with their own step; the rest uses the default."""
    fake = Fake(work)
    fake.test("gpu_kernels",
              'case $2 in wgmma) echo "rate 1 TFLOP/s"; echo wrong; exit 1 ;; esac; echo fine')
    status, output = fake.check("--only", "^(production|one case|attention cases|all kernels)")
    results = fake.results()
    wrong = {name for name, (result, _) in results.items() if result != "ok"}
    assert status == 1 and wrong == {"production attention by wgmma", "attention cases by wgmma"}, output
    assert results["production attention by wgmma"] == ("FAILED", "status 1: wrong"), results
    assert "rate 1 TFLOP/s" in output and len(results) == 6, results  # with the build


def test_missing_tools(work):
    fake = Fake(work, tools=("nvidia-smi",))
    status, output = fake.check("--only", "versions|memcheck|racecheck")
    results = fake.results()
    assert status == 0 and "missing: compute-sanitizer, so there is no memcheck" in output, output
    assert results["memcheck of the kernels"] == ("skipped", "compute-sanitizer is missing"), results
    assert "missing: nvidia-smi" not in output  # found under the toolkit's root, though not on PATH


def test_lines_come_when_known(work):
    """A step blocks until this test has read the row of the one before it."""
    fake = Fake(work)
    fake.test("test_golden", 'echo waiting; while [ ! -e "$marks/seen" ]; do sleep 0.05; done; echo fine')
    process = fake.start("--only", "^(one case|golden)")
    lines = read_until(process, "one case of every op")
    assert " ok " in lines[-1], lines
    # All that is known is in the files while the next step is under way.
    assert fake.results()["one case of every op"][0] == "ok"
    assert "one case of every op" in (fake.out / "gpu_check.txt").read_text()
    (fake.marks / "seen").touch()
    output, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0 and fake.results()["golden data"] == ("ok", "fine"), output


def begin_endless(fake):
    fake.test("test_golden", 'echo waiting; sleep 600 & echo $! >"$marks/child"; wait')
    process = fake.start("--only", "^(one case|golden)")
    read_until(process, "one case of every op")
    child, log = fake.marks / "child", fake.out / "gpu_check.log"
    deadline = time.monotonic() + WAIT_S
    while not (child.exists() and child.read_text().endswith("\n") and "waiting" in log.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process, int(child.read_text())


def is_running(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_cut_off(work):
    """A check that is killed leaves complete files, and nothing that keeps the GPU."""
    fake = Fake(work)
    process, child = begin_endless(fake)
    process.kill()
    process.wait()
    assert fake.results() == {"build": fake.results()["build"],
                              "one case of every op": ("ok", "0 failed")}, fake.results()
    deadline = time.monotonic() + WAIT_S
    while is_running(child):
        assert time.monotonic() < deadline, "a killed check's child runs on"
        time.sleep(0.05)


def test_terminated(work):
    fake = Fake(work)
    process, child = begin_endless(fake)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=WAIT_S)
    assert process.returncode == 128 + signal.SIGTERM, process.returncode
    assert fake.results()["golden data"] == ("cut off", "waiting"), fake.results()
    assert not is_running(child)  # nothing keeps the GPU


def test_late_and_failed(work):
    """--minutes bounds the whole; what there was no time for is named with its command. The rest runs."""
    fake = Fake(work)
    fake.test("gpu_kernels", 'case $1 in --each) echo broken; exit 3 ;; *) echo slow; sleep 600 ;; esac')
    status, output = fake.check("--only", "^(one case|production|golden|strategies)", "--minutes", "0.12")
    results = fake.results()
    assert status == 1 and results["one case of every op"] == ("FAILED", "status 3: broken"), output
    assert results["production attention by mma"][0] == "late", output
    assert results["golden data"][0] == "not run" and "--only 'golden data'" in results["golden data"][1]


def test_spare_time(work):
    """What earlier steps left of their limits is for a slow step; the later ones keep theirs."""
    for spare_s, result in ((0.2, "late"), (9, "ok")):
        report = Report(work)
        machine = types.SimpleNamespace(environment=dict(os.environ), tools={})
        chosen = [Step("slow", 2, ["sleep", "3"]), Step("next", 5, ["true"])]
        Runner(machine, report, time.monotonic() + 7 + spare_s, None).run_all(chosen)
        assert [row["result"] for row in report.rows] == [result, "ok"], (spare_s, report.rows)


def test_too_much_memory(work):
    fake = Fake(work)
    status, output = fake.check("--only", "train llama-1b-6", used="103900000000")
    result, note = fake.results()["train llama-1b-6"]
    assert status == 1 and result == "FAILED" and "3376 MB beyond the plan: more than 800 MB" in note, output


def test_losses_apart(work):
    fake = Fake(work)
    python = str(fake.work / "python-with-torch")
    status, output = fake.check("--only", "llama-1b-6", "--python", python, last="9.3")
    result, note = fake.results()["PyTorch FSDP2 llama-1b-6"]
    assert status == 1 and result == "FAILED" and "difference of a loss 2.2e-02" in note, output


def test_peer_takes_the_gpu_in_its_slots(work):
    """It compiles once nothing of ours is timed any more, and is timed between our steps."""
    fake = Fake(work)
    stamp = 'date +%s.%N >>"$marks/ours-began"; echo 0 failed; sleep 0.3; date +%s.%N >>"$marks/ours-ended"'
    fake.test("gpu_kernels", stamp)
    script(fake.folder / "bundle" / "bin" / "bench_gpu", BENCH + 'sleep 1; date +%s.%N >"$marks/bench-ended"')
    status, output = fake.check("--only", "kernels of llama-1b|all kernels|strategies|llama3-8b-4-block",
                                "--python", str(fake.work / "python-with-torch"))

    def stamps(name):
        return [float(text) for text in (fake.marks / name).read_text().split()]

    assert status == 0, output
    assert stamps("bench-ended")[0] < stamps("compiles")[0] <= stamps("timed")[0], output
    timed = stamps("timed")[0]
    inside = [b <= timed <= e for b, e in zip(stamps("ours-began"), stamps("ours-ended"))]
    assert inside and not any(inside), (timed, inside)
    assert output.count("PyTorch FSDP2 llama3-8b-4-block  ok") == 2, output  # as it came, and in the table


def test_what_to_change(work):
    """Of three kernels, by hand; a ceiling has no price."""
    measured = [{"label": "ceiling", "count": 1, "us": 9e9}]
    measured += [{"label": name, "us": us, "count": count, "price_us": 1000.0}
                 for name, us, count in (("linear", 1250.0, 10), ("attention_backward", 3000.0, 10),
                                         ("norm", 1000.0, 2))]
    attention = {"mma": {"attention_backward": 3000.0}, "wgmma": {"attention_backward": 1800.0}}
    lines = mends.lines_of("case", measured, attention, [9, 9, 9, 0.0495, 0.0495, 0.0495])
    shares = [re.split(r"  +", line.strip()) for line in lines[1:4]]
    assert [(row[0], row[1].split(",")[0]) for row in shares] == [
        ("attention_backward", "30.00 ms"), ("linear", "12.50 ms"), ("norm", "2.00 ms")], lines
    assert [re.search(r"(\d+)% of", line)[1] for line in lines[1:4]] == ["33", "80", "100"], lines
    # The step takes 49.5 ms, its kernels 44.5.
    assert lines[4].startswith("  1. 20.0 ms to gain: attention_backward: 30.0 ms for 10.0"), lines
    assert lines[5] == "  2. 12.0 ms to gain: attention_backward by wgmma: 1800 us in place of 3000", lines
    assert lines[6].startswith("  3. 5.0 ms to gain: no kernel runs"), lines
    assert len(lines) == 7, lines


def test_libraries_are_read_once(work):
    """What a program opens is found as the linker finds it, and is read before the first step needs it."""
    work = pathlib.Path(work)
    program, library = work / "program", work / "cuda-13.0" / "lib64" / "libcublasLt.so.13"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"x" * 12_000_000)
    program.write_bytes(b"\0%s\0%s\0" % (b"libcublasLt.so.13", b"libnccl.so.97"))
    environment = {**os.environ, "FSDP_TOOLKIT_ROOT": str(work), "LD_LIBRARY_PATH": ""}
    environment.pop("CUDA_HOME", None), environment.pop("CUDA_PATH", None)
    found, lacking = tools.libraries_of(str(program), environment)
    assert found == {"libcublasLt.so.13": str(library)} and lacking == ["libnccl.so.97"], (found, lacking)
    assert tools.read_whole(found.values(), 60)[0] == 12_000_000
    assert tools.read_whole(found.values(), 0)[0] == 0


def test_peers_import_after_the_ceilings(work):
    """They would read gigabytes beside the steps that read libraries for the first time."""
    fake = Fake(work)
    script(fake.work / "python-with-torch", 'date +%s.%N >"$marks/peer-began"\n' + TORCH)
    script(fake.folder / "bundle" / "bin" / "bench_gpu", BENCH + 'date +%s.%N >>"$marks/bench-ended"')
    status, output = fake.check("--only", "ceilings|llama3-8b-4-block", "--python",
                                str(fake.work / "python-with-torch"))
    began, ended = (float((fake.marks / name).read_text().split()[0])
                    for name in ("peer-began", "bench-ended"))
    assert status == 0 and began > ended, (output, began, ended)


def test_without_out(work):
    fake = Fake(work)
    status, _ = fake.check("--only", "one case", OUT="")
    assert status == 0 and (fake.folder / "gpu_check" / "gpu_check.json").exists()


if __name__ == "__main__":
    only = sys.argv[1:]
    for name, test in list(globals().items()):
        if name.startswith("test_") and (not only or name in only):
            folder = tempfile.mkdtemp(prefix="fsdp_gpu_check_")
            test(folder)
            shutil.rmtree(folder)
            print(f"ok      {name}", flush=True)
