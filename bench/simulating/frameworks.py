"""What frameworks move through memory and compute beyond fsdp's own program, as closed formulas.

fsdp's kernels read and write an operand once (models/graph/ops.def). Where a framework runs several kernels
for one of our ops, the row's profile gives that op the rate of memory times ours / theirs, in bytes per
element: so its time lies where the op lies in the step, and is repeated where the op is recomputed. What has
no op of ours is added to the step: bytes per parameter and micro-batch, and gemms of a recomputed layer that
ours does not repeat.

Everything is counted from the published code that `source` names; nothing is fitted. bf16 elements have 2
bytes. Letters: h heads, g key/value heads, d head dimension, c hidden, f intermediate.
"""

# Op: (bytes per element of our kernel, bytes per element of theirs, what theirs are).
# rmsnorm, layernorm: x in, y out. add_*: also delta in, h out. *_backward: h, d_y in, d_h updated.
# linear_add, linear_bias_add: the residual that our gemm reads (residual_adds).
# linear_cross_entropy_backward: per logit, fp32 written by the gemm: read twice, bf16 gradient written.
# adamw: fp32 gradient in; master, m, v updated: 28 per parameter.

# PyTorch's norm kernels reach these shares of the rate of cuDNN's forward, which stands for memory's: H200,
# NVIDIA/cudnn-frontend@3929da2ef:benchmark/norms/results/h200/all_models_20260227_035147.csv.
NORM_FORWARD = 3364.5 / 3845.2
NORM_BACKWARD = 1807.3 / 3845.2
NORM_BACKWARD_COMPILED = 2276.3 / 3845.2

# What several of them have.
SILU_AND_PRODUCT = {"swiglu": (6, 10, "silu 4, product 6"), "swiglu_backward": (10, 18, "product 12, silu 6")}
ADAMW = {"adamw": (28, 40, "AdamW in one pass 28; clipping: norm 4, scale 8")}

# FSDP1 divides the flat gradient before it reduces it: read and written (post_backward_hook, _div_if_needed).
# FSDP2 copies out of every gather, forward and backward, and into the reduction.
FSDP1_COPIES = {"bf16": 4, "fp32": 14}
FSDP2_COPIES = {"bf16": 4 + 4 + 4, "fp32": 4 + 4 + 6}

# RMSNorm in fp32 as plain PyTorch writes it: x.float() 6, square 8, mean 4, scale 8, to bf16 6, weight 4.
RMSNORM = 36
# Its gradient: weight 12, to fp32 6, scale and its factor 24, mean and square 32, their sum 12, to bf16 6,
# residual gradients added 6; input gradients of q, k, v and of gate and up added, 18 a layer of two norms.
RMSNORM_BACKWARD = 107
PLAIN_RMSNORM = {"rmsnorm": (4, RMSNORM, "norm in fp32"),
                 "add_rmsnorm": (8, 6 + RMSNORM, "residual add 6, norm in fp32"),
                 "rmsnorm_backward": (8, RMSNORM_BACKWARD, "norm in fp32")}

LLM_FOUNDRY = {
    "source": "mosaicml/llm-foundry@8c8dd48f7 (llmfoundry/models/mpt), mosaicml/composer v0.16 "
              "(optim/decoupled_weight_decay.py), torch.distributed.fsdp of torch 2.0",
    "ops": {
        "layernorm": (4, 4 / NORM_FORWARD, "PyTorch's kernel, as measured"),
        "add_layernorm": (8, 6 + 4 / NORM_FORWARD, "residual add 6; norm, as measured"),
        "layernorm_backward": (8, 6 + 6 / NORM_BACKWARD, "residual gradients added 6; norm, as measured"),
        "bias_backward": (18, 30, "sums over rows of 9 c columns a layer, as ours; and the concatenation of "
                                  "the gradients of q, k, v, 3 c in and out"),
        "linear_cross_entropy_backward": (10, 20, "fused_crossentropy of flash-attn in bf16: forward 2; "
                                                  "gradient written 2, scaled 4; logits and gradients "
                                                  "through memory between whole-batch gemms 8; logits "
                                                  "contiguous after the shift 4"),
        "adamw": (28, 100, "DecoupledAdamW, one tensor after the other: decay 8, m 8 + 12, v 8 + 12, root 8, "
                           "correction 8, epsilon 8, update 16; clipping: norm 4, scale 8"),
    },
    "micro_batch_bytes": FSDP1_COPIES,
    "repeats": ("down",),  # checkpoint of torch before 2.1: no early stop
}

