#include "runtime/plan/text/profile_text.h"

#include "runtime/base/check.h"
#include "runtime/plan/price/shipped_profiles.h"
#include "runtime/plan/text/profile_keys.h"
#include "runtime/plan/text/profile_reader.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (int)(sizeof(array) / sizeof *(array))

// ---- Parts of the top

static fsdp_status read_number(const fsdp_profile_reader *r, const yaml_node_t *node,
                               const fsdp_profile_number *number) {
  char *const at = (char *)r->profile;
  const fsdp_profile_unit unit = {number->key, number->exponent, number->least};
  return fsdp_profile_read_number(r, node, &unit, (void *)(at + number->offset),
                                  number->mark ? (void *)(at + number->mark) : NULL);
}

// A mapping of some of the section's numbers.
static fsdp_status read_section(const fsdp_profile_reader *r, const yaml_node_t *node,
                                const fsdp_profile_section *section) {
  const char *keys[FSDP_PROFILE_SECTION_NUMBERS_MAX];
  unsigned seen = 0;
  for (int i = 0; i < section->count; i++) keys[i] = section->numbers[i].key;
  if (node->type != YAML_MAPPING_NODE)
    return fsdp_profile_fail_at(r, node, "%s is not a mapping, as in {%s: 2.5}", section->key, keys[0]);
  for (const yaml_node_pair_t *pair = node->data.mapping.pairs.start; pair < node->data.mapping.pairs.top;
       pair++) {
    int key = 0;
    fsdp_status status = fsdp_profile_read_key(r, pair, keys, section->count, &seen, &key);
    if (!status) status = read_number(r, fsdp_profile_node(r, pair->value), &section->numbers[key]);
    if (status) return status;
  }
  return FSDP_OK;
}

static fsdp_status read_name(const fsdp_profile_reader *r, const yaml_node_t *node, const char *what,
                             char *out, size_t bytes) {
  if (!fsdp_yaml_is_scalar(node) || !*fsdp_yaml_text(node) || strlen(fsdp_yaml_text(node)) >= bytes)
    return fsdp_profile_fail_at(r, node, "the %s is not a word of at most %zu characters", what, bytes - 1);
  memset(out, 0, bytes); // equal names are equal in all bytes
  memcpy(out, fsdp_yaml_text(node), strlen(fsdp_yaml_text(node)));
  return FSDP_OK;
}

static fsdp_status read_use(fsdp_profile_reader *r, const yaml_node_t *node) {
  static const char *const keys[] = {"attention", "grouped"};
  unsigned seen = 0;
  if (node->type != YAML_MAPPING_NODE)
    return fsdp_profile_fail_at(r, node, "use is not a mapping, as in {attention: flash2}");
  fsdp_status status = FSDP_OK;
  for (const yaml_node_pair_t *pair = node->data.mapping.pairs.start;
       pair < node->data.mapping.pairs.top && !status; pair++) {
    const yaml_node_t *value = fsdp_profile_node(r, pair->value);
    int key = 0;
    status = fsdp_profile_read_key(r, pair, keys, COUNT(keys), &seen, &key);
    char *kernel = key ? r->grouped_kernel : r->attention_kernel;
    char *place = key ? r->grouped_place : r->attention_place;
    if (!status) status = read_name(r, value, "name of a kernel", kernel, sizeof r->attention_kernel);
    snprintf(place, sizeof r->attention_place, "%.180s:%d", r->places[r->depth - 1], fsdp_yaml_line(value));
  }
  return status;
}

// Keys of their own, then the lists, the numbers and the sections of profile_keys.h.
typedef enum top_key {
  KEY_NAME,
  KEY_DEVICE,
  KEY_SOURCE,
  KEY_BASE,
  KEY_USE,
  KEY_PROCESSORS,
  KEY_TILES,
  KEY_LISTS,
  KEY_NUMBERS = KEY_LISTS + FSDP_PROFILE_LISTS,
  KEY_SECTIONS = KEY_NUMBERS + FSDP_PROFILE_NUMBERS,
  KEY_COUNT = KEY_SECTIONS + FSDP_PROFILE_SECTIONS
} top_key;

