// The op table's names and FLOPs, and what kernels refuse to run.
#include "runtime/base/check.h"
#include "tests/support/kernel_case.h"
#include "tests/support/unit_test.h"

TEST(test_names) {
  for (int a = 0; a < FSDP_OP_KIND_COUNT; a++) {
    const char *name = fsdp_op_name((fsdp_op_kind)a);
    assert_true(name && name[0]);
    for (int b = 0; b < a; b++) assert_string_not_equal(name, fsdp_op_name((fsdp_op_kind)b));
  }
  assert_string_equal(fsdp_op_name(FSDP_OP_ATTENTION_BACKWARD), "attention_backward");
}

TEST(test_every_op_has_a_kernel) {
  const fsdp_kernel_table *table = fsdp_cpu_kernels();
  assert_string_equal(table->device, "cpu");
  for (int kind = 0; kind < FSDP_OP_KIND_COUNT; kind++) assert_true(table->kernels[kind] != NULL);
}

// Counted by hand: 2 FLOPs for each multiply-add.
TEST(test_flops) {
  fsdp_op_attrs attrs = {.batch = 2,
                         .seq = 3,
                         .channels = 5,
                         .heads = 7,
                         .kv_heads = 1,
                         .head_dim = 11,
                         .vocabulary = 13,
                         .in_features = 17,
                         .out_features = 19};
  double linear = 2.0 * 6 * 17 * 19, head = 2.0 * 6 * 5 * 13;
  double pairs = 2 * 7 * (1 + 2 + 3), product = 2 * pairs * 11; // of one head dimension over the causal pairs
  assert_true(fsdp_op_flops(FSDP_OP_LINEAR, &attrs) == linear);
  assert_true(fsdp_op_flops(FSDP_OP_LINEAR_BACKWARD_INPUT, &attrs) == linear);
  assert_true(fsdp_op_flops(FSDP_OP_LINEAR_BACKWARD_WEIGHT, &attrs) == linear);
  assert_true(fsdp_op_flops(FSDP_OP_LINEAR_BIAS, &attrs) == linear);
  assert_true(fsdp_op_flops(FSDP_OP_BIAS_BACKWARD, &attrs) == 0);
  assert_true(fsdp_op_flops(FSDP_OP_LINEAR_CROSS_ENTROPY, &attrs) == head);
  assert_true(fsdp_op_flops(FSDP_OP_LINEAR_CROSS_ENTROPY_BACKWARD, &attrs) == 3 * head);
  assert_true(fsdp_op_flops(FSDP_OP_HEAD_LOGITS, &attrs) == head);
  assert_true(fsdp_op_flops(FSDP_OP_HEAD_LOSS, &attrs) == 0);
  assert_true(fsdp_op_flops(FSDP_OP_HEAD_BACKWARD, &attrs) == 2 * head);
  assert_true(fsdp_op_flops(FSDP_OP_ATTENTION, &attrs) == 2 * product);
  assert_true(fsdp_op_flops(FSDP_OP_ATTENTION_BACKWARD, &attrs) == 5 * product);
  attrs.window = 2; // pairs of query 0, 1 and 2: 1, 2, 2
  product = 2 * (2 * 7 * (1 + 2 + 2)) * 11;
  assert_true(fsdp_op_flops(FSDP_OP_ATTENTION, &attrs) == 2 * product);
  assert_true(fsdp_op_flops(FSDP_OP_ATTENTION_BACKWARD, &attrs) == 5 * product);
  attrs.window = 4; // hides nothing
  assert_true(fsdp_op_flops(FSDP_OP_ATTENTION, &attrs) == 2 * (2 * 2 * 7 * (1 + 2 + 3) * 11));
  // Six positions with keys, of which each of two parts has three queries: half the pairs of all.
  attrs.window = 0, attrs.kv_seq = 6, attrs.kv_parts = 2;
  product = 2 * (2 * 7 * (1 + 2 + 3 + 4 + 5 + 6) / 2.0) * 11;
  assert_true(fsdp_op_flops(FSDP_OP_CONTEXT_ATTENTION, &attrs) == 2 * product);
  assert_true(fsdp_op_flops(FSDP_OP_CONTEXT_ATTENTION_BACKWARD, &attrs) == 5 * product);
  attrs.window = 4;
  product = 2 * (2 * 7 * (1 + 2 + 3 + 4 + 4 + 4) / 2.0) * 11;
  assert_true(fsdp_op_flops(FSDP_OP_CONTEXT_ATTENTION, &attrs) == 2 * product);
  assert_true(fsdp_op_flops(FSDP_OP_ADAMW, &attrs) == 0);
}

