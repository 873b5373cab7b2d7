// What a run trains on, in words, and why that is not a GPU although there seems to be one.
#pragma once

#include "runtime/device/gpu.h"

// Looks for an NVIDIA GPU without a driver's help, below `root` ("" on a real machine): a device node, or a
// display controller on the PCI bus. Where it was found, into `sign`.
bool fsdp_device_line_find_gpu(const char *root, char *sign, size_t sign_bytes);

// Why the run is on the CPU: `chosen` (NULL: not by the user), what this build lacks, or `failure` (NULL:
// none), which is what GPUs were asked.
void fsdp_device_line_why_cpu(const char *chosen, const char *failure, char *out, size_t out_bytes);

// "cpu, 2 threads a rank; <why>", or the GPU's name and memory.
void fsdp_device_line_print(const fsdp_gpu *gpu, int threads, const char *why_cpu, char *out,
                            size_t out_bytes);
