"""What a GPU is trusted with, on the emulated one: ranks run the same algorithms of products whatever each of
them would choose, remembered on disk in files that are never trusted blindly; and a kernel that computes
wrong numbers is found before the plan is made, and replaced on every rank."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import programs  # noqa: E402

work = programs.folder("trust")
# Heads that tensor cores take; products whose sums are of more terms than an algorithm's.
MODEL = programs.CONFIG | {"hidden_size": 72, "head_dim": 64, "intermediate_size": 160}
(work / "config.json").write_text(json.dumps(MODEL))


class Run:
    """A run of two steps; what differs between ranks is set by shell code."""

    def __init__(self, *arguments, ranks=1, own=":", program="fsdp_train", status=0, cache=None,
                 steps=2, model=work, **environment):
        log = work / "log.jsonl"
        log.unlink(missing_ok=True)
        command = ["bash", "-c", f'r=${{OMPI_COMM_WORLD_RANK:-0}}; {own}; exec "$@"', "run",
                   str(programs.BIN / program), "--backend", "cuda", "--model", str(model),
                   "--init", "random", "--tokenizer", "bytes", "-s", "40", "-b", "2",
                   "--max-steps", str(steps), "--lr", "1e-3", "--log", str(log), *map(str, arguments)]
        if ranks > 1:
            command = ["mpirun", "--quiet", "-np", str(ranks), *command]
        environment = os.environ | {"XDG_CACHE_HOME": str(cache or work / "cache")} | environment
        process = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
        assert process.returncode == status, (command, process.stdout, process.stderr)
        self.output = process.stdout
        self.notes = [line for line in process.stderr.splitlines() if ": note: " in line]
        self.errors = programs.errors(process, "fsdp_train")
        lines = programs.log_of(log) if not status else []
        self.numbers = [(line["loss"], line["grad_norm"]) for line in lines]

    def products(self):
        found = re.search(r"^products: +(\d+) by (.*?) \((\d+) remembered\)(.*), algorithms ([0-9a-f]{16})"
                          r"(, cut for \d+ of \d+ multiprocessors)?$", self.output, re.M)
        assert found, self.output
        return int(found[1]), int(found[3]), found[4], found[5]

    def algorithms(self):
        return self.products()[3]

    def remembered(self):
        return self.products()[1]


def cache_of(name):
    """A cache that knows that these GPUs compute right, and no algorithm: kernels take longest to compare."""
    folder = work / name / "fsdp"
    folder.mkdir(parents=True)
    if not (work / "known").exists():
        Run(*FP32, ranks=2 if programs.WITH_MPI else 1, steps=1, cache=work / "known")
    for file in files("kernels", work / "known"):
        shutil.copy(file, folder)
    return work / name


def files(kind, cache=None):
    return sorted((cache or work / "cache").glob(f"fsdp/{kind}-*"))


FP32 = ("--param-dtype", "fp32")


def ranks_run_one_choice():
    """Rank 0 finds algorithm 0 fastest and rank 1 algorithm 2; then their caches say so."""
    for rank in (0, 1):
        cache_of(f"apart{rank}")
    alone = [Run(*FP32, ranks=2, cache=cache_of(f"as{i}"), FSDP_SIMT_GEMM_FASTEST=str(i)) for i in (0, 2)]
    assert alone[0].algorithms() != alone[1].algorithms(), "the two choices are one"
    assert alone[0].numbers != alone[1].numbers, "and no bit shows which was made"
    for own in (f"export XDG_CACHE_HOME={work}/apart$r FSDP_SIMT_GEMM_FASTEST=$((2 * r))",
                f"export XDG_CACHE_HOME={work}/as$((2 * r)) FSDP_GEMM_CANDIDATES=$((8 - 7 * r))"):
        both = Run(*FP32, ranks=2, own=own)
        assert both.algorithms() == alone[0].algorithms() and both.numbers == alone[0].numbers, own
    both = Run(*FP32, ranks=2, own=f"export XDG_CACHE_HOME={work}/as$((2 - 2 * r))")
    assert both.algorithms() == alone[1].algorithms() and both.numbers == alone[1].numbers
    assert both.remembered() == both.products()[0]
    assert not files("products", work / "apart1"), "a rank that chooses nothing has written a file"


def products_leave_multiprocessors():
    """A product that is cut for fewer is another one: nothing that is remembered of the whole GPU serves."""
    whole = Run(*FP32, cache=work / "whole")
    for remembered in (False, True):
        part = Run(*FP32, "--set", "gemm-multiprocessors=3", cache=work / "whole")
        assert ", cut for 3 of 4 multiprocessors\n" in part.output
        assert part.algorithms() != whole.algorithms() and part.numbers == whole.numbers
        assert part.remembered() == (part.products()[0] if remembered else 0), part.output


def kinds_of_gpu_choose_apart():
    kinds = "export FSDP_SIMT_CAPABILITY=$((90 - 10 * r))"
    both = Run(*FP32, ranks=2, own=kinds + " FSDP_SIMT_GEMM_FASTEST=$((2 * r))", cache=work / "kinds")
    assert both.products()[2] == ", on 2 kinds of GPU, by the lowest rank of each", both.output
    assert len(files("products", work / "kinds")) == 2
    again = Run(*FP32, ranks=2, own=kinds, cache=work / "kinds")
    assert again.algorithms() == both.algorithms() and again.numbers == both.numbers


def algorithms_are_remembered():
    cache_of("cache")
    first = Run(*FP32)
    count, remembered, _, _ = first.products()
    assert remembered == 0 and count > 8 and not first.notes, first.notes
    # What another program's products are is kept beside them.
    other = Run(*FP32, "-s", 24)
    assert other.remembered() < other.products()[0]
    for run in (Run(*FP32, FSDP_SIMT_GEMM_FASTEST="1"), Run(*FP32, "-s", 24, FSDP_SIMT_GEMM_FASTEST="1")):
        assert run.remembered() == run.products()[0]
    assert run.algorithms() == other.algorithms()
    assert Run(*FP32, FSDP_SIMT_GEMM_VERSION="2").remembered() == 0
    assert Run(*FP32, FSDP_SIMT_DRIVER="13010").remembered() == 0


def no_file_is_trusted():
    algorithms = Run(*FP32).algorithms()
    (file,) = [file for file in files("products") if "driver 13.0, emulated gemms 1" in file.read_text()]
    whole = file.read_bytes()
    for damaged in (whole[:-40], whole.replace(b"7", b"8", 1), b""):
        file.write_bytes(damaged)
        run = Run(*FP32)
        assert len(run.notes) == 1, run.notes
        assert "is damaged: algorithms of products are measured again" in run.notes[0], run.notes
        assert run.remembered() == 0 and run.algorithms() == algorithms
        assert Run(*FP32).remembered() == run.products()[0], "it was not made again"
    # Algorithms that the library does not know, in a file that is whole: the library is asked.
    program = ("import sys, xxhash; f = sys.argv[1]; t = open(f).read().rsplit('xxh64', 1)[0]; "
               "t = t.replace(' 00746d6973', ' 11746d6973'); "
               "open(f, 'w').write(t + 'xxh64 %016x\\n' % xxhash.xxh64(t.encode()).intdigest())")
    if subprocess.run([sys.executable, "-c", "import xxhash"], capture_output=True).returncode == 0:
        subprocess.run([sys.executable, "-c", program, str(file)], check=True)
        run = Run(*FP32)
        assert not run.notes and run.remembered() == 0 and run.algorithms() == algorithms


def a_run_does_without_the_folder():
    algorithms = Run(*FP32).algorithms()
    blocked = work / "blocked"
    blocked.write_text("")
    run = Run(*FP32, cache=blocked)
    assert run.algorithms() == algorithms and run.remembered() == 0
    assert len(run.notes) == 2, run.notes
    assert all("cannot be written: Not a directory" in note for note in run.notes), run.notes


# ---- Kernels

def planted(names, *arguments, cache, **options):
    return Run("--param-dtype", "bf16", "--print-program", *arguments, program="fsdp_train_planted",
               steps=1, cache=work / cache, FSDP_SIMT_PLANT=names, **options)


def kernels_of(run):
    """Of the plan's attention, as it is printed."""
    return set(re.findall(r"\battention(?:_backward)?\[(\w+)\]", run.output))


