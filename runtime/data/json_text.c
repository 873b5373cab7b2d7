#include "runtime/data/json_text.h"

#include "runtime/base/check.h"
#include "runtime/base/paths.h"
#include "runtime/base/size.h"
#include "runtime/data/mapped_file.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <string.h>
#include <strings.h>

#define END_OF_TEXT '\0'

// Stanford Alpaca's prompts, with and without an input.
#define INSTRUCTION "\n\n### Instruction:\n"
#define INPUT       "\n\n### Input:\n"
#define RESPONSE    "\n\n### Response:"
#define WITH_INPUT                                                                                           \
  "Below is an instruction that describes a task, paired with an input that provides further context. "      \
  "Write a response that appropriately completes the request."
#define WITHOUT_INPUT                                                                                        \
  "Below is an instruction that describes a task. Write a response that appropriately completes the "        \
  "request."

typedef struct place {
  const char *path;
  int64_t line;   // from 1
  int64_t record; // of a list, from 1; 0: lines are records
} place;

static void add_bytes(fsdp_json_text *text, const char *bytes, size_t length, bool counts) {
  int64_t begin = text->byte_count, end = begin + (int64_t)length;
  if (end > text->byte_capacity) {
    text->byte_capacity = fsdp_round_up(fsdp_max_i64(end, 2 * text->byte_capacity), 4096);
    text->bytes = fsdp_realloc(text->bytes, (size_t)text->byte_capacity);
    text->mask = fsdp_realloc(text->mask, (size_t)text->byte_capacity / 8);
  }
  if (length) memcpy(text->bytes + begin, bytes, length);
  // Bits past the end are always 0, so that a shared byte needs only its new bits set.
  int64_t shared = (begin + 7) / 8;
  if (end > 8 * shared) memset(text->mask + shared, counts ? 0xff : 0, (size_t)((end + 7) / 8 - shared));
  if (counts && end % 8 && end > 8 * shared) text->mask[end / 8] = (uint8_t)((1u << (end % 8)) - 1);
  if (counts)
    for (int64_t i = begin; i < fsdp_min_i64(end, 8 * shared); i++)
      text->mask[i / 8] |= (uint8_t)(1u << (i % 8));
  text->byte_count = end;
}

// Of a prompt.
static void add_string(fsdp_json_text *text, const char *string) {
  add_bytes(text, string, strlen(string), false);
}

static void add_value(fsdp_json_text *text, const json_t *value, bool counts) {
  add_bytes(text, json_string_value(value), json_string_length(value), counts);
}

// Begins a document at `begin`, which has been written; its first byte never counts.
static void add_document(fsdp_json_text *text, int64_t begin) {
  if (text->document_count == text->document_capacity) {
    text->document_capacity = fsdp_max_i64(1024, 2 * text->document_capacity);
    text->starts = fsdp_realloc(text->starts, (size_t)text->document_capacity * sizeof *text->starts);
  }
  text->starts[text->document_count++] = (uint64_t)begin;
  text->mask[begin / 8] &= (uint8_t) ~(1u << (begin % 8));
}

__attribute__((format(printf, 3, 4))) static fsdp_status fault(const place *where, fsdp_error *error,
                                                               const char *format, ...) {
  char what[600], record[48] = "";
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(what, sizeof what, format, arguments);
  va_end(arguments);
  if (where->record) snprintf(record, sizeof record, "record %" PRId64 ": ", where->record);
  return fsdp_fail(error, FSDP_ERR_INPUT, "%s:%" PRId64 ": %s%s", where->path, where->line, record, what);
}

// A record that scripts/prepare_data.py skips.
static fsdp_status bad_record(const place *where, fsdp_error *error, const char *what) {
  return fault(where, error,
               "%s; fix the record, or run %s --tokenizer bytes --out NAME.tok %s, which skips it", what,
               FSDP_PREPARE_DATA, where->path);
}

