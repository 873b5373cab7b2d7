// Shared by tests of files: a temporary folder, files with given bytes, and checks of messages.
#pragma once

#include "runtime/base/status.h"
#include "runtime/data/dataset.h"

#include <stdint.h>

// A new empty folder, and its removal with all that is in it. One at a time.
const char *io_folder_make(void);
void io_folder_remove(void);

// The same around a test, or around all of a program: run_all_tests(io_set_up, io_tear_down).
int io_set_up(void **state);
int io_tear_down(void **state);
#define TEST_WITH_FOLDER(name) TEST_WITH(name, io_set_up, io_tear_down)

// That folder, which is the current one in tests of TEST_IN_FOLDER.
const char *io_folder(void);
int io_enter(void **state);
int io_leave(void **state);
#define TEST_IN_FOLDER(name) TEST_WITH(name, io_enter, io_leave)

// The path of `name` in that folder, in one of eight buffers used in rotation.
const char *io_path(const char *name);

// Writes a file of these bytes, or of this text, into the folder; returns its path.
const char *io_write(const char *name, const void *bytes, int64_t count);
const char *io_write_text(const char *name, const char *text);

// Writes a safetensors file: the header's length as `length` says (-1: as it is), the header, zeros as data.
const char *io_write_safetensors(const char *name, const char *header, int64_t length, int64_t data_bytes);

// A data set as `config` says (with a global batch of 1 if it has none) of the files that `list` names
// (data_paths.h; NULL: the built-in text). The test fails if it is refused.
fsdp_dataset *io_dataset(const char *list, fsdp_dataset_config config);
// What opening such a data set returns. It is closed again.
fsdp_status io_dataset_status(const char *list, fsdp_dataset_config config, fsdp_error *error);

// All positions of a sample (fsdp_dataset_fill_part).
void io_fill(const fsdp_dataset *dataset, int64_t sample, int32_t *tokens, int32_t *targets);

// Fails the test unless `status` is `wanted` and the message contains all of the strings (NULL ends them).
void io_expect(fsdp_status status, fsdp_status wanted, const fsdp_error *error, const char *const *parts);
#define IO_EXPECT(status, wanted, error, ...)                                                                \
  io_expect(status, wanted, error, (const char *const[]){__VA_ARGS__, NULL})
#define IO_OK(status, error) io_expect(status, FSDP_OK, error, (const char *const[]){NULL})
