// The header of a file: reading it and checking all of it.
#include "models/model.h"
#include "runtime/base/check.h"
#include "runtime/base/descriptors.h"
#include "runtime/base/size.h"
#include "runtime/base/text.h"
#include "runtime/checkpoint/safetensors.h"

#include <errno.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREFIX_BYTES 8

static const char *const dtype_names[FSDP_DTYPE_COUNT] = {
    [FSDP_F32] = "F32", [FSDP_BF16] = "BF16", [FSDP_F16] = "F16", [FSDP_I32] = "I32"};

const char *fsdp_safetensors_dtype_name(fsdp_dtype dtype) {
  return dtype_names[dtype];
}

// The state of parsing one file.
typedef struct parser {
  const char *path;
  int64_t data_begin, data_bytes;
  fsdp_error *error;
} parser;

#define BAD(p, ...) fsdp_fail((p)->error, FSDP_ERR_INPUT, __VA_ARGS__)

// Of a tensor: what is wrong, and that another copy of the file is needed.
__attribute__((format(printf, 3, 4))) static fsdp_status fail_damaged(const parser *p, const char *name,
                                                                      const char *format, ...) {
  char what[400];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(what, sizeof what, format, arguments);
  va_end(arguments);
  return BAD(p, "%s: tensor \"%.200s\" %s; the file is damaged, copy it again", p->path, name, what);
}

static fsdp_status read_exactly(const fsdp_safetensors_file *file, void *out, int64_t bytes, int64_t offset,
                                fsdp_error *error) {
  if (fsdp_read_at(file->descriptor, offset, out, bytes)) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_INPUT, "%s: reading its header failed (%s); copy the file again",
                   file->path, errno ? strerror(errno) : "it ends too early");
}

// [begin, end] of one tensor within the data, not yet checked against its neighbours.
static fsdp_status parse_offsets(const parser *p, const char *name, const json_t *info, int64_t range[2]) {
  const json_t *offsets = json_object_get(info, "data_offsets");
  if (json_array_size(offsets) != 2) return fail_damaged(p, name, "has no \"data_offsets\" of two numbers");
  for (size_t i = 0; i < 2; i++) {
    const json_t *value = json_array_get(offsets, i);
    if (!json_is_integer(value) || json_integer_value(value) < 0)
      return fail_damaged(p, name, "has a \"data_offsets\" that is not a whole number of at least 0");
    range[i] = json_integer_value(value);
  }
  if (range[0] > range[1])
    return fail_damaged(p, name, "begins at byte %lld and ends before it, at %lld", (long long)range[0],
                        (long long)range[1]);
  if (range[1] > p->data_bytes)
    return BAD(p,
               "%s: tensor \"%.200s\" ends at byte %lld of the data, which has only %lld bytes; the file is "
               "truncated or damaged, copy it again",
               p->path, name, (long long)range[1], (long long)p->data_bytes);
  return FSDP_OK;
}

static fsdp_status parse_dtype(const parser *p, const char *name, const json_t *info, fsdp_dtype *dtype) {
  const char *text = json_string_value(json_object_get(info, "dtype"));
  if (!text) return fail_damaged(p, name, "has no \"dtype\"");
  for (int i = 0; i < FSDP_DTYPE_COUNT; i++) {
    if (strcmp(text, dtype_names[i]) != 0) continue;
    *dtype = (fsdp_dtype)i;
    return FSDP_OK;
  }
  return BAD(
      p,
      "%s: tensor \"%.200s\" has dtype \"%.40s\"; only F32, BF16, F16 and I32 can be read, so save the model "
      "in one of these",
      p->path, name, text);
}

static fsdp_status parse_shape(const parser *p, const char *name, const json_t *info,
                               fsdp_safetensors_tensor *t) {
  const json_t *shape = json_object_get(info, "shape");
  if (!json_is_array(shape)) return fail_damaged(p, name, "has no \"shape\"");
  if (json_array_size(shape) > FSDP_SAFETENSORS_MAX_DIMS)
    return BAD(p,
               "%s: tensor \"%.200s\" has %zu dimensions, more than the %d that can be read; it belongs to "
               "no model that can be trained",
               p->path, name, json_array_size(shape), FSDP_SAFETENSORS_MAX_DIMS);
  t->dims = (int)json_array_size(shape);
  t->numel = 1;
  for (int i = 0; i < t->dims; i++) {
    const json_t *value = json_array_get(shape, (size_t)i);
    t->shape[i] = json_is_integer(value) ? json_integer_value(value) : -1;
    if (t->shape[i] < 0 || !fsdp_mul_checked(t->numel, t->shape[i], &t->numel))
      return fail_damaged(p, name, "has a shape that is negative, no whole number, or too large");
  }
  return FSDP_OK;
}

