#include "models/graph/op.h"
#include "runtime/base/check.h"
#include "runtime/base/job.h"
#include "runtime/base/paths.h"
#include "runtime/base/progress.h"
#include "runtime/base/size.h"
#include "runtime/base/text.h"
#include "runtime/data/dataset_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef fsdp_dataset_source source;
typedef fsdp_dataset_files group;

// Tokens [begin, end) of all.
typedef struct span {
  int64_t begin, end;
} span;

static void add_source(fsdp_dataset *dataset, fsdp_token_source tokens, const char *path) {
  FSDP_CHECK(tokens.view.token_count <= INT64_MAX - dataset->token_count, "more than 2^63 tokens");
  dataset->sources[dataset->source_count++] = (source){.tokens = tokens,
                                                       .path = path ? fsdp_strdup(path, "a path") : NULL,
                                                       .first = dataset->token_count,
                                                       .first_document = dataset->document_count};
  dataset->token_count += tokens.view.token_count;
  dataset->document_count += fsdp_token_view_documents(&tokens.view);
  dataset->knows_documents |= tokens.view.starts != NULL;
}

// Files without a template of their own say nothing of it.
static bool agrees_on_template(const fsdp_dataset *dataset, const fsdp_token_file *added) {
  int64_t bytes;
  const char *known = fsdp_dataset_chat_template(dataset, &bytes);
  if (!known || !added->chat_template) return true;
  return bytes == added->chat_template_bytes && !memcmp(known, added->chat_template, (size_t)bytes);
}

static fsdp_status check_source(const fsdp_dataset *dataset, const fsdp_dataset_config *config,
                                const fsdp_token_source *added, const char *path, fsdp_error *error) {
  const fsdp_token_view *view = &added->view;
  // A tokenizer may have more tokens than the model where the data has none of them.
  if (added->bytes && view->vocab_size > dataset->vocab_size)
    return fsdp_fail(error, FSDP_ERR_INPUT,
                     "%.300s: bytes need a vocabulary of at least %" PRId64 ", but the model has %" PRId64
                     "; use a different model, or data prepared with this model's tokenizer",
                     path, view->vocab_size, dataset->vocab_size);
  if (added->bytes && config->no_bytes)
    return fsdp_fail(error, FSDP_ERR_INPUT, "%.300s: would be trained as raw bytes, but %s", path,
                     config->no_bytes);
  if (!added->bytes && config->only_bytes)
    return fsdp_fail(error, FSDP_ERR_INPUT,
                     "%.300s: holds tokens of a tokenizer, but --tokenizer bytes requires bytes; leave that "
                     "out, or give text",
                     path);
  if (!agrees_on_template(dataset, &added->file))
    return fsdp_fail(
        error, FSDP_ERR_INPUT,
        "%.300s: was prepared with a different --chat-template than the files before it; prepare all "
        "with the same one",
        path);
  return FSDP_OK;
}

// Says which token of a file the model does not have.
static fsdp_status fail_token(const fsdp_dataset *dataset, const fsdp_token_view *view, const char *path,
                              int64_t at, fsdp_error *error) {
  int32_t token;
  char resized[64] = "";
  fsdp_token_view_read(view, at, 1, &token);
  if (view->vocab_size > dataset->vocab_size)
    snprintf(resized, sizeof resized, ", or add --resize-embeddings %" PRId64, view->vocab_size);
  return fsdp_fail(
      error, FSDP_ERR_INPUT,
      "%.300s: token %" PRId64 " (from 0) of its %" PRId64 " is %" PRIu32 ", but the model has a "
      "vocabulary of %" PRId64 "; give the model that these tokens were made for (--model)%s, or other data",
      path, at, view->token_count, (uint32_t)token, dataset->vocab_size, resized);
}

// This caller's share of reading all tokens of the file.
static fsdp_status verify_source(const fsdp_dataset *dataset, const fsdp_dataset_config *config,
                                 const fsdp_token_source *added, const char *path, fsdp_error *error) {
  const fsdp_token_view *view = &added->view;
  int64_t shares = fsdp_max_i64(config->shares, 1), share = config->share;
  if (!config->verify) return FSDP_OK;
  if (view->vocab_size && dataset->source_count % shares == share) { // a checksum is of a whole file
    fsdp_status status = fsdp_token_file_verify(path, &added->file, error);
    if (status) return status;
  }
  if (view->vocab_size && view->vocab_size <= dataset->vocab_size) return FSDP_OK;
  int64_t each = view->token_count / shares, more = view->token_count % shares;
  int64_t begin = each * share + fsdp_min_i64(share, more), count = each + (share < more);
  int64_t at = fsdp_token_view_find(view, begin, count, dataset->vocab_size);
  if (at < 0) return FSDP_OK;
  return fail_token(dataset, view, path, at, error);
}

