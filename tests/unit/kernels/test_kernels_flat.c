// Movement, reductions and AdamW over flat ranges, against closed formulas in double.
#include "runtime/base/check.h"
#include "runtime/base/random.h"
#include "tests/support/draws.h"
#include "tests/support/kernel_case.h"
#include "tests/support/unit_test.h"

#include <math.h>

static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16};

static const int64_t counts[] = {1, 17, 1000, 16384, 50001};

TEST(test_cast) {
  for (int d = 0; d < 4; d++)
    for (int n = 0; n < 5; n++) {
      // A value is rounded to nearest: half of the last of 8 bits.
      kernel_case c = kernel_case_of(FSDP_OP_CAST, (fsdp_op_attrs){0}, d % 2 ? 3e-3 : 0);
      double *source = kernel_case_input(&c, dtypes[d / 2], counts[n], FSDP_READ, NULL);
      double *destination = kernel_case_output(&c, dtypes[d % 2], counts[n]);
      for (int64_t i = 0; i < counts[n]; i++) destination[i] = source[i];
      kernel_case_check(&c);
    }
}

// Every fp16 pattern comes back from fp32 as it was, and fp32 to fp16 rounds to nearest even.
TEST(test_cast_fp16) {
  kernel_case up = kernel_case_of(FSDP_OP_CAST, (fsdp_op_attrs){0}, 0);
  kernel_case_input(&up, FSDP_F32, 65536, FSDP_READ, NULL);
  kernel_case_output(&up, FSDP_F32, 65536);
  for (int i = 0; i < 65536; i++) ((uint16_t *)up.initial[0])[i] = (uint16_t)i;
  up.operands[0].dtype = FSDP_F16;
  kernel_case_run(&up);
  const float *wide = up.operands[1].data;
  assert_true(wide[0x3c00] == 1.0f && wide[0xc000] == -2.0f && wide[1] == 0x1p-24f &&
              wide[0x7bff] == 65504.0f);
  assert_true(isinf(wide[0x7c00]) && isnan(wide[0x7c01]) && wide[0x3555] == 0.333251953125f);
  kernel_case down = kernel_case_of(FSDP_OP_CAST, (fsdp_op_attrs){0}, 0);
  kernel_case_input(&down, FSDP_F32, 65536, FSDP_READ, NULL);
  kernel_case_output(&down, FSDP_F32, 65536);
  memcpy(down.initial[0], wide, 65536 * sizeof(float));
  float *first = down.initial[0];
  first[0x7c01] = 65520.0f, first[0x7c02] = 65519.0f, first[0x7c03] = 1.0f + 0x1p-11f;
  first[0x7c04] = 1.0f + 0x1.8p-10f, first[0x7c05] = 0x1p-25f, first[0x7c06] = 0x1.8p-25f;
  down.operands[1].dtype = FSDP_F16;
  kernel_case_run(&down);
  const uint16_t *half = down.operands[1].data;
  for (int i = 0; i < 65536; i++)
    if ((i & 0x7fff) <= 0x7c00) assert_int_equal(half[i], i);
  assert_int_equal(half[0x7c01], 0x7c00);
  assert_int_equal(half[0x7c02], 0x7bff);
  assert_int_equal(half[0x7c03], 0x3c00);
  assert_int_equal(half[0x7c04], 0x3c02);
  assert_int_equal(half[0x7c05], 0);
  assert_int_equal(half[0x7c06], 1);
  assert_true((half[0x7c10] & 0x7e00) == 0x7e00);
  up.operands[0].dtype = FSDP_F32;
  kernel_case_free(&up), kernel_case_free(&down);
}

TEST(test_add) {
  for (int d = 0; d < 4; d++)
    for (int n = 0; n < 5; n++) {
      kernel_case c = kernel_case_of(FSDP_OP_ADD, (fsdp_op_attrs){0}, d % 2 ? 3e-3 : 1e-7);
      double *source = kernel_case_input(&c, dtypes[d / 2], counts[n], FSDP_READ, NULL);
      double *destination = kernel_case_input(&c, dtypes[d % 2], counts[n], FSDP_UPDATE, NULL);
      for (int64_t i = 0; i < counts[n]; i++) destination[i] += source[i];
      kernel_case_check(&c);
    }
}

