// The GPT-2 family, as Transformers' GPT2LMHeadModel: LayerNorm, learned positions, weights stored (in, out),
// biases, GELU.
#include "models/family.h"
#include "models/parts.h"
#include "runtime/base/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

// ---- Presets: published shapes

#define GPT2(C, L, H)                                                                                        \
  {                                                                                                          \
    .vocab_size = 50257, .hidden_size = (C), .intermediate_size = 4 * (C), .num_layers = (L),                \
    .num_heads = (H), .num_kv_heads = (H), .head_dim = (C) / (H), .max_position_embeddings = 1024,           \
    .norm_eps = 1e-5, .initializer_range = 0.02, .tie_word_embeddings = true, .resid_pdrop = 0.1,            \
    .embd_pdrop = 0.1, .attn_pdrop = 0.1                                                                     \
  }

static const fsdp_preset presets[] = {
    {"gpt2", GPT2(768, 12, 12)},
    {"gpt2-medium", GPT2(1024, 24, 16)},
    {"gpt2-large", GPT2(1280, 36, 20)},
    {"gpt2-xl", GPT2(1600, 48, 25)},
    {NULL, {0}},
};

// ---- The configuration

static const char *const keys_without_numbers[] = {
    "initializer_range", // new weights are drawn with it, trained ones are not
    "resid_pdrop",
    "embd_pdrop",
    "attn_pdrop",              // not applied
    "reorder_and_upcast_attn", // always done
    NULL,
};

static const fsdp_field fields[] = {FSDP_FIELD("resid_pdrop", PROBABILITY, resid_pdrop, 0.1, 0),
                                    FSDP_FIELD("embd_pdrop", PROBABILITY, embd_pdrop, 0.1, 0),
                                    FSDP_FIELD("attn_pdrop", PROBABILITY, attn_pdrop, 0.1, 0),
                                    {0}};

// Old files hold the causal mask of each layer. (".c_attn.bias" is a parameter.)
static const char *const buffers[] = {".attn.bias", ".attn.masked_bias", NULL};

// Transformers takes a key's general name too; one that says something else than the key would be lost.
static void refuse_other_names(fsdp_fields *f, const json_t *root) {
  static const char *const names[][2] = {{"n_embd", "hidden_size"},
                                         {"n_layer", "num_hidden_layers"},
                                         {"n_head", "num_attention_heads"},
                                         {"n_positions", "max_position_embeddings"}};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    const json_t *other = fsdp_fields_present(root, names[i][1]);
    char remedy[96];
    snprintf(remedy, sizeof remedy, "but this key is called \"%s\" here; correct that one, and remove this",
             names[i][0]);
    if (other && !json_equal(other, json_object_get(root, names[i][0])))
      fsdp_fields_refuse(f, names[i][1], other, remedy);
  }
}

// Sizes are required; the rest take GPT2Config's defaults.
static void read_config(fsdp_fields *f, const json_t *root, fsdp_model_config *c) {
  fsdp_fields_only_text(f, root, "activation_function", "gelu_new");
  fsdp_fields_only_bool(f, root, "scale_attn_weights", true, "unscaled scores");
  fsdp_fields_only_bool(f, root, "scale_attn_by_inverse_layer_idx", false, "scores scaled by layer");
  fsdp_fields_only_bool(f, root, "add_cross_attention", false, "encoders");
  refuse_other_names(f, root);
  c->vocab_size = fsdp_fields_count(f, root, "vocab_size", 0, INT32_MAX);
  c->hidden_size = fsdp_fields_count(f, root, "n_embd", 0, 1 << 22);
  c->intermediate_size = fsdp_fields_count(f, root, "n_inner", 4 * c->hidden_size, 1 << 24);
  c->num_layers = fsdp_fields_count(f, root, "n_layer", 0, 1 << 14);
  c->num_heads = c->num_kv_heads = fsdp_fields_count(f, root, "n_head", 0, 1 << 16);
  c->max_position_embeddings = fsdp_fields_count(f, root, "n_positions", 1024, 1 << 28);
  c->norm_eps = fsdp_fields_fraction(f, root, "layer_norm_epsilon", 1e-5);
  c->initializer_range = fsdp_fields_positive(f, root, "initializer_range", 0.02);
  c->tie_word_embeddings = fsdp_fields_bool(f, root, "tie_word_embeddings", true);
  fsdp_fields_read(f, root, fields, c);
  c->upcasts_attention = fsdp_fields_bool(f, root, "reorder_and_upcast_attn", false);
  if (f->status) return;
  c->head_dim = c->hidden_size / c->num_heads;
  const json_t *heads = json_object_get(root, "n_head");
  char remedy[128];
  snprintf(remedy, sizeof remedy, "which does not divide \"n_embd\" = %lld; correct one of them",
           (long long)c->hidden_size);
  if (c->hidden_size % c->num_heads) fsdp_fields_refuse(f, "n_head", heads, remedy);
  snprintf(remedy, sizeof remedy,
           "which gives heads of %lld elements, but they may have at most %d; use more heads",
           (long long)c->head_dim, FSDP_FIELDS_HEAD_DIM_MAX);
  if (c->head_dim > FSDP_FIELDS_HEAD_DIM_MAX) fsdp_fields_refuse(f, "n_head", heads, remedy);
}

