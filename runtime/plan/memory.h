// The memory plan: every tensor an address in one of two arenas, and what that costs, to the byte.
//
// Valley: bytes live between steps. Peak: the greatest sum of live tensors' bytes over list positions. Arena: what is
// allocated; addresses by best fit over lifetimes, at most 2% above the peak for the device.
#pragma once

#include "runtime/plan/program.h"

#define FSDP_TENSOR_ALIGN_BYTES 64

typedef struct fsdp_memory_space_report {
  int64_t valley_bytes, peak_bytes, arena_bytes;
  int peak_position;                                       // of the first instruction at the peak
  int64_t peak_by_category[FSDP_CATEGORY_COUNT];           // of the bytes live there
  int64_t valley_by_category[FSDP_CATEGORY_COUNT];
} fsdp_memory_space_report;

typedef struct fsdp_memory_report {
  fsdp_memory_space_report space[FSDP_SPACE_COUNT];
} fsdp_memory_report;

// Sets tensors' addresses and the program's arena sizes from their lifetimes (begin, end) and fills the report.
void fsdp_memory_plan(fsdp_program *program, fsdp_memory_report *report);

// Bytes live at every list position, by category: out[position * FSDP_CATEGORY_COUNT + category]; out has
// instr_count * FSDP_CATEGORY_COUNT entries.
void fsdp_memory_timeline(const fsdp_program *program, fsdp_space space, int64_t *out);
