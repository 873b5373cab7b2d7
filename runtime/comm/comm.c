#include "runtime/comm/comm.h"

#include "runtime/base/check.h"

#include <string.h>

// A slot that is gathered where it lies is not written.
static void report(const fsdp_comm *comm, const fsdp_collective_row *row, const fsdp_collective *call) {
  const int64_t bytes = call->numel * fsdp_dtype_bytes(call->dtype);
  const bool in_place = row->meets == FSDP_MEETS_SAME;
  const int inputs = row->input > row->output ? comm->size : 1;
  const int outputs = row->output > row->input ? comm->size : 1;
  if (!in_place) fsdp_access_report(call->recorder, call->input, inputs * bytes, FSDP_READ);
  for (int r = 0; r < outputs; r++) {
    const char *place = (const char *)call->output + r * bytes;
    if (row->meets == FSDP_MEETS_OWN_SLOT && place == call->input) continue;
    fsdp_access_report(call->recorder, place, bytes, in_place ? FSDP_UPDATE : FSDP_WRITE);
  }
}

void fsdp_comm_run(fsdp_comm *comm, fsdp_collective_kind kind, const fsdp_collective *call) {
  FSDP_CHECK((unsigned)kind < FSDP_COLLECTIVE_COUNT && comm->table->run[kind],
             "communicator %s has no collective %d", comm->table->name, (int)kind);
  comm->table->run[kind](comm, call);
  if (call->recorder) report(comm, &fsdp_collective_rows[kind], call);
}

typedef struct self_comm {
  fsdp_comm base;
  void (*copy)(const fsdp_collective *call, int64_t bytes);
} self_comm;

static void copy_at_once(const fsdp_collective *call, int64_t bytes) {
  memcpy(call->output, call->input, (size_t)bytes);
}

static void self_move(fsdp_comm *comm, const fsdp_collective *call) {
  if (call->output != call->input)
    ((self_comm *)comm)->copy(call, call->numel * fsdp_dtype_bytes(call->dtype));
}

static void self_stay(fsdp_comm *comm, const fsdp_collective *call) {
  (void)comm, (void)call;
}

static void self_destroy(fsdp_comm *comm) {
  free(comm);
}

fsdp_comm *fsdp_comm_self_with(void (*copy)(const fsdp_collective *call, int64_t bytes)) {
  static const fsdp_comm_table table = {
      .name = "self",
      .run =
          {[FSDP_ALL_GATHER] = self_move, [FSDP_REDUCE_SCATTER] = self_move, [FSDP_ALL_REDUCE] = self_stay},
      .destroy = self_destroy};
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
