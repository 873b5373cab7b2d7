#include "models/decoder.h"

#include "models/experts.h"
#include "models/parts.h"
#include "models/rope.h"
#include "runtime/base/check.h"

#include <stdio.h>
#include <stdlib.h>

// ---- The configuration

const char *const fsdp_decoder_keys_without_numbers[] = {
    "max_position_embeddings", // positions are computed, and sequences as long as --seq-length
    "initializer_range",       // new weights are drawn with it, trained ones are not
    // Of training's loss alone.
    "output_router_logits",
    "router_aux_loss_coef",
    "router_aux_loss",
    "router_z_loss_coef",
    NULL,
};

// PyTorch's padding_idx, which Transformers sets to the padding token: below 0 it counts from the end.
static int64_t read_padding_token(fsdp_fields *f, const json_t *root, int64_t vocab_size) {
  const json_t *value = fsdp_fields_present(root, "pad_token_id");
  if (!value) return 0;
  json_int_t token = json_integer_value(value);
  if (json_is_integer(value) && token >= -vocab_size && token < vocab_size)
    return 1 + (token < 0 ? token + vocab_size : token);
  fsdp_fields_refuse(f, "pad_token_id", value,
                     "but must be null or a token below vocab_size, as Transformers requires");
  return 0;
}

static void refuse_dropout(fsdp_fields *f, const json_t *root) {
  const json_t *value = fsdp_fields_present(root, "attention_dropout");
  if (value && (!json_is_number(value) || json_number_value(value) != 0))
    fsdp_fields_refuse(f, "attention_dropout", value,
                       "but the configuration's dropout is not applied; set it to 0.0, and give the trainer "
                       "--attention-dropout");
}

void fsdp_decoder_read(fsdp_fields *f, const json_t *root, fsdp_model_config *c) {
  const fsdp_decoder *d = c->family->decoder;
  fsdp_fields_only_text(f, root, "hidden_act", "silu");
  refuse_dropout(f, root);
  c->vocab_size = fsdp_fields_count(f, root, "vocab_size", 0, INT32_MAX);
  c->hidden_size = fsdp_fields_count(f, root, "hidden_size", 0, 1 << 22);
  c->intermediate_size = fsdp_fields_count(f, root, "intermediate_size", 0, 1 << 24);
  c->num_layers = fsdp_fields_count(f, root, "num_hidden_layers", 0, 1 << 14);
  fsdp_fields_heads(f, root, d->kv_heads_default, d->head_dim_default, c);
  c->max_position_embeddings =
      fsdp_fields_count(f, root, "max_position_embeddings", d->positions_default, INT64_MAX);
  c->norm_eps =
      fsdp_fields_fraction(f, root, "rms_norm_eps", d->norm_eps_default > 0 ? d->norm_eps_default : 1e-6);
  c->initializer_range = fsdp_fields_positive(f, root, "initializer_range", 0.02);
  c->tie_word_embeddings = fsdp_fields_bool(f, root, "tie_word_embeddings", false);
  c->padding_token = read_padding_token(f, root, c->vocab_size);
  fsdp_rope_read(f, root, d->rope_theta_default > 0 ? d->rope_theta_default : 10000.0, c);
  if (d->experts_key) fsdp_experts_read(f, root, c);
  fsdp_fields_read(f, root, d->fields, c);
  if (d->read) d->read(f, root, c);
}

void fsdp_decoder_print(const fsdp_model_config *c, json_t *root) {
  json_t *own = json_pack(
      "{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:o, s:f, s:b}", "hidden_act", "silu",
      "vocab_size", (json_int_t)c->vocab_size, "hidden_size", (json_int_t)c->hidden_size, "intermediate_size",
      (json_int_t)c->intermediate_size, "num_hidden_layers", (json_int_t)c->num_layers, "num_attention_heads",
      (json_int_t)c->num_heads, "num_key_value_heads", (json_int_t)c->num_kv_heads, "head_dim",
      (json_int_t)c->head_dim, "max_position_embeddings", (json_int_t)c->max_position_embeddings,
      "rms_norm_eps", c->norm_eps, "rope_theta", c->rope_theta, "rope_scaling", fsdp_rope_print(c),
      "initializer_range", c->initializer_range, "tie_word_embeddings", c->tie_word_embeddings);
  FSDP_CHECK(own && json_object_update(root, own) == 0, "a configuration that is not valid JSON");
  json_decref(own);
  if (c->padding_token) json_object_set_new(root, "pad_token_id", json_integer(c->padding_token - 1));
  if (c->experts) fsdp_experts_print(c, root);
  fsdp_fields_print(c->family->decoder->fields, c, root);
  if (c->family->decoder->print) c->family->decoder->print(c, root);
}

