#include "tests/support/token_bytes.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include <zlib.h>

static const char magic[8] = {'f', 's', 'd', 'p', '-', 't', 'o', 'k'};

static void put(unsigned char *at, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; i++) at[i] = (unsigned char)(value >> (8 * i));
}

void token_bytes_seal(unsigned char *file) {
  put(file + 120, XXH64(file, 120, 0), 8);
}

unsigned char *token_bytes_make(const token_bytes *from, int64_t *length) {
  int64_t mask = (128 + from->count * from->width + 7) / 8 * 8;
  int64_t starts = (mask + (from->count + 7) / 8 + 7) / 8 * 8;
  int64_t targets = 0;
  int64_t joined = starts + 8 * from->documents, marks = from->joined ? (from->documents + 7) / 8 : 0;
  *length = joined + (marks + 7) / 8 * 8;
  unsigned char *file = calloc(1, (size_t)*length);
  for (int64_t i = 0; i < from->count; i++) {
    put(file + 128 + i * from->width, from->tokens[i], from->width);
    file[mask + i / 8] |= (unsigned char)(from->counts[i] << (i % 8));
    targets += from->counts[i];
  }
  for (int64_t i = 0; i < from->documents; i++) put(file + starts + 8 * i, from->starts[i], 8);
  for (int64_t i = 0; i < from->documents && from->joined; i++)
    file[joined + i / 8] |= (unsigned char)(from->joined[i] << (i % 8));
  memcpy(file, magic, sizeof magic);
  put(file + 8, 1, 4);
  put(file + 12, 128, 4);
  put(file + 16, (uint64_t)from->width, 4);
  put(file + 20, (uint64_t)from->packed + 2 * (uint64_t)from->bytes + (from->joined ? 4 : 0), 4);
  put(file + 24, (uint64_t)from->vocab_size, 8);
  put(file + 32, (uint64_t)from->count, 8);
  put(file + 40, (uint64_t)from->documents, 8);
  put(file + 48, (uint64_t)targets, 8);
  put(file + 56, from->tokenizer_hash, 8);
  memset(file + 64, 0xff, 16);
  put(file + 80, crc32_z(0, file + 128, (size_t)(from->count * from->width)), 4);
  put(file + 84, crc32_z(0, file + mask, (size_t)(from->count + 7) / 8), 4);
  put(file + 88, crc32_z(0, file + starts, 8 * (size_t)from->documents), 4);
  put(file + 96, (uint64_t)*length, 8);
  if (from->joined) put(file + 112, crc32_z(0, file + joined, (size_t)marks), 4);
  token_bytes_seal(file);
  return file;
}