// Of d_y its columns alone are read; a workspace behind the operands is not counted.
TEST(test_work_of_a_bias) {
  fsdp_op_attrs attrs = {.batch = 1, .seq = 100, .in_features = 768, .out_features = 512, .out_stride = 2304};
  fsdp_op_extent operands[] = {
      {FSDP_BF16, FSDP_READ, 100 * 2304 * 2}, {FSDP_F32, FSDP_UPDATE, 512 * 4}, {FSDP_F32, FSDP_WRITE, 4096}};
  fsdp_op_work work = fsdp_op_work_of(FSDP_OP_BIAS_BACKWARD, &attrs, operands, 3);
  assert_true(work.flops == 0 && work.bytes == 100 * 512 * 2 + 2 * 512 * 4);
}

// AdamW reads the gradient and reads and writes three states: 28 bytes an element in fp32.
TEST(test_work_of_an_update) {
  const fsdp_op_attrs attrs = {0};
  fsdp_op_extent operands[6] = {
      {FSDP_F32, FSDP_READ, 4000}, {FSDP_F32, FSDP_READ, 0}, {FSDP_F32, FSDP_READ, 0}};
  for (int slot = 3; slot < 6; slot++) operands[slot] = (fsdp_op_extent){FSDP_F32, FSDP_UPDATE, 4000};
  assert_true(fsdp_op_work_of(FSDP_OP_ADAMW, &attrs, operands, 6).bytes == 28 * 1000);
}

// Parts of 64 rows, fewer if there are enough columns for 1024 blocks of 256.
TEST(test_parts_of_a_bias) {
  static const int64_t shapes[][3] = {{1, 1, 1},          {64, 300, 1},      {65, 300, 2},
                                      {65537, 256, 1024}, {65537, 257, 512}, {8192, 400000, 1}};
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    fsdp_op_attrs attrs = {.batch = 1, .seq = shapes[i][0], .out_features = shapes[i][1]};
    assert_int_equal(fsdp_op_workspace_bytes(FSDP_OP_CUDA, FSDP_OP_BIAS_BACKWARD, &attrs, 0),
                     4 * shapes[i][1] * shapes[i][2]);
    assert_int_equal(fsdp_op_workspace_bytes(FSDP_OP_CPU, FSDP_OP_BIAS_BACKWARD, &attrs, 0), 0);
  }
}

// Blocks of 64 keys (mma) or 128 (wgmma), at least four to a multiprocessor where the group has enough heads.
TEST(test_parts_of_a_group) {
  static const struct {
    int64_t batch, seq, heads, kv_heads;
    fsdp_attention_kernel kernel;
    int64_t multiprocessors, parts;
  } cases[] = {
      {4, 4096, 32, 8, FSDP_ATTENTION_WGMMA, 132, 1}, // 1024 blocks
      {1, 4096, 32, 8, FSDP_ATTENTION_WGMMA, 132, 4}, // 256
      {1, 4096, 32, 8, FSDP_ATTENTION_MMA, 132, 2},   // 512
      {1, 4096, 32, 8, FSDP_ATTENTION_MMA, 128, 1},   {1, 4096, 32, 8, FSDP_ATTENTION_GENERAL, 132, 1},
      {1, 4224, 8, 1, FSDP_ATTENTION_WGMMA, 16, 2}, // 33
      {1, 4225, 8, 1, FSDP_ATTENTION_WGMMA, 17, 2}, // 34
      {1, 4224, 8, 1, FSDP_ATTENTION_WGMMA, 17, 4},   {1, 4096, 8, 1, FSDP_ATTENTION_WGMMA, 132, 8},
      {1, 4096, 28, 4, FSDP_ATTENTION_WGMMA, 132, 7}, // five would be enough
      {1, 128, 12, 2, FSDP_ATTENTION_MMA, 2, 2},      {1, 128, 12, 2, FSDP_ATTENTION_MMA, 3, 3},
      {1, 128, 12, 2, FSDP_ATTENTION_MMA, 4, 6}, // four do not divide the group
      {1, 128, 12, 12, FSDP_ATTENTION_MMA, 132, 1}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    fsdp_op_attrs attrs = {.batch = cases[i].batch,
                           .seq = cases[i].seq,
                           .heads = cases[i].heads,
                           .kv_heads = cases[i].kv_heads,
                           .head_dim = 16,
                           .attention = cases[i].kernel};
    attrs.head_parts = fsdp_op_attention_choose_parts(&attrs, cases[i].multiprocessors);
    assert_int_equal(attrs.head_parts, cases[i].parts);
    const int64_t delta = 4 * attrs.batch * attrs.seq * attrs.heads;
    const int64_t parts = 4 * attrs.batch * attrs.seq * attrs.kv_heads * 2 * 16 * cases[i].parts;
    assert_int_equal(fsdp_op_workspace_bytes(FSDP_OP_CUDA, FSDP_OP_ATTENTION_BACKWARD, &attrs, 0),
                     delta + (cases[i].parts > 1 ? parts : 0));
    assert_int_equal(fsdp_op_workspace_bytes(FSDP_OP_CPU, FSDP_OP_ATTENTION_BACKWARD, &attrs, 0), delta);
  }
}

