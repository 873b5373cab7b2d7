// The manifest of checkpoint.h as JSON, both ways. Its checksum is that of the object without it, printed
// compactly with sorted keys: it does not depend on white space.
#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/json_file.h"

#include <inttypes.h>
#include <string.h>
#include <xxhash.h>

#define FORMAT  "fsdp checkpoint"
#define VERSION 6
// Of checkpoints with parts of tensors (fsdp_cut): builds that know no parts must not read these.
#define VERSION_WITH_PARTS 7
// Also read: manifests that list the ranks' files, and such ones in which nothing is cut.
#define VERSION_WITH_FILES   5
#define VERSION_WITHOUT_CUTS 4

#define DAMAGED "the manifest is damaged; use another checkpoint"

// ---- Printing

static json_t *hex128(const uint64_t checksum[2]) {
  return json_sprintf("%016" PRIx64 "%016" PRIx64, checksum[0], checksum[1]);
}

// The names of the axes in a set.
static json_t *print_axes(const fsdp_mesh *mesh, fsdp_axis_set axes) {
  json_t *names = json_array();
  for (int a = 0; a < mesh->count; a++)
    if (axes >> a & 1) json_array_append_new(names, json_string(mesh->axes[a].name));
  return names;
}

static json_t *print_cut(const fsdp_mesh *mesh, const fsdp_cut *cut) {
  json_t *blocks = json_array();
  for (int b = 0; b < cut->block_count; b++)
    json_array_append_new(blocks,
                          json_pack("[I, I, I]", (json_int_t)cut->blocks[b].groups,
                                    (json_int_t)cut->blocks[b].items, (json_int_t)cut->blocks[b].width));
  json_t *entry =
      json_pack("{s:i, s:o, s:o, s:o}", "dim", cut->dim, "group_axes", print_axes(mesh, cut->group_axes),
                "item_axes", print_axes(mesh, cut->item_axes), "blocks", blocks);
  if (cut->outer_axes) json_object_set_new(entry, "outer_axes", print_axes(mesh, cut->outer_axes));
  if (cut->part_count)
    json_object_set_new(entry, "part",
                        json_pack("[I, I]", (json_int_t)cut->part_first, (json_int_t)cut->part_count));
  return entry;
}

// Units with the parameters in them; where these lie is computed (fsdp_checkpoint_lay_out).
static json_t *print_units(const fsdp_checkpoint *c) {
  json_t *units = json_array();
  for (int u = 0, p = 0; u < c->unit_count; u++) {
    const fsdp_checkpoint_unit *unit = &c->units[u];
    json_t *params = json_array();
    for (; p < c->param_count && c->params[p].unit == u; p++) {
      const fsdp_checkpoint_param *param = &c->params[p];
      json_t *shape = json_array();
      for (int d = 0; d < param->dims; d++) json_array_append_new(shape, json_integer(param->shape[d]));
      json_t *entry = json_pack("{s:s, s:o}", "name", param->name, "shape", shape);
      if (fsdp_cut_axes(&param->cut) || param->cut.part_count)
        json_object_set_new(entry, "cut", print_cut(&c->mesh, &param->cut));
      json_array_append_new(params, entry);
    }
    json_array_append_new(units, json_pack("{s:s, s:o, s:o, s:o}", "path", unit->path, "shard_axes",
                                           print_axes(&c->mesh, unit->shard_axes), "replica_axes",
                                           print_axes(&c->mesh, unit->replica_axes), "params", params));
  }
  return units;
}

// The axes in their order, the last one fastest.
static json_t *print_mesh(const fsdp_mesh *mesh) {
  json_t *axes = json_array();
  for (int a = 0; a < mesh->count; a++)
    json_array_append_new(axes,
                          json_pack("{s:s, s:i}", "name", mesh->axes[a].name, "size", mesh->axes[a].size));
  return axes;
}

static json_t *print_slots(const fsdp_checkpoint *c) {
  json_t *slots = json_array();
  for (int i = 0; i < c->slot_count; i++)
    json_array_append_new(slots, json_pack("{s:s, s:s}", "name", c->slots[i].name, "dtype",
                                           fsdp_dtype_name(c->slots[i].dtype)));
  return slots;
}

