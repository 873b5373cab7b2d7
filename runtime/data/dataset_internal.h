// What a data set is made of, for its modules: dataset_samples.c opens it and makes its samples,
// dataset_about.c says what it is.
#pragma once

#include "runtime/data/dataset.h"
#include "runtime/data/token_source.h"

typedef struct fsdp_dataset_source {
  fsdp_token_source tokens;
  char *path;             // for messages; NULL: the built-in text
  int64_t first;          // index of its first token among all
  int64_t first_document; // of its first document
} fsdp_dataset_source;

// Files that no sample of other files runs into.
typedef struct fsdp_dataset_files {
  fsdp_dataset_group known;
  const fsdp_dataset *dataset;
  char *name;         // owned; known.name
  fsdp_packing *rows; // documents in rows; NULL: a stream
  int64_t first_token, end_token;
  int64_t first_document, document_count;
  int64_t first_raw, raw_count; // samples, including those without a counted target
} fsdp_dataset_files;

struct fsdp_dataset {
  fsdp_dataset_source *sources;
  fsdp_dataset_files *groups;
  int source_count, group_count;
  int64_t token_count, document_count, seq, vocab_size; // a file that knows no documents is one
  bool builtin, knows_documents;
  int64_t raw_count;                  // samples, including those without a counted target
  int64_t sample_count;               // without them
  int64_t *kept;                      // raw number of each sample; NULL if all are kept
  int64_t real, learned, cut_learned; // fsdp_dataset_totals
  fsdp_dataset_rows how;
  char description[640];
};

// What fsdp_dataset_description returns, once samples are made; `list` names the files.
void fsdp_dataset_describe(fsdp_dataset *dataset, const char *list);
