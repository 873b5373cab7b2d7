#include "runtime/plan/program/schedule_internal.h"

#include "runtime/base/check.h"
#include "runtime/base/size.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- small makers

int schedule_tensor(scheduler *s, const char *owner, const char *what, fsdp_space space,
                    fsdp_category category, fsdp_lifetime lifetime, int unit, int module, int64_t bytes) {
  fsdp_tensor tensor = {.space = space,
                        .category = category,
                        .lifetime = lifetime,
                        .unit = unit,
                        .module = module,
                        .bytes = bytes};
  int length = snprintf(tensor.name, sizeof tensor.name, "%s%s%s", owner, owner[0] ? "." : "", what);
  FSDP_CHECK(length < FSDP_NAME_BYTES, "tensor name '%s' is cut", tensor.name);
  return fsdp_program_tensor(s->program, &tensor);
}

fsdp_operand schedule_whole(const scheduler *s, int tensor, fsdp_dtype dtype, fsdp_access access) {
  return (fsdp_operand){
      .tensor = tensor, .dtype = dtype, .access = access, .size_bytes = s->program->tensors[tensor].bytes};
}

int schedule_op(scheduler *s, fsdp_stream stream, fsdp_op_kind op, const fsdp_op_attrs *attrs, int unit,
                int module, const fsdp_operand *operands, int operand_count) {
  fsdp_instr instr = {
      .kind = FSDP_INSTR_OP, .stream = stream, .op = op, .unit = unit, .module = module, .policy = -1};
  if (attrs) instr.attrs = *attrs;
  int position = fsdp_program_instr(s->program, &instr, operands, operand_count);
  if (stream == FSDP_STREAM_COMPUTE) s->last_compute = position;
  return position;
}

int schedule_move(scheduler *s, fsdp_instr_kind kind, int unit, fsdp_operand from, fsdp_operand to) {
  fsdp_instr instr = {.kind = kind,
                      .stream = kind == FSDP_INSTR_COPY_UP ? FSDP_STREAM_COPY_UP : FSDP_STREAM_COPY_DOWN,
                      .unit = unit,
                      .module = -1,
                      .policy = -1};
  from.access = FSDP_READ;
  to.access = FSDP_WRITE;
  return fsdp_program_instr(s->program, &instr, (fsdp_operand[]){from, to}, 2);
}

int schedule_collective(scheduler *s, fsdp_instr_kind kind, fsdp_group group, int unit,
                        const fsdp_operand *operands, int operand_count) {
  fsdp_instr instr = {.kind = kind,
                      .stream = group == FSDP_GROUP_GATHER ? FSDP_STREAM_GATHER : FSDP_STREAM_REDUCE,
                      .group = group,
                      .unit = unit,
                      .module = -1,
                      .policy = -1};
  return fsdp_program_instr(s->program, &instr, operands, operand_count);
}

// ---- the sequence of compute nodes of a section

static void sequence_add(scheduler *s, const fsdp_node *node, bool is_backward, bool is_recompute) {
  if (s->sequence_count == s->sequence_capacity) {
    s->sequence_capacity = s->sequence_capacity ? 2 * s->sequence_capacity : 256;
    s->sequence = fsdp_realloc(s->sequence, (size_t)s->sequence_capacity * sizeof *s->sequence);
  }
  s->sequence[s->sequence_count++] = (sequence_node){*node, is_backward, is_recompute};
}

// Where the node's first output (the sum it adds and normalises) was kept, only the norm is left to do.
static fsdp_node without_kept_sum(const fsdp_graph *graph, const fsdp_node *node) {
  if (node->kind != FSDP_OP_ADD_RMSNORM || !graph->values[node->operands[3].value].checkpoint) return *node;
  fsdp_node norm = *node;
  norm.kind = FSDP_OP_RMSNORM;
  norm.operands[0] = (fsdp_node_operand){node->operands[3].value, FSDP_READ};
  norm.operands[1] = node->operands[2];
  norm.operands[2] = node->operands[4];
  norm.operands[3] = node->operands[5];
  norm.operand_count = 4;
  return norm;
}

// Whether a value was made inside the block and not kept, so that its backward needs it again.
static bool is_dropped(const fsdp_graph *graph, const int *made_in_block, int value, int block) {
  const fsdp_value *v = &graph->values[value];
  return v->role == FSDP_VALUE_ACTIVATION && !v->checkpoint && made_in_block[value] == block;
}

