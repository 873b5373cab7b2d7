#include "runtime/plan/program/passes.h"

#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/plan/program/make.h"
#include "runtime/plan/program/schedule.h"

#include <stdlib.h>

const char *fsdp_strategy_name(fsdp_strategy strategy) {
  static const char *const names[] = {"full", "grad_op", "no", "hybrid", "zero1"};
  return names[strategy];
}

// The most micro-batches that are summed in bf16, which has 8 bits: the last of 256 equal ones would no
// longer change the sum.
#define BF16_SUMS_MAX 128

// Whether micro-batches are summed in bf16. The sum must be the whole gradient (one rank in the shard group,
// no offload), which in fp32 would be the largest state of all. And the user must have asked for bf16 in
// everything that is made from it. Each micro-batch rounds the sum once, as a rank does in a bf16 reduction.
static bool sums_in_bf16(const fsdp_plan_config *c, const step_modes *modes) {
  return modes->direct_grads && c->micro_batches <= BF16_SUMS_MAX && c->reduce_dtype == FSDP_BF16 &&
         c->master_dtype == FSDP_BF16 && c->moment_dtype == FSDP_BF16;
}

static step_modes choose_modes(const fsdp_plan_config *c, const fsdp_units *units) {
  bool accumulates = c->micro_batches > 1, local = c->accumulate == FSDP_ACCUMULATE_LOCAL;
  step_modes m = {0};
  bool unsharded = true;
  for (int u = 0; u < units->count; u++) unsharded = unsharded && units->units[u].shard_count == 1;
  m.keeps_gathered = c->strategy == FSDP_GRAD_OP || c->strategy == FSDP_NO;
  m.direct_grads = unsharded && !c->cpu_offload;
  m.carries_grads = accumulates && (local || m.direct_grads);
  bool sums_in_shard = accumulates && (m.direct_grads || !local);
  m.shard_dtype = sums_in_shard && !sums_in_bf16(c, &m) ? FSDP_F32 : c->reduce_dtype;
  m.grad_dtype = m.direct_grads ? m.shard_dtype : m.carries_grads ? FSDP_F32 : c->reduce_dtype;
  return m;
}

static void make_state_tensors(step_builder *s) {
  const fsdp_plan_config *c = s->config;
  fsdp_space space = step_state_space(s);
  for (int u = 0; u < s->units->count; u++) {
    fsdp_unit_state *state = &s->unit_state[u];
    *state = (fsdp_unit_state){.optimizer = fsdp_optimizer_of(c->optimizer, &s->units->units[u]),
                               .copy = -1,
                               .whole = -1,
                               .grad_shard = -1};
    for (int i = 0; i < FSDP_SLOTS_MAX; i++) state->slot[i] = state->snapshot[i] = -1;
    int64_t numel = s->units->units[u].shard_numel;
    if (!numel) continue;
    for (int i = 0; i < state->optimizer->slot_count; i++) {
      const fsdp_slot *slot = &state->optimizer->slots[i];
      state->slot[i] = make_unit_tensor(s, u, slot->name, space, slot->category, FSDP_LIVE_ALWAYS, numel,
                                        step_slot_dtype(s, u, i));
    }
    bool keeps_whole = c->strategy == FSDP_ZERO1 && !step_holds_all(s, u);
    bool reads_copy = !keeps_whole && (c->cpu_offload || step_keeps_parameters(c));
    if (reads_copy && c->param_dtype != c->master_dtype)
      state->copy = make_unit_tensor(s, u, "copy", space, FSDP_CATEGORY_PARAMETERS, FSDP_LIVE_ALWAYS, numel,
                                     c->param_dtype);
    if (keeps_whole)
      state->whole = make_unit_tensor(s, u, "whole", FSDP_SPACE_DEVICE, FSDP_CATEGORY_PARAMETERS,
                                      FSDP_LIVE_ALWAYS, s->units->units[u].padded_numel, c->param_dtype);
  }
}

static void note_forward_use(step_builder *s, int value) {
  const fsdp_value *v = &s->graph->values[value];
  if (v->role != FSDP_VALUE_PARAM) return;
  int unit = s->units->unit_of_param[v->param];
  for (int i = 0; i < s->forward_order_count; i++)
    if (s->forward_order[i] == unit) return;
  s->forward_order[s->forward_order_count++] = unit;
}

// The units in the order of the next forward, in which updates run; every unit with parameters is in it.
static void find_forward_order(step_builder *s) {
  for (int i = 0; i < s->graph->forward_count; i++) {
    const fsdp_node *node = &s->graph->forward[i];
    for (int o = 0; o < node->operand_count; o++) note_forward_use(s, node->operands[o].value);
    for (int w = 0; w < node->weight_count; w++) note_forward_use(s, node->weights[w]);
    for (int b = 0; b < node->bias_count; b++) note_forward_use(s, node->biases[b]);
  }
}

static void check_list(const step_builder *s, unsigned named, const char *pass) {
  fsdp_nodes_check(&s->nodes, s->program, s->units->count, named, pass);
}

// The node list as instructions of a section.
static void emit(step_builder *s, fsdp_section_kind kind) {
  fsdp_program_begin_section(s->program, kind);
  int last_compute = -1; // position
  for (int n = s->nodes.first; n != FSDP_NO_NODE; n = s->nodes.nodes[n].next) {
    fsdp_list_node *node = &s->nodes.nodes[n];
    node->instr.policy = node->is_bounded ? last_compute : -1;
    int position = fsdp_program_instr(s->program, &node->instr, node->operands, node->operand_count);
    if (node->instr.stream == FSDP_STREAM_COMPUTE) last_compute = position;
  }
  fsdp_program_end_section(s->program);
}

