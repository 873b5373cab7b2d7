// safetensors: writing and reading back, reading only what is asked for, and every malformed file.
#include "runtime/checkpoint/safetensors.h"
#include "tests/support/io_files.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define A "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}"

static fsdp_safetensors *open_good(const char *path) {
  fsdp_safetensors *model;
  fsdp_error error;
  IO_OK(fsdp_safetensors_open(path, &model, &error), &error);
  return model;
}

static fsdp_status open_bad(const char *path, fsdp_error *error) {
  fsdp_safetensors *model;
  memset(error, 0, sizeof *error);
  fsdp_status status = fsdp_safetensors_open(path, &model, error);
  assert_true(status ? !model : !!model);
  fsdp_safetensors_close(model);
  return status;
}

// Writes one file of the four dtypes in pieces that do not end where tensors do.
static const char *write_four(void) {
  static const fsdp_safetensors_tensor tensors[] = {
      {.name = "w.f32", .dtype = FSDP_F32, .dims = 2, .shape = {2, 3}},
      {.name = "w.bf16", .dtype = FSDP_BF16, .dims = 1, .shape = {5}},
      {.name = "scalar", .dtype = FSDP_F32},
      {.name = "empty", .dtype = FSDP_F16, .dims = 2, .shape = {0, 4}},
      {.name = "w.f16", .dtype = FSDP_F16, .dims = 1, .shape = {7}},
      {.name = "ints", .dtype = FSDP_I32, .dims = 1, .shape = {2}},
  };
  const float f32[6] = {0, 1, 2, 3, 4, 5}, scalar = 42;
  const uint16_t bf16[5] = {0x3f80, 0xc000, 0x0000, 0x7f80, 0x0001};
  // 1, -2, the smallest subnormal, the largest subnormal, the largest number, infinity, -0.
  const uint16_t f16[7] = {0x3c00, 0xc000, 0x0001, 0x03ff, 0x7bff, 0x7c00, 0x8000};
  const int32_t ints[2] = {-100, 7};
  unsigned char all[24 + 10 + 4 + 14 + 8];
  memcpy(all, f32, 24), memcpy(all + 24, bf16, 10), memcpy(all + 34, &scalar, 4);
  memcpy(all + 38, f16, 14), memcpy(all + 52, ints, 8);
  fsdp_safetensors_writer *writer;
  fsdp_error error;
  const char *path = io_path("four.safetensors");
  fsdp_safetensors_writer_config config = {path, tensors, 6, "pt", false};
  IO_OK(fsdp_safetensors_writer_create(&config, &writer, &error), &error);
  for (size_t done = 0; done < sizeof all; done += 20)
    IO_OK(fsdp_safetensors_writer_append(writer, all + done, 20, &error), &error);
  IO_OK(fsdp_safetensors_writer_finish(writer, &error), &error);
  return path;
}

TEST(what_is_written_is_read) {
  fsdp_error error;
  const char *path = write_four();
  fsdp_safetensors *model = open_good(path);
  float out[8];
  char head[1024] = "";
  FILE *file = fopen(path, "rb");
  assert_true(file && fread(head, 1, sizeof head - 1, file) > 8);
  fclose(file);
  assert_non_null(strstr(head + 8, "\"__metadata__\":{\"format\":\"pt\"}"));
  assert_int_equal(model->count, 6);
  int index = fsdp_safetensors_find(model, "w.f32");
  assert_int_equal(fsdp_safetensors_at(model, index)->dims, 2);
  IO_OK(fsdp_safetensors_read(model, index, 1, 4, out, &error), &error);
  for (int i = 0; i < 4; i++) assert_true(out[i] == (float)(i + 1));
  IO_OK(fsdp_safetensors_read(model, fsdp_safetensors_find(model, "w.bf16"), 0, 5, out, &error), &error);
  assert_true(out[0] == 1 && out[1] == -2 && out[2] == 0 && isinf(out[3]) && out[4] == 0x1p-133f);
  IO_OK(fsdp_safetensors_read(model, fsdp_safetensors_find(model, "w.f16"), 0, 7, out, &error), &error);
  assert_true(out[0] == 1 && out[1] == -2 && out[2] == 0x1p-24f && out[3] == 1023 * 0x1p-24f &&
              out[4] == 65504);
  assert_true(isinf(out[5]) && out[6] == 0 && signbit(out[6]));
  IO_OK(fsdp_safetensors_read(model, fsdp_safetensors_find(model, "scalar"), 0, 1, out, &error), &error);
  assert_true(out[0] == 42);
  IO_OK(fsdp_safetensors_read(model, fsdp_safetensors_find(model, "empty"), 0, 0, out, &error), &error);
  int32_t ints[2];
  IO_OK(fsdp_safetensors_read_raw(model, fsdp_safetensors_find(model, "ints"), 0, 2, ints, &error), &error);
  assert_true(ints[0] == -100 && ints[1] == 7);
  assert_int_equal(fsdp_safetensors_find(model, "nothing"), -1);
  fsdp_safetensors_close(model);
}

