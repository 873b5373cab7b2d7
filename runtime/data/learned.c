#include "runtime/data/learned.h"

#include "models/graph/op.h"
#include "runtime/base/check.h"

#include <stdlib.h>

void fsdp_learned_create(fsdp_learned *self, int64_t positions) {
  const size_t count = (size_t)positions;
  *self = (fsdp_learned){.positions = positions};
  self->counts = fsdp_alloc_zeroed(count, sizeof *self->counts);
  self->is_first = fsdp_alloc_zeroed(count, sizeof *self->is_first);
  self->targets = fsdp_alloc_zeroed(count, sizeof *self->targets);
  self->starts = fsdp_alloc_zeroed(count, sizeof *self->starts);
}

void fsdp_learned_destroy(fsdp_learned *self) {
  free(self->counts);
  free(self->is_first);
  free(self->targets);
  free(self->starts);
  *self = (fsdp_learned){0};
}

void fsdp_learned_find(fsdp_learned *self, const fsdp_dataset *dataset, int64_t sample) {
  const fsdp_dataset_part whole = {.sample = sample, .count = self->positions};
  fsdp_dataset_fill_part(dataset, &whole, self->counts, self->targets); // its tokens are not needed
  fsdp_dataset_fill_starts(dataset, sample, self->positions, self->starts);
  self->documents = 0;
  for (int64_t begin = 0, end; begin < self->positions; begin = end) {
    int32_t count = 0;
    for (end = begin; end < self->positions && self->starts[end] == self->starts[begin]; end++) {
      const bool counts = self->targets[end] != FSDP_TARGET_IGNORED;
      self->is_first[end] = counts && count == 0;
      count += counts;
    }
    for (int64_t i = begin; i < end; i++)
      self->counts[i] = self->targets[i] != FSDP_TARGET_IGNORED ? count : 0;
    self->documents += count > 0;
  }
}
