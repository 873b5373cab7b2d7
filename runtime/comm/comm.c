#include "runtime/comm/comm.h"

#include "runtime/base/check.h"

#include <string.h>

void fsdp_all_gather_report(const fsdp_comm *comm, const fsdp_collective *call) {
  int64_t slot = call->numel * fsdp_dtype_bytes(call->dtype);
  fsdp_access_report(call->recorder, call->input, slot, FSDP_READ);
  for (int r = 0; r < comm->size; r++) {
    const char *place = (const char *)call->output + r * slot;
    if (place != call->input) fsdp_access_report(call->recorder, place, slot, FSDP_WRITE);
  }
}

void fsdp_reduce_scatter_report(const fsdp_comm *comm, const fsdp_collective *call) {
  int64_t slot = call->numel * fsdp_dtype_bytes(call->dtype);
  fsdp_access_report(call->recorder, call->input, comm->size * slot, FSDP_READ);
  fsdp_access_report(call->recorder, call->output, slot, FSDP_WRITE);
}

void fsdp_all_reduce_report(const fsdp_collective *call) {
  fsdp_access_report(call->recorder, call->output, call->numel * fsdp_dtype_bytes(call->dtype), FSDP_UPDATE);
}

typedef struct self_comm {
  fsdp_comm base;
  void (*copy)(const fsdp_collective *call, int64_t bytes);
} self_comm;

static void copy_at_once(const fsdp_collective *call, int64_t bytes) {
  memcpy(call->output, call->input, (size_t)bytes);
}

static void self_move(fsdp_comm *comm, const fsdp_collective *call) {
  int64_t bytes = call->numel * fsdp_dtype_bytes(call->dtype);
  fsdp_access_report(call->recorder, call->input, bytes, FSDP_READ);
  if (call->output == call->input) return;
  ((self_comm *)comm)->copy(call, bytes);
  fsdp_access_report(call->recorder, call->output, bytes, FSDP_WRITE);
}

static void self_all_reduce(fsdp_comm *comm, const fsdp_collective *call) {
  (void)comm;
  fsdp_all_reduce_report(call);
}

static void self_destroy(fsdp_comm *comm) {
  free(comm);
}

fsdp_comm *fsdp_comm_self_with(void (*copy)(const fsdp_collective *call, int64_t bytes)) {
  static const fsdp_comm_table table = {"self", self_move, self_move, self_all_reduce, self_destroy};
  self_comm *comm = fsdp_alloc_zeroed(1, sizeof *comm);
  *comm = (self_comm){.base = {.table = &table, .rank = 0, .size = 1}, .copy = copy};
  return &comm->base;
}

fsdp_comm *fsdp_comm_self(void) {
  return fsdp_comm_self_with(copy_at_once);
}

void fsdp_comm_destroy(fsdp_comm *comm) {
  if (comm) comm->table->destroy(comm);
}

void fsdp_comms_destroy(fsdp_comms *comms) {
  for (int c = 0; c < comms->count; c++) fsdp_comm_destroy(comms->comm[c]);
}