// Every finite half against the definition of binary16: (1 + f/1024) * 2^(e-15), or f/1024 * 2^-14 if e is 0.
TEST(every_half_is_widened_exactly) {
  uint16_t *halves = malloc(65536 * sizeof *halves);
  float *out = malloc(65536 * sizeof *out);
  fsdp_safetensors_tensor tensor = {.name = "h", .dtype = FSDP_F16, .dims = 1, .shape = {65536}};
  fsdp_safetensors_writer_config config = {io_path("halves.safetensors"), &tensor, 1, NULL, true};
  fsdp_safetensors_writer *writer;
  fsdp_error error;
  for (int i = 0; i < 65536; i++) halves[i] = (uint16_t)i;
  IO_OK(fsdp_safetensors_writer_create(&config, &writer, &error), &error);
  IO_OK(fsdp_safetensors_writer_append(writer, halves, 131072, &error), &error);
  IO_OK(fsdp_safetensors_writer_finish(writer, &error), &error);
  fsdp_safetensors *model = open_good(io_path("halves.safetensors"));
  IO_OK(fsdp_safetensors_read(model, 0, 0, 65536, out, &error), &error);
  for (int i = 0; i < 65536; i++) {
    int exponent = (i >> 10) & 31, fraction = i & 1023;
    double value = exponent ? ldexp(1 + fraction / 1024.0, exponent - 15) : ldexp(fraction / 1024.0, -14);
    if (exponent == 31)
      assert_true(fraction ? isnan(out[i]) : isinf(out[i]));
    else
      assert_true(out[i] == (float)(i & 0x8000 ? -value : value));
  }
  fsdp_safetensors_close(model);
  free(halves);
  free(out);
}

TEST(only_what_is_asked_for_is_read) {
  fsdp_error error;
  float out[2];
  fsdp_safetensors *model = open_good(write_four());
  int64_t before = model->bytes_read;
  assert_int_equal(before % 64, 0); // the header alone, padded
  IO_OK(fsdp_safetensors_read(model, fsdp_safetensors_find(model, "w.f16"), 3, 2, out, &error), &error);
  assert_int_equal(model->bytes_read - before, 4);
  fsdp_safetensors_close(model);
}

TEST(an_abandoned_file_leaves_nothing) {
  fsdp_error error;
  struct stat information;
  io_write_text("kept.safetensors", "the old one");
  fsdp_safetensors_tensor tensor = {.name = "a", .dtype = FSDP_F32, .dims = 1, .shape = {4}};
  fsdp_safetensors_writer_config config = {io_path("kept.safetensors"), &tensor, 1, NULL, false};
  fsdp_safetensors_writer *writer;
  IO_OK(fsdp_safetensors_writer_create(&config, &writer, &error), &error);
  IO_OK(fsdp_safetensors_writer_append(writer, "12345678", 8, &error), &error);
  char temporary[64];
  snprintf(temporary, sizeof temporary, "kept.safetensors.tmp-%ld", (long)getpid());
  assert_int_equal(stat(io_path(temporary), &information), 0);
  fsdp_safetensors_writer_abandon(writer);
  fsdp_safetensors_writer_abandon(NULL);
  assert_int_equal(stat(io_path(temporary), &information), -1);
  assert_int_equal(stat(io_path("kept.safetensors"), &information), 0);
  assert_int_equal(information.st_size, 11);
  config.path = io_path("none/x.safetensors");
  IO_EXPECT(fsdp_safetensors_writer_create(&config, &writer, &error), FSDP_ERR_INPUT, &error,
            "none/x.safetensors", "No such file");
}

typedef struct bad_case {
  const char *header;
  int64_t length, data_bytes; // length -1: true
  const char *parts[4];       // of the message; NULL ends them
} bad_case;