TEST(test_zero) {
  kernel_case c = kernel_case_of(FSDP_OP_ZERO, (fsdp_op_attrs){0}, 0);
  for (int n = 0; n < 5; n++) {
    double *zeros = kernel_case_output(&c, dtypes[n % 2], counts[n]);
    for (int64_t i = 0; i < counts[n]; i++) zeros[i] = 0;
  }
  kernel_case_check(&c);
}

TEST(test_poison) {
  kernel_case c = kernel_case_of(FSDP_OP_POISON, (fsdp_op_attrs){0}, 0);
  kernel_case_output(&c, FSDP_F32, 1000);
  kernel_case_output(&c, FSDP_BF16, 1001);
  memset(c.initial[0], 0, 4000);
  memset(c.initial[1], 0, 2002);
  kernel_case_run(&c);
  for (int i = 0; i < 1000; i++) {
    uint32_t bits = ((uint32_t *)c.operands[0].data)[i];
    assert_true((bits & 0x7f800000) == 0x7f800000 && (bits & 0x3fffff) && !(bits & 0x400000));
  }
  for (int i = 0; i < 1001; i++) {
    uint16_t bits = ((uint16_t *)c.operands[1].data)[i];
    assert_true((bits & 0x7f80) == 0x7f80 && (bits & 0x3f) && !(bits & 0x40));
  }
  kernel_case_free(&c);
}

TEST(test_sums) {
  for (int squares = 0; squares < 2; squares++)
    for (int d = 0; d < 1 + squares; d++)
      for (int n = 0; n < 5; n++) {
        fsdp_op_attrs attrs = {.norm_weight = n % 2 ? 1.0f : 0.125f * (float)(n + 1)};
        kernel_case c = kernel_case_of(squares ? FSDP_OP_SUM_SQUARES : FSDP_OP_SUM, attrs, 1e-6);
        double *drawn = kernel_normal(3, counts[n], 1);
        for (int64_t i = 0; i < counts[n]; i++) drawn[i] += 1; // a sum that does not cancel
        double *source = kernel_case_input(&c, dtypes[d], counts[n], FSDP_READ, drawn);
        double *sum = kernel_case_output(&c, FSDP_F32, 1);
        sum[0] = 0;
        for (int64_t i = 0; i < counts[n]; i++) sum[0] += squares ? source[i] * source[i] : source[i];
        if (squares) sum[0] *= (double)attrs.norm_weight;
        kernel_case_check(&c);
        free(drawn);
      }
}

// More blocks than a region takes (kernels/cpu/flat.c): whole numbers, so that the sum is exact.
TEST(test_sum_of_many) {
  int64_t count = 16384 * 1024 + 5000;
  double *ones = fsdp_alloc((size_t)count * sizeof *ones);
  for (int64_t i = 0; i < count; i++) ones[i] = i % 2 ? 1 : 2;
  kernel_case c = kernel_case_of(FSDP_OP_SUM_SQUARES, (fsdp_op_attrs){.norm_weight = 1}, 1e-7);
  kernel_case_input(&c, FSDP_BF16, count, FSDP_READ, ones);
  kernel_case_output(&c, FSDP_F32, 1)[0] = (double)count * 2.5;
  kernel_case_check(&c);
  free(ones);
}

