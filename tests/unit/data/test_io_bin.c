// `.bin` files of tokens, of llm.c and nanoGPT: how they are read, what only has their name, how their tokens
// are checked and told apart.
#include "runtime/base/random.h"
#include "runtime/data/dataset.h"
#include "runtime/data/token_view.h"
#include "tests/support/io_files.h"
#include "tests/support/unit_test.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TOKENIZER     FSDP_SOURCE_DIR "/tests/golden/prepare/tokenizer.json"
#define LENGTH(array) ((int64_t)(sizeof(array) / sizeof *(array)))

static fsdp_status open_verified(const char *path, int64_t vocab_size, fsdp_error *error) {
  return io_dataset_status(path, (fsdp_dataset_config){.seq = 2, .vocab_size = vocab_size, .verify = true},
                           error);
}

TEST(tokens_of_others_are_read_as_they_are) {
  static const int32_t magics[] = {20240520, 20240801, 0}, versions[] = {1, 7, 0};
  for (int kind = 0; kind < 3; kind++) {
    unsigned char file[1024 + 400] = {0};
    int width = kind == 1 ? 4 : 2;
    int64_t header = kind == 2 ? 0 : 1024, count = 100;
    int32_t words[3] = {magics[kind], versions[kind], (int32_t)count};
    memcpy(file, words, sizeof words);
    for (int64_t i = 0; i < count; i++) {
      uint32_t token = (uint32_t)(i * 7 + (kind == 1 ? 70000 : 0));
      memcpy(file + header + i * width, &token, (size_t)width);
    }
    const char *path = io_write("x.bin", file, header + count * width);
    int64_t vocab_size = 99 * 7 + 1 + (kind == 1 ? 70000 : 0);
    fsdp_dataset *dataset = io_dataset(
        path,
        (fsdp_dataset_config){.tokenizer = kind ? TOKENIZER : NULL, .seq = 9, .vocab_size = vocab_size});
    assert_int_equal(dataset->sample_count, 11);
    int32_t tokens[9], targets[9];
    io_fill(dataset, 10, tokens, targets);
    assert_int_equal(tokens[8], 98 * 7 + (kind == 1 ? 70000 : 0));
    assert_int_equal(targets[8], 99 * 7 + (kind == 1 ? 70000 : 0));
    assert_int_equal(fsdp_dataset_target_count(dataset, 10), 9);
    assert_non_null(strstr(dataset->description, kind == 2 ? "without a header" : "llm.c"));
    assert_null(fsdp_dataset_narrow_file(dataset));
    fsdp_dataset_close(dataset);
    // More tokens than a uint16 can tell apart.
    for (int64_t more = 0; more < 2; more++) {
      dataset = io_dataset(
          path, (fsdp_dataset_config){.seq = 9, .vocab_size = (kind == 1 ? 1 << 20 : 65536) + more});
      assert_int_equal(fsdp_dataset_narrow_file(dataset) != NULL, kind != 1 && more);
      fsdp_dataset_close(dataset);
    }
    fsdp_error error;
    char wanted[64];
    snprintf(wanted, sizeof wanted, "token 99 (from 0) of its 100 is %lld", (long long)vocab_size - 1);
    IO_EXPECT(open_verified(path, vocab_size - 1, &error), FSDP_ERR_INPUT, &error, "x.bin", wanted);
    if (kind == 2) break;
    IO_EXPECT(open_verified(io_write("x.bin", file, header + count * width - 1), 100000, &error),
              FSDP_ERR_INPUT, &error, "x.bin", "100 tokens", "truncated");
    file[4]++;
    IO_EXPECT(open_verified(io_write("x.bin", file, header + count * width), 100000, &error), FSDP_ERR_INPUT,
              &error, "x.bin", "version");
  }
  fsdp_error error;
  IO_EXPECT(open_verified(io_write("odd.bin", "abc", 3), 100000, &error), FSDP_ERR_INPUT, &error, "odd.bin",
            "3 bytes");
}

// What is called .bin and is not tokens, or not of the width that it would be read with.
TEST(what_is_no_bin_of_tokens_is_refused) {
  fsdp_error error;
  int32_t header[300] = {20240522, 1, 40};
  IO_EXPECT(open_verified(io_write("hellaswag.bin", header, sizeof header), 65536, &error), FSDP_ERR_INPUT,
            &error, "hellaswag.bin", "20240522", "20240520");
  IO_EXPECT(open_verified(io_write("w.bin", "PK\3\4 weights", 12), 65536, &error), FSDP_ERR_INPUT, &error,
            "w.bin", "ZIP");
  uint32_t narrow[100];
  uint64_t wide[100];
  uint16_t small[200];
  for (uint32_t i = 0; i < 100; i++) {
    narrow[i] = i * 1279 % 128256, wide[i] = narrow[i];
    small[2 * i] = small[2 * i + 1] = i % 4;
  }
  IO_EXPECT(open_verified(io_write("x.bin", narrow, sizeof narrow), 65536, &error), FSDP_ERR_INPUT, &error,
            "x.bin", "4 or 8 bytes", "20240801");
  IO_EXPECT(open_verified(io_write("x.bin", wide, sizeof wide), 65536, &error), FSDP_ERR_INPUT, &error,
            "x.bin", "4 or 8 bytes");
  assert_int_equal(open_verified(io_write("x.bin", small, sizeof small), 4, &error), FSDP_OK);
  for (int at = 0; at < 100; at += 33) {
    const uint32_t token = narrow[at];
    narrow[at] |= 4 << 16; // no vocabulary in use has such a token
    assert_int_equal(open_verified(io_write("x.bin", narrow, sizeof narrow), 65536, &error), FSDP_OK);
    narrow[at] = token;
  }
}