FMS = {
    "source": "foundation-model-stack (fms/models/llama.py, modules/layernorm.py with "
              "use_high_precision_pow, positions.py, attention.py), fms-fsdp (cross_entropy of bf16 "
              "logits), torch 2.2 autograd",
    "ops": {
        **PLAIN_RMSNORM,
        "rope": (4, lambda r: 30 * r.qk_share + r.expands, "q and k to fp32 6, times cosine and sine 12, "
                                                           "summed 12; keys and values expanded"),
        "rope_backward": (4, lambda r: 40 * r.qk_share + r.expands, "the same, backwards, and to bf16"),
        **SILU_AND_PRODUCT,
        "linear_cross_entropy_backward": (10, 22, "logits in bf16 2; log_softmax 6; its gradient 10; read by "
                                                  "gemms 4"),
        **ADAMW,
    },
    "micro_batch_bytes": FSDP1_COPIES,
    "repeats": (),  # checkpoint of torch 2.1 and later stops early
}

TORCHTITAN_EAGER = {
    "source": "pytorch/torchtitan@3faaa1a0d (torchtitan/models/llama/model.py, norms.py), torch 2.4 autograd",
    "ops": {
        **PLAIN_RMSNORM,
        "rope": (4, lambda r: 20 * r.qk_share + r.expands, "q and k to fp32 6, complex product 8, to bf16 6; "
                                                           "keys and values repeated"),
        "rope_backward": (4, lambda r: 20 * r.qk_share + r.expands, "the same, backwards"),
        **SILU_AND_PRODUCT,
        "linear_cross_entropy_backward": (10, 44, "logits in bf16 2; fp32 copy 6; log_softmax 8; its "
                                                  "gradient 16, from nll 4; to bf16 6; read by gemms 2"),
        **ADAMW,
    },
    "micro_batch_bytes": FSDP2_COPIES,
    "repeats": (),
}

TORCH_LLAMA_COMPILED = {
    "source": "torch.compile joins elementwise ops and reductions (pytorch/pytorch, torch/_inductor); FSDP2: "
              "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py",
    "ops": {
        "rmsnorm_backward": (8, 2 + 6 / NORM_BACKWARD_COMPILED, "norm, as measured; residual gradient 2"),
        "linear_cross_entropy_backward": (10, 20, "logits in bf16 2, maximum and sum 4, loss 2, gradients 4, "
                                                  "through memory between whole-batch gemms 8"),
        **ADAMW,
    },
    "micro_batch_bytes": FSDP2_COPIES,
    "repeats": (),
}

# The eager blocks of Qwen3-MoE in 2025: norms are PyTorch's kernel; q and k times cosine 4, negated halves 2
# and joined 4, times sine 4, summed 6, of 36 of 40 columns, and keys and values repeated for 8 times as many
# heads, 4; the loss is not compiled.
TITAN_QWEN3_EAGER = {
    "source": "NousResearch/torchtitan (scripts/ep/profile_ep2_config.toml: nothing compiled; "
              "torchtitan/models/qwen3/model/model.py), torch 2.10",
    "ops": {
        "rmsnorm": (4, 4 / NORM_FORWARD, "PyTorch's kernel, as measured"),
        "qk_norm": (4, 4 / NORM_FORWARD, "PyTorch's kernel, as measured"),
        "add_rmsnorm": (8, 6 + 4 / NORM_FORWARD, "residual add 6; norm, as measured"),
        "rmsnorm_backward": (8, 6 + 6 / NORM_BACKWARD, "residual gradients added 6; norm, as measured"),
        "qk_norm_backward": (6, 6 / NORM_BACKWARD, "norm, as measured"),
        "rope": (4, 20 * 0.9 + 4 * 0.9, "q and k in five kernels; keys and values repeated"),
        "rope_backward": (4, 20 * 0.9 + 4 * 0.9, "the same, backwards"),
        "linear_cross_entropy_backward": TORCHTITAN_EAGER["ops"]["linear_cross_entropy_backward"],
        **ADAMW,
    },
    "micro_batch_bytes": FSDP2_COPIES,
    "repeats": (),
}

