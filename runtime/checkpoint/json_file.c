#include "runtime/checkpoint/json_file.h"

#include "runtime/base/check.h"
#include "runtime/base/descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// Larger than any real one; a larger file is something else.
#define BYTES_MAX ((int64_t)256 << 20)

static fsdp_status parse(const fsdp_json_file *file, const char *text, int64_t bytes, json_t **root,
                         fsdp_error *error) {
  json_error_t place;
  *root = json_loadb(text, (size_t)bytes, JSON_REJECT_DUPLICATES, &place);
  if (*root) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_INPUT, "%s:%d:%d: not valid JSON: %s; %s", file->path, place.line,
                   place.column, place.text, file->damaged);
}

static fsdp_status read_opened(const fsdp_json_file *file, int descriptor, json_t **root, fsdp_error *error) {
  struct stat information;
  if (fstat(descriptor, &information) != 0)
    return fsdp_fail(error, FSDP_ERR_INPUT, "%s: cannot be read (%s); %s", file->path, strerror(errno),
                     file->missing);
  if (!S_ISREG(information.st_mode))
    return fsdp_fail(error, FSDP_ERR_INPUT, "%s: is %s; %s", file->path,
                     S_ISDIR(information.st_mode) ? "a folder, not a file" : "not a regular file",
                     file->missing);
  if (information.st_size > BYTES_MAX)
    return fsdp_fail(error, FSDP_ERR_INPUT, "%s: has more than 256 MiB; %s", file->path, file->damaged);
  int64_t bytes;
  char *text = fsdp_read_rest(descriptor, BYTES_MAX, &bytes);
  fsdp_status status = text ? parse(file, text, bytes, root, error)
                            : fsdp_fail(error, FSDP_ERR_INPUT, "%s: reading it failed (%s); %s", file->path,
                                        strerror(errno), file->damaged);
  free(text);
  return status;
}

fsdp_status fsdp_json_file_read(const fsdp_json_file *file, json_t **root, fsdp_error *error) {
  *root = NULL;
  int descriptor = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0)
    return fsdp_fail(error, FSDP_ERR_INPUT, "%s: cannot be opened (%s); %s", file->path, strerror(errno),
                     fsdp_read_remedy(errno, file->missing));
  fsdp_status status = read_opened(file, descriptor, root, error);
  close(descriptor);
  return status;
}

fsdp_status fsdp_config_read(const char *path, fsdp_model_config *config, fsdp_error *error) {
  FSDP_CHECK(path && config, "no path or no place for the configuration");
  const fsdp_json_file file = {.path = path,
                               .missing = "--model takes a preset's name or a folder with config.json",
                               .damaged = "correct it there or copy it again"};
  json_t *root;
  fsdp_status status = fsdp_json_file_read(&file, &root, error);
  if (status == FSDP_OK && !json_is_object(root))
    status = fsdp_fail(error, FSDP_ERR_INPUT, "%s: not a JSON object; a model's config.json is one", path);
  else if (status == FSDP_OK)
    status = fsdp_model_read(root, path, config, error);
  json_decref(root);
  return status;
}