static json_t *print_files(const fsdp_checkpoint_file *files, int count) {
  json_t *list = json_array();
  for (int i = 0; i < count; i++) {
    json_array_append_new(list,
                          json_pack("{s:s, s:I, s:I, s:o}", "name", files[i].name, "bytes",
                                    (json_int_t)files[i].bytes, "header_bytes",
                                    (json_int_t)files[i].header_bytes, "xxh3", hex128(files[i].checksum)));
  }
  return list;
}

// What tells the ranks' files from others. Their names and sizes follow from the mesh and the units.
static json_t *print_rank_files(const fsdp_checkpoint *c) {
  if (c->files) return print_files(c->files, c->file_count);
  return json_pack("{s:o, s:I}", "save", json_sprintf("%016" PRIx64, c->save), "bytes",
                   (json_int_t)c->files_bytes);
}

// What is not known is left out.
static json_t *print_results(const fsdp_checkpoint_results *r) {
  json_t *root = json_object();
  if (r->loss > 0) json_object_set_new(root, "loss", json_real(r->loss));
  if (r->eval_loss > 0) json_object_set_new(root, "eval_loss", json_real(r->eval_loss));
  if (r->best_eval_loss > 0) json_object_set_new(root, "best_eval_loss", json_real(r->best_eval_loss));
  json_object_set_new(root, "evaluations_since_best", json_integer((json_int_t)r->evaluations_since_best));
  if (r->evaluated_from > 0)
    json_object_set_new(root, "evaluated_from", json_integer((json_int_t)r->evaluated_from));
  if (r->owes_evaluation) json_object_set_new(root, "owes_evaluation", json_true());
  json_object_set_new(root, "saved_s", json_integer((json_int_t)r->saved_s));
  return root;
}

static json_t *print_data(const fsdp_checkpoint_progress *p) {
  json_t *root = json_pack("{s:I, s:I, s:I, s:o}", "global_batch", (json_int_t)p->global_batch,
                           "sample_count", (json_int_t)p->sample_count, "held_out", (json_int_t)p->held_out,
                           "fingerprint", json_sprintf("%016" PRIx64, p->data_fingerprint));
  if (p->eval_fingerprint)
    json_object_set_new(root, "eval_fingerprint", json_sprintf("%016" PRIx64, p->eval_fingerprint));
  if (p->document_mask)
    json_object_set_new(root, "document_mask_given", json_boolean(p->document_mask == FSDP_GIVEN_YES));
  if (!p->knows_ends) return root;
  json_object_set_new(root, "first_token", json_integer((json_int_t)p->first_token));
  json_object_set_new(root, "last_token", json_integer((json_int_t)p->last_token));
  return root;
}

static json_t *print_progress(const fsdp_checkpoint_progress *p) {
  return json_pack("{s:I, s:I, s:I, s:I, s:I, s:o, s:{s:s, s:s, s:I, s:I}, s:o}", "step", (json_int_t)p->step,
                   "updates", (json_int_t)p->updates, "schedule_start", (json_int_t)p->schedule_start,
                   "epoch", (json_int_t)p->epoch, "epoch_samples", (json_int_t)p->epoch_samples, "data",
                   print_data(p), "random", "generator", "philox-4x32-10", "rounding", p->rounding, "seed",
                   (json_int_t)p->seed, "counter", (json_int_t)p->updates, "results",
                   print_results(&p->results));
}

// The checksum of the object.
static json_t *checksum_of(const json_t *root) {
  char *text = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
  FSDP_CHECK(text, "a manifest that cannot be printed");
  XXH128_hash_t hash = XXH3_128bits(text, strlen(text));
  free(text);
  return hex128((uint64_t[2]){hash.high64, hash.low64});
}

static int version_of(const fsdp_checkpoint *c) {
  if (c->files) return VERSION_WITH_FILES;
  for (int p = 0; p < c->param_count; p++)
    if (c->params[p].cut.part_count) return VERSION_WITH_PARTS;
  return VERSION;
}

