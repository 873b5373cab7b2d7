// A small model of LayerNorm, GELU, learned positions, and linear layers with biases of both layouts: its
// graph as written down by hand, and its gradients against central differences of its loss in double.
#include "models/family.h"
#include "models/parts.h"
#include "runtime/base/check.h"
#include "tests/support/harness.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Sequences of a batch, tokens of each, channels, intermediate size, vocabulary, positions of the table and
// layers. No two dimensions agree, and the last positions of the table are never used.
enum { B = 4, T = 3, C = 5, I = 7, V = 11, M = 6, L = 2, STEPS = 2 };

// Whether biases are added by an op of their own, as behind a sum of partial products. The same numbers.
static bool biases_apart;

static int linear_of(fsdp_parts *p, int x, int module, const char *name) {
  int y = fsdp_parts_linear(p, x, 1, &module, name);
  if (!biases_apart) return y;
  fsdp_node *product = &p->graph->forward[p->graph->forward_count - 1];
  int bias = product->biases[0];
  product->kind = FSDP_OP_LINEAR;
  product->bias_count = 0;
  fsdp_node *n = fsdp_graph_forward_node(p->graph, FSDP_OP_ADD_BIAS, module, p->block);
  n->attrs = p->attrs;
  n->biases[n->bias_count++] = bias;
  fsdp_node_operand_add(n, y, FSDP_UPDATE);
  return y;
}

static void build(const fsdp_model_config *config, fsdp_graph *g) {
  fsdp_parts p = fsdp_parts_of(config, g);
  int norms[L], ups[L], downs[L];
  const fsdp_conv1d_spec down_spec = {.in = I, .out = C, .init_deviation = 0.5f};
  int root = fsdp_graph_module(g, -1, "", "Model", "");
  int wte = fsdp_parts_embedding_module(&p, root, "wte", V);
  int wpe = fsdp_parts_embedding_module(&p, root, "wpe", M);
  int layers = fsdp_graph_module(g, root, "h", "ModuleList", "");
  for (int i = 0; i < L; i++) {
    int layer = fsdp_graph_module(g, layers, i ? "1" : "0", g->block_class, "");
    norms[i] = fsdp_parts_norm_module(&p, layer, "ln", NULL, C);
    ups[i] = fsdp_parts_linear_module(&p, layer, "up", C, I, true);
    downs[i] = fsdp_parts_conv1d_module(&p, layer, "down", &down_spec);
  }
  int norm = fsdp_parts_norm_module(&p, root, "ln_f", NULL, C);
  int head = fsdp_parts_head_module(&p, root, "lm_head", wte);

  fsdp_residual stream = {fsdp_parts_embedding(&p, wte), -1};
  fsdp_parts_add_positions(&p, stream.h, wpe);
  for (p.block = 0; p.block < L; p.block++) {
    int y = fsdp_parts_add_norm(&p, &stream, norms[p.block], true);
    int up = linear_of(&p, y, ups[p.block], "up");
    int active = fsdp_parts_gelu(&p, up, ups[p.block]);
    stream.delta = linear_of(&p, active, downs[p.block], "down");
  }
  p.block = -1;
  fsdp_parts_cross_entropy(&p, fsdp_parts_add_norm(&p, &stream, norm, false), head);
}

static int64_t parameter_count(const fsdp_model_config *config) {
  return 2 * V * C + M * C + L * (2 * I * C + I + C) + (L + 1) * 2 * C;
}

static double flops_per_token(const fsdp_model_config *config, int64_t seq,
                              fsdp_flops_convention convention) {
  return 6 * (double)parameter_count(config);
}

static const fsdp_family family = {.block_class = "Block",
                                   .parameter_count = parameter_count,
                                   .flops_per_token = flops_per_token,
                                   .build = build};

static fsdp_model_config model(void) {
  return (fsdp_model_config){.family = &family,
                             .vocab_size = V,
                             .hidden_size = C,
                             .intermediate_size = I,
                             .num_layers = L,
                             .num_heads = 1,
                             .num_kv_heads = 1,
                             .head_dim = 2,
                             .max_position_embeddings = M,
                             .norm_eps = 1e-5,
                             .initializer_range = 0.5};
}

// ---- The graph

static void expect_kinds(const fsdp_node *nodes, int count, const fsdp_op_kind *kinds, int expected) {
  assert_int_equal(count, expected);
  for (int n = 0; n < count; n++) assert_string_equal(fsdp_op_name(nodes[n].kind), fsdp_op_name(kinds[n]));
}

