// Records of `.jsonl` (one object per line) and `.json` (an array of objects) as bytes, for models without a
// tokenizer. scripts/prepare_data.py makes the same tokens of the same file.
//
// A record is, by its keys (the first row that fits):
//
//   instruction, input?, output  Stanford Alpaca's prompt of instruction and input, then the output; only the
//                                output counts (a text beside them is all of it in one)
//   text                         the text counts
//   prompt, completion           one directly behind the other; only the completion counts
//
// A record with any other key is refused, and so are conversations: scripts/prepare_data.py reads those.
// Each record is a document that ends with the end of text, byte 0. Records without any text are left out.
#pragma once

#include "runtime/base/status.h"
#include "runtime/data/token_view.h"

typedef struct fsdp_json_text {
  unsigned char *bytes;
  uint8_t *mask;
  uint64_t *starts;
  int64_t byte_count, byte_capacity, document_count, document_capacity;
} fsdp_json_text;

// Reads the file at `path` record by record; the tokens stay in host memory, about 9/8 of their number.
// FSDP_ERR_INPUT, as `file:line: ...`, if a record is malformed or if there is none. The caller closes *text.
fsdp_status fsdp_json_text_open(const char *path, fsdp_json_text *text, fsdp_error *error);
void fsdp_json_text_close(fsdp_json_text *text); // one of zeros is allowed

// The tokens, which live as long as `text`, of a vocabulary of 256.
fsdp_token_view fsdp_json_text_view(const fsdp_json_text *text);
