// One path of --data as tokens, whatever its kind: `.txt` as bytes, `.jsonl` and `.json` as bytes with what
// the loss counts (json_text.h), `.tok` and `.bin` as prepared (token_file.h).
#pragma once

#include "runtime/data/json_text.h"
#include "runtime/data/token_file.h"

#include <xxhash.h>

typedef struct fsdp_token_source {
  fsdp_token_view view;
  fsdp_mapped_file text;
  fsdp_json_text json;
  fsdp_token_file file;
  uint64_t *starts; // of documents, if fsdp_token_source_find_documents looked for them
  bool separated;   // and found the token that ends one
  const char *how;  // for a person: "as bytes", ...
  bool bytes;       // its tokens are bytes
} fsdp_token_source;

// The tokens that a document begins and ends with, -1: none; if a file tells.
typedef struct fsdp_token_ends {
  bool known;
  int64_t first, last;
} fsdp_token_ends;

// Those of the file at `path`, which is `file` if it is a `.tok`: of JSON byte 0 ends a document; `.txt` and
// `.bin` do not tell.
fsdp_token_ends fsdp_token_ends_of(const char *path, const fsdp_token_file *file);

// Opens `path` for a model whose tokenizer.json is at `tokenizer` (NULL: it has none) and has the hash
// `tokenizer_hash` (token_file.h). FSDP_ERR_INPUT if the file is of unknown kind or malformed, if it is text
// but the model has a tokenizer, or if it was prepared with a different tokenizer. The caller closes *source.
fsdp_status fsdp_token_source_open(const char *path, const char *tokenizer, uint64_t tokenizer_hash,
                                   fsdp_token_source *source, fsdp_error *error);
// Lets documents of a file that says nothing of them (a `.bin`) end with the token `separator`: reads it
// whole. Does nothing where they are known, or for text.
void fsdp_token_source_find_documents(fsdp_token_source *source, int64_t separator);
// The built-in text, as bytes; for a model without a tokenizer.
fsdp_token_source fsdp_token_source_builtin(void);
void fsdp_token_source_close(fsdp_token_source *source); // one of zeros is allowed

// Adds the source's content to a hash: the header of a prepared file, else all tokens and the mask; but of a
// `.bin`, unless `whole`, the number of tokens and the first and last 64 KiB of them.
void fsdp_token_source_hash(const fsdp_token_source *source, bool whole, XXH64_state_t *state);