# Bytes for each channel of each routed row that no op of ours moves. Rows that are gathered by expert: copied
# 4, their gradient summed 6. Outputs that are scattered: zeros and sums 7, their gradient copied 4. Gate and
# up are products of their own, whose gradients are added: 6.
ROUTED_ROW_BYTES = {
    # torchtitan/models/common/token_dispatcher.py of 2026, compiled: outputs weighted 4; both copied and
    # weighted again in the backward 8; gradients of the output 4 and of the weight 4.
    "titan": 4 + 6 + 7 + 4 + 6 + 4 + 8 + 8,
    # NousResearch/torchtitan, torchtitan/distributed/deepep/deepep.py: weights are in the activation; copied
    # again in the backward 4.
    "titan-eager": 4 + 6 + 7 + 4 + 6 + 4,
    # NVIDIA-NeMo/Automodel, as Megatron-LM: permuted forward, again for the backward, and the gradient.
    "automodel": 4 + 4 + 4,
    "megatron": 4 + 4,
}

# KempnerInstitute/KempnerForge@0c4eba1e (distributed/tensor_parallel.py, training/loss.py): each of q, k, v,
# gate and up gathers its own input, in the forward and in its recomputation, and reduces its own gradient: 9
# more collectives a layer than one for each group. The logits are gathered whole on every rank, put in order,
# and their loss is computed there.
OWN_GATHERS = 9
WHOLE_LOGITS = 4 + 22  # bytes per logit: put in order; the loss as in FMS

MEGATRON = {
    "source": "NVIDIA/Megatron-LM core_r0.11 (megatron/core/fusions, tensor_parallel/cross_entropy.py), "
              "NVIDIA/TransformerEngine v2.0",
    "ops": {
        "add_rmsnorm": (8, 10, "bias_dropout_add 6, norm 4"),
        "rmsnorm_backward": (8, 12, "norm 6, residual gradients added 6"),
        "rope": (4, 12, "fused rotation of q and k 4, q, k and v split from their gemm 4, joined 4"),
        "rope_backward": (4, 12, "the same"),
        "linear_cross_entropy_backward": (10, 52, "logits in bf16: fp32 copy 6, maximum 4, minus it 8, exp "
                                                  "8, sum 4, divided 8, gradient scaled 8, to bf16 6"),
        "head_logits": (4, 22, "the first half of the same"),
        "head_backward": (6, 30, "the second half"),
        **ADAMW,
    },
    "micro_batch_bytes": {},
    "repeats": (),
}

MAXTEXT = {
    "source": "google/maxtext (MaxText/layers/llama2.py, max_utils.cross_entropy_with_logits): XLA joins "
              "elementwise ops and reductions",
    "ops": {
        "rmsnorm_backward": (8, 12, "norm 8; the gradient of its weight in a second pass 4"),
        "linear_cross_entropy_backward": (10, 24, "logits to fp32 6, maximum 4, exp and sum 4, gradients 8, "
                                                  "read by gemms 2"),
        **ADAMW,
    },
    "micro_batch_bytes": {},
    "repeats": (),
}

NANOTRON = {
    "source": "huggingface/nanotron@2411b022a (src/nanotron/models/llama.py, nn/layer_norm.py), flash-attn's "
              "norm and rotary kernels",
    "ops": {
        "add_rmsnorm": (8, 10, "residual add 6, norm 4"),
        "rmsnorm_backward": (8, 12, "norm 6, residual gradients added 6"),
        **SILU_AND_PRODUCT,
        "head_logits": (4, 22, "sharded_cross_entropy in fp32"),
        "head_backward": (6, 30, "the same, backwards"),
        "linear_cross_entropy_backward": (10, 52, "the same without tensor parallelism"),
        **ADAMW,
    },
    "micro_batch_bytes": {},
    "rank_bytes": 14,  # gradients to fp32 and added 10 (accumulate_grad_in_fp32), set to zero 4
    "repeats": (),
}

# Kernels as ours: each op in one pass, chunked or fused heads.
FUSED = {"source": "karpathy/llm.c, IST-DASLab/llmq: one kernel an op", "ops": {},
         "micro_batch_bytes": {}, "repeats": ()}


_TABLES = {"torch-compile": TORCH_LLAMA_COMPILED, "megatron": MEGATRON, "megatron-fsdp": MEGATRON,
           "maxtext": MAXTEXT, "nanotron": NANOTRON, "llm.c": FUSED, "llmq": FUSED}
KNOWN = ("torch-eager", *_TABLES)


def framework_of(row):
    """The table of the row's framework; None: it is not known."""
    kind = row.framework.split("+")[0]
    if kind == "torch-eager":
        return LLM_FOUNDRY if row.family == "mpt" else FMS if row.source == "ibm" else TORCHTITAN_EAGER
    return _TABLES.get(kind)


