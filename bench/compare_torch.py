#!/usr/bin/env python3
"""fsdp_train against PyTorch FSDP over gloo: the same model from the same weights on the same tokens, on the
same cores, in alternating rounds of one run.

    bench/compare_torch.py [--param-dtype fp32|bf16] [--build build] [--ranks 2] [--rounds 3] [--steps 6]
                           [--venv DIR]

Both sides: one thread per rank on its own core, one shard group over all ranks, each decoder layer (and the
embedding and the head) a unit, AdamW, gradients clipped to 1. With --param-dtype bf16 both gather and compute
in bf16 and reduce gradients and keep weights and moments in fp32 (PyTorch's mixed-precision policies; its
loss is of fp32 logits, as Transformers' is). It prints the loss sequences,
tokens/s (the median step and the fastest, of all but a round's first two), the peak resident set per rank
(VmHWM of the whole process, whatever is in it) and the ratios to the fastest and to the smallest of
PyTorch's two, FSDP1 and FSDP2. PyTorch, Transformers and safetensors come from PyPI, into --venv, when they
are not there yet. With --device cuda it compares on a GPU instead (compare_gpu.py, with its own options).
"""
import argparse
import functools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from compare_samples import OPTIMIZER, step_samples

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))
PACKAGES = ["torch", "transformers", "safetensors", "numpy"]
WARM_UP_STEPS = 2
SIDES = {"ours": "fsdp_train", "fsdp1": "PyTorch FSDP1", "fsdp2": "PyTorch FSDP2"}


# ---- PyTorch's side: this file again, inside the virtual environment -------------------------------------

def llama_config(args):
    from transformers import LlamaConfig
    return LlamaConfig(hidden_size=args.hidden, intermediate_size=args.intermediate, vocab_size=args.vocab,
                       num_hidden_layers=args.layers, num_attention_heads=args.heads,
                       num_key_value_heads=args.kv_heads, max_position_embeddings=args.seq,
                       rms_norm_eps=1e-5, tie_word_embeddings=False, use_cache=False)


def make_model(args):
    """Writes the Hugging Face folder that both sides start from."""
    import torch
    from transformers import LlamaForCausalLM
    torch.manual_seed(0)
    model = LlamaForCausalLM(llama_config(args))
    model.save_pretrained(args.model)
    print(json.dumps({"parameters": sum(p.numel() for p in model.parameters())}))


def fsdp1_model(args):
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy
    from transformers import LlamaForCausalLM
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer
    model = LlamaForCausalLM.from_pretrained(args.model, attn_implementation="sdpa", dtype=torch.float32)
    precision = None
    if args.param_dtype == "bf16":
        precision = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({LlamaDecoderLayer}),
                                    sharding_strategy=ShardingStrategy.FULL_SHARD, use_orig_params=True,
                                    mixed_precision=precision, device_id=torch.device("cpu"))


def fsdp2_model(args, rank):
    """FSDP2 on the meta device, then each rank reads its own rows: no rank ever holds the model."""
    import torch
    from safetensors import safe_open
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from transformers import LlamaForCausalLM
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
    config = LlamaForCausalLM.config_class.from_pretrained(args.model)
    config._attn_implementation = "sdpa"
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    units = [*model.model.layers, model.model.embed_tokens, model.lm_head, model]
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (args.ranks,))
    policy = MixedPrecisionPolicy()
    if args.param_dtype == "bf16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for unit in units:
        fully_shard(unit, mesh=mesh, mp_policy=policy)
    model.to_empty(device="cpu")
    model.model.rotary_emb = LlamaRotaryEmbedding(config)
    with safe_open(os.path.join(args.model, "model.safetensors"), "pt") as file, torch.no_grad():
        for name, parameter in model.named_parameters():
            rows = file.get_tensor(name).chunk(args.ranks)
            if rank < len(rows):
                parameter.to_local().copy_(rows[rank])
    return model


def train(args):
    """One rank: prints one JSON object: the losses, the seconds of each step and the peak resident set."""
    import numpy
    import torch
    import torch.distributed as dist
    rank = args.rank
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{args.rendezvous}", rank=rank,
                            world_size=args.ranks)
    fsdp1 = args.only == "fsdp1"
    model = fsdp1_model(args) if fsdp1 else fsdp2_model(args, rank)
    o = OPTIMIZER
    optimizer = torch.optim.AdamW(model.parameters(), lr=o["lr"], betas=(o["beta1"], o["beta2"]),
                                  eps=o["eps"], weight_decay=o["weight_decay"], fused=args.fused)
    text = numpy.fromfile(args.data, dtype=numpy.uint8)
    sample_count = (len(text) - 1) // args.seq
    losses, seconds = [], []
    for step in range(args.steps):
        dist.barrier()
        began = time.perf_counter()
        mine = step_samples(args, sample_count, step)[rank * args.batch:(rank + 1) * args.batch]
        rows = numpy.stack([text[i * args.seq:(i + 1) * args.seq + 1] for i in mine]).astype(numpy.int64)
        rows = torch.from_numpy(rows)
        optimizer.zero_grad()
        logits = model(input_ids=rows[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())
        loss.backward()
        if fsdp1:
            model.clip_grad_norm_(o["grad_clip"])
        else:
            torch.nn.utils.clip_grad_norm_(model.parameters(), o["grad_clip"])
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean)
        losses.append(mean.item() / args.ranks)
        seconds.append(time.perf_counter() - began)
        del logits, loss
    print(json.dumps({"losses": losses, "seconds": seconds, "peak": resident_peak_bytes()}))
    dist.destroy_process_group()