TEST(test_graph) {
  const fsdp_model_config config = model();
  fsdp_graph *g = fsdp_model_graph(&config, B, T);
  static const fsdp_op_kind forward[] = {
      FSDP_OP_EMBEDDING, FSDP_OP_ADD_POSITIONS, FSDP_OP_LAYERNORM,     FSDP_OP_LINEAR_BIAS,
      FSDP_OP_GELU,      FSDP_OP_LINEAR_BIAS,   FSDP_OP_ADD_LAYERNORM, FSDP_OP_LINEAR_BIAS,
      FSDP_OP_GELU,      FSDP_OP_LINEAR_BIAS,   FSDP_OP_ADD_LAYERNORM, FSDP_OP_LINEAR_CROSS_ENTROPY};
  expect_kinds(g->forward, g->forward_count, forward, sizeof forward / sizeof *forward);
  const fsdp_node *positions = &g->forward[1], *last = &g->backward[g->backward_count - 2];
  assert_int_equal(positions->attrs.positions, M);
  assert_int_equal(positions->operands[1].value, g->forward[0].operands[2].value); // h of the embedding
  assert_int_equal(positions->operands[1].access, FSDP_UPDATE);
  assert_int_equal(last->kind, FSDP_OP_POSITIONS_BACKWARD);
  assert_int_equal(last->attrs.positions, M);
  assert_int_equal(g->backward[g->backward_count - 1].kind, FSDP_OP_EMBEDDING_BACKWARD);
  // One gradient serves the stream: each norm but the last, which comes first, adds to it.
  int norms = 0, stream = g->values[positions->operands[1].value].gradient;
  for (int n = 0; n < g->backward_count; n++) {
    const fsdp_node *node = &g->backward[n];
    if (node->kind != FSDP_OP_LAYERNORM_BACKWARD) continue;
    assert_int_equal(node->operand_count, 8);
    assert_int_equal(node->operands[5].value, stream);
    assert_int_equal(node->operands[5].access, norms++ ? FSDP_UPDATE : FSDP_WRITE);
  }
  assert_int_equal(norms, L + 1);
  for (int n = 0; n < g->forward_count; n++) // what enters a layer
    if (g->forward[n].kind == FSDP_OP_LAYERNORM || g->forward[n].kind == FSDP_OP_ADD_LAYERNORM) {
      bool adds = g->forward[n].kind == FSDP_OP_ADD_LAYERNORM;
      assert_int_equal(g->values[g->forward[n].operands[adds ? 4 : 0].value].kept, g->forward[n].block >= 0);
    }
  fsdp_graph_destroy(g);
}

TEST(test_modules) {
  const fsdp_model_config config = model();
  fsdp_graph *g = fsdp_model_graph(&config, B, T);
  static const char *const names[] = {
      "wte.weight",      "wpe.weight",    "h.0.ln.weight", "h.0.ln.bias", "h.0.up.weight", "h.0.up.bias",
      "h.0.down.weight", "h.0.down.bias", "h.1.ln.weight", "h.1.ln.bias", "h.1.up.weight", "h.1.up.bias",
      "h.1.down.weight", "h.1.down.bias", "ln_f.weight",   "ln_f.bias",   "lm_head.weight"};
  assert_int_equal(g->param_count, 17);
  for (int p = 0; p < 17; p++) assert_string_equal(g->params[p].name, names[p]);
  const fsdp_param *weight = &g->params[14], *bias = &g->params[15], *wpe = &g->params[1];
  assert_true(weight->init_mean == 1 && weight->init_deviation == 0 && weight->numel == C);
  assert_true(bias->init_mean == 0 && bias->init_deviation == 0 && bias->numel == C);
  assert_true(wpe->shape[0] == M && wpe->shape[1] == C && wpe->init_deviation == 0.5f);
  const fsdp_module *norm = &g->modules[weight->module];
  assert_string_equal(norm->class_name, "LayerNorm");
  assert_string_equal(norm->detail, "(5,), eps=1e-05, elementwise_affine=True, bias=True"); // as PyTorch
  fsdp_graph_destroy(g);
}

