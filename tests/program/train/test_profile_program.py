"""fsdp_profile: what it measures of this machine is complete, positive and in order; what it refuses. With
FSDP_TEST_BACKEND=cuda in the environment, what fits a small emulated GPU."""

import os
import re
import time

import programs
import yaml

work = programs.folder("profile_program")
CORES = len(os.sched_getaffinity(0))
CUDA = os.environ.get("FSDP_TEST_BACKEND") == "cuda"
# Every op of a step that is neither a gemm nor attention.
OPS = set("""
    embedding embedding_backward rmsnorm add_rmsnorm rmsnorm_backward layernorm add_layernorm
    layernorm_backward add_positions positions_backward add_bias bias_backward qk_norm qk_norm_backward
    rope rope_backward swiglu swiglu_backward gelu gelu_backward take_columns put_columns join_columns
    split_columns mask_columns cast add zero sum_squares sum clip_factor adamw linear_cross_entropy
    linear_cross_entropy_backward head_logits head_loss head_backward dropout dropout_backward
    shared_gate shared_gate_backward shared_add balance
""".split())


def measure(*arguments, ranks=None):
    path, began = work / f"{ranks}.yaml", time.monotonic()
    process = programs.run("fsdp_profile", "--backend", "cuda" if CUDA else "cpu", "--output", path,
                           *arguments, ranks=ranks, status=0)  # fmt: skip
    begin, end = process.stdout.splitlines()
    took = int(re.search(r", in (\d+) s$", end)[1])  # --seconds is what it aims at
    assert "aiming at " in begin and took <= time.monotonic() - began + 1, (begin, end)
    assert begin.startswith("measuring GPUs" if CUDA else "measuring this CPU"), process
    assert end.startswith(f"{path}: ") and CUDA == ("0 products" in end), process
    assert [p.name for p in work.iterdir() if p.suffix == ".tmp"] == []
    return yaml.safe_load(path.read_text())


def is_curve(curve):
    sizes = [float(size) for size in curve]
    return sizes and sizes == sorted(set(sizes)) and all(float(v) > 0 for v in curve.values())


def has_all(profile, counts):
    """Entries for each number of ranks that compute at the same time: values above 0, sizes ascending."""
    assert profile["device"] == "cpu" and profile["processors"] >= 1 and profile["memory_gb"] > 0
    assert profile["memory_gbps"] > 0 and all(v > 0 for v in profile["copy_gbps"].values())
    assert all(v >= 1 for v in profile["contention"].values())
    # Of a kind of which nothing could be repeated often enough, as may be on a busy machine, nothing is said;
    # else no two passes take as long.
    spread = profile.get("spread", {})
    assert set(spread) <= {f"{kind}_{end}" for kind in ("compute", "collective") for end in ("low", "high")}
    for kind in {name.split("_")[0] for name in spread}:
        assert 0 < spread[f"{kind}_low"] < 1 < spread[f"{kind}_high"], spread
    for ranks in counts:
        here = [p for p in profile["products"] if p["ranks"] == ranks]
        assert {p["form"] for p in here} == {"forward", "input", "weight"}
        assert all(p["tflops"] > 0 for p in here) and len({(p["m"], p["n"], p["k"]) for p in here}) > 20
        here = [a for a in profile["attention"] if a["ranks"] == ranks]
        assert {(a["head_dim"], a["direction"]) for a in here} >= {(64, "forward"), (64, "backward")}
        assert all(is_curve(a["tflops"]) for a in here)
        here = [g for g in profile["grouped"] if g["ranks"] == ranks]
        assert [g["form"] for g in here] == ["forward", "input", "weight"]
        assert all(is_curve(g["tflops"]) and {"4", "64"} <= {str(r) for r in g["tflops"]} for g in here)
        here = {o["op"]: o for o in profile["ops"] if o["ranks"] == ranks}
        ops = OPS if CUDA else OPS | {"route_total"}  # which has no kernel on a GPU
        assert set(here) == ops and all(is_curve(o["gbps"]) for o in here.values()), set(here) ^ ops
    assert {p["ranks"] for p in profile["products"]} == set(counts)
    rows = [row for key in ("products", "grouped", "attention", "ops") for row in profile[key]]
    assert {row["dtype"] for row in rows} == {"fp32"}, {row["dtype"] for row in rows}


