// Files of prepared tokens, mapped and not read.
//
// `.tok`, which scripts/prepare_data.py writes. Numbers are little-endian; each section is followed by zeros
// up to a multiple of 8 bytes:
//
//   offset bytes
//        0     8  "fsdp-tok"
//        8     4  version: 1
//       12     4  bytes of this header: 128
//       16     4  bytes of a token: 1, 2 or 4
//       20     4  flags: 1 (not read), 2 tokens are bytes (no tokenizer), 4 documents of a record are marked
//       24     8  vocabulary size: every token is below it
//       32     8  number of tokens
//       40     8  number of documents
//       48     8  number of tokens that the loss counts
//       56     8  XXH64 (seed 0) of the bytes of the tokenizer.json that made them; 0 for bytes
//       64     8  token that begins a document, -1: none
//       72     8  token that ends a document, -1: none
//       80    16  CRC-32 (zlib's) of tokens, mask, starts and chat template, 4 bytes each, without the zeros
//                 behind them
//       96     8  bytes of the whole file
//      104     8  bytes of the chat template that was given (--chat-template); 0: none was
//      112     4  with flag 4: CRC-32 of the marks, without the zeros behind them; else 0
//      116     4  0
//      120     8  XXH64 (seed 0) of the 120 bytes above
//      128        tokens; mask, one bit per token, lowest bit first; starts, 8 bytes per document; chat
//                 template; with flag 4 marks, one bit per document, lowest bit first: it is of the record
//                 that the document before it is of, as the answers of a conversation may be
//
// Also read as they are: llm.c's `.bin` (256 int32, of which the first three are magic 20240520, version 1
// and the number of uint16 tokens behind them; Llama 3's has magic 20240801, version 7 and uint32 tokens) and
// nanoGPT's `.bin` (uint16 tokens and no header at all). They say nothing of documents, masks, vocabulary or
// tokenizer: every token counts, and whether the model has all of their tokens is known by reading them
// (fsdp_token_view_find). Where documents end in them is known if the token that ends one (50256 in GPT-2's)
// is given (token_source.h).
#pragma once

#include "runtime/base/status.h"
#include "runtime/data/mapped_file.h"
#include "runtime/data/token_view.h"

typedef enum fsdp_token_format { FSDP_TOKENS_PREPARED, FSDP_TOKENS_LLMC, FSDP_TOKENS_RAW } fsdp_token_format;

typedef struct fsdp_token_file {
  fsdp_mapped_file file;
  fsdp_token_format format;
  fsdp_token_view view; // into `file`
  bool bytes;           // made without a tokenizer
  uint64_t tokenizer_hash;
  int64_t first_token, last_token; // of a document; -1: none
  const char *chat_template;       // into `file`, of this many bytes; NULL: none was given
  int64_t chat_template_bytes;
  uint64_t identity; // of header and, through its checksums, of all content; 0 if there is no such header
} fsdp_token_file;

// Maps and checks the file: a `.tok` by its ending, a `.bin` by its first bytes. FSDP_ERR_INPUT, naming what
// was found and expected, if it is missing or malformed, or if a `.bin` is likely not of tokens. Sizes,
// header and documents are checked, the tokens themselves are not read. The caller closes *file.
fsdp_status fsdp_token_file_open(const char *path, fsdp_token_file *file, fsdp_error *error);
void fsdp_token_file_close(fsdp_token_file *file); // one of zeros is allowed

// Reads a `.tok` whole and compares it with its header: checksums of tokens, mask and starts, the greatest
// token, the number of tokens that count. FSDP_ERR_INPUT names the section that is damaged. Does nothing for
// a `.bin`, which has no checksum, and for a file that is not open.
fsdp_status fsdp_token_file_verify(const char *path, const fsdp_token_file *file, fsdp_error *error);

// XXH64 of the file at `path`, as token files hold it of their tokenizer.json. FSDP_ERR_INPUT if it cannot be
// read.
fsdp_status fsdp_token_file_hash_tokenizer(const char *path, uint64_t *hash, fsdp_error *error);
