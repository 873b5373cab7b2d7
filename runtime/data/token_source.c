#include "runtime/data/token_source.h"

#include "runtime/base/check.h"
#include "runtime/base/paths.h"
#include "runtime/base/progress.h"
#include "runtime/base/size.h"
#include "runtime/base/text.h"
#include "runtime/data/builtin_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define END_BYTES  ((int64_t)64 << 10) // of a large `.bin`, hashed
#define HASH_BYTES ((int64_t)16 << 20) // between two progress marks

static fsdp_token_view view_of_bytes(const unsigned char *bytes, int64_t count) {
  return (fsdp_token_view){.tokens = bytes, .token_bytes = 1, .token_count = count, .vocab_size = 256};
}

// Bytes of the mark that some editors put before UTF-8, which is no text.
static int64_t mark_bytes(const fsdp_mapped_file *file) {
  return file->count >= 3 && memcmp(file->bytes, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}

static fsdp_status open_bytes(const char *path, bool json, fsdp_token_source *source, fsdp_error *error) {
  fsdp_status status = json ? fsdp_json_text_open(path, &source->json, error)
                            : fsdp_mapped_file_open(path, &source->text, error);
  const int64_t mark = json || status ? 0 : mark_bytes(&source->text);
  if (!status)
    source->view = json ? fsdp_json_text_view(&source->json)
                        : view_of_bytes(source->text.bytes + mark, source->text.count - mark);
  source->how = "as bytes";
  source->bytes = true;
  return status;
}

static fsdp_status check_tokenizer(const char *path, const char *tokenizer, uint64_t wanted,
                                   const fsdp_token_file *file, fsdp_error *error) {
  if (!tokenizer || file->format != FSDP_TOKENS_PREPARED) return FSDP_OK;
  if (file->bytes)
    return fsdp_fail(error, FSDP_ERR_INPUT,
                     "%s: holds bytes, but the model has a tokenizer; prepare it again with "
                     "%s --tokenizer %s",
                     path, FSDP_PREPARE_DATA, tokenizer);
  if (!file->tokenizer_hash)
    return fsdp_fail(error, FSDP_ERR_INPUT,
                     "%s: was made of .bin files without a tokenizer, but the model has one; prepare it "
                     "again with %s --tokenizer %s",
                     path, FSDP_PREPARE_DATA, tokenizer);
  if (file->tokenizer_hash != wanted)
    return fsdp_fail(error, FSDP_ERR_INPUT,
                     "%s: was prepared with a different tokenizer (its hash is %016llx) than %s (%016llx); "
                     "prepare it again with %s --tokenizer %s, or name the right one with --tokenizer",
                     path, (unsigned long long)file->tokenizer_hash, tokenizer, (unsigned long long)wanted,
                     FSDP_PREPARE_DATA, tokenizer);
  return FSDP_OK;
}

static fsdp_status open_tokens(const char *path, const char *tokenizer, uint64_t tokenizer_hash,
                               fsdp_token_source *source, fsdp_error *error) {
  fsdp_status status = fsdp_token_file_open(path, &source->file, error);
  if (!status) status = check_tokenizer(path, tokenizer, tokenizer_hash, &source->file, error);
  if (status) return status;
  source->view = source->file.view;
  source->bytes = source->file.bytes;
  switch (source->file.format) {
  case FSDP_TOKENS_PREPARED:
    source->how = source->file.bytes ? "prepared as bytes"
                  : tokenizer        ? "prepared with the model's tokenizer"
                                     : "prepared with a tokenizer that the model does not name";
    break;
  case FSDP_TOKENS_LLMC:
    source->how = source->view.token_bytes == 2
                      ? "llm.c's uint16 tokens, of a tokenizer that they do not name"
                      : "llm.c's uint32 tokens, of a tokenizer that they do not name";
    break;
  case FSDP_TOKENS_RAW:
    source->how =
        "taken for uint16 tokens without a header (as nanoGPT's), of a tokenizer that they do not name";
    break;
  }
  return FSDP_OK;
}

// The message holds the command that prepares the file; `kind` is the path's ending, `tokenizer` may be NULL.
static fsdp_status refuse_unprepared(const char *path, const char *kind, const char *why,
                                     const char *tokenizer, fsdp_error *error) {
  char *with = tokenizer ? fsdp_shell_word(tokenizer) : NULL;
  char *from = fsdp_shell_word(path), *prepared;
  int length = asprintf(&prepared, "%.*s.tok", (int)(kind - path), path);
  FSDP_NEED_MEMORY(length >= 0, "a path");
  char *to = fsdp_shell_word(prepared);
  fsdp_status status = fsdp_fail(error, FSDP_ERR_INPUT,
                                 "%s: is %s; run %s %s%s%s--out %s %s and give --data "
                                 "what it wrote",
                                 path, why, FSDP_PREPARE_DATA, with ? "--tokenizer " : "", with ? with : "",
                                 with ? " " : "", to, from);
  free(with);
  free(from);
  free(prepared);
  free(to);
  return status;
}

// The path's ending, with its dot, or "".
static const char *kind_of(const char *path) {
  const char *dot = strrchr(path, '.'), *slash = strrchr(path, '/');
  return dot && (!slash || dot > slash) ? dot : "";
}

static bool is_json(const char *kind) {
  return !strcasecmp(kind, ".jsonl") || !strcasecmp(kind, ".json");
}

fsdp_token_ends fsdp_token_ends_of(const char *path, const fsdp_token_file *file) {
  const char *kind = kind_of(path);
  if (is_json(kind)) return (fsdp_token_ends){true, -1, 0};
  if (strcasecmp(kind, ".tok") != 0) return (fsdp_token_ends){0};
  return (fsdp_token_ends){true, file->first_token, file->last_token};
}

fsdp_status fsdp_token_source_open(const char *path, const char *tokenizer, uint64_t tokenizer_hash,
                                   fsdp_token_source *source, fsdp_error *error) {
  const char *kind = kind_of(path);
  bool text = !strcasecmp(kind, ".txt"), json = is_json(kind);
  fsdp_status status;
  *source = (fsdp_token_source){0};
  if ((text || json) && tokenizer)
    return refuse_unprepared(path, kind, "text, but the model has a tokenizer", tokenizer, error);
  if (!strcasecmp(kind, ".parquet") || !strcasecmp(kind, ".csv") || !strcasecmp(kind, ".tsv"))
    return refuse_unprepared(path, kind, "a table", tokenizer, error);
  if (!strcasecmp(kind, ".gz")) return refuse_unprepared(path, kind, "compressed", tokenizer, error);
  if (text || json)
    status = open_bytes(path, json, source, error);
  else if (!strcasecmp(kind, ".tok") || !strcasecmp(kind, ".bin"))
    status = open_tokens(path, tokenizer, tokenizer_hash, source, error);
  else {
    // A missing path or a folder is the likelier mistake.
    status = fsdp_mapped_file_open(path, &source->text, error);
    if (!status)
      status =
          fsdp_fail(error, FSDP_ERR_INPUT,
                    "%s: the ending \"%s\" is not one that --data can read; give .txt, .jsonl, .json, or "
                    "tokens as .tok or .bin",
                    path, kind);
  }
  if (status) fsdp_token_source_close(source);
  return status;
}

void fsdp_token_source_find_documents(fsdp_token_source *source, int64_t separator) {
  enum { TOKENS = 1 << 14 };
  fsdp_token_view *view = &source->view;
  int64_t count = 1, capacity = 1024;
  if (view->starts || source->bytes) return;
  uint64_t *starts = fsdp_alloc((size_t)capacity * sizeof *starts);
  int32_t *tokens = fsdp_alloc(TOKENS * sizeof *tokens);
  starts[0] = 0;
  for (int64_t first = 0; first < view->token_count; first += TOKENS) {
    int64_t now = fsdp_min_i64(TOKENS, view->token_count - first);
    fsdp_token_view_read(view, first, now, tokens);
    fsdp_progress_mark();
    for (int64_t i = 0; i < now; i++) {
      if (tokens[i] != separator) continue;
      source->separated = true;
      if (first + i + 1 == view->token_count) continue;
      if (count == capacity) starts = fsdp_realloc(starts, (size_t)(capacity *= 2) * sizeof *starts);
      starts[count++] = (uint64_t)(first + i + 1);
    }
  }
  free(tokens);
  view->starts = source->starts = starts;
  view->document_count = count;
}

fsdp_token_source fsdp_token_source_builtin(void) {
  return (fsdp_token_source){
      .view = view_of_bytes(fsdp_builtin_text, fsdp_builtin_text_bytes()), .how = "as bytes", .bytes = true};
}

void fsdp_token_source_close(fsdp_token_source *source) {
  fsdp_mapped_file_close(&source->text);
  fsdp_json_text_close(&source->json);
  fsdp_token_file_close(&source->file);
  free(source->starts);
  *source = (fsdp_token_source){0};
}

static void hash_bytes(XXH64_state_t *state, const void *bytes, int64_t count) {
  for (int64_t done = 0, now; done < count; done += now) {
    now = fsdp_min_i64(HASH_BYTES, count - done);
    XXH64_update(state, (const char *)bytes + done, (size_t)now);
    fsdp_progress_mark();
  }
}

void fsdp_token_source_hash(const fsdp_token_source *source, bool whole, XXH64_state_t *state) {
  const fsdp_token_view *view = &source->view;
  int64_t bytes = view->token_count * view->token_bytes;
  if (source->file.identity) {
    hash_bytes(state, &source->file.identity, sizeof source->file.identity);
  } else if (source->file.file.bytes && !whole && bytes > 2 * END_BYTES) {
    hash_bytes(state, &view->token_count, sizeof view->token_count);
    hash_bytes(state, view->tokens, END_BYTES);
    hash_bytes(state, (const unsigned char *)view->tokens + bytes - END_BYTES, END_BYTES);
  } else {
    hash_bytes(state, view->tokens, bytes);
    if (view->mask) hash_bytes(state, view->mask, (view->token_count + 7) / 8);
  }
}
