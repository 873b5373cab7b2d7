#include "models/llama.h"

#include "runtime/base/check.h"
#include "runtime/base/size.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

// Legend: B sequences, T tokens each, N = B*T, C hidden size, H heads, K key/value heads, D head dimension,
// Q = (H + 2K)*D, I intermediate size, V vocabulary.

typedef struct builder {
  const fsdp_llama_config *config;
  fsdp_graph *graph;
  int64_t rows;        // N
  fsdp_op_attrs attrs; // what every op of the model may need
} builder;

// A decoder layer's modules that own parameters or ops.
typedef struct layer_modules {
  int layer, attention, q, k, v, o, mlp, gate, up, down, activation, input_norm, post_norm;
} layer_modules;

static int linear_module(builder *b, int parent, const char *name, int64_t in, int64_t out) {
  char detail[FSDP_NAME_BYTES];
  snprintf(detail, sizeof detail, "in_features=%lld, out_features=%lld, bias=False", (long long)in,
           (long long)out);
  int module = fsdp_graph_module(b->graph, parent, name, "Linear", detail);
  fsdp_param_spec weight = {
      .name = "weight", .dims = 2, .shape = {out, in}, .init_deviation = (float)b->config->initializer_range};
  fsdp_graph_param(b->graph, module, &weight);
  return module;
}

static int norm_module(builder *b, int parent, const char *name) {
  // Python's repr of the eps, which is the shortest decimal that reads back as the same double.
  char eps[40], detail[FSDP_NAME_BYTES];
  for (int digits = 1; digits <= 17; digits++) {
    snprintf(eps, sizeof eps, "%.*g", digits, b->config->rms_norm_eps);
    double back = 0;
    sscanf(eps, "%lf", &back);
    if (back == b->config->rms_norm_eps) break;
  }
  snprintf(detail, sizeof detail, "(%lld,), eps=%s", (long long)b->config->hidden_size, eps);
  int module = fsdp_graph_module(b->graph, parent, name, "LlamaRMSNorm", detail);
  fsdp_param_spec weight = {.name = "weight", .dims = 1, .shape = {b->config->hidden_size}, .init_mean = 1};
  fsdp_graph_param(b->graph, module, &weight);
  return module;
}

static layer_modules layer_module_tree(builder *b, int layers, int index) {
  const fsdp_llama_config *c = b->config;
  fsdp_graph *g = b->graph;
  layer_modules m;
  char name[24];
  snprintf(name, sizeof name, "%d", index);
  m.layer = fsdp_graph_module(g, layers, name, "LlamaDecoderLayer", "");
  m.attention = fsdp_graph_module(g, m.layer, "self_attn", "LlamaSdpaAttention", "");
  m.q = linear_module(b, m.attention, "q_proj", c->hidden_size, c->num_heads * c->head_dim);
  m.k = linear_module(b, m.attention, "k_proj", c->hidden_size, c->num_kv_heads * c->head_dim);
  m.v = linear_module(b, m.attention, "v_proj", c->hidden_size, c->num_kv_heads * c->head_dim);
  m.o = linear_module(b, m.attention, "o_proj", c->num_heads * c->head_dim, c->hidden_size);
  fsdp_graph_module(g, m.attention, "rotary_emb", "LlamaRotaryEmbedding", "");
  m.mlp = fsdp_graph_module(g, m.layer, "mlp", "LlamaMLP", "");
  m.gate = linear_module(b, m.mlp, "gate_proj", c->hidden_size, c->intermediate_size);
  m.up = linear_module(b, m.mlp, "up_proj", c->hidden_size, c->intermediate_size);
  m.down = linear_module(b, m.mlp, "down_proj", c->intermediate_size, c->hidden_size);
  m.activation = fsdp_graph_module(g, m.mlp, "act_fn", "SiLU", "");
  m.input_norm = norm_module(b, m.layer, "input_layernorm");
  m.post_norm = norm_module(b, m.layer, "post_attention_layernorm");
  return m;
}

