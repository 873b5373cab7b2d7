// runtime/base against things it was not derived from: published vectors, moments of the normal distribution,
// exhaustive and brute-force versions.
#include "runtime/base/check.h"
#include "runtime/base/dtype.h"
#include "runtime/base/random.h"
#include "runtime/base/random_math.h"
#include "runtime/base/size.h"
#include "runtime/base/status.h"
#include "runtime/base/text.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <string.h>

// The known-answer vectors that accompany Random123 (github.com/DEShawResearch/random123, tests/kat_vectors,
// "philox4x32 7" and "philox4x32 10"): counter, key, results.
TEST(philox_gives_the_published_words) {
  static const struct {
    uint64_t index, stream, seed;
    uint32_t seven[4], ten[4];
  } vectors[] = {
      {0,
       0,
       0,
       {0x5f6fb709u, 0x0d893f64u, 0x4f121f81u, 0x4f730a48u},
       {0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}},
      {UINT64_MAX,
       UINT64_MAX,
       UINT64_MAX,
       {0x5207ddc2u, 0x45165e59u, 0x4d8ee751u, 0x8c52f662u},
       {0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}},
      {0x85a308d3243f6a88u,
       0x0370734413198a2eu,
       0x299f31d0a4093822u,
       {0x4dfccabau, 0x190a87f0u, 0xc47362bau, 0xb6b5242au},
       {0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}},
  };
  for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
    uint32_t words[4];
    fsdp_random_words(vectors[i].seed, vectors[i].stream, vectors[i].index, words);
    assert_memory_equal(words, vectors[i].ten, sizeof words);
    fsdp_philox(FSDP_ROUNDING_ROUNDS, vectors[i].seed, vectors[i].stream, vectors[i].index, words);
    assert_memory_equal(words, vectors[i].seven, sizeof words);
  }
}

TEST(streams_are_those_of_xxh64) {
  assert_true(fsdp_random_stream("") ==
              0xef46db3751d8e999u); // XXH64 of nothing, as its specification prints it
  assert_true(fsdp_random_stream("a") == 0xd24ec4f1a98c6e5bu);
  assert_true(fsdp_random_stream("model.norm.weight") != fsdp_random_stream("model.norm.weighu"));
}

// Four standard errors of each sample moment of a normal distribution.
TEST(normals_have_the_moments_of_a_normal) {
  enum { COUNT = 1 << 18 };
  const float mean = 3.0f, deviation = 0.5f;
  float *draws = fsdp_alloc(COUNT * sizeof *draws);
  fsdp_random_normal(7, fsdp_random_stream("moments"), 0, COUNT, mean, deviation, draws);
  double sum = 0, sum2 = 0, sum3 = 0, sum4 = 0, lag = 0, last = 0;
  for (int i = 0; i < COUNT; i++) {
    double z = ((double)draws[i] - (double)mean) / (double)deviation;
    sum += z, sum2 += z * z, sum3 += z * z * z, sum4 += z * z * z * z;
    lag += z * last, last = z;
  }
  double n = COUNT, error = 4 / sqrt(n);
  assert_true(fabs(sum / n) < error);
  assert_true(fabs(sum2 / n - 1) < error * sqrt(2));
  assert_true(fabs(sum3 / n) < error * sqrt(15));
  assert_true(fabs(sum4 / n - 3) < error * sqrt(96));
  assert_true(fabs(lag / n) < error);
  free(draws);
}

// The generator's own logarithm and turn against the mathematical library's in long double: a normal is off
// by its rounding to fp32 alone (and what doubles lose where the cosine is nearly 0, far below any weight).
TEST(normals_are_box_muller_of_the_words) {
  for (uint64_t i = 0; i < 1 << 17; i++) {
    uint32_t words[4];
    float mine[2];
    fsdp_random_words(3, 1, i, words);
    if (i < 64) words[0] = i % 2 ? UINT32_MAX - (uint32_t)i / 2 : (uint32_t)i / 2;
    if (i >= 64 && i < 256) words[1] = ((uint32_t)i << 29) + (uint32_t)(i % 3) - 1; // about an eighth turn
    long double radius = sqrtl(-2 * logl(((long double)words[0] + 1) / 4294967296.0L));
    long double angle = 2 * acosl(-1) * (long double)words[1] / 4294967296.0L;
    fsdp_normal_pair(words[0], words[1], mine);
    long double expected[2] = {radius * cosl(angle), radius * sinl(angle)};
    for (int k = 0; k < 2; k++) {
      assert_true(fabsl((long double)mine[k] - expected[k]) <= 0x1.0001p-24L * fabsl(expected[k]) + 1e-15L);
    }
  }
}

