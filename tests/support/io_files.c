#include "tests/support/io_files.h"

#include "tests/support/unit_test.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[256], before[256]; // `before`: the current folder outside of it

const char *io_folder_make(void) {
  const char *base = getenv("TMPDIR");
  snprintf(folder, sizeof folder, "%s/fsdp-test-XXXXXX", base ? base : "/tmp");
  assert_non_null(mkdtemp(folder));
  return folder;
}

int io_set_up(void **state) {
  (void)state;
  io_folder_make();
  return 0;
}

static int remove_one(const char *path, const struct stat *information, int kind, struct FTW *place) {
  (void)information, (void)kind, (void)place;
  return remove(path);
}

void io_folder_remove(void) {
  nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

int io_tear_down(void **state) {
  (void)state;
  io_folder_remove();
  return 0;
}

const char *io_folder(void) {
  return folder;
}

int io_enter(void **state) {
  io_set_up(state);
  return getcwd(before, sizeof before) ? chdir(folder) : 1;
}

int io_leave(void **state) {
  return chdir(before) || io_tear_down(state);
}

const char *io_path(const char *name) {
  static char paths[8][512];
  static int next;
  char *path = paths[next++ % 8];
  snprintf(path, sizeof paths[0], "%s/%s", folder, name);
  return path;
}

const char *io_write(const char *name, const void *bytes, int64_t count) {
  const char *path = io_path(name);
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  if (count) assert_int_equal(fwrite(bytes, 1, (size_t)count, file), count);
  assert_int_equal(fclose(file), 0);
  return path;
}

const char *io_write_text(const char *name, const char *text) {
  return io_write(name, text, (int64_t)strlen(text));
}

const char *io_write_safetensors(const char *name, const char *header, int64_t length, int64_t data_bytes) {
  int64_t header_bytes = (int64_t)strlen(header), total = 8 + header_bytes + data_bytes;
  uint64_t told = length < 0 ? (uint64_t)header_bytes : (uint64_t)length;
  unsigned char *bytes = calloc(1, (size_t)total);
  assert_non_null(bytes);
  for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)(told >> (8 * i));
  memcpy(bytes + 8, header, (size_t)header_bytes);
  const char *path = io_write(name, bytes, total);
  free(bytes);
  return path;
}

static fsdp_status open_dataset(const char *list, fsdp_dataset_config config, fsdp_dataset **dataset,
                                fsdp_error *error) {
  fsdp_data_paths paths;
  *dataset = NULL;
  memset(error, 0, sizeof *error);
  fsdp_status status = fsdp_data_paths_find("data", list, &paths, error);
  config.files = &paths;
  if (!config.global_batch) config.global_batch = 1;
  if (!status) status = fsdp_dataset_open(&config, dataset, error);
  fsdp_data_paths_destroy(&paths);
  return status;
}

fsdp_dataset *io_dataset(const char *list, fsdp_dataset_config config) {
  fsdp_dataset *dataset;
  fsdp_error error;
  IO_OK(open_dataset(list, config, &dataset, &error), &error);
  return dataset;
}

fsdp_status io_dataset_status(const char *list, fsdp_dataset_config config, fsdp_error *error) {
  fsdp_dataset *dataset;
  fsdp_status status = open_dataset(list, config, &dataset, error);
  fsdp_dataset_close(dataset);
  return status;
}

void io_fill(const fsdp_dataset *dataset, int64_t sample, int32_t *tokens, int32_t *targets) {
  const fsdp_dataset_part whole = {.sample = sample, .count = dataset->seq};
  fsdp_dataset_fill_part(dataset, &whole, tokens, targets);
}

void io_expect(fsdp_status status, fsdp_status wanted, const fsdp_error *error, const char *const *parts) {
  if (status != wanted) fail_msg("status %d instead of %d: %s", status, wanted, error->message);
  for (; *parts; parts++)
    if (!strstr(error->message, *parts)) fail_msg("\"%s\" is not in: %s", *parts, error->message);
}