// The first token that is too large, against a loop.
TEST(a_token_is_found) {
  enum { COUNT = 1000 };
  static const int64_t limits[] = {1, 200, 255, 256, 60000, 65535, 65536, 200000, 1LL << 31};
  for (int width = 1; width <= 4; width *= 2) {
    static union {
      uint8_t of1[COUNT];
      uint16_t of2[COUNT];
      uint32_t of4[COUNT];
    } file;
    static uint32_t tokens[COUNT];
    for (int i = 0; i < COUNT; i++) {
      uint32_t words[4];
      fsdp_random_words(7, (uint64_t)width, (uint64_t)i, words);
      // Most are small, so that the first large one lies anywhere.
      tokens[i] = words[0] >> (words[1] % 60 ? 25 : 32 - 8 * width);
      if (width == 1) file.of1[i] = (uint8_t)tokens[i];
      if (width == 2) file.of2[i] = (uint16_t)tokens[i];
      if (width == 4) file.of4[i] = tokens[i];
    }
    fsdp_token_view view = {.tokens = &file, .token_bytes = width, .token_count = COUNT};
    for (int64_t k = 0; k < LENGTH(limits); k++) {
      for (int64_t first = 0; first < COUNT; first += 37) {
        int64_t count = COUNT - first < 300 ? COUNT - first : 300, at = first;
        while (at < first + count && tokens[at] < limits[k]) at++;
        if (at == first + count) at = -1;
        assert_int_equal(fsdp_token_view_find(&view, first, count, limits[k]), at);
      }
    }
  }
}

// Shares of the reading: each token too large is found by just one of them.
TEST(shares_read_everything_once) {
  enum { COUNT = 23 };
  for (int64_t bad = 0; bad < COUNT; bad++) {
    uint16_t tokens[COUNT];
    for (int i = 0; i < COUNT; i++) tokens[i] = i == bad ? 77 : 5;
    const char *path = io_write("x.bin", tokens, sizeof tokens);
    for (int shares = 1; shares < 30; shares++) {
      int found = 0;
      for (int share = 0; share < shares; share++) {
        fsdp_dataset_config config = {
            .seq = 2, .vocab_size = 77, .verify = true, .share = share, .shares = shares};
        fsdp_error error;
        found += io_dataset_status(path, config, &error) == FSDP_ERR_INPUT;
      }
      assert_int_equal(found, 1);
    }
  }
}

// A file of zeros but for one byte, at `place` if that is not below 0.
static uint64_t fingerprint_of_zeros(int64_t bytes, int64_t place) {
  const char *path = io_path("large.bin");
  int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
  assert_true(file >= 0);
  assert_int_equal(ftruncate(file, bytes), 0);
  if (place >= 0) assert_int_equal(pwrite(file, "x", 1, place), 1);
  close(file);
  fsdp_dataset *dataset = io_dataset(path, (fsdp_dataset_config){.seq = 50, .vocab_size = 65536});
  uint64_t print = fsdp_dataset_fingerprint(dataset);
  fsdp_dataset_close(dataset);
  unlink(path);
  return print;
}

// Of `.bin` files above 1 GiB only the number of tokens and the ends are read. The files are sparse.
TEST(a_large_file_has_the_fingerprint_of_its_ends) {
  const int64_t size = (1LL << 30) + 4096, end = 65536;
  const uint64_t zeros = fingerprint_of_zeros(size, -1);
  assert_true(fingerprint_of_zeros(size, end) == zeros);
  assert_true(fingerprint_of_zeros(size, size - end - 1) == zeros);
  assert_true(fingerprint_of_zeros(size, 0) != zeros);
  assert_true(fingerprint_of_zeros(size, end - 1) != zeros);
  assert_true(fingerprint_of_zeros(size, size - end) != zeros);
  assert_true(fingerprint_of_zeros(size, size - 1) != zeros);
  assert_true(fingerprint_of_zeros(size + 2, -1) != zeros);
}

int main(void) {
  return run_all_tests(io_set_up, io_tear_down);
}