TEST(test_clip_factor) {
  static const float cases[][2] = {{9, 1}, {9, 0}, {9, 100}, {0, 1}, {4, 0.5f}, {16, 6}};
  for (int i = 0; i < 6; i++) {
    fsdp_op_attrs attrs = {.max_norm = cases[i][1], .norm_limit = 1e30f}; // 0: no clipping
    kernel_case c = kernel_case_of(FSDP_OP_CLIP_FACTOR, attrs, 1e-6);
    double sum = (double)cases[i][0], norm = sqrt(sum);
    kernel_case_input(&c, FSDP_F32, 1, FSDP_READ, &sum);
    kernel_case_output(&c, FSDP_F32, 1)[0] = norm;
    double *factor = kernel_case_output(&c, FSDP_F32, 1);
    factor[0] = attrs.max_norm > 0 ? fmin(1, (double)attrs.max_norm / (norm + 1e-6)) : 1;
    kernel_case_check(&c);
  }
}

// SplitMix64's own numbers: over zeros the sum of its first outputs from seed 0 (Vigna's reference).
TEST(test_checksum_of_zeros) {
  static const uint64_t outputs[] = {0xe220a8397b1dcdaf, 0x6e789e6aa1b965f4, 0x06c45d188009454f,
                                     0xf88bb8a8724c81ec, 0x1b39896a51a8749b};
  uint64_t expected = 0;
  for (int words = 1; words <= 5; words++) {
    expected += outputs[words - 1];
    kernel_case c = kernel_case_of(FSDP_OP_CHECKSUM, (fsdp_op_attrs){0}, 0);
    kernel_case_input(&c, FSDP_F32, 2 * words, FSDP_READ, NULL);
    memset(c.initial[0], 0, 8 * (size_t)words);
    kernel_case_output(&c, FSDP_I32, 2);
    kernel_case_run(&c);
    assert_memory_equal(c.operands[1].data, &expected, 8);
    kernel_case_free(&c);
  }
}

// The words of a range mixed one by one, the last filled up with zeros.
static uint64_t digest_of(const void *data, size_t bytes) {
  uint64_t sum = 0;
  for (size_t at = 0; at < bytes; at += 8) {
    uint64_t x = 0;
    memcpy(&x, (const char *)data + at, bytes - at < 8 ? bytes - at : 8);
    x += (at / 8 + 1) * 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    sum += x ^ (x >> 31);
  }
  return sum;
}

// Any length, on any number of threads and at every instruction set level; every single bit changes it, and
// so does an exchange of two words.
TEST(test_checksum) {
  static const int64_t lengths[] = {1, 2, 3, 5, 16, 1000, 16384, 50001};
  for (int d = 0; d < 2; d++)
    for (int n = 0; n < 8; n++) {
      kernel_case c = kernel_case_of(FSDP_OP_CHECKSUM, (fsdp_op_attrs){0}, 0);
      kernel_case_input(&c, dtypes[d], lengths[n], FSDP_READ, NULL);
      double *digest = kernel_case_output(&c, FSDP_I32, 2);
      uint64_t sum = digest_of(c.initial[0], (size_t)(lengths[n] * fsdp_dtype_bytes(dtypes[d])));
      digest[0] = (int32_t)(uint32_t)sum, digest[1] = (int32_t)(uint32_t)(sum >> 32);
      kernel_case_check(&c);
    }
  kernel_case c = kernel_case_of(FSDP_OP_CHECKSUM, (fsdp_op_attrs){0}, 0);
  kernel_case_input(&c, FSDP_BF16, 17, FSDP_READ, NULL);
  kernel_case_output(&c, FSDP_I32, 2);
  uint64_t before, after;
  kernel_case_run(&c);
  memcpy(&before, c.operands[1].data, 8);
  for (int bit = 0; bit < 17 * 16; bit++) {
    ((unsigned char *)c.initial[0])[bit / 8] ^= (unsigned char)(1 << bit % 8);
    kernel_case_run(&c);
    memcpy(&after, c.operands[1].data, 8);
    assert_true(before != after);
    ((unsigned char *)c.initial[0])[bit / 8] ^= (unsigned char)(1 << bit % 8);
  }
  uint64_t *words = c.initial[0], first = words[0];
  words[0] = words[2], words[2] = first;
  kernel_case_run(&c);
  memcpy(&after, c.operands[1].data, 8);
  assert_true(before != after);
  kernel_case_free(&c);
}