// Marks in needed[] what the block's backward nodes, from `first` on in the backward list, read of dropped
// values.
static void mark_needed(const fsdp_graph *graph, const int *made_in_block, int block, int first,
                        bool *needed) {
  for (int i = first; i < graph->backward_count && graph->backward[i].block == block; i++) {
    const fsdp_node *node = &graph->backward[i];
    for (int o = 0; o < node->operand_count; o++)
      if (is_dropped(graph, made_in_block, node->operands[o].value, block))
        needed[node->operands[o].value] = true;
  }
}

// Adds the forward nodes of `block` whose results its backward (starting at backward node `first`) needs.
static void sequence_add_recompute(scheduler *s, const int *made_in_block, int block, int first) {
  const fsdp_graph *g = s->graph;
  bool *needed = fsdp_alloc_zeroed((size_t)g->value_count, sizeof *needed);
  mark_needed(g, made_in_block, block, first, needed);
  int begin = 0, end = g->forward_count;
  while (g->forward[begin].block != block) begin++;
  while (g->forward[end - 1].block != block) end--;
  bool *runs = fsdp_alloc_zeroed((size_t)(end - begin), sizeof *runs);
  for (int i = end - 1; i >= begin; i--) {
    fsdp_node node = without_kept_sum(g, &g->forward[i]);
    for (int o = 0; o < node.operand_count; o++)
      if (node.operands[o].access != FSDP_READ && needed[node.operands[o].value]) runs[i - begin] = true;
    for (int o = 0; runs[i - begin] && o < node.operand_count; o++)
      if (is_dropped(g, made_in_block, node.operands[o].value, block)) needed[node.operands[o].value] = true;
  }
  for (int i = begin; i < end; i++) {
    fsdp_node node = without_kept_sum(g, &g->forward[i]);
    if (runs[i - begin]) sequence_add(s, &node, true, true);
  }
  free(runs);
  free(needed);
}

// made[value] = block of the node that makes it, -1 for none.
static int *values_by_block(const fsdp_graph *graph) {
  int *made = fsdp_alloc((size_t)graph->value_count * sizeof *made);
  for (int v = 0; v < graph->value_count; v++) made[v] = -1;
  for (int i = 0; i < graph->forward_count; i++)
    for (int o = 0; o < graph->forward[i].operand_count; o++)
      if (graph->forward[i].operands[o].access == FSDP_WRITE)
        made[graph->forward[i].operands[o].value] = graph->forward[i].block;
  return made;
}

static void build_sequence(scheduler *s) {
  const fsdp_graph *g = s->graph;
  s->sequence_count = 0;
  // In training the loss's backward computes the loss too, so the forward ends one node early.
  int forward_count = s->is_training ? g->forward_count - 1 : g->forward_count;
  for (int i = 0; i < forward_count; i++) sequence_add(s, &g->forward[i], false, false);
  if (!s->is_training) return;
  int *made = values_by_block(g);
  int block = -1;
  for (int i = 0; i < g->backward_count; i++) {
    if (g->backward[i].block != block) {
      block = g->backward[i].block;
      if (block >= 0 && s->config->recompute_block) sequence_add_recompute(s, made, block, i);
    }
    sequence_add(s, &g->backward[i], true, false);
  }
  free(made);
}

// ---- which units a node reads and writes gradients of

typedef void (*unit_visitor)(scheduler *s, int unit, int index);

static void visit_units(scheduler *s, int index, fsdp_value_role role, unit_visitor visit) {
  const fsdp_node *node = &s->sequence[index].node;
  for (int o = 0; o < node->operand_count; o++) {
    const fsdp_value *v = &s->graph->values[node->operands[o].value];
    if (v->role == role) visit(s, s->units->unit_of_param[v->param], index);
  }
  for (int w = 0; w < node->weight_count; w++) {
    const fsdp_value *v = &s->graph->values[node->weights[w]];
    if (v->role == role) visit(s, s->units->unit_of_param[v->param], index);
  }
}

static void note_gradient(scheduler *s, int unit, int index) {
  s->last_grad_node[unit] = index;
}

