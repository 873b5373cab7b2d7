// Which kernel makes products grouped by expert: a decision of the plan, carried by the op's attributes.
//
//   wgmma     warpgroups, on compute capability 9.0 alone: bf16, dimensions that are multiples of 8
//   mma       tensor cores, on every GPU: the same
//   general   everything else
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

// On a GPU, from the one that always runs to the one to prefer.
typedef enum fsdp_grouped_kernel {
  FSDP_GROUPED_CPU, // a CPU's only one
  FSDP_GROUPED_GENERAL,
  FSDP_GROUPED_MMA,
  FSDP_GROUPED_WGMMA,
  FSDP_GROUPED_KERNEL_COUNT
} fsdp_grouped_kernel;

// "cpu", "general", "mma", "wgmma"
const char *fsdp_grouped_kernel_name(fsdp_grouped_kernel kernel);

#ifdef __cplusplus
}
#endif