static fsdp_status add_alpaca(fsdp_json_text *text, const json_t *record, const place *where,
                              fsdp_error *error) {
  const json_t *instruction = json_object_get(record, "instruction");
  const json_t *input = json_object_get(record, "input"), *output = json_object_get(record, "output");
  if (!output || json_is_null(output))
    return bad_record(where, error, "has \"instruction\" and no \"output\"");
  if (!json_is_string(instruction) || !json_is_string(output) ||
      (input && !json_is_string(input) && !json_is_null(input)))
    return bad_record(where, error, "\"instruction\", \"input\" and \"output\" must be strings");
  bool has_input = json_string_length(input) > 0;
  add_string(text, has_input ? WITH_INPUT INSTRUCTION : WITHOUT_INPUT INSTRUCTION);
  add_value(text, instruction, false);
  if (has_input) {
    add_string(text, INPUT);
    add_value(text, input, false);
  }
  add_string(text, RESPONSE);
  add_value(text, output, true);
  return FSDP_OK;
}

static fsdp_status add_completion(fsdp_json_text *text, const json_t *record, const place *where,
                                  fsdp_error *error) {
  const json_t *prompt = json_object_get(record, "prompt");
  const json_t *completion = json_object_get(record, "completion");
  if (!completion || json_is_null(completion))
    return bad_record(where, error, "has \"prompt\" and no \"completion\"");
  if (!json_is_string(prompt) || !json_is_string(completion))
    return bad_record(where, error, "\"prompt\" and \"completion\" must be strings");
  add_value(text, prompt, false);
  add_value(text, completion, true);
  return FSDP_OK;
}

// Records with other keys are for scripts/prepare_data.py: it knows what some of them mean, and says which it
// does not use.
static fsdp_status check_keys(const json_t *record, const place *where, fsdp_error *error) {
  static const char *const known[] = {"text", "instruction", "input", "output", "prompt", "completion"};
  const char *key;
  const json_t *value;
  json_object_foreach((json_t *)record, key, value) {
    bool is_known = json_is_null(value);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) is_known |= !strcmp(key, known[i]);
    if (!is_known)
      return fault(
          where, error,
          "has the key \"%.60s\", which is not read here; run %s --tokenizer bytes --out NAME.tok %s", key,
          FSDP_PREPARE_DATA, where->path);
  }
  return FSDP_OK;
}

static fsdp_status add_record(fsdp_json_text *text, const json_t *record, const place *where,
                              fsdp_error *error) {
  if (!json_is_object(record)) return bad_record(where, error, "a record must be an object {..}");
  fsdp_status status = check_keys(record, where, error);
  if (status) return status;
  const json_t *plain = json_object_get(record, "text"), *asked = json_object_get(record, "instruction");
  int64_t begin = text->byte_count;
  if (asked && (!plain || json_object_get(record, "output"))) {
    status = add_alpaca(text, record, where, error);
  } else if (plain) {
    if (!json_is_string(plain)) return bad_record(where, error, "\"text\" must be a string");
    if (!json_string_length(plain)) return FSDP_OK;
    add_value(text, plain, true);
  } else if (json_object_get(record, "prompt")) {
    status = add_completion(text, record, where, error);
  } else {
    return fault(where, error,
                 "the record has neither \"text\", \"instruction\" with \"output\" nor \"prompt\" with "
                 "\"completion\"; rename its keys");
  }
  if (status) return status;
  add_bytes(text, &(char){END_OF_TEXT}, 1, true);
  add_document(text, begin);
  return FSDP_OK;
}

// Reads one value from [*at, end), moves *at behind it and adds it.
static fsdp_status read_record(fsdp_json_text *text, const char **at, const char *end, const place *where,
                               fsdp_error *error) {
  json_error_t reason;
  json_t *record = json_loadb(*at, (size_t)(end - *at),
                              JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL | JSON_DECODE_ANY, &reason);
  if (!record) {
    const place line = {where->path, where->line + reason.line - 1, where->record};
    return fault(&line, error, "not valid JSON (%s); fix it", reason.text);
  }
  *at += reason.position;
  fsdp_status status = add_record(text, record, where, error);
  json_decref(record);
  return status;
}