// Adds the event of a unit's first use, and of its first use in the backward where it was freed between.
static void note_use(scheduler *s, int unit, int index) {
  if (!schedule_unit_gathers(s, unit)) return;
  bool stays = s->is_training && (s->keeps_gathered || unit == 0);
  for (int e = s->event_count - 1; e >= 0; e--) {
    if (s->events[e].unit != unit) continue;
    bool same_pass = s->sequence[s->events[e].first].is_backward == s->sequence[index].is_backward;
    if (stays || same_pass) return;
    break;
  }
  s->events[s->event_count++] = (gather_event){unit, index};
}

static void note_forward_order(scheduler *s, int unit, int index) {
  (void)index;
  for (int i = 0; i < s->forward_order_count; i++)
    if (s->forward_order[i] == unit) return;
  s->forward_order[s->forward_order_count++] = unit;
}

static void find_uses(scheduler *s) {
  s->event_count = s->event_next = 0;
  for (int u = 0; u < s->units->count; u++) s->last_grad_node[u] = -1;
  for (int i = 0; i < s->sequence_count; i++) {
    visit_units(s, i, FSDP_VALUE_PARAM, note_use);
    visit_units(s, i, FSDP_VALUE_PARAM_GRADIENT, note_gradient);
  }
}

// ---- sections

// Issues every gather that the prefetch depth allows before sequence node `index`: with depth N, the gather
// of the unit after next N-1 goes out when a unit's own first use comes.
static void issue_gathers(scheduler *s, int index) {
  while (s->event_next < s->event_count) {
    int leader = s->event_next - s->config->prefetch; // its first use opens the way for event_next
    if (leader >= 0 && s->events[leader].first > index) return;
    schedule_gather(s, s->events[s->event_next++].unit);
  }
}

static void reduce_finished_units(scheduler *s, int index) {
  const fsdp_node *node = &s->sequence[index].node;
  if (!s->is_training) return;
  int done[FSDP_OP_MAX_OPERANDS + FSDP_NODE_MAX_WEIGHTS], count = 0;
  for (int k = 0; k < node->operand_count + node->weight_count; k++) {
    int value = k < node->operand_count ? node->operands[k].value : node->weights[k - node->operand_count];
    const fsdp_value *v = &s->graph->values[value];
    if (v->role != FSDP_VALUE_PARAM_GRADIENT) continue;
    int unit = s->units->unit_of_param[v->param];
    bool seen = false;
    for (int d = 0; d < count; d++) seen |= done[d] == unit;
    if (seen || s->last_grad_node[unit] != index) continue;
    done[count++] = unit;
    schedule_reduce(s, unit);
  }
}

static void begin_section(scheduler *s, fsdp_section_kind kind) {
  fsdp_program_begin_section(s->program, kind);
  s->is_training = kind != FSDP_SECTION_EVALUATION;
  s->is_first = kind != FSDP_SECTION_MIDDLE && kind != FSDP_SECTION_LAST;
  s->is_last = kind == FSDP_SECTION_ONLY || kind == FSDP_SECTION_LAST;
  s->last_compute = -1;
  for (int v = 0; v < s->graph->value_count; v++) s->tensor_of_value[v] = -1;
}

// One micro-batch's forward (and backward).
static void schedule_batch(scheduler *s, fsdp_section_kind kind) {
  begin_section(s, kind);
  build_sequence(s);
  find_uses(s);
  if (s->is_first) schedule_begin_step(s);
  schedule_feed_batch(s);
  for (int i = 0; i < s->sequence_count; i++) {
    issue_gathers(s, i);
    schedule_node(s, &s->sequence[i]);
    reduce_finished_units(s, i);
  }
  FSDP_CHECK(s->event_next == s->event_count, "a gather was never issued");
  if (!s->is_training) schedule_evaluation_result(s);
  bool step_ends = s->is_last || !s->is_training;
  for (int u = 0; u < s->units->count; u++)
    if (step_ends || !(s->keeps_gathered || u == 0)) s->unit[u].gathered = -1;
  fsdp_program_end_section(s->program);
}

// Micro-batches that a sum in bf16, of 8 bits, may have: of 256 alike the last would no longer change it.
#define BF16_SUMS_MAX 128

// Whether micro-batches are summed in bf16: only where the sum is the whole gradient (one rank in the shard
// group, no offload), which in fp32 would be the largest state of all, and the user asked for bf16 in
// everything that is made of it. Each micro-batch rounds the sum once, as a rank does in a reduction in bf16.
static bool sums_in_bf16(const scheduler *s) {
  const fsdp_plan_config *c = s->config;
  return s->direct_grads && c->accumulation <= BF16_SUMS_MAX && c->reduce_dtype == FSDP_BF16 &&
         c->master_dtype == FSDP_BF16 && c->moment_dtype == FSDP_BF16;
}

