#include "runtime/plan/text/profile_text.h"

#include "runtime/base/check.h"
#include "runtime/plan/price/shipped_profiles.h"
#include "runtime/plan/text/profile_keys.h"
#include "runtime/plan/text/profile_reader.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- Files

static fsdp_status read_place(fsdp_profile_reader *r, const char *name, const yaml_node_t *asked_by);

// A file's base, before the file itself.
static fsdp_status read_base(fsdp_profile_reader *r, const yaml_node_t *node) {
  char path[4096];
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

// All keys, and the base, are read before the rest.
static fsdp_status read_document(void *context, yaml_document_t *document, fsdp_error *error) {
  fsdp_profile_reader *r = context;
  const yaml_node_t *root = yaml_document_get_root_node(document);
  r->document = document;
  r->error = error;
  if (root->type != YAML_MAPPING_NODE)
    return fsdp_profile_fail_at(r, root, "not a mapping of a profile's keys");
  int lines[FSDP_PROFILE_FIELDS_MAX] = {0};
  for (const yaml_node_pair_t *pair = root->data.mapping.pairs.start; pair < root->data.mapping.pairs.top;
       pair++) {
    const yaml_node_t *key = fsdp_profile_node(r, pair->key);
    unsigned seen = 0;
    int known = 0;
    fsdp_status status = fsdp_profile_read_key(r, key, &fsdp_profile_top, &seen, &known);
    if (status) return status;
    if (lines[known])
      return fsdp_profile_fail_at(r, key, "a second %s, after that in line %d; remove one",
                                  fsdp_yaml_text(key), lines[known]);
    lines[known] = fsdp_yaml_line(key);
    if (fsdp_profile_top.fields[known].type == FSDP_KEY_BASE)
      status = read_base(r, fsdp_profile_node(r, pair->value));
    if (status) return status;
  }
  return fsdp_profile_read_fields(r, root, &fsdp_profile_top, r->profile);
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

// A kernel that is to be used has a row. Of both lists a row begins with its kernel.
static fsdp_status check_kernel(const fsdp_profile_reader *r, int number, fsdp_profile_list list,
                                const char *kernel) {
  static const char *const names[] = {"attention", "grouped"};
  int count;
  const char *rows = fsdp_device_profile_rows(r->profile, list, &count);
  bool known = !*kernel;
  for (int i = 0; i < count && !known; i++)
    known = !strcmp(rows + (size_t)i * fsdp_device_profile_row_bytes(list), kernel);
  if (known) return FSDP_OK;
  return fsdp_fail(r->error, FSDP_ERR_INPUT, "%s: no row of %s has the kernel \"%s\"; the first has \"%s\"",
                   r->kernel_places[number], names[number], kernel, count ? rows : "");
}

// With a kernel to use, and of a CPU, which has one, keeps of each dtype the rows of one kernel: the one to
// use if it has any, or else the first. Of several kernels a GPU's plan has its own.
static void keep_attention(fsdp_device_profile *p) {
  if (!*p->attention_kernel && p->device == FSDP_OP_CUDA) return;
  char used[FSDP_DTYPE_COUNT][sizeof p->attention->kernel] = {0};
  for (int i = 0; i < p->attention_count; i++) {
    const fsdp_profile_attention *row = &p->attention[i];
    const bool asked = !strcmp(row->kernel, p->attention_kernel);
    if (!*used[row->dtype] || asked) snprintf(used[row->dtype], sizeof *used, "%s", row->kernel);
  }
  int kept = 0;
  for (int i = 0; i < p->attention_count; i++) {
    if (!strcmp(p->attention[i].kernel, used[p->attention[i].dtype]))
      p->attention[kept++] = p->attention[i];
    else
      free(p->attention[i].rate.points);
  }
  p->attention_count = kept;
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
  fsdp_device_profile *p = r->profile;
  if (!status) status = check_kernel(r, 0, FSDP_PROFILE_ATTENTION, p->attention_kernel);
  if (!status) status = check_kernel(r, 1, FSDP_PROFILE_GROUPED, p->grouped_kernel);
  if (!status) keep_attention(p);
  if (!status && p->device == FSDP_OP_DEVICE_COUNT)
    status = fsdp_fail(r->error, FSDP_ERR_INPUT,
                       "%.180s: the profile has no device; add `device: cuda` or `device: cpu`", name);
  if (!status) status = check_whole(p, name, r->error);
  if (!status) snprintf(p->asked, sizeof p->asked, "%s", name);
  if (status) fsdp_device_profile_destroy(p);
  *profile = status ? NULL : p;
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
