// Which kernels run attention: a decision of the plan, carried by the op's attributes.
//
//   wgmma     warpgroups, on compute capability 9.0 alone: bf16, head dimensions of a multiple of 8 up to 128
//   mma       tensor cores, on every GPU: the same
//   general   everything else, and dropout of probabilities
//
// Rows of q, k and v then start on 16 bytes, as copies by tensor cores need: tensors do, and each head's
// columns are a multiple of 8 elements.
//
// wgmma-unfenced is wgmma without fence.proxy.async in the forward's copying warps, which PTX asks for: to be
// timed beside it, and never planned.
#pragma once

#include "runtime/base/dtype.h"
#include "runtime/base/status.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// On a GPU, from the one that always runs to the one to prefer.
typedef enum fsdp_attention_kernel {
  FSDP_ATTENTION_CPU,                       // a CPU's only one
  FSDP_ATTENTION_AUTO = FSDP_ATTENTION_CPU, // where one is asked for: the best that can run
  FSDP_ATTENTION_GENERAL,
  FSDP_ATTENTION_MMA,
  FSDP_ATTENTION_WGMMA,
  FSDP_ATTENTION_WGMMA_UNFENCED,
  FSDP_ATTENTION_KERNEL_COUNT
} fsdp_attention_kernel;

// What decides between the kernels of a GPU, and how they cut their work. Where a kernel is chosen, both
// numbers are known.
typedef struct fsdp_op_gpu {
  int capability;                  // 90 is 9.0; 0: not known
  int multiprocessors;             // 0: not known
  int gemm_multiprocessors;        // of which products are cut for these; 0: all
  fsdp_attention_kernel attention; // what is asked for
  // Sets of 1u << fsdp_attention_kernel: what the executable does not hold, and what did not match the
  // general kernel on this GPU. The general kernel is in neither. Where attention by wgmma is missing, all
  // kernels by wgmma are: they are built together.
  unsigned attention_missing, attention_distrusted;
  unsigned grouped_distrusted; // of products grouped by expert, the same: of 1u << fsdp_grouped_kernel
} fsdp_op_gpu;

// "cpu", "general", "mma", "wgmma", "wgmma-unfenced"
const char *fsdp_attention_kernel_name(fsdp_attention_kernel kernel);

// The kernel for rows of `dtype` and this head dimension, which `drops` probabilities or not; one that is
// asked for must be allowed.
fsdp_attention_kernel fsdp_attention_kernel_of(const fsdp_op_gpu *gpu, fsdp_dtype dtype, int64_t head_dim,
                                               bool drops);

// FSDP_ERR_OPTION if the kernel that is asked for cannot run, with the reason and what to do.
fsdp_status fsdp_attention_check(const fsdp_op_gpu *gpu, fsdp_dtype dtype, int64_t head_dim, bool drops,
                                 fsdp_error *error);

#ifdef __cplusplus
}
#endif