static fsdp_status add_files(fsdp_dataset *dataset, const fsdp_dataset_config *config, fsdp_error *error) {
  const fsdp_data_paths *files = config->files;
  fsdp_status status = FSDP_OK;
  uint64_t tokenizer_hash = 0;
  if (config->tokenizer) status = fsdp_token_file_hash_tokenizer(config->tokenizer, &tokenizer_hash, error);
  dataset->sources = fsdp_alloc((size_t)files->count * sizeof *dataset->sources);
  for (int i = 0; i < files->count && !status; i++) {
    const char *path = files->files[i];
    fsdp_token_source added = {0};
    status = fsdp_token_source_open(path, config->tokenizer, tokenizer_hash, &added, error);
    if (!status && config->has_separator) fsdp_token_source_find_documents(&added, config->separator);
    if (!status) status = check_source(dataset, config, &added, path, error);
    if (!status) status = verify_source(dataset, config, &added, path, error);
    if (status)
      fsdp_token_source_close(&added);
    else
      add_source(dataset, added, path);
  }
  return status;
}

static fsdp_status add_builtin(fsdp_dataset *dataset, const fsdp_dataset_config *config, fsdp_error *error) {
  fsdp_token_source tokens = fsdp_token_source_builtin();
  if (config->tokenizer)
    return fsdp_fail(error, FSDP_ERR_INPUT,
                     "--data: the built-in text is bytes, but the model has a tokenizer (%s); give data "
                     "prepared with %s",
                     config->tokenizer, FSDP_PREPARE_DATA);
  fsdp_status status = check_source(dataset, config, &tokens, "the built-in text", error);
  dataset->sources = fsdp_alloc(sizeof *dataset->sources);
  if (!status) add_source(dataset, tokens, NULL);
  return status;
}

// The group of a raw sample.
static group *group_of(const fsdp_dataset *dataset, int64_t raw) {
  group *p = dataset->groups;
  while (raw >= p->first_raw + p->raw_count) p++;
  return p;
}

// ---- Samples as segments

// Tokens begin .. begin + count of all, of which the last is a target alone, in a sample's slots from `slot`
// on.
typedef struct segment {
  int64_t slot, begin, count;
} segment;

// Steps from a segment of a raw sample to the next one, which is `index`; false: there is none. Begins at
// zeros.
static bool next_segment(const fsdp_dataset *dataset, int64_t raw, int64_t index, segment *at) {
  const group *p = group_of(dataset, raw);
  fsdp_packing_piece piece;
  if (!p->sides[0].rows) {
    if (index == 0) *at = (segment){0, p->first_token + (raw - p->first_raw) * dataset->seq, dataset->seq};
    return index == 0;
  }
  const int64_t first_held = p->first_raw + p->raw_count - p->held_raw;
  const fsdp_dataset_side *side = &p->sides[raw >= first_held];
  if (!fsdp_packing_piece_at(side->rows, raw - (raw >= first_held ? first_held : p->first_raw), index,
                             &piece))
    return false;
  int64_t d;
  const source *s = fsdp_dataset_document_at(p, fsdp_dataset_document_of(side, piece.document), &d);
  int64_t begin = s->first + fsdp_token_view_begin(&s->tokens.view, d);
  *at = (segment){at->slot + at->count, begin + piece.first, piece.slots};
  return true;
}

// The next source with tokens of `at`, behind NULL the first one; NULL: there is none.
static const source *next_source(const fsdp_dataset *dataset, span at, const source *s) {
  s = s ? s + 1 : fsdp_dataset_source_at(dataset, at.begin, false);
  return s < dataset->sources + dataset->source_count && s->first < at.end ? s : NULL;
}

// The part of `at` in `s`, from `at.begin` on, relative to the source's first token.
static span within(const source *s, span at) {
  return (span){.begin = fsdp_max_i64(at.begin - s->first, 0),
                .end = fsdp_min_i64(at.end - s->first, s->tokens.view.token_count)};
}