static void list_keys(const char *keys[KEY_COUNT]) {
  static const char *const own[KEY_LISTS] = {"name", "device",     "source", "base",
                                             "use",  "processors", "tiles"};
  memcpy(keys, own, sizeof own);
  for (int i = 0; i < FSDP_PROFILE_LISTS; i++) keys[KEY_LISTS + i] = fsdp_profile_lists[i].key;
  for (int i = 0; i < FSDP_PROFILE_NUMBERS; i++) keys[KEY_NUMBERS + i] = fsdp_profile_numbers[i].key;
  for (int i = 0; i < FSDP_PROFILE_SECTIONS; i++) keys[KEY_SECTIONS + i] = fsdp_profile_sections[i].key;
}

static fsdp_status read_top(fsdp_profile_reader *r, top_key key, const yaml_node_t *node) {
  static const char *const devices[] = {"cpu", "cuda"}, *const flags[] = {"false", "true"};
  fsdp_device_profile *p = r->profile;
  fsdp_status status = FSDP_OK;
  int64_t whole = 0;
  int word = 0;
  if (key >= KEY_SECTIONS) return read_section(r, node, &fsdp_profile_sections[key - KEY_SECTIONS]);
  if (key >= KEY_NUMBERS) return read_number(r, node, &fsdp_profile_numbers[key - KEY_NUMBERS]);
  if (key >= KEY_LISTS) return fsdp_profile_read_list(r, node, (fsdp_profile_list)(key - KEY_LISTS));
  switch (key) {
  case KEY_NAME:
    return read_name(r, node, "name", p->name, sizeof p->name);
  case KEY_DEVICE:
    status = fsdp_profile_read_word(r, node, "device", devices, COUNT(devices), &word);
    p->device = (fsdp_op_device)word;
    return status;
  case KEY_SOURCE:
    return fsdp_yaml_is_scalar(node) ? FSDP_OK : fsdp_profile_fail_at(r, node, "a source is not a text");
  case KEY_USE:
    return read_use(r, node);
  case KEY_PROCESSORS:
    status = fsdp_profile_read_whole(r, node, "processors", 1, &whole);
    p->processors = (int)whole;
    return status;
  case KEY_TILES:
    status = fsdp_profile_read_word(r, node, "tiles", flags, COUNT(flags), &word);
    p->tiles = word == 1;
    return status;
  default:
    return FSDP_OK; // the base has been read
  }
}

// ---- Files

static fsdp_status read_place(fsdp_profile_reader *r, const char *name, const yaml_node_t *asked_by);

// A file's base, before the file itself.
static fsdp_status read_base(fsdp_profile_reader *r, const yaml_node_t *node) {
  char path[FSDP_PROFILE_PATH_BYTES];
  const char *name = fsdp_yaml_is_scalar(node) ? fsdp_yaml_text(node) : "";
  const char *place = r->places[r->depth - 1], *slash = strrchr(place, '/');
  if (!*name || strlen(name) >= sizeof path / 2 || strlen(place) >= sizeof path / 2)
    return fsdp_profile_fail_at(r, node, "the base is neither a shipped profile's name nor a path");
  if (r->depth == FSDP_PROFILE_BASES_MAX)
    return fsdp_profile_fail_at(
        r, node, "base \"%.100s\" is the base of %d others; a cycle, or join some of them", name, r->depth);
  const bool beside = !fsdp_shipped_profile_find(name) && *name != '/' && slash;
  snprintf(path, sizeof path, "%.*s%s", beside ? (int)(slash - place) + 1 : 0, place, name);
  yaml_document_t *document = r->document;
  fsdp_status status = read_place(r, path, node);
  r->document = document;
  return status;
}

