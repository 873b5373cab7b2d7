// The memory plan: an address for every tensor in one of two arenas, and what that costs, to the byte.
//
// Valley: bytes live between steps. Peak: the greatest sum of live tensors' bytes over the positions of a
// training step. Arena: what is allocated. Addresses are packed over lifetimes (pack.h), which are extended
// where that saves waits (extend.h): an arena is at most 2% or 64 KiB above the greatest sum of all sections,
// the device's at most 5% where a limit leaves room for it. That sum is the peak but in small models, where
// an evaluation may need more than a step: gathers run far ahead, and the step's activations are offloaded.
#pragma once

#include "runtime/plan/program/program.h"
#include "runtime/plan/program/schedule.h"

// A tensor of 4096 bytes or more lies at a multiple of 64, smaller ones at multiples of 32 (from 2048 bytes)
// or 16. One under 16 bytes lies at a multiple of the least power of two that holds it (at least 4).
// Otherwise the gaps would cost a few percent of the peak in a model of a few kilobytes.
#define FSDP_TENSOR_ALIGN_BYTES       64
#define FSDP_TENSOR_SMALL_ALIGN_BYTES 16

// The share of the greatest sum of live bytes by which the device's arena may exceed it where there is room.
#define FSDP_ARENA_ROOM 0.05

typedef struct fsdp_memory_space_report {
  int64_t valley_bytes, peak_bytes, arena_bytes;
  int64_t greatest_bytes;                        // as peak_bytes, over all sections
  int peak_position;                             // of the first instruction at the peak
  int64_t peak_by_category[FSDP_CATEGORY_COUNT]; // of the bytes live there
  int64_t valley_by_category[FSDP_CATEGORY_COUNT];
} fsdp_memory_space_report;

typedef struct fsdp_memory_report {
  fsdp_memory_space_report space[FSDP_SPACE_COUNT];
} fsdp_memory_report;

// Sets tensors' addresses and the program's arena sizes from their lifetimes (begin, end) and fills the
// report.
void fsdp_memory_plan(fsdp_program *program, const fsdp_memory_limits *limits, fsdp_memory_report *report);

// The same in little time: valley and peak are those of a plan. With `reuse`, addresses are a first attempt,
// and the arena may end far above the peak. Without, every tensor has an address of its own, so that no
// instruction waits for bytes to be given up.
void fsdp_memory_draft(fsdp_program *program, bool reuse, fsdp_memory_report *report);

// The end of an arena as promised for a greatest sum of live bytes: 2% or 64 KiB above it.
int64_t fsdp_memory_promised_bytes(int64_t greatest_bytes);

// Bytes live at every list position; by category: [position * FSDP_CATEGORY_COUNT + category]. The caller
// frees them.
int64_t *fsdp_memory_live(const fsdp_program *program, fsdp_space space, bool by_category);
