"""The CUDA device on the CPU (simt_runtime.cpp), in the whole trainer: it trains as the CPU device does, odd
shapes and orders of its streams included; what it cannot do it says; and waits that are left out show."""

import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import programs  # noqa: E402

work = programs.folder("device")
# As few elements as make every kernel's edges: nothing is a multiple of 8 or of a tile.
ODD = {"hidden_size": 60, "num_attention_heads": 3, "num_key_value_heads": 1, "intermediate_size": 52,
       "vocab_size": 263}
TIED = {"hidden_size": 64, "head_dim": 24, "num_attention_heads": 4, "num_key_value_heads": 4,
        "intermediate_size": 40, "vocab_size": 257, "tie_word_embeddings": True}

# Routed experts: of no multiple of 8, whose products take the general kernels; and of those that tensor cores
# take, chosen by a biased sigmoid within groups, beside a shared expert.
ROUTED = ODD | {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "head_dim": 20,
                "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 36,
                "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
                "output_router_logits": True, "router_aux_loss_coef": 0.01, "initializer_range": 0.1}
GROUPED = {"model_type": "glm4_moe", "architectures": ["Glm4MoeForCausalLM"], "head_dim": 16,
           "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40,
           "n_shared_experts": 1, "n_group": 4, "topk_group": 2, "norm_topk_prob": True,
           "routed_scaling_factor": 1.5, "first_k_dense_replace": 1, "attention_bias": False,
           "use_qk_norm": True, "partial_rotary_factor": 0.5, "initializer_range": 0.1}


def train(name, *arguments, model=programs.CONFIG, status=0, **environment):
    folder = work / name
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(programs.CONFIG | model))
    log = folder / "log.jsonl"
    log.unlink(missing_ok=True)
    process = programs.run(
        "fsdp_train", "--model", folder, "--init", "random", "--tokenizer", "bytes", "-s", 9, "-b", 2,
        "--max-steps", 2,
        *("--lr", "1e-3", "--wrap", "block", "--log", log, *arguments), env=os.environ | environment,
                           status=status)
    train.notes = [line for line in process.stderr.splitlines() if line.startswith("fsdp_train: note: ")]
    if status:
        messages = programs.errors(process, "fsdp_train")
        assert len(messages) == 1, process.stderr
        return messages[0]
    lines = programs.log_of(log)
    for line in lines:  # what the calls were given is what was planned
        for figure in ("valley_bytes", "peak_bytes", "host_valley_bytes", "host_peak_bytes"):
            assert line[figure] == line["planned_" + figure], (name, figure, line)
        assert all(line["time/" + phase] > 0 for phase in ("forward", "backward", "update")), line
    if "cuda" in arguments:
        parameters = lines[0]["mfu"] * 989.4e12 / lines[0]["tokens_per_s"] / 6  # in bf16
        pairs = lines[0]["mfu_all_pairs"] / lines[0]["mfu"]
        assert "fp32" in arguments or parameters > 1000 and 1 < pairs < 2, lines[0]
    return [(line["loss"], line["grad_norm"]) for line in lines]


def differ(a, b):
    return max(abs(x - y) / abs(y) for one, other in zip(a, b) for x, y in zip(one, other))


def odd_shapes_train_as_on_the_cpu():
    for name, model, more in (
        ("odd", ODD, ()),
        ("tied", TIED, ("--recompute", "block")),
        ("one", {}, ("-s", 1, "-b", 1)),
        ("offload", ODD, ("--cpu-offload", "on", "--grad-accum", 2)),
        ("local", TIED, ("--accumulate", "local", "--grad-accum", 2, "--strategy", "no")),
        ("poison", ODD, ("--set", "poison=on")),
    ):
        for dtype, tolerance in (("fp32", 1e-5), ("bf16", 1e-2)):
            arguments = ("--param-dtype", dtype, *more)
            cuda = train(name, "--backend", "cuda", *arguments, model=model)
            cpu = train(name, "--backend", "cpu", *arguments, model=model)
            assert differ(cuda, cpu) <= tolerance, (name, dtype, cuda, cpu)


