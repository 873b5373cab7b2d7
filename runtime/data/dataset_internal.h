// What a data set is made of, for its modules: dataset_samples.c opens it and fills its samples,
// dataset_rows.c makes them of the files' documents, dataset_held_out.c makes them anew with records held
// out, dataset_about.c says what it is.
#pragma once

#include "runtime/data/dataset.h"
#include "runtime/data/token_source.h"

typedef struct fsdp_dataset_source {
  fsdp_token_source tokens;
  char *path;             // for messages; NULL: the built-in text
  int64_t first;          // index of its first token among all
  int64_t first_document; // of its first document
} fsdp_dataset_source;

// Documents of a group that are packed together.
typedef struct fsdp_dataset_side {
  const struct fsdp_dataset_files *of;
  uint32_t *documents; // of the group, as they are packed; NULL: all. Owned
  int64_t document_count;
  fsdp_packing *rows;
} fsdp_dataset_side;

// Files that no sample of other files runs into.
typedef struct fsdp_dataset_files {
  fsdp_dataset_group known; // its name is owned
  const fsdp_dataset *dataset;
  // Documents in rows: all of them, or those to train on and, behind these, those held out. Without rows it
  // is a stream.
  fsdp_dataset_side sides[2];
  int64_t first_token, end_token;
  int64_t first_document, document_count;
  int64_t first_raw, raw_count; // samples, including those without a counted target
  int64_t held_raw;             // of these the last, held out
} fsdp_dataset_files;

// Writes the description, once samples are made.
void fsdp_dataset_describe(fsdp_dataset *dataset);

// The last source whose first token (or document) is not after `index`.
const fsdp_dataset_source *fsdp_dataset_source_at(const fsdp_dataset *dataset, int64_t index, bool document);
// The source of a group's document, whose index in it is then *index.
const fsdp_dataset_source *fsdp_dataset_document_at(const fsdp_dataset_files *group, int64_t document,
                                                    int64_t *index);
static inline int64_t fsdp_dataset_document_of(const fsdp_dataset_side *side, int64_t index) {
  return side->documents ? side->documents[index] : index;
}

// Groups of files, as they are to be packed, and their rows. FSDP_ERR_INPUT if the data cannot be packed so.
fsdp_status fsdp_dataset_make_rows(fsdp_dataset *dataset, const fsdp_dataset_config *config,
                                   fsdp_error *error);
// The rows of all groups, one group's behind another's.
void fsdp_dataset_number_rows(fsdp_dataset *dataset);
// Packs the first `count` documents of a side: side->rows.
fsdp_status fsdp_dataset_pack(fsdp_dataset_side *side, int64_t count, fsdp_error *error);
// Once all groups are packed: which samples there are, and what stands in them.
fsdp_status fsdp_dataset_number_samples(fsdp_dataset *dataset, fsdp_error *error);
// Then: what is told of them.
void fsdp_dataset_tell(fsdp_dataset *dataset);
