// The operands of the op table as data, against what was written down by hand and against a model's graph.
#include "models/decoder.h"
#include "tests/support/models.h"
#include "tests/support/unit_test.h"

#include <string.h>

// ---- The rows, written out again as the parsed form has them

static const fsdp_op_operand *named(fsdp_op_kind kind, const char *name) {
  const fsdp_op_letters *op = fsdp_op_letters_of(kind);
  for (int i = 0; i < op->operand_count; i++)
    if (strcmp(op->operands[i].name, name) == 0) return &op->operands[i];
  fail_msg("%s has no operand %s", fsdp_op_name(kind), name);
  return NULL;
}

static void expect_whole(fsdp_op_kind kind, const char *letters, const char *whole) {
  const fsdp_op_letters *op = fsdp_op_letters_of(kind);
  assert_int_equal(op->letter_count, strlen(letters));
  for (int i = 0; i < op->letter_count; i++) {
    assert_non_null(strchr(letters, op->letters[i].name));
    assert_int_equal(op->letters[i].is_whole, strchr(whole, op->letters[i].name) != NULL);
  }
}

TEST(test_attention) {
  const fsdp_op_letters *op = fsdp_op_letters_of(FSDP_OP_ATTENTION);
  assert_int_equal(op->operand_count, 5);
  expect_whole(FSDP_OP_ATTENTION, "bthgdwz", "tdwz");
  expect_whole(FSDP_OP_CONTEXT_ATTENTION, "bthgdswz", "dswz"); // a part's queries see keys of all parts
  expect_whole(FSDP_OP_ROPE, "bthgdw", "dw");
  expect_whole(FSDP_OP_EMBEDDING, "nvc", "");
  expect_whole(FSDP_OP_ADD_POSITIONS, "mcbtw", "mw");
  expect_whole(FSDP_OP_LAYERNORM, "nc", "c");
  expect_whole(FSDP_OP_LINEAR_CROSS_ENTROPY, "ncv", "cv");
  expect_whole(FSDP_OP_HEAD_LOGITS, "ncv", "c");
  expect_whole(FSDP_OP_HEAD_BACKWARD, "rncv", "c");
  assert_true(fsdp_op_letter_find(op, 't')->may_part && !fsdp_op_letter_find(op, 'd')->may_part);
  assert_true(fsdp_op_gathers_keys(FSDP_OP_ATTENTION) && !fsdp_op_gathers_keys(FSDP_OP_CONTEXT_ATTENTION));
  assert_int_equal(fsdp_op_letter_find(op, 'h')->with, 'g');
  assert_int_equal(fsdp_op_letter_find(op, 'g')->with, 0);
  assert_null(fsdp_op_letter_find(op, 'c'));
  const fsdp_op_operand *qkv = named(FSDP_OP_ATTENTION, "qkv"), *lse = named(FSDP_OP_ATTENTION, "lse");
  assert_int_equal(qkv->access, FSDP_READ);
  assert_int_equal(qkv->dim_count, 2);
  assert_string_equal(qkv->dims[0].blocks[0].letters, "bt");
  assert_int_equal(qkv->dims[1].block_count, 3);
  const char *const blocks[3] = {"hd", "gd", "gd"};
  for (int b = 0; b < 3; b++) assert_string_equal(qkv->dims[1].blocks[b].letters, blocks[b]);
  assert_false(qkv->has_dtype);
  assert_int_equal(lse->access, FSDP_WRITE);
  assert_int_equal(lse->dim_count, 3);
  assert_true(lse->has_dtype && lse->dtype == FSDP_F32);
  fsdp_op_attrs attrs = {.batch = 2, .seq = 3, .heads = 4, .kv_heads = 2, .head_dim = 5};
  assert_int_equal(fsdp_op_operand_numel(&attrs, qkv, 0), 2 * 3 * (4 * 5 + 2 * 5 + 2 * 5));
  assert_int_equal(fsdp_op_operand_numel(&attrs, lse, 0), 2 * 4 * 3);
  // Starts of documents are read, last, and only there if an attribute says so.
  const fsdp_op_operand *starts = named(FSDP_OP_ATTENTION, "starts");
  assert_true(starts->given == FSDP_GIVEN_BY_DOCUMENTS && starts->access == FSDP_READ &&
              starts->dtype == FSDP_I32);
  assert_int_equal(fsdp_op_operand_count(op, &attrs), 3);
  assert_null(fsdp_op_operand_row(op, &attrs, 3));
  attrs.documents = 7;
  assert_int_equal(fsdp_op_operand_count(op, &attrs), 4);
  assert_ptr_equal(fsdp_op_operand_row(op, &attrs, 3), starts);
  assert_int_equal(fsdp_op_operand_numel(&attrs, starts, 0), 2 * 7);
  // Dropout's draws take the place behind them, or theirs.
  const fsdp_op_operand *draws = named(FSDP_OP_ATTENTION, "draws");
  attrs.draws = 11;
  assert_int_equal(fsdp_op_operand_count(op, &attrs), 5);
  assert_ptr_equal(fsdp_op_operand_row(op, &attrs, 4), draws);
  assert_int_equal(fsdp_op_operand_numel(&attrs, draws, 0), 2 * 11);
  attrs.documents = 0;
  assert_ptr_equal(fsdp_op_operand_row(op, &attrs, 3), draws);
  assert_null(fsdp_op_operand_row(op, &attrs, 4));
  // A frozen head's gradient is left out between two others.
  const fsdp_op_letters *head = fsdp_op_letters_of(FSDP_OP_LINEAR_CROSS_ENTROPY_BACKWARD);
  const fsdp_op_attrs frozen = {.weight_frozen = true, .loss_of_documents = true};
  assert_int_equal(fsdp_op_operand_count(head, &frozen), 7);
  assert_ptr_equal(fsdp_op_operand_row(head, &frozen, 6),
                   named(FSDP_OP_LINEAR_CROSS_ENTROPY_BACKWARD, "learned"));
}