static void print_config(const fsdp_model_config *c, json_t *root) {
  json_t *own = json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:b, s:b, s:b, s:b, s:b}",
                          "activation_function", "gelu_new", "vocab_size", (json_int_t)c->vocab_size,
                          "n_positions", (json_int_t)c->max_position_embeddings, "n_embd",
                          (json_int_t)c->hidden_size, "n_inner", (json_int_t)c->intermediate_size, "n_layer",
                          (json_int_t)c->num_layers, "n_head", (json_int_t)c->num_heads, "layer_norm_epsilon",
                          c->norm_eps, "initializer_range", c->initializer_range, "tie_word_embeddings",
                          c->tie_word_embeddings, "scale_attn_weights", 1, "scale_attn_by_inverse_layer_idx",
                          0, "reorder_and_upcast_attn", c->upcasts_attention, "add_cross_attention", 0);
  FSDP_CHECK(own && json_object_update(root, own) == 0, "a configuration that is not valid JSON");
  json_decref(own);
  fsdp_fields_print(fields, c, root);
}

static void dropout(const fsdp_model_config *c, fsdp_dropout *rates) {
  *rates = (fsdp_dropout){(float)c->embd_pdrop, (float)c->attn_pdrop, (float)c->resid_pdrop};
}

static bool note(const fsdp_model_config *c, char *out, size_t out_bytes) {
  char keys[128] = "";
  size_t used = 0;
  const double numbers[] = {c->resid_pdrop, c->embd_pdrop, c->attn_pdrop};
  for (int i = 0; fields[i].key; i++)
    if (numbers[i] > 0)
      used += (size_t)snprintf(keys + used, sizeof keys - used, "%s%s %g", used ? ", " : "", fields[i].key,
                               numbers[i]);
  snprintf(out, out_bytes,
           "dropout is not applied: the configuration's %s are kept for what is exported; --dropout config "
           "applies them",
           keys);
  return used > 0;
}

// ---- Sizes

static int64_t parameter_count(const fsdp_model_config *c) {
  int64_t C = c->hidden_size, I = c->intermediate_size;
  int64_t attention = 3 * C * C + 3 * C + C * C + C, mlp = C * I + I + I * C + C;
  int64_t tables = (c->tie_word_embeddings ? 1 : 2) * c->vocab_size * C + c->max_position_embeddings * C;
  return c->num_layers * (attention + mlp + 4 * C) + tables + 2 * C;
}

// N counts all parameters but positions, and an input embedding that the head does not share.
static double flops_per_token(const fsdp_model_config *c, int64_t seq, fsdp_flops_convention convention) {
  int64_t tables = c->max_position_embeddings + (c->tie_word_embeddings ? 0 : c->vocab_size);
  double parameters = (double)(parameter_count(c) - tables * c->hidden_size);
  return 6 * parameters + fsdp_parts_attention_flops_per_token(c, seq, convention);
}

// ---- The graph

// A block's modules that own parameters or ops.
typedef struct block_modules {
  int ln_1, attention, c_attn, attn_c_proj, ln_2, c_fc, act, mlp_c_proj;
} block_modules;

