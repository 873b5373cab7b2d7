// Tokens as training samples of T tokens and the targets that they shall foretell, each the token after.
//
//   packed (text, .bin, .tok by default): files and documents one after the other, nothing put between them
//     t0 t1 t2 ... t(n-1)      sample i: tokens  t[iT] .. t[iT+T-1]
//                                        targets t[iT+1] .. t[iT+T], so there are (n-1)/T samples
//   not packed (.tok prepared with --packing off): a sample is one document
//     d0 d1 ... d(m-1)         tokens d0 .. d(m-2) and zeros, targets d1 .. d(m-1), cut off at T
//
// A target that the loss does not count (a prompt's, one past a document's end, a document's first token) is
// FSDP_TARGET_IGNORED. Samples of which no target counts are left out, so that every step has one.
// Files are mapped, not read: a rank touches the pages of its own samples only, and filling copies from them.
#pragma once

#include "runtime/base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct fsdp_dataset fsdp_dataset;

typedef struct fsdp_dataset_config {
  const char
      *paths; // separated by commas: .txt, .jsonl, .json, .tok, .bin; NULL or empty is the built-in text
  const char *tokenizer; // path of the model's tokenizer.json; NULL where it has none, and text is bytes
  bool only_bytes;       // the user asked for bytes: tokens of a tokenizer are refused
  const char
      *no_bytes; // why bytes are refused, and what to do: "the model ...; do ..."; NULL where they are not
  int64_t seq;   // tokens of a sample
  int64_t global_batch; // samples of a step, which the data must suffice for; 1 for evaluation data
  int64_t vocab_size;   // of the model; every token must be below it
  bool verify;          // read prepared files whole and compare them with their checksums
} fsdp_dataset_config;

// A sample that is none: all padding, nothing counted. It fills a last batch of evaluation.
#define FSDP_DATASET_NO_SAMPLE (-1)

// Opens and maps the files. FSDP_ERR_INPUT where one is missing, malformed, of no known kind, or made for
// another tokenizer or a larger vocabulary than the model's (token_source.h), where bytes are all that may be
// read or must not be, where packed and unpacked ones
// are mixed, or where all are too short for one step. The caller closes *dataset.
fsdp_status fsdp_dataset_open(const fsdp_dataset_config *config, fsdp_dataset **dataset, fsdp_error *error);
void fsdp_dataset_close(fsdp_dataset *dataset); // NULL is allowed

// Writes sample `sample` (or FSDP_DATASET_NO_SAMPLE): `seq` tokens and as many targets, in which
// FSDP_TARGET_IGNORED (op.h) marks those that the loss must not count. A token that is not below the
// vocabulary (the file was damaged) aborts. May be called by several threads at once.
void fsdp_dataset_fill(const fsdp_dataset *dataset, int64_t sample, int32_t *tokens, int32_t *targets);

// How many of the sample's targets the loss counts: at least one, or none of FSDP_DATASET_NO_SAMPLE.
int64_t fsdp_dataset_target_count(const fsdp_dataset *dataset, int64_t sample);

// Samples of an epoch, with those that a last partial batch would hold.
int64_t fsdp_dataset_sample_count(const fsdp_dataset *dataset);
// Tokens of all files.
int64_t fsdp_dataset_token_count(const fsdp_dataset *dataset);

// One line for a person: where the tokens come from, how they were made, what is left out or cut off.
const char *fsdp_dataset_description(const fsdp_dataset *dataset);

// A hash of what the data is (names do not count), by which a resumed run knows that it continues on the
// same. It reads text and .bin whole, of .tok only the header.
uint64_t fsdp_dataset_fingerprint(const fsdp_dataset *dataset);