TEST(test_linear) {
  expect_whole(FSDP_OP_LINEAR, "nio", "");
  const fsdp_op_operand *y = named(FSDP_OP_LINEAR, "y"), *x = named(FSDP_OP_LINEAR, "x");
  assert_true(y->may_add && y->dims[1].is_slice && !y->dims[0].is_slice && !x->dims[1].is_slice);
  fsdp_op_attrs attrs = {.batch = 2, .seq = 3, .in_features = 5, .out_features = 7, .out_stride = 11};
  assert_int_equal(fsdp_op_operand_numel(&attrs, x, 0), 6 * 5);
  assert_int_equal(fsdp_op_operand_numel(&attrs, y, 0), 6 * 11);
  assert_int_equal(fsdp_op_dim_size(&attrs, &y->dims[1], 0), 7);
  assert_int_equal(fsdp_op_slice_weight(fsdp_op_letters_of(FSDP_OP_LINEAR)), 1);
  assert_int_equal(fsdp_op_slice_weight(fsdp_op_letters_of(FSDP_OP_LINEAR_BACKWARD_INPUT)), 1);
  assert_int_equal(fsdp_op_slice_weight(fsdp_op_letters_of(FSDP_OP_LINEAR_BACKWARD_WEIGHT)), 2);
  assert_int_equal(fsdp_op_slice_weight(fsdp_op_letters_of(FSDP_OP_SWIGLU)), -1);
  assert_int_equal(fsdp_op_slice_bias(fsdp_op_letters_of(FSDP_OP_LINEAR)), -1);
  assert_int_equal(fsdp_op_slice_bias(fsdp_op_letters_of(FSDP_OP_LINEAR_BACKWARD_WEIGHT)), -1);
}

TEST(test_linear_bias) {
  expect_whole(FSDP_OP_LINEAR_BIAS, "nio", "i"); // a partial sum must not have the bias added
  expect_whole(FSDP_OP_BIAS_BACKWARD, "no", "");
  expect_whole(FSDP_OP_ADD_BIAS, "on", "");
  assert_int_equal(fsdp_op_slice_weight(fsdp_op_letters_of(FSDP_OP_LINEAR_BIAS)), 1);
  assert_int_equal(fsdp_op_slice_bias(fsdp_op_letters_of(FSDP_OP_LINEAR_BIAS)), 2);
  assert_int_equal(fsdp_op_slice_weight(fsdp_op_letters_of(FSDP_OP_BIAS_BACKWARD)), -1);
  assert_int_equal(fsdp_op_slice_bias(fsdp_op_letters_of(FSDP_OP_BIAS_BACKWARD)), 1);
  assert_int_equal(named(FSDP_OP_LINEAR_BIAS, "y")->access, FSDP_WRITE);
  assert_true(!named(FSDP_OP_LINEAR_BIAS, "y")->may_add && named(FSDP_OP_BIAS_BACKWARD, "d_bias")->may_add);
  // Stored in reverse if an attribute says so: the weights, and nothing else of any op.
  for (int kind = 0; kind < FSDP_OP_KIND_COUNT; kind++) {
    const fsdp_op_letters *op = fsdp_op_letters_of((fsdp_op_kind)kind);
    for (int i = 0; i < op->operand_count; i++)
      assert_int_equal(op->operands[i].transposable, i == fsdp_op_slice_weight(op));
  }
  const fsdp_op_operand *d_weight = named(FSDP_OP_LINEAR_BACKWARD_WEIGHT, "d_weight");
  assert_true(d_weight->may_add && d_weight->transposable && d_weight->access == FSDP_WRITE);
}