static const fsdp_op_attrs adamw_attrs = {
    .beta1 = 0.9, .beta2 = 0.95, .adam_eps = 1e-8f, .weight_decay = 0.1f};

typedef struct states {
  fsdp_dtype grad, master, m, v, copy;
} states;

// The closed formula of one step, on doubles.
static void adamw_reference(const double *grad, double *p, double *m, double *v, int64_t count,
                            const double *scalars, double factor) {
  double lr = (double)(float)scalars[FSDP_SCALAR_LR];
  double c1 = (double)(float)scalars[FSDP_SCALAR_CORRECTION1],
         c2 = (double)(float)scalars[FSDP_SCALAR_CORRECTION2];
  double beta1 = adamw_attrs.beta1, beta2 = adamw_attrs.beta2;
  for (int64_t i = 0; i < count; i++) {
    double g = grad[i] * factor;
    p[i] *= 1 - lr * (double)adamw_attrs.weight_decay;
    m[i] = beta1 * m[i] + (1 - beta1) * g;
    v[i] = beta2 * v[i] + (1 - beta2) * g * g;
    p[i] -= lr / c1 * m[i] / (sqrt(v[i]) / sqrt(c2) + (double)adamw_attrs.adam_eps);
  }
}

static const double step_scalars[FSDP_SCALAR_COUNT] = {1e-2, 1 - 0.9 * 0.9 * 0.9, 1 - 0.95 * 0.95 * 0.95, 3};

// Adds an AdamW call's operands and works out what is expected of them, before rounding.
static void make_adamw(kernel_case *c, states s, int64_t count, bool copy) {
  double factor = 0.75, *squares = kernel_normal(11, count, 0.1);
  for (int64_t i = 0; i < count; i++) squares[i] *= squares[i]; // v is never negative
  double *grad = kernel_case_input(c, s.grad, count, FSDP_READ, NULL);
  kernel_case_input(c, FSDP_F32, FSDP_SCALAR_COUNT, FSDP_READ, step_scalars);
  kernel_case_input(c, FSDP_F32, 1, FSDP_READ, &factor);
  double *p = kernel_case_input(c, s.master, count, FSDP_UPDATE, NULL);
  double *m = kernel_case_input(c, s.m, count, FSDP_UPDATE, NULL);
  double *v = kernel_case_input(c, s.v, count, FSDP_UPDATE, squares);
  adamw_reference(grad, p, m, v, count, step_scalars, factor);
  if (copy) memcpy(kernel_case_output(c, s.copy, count), p, (size_t)count * sizeof *p);
  free(squares);
}

TEST(test_adamw) {
  static const states kinds[] = {{FSDP_F32, FSDP_F32, FSDP_F32, FSDP_F32, FSDP_F32},
                                 {FSDP_BF16, FSDP_F32, FSDP_F32, FSDP_F32, FSDP_BF16},
                                 {FSDP_F32, FSDP_F32, FSDP_BF16, FSDP_F32, FSDP_BF16},
                                 {FSDP_F32, FSDP_BF16, FSDP_F32, FSDP_BF16, FSDP_F32},
                                 {FSDP_BF16, FSDP_BF16, FSDP_BF16, FSDP_BF16, FSDP_BF16}};
  for (int kind = 0; kind < 5; kind++)
    for (int n = 0; n < 5; n += test_stride(2))
      for (int copy = 0; copy < 2; copy++) {
        // Two parameters with padding between and after; stochastic rounding is off by up to one of 8 bits.
        int64_t count = counts[n];
        fsdp_param_run segments[] = {
            {0, count / 3, 1000, fsdp_random_stream("a"), 0, 0, false},
            {count / 2, count - count / 2 - count / 7, 5, fsdp_random_stream("b"), 0, 0, false}};
        kernel_case c = kernel_case_of(FSDP_OP_ADAMW, adamw_attrs, kind < 2 && !copy ? 1e-6 : 1e-2);
        c.segments = segments, c.segment_count = 2, c.seed = 99;
        make_adamw(&c, kinds[kind], count, copy);
        kernel_case_check(&c);
      }
}

