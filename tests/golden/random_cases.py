"""Cases like those of cases.py, drawn at random: odd sizes, few and many heads, any rotation. Their folders
are saved by Transformers itself."""


def draw_rope(rng, head_dim):
    theta = rng.choice([10000.0, 10000.0, 500000.0, 40.0])
    kind = rng.choice(["default", "default", "linear", "llama3"])
    if kind == "linear":
        return dict(rope_type=kind, rope_theta=theta, factor=rng.choice([1.0, 2.5, 4.0]))
    if kind == "llama3":
        return dict(
            rope_type=kind,
            rope_theta=theta,
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=rng.choice([2.0, 4.0]),
            original_max_position_embeddings=rng.choice([16, 32]),
        )
    return dict(rope_type=kind, rope_theta=theta)


def draw_decoder(rng):
    """What families of Llama's kind have in common."""
    kv_heads = rng.choice([1, 1, 2, 3])
    heads = kv_heads * rng.randint(1, 4)
    head_dim = 2 * rng.randint(1, 13)
    vocabulary = rng.choice([257, 257, 83, 1009, 32001])
    width = rng.choice([head_dim, rng.randint(3, 17)])
    width = max(width, -(-8 // heads))  # the norm of a few channels is mostly rounding
    return dict(
        vocab_size=vocabulary,
        hidden_size=heads * width,  # Transformers requires a multiple
        intermediate_size=rng.randint(7, 90),
        num_hidden_layers=rng.randint(1, 3),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=rng.choice([1e-5, 1e-6]),
        max_position_embeddings=128,
        tie_word_embeddings=rng.random() < 0.5,
        rope=draw_rope(rng, head_dim),
        pad_token_id=rng.choice([None, rng.randrange(vocabulary)]),
    )


def draw_gpt2(rng):
    heads = rng.randint(1, 6)
    return dict(
        vocab_size=rng.choice([257, 257, 83, 1009, 32001]),
        n_embd=heads * rng.randint(1 if heads > 4 else 4, 17),  # the norm of two channels is all rounding
        n_inner=rng.choice([None, rng.randint(7, 90)]),
        n_layer=rng.randint(1, 3),
        n_head=heads,
        n_positions=rng.choice([40, 41, 128]),
        layer_norm_epsilon=rng.choice([1e-5, 1e-6]),
        resid_pdrop=rng.choice([0.0, 0.1]),
        attn_pdrop=rng.choice([0.0, 0.1]),
        reorder_and_upcast_attn=rng.random() < 0.2,
        tie_word_embeddings=rng.random() < 0.7,
    )


def draw_window(rng):
    return rng.choice([None, 1, 2, rng.randint(3, 39), 4096])


def draw_mistral(rng):
    return dict(draw_decoder(rng), sliding_window=draw_window(rng))


def draw_layer_windows(rng, config):
    """Windows from some layer on, as Qwen's configurations say."""
    used = rng.random() < 0.8
    first = rng.choice([0, rng.randint(0, 2), min(1, config["num_hidden_layers"] - 1), 28])
    return dict(use_sliding_window=used, sliding_window=draw_window(rng), max_window_layers=first)


def draw_qwen(rng):
    config = draw_decoder(rng)
    return config | draw_layer_windows(rng, config)


def draw_experts(rng, key):
    """Also one expert, and every expert for every token."""
    experts = rng.choice([1, 3, 5, 7, 3, 5, 7, 16])
    return {key: experts, "num_experts_per_tok": min(experts, rng.choice([1, 2, 3, experts]))}


def draw_losses(rng):
    """Half of them add the auxiliary loss."""
    output = rng.random() < 0.5
    return dict(output_router_logits=output, router_aux_loss_coef=rng.choice([0.001, 0.05]))


def has_experts(config):
    """In some layer."""
    if "num_experts_per_tok" not in config:
        return False
    layers = range(config.get("first_k_dense_replace", 0), config["num_hidden_layers"])
    dense, step = config.get("mlp_only_layers", []), config.get("decoder_sparse_step", 1)
    return any(i not in dense and (i + 1) % step == 0 for i in layers)


def draw_dense_layers(rng, config):
    """Layers of Qwen without experts. Where no layer has any, Transformers cannot add the auxiliary loss."""
    layers, step = config["num_hidden_layers"], rng.choice([1, 1, 1, 2])
    dense = rng.choice([[], [], [rng.randrange(layers)], list(range(layers))])
    drawn = dict(decoder_sparse_step=step, mlp_only_layers=dense)
    if not has_experts(config | drawn):
        config["output_router_logits"] = False
    return drawn


def draw_mixtral(rng):
    own = dict(sliding_window=draw_window(rng)) | draw_losses(rng)
    return draw_decoder(rng) | draw_experts(rng, "num_local_experts") | own


def draw_qwen3_moe(rng):
    own = dict(moe_intermediate_size=rng.randint(3, 40), norm_topk_prob=rng.random() < 0.5)
    config = draw_decoder(rng) | draw_experts(rng, "num_experts") | own | draw_losses(rng)
    config |= draw_dense_layers(rng, config)
    return config


def draw_qwen2_moe(rng):
    own = dict(
        moe_intermediate_size=rng.randint(3, 40),
        shared_expert_intermediate_size=rng.randint(3, 40),
        norm_topk_prob=rng.random() < 0.5,
        qkv_bias=rng.random() < 0.7,
    )
    config = draw_decoder(rng) | draw_experts(rng, "num_experts") | own | draw_losses(rng)
    config |= draw_dense_layers(rng, config)
    return config


def draw_glm4_moe(rng):
    config = draw_decoder(rng)
    head_dim = config["head_dim"] = 4 * ((config["head_dim"] + 3) // 4)
    share = rng.choice([0.5, 0.5, 1.0, 2 / head_dim])
    config["rope"] = dict(draw_rope(rng, head_dim), partial_rotary_factor=share)
    if config["rope"]["rope_type"] != "default":  # Transformers scales whole heads' frequencies
        config["rope"] = dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=share)
    groups = rng.choice([1, 1, 2, 3])
    each = rng.randint(2, 5)
    kept = rng.randint(1, groups)
    return config | dict(
        n_routed_experts=groups * each,
        n_group=groups,
        topk_group=kept,
        num_experts_per_tok=rng.randint(1, kept * each),
        n_shared_experts=rng.randint(1, 2),
        moe_intermediate_size=rng.randint(3, 40),
        first_k_dense_replace=rng.randint(0, config["num_hidden_layers"]),
        norm_topk_prob=rng.random() < 0.7,
        routed_scaling_factor=rng.choice([1.0, 2.5]),
        attention_bias=rng.random() < 0.5,
        use_qk_norm=rng.random() < 0.5,
    )


def draw_olmoe(rng):
    config = draw_decoder(rng)
    config["num_key_value_heads"] = config["num_attention_heads"]
    config["hidden_size"] = config["num_attention_heads"] * config.pop("head_dim")
    own = dict(norm_topk_prob=rng.random() < 0.5, eos_token_id=2) | draw_losses(rng)
    return config | draw_experts(rng, "num_experts") | own


DRAW = {  # the configuration of a family
    "llama": draw_decoder,
    "gpt2": draw_gpt2,
    "mistral": draw_mistral,
    "qwen2": draw_qwen,
    "qwen3": draw_qwen,
    "mixtral": draw_mixtral,
    "qwen3_moe": draw_qwen3_moe,
    "olmoe": draw_olmoe,
    "qwen2_moe": draw_qwen2_moe,
    "glm4_moe": draw_glm4_moe,
}


ROUTED = ("mixtral", "qwen3_moe", "olmoe", "qwen2_moe", "glm4_moe")


def draw_steps(family, config):
    """Of routed models 20, of few words. One expert of several, normalised, has the weight 1: the router's
    gradient is rounding, of which AdamW makes steps unless epsilon is above it."""
    if "num_experts_per_tok" not in config:
        return {}
    if config["vocab_size"] == 32001:  # which the others have: so many steps of it take long
        config["vocab_size"] = 257
        config["pad_token_id"] = config["pad_token_id"] and config["pad_token_id"] % 257
    one = config["num_experts_per_tok"] == 1 and (family == "mixtral" or config.get("norm_topk_prob"))
    return dict(steps=20, eps=1e-3) if one else dict(steps=20)


def draw(family, rng):
    batch = rng.choice([2, 3, 4, 6])
    config = DRAW[family](rng)
    return dict(
        family=family,
        config=config,
        whole=True,
        **draw_steps(family, config),
        dtype=rng.choice(["F32", "BF16", "F16"]),
        style="saved",
        shard_size=rng.choice(["1GB", "20KB"]),
        batch=batch,
        seq=rng.randint(-(-12 // batch), 40),
        padded=has_experts(config) and rng.random() < 0.5,
    )


def describe(case):
    """One line of a case, without what its family has always."""
    rope = case["config"].get("rope", {})
    keys = {name: value for name, value in case["config"].items() if name != "rope"}
    keys |= {name: value for name, value in rope.items() if value != "default"}
    sizes = " ".join(f"{name}={value}" for name, value in keys.items())
    padded = " padded" if case["padded"] else ""
    return f"{case['family']} {sizes} batch={case['batch']}x{case['seq']}{padded} {case['dtype']}"
