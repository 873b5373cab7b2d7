"""The models of the golden data (make_golden.py), each with what can go wrong in it.

family: its model_type; Llama without it. config: keys of Transformers' configuration class, `rope` its
rope_parameters. style: which generation of keys config.json has; omit: keys left out of it. dtype: of the
stored weights; shards: their files; stray: with a buffer that is no weight; bare: without the names' base
prefix. A new case is added at the end: seeds follow from the order.
"""


def decoder(vocab, hidden, inner, layers, heads, kv_heads, *, head_dim=None, rms_norm_eps=1e-5,
            max_position_embeddings=64, **others):
    """The configuration of a family of Llama's kind."""
    return dict(vocab_size=vocab, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
                num_attention_heads=heads, num_key_value_heads=kv_heads,
                **({"head_dim": head_dim} if head_dim else {}), rms_norm_eps=rms_norm_eps,
                max_position_embeddings=max_position_embeddings, **others)


CASES = {
    "grouped": dict(  # grouped-query attention, untied
        style="new", dtype="BF16", batch=3, seq=24, whole_sequence_ignored=True,
        config=decoder(vocab=128, hidden=32, inner=64, layers=2, heads=4, kv_heads=2,
                       head_dim=8)),
    "tied": dict(
        style="old", dtype="F32", batch=2, seq=32,
        config=decoder(vocab=256, hidden=32, inner=56, layers=2, heads=2, kv_heads=2,
                       head_dim=16, rms_norm_eps=1e-06, tie_word_embeddings=True)),
    "llama3_rope": dict(  # all three regions of the scaling, positions beyond the original ones
        style="new", dtype="BF16", batch=2, seq=64, shards=2, stray=True,
        config=decoder(vocab=96, hidden=32, inner=48, layers=2, heads=2, kv_heads=1,
                       head_dim=16, max_position_embeddings=256, rope=dict(rope_type="llama3",
                       rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                       original_max_position_embeddings=32))),
    "multi_query_257": dict(  # one key/value head, head_dim != hidden / heads, linear scaling, odd vocabulary
        style="old", dtype="F16", batch=2, seq=29,
        config=decoder(vocab=257, hidden=40, inner=56, layers=2, heads=4, kv_heads=1,
                       head_dim=12, max_position_embeddings=128, rope=dict(rope_type="linear",
                       rope_theta=10000.0, factor=2.5))),
    "odd": dict(  # sizes that no vector width or rank count divides
        style="old", dtype="BF16", batch=3, seq=17, omit=["num_key_value_heads", "head_dim"],
        config=decoder(vocab=321, hidden=48, inner=100, layers=1, heads=3, kv_heads=3,
                       head_dim=16, rms_norm_eps=1e-06)),
    "wide_32001": dict(  # a real vocabulary's size plus one
        style="new", dtype="BF16", batch=2, seq=16,
        config=decoder(vocab=32001, hidden=8, inner=20, layers=1, heads=2, kv_heads=1,
                       head_dim=4, tie_word_embeddings=True)),
    "gpt2_hub": dict(  # as the hub has it: no prefix, masks among the weights, tied; dropouts
        family="gpt2", style="old", dtype="BF16", batch=3, seq=24, bare=True, stray=True,
        whole_sequence_ignored=True,
        config=dict(vocab_size=257, n_embd=36, n_layer=2, n_head=3, n_positions=40)),
    "gpt2_odd": dict(  # heads of 7, an inner size of its own, untied; as many tokens as positions
        family="gpt2", style="new", dtype="F16", batch=2, seq=31, shards=2,
        config=dict(vocab_size=123, n_embd=35, n_layer=2, n_head=5, n_positions=31, n_inner=50,
                    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, layer_norm_epsilon=1e-06,
                    tie_word_embeddings=False)),
    "mistral_window": dict(  # a window shorter than the sequence
        family="mistral", style="old", dtype="BF16", batch=3, seq=24,
        config=decoder(vocab=128, hidden=32, inner=56, layers=2, heads=4, kv_heads=2,
                       sliding_window=5)),
    "mistral_257": dict(  # no window; one key/value head, head_dim != hidden / heads, tied
        family="mistral", style="new", dtype="F16", batch=2, seq=29,
        config=decoder(vocab=257, hidden=40, inner=57, layers=2, heads=4, kv_heads=1,
                       head_dim=14, rms_norm_eps=1e-06, sliding_window=None, tie_word_embeddings=True)),
    "qwen2_tied": dict(  # as its small models are; vocabulary and inner size odd
        family="qwen2", style="old", dtype="BF16", batch=2, seq=30,
        config=decoder(vocab=257, hidden=36, inner=61, layers=2, heads=6, kv_heads=1,
                       rms_norm_eps=1e-06, tie_word_embeddings=True)),
    "qwen2_window": dict(  # the last two of three layers have a window, which is shorter than the sequence
        family="qwen2", style="new", dtype="F16", batch=3, seq=21, shards=2,
        config=decoder(vocab=113, hidden=32, inner=40, layers=3, heads=4, kv_heads=2,
                       use_sliding_window=True, sliding_window=7, max_window_layers=1,
                       rope=dict(rope_type="default", rope_theta=1000000.0))),
    "qwen3_heads": dict(  # one key/value head, heads times head_dim above hidden_size, tied
        family="qwen3", style="new", dtype="BF16", batch=2, seq=30,
        config=decoder(vocab=257, hidden=36, inner=61, layers=2, heads=4, kv_heads=1,
                       head_dim=18, rms_norm_eps=1e-06, tie_word_embeddings=True,
                       rope=dict(rope_type="default", rope_theta=1000000.0))),
    "qwen3_window": dict(  # a window in the second layer alone, which is shorter than the sequence
        family="qwen3", style="old", dtype="F32", batch=3, seq=21,
        config=decoder(vocab=113, hidden=32, inner=40, layers=2, heads=4, kv_heads=2,
                       head_dim=6, use_sliding_window=True, sliding_window=6, max_window_layers=1)),
    "padding": dict(  # a padding token among the tokens
        style="new", dtype="F32", batch=2, seq=40,
        config=decoder(vocab=29, hidden=24, inner=40, layers=1, heads=2, kv_heads=1,
                       pad_token_id=5)),
    "padding_tied": dict(  # the last token by its negative number, whose row the head trains
        family="qwen2", style="new", dtype="F32", batch=2, seq=40,
        config=decoder(vocab=31, hidden=24, inner=40, layers=1, heads=2, kv_heads=1,
                       tie_word_embeddings=True, pad_token_id=-1, rope=dict(rope_type="default",
                       rope_theta=1000000.0))),
    "mixtral_routed": dict(  # sizes that nothing divides; weights by expert, as the hub has them
        family="mixtral", style="saved", dtype="F32", batch=2, seq=23, shard_size="1GB",
        config=decoder(vocab=131, hidden=36, inner=29, layers=2, heads=6, kv_heads=2,
                       num_local_experts=5, num_experts_per_tok=2, rope=dict(rope_type="default",
                       rope_theta=1000000.0))),
    "qwen3_moe_routed": dict(  # normalised; more experts than an expert has rows
        family="qwen3_moe", style="fused", dtype="F32", batch=2, seq=21,
        config=decoder(vocab=113, hidden=32, inner=40, moe_intermediate_size=11, layers=2,
                       heads=4, kv_heads=2, head_dim=10, rms_norm_eps=1e-06, num_experts=16,
                       num_experts_per_tok=3, norm_topk_prob=True)),
    "olmoe_routed": dict(  # not normalised; norms of all heads; a padding token; every expert for every token
        family="olmoe", style="fused", dtype="F32", batch=2, seq=19,
        config=decoder(vocab=97, hidden=24, inner=17, layers=2, heads=3, kv_heads=3,
                       num_experts=3, num_experts_per_tok=3, norm_topk_prob=False, pad_token_id=1,
                       eos_token_id=2)),
    "documents_llama": dict(  # documents in a row, and padding behind them
        style="new", dtype="BF16", batch=3, seq=37, documents=True,
        config=decoder(vocab=64, hidden=24, inner=40, layers=2, heads=4, kv_heads=2,
                       head_dim=8)),
    "documents_gpt2": dict(  # learned positions, which begin again in each document
        family="gpt2", style="new", dtype="BF16", batch=3, seq=32, documents=True,
        config=dict(vocab_size=61, n_embd=24, n_layer=2, n_head=3, n_positions=40)),
    "documents_mistral": dict(  # a window that is shorter than some documents
        family="mistral", style="new", dtype="BF16", batch=3, seq=41, documents=True,
        config=decoder(vocab=67, hidden=32, inner=44, layers=2, heads=4, kv_heads=1,
                       head_dim=8, sliding_window=7)),
    "qwen2_moe_routed": dict(  # a gated shared expert, the first of three layers dense, no biases of q k v
        family="qwen2_moe", style="saved", dtype="F32", batch=2, seq=20, shard_size="1GB",
        config=decoder(vocab=101, hidden=28, inner=37, moe_intermediate_size=13,
                       shared_expert_intermediate_size=19, layers=3, heads=4, kv_heads=2, head_dim=6,
                       rms_norm_eps=1e-06, num_experts=7, num_experts_per_tok=3, norm_topk_prob=False,
                       mlp_only_layers=[0])),
    "glm4_moe_routed": dict(  # groups, a scale, two shared experts, half of a head rotated, norms of q and k
        family="glm4_moe", style="fused", dtype="F32", batch=2, seq=18,
        config=decoder(vocab=103, hidden=32, inner=41, moe_intermediate_size=11, layers=2,
                       heads=4, kv_heads=2, head_dim=12, n_routed_experts=9, num_experts_per_tok=3,
                       n_group=3, topk_group=2, n_shared_experts=2, first_k_dense_replace=1,
                       norm_topk_prob=True, routed_scaling_factor=2.5, attention_bias=True,
                       use_qk_norm=True, rope=dict(rope_type="default", rope_theta=10000.0,
                       partial_rotary_factor=0.5))),
    "mixtral_aux": dict(  # the auxiliary loss, joint over three layers
        family="mixtral", style="saved", dtype="F32", batch=3, seq=17, shard_size="1GB",
        config=decoder(vocab=53, hidden=24, inner=15, layers=3, heads=3, kv_heads=1,
                       num_local_experts=6, num_experts_per_tok=2, output_router_logits=True,
                       router_aux_loss_coef=0.05)),
    "padded_aux": dict(  # the same of sequences that padding fills up, experts for all layers but one
        family="qwen2_moe", style="saved", dtype="F32", batch=3, seq=17, padded=True, shard_size="1GB",
        config=decoder(vocab=47, hidden=24, inner=17, moe_intermediate_size=7,
                       shared_expert_intermediate_size=9, layers=3, heads=4, kv_heads=2, rms_norm_eps=1e-06,
                       num_experts=5, num_experts_per_tok=2, norm_topk_prob=False, mlp_only_layers=[1],
                       output_router_logits=True, router_aux_loss_coef=0.05)),
    "padded_bias": dict(  # and the loads that move correction biases
        family="glm4_moe", style="saved", dtype="F32", batch=3, seq=14, padded=True, shard_size="1GB",
        config=decoder(vocab=47, hidden=24, inner=17, moe_intermediate_size=7, layers=2,
                       heads=2, kv_heads=1, head_dim=12, n_routed_experts=6, num_experts_per_tok=2,
                       n_group=1, topk_group=1, n_shared_experts=1, first_k_dense_replace=0,
                       norm_topk_prob=True, routed_scaling_factor=1.5, attention_bias=False,
                       use_qk_norm=False, rope=dict(rope_type="default", rope_theta=10000.0,
                       partial_rotary_factor=0.5))),
    "dropout_gpt2": dict(  # as its configuration has it
        family="gpt2", style="new", dtype="BF16", batch=4, seq=19, dropout=(0.1, 0.2, 0.15),
        config=dict(vocab_size=61, n_embd=24, n_layer=2, n_head=3, n_positions=40)),
    "dropout_llama": dict(  # grouped heads; documents in a row
        style="new", dtype="BF16", batch=3, seq=21, dropout=(0.05, 0.3, 0.1), documents=True,
        config=decoder(vocab=64, hidden=24, inner=40, layers=2, heads=4, kv_heads=2,
                       head_dim=8)),
}