def resident_peak_bytes():
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


# ---- The comparison --------------------------------------------------------------------------------------

def prepare_venv(folder):
    """The environment's Python, with everything installed; a second call installs nothing."""
    python = os.path.join(folder, "bin", "python")
    probe = "import torch, transformers, safetensors, numpy"
    if os.path.exists(python):
        if subprocess.run([python, "-c", probe], capture_output=True).returncode == 0:
            return python
    print(f"installing {', '.join(PACKAGES)} into {folder} (once)", flush=True)
    if not os.path.exists(python) and subprocess.run([sys.executable, "-m", "venv", folder]).returncode != 0:
        sys.exit("compare_torch: no virtual environment could be made; on Debian and Ubuntu: "
                 "apt install python3-venv")
    subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    return python


def shape_arguments(args):
    names = ["ranks", "batch", "seq", "steps", "hidden", "intermediate", "layers", "heads", "kv_heads",
             "vocab", "param_dtype", "model", "data"]
    return [part for name in names for part in (f"--{name.replace('_', '-')}", str(getattr(args, name)))]


def single_thread_environment():
    return {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}


def run_torch(args, which, python, cores):
    rendezvous = os.path.join(args.work, f"rendezvous-{time.monotonic_ns()}")
    processes = []
    for rank in range(args.ranks):
        command = [python, os.path.abspath(__file__), "--worker", "train", "--only", which,
                   "--rank", str(rank), "--rendezvous", rendezvous, *shape_arguments(args),
                   "--fused" if args.fused else "--no-fused"]
        bind = functools.partial(os.sched_setaffinity, 0, {cores[rank]})
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=bind,
                                          env=single_thread_environment()))
    results = []
    for process in processes:
        output = process.communicate()[0].decode()
        if process.returncode != 0:
            sys.exit(f"compare_torch: a PyTorch rank failed with status {process.returncode}")
        results.append(json.loads(output.strip().split("\n")[-1]))
    slowest = [max(times) for times in zip(*(result["seconds"] for result in results))]
    return {"losses": results[0]["losses"], "seconds": slowest,
            "peak": max(result["peak"] for result in results)}


