"""libfsdp_plan and libfsdp_watch stand alone: what they link, what they export, and that a Python script and
the example get from the first what fsdp_plan prints."""

import json
import os
import pathlib
import re
import subprocess
import sys

import programs

SOURCE = pathlib.Path(os.environ["FSDP_SOURCE_DIR"])
BUILD = pathlib.Path(os.environ["FSDP_BIN_DIR"]).parent
LIBRARY = BUILD / "lib" / "libfsdp_plan.so"
# Those of the C library, and JSON and YAML.
MAY_LINK = {"linux-vdso", "libc", "libm", "libdl", "libpthread", "ld-linux-x86-64", "ld-linux-aarch64"}
RULES = "model.layers.*.mlp.up_proj.weight: [fsdp, null]\nmodel.embed_tokens.weight: [[data, fsdp], null]\n"


def output_of(*command):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True).stdout


def linked(path):
    return {re.match(r"[\w-]+", pathlib.Path(line.split()[0]).name).group() for line in
            output_of("ldd", path).splitlines()}


def links():
    assert linked(LIBRARY) <= MAY_LINK | {"libjansson", "libyaml-0"}, linked(LIBRARY)
    assert linked(BUILD / "bin" / "search_plans") <= linked(LIBRARY) | {"libfsdp_plan"}
    assert linked(BUILD / "lib" / "libfsdp_watch.so") <= MAY_LINK
    foreign = re.compile(r"\b(MPI_|nccl|cu(da|blas)|pthread_)", re.I)
    assert not foreign.search(output_of("nm", "-D", "--undefined-only", LIBRARY))
    # Every object of it alone, with what nothing here calls.
    watch = output_of("nm", "--undefined-only", BUILD / "lib" / "libfsdp_watch.a")
    assert not re.search(r"\bfsdp_(plan|program|graph|model|world|comm|executor)_", watch)


def exports():
    header = (SOURCE / "runtime/plan/fsdp_plan.h").read_text()
    declared = set(re.findall(r"^[\w ]+?\*?\b(fsdp_planner_\w+)\(", header, re.M))
    exported = set(re.findall(r" T (\w+)", output_of("nm", "-D", "--defined-only", LIBRARY)))
    assert declared == exported and len(declared) == 8, declared ^ exported
    assert "#include" not in header


def by_script(*settings, status=0, library=(LIBRARY,)):
    """What examples/plan.py prints: the plan and its price."""
    command = [sys.executable, SOURCE / "examples" / "plan.py", *library, *settings]
    process = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert process.returncode == status, process.stderr
    if status:
        return process.stderr
    return [json.loads(line) for line in process.stdout.splitlines()]


def by_program(*arguments):
    return json.loads(programs.run("fsdp_plan", "--json", "--price", *arguments, status=0).stdout)


def same(settings, arguments=None):
    if arguments is None:
        pairs = [setting.split("=", 1) for setting in settings]
        arguments = [word for name, value in pairs for word in ("--" + name, value)]
    plan, price = by_script(*settings)
    expected = by_program(*arguments)
    for key in ("mesh", "batch", "units", "memory", "comm", "program", "verified"):
        assert plan[key] == expected[key], (settings, key, plan[key], expected[key])
    assert price["step_ms"] == expected["time"]["step_ms"], (price, expected["time"])
    return plan


def agrees():
    gpu = ["ranks=8", "profile=h100-sxm", "seq-length=512"]
    plan = same(["model=llama2-7b", "wrap=block", *gpu])
    # 12 bytes of state per parameter over 8 ranks, and 32 MiB of scratch.
    assert plan["memory"]["valley_bytes"] == 6738415616 // 8 * 12 + (32 << 20)
    same(["model=llama-1b", "strategy=zero1", "grad-accum=2", "master-dtype=bf16", *gpu])
    same(["model=llama-1b", "strategy=hybrid", "ranks=16", "tensor-parallel=2", "prefetch=2",
          "recompute=block:2", "offload-activations=residual", "profile=a100-80"])
    same(["model=llama-1b", "mesh=data=2,fsdp=4", "strategy=hybrid", "cpu-offload=on", "memory-limit=30GB",
          *gpu])
    same(["model=llama-1b", "sharding=fsdpv2", "grad-clip=0", *gpu])