def wrong_kernels_are_replaced():
    nothing = planted("", cache="none")
    assert kernels_of(nothing) == {"wgmma"} and not nothing.notes, (kernels_of(nothing), nothing.notes)
    assert kernels_of(planted("", cache="none", FSDP_SIMT_CAPABILITY="80")) == {"mma"}
    for names, capability, left, words in (
        ("wgmma", "90", "mma", "attention's backward by wgmma differs"),
        ("mma", "90", "wgmma", "attention's forward by mma differs"),
        ("mma", "80", "general", "attention's forward by mma differs"),
        ("mma,wgmma", "90", "general", "by wgmma differs"),
    ):
        cache = f"{names}{capability}"
        for planting in (names, "") if names == "wgmma" else (names,):  # remembered, it is said again
            run = planted(planting, cache=cache, FSDP_SIMT_CAPABILITY=capability)
            assert kernels_of(run) == {left}, (names, capability, kernels_of(run))
            assert len(run.notes) == 1 and words in run.notes[0], run.notes
            assert "every rank uses the next kernel" in run.notes[0], run.notes
    general = planted("mma,wgmma", "--attention", "general", cache="mma,wgmma90")
    assert general.numbers == run.numbers, "it is not the general kernel that ran"
    refused = planted("wgmma", "--attention", "wgmma", cache="wgmma90", status=2)
    assert "did not match" in refused.errors[0], refused.errors


