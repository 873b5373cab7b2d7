// Files of tokens and manifests, cut off at every length and with every single bit flipped: each is refused,
// or what is read is the same as before.
#include "models/graph/op.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/data/dataset.h"
#include "tests/support/draws.h"
#include "tests/support/harness.h"
#include "tests/support/io_files.h"
#include "tests/support/token_bytes.h"
#include "tests/support/unit_test.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SEQ     8
#define VOCAB   60000
#define SAMPLES 4

typedef struct samples {
  int32_t tokens[SAMPLES][SEQ], targets[SAMPLES][SEQ];
} samples;

// All samples of a data set of one file; FSDP_ERR_INPUT if it is refused.
static fsdp_status read_samples(const char *path, samples *out) {
  fsdp_dataset_config config = {.seq = SEQ, .global_batch = 1, .vocab_size = VOCAB, .verify = true};
  fsdp_error error;
  if (io_dataset_status(path, config, &error) != FSDP_OK) return error.status;
  fsdp_dataset *dataset = io_dataset(path, config);
  assert_int_equal(dataset->sample_count, SAMPLES);
  for (int i = 0; i < SAMPLES; i++) io_fill(dataset, i, out->tokens[i], out->targets[i]);
  fsdp_dataset_close(dataset);
  return FSDP_OK;
}

// A file of 33 tokens in two documents; the caller frees it.
static unsigned char *make_tokens(int width, int64_t *length) {
  uint32_t tokens[33];
  uint8_t counts[33];
  uint64_t starts[2] = {0, 20};
  for (int i = 0; i < 33; i++) tokens[i] = (uint32_t)(7 * i % 200), counts[i] = i % 5 != 0;
  token_bytes from = {.tokens = tokens,
                      .counts = counts,
                      .count = 33,
                      .width = width,
                      .starts = starts,
                      .documents = 2,
                      .packed = true,
                      .vocab_size = width == 1 ? 256 : VOCAB,
                      .tokenizer_hash = 5};
  return token_bytes_make(&from, length);
}

TEST(a_flipped_bit_of_tokens_is_found) {
  for (int width = 1; width <= 4; width *= 2) {
    int64_t length, accepted = 0;
    unsigned char *file = make_tokens(width, &length);
    samples good, read;
    assert_int_equal(read_samples(io_write("good.tok", file, length), &good), FSDP_OK);
    for (int64_t bit = 0; bit < 8 * length; bit += test_stride(11)) {
      file[bit / 8] ^= (unsigned char)(1 << bit % 8);
      fsdp_status status = read_samples(io_write("flipped.tok", file, length), &read);
      if (status == FSDP_OK) {
        accepted++;
        assert_memory_equal(&read, &good, sizeof good);
      } else {
        assert_int_equal(status, FSDP_ERR_INPUT);
      }
      file[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    // Only the zeros behind sections, at most 7 bytes of each of two, are covered by no checksum.
    assert_true(accepted <= 2 * 7 * 8);
    free(file);
  }
}

TEST(a_file_of_tokens_that_is_cut_off_is_found) {
  int64_t length;
  unsigned char *file = make_tokens(2, &length);
  samples read;
  for (int64_t bytes = 0; bytes < length; bytes += test_stride(7)) {
    assert_int_equal(read_samples(io_write("cut.tok", file, bytes), &read), FSDP_ERR_INPUT);
  }
  free(file);
}

// Of a small plan; the caller destroys both.
static fsdp_checkpoint *small_checkpoint(fsdp_plan **plan) {
  fsdp_plan_config config = harness_small_plan(1);
  fsdp_error error;
  assert_int_equal(fsdp_plan_create(&config, plan, &error), FSDP_OK);
  fsdp_checkpoint *made = fsdp_checkpoint_create(*plan, "tiny");
  made->sequence = made->progress.step = made->progress.global_batch = made->progress.sample_count = 1;
  return made;
}

TEST(a_damaged_manifest_is_found) {
  fsdp_plan *plan;
  fsdp_error error;
  fsdp_checkpoint *made = small_checkpoint(&plan), *read;
  char *text = fsdp_checkpoint_print(made);
  IO_OK(fsdp_checkpoint_parse("good", text, &read, &error), &error);
  fsdp_checkpoint_destroy(read);
  size_t length = strlen(text);
  for (size_t bit = 0; bit < 8 * length; bit += 3 * (size_t)test_stride(7)) {
    char before = text[bit / 8];
    text[bit / 8] = (char)(before ^ 1 << bit % 8);
    fsdp_status status = fsdp_checkpoint_parse("flipped", text, &read, &error);
    text[bit / 8] = before;
    if (status != FSDP_OK) {
      assert_int_equal(status, FSDP_ERR_INPUT);
      continue;
    }
    char *again = fsdp_checkpoint_print(read);
    assert_string_equal(again, text); // white space alone was flipped
    free(again);
    fsdp_checkpoint_destroy(read);
  }
  free(text);
  fsdp_checkpoint_destroy(made);
  fsdp_plan_destroy(plan);
}

// Its checksum covers the object alone.
TEST(what_follows_a_manifest_is_found) {
  static const char ends[] = "\n \0garbage";
  fsdp_plan *plan;
  fsdp_error error;
  fsdp_checkpoint *made = small_checkpoint(&plan), *read;
  char *text = fsdp_checkpoint_print(made);
  size_t length = strlen(text);
  text = fsdp_realloc(text, length + sizeof ends);
  memcpy(text + length, ends, sizeof ends);
  mkdir(io_path("ends"), 0777);
  for (size_t more = 0; more < sizeof ends; more++) {
    io_write("ends/checkpoint.json", text, (int64_t)(length + more));
    fsdp_status status = fsdp_checkpoint_read_manifest(io_path("ends"), &read, &error);
    if (more <= 2) {
      IO_OK(status, &error);
      fsdp_checkpoint_destroy(read);
    } else {
      IO_EXPECT(status, FSDP_ERR_INPUT, &error, "ends/checkpoint.json:", "not valid JSON",
                "another checkpoint");
    }
  }
  unlink(io_path("ends/checkpoint.json"));
  mkfifo(io_path("ends/checkpoint.json"), 0666); // is not waited for
  IO_EXPECT(fsdp_checkpoint_read_manifest(io_path("ends"), &read, &error), FSDP_ERR_INPUT, &error,
            "not a regular file");
  free(text);
  fsdp_checkpoint_destroy(made);
  fsdp_plan_destroy(plan);
}

int main(void) {
  return run_all_tests(io_set_up, io_tear_down);
}
