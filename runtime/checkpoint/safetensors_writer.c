// The writing half of safetensors.h.
#include "runtime/base/check.h"
#include "runtime/base/descriptors.h"
#include "runtime/base/progress.h"
#include "runtime/base/size.h"
#include "runtime/checkpoint/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <string.h>
#include <unistd.h>

struct fsdp_safetensors_writer {
  char *path, *temporary;
  int descriptor;
  int64_t data_bytes, written_bytes; // without the header
  char *header;
  int64_t header_bytes;
  unsigned char *block; // of BLOCK_BYTES, aligned, filled up to block_fill; NULL: not direct
  int64_t block_fill;
  int64_t unsynced_bytes;
};

// What is written directly goes out in whole blocks, from an aligned address.
#define BLOCK_BYTES ((int64_t)4 << 20)
#define BLOCK_ALIGN 4096
// Bytes made durable at a time, so that the end of a large file on a slow disk does not look like a stall.
#define SYNC_BYTES ((int64_t)256 << 20)

// From here on through the page cache: for the file's end, and if a file system takes the flag but no writes.
static bool stop_direct(const fsdp_safetensors_writer *w) {
  int flags = fcntl(w->descriptor, F_GETFL);
  return flags >= 0 && (flags & O_DIRECT) && fcntl(w->descriptor, F_SETFL, flags & ~O_DIRECT) == 0;
}

static fsdp_status put(fsdp_safetensors_writer *w, const void *data, int64_t bytes, fsdp_error *error) {
  for (int64_t done = 0; done < bytes;) {
    ssize_t count = write(w->descriptor, (const char *)data + done, (size_t)(bytes - done));
    if (count < 0 && (errno == EINTR || (errno == EINVAL && stop_direct(w)))) continue;
    if (count < 0) return fsdp_fail_write(w->path, "writing", error);
    done += count;
    fsdp_progress_mark();
    if ((w->unsynced_bytes += count) >= SYNC_BYTES) {
      if (fdatasync(w->descriptor) != 0) return fsdp_fail_write(w->path, "writing", error);
      w->unsynced_bytes = 0;
    }
    // After a short write the rest may not be aligned.
    if (done < bytes && done % BLOCK_ALIGN != 0) stop_direct(w);
  }
  return FSDP_OK;
}

static fsdp_status put_block(fsdp_safetensors_writer *w, fsdp_error *error) {
  fsdp_status status = put(w, w->block, w->block_fill, error);
  w->block_fill = 0;
  return status;
}

static fsdp_status write_all(fsdp_safetensors_writer *w, const void *data, int64_t bytes, fsdp_error *error) {
  if (!w->block) return put(w, data, bytes, error);
  fsdp_status status = FSDP_OK;
  for (int64_t done = 0, now; done < bytes && !status; done += now) {
    now = fsdp_min_i64(bytes - done, BLOCK_BYTES - w->block_fill);
    memcpy(w->block + w->block_fill, (const char *)data + done, (size_t)now);
    w->block_fill += now;
    if (w->block_fill == BLOCK_BYTES) status = put_block(w, error);
  }
  return status;
}

// The last block is partial.
static fsdp_status flush_block(fsdp_safetensors_writer *w, fsdp_error *error) {
  if (!w->block || w->block_fill == 0) return FSDP_OK;
  stop_direct(w);
  return put_block(w, error);
}

static void open_file(fsdp_safetensors_writer *w, bool direct) {
  const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
  w->descriptor = direct ? open(w->temporary, flags | O_DIRECT, 0666) : -1;
  if (w->descriptor >= 0) {
    w->block = aligned_alloc(BLOCK_ALIGN, (size_t)BLOCK_BYTES);
    FSDP_NEED_MEMORY(w->block, "a file's block, %lld bytes", (long long)BLOCK_BYTES);
  } else {
    w->descriptor = open(w->temporary, flags, 0666);
  }
}

// The header as JSON; *data_bytes is the size of all tensors.
static char *header_text(const fsdp_safetensors_writer_config *config, int64_t *data_bytes) {
  json_t *root = json_object();
  if (config->format) json_object_set_new(root, "__metadata__", json_pack("{s:s}", "format", config->format));
  int64_t begin = 0;
  for (int i = 0; i < config->tensor_count; i++) {
    const fsdp_safetensors_tensor *t = &config->tensors[i];
    json_t *shape = json_array();
    int64_t end = fsdp_dtype_bytes(t->dtype);
    for (int d = 0; d < t->dims; d++) {
      json_array_append_new(shape, json_integer(t->shape[d]));
      FSDP_CHECK(fsdp_mul_checked(end, t->shape[d], &end), "the size of %s is above 2^63", t->name);
    }
    FSDP_CHECK(fsdp_add_checked(begin, end, &end), "the size of %s is above 2^63", config->path);
    FSDP_CHECK(!json_object_get(root, t->name), "%s is declared twice", t->name);
    json_t *info = json_pack("{s:s, s:o, s:[I,I]}", "dtype", fsdp_safetensors_dtype_name(t->dtype), "shape",
                             shape, "data_offsets", (json_int_t)begin, (json_int_t)end);
    int failed = json_object_set_new(root, t->name, info);
    FSDP_CHECK(!failed, "the header of %s cannot be made: its name is not UTF-8", t->name);
    begin = end;
  }
  char *text = json_dumps(root, JSON_COMPACT);
  FSDP_CHECK(text, "the header of %s cannot be made", config->path);
  json_decref(root);
  *data_bytes = begin;
  return text;
}