static int64_t count_targets(const fsdp_dataset *dataset, span at) {
  int64_t count = 0;
  at.begin++; // the first token is no target
  for (const source *s = NULL; (s = next_source(dataset, at, s));) {
    span part = within(s, at);
    if (part.end > part.begin)
      count += fsdp_token_view_counted(&s->tokens.view, part.begin, part.end - part.begin);
  }
  return count;
}

// The targets that count in `count` slots of a raw sample from `first` on.
static int64_t count_in_slots(const fsdp_dataset *dataset, int64_t raw, int64_t first, int64_t slots) {
  int64_t count = 0;
  segment at = {0};
  for (int64_t i = 0; next_segment(dataset, raw, i, &at); i++) {
    int64_t begin = fsdp_max_i64(at.slot, first), end = fsdp_min_i64(at.slot + at.count, first + slots);
    if (begin < end)
      count += count_targets(dataset, (span){at.begin + begin - at.slot, at.begin + end - at.slot + 1});
  }
  return count;
}

// How many slots of a raw sample are filled.
static int64_t filled_slots(const fsdp_dataset *dataset, int64_t raw) {
  segment at = {0};
  int64_t i = 0;
  while (next_segment(dataset, raw, i, &at)) i++;
  return at.slot + at.count;
}

static void leave_out(group *p, int64_t raw) {
  p->known.sample_count--;
  p->known.held_count -= raw >= p->first_raw + p->raw_count - p->held_raw;
}

// Finds the samples with a target that counts.
static void keep_samples(fsdp_dataset *dataset) {
  const bool packed = dataset->how.packing != FSDP_PACKING_STREAM;
  bool masked = false;
  for (int i = 0; i < dataset->source_count; i++) masked |= dataset->sources[i].tokens.view.mask != NULL;
  const int64_t all = dataset->raw_count * dataset->seq;
  fsdp_dataset_totals *totals = &dataset->totals;
  dataset->sample_count = dataset->raw_count;
  *totals = (fsdp_dataset_totals){.positions = all, .real = all, .learned = all};
  for (int i = 0; i < dataset->group_count; i++) {
    dataset->groups[i].known.sample_count = dataset->groups[i].raw_count;
    dataset->groups[i].known.held_count = dataset->groups[i].held_raw;
  }
  free(dataset->kept);
  dataset->kept = NULL;
  if (!masked && !packed) return;
  *totals = (fsdp_dataset_totals){0};
  int64_t *kept = fsdp_alloc_zeroed((size_t)fsdp_max_i64(dataset->raw_count, 1), sizeof *kept), count = 0;
  for (int64_t raw = 0; raw < dataset->raw_count; raw++) {
    if (raw % 4096 == 0) fsdp_progress_mark();
    int64_t learned = count_in_slots(dataset, raw, 0, dataset->seq);
    totals->learned += learned;
    if (learned > 0)
      kept[count++] = raw, totals->real += filled_slots(dataset, raw);
    else
      leave_out(group_of(dataset, raw), raw);
  }
  // Of documents that are cut or dropped, what no sample has.
  for (int i = 0; i < dataset->source_count && packed; i++) {
    const fsdp_token_view *view = &dataset->sources[i].tokens.view;
    totals->cut_learned +=
        view->mask ? view->target_count : view->token_count - fsdp_token_view_documents(view);
  }
  if (packed) totals->cut_learned -= totals->learned;
  dataset->sample_count = count;
  totals->positions = count * dataset->seq;
  totals->left_out = dataset->raw_count - count;
  if (count == dataset->raw_count)
    free(kept);
  else
    dataset->kept = kept;
}

// Data of which long documents were dropped, so that the others are too few for `needed` sequences.
static fsdp_status fail_dropped(const fsdp_dataset *dataset, const char *where,
                                const fsdp_packing_counts *counts, int64_t documents, int64_t needed,
                                fsdp_error *error) {
  const bool all = counts->dropped == documents;
  char others[160] = "";
  if (!all)
    snprintf(others, sizeof others, "; the others fill %" PRId64 " sequence%s, but one step needs %" PRId64,
             counts->rows, fsdp_plural(counts->rows), needed);
  return fsdp_fail(
      error, FSDP_ERR_INPUT,
      "%.300s: %s%" PRId64 " document%s longer than --seq-length %" PRId64
      " and dropped (--long-documents drop)%s; raise --seq-length, or use --long-documents split",
      where, all && documents > 1 ? "all its " : "", counts->dropped, counts->dropped == 1 ? " is" : "s are",
      dataset->seq, others);
}