static kernel_case lookup(double token) {
  fsdp_op_attrs attrs = {.batch = 1, .seq = 1, .channels = 4, .vocabulary = 10};
  kernel_case c = kernel_case_of(FSDP_OP_EMBEDDING, attrs, 0);
  kernel_case_input(&c, FSDP_I32, 1, FSDP_READ, &token);
  kernel_case_input(&c, FSDP_F32, 40, FSDP_READ, NULL);
  kernel_case_output(&c, FSDP_F32, 4);
  return c;
}

static void run(void *c) {
  kernel_case_run(c);
}

static void expect_abort(kernel_case *c) {
  assert_true(aborts(run, c));
  kernel_case_free(c);
}

TEST(test_factors_have_one_dtype) {
  const fsdp_op_attrs attrs = {.batch = 1, .seq = 2, .in_features = 4, .out_features = 3, .out_stride = 3};
  fsdp_op_extent extents[] = {
      {FSDP_BF16, FSDP_READ, 16}, {FSDP_BF16, FSDP_READ, 24}, {FSDP_F32, FSDP_WRITE, 24}};
  char message[FSDP_OP_MESSAGE_BYTES];
  assert_true(fsdp_op_operands_fit(FSDP_OP_CPU, FSDP_OP_LINEAR, &attrs, extents, 3, message, sizeof message));
  extents[1] = (fsdp_op_extent){FSDP_F32, FSDP_READ, 48};
  assert_false(
      fsdp_op_operands_fit(FSDP_OP_CPU, FSDP_OP_LINEAR, &attrs, extents, 3, message, sizeof message));
  assert_string_equal(message, "linear multiplies bf16 (x) with fp32 (weight)");
}

TEST(test_kernels_refuse) {
  kernel_case fits = lookup(9);
  kernel_case_run(&fits);
  kernel_case_free(&fits);
  kernel_case large = lookup(10), negative = lookup(-1);
  expect_abort(&large);
  expect_abort(&negative);
  kernel_case short_weight = lookup(0), written_token = lookup(0), few = lookup(0);
  short_weight.operands[1].numel = 39;
  expect_abort(&short_weight);
  written_token.operands[0].access = FSDP_UPDATE;
  expect_abort(&written_token);
  fsdp_view last = few.operands[2];
  few.operand_count = 2;
  free(last.data), free(few.initial[2]), free(few.expected[2]);
  expect_abort(&few);
}

// Positions before a table's beginning; those past its end are padding.
TEST(test_positions_are_checked) {
  const int64_t firsts[] = {0, 1, -1}; // of four positions in a table of four
  for (int i = 0; i < 3; i++)
    for (int backward = 0; backward < 2; backward++) {
      fsdp_op_attrs attrs = {.batch = 1, .seq = 4, .channels = 2, .positions = 4, .first_index = firsts[i]};
      kernel_case c = kernel_case_of(backward ? FSDP_OP_POSITIONS_BACKWARD : FSDP_OP_ADD_POSITIONS, attrs, 0);
      kernel_case_input(&c, FSDP_F32, 8, FSDP_READ, NULL);
      kernel_case_input(&c, FSDP_F32, 8, FSDP_UPDATE, NULL);
      if (firsts[i] < 0) {
        expect_abort(&c);
        continue;
      }
      kernel_case_run(&c);
      kernel_case_free(&c);
    }
}

