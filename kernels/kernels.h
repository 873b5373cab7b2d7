// One table of ops per device: its kernel of each row of models/graph/ops.def.
//
// A kernel receives its operands resolved to addresses, in the order of its row, and works on the stream it
// is given (CPU: the calling thread plus the pool's; CUDA: call->stream). It allocates nothing, waits for
// nothing, and accesses nothing outside its operands. Under an access trace it reports each byte range that
// it really reads or writes (runtime/base/access.h). The trace checks those ranges against the program.
#pragma once

#include "kernels/products.h"
#include "models/graph/op.h"
#include "runtime/base/access.h"
#include "runtime/base/dtype.h"
#include "runtime/base/status.h"

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fsdp_view {
  void *data;
  int64_t numel; // elements in the range; for the column slice of a matrix, those of the whole matrix
  fsdp_dtype dtype;
  fsdp_access access; // FSDP_READ, FSDP_WRITE (overwrite) or FSDP_UPDATE (accumulate, in place)
} fsdp_view;

// Elements of a run in rows, at most.
#define FSDP_ROUNDING_ROWS_NUMEL UINT32_MAX

// A run of one parameter's elements inside a flat shard, for what an update does by parameter: stochastic
// rounding draws by name and element index, and some parameters do not decay. In rows it is what a rank has
// of a matrix that is cut by columns.
typedef struct fsdp_param_run {
  int64_t shard_offset;   // first element in the shard
  int64_t numel;          // elements of the run
  int64_t element_index;  // index, in the parameter, of the run's first element
  uint64_t random_stream; // fsdp_random_stream(parameter name)
  int64_t row_numel;      // elements that are neighbours in the parameter too; 0: all of them
  int64_t row_step;       // in the parameter, from one row's first element to the next one's
  bool undecayed;         // attrs->decays_some: no weight decay here
} fsdp_param_run;

// Elements [first, first + numel) of a parameter's initialisation: mean + deviation * the stream's normals,
// and zero for those in [zero_first, zero_first + zero_numel).
typedef struct fsdp_drawing {
  uint64_t seed, stream; // fsdp_random_stream(parameter name)
  int64_t first, numel, zero_first, zero_numel;
  float mean, deviation;
} fsdp_drawing;

typedef struct fsdp_pool fsdp_pool; // runtime/device/pool.h

typedef struct fsdp_kernel_call {
  fsdp_op_kind kind;
  const fsdp_op_attrs *attrs;
  const fsdp_view *operands;
  int operand_count;
  const fsdp_param_run *segments; // FSDP_OP_ADAMW with a bf16 state or decays_some; else NULL
  int segment_count;
  uint64_t seed;                  // of stochastic rounding
  fsdp_pool *pool;                // CPU: threads to use; never NULL there
  fsdp_access_recorder *recorder; // NULL unless this run is traced
  void *stream;                   // CUDA stream; NULL on the CPU
  bool prepares;                  // CUDA: load its kernels and note its products; launch nothing
} fsdp_kernel_call;

typedef void (*fsdp_kernel)(const fsdp_kernel_call *call);

// kernels[kind]; NULL where fsdp_op_runs_on says that the device has none.
typedef struct fsdp_kernel_table {
  const char *device;
  fsdp_kernel kernels[FSDP_OP_KIND_COUNT];
} fsdp_kernel_table;

// The kernels of a device with its own queues, and the calls that its launcher must make.
typedef struct fsdp_kernel_backend {
  const fsdp_kernel_table *table;
  // Loads the libraries that only this device needs; `open` does it too, and aborts if it fails.
  // FSDP_ERR_PEER, with a remedy, if the machine lacks one.
  fsdp_status (*load)(fsdp_error *error);
  // The kernels of attention that this build holds: a set of 1u << fsdp_attention_kernel.
  unsigned (*attention_kernels)(void);
  // Call order: open before the first launch, once the operands are known (`workspace`: the planned scratch
  // of the gemms, or NULL); prepare for every call that the program will make; choose the algorithms of the
  // products noted meanwhile (runtime/exec/product_choice.h), before memory is filled; close when the streams
  // are idle.
  void (*open)(void *workspace);
  void (*prepare)(const fsdp_kernel_call *call);
  const fsdp_product_library *products;
  void (*close)(void);
  // Writes new weights, as fsdp_random_normal draws them, to `out`; enqueues on `stream`.
  void (*draw)(const fsdp_drawing *drawing, void *out, fsdp_dtype dtype, void *stream);
  // The error of loading a kernel on the current device; 0 if it can run there.
  int (*probe)(void);
} fsdp_kernel_backend;

// The CUDA device's; NULL in a build without CUDA.
const fsdp_kernel_backend *fsdp_cuda_backend(void);

// The CPU's, at the best instruction set level of this core.
const fsdp_kernel_table *fsdp_cpu_kernels(void);

#ifdef __cplusplus
}
#endif
