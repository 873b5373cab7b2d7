"""fsdp_train against PyTorch FSDP2 on one GPU, case after case, in one run: what bench/compare_torch.py does
for --device cuda.

    bench/compare_torch.py --device cuda [--cases llama-1b-6,llama3-8b-4-block] [--steps 10] [--rounds 1]

Both sides start from the same numbers (drawn, not loaded) and see the same tokens, keep every state in the
same precision, compute in bf16, recompute alike, and read the loss in every step. The table has, for each
side, tokens/s (the median step after the warm-up), MFU by the rate of an 8192^3 bf16 product that is measured
first, the peak of memory (ours: the arena; PyTorch's: allocated at most, and reserved; both: what the driver
counts), and the losses. Nothing is downloaded; --python names the interpreter that has PyTorch.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import types

import compare_samples
from compare_samples import step_samples

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
WARM_UP_STEPS = 3
# From random weights 8B diverges at the rate that suits the small models of bench/compare_torch.py.
OPTIMIZER = {**compare_samples.OPTIMIZER, "lr": 2e-5}
DEVICE_BYTES_SLACK = 800e6  # the driver's context and libraries' kernels: 570 MB on an H200

SHAPES = {
    "tiny": {"vocab": 256, "hidden": 128, "intermediate": 352, "layers": 4, "heads": 4, "kv_heads": 2,
             "eps": 1e-5, "theta": 1e4},
    "llama-1b": {"vocab": 32000, "hidden": 4096, "intermediate": 11008, "layers": 4, "heads": 32,
                 "kv_heads": 32, "eps": 1e-6, "theta": 1e4},
    "llama3-8b": {"vocab": 128256, "hidden": 4096, "intermediate": 14336, "layers": 32, "heads": 32,
                  "kv_heads": 8, "eps": 1e-5, "theta": 5e5},
}
# Model, sequence, batch, recomputation, precision of master weights and moments (and of reduced gradients).
CASES = {
    "llama-1b-6": ("llama-1b", 2048, 6, "none", "fp32"),
    "llama-1b-24": ("llama-1b", 2048, 24, "none", "fp32"),
    "llama3-8b-4": ("llama3-8b", 4096, 4, "none", "bf16"),
    "llama3-8b-4-block": ("llama3-8b", 4096, 4, "block", "bf16"),
    "llama3-8b-2": ("llama3-8b", 4096, 2, "none", "bf16"),
    "llama3-8b-1": ("llama3-8b", 4096, 1, "none", "bf16"),
    "llama3-8b-2-block": ("llama3-8b", 4096, 2, "block", "bf16"),
    # To try the script out on a CPU.
    "tiny": ("tiny", 64, 2, "none", "fp32"),
    "tiny-block": ("tiny", 64, 2, "block", "fp32"),
    "tiny-bf16": ("tiny", 64, 2, "none", "bf16"),
}
# GB of a GPU that a case takes: our arena as planned, rounded up, and, estimated, what PyTorch allocates at
# most: the same states, and three copies of fp32 logits, as its loss is one piece.
CASE_GB = {
    "llama-1b-6": (22, 30), "llama-1b-24": (42, 62), "llama3-8b-4": (125, 151), "llama3-8b-4-block": (66, 92),
    "llama3-8b-2": (88, 103), "llama3-8b-1": (69, 75), "llama3-8b-2-block": (65, 79),
}
NAMES = {"ours": "fsdp_train", "fsdp2": "PyTorch FSDP2", "plain": "PyTorch alone"}


def has_room(case, total_bytes, is_peer=False):
    """Whether a GPU of so much memory has room for a case beside what the driver and libraries take."""
    return 1e9 * CASE_GB[case][is_peer] + DEVICE_BYTES_SLACK <= total_bytes


def flops_per_token(shape, seq):
    """6 N + 6 L C T, N without the input embedding (fsdp_progress_flops_per_token)."""
    hidden, head = shape["hidden"], shape["hidden"] // shape["heads"]
    attention = 2 * hidden * hidden + 2 * hidden * shape["kv_heads"] * head
    layer = attention + 3 * hidden * shape["intermediate"] + 2 * hidden
    numel = shape["layers"] * layer + hidden + shape["vocab"] * hidden
    return 6 * numel + 6 * shape["layers"] * hidden * seq


def last_json(output):
    return json.loads(output.strip().split("\n")[-1])


def torch_command(python, device, arguments):
    return [python, os.path.join(HERE, "torch_llama.py"), arguments[0], "--device", device,
            *map(str, arguments[1:])]


def torch_environment(environment):
    """PyTorch finds its libraries by itself, without what our programs were given."""
    path = environment.get("FSDP_PEER_LIBRARY_PATH", environment.get("LD_LIBRARY_PATH", ""))
    return {**environment, "LD_LIBRARY_PATH": path}


def run_torch(args, arguments):
    process = subprocess.run(torch_command(args.python, args.device, arguments), stdout=subprocess.PIPE,
                             text=True, timeout=args.limit, env=torch_environment(os.environ), check=False)
    if process.returncode != 0:
        raise RuntimeError(f"PyTorch ended with status {process.returncode}")
    return last_json(process.stdout)


def torch_arguments(args, case, which):
    model, seq, batch, recompute, state = CASES[case]
    data = os.path.join(ROOT, "runtime", "data", "builtin_text.txt")
    samples = (os.path.getsize(data) - 1) // seq
    rows = os.path.join(args.work, f"rows-{case}.json")
    shape = types.SimpleNamespace(ranks=1, batch=batch)
    with open(rows, "w", encoding="utf-8") as file:
        json.dump([step_samples(shape, samples, step) for step in range(args.steps)], file)
    more = ["--plain"] if which == "plain" else []
    return ["train", "--shape", json.dumps(SHAPES[model]), "--optimizer", json.dumps(OPTIMIZER), "--seq", seq,
            "--state", state, "--recompute", recompute, "--rows", rows, "--data", data, "--compute",
            "bfloat16" if args.device == "cuda" or state == "bf16" else "float32",
            "--compile" if args.compile else "--no-compile", *more]


def plan_options(case, device="cuda"):
    """Options by which fsdp_train, fsdp_plan and bench_gpu plan a case."""
    model, seq, batch, recompute, state = CASES[case]
    compute = "bf16" if device == "cuda" or state == "bf16" else "fp32"
    options = ["--backend", device, "--model", model, "--strategy", "full", "--wrap", "block", "--batch-size",
               batch, "--seq-length", seq, "--recompute", recompute, "--param-dtype", compute,
               "--reduce-dtype", state, "--master-dtype", state, "--moment-dtype", state]
    return [str(option) for option in options]


def train_options(case, device, steps, log):
    options = [*plan_options(case, device), "--max-steps", steps, "--num-epochs", 1000000, "--lr-schedule",
               "constant", "--seed", 0, "--log", log]
    for name, value in OPTIMIZER.items():
        options += [f"--{name.replace('_', '-')}", value]
    return [str(option) for option in options]


def read_log(log):
    """Our side's results; a run that was ended early has fewer steps."""
    with open(log, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file if line.endswith("\n")]
    last = lines[-1] if lines else {}
    return {"losses": [line["loss"] for line in lines],
            "seconds": [line["time/total"] / 1000 for line in lines],
            "peak": {"arena": last.get("arena_bytes"), "planned": last.get("planned_peak_bytes"),
                     "driver": last.get("device_used_bytes")}}


