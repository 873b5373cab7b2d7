#include "runtime/data/dataset.h"

#include "models/graph/op.h"
#include "runtime/base/check.h"
#include "runtime/base/job.h"
#include "runtime/base/paths.h"
#include "runtime/base/plural.h"
#include "runtime/base/progress.h"
#include "runtime/base/size.h"
#include "runtime/base/text.h"
#include "runtime/data/token_source.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

typedef struct source {
  fsdp_token_source tokens;
  char *path;             // for messages; NULL: the built-in text
  int64_t first;          // index of its first token among all
  int64_t first_document; // of its first document
} source;

// Files that no sample of other files runs into.
typedef struct group {
  fsdp_dataset_group known;
  char *name; // owned; known.name
  int64_t first_token, end_token;
  int64_t first_raw, raw_count; // samples, including those without a counted target
} group;

struct fsdp_dataset {
  source *sources;
  group *groups;
  int source_count, group_count;
  int64_t token_count, document_count, seq, vocab_size;
  bool packed, builtin;
  int64_t raw_count;                  // samples, including those without a counted target
  int64_t sample_count;               // without them
  int64_t *kept;                      // raw number of each sample; NULL if all are kept
  int64_t cut_count;                  // documents longer than a sample, if not packed
  int64_t real, learned, cut_learned; // fsdp_dataset_totals
  char description[640];
};

// Tokens [begin, end) of all: those of a raw sample, and the one after.
typedef struct span {
  int64_t begin, end;
} span;

static char *copy_path(const char *path) {
  char *copy = strdup(path);
  FSDP_NEED_MEMORY(copy, "a path");
  return copy;
}

static void add_source(fsdp_dataset *dataset, fsdp_token_source tokens, const char *path) {
  FSDP_CHECK(tokens.view.token_count <= INT64_MAX - dataset->token_count, "more than 2^63 tokens");
  dataset->sources[dataset->source_count++] = (source){.tokens = tokens,
                                                       .path = path ? copy_path(path) : NULL,
                                                       .first = dataset->token_count,
                                                       .first_document = dataset->document_count};
  dataset->token_count += tokens.view.token_count;
  dataset->document_count += tokens.view.document_count;
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
  if (dataset->source_count && view->packed != dataset->sources[0].tokens.view.packed)
    return fsdp_fail(error, FSDP_ERR_INPUT,
                     "%.300s: is %s, but the files before it are %s; prepare all with the same --packing",
                     path, view->packed ? "packed" : "not packed", view->packed ? "not" : "packed");
  return FSDP_OK;
}

