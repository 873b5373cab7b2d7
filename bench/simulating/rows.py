"""Published runs: rows of published.tsv as commands of fsdp_plan."""
import csv
import re

from simulating import profiles

WHOLE = ("params", "hidden", "layers", "heads", "kv_heads", "head_dim", "intermediate", "vocab", "gpus",
         "gpus_per_node", "seq", "micro_batch", "accum", "fsdp", "replicas", "tp", "pp", "cp")
RING = 364.87 / 400  # of its links, a ring reaches on four H200 nodes (profiles/h100-sxm.yaml)

# Shipped profile of each published GPU.
PROFILES = {"a100-40": "a100-40", "a100-80": "a100-80", "h100-sxm": "h100-sxm", "h100-96-500w": "h100-sxm",
            "h200": "h200", "b200": "b200"}

# By source: KempnerForge's nodes have four GPUs each, without NVSwitch.
NODES = {("kf", "h200"): "h200-4"}

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


# What columns of words may say, with what else stands for it; other rows have no score.
WORDS = {
    "family": {"mpt": (), "llama": (), "gpt": ()},
    "reduce_dtype": {"bf16": (), "fp32": (), "unknown": ("",)},
    "optimizer_state": {"bf16": (), "fp32": (), "unknown": ("",)},
    "strategy": {"full": ("FULL_SHARD", "zero3"), "grad_op": ("SHARD_GRAD_OP", "zero2"),
                 "hybrid": ("HYBRID_SHARD", "hsdp"), "no": ("NO_SHARD", "ddp", "zero0"),
                 "zero1": ("SHARD_OPTIMIZER",)},
}
LINKS = re.compile(r"[a-z0-9+]+-(\d{1,4}|\?)x(\d{1,5})")  # of a node: ib-8x400
NO_LINKS = ("none", "unknown", "nvl72")


class Fields(dict):
    """A line by column. Every look says which column is missing or wrong: ValueError."""

    def __missing__(self, name):
        raise ValueError(f"there is no column {name}: add it")

    def wrong(self, name, wanted):
        return ValueError(f"{name} is '{self[name]}': give {wanted}")

    def whole(self, name):
        if not re.fullmatch(r"[0-9]{1,15}", self[name]) or int(self[name]) == 0:
            raise self.wrong(name, "a whole number of at least 1")
        return int(self[name])

    def positive(self, name):
        """None: it is empty."""
        if not self[name]:
            return None
        try:
            value = float(self[name])
        except ValueError:
            value = 0
        if not 1e-6 <= value <= 1e15:
            raise self.wrong(name, "a number from 1e-6 to 1e15")
        return value

    def word(self, name):
        """As WORDS has it; what it does not have as it stands."""
        return next((word for word, others in WORDS[name].items() if self[name] in others), self[name])

    def flag(self, name):
        if self[name] not in ("0", "1"):
            raise self.wrong(name, "0 or 1")
        return self[name] == "1"

    def id(self):
        if not re.fullmatch(r"[A-Za-z0-9._+-]+", self["id"]):
            raise self.wrong("id", "a name of letters, digits and . _ + -")
        return self["id"]