// Every group of a mix has a sample.
static fsdp_status check_groups(fsdp_dataset *dataset, fsdp_error *error) {
  int64_t first = 0;
  for (int i = 0; i < dataset->group_count; i++) {
    group *p = &dataset->groups[i];
    p->known.first_sample = first;
    first += p->known.sample_count;
    if (!p->known.name || p->known.sample_count > 0) continue;
    const fsdp_packing_counts *counts = p->sides[0].rows ? fsdp_packing_count(p->sides[0].rows) : NULL;
    if (counts && counts->rows == 0 && counts->dropped > 0)
      return fail_dropped(dataset, p->known.name, counts, p->document_count, 1, error);
    return fsdp_fail(error, FSDP_ERR_INPUT,
                     "%.300s: has %" PRId64 " token%s, of which no sample of %" PRId64
                     " and the one behind it can be made that learns anything; give more, leave it out, or "
                     "lower --seq-length",
                     p->known.name, p->end_token - p->first_token, fsdp_plural(p->end_token - p->first_token),
                     dataset->seq);
  }
  return FSDP_OK;
}

static fsdp_status check_size(const fsdp_dataset *dataset, const fsdp_dataset_config *config,
                              fsdp_error *error) {
  const char *where = dataset->list ? dataset->list : "the built-in text";
  const char *batch = config->searches_batch ? "the batch (--global-batch)" : "--batch-size or --grad-accum";
  const char *next = config->searches_batch ? " or " : ", ";
  int64_t needed;
  if (!fsdp_mul_checked(config->seq, config->global_batch, &needed) || !fsdp_add_checked(needed, 1, &needed))
    needed = INT64_MAX;
  if (dataset->how.packing == FSDP_PACKING_STREAM && dataset->token_count < needed)
    return fsdp_fail(error, FSDP_ERR_INPUT,
                     "%.300s: has %" PRId64 " token%s, but one step needs %" PRId64 " (%" PRId64
                     " sequence%s of %" PRId64 ", and one more); give more, or lower --seq-length%s%s",
                     where, dataset->token_count, fsdp_plural(dataset->token_count), needed,
                     config->global_batch, fsdp_plural(config->global_batch), config->seq, next, batch);
  if (dataset->sample_count >= config->global_batch) return FSDP_OK;
  if (dataset->raw_count >= config->global_batch)
    return fsdp_fail(
        error, FSDP_ERR_INPUT,
        "%.300s: only %" PRId64 " of its %" PRId64 " sequences of %" PRId64
        " tokens have a target that counts: prompts, which are not learned, fill the others; one "
        "step needs %" PRId64 "; raise --seq-length, %s%s%sor prepare the data with --mask-prompt off",
        where, dataset->sample_count, dataset->raw_count, config->seq, config->global_batch,
        dataset->sample_count ? "give more data, lower " : "", dataset->sample_count ? batch : "",
        dataset->sample_count ? ", " : "");
  if (dataset->how.counts.dropped > 0)
    return fail_dropped(dataset, where, &dataset->how.counts, dataset->document_count, config->global_batch,
                        error);
  return fsdp_fail(error, FSDP_ERR_INPUT,
                   "%.300s: its %" PRId64 " document%s %" PRId64 " sequence%s of %" PRId64
                   " tokens, but one step needs %" PRId64 "; give more, or lower --seq-length%s%s",
                   where, dataset->document_count, dataset->document_count == 1 ? " fills" : "s fill",
                   dataset->raw_count, fsdp_plural(dataset->raw_count), config->seq, config->global_batch,
                   next, batch);
}

// ---- Rows

static double triangle(int64_t n) {
  return (double)n * (double)(n + 1) / 2;
}

// Pairs of a query and a key in the documents of tokens `at` of a stream.
static double stream_pairs(const fsdp_dataset *dataset, span at) {
  double pairs = 0;
  for (const source *s = NULL; (s = next_source(dataset, at, s));) {
    const fsdp_token_view *view = &s->tokens.view;
    const span part = within(s, at);
    int64_t d = view->starts ? fsdp_token_view_begun(view, part.begin + 1) - 1 : 0;
    for (int64_t begin = part.begin, next; begin < part.end; begin = next, d++) {
      next = fsdp_min_i64(fsdp_token_view_end(view, d), part.end);
      pairs += triangle(next - begin);
    }
  }
  return pairs;
}