char *fsdp_checkpoint_print(const fsdp_checkpoint *c) {
  json_t *root = json_pack(
      "{s:s, s:i, s:I, s:o, s:s, s:o, s:s, s:o, s:s, s:o, s:o, s:o, s:o, s:O}", "format", FORMAT, "version",
      version_of(c), "sequence", (json_int_t)c->sequence, "progress", print_progress(&c->progress),
      "model_name", c->model_name, "model", fsdp_model_print(&c->model), "strategy", c->strategy, "mesh",
      print_mesh(&c->mesh), "optimizer", c->optimizer, "slots", print_slots(c), "files", print_rank_files(c),
      "carried", print_files(c->carried, c->carried_count), "units", print_units(c), "options", c->options);
  FSDP_CHECK(root, "a manifest that is no JSON: a name that is not UTF-8");
  if (c->carries_tokenizer) json_object_set_new(root, "carries_tokenizer", json_true());
  json_object_set_new(root, "checksum", checksum_of(root));
  char *text = json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
  FSDP_CHECK(text, "a manifest that cannot be printed");
  json_decref(root);
  return text;
}

// ---- Reading

// The first thing that is wrong, for one message; every further read does nothing.
typedef struct reader {
  const char *wrong;
} reader;

static bool require(reader *r, bool good, const char *key) {
  if (!good && !r->wrong) r->wrong = key;
  return good;
}

static int64_t read_int(reader *r, const json_t *object, const char *key, int64_t low, int64_t high) {
  const json_t *value = json_object_get(object, key);
  const int64_t number = json_integer_value(value);
  return require(r, json_is_integer(value) && number >= low && number <= high, key) ? number : low;
}

static void read_text(reader *r, const json_t *object, const char *key, char *out, size_t bytes) {
  const char *text = json_string_value(json_object_get(object, key));
  if (require(r, text && strlen(text) < bytes, key)) memcpy(out, text, strlen(text) + 1);
}

static void read_hex(reader *r, const json_t *object, const char *key, uint64_t *out, int count) {
  const char *text = json_string_value(json_object_get(object, key));
  bool good = text && strlen(text) == 16 * (size_t)count && strspn(text, "0123456789abcdef") == strlen(text);
  for (int i = 0; good && i < count; i++) {
    char word[17] = {0};
    memcpy(word, text + 16 * i, 16);
    out[i] = strtoull(word, NULL, 16);
  }
  require(r, good, key);
}

static void read_slots(reader *r, const json_t *list, fsdp_checkpoint *c) {
  size_t count = json_array_size(list);
  bool good = count >= 1 && count <= FSDP_SLOTS_MAX;
  for (size_t i = 0; good && i < count; i++) {
    const json_t *entry = json_array_get(list, i);
    fsdp_checkpoint_slot *slot = &c->slots[i];
    char dtype[8] = "";
    read_text(r, entry, "name", slot->name, sizeof slot->name);
    read_text(r, entry, "dtype", dtype, sizeof dtype);
    good = *slot->name && !strchr(slot->name, '/') && fsdp_checkpoint_find_slot(c, slot->name) < 0;
    slot->dtype = strcmp(dtype, "bf16") == 0 ? FSDP_BF16 : FSDP_F32;
    good = good && strcmp(dtype, fsdp_dtype_name(slot->dtype)) == 0;
    c->slot_count = (int)i + 1;
  }
  require(r, good, "slots");
}

// A file's name is one below its folder and nothing else.
static void read_files(reader *r, const json_t *list, fsdp_checkpoint_file **files, int *count) {
  *count = (int)json_array_size(list);
  *files = fsdp_alloc_zeroed((size_t)*count + 1, sizeof **files);
  for (int i = 0; i < *count; i++) {
    const json_t *entry = json_array_get(list, (size_t)i);
    fsdp_checkpoint_file *file = &(*files)[i];
    read_text(r, entry, "name", file->name, sizeof file->name);
    file->bytes = read_int(r, entry, "bytes", 0, INT64_MAX);
    file->header_bytes = read_int(r, entry, "header_bytes", 0, file->bytes);
    read_hex(r, entry, "xxh3", file->checksum, 2);
    require(r, !strchr(file->name, '/') && file->name[0] != '.', "name");
  }
}