// A copy in fp32 of a master in bf16 is the master as stored, to the bit, not what it was before rounding.
TEST(test_copy_is_of_the_stored_master) {
  static const states kinds = {FSDP_F32, FSDP_BF16, FSDP_F32, FSDP_F32, FSDP_F32};
  enum { COUNT = 20000 };
  fsdp_param_run segment = {0, COUNT, 0, 7, 0, 0, false};
  kernel_case c = kernel_case_of(FSDP_OP_ADAMW, adamw_attrs, 1e-2);
  c.segments = &segment, c.segment_count = 1, c.seed = 5;
  make_adamw(&c, kinds, COUNT, true);
  kernel_case_run(&c);
  const uint16_t *master = c.operands[3].data;
  const uint32_t *copy = c.operands[6].data;
  for (int i = 0; i < COUNT; i++) assert_int_equal(copy[i], (uint32_t)master[i] << 16);
  kernel_case_free(&c);
}

// Sharding must not change a draw: a range updated whole equals the same range updated in two shards,
// wherever it is cut.
TEST(test_adamw_is_independent_of_shards) {
  static const states bf16 = {FSDP_F32, FSDP_BF16, FSDP_BF16, FSDP_BF16, FSDP_BF16};
  enum { COUNT = 40000 };
  static const int64_t cuts[] = {1, 7, 8, 511, 12345, 16384, COUNT - 3};
  fsdp_param_run whole = {0, COUNT, 3, 7, 0, 0, false};
  kernel_case c = kernel_case_of(FSDP_OP_ADAMW, adamw_attrs, 1e-2);
  c.segments = &whole, c.segment_count = 1, c.seed = 5;
  make_adamw(&c, bf16, COUNT, true);
  kernel_case_run(&c);
  for (int part = 0; part < 2 * (int)(sizeof cuts / sizeof *cuts); part++) {
    int64_t cut = cuts[part / 2], first = part % 2 ? cut : 0, count = part % 2 ? COUNT - cut : cut;
    fsdp_param_run segment = {0, count, first + 3, 7, 0, 0, false};
    kernel_case shard = kernel_case_of(FSDP_OP_ADAMW, adamw_attrs, 1e-2);
    shard.segments = &segment, shard.segment_count = 1, shard.seed = 5;
    make_adamw(&shard, bf16, count, true);
    for (int i = 0; i < 6; i++) {
      if (i == 1 || i == 2) continue;
      int64_t width = fsdp_dtype_bytes(c.operands[i].dtype);
      memcpy(shard.initial[i], (char *)c.initial[i] + first * width, (size_t)(count * width));
    }
    kernel_case_run(&shard);
    for (int i = 3; i < 7; i++)
      assert_memory_equal(shard.operands[i].data, (char *)c.operands[i].data + first * 2, (size_t)count * 2);
    kernel_case_free(&shard);
  }
  kernel_case_free(&c);
}