// ---- Sizes

static bool has_qkv_bias(const fsdp_model_config *c) {
  return c->family->decoder->qkv_bias || c->qkv_bias;
}

static bool has_qk_norm(const fsdp_model_config *c) {
  return c->family->decoder->qk_norm || c->qk_norm;
}

int64_t fsdp_decoder_parameter_count(const fsdp_model_config *c) {
  int64_t heads = (2 * c->num_heads + 2 * c->num_kv_heads) * c->head_dim * c->hidden_size;
  const int64_t routed = fsdp_model_expert_layers(c), dense = 3 * c->intermediate_size * c->hidden_size;
  int64_t layer = heads + 2 * c->hidden_size;
  if (has_qkv_bias(c)) layer += (c->num_heads + 2 * c->num_kv_heads) * c->head_dim;
  if (c->family->decoder->wide_qk_norm)
    layer += (c->num_heads + c->num_kv_heads) * c->head_dim;
  else if (has_qk_norm(c))
    layer += 2 * c->head_dim;
  int64_t tables = (c->tie_word_embeddings ? 1 : 2) * c->vocab_size * c->hidden_size;
  const int64_t mlps =
      routed * fsdp_experts_parameter_count(c, c->experts) + (c->num_layers - routed) * dense;
  return c->num_layers * layer + mlps + tables + c->hidden_size;
}

// N counts all parameters but an input embedding that the head does not share, and of experts those that a
// token is sent to.
double fsdp_decoder_flops_per_token(const fsdp_model_config *c, int64_t seq,
                                    fsdp_flops_convention convention) {
  double parameters = (double)fsdp_decoder_parameter_count(c);
  if (c->experts)
    parameters -= (double)(fsdp_model_expert_layers(c) * (fsdp_experts_parameter_count(c, c->experts) -
                                                          fsdp_experts_parameter_count(c, c->expert_slots)));
  if (!c->tie_word_embeddings) parameters -= (double)c->vocab_size * (double)c->hidden_size;
  return 6 * parameters + fsdp_parts_attention_flops_per_token(c, seq, convention);
}

// ---- The graph

// A decoder layer's modules that own parameters or ops.
typedef struct layer_modules {
  int attention, q, k, v, o, q_norm, k_norm, input_norm, post_norm;
  fsdp_mlp_modules mlp; // or
  fsdp_experts_modules experts;
} layer_modules;

static layer_modules layer_module_tree(fsdp_parts *p, int layers, int index) {
  const fsdp_model_config *c = p->config;
  const fsdp_decoder *d = c->family->decoder;
  fsdp_graph *g = p->graph;
  const int64_t C = c->hidden_size, q = c->num_heads * c->head_dim, kv = c->num_kv_heads * c->head_dim;
  layer_modules m = {0};
  char name[FSDP_NAME_BYTES];
  snprintf(name, sizeof name, "%d", index);
  int layer = fsdp_graph_module(g, layers, name, g->block_class, "");
  const char *attention = d->attention ? d->attention : fsdp_decoder_class(d, "Attention", name);
  m.attention = fsdp_graph_module(g, layer, "self_attn", attention, "");
  m.q = fsdp_parts_linear_module(p, m.attention, "q_proj", C, q, has_qkv_bias(c));
  m.k = fsdp_parts_linear_module(p, m.attention, "k_proj", C, kv, has_qkv_bias(c));
  m.v = fsdp_parts_linear_module(p, m.attention, "v_proj", C, kv, has_qkv_bias(c));
  m.o = fsdp_parts_linear_module(p, m.attention, "o_proj", q, C, false);
  fsdp_decoder_class(d, "RMSNorm", name);
  if (has_qk_norm(c)) {
    m.q_norm = fsdp_parts_norm_module(p, m.attention, "q_norm", name, d->wide_qk_norm ? q : c->head_dim);
    m.k_norm = fsdp_parts_norm_module(p, m.attention, "k_norm", name, d->wide_qk_norm ? kv : c->head_dim);
  }
  if (d->rotary_in_attention)
    fsdp_graph_module(g, m.attention, "rotary_emb", fsdp_decoder_class(d, "RotaryEmbedding", name), "");
  if (fsdp_model_has_experts(c, index))
    m.experts = fsdp_experts_module_tree(p, layer);
  else
    m.mlp = fsdp_experts_mlp_tree(p, layer, "mlp", c->intermediate_size);
  fsdp_decoder_class(d, "RMSNorm", name);
  m.input_norm = fsdp_parts_norm_module(p, layer, "input_layernorm", name, C);
  m.post_norm = fsdp_parts_norm_module(p, layer, "post_attention_layernorm", name, C);
  return m;
}