// An activation of `columns` columns a row (0: one number a row).
static int activation(builder *b, int module, const char *name, fsdp_value_dtype dtype, int64_t columns) {
  return fsdp_graph_value(b->graph, FSDP_VALUE_ACTIVATION, dtype, module, name, columns ? 2 : 1,
                          (int64_t[]){b->rows, columns});
}

static fsdp_node *node(builder *b, fsdp_op_kind kind, int module, int block) {
  fsdp_node *n = fsdp_graph_forward_node(b->graph, kind, module, block);
  n->attrs = b->attrs;
  return n;
}

// The value of a module's weight, its own or the one that it is tied to.
static int weight_of(const builder *b, int module) {
  return b->graph->params[fsdp_graph_param_of(b->graph, module, "weight")].value;
}

// y = x * weight^T for one weight, or for neighbours whose outputs are side by side in y. Returns y (N, sum
// of outs).
static int linear(builder *b, int x, int count, const int *modules, int block, const char *name) {
  int64_t columns = 0;
  for (int i = 0; i < count; i++) columns += b->graph->values[weight_of(b, modules[i])].shape[0];
  int y = activation(b, modules[0], name, FSDP_VALUE_COMPUTE, columns);
  fsdp_node *n = node(b, FSDP_OP_LINEAR, modules[0], block);
  for (int i = 0; i < count; i++) n->weights[n->weight_count++] = weight_of(b, modules[i]);
  fsdp_node_operand_add(n, x, FSDP_READ);
  fsdp_node_operand_add(n, y, FSDP_WRITE);
  return y;
}

// The residual stream and what the last sublayer wants added to it (-1: nothing yet).
typedef struct residual {
  int h, delta;
} residual;

// Adds the pending delta to the stream and normalises the sum: returns y, and leaves the sum in stream->h.
static int add_norm(builder *b, residual *stream, int module, int block, bool opens_block) {
  int64_t C = b->config->hidden_size;
  int weight = weight_of(b, module), h = stream->h;
  if (stream->delta >= 0) h = activation(b, module, "h", FSDP_VALUE_COMPUTE, C);
  int y = activation(b, module, "y", FSDP_VALUE_COMPUTE, C);
  int rstd = activation(b, module, "rstd", FSDP_VALUE_F32, 0);
  fsdp_node *n = node(b, stream->delta >= 0 ? FSDP_OP_ADD_RMSNORM : FSDP_OP_RMSNORM, module, block);
  fsdp_node_operand_add(n, stream->h, FSDP_READ);
  if (stream->delta >= 0) fsdp_node_operand_add(n, stream->delta, FSDP_READ);
  fsdp_node_operand_add(n, weight, FSDP_READ);
  if (stream->delta >= 0) fsdp_node_operand_add(n, h, FSDP_WRITE);
  fsdp_node_operand_add(n, y, FSDP_WRITE);
  fsdp_node_operand_add(n, rstd, FSDP_WRITE);
  if (opens_block) b->graph->values[h].checkpoint = true;
  *stream = (residual){h, -1};
  return y;
}

// o (N, H*D) = causal attention over the rotated q|k|v (N, Q).
static int attention(builder *b, int qkv, int module, int block) {
  const fsdp_llama_config *c = b->config;
  fsdp_node_operand_add(node(b, FSDP_OP_ROPE, module, block), qkv, FSDP_UPDATE);
  int o = activation(b, module, "o", FSDP_VALUE_COMPUTE, c->num_heads * c->head_dim);
  int64_t lse_shape[3] = {b->graph->batch, c->num_heads, b->graph->seq};
  int lse = fsdp_graph_value(b->graph, FSDP_VALUE_ACTIVATION, FSDP_VALUE_F32, module, "lse", 3, lse_shape);
  fsdp_node *n = node(b, FSDP_OP_ATTENTION, module, block);
  fsdp_node_operand_add(n, qkv, FSDP_READ);
  fsdp_node_operand_add(n, o, FSDP_WRITE);
  fsdp_node_operand_add(n, lse, FSDP_WRITE);
  return o;
}