def routed_experts_train_as_on_the_cpu():
    """In bf16 rounding alone would choose other experts: there both go where the CPU's run in fp32 went."""
    for name, model, more in (
        ("routed", ROUTED, ("--router-z-coef", "1e-3", "--recompute", "block")),
        ("grouped", GROUPED, ("--router-bias-rate", "1e-3", "--grad-accum", 2)),
        ("grouped_offload", GROUPED, ("--cpu-offload", "on", "--set", "poison=on")),
    ):
        record = work / f"{name}.routes"
        replay = ("--routing-replay", record)
        for dtype, how, tolerance in (("fp32", (), 1e-5), ("bf16", replay, 1e-2)):
            arguments = ("--param-dtype", dtype, *more)
            kept = how or ("--routing-record", record)
            cpu = train(name, "--backend", "cpu", *arguments, *kept, model=model)
            cuda = train(name, "--backend", "cuda", *arguments, *how, model=model)
            assert differ(cuda, cpu) <= tolerance, (name, dtype, cuda, cpu)
            print(f"{name} {dtype}: losses and norms differ by {differ(cuda, cpu):.1e} at most", flush=True)
    sums = ("--backend", "cuda", "--aux-loss", "sequence")
    assert "route_sequences" in train("routed", *sums, model=ROUTED, status=2)


def documents_and_dropout_train_as_on_the_cpu():
    data = work / "documents.jsonl"
    texts = ["abcdefghij"[i % 7:] * (1 + i % 3) for i in range(40)]
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    common = ("--data", data, "--packing", "best-fit", "-s", 33, "--dropout", 0.1, "--seed", 5)
    losses = set()
    for name, model, more in (
        ("documents", ODD, ("--attention-dropout", 0)),
        ("dropout", TIED, ("--recompute", "block")),
        ("unmasked", TIED, ("--document-mask", "off")),
    ):
        for dtype, tolerance in (("fp32", 1e-5), ("bf16", 1e-2)):
            arguments = ("--param-dtype", dtype, *common, *more)
            cuda = train(name, "--backend", "cuda", *arguments, model=model)
            cpu = train(name, "--backend", "cpu", *arguments, model=model)
            assert differ(cuda, cpu) <= tolerance, (name, dtype, cuda, cpu)
            losses.add(cuda[0][0])
    assert len(losses) == 6, losses


def no_order_of_the_streams_matters():
    arguments = ("--backend", "cuda", "--param-dtype", "bf16", "--cpu-offload", "on", "--prefetch", 2)
    results = {str(train("orders", *arguments, FSDP_SIMT_SEED=str(seed))) for seed in range(6)}
    assert len(results) == 1, results
    # The harness would notice: without waits between streams other numbers come out, or none.
    wrong = set()
    for seed in range(3):
        try:
            wrong.add(str(train("orders", *arguments, FSDP_SIMT_SEED=str(seed), FSDP_SIMT_WAITS="off")))
        except AssertionError:
            wrong.add("ended")
    assert not wrong & results, "leaving out every wait changed nothing"


def a_driver_may_refuse_to_wait_for_the_host():
    arguments = ("--backend", "cuda", "--param-dtype", "bf16", "--cpu-offload", "on", "--max-steps", 4)
    expected = train("waits", *arguments)
    assert not train.notes, train.notes
    assert train("waits", *arguments, FSDP_SIMT_WAIT_VALUE="off") == expected
    assert len(train.notes) == 1 and "cuStreamWaitValue32 is refused" in train.notes[0], train.notes