// One decoder layer over the residual stream.
static void decoder_layer(fsdp_parts *p, fsdp_residual *stream, const layer_modules *m,
                          fsdp_experts_sums *sums) {
  int y = fsdp_parts_add_norm(p, stream, m->input_norm, true);
  int qkv = fsdp_parts_linear(p, y, 3, (int[]){m->q, m->k, m->v}, "qkv");
  if (has_qk_norm(p->config)) qkv = fsdp_parts_qk_norm(p, qkv, m->q_norm, m->k_norm);
  fsdp_parts_rope(p, qkv, m->attention);
  int o = fsdp_parts_attention(p, qkv, m->attention);
  stream->delta = fsdp_parts_linear(p, o, 1, &m->o, "attn");
  y = fsdp_parts_add_norm(p, stream, m->post_norm, false);
  stream->delta = fsdp_model_has_experts(p->config, p->block) ? fsdp_experts_mlp(p, y, &m->experts, sums)
                                                              : fsdp_experts_dense(p, y, &m->mlp);
}

void fsdp_decoder_build(const fsdp_model_config *config, fsdp_graph *g) {
  const fsdp_decoder *d = config->family->decoder;
  char name[FSDP_NAME_BYTES];
  g->inv_freq = fsdp_rope_inv_freq(config);
  fsdp_parts p = fsdp_parts_of(config, g);

  // The module tree, in state-dict order.
  int root = fsdp_graph_module(g, -1, "", fsdp_decoder_class(d, "ForCausalLM", name), "");
  int model = fsdp_graph_module(g, root, "model", fsdp_decoder_class(d, "Model", name), "");
  int embed = fsdp_parts_embedding_module(&p, model, "embed_tokens", config->vocab_size);
  int layers = fsdp_graph_module(g, model, "layers", "ModuleList", "");
  layer_modules *modules = fsdp_alloc_zeroed((size_t)config->num_layers, sizeof *modules);
  for (int i = 0; i < config->num_layers; i++) modules[i] = layer_module_tree(&p, layers, i);
  int norm =
      fsdp_parts_norm_module(&p, model, "norm", fsdp_decoder_class(d, "RMSNorm", name), config->hidden_size);
  fsdp_graph_module(g, model, "rotary_emb", fsdp_decoder_class(d, "RotaryEmbedding", name), "");
  int head = fsdp_parts_head_module(&p, root, "lm_head", embed);

  // The forward pass, top to bottom.
  fsdp_residual stream = {fsdp_parts_embedding(&p, embed), -1};
  fsdp_experts_sums sums = {-1, -1, -1};
  for (p.block = 0; p.block < config->num_layers; p.block++)
    decoder_layer(&p, &stream, &modules[p.block], &sums);
  p.block = -1;
  int y = fsdp_parts_add_norm(&p, &stream, norm, false);
  g->losses[g->loss_count++] = -1; // the cross-entropy, the first of them and the last to be made
  fsdp_experts_losses(&p, model, &sums);
  fsdp_parts_cross_entropy(&p, y, head);
  free(modules);
}