// With zero gradients and no decay a step leaves p at p, m at beta1 m, v at beta2 v. All elements are equal,
// so the mean of what is stored estimates the exact value: rounding to nearest would be off by a fixed part
// of a step.
TEST(test_rounding_is_unbiased) {
  enum { COUNT = 200000 };
  fsdp_param_run segment = {.numel = COUNT, .random_stream = fsdp_random_stream("model.norm.weight")};
  static const states bf16 = {FSDP_F32, FSDP_BF16, FSDP_BF16, FSDP_BF16, FSDP_BF16};
  kernel_case c = kernel_case_of(FSDP_OP_ADAMW, adamw_attrs, 0);
  c.segments = &segment, c.segment_count = 1, c.seed = 42;
  c.attrs.weight_decay = 0.1f;
  make_adamw(&c, bf16, COUNT, false);
  for (int64_t i = 0; i < COUNT; i++) {
    ((float *)c.initial[0])[i] = 0;
    for (int s = 0; s < 3; s++) ((fsdp_bf16 *)c.initial[3 + s])[i] = fsdp_bf16_from_f32(1.5f);
  }
  kernel_case_run(&c);
  double exact[3], p = 1.5, m = 1.5, v = 1.5, zero = 0;
  adamw_reference(&zero, &p, &m, &v, 1, step_scalars, 1);
  exact[0] = p, exact[1] = m, exact[2] = v;
  for (int s = 0; s < 3; s++) {
    double sum = 0, low = floor(exact[s] * 128) / 128; // values in [1, 2) lie 2^-7 apart
    for (int64_t i = 0; i < COUNT; i++) {
      double stored = kernel_value(&c.operands[3 + s], i);
      assert_true(stored == low || stored == low + 1.0 / 128);
      sum += stored;
    }
    // Five standard deviations of the mean of COUNT draws between two neighbours.
    double deviation = 0.5 / 128 / sqrt(COUNT);
    assert_true(fabs(sum / COUNT - exact[s]) < 5 * deviation + 1e-6);
    assert_true(fabs((double)fsdp_bf16_to_f32(fsdp_bf16_from_f32((float)exact[s])) - exact[s]) >
                10 * deviation);
  }
  kernel_case_free(&c);
}

// Philox-4x32-7 as its paper writes it, for the test below.
static void philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
  uint32_t x[4] = {counter[0], counter[1], counter[2], counter[3]};
  for (uint32_t round = 0; round < 7; round++) {
    uint64_t left = (uint64_t)0xD2511F53u * x[0], right = (uint64_t)0xCD9E8D57u * x[2];
    uint32_t next[4] = {(uint32_t)(right >> 32) ^ x[1] ^ (key[0] + round * 0x9E3779B9u), (uint32_t)right,
                        (uint32_t)(left >> 32) ^ x[3] ^ (key[1] + round * 0xBB67AE85u), (uint32_t)left};
    memcpy(x, next, sizeof x);
  }
  memcpy(out, x, sizeof x);
}

// The known-answer vectors that accompany Random123 (github.com/DEShawResearch/random123, tests/kat_vectors,
// "philox4x32 7").
TEST(test_philox_of_this_test) {
  static const uint32_t pi[] = {0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u, 0xa4093822u, 0x299f31d0u};
  static const uint32_t of_zeros[] = {0x5f6fb709u, 0x0d893f64u, 0x4f121f81u, 0x4f730a48u};
  static const uint32_t of_pi[] = {0x4dfccabau, 0x190a87f0u, 0xc47362bau, 0xb6b5242au};
  uint32_t zeros[6] = {0}, out[4];
  philox(zeros, zeros, out);
  assert_memory_equal(out, of_zeros, sizeof out);
  philox(pi, pi + 4, out);
  assert_memory_equal(out, of_pi, sizeof out);
}

// The rule of adamw.c's header, element by element: 16-bit lane e mod 8 of block 3 * floor(e / 8) + s.
static uint32_t lane_of(uint64_t key, uint64_t stream, uint64_t element, uint64_t s) {
  uint64_t block = 3 * (element / 8) + s;
  uint32_t counter[] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)};
  uint32_t keys[] = {(uint32_t)key, (uint32_t)(key >> 32)}, words[4];
  philox(counter, keys, words);
  return words[element % 8 / 2] >> (element % 2 ? 16 : 0) & 0xffffu;
}