static fsdp_status read_document(void *context, yaml_document_t *document, fsdp_error *error) {
  fsdp_profile_reader *r = context;
  const yaml_node_t *root = yaml_document_get_root_node(document);
  fsdp_status status = FSDP_OK;
  r->document = document;
  r->error = error;
  if (root->type != YAML_MAPPING_NODE)
    return fsdp_profile_fail_at(r, root, "not a mapping of a profile's keys");
  const yaml_node_pair_t *begin = root->data.mapping.pairs.start, *end = root->data.mapping.pairs.top;
  int keys[KEY_COUNT], lines[KEY_COUNT] = {0};
  const char *names[KEY_COUNT];
  list_keys(names);
  for (const yaml_node_pair_t *pair = begin; pair < end; pair++) {
    const yaml_node_t *key = fsdp_profile_node(r, pair->key);
    int known = 0;
    status = fsdp_profile_read_word(r, key, "key", names, KEY_COUNT, &known);
    if (status) return status;
    if (lines[known])
      return fsdp_profile_fail_at(r, key, "a second %s, after that in line %d; remove one",
                                  fsdp_yaml_text(key), lines[known]);
    lines[known] = fsdp_yaml_line(key);
    keys[pair - begin] = known; // none is there twice: at most KEY_COUNT
    if (known == KEY_BASE) status = read_base(r, fsdp_profile_node(r, pair->value));
    if (status) return status;
  }
  for (const yaml_node_pair_t *pair = begin; pair < end && !status; pair++)
    status = read_top(r, (top_key)keys[pair - begin], fsdp_profile_node(r, pair->value));
  return status;
}

static fsdp_status fail_unknown(const fsdp_profile_reader *r, const char *name, const yaml_node_t *asked_by) {
  char all[300] = "";
  for (const fsdp_shipped_profile *p = fsdp_shipped_profiles; p->name; p++) {
    size_t used = strlen(all);
    snprintf(all + used, sizeof all - used, "%s%s", used ? ", " : "", p->name);
  }
  if (asked_by)
    return fsdp_profile_fail_at(
        r, asked_by, "unknown base \"%.100s\": shipped profiles are %s; or give the path of a YAML file",
        name, all);
  return fsdp_fail(
      r->error, FSDP_ERR_INPUT,
      "unknown profile \"%.100s\": shipped are %s; or give the path of a YAML file, as fsdp_profile "
      "writes it",
      name, all);
}

static void set_text(fsdp_yaml_source *source, const char *text) {
  source->text = text;
  source->text_bytes = strlen(text);
}

// A shipped profile or a file, that the node (or the user) asks for.
static fsdp_status read_place(fsdp_profile_reader *r, const char *name, const yaml_node_t *asked_by) {
  const fsdp_shipped_profile *shipped = fsdp_shipped_profile_find(name);
  char *file = !shipped && r->find ? r->find(name) : NULL;
  if (!shipped && !file) return fail_unknown(r, name, asked_by);
  char *place = file ? file : strdup(name);
  FSDP_CHECK(place, "the place of profile %s", name);
  for (int i = 0; i < r->depth; i++) {
    if (strcmp(r->places[i], place) != 0) continue;
    free(place);
    return fsdp_profile_fail_at(r, asked_by, "base \"%.100s\" is being read already: bases in a circle",
                                name);
  }
  fsdp_yaml_source source = {.path = place, .what = "a YAML file of a device profile", .bad = FSDP_ERR_INPUT};
  r->places[r->depth++] = place;
  if (shipped) set_text(&source, shipped->text);
  fsdp_status status = (shipped ? fsdp_yaml_visit : r->visit)(&source, read_document, r, r->error);
  r->depth--;
  free(place);
  return status;
}

// ---- The whole

// With a kernel to use, and of a CPU, which has one, keeps of each dtype the rows of one kernel: the one to
// use if it has any, or else the first.
static fsdp_status use_attention(const fsdp_profile_reader *r) {
  fsdp_device_profile *p = r->profile;
  if (!*r->attention_kernel && p->device == FSDP_OP_CUDA) return FSDP_OK; // the plan's
  memcpy(p->attention_kernel, r->attention_kernel, sizeof p->attention_kernel);
  char used[FSDP_DTYPE_COUNT][sizeof p->attention->kernel] = {0};
  bool known = !*r->attention_kernel;
  for (int i = 0; i < p->attention_count; i++) {
    const fsdp_profile_attention *row = &p->attention[i];
    const bool asked = !strcmp(row->kernel, r->attention_kernel);
    if (!*used[row->dtype] || asked) snprintf(used[row->dtype], sizeof *used, "%s", row->kernel);
    known = known || asked;
  }
  if (!known)
    return fsdp_fail(
        r->error, FSDP_ERR_INPUT, "%s: no row of attention has the kernel \"%s\"; the first has \"%s\"",
        r->attention_place, r->attention_kernel, p->attention_count ? p->attention[0].kernel : "");
  int kept = 0;
  for (int i = 0; i < p->attention_count; i++) {
    if (!strcmp(p->attention[i].kernel, used[p->attention[i].dtype]))
      p->attention[kept++] = p->attention[i];
    else
      free(p->attention[i].rate.points);
  }
  p->attention_count = kept;
  return FSDP_OK;
}