static int swiglu(builder *b, int gate_up, int module, int block) {
  int s = activation(b, module, "s", FSDP_VALUE_COMPUTE, b->config->intermediate_size);
  fsdp_node *n = node(b, FSDP_OP_SWIGLU, module, block);
  fsdp_node_operand_add(n, gate_up, FSDP_READ);
  fsdp_node_operand_add(n, s, FSDP_WRITE);
  return s;
}

static int embedding(builder *b, int module) {
  int h = activation(b, module, "h", FSDP_VALUE_COMPUTE, b->config->hidden_size);
  fsdp_node *n = node(b, FSDP_OP_EMBEDDING, module, -1);
  fsdp_node_operand_add(n, b->graph->tokens, FSDP_READ);
  fsdp_node_operand_add(n, weight_of(b, module), FSDP_READ);
  fsdp_node_operand_add(n, h, FSDP_WRITE);
  return h;
}

static void cross_entropy(builder *b, int y, int module) {
  fsdp_node *n = node(b, FSDP_OP_LINEAR_CROSS_ENTROPY, module, -1);
  fsdp_node_operand_add(n, y, FSDP_READ);
  fsdp_node_operand_add(n, weight_of(b, module), FSDP_READ);
  fsdp_node_operand_add(n, b->graph->targets, FSDP_READ);
  fsdp_node_operand_add(n, b->graph->count, FSDP_READ);
  fsdp_node_operand_add(n, b->graph->loss, FSDP_WRITE);
}

// One decoder layer over the residual stream.
static void decoder_layer(builder *b, residual *stream, const layer_modules *m, int block) {
  int y = add_norm(b, stream, m->input_norm, block, true);
  int qkv = linear(b, y, 3, (int[]){m->q, m->k, m->v}, block, "qkv");
  int o = attention(b, qkv, m->attention, block);
  stream->delta = linear(b, o, 1, &m->o, block, "attn");
  y = add_norm(b, stream, m->post_norm, block, false);
  int gate_up = linear(b, y, 2, (int[]){m->gate, m->up}, block, "gate_up");
  int s = swiglu(b, gate_up, m->mlp, block);
  stream->delta = linear(b, s, 1, &m->down, block, "mlp");
}

static void input_values(builder *b) {
  fsdp_graph *g = b->graph;
  g->tokens = fsdp_graph_value(g, FSDP_VALUE_INPUT, FSDP_VALUE_I32, 0, "tokens", 1, &b->rows);
  g->targets = fsdp_graph_value(g, FSDP_VALUE_INPUT, FSDP_VALUE_I32, 0, "targets", 1, &b->rows);
  g->count = fsdp_graph_value(g, FSDP_VALUE_COUNT_SCALAR, FSDP_VALUE_F32, 0, "count", 1, (int64_t[]){1});
  g->loss = fsdp_graph_value(g, FSDP_VALUE_LOSS, FSDP_VALUE_F32, 0, "loss", 1, (int64_t[]){1});
}

// Inverse frequencies of RoPE with the configuration's scaling (Transformers' modeling_rope_utils defines
// both).
static float *rope_inv_freq(const fsdp_llama_config *c) {
  int64_t half = c->head_dim / 2;
  float *inv_freq = fsdp_alloc_zeroed((size_t)half, sizeof *inv_freq);
  for (int64_t i = 0; i < half; i++) {
    float exponent = (float)(2 * i) / (float)c->head_dim;
    float plain = 1.0f / powf((float)c->rope_theta, exponent);
    if (c->rope_scaling == FSDP_ROPE_LINEAR) plain /= (float)c->rope_factor;
    inv_freq[i] = plain;
    if (c->rope_scaling != FSDP_ROPE_LLAMA3) continue;
    double context = (double)c->rope_original_max_position, wavelength = 2 * 3.14159265358979323846 / plain;
    if (wavelength > context / c->rope_low_freq_factor) {
      inv_freq[i] = plain / (float)c->rope_factor;
    } else if (wavelength >= context / c->rope_high_freq_factor) {
      double smooth = (context / wavelength - c->rope_low_freq_factor) /
                      (c->rope_high_freq_factor - c->rope_low_freq_factor);
      inv_freq[i] = (float)((1 - smooth) * plain / c->rope_factor + smooth * plain);
    }
  }
  return inv_freq;
}