// Says which token of a file the model does not have.
static fsdp_status fail_token(const fsdp_dataset *dataset, const fsdp_token_view *view, const char *path,
                              int64_t at, fsdp_error *error) {
  int32_t token;
  char resized[64] = "";
  fsdp_token_view_read(view, at, 1, &token);
  if (view->vocab_size > dataset->vocab_size)
    snprintf(resized, sizeof resized, "add --resize-embeddings %" PRId64 ", ", view->vocab_size);
  return fsdp_fail(
      error, FSDP_ERR_INPUT,
      "%.300s: token %" PRId64 " (from 0) of its %" PRId64 " is %" PRIu32 ", but the model has a "
      "vocabulary of %" PRId64 "; %suse the model that these tokens were made for, or other data",
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
  dataset->builtin = true;
  return status;
}

// The last source whose first token (or document) is not after `index`.
static const source *source_at(const fsdp_dataset *dataset, int64_t index, bool document) {
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

// The group of a raw sample.
static group *group_of(const fsdp_dataset *dataset, int64_t raw) {
  group *p = dataset->groups;
  while (raw >= p->first_raw + p->raw_count) p++;
  return p;
}

static span span_of(const fsdp_dataset *dataset, int64_t raw) {
  if (dataset->packed) {
    const group *p = group_of(dataset, raw);
    const int64_t begin = p->first_token + (raw - p->first_raw) * dataset->seq;
    return (span){.begin = begin, .end = begin + dataset->seq + 1};
  }
  const source *s = source_at(dataset, raw, true);
  int64_t document = raw - s->first_document;
  int64_t begin = s->first + (int64_t)s->tokens.view.starts[document];
  int64_t end = s->first + fsdp_token_view_end(&s->tokens.view, document);
  return (span){.begin = begin, .end = end - begin > dataset->seq ? begin + dataset->seq + 1 : end};
}

// The part of `at` in `s`, from `at.begin` on, relative to the source's first token.
static span within(const source *s, span at) {
  return (span){.begin = fsdp_max_i64(at.begin - s->first, 0),
                .end = fsdp_min_i64(at.end - s->first, s->tokens.view.token_count)};
}

static int64_t count_targets(const fsdp_dataset *dataset, span at) {
  int64_t count = 0;
  const source *end = dataset->sources + dataset->source_count;
  at.begin++; // the first token is no target
  for (const source *s = source_at(dataset, at.begin, false); s < end && s->first < at.end; s++) {
    span part = within(s, at);
    if (part.end > part.begin)
      count += fsdp_token_view_counted(&s->tokens.view, part.begin, part.end - part.begin);
  }
  return count;
}

// Adds the group of sources [first, end).
static void add_group(fsdp_dataset *dataset, const fsdp_data_group *given, int first, int end) {
  const source *from = &dataset->sources[first];
  const int64_t token_end = end < dataset->source_count ? dataset->sources[end].first : dataset->token_count;
  const int64_t document_end =
      end < dataset->source_count ? dataset->sources[end].first_document : dataset->document_count;
  const int64_t tokens = token_end - from->first, documents = document_end - from->first_document;
  group *added = &dataset->groups[dataset->group_count++];
  *added = (group){.known.share = given ? given->share : 1,
                   .name = given ? copy_path(given->name) : NULL,
                   .first_token = from->first,
                   .end_token = token_end,
                   .first_raw = dataset->raw_count,
                   .raw_count = dataset->packed ? fsdp_max_i64(tokens - 1, 0) / dataset->seq : documents};
  added->known.name = added->name;
  dataset->raw_count += added->raw_count;
}

static void add_groups(fsdp_dataset *dataset, const fsdp_data_paths *files) {
  const int count = files ? files->group_count : 0;
  dataset->groups = fsdp_alloc_zeroed((size_t)count + 1, sizeof *dataset->groups);
  for (int i = 0; i < count; i++)
    add_group(dataset, &files->groups[i], files->groups[i].first,
              files->groups[i].first + files->groups[i].count);
  if (!count) add_group(dataset, NULL, 0, dataset->source_count);
}

// Finds the samples with a target that counts, and notes documents that are cut off.
static void keep_samples(fsdp_dataset *dataset) {
  bool masked = false;
  for (int i = 0; i < dataset->source_count; i++) masked |= dataset->sources[i].tokens.view.mask != NULL;
  dataset->sample_count = dataset->raw_count;
  dataset->real = dataset->learned = dataset->raw_count * dataset->seq;
  for (int i = 0; i < dataset->group_count; i++)
    dataset->groups[i].known.sample_count = dataset->groups[i].raw_count;
  if (!masked) return;
  dataset->real = dataset->learned = 0;
  int64_t *kept = fsdp_alloc_zeroed((size_t)fsdp_max_i64(dataset->raw_count, 1), sizeof *kept), count = 0;
  for (int64_t raw = 0; raw < dataset->raw_count; raw++) {
    span at = span_of(dataset, raw);
    if (raw % 4096 == 0) fsdp_progress_mark();
    int64_t learned = count_targets(dataset, at);
    dataset->learned += learned;
    if (learned > 0)
      kept[count++] = raw, dataset->real += at.end - 1 - at.begin;
    else
      group_of(dataset, raw)->known.sample_count--;
    if (dataset->packed) continue;
    const source *s = source_at(dataset, raw, true);
    int64_t end = s->first + fsdp_token_view_end(&s->tokens.view, raw - s->first_document);
    if (end <= at.end) continue;
    dataset->cut_count++;
    dataset->cut_learned += count_targets(dataset, (span){.begin = at.begin, .end = end}) - learned;
  }
  dataset->sample_count = count;
  if (count == dataset->raw_count)
    free(kept);
  else
    dataset->kept = kept;
}

// Tokens that a document's sample must have for a target of it to count; INT64_MAX if none does.
static int64_t needed_seq(const fsdp_dataset *dataset, int64_t document) {
  const source *s = source_at(dataset, document, true);
  const fsdp_token_view *view = &s->tokens.view;
  int64_t begin = (int64_t)view->starts[document - s->first_document];
  int64_t end = fsdp_token_view_end(view, document - s->first_document);
  for (int64_t i = begin + 1; i < end; i++)
    if (fsdp_token_view_counts(view, i)) return i - begin;
  return INT64_MAX;
}

static int compare_lengths(const void *left, const void *right) {
  int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
  return (a > b) - (a < b);
}

// There are enough samples, but too many of them have no counted target.
static fsdp_status fail_masked(const fsdp_dataset *dataset, const fsdp_dataset_config *config,
                               fsdp_error *error) {
  char remedy[128] = "give more data, or lower --batch-size or --grad-accum";
  if (!dataset->packed) {
    int64_t *lengths = fsdp_alloc((size_t)dataset->raw_count * sizeof *lengths);
    for (int64_t i = 0; i < dataset->raw_count; i++) lengths[i] = needed_seq(dataset, i);
    qsort(lengths, (size_t)dataset->raw_count, sizeof *lengths, compare_lengths);
    int64_t least = lengths[config->global_batch - 1];
    free(lengths);
    if (least < INT64_MAX)
      snprintf(remedy, sizeof remedy, "raise --seq-length to at least %" PRId64 ", give more data", least);
  }
  return fsdp_fail(error, FSDP_ERR_INPUT,
                   "%.300s: only %" PRId64 " of its %" PRId64 " %s have a target that counts among their "
                   "%s%" PRId64 " tokens: prompts, which are not learned, fill the others; one step needs "
                   "%" PRId64 "; %s, or prepare the data with --mask-prompt off",
                   config->files->list, dataset->sample_count, dataset->raw_count,
                   dataset->packed ? "sequences" : "documents", dataset->packed ? "" : "first ", config->seq,
                   config->global_batch, remedy);
}

// Every group of a mix has a sample.
static fsdp_status check_groups(fsdp_dataset *dataset, const fsdp_dataset_config *config, fsdp_error *error) {
  int64_t first = 0;
  for (int i = 0; i < dataset->group_count; i++) {
    group *p = &dataset->groups[i];
    p->known.first_sample = first;
    first += p->known.sample_count;
    if (!p->name || p->known.sample_count > 0) continue;
    return fsdp_fail(error, FSDP_ERR_INPUT,
                     "%.300s: has %" PRId64 " token%s, of which no sample of %" PRId64
                     " and the one behind it can be made that learns anything; give more, leave it out, or "
                     "lower --seq-length",
                     p->name, p->end_token - p->first_token, fsdp_plural(p->end_token - p->first_token),
                     config->seq);
  }
  return FSDP_OK;
}

static fsdp_status check_size(const fsdp_dataset *dataset, const fsdp_dataset_config *config,
                              fsdp_error *error) {
  const char *where = dataset->builtin ? "the built-in text" : config->files->list;
  const char *remedy = "give more, or lower --seq-length, --batch-size or --grad-accum";
  int64_t needed;
  if (!fsdp_mul_checked(config->seq, config->global_batch, &needed) || !fsdp_add_checked(needed, 1, &needed))
    needed = INT64_MAX;
  if (dataset->packed && dataset->token_count < needed)
    return fsdp_fail(error, FSDP_ERR_INPUT,
                     "%.300s: has %" PRId64 " token%s, but one step needs %" PRId64 " (%" PRId64
                     " sequence%s of %" PRId64 ", and one more); %s",
                     where, dataset->token_count, fsdp_plural(dataset->token_count), needed,
                     config->global_batch, fsdp_plural(config->global_batch), config->seq, remedy);
  if (dataset->sample_count >= config->global_batch) return FSDP_OK;
  if (dataset->raw_count >= config->global_batch) return fail_masked(dataset, config, error);
  return fsdp_fail(error, FSDP_ERR_INPUT,
                   "%.300s: has %" PRId64 " %s%s, each a sample, but one step needs %" PRId64
                   "; give more, or lower --batch-size or --grad-accum",
                   where, dataset->raw_count, dataset->packed ? "sequence" : "document",
                   fsdp_plural(dataset->raw_count), config->global_batch);
}

// Appends to the description.
static void say(fsdp_dataset *dataset, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void say(fsdp_dataset *dataset, const char *format, ...) {
  size_t used = strlen(dataset->description);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(dataset->description + used, sizeof dataset->description - used, format, arguments);
  va_end(arguments);
}

// " 1,024 tokens".
static void say_count(fsdp_dataset *dataset, int64_t count, const char *what) {
  char number[32];
  say(dataset, " %s %s%s", fsdp_print_int(count, number, sizeof number), what, fsdp_plural(count));
}

static void describe(fsdp_dataset *dataset, const char *list) {
  const char *how = dataset->sources[0].tokens.how;
  bool alike = true;
  for (int i = 1; i < dataset->source_count; i++) alike &= dataset->sources[i].tokens.how == how;
  if (dataset->builtin)
    say(dataset, "built-in text (Northanger Abbey),");
  else
    say(dataset, "%.180s%s,", list, strlen(list) > 180 ? "..." : "");
  if (dataset->source_count > 1) {
    say_count(dataset, dataset->source_count, "file");
    say(dataset, ",");
  }
  say(dataset, " %s:", alike ? how : "prepared in several ways");
  say_count(dataset, dataset->token_count, "token");
  if (dataset->document_count) {
    say(dataset, ",");
    say_count(dataset, dataset->document_count, "document");
    if (!dataset->packed) say(dataset, ", each a sample");
  }
  if (dataset->cut_count) {
    char number[32];
    say(dataset, ", %s cut off at", fsdp_print_int(dataset->cut_count, number, sizeof number));
    say_count(dataset, dataset->seq, "token");
  }
  if (dataset->kept) {
    say(dataset, ",");
    say_count(dataset, dataset->raw_count - dataset->sample_count, "sample");
    say(dataset, " left out of which no target counts");
  }
}

fsdp_status fsdp_dataset_open(const fsdp_dataset_config *config, fsdp_dataset **dataset, fsdp_error *error) {
  FSDP_CHECK(config->seq >= 1 && config->global_batch >= 1,
             "a step of %" PRId64 " samples of %" PRId64 " tokens", config->global_batch, config->seq);
  fsdp_dataset *opened = fsdp_alloc_zeroed(1, sizeof *opened);
  *dataset = NULL;
  opened->seq = config->seq;
  opened->vocab_size = config->vocab_size;
  fsdp_status status = config->files && config->files->count ? add_files(opened, config, error)
                                                             : add_builtin(opened, config, error);
  if (!status) {
    opened->packed = opened->sources[0].tokens.view.packed;
    add_groups(opened, config->files);
    keep_samples(opened);
    status = check_groups(opened, config, error);
    if (!status) status = check_size(opened, config, error);
  }
  if (status) {
    fsdp_dataset_close(opened);
    return status;
  }
  describe(opened, config->files ? config->files->list : NULL);
  *dataset = opened;
  return FSDP_OK;
}

void fsdp_dataset_close(fsdp_dataset *dataset) {
  if (!dataset) return;
  for (int i = 0; i < dataset->source_count; i++) {
    fsdp_token_source_close(&dataset->sources[i].tokens);
    free(dataset->sources[i].path);
  }
  for (int i = 0; i < dataset->group_count; i++) free(dataset->groups[i].name);
  free(dataset->groups);
  free(dataset->sources);
  free(dataset->kept);
  free(dataset);
}

static span sample_span(const fsdp_dataset *dataset, int64_t sample) {
  FSDP_CHECK(sample >= 0 && sample < dataset->sample_count, "sample %" PRId64 " of %" PRId64, sample,
             dataset->sample_count);
  return span_of(dataset, dataset->kept ? dataset->kept[sample] : sample);
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
  if (!targets || !view->mask) return;
  for (int64_t i = 0; i < count; i++)
    if (!fsdp_token_view_counts(view, part.begin + i)) out[i] = FSDP_TARGET_IGNORED;
}

// What of the data the inputs of a part are, empty if it is all padding. Its targets lie one token on.
static span part_span(const fsdp_dataset *dataset, const fsdp_dataset_part *part) {
  span whole = {0};
  if (part->sample != FSDP_DATASET_NO_SAMPLE) whole = sample_span(dataset, part->sample);
  FSDP_CHECK(part->first >= 0 && part->count >= 0, "position %" PRId64, part->first);
  // A document's last token predicts nothing, so it is no input.
  int64_t filled = fsdp_max_i64(whole.end - 1 - whole.begin - part->first, 0);
  int64_t begin = whole.begin + part->first;
  return (span){.begin = begin, .end = begin + fsdp_min_i64(filled, part->count)};
}

void fsdp_dataset_fill_part(const fsdp_dataset *dataset, const fsdp_dataset_part *part, int32_t *tokens,
                            int32_t *targets) {
  span at = part_span(dataset, part), target_at = {.begin = at.begin + 1, .end = at.end + 1};
  for (int64_t i = at.end - at.begin; i < part->count; i++) tokens[i] = 0, targets[i] = FSDP_TARGET_IGNORED;
  if (at.end == at.begin) return;
  const source *end = dataset->sources + dataset->source_count;
  for (const source *s = source_at(dataset, at.begin, false); s < end && s->first < target_at.end; s++) {
    span input = within(s, at), target = within(s, target_at);
    copy_part(dataset, s, input, false, tokens + (s->first + input.begin - at.begin));
    copy_part(dataset, s, target, true, targets + (s->first + target.begin - target_at.begin));
  }
}

int64_t fsdp_dataset_part_target_count(const fsdp_dataset *dataset, const fsdp_dataset_part *part) {
  span at = part_span(dataset, part);
  return at.end == at.begin ? 0 : count_targets(dataset, (span){.begin = at.begin, .end = at.end + 1});
}

void fsdp_dataset_fill(const fsdp_dataset *dataset, int64_t sample, int32_t *tokens, int32_t *targets) {
  const fsdp_dataset_part whole = {.sample = sample, .count = dataset->seq};
  fsdp_dataset_fill_part(dataset, &whole, tokens, targets);
}

int64_t fsdp_dataset_target_count(const fsdp_dataset *dataset, int64_t sample) {
  const fsdp_dataset_part whole = {.sample = sample, .count = dataset->seq};
  return fsdp_dataset_part_target_count(dataset, &whole);
}

int64_t fsdp_dataset_real_count(const fsdp_dataset *dataset, int64_t sample) {
  const fsdp_dataset_part whole = {.sample = sample, .count = dataset->seq};
  span at = part_span(dataset, &whole);
  return at.end - at.begin;
}

fsdp_dataset_totals fsdp_dataset_count(const fsdp_dataset *dataset) {
  return (fsdp_dataset_totals){.positions = dataset->sample_count * dataset->seq,
                               .real = dataset->real,
                               .learned = dataset->learned,
                               .cut_learned = dataset->cut_learned,
                               .left_out = dataset->raw_count - dataset->sample_count};
}

int64_t fsdp_dataset_sample_count(const fsdp_dataset *dataset) {
  return dataset->sample_count;
}
int fsdp_dataset_group_count(const fsdp_dataset *dataset) {
  return dataset->group_count;
}
fsdp_dataset_group fsdp_dataset_group_at(const fsdp_dataset *dataset, int index) {
  return dataset->groups[index].known;
}
int64_t fsdp_dataset_token_count(const fsdp_dataset *dataset) {
  return dataset->token_count;
}
const char *fsdp_dataset_description(const fsdp_dataset *dataset) {
  return dataset->description;
}

const char *fsdp_dataset_chat_template(const fsdp_dataset *dataset, int64_t *bytes) {
  *bytes = 0;
  for (int i = 0; i < dataset->source_count; i++) {
    const fsdp_token_file *file = &dataset->sources[i].tokens.file;
    if (!file->chat_template) continue;
    *bytes = file->chat_template_bytes;
    return file->chat_template;
  }
  return NULL;
}

const char *fsdp_dataset_narrow_file(const fsdp_dataset *dataset) {
  for (int i = 0; i < dataset->source_count; i++) {
    const fsdp_token_view *view = &dataset->sources[i].tokens.view;
    if (!view->vocab_size && view->token_bytes == 2 && dataset->vocab_size > UINT16_MAX + 1)
      return dataset->sources[i].path;
  }
  return NULL;
}

// Bytes hashed between two progress marks.
#define HASH_BYTES ((int64_t)16 << 20)
// Of `.bin` files of more bytes in all, only the ends of each are hashed.
#define HASH_WHOLE_BYTES_MAX ((int64_t)1 << 30)

static void hash_bytes(void *state, const void *bytes, int64_t count) {
  for (int64_t done = 0, now; done < count; done += now) {
    now = fsdp_min_i64(HASH_BYTES, count - done);
    XXH64_update(state, (const char *)bytes + done, (size_t)now);
    fsdp_progress_mark();
  }
}

// Text is hashed as one stream, so that splitting it into different files changes nothing.
uint64_t fsdp_dataset_fingerprint(const fsdp_dataset *dataset) {
  XXH64_state_t *state = XXH64_createState();
  FSDP_NEED_MEMORY(state, "a hash");
  XXH64_reset(state, 0);
  int64_t bytes = 0;
  for (int i = 0; i < dataset->source_count; i++) {
    const fsdp_token_file *file = &dataset->sources[i].tokens.file;
    if (!file->identity) bytes += file->file.count;
  }
  for (int i = 0; i < dataset->source_count; i++)
    fsdp_token_source_identity(&dataset->sources[i].tokens, bytes <= HASH_WHOLE_BYTES_MAX, hash_bytes, state);
  for (int i = 0; i < dataset->group_count && dataset->groups[0].name; i++) {
    const fsdp_dataset_group *known = &dataset->groups[i].known;
    XXH64_update(state, &known->share, sizeof known->share);
    XXH64_update(state, &known->sample_count, sizeof known->sample_count);
  }
  uint64_t hash = XXH64_digest(state);
  XXH64_freeState(state);
  return hash;
}