static block_modules block_module_tree(fsdp_parts *p, int blocks, int index) {
  const fsdp_model_config *c = p->config;
  fsdp_graph *g = p->graph;
  int64_t C = c->hidden_size, I = c->intermediate_size;
  // The sum of 2 L of them has the deviation of one (GPT-2's paper).
  float deviation = (float)c->initializer_range;
  float residual = (float)(c->initializer_range / sqrt(2.0 * (double)c->num_layers));
  const fsdp_conv1d_spec qkv = {.in = C, .out = 3 * C, .init_deviation = deviation, .block_count = 3};
  block_modules m;
  char name[24];
  snprintf(name, sizeof name, "%d", index);
  int block = fsdp_graph_module(g, blocks, name, g->block_class, "");
  m.ln_1 = fsdp_parts_norm_module(p, block, "ln_1", NULL, C);
  m.attention = fsdp_graph_module(g, block, "attn", "GPT2Attention", "");
  m.c_attn = fsdp_parts_conv1d_module(p, m.attention, "c_attn", &qkv);
  m.attn_c_proj = fsdp_parts_conv1d_module(
      p, m.attention, "c_proj", &(fsdp_conv1d_spec){.in = C, .out = C, .init_deviation = residual});
  fsdp_parts_dropout_module(p, m.attention, "attn_dropout", c->attn_pdrop);
  fsdp_parts_dropout_module(p, m.attention, "resid_dropout", c->resid_pdrop);
  m.ln_2 = fsdp_parts_norm_module(p, block, "ln_2", NULL, C);
  int mlp = fsdp_graph_module(g, block, "mlp", "GPT2MLP", "");
  m.c_fc = fsdp_parts_conv1d_module(p, mlp, "c_fc",
                                    &(fsdp_conv1d_spec){.in = C, .out = I, .init_deviation = deviation});
  m.mlp_c_proj = fsdp_parts_conv1d_module(p, mlp, "c_proj",
                                          &(fsdp_conv1d_spec){.in = I, .out = C, .init_deviation = residual});
  m.act = fsdp_graph_module(g, mlp, "act", "NewGELUActivation", "");
  fsdp_parts_dropout_module(p, mlp, "dropout", c->resid_pdrop);
  return m;
}

// One block over the residual stream.
static void block_forward(fsdp_parts *p, fsdp_residual *stream, const block_modules *m) {
  int y = fsdp_parts_add_norm(p, stream, m->ln_1, true);
  int qkv = fsdp_parts_linear(p, y, 1, &m->c_attn, "qkv");
  int o = fsdp_parts_attention(p, qkv, m->attention);
  stream->delta = fsdp_parts_linear(p, o, 1, &m->attn_c_proj, "attn");
  y = fsdp_parts_add_norm(p, stream, m->ln_2, false);
  int x = fsdp_parts_linear(p, y, 1, &m->c_fc, "fc");
  int s = fsdp_parts_gelu(p, x, m->act);
  stream->delta = fsdp_parts_linear(p, s, 1, &m->mlp_c_proj, "mlp");
}

static void build(const fsdp_model_config *config, fsdp_graph *g) {
  fsdp_parts p = fsdp_parts_of(config, g);

  // The module tree, in state-dict order.
  int root = fsdp_graph_module(g, -1, "", "GPT2LMHeadModel", "");
  int model = fsdp_graph_module(g, root, "transformer", "GPT2Model", "");
  int tokens = fsdp_parts_embedding_module(&p, model, "wte", config->vocab_size);
  int positions = fsdp_parts_embedding_module(&p, model, "wpe", config->max_position_embeddings);
  fsdp_parts_dropout_module(&p, model, "drop", config->embd_pdrop);
  int blocks = fsdp_graph_module(g, model, "h", "ModuleList", "");
  block_modules *modules = fsdp_alloc_zeroed((size_t)config->num_layers, sizeof *modules);
  for (int i = 0; i < config->num_layers; i++) modules[i] = block_module_tree(&p, blocks, i);
  int norm = fsdp_parts_norm_module(&p, model, "ln_f", NULL, config->hidden_size);
  int head = fsdp_parts_head_module(&p, root, "lm_head", tokens);

  // The forward pass, top to bottom.
  fsdp_residual stream = {fsdp_parts_embedding(&p, tokens), -1};
  fsdp_parts_add_positions(&p, stream.h, positions);
  for (p.block = 0; p.block < config->num_layers; p.block++) block_forward(&p, &stream, &modules[p.block]);
  p.block = -1;
  int y = fsdp_parts_add_norm(&p, &stream, norm, false);
  fsdp_parts_cross_entropy(&p, y, head);
  free(modules);
}

const fsdp_family fsdp_family_gpt2 = {
    .block_class = "GPT2Block",
    .presets = presets,
    .keys_without_numbers = keys_without_numbers,
    .buffers = buffers,
    .base_prefix = "transformer.",
    .learned_positions = true,
    .read = read_config,
    .print = print_config,
    .parameter_count = parameter_count,
    .flops_per_token = flops_per_token,
    .note = note,
    .dropout = dropout,
    .build = build,
};