def texts():
    """A configuration, rules and a profile as texts are what their files are."""
    folder = programs.folder("plan_library")
    programs.make_model(folder / "model", weights=False)
    config = (folder / "model" / "config.json").read_text()
    profile = (SOURCE / "runtime/plan/price/profiles/a100-40.yaml").read_text()
    (folder / "rules.yaml").write_text(RULES)
    (folder / "profile.yaml").write_text(profile)
    rest = {"ranks": 4, "seq-length": 64, "wrap": "block"}
    files = {"model": folder / "model", "sharding": folder / "rules.yaml",
             "profile": folder / "profile.yaml"}
    same([f"model={config}", f"sharding={RULES}", f"profile={profile}",
          *(f"{name}={value}" for name, value in rest.items())],
         [word for name, value in (files | rest).items() for word in ("--" + name, value)])


def searches():
    """The example's search is fsdp_plan's, and what it found makes that plan again."""
    decoder, answers = json.JSONDecoder(), []
    text = output_of(BUILD / "bin" / "search_plans", "llama-1b", "4")
    while text.strip():
        answer, end = decoder.raw_decode(text.lstrip())
        text = text.lstrip()[end:]
        answers.append(answer)
    plans = answers[2]["plans"]
    process = programs.run("fsdp_plan", "--search", "--json", "--model", "llama-1b", "--ranks", 4,
                           "--profile", "h100-sxm", "--global-batch", 64)
    expected = json.loads(process.stdout)["plans"]
    assert [plan["hash"] for plan in plans] == [plan["hash"] for plan in expected]
    for found in (plans[0], plans[-1]):
        settings = [f"{name}={value}" for name, value in found["settings"].items()]
        plan, price = by_script("model=llama-1b", "ranks=4", "profile=h100-sxm", *settings)
        assert plan["program"]["hash"] == found["hash"] and price["step_ms"] == found["step_ms"], found


def refuses_alike():
    """What fsdp_plan refuses, the library refuses in the same words, but for the place."""
    for settings in (
            "wrap=blok", "ranks=0", "expert-capacity=2", "ranks=4 ranks-per-node=8", "ranks=3 mesh=fsdp=2",
            "ranks=8 mesh=fsdp=4,foo=2", "ranks=8 mesh=fsdp=2,a=2,b=2", "ranks=8 mesh=data=2,fsdp=4",
            "ranks=8 mesh=fsdp=8 strategy=no", "ranks=8 tensor-parallel=4 mesh=fsdp=4,tensor=2",
            "ranks=8 tensor-parallel=3", "ranks=8 tensor-parallel=2 sharding=fsdp",
            "ranks=24 ranks-per-node=6 strategy=hybrid tensor-parallel=4", "ranks=2 recompute=blocks",
            "batch-size=65536 seq-length=65536", "profile=h100-sxm backend=cpu"):
        settings = ["model=tiny", *settings.split()]
        pairs = [setting.split("=", 1) for setting in settings]
        process = programs.run("fsdp_plan", *(word for name, text in pairs for word in ("--" + name, text)),
                               status=2)
        expected = process.stderr.replace("fsdp_plan: error: ", "plan.py: ")
        error = by_script(*settings, status=1)
        assert error == expected.replace("(command line)", "(fsdp_planner_set)"), (settings, error, expected)


def refuses():
    for settings, words in (
            (["model=llama2-7"], "no model preset 'llama2-7'"),
            (["modle=llama2-7b"], "unknown setting 'modle'"),
            (["model={\n]"], "model: line 2"),
            (["model=tiny", "profile=name: x"], "the profile has no device"),
            (["model=tiny", "sharding=a: b"], "sharding:1:"),
            (["ranks=2"], "no model: set `model`"),
            (["model=tiny"], "no machine: set `profile`")):
        error = by_script(*settings, status=1)
        assert words in error and error.startswith("plan.py: ") and error.count("\n") == 1, (settings, error)
    for error in (by_script(status=2, library=()), by_script("tiny", status=2)):
        assert error.startswith("usage: plan.py LIBRARY NAME=TEXT") and error.count("\n") == 1, error


programs.run_tests([links, exports, agrees, texts, searches, refuses_alike, refuses])
