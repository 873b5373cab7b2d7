"""Published runs: rows of published.tsv as commands of fsdp_plan."""
import csv
import re

WHOLE = ("params", "hidden", "layers", "heads", "kv_heads", "head_dim", "intermediate", "vocab", "gpus",
         "gpus_per_node", "seq", "micro_batch", "accum", "fsdp", "replicas", "tp", "pp", "cp")
RING = 364.87 / 400  # of its links, a ring reaches on four H200 nodes (profiles/h100-sxm.yaml)

# Shipped profile of each published GPU.
PROFILES = {"a100-40": "a100-40", "a100-80": "a100-80", "h100-sxm": "h100-sxm", "h100-96-500w": "h100-sxm",
            "h200": "h200", "b200": "b200"}

# Why steps on a GPU have no score, though they are priced.
RATIOS_ONLY = {"h100-96-500w": "500 W part without a published rate of products: ratios only"}

# Recomputation that frameworks have by name, as ours: the projections' outputs are kept, or attention's too.
RECOMPUTE = {
    "none": "none",
    "full": "block",
    "selective:save_qkv_proj": "rmsnorm,attention,linear:up_proj,swiglu",
    "selective:minimal_flash": "rmsnorm,swiglu",
    "selective:op-sac": "rmsnorm,linear:up_proj,swiglu",
}


class Row:
    """One run. Numbers as published.md states; `tokens` of a rank and step, `source` its first word."""

    def __init__(self, fields):
        self.id, self.family, self.gpu = fields["id"], fields["family"], fields["gpu"]
        for name in WHOLE:
            setattr(self, name, int(fields[name]))
        self.tied = fields["tied"] == "1"
        self.framework, self.strategy, self.notes = fields["framework"], fields["strategy"], fields["notes"]
        self.inter, self.compute_dtype = fields["inter"], fields["compute_dtype"]
        self.recompute = fields["recompute"].split(" ")[0]
        self.reduce_given = fields["reduce_dtype"]
        # Frameworks that leave it open reduce in the dtype of their gradients.
        self.reduce_dtype = "fp32" if self.reduce_given == "fp32" else "bf16"
        self.state_dtype = "bf16" if fields["optimizer_state"] == "bf16" else "fp32"
        self.step_ms = float(fields["step_ms"])
        self.tok_s_gpu = float(fields["tok_s_gpu"])
        self.mem_gb = float(fields["mem_gb"]) if fields["mem_gb"] else None
        self.source = self.id.split("-")[0]
        self.tokens = self.micro_batch * self.accum * self.seq
        self.sharded = self.fsdp > 1 and self.strategy != "no"
        # Of the columns of q, k and v: those of q and k; bytes for each to repeat keys and values by head.
        self.qk_share = (self.heads + self.kv_heads) / (self.heads + 2 * self.kv_heads)
        self.expands = 4 * self.qk_share if self.heads > self.kv_heads else 0

    def unscored(self):
        """Why the row has no score, or None."""
        if self.compute_dtype != "bf16":
            return f"products in {self.compute_dtype}"
        if self.pp > 1:
            return "pipeline stages"
        if self.gpu not in PROFILES:
            return f"no profile of {self.gpu}"
        if self.recompute not in RECOMPUTE:
            return f"recomputation {self.recompute} is not known"
        return RATIOS_ONLY.get(self.gpu)

    def trusted(self):
        """Whether published.md trusts it first."""
        if self.source == "lf":
            return self.gpu.startswith("a100") and self.seq == 2048 and 16 <= self.gpus <= 128
        if self.source == "mt":
            return "70b" in self.id
        return self.source in ("dgxc", "dgxc2502", "dgxc2504", "mb2509", "mb2511", "ibm") or (
            self.source == "mlperf" and self.gpu == "h100-sxm")