def measures_one_rank():
    profile = measure("--seconds", "1")
    has_all(profile, [1])
    assert "collectives" not in profile and "collective_low" not in profile.get("spread", {})


def measures_every_number_of_ranks():
    """Two groups of two beside one of four. Where there are fewer cores than ranks, these share them and
    measure collectives alone."""
    ranks = programs.size(4, 2)
    profile = measure("--seconds", "3" if ranks == 4 else "1", ranks=ranks)
    has_all(profile, [count for count in (1, 2, 4) if count <= min(ranks, CORES)])
    links = {(c["kind"], c["ranks"], c["groups"]) for c in profile["collectives"]}
    assert links == {(kind, *group) for kind in ("all_gather", "reduce_scatter", "all_reduce")
                     for group in ((2, 1), (2, 2), (4, 1))[: 3 if ranks == 4 else 1]}, links  # fmt: skip
    for c in profile["collectives"]:
        assert c["link"] == "node" and is_curve(c["us"])
        # The bytes of a gathered tensor: from one value, or a page, on.
        sizes = [float(size) for size in c["us"]]
        assert min(sizes) == (4 if c["kind"] == "all_reduce" else 4096) and max(sizes) >= 1 << 20, c


def measures_an_emulated_gpu():
    """No product fits; copies, launches and the smallest sizes of ops do."""
    os.environ |= {"FSDP_SIMT_GPU_BYTES": str(160 << 20), "FSDP_SIMT_CONTEXT_BYTES": "12345678"}
    profile = measure("--seconds", "1")
    # What the driver holds beside the arena; one rank has no communicator.
    assert list(profile["reserve"]) == ["context_gb"], profile["reserve"]
    assert 0.012345678 <= profile["reserve"]["context_gb"] < 0.0134, profile["reserve"]
    assert profile["device"] == "cuda" and profile["processors"] == 4 and profile["capability"] == 9
    assert all(float(profile[key]) > 0 for key in ("memory_gb", "memory_gbps", "launch_us", "handoff_us"))
    assert len(profile["copy_gbps"]) == 4 and all(v > 0 for v in profile["copy_gbps"].values())
    ops = {o["op"]: o["gbps"] for o in profile["ops"]}
    assert set(ops) >= {"embedding", "rmsnorm", "rope", "cast", "zero"} and all(map(is_curve, ops.values()))


def refuses_a_gpu_without_code():
    environment = os.environ | {"FSDP_SIMT_CAPABILITY": "130", "FSDP_SIMT_CODE": "209"}
    programs.refused("fsdp_profile", "--backend", "cuda", env=environment, status=5,
                     parts=["-DCMAKE_CUDA_ARCHITECTURES=130"])


def refuses():
    for arguments, status, words in (
        (["--seconds", "0.5"], 2, "--seconds '0.5'"),
        (["--seconds", "two"], 2, "'two'"),
        (["--backend", "tpu"], 2, "use auto, cpu or cuda"),
        (["--speed"], 2, "--speed"),
        (["--output"], 2, "needs a value"),
        (["here"], 2, "unexpected 'here'"),
        (["-xh"], 2, "-x is an unknown option"),
        (["--output", "/dev/null/a.yaml"], 3, "/dev/null/a.yaml"),  # before anything is measured
    ):
        began = time.monotonic()
        programs.refused("fsdp_profile", *arguments, status=status, parts=[words])
        assert time.monotonic() - began < 60, arguments
    assert programs.run("fsdp_profile", "--version").stdout.startswith("fsdp_profile ")


if CUDA:
    measures_an_emulated_gpu()
    refuses_a_gpu_without_code()
else:
    refuses()
    if not (programs.SLOW and programs.WITH_MPI):
        measures_one_rank()
    if programs.WITH_MPI:
        measures_every_number_of_ranks()
print("the machine is measured whole")