// Of several kernels a GPU's plan has its own, unless one is to be used.
static fsdp_status use_grouped(const fsdp_profile_reader *r) {
  fsdp_device_profile *p = r->profile;
  memcpy(p->grouped_kernel, r->grouped_kernel, sizeof p->grouped_kernel);
  if (!*r->grouped_kernel) return FSDP_OK;
  for (int i = 0; i < p->grouped_count; i++)
    if (!strcmp(p->grouped[i].kernel, r->grouped_kernel)) return FSDP_OK;
  return fsdp_fail(r->error, FSDP_ERR_INPUT,
                   "%s: no row of grouped has the kernel \"%s\"; the first has \"%s\"", r->grouped_place,
                   r->grouped_kernel, p->grouped_count ? p->grouped[0].kernel : "");
}

static fsdp_status check_whole(const fsdp_device_profile *p, const char *name, fsdp_error *error) {
  if (fabs(10 * p->capability - round(10 * p->capability)) > 1e-6 || p->capability >= 100)
    return fsdp_fail(error, FSDP_ERR_INPUT, "%.180s: capability %g is no compute capability, as in 9.0", name,
                     p->capability);
  const char *missing = !*p->name              ? "name"
                        : p->processors == 0   ? "processors"
                        : p->memory_bytes == 0 ? "memory_gb"
                        : p->memory_rate == 0  ? "memory_gbps"
                                               : NULL;
  if (!missing) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_INPUT, "%.180s: the profile has no %s; add it, or take it from a `base:`",
                   name, missing);
}

// Checks what was read; the caller owns *profile.
static fsdp_status finish(fsdp_profile_reader *r, fsdp_status status, const char *name,
                          fsdp_device_profile **profile) {
  if (!status) status = use_attention(r);
  if (!status) status = use_grouped(r);
  if (!status && r->profile->device == FSDP_OP_DEVICE_COUNT)
    status = fsdp_fail(r->error, FSDP_ERR_INPUT,
                       "%.180s: the profile has no device; add `device: cuda` or `device: cpu`", name);
  if (!status) status = check_whole(r->profile, name, r->error);
  if (!status) snprintf(r->profile->asked, sizeof r->profile->asked, "%s", name);
  if (status) fsdp_device_profile_destroy(r->profile);
  *profile = status ? NULL : r->profile;
  return status;
}

static fsdp_profile_reader begin(fsdp_error *error) {
  fsdp_profile_reader r = {.profile = fsdp_device_profile_create(), .error = error};
  r.profile->device = FSDP_OP_DEVICE_COUNT; // none yet
  return r;
}

fsdp_status fsdp_profile_read_text(const char *name, const char *text, fsdp_device_profile **profile,
                                   fsdp_error *error) {
  fsdp_profile_reader r = begin(error);
  if (!text) return finish(&r, read_place(&r, name, NULL), name, profile);
  char place[FSDP_PROFILE_PLACE_BYTES];
  fsdp_yaml_source source = {.path = place, .what = "a device profile", .bad = FSDP_ERR_INPUT};
  snprintf(place, sizeof place, "%s", name);
  set_text(&source, text);
  r.places[r.depth++] = place;
  fsdp_status status = fsdp_yaml_visit(&source, read_document, &r, error);
  r.depth--;
  return finish(&r, status, name, profile);
}

fsdp_status fsdp_profile_read_with(const char *name_or_path, fsdp_profile_find *find,
                                   fsdp_yaml_visit_function *visit, fsdp_device_profile **profile,
                                   fsdp_error *error) {
  fsdp_profile_reader r = begin(error);
  r.find = find;
  r.visit = visit;
  return finish(&r, read_place(&r, name_or_path, NULL), name_or_path, profile);
}