static fsdp_status parse_tensor(const parser *p, const char *name, const json_t *info,
                                fsdp_safetensors_tensor *t) {
  char text[96];
  int64_t range[2] = {0, 0}, bytes;
  if (!json_is_object(info)) return fail_damaged(p, name, "is not described by an object");
  fsdp_status status = parse_offsets(p, name, info, range);
  t->file_offset = p->data_begin + range[0];
  // Of a buffer only its bytes count; its dtype and shape do not matter.
  if (!status && fsdp_model_is_buffer(name)) {
    t->numel = range[1] - range[0];
    return FSDP_OK;
  }
  if (!status) status = parse_dtype(p, name, info, &t->dtype);
  if (!status) status = parse_shape(p, name, info, t);
  if (status) return status;
  if (!fsdp_mul_checked(t->numel, fsdp_dtype_bytes(t->dtype), &bytes) || bytes != range[1] - range[0])
    return fail_damaged(p, name, "takes %lld bytes, but shape %s in %s does not",
                        (long long)(range[1] - range[0]), fsdp_print_shape(t->dims, t->shape, text),
                        dtype_names[t->dtype]);
  return FSDP_OK;
}

static int64_t tensor_bytes(const fsdp_safetensors_tensor *t) {
  return fsdp_model_is_buffer(t->name) ? t->numel : t->numel * fsdp_dtype_bytes(t->dtype);
}

static int compare_offsets(const void *left, const void *right) {
  const fsdp_safetensors_tensor *a = left, *b = right;
  if (a->file_offset != b->file_offset) return a->file_offset < b->file_offset ? -1 : 1;
  int64_t a_bytes = tensor_bytes(a), b_bytes = tensor_bytes(b); // empty ones come first
  return a_bytes == b_bytes ? strcmp(a->name, b->name) : a_bytes < b_bytes ? -1 : 1;
}

// Tensors, in order of offset, must lie end to end over the whole data.
static fsdp_status check_layout(const parser *p, const fsdp_safetensors_tensor *tensors, int count) {
  int64_t end = p->data_begin;
  for (int i = 0; i < count; i++) {
    const fsdp_safetensors_tensor *t = &tensors[i];
    if (t->file_offset < end)
      return BAD(
          p,
          "%s: tensors \"%.200s\" and \"%.200s\" overlap at byte %lld of the data; the file is damaged, copy "
          "it again",
          p->path, tensors[i - 1].name, t->name, (long long)(t->file_offset - p->data_begin));
    if (t->file_offset > end)
      return BAD(
          p,
          "%s: %lld bytes before tensor \"%.200s\" belong to no tensor; the file is damaged, copy it again",
          p->path, (long long)(t->file_offset - end), t->name);
    end = t->file_offset + tensor_bytes(t);
  }
  if (end != p->data_begin + p->data_bytes)
    return BAD(p, "%s: %lld bytes at its end belong to no tensor; the file is damaged, copy it again",
               p->path, (long long)(p->data_begin + p->data_bytes - end));
  return FSDP_OK;
}

static void drop_buffers(fsdp_safetensors *model, int first) {
  int kept = first;
  for (int i = first; i < model->count; i++) {
    if (fsdp_model_is_buffer(model->tensors[i].name))
      free((void *)model->tensors[i].name);
    else
      model->tensors[kept++] = model->tensors[i];
  }
  model->count = kept;
}

static fsdp_safetensors_tensor *append(fsdp_safetensors *model, const char *name, int file) {
  model->tensors = fsdp_grow(model->tensors, model->count + 1, &model->capacity, sizeof *model->tensors);
  fsdp_safetensors_tensor *t = &model->tensors[model->count++];
  *t = (fsdp_safetensors_tensor){.name = fsdp_strdup(name, "a name"), .file = file};
  return t;
}

