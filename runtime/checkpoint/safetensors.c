#include "runtime/checkpoint/safetensors.h"

#include "models/model.h"
#include "runtime/base/check.h"
#include "runtime/base/descriptors.h"
#include "runtime/base/paths.h"
#include "runtime/base/text.h"
#include "runtime/checkpoint/json_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "the format's data is little-endian, and read as it stands");

static char *join(const char *folder, const char *name) {
  char *path = NULL;
  int length = asprintf(&path, "%s/%s", folder, name);
  FSDP_NEED_MEMORY(length >= 0, "a path");
  return path;
}

bool fsdp_safetensors_is_present(const char *folder) {
  DIR *entries = opendir(folder);
  bool found = false;
  for (struct dirent *entry; !found && entries && (entry = readdir(entries));)
    found = fsdp_ends_with(entry->d_name, ".safetensors") ||
            fsdp_ends_with(entry->d_name, ".safetensors.index.json") ||
            (!strncmp(entry->d_name, "pytorch_model", 13) && strstr(entry->d_name, ".bin"));
  if (entries) closedir(entries);
  return found;
}

// Opens one file and appends its tensors.
static fsdp_status add_file(fsdp_safetensors *model, const char *path, fsdp_error *error) {
  const int file = model->file_count++;
  model->files = fsdp_realloc(model->files, (size_t)model->file_count * sizeof *model->files);
  // The header's reader refuses a pipe, for which opening does not wait.
  const int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  const int reason = errno;
  model->files[file] = (fsdp_safetensors_file){fsdp_strdup(path, "a path"), descriptor};
  if (descriptor < 0)
    return fsdp_fail(error, FSDP_ERR_INPUT, "%s: cannot be opened (%s); %s", path, strerror(reason),
                     reason == ENOENT ? "the model's weights are not complete" : "make it readable");
  return fsdp_safetensors_header_read(model, file, error);
}

static int compare_names(const void *left, const void *right) {
  const fsdp_safetensors_tensor *a = left, *b = right;
  return strcmp(a->name, b->name);
}

static void sort_names(fsdp_safetensors *model) {
  if (model->count > 1) qsort(model->tensors, (size_t)model->count, sizeof *model->tensors, compare_names);
}

int fsdp_safetensors_find(const fsdp_safetensors *model, const char *name) {
  fsdp_safetensors_tensor key = {.name = name};
  if (!model->count) return -1;
  const fsdp_safetensors_tensor *found =
      bsearch(&key, model->tensors, (size_t)model->count, sizeof key, compare_names);
  return found ? (int)(found - model->tensors) : -1;
}

// Which of the opened files has that name in its folder, or -1.
static int find_file(const fsdp_safetensors *model, const char *name) {
  for (int i = 0; i < model->file_count; i++)
    if (!strcmp(basename(model->files[i].path), name)) return i;
  return -1;
}

// Each tensor that a shard holds must be the one that the index maps there, and the reverse. They are sorted.
static fsdp_status check_index(const fsdp_safetensors *model, const char *path, const json_t *map,
                               fsdp_error *error) {
  const char *name;
  json_t *value;
  for (int i = 0; i < model->count; i++) {
    const fsdp_safetensors_tensor *t = &model->tensors[i];
    const char *shard = json_string_value(json_object_get(map, t->name));
    if (!shard)
      return fsdp_fail(error, FSDP_ERR_INPUT,
                       "%s: tensor \"%.200s\" of %s is not in the index; take the index that "
                       "belongs to these shards",
                       path, t->name, model->files[t->file].path);
    if (find_file(model, shard) != t->file)
      return fsdp_fail(error, FSDP_ERR_INPUT,
                       "%s: tensor \"%.200s\" belongs in %.200s, but %s holds one too; take the "
                       "index that belongs to these shards",
                       path, t->name, shard, model->files[t->file].path);
  }
  json_object_foreach((json_t *)map, name, value) {
    if (fsdp_model_is_buffer(name)) continue;
    if (fsdp_safetensors_find(model, name) < 0)
      return fsdp_fail(error, FSDP_ERR_INPUT,
                       "%s: tensor \"%.200s\" should be in %.200s, which does not hold it; copy "
                       "that file again",
                       path, name, json_string_value(value));
  }
  return FSDP_OK;
}

static fsdp_status add_shards(fsdp_safetensors *model, const char *path, const json_t *map,
                              fsdp_error *error) {
  const char *name, *slash = strrchr(path, '/');
  json_t *value;
  fsdp_status status = FSDP_OK;
  char *folder = slash ? strndup(path, (size_t)(slash - path)) : strdup(".");
  FSDP_NEED_MEMORY(folder, "a path");
  json_object_foreach((json_t *)map, name, value) {
    const char *shard = json_string_value(value);
    if (!shard || !*shard || strchr(shard, '/')) {
      status = fsdp_fail(error, FSDP_ERR_INPUT,
                         "%s: tensor \"%.200s\" is not mapped to a file beside the index; copy the "
                         "index again",
                         path, name);
      break;
    }
    if (find_file(model, shard) >= 0) continue;
    char *shard_path = join(folder, shard);
    status = add_file(model, shard_path, error);
    free(shard_path);
    if (status) break;
  }
  free(folder);
  return status;
}

