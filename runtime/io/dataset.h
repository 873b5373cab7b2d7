// Text as training samples.
//
//   files, one after the other:  t0 t1 t2 ... t(n-1)      (a byte is a token; nothing is put between files)
//   sample i of T tokens:        tokens  t[iT] .. t[iT+T-1]
//                                targets t[iT+1] .. t[iT+T]       so there are (n-1)/T samples
//
// Files are mapped, not read: a rank touches the pages of its own samples only.
#pragma once

#include "runtime/base/status.h"

#include <stdint.h>

typedef struct fsdp_dataset fsdp_dataset;

typedef struct fsdp_dataset_config {
  const char *paths;    // separated by commas; NULL or empty is the built-in text
  int64_t seq;          // tokens of a sample
  int64_t global_batch; // samples of a step, which the data must suffice for
  int64_t vocab_size;   // of the model; every token must be below it
} fsdp_dataset_config;

// Opens and maps the files. FSDP_ERR_INPUT where one is missing, empty, a folder or of a kind that is not
// built, where the text is too short for one step, or the vocabulary too small for bytes. The caller closes
// *dataset.
fsdp_status fsdp_dataset_open(const fsdp_dataset_config *config, fsdp_dataset **dataset, fsdp_error *error);
void fsdp_dataset_close(fsdp_dataset *dataset); // NULL is allowed

// Writes sample `sample`: `seq` tokens and as many targets. A target that the loss must not count is
// FSDP_TARGET_IGNORED (models/op.h); plain text has none. May be called by several threads at once.
void fsdp_dataset_fill(const fsdp_dataset *dataset, int64_t sample, int32_t *tokens, int32_t *targets);

// How many of the sample's targets the loss counts.
int64_t fsdp_dataset_target_count(const fsdp_dataset *dataset, int64_t sample);

// Samples of an epoch, with those that a last partial batch would hold.
int64_t fsdp_dataset_sample_count(const fsdp_dataset *dataset);
// Tokens of all files.
int64_t fsdp_dataset_token_count(const fsdp_dataset *dataset);

// One line for a person: where the tokens come from.
const char *fsdp_dataset_description(const fsdp_dataset *dataset);

// A hash of what the data is (names do not count), by which a resumed run knows that it continues on the
// same.
uint64_t fsdp_dataset_fingerprint(const fsdp_dataset *dataset);
