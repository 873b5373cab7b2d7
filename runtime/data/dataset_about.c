#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/base/text.h"
#include "runtime/data/dataset_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

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
  say(dataset, " %s %s%s", fsdp_print_int(count).text, what, fsdp_plural(count));
}

void fsdp_dataset_describe(fsdp_dataset *dataset) {
  const char *how = dataset->sources[0].tokens.how;
  bool alike = true;
  *dataset->description = 0;
  for (int i = 1; i < dataset->source_count; i++) alike &= dataset->sources[i].tokens.how == how;
  if (dataset->list)
    say(dataset, "%.180s%s,", dataset->list, strlen(dataset->list) > 180 ? "..." : "");
  else
    say(dataset, "built-in text (Northanger Abbey),");
  if (dataset->source_count > 1) {
    say_count(dataset, dataset->source_count, "file");
    say(dataset, ",");
  }
  say(dataset, " %s:", alike ? how : "prepared in several ways");
  say_count(dataset, dataset->token_count, "token");
  if (dataset->knows_documents) {
    say(dataset, ",");
    say_count(dataset, dataset->document_count, "document");
  }
  if (dataset->kept) {
    say(dataset, ",");
    say_count(dataset, dataset->totals.left_out, "sample");
    say(dataset, " left out of which no target counts");
  }
}

fsdp_dataset_group fsdp_dataset_group_at(const fsdp_dataset *dataset, int index) {
  return dataset->groups[index].known;
}

static int64_t split_of_stream(const fsdp_dataset_files *p, int64_t seq) {
  int64_t count = 0, d;
  for (int64_t i = 0; i < p->document_count; i++) {
    const fsdp_dataset_source *s = fsdp_dataset_document_at(p, i, &d);
    const int64_t before = s->first - p->first_token,
                  begin = before + fsdp_token_view_begin(&s->tokens.view, d);
    const int64_t last = before + fsdp_token_view_end(&s->tokens.view, d) - 2; // that has a target
    count += fsdp_min_i64(last, p->raw_count * seq - 1) / seq > begin / seq;
  }
  return count;
}

int64_t fsdp_dataset_split_count(const fsdp_dataset *dataset, int64_t *documents) {
  const fsdp_packing_counts *packed = &dataset->how.counts;
  const bool stream = dataset->how.packing == FSDP_PACKING_STREAM;
  int64_t count = packed->split;
  *documents = stream ? dataset->document_count : packed->pieces;
  for (int i = 0; i < dataset->group_count && stream; i++)
    count += split_of_stream(&dataset->groups[i], dataset->seq);
  return count;
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

fsdp_token_ends fsdp_dataset_ends(const fsdp_dataset *dataset) {
  fsdp_token_ends ends = {0};
  for (int i = 0; i < dataset->source_count && !ends.known && dataset->sources[i].path; i++)
    ends = fsdp_token_ends_of(dataset->sources[i].path, &dataset->sources[i].tokens.file);
  return ends;
}

bool fsdp_dataset_takes_separator(const fsdp_dataset *dataset, const char **without) {
  bool takes = false;
  *without = NULL;
  for (int i = 0; i < dataset->source_count; i++) {
    const fsdp_dataset_source *s = &dataset->sources[i];
    takes |= s->tokens.starts != NULL;
    if (s->tokens.starts && !s->tokens.separated && !*without) *without = s->path;
  }
  return takes;
}

const char *fsdp_dataset_narrow_file(const fsdp_dataset *dataset) {
  for (int i = 0; i < dataset->source_count; i++) {
    const fsdp_token_view *view = &dataset->sources[i].tokens.view;
    if (!view->vocab_size && view->token_bytes == 2 && dataset->vocab_size > UINT16_MAX + 1)
      return dataset->sources[i].path;
  }
  return NULL;
}

// Of `.bin` files of more bytes in all, only the ends of each are hashed.
#define HASH_WHOLE_BYTES_MAX ((int64_t)1 << 30)

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
    fsdp_token_source_hash(&dataset->sources[i].tokens, bytes <= HASH_WHOLE_BYTES_MAX, state);
  if (dataset->how.packing != FSDP_PACKING_STREAM)
    XXH64_update(state, &dataset->how.counts, sizeof dataset->how.counts);
  for (int i = 0; i < dataset->group_count && dataset->groups[0].known.name; i++) {
    const fsdp_dataset_group *known = &dataset->groups[i].known;
    XXH64_update(state, &known->share, sizeof known->share);
    XXH64_update(state, &known->sample_count, sizeof known->sample_count);
  }
  uint64_t hash = XXH64_digest(state);
  XXH64_freeState(state);
  return hash;
}