static fsdp_status add_index(fsdp_safetensors *model, const char *path, fsdp_error *error) {
  const fsdp_json_file file = {path, "copy the index again", "copy the index again"};
  json_t *root;
  fsdp_status status = fsdp_json_file_read(&file, &root, error);
  if (status) return status;
  model->index = fsdp_strdup(path, "a path");
  const json_t *map = json_object_get(root, "weight_map");
  if (json_is_object(map)) {
    status = add_shards(model, path, map, error);
    sort_names(model);
    if (!status) status = check_index(model, path, map, error);
  } else {
    status = fsdp_fail(error, FSDP_ERR_INPUT,
                       "%s: has no object \"weight_map\"; this is not an index of safetensors files", path);
  }
  json_decref(root);
  return status;
}

static fsdp_status add_folder(fsdp_safetensors *model, const char *folder, fsdp_error *error) {
  // Transformers adds it to the weights, if PEFT is installed.
  if (fsdp_has_file(folder, "adapter_config.json"))
    return fsdp_fail(error, FSDP_ERR_INPUT,
                     "%s: has an adapter (adapter_config.json), which is not applied here; merge it into the "
                     "weights (PEFT's merge_and_unload), or remove that file",
                     folder);
  bool single = fsdp_has_file(folder, "model.safetensors");
  if (!single && !fsdp_has_file(folder, "model.safetensors.index.json"))
    return fsdp_fail(
        error, FSDP_ERR_INPUT,
        "%s: has neither model.safetensors nor model.safetensors.index.json%s; or train from new weights "
        "with --init random",
        folder,
        fsdp_has_file(folder, "pytorch_model.bin") || fsdp_has_file(folder, "pytorch_model.bin.index.json")
            ? " (weights in pytorch_model.bin must be saved again as safetensors)"
            : "");
  char *path = join(folder, single ? "model.safetensors" : "model.safetensors.index.json");
  fsdp_status status = single ? add_file(model, path, error) : add_index(model, path, error);
  free(path);
  return status;
}

fsdp_status fsdp_safetensors_open(const char *path, fsdp_safetensors **model, fsdp_error *error) {
  FSDP_CHECK(path && model, "no path or no place for the model");
  struct stat information;
  *model = NULL;
  if (stat(path, &information))
    return fsdp_fail(error, FSDP_ERR_INPUT,
                     "%s: cannot be opened (%s); give a .safetensors file or its folder", path,
                     strerror(errno));
  fsdp_safetensors *opened = fsdp_alloc_zeroed(1, sizeof *opened);
  fsdp_status status = S_ISDIR(information.st_mode)    ? add_folder(opened, path, error)
                       : fsdp_ends_with(path, ".json") ? add_index(opened, path, error)
                                                       : add_file(opened, path, error);
  if (status) {
    fsdp_safetensors_close(opened);
    return status;
  }
  sort_names(opened);
  *model = opened;
  return FSDP_OK;
}

void fsdp_safetensors_close(fsdp_safetensors *model) {
  if (!model) return;
  for (int i = 0; i < model->count; i++) free((void *)model->tensors[i].name);
  for (int i = 0; i < model->file_count; i++) {
    if (model->files[i].descriptor >= 0) close(model->files[i].descriptor);
    free(model->files[i].path);
  }
  free(model->tensors);
  free(model->index);
  free(model->files);
  free(model);
}

fsdp_status fsdp_safetensors_read_raw(fsdp_safetensors *model, int index, int64_t first, int64_t count,
                                      void *out, fsdp_error *error) {
  const fsdp_safetensors_tensor *t = fsdp_safetensors_at(model, index);
  FSDP_CHECK(first >= 0 && count >= 0 && first <= t->numel - count,
             "elements %lld + %lld of %s, which has %lld", (long long)first, (long long)count, t->name,
             (long long)t->numel);
  int64_t width = fsdp_dtype_bytes(t->dtype), bytes = count * width;
  if (!fsdp_read_at(model->files[t->file].descriptor, t->file_offset + first * width, out, bytes))
    return fsdp_fail(error, FSDP_ERR_INPUT, "%s: reading tensor \"%s\" failed (%s); copy the file again",
                     model->files[t->file].path, t->name,
                     errno ? strerror(errno) : "the file became shorter");
  model->bytes_read += bytes;
  return FSDP_OK;
}

fsdp_status fsdp_safetensors_read(fsdp_safetensors *model, int index, int64_t first, int64_t count,
                                  float *out, fsdp_error *error) {
  const fsdp_safetensors_tensor *t = fsdp_safetensors_at(model, index);
  FSDP_CHECK(t->dtype != FSDP_I32, "%s holds integers", t->name);
  if (t->dtype == FSDP_F32) return fsdp_safetensors_read_raw(model, index, first, count, out, error);
  // Halves are read into the upper half of `out` and widened upward in place: element i is written at bytes
  // 4i..4i+3, never past the next unread one at 2*count + 2(i+1).
  const char *halves = (const char *)out + 2 * count;
  fsdp_status status = fsdp_safetensors_read_raw(model, index, first, count, (char *)out + 2 * count, error);
  if (status) return status;
  for (int64_t i = 0; i < count; i++) {
    uint16_t half;
    memcpy(&half, halves + 2 * i, sizeof half);
    out[i] = t->dtype == FSDP_BF16 ? fsdp_bf16_to_f32(half) : fsdp_f16_to_f32(half);
  }
  return FSDP_OK;
}

const fsdp_safetensors_tensor *fsdp_safetensors_at(const fsdp_safetensors *model, int index) {
  FSDP_CHECK(index >= 0 && index < model->count, "tensor %d of %d", index, model->count);
  return &model->tensors[index];
}

const char *fsdp_safetensors_path(const fsdp_safetensors *model, int index) {
  return model->files[fsdp_safetensors_at(model, index)->file].path;
}
