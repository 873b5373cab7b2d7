// Samples as rows of documents: their tokens, targets and starts, by hand.
#include "models/graph/op.h"
#include "runtime/data/dataset.h"
#include "tests/support/io_files.h"
#include "tests/support/unit_test.h"

#include <stdio.h>
#include <string.h>

#define IGNORED FSDP_TARGET_IGNORED

// Starts of a sample, and of padding behind it.
static void expect_starts(const fsdp_dataset *dataset, int64_t sample, int64_t count, const int32_t *wanted) {
  int32_t starts[64];
  memset(starts, 0x55, sizeof starts);
  fsdp_dataset_fill_starts(dataset, sample, count, starts);
  assert_memory_equal(starts, wanted, (size_t)count * sizeof *starts);
  assert_int_equal(starts[count], 0x55555555);
}

static fsdp_dataset *open_json(const char *text, fsdp_dataset_config config) {
  config.vocab_size = 256;
  return io_dataset(io_write_text("rows.jsonl", text), config);
}

// Documents a b c d 0, e f 0 and g 0, and the starts of documents in rows of 6 slots, in a stream, and alone.
TEST(starts_of_documents) {
  static const char text[] = "{\"text\": \"abcd\"}\n{\"text\": \"ef\"}\n{\"text\": \"g\"}\n";
  int32_t tokens[8], targets[8];
  fsdp_dataset *rows = open_json(text, (fsdp_dataset_config){.seq = 6, .packing = FSDP_PACKING_BEST_FIT});
  assert_int_equal(rows->sample_count, 2);
  io_fill(rows, 0, tokens, targets);
  assert_memory_equal(tokens, ((const int32_t[]){'a', 'b', 'c', 'd', 'e', 'f'}), 24);
  assert_memory_equal(targets, ((const int32_t[]){'b', 'c', 'd', 0, 'f', 0}), 24);
  expect_starts(rows, 0, 8, (const int32_t[]){0, 0, 0, 0, 4, 4, 6, 7});
  io_fill(rows, 1, tokens, targets);
  assert_memory_equal(tokens, ((const int32_t[]){'g', 0, 0, 0, 0, 0}), 24);
  expect_starts(rows, 1, 6, (const int32_t[]){0, 1, 2, 3, 4, 5});
  expect_starts(rows, FSDP_DATASET_NO_SAMPLE, 3, (const int32_t[]){0, 1, 2});
  const fsdp_dataset_rows *how = &rows->how;
  assert_true(how->fill == 7.0 / 12 && how->documents == 1.5 && how->attention == (10.0 + 3 + 1) / 42);
  fsdp_dataset_close(rows);
  fsdp_dataset *text_rows = open_json(text, (fsdp_dataset_config){.seq = 4});
  assert_int_equal(text_rows->how.packing, FSDP_PACKING_STREAM); // all of a text is learned
  expect_starts(text_rows, 0, 4, (const int32_t[]){0, 0, 0, 0});
  expect_starts(text_rows, 1, 5, (const int32_t[]){0, 1, 1, 1, 4});
  assert_true(text_rows->how.attention == (10.0 + 1 + 6) / 20);
  fsdp_dataset_close(text_rows);
  fsdp_dataset *alone = open_json(text, (fsdp_dataset_config){.seq = 3, .packing = FSDP_PACKING_OFF});
  assert_int_equal(alone->sample_count, 4); // abcd is split, and d is what is left of it
  expect_starts(alone, 1, 3, (const int32_t[]){0, 1, 2});
  fsdp_dataset_close(alone);
}

// Without a mask and with the token that ends a document: its first token is no target, and rows hold
// documents.
TEST(documents_of_a_separator) {
  static const uint16_t words[] = {7, 1, 2, 3, 7, 4, 5, 7, 6, 8};
  const char *path = io_write("separated.bin", words, sizeof words);
  fsdp_dataset_config config = {.seq = 9, .vocab_size = 10, .has_separator = true, .separator = 7};
  fsdp_dataset *text_rows = io_dataset(path, config);
  int32_t tokens[9], targets[9];
  io_fill(text_rows, 0, tokens, targets);
  assert_memory_equal(targets, ((const int32_t[]){IGNORED, 2, 3, 7, IGNORED, 5, 7, IGNORED, 8}), 36);
  assert_int_equal(fsdp_dataset_target_count(text_rows, 0), 6);
  expect_starts(text_rows, 0, 9, (const int32_t[]){0, 1, 1, 1, 1, 5, 5, 5, 8});
  fsdp_dataset_close(text_rows);
  config.packing = FSDP_PACKING_BEST_FIT;
  config.seq = 3;
  fsdp_dataset *rows = io_dataset(path, config);
  assert_int_equal(rows->sample_count, 2);
  io_fill(rows, 1, tokens, targets);
  assert_memory_equal(tokens, ((const int32_t[]){4, 5, 6}), 12);
  fsdp_dataset_close(rows);
  // Without the separator nobody says where documents begin.
  fsdp_error error;
  config.has_separator = false;
  IO_EXPECT(io_dataset_status(path, config, &error), FSDP_ERR_INPUT, &error, "separated.bin",
            "--document-separator");
  config.packing = FSDP_PACKING_STREAM;
  config.separates = "--loss-mean documents";
  char both[512];
  snprintf(both, sizeof both, "%s,%s", path, io_write_text("told.jsonl", "{\"text\": \"abcd\"}\n"));
  config.vocab_size = 256;
  assert_int_equal(io_dataset_status(both, config, &error), FSDP_OK);
  config.separates_all = true;
  IO_EXPECT(io_dataset_status(both, config, &error), FSDP_ERR_INPUT, &error, "separated.bin: does not say",
            "--loss-mean documents");
  config.separates = "--document-mask on";
  IO_EXPECT(io_dataset_status(path, config, &error), FSDP_ERR_INPUT, &error, "--document-mask on");
}

int main(void) {
  return run_all_tests(io_set_up, io_tear_down);
}