static void read_rank_files(reader *r, const json_t *root, fsdp_checkpoint *c) {
  const json_t *files = json_object_get(root, "files");
  c->file_count = fsdp_mesh_ranks(&c->mesh);
  if (json_integer_value(json_object_get(root, "version")) >= VERSION) {
    read_hex(r, files, "save", &c->save, 1);
    c->files_bytes = read_int(r, files, "bytes", 0, INT64_MAX);
    return;
  }
  int count;
  read_files(r, files, &c->files, &count);
  bool good = count == c->file_count;
  for (int i = 0; i < count; i++)
    good = good && fsdp_add_checked(c->files_bytes, c->files[i].bytes, &c->files_bytes);
  require(r, good, "files");
}

// Axes of the mesh with more than one rank, in any order, each once.
static fsdp_axis_set read_axes(reader *r, const json_t *entry, const char *key, const fsdp_mesh *mesh) {
  const json_t *list = json_object_get(entry, key);
  fsdp_axis_set axes = 0;
  bool good = json_is_array(list);
  for (size_t i = 0; good && i < json_array_size(list); i++) {
    const char *name = json_string_value(json_array_get(list, i));
    int axis = name ? fsdp_mesh_find(mesh, name) : -1;
    good = axis >= 0 && mesh->axes[axis].size > 1 && !(axes >> axis & 1);
    if (good) axes |= 1u << axis;
  }
  require(r, good, key);
  return axes;
}

static bool read_block(const json_t *entry, fsdp_cut_block *block, int64_t *numel) {
  block->groups = json_integer_value(json_array_get(entry, 0));
  block->items = json_integer_value(json_array_get(entry, 1));
  block->width = json_integer_value(json_array_get(entry, 2));
  return block->groups > 0 && block->items > 0 && block->width > 0 &&
         fsdp_mul_checked(block->groups, block->items, numel) &&
         fsdp_mul_checked(*numel, block->width, numel);
}

// Some of the places of dimension 0 that a rank has.
static void read_part(reader *r, const json_t *entry, const fsdp_mesh *mesh, int64_t indices, fsdp_cut *cut) {
  const json_t *part = json_object_get(entry, "part");
  const int64_t first = json_integer_value(json_array_get(part, 0)),
                count = json_integer_value(json_array_get(part, 1)),
                places = fsdp_cut_outer_places(cut, mesh, indices);
  if (!part) return;
  if (require(r, first >= 0 && first < places && count >= 1 && count <= places - first, "part"))
    cut->part_first = first, cut->part_count = count;
}

// Blocks that are a whole dimension.
static void read_cut(reader *r, const json_t *entry, const fsdp_mesh *mesh, fsdp_checkpoint_param *p) {
  const json_t *blocks = json_object_get(entry, "blocks");
  size_t count = json_array_size(blocks);
  fsdp_cut cut = {.block_count = (int)count};
  int64_t size = 0, numel;
  cut.dim = (int)read_int(r, entry, "dim", 0, p->dims - 1);
  cut.group_axes = read_axes(r, entry, "group_axes", mesh);
  cut.item_axes = read_axes(r, entry, "item_axes", mesh);
  if (json_object_get(entry, "outer_axes")) cut.outer_axes = read_axes(r, entry, "outer_axes", mesh);
  read_part(r, entry, mesh, p->shape[0], &cut);
  bool good = (count >= 1 || fsdp_cut_is_outer(&cut)) && count <= FSDP_CUT_MAX_BLOCKS &&
              !(cut.group_axes & cut.item_axes) && !(cut.outer_axes & (cut.group_axes | cut.item_axes)) &&
              (!fsdp_cut_is_outer(&cut) || !count || cut.dim > 0);
  for (size_t b = 0; good && b < count; b++)
    good =
        read_block(json_array_get(blocks, b), &cut.blocks[b], &numel) && fsdp_add_checked(size, numel, &size);
  good = good && (count == 0 || size == p->shape[cut.dim]);
  if (require(r, good, "cut")) p->cut = cut;
}