TEST(any_split_of_a_tensor_draws_the_same_values) {
  enum { COUNT = 97 };
  float whole[COUNT], parts[COUNT];
  const int64_t far = ((int64_t)1 << 40) + 1; // past what 32 bits index
  fsdp_random_normal(5, 11, far, COUNT, 0, 1, whole);
  for (int64_t step = 1; step <= 9; step++) {
    for (int64_t i = 0; i < COUNT; i += step)
      fsdp_random_normal(5, 11, far + i, fsdp_min_i64(step, COUNT - i), 0, 1, parts + i);
    assert_memory_equal(whole, parts, sizeof whole);
  }
}

static void assert_bijection(uint64_t seed, int64_t size) {
  unsigned char *seen = fsdp_alloc_zeroed((size_t)size, 1);
  for (int64_t i = 0; i < size; i++) {
    int64_t image = fsdp_random_permute(seed, 3, size, i);
    assert_in_range(image, 0, size - 1);
    assert_int_equal(seen[image], 0);
    seen[image] = 1;
  }
  free(seen);
}

TEST(a_permutation_is_a_bijection) {
  for (int64_t size = 1; size <= 300; size++) assert_bijection((uint64_t)size % 5, size);
  static const int64_t larger[] = {1023, 1024, 1025, 4095, 4096, 4097, 16385, 65536, 65537, 100003};
  for (size_t i = 0; i < sizeof larger / sizeof larger[0]; i++) assert_bijection(i, larger[i]);
}