class Row:
    """One run. Numbers as published.md states; `tokens` of a rank and step, `source` its first word."""

    def __init__(self, fields):
        self.id, self.gpu = fields.id(), fields["gpu"]
        for name in WHOLE:
            setattr(self, name, fields.whole(name))
        self.tied = fields.flag("tied")
        self.framework, self.notes = fields["framework"], fields["notes"]
        self.inter, self.compute_dtype = fields["inter"], fields["compute_dtype"]
        self.recompute = fields["recompute"].split(" ")[0]
        self.words = {name: fields.word(name) for name in WORDS}
        self.family, self.strategy = self.words["family"], self.words["strategy"]
        # Frameworks that leave it open reduce in the dtype of their gradients.
        self.reduce_dtype = "fp32" if self.words["reduce_dtype"] == "fp32" else "bf16"
        self.state_dtype = "bf16" if self.words["optimizer_state"] == "bf16" else "fp32"
        self.source = self.id.split("-")[0]
        self.tokens = self.micro_batch * self.accum * self.seq
        self._set_measured(fields)
        self.sharded = self.fsdp > 1 and self.strategy != "no"
        # Of the columns of q, k and v: those of q and k; bytes for each to repeat keys and values by head.
        self.qk_share = (self.heads + self.kv_heads) / (self.heads + 2 * self.kv_heads)
        self.expands = 4 * self.qk_share if self.heads > self.kv_heads else 0

    def _set_measured(self, fields):
        """Of step_ms and tok_s_gpu either follows from the other."""
        self.step_ms, self.tok_s_gpu = fields.positive("step_ms"), fields.positive("tok_s_gpu")
        self.mem_gb = fields.positive("mem_gb")
        per_gpu = self.tokens / (self.tp * self.cp * self.pp)
        if not self.step_ms and not self.tok_s_gpu:
            raise ValueError("step_ms and tok_s_gpu are empty: give either")
        self.step_ms = self.step_ms or 1e3 * per_gpu / self.tok_s_gpu
        self.tok_s_gpu = self.tok_s_gpu or 1e3 * per_gpu / self.step_ms

    def _unplanned(self):
        """Why the row is no plan of ours, or None."""
        if self.pp > 1:
            return "pipeline stages"
        if self.recompute not in RECOMPUTE:
            return f"recompute '{self.recompute}' is not known (those known: {', '.join(RECOMPUTE)})"
        for name, word in self.words.items():
            if word not in WORDS[name]:
                return f"{name} '{word}' is not known (those known: {', '.join(WORDS[name])})"
        ranks = self.fsdp * self.replicas * self.tp * self.pp * self.cp
        if ranks != self.gpus and not (self.strategy == "no" and self.tp == self.cp == 1):
            return f"fsdp x replicas x tp x pp x cp is {ranks}, but gpus {self.gpus}"
        return None

    def plannable(self):
        return self._unplanned() is None

    def unscored(self):
        """Why the row has no score, or None."""
        if self.compute_dtype != "bf16":
            return f"products in {self.compute_dtype or 'a dtype that is not stated'}"
        if self.gpu not in PROFILES:
            return f"no profile of gpu '{self.gpu}' (those known: {', '.join(PROFILES)})"
        if self.inter not in NO_LINKS and not LINKS.fullmatch(self.inter):
            return f"inter '{self.inter}' is not known: kind-NICsxGb/s, or {', '.join(NO_LINKS)}"
        return self._unplanned() or RATIOS_ONLY.get(self.gpu)

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
    rows, lines_of = [], {}
    with open(path, encoding="utf-8-sig", newline="") as file:
        lines = csv.DictReader(file, delimiter="\t", restkey="", restval=None)
        try:
            for line in lines:
                at = f"{path}:{lines.line_num}"
                cells = len(lines.fieldnames) - sum(value is None for value in line.values())
                if "" in line or None in line.values():
                    raise ValueError(f"{at}: has {cells + len(line.get('', []))} cells, not the "
                                     f"{len(lines.fieldnames)} of the first line: separate them by tabs")
                try:
                    row = Row(Fields(line))
                except ValueError as error:
                    raise ValueError(f"{at}: {error} (published.md describes a row)") from None
                if row.id in lines_of:
                    raise ValueError(f"{at}: id {row.id} is that of line {lines_of[row.id]} too: "
                                     "give each row its own")
                lines_of[row.id] = lines.line_num
                rows.append(row)
        except (UnicodeDecodeError, csv.Error) as error:
            raise ValueError(f"{path}: is no text of cells separated by tabs, in UTF-8: {error}") from None
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
    match = LINKS.fullmatch(row.inter)
    if not match or row.inter.startswith("nvl72"):
        return None
    links = row.gpus_per_node if match[1] == "?" else int(match[1])
    return links * int(match[2]) / 8 * RING


def profile_of(row):
    """The name of the row's profile (profiles.py)."""
    return NODES.get((row.source, row.gpu), PROFILES[row.gpu])


def profile_text(row, kernel, rates):
    """The row's profile, with its network, attention kernel and the rates of ops."""
    lines = [f"base: {profiles.base_of(profile_of(row))}", f"use: {{attention: {kernel}}}"]
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


def plan_command(row, plan, model):
    axes = mesh_of(row)
    command = [plan, "--model", model, "--init", "random", "--ranks", str(row.gpus), "--ranks-per-node",
               str(min(row.gpus, row.gpus_per_node)), "--strategy", row.strategy,
               "--mesh", ",".join(f"{name}={size}" for name, size in axes.items()), "--wrap", "block",
               "-b", str(row.micro_batch), "-s", str(row.seq), "--grad-accum", str(row.accum),
               "--param-dtype", "bf16", "--reduce-dtype", row.reduce_dtype, "--backend", "cuda",
               "--master-dtype", row.state_dtype, "--moment-dtype", row.state_dtype,
               "--recompute", RECOMPUTE[row.recompute], "--memory-limit", "100TB",
               "--attention", "general",  # the profile says whose; ours would rotate gradients too
               "--nccl-ctas", "default"]  # nobody's gathers were made by copy engines
    if row.accum > 1 and "gsync=last" in row.notes and row.strategy != "zero1":
        command += ["--accumulate", "local"]
    return command