// Parts of several ranks are rows of one operand; nothing is summed over them.
TEST(test_columns) {
  expect_whole(FSDP_OP_TAKE_COLUMNS, "noi", "oi");
  expect_whole(FSDP_OP_PUT_COLUMNS, "nio", "oi");
  expect_whole(FSDP_OP_JOIN_COLUMNS, "rnio", "roi");
  expect_whole(FSDP_OP_SPLIT_COLUMNS, "nori", "roi");
  fsdp_op_attrs attrs = {
      .batch = 2, .seq = 3, .in_features = 5, .out_features = 7, .out_stride = 11, .ranks = 13, .kv_seq = 17};
  assert_int_equal(fsdp_op_operand_numel(&attrs, named(FSDP_OP_JOIN_COLUMNS, "x"), 0), 13 * 6 * 5);
  assert_int_equal(fsdp_op_operand_numel(&attrs, named(FSDP_OP_JOIN_COLUMNS, "y"), 0), 6 * 11);
  assert_int_equal(fsdp_op_operand_numel(&attrs, named(FSDP_OP_SPLIT_COLUMNS, "y"), 0), 13 * 6 * 5);
  assert_int_equal(fsdp_op_operand_numel(&attrs, named(FSDP_OP_TAKE_COLUMNS, "y"), 0), 6 * 5);
  assert_int_equal(fsdp_op_letter_size(&attrs, 's', 0), 17);
  for (int kind = FSDP_OP_TAKE_COLUMNS; kind <= FSDP_OP_SPLIT_COLUMNS; kind++) {
    const fsdp_op_letters *op = fsdp_op_letters_of((fsdp_op_kind)kind);
    bool is_put = kind == FSDP_OP_PUT_COLUMNS || kind == FSDP_OP_JOIN_COLUMNS;
    assert_int_equal(op->operands[1].may_add, is_put);
    assert_int_equal(op->operands[is_put].dims[1].is_slice, true);
    assert_int_equal(fsdp_op_slice_weight(op), -1);
    assert_int_equal(fsdp_op_slice_bias(op), -1);
    for (int i = 0; i < op->letter_count; i++) assert_false(fsdp_op_contracts(op, 1, op->letters[i].name));
  }
}

TEST(test_flat_ops) {
  const fsdp_op_letters *adamw = fsdp_op_letters_of(FSDP_OP_ADAMW);
  assert_int_equal(adamw->operand_count, 7);
  for (int i = 0; i < 7; i++) {
    assert_int_equal(adamw->operands[i].access, i < 3 ? FSDP_READ : i < 6 ? FSDP_UPDATE : FSDP_WRITE);
    assert_int_equal(adamw->operands[i].optional, i == 6);
  }
  fsdp_op_attrs none = {0};
  assert_int_equal(fsdp_op_operand_numel(&none, &adamw->operands[1], 100), FSDP_SCALAR_COUNT);
  assert_int_equal(fsdp_op_operand_numel(&none, &adamw->operands[2], 100), 1);
  assert_int_equal(fsdp_op_operand_numel(&none, &adamw->operands[3], 100), 100);
  assert_true(named(FSDP_OP_ZERO, "destination")->repeated);
  assert_int_equal(fsdp_op_operand_numel(&none, named(FSDP_OP_CHECKSUM, "digest"), 100), 2);
}

