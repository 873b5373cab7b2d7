#include "launcher/options/yaml_options.h"

#include "runtime/base/check.h"
#include "runtime/data/yaml_file.h"

#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct reader {
  const char *path;
  fsdp_yaml_option option;
  void *context;
  fsdp_yaml_reader yaml;
} reader;

// The list's items joined by commas; NULL, with the error written, if one is no scalar or holds a comma
// itself.
static char *join_items(const reader *r, const yaml_node_t *list) {
  size_t length = 0;
  char *joined = fsdp_alloc(1);
  joined[0] = 0;
  const yaml_node_t *node;
  for (int i = 0; (node = fsdp_yaml_item(r->yaml.document, list, i)); i++) {
    if (!fsdp_yaml_is_scalar(node) || strchr(fsdp_yaml_text(node), ',')) {
      fsdp_yaml_fail_at(&r->yaml, node, "a list's item must be a single value without a comma");
      free(joined);
      return NULL;
    }
    size_t added = strlen(fsdp_yaml_text(node));
    joined = fsdp_realloc(joined, length + added + 2);
    if (length) joined[length++] = ',';
    memcpy(joined + length, fsdp_yaml_text(node), added + 1);
    length += added;
  }
  return joined;
}

static fsdp_status read_pair(void *context, const yaml_node_t *key, const yaml_node_t *value) {
  const reader *r = context;
  const char *name = fsdp_yaml_text(key);
  int line = fsdp_yaml_line(key);
  if (!*name) return fsdp_yaml_fail_at(&r->yaml, key, "an option's name must be a single word");
  if (fsdp_yaml_is_scalar(value))
    return r->option(r->context, name, fsdp_yaml_is_null(value) ? "" : fsdp_yaml_text(value), line,
                     r->yaml.error);
  if (value->type != YAML_SEQUENCE_NODE)
    return fsdp_yaml_fail_at(&r->yaml, value, "an option's value must be a single value or a list of them");
  char *joined = join_items(r, value);
  if (!joined) return FSDP_ERR_OPTION;
  fsdp_status status = r->option(r->context, name, joined, line, r->yaml.error);
  free(joined);
  return status;
}

static fsdp_status read_document(void *context, yaml_document_t *document, fsdp_error *error) {
  reader *r = context;
  r->yaml = (fsdp_yaml_reader){.path = r->path,
                               .form = "write one `name: value` per line, or `name: [a, b]`",
                               .bad = FSDP_ERR_OPTION,
                               .document = document,
                               .error = error};
  return fsdp_yaml_each_pair(&r->yaml, yaml_document_get_root_node(document),
                             "the file is not a list of options", read_pair, r);
}

fsdp_status fsdp_yaml_read(const char *path, fsdp_yaml_option option, void *context, fsdp_error *error) {
  const fsdp_yaml_source source = {.path = path, .what = "a YAML file of options", .bad = FSDP_ERR_OPTION};
  reader r = {.path = path, .option = option, .context = context};
  return fsdp_yaml_visit_file(&source, read_document, &r, error);
}

bool fsdp_yaml_holds(const char *value) {
  json_t *text = json_string(value); // NULL: it is not UTF-8
  json_decref(text);
  return text != NULL;
}

// The bytes of the character at `at`, which is UTF-8.
static int decode(const char *at, uint32_t *code) {
  const unsigned char first = (unsigned char)*at;
  const int count = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  *code = count == 1 ? first : first & (0x7fu >> count);
  for (int i = 1; i < count; i++) *code = *code << 6 | ((unsigned char)at[i] & 0x3f);
  return count;
}

// What YAML does not allow as it is, or takes for a line break.
static bool is_escaped(uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x2028 || code == 0x2029 || code == 0xfeff ||
         code == 0xfffe || code == 0xffff;
}

void fsdp_yaml_print(const char *name, const char *value, FILE *out) {
  FSDP_CHECK(fsdp_yaml_holds(value), "a value that YAML cannot hold was not refused");
  fprintf(out, "%s: \"", name);
  for (int count; *value; value += count) {
    uint32_t code;
    count = decode(value, &code);
    if (code == '\n' || code == '\t' || code == '\r')
      fputs(code == '\n' ? "\\n" : code == '\t' ? "\\t" : "\\r", out);
    else if (is_escaped(code))
      fprintf(out, code < 0x100 ? "\\x%02X" : "\\u%04X", code);
    else
      fprintf(out, "%s%.*s", code == '"' || code == '\\' ? "\\" : "", count, value);
  }
  fputs("\"\n", out);
}