static fsdp_op_attrs model_attrs(const fsdp_llama_config *c, const fsdp_graph *g) {
  return (fsdp_op_attrs){.batch = g->batch,
                         .seq = g->seq,
                         .channels = c->hidden_size,
                         .heads = c->num_heads,
                         .kv_heads = c->num_kv_heads,
                         .head_dim = c->head_dim,
                         .hidden = c->intermediate_size,
                         .vocabulary = c->vocab_size,
                         .chunk_rows = fsdp_op_chunk_rows(g->batch * g->seq, c->vocab_size, FSDP_F32),
                         .inv_freq = g->inv_freq,
                         .eps = (float)c->rms_norm_eps};
}

fsdp_graph *fsdp_llama_graph(const fsdp_llama_config *config, int64_t batch, int64_t seq) {
  fsdp_graph *g = fsdp_graph_create(batch, seq);
  g->inv_freq = rope_inv_freq(config);
  g->block_count = (int)config->num_layers;
  g->block_class = "LlamaDecoderLayer";
  builder b = {.config = config, .graph = g, .rows = batch * seq, .attrs = model_attrs(config, g)};

  // The module tree, in state-dict order.
  int root = fsdp_graph_module(g, -1, "", "LlamaForCausalLM", "");
  int model = fsdp_graph_module(g, root, "model", "LlamaModel", "");
  char detail[FSDP_NAME_BYTES];
  snprintf(detail, sizeof detail, "%lld, %lld", (long long)config->vocab_size,
           (long long)config->hidden_size);
  int embed = fsdp_graph_module(g, model, "embed_tokens", "Embedding", detail);
  fsdp_param_spec table = {.name = "weight",
                           .dims = 2,
                           .shape = {config->vocab_size, config->hidden_size},
                           .init_deviation = (float)config->initializer_range};
  int embed_weight = fsdp_graph_param(g, embed, &table);
  int layers = fsdp_graph_module(g, model, "layers", "ModuleList", "");
  layer_modules *modules = fsdp_alloc_zeroed((size_t)config->num_layers, sizeof *modules);
  for (int i = 0; i < config->num_layers; i++) modules[i] = layer_module_tree(&b, layers, i);
  int norm = norm_module(&b, model, "norm");
  fsdp_graph_module(g, model, "rotary_emb", "LlamaRotaryEmbedding", "");
  int head;
  if (config->tie_word_embeddings) {
    snprintf(detail, sizeof detail, "in_features=%lld, out_features=%lld, bias=False",
             (long long)config->hidden_size, (long long)config->vocab_size);
    head = fsdp_graph_module(g, root, "lm_head", "Linear", detail);
    fsdp_graph_tie(g, head, "weight", embed_weight);
  } else {
    head = linear_module(&b, root, "lm_head", config->hidden_size, config->vocab_size);
  }

  // The forward pass, top to bottom.
  input_values(&b);
  residual stream = {embedding(&b, embed), -1};
  for (int i = 0; i < config->num_layers; i++) decoder_layer(&b, &stream, &modules[i], i);
  int y = add_norm(&b, &stream, norm, -1, false);
  cross_entropy(&b, y, head);

  free(modules);
  fsdp_graph_backward(g);
  return g;
}