// One micro-batch's forward (and backward).
static void make_batch(step_builder *s, fsdp_section_kind kind) {
  s->is_training = kind != FSDP_SECTION_EVALUATION && !s->config->evaluation_only;
  s->is_first = kind != FSDP_SECTION_MIDDLE && kind != FSDP_SECTION_LAST;
  s->is_last = kind == FSDP_SECTION_ONLY || kind == FSDP_SECTION_LAST;
  fsdp_nodes_clear(&s->nodes);
  if (s->is_first) pass_step_inputs(s);
  pass_batch_inputs(s);
  pass_lower(s);
  check_list(s, FSDP_NAMED_WEIGHTS | FSDP_NAMED_GRADIENTS, "lower");
  pass_join(s);
  fsdp_nodes_check_origins(&s->nodes);
  pass_overlap(s);
  pass_recompute(s);
  pass_offload(s);
  check_list(s, FSDP_NAMED_WEIGHTS | FSDP_NAMED_GRADIENTS, "offload");
  pass_workspaces(s);
  pass_gathers(s);
  check_list(s, FSDP_NAMED_GRADIENTS, "gathers");
  pass_gradients(s);
  if (!s->is_training) pass_evaluation_result(s);
  check_list(s, 0, "gradients");
  emit(s, kind);
}

// A section without a micro-batch.
static void make_section(step_builder *s, fsdp_section_kind kind, void (*pass)(step_builder *)) {
  fsdp_nodes_clear(&s->nodes);
  pass(s);
  check_list(s, 0, fsdp_section_name(kind));
  emit(s, kind);
}

// Whether a load leaves anything to do: replicas load slices, there are low-precision copies, or parameters
// are kept whole, of which a rank loads its shard alone.
static bool has_exchange(const step_builder *s) {
  bool exchanges = s->config->exchange && fsdp_units_have_replicas(s->units);
  for (int u = 0; u < s->units->count; u++)
    exchanges |= s->unit_state[u].whole >= 0 || (s->config->exchange && s->unit_state[u].copy >= 0);
  return exchanges;
}

static void make_sections(step_builder *s) {
  int micro_batches = s->config->micro_batches;
  make_batch(s, micro_batches > 1 ? FSDP_SECTION_FIRST : FSDP_SECTION_ONLY);
  if (micro_batches > 2) make_batch(s, FSDP_SECTION_MIDDLE);
  if (micro_batches > 1) make_batch(s, FSDP_SECTION_LAST);
  if (!s->config->evaluation_only) make_section(s, FSDP_SECTION_UPDATE, pass_update);
  if (s->config->evaluation) make_batch(s, FSDP_SECTION_EVALUATION);
  if (s->config->check && fsdp_units_have_replicas(s->units)) make_section(s, FSDP_SECTION_CHECK, pass_check);
  if (s->config->snapshot) make_section(s, FSDP_SECTION_SNAPSHOT, pass_snapshot);
  if (has_exchange(s)) make_section(s, FSDP_SECTION_EXCHANGE, pass_exchange);
}

static int *units_without(int count) {
  int *tensors = fsdp_alloc((size_t)count * sizeof *tensors);
  for (int u = 0; u < count; u++) tensors[u] = -1;
  return tensors;
}

fsdp_program *fsdp_schedule(const fsdp_plan_config *config, const fsdp_fate *fates, const fsdp_graph *graph,
                            const fsdp_units *units, fsdp_unit_state **unit_state) {
  const int64_t scratch = config->backend->gemm_workspace_bytes;
  int unit_count = units->count;
  step_builder s = {.config = config,
                    .fates = fates,
                    .graph = graph,
                    .units = units,
                    .program = fsdp_program_create(),
                    .unit_state = fsdp_alloc_zeroed((size_t)unit_count, sizeof(fsdp_unit_state)),
                    .modes = choose_modes(config, units),
                    .forward_order = fsdp_alloc_zeroed((size_t)unit_count, sizeof(int)),
                    .gathered = units_without(unit_count),
                    .gradient = units_without(unit_count)};
  // About twice as many nodes as the graph has, and a few a unit, become a micro-batch's instructions.
  const int nodes = 2 * (graph->forward_count + graph->backward_count) + 8 * unit_count;
  fsdp_nodes_reserve(&s.nodes, nodes);
  fsdp_program_reserve(s.program, nodes * (int)fsdp_min_i64(config->micro_batches, 3));
  s.program->mesh = units->mesh;
  s.program->micro_batches = config->micro_batches;
  find_forward_order(&s);
  make_state_tensors(&s);
  if (scratch > 0)
    s.program->gemm_workspace = make_tensor(&s, "", "gemm_workspace", FSDP_SPACE_DEVICE,
                                            FSDP_CATEGORY_WORKSPACE, FSDP_LIVE_ALWAYS, -1, -1, scratch);
  make_sections(&s);
  fsdp_nodes_release(&s.nodes);
  free(s.forward_order);
  free(s.fate);
  free(s.gathered);
  free(s.gradient);
  *unit_state = s.unit_state;
  return s.program;
}
