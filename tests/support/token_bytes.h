// Writes `.tok` files for tests, from the format's table alone (runtime/data/token_file.h).
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct token_bytes {
  int64_t count, documents, vocab_size;
  const uint32_t *tokens;
  const uint8_t *counts; // 0 or 1 each
  const uint64_t *starts;
  const uint8_t *joined; // 0 or 1 for each document; NULL: no marks
  int width;             // bytes of a token
  bool packed, bytes;
  uint64_t tokenizer_hash;
} token_bytes;

// The file's content, which the caller frees, and its length.
unsigned char *token_bytes_make(const token_bytes *from, int64_t *length);

// Gives a changed header the checksum that it should have.
void token_bytes_seal(unsigned char *file);