// What remains of the fused op if its sum was kept: the norm, of operands in LAYERNORM's order.
TEST(test_remainder) {
  bool kept[FSDP_OP_MAX_OPERANDS] = {false};
  fsdp_op_remainder left;
  assert_false(fsdp_op_remainder_of(FSDP_OP_ADD_LAYERNORM, kept, &left));
  kept[4] = true;
  assert_true(fsdp_op_remainder_of(FSDP_OP_ADD_LAYERNORM, kept, &left));
  assert_int_equal(left.kind, FSDP_OP_LAYERNORM);
  const fsdp_op_letters *whole = fsdp_op_letters_of(FSDP_OP_ADD_LAYERNORM),
                        *rest = fsdp_op_letters_of(FSDP_OP_LAYERNORM);
  assert_int_equal(left.operand_count, rest->operand_count);
  for (int o = 0; o < left.operand_count; o++)
    assert_string_equal(whole->operands[left.operands[o]].name, rest->operands[o].name);
}

// ---- The gradients

static double gelu(double x) {
  return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
}

static void layernorm(const double *h, const double *weight, const double *bias, double *y) {
  double mean = 0, variance = 0;
  for (int c = 0; c < C; c++) mean += h[c] / C;
  for (int c = 0; c < C; c++) variance += (h[c] - mean) * (h[c] - mean) / C;
  for (int c = 0; c < C; c++) y[c] = weight[c] * (h[c] - mean) / sqrt(variance + 1e-5) + bias[c];
}

// The weight is (out, in) or, transposed, (in, out); bias may be NULL.
static void linear(const double *weight, bool transposed, const double *bias, const double *x, int in,
                   int out, double *y) {
  for (int o = 0; o < out; o++) {
    y[o] = bias ? bias[o] : 0;
    for (int i = 0; i < in; i++) y[o] += weight[transposed ? i * out + o : o * in + i] * x[i];
  }
}

// The loss of one token, from all parameters in the order of the state dict.
static double loss_of(const double *params, int token, int position, int target) {
  const double *wte = params, *wpe = wte + V * C, *at = wpe + M * C;
  double h[C], y[C], up[I], delta[C], logits[V], sum = 0;
  for (int c = 0; c < C; c++) h[c] = wte[token * C + c] + wpe[position * C + c];
  for (int layer = 0; layer < L; layer++) {
    const double *up_weight = at + 2 * C, *up_bias = up_weight + I * C;
    const double *down_weight = up_bias + I, *down_bias = down_weight + I * C;
    layernorm(h, at, at + C, y);
    linear(up_weight, false, up_bias, y, C, I, up);
    for (int i = 0; i < I; i++) up[i] = gelu(up[i]);
    linear(down_weight, true, down_bias, up, I, C, delta);
    at = down_bias + C;
    for (int c = 0; c < C; c++) h[c] += delta[c];
  }
  layernorm(h, at, at + C, y);
  linear(at + 2 * C, false, NULL, y, C, V, logits);
  for (int v = 0; v < V; v++) sum += exp(logits[v]);
  return log(sum) - logits[target];
}

static double mean_loss(const double *params, const int32_t *tokens, const int32_t *targets) {
  double sum = 0;
  for (int n = 0; n < B * T; n++) sum += loss_of(params, tokens[n], n % T, targets[n]);
  return sum / (B * T);
}

static void check_plans(void) {
  int32_t tokens[STEPS * B * T], targets[STEPS * B * T];
  for (int n = 0; n < STEPS * B * T; n++) tokens[n] = (n * n + 3) % V, targets[n] = (5 * n + 1) % V;
  harness_config config = {.plan = harness_small_plan(1), .lr = 0.05f, .seed = 4};
  config.plan.model = model();
  config.plan.batch = B;
  config.plan.seq = T;
  config.plan.grad_clip = 0;
  config.tokens = tokens, config.targets = targets;
  double *params = harness_params_after_step(config);
  harness_check_gradients(config, params, mean_loss, 1);
  config.plan.mesh = fsdp_mesh_of(1, 2);
  config.plan.batch = B / 2;
  config.plan.saving = fsdp_saving_of_blocks();
  harness_check_gradients(config, params, mean_loss, 1);
  config.plan.batch = B / 4;
  config.plan.micro_batches = 2; // the table's gradient is added to
  config.plan.accumulate = FSDP_ACCUMULATE_LOCAL;
  harness_check_gradients(config, params, mean_loss, 1);
  free(params);
}

TEST(test_gradients) {
  check_plans();
}

TEST(test_gradients_with_biases_apart) {
  biases_apart = true;
  check_plans();
  biases_apart = false;
}