def run_ours(args, case):
    log = os.path.join(args.work, "log.jsonl")
    if os.path.exists(log):
        os.remove(log)
    command = [os.path.join(args.build, "bin", "fsdp_train"), "--log-freq", "1000000",
               *train_options(case, args.device, args.steps, log), *args.ours.split()]
    process = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             timeout=args.limit, check=False)
    if process.returncode != 0:
        raise RuntimeError(f"fsdp_train failed: {' '.join(command)}\n{process.stdout}")
    return read_log(log)


def summary(case, rounds, flops):
    """Rates of a side over all its rounds; `flops`: per second of this GPU's gemms, None if not known."""
    model, seq, batch, _, _ = CASES[case]
    steps = [s for one in rounds for s in one["seconds"][WARM_UP_STEPS:]]
    rate = seq * batch / statistics.median(steps)
    return {"tokens_per_s": rate, "best": seq * batch / min(steps), "peak": rounds[-1]["peak"],
            "mfu": rate * flops_per_token(SHAPES[model], seq) / flops if flops else None,
            "losses": rounds[0]["losses"]}


def side_text(case, name, side):
    share = f"{100 * side['mfu']:>7.1f}%" if side["mfu"] else " " * 8
    return (f"{case:<18}{NAMES[name]:<15}{side['tokens_per_s']:>10.0f}{share}  {side['losses'][0]:.4f} -> "
            f"{side['losses'][-1]:.4f}  {gigabytes(side['peak'])}")


def gigabytes(peak):
    order = ["arena", "allocated", "reserved", "driver"]
    return ", ".join(f"{name} {peak[name] / 1e9:.2f}" for name in order if peak.get(name) is not None)


