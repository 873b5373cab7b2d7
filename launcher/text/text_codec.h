// Text as tokens, and back, for what a run samples. Bytes need nothing else; what a tokenizer makes is
// prepare_data.py's, which runs as a child of rank 0 and answers questions over a pair of pipes.
//
//   start ─► (communication starts) ─► open ─► encode, decode ... ─► stop
//
// The child is started before communication, which may forbid it later. It is found beside the program: in
// PREFIX/share/fsdp/scripts of PREFIX/bin, or in the source tree that the program was built from.
#pragma once

#include "runtime/base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct fsdp_text_codec {
  int process;     // of the child; 0: none was started
  FILE *to, *from; // its input and output
  bool opened;     // it has a tokenizer; else tokens are bytes
  bool chats;      // prompts are a user's messages, by a chat template
  bool could_chat; // they are not, but there is a template
  int64_t first;   // the token that a text begins with where tokens are bytes, or -1
  int64_t *ends;   // tokens that end a text, or an answer if prompts are a user's messages
  int end_count;
  char **end_texts; // the same as text that is no token
  int end_text_count;
  const char *script; // what was started, for messages
} fsdp_text_codec;

// Starts the child. What is wrong with it is said when it is first asked.
void fsdp_text_codec_start(fsdp_text_codec *codec);
// One that is all zeros is allowed.
void fsdp_text_codec_stop(fsdp_text_codec *codec);

#define FSDP_TEXT_OWN (-2)

typedef struct fsdp_text_form {
  const char *tokenizer;     // the path of a tokenizer.json; NULL: tokens are bytes
  const char *chat_template; // of prompts: "plain", "auto", "chatml" or a file
  // What "auto" takes, the first that there is: the text of a template, NULL without one; that of a model's
  // folder, NULL without one; the tokenizer's.
  const char *known;
  int64_t known_bytes;
  const char *folder;
  // Of a text: FSDP_TEXT_OWN is the tokenizer's own, and of bytes none and byte 0; -1: none.
  int64_t first, last;
} fsdp_text_form;

// FSDP_ERR_INPUT if tokenizer or template cannot be read, FSDP_ERR_OPTION if "auto" finds none; FSDP_ERR_PEER
// if there is no child that could read them. Plain bytes need none.
fsdp_status fsdp_text_codec_open(fsdp_text_codec *codec, const fsdp_text_form *form, fsdp_error *error);

// A prompt as tokens: `text`, or with a chat template its user's message and what an answer begins with. The
// caller frees *tokens.
fsdp_status fsdp_text_encode(fsdp_text_codec *codec, const char *text, int32_t **tokens, int64_t *count,
                             fsdp_error *error);

// Whether a text ends with the token, which is no part of it; one more of these.
bool fsdp_text_ends_with(const fsdp_text_codec *codec, int64_t token);
void fsdp_text_add_end(fsdp_text_codec *codec, int64_t token);
// Where in `text` a text that ends it begins; NULL: nowhere.
char *fsdp_text_find_end(const fsdp_text_codec *codec, char *text);

// What `count` tokens behind `behind_count` others read as: always UTF-8. The caller frees *text.
fsdp_status fsdp_text_decode(fsdp_text_codec *codec, const int32_t *tokens, int64_t behind_count,
                             int64_t count, char **text, fsdp_error *error);

// Tokens as a JSON array. A new reference.
json_t *fsdp_text_list(const int32_t *tokens, int64_t count);