static double raw_pairs(const fsdp_dataset *dataset, int64_t raw) {
  double pairs = 0;
  segment at = {0};
  for (int64_t i = 0; next_segment(dataset, raw, i, &at); i++)
    pairs += group_of(dataset, raw)->sides[0].rows
                 ? triangle(at.count)
                 : stream_pairs(dataset, (span){at.begin, at.begin + at.count});
  return pairs;
}

static void measure_rows(fsdp_dataset *dataset) {
  fsdp_dataset_rows *how = &dataset->how;
  double rows = (double)fsdp_max_i64(dataset->raw_count, 1);
  how->fill = how->attention = 1;
  if (!dataset->knows_documents) return;
  how->documents = (double)dataset->document_count / rows;
  double pairs = 0;
  for (int64_t raw = 0; raw < dataset->raw_count; raw++) {
    if (raw % 4096 == 0) fsdp_progress_mark();
    pairs += raw_pairs(dataset, raw);
  }
  how->attention = pairs / (rows * triangle(dataset->seq));
  if (how->packing == FSDP_PACKING_STREAM) return;
  how->documents = (double)how->counts.pieces / rows;
  how->fill = (double)how->counts.slots / (rows * (double)dataset->seq);
}

fsdp_status fsdp_dataset_number_samples(fsdp_dataset *dataset, fsdp_error *error) {
  fsdp_dataset_number_rows(dataset);
  keep_samples(dataset);
  return check_groups(dataset, error);
}

void fsdp_dataset_tell(fsdp_dataset *dataset) {
  measure_rows(dataset);
  fsdp_dataset_describe(dataset);
}

fsdp_status fsdp_dataset_open(const fsdp_dataset_config *config, fsdp_dataset **dataset, fsdp_error *error) {
  FSDP_CHECK(config->seq >= 1 && config->global_batch >= 1,
             "a step of %" PRId64 " samples of %" PRId64 " tokens", config->global_batch, config->seq);
  fsdp_dataset *opened = fsdp_alloc_zeroed(1, sizeof *opened);
  *dataset = NULL;
  opened->seq = config->seq;
  opened->vocab_size = config->vocab_size;
  opened->longer = config->longer;
  if (config->files && config->files->count) opened->list = fsdp_strdup(config->files->list, "a path");
  fsdp_status status = opened->list ? add_files(opened, config, error) : add_builtin(opened, config, error);
  if (!status) status = fsdp_dataset_make_rows(opened, config, error);
  if (!status) status = fsdp_dataset_number_samples(opened, error);
  if (!status) status = check_size(opened, config, error);
  if (status) {
    fsdp_dataset_close(opened);
    return status;
  }
  fsdp_dataset_tell(opened);
  *dataset = opened;
  return FSDP_OK;
}

void fsdp_dataset_close(fsdp_dataset *dataset) {
  if (!dataset) return;
  for (int i = 0; i < dataset->source_count; i++) {
    fsdp_token_source_close(&dataset->sources[i].tokens);
    free(dataset->sources[i].path);
  }
  for (int i = 0; i < dataset->group_count; i++) {
    for (int side = 0; side < 2; side++) {
      fsdp_packing_destroy(dataset->groups[i].sides[side].rows);
      free(dataset->groups[i].sides[side].documents);
    }
    free((void *)dataset->groups[i].known.name);
  }
  free(dataset->groups);
  free(dataset->list);
  free(dataset->sources);
  free(dataset->kept);
  free(dataset);
}

static int64_t raw_of(const fsdp_dataset *dataset, int64_t sample) {
  FSDP_CHECK(sample >= 0 && sample < dataset->sample_count, "sample %" PRId64 " of %" PRId64, sample,
             dataset->sample_count);
  return dataset->kept ? dataset->kept[sample] : sample;
}

// Copies tokens [part.begin, part.end) of `s`, checks them, and marks those that do not count.
static void copy_part(const fsdp_dataset *dataset, const source *s, span part, bool targets, int32_t *out) {
  const fsdp_token_view *view = &s->tokens.view;
  int64_t count = part.end - part.begin;
  if (count <= 0) return;
  uint32_t greatest = fsdp_token_view_read(view, part.begin, count, out);
  if (greatest >= dataset->vocab_size) {
    fsdp_error error;
    int64_t at = fsdp_token_view_find(view, part.begin, count, dataset->vocab_size);
    fail_token(dataset, view, s->path ? s->path : "the built-in text", fsdp_max_i64(at, part.begin), &error);
    FSDP_JOB_FAIL("reading the data", "%s", error.message);
  }
  if (!targets || (!view->mask && !view->starts)) return;
  for (int64_t i = 0; i < count; i++)
    if (!fsdp_token_view_counts(view, part.begin + i)) out[i] = FSDP_TARGET_IGNORED;
}