// Padded with spaces so that the data begins at a multiple of 64 bytes, or of what is written directly.
static fsdp_status write_header(fsdp_safetensors_writer *w, const char *text, fsdp_error *error) {
  int64_t length = (int64_t)strlen(text);
  w->header_bytes = fsdp_round_up(8 + length, w->block ? BLOCK_ALIGN : 64);
  w->header = fsdp_alloc((size_t)w->header_bytes);
  for (int i = 0; i < 8; i++) w->header[i] = (char)((uint64_t)(w->header_bytes - 8) >> (8 * i));
  memcpy(w->header + 8, text, (size_t)length);
  memset(w->header + 8 + length, ' ', (size_t)(w->header_bytes - 8 - length));
  return write_all(w, w->header, w->header_bytes, error);
}

fsdp_status fsdp_safetensors_writer_create(const fsdp_safetensors_writer_config *config,
                                           fsdp_safetensors_writer **writer, fsdp_error *error) {
  *writer = NULL;
  fsdp_safetensors_writer *w = fsdp_alloc_zeroed(1, sizeof *w);
  w->path = fsdp_strdup(config->path, "a path");
  int length = asprintf(&w->temporary, "%s.tmp-%ld", config->path, (long)getpid());
  FSDP_NEED_MEMORY(length >= 0, "a path");
  char *text = header_text(config, &w->data_bytes);
  open_file(w, config->direct);
  fsdp_status status =
      w->descriptor < 0 ? fsdp_fail_write(w->path, "creating it", error) : write_header(w, text, error);
  free(text);
  if (status)
    fsdp_safetensors_writer_abandon(w);
  else
    *writer = w;
  return status;
}

const void *fsdp_safetensors_writer_header(const fsdp_safetensors_writer *writer, int64_t *bytes) {
  *bytes = writer->header_bytes;
  return writer->header;
}

fsdp_status fsdp_safetensors_writer_append(fsdp_safetensors_writer *writer, const void *data, int64_t bytes,
                                           fsdp_error *error) {
  FSDP_CHECK(bytes >= 0 && bytes <= writer->data_bytes - writer->written_bytes,
             "%lld bytes more than declared for %s",
             (long long)(bytes - (writer->data_bytes - writer->written_bytes)), writer->path);
  fsdp_status status = write_all(writer, data, bytes, error);
  if (!status) writer->written_bytes += bytes;
  return status;
}

// The name is durable once its folder is.
static bool sync_folder_of(const char *path) {
  const char *slash = strrchr(path, '/');
  char *folder = !slash ? strdup(".") : slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
  FSDP_NEED_MEMORY(folder, "a path");
  bool good = fsdp_sync_folder(folder);
  free(folder);
  return good;
}

static void destroy(fsdp_safetensors_writer *w) {
  free(w->header);
  free(w->block);
  free(w->path);
  free(w->temporary);
  free(w);
}

fsdp_status fsdp_safetensors_writer_finish(fsdp_safetensors_writer *writer, fsdp_error *error) {
  fsdp_status status = FSDP_OK;
  FSDP_CHECK(writer->written_bytes == writer->data_bytes, "%s is finished with %lld of %lld bytes",
             writer->path, (long long)writer->written_bytes, (long long)writer->data_bytes);
  status = flush_block(writer, error);
  if (!status && fsync(writer->descriptor))
    status = fsdp_fail_write(writer->path, "making it durable", error);
  if (!status) {
    int closed = close(writer->descriptor);
    writer->descriptor = -1;
    if (closed) status = fsdp_fail_write(writer->path, "closing it", error);
  }
  if (!status && rename(writer->temporary, writer->path))
    status = fsdp_fail_write(writer->path, "renaming it", error);
  if (status) {
    fsdp_safetensors_writer_abandon(writer);
    return status;
  }
  if (!sync_folder_of(writer->path))
    status = fsdp_fail_write(writer->path, "making its folder durable", error);
  destroy(writer);
  return status;
}

void fsdp_safetensors_writer_abandon(fsdp_safetensors_writer *writer) {
  if (!writer) return;
  if (writer->descriptor >= 0) close(writer->descriptor);
  unlink(writer->temporary);
  destroy(writer);
}
