#include "models/parts.h"

#include "runtime/base/access.h"
#include "runtime/base/check.h"

#include <stdio.h>
#include <string.h>

fsdp_parts fsdp_parts_of(const fsdp_model_config *c, fsdp_graph *graph) {
  int64_t rows = graph->batch * graph->seq;
  return (fsdp_parts){.config = c,
                      .graph = graph,
                      .rows = rows,
                      .attrs = {.batch = graph->batch,
                                .seq = graph->seq,
                                .channels = c->hidden_size,
                                .heads = c->num_heads,
                                .kv_heads = c->num_kv_heads,
                                .head_dim = c->head_dim,
                                .rotary_dim = c->rotary_dim,
                                .intermediate = c->intermediate_size,
                                .vocabulary = c->vocab_size,
                                .inv_freq = graph->inv_freq,
                                .eps = (float)c->norm_eps},
                      .block = -1};
}

// ---- Counts

double fsdp_parts_attention_flops_per_token(const fsdp_model_config *c, int64_t seq,
                                            fsdp_flops_convention convention) {
  double T = (double)seq, W = (double)c->window, full = (double)c->num_layers, windowed = 0;
  if (c->window && c->window < seq) windowed = (double)(c->num_layers - c->first_window_layer);
  full -= windowed;
  double positions = convention == FSDP_FLOPS_ALL_PAIRS ? (full + windowed) * T
                                                        : full * T / 2 + windowed * (W - W * W / (2 * T));
  return 12 * (double)(c->num_heads * c->head_dim) * positions;
}

// ---- Modules

static int linear_without_params(fsdp_parts *p, int parent, const char *name, int64_t in, int64_t out,
                                 bool bias) {
  char detail[FSDP_NAME_BYTES];
  snprintf(detail, sizeof detail, "in_features=%lld, out_features=%lld, bias=%s", (long long)in,
           (long long)out, bias ? "True" : "False");
  return fsdp_graph_module(p->graph, parent, name, "Linear", detail);
}

// A matrix drawn with the configuration's deviation.
static fsdp_param matrix_of(const fsdp_parts *p, int64_t rows, int64_t columns) {
  return (fsdp_param){.name = "weight",
                      .dims = 2,
                      .shape = {rows, columns},
                      .init_deviation = (float)p->config->initializer_range};
}

static void add_bias(fsdp_parts *p, int module, int64_t out) {
  fsdp_graph_param(p->graph, module, &(fsdp_param){.name = "bias", .dims = 1, .shape = {out}});
}

int fsdp_parts_linear_module(fsdp_parts *p, int parent, const char *name, int64_t in, int64_t out,
                             bool bias) {
  int module = linear_without_params(p, parent, name, in, out, bias);
  const fsdp_param weight = matrix_of(p, out, in);
  fsdp_graph_param(p->graph, module, &weight);
  if (bias) add_bias(p, module, out);
  return module;
}

int fsdp_parts_conv1d_module(fsdp_parts *p, int parent, const char *name, const fsdp_conv1d_spec *spec) {
  char detail[FSDP_NAME_BYTES];
  snprintf(detail, sizeof detail, "nf=%lld, nx=%lld", (long long)spec->out, (long long)spec->in);
  int module = fsdp_graph_module(p->graph, parent, name, "Conv1D", detail);
  fsdp_param weight = {.name = "weight",
                       .dims = 2,
                       .shape = {spec->in, spec->out},
                       .init_deviation = spec->init_deviation,
                       .transposed = true,
                       .block_count = spec->block_count};
  fsdp_param bias = {.name = "bias", .dims = 1, .shape = {spec->out}, .block_count = spec->block_count};
  for (int b = 0; b < spec->block_count; b++)
    weight.block_sizes[b] = bias.block_sizes[b] = spec->out / spec->block_count;
  fsdp_graph_param(p->graph, module, &weight);
  fsdp_graph_param(p->graph, module, &bias);
  return module;
}