#define ONE(dtype, shape, offsets)                                                                           \
  "{\"a\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static const bad_case bad_cases[] = {
    {"{" A "}", 2000, 24, {"2000 bytes", "only", "truncated"}},
    {"{" A "}", 100000001, 24, {"100000001", "limit"}},
    {"{" A "}", INT64_MAX, 24, {"9223372036854775807", "limit"}},
    {"{" A "}", 10, 24, {"not valid JSON"}},
    {"{" A "}", 0, 24, {"not valid JSON"}},
    {"{" A, -1, 24, {"not valid JSON", "byte"}},
    {"[1]", -1, 0, {"not a JSON object"}},
    {"{" A "," A "}", -1, 24, {"duplicate"}},
    {"{" A "}", -1, 23, {"\"a\" ends at byte 24", "only 23 bytes"}},
    {"{" A "}", -1, 25, {"1 bytes at its end"}},
    {"{}", -1, 4, {"4 bytes at its end"}},
    {"{\"a\":3}", -1, 0, {"\"a\"", "object"}},
    {ONE("\"F64\"", "[1]", "[0,8]"), -1, 8, {"\"a\" has dtype \"F64\"", "BF16"}},
    {ONE("\"F8_E4M3\"", "[1]", "[0,1]"), -1, 1, {"F8_E4M3"}},
    {ONE("3", "[1]", "[0,4]"), -1, 4, {"no \"dtype\""}},
    {ONE("\"F32\"", "3", "[0,4]"), -1, 4, {"no \"shape\""}},
    {ONE("\"F32\"", "[1,1,1,1,1]", "[0,4]"), -1, 4, {"5 dimensions"}},
    {ONE("\"F32\"", "[-1]", "[0,4]"), -1, 4, {"negative"}},
    {ONE("\"F32\"", "[1.0]", "[0,4]"), -1, 4, {"whole number"}},
    {ONE("\"F32\"", "[4294967296,4294967296]", "[0,4]"), -1, 4, {"too large"}},
    {ONE("\"F32\"", "[4611686018427387904]", "[0,0]"), -1, 0, {"shape (4611686018427387904)"}},
    {ONE("\"F32\"", "[2]", "[0,4]"), -1, 4, {"4 bytes", "shape (2) in F32"}},
    {ONE("\"F32\"", "[1]", "[4,0]"), -1, 4, {"begins at byte 4", "ends before"}},
    {ONE("\"F32\"", "[1]", "[0]"), -1, 4, {"data_offsets"}},
    {ONE("\"F32\"", "[1]", "[-4,0]"), -1, 4, {"data_offsets", "at least 0"}},
    {ONE("\"F32\"", "[1]", "[\"0\",4]"), -1, 4, {"data_offsets"}},
    {ONE("\"F32\"", "[1]", "[4,8]"), -1, 8, {"4 bytes before tensor \"a\""}},
    {"{" A ",\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[20,24]}}",
     -1,
     24,
     {"overlap", "\"b\"", "byte 20"}},
    {"{" A ",\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[28,32]}}",
     -1,
     32,
     {"4 bytes before", "\"b\""}},
    {"{\"__metadata__\":3," A "}", -1, 24, {"__metadata__"}},
    {"{\"__metadata__\":{\"a\":1}," A "}", -1, 24, {"__metadata__", "strings"}},
};

TEST(every_malformed_file_is_refused_with_its_reason) {
  for (size_t i = 0; i < sizeof bad_cases / sizeof *bad_cases; i++) {
    fsdp_error error;
    const bad_case *c = &bad_cases[i];
    const char *path = io_write_safetensors("bad.safetensors", c->header, c->length, c->data_bytes);
    fsdp_status status = open_bad(path, &error);
    if (status != FSDP_ERR_INPUT) fail_msg("not refused: %s", c->header);
    io_expect(status, FSDP_ERR_INPUT, &error, c->parts);
    IO_EXPECT(status, FSDP_ERR_INPUT, &error, "bad.safetensors");
  }
}

TEST(files_that_are_none) {
  fsdp_error error;
  IO_EXPECT(open_bad(io_path("none.safetensors"), &error), FSDP_ERR_INPUT, &error, "none.safetensors",
            "No such file");
  IO_EXPECT(open_bad(io_write("short.safetensors", "1234567", 7), &error), FSDP_ERR_INPUT, &error, "7 bytes");
  IO_EXPECT(open_bad(io_write("nothing.safetensors", "", 0), &error), FSDP_ERR_INPUT, &error, "0 bytes");
  IO_EXPECT(open_bad("/dev/null", &error), FSDP_ERR_INPUT, &error, "not a regular file");
  mkdir(io_path("bare"), 0700);
  IO_EXPECT(open_bad(io_path("bare"), &error), FSDP_ERR_INPUT, &error, "neither model.safetensors",
            "--init random");
  io_write_text("bare/pytorch_model.bin", "");
  IO_EXPECT(open_bad(io_path("bare"), &error), FSDP_ERR_INPUT, &error, "pytorch_model.bin");
  // Transformers would add an adapter to the weights.
  io_write_safetensors("bare/model.safetensors", "{}", -1, 0);
  fsdp_safetensors_close(open_good(io_path("bare")));
  io_write_text("bare/adapter_config.json", "{}");
  IO_EXPECT(open_bad(io_path("bare"), &error), FSDP_ERR_INPUT, &error, "bare: has an adapter", "merge");
}

