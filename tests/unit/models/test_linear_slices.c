// Several linear layers that write neighbouring columns of one y, as q, k and v do: the gemms and sums that
// they become, depending on how their weights and biases are stored, and their gradients against central
// differences of the loss in double.
#include "models/family.h"
#include "models/parts.h"
#include "runtime/base/check.h"
#include "tests/support/draws.h"
#include "tests/support/harness.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Sequences of a batch, tokens of each, channels, vocabulary, slices. A weight of any number of outputs fills
// whole alignments of 16 elements (C is one), so that neighbours join; a bias does if its outputs do.
enum { B = 2, T = 3, C = 16, V = 7, S = 3, STEPS = 2 };

typedef struct variant {
  const char *name;
  int64_t outs[S];
  bool transposed, bias;
  bool grouped; // all weights before all biases, else each bias after its weight
  // What must become of them: the gemms of the forward and of the two gradients, and the sums of biases.
  int forward, input, weight, sums;
} variant;

static const variant variants[] = {
    {"weights alone", {16, 32, 16}, false, false, false, 1, 1, 1, 0},
    {"transposed weights", {16, 32, 16}, true, false, false, 3, 3, 3, 0},
    {"a bias after each weight", {16, 32, 16}, false, true, false, 3, 3, 3, 3},
    {"neighbouring biases", {16, 32, 16}, false, true, true, 1, 1, 1, 1},
    {"padded biases", {8, 4, 12}, false, true, true, 3, 1, 1, 3},
    {"transposed weights, neighbouring biases", {16, 32, 16}, true, true, true, 3, 3, 3, 1},
};

static const variant *tried;

static int64_t columns(void) {
  int64_t sum = 0;
  for (int s = 0; s < S; s++) sum += tried->outs[s];
  return sum;
}

static int add_param(fsdp_graph *g, int module, const char *kind, int slice) {
  bool is_weight = strcmp(kind, "weight") == 0;
  int64_t out = tried->outs[slice];
  fsdp_param spec = {.dims = is_weight ? 2 : 1, .shape = {out, C}, .init_deviation = 0.3f};
  snprintf(spec.name, sizeof spec.name, "%s_%d", kind, slice);
  if (is_weight && tried->transposed) {
    spec.transposed = true;
    spec.shape[0] = C, spec.shape[1] = out;
  }
  return g->params[fsdp_graph_param(g, module, &spec)].value;
}

static void build(const fsdp_model_config *config, fsdp_graph *g) {
  fsdp_parts p = fsdp_parts_of(config, g);
  int weights[S], biases[S];
  int root = fsdp_graph_module(g, -1, "", "Model", "");
  int embedding = fsdp_parts_embedding_module(&p, root, "embed", V);
  int layers = fsdp_graph_module(g, root, "layers", "ModuleList", "");
  int layer = fsdp_graph_module(g, layers, "0", g->block_class, "");
  int slices = fsdp_graph_module(g, layer, "slices", "Slices", "");
  for (int s = 0; s < S; s++) {
    weights[s] = add_param(g, slices, "weight", s);
    if (tried->bias && !tried->grouped) biases[s] = add_param(g, slices, "bias", s);
  }
  for (int s = 0; s < S && tried->bias && tried->grouped; s++) biases[s] = add_param(g, slices, "bias", s);
  int down = fsdp_parts_linear_module(&p, layer, "down", columns(), C, false);
  int head = fsdp_parts_head_module(&p, root, "head", embedding);

  int h = fsdp_parts_embedding(&p, embedding);
  g->values[h].kept = true; // what enters the layer
  p.block = 0;
  int y = fsdp_graph_value(g, FSDP_VALUE_ACTIVATION, FSDP_VALUE_COMPUTE, slices, "y", 2,
                           (int64_t[]){p.rows, columns()});
  fsdp_node *n = fsdp_graph_forward_node(g, tried->bias ? FSDP_OP_LINEAR_BIAS : FSDP_OP_LINEAR, slices, 0);
  n->attrs = p.attrs;
  n->weight_count = S;
  n->bias_count = tried->bias ? S : 0;
  memcpy(n->weights, weights, sizeof weights);
  if (tried->bias) memcpy(n->biases, biases, sizeof biases);
  fsdp_node_operand_add(n, h, FSDP_READ);
  fsdp_node_operand_add(n, y, FSDP_WRITE);
  int x = fsdp_parts_linear(&p, y, 1, &down, "x");
  p.block = -1;
  fsdp_parts_cross_entropy(&p, x, head);
}

static int64_t parameter_count(const fsdp_model_config *config) {
  return 2 * V * C + columns() * (2 * C + tried->bias);
}

static double flops_per_token(const fsdp_model_config *config, int64_t seq,
                              fsdp_flops_convention convention) {
  return 6 * (double)parameter_count(config);
}

static const fsdp_family family = {.block_class = "Block",
                                   .parameter_count = parameter_count,
                                   .flops_per_token = flops_per_token,
                                   .build = build};

static harness_config config_of(const variant *v) {
  tried = v;
  harness_config config = {.plan = harness_small_plan(1), .lr = 0.05f, .seed = 4};
  config.plan.model = (fsdp_model_config){.family = &family,
                                          .vocab_size = V,
                                          .hidden_size = C,
                                          .intermediate_size = 1,
                                          .num_layers = 1,
                                          .num_heads = 1,
                                          .num_kv_heads = 1,
                                          .head_dim = 2,
                                          .max_position_embeddings = T,
                                          .norm_eps = 1e-5,
                                          .initializer_range = 0.3};
  config.plan.batch = B;
  config.plan.seq = T;
  config.plan.grad_clip = 0;
  return config;
}