// Python's repr of a number: the shortest decimal that reads back as the same double.
static const char *python_float(double number, char out[32]) {
  for (int digits = 1; digits <= 17; digits++) {
    snprintf(out, 32, "%.*g", digits, number);
    double back = 0;
    sscanf(out, "%lf", &back);
    if (back == number) break;
  }
  if (!strpbrk(out, ".e")) strcat(out, ".0");
  return out;
}

int fsdp_parts_norm_module(fsdp_parts *p, int parent, const char *name, const char *class_name,
                           int64_t width) {
  const bool centred = !class_name;
  char eps[32], detail[FSDP_NAME_BYTES];
  snprintf(detail, sizeof detail, "(%lld,), eps=%s%s", (long long)width,
           python_float(p->config->norm_eps, eps), centred ? ", elementwise_affine=True, bias=True" : "");
  int module = fsdp_graph_module(p->graph, parent, name, centred ? "LayerNorm" : class_name, detail);
  fsdp_param weight = {.name = "weight", .dims = 1, .shape = {width}, .init_mean = 1};
  fsdp_graph_param(p->graph, module, &weight);
  if (centred) add_bias(p, module, width);
  return module;
}

int fsdp_parts_embedding_module(fsdp_parts *p, int parent, const char *name, int64_t count) {
  const int64_t C = p->config->hidden_size, padding = p->config->padding_token - 1;
  char detail[FSDP_NAME_BYTES];
  int used = snprintf(detail, sizeof detail, "%lld, %lld", (long long)count, (long long)C);
  if (padding >= 0)
    snprintf(detail + used, sizeof detail - (size_t)used, ", padding_idx=%lld", (long long)padding);
  int module = fsdp_graph_module(p->graph, parent, name, "Embedding", detail);
  fsdp_param weight = matrix_of(p, count, C);
  if (padding >= 0) weight.zero_first = padding * C, weight.zero_numel = C;
  fsdp_graph_param(p->graph, module, &weight);
  return module;
}

void fsdp_parts_dropout_module(fsdp_parts *p, int parent, const char *name, double probability) {
  char number[32], detail[FSDP_NAME_BYTES];
  snprintf(detail, sizeof detail, "p=%s, inplace=False", python_float(probability, number));
  fsdp_graph_module(p->graph, parent, name, "Dropout", detail);
}

int fsdp_parts_head_module(fsdp_parts *p, int parent, const char *name, int embedding) {
  const fsdp_model_config *c = p->config;
  const int64_t in = c->hidden_size, out = c->vocab_size;
  if (!c->tie_word_embeddings) return fsdp_parts_linear_module(p, parent, name, in, out, false);
  int module = linear_without_params(p, parent, name, in, out, false);
  fsdp_graph_tie(p->graph, module, "weight", fsdp_graph_param_of(p->graph, embedding, "weight"));
  return module;
}

// ---- Ops

int fsdp_parts_value(fsdp_parts *p, int module, const char *name, fsdp_value_dtype dtype, int64_t rows,
                     int64_t columns) {
  return fsdp_graph_value(p->graph, FSDP_VALUE_ACTIVATION, dtype, module, name, columns ? 2 : 1,
                          (int64_t[]){rows, columns});
}

// One of each of the model's rows.
static int activation(fsdp_parts *p, int module, const char *name, fsdp_value_dtype dtype, int64_t columns) {
  return fsdp_parts_value(p, module, name, dtype, p->rows, columns);
}

fsdp_node *fsdp_parts_node(fsdp_parts *p, fsdp_op_kind kind, int module, int count, const int *operands) {
  const fsdp_op_letters *op = fsdp_op_letters_of(kind);
  fsdp_node *node = fsdp_graph_forward_node(p->graph, kind, module, p->block);
  node->attrs = p->attrs;
  for (int i = 0; i < count; i++) fsdp_node_operand_add(node, operands[i], op->operands[i].access);
  return node;
}

