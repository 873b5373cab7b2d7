// Text as tokens, and back, for what a run samples. Bytes need nothing else; what a tokenizer makes is
// prepare_data.py's, which runs as a child of rank 0 and answers questions over a pair of pipes.
//
//   start ─► (communication starts) ─► open ─► encode, decode ... ─► stop
//
// The child is started before communication, which may forbid it later. It is found beside the program: in
// PREFIX/share/fsdp/scripts of PREFIX/bin, or in the source tree that the program was built from.
#pragma once

#include "runtime/base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct fsdp_text_codec {
  int process;        // of the child; 0: none was started
  FILE *to, *from;    // its input and output
  bool opened;        // it has a tokenizer; else tokens are bytes
  int64_t end;        // the token that ends a text, or -1
  const char *script; // what was started, for messages
} fsdp_text_codec;

// Starts the child. What is wrong with it is said when it is first asked.
void fsdp_text_codec_start(fsdp_text_codec *codec);
// One that is all zeros is allowed.
void fsdp_text_codec_stop(fsdp_text_codec *codec);

// With the tokenizer.json at `path`; NULL: tokens are bytes. FSDP_ERR_INPUT if it cannot be read;
// FSDP_ERR_PEER if there is no child that could read it.
fsdp_status fsdp_text_codec_open(fsdp_text_codec *codec, const char *path, fsdp_error *error);

// The caller frees *tokens.
fsdp_status fsdp_text_encode(fsdp_text_codec *codec, const char *text, int32_t **tokens, int64_t *count,
                             fsdp_error *error);

// What `count` tokens behind `behind_count` others read as: always UTF-8. The caller frees *text.
fsdp_status fsdp_text_decode(fsdp_text_codec *codec, const int32_t *tokens, int64_t behind_count,
                             int64_t count, char **text, fsdp_error *error);