def wrong_experts_are_replaced():
    """Of products grouped by expert: the next kernel takes their place, and the plan says so."""
    def forms(run):
        return set(re.findall(r"\bexpert_(?:up|down)\w*\[(\w+)\]", run.output))

    moe = {"model": "tiny-qwen3-moe"}
    right = planted("", cache="none", **moe)
    assert forms(right) == {"wgmma"} and not right.notes, (forms(right), right.notes)
    for names, left, said in (("experts-wgmma", "mma", "wgmma"), ("experts-mma", "wgmma", "mma"),
                              ("experts-wgmma,experts-mma", "general", "wgmma")):
        for planting in (names, ""):  # remembered, it is said again
            run = planted(planting, cache=names, **moe)
            assert forms(run) == {left}, (names, run.output)
            (note,) = run.notes
            assert f"by {said} differs" in note and "every rank uses the next kernel" in note, note
            assert abs(run.numbers[0][0] - right.numbers[0][0]) < 1e-2, (run.numbers, right.numbers)
    # A model without experts has the program that it had.
    dense = planted("", cache=names)
    assert kernels_of(dense) == {"wgmma"} and "[general]" not in dense.output, dense.output


def one_rank_that_differs_is_enough():
    run = planted("wgmma@1", cache="rank", ranks=2)
    assert kernels_of(run) == {"mma"}
    assert len(run.notes) == 1 and "note: rank 1 (host" in run.notes[0], run.notes
    assert "by wgmma differs" in run.notes[0]


def without_a_right_kernel_the_gpu_is_not_used():
    run = planted("general", cache="general", status=5)
    assert "this GPU computes wrong numbers: attention's forward by general" in run.errors[0], run.errors
    assert not files("kernels", work / "general"), "it is remembered"


def a_damaged_verdict_is_made_again():
    (file,) = files("kernels", work / "wgmma90")
    text = file.read_text()
    file.write_text(text[:-5])
    run = planted("", cache="wgmma90")
    assert kernels_of(run) == {"wgmma"}, kernels_of(run)
    assert len(run.notes) == 1 and "is damaged: the GPU's kernels are compared again" in run.notes[0], (
        run.notes)
    assert kernels_of(planted("wgmma", cache="wgmma90")) == {"wgmma"}, "it is not remembered"


BY_RANKS = (ranks_run_one_choice, kinds_of_gpu_choose_apart, one_rank_that_differs_is_enough)
PRODUCTS = (ranks_run_one_choice, kinds_of_gpu_choose_apart, algorithms_are_remembered,
            products_leave_multiprocessors, no_file_is_trusted, a_run_does_without_the_folder)
KERNELS = (wrong_kernels_are_replaced, wrong_experts_are_replaced, one_rank_that_differs_is_enough,
           a_damaged_verdict_is_made_again, without_a_right_kernel_the_gpu_is_not_used)
GROUPS = {"products": PRODUCTS, "kernels": KERNELS}
for test in (test for group in sys.argv[1:] or GROUPS for test in GROUPS[group]):
    if test in BY_RANKS and not programs.WITH_MPI:
        continue
    test()
    print(f"{test.__name__}: passed", flush=True)