// The value of a module's weight, its own or the one that it is tied to.
static int weight_of(const fsdp_parts *p, int module) {
  int param = fsdp_graph_param_of(p->graph, module, "weight");
  FSDP_CHECK(param >= 0, "module %s has no weight", p->graph->modules[module].name);
  return p->graph->params[param].value;
}

static int input(const fsdp_parts *p, fsdp_input what) {
  return fsdp_graph_input(p->graph, what, p->rows);
}

int fsdp_parts_embedding(fsdp_parts *p, int module) {
  int h = activation(p, module, "h", FSDP_VALUE_COMPUTE, p->config->hidden_size);
  const int operands[] = {input(p, FSDP_INPUT_TOKENS), weight_of(p, module), h};
  fsdp_parts_node(p, FSDP_OP_EMBEDDING, module, 3, operands)->attrs.padding_token = p->config->padding_token;
  return h;
}

void fsdp_parts_add_positions(fsdp_parts *p, int h, int module) {
  int weight = weight_of(p, module);
  fsdp_node *n = fsdp_parts_node(p, FSDP_OP_ADD_POSITIONS, module, 2, (int[]){weight, h});
  n->attrs.positions = p->graph->values[weight].shape[0];
}

int fsdp_parts_add_norm(fsdp_parts *p, fsdp_residual *stream, int module, bool opens_block) {
  int64_t C = p->config->hidden_size;
  int bias = fsdp_graph_param_of(p->graph, module, "bias"), h = stream->h;
  bool adds = stream->delta >= 0, centred = bias >= 0;
  if (adds) h = activation(p, module, "h", FSDP_VALUE_COMPUTE, C);
  int y = activation(p, module, "y", FSDP_VALUE_COMPUTE, C);
  int mean = centred ? activation(p, module, "mean", FSDP_VALUE_F32, 0) : -1;
  int rstd = activation(p, module, "rstd", FSDP_VALUE_F32, 0);
  fsdp_op_kind kind = centred ? FSDP_OP_LAYERNORM : FSDP_OP_RMSNORM;
  if (adds) kind = centred ? FSDP_OP_ADD_LAYERNORM : FSDP_OP_ADD_RMSNORM;
  int operands[FSDP_OP_MAX_OPERANDS] = {stream->h}, count = 1;
  if (adds) operands[count++] = stream->delta;
  operands[count++] = weight_of(p, module);
  if (centred) operands[count++] = p->graph->params[bias].value;
  if (adds) operands[count++] = h;
  operands[count++] = y;
  if (centred) operands[count++] = mean;
  operands[count++] = rstd;
  fsdp_parts_node(p, kind, module, count, operands);
  if (opens_block) p->graph->values[h].kept = true;
  *stream = (fsdp_residual){h, -1};
  return y;
}

int fsdp_parts_linear(fsdp_parts *p, int x, int count, const int *modules, const char *name) {
  int64_t columns = 0;
  bool biased = fsdp_graph_param_of(p->graph, modules[0], "bias") >= 0;
  for (int i = 0; i < count; i++) columns += fsdp_graph_outputs(p->graph, weight_of(p, modules[i]));
  int y = activation(p, modules[0], name, FSDP_VALUE_COMPUTE, columns);
  fsdp_node *n = fsdp_parts_node(p, biased ? FSDP_OP_LINEAR_BIAS : FSDP_OP_LINEAR, modules[0], 0, NULL);
  for (int i = 0; i < count; i++) {
    int bias = fsdp_graph_param_of(p->graph, modules[i], "bias");
    FSDP_CHECK((bias >= 0) == biased, "%s: all of these modules have a bias, or none", name);
    n->weights[n->weight_count++] = weight_of(p, modules[i]);
    if (biased) n->biases[n->bias_count++] = p->graph->params[bias].value;
  }
  fsdp_node_operand_add(n, x, FSDP_READ);
  fsdp_node_operand_add(n, y, FSDP_WRITE);
  return y;
}