// Inputs `at`, and their targets one token on.
static void fill_span(const fsdp_dataset *dataset, span at, int32_t *tokens, int32_t *targets) {
  const span target_at = {.begin = at.begin + 1, .end = at.end + 1}, both = {at.begin, target_at.end};
  for (const source *s = NULL; (s = next_source(dataset, both, s));) {
    span input = within(s, at), target = within(s, target_at);
    copy_part(dataset, s, input, false, tokens + (s->first + input.begin - at.begin));
    copy_part(dataset, s, target, true, targets + (s->first + target.begin - target_at.begin));
  }
}

void fsdp_dataset_fill_part(const fsdp_dataset *dataset, const fsdp_dataset_part *part, int32_t *tokens,
                            int32_t *targets) {
  FSDP_CHECK(part->first >= 0 && part->count >= 0, "position %" PRId64, part->first);
  for (int64_t i = 0; i < part->count; i++) tokens[i] = 0, targets[i] = FSDP_TARGET_IGNORED;
  if (part->sample == FSDP_DATASET_NO_SAMPLE) return;
  int64_t raw = raw_of(dataset, part->sample), first = part->first;
  segment at = {0};
  for (int64_t i = 0; next_segment(dataset, raw, i, &at); i++) {
    int64_t begin = fsdp_max_i64(at.slot, first), end = fsdp_min_i64(at.slot + at.count, first + part->count);
    span tokens_at = {at.begin + begin - at.slot, at.begin + end - at.slot};
    if (begin < end) fill_span(dataset, tokens_at, tokens + begin - first, targets + begin - first);
  }
}

int64_t fsdp_dataset_part_target_count(const fsdp_dataset *dataset, const fsdp_dataset_part *part) {
  if (part->sample == FSDP_DATASET_NO_SAMPLE) return 0;
  return count_in_slots(dataset, raw_of(dataset, part->sample), part->first, part->count);
}

// The starts of documents in tokens `at` of a stream, counted from its first one: those of files too.
static void mark_stream(const fsdp_dataset *dataset, span at, int32_t *starts) {
  for (const source *s = NULL; (s = next_source(dataset, at, s));) {
    const fsdp_token_view *view = &s->tokens.view;
    if (s->first > at.begin) starts[s->first - at.begin] = (int32_t)(s->first - at.begin);
    int64_t d = view->starts ? fsdp_token_view_begun(view, at.begin - s->first + 1) : INT64_MAX;
    for (; d < view->document_count && s->first + (int64_t)view->starts[d] < at.end; d++) {
      int64_t position = s->first + (int64_t)view->starts[d] - at.begin;
      starts[position] = (int32_t)position;
    }
  }
}

void fsdp_dataset_fill_starts(const fsdp_dataset *dataset, int64_t sample, int64_t positions,
                              int32_t *starts) {
  int64_t filled = 0;
  segment at = {0};
  for (int64_t i = 0; i < positions; i++) starts[i] = 0;
  if (sample != FSDP_DATASET_NO_SAMPLE)
    for (int64_t i = 0, raw = raw_of(dataset, sample); next_segment(dataset, raw, i, &at); i++) {
      starts[at.slot] = (int32_t)at.slot;
      filled = at.slot + at.count;
      if (dataset->how.packing == FSDP_PACKING_STREAM)
        mark_stream(dataset, (span){at.begin, at.begin + at.count}, starts);
    }
  for (int64_t i = 1; i < filled; i++) starts[i] = starts[i] ? starts[i] : starts[i - 1];
  for (int64_t i = filled; i < positions; i++) starts[i] = (int32_t)i;
}

double fsdp_dataset_sample_pairs(const fsdp_dataset *dataset, int64_t sample) {
  return raw_pairs(dataset, raw_of(dataset, sample));
}

int64_t fsdp_dataset_target_count(const fsdp_dataset *dataset, int64_t sample) {
  const fsdp_dataset_part whole = {.sample = sample, .count = dataset->seq};
  return fsdp_dataset_part_target_count(dataset, &whole);
}

int64_t fsdp_dataset_real_count(const fsdp_dataset *dataset, int64_t sample) {
  return sample == FSDP_DATASET_NO_SAMPLE ? 0 : filled_slots(dataset, raw_of(dataset, sample));
}