// Rows that are no whole pieces or chunks, chunks of the same positions, and positions without keys.
TEST(test_rows_are_checked) {
  const fsdp_op_attrs fits = {
      .batch = 1, .seq = 4, .heads = 1, .kv_heads = 1, .head_dim = 2, .kv_seq = 8, .out_stride = 6};
  fsdp_op_attrs cases[10];
  for (int i = 0; i < 10; i++) cases[i] = fits;
  cases[1].piece = 3;
  cases[2].chunk = 5;
  cases[3].chunk = 2, cases[3].first_index = 4, cases[3].second_index = 5;
  cases[4].first_index = 5;
  cases[5].chunk = 2, cases[5].second_index = 7;
  cases[6].kv_parts = 3;
  cases[7].kv_parts = 2, cases[7].kv_piece = 3;
  cases[8].out_stride = 1;
  cases[9].out_offset = 2;
  for (int i = 0; i < 10; i++) {
    kernel_case c = kernel_case_of(FSDP_OP_CONTEXT_ATTENTION, cases[i], 0);
    kernel_case_input(&c, FSDP_F32, 4 * cases[i].out_stride, FSDP_READ, NULL);
    c.parts[0] = (kernel_range){0, 3 * 6 + 2};
    kernel_case_input(&c, FSDP_F32, 8 * 4, FSDP_READ, NULL);
    kernel_case_output(&c, FSDP_F32, 4 * 2);
    kernel_case_output(&c, FSDP_F32, 4);
    if (i > 0) {
      expect_abort(&c);
      continue;
    }
    kernel_case_run(&c);
    kernel_case_free(&c);
  }
  for (int i = 0; i < 2; i++) { // keys lie in rows of q|k|v: all positions, in order
    fsdp_op_attrs attrs = fits;
    attrs.out_stride = 0;
    if (i == 0) attrs.chunk = 2, attrs.second_index = 6;
    if (i == 1) attrs.first_index = 1;
    kernel_case c = kernel_case_of(FSDP_OP_ATTENTION, attrs, 0);
    kernel_case_input(&c, FSDP_F32, 4 * 6, FSDP_READ, NULL);
    kernel_case_output(&c, FSDP_F32, 4 * 2);
    kernel_case_output(&c, FSDP_F32, 4);
    expect_abort(&c);
  }
}

// Of q|k|v and its gradient, q alone: as where q lies by itself.
TEST(test_work_of_context_attention) {
  fsdp_op_attrs attrs = {.batch = 1, .seq = 4, .heads = 2, .kv_heads = 1, .head_dim = 3, .kv_seq = 8};
  const double q = 4 * 6 * 2, kv = 8 * 6 * 2, o = 4 * 6 * 2, lse = 2 * 4 * 4;
  fsdp_op_extent kv_rows = {FSDP_BF16, FSDP_READ, 8 * 6 * 2}, out = {FSDP_BF16, FSDP_WRITE, 4 * 6 * 2};
  fsdp_op_extent sums = {FSDP_F32, FSDP_WRITE, 2 * 4 * 4};
  for (int columns = 6; columns <= 12; columns += 6) {
    attrs.out_stride = columns;
    fsdp_op_extent rows = {FSDP_BF16, FSDP_READ, 4 * columns * 2};
    fsdp_op_extent operands[] = {rows, kv_rows, out, sums, out, rows, kv_rows};
    assert_true(fsdp_op_work_of(FSDP_OP_CONTEXT_ATTENTION, &attrs, operands, 4).bytes == q + kv + o + lse);
    assert_true(fsdp_op_work_of(FSDP_OP_CONTEXT_ATTENTION_BACKWARD, &attrs, operands, 7).bytes ==
                2 * (q + kv + o) + lse);
  }
}