static fsdp_status check_metadata(const parser *p, json_t *metadata) {
  const char *key;
  json_t *value;
  bool good = json_is_object(metadata);
  json_object_foreach(metadata, key, value) good &= json_is_string(value);
  return good ? FSDP_OK
              : BAD(p, "%s: \"__metadata__\" is not an object of strings; the file is damaged, copy it again",
                    p->path);
}

static fsdp_status parse_tensors(const parser *p, json_t *root, int file, fsdp_safetensors *model) {
  const char *name;
  json_t *info;
  int first = model->count;
  fsdp_status status = FSDP_OK;
  if (!json_is_object(root))
    return BAD(p, "%s: its header is not a JSON object; this is not a safetensors file", p->path);
  json_object_foreach(root, name, info) {
    status = strcmp(name, "__metadata__") ? parse_tensor(p, name, info, append(model, name, file))
                                          : check_metadata(p, info);
    if (status) return status;
  }
  if (model->count == first) return check_layout(p, NULL, 0);
  fsdp_safetensors_tensor *tensors = model->tensors + first;
  qsort(tensors, (size_t)(model->count - first), sizeof *tensors, compare_offsets);
  status = check_layout(p, tensors, model->count - first);
  if (!status) drop_buffers(model, first);
  return status;
}

// Reads the length and checks it against the file's.
static fsdp_status read_length(const fsdp_safetensors_file *file, int64_t *header_bytes, int64_t *file_bytes,
                               fsdp_error *error) {
  struct stat information;
  unsigned char prefix[PREFIX_BYTES];
  uint64_t length = 0;
  if (fstat(file->descriptor, &information) || !S_ISREG(information.st_mode))
    return fsdp_fail(error, FSDP_ERR_INPUT, "%s: not a regular file; give a .safetensors file or its folder",
                     file->path);
  *file_bytes = information.st_size;
  if (*file_bytes < PREFIX_BYTES)
    return fsdp_fail(error, FSDP_ERR_INPUT,
                     "%s: has %lld bytes, too few for a safetensors file; it is truncated, copy it again",
                     file->path, (long long)*file_bytes);
  fsdp_status status = read_exactly(file, prefix, PREFIX_BYTES, 0, error);
  if (status) return status;
  for (int i = 0; i < PREFIX_BYTES; i++) length |= (uint64_t)prefix[i] << (8 * i);
  if (!memcmp(prefix, "version ", PREFIX_BYTES))
    return fsdp_fail(
        error, FSDP_ERR_INPUT,
        "%s: is a pointer of Git LFS and not the weights: run git lfs pull in its folder, or download "
        "it with hf download",
        file->path);
  if (length > FSDP_SAFETENSORS_MAX_HEADER_BYTES)
    return fsdp_fail(error, FSDP_ERR_INPUT,
                     "%s: says that its header has %llu bytes, above the format's limit of %d; this is not a "
                     "safetensors file, or it is damaged",
                     file->path, (unsigned long long)length, FSDP_SAFETENSORS_MAX_HEADER_BYTES);
  if ((int64_t)length > *file_bytes - PREFIX_BYTES)
    return fsdp_fail(
        error, FSDP_ERR_INPUT,
        "%s: says that its header has %llu bytes, but only %lld follow; the file is truncated, copy it "
        "again",
        file->path, (unsigned long long)length, (long long)(*file_bytes - PREFIX_BYTES));
  *header_bytes = (int64_t)length;
  return FSDP_OK;
}

fsdp_status fsdp_safetensors_header_read(fsdp_safetensors *model, int file, fsdp_error *error) {
  const fsdp_safetensors_file *opened = &model->files[file];
  int64_t length = 0, file_bytes = 0;
  json_error_t place;
  fsdp_status status = read_length(opened, &length, &file_bytes, error);
  if (status) return status;
  char *text = fsdp_alloc((size_t)length);
  status = read_exactly(opened, text, length, PREFIX_BYTES, error);
  if (!status) {
    const int64_t begin = PREFIX_BYTES + length;
    model->bytes_read += begin;
    parser p = {opened->path, begin, file_bytes - begin, error};
    json_t *root = json_loadb(text, (size_t)length, JSON_REJECT_DUPLICATES, &place);
    if (!root)
      status = BAD(&p, "%s: its header is not valid JSON at byte %d (%s); the file is damaged, copy it again",
                   opened->path, PREFIX_BYTES + place.position, place.text);
    else
      status = parse_tensors(&p, root, file, model);
    json_decref(root);
  }
  free(text);
  return status;
}