// Tensors may stand in the header in any order; a stray buffer's dtype and shape do not matter.
TEST(unusual_but_good_files) {
  fsdp_safetensors *model =
      open_good(io_write_safetensors("good.safetensors",
                                     "{\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[24,28]}," A
                                     ",\"model.layers.0.self_attn.rotary_emb.inv_freq\":{\"dtype\":\"F64\","
                                     "\"shape\":[1],\"data_offsets\":[28,36]}}   ",
                                     -1, 36));
  assert_int_equal(model->count, 2);
  assert_int_equal(fsdp_safetensors_find(model, "a"), 0);
  fsdp_safetensors_close(model);
  model = open_good(io_write_safetensors("empty.safetensors", "{}", -1, 0));
  assert_int_equal(model->count, 0);
  assert_int_equal(fsdp_safetensors_find(model, "a"), -1);
  fsdp_safetensors_close(model);
}

static const char *write_index(const char *text) {
  return io_write_text("model.safetensors.index.json", text);
}

TEST(shards_and_their_index) {
  fsdp_error error;
  io_write_safetensors("s1.safetensors", "{" A "}", -1, 24);
  io_write_safetensors("s2.safetensors", "{\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
                       -1, 4);
  const char *path = write_index("{\"weight_map\":{\"b\":\"s2.safetensors\",\"a\":\"s1.safetensors\"}}");
  fsdp_safetensors *model = open_good(path);
  assert_int_equal(model->count, 2);
  assert_non_null(strstr(fsdp_safetensors_path(model, fsdp_safetensors_find(model, "a")), "s1.safetensors"));
  fsdp_safetensors_close(model);
  write_index("{\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s3.safetensors\"}}");
  IO_EXPECT(open_bad(path, &error), FSDP_ERR_INPUT, &error, "s3.safetensors", "No such file");
  write_index("{\"weight_map\":{\"a\":\"s1.safetensors\",\"c\":\"s1.safetensors\"}}");
  IO_EXPECT(open_bad(path, &error), FSDP_ERR_INPUT, &error, "\"c\"", "does not hold it");
  write_index("{\"weight_map\":{\"c\":\"s1.safetensors\"}}");
  IO_EXPECT(open_bad(path, &error), FSDP_ERR_INPUT, &error, "\"a\"", "not in the index");
  write_index("{\"weight_map\":{\"a\":\"s2.safetensors\",\"b\":\"s1.safetensors\"}}");
  IO_EXPECT(open_bad(path, &error), FSDP_ERR_INPUT, &error, "holds one too");
  write_index("{\"weight_map\":{\"a\":\"../s1.safetensors\"}}");
  IO_EXPECT(open_bad(path, &error), FSDP_ERR_INPUT, &error, "beside the index");
  write_index("{\"weight_map\":{\"a\":3}}");
  IO_EXPECT(open_bad(path, &error), FSDP_ERR_INPUT, &error, "\"a\"", "beside the index");
  write_index("{\"weight_map\":{\"b\":\"s2.safetensors\",\"a\":\"s1.safetensors\"}}}");
  IO_EXPECT(open_bad(path, &error), FSDP_ERR_INPUT, &error, "index.json:1:", "end of file");
  write_index("{\"weight_map\":[]}");
  IO_EXPECT(open_bad(path, &error), FSDP_ERR_INPUT, &error, "weight_map");
  write_index("{\n\"weight_map\":");
  IO_EXPECT(open_bad(path, &error), FSDP_ERR_INPUT, &error, "index.json:2:", "not valid JSON");
}

TEST(a_file_that_shrinks_is_an_error) {
  fsdp_error error;
  float out[6];
  io_write_safetensors("shrinks.safetensors", "{" A "}", -1, 24);
  fsdp_safetensors *model = open_good(io_path("shrinks.safetensors"));
  io_write_safetensors("shrinks.safetensors", "{" A "}", -1, 12);
  IO_EXPECT(fsdp_safetensors_read(model, 0, 0, 6, out, &error), FSDP_ERR_INPUT, &error, "\"a\"", "shorter");
  fsdp_safetensors_close(model);
}

int main(void) {
  return run_all_tests(io_set_up, io_tear_down);
}