// A step whose arithmetic is exact in fp32 in any order: with beta1 = 1/2, beta2 = 0, m = 0 and gradients of
// 12 bits, m becomes g/2, v becomes g^2 and the master moves by 2^-9 against g's sign. So the stored bits
// follow from the random ones alone.
static void make_exact_adamw(kernel_case *c, int64_t count) {
  static const double scalars[FSDP_SCALAR_COUNT] = {0x1p-8, 1, 1, 3};
  double factor = 1, *values[4];
  for (int i = 0; i < 4; i++) values[i] = fsdp_alloc((size_t)count * sizeof(double));
  for (int64_t i = 0; i < count; i++) {
    int64_t mixed = i * 7919 + i * i % 613;
    values[0][i] = (double)(2048 + mixed % 2048) / 2048 * (mixed % 3 ? 1 : -1);
    values[1][i] = (double)(128 + mixed % 127) / 128 * (double)(1 << i % 6);
    values[2][i] = 0;
    values[3][i] = 0.25;
  }
  c->attrs = (fsdp_op_attrs){.beta1 = 0.5};
  kernel_case_input(c, FSDP_F32, count, FSDP_READ, values[0]);
  kernel_case_input(c, FSDP_F32, FSDP_SCALAR_COUNT, FSDP_READ, scalars);
  kernel_case_input(c, FSDP_F32, 1, FSDP_READ, &factor);
  for (int s = 0; s < 3; s++) {
    double *expected = kernel_case_input(c, FSDP_BF16, count, FSDP_UPDATE, values[1 + s]);
    for (int64_t i = 0; i < count; i++) {
      double g = values[0][i], exact[] = {values[1][i] - (g > 0 ? 0x1p-9 : -0x1p-9), g / 2, g * g};
      expected[i] = exact[s];
    }
  }
  for (int i = 0; i < 4; i++) free(values[i]);
}

// The parameter's element at `at` of the shard, by walking there.
static uint64_t element_of(const fsdp_param_run *run, int64_t at) {
  int64_t element = run->element_index, column = 0;
  for (int64_t i = run->shard_offset; i < at; i++) {
    element++;
    if (++column != run->row_numel) continue;
    element += run->row_step - run->row_numel;
    column = 0;
  }
  return (uint64_t)element;
}

// Every element of every state against the rule, over runs that begin and end anywhere, some of them in rows.
TEST(test_rounding_draws) {
  enum { COUNT = 2100, RUNS = 24 };
  for (int trial = 0; trial < test_draws(20, 5); trial++) {
    fsdp_param_run runs[RUNS];
    int64_t end = 0;
    int run_count = 0;
    for (; run_count < RUNS && end < COUNT - 700; run_count++) {
      uint32_t words[4];
      fsdp_random_words(5, (uint64_t)trial, (uint64_t)run_count, words);
      int64_t first = end + words[0] % (trial % 2 ? 21 : 2), numel = 1 + words[1] % (trial % 3 ? 90 : 600);
      runs[run_count] =
          (fsdp_param_run){first, numel, (int64_t)words[2] * 17, (uint64_t)words[3] << 20, 0, 0, false};
      if (words[3] % 2) runs[run_count].row_numel = 1 + words[3] / 2 % 70;
      if (words[3] % 2) runs[run_count].row_step = runs[run_count].row_numel + words[3] / 140 % 50;
      end = first + numel;
    }
    kernel_case c = kernel_case_of(FSDP_OP_ADAMW, adamw_attrs, 0);
    c.segments = runs, c.segment_count = run_count, c.seed = 0xabcdef0123456789u + (uint64_t)trial;
    make_exact_adamw(&c, COUNT);
    kernel_case_run(&c);
    for (int64_t i = 0, run = 0; i < COUNT; i++) {
      while (run < run_count && i >= runs[run].shard_offset + runs[run].numel) run++;
      bool inside = run < run_count && i >= runs[run].shard_offset;
      for (int s = 0; s < 3; s++) {
        uint32_t bits;
        float exact = (float)c.expected[3 + s][i];
        memcpy(&bits, &exact, sizeof bits);
        uint32_t added = 0x7fff + (bits >> 16 & 1); // to nearest
        if (inside)
          added = lane_of(c.seed ^ 3, runs[run].random_stream, element_of(&runs[run], i), (uint64_t)s);
        assert_int_equal(((fsdp_bf16 *)c.operands[3 + s].data)[i], (bits + added) >> 16);
      }
    }
    kernel_case_free(&c);
  }
}
