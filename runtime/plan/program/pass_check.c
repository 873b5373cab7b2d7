// Digests of the state, which replicas compare.
#include "runtime/base/check.h"
#include "runtime/plan/program/make.h"
#include "runtime/plan/program/passes.h"

enum { DIGEST_BYTES = 8 };

// One digest's place among them.
static fsdp_operand digest_slot(const step_builder *s, int digests, int index) {
  fsdp_operand slot = make_whole(s, digests, FSDP_I32, FSDP_WRITE);
  slot.offset.base = (int64_t)DIGEST_BYTES * index;
  slot.size_bytes = DIGEST_BYTES;
  return slot;
}

// Padding is digested with the rest: it is zero from the load on, and updates by zero gradients leave it so.
void pass_check(step_builder *s) {
  bool offload = s->config->cpu_offload;
  int count = 0;
  for (int u = 0; u < s->units->count; u++)
    if (s->units->units[u].shard_numel > 0) count += s->unit_state[u].optimizer->slot_count;
  int digests = make_tensor(s, "check", "digests", step_state_space(s), FSDP_CATEGORY_INPUTS,
                            FSDP_LIVE_SECTION, -1, -1, DIGEST_BYTES * count);
  int next = 0;
  for (int u = 0; u < s->units->count; u++) {
    const fsdp_unit_state *state = &s->unit_state[u];
    for (int i = 0; i < state->optimizer->slot_count && state->slot[i] >= 0; i++) {
      fsdp_operand operands[2] = {make_whole(s, state->slot[i], step_slot_dtype(s, u, i), FSDP_READ),
                                  digest_slot(s, digests, next++)};
      make_op(s, offload ? FSDP_STREAM_HOST : FSDP_STREAM_COMPUTE, FSDP_PLAN_OP_CHECKSUM, NULL, u, operands,
              2);
    }
  }
  FSDP_CHECK(next == count, "%d digests of %d units", next, s->forward_order_count);
  int host = digests;
  if (!offload) {
    host = make_tensor(s, "check", "host_digests", FSDP_SPACE_HOST, FSDP_CATEGORY_INPUTS, FSDP_LIVE_SECTION,
                       -1, -1, DIGEST_BYTES * count);
    make_copy_whole(s, FSDP_INSTR_D2H, digests, host, FSDP_I32);
  }
  fsdp_operand result = make_whole(s, host, FSDP_I32, FSDP_READ);
  make_host_call(s, FSDP_INSTR_DIGESTS, &result, 1);
}
