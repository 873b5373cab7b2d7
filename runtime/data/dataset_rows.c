#include "runtime/base/check.h"
#include "runtime/base/paths.h"
#include "runtime/base/size.h"
#include "runtime/data/dataset_internal.h"

#include <stdlib.h>

typedef fsdp_dataset_source source;
typedef fsdp_dataset_files group;

const source *fsdp_dataset_source_at(const fsdp_dataset *dataset, int64_t index, bool document) {
  int low = 0, high = dataset->source_count - 1;
  while (low < high) {
    int middle = high - (high - low) / 2;
    const source *s = &dataset->sources[middle];
    if ((document ? s->first_document : s->first) <= index)
      low = middle;
    else
      high = middle - 1;
  }
  return &dataset->sources[low];
}

const source *fsdp_dataset_document_at(const group *p, int64_t document, int64_t *index) {
  const source *s = fsdp_dataset_source_at(p->dataset, p->first_document + document, true);
  *index = p->first_document + document - s->first_document;
  return s;
}

bool fsdp_dataset_learns_parts(const fsdp_dataset *dataset) {
  for (int i = 0; i < dataset->source_count; i++) {
    const fsdp_token_view *view = &dataset->sources[i].tokens.view;
    if (view->mask && view->target_count < view->token_count - view->document_count) return true;
  }
  return false;
}

// ---- Packing

// Of a side's document.
static int64_t document_length(const void *context, int64_t index) {
  const fsdp_dataset_side *side = context;
  int64_t d;
  const source *s = fsdp_dataset_document_at(side->of, fsdp_dataset_document_of(side, index), &d);
  return fsdp_token_view_end(&s->tokens.view, d) - fsdp_token_view_begin(&s->tokens.view, d);
}

fsdp_status fsdp_dataset_pack(fsdp_dataset_side *side, int64_t count, fsdp_error *error) {
  const fsdp_dataset *dataset = side->of->dataset;
  const fsdp_packing_config packing = {.seq = dataset->seq,
                                       .longer = dataset->longer,
                                       .alone = dataset->how.packing == FSDP_PACKING_OFF,
                                       .document_count = count,
                                       .length = document_length,
                                       .context = side};
  side->document_count = count;
  return fsdp_packing_create(&packing, &side->rows, error);
}

static void add_counts(fsdp_packing_counts *sum, const fsdp_packing_counts *counts) {
  sum->rows += counts->rows, sum->pieces += counts->pieces, sum->slots += counts->slots;
  sum->split += counts->split, sum->cut += counts->cut, sum->dropped += counts->dropped;
  sum->lost_tokens += counts->lost_tokens;
}

void fsdp_dataset_number_rows(fsdp_dataset *dataset) {
  dataset->how.counts = (fsdp_packing_counts){0};
  dataset->raw_count = 0;
  for (int i = 0; i < dataset->group_count; i++) {
    group *p = &dataset->groups[i];
    p->first_raw = dataset->raw_count;
    if (p->sides[0].rows) p->raw_count = p->held_raw = 0;
    for (int side = 0; side < 2 && p->sides[side].rows; side++) {
      const fsdp_packing_counts *counts = fsdp_packing_count(p->sides[side].rows);
      add_counts(&dataset->how.counts, counts);
      p->raw_count += counts->rows;
      if (side == 1) p->held_raw = counts->rows;
    }
    dataset->raw_count += p->raw_count;
  }
}

// ---- Groups

// Adds the group of sources [first, end).
static fsdp_status add_group(fsdp_dataset *dataset, const fsdp_data_group *given, int first, int end,
                             fsdp_error *error) {
  const source *from = &dataset->sources[first];
  const bool last = end == dataset->source_count;
  group *added = &dataset->groups[dataset->group_count++];
  *added = (group){
      .known = {.name = given ? fsdp_strdup(given->name, "a path") : NULL, .share = given ? given->share : 1},
      .dataset = dataset,
      .first_token = from->first,
      .end_token = last ? dataset->token_count : dataset->sources[end].first,
      .first_document = from->first_document,
      .sides = {{.of = added}, {.of = added}}};
  added->document_count =
      (last ? dataset->document_count : dataset->sources[end].first_document) - added->first_document;
  added->raw_count = fsdp_max_i64(added->end_token - added->first_token - 1, 0) / dataset->seq;
  return dataset->how.packing == FSDP_PACKING_STREAM
             ? FSDP_OK
             : fsdp_dataset_pack(&added->sides[0], added->document_count, error);
}

static fsdp_status add_groups(fsdp_dataset *dataset, const fsdp_dataset_config *config, fsdp_error *error) {
  const int count = config->files ? config->files->group_count : 0;
  fsdp_status status = FSDP_OK;
  dataset->groups = fsdp_alloc_zeroed((size_t)count + 1, sizeof *dataset->groups);
  for (int i = 0; i < count && !status; i++) {
    const fsdp_data_group *given = &config->files->groups[i];
    status = add_group(dataset, given, given->first, given->first + given->count, error);
  }
  return count ? status : add_group(dataset, NULL, 0, dataset->source_count, error);
}

// The first file that does not say where documents begin; NULL: all do.
static const char *first_untold(const fsdp_dataset *dataset) {
  for (int i = 0; i < dataset->source_count; i++) {
    const source *s = &dataset->sources[i];
    if (!s->tokens.view.starts) return s->path ? s->path : "the built-in text";
  }
  return NULL;
}

fsdp_status fsdp_dataset_make_rows(fsdp_dataset *dataset, const fsdp_dataset_config *config,
                                   fsdp_error *error) {
  fsdp_packing_choice choice = config->packing;
  if (choice == FSDP_PACKING_AUTO)
    choice = fsdp_dataset_learns_parts(dataset) ? FSDP_PACKING_BEST_FIT : FSDP_PACKING_STREAM;
  dataset->how.packing = choice;
  const char *untold = first_untold(dataset);
  if (untold && (config->separates_all ||
                 (!dataset->knows_documents && (config->separates || choice != FSDP_PACKING_STREAM))))
    return fsdp_fail(
        error, FSDP_ERR_INPUT,
        "%.300s: does not say where documents begin, which %s needs; give files prepared with %s, or with "
        "--document-separator the token that ends one in a .bin",
        untold, choice == FSDP_PACKING_STREAM ? config->separates : "--packing other than stream",
        FSDP_PREPARE_DATA);
  return add_groups(dataset, config, error);
}