// A table of ten positions, of which three are read, or added to; the rest is touched if it is zeroed.
TEST(test_work_of_positions) {
  fsdp_op_attrs attrs = {.batch = 2, .seq = 3, .channels = 4, .positions = 10};
  fsdp_op_extent table = {FSDP_F32, FSDP_READ, 10 * 4 * 4}, h = {FSDP_F32, FSDP_UPDATE, 6 * 4 * 4};
  assert_true(fsdp_op_work_of(FSDP_OP_ADD_POSITIONS, &attrs, (fsdp_op_extent[]){table, h}, 2).bytes ==
              3 * 16 + 2 * 96);
  h.access = FSDP_READ;
  for (int adds = 0; adds < 2; adds++) {
    table.access = adds ? FSDP_UPDATE : FSDP_WRITE;
    assert_true(fsdp_op_work_of(FSDP_OP_POSITIONS_BACKWARD, &attrs, (fsdp_op_extent[]){h, table}, 2).bytes ==
                96 + (adds ? 2 * 3 * 16 : 160));
  }
}

// Six tokens, and a table of ten rows: those of the tokens are added to, or all are written.
TEST(test_work_of_embedding_backward) {
  const fsdp_op_attrs attrs = {.batch = 2, .seq = 3, .channels = 4, .vocabulary = 10};
  const fsdp_op_extent tokens = {FSDP_I32, FSDP_READ, 6 * 4}, d_h = {FSDP_F32, FSDP_READ, 6 * 4 * 4};
  for (int adds = 0; adds < 2; adds++) {
    const fsdp_op_extent d_weight = {FSDP_F32, adds ? FSDP_UPDATE : FSDP_WRITE, 10 * 4 * 4};
    assert_true(
        fsdp_op_work_of(FSDP_OP_EMBEDDING_BACKWARD, &attrs, (fsdp_op_extent[]){tokens, d_h, d_weight}, 3)
            .bytes == 24 + 96 + (adds ? 2 * 6 * 16 : 160));
  }
}

// The bias must have y's dtype.
TEST(test_biases_are_checked) {
  for (int narrow = 0; narrow < 2; narrow++) {
    fsdp_op_attrs attrs = {
        .batch = 1, .seq = 2, .in_features = 3, .out_features = 5, .out_stride = 5, .out_offset = 0};
    kernel_case c = kernel_case_of(FSDP_OP_LINEAR_BIAS, attrs, 0);
    kernel_case_input(&c, FSDP_F32, 6, FSDP_READ, NULL);
    kernel_case_input(&c, FSDP_F32, 15, FSDP_READ, NULL);
    kernel_case_input(&c, narrow ? FSDP_BF16 : FSDP_F32, 5, FSDP_READ, NULL);
    kernel_case_output(&c, FSDP_F32, 10);
    if (narrow) {
      expect_abort(&c);
    } else {
      kernel_case_run(&c);
      kernel_case_free(&c);
    }
  }
  fsdp_op_attrs attrs = {.batch = 1, .seq = 2, .out_features = 5, .out_stride = 5};
  kernel_case c = kernel_case_of(FSDP_OP_ADD_BIAS, attrs, 0);
  kernel_case_input(&c, FSDP_BF16, 5, FSDP_READ, NULL);
  kernel_case_input(&c, FSDP_F32, 10, FSDP_UPDATE, NULL);
  expect_abort(&c);
}

TEST(test_targets_are_checked) {
  fsdp_op_attrs attrs = {.batch = 1, .seq = 1, .channels = 4, .vocabulary = 10, .chunk_rows = 1};
  kernel_case c = kernel_case_of(FSDP_OP_LINEAR_CROSS_ENTROPY, attrs, 0);
  double target = 10;
  kernel_case_input(&c, FSDP_F32, 4, FSDP_READ, NULL);
  kernel_case_input(&c, FSDP_F32, 40, FSDP_READ, NULL);
  kernel_case_input(&c, FSDP_I32, 1, FSDP_READ, &target);
  kernel_case_input(&c, FSDP_F32, 1, FSDP_READ, NULL);
  kernel_case_output(&c, FSDP_F32, 1);
  kernel_case_output(&c, FSDP_F32, 10);
  expect_abort(&c);
}