// Which letters each output sums over; no other letter of the op is contracted for that output.
TEST(test_contractions) {
  static const struct {
    fsdp_op_kind kind;
    const char *output, *letters;
  } rows[] = {
      {FSDP_OP_EMBEDDING, "h", "v"},
      {FSDP_OP_RMSNORM, "y", ""},
      {FSDP_OP_RMSNORM, "rstd", ""},
      {FSDP_OP_ADD_LAYERNORM, "h", ""},
      {FSDP_OP_ADD_LAYERNORM, "mean", ""},
      {FSDP_OP_ADD_POSITIONS, "h", ""},
      {FSDP_OP_GELU, "y", ""},
      {FSDP_OP_LINEAR, "y", "i"},
      {FSDP_OP_LINEAR_BIAS, "y", ""},
      {FSDP_OP_ADD_BIAS, "y", ""},
      {FSDP_OP_BIAS_BACKWARD, "d_bias", "n"},
      {FSDP_OP_LINEAR_BACKWARD_INPUT, "d_x", "o"},
      {FSDP_OP_LINEAR_BACKWARD_WEIGHT, "d_weight", "n"},
      {FSDP_OP_QK_NORM, "y", ""},
      {FSDP_OP_QK_NORM, "rstd", ""},
      {FSDP_OP_ROPE, "qkv", ""},
      {FSDP_OP_ATTENTION, "o", ""},
      {FSDP_OP_ATTENTION, "lse", ""},
      {FSDP_OP_ATTENTION_BACKWARD, "d_qkv", ""},
      {FSDP_OP_CONTEXT_ATTENTION, "o", ""},
      {FSDP_OP_CONTEXT_ATTENTION, "lse", ""},
      {FSDP_OP_CONTEXT_ATTENTION_BACKWARD, "d_q", ""},
      {FSDP_OP_CONTEXT_ATTENTION_BACKWARD, "d_kv", "t"}, // parts with different queries share the keys
      {FSDP_OP_SWIGLU, "s", ""},
      {FSDP_OP_EMBEDDING_BACKWARD, "d_weight", "n"},
      {FSDP_OP_RMSNORM_BACKWARD, "d_h", ""},
      {FSDP_OP_RMSNORM_BACKWARD, "d_weight", "n"},
      {FSDP_OP_LAYERNORM_BACKWARD, "d_h", ""},
      {FSDP_OP_LAYERNORM_BACKWARD, "d_weight", "n"},
      {FSDP_OP_LAYERNORM_BACKWARD, "d_bias", "n"},
      {FSDP_OP_QK_NORM_BACKWARD, "d_qkv", ""},
      {FSDP_OP_QK_NORM_BACKWARD, "d_q_weight", "nhg"}, // ranks with different heads share the weights
      {FSDP_OP_QK_NORM_BACKWARD, "d_k_weight", "nhg"},
      {FSDP_OP_POSITIONS_BACKWARD, "d_weight", "bt"},
      {FSDP_OP_LINEAR_CROSS_ENTROPY, "loss", "n"},
      {FSDP_OP_LINEAR_CROSS_ENTROPY_BACKWARD, "loss", "n"},
      {FSDP_OP_LINEAR_CROSS_ENTROPY_BACKWARD, "d_x", ""},
      {FSDP_OP_LINEAR_CROSS_ENTROPY_BACKWARD, "d_weight", "n"},
      {FSDP_OP_SUM_SQUARES, "sum", "p"},
      {FSDP_OP_ADAMW, "master", ""},
      {FSDP_OP_CHECKSUM, "digest", ""},
  };
  for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
    const fsdp_op_letters *op = fsdp_op_letters_of(rows[r].kind);
    int output = (int)(named(rows[r].kind, rows[r].output) - op->operands);
    for (int i = 0; i < op->letter_count; i++) {
      char letter = op->letters[i].name;
      bool contracted = strchr(rows[r].letters, letter) != NULL;
      if (fsdp_op_contracts(op, output, letter) != contracted)
        fail_msg("%s: %s and letter %c", fsdp_op_name(rows[r].kind), rows[r].output, letter);
    }
  }
  assert_false(fsdp_op_contracts(fsdp_op_letters_of(FSDP_OP_LINEAR), 0, 'o')); // of an input
}

// ---- The rows and a graph

static void check_value(const fsdp_graph *g, const fsdp_node *node, const fsdp_op_attrs *attrs, int row,
                        int value) {
  const fsdp_op_operand *operand = &fsdp_op_letters_of(node->kind)->operands[row];
  const fsdp_value *v = &g->values[value];
  if (v->dims != operand->dim_count)
    fail_msg("%s: %s has %d dimensions, not %d", fsdp_op_name(node->kind), operand->name, v->dims,
             operand->dim_count);
  for (int d = 0; d < v->dims; d++) {
    bool reversed = operand->transposable && attrs->weight_transposed;
    const fsdp_op_dim *dim = &operand->dims[reversed ? v->dims - 1 - d : d];
    int64_t size = dim->is_slice ? attrs->out_stride : fsdp_op_dim_size(attrs, dim, 0);
    if (v->shape[d] != size)
      fail_msg("%s: dimension %d of %s is %lld, not %lld", fsdp_op_name(node->kind), d, operand->name,
               (long long)v->shape[d], (long long)size);
  }
  if (operand->has_dtype)
    assert_int_equal(v->dtype, operand->dtype == FSDP_I32 ? FSDP_VALUE_I32 : FSDP_VALUE_F32);
}

