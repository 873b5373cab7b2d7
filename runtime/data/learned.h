// The weights of a mean over documents: how many targets of each position's document count.
//
// What of a document lies in one sample is a document: the parts of a split one lie in different steps, so no
// step knows them all.
#pragma once

#include "runtime/data/dataset.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fsdp_learned {
  int64_t positions; // at least as many as a sample has
  // By position of the sample last found: the targets of its document that count, 0 where its own does not;
  // whether it is the first of these in its document.
  int32_t *counts;
  bool *is_first;
  int64_t documents;         // that have such a target
  int32_t *targets, *starts; // room
} fsdp_learned;

// Room for samples of so many positions.
void fsdp_learned_create(fsdp_learned *self, int64_t positions);
void fsdp_learned_destroy(fsdp_learned *self); // one of zeros is allowed

// Of a sample, or FSDP_DATASET_NO_SAMPLE.
void fsdp_learned_find(fsdp_learned *self, const fsdp_dataset *dataset, int64_t sample);

#ifdef __cplusplus
}
#endif