static const char *skip_space(const char *at, const char *end, int64_t *line) {
  for (; at < end && (*at == ' ' || *at == '\t' || *at == '\r' || *at == '\n'); at++) *line += *at == '\n';
  return at;
}

static fsdp_status read_lines(fsdp_json_text *text, const char *path, const char *at, const char *end,
                              fsdp_error *error) {
  place where = {.path = path, .line = 1};
  fsdp_status status = FSDP_OK;
  for (at = skip_space(at, end, &where.line); !status && at < end; at = skip_space(at, end, &where.line)) {
    const char *line_end = memchr(at, '\n', (size_t)(end - at));
    if (!line_end) line_end = end;
    status = read_record(text, &at, line_end, &where, error);
    if (!status && skip_space(at, line_end, &(int64_t){0}) != line_end)
      status =
          fault(&where, error, "a line holds one record, but something follows it; break the line there");
  }
  return status;
}

static fsdp_status read_array(fsdp_json_text *text, const char *path, const char *at, const char *end,
                              fsdp_error *error) {
  place where = {.path = path, .line = 1};
  at = skip_space(at, end, &where.line);
  if (at == end || *at != '[')
    return fault(&where, error,
                 "a .json file is a list [..] of records; name one with an object per line .jsonl");
  at = skip_space(at + 1, end, &where.line);
  bool closed = at < end && *at == ']', first = true;
  while (!closed) {
    if (!first) at = skip_space(at + 1, end, &where.line);
    first = false;
    where.record++;
    const char *begin = at;
    fsdp_status status = read_record(text, &at, end, &where, error);
    if (status) return status;
    for (; begin < at; begin++) where.line += *begin == '\n';
    at = skip_space(at, end, &where.line);
    closed = at < end && *at == ']';
    if (!closed && (at == end || *at != ','))
      return fault(&where, error, "a record must be followed by , or ]; the file is truncated or malformed");
  }
  where.record = 0;
  if (skip_space(at + 1, end, &where.line) != end)
    return fault(&where, error, "something follows the end of the list; remove it");
  return FSDP_OK;
}

fsdp_status fsdp_json_text_open(const char *path, fsdp_json_text *text, fsdp_error *error) {
  fsdp_mapped_file file;
  *text = (fsdp_json_text){0};
  fsdp_status status = fsdp_mapped_file_open(path, &file, error);
  if (status) return status;
  const char *at = (const char *)file.bytes, *end = at + file.count, *dot = strrchr(path, '.');
  if (file.count >= 3 && !memcmp(at, "\xef\xbb\xbf", 3))
    at += 3; // a byte order mark, which JSON does not have
  bool lines = dot && !strcasecmp(dot, ".jsonl");
  status = lines ? read_lines(text, path, at, end, error) : read_array(text, path, at, end, error);
  fsdp_mapped_file_close(&file);
  if (!status && !text->document_count)
    status =
        fsdp_fail(error, FSDP_ERR_INPUT, "%s: has no record with text; give something to train on", path);
  if (status) fsdp_json_text_close(text);
  return status;
}

void fsdp_json_text_close(fsdp_json_text *text) {
  free(text->bytes);
  free(text->mask);
  free(text->starts);
  *text = (fsdp_json_text){0};
}

fsdp_token_view fsdp_json_text_view(const fsdp_json_text *text) {
  fsdp_token_view view = {.tokens = text->bytes,
                          .token_bytes = 1,
                          .token_count = text->byte_count,
                          .mask = text->mask,
                          .starts = text->starts,
                          .document_count = text->document_count,
                          .vocab_size = 256};
  view.target_count = fsdp_token_view_counted(&view, 0, view.token_count);
  return view;
}