def judge(case, sides):
    """Ours against the best of PyTorch's: what must hold, as numbers and as a line."""
    others = [sides[name] for name in sides if name != "ours"]
    if "ours" not in sides or not others:
        return {}, ""
    ours = sides["ours"]
    rate = ours["tokens_per_s"] / max(other["tokens_per_s"] for other in others)
    # PyTorch rounds a bf16 weight to the nearest, so that most updates of this rate are lost; ours rounds up
    # or down by chance. Their losses are alike until the first update.
    alike = 1 if CASES[case][4] == "bf16" else len(ours["losses"])
    worst = max(abs(a - b) / abs(b) for other in others
                for a, b in zip(ours["losses"][:alike], other["losses"]))
    verdict = {"rate": rate, "loss": worst}
    until = " before the first update" if alike == 1 else ""
    text = (f"{case}: {rate:.3f} of PyTorch's tokens/s, greatest relative difference of a loss{until} "
            f"{worst:.1e}")
    if all("allocated" in other["peak"] for other in others):
        verdict["memory"] = ours["peak"]["arena"] / min(other["peak"]["allocated"] for other in others)
        text += f", {verdict['memory']:.3f} of its allocated peak"
    if ours["peak"]["driver"]:
        over = ours["peak"]["driver"] - ours["peak"]["arena"]
        verdict["beyond_plan_bytes"] = over
        fits = over <= max(0.02 * ours["peak"]["arena"], DEVICE_BYTES_SLACK)
        text += f"; the driver counts {over / 1e6:.0f} MB beyond the plan{'' if fits else ': TOO MUCH'}"
    return verdict, text


def run_case(args, case, peak):
    results = {name: [] for name in args.sides}
    for turn in range(args.rounds):
        for name in args.sides if turn % 2 == 0 else args.sides[::-1]:
            try:
                one = (run_ours(args, case) if name == "ours" else
                       run_torch(args, torch_arguments(args, case, name)))
                results[name].append(one)
            except (RuntimeError, subprocess.TimeoutExpired, json.JSONDecodeError) as failure:
                print(f"{case}, {NAMES[name]}: {failure}", flush=True)
    sides = {name: summary(case, rounds, peak["flops"]) for name, rounds in results.items() if rounds}
    for name, side in sides.items():
        print(side_text(case, name, side), flush=True)
    verdict, text = judge(case, sides)
    if text:
        print(text, flush=True)
    return {"sides": sides, "verdict": verdict, "complete": len(sides) == len(args.sides)}


def parse(arguments):
    parser = argparse.ArgumentParser(description="fsdp_train against PyTorch FSDP2 on one GPU",
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: only to try it out")
    parser.add_argument("--build", default=os.path.join(ROOT, "build"), help="build folder of fsdp_train")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has PyTorch")
    parser.add_argument("--cases", default="llama-1b-6,llama-1b-24,llama3-8b-4-block,llama3-8b-4",
                        type=lambda text: text.split(","), help=", ".join(CASES))
    parser.add_argument("--sides", default="fsdp2,ours", type=lambda text: text.split(","),
                        help=", ".join(NAMES))
    parser.add_argument("--steps", type=int, default=10, help=" ")
    parser.add_argument("--rounds", type=int, default=1, help=" ")
    parser.add_argument("--limit", type=int, default=240, help="seconds of one side of one case")
    parser.add_argument("--ours", default="", help="further options of fsdp_train")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True,
                        help="torch.compile")
    parser.add_argument("--json", help="write the figures here, after each case")
    args = parser.parse_args(arguments)
    unknown = [name for name in args.cases if name not in CASES] + [n for n in args.sides if n not in NAMES]
    if unknown:
        parser.error(f"there is no case or side {', '.join(unknown)}")
    if args.steps <= WARM_UP_STEPS:
        parser.error(f"--steps {args.steps}: the first {WARM_UP_STEPS} do not count; give more")
    return args


def main(arguments):
    args = parse(arguments)
    args.work = tempfile.mkdtemp(prefix="fsdp-compare-")
    done = {}
    try:
        peak = run_torch(args, ["peak"])
        print(f"{peak['device']}, PyTorch {peak['torch']}, CUDA {peak['cuda']}: a product of "
              f"{peak['size']}^3 "
              f"runs at {peak['flops'] / 1e12:.2f} TFLOP/s\n"
              f"{'':<33}{'tokens/s':>10}{'MFU':>8}  loss  GB at the peak", flush=True)
        for case in args.cases:
            done[case] = run_case(args, case, peak)
            if args.json:
                with open(args.json, "w", encoding="utf-8") as file:
                    json.dump({"peak": peak, "cases": done}, file, indent=1)
    finally:
        shutil.rmtree(args.work, ignore_errors=True)
    return 0 if all(case["complete"] for case in done.values()) else 1