static void check_access(const fsdp_node *node, int row, fsdp_access access) {
  const fsdp_op_operand *operand = &fsdp_op_letters_of(node->kind)->operands[row];
  if (access != operand->access && !(operand->may_add && access == FSDP_UPDATE))
    fail_msg("%s: %s is accessed as %d", fsdp_op_name(node->kind), operand->name, (int)access);
}

// If a node has lists of weights and biases, its operands omit these; the outputs are columns of y side by
// side.
static void check_node(const fsdp_graph *g, const fsdp_node *node, bool seen[FSDP_OP_KIND_COUNT]) {
  fsdp_op_attrs attrs = node->attrs;
  const fsdp_op_letters *op = fsdp_op_letters_of(node->kind);
  int weight_row = fsdp_op_slice_weight(op), bias_row = fsdp_op_slice_bias(op), i = 0;
  assert_int_equal(node->weight_count > 0, weight_row >= 0);
  assert_int_equal(node->bias_count > 0, bias_row >= 0);
  for (int w = 0; w < node->weight_count; w++) {
    const fsdp_value *v = &g->values[node->weights[w]];
    attrs.weight_transposed = g->params[v->param].transposed;
    attrs.out_features = v->shape[attrs.weight_transposed];
    attrs.in_features = v->shape[!attrs.weight_transposed];
    attrs.out_stride += attrs.out_features;
    check_value(g, node, &attrs, weight_row, node->weights[w]);
    if (node->bias_count) check_value(g, node, &attrs, bias_row, node->biases[w]);
  }
  for (int b = 0; b < node->bias_count && !node->weight_count; b++)
    attrs.out_stride += g->values[node->biases[b]].shape[0];
  for (int row = 0; row < op->operand_count; row++) {
    if (row == weight_row || row == bias_row || row >= fsdp_op_operand_count(op, &attrs)) continue;
    check_value(g, node, &attrs, row, node->operands[i].value);
    check_access(node, row, node->operands[i++].access);
  }
  assert_int_equal(node->operand_count, i);
  seen[node->kind] = true;
}

// A graph of every family, as few of whose dimensions agree as it allows.
TEST(test_letters_fit_graphs) {
  bool seen[FSDP_OP_KIND_COUNT] = {false};
  const fsdp_family *last = NULL;
  for (int i = 0; fsdp_model_preset_name(i); i++) {
    const fsdp_family *family = family_of_preset(fsdp_model_preset_name(i));
    if (family == last) continue;
    last = family;
    fsdp_model_config config = {.family = family,
                                .vocab_size = 257,
                                .hidden_size = 96,
                                .intermediate_size = 250,
                                .num_layers = 2,
                                .num_heads = 6,
                                .num_kv_heads = 2,
                                .head_dim = 10,
                                .max_position_embeddings = 64,
                                .norm_eps = 1e-5,
                                .rope_theta = 10000,
                                .initializer_range = 0.02};
    if (!family->decoder) config.num_kv_heads = 6, config.hidden_size = 60; // GPT-2
    if (family->decoder && family->decoder->experts_key)
      config.experts = 13, config.expert_slots = 4, config.expert_size = 35;
    if (family->decoder && family->decoder->wide_qk_norm) config.num_kv_heads = 6;
    fsdp_graph *g = fsdp_model_graph(&config, 3, 5);
    for (int n = 0; n < g->forward_count; n++) check_node(g, &g->forward[n], seen);
    for (int n = 0; n < g->backward_count; n++) check_node(g, &g->backward[n], seen);
    fsdp_graph_destroy(g);
  }
  assert_true(seen[FSDP_OP_EMBEDDING] && seen[FSDP_OP_ATTENTION] && seen[FSDP_OP_LINEAR_BACKWARD_WEIGHT] &&
              seen[FSDP_OP_LINEAR_CROSS_ENTROPY_BACKWARD] && seen[FSDP_OP_EXPERT_UP_BACKWARD_INPUT]);
}