static void read_param(reader *r, const json_t *entry, fsdp_checkpoint *c, int unit) {
  fsdp_checkpoint_param *p = &c->params[c->param_count++];
  const json_t *shape = json_object_get(entry, "shape"), *cut = json_object_get(entry, "cut");
  read_text(r, entry, "name", p->name, sizeof p->name);
  p->unit = unit;
  p->dims = (int)json_array_size(shape);
  p->numel = 1;
  bool good = p->dims >= 1 && p->dims <= FSDP_MAX_DIMS;
  for (int d = 0; good && d < p->dims; d++) {
    p->shape[d] = json_integer_value(json_array_get(shape, (size_t)d));
    good = p->shape[d] > 0 && fsdp_mul_checked(p->numel, p->shape[d], &p->numel);
  }
  if (require(r, good, "shape") && cut) read_cut(r, cut, &c->mesh, p);
}

// Each axis cuts the unit's parameters (from `first` on), or shards the unit, or repeats it: a rank's file
// holds one slice, and all files every element.
static void check_axes(reader *r, const fsdp_checkpoint *c, const fsdp_checkpoint_unit *unit, int first) {
  fsdp_axis_set cut = fsdp_mesh_all_axes(&c->mesh) & ~(unit->shard_axes | unit->replica_axes);
  bool good = !(unit->shard_axes & unit->replica_axes) && (!cut || first < c->param_count);
  for (int p = first; p < c->param_count; p++) good = good && fsdp_cut_axes(&c->params[p].cut) == cut;
  require(r, good, "replica_axes");
}

// By tensor, those of one in the order of the file.
static int compare_parts(const void *a, const void *b) {
  const fsdp_checkpoint_param *x = *(const fsdp_checkpoint_param *const *)a;
  const fsdp_checkpoint_param *y = *(const fsdp_checkpoint_param *const *)b;
  const int names = strcmp(x->name, y->name);
  return names ? names : (x > y) - (x < y);
}

static bool are_alike(const fsdp_checkpoint_param *a, const fsdp_checkpoint_param *b) {
  return a->dims == b->dims && a->cut.outer_axes == b->cut.outer_axes &&
         memcmp(a->shape, b->shape, sizeof a->shape) == 0;
}

// Every index of a tensor in parts is in one of them.
static void check_parts(reader *r, const fsdp_checkpoint *c) {
  const fsdp_checkpoint_param **parts = fsdp_alloc((size_t)(c->param_count + 1) * sizeof *parts);
  int count = 0;
  for (int p = 0; p < c->param_count; p++)
    if (c->params[p].cut.part_count) parts[count++] = &c->params[p];
  qsort(parts, (size_t)count, sizeof *parts, compare_parts);
  for (int p = 0, next; p < count && !r->wrong; p = next) {
    const fsdp_checkpoint_param *of = parts[p];
    const int64_t places = fsdp_cut_outer_places(&of->cut, &c->mesh, of->shape[0]);
    int64_t end = 0; // of those that follow each other from 0 on
    bool good = true;
    for (next = p; next < count && strcmp(parts[next]->name, of->name) == 0; next++) {
      good = good && are_alike(parts[next], of) && parts[next]->cut.part_first == end;
      if (good) end += parts[next]->cut.part_count;
      good = good && end <= places;
    }
    require(r, good && end == places, "part");
  }
  free(parts);
}

static void read_units(reader *r, const json_t *list, fsdp_checkpoint *c) {
  c->unit_count = (int)json_array_size(list);
  c->units = fsdp_alloc_zeroed((size_t)c->unit_count + 1, sizeof *c->units);
  size_t params = 0;
  for (int u = 0; u < c->unit_count; u++) {
    params += json_array_size(json_object_get(json_array_get(list, (size_t)u), "params"));
  }
  c->params = fsdp_alloc_zeroed(params + 1, sizeof *c->params);
  for (int u = 0; u < c->unit_count; u++) {
    const json_t *entry = json_array_get(list, (size_t)u);
    read_text(r, entry, "path", c->units[u].path, sizeof c->units[u].path);
    c->units[u].shard_axes = read_axes(r, entry, "shard_axes", &c->mesh);
    c->units[u].replica_axes = read_axes(r, entry, "replica_axes", &c->mesh);
    const json_t *list_of_params = json_object_get(entry, "params");
    int first = c->param_count;
    for (size_t i = 0; i < json_array_size(list_of_params); i++) {
      read_param(r, json_array_get(list_of_params, i), c, u);
    }
    check_axes(r, c, &c->units[u], first);
  }
  check_parts(r, c);
}