static void choose_modes(scheduler *s) {
  const fsdp_plan_config *c = s->config;
  bool accumulates = c->accumulation > 1, local = c->accumulate == FSDP_ACCUMULATE_LOCAL;
  s->shard_count = c->mesh.size[FSDP_AXIS_FSDP];
  s->replica_count = c->mesh.size[FSDP_AXIS_DATA];
  s->rank_count = fsdp_mesh_ranks(&c->mesh);
  s->resident =
      !c->cpu_offload && s->shard_count == 1 && (c->strategy == FSDP_NO || c->param_dtype == c->master_dtype);
  s->keeps_gathered = c->strategy == FSDP_GRAD_OP || c->strategy == FSDP_NO;
  s->direct_grads = s->shard_count == 1 && !c->cpu_offload;
  s->carries_grads = accumulates && (local || s->direct_grads);
  bool sums_in_shard = accumulates && (s->direct_grads || !local);
  s->shard_dtype = sums_in_shard && !sums_in_bf16(s) ? FSDP_F32 : c->reduce_dtype;
  s->grad_dtype = s->direct_grads ? s->shard_dtype : s->carries_grads ? FSDP_F32 : c->reduce_dtype;
}

// The units in the order of the next forward, in which updates run; every unit with parameters is in it.
static void find_forward_order(scheduler *s) {
  s->is_training = true;
  build_sequence(s);
  for (int i = 0; i < s->sequence_count; i++) visit_units(s, i, FSDP_VALUE_PARAM, note_forward_order);
}

void fsdp_schedule(fsdp_plan *plan) {
  size_t unit_count = (size_t)plan->units->count, value_count = (size_t)plan->graph->value_count;
  plan->program = fsdp_program_create();
  plan->program->mesh = plan->config.mesh;
  plan->program->accumulation = plan->config.accumulation;
  plan->unit_state = fsdp_alloc_zeroed(unit_count, sizeof *plan->unit_state);
  scheduler s = {.plan = plan,
                 .config = &plan->config,
                 .graph = plan->graph,
                 .units = plan->units,
                 .program = plan->program,
                 .last_compute = -1,
                 .unit = fsdp_alloc_zeroed(unit_count, sizeof(unit_tensors)),
                 .tensor_of_value = fsdp_alloc_zeroed(value_count, sizeof(int)),
                 .last_grad_node = fsdp_alloc_zeroed(unit_count, sizeof(int)),
                 .forward_order = fsdp_alloc_zeroed(unit_count, sizeof(int)),
                 .events = fsdp_alloc_zeroed(2 * unit_count, sizeof(gather_event))};
  choose_modes(&s);
  find_forward_order(&s);
  schedule_state_tensors(&s);
  int64_t product_scratch = plan->config.target->gemm_workspace_bytes;
  plan->gemm_workspace =
      product_scratch ? schedule_tensor(&s, "", "gemm_workspace", FSDP_SPACE_DEVICE, FSDP_CATEGORY_WORKSPACE,
                                        FSDP_LIVE_ALWAYS, -1, -1, product_scratch)
                      : -1;
  int accumulation = plan->config.accumulation;
  schedule_batch(&s, accumulation > 1 ? FSDP_SECTION_FIRST : FSDP_SECTION_ONLY);
  if (accumulation > 2) schedule_batch(&s, FSDP_SECTION_MIDDLE);
  if (accumulation > 1) schedule_batch(&s, FSDP_SECTION_LAST);
  fsdp_program_begin_section(plan->program, FSDP_SECTION_UPDATE);
  s.last_compute = -1;
  schedule_update_section(&s);
  fsdp_program_end_section(plan->program);
  if (plan->config.evaluation) schedule_batch(&s, FSDP_SECTION_EVALUATION);
  if (plan->config.check && s.replica_count > 1) {
    fsdp_program_begin_section(plan->program, FSDP_SECTION_CHECK);
    schedule_check_section(&s);
    fsdp_program_end_section(plan->program);
  }
  free(s.unit);
  free(s.tensor_of_value);
  free(s.last_grad_node);
  free(s.forward_order);
  free(s.events);
  free(s.sequence);
}
