// Sections that move the state: a snapshot for a checkpoint, and what a load leaves to the ranks' exchange.
//
//   shard of a unit, R replicas      | slice 0 | slice 1 | ... | slice R-1      |
//   load      each replica reads its slice; what lies behind R equal slices is read by all
//   snapshot  each replica copies as many elements as the last slice has, starting at its own slice
#include "runtime/plan/program/make.h"
#include "runtime/plan/program/passes.h"

#include <stdio.h>

void pass_snapshot(step_builder *s) {
  for (int slot = 0; slot < FSDP_SLOTS_MAX; slot++) {
    for (int u = 0; u < s->units->count; u++) {
      const fsdp_slot *kept = &s->unit_state[u].optimizer->slots[slot];
      int from = s->unit_state[u].slot[slot];
      if (from < 0) continue;
      char name[FSDP_NAME_BYTES];
      snprintf(name, sizeof name, "snapshot_%s", kept->name);
      fsdp_dtype dtype = step_slot_dtype(s, u, slot);
      const int64_t last = fsdp_unit_last_slice(&s->units->units[u]);
      int to = make_unit_tensor(s, u, name, FSDP_SPACE_HOST, kept->category, FSDP_LIVE_ALWAYS, last, dtype);
      int copy = make_copy(s, FSDP_INSTR_D2H, u, make_slice(s, u, from, dtype, FSDP_READ, last),
                           make_whole(s, to, dtype, FSDP_WRITE));
      s->nodes.nodes[copy].instr.stream = FSDP_STREAM_SNAPSHOT;
      s->unit_state[u].snapshot[slot] = to;
    }
  }
  fsdp_instr *notice = &s->nodes.nodes[make_host_call(s, FSDP_INSTR_SNAPSHOT, NULL, 0)].instr;
  notice->stream = FSDP_STREAM_SNAPSHOT; // behind the copies
  notice->comm = -1;
}

// The equal slices of a shard from every replica to every other. Collectives require device memory, so slices
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
    make_copy(s, FSDP_INSTR_H2D, u, make_slice(s, u, tensor, dtype, FSDP_READ, slice),
              make_slice(s, u, on_device, dtype, FSDP_WRITE, slice));
  }
  fsdp_operand all = make_whole(s, on_device, dtype, FSDP_WRITE);
  all.size_bytes = numel * fsdp_dtype_bytes(dtype);
  fsdp_operand operands[2] = {make_slice(s, u, on_device, dtype, FSDP_READ, slice), all};
  make_collective(s, FSDP_INSTR_ALL_GATHER, unit->replica_axes, FSDP_STREAM_REDUCE, u, operands);
  if (on_device == tensor) return;
  all.access = FSDP_READ;
  fsdp_operand back = make_whole(s, tensor, dtype, FSDP_WRITE);
  back.size_bytes = all.size_bytes;
  make_copy(s, FSDP_INSTR_D2H, u, all, back);
}

// The shard in param dtype, where the state lies.
static void cast_master(step_builder *s, int u, int to) {
  make_move(s, s->config->cpu_offload ? FSDP_STREAM_HOST : FSDP_STREAM_SHARD, u,
            make_whole(s, s->unit_state[u].slot[FSDP_SLOT_MASTER], s->config->master_dtype, FSDP_READ),
            make_whole(s, to, s->config->param_dtype, FSDP_WRITE));
}

// A step that is skipped leaves the master as it is, and with it what comes here: the cast is no part of the
// update.
void step_raise_slot(step_builder *s, int u) {
  fsdp_dtype dtype = s->config->param_dtype;
  int from = s->unit_state[u].slot[FSDP_SLOT_MASTER];
  if (dtype != s->config->master_dtype) {
    from = make_unit_tensor(s, u, "staged", FSDP_SPACE_HOST, FSDP_CATEGORY_PARAMETERS, FSDP_LIVE_SECTION,
                            s->units->units[u].shard_numel, dtype);
    cast_master(s, u, from);
  }
  make_copy(s, FSDP_INSTR_H2D, u, make_whole(s, from, dtype, FSDP_READ),
            make_own_slot(s, u, s->unit_state[u].whole, dtype, FSDP_WRITE));
}

// What replicas have loaded by slices, and then the copy.
static void exchange_unit(step_builder *s, int u) {
  const fsdp_unit_state *state = &s->unit_state[u];
  for (int slot = 0; slot < state->optimizer->slot_count; slot++)
    exchange_slices(s, u, state->slot[slot], step_slot_dtype(s, u, slot));
  if (state->copy >= 0) cast_master(s, u, state->copy);
}

void pass_exchange(step_builder *s) {
  for (int i = 0; i < s->forward_order_count; i++) {
    int u = s->forward_order[i];
    if (s->config->exchange) exchange_unit(s, u);
    if (s->unit_state[u].whole < 0) continue;
    if (s->config->cpu_offload) step_raise_slot(s, u);
    step_gather_shards(s, u, s->unit_state[u].whole, s->config->cpu_offload);
  }
}
