// What the verifier finds in a program that is not safe.
#pragma once

#include <stdint.h>

typedef enum fsdp_violation_kind {
  FSDP_VIOLATION_NONE,
  FSDP_VIOLATION_RACE,         // two instructions, not ordered, overlapping bytes
  FSDP_VIOLATION_STALE_READ,   // a byte holds a different tensor's data, or was never written
  FSDP_VIOLATION_OVERLAP,      // two live tensors at one address
  FSDP_VIOLATION_OUT_OF_RANGE, // operand outside its tensor or its tensor's lifetime, tensor outside its
                               // arena, wait on an instruction that does not exist
  FSDP_VIOLATION_OPERANDS,     // a collective's or copy's operands do not fit its group, or each other, or an
                               // op's its row
  FSDP_VIOLATION_COMMUNICATOR, // one communicator used from two streams
  FSDP_VIOLATION_UNPROVED,     // more than 16 ranks, and a read whose offset follows no write's
  FSDP_VIOLATION_KIND_COUNT
} fsdp_violation_kind;

typedef struct fsdp_violation {
  fsdp_violation_kind kind;
  int position, other_position; // the instructions (-1: none)
  int tensor, other_tensor;
  int64_t address; // of the first byte concerned
  char message[512];
} fsdp_violation;