// ---- The program

// The launches of `op` over slices: how many; they must cover all columns in order, once.
static int check_launches(const fsdp_program *program, fsdp_op_kind op, int weight, int bias) {
  int count = 0;
  int64_t covered = 0, width = 4; // bytes of an element
  for (int i = 0; i < program->instr_count; i++) {
    const fsdp_instr *instr = &program->instrs[i];
    const fsdp_op_attrs *attrs = &instr->attrs;
    if (instr->kind != FSDP_INSTR_OP || instr->op != op || attrs->out_stride != columns()) continue;
    const fsdp_operand *operands = &program->operands[instr->first_operand];
    assert_int_equal(attrs->out_offset, covered);
    covered += attrs->out_features;
    if (weight >= 0) {
      assert_int_equal(attrs->in_features, C);
      assert_int_equal(attrs->weight_transposed, tried->transposed);
      assert_int_equal(operands[weight].size_bytes, attrs->out_features * C * width);
    }
    if (bias >= 0) assert_int_equal(operands[bias].size_bytes, attrs->out_features * width);
    // What sums over the columns is written by the first gemm, and the others add to it.
    bool adds = op == FSDP_OP_LINEAR_BACKWARD_INPUT && count > 0;
    assert_int_equal(operands[instr->operand_count - 1].access, adds ? FSDP_UPDATE : FSDP_WRITE);
    count++;
  }
  assert_true(covered == columns() || count == 0);
  return count;
}

TEST(test_launches) {
  for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
    const variant *v = &variants[i];
    const fsdp_plan_config config = config_of(v).plan;
    fsdp_plan *plan = NULL;
    fsdp_error error = {0};
    if (fsdp_plan_create(&config, &plan, &error)) fail_msg("%s: %s", v->name, error.message);
    const fsdp_program *program = plan->program;
    fsdp_op_kind forward = v->bias ? FSDP_OP_LINEAR_BIAS : FSDP_OP_LINEAR;
    assert_int_equal(check_launches(program, forward, 1, v->bias ? 2 : -1), v->forward);
    assert_int_equal(check_launches(program, FSDP_OP_LINEAR_BACKWARD_INPUT, 1, -1), v->input);
    assert_int_equal(check_launches(program, FSDP_OP_LINEAR_BACKWARD_WEIGHT, 2, -1), v->weight);
    assert_int_equal(check_launches(program, FSDP_OP_BIAS_BACKWARD, -1, 1), v->sums);
    fsdp_plan_destroy(plan);
  }
}

// ---- The gradients

// Parameters in the order of the state dict.
typedef struct layers {
  const double *embedding, *weights[S], *biases[S], *down, *head;
} layers;

static layers layers_of(const double *at) {
  layers l = {.embedding = at};
  at += V * C;
  for (int s = 0; s < S; s++) {
    l.weights[s] = at, at += tried->outs[s] * C;
    if (tried->bias && !tried->grouped) l.biases[s] = at, at += tried->outs[s];
  }
  for (int s = 0; s < S && tried->bias && tried->grouped; s++) l.biases[s] = at, at += tried->outs[s];
  l.down = at, l.head = at + columns() * C;
  return l;
}

static double loss_of(const layers *l, int token, int target) {
  const double *h = l->embedding + token * C;
  double y[64], sum = 0, score = 0;
  int64_t column = 0;
  assert_true(columns() <= 64);
  for (int s = 0; s < S; s++)
    for (int64_t o = 0; o < tried->outs[s]; o++, column++) {
      y[column] = tried->bias ? l->biases[s][o] : 0;
      for (int64_t c = 0; c < C; c++)
        y[column] += h[c] * l->weights[s][tried->transposed ? c * tried->outs[s] + o : o * C + c];
    }
  double x[C] = {0};
  for (int64_t c = 0; c < C; c++)
    for (int64_t i = 0; i < column; i++) x[c] += l->down[c * column + i] * y[i];
  for (int v = 0; v < V; v++) {
    double logit = 0;
    for (int c = 0; c < C; c++) logit += l->head[v * C + c] * x[c];
    sum += exp(logit);
    if (v == target) score = logit;
  }
  return log(sum) - score;
}

static double mean_loss(const double *params, const int32_t *tokens, const int32_t *targets) {
  layers l = layers_of(params);
  double sum = 0;
  for (int n = 0; n < B * T; n++) sum += loss_of(&l, tokens[n], targets[n]);
  return sum / (B * T);
}

TEST(test_gradients) {
  int32_t tokens[STEPS * B * T], targets[STEPS * B * T];
  for (int n = 0; n < STEPS * B * T; n++) tokens[n] = (n * n + 3) % V, targets[n] = (5 * n + 1) % V;
  for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
    harness_config config = config_of(&variants[i]);
    config.tokens = tokens, config.targets = targets;
    print_message("%s\n", tried->name);
    const int64_t every = test_stride(9);
    double *params = harness_params_after_step(config);
    harness_check_gradients(config, params, mean_loss, every);
    config.plan.mesh = fsdp_mesh_of(1, 2);
    config.plan.batch = 1;
    config.plan.saving = fsdp_saving_of_blocks(); // y is made again by the same gemms
    harness_check_gradients(config, params, mean_loss, every);
    config.plan.mesh = fsdp_mesh_of(1, 1);
    config.plan.micro_batches = 2; // gradients are added to
    config.plan.accumulate = FSDP_ACCUMULATE_LOCAL;
    harness_check_gradients(config, params, mean_loss, every);
    free(params);
  }
}