int fsdp_parts_qk_norm(fsdp_parts *p, int qkv, int q_norm, int k_norm) {
  const fsdp_model_config *c = p->config;
  // Heads that are normalised together are one, as many of q as of k.
  const int64_t width = p->graph->values[weight_of(p, q_norm)].shape[0], together = width / c->head_dim;
  int64_t heads = (c->num_heads + c->num_kv_heads) / together;
  int module = p->graph->modules[q_norm].parent;
  int y = activation(p, module, "qk_norm", FSDP_VALUE_COMPUTE,
                     (c->num_heads + 2 * c->num_kv_heads) * c->head_dim);
  int rstd = activation(p, module, "rstd", FSDP_VALUE_F32, heads);
  const int operands[] = {qkv, weight_of(p, q_norm), weight_of(p, k_norm), y, rstd};
  fsdp_node *n = fsdp_parts_node(p, FSDP_OP_QK_NORM, module, 5, operands);
  n->attrs.heads /= together;
  n->attrs.kv_heads /= together;
  n->attrs.head_dim = width;
  n->attrs.inv_freq = NULL; // of single heads
  return y;
}

void fsdp_parts_rope(fsdp_parts *p, int qkv, int module) {
  fsdp_parts_node(p, FSDP_OP_ROPE, module, 1, &qkv);
}

int fsdp_parts_attention(fsdp_parts *p, int qkv, int module) {
  const fsdp_model_config *c = p->config;
  int o = activation(p, module, "o", FSDP_VALUE_COMPUTE, c->num_heads * c->head_dim);
  int64_t lse_shape[3] = {p->graph->batch, c->num_heads, p->graph->seq};
  int lse = fsdp_graph_value(p->graph, FSDP_VALUE_ACTIVATION, FSDP_VALUE_F32, module, "lse", 3, lse_shape);
  fsdp_node *n = fsdp_parts_node(p, FSDP_OP_ATTENTION, module, 3, (int[]){qkv, o, lse});
  if (p->block >= c->first_window_layer) n->attrs.window = c->window;
  return o;
}

int fsdp_parts_swiglu(fsdp_parts *p, int gate_up, int module) {
  const int64_t I = p->graph->values[gate_up].shape[1] / 2;
  int s = activation(p, module, "s", FSDP_VALUE_COMPUTE, I);
  fsdp_parts_node(p, FSDP_OP_SWIGLU, module, 2, (int[]){gate_up, s})->attrs.intermediate = I;
  return s;
}

int fsdp_parts_gelu(fsdp_parts *p, int x, int module) {
  int y = activation(p, module, "gelu", FSDP_VALUE_COMPUTE, p->config->intermediate_size);
  fsdp_parts_node(p, FSDP_OP_GELU, module, 2, (int[]){x, y});
  return y;
}

void fsdp_parts_cross_entropy(fsdp_parts *p, int y, int head) {
  const int64_t one = 1;
  fsdp_graph *g = p->graph;
  g->count = fsdp_graph_value(g, FSDP_VALUE_COUNT_SCALAR, FSDP_VALUE_F32, 0, "count", 1, &one);
  const int targets = input(p, FSDP_INPUT_TARGETS);
  const bool kept = g->loss_count > 0 && g->losses[0] < 0; // a place before those that are made already
  int loss = kept ? fsdp_graph_value(g, FSDP_VALUE_LOSS, FSDP_VALUE_F32, 0, "loss", 1, &one)
                  : fsdp_graph_loss(g, "loss");
  if (kept) g->losses[0] = loss;
  fsdp_parts_node(p, FSDP_OP_LINEAR_CROSS_ENTROPY, head, 5,
                  (int[]){y, weight_of(p, head), targets, g->count, loss});
}