# Where cuDNN computes attention, and its versions that were measured: the nearer of 9.1 (of April 2024) and
# 9.19 (of February 2026). The first are NeMo 24.09 to 25.02 and JAX of the same time, and llm.c of mid-2024.
CUDNN = {"jt": "cudnn-9.1", "mt": "cudnn-9.1", "dgxc": "cudnn-9.1", "dgxc2502": "cudnn-9.1",
         "dgxc2504": "cudnn-9.1", "llmc": "cudnn-9.1"}


def attention_kernel(row):
    """The kernel whose rates count, by the row's framework and GPU; published.md says which."""
    if row.family == "mpt":
        return "flash2" if "attn flash" in row.notes else "triton"
    if row.gpu.startswith("a100"):
        return "flash2"
    if row.source == "kf":  # torch 2.11 with cuDNN 9.19; its profile names _cudnn_attention_backward
        return "cudnn"
    if row.framework.startswith("torch") or row.framework == "nanotron":
        return "flash2"
    return CUDNN.get(row.source, "cudnn")


def residual_adds(ops):
    """Our gemms add the residual, which they read (2). No framework's do: that is what an add_* of theirs
    moves beyond the norm, less what a gemm and a norm of ours write and read anyway."""
    adds = {}
    for norm, products in (("rmsnorm", ("linear_add",)), ("layernorm", ("linear_add", "linear_bias_add"))):
        whole, alone = ops.get("add_" + norm, (8, 8))[1], ops.get(norm, (4, 4))[1]
        for product in products:
            if "add_" + norm in ops or product not in adds:  # linear_add is of either norm
                adds[product] = (2, whole - alone, "residual added outside the gemm")
    return adds


def op_rates(row, memory_gbps):
    """Rates of ops for the row's profile: [(op, GB/s, why)]."""
    rates = []
    ops = framework_of(row)["ops"]
    for op, (ours, theirs, why) in {**ops, **residual_adds(ops)}.items():
        moved = theirs(row) if callable(theirs) else theirs
        rates.append((op, memory_gbps * ours / moved, why))
    return rates


def repeated_flops(row):
    """Of gemms that the framework's recomputation repeats and ours does not, a step: {which: FLOPs}."""
    weights = {"down": row.intermediate * row.hidden,
               "attention's output": row.heads * row.head_dim * row.hidden}
    which = framework_of(row)["repeats"] if row.recompute == "full" else ()
    if row.recompute == "selective:save_qkv_proj":
        which = ("attention's output",)
    return {name: 2 * row.tokens * row.layers * weights[name] / row.tp for name in which}


def added_communication(row, memory_gbps, gather_seconds):
    """Of tensor parallelism as KempnerForge has it, a step: {what: seconds}."""
    if row.source != "kf" or row.tp == 1:
        return {}
    rows = row.micro_batch * row.seq
    logits = rows * row.vocab
    return {"gathers of each projection": OWN_GATHERS * row.layers * row.accum *
            gather_seconds(row.tp, 2 * rows * row.hidden),
            "whole logits": row.accum * (gather_seconds(row.tp, 2 * logits) +
                                         WHOLE_LOGITS * logits / (memory_gbps * 1e9))}


def logits_gb(row):
    """Memory of the logits of a whole micro-batch, where the framework has them at one time; ours chunks."""
    logits = row.micro_batch * row.seq / row.cp * row.vocab / 1e9
    if row.source == "kf":  # bf16: logits, log_softmax, gradient; a gather's buffer
        return (6 if row.tp == 1 else 8) * logits
    if row.framework.startswith("torch") and row.family == "llama":  # and in fp32: a copy, its gradient
        return 10 * logits / row.tp
    if row.framework.startswith("megatron"):  # bf16, and a copy in fp32 that becomes the gradient
        return 6 * logits / row.tp
    return 0


def added_seconds(row, memory_gbps, flops_per_s):
    """What no op of ours stands for, a step: {what: seconds}."""
    table, added = framework_of(row), {}
    per_param = table["micro_batch_bytes"].get(row.reduce_dtype, 0) if row.sharded else 0
    per_param += table.get("rank_bytes", 0)
    if per_param:
        added["copies of gradients and parameters"] = (
            per_param * row.params / row.tp * row.accum / (memory_gbps * 1e9))
    for name, flops in repeated_flops(row).items():
        added[f"gemm repeated: {name}"] = flops / flops_per_s
    return added
