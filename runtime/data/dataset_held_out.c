#include "runtime/base/check.h"
#include "runtime/base/progress.h"
#include "runtime/base/random.h"
#include "runtime/base/size.h"
#include "runtime/data/dataset_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef fsdp_dataset_files group;

#define MARK_EVERY 4096 // documents between two progress marks

bool fsdp_dataset_divides_records(const fsdp_dataset *dataset) {
  bool marked = false;
  if (dataset->how.packing == FSDP_PACKING_STREAM) return false;
  for (int i = 0; i < dataset->source_count; i++) marked |= dataset->sources[i].tokens.view.joined != NULL;
  return marked || dataset->how.counts.split > 0;
}

// Whether a document of the group is of the record of the one before.
static bool joins(const group *p, int64_t document) {
  int64_t d;
  const fsdp_dataset_source *s = fsdp_dataset_document_at(p, document, &d);
  return fsdp_token_view_joins(&s->tokens.view, d);
}

// All documents, record by record, records as the seed permutes them.
static uint32_t *order_documents(const group *p, uint64_t seed) {
  const size_t bytes = (size_t)fsdp_max_i64(p->document_count, 1) * sizeof(uint32_t);
  uint32_t *order = fsdp_alloc(bytes), *first = fsdp_alloc(bytes);
  int64_t records = 0, count = 0;
  char name[64];
  snprintf(name, sizeof name, "held-out records of group %d", (int)(p - p->dataset->groups));
  const uint64_t stream = fsdp_random_stream(name);
  for (int64_t d = 0; d < p->document_count; d++) {
    if (d % MARK_EVERY == 0) fsdp_progress_mark();
    if (!joins(p, d)) first[records++] = (uint32_t)d;
  }
  for (int64_t i = 0; i < records; i++) {
    if (i % MARK_EVERY == 0) fsdp_progress_mark();
    int64_t d = first[fsdp_random_permute(seed, stream, records, i)];
    do order[count++] = (uint32_t)d;
    while (++d < p->document_count && joins(p, d));
  }
  FSDP_CHECK(count == p->document_count, "%lld of %lld documents", (long long)count,
             (long long)p->document_count);
  free(first);
  return order;
}

// The rows that the first `count` documents of the order make.
static int64_t rows_of(const group *p, uint32_t *order, int64_t count) {
  fsdp_dataset_side side = {.of = p, .documents = order};
  fsdp_error error;
  FSDP_CHECK(fsdp_dataset_pack(&side, count, &error) == FSDP_OK, "rows of fewer documents: %s",
             error.message);
  const int64_t rows = fsdp_packing_count(side.rows)->rows;
  fsdp_packing_destroy(side.rows);
  return rows;
}

// How many documents of the order are held out: whole records of at most `wanted` rows, to which the next one
// would add too many; but at least one record.
static int64_t find_end(const group *p, uint32_t *order, int64_t wanted) {
  int64_t low = 0, high = p->document_count; // rows of `low` are not more than wanted
  while (high - low > 1) {
    int64_t middle = low + (high - low) / 2;
    while (middle > low && joins(p, order[middle])) middle--;
    if (middle == low) // then the first end of a record behind it
      for (middle++; middle < high && joins(p, order[middle]);) middle++;
    if (middle == high) break;
    if (rows_of(p, order, middle) <= wanted)
      low = middle;
    else
      high = middle;
  }
  return low ? low : high;
}

static int compare_documents(const void *left, const void *right) {
  const uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
  return (a > b) - (a < b);
}

static fsdp_status divide_group(group *p, uint64_t seed, int64_t wanted, fsdp_error *error) {
  uint32_t *order = order_documents(p, seed);
  const int64_t held = find_end(p, order, wanted), trained = p->document_count - held;
  fsdp_dataset_side *train = &p->sides[0], *hold = &p->sides[1];
  fsdp_packing_destroy(train->rows);
  train->rows = NULL;
  hold->documents = fsdp_alloc((size_t)fsdp_max_i64(held, 1) * sizeof *order);
  memcpy(hold->documents, order, (size_t)held * sizeof *order);
  memmove(order, order + held, (size_t)trained * sizeof *order);
  train->documents = order;
  if (trained) qsort(order, (size_t)trained, sizeof *order, compare_documents); // as they lie in the files
  fsdp_status status = fsdp_dataset_pack(train, trained, error);
  return status ? status : fsdp_dataset_pack(hold, held, error);
}

fsdp_status fsdp_dataset_hold_out(fsdp_dataset *dataset, uint64_t seed, const int64_t *wanted,
                                  fsdp_error *error) {
  fsdp_status status = FSDP_OK;
  FSDP_CHECK(fsdp_dataset_divides_records(dataset), "records are held out of data that divides none");
  for (int g = 0; g < dataset->group_count && !status; g++) {
    FSDP_CHECK(!dataset->groups[g].sides[1].rows, "records are held out twice");
    if (wanted[g] > 0) status = divide_group(&dataset->groups[g], seed, wanted[g], error);
  }
  if (!status) status = fsdp_dataset_number_samples(dataset, error);
  if (!status) fsdp_dataset_tell(dataset);
  return status;
}
