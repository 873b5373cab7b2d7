// The tensors that begin, or end, at each position of the list.
#pragma once

#include "runtime/plan/program/program.h"

typedef struct fsdp_boundary {
  int *first; // by position: a tensor, -1: none
  int *next;  // by tensor: another one of its position, -1: none
} fsdp_boundary;

// Of every tensor that lives, in ascending order.
fsdp_boundary fsdp_boundary_create(const fsdp_program *program, bool of_ends);
void fsdp_boundary_destroy(fsdp_boundary *boundary);
