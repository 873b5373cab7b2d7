// Sections that move the state: a snapshot for a checkpoint, and what a load leaves to the ranks' exchange.
//
//   shard of a unit, R replicas      | slice 0 | slice 1 | ... | slice R-1      |
//   load      each replica reads its slice; what lies behind R equal slices is read by all
//   snapshot  each replica copies as many elements as the last slice has, from its own slice on
#include "runtime/plan/program/make.h"

// The state's part `slot`: its tensor, or -1, and dtype.
static int state_slot(const step_builder *s, int u, int slot, fsdp_dtype *dtype) {
  const fsdp_unit_state *state = &s->unit_state[u];
  const int tensors[FSDP_STATE_SLOTS] = {state->master, state->moment1, state->moment2};
  *dtype = slot == 0 ? s->config->master_dtype : s->config->moment_dtype;
  return tensors[slot];
}

void pass_snapshot(step_builder *s) {
  static const char *const names[FSDP_STATE_SLOTS] = {"snapshot_master", "snapshot_moment1",
                                                      "snapshot_moment2"};
  for (int slot = 0; slot < FSDP_STATE_SLOTS; slot++) {
    for (int u = 0; u < s->units->count; u++) {
      fsdp_dtype dtype;
      int from = state_slot(s, u, slot, &dtype);
      if (from < 0) continue;
      int64_t slice = fsdp_unit_slice(&s->units->units[u]), last = fsdp_unit_last_slice(&s->units->units[u]);
      int to = make_unit_tensor(s, u, names[slot], FSDP_SPACE_HOST,
                                slot == 0 ? FSDP_CATEGORY_PARAMETERS : FSDP_CATEGORY_OPTIMIZER,
                                FSDP_LIVE_ALWAYS, last, dtype);
      make_copy(s, FSDP_INSTR_COPY_DOWN, u, make_slice(s, u, from, dtype, FSDP_READ, slice, last),
                make_whole(s, to, dtype, FSDP_WRITE));
      s->unit_state[u].snapshot[slot] = to;
    }
  }
  make_snapshot_notice(s);
}

// The equal slices of a shard from every replica to every other. Collectives take device memory, so those
// of a shard on the host go through it.
static void exchange_slices(step_builder *s, int u, int tensor, fsdp_dtype dtype) {
  const fsdp_unit *unit = &s->units->units[u];
  int64_t slice = fsdp_unit_slice(unit);
  int64_t numel = slice * unit->replica_count;
  if (unit->replica_count == 1 || slice == 0) return;
  int on_device = tensor;
  if (s->config->cpu_offload) {
    on_device = make_unit_tensor(s, u, "exchanged", FSDP_SPACE_DEVICE, FSDP_CATEGORY_WORKSPACE,
                                 FSDP_LIVE_SECTION, numel, dtype);
    make_copy(s, FSDP_INSTR_COPY_UP, u, make_slice(s, u, tensor, dtype, FSDP_READ, slice, slice),
              make_slice(s, u, on_device, dtype, FSDP_WRITE, slice, slice));
  }
  fsdp_operand all = make_whole(s, on_device, dtype, FSDP_WRITE);
  all.size_bytes = numel * fsdp_dtype_bytes(dtype);
  fsdp_operand operands[2] = {make_slice(s, u, on_device, dtype, FSDP_READ, slice, slice), all};
  make_collective(s, FSDP_INSTR_ALL_GATHER, unit->replica_axes, FSDP_STREAM_REDUCE, u, operands, 2);
  if (on_device == tensor) return;
  all.access = FSDP_READ;
  fsdp_operand back = make_whole(s, tensor, dtype, FSDP_WRITE);
  back.size_bytes = all.size_bytes;
  make_copy(s, FSDP_INSTR_COPY_DOWN, u, all, back);
}

void pass_exchange(step_builder *s) {
  fsdp_stream stream = s->config->cpu_offload ? FSDP_STREAM_HOST : FSDP_STREAM_REDUCE;
  for (int u = 0; u < s->units->count; u++) {
    for (int slot = 0; slot < FSDP_STATE_SLOTS; slot++) {
      fsdp_dtype dtype;
      int tensor = state_slot(s, u, slot, &dtype);
      if (tensor >= 0) exchange_slices(s, u, tensor, dtype);
    }
    const fsdp_unit_state *state = &s->unit_state[u];
    if (state->copy < 0) continue;
    fsdp_operand cast[2] = {make_whole(s, state->master, s->config->master_dtype, FSDP_READ),
                            make_whole(s, state->copy, s->config->param_dtype, FSDP_WRITE)};
    make_op(s, stream, FSDP_OP_CAST, NULL, u, cast, 2);
  }
}
