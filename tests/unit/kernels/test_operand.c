// What a call reports to the access trace when its operands are opened, range by range.
#include "kernels/operand.h"
#include "tests/support/unit_test.h"

enum { RANGES_MAX = 16 };

typedef struct range {
  const void *address;
  int64_t bytes;
  fsdp_access access;
} range;

typedef struct ranges {
  fsdp_access_recorder base;
  range seen[RANGES_MAX];
  int count;
} ranges;

static void record(fsdp_access_recorder *self, const void *address, int64_t bytes, fsdp_access access) {
  ranges *r = (ranges *)self;
  assert_true(r->count < RANGES_MAX);
  r->seen[r->count++] = (range){address, bytes, access};
}

static void expect(const ranges *r, const range *expected, int count) {
  assert_int_equal(r->count, count);
  for (int i = 0; i < count; i++) {
    assert_ptr_equal(r->seen[i].address, expected[i].address);
    assert_int_equal(r->seen[i].bytes, expected[i].bytes);
    assert_int_equal(r->seen[i].access, expected[i].access);
  }
}

// Of y, rows of 11 columns, only columns 4, 5 and 6: from the first row's to the last row's.
TEST(test_slice) {
  float x[6 * 5], weight[3 * 5], y[6 * 11];
  const fsdp_op_attrs attrs = {
      .batch = 2, .seq = 3, .in_features = 5, .out_features = 3, .out_stride = 11, .out_offset = 4};
  const fsdp_view operands[] = {{x, 6 * 5, FSDP_F32, FSDP_READ},
                                {weight, 3 * 5, FSDP_F32, FSDP_READ},
                                {y, 6 * 11, FSDP_F32, FSDP_WRITE}};
  ranges r = {.base = {record}};
  const fsdp_kernel_call call = {
      .kind = FSDP_OP_LINEAR, .attrs = &attrs, .operands = operands, .operand_count = 3, .recorder = &r.base};
  assert_ptr_equal(fsdp_kernel_open(&call, FSDP_OP_CPU, 0), operands);
  const range expected[] = {
      {x, sizeof x, FSDP_READ}, {weight, sizeof weight, FSDP_READ}, {y + 4, (5 * 11 + 3) * 4, FSDP_WRITE}};
  expect(&r, expected, 3);
}

// What is opened in part is the kernel's to report; a workspace is reported like any operand.
TEST(test_parts_and_workspace) {
  float qkv[2 * 12], o[2 * 6], d_o[2 * 6], lse[2 * 2], d_qkv[2 * 12], workspace[2 * 2];
  const fsdp_op_attrs attrs = {.batch = 1, .seq = 2, .heads = 2, .kv_heads = 1, .head_dim = 3};
  const fsdp_view operands[] = {
      {qkv, 2 * 12, FSDP_F32, FSDP_READ},    {o, 2 * 6, FSDP_F32, FSDP_READ},
      {lse, 2 * 2, FSDP_F32, FSDP_READ},     {d_o, 2 * 6, FSDP_F32, FSDP_READ},
      {d_qkv, 2 * 12, FSDP_F32, FSDP_WRITE}, {workspace, 2 * 2, FSDP_F32, FSDP_WRITE}};
  ranges r = {.base = {record}};
  const fsdp_kernel_call call = {.kind = FSDP_OP_ATTENTION_BACKWARD,
                                 .attrs = &attrs,
                                 .operands = operands,
                                 .operand_count = 6,
                                 .recorder = &r.base};
  fsdp_kernel_open(&call, FSDP_OP_CPU, 1u << 0 | 1u << 4);
  assert_ptr_equal(fsdp_kernel_workspace(&call), &operands[5]);
  fsdp_kernel_report(&call, 4, 12, 6, FSDP_WRITE);
  fsdp_kernel_report(&call, 4, 12, 0, FSDP_WRITE); // nothing
  const range expected[] = {{o, sizeof o, FSDP_READ},
                            {lse, sizeof lse, FSDP_READ},
                            {d_o, sizeof d_o, FSDP_READ},
                            {workspace, sizeof workspace, FSDP_WRITE},
                            {d_qkv + 12, 6 * 4, FSDP_WRITE}};
  expect(&r, expected, 5);
}

// Updates are one access, and what has any number of operands has ranges of their own sizes.
TEST(test_updates_and_repeats) {
  float source[7], sum[7];
  fsdp_bf16 half[9];
  const fsdp_op_attrs attrs = {0};
  const fsdp_view added[] = {{source, 7, FSDP_F32, FSDP_READ}, {sum, 7, FSDP_F32, FSDP_UPDATE}};
  const fsdp_view zeroed[] = {{sum, 5, FSDP_F32, FSDP_WRITE}, {half, 9, FSDP_BF16, FSDP_WRITE}};
  ranges r = {.base = {record}};
  fsdp_kernel_call call = {
      .kind = FSDP_OP_ADD, .attrs = &attrs, .operands = added, .operand_count = 2, .recorder = &r.base};
  fsdp_kernel_open(&call, FSDP_OP_CUDA, 0);
  call.kind = FSDP_OP_ZERO;
  call.operands = zeroed;
  fsdp_kernel_open(&call, FSDP_OP_CPU, 0);
  const range expected[] = {
      {source, 28, FSDP_READ}, {sum, 28, FSDP_UPDATE}, {sum, 20, FSDP_WRITE}, {half, 18, FSDP_WRITE}};
  expect(&r, expected, 4);
}