def run_ours(args, cores):
    """One job under mpirun. The peak is that of the greatest process below it (as wait4 counts)."""
    log = os.path.join(args.work, "log.jsonl")
    if os.path.exists(log):
        os.remove(log)
    program = os.path.join(args.build, "bin", "fsdp_train")
    command = ["mpirun", "-np", args.ranks, "--bind-to", "none", program,
               "--model", args.model, "--data", args.data, "--tokenizer", "bytes", "--strategy", "full",
               "--wrap", "block",
               "--batch-size", args.batch, "--seq-length", args.seq, "--max-steps", args.steps,
               "--num-epochs", 1000000, "--lr-schedule", "constant", "--param-dtype", args.param_dtype,
               "--seed", 0, "--backend", "cpu", "--log-freq", 1000000, "--log", log]
    for name, value in OPTIMIZER.items():
        command += [f"--{name.replace('_', '-')}", value]
    command += args.ours.split()
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                   "OMPI_MCA_rmaps_base_oversubscribe": "1",
                   "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
    output = os.path.join(args.work, "output")
    with open(output, "wb") as file:
        bind = functools.partial(os.sched_setaffinity, 0, set(cores))
        process = subprocess.Popen([str(part) for part in command], stdout=file, stderr=file, preexec_fn=bind,
                                   env=environment)
        _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        with open(output, encoding="utf-8", errors="replace") as file:
            sys.exit(f"{file.read()}\ncompare_torch: fsdp_train failed: {' '.join(map(str, command))}")
    with open(log, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    return {"losses": [line["loss"] for line in lines],
            "seconds": [line["time/total"] / 1000 for line in lines], "peak": usage.ru_maxrss * 1024}


def summary(args, name, rounds):
    tokens = args.ranks * args.batch * args.seq
    rates = [tokens / s for one in rounds for s in one["seconds"][WARM_UP_STEPS:]]
    per_round = [statistics.median(tokens / s for s in one["seconds"][WARM_UP_STEPS:]) for one in rounds]
    return {"name": name, "tokens_per_s": statistics.median(rates), "best": max(rates),
            "per_round": per_round, "peak": max(one["peak"] for one in rounds), "losses": rounds[0]["losses"]}


def report(args, sides):
    print(f"\n{'step':>4}  " + "  ".join(f"{'loss, ' + SIDES[name]:>20}" for name in sides))
    for step, losses in enumerate(zip(*(side["losses"] for side in sides.values()))):
        print(f"{step + 1:>4}  " + "  ".join(f"{loss:>20.6f}" for loss in losses))
    print(f"\n{'':<14}{'tokens/s':>10}{'fastest':>10}{'peak MB/rank':>14}   tokens/s by round")
    for name, side in sides.items():
        rounds = " ".join(f"{rate:.1f}" for rate in side["per_round"])
        print(f"{SIDES[name]:<14}{side['tokens_per_s']:>10.1f}{side['best']:>10.1f}"
              f"{side['peak'] / 1e6:>14.1f}   {rounds}")
    if not args.only:
        ours, others = sides["ours"], [sides["fsdp1"], sides["fsdp2"]]
        rate, best = (ours[key] / max(other[key] for other in others) for key in ("tokens_per_s", "best"))
        peak = ours["peak"] / min(other["peak"] for other in others)
        worst = max(abs(a - b) / abs(b) for other in others for a, b in zip(ours["losses"], other["losses"]))
        print(f"{'ratio':<14}{rate:>10.3f}{best:>10.3f}{peak:>14.3f}   to the best of PyTorch's")
        print(f"greatest relative difference of a loss: {worst:.2e}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"arguments": vars(args), "sides": sides}, file, indent=1)


def parse():
    parser = argparse.ArgumentParser(description="fsdp_train against PyTorch FSDP over gloo",
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--build", default=os.path.join(ROOT, "build"), help="build folder of fsdp_train")
    parser.add_argument("--venv", default=os.path.expanduser("~/.cache/fsdp/venv"), help="PyTorch's place")
    parser.add_argument("--param-dtype", choices=["fp32", "bf16"], default="fp32",
                        help="dtype to compute and gather in")
    parser.add_argument("--only", choices=list(SIDES), help="measure one side")
    parser.add_argument("--ours", default="", help="further options of fsdp_train")
    parser.add_argument("--json", help="write the figures here")
    parser.add_argument("--fused", action=argparse.BooleanOptionalAction, default=True,
                        help="PyTorch's fused AdamW")
    for name, value in [("ranks", 2), ("rounds", 3), ("steps", 6), ("batch", 2), ("seq", 512),
                        ("hidden", 640), ("intermediate", 1728), ("layers", 10), ("heads", 10),
                        ("kv-heads", 5), ("vocab", 16000)]:
        parser.add_argument(f"--{name}", type=int, default=value, help=" ")
    for name in ["worker", "model", "data", "work", "rendezvous"]:
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def compare(args):
    python = prepare_venv(args.venv)
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < args.ranks:
        sys.exit(f"compare_torch: {args.ranks} ranks need one core each and this machine has {len(cores)}")
    cores = cores[:args.ranks]
    args.model = os.path.join(args.work, "model")
    args.data = os.path.join(ROOT, "runtime", "data", "builtin_text.txt")
    made = subprocess.run([python, os.path.abspath(__file__), "--worker", "make", *shape_arguments(args)],
                          check=True, stdout=subprocess.PIPE, env=single_thread_environment())
    parameters = json.loads(made.stdout.decode().strip().split("\n")[-1])["parameters"]
    print(f"{parameters:,} parameters, {args.param_dtype}, {args.ranks} ranks x batch {args.batch} x "
          f"{args.seq} tokens, cores {cores}, {args.rounds} rounds of {args.steps} steps", flush=True)
    names = [args.only] if args.only else list(SIDES)
    results = {name: [] for name in names}
    for turn in range(args.rounds):
        for name in names if turn % 2 == 0 else reversed(names):
            result = run_ours(args, cores) if name == "ours" else run_torch(args, name, python, cores)
            results[name].append(result)
            rate = summary(args, name, [result])["tokens_per_s"]
            print(f"round {turn + 1} {SIDES[name]}: {rate:.1f} tokens/s, {result['peak'] / 1e6:.1f} MB",
                  flush=True)
    report(args, {name: summary(args, name, rounds) for name, rounds in results.items()})


def main():
    if "--device" in sys.argv:
        import compare_gpu
        return compare_gpu.main(sys.argv[1:])
    args = parse()
    if args.worker:
        return make_model(args) if args.worker == "make" else train(args)
    if args.steps <= WARM_UP_STEPS:
        sys.exit(f"compare_torch: --steps {args.steps}: the first {WARM_UP_STEPS} do not count; give more")
    args.work = tempfile.mkdtemp(prefix="fsdp-compare-")
    try:
        compare(args)
    finally:
        shutil.rmtree(args.work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