// A loss, or 0 if there is none.
static double read_loss(reader *r, const json_t *object, const char *key) {
  const json_t *value = json_object_get(object, key);
  const bool good = json_is_number(value) && json_number_value(value) > 0;
  return value && require(r, good, key) ? json_number_value(value) : 0;
}

// Older checkpoints have none.
static void read_results(reader *r, const json_t *object, fsdp_checkpoint_results *results) {
  if (!object) return;
  results->loss = read_loss(r, object, "loss");
  results->eval_loss = read_loss(r, object, "eval_loss");
  results->best_eval_loss = read_loss(r, object, "best_eval_loss");
  results->evaluations_since_best = read_int(r, object, "evaluations_since_best", 0, INT64_C(1) << 40);
  if (json_object_get(object, "evaluated_from"))
    results->evaluated_from = read_int(r, object, "evaluated_from", 0, INT64_C(1) << 40);
  results->owes_evaluation = json_is_true(json_object_get(object, "owes_evaluation"));
  results->saved_s = read_int(r, object, "saved_s", 0, INT64_C(1) << 40);
}

static void read_progress(reader *r, const json_t *object, fsdp_checkpoint_progress *p) {
  const json_t *data = json_object_get(object, "data");
  p->step = read_int(r, object, "step", 1, INT64_C(1) << 40);
  p->updates = read_int(r, object, "updates", 0, p->step);
  // Older checkpoints have none: their schedules begin with the run.
  if (json_object_get(object, "schedule_start"))
    p->schedule_start = read_int(r, object, "schedule_start", 0, p->step);
  p->epoch = read_int(r, object, "epoch", 0, INT64_C(1) << 40);
  p->epoch_samples = read_int(r, object, "epoch_samples", 0, INT64_C(1) << 56);
  p->global_batch = read_int(r, data, "global_batch", 1, INT64_C(1) << 40);
  p->sample_count = read_int(r, data, "sample_count", 1, INT64_C(1) << 56);
  p->held_out = read_int(r, data, "held_out", 0, p->sample_count);
  read_hex(r, data, "fingerprint", &p->data_fingerprint, 1);
  if (json_object_get(data, "eval_fingerprint"))
    read_hex(r, data, "eval_fingerprint", &p->eval_fingerprint, 1);
  const json_t *mask = json_object_get(data, "document_mask_given"); // older checkpoints do not tell
  if (json_is_boolean(mask)) p->document_mask = json_is_true(mask) ? FSDP_GIVEN_YES : FSDP_GIVEN_NO;
  p->knows_ends = json_object_get(data, "last_token") != NULL; // older checkpoints do not tell
  if (p->knows_ends) {
    p->first_token = read_int(r, data, "first_token", -1, INT32_MAX);
    p->last_token = read_int(r, data, "last_token", -1, INT32_MAX);
  }
  const json_t *random = json_object_get(object, "random");
  p->seed = read_int(r, random, "seed", 0, INT64_MAX);
  snprintf(p->rounding, sizeof p->rounding, "philox-4x32-10"); // older checkpoints have one generator for all
  if (json_object_get(random, "rounding")) read_text(r, random, "rounding", p->rounding, sizeof p->rounding);
  read_results(r, json_object_get(object, "results"), &p->results);
}

static void read_mesh(reader *r, const json_t *list, fsdp_mesh *mesh) {
  bool good = json_is_array(list);
  *mesh = (fsdp_mesh){0};
  for (size_t i = 0; good && i < json_array_size(list); i++) {
    const json_t *entry = json_array_get(list, i);
    char name[FSDP_AXIS_NAME_BYTES] = "";
    read_text(r, entry, "name", name, sizeof name);
    good = fsdp_mesh_add(mesh, name, (int)read_int(r, entry, "size", 1, FSDP_MESH_RANKS_MAX));
  }
  require(r, good, "mesh");
}

