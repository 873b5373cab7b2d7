// Weights in the safetensors format (github.com/huggingface/safetensors): reading any range of any tensor as
// fp32 without reading anything else, and writing a file piece by piece.
//
//   N, 8 bytes │ N bytes of JSON: {"name": {"dtype", "shape", "data_offsets": [begin, end]}, ...} │ data
//
// N and the data are little-endian. The data is the tensors' bytes without gaps, row-major; offsets count
// from its start. Opening a file checks its whole header. Refused are a wrong header length, offsets that
// overlap, leave a gap or pass the end, a size that is not shape times dtype, a duplicate name and an unknown
// dtype. A later read can fail only if the disk fails or the file changes.
#pragma once

#include "runtime/base/dtype.h"
#include "runtime/base/status.h"

#include <stdbool.h>

#define FSDP_SAFETENSORS_MAX_DIMS         4
#define FSDP_SAFETENSORS_MAX_HEADER_BYTES 100000000 // the format's own limit

// A tensor as its header describes it.
typedef struct fsdp_safetensors_tensor {
  const char *name;
  fsdp_dtype dtype; // F32, BF16, F16 or I32
  int dims;         // 0 is a scalar
  int64_t shape[FSDP_SAFETENSORS_MAX_DIMS];
  int64_t numel;
  // Filled by opening, not read by the writer.
  int file;            // which of the opened files
  int64_t file_offset; // byte of that file at which the tensor begins
} fsdp_safetensors_tensor;

typedef struct fsdp_safetensors_file {
  char *path;
  int descriptor;
} fsdp_safetensors_file;

// What is opened; others only read it.
typedef struct fsdp_safetensors {
  char *index; // path of the index that named the files; NULL: none
  fsdp_safetensors_file *files;
  fsdp_safetensors_tensor *tensors; // in order of their names
  int file_count, count, capacity;
  _Atomic int64_t bytes_read; // headers included
} fsdp_safetensors;

typedef struct fsdp_safetensors_writer fsdp_safetensors_writer;

// Opens `path`: a .safetensors file, an index (.json), or a folder with model.safetensors or, failing that,
// model.safetensors.index.json and its shards. Reads only the headers. FSDP_ERR_INPUT. The caller closes
// *model.
fsdp_status fsdp_safetensors_open(const char *path, fsdp_safetensors **model, fsdp_error *error);
void fsdp_safetensors_close(fsdp_safetensors *model); // NULL is allowed

// Whether a folder holds weights, including those that fsdp_safetensors_open refuses (shards without their
// index, pytorch_model.bin), so that a model with weights is never taken for one without.
bool fsdp_safetensors_is_present(const char *folder);

// Reads elements [first, first + count) of tensor `index`, in row-major order, converted to fp32 (F32, BF16,
// F16). One pread of just those bytes. May be called by several threads at once. FSDP_ERR_INPUT if the disk
// fails.
fsdp_status fsdp_safetensors_read(fsdp_safetensors *model, int index, int64_t first, int64_t count,
                                  float *out, fsdp_error *error);

// As stored in the file, without conversion: `out` holds count * fsdp_dtype_bytes(dtype) bytes.
fsdp_status fsdp_safetensors_read_raw(fsdp_safetensors *model, int index, int64_t first, int64_t count,
                                      void *out, fsdp_error *error);

// Tensor `index`; the index of the one of that name, or -1; the file that a tensor is in, for messages.
const fsdp_safetensors_tensor *fsdp_safetensors_at(const fsdp_safetensors *model, int index);
int fsdp_safetensors_find(const fsdp_safetensors *model, const char *name);
const char *fsdp_safetensors_path(const fsdp_safetensors *model, int index);

typedef struct fsdp_safetensors_writer_config {
  const char *path;
  const fsdp_safetensors_tensor *tensors; // name, dtype, dims, shape of each, in the order of their bytes
  int tensor_count;
  const char *format; // in the header's metadata; NULL: there are none
  // Bypasses the page cache if the file system can: for large files that are not read soon, written while
  // other work needs the cores and the memory bandwidth.
  bool direct;
} fsdp_safetensors_writer_config;

// Declares the tensors and begins to write `path` under a temporary name beside it. `config` is not kept.
fsdp_status fsdp_safetensors_writer_create(const fsdp_safetensors_writer_config *config,
                                           fsdp_safetensors_writer **writer, fsdp_error *error);
// The file's first bytes, up to its data.
const void *fsdp_safetensors_writer_header(const fsdp_safetensors_writer *writer, int64_t *bytes);
// Appends the data's next bytes, which may span tensors.
fsdp_status fsdp_safetensors_writer_append(fsdp_safetensors_writer *writer, const void *data, int64_t bytes,
                                           fsdp_error *error);
// All bytes must have been appended. Makes the file durable, then renames it, so that `path` is either the
// old file or the whole new one. Destroys the writer in any case.
fsdp_status fsdp_safetensors_writer_finish(fsdp_safetensors_writer *writer, fsdp_error *error);
// Removes what was written and destroys the writer; NULL is allowed.
void fsdp_safetensors_writer_abandon(fsdp_safetensors_writer *writer);

// ---- Between its parts: the header of one file (safetensors_header.c)

// Appends the tensors of the opened file `file` to the model's, in the order of their bytes. Buffers
// (fsdp_model_is_buffer) are left out. FSDP_ERR_INPUT; what was appended until then stays.
fsdp_status fsdp_safetensors_header_read(fsdp_safetensors *model, int file, fsdp_error *error);

// "F32", ... as the format names it.
const char *fsdp_safetensors_dtype_name(fsdp_dtype dtype);