static int compare_i64(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

TEST(a_permutation_reaches_past_32_bits) {
  enum { COUNT = 5000 };
  const int64_t size = ((int64_t)1 << 41) + 12345;
  int64_t images[COUNT], above = 0;
  for (int64_t i = 0; i < COUNT; i++) {
    images[i] = fsdp_random_permute(1, 2, size, size - 1 - i * 7919);
    assert_true(images[i] >= 0 && images[i] < size);
    above += images[i] >= size / 2;
  }
  qsort(images, COUNT, sizeof images[0], compare_i64);
  for (int64_t i = 1; i < COUNT; i++) assert_true(images[i] != images[i - 1]);
  assert_in_range(above, COUNT / 2 - 142, COUNT / 2 + 142); // four standard deviations of a fair coin
}

// A random permutation has one fixed point and one successor i -> i+1 on average; 12 of either has a chance
// of 1e-9.
TEST(a_permutation_depends_on_its_key_and_shuffles) {
  enum { SIZE = 10007 };
  int fixed = 0, next = 0, same_seed = 0, same_stream = 0;
  for (int64_t i = 0; i + 1 < SIZE; i++) {
    int64_t image = fsdp_random_permute(1, 2, SIZE, i);
    fixed += image == i;
    next += fsdp_random_permute(1, 2, SIZE, i + 1) == image + 1;
    same_seed += fsdp_random_permute(2, 2, SIZE, i) == image;
    same_stream += fsdp_random_permute(1, 3, SIZE, i) == image;
  }
  assert_true(fixed < 12 && next < 12 && same_seed < 12 && same_stream < 12);
}

TEST(bf16_conversion_is_exact_both_ways) {
  for (uint32_t bits = 0; bits < 0x10000u; bits++) {
    float value = fsdp_bf16_to_f32((fsdp_bf16)bits);
    fsdp_bf16 back = fsdp_bf16_from_f32(value);
    if (isnan(value))
      assert_true(isnan(fsdp_bf16_to_f32(back)));
    else
      assert_int_equal(back, bits);
  }
}

// Against rounding by comparing distances in double precision; of two as near, the even one.
TEST(bf16_rounds_to_nearest_even) {
  for (uint64_t i = 0; i < 20000; i++) {
    uint32_t words[4];
    fsdp_random_words(1, 9, i, words);
    uint32_t bits = words[0] & 0x7f7fffffu; // positive and not among the last, which round to infinity
    if (i % 3 == 0) bits = (bits & 0xffff0000u) | 0x8000u;
    float value;
    memcpy(&value, &bits, sizeof value);
    fsdp_bf16 low = (fsdp_bf16)(bits >> 16), high = (fsdp_bf16)(low + 1);
    double below = (double)value - (double)fsdp_bf16_to_f32(low);
    double above = (double)fsdp_bf16_to_f32(high) - (double)value;
    fsdp_bf16 expected = below < above ? low : above < below ? high : (low & 1) ? high : low;
    assert_int_equal(fsdp_bf16_from_f32(value), expected);
    assert_int_equal(fsdp_bf16_from_f32(-value), expected | 0x8000u);
  }
}

TEST(bf16_keeps_infinities_and_nans) {
  assert_int_equal(fsdp_bf16_from_f32(INFINITY), 0x7f80);
  assert_int_equal(fsdp_bf16_from_f32(-INFINITY), 0xff80);
  static const uint32_t nans[] = {0x7f800001u, 0x7fffffffu, 0xff800001u, 0xffffffffu, 0x7fc00000u};
  for (size_t i = 0; i < sizeof nans / sizeof nans[0]; i++) {
    float value;
    memcpy(&value, &nans[i], sizeof value);
    assert_true(isnan(fsdp_bf16_to_f32(fsdp_bf16_from_f32(value))));
  }
}

TEST(dtypes_have_their_widths_and_names) {
  assert_int_equal(fsdp_dtype_bytes(FSDP_F32), 4);
  assert_int_equal(fsdp_dtype_bytes(FSDP_BF16), 2);
  assert_int_equal(fsdp_dtype_bytes(FSDP_F16), 2);
  assert_int_equal(fsdp_dtype_bytes(FSDP_I32), 4);
  assert_string_equal(fsdp_dtype_name(FSDP_F32), "fp32");
  assert_string_equal(fsdp_dtype_name(FSDP_BF16), "bf16");
  assert_string_equal(fsdp_dtype_name(FSDP_F16), "fp16");
  assert_string_equal(fsdp_dtype_name(FSDP_I32), "int32");
}

TEST(sizes_are_checked_for_overflow) {
  int64_t result = 0;
  assert_true(fsdp_mul_checked(3037000499, 3037000499, &result));
  assert_true(result == 9223372030926249001);
  assert_false(fsdp_mul_checked(3037000500, 3037000500, &result));
  assert_false(fsdp_mul_checked(INT64_MIN, -1, &result));
  assert_true(fsdp_add_checked(INT64_MAX - 5, 5, &result));
  assert_true(result == INT64_MAX);
  assert_false(fsdp_add_checked(INT64_MAX, 1, &result));
  assert_true(fsdp_min_i64(-2, 3) == -2 && fsdp_max_i64(-2, 3) == 3);
  for (int64_t value = 0; value < 70; value++) {
    for (int64_t unit = 1; unit < 20; unit++) {
      int64_t up = fsdp_round_up(value, unit);
      assert_true(up >= value && up - value < unit && up % unit == 0);
    }
  }
}

TEST(numbers_have_commas) {
  static const struct {
    int64_t value;
    const char *text;
  } cases[] = {{0, "0"},
               {12, "12"},
               {-999, "-999"},
               {-1000, "-1,000"},
               {12345, "12,345"},
               {1318912, "1,318,912"},
               {100000, "100,000"},
               {INT64_MIN, "-9,223,372,036,854,775,808"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    assert_string_equal(fsdp_print_int(cases[i].value).text, cases[i].text);
}

TEST(a_failure_carries_its_status_and_sentence) {
  fsdp_error error = {0};
  assert_int_equal(fsdp_fail(&error, FSDP_ERR_INPUT, "%s has %d rows", "x", 3), FSDP_ERR_INPUT);
  assert_int_equal(error.status, FSDP_ERR_INPUT);
  assert_string_equal(error.message, "x has 3 rows");
  assert_int_equal(fsdp_fail(NULL, FSDP_ERR_OPTION, "nobody listens"), FSDP_ERR_OPTION);

  char longer[3000];
  memset(longer, 'y', sizeof longer - 1);
  longer[sizeof longer - 1] = 0;
  fsdp_fail(&error, FSDP_ERR_PEER, "%s", longer);
  assert_int_equal(strlen(error.message), sizeof error.message - 1); // cut, and still a string
}

// A shell gives back what it was made of.
TEST(a_word_is_one_for_a_shell) {
  static const char *const words[][2] = {{"data=2,fsdp=8", "data=2,fsdp=8"},
                                         {"a/b.tok", "a/b.tok"},
                                         {"", "''"},
                                         {"my run", "'my run'"},
                                         {"it's $HOME", "'it'\\''s $HOME'"},
                                         {"~", "'~'"}};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    char *word = fsdp_shell_word(words[i][0]), command[128], said[64] = "";
    assert_string_equal(word, words[i][1]);
    snprintf(command, sizeof command, "printf %%s %s", word);
    FILE *shell = popen(command, "r");
    assert_non_null(shell);
    assert_int_equal(fread(said, 1, sizeof said - 1, shell), strlen(words[i][0]));
    assert_string_equal(said, words[i][0]);
    pclose(shell);
    free(word);
  }
}

TEST(memory_comes_zeroed_and_grows) {
  unsigned char *bytes = fsdp_alloc_zeroed(10, 10);
  for (int i = 0; i < 100; i++) assert_int_equal(bytes[i], 0);
  memset(bytes, 42, 100);
  bytes = fsdp_realloc(bytes, 100000);
  for (int i = 0; i < 100; i++) assert_int_equal(bytes[i], 42);
  free(bytes);
  free(fsdp_alloc(0)); // an empty list is a list: never NULL
}
