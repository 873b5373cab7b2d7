// Token files: `.tok` and `.bin`, opened as a data set of which every sample is read. The first byte: bit 0
// `.bin`; bit 1 leaves a `.tok` as it is, else its size and its checksums are made right, which would hide
// the rest from a fuzzer; bits 2 to 6 are the sequence less one.
#include "models/graph/op.h"
#include "runtime/base/size.h"
#include "runtime/data/dataset.h"
#include "runtime/data/token_file.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>
#include <xxhash.h>
#include <zlib.h>

#define FLAGS_OFFSET  20
#define FLAG_JOINED   4
#define CRC_OFFSET    80
#define SIZE_OFFSET   96
#define JOINED_OFFSET 112
#define HASH_OFFSET   120

// The checksums of the sections, if they lie within the file as token_file.h describes it.
static void seal_sections(unsigned char *bytes, size_t size) {
  uint32_t width, crc[3];
  uint64_t tokens, documents;
  memcpy(&width, bytes + 16, 4);
  memcpy(&tokens, bytes + 32, 8);
  memcpy(&documents, bytes + 40, 8);
  if (width > 4 || tokens > size || documents > size) return;
  size_t mask = (128 + tokens * width + 7) / 8 * 8, starts = (mask + (tokens + 7) / 8 + 7) / 8 * 8;
  if (starts + 8 * documents > size) return;
  crc[0] = (uint32_t)crc32_z(0, bytes + 128, tokens * width);
  crc[1] = (uint32_t)crc32_z(0, bytes + mask, (tokens + 7) / 8);
  crc[2] = (uint32_t)crc32_z(0, bytes + starts, 8 * documents);
  memcpy(bytes + CRC_OFFSET, crc, sizeof crc);
  const size_t marks = (documents + 7) / 8, room = (marks + 7) / 8 * 8;
  uint32_t joined = bytes[FLAGS_OFFSET] & FLAG_JOINED ? (uint32_t)crc32_z(0, bytes + size - room, marks) : 0;
  memcpy(bytes + JOINED_OFFSET, &joined, sizeof joined);
}

static void seal(unsigned char *bytes, size_t size) {
  int64_t file_bytes = (int64_t)size;
  if (size < 128) return;
  memcpy(bytes + SIZE_OFFSET, &file_bytes, 8);
  seal_sections(bytes, size);
  uint64_t hash = XXH64(bytes, HASH_OFFSET, 0);
  memcpy(bytes + HASH_OFFSET, &hash, 8);
}

static void read_samples(const fsdp_dataset *dataset, int64_t seq, int64_t vocab_size) {
  int32_t *tokens = fsdp_alloc((size_t)seq * sizeof *tokens),
          *targets = fsdp_alloc((size_t)seq * sizeof *targets);
  int64_t count = fsdp_min_i64(dataset->sample_count, 256);
  for (int64_t i = 0; i < count; i++) {
    fsdp_dataset_fill_part(dataset, &(fsdp_dataset_part){.sample = i, .count = seq}, tokens, targets);
    int64_t counted = 0;
    for (int64_t t = 0; t < seq; t++) {
      FSDP_CHECK(tokens[t] >= 0 && tokens[t] < vocab_size, "a token outside the vocabulary");
      counted += targets[t] != FSDP_TARGET_IGNORED;
    }
    FSDP_CHECK(counted == fsdp_dataset_target_count(dataset, i) && counted > 0, "targets are miscounted");
  }
  free(tokens);
  free(targets);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < 1) return 0;
  uint8_t mode = data[0];
  unsigned char *bytes = fsdp_alloc(size);
  memcpy(bytes, data + 1, size - 1);
  bool is_bin = mode & 1;
  if (!is_bin && !(mode & 2)) seal(bytes, size - 1);
  const char *path = fsdp_fuzz_file(is_bin ? "data.bin" : "data.tok", bytes, size - 1);
  free(bytes);
  fsdp_token_file file;
  fsdp_error error = {0};
  if (fsdp_token_file_open(path, &file, &error) != FSDP_OK) return 0;
  int64_t vocab_size = is_bin ? INT32_MAX : file.view.vocab_size;
  fsdp_token_file_close(&file);
  fsdp_data_paths paths = {.list = (char *)path, .files = (char *[]){(char *)path}, .count = 1};
  fsdp_dataset_config config = {.files = &paths,
                                .seq = 1 + (mode >> 2 & 31),
                                .global_batch = 1,
                                .vocab_size = vocab_size,
                                .verify = true};
  fsdp_dataset *dataset;
  if (fsdp_dataset_open(&config, &dataset, &error) != FSDP_OK) return 0;
  read_samples(dataset, config.seq, vocab_size);
  fsdp_dataset_fingerprint(dataset);
  fsdp_dataset_close(dataset);
  return 0;
}