// Of a shard with entries 4 and 5 of six and two of padding: entries of padding are not in the vocabulary,
// those of other shards are.
TEST(test_targets_of_a_shard_are_checked) {
  const double targets[] = {0, 5, FSDP_TARGET_IGNORED, 6, -1};
  for (int i = 0; i < 5; i++) {
    fsdp_op_attrs attrs = {
        .batch = 1, .seq = 1, .channels = 4, .vocabulary = 4, .first_index = 4, .extent = 6, .ranks = 2};
    kernel_case c = kernel_case_of(FSDP_OP_HEAD_LOGITS, attrs, 0);
    kernel_case_input(&c, FSDP_F32, 4, FSDP_READ, NULL);
    kernel_case_input(&c, FSDP_F32, 16, FSDP_READ, NULL);
    kernel_case_input(&c, FSDP_I32, 1, FSDP_READ, &targets[i]);
    kernel_case_output(&c, FSDP_F32, 4);
    kernel_case_output(&c, FSDP_F32, 3);
    if (i >= 3) {
      expect_abort(&c);
      continue;
    }
    kernel_case_run(&c);
    kernel_case_free(&c);
  }
}

// Two rows of five channels, seven columns, bf16: the kernels between the gemms read the logits, and write
// their gradients.
TEST(test_work_of_a_shard) {
  fsdp_op_attrs attrs = {.batch = 1, .seq = 2, .channels = 5, .vocabulary = 7, .ranks = 3};
  fsdp_op_extent x = {FSDP_BF16, FSDP_READ, 20}, weight = {FSDP_BF16, FSDP_READ, 70},
                 targets = {FSDP_I32, FSDP_READ, 8}, logits = {FSDP_F32, FSDP_WRITE, 56},
                 stats = {FSDP_F32, FSDP_WRITE, 24}, all = {FSDP_F32, FSDP_READ, 72},
                 one = {FSDP_F32, FSDP_READ, 4};
  fsdp_op_extent forward[] = {x, weight, targets, logits, stats};
  fsdp_op_work work = fsdp_op_work_of(FSDP_OP_HEAD_LOGITS, &attrs, forward, 5);
  assert_true(work.bytes == 20 + 70 + 8 + 56 + 24 && work.row_bytes == 56);
  fsdp_op_extent backward[] = {all, targets, one, x, weight, one, logits, x, weight};
  backward[5].access = backward[7].access = FSDP_WRITE;
  backward[6].access = backward[8].access = FSDP_UPDATE;
  work = fsdp_op_work_of(FSDP_OP_HEAD_BACKWARD, &attrs, backward, 9);
  assert_true(work.bytes == 72 + 8 + 4 + 20 + 70 + 4 + 28 + 20 + 2 * 70 && work.row_bytes == 56 + 28);
}

// Chunks of the head, for an fp32 gradient and for a bf16 one, which has at most four unless their logits
// would take more than 2 GiB. A CPU's for an fp32 gradient hold 16 MiB of logits or 256 rows.
TEST(test_chunks_of_the_head) {
  static const struct {
    int64_t rows, vocabulary, fp32, bf16, cpu_fp32, cpu_bf16;
  } chunks[] = {{1, 32000, 1, 1, 1, 1},
                {64, 32000, 64, 64, 64, 64},
                {1000, 32000, 524, 524, 256, 256},
                {1000, 128256, 130, 256, 128, 256},
                {1024, 16000, 1024, 1024, 256, 256},
                {4096, 32000, 524, 1024, 256, 1024},
                {16384, 32000, 1024, 4096, 256, 4096},
                {16384, 128256, 1024, 4096, 256, 4096},
                {32768, 128256, 1024, 4096, 256, 4096},
                {98304, 32000, 1024, 16768, 256, 16768},
                {5000, 257, 1024, 1280, 1008, 1280},
                {4096, (int64_t)1 << 30, 256, 256, 256, 256}};
  for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
    const int64_t rows = chunks[i].rows, vocabulary = chunks[i].vocabulary;
    assert_int_equal(fsdp_op_chunk_rows(FSDP_OP_CUDA, rows, vocabulary, FSDP_F32), chunks[i].fp32);
    assert_int_equal(fsdp_op_chunk_rows(FSDP_OP_CUDA, rows, vocabulary, FSDP_BF16), chunks[i].bf16);
    assert_int_equal(fsdp_op_chunk_rows(FSDP_OP_CPU, rows, vocabulary, FSDP_F32), chunks[i].cpu_fp32);
    assert_int_equal(fsdp_op_chunk_rows(FSDP_OP_CPU, rows, vocabulary, FSDP_BF16), chunks[i].cpu_bf16);
  }
}