// Reads everything but the model's configuration.
static void read_all(reader *r, const json_t *root, fsdp_checkpoint *c) {
  c->sequence = read_int(r, root, "sequence", 1, INT64_MAX - 1);
  read_progress(r, json_object_get(root, "progress"), &c->progress);
  read_text(r, root, "model_name", c->model_name, sizeof c->model_name);
  read_text(r, root, "strategy", c->strategy, sizeof c->strategy);
  read_mesh(r, json_object_get(root, "mesh"), &c->mesh);
  read_text(r, root, "optimizer", c->optimizer, sizeof c->optimizer);
  read_slots(r, json_object_get(root, "slots"), c);
  read_rank_files(r, root, c);
  read_files(r, json_object_get(root, "carried"), &c->carried, &c->carried_count);
  c->carries_tokenizer = json_is_true(json_object_get(root, "carries_tokenizer"));
  read_units(r, json_object_get(root, "units"), c);
  require(r, r->wrong || fsdp_checkpoint_lay_out(c), "shape");
  c->options = json_deep_copy(json_object_get(root, "options"));
  require(r, json_is_object(c->options), "options");
}

// Checks FORMAT, VERSION and the object's checksum, which it removes.
static fsdp_status check_whole(const char *path, json_t *root, fsdp_error *error) {
  const char *format = json_string_value(json_object_get(root, "format"));
  if (!format || strcmp(format, FORMAT) != 0) {
    return fsdp_fail(error, FSDP_ERR_INPUT, "%s: is not the manifest of a checkpoint; give the folder of one",
                     path);
  }
  json_int_t version = json_integer_value(json_object_get(root, "version"));
  if (version < VERSION_WITHOUT_CUTS || version > VERSION_WITH_PARTS) {
    return fsdp_fail(error, FSDP_ERR_INPUT,
                     "%s: is of format version %lld, this build reads %d to %d; resume it with the version "
                     "that wrote it, or export it with that version's fsdp_export and start from its weights "
                     "with --model",
                     path, (long long)version, VERSION_WITHOUT_CUTS, VERSION_WITH_PARTS);
  }
  json_t *said = json_incref(json_object_get(root, "checksum"));
  json_object_del(root, "checksum");
  json_t *found = checksum_of(root);
  bool good = said && json_equal(said, found);
  json_decref(said);
  json_decref(found);
  if (good) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_INPUT, "%s: its checksum does not match: " DAMAGED, path);
}

// Takes the reference to `root`.
static fsdp_status read_root(const char *path, json_t *root, fsdp_checkpoint **checkpoint,
                             fsdp_error *error) {
  reader r = {NULL};
  fsdp_checkpoint *c = NULL;
  fsdp_status status = check_whole(path, root, error);
  if (status == FSDP_OK) {
    c = fsdp_alloc_zeroed(1, sizeof *c);
    status = fsdp_model_read(json_object_get(root, "model"), path, &c->model, error);
  }
  if (status == FSDP_OK) read_all(&r, root, c);
  if (r.wrong) {
    status = fsdp_fail(error, FSDP_ERR_INPUT, "%s: \"%s\" is missing or wrong; use another checkpoint", path,
                       r.wrong);
  }
  json_decref(root);
  if (status != FSDP_OK)
    fsdp_checkpoint_destroy(c);
  else
    *checkpoint = c;
  return status;
}

fsdp_status fsdp_checkpoint_parse(const char *path, const char *text, fsdp_checkpoint **checkpoint,
                                  fsdp_error *error) {
  json_error_t place;
  *checkpoint = NULL;
  json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &place);
  if (root) return read_root(path, root, checkpoint, error);
  return fsdp_fail(error, FSDP_ERR_INPUT, "%s:%d:%d: not valid JSON: %s; " DAMAGED, path, place.line,
                   place.column, place.text);
}

fsdp_status fsdp_checkpoint_read_manifest(const char *folder, fsdp_checkpoint **checkpoint,
                                          fsdp_error *error) {
  char path[4096 + 32];
  json_t *root;
  *checkpoint = NULL;
  snprintf(path, sizeof path, "%.4095s/" FSDP_CHECKPOINT_MANIFEST, folder);
  const fsdp_json_file file = {path, "a checkpoint's folder has this file", DAMAGED};
  fsdp_status status = fsdp_json_file_read(&file, &root, error);
  return status == FSDP_OK ? read_root(path, root, checkpoint, error) : status;
}