def read_rows(path):
    """ValueError, with the line, for what is no row; OSError."""
    rows = []
    with open(path, encoding="utf-8", newline="") as file:
        lines = csv.DictReader(file, delimiter="\t")
        for fields in lines:
            try:
                rows.append(Row(fields))
            except KeyError as error:
                raise ValueError(f"{path}: has no column {error}; published.md describes them") from None
            except (AttributeError, TypeError, ValueError) as error:  # a line that is short has None
                raise ValueError(f"{path}:{lines.line_num}: {error}; published.md describes a row") from None
    return rows


# ---- The model

def config_of(row):
    """config.json of the row's model. mpt and tied gpt are GPT-2's shape; untied gpt (Nemotron-4: squared
    ReLU, two matrices) is Llama's with two thirds of the intermediate size: as many FLOPs and parameters."""
    if row.family == "mpt" or (row.family == "gpt" and row.tied):
        return {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": row.hidden,
                "n_layer": row.layers, "n_head": row.heads, "n_positions": row.seq, "n_ctx": row.seq,
                "n_inner": row.intermediate, "vocab_size": row.vocab, "activation_function": "gelu_new",
                "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True}
    qwen = "Qwen" in row.notes
    intermediate = row.intermediate * 2 // 3 if row.family == "gpt" else row.intermediate
    return {"model_type": "qwen2" if qwen else "llama",
            "architectures": ["Qwen2ForCausalLM" if qwen else "LlamaForCausalLM"], "hidden_size": row.hidden,
            "num_hidden_layers": row.layers, "num_attention_heads": row.heads,
            "num_key_value_heads": row.kv_heads, "head_dim": row.head_dim, "intermediate_size": intermediate,
            "vocab_size": row.vocab, "max_position_embeddings": row.seq, "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0, "hidden_act": "silu", "tie_word_embeddings": row.tied}


# ---- The machine

def network_gbps(row):
    """Of a node's links, one direction, as the row's column `inter` says; None: as the profile has it."""
    match = re.search(r"-(\d+|\?)x(\d+)", row.inter)
    if not match or row.inter.startswith("nvl72"):
        return None
    links = row.gpus_per_node if match[1] == "?" else int(match[1])
    return links * int(match[2]) / 8 * RING


def profile_text(row, kernel, rates):
    """The row's profile: a shipped one, with its network, attention kernel and the rates of ops."""
    lines = [f"base: {PROFILES[row.gpu]}", f"use: {{attention: {kernel}}}"]
    gbps = network_gbps(row)
    if gbps:
        lines.append(f'network: {{gbps_per_node: {{value: {gbps:.6g}, source: "{row.inter}"}}}}')
    if rates:
        lines.append("ops:")
    for op, rate, why in rates:
        lines.append(f'- {{op: {op}, gbps: {{1: {rate:.6g}}}, source: "{why}"}}')
    return "\n".join(lines) + "\n"


# ---- The command

def mesh_of(row):
    """Axes of more than one rank. Ranks that share gradients but no state are of axis data."""
    axes = {"data": row.replicas, "fsdp": row.fsdp, "tensor": row.tp, "context": row.cp}
    if row.strategy == "no":
        axes["data"], axes["fsdp"] = row.replicas * row.fsdp, 1
    if row.strategy == "no" and row.tp == 1 and row.cp == 1:
        axes["data"] = row.gpus
    return axes


def command_of(row, plan, model, profile):
    axes = mesh_of(row)
    command = [plan, "--model", model, "--init", "random", "--ranks", str(row.gpus), "--ranks-per-node",
               str(min(row.gpus, row.gpus_per_node)), "--strategy", row.strategy,
               "--mesh", ",".join(f"{name}={size}" for name, size in axes.items()), "--wrap", "block",
               "-b", str(row.micro_batch), "-s", str(row.seq), "--grad-accum", str(row.accum),
               "--param-dtype", "bf16", "--reduce-dtype", row.reduce_dtype, "--backend", "cuda",
               "--master-dtype", row.state_dtype, "--moment-dtype", row.state_dtype,
               "--recompute", RECOMPUTE[row.recompute], "--memory-limit", "100TB",
               "--profile", profile, "--price", "--json"]
    if row.accum > 1 and "gsync=last" in row.notes and row.strategy != "zero1":
        command += ["--accumulate", "local"]
    return command