def a_driver_may_refuse_to_register_memory():
    arguments = ("--backend", "cuda", "--param-dtype", "bf16", "--cpu-offload", "on", "--max-steps", 2)
    expected = train("pinned", *arguments)
    assert not train.notes, train.notes
    assert train("pinned", *arguments, FSDP_SIMT_REGISTER="off") == expected
    assert len(train.notes) == 1 and "cudaHostRegister is refused" in train.notes[0], train.notes


def what_cannot_be_is_said():
    for status, words, environment in (
        (5, "no NVIDIA driver", {"FSDP_SIMT_DRIVER": "0"}),
        (5, "serves CUDA 12.2", {"FSDP_SIMT_DRIVER": "12020"}),
        (5, "shows this process no GPU", {"FSDP_SIMT_GPUS": "0"}),
        (4, "the least that is free on a rank's GPU", {"FSDP_SIMT_GPU_BYTES": "34000000"}),
        # The arena would fit, but not with what libraries take beside it.
        (4, "1.00 GB of it beside the arena", {"FSDP_SIMT_GPU_BYTES": "1020000000"}),
        (5, "compute capability 7.5, but the kernels need 8.0", {"FSDP_SIMT_CAPABILITY": "75"}),
        (5, "has no code (no kernel image is available for execution on the device): build with "
            "-DCMAKE_CUDA_ARCHITECTURES=130", {"FSDP_SIMT_CAPABILITY": "130", "FSDP_SIMT_CODE": "209"}),
        (5, "PTX alone, and the driver (CUDA 13.0) is too old to translate it",
            {"FSDP_SIMT_CAPABILITY": "110", "FSDP_SIMT_CODE": "222"}),
    ):
        message = train("refused", "--backend", "cuda", status=status, **environment)
        assert words in message, (environment, message)
    if programs.WITH_MPI:
        assert "--set allow-shared-gpu=on" in refused_on_two_ranks(FSDP_SIMT_GPUS="1")
        nccl_is_loaded()
        assert "unset NCCL_COMM_BLOCKING" in refused_on_two_ranks(FSDP_SIMT_GPUS="2", NCCL_COMM_BLOCKING="0")


def nccl_is_loaded():
    """Several ranks need it, and only on GPUs; what is not there, or too old, is named with the remedy."""
    for version, words in (
        ("0", "NCCL cannot be loaded (libnccl.so.2: the emulated machine has none): add the folder of "
              "libnccl.so.2, which comes with NCCL's package and with PyTorch, to LD_LIBRARY_PATH, or use "
              "one rank, or --backend cpu"),
        ("2804", "libnccl.so.2 is NCCL 2.8.4, and 2.19.0 or later is needed"),
        ("21805", "libnccl.so.2 is NCCL 2.18.5, and 2.19.0 or later is needed"),
    ):
        message = refused_on_two_ranks(FSDP_SIMT_GPUS="2", FSDP_SIMT_NCCL=version)
        assert words in message, message
    train("alone", "--backend", "cuda", FSDP_SIMT_NCCL="0")
    for version, note in (("22200", True), ("22600", False)):
        process = programs.run("fsdp_train", "--backend", "cuda", "-s", 8, "--max-steps", 1, "-b", 1, ranks=2,
                               env=os.environ | {"FSDP_SIMT_GPUS": "2", "FSDP_SIMT_NCCL": version}, status=0)
        assert ("NCCL 2.22.0 cannot order the collectives" in process.stderr) == note, process.stderr


def refused_on_two_ranks(*arguments, **environment):
    process = programs.run("fsdp_train", "--backend", "cuda", "-s", 8, *arguments, ranks=2,
                           env=os.environ | environment, status=5)
    return programs.errors(process, "fsdp_train")[0]


programs.run_tests([odd_shapes_train_as_on_the_cpu, routed_experts_train_as_on_the_cpu,
                    documents_and_dropout_train_as_on_the_cpu, no_order_of_the_streams_matters,
                    a_driver_may_refuse_to_wait_for_the_host, a_driver_may_refuse_to_register_memory,
                    what_cannot_be_is_said])
