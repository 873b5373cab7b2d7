#include "runtime/exec/executor.h"

#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/size.h"
#include "runtime/exec/access_trace.h"
#include "runtime/exec/device_config.h"
#include "runtime/exec/param_runs.h"

#include <math.h>
#include <string.h>

// The runs of parameters in an update's shard, if it rounds stochastically.
typedef struct segment_list {
  fsdp_param_run *segments;
  int count;
} segment_list;

// What has been issued of a step: when these are complete, so are its instructions.
typedef struct step_end {
  uint64_t ticket[FSDP_STREAM_COUNT];
  int64_t issue_count;
} step_end;

struct fsdp_executor {
  fsdp_executor_config config;
  const fsdp_program *program;
  fsdp_view *views;       // of every operand of the program
  fsdp_op_attrs *attrs;   // of every instruction, for this rank
  segment_list *segments; // by unit
  int unit_count;         // that instructions name
  uint64_t *issued;       // by position: ticket of its most recent issue, 0: none
  bool *awaited;          // by position: another stream waits for it
  uint64_t last_ticket[FSDP_STREAM_COUNT];
  void (*snapshot_complete)(void *argument); // of the snapshot begun last
  void *snapshot_argument;
  uint64_t snapshot_ticket;
  int *order; // sections of a step
  int order_count;
  int64_t step; // the newest issued
  step_end ends[2];
  fsdp_access_trace *trace; // NULL unless measured
  fsdp_step_times *times;   // NULL unless profiled
  float published[2];       // by PUBLISH, on the host stream: loss, norm
  float *losses;            // of a step: each, and statistics
  int loss_count;
  int64_t published_numel; // of both
  float *logits;           // the caller's, while an evaluation is asked for them
  int32_t row;             // of the micro-batch, whose logits an evaluation is asked for
  uint64_t *digests;       // the caller's, while a check runs
  int publish_position;    // the last PUBLISH or DIGESTS issued
};

// ---- On the streams

static void report_view(fsdp_access_recorder *recorder, const fsdp_view *view) {
  fsdp_access_report(recorder, view->data, view->numel * fsdp_dtype_bytes(view->dtype), view->access);
}

static bool is_update(const fsdp_executor *self, const fsdp_instr *instr) {
  return instr->kind == FSDP_INSTR_OP && instr->unit >= 0 &&
         instr->op == self->config.plan->unit_state[instr->unit].optimizer->update;
}

static fsdp_kernel_call make_call(const fsdp_executor *self, const fsdp_instr *instr,
                                  const fsdp_view *views) {
  int64_t position = instr - self->program->instrs;
  const segment_list *segments = instr->unit >= 0 ? &self->segments[instr->unit] : NULL;
  bool by_param = is_update(self, instr) && segments && segments->count > 0;
  return (fsdp_kernel_call){
      .kind = instr->op,
      .attrs = &self->attrs[position],
      .operands = views,
      .operand_count = instr->operand_count,
      .segments = by_param ? segments->segments : NULL,
      .segment_count = by_param ? segments->count : 0,
      .seed = self->config.seed,
  };
}

static void run_op(fsdp_executor *self, const fsdp_instr *instr, const fsdp_view *views,
                   fsdp_access_recorder *recorder, const fsdp_stream_context *context) {
  fsdp_kernel_call call = make_call(self, instr, views);
  call.pool = context->pool;
  call.recorder = recorder;
  call.stream = context->native;
  const fsdp_kernel_table *table = context->native ? self->config.kernels->table : fsdp_cpu_kernels();
  table->kernels[instr->op](&call);
  // The scratch of a library's gemms is no operand.
  int workspace = self->program->gemm_workspace;
  if (recorder && workspace >= 0 && context->native && fsdp_op_makes_gemms(instr->op)) {
    recorder->range(recorder, fsdp_executor_tensor(self, workspace), self->program->tensors[workspace].bytes,
                    FSDP_UPDATE);
  }
}

static void run_collective(fsdp_executor *self, const fsdp_work *work, const fsdp_view *views,
                           fsdp_access_recorder *recorder, const fsdp_stream_context *context) {
  const fsdp_instr *instr = &self->program->instrs[work->item];
  fsdp_comm *comm = self->config.comms[instr->comm];
  fsdp_collective call = {
      .dtype = views[0].dtype,
      .input = views[0].data,
      .output = views[instr->operand_count - 1].data,
      .numel = fsdp_min_i64(views[0].numel, views[instr->operand_count - 1].numel),
      .recorder = recorder,
      .stream = context->native,
      .lane = &fsdp_board_mine->lanes[instr->stream],
      .place = fsdp_place_of(work->round, work->item),
  };
  fsdp_comm_run(comm, fsdp_instr_collective(instr), &call);
}

static void run_copy(const fsdp_view *views, fsdp_access_recorder *recorder,
                     const fsdp_stream_context *context) {
  report_view(recorder, &views[0]);
  report_view(recorder, &views[1]);
  context->table->copy(context, views[1].data, views[0].data,
                       views[0].numel * fsdp_dtype_bytes(views[0].dtype));
}

// `views` are those of the inputs that the graph has.
static void feed_batch(const fsdp_executor *self, const fsdp_view *views) {
  const int *values = self->config.plan->graph->inputs;
  int32_t *inputs[FSDP_INPUT_COUNT];
  for (int i = 0, taken = 0; i < FSDP_INPUT_COUNT; i++)
    inputs[i] = values[i] >= 0 ? views[taken++].data : NULL;
  self->config.callbacks.feed_batch(self->config.callbacks.context, inputs);
}

// Whether a PUBLISH is of an evaluation that hands out logits beside its loss.
static bool gives_logits(const fsdp_executor *self, const fsdp_instr *instr) {
  const int last = instr->first_operand + instr->operand_count - 1;
  return self->program->logits >= 0 && self->program->operands[last].tensor == self->program->logits;
}

// A step's loss is the sum of all, an evaluation's the cross-entropy.
static void publish_losses(fsdp_executor *self, const float *losses, bool trains) {
  self->published[0] = 0;
  for (int i = 0; i < (trains ? self->loss_count : 1); i++) self->published[0] += losses[i];
  if (trains) memcpy(self->losses, losses, (size_t)self->published_numel * sizeof *losses);
}

// The caller's part of the program: it fills the operands, or reads them.
static void run_host_call(fsdp_executor *self, const fsdp_instr *instr, const fsdp_view *views,
                          fsdp_access_recorder *recorder) {
  const fsdp_executor_callbacks *callbacks = &self->config.callbacks;
  for (int o = 0; o < instr->operand_count; o++) report_view(recorder, &views[o]);
  if (instr->kind == FSDP_INSTR_FEED_STEP) {
    ((float *)views[0].data)[FSDP_SCALAR_ONE] = 1;
    callbacks->feed_step(callbacks->context, views[0].data, views[1].data);
    if (instr->operand_count > 2) *(int32_t *)views[2].data = self->row;
  } else if (instr->kind == FSDP_INSTR_FEED_BATCH) {
    feed_batch(self, views);
  } else if (instr->kind == FSDP_INSTR_DIGESTS) {
    memcpy(self->digests, views[0].data, (size_t)views[0].numel * sizeof(int32_t));
  } else {
    const bool logits = gives_logits(self, instr), trains = instr->operand_count > 1 && !logits;
    publish_losses(self, views[0].data, trains);
    self->published[1] = trains ? *(const float *)views[1].data : NAN;
    if (logits && self->logits)
      memcpy(self->logits, views[1].data, (size_t)self->config.plan->config.model.vocab_size * sizeof(float));
    if (callbacks->publish) {
      callbacks->publish(callbacks->context, self->published[0], self->published[1]);
    }
  }
}

static void run_kind(fsdp_executor *self, const fsdp_work *work, const fsdp_view *views,
                     fsdp_access_recorder *recorder, const fsdp_stream_context *context) {
  const fsdp_instr *instr = &self->program->instrs[work->item];
  switch (instr->kind) {
  case FSDP_INSTR_OP:
    run_op(self, instr, views, recorder, context);
    break;
#define FSDP_COLLECTIVE(KIND, ...) case FSDP_INSTR_##KIND:
#include "runtime/base/collectives.def"
    run_collective(self, work, views, recorder, context);
    break;
  case FSDP_INSTR_H2D:
  case FSDP_INSTR_D2H:
    run_copy(views, recorder, context);
    break;
  case FSDP_INSTR_FEED_STEP:
  case FSDP_INSTR_FEED_BATCH:
  case FSDP_INSTR_PUBLISH:
  case FSDP_INSTR_DIGESTS:
    run_host_call(self, instr, views, recorder);
    break;
  case FSDP_INSTR_SNAPSHOT:
    context->table->notify(context, self->snapshot_complete, self->snapshot_argument);
    break;
  case FSDP_INSTR_KIND_COUNT:
    FSDP_CHECK(false, "an instruction of unknown kind");
  }
}

// Runs the instruction, and shows its stream's place on the board. For work that is only enqueued here, the
// device's watchdog shows its completion.
static void dispatch(fsdp_executor *self, const fsdp_work *work, const fsdp_view *views,
                     fsdp_access_recorder *recorder, const fsdp_stream_context *context) {
  if (context->native) {
    run_kind(self, work, views, recorder, context);
    return;
  }
  fsdp_board_lane *lane = &fsdp_board_mine->lanes[context->stream];
  fsdp_place place = fsdp_place_of(work->round, work->item);
  fsdp_lane_begin(lane, place);
  run_kind(self, work, views, recorder, context);
  fsdp_lane_end(lane, place);
}

// The work of every instruction. Evaluation and check belong to no step: their round is 0, and they are
// neither traced nor timed.
static void run_instr(const fsdp_work *work, const fsdp_stream_context *context) {
  fsdp_executor *self = work->owner;
  const fsdp_instr *instr = &self->program->instrs[work->item];
  const fsdp_view *views = self->views + instr->first_operand;
  bool is_poison = fsdp_instr_is_poison(instr);
  bool in_step = work->round > 0;
  fsdp_access_recorder *recorder = NULL;
  if (self->trace && in_step && !is_poison) {
    recorder = fsdp_access_trace_instr(self->trace, work->round, work->serial, work->item, views);
  }
  const fsdp_executor_callbacks *callbacks = &self->config.callbacks;
  if (callbacks->observe && !is_poison) callbacks->observe(callbacks->context, instr, views);
  bool timed = self->times && in_step;
  if (!timed || context->native) {
    if (timed) fsdp_step_times_mark(self->times, work->round, work->serial, context, false);
    dispatch(self, work, views, recorder, context);
    if (timed) fsdp_step_times_mark(self->times, work->round, work->serial, context, true);
    return;
  }
  int64_t start_ns = fsdp_now_ns();
  dispatch(self, work, views, recorder, context);
  int64_t end_ns = fsdp_now_ns();
  fsdp_step_times_record(self->times, work->round, work->serial, start_ns, end_ns);
}

// ---- Issue

// Issues a section; `work` carries step, section run, and the number of the next instruction in the step.
static void issue_section(fsdp_executor *self, int section, fsdp_work *work) {
  const fsdp_program *program = self->program;
  fsdp_device *device = self->config.device;
  for (int i = program->sections[section].begin; i < program->sections[section].end; i++) {
    const fsdp_instr *instr = &program->instrs[i];
    for (int w = 0; w < instr->wait_count; w++) {
      int awaited = program->waits[instr->first_wait + w].position;
      device->table->wait(device, instr->stream, program->instrs[awaited].stream, self->issued[awaited]);
    }
    work->item = i;
    work->awaited = self->awaited[i];
    self->issued[i] = device->table->launch(device, instr->stream, work);
    self->last_ticket[instr->stream] = self->issued[i];
    work->serial++;
    bool hands_out = instr->kind == FSDP_INSTR_PUBLISH || instr->kind == FSDP_INSTR_DIGESTS;
    if (hands_out) self->publish_position = i;
  }
}

static void wait_published(fsdp_executor *self) {
  FSDP_CHECK(self->publish_position >= 0, "the program publishes no result");
  fsdp_device *device = self->config.device;
  device->table->synchronize(device, self->program->instrs[self->publish_position].stream,
                             self->issued[self->publish_position]);
}

static void wait_step_end(fsdp_executor *self, const step_end *end) {
  fsdp_device *device = self->config.device;
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) {
    if (end->ticket[s] > 0) device->table->synchronize(device, (fsdp_stream)s, end->ticket[s]);
  }
}

void fsdp_executor_begin_step(fsdp_executor *self) {
  int64_t step = ++self->step;
  step_end *end = &self->ends[step % 2];
  // The records of the step two before are reused: it must be complete.
  wait_step_end(self, end);
  if (self->trace) fsdp_access_trace_begin_step(self->trace, step);
  fsdp_work work = {.run = run_instr, .owner = self, .round = step};
  self->publish_position = -1;
  for (; work.part < self->order_count; work.part++) issue_section(self, self->order[work.part], &work);
  memcpy(end->ticket, self->last_ticket, sizeof end->ticket);
  end->issue_count = work.serial;
}

void fsdp_executor_end_step(fsdp_executor *self, fsdp_step_result *result) {
  wait_published(self);
  *result = (fsdp_step_result){.step = self->step,
                               .loss = self->published[0],
                               .grad_norm = self->published[1],
                               .losses = self->losses};
}

void fsdp_executor_run_step(fsdp_executor *self, fsdp_step_result *result) {
  fsdp_executor_begin_step(self);
  fsdp_executor_end_step(self, result);
}

// Issues a section that belongs to no step, once. False if the program has none of the kind.
static bool issue_beside(fsdp_executor *self, fsdp_section_kind kind) {
  fsdp_work work = {.run = run_instr, .owner = self};
  bool found = false;
  self->publish_position = -1;
  for (int s = 0; s < self->program->section_count; s++) {
    if (self->program->sections[s].kind != kind) continue;
    issue_section(self, s, &work);
    found = true;
  }
  return found;
}

void fsdp_executor_begin_snapshot(fsdp_executor *self, void (*complete)(void *argument), void *argument) {
  self->snapshot_complete = complete;
  self->snapshot_argument = argument;
  FSDP_CHECK(issue_beside(self, FSDP_SECTION_SNAPSHOT), "the plan has no snapshot");
  self->snapshot_ticket = self->last_ticket[FSDP_STREAM_SNAPSHOT];
}

void fsdp_executor_end_snapshot(fsdp_executor *self) {
  fsdp_device *device = self->config.device;
  device->table->synchronize(device, FSDP_STREAM_SNAPSHOT, self->snapshot_ticket);
}

void fsdp_executor_run_exchange(fsdp_executor *self) {
  if (issue_beside(self, FSDP_SECTION_EXCHANGE)) fsdp_executor_drain(self);
}

void fsdp_executor_run_evaluation(fsdp_executor *self, float *loss) {
  if (self->config.plan->config.evaluation_only)
    fsdp_executor_begin_step(self);
  else
    issue_beside(self, FSDP_SECTION_EVALUATION);
  wait_published(self);
  *loss = self->published[0];
}

int64_t fsdp_executor_steps(const fsdp_executor *self) {
  return self->step;
}

void fsdp_executor_run_logits(fsdp_executor *self, int64_t row, float *logits) {
  const fsdp_plan *plan = self->config.plan;
  const int64_t rows = plan->rows.batch * plan->rows.local_seq;
  float loss;
  FSDP_CHECK(self->program->logits >= 0, "the plan has no logits");
  FSDP_CHECK(row >= FSDP_NO_ROW && row < rows, "row %lld of %lld", (long long)row, (long long)rows);
  self->row = (int32_t)(row == FSDP_NO_ROW ? rows : row);
  self->logits = logits;
  fsdp_executor_run_evaluation(self, &loss);
  self->logits = NULL;
}

void fsdp_executor_run_check(fsdp_executor *self, uint64_t *digests) {
  self->digests = digests;
  issue_beside(self, FSDP_SECTION_CHECK);
  wait_published(self);
  self->digests = NULL;
}

void fsdp_executor_drain(fsdp_executor *self) {
  step_end all;
  memcpy(all.ticket, self->last_ticket, sizeof all.ticket);
  wait_step_end(self, &all);
}

bool fsdp_executor_step_stats(fsdp_executor *self, int64_t step, fsdp_step_stats *stats, char *message,
                              int message_bytes) {
  FSDP_CHECK(step >= 1 && step <= self->step && step > self->step - 2,
             "statistics of step %lld after step %lld", (long long)step, (long long)self->step);
  const step_end *end = &self->ends[step % 2];
  wait_step_end(self, end);
  memset(stats, 0, sizeof *stats);
  if (self->times) {
    fsdp_step_times_sum(self->times, step, &stats->sums);
    fsdp_step_times_measure(self->times, step, &stats->exposure);
  }
  if (!self->trace) return true;
  return fsdp_access_trace_measure(self->trace, step, end->issue_count, &stats->memory, message,
                                   message_bytes);
}

const fsdp_timeline *fsdp_executor_timeline(fsdp_executor *self, int64_t *origin_ns) {
  return fsdp_step_times_timeline(self->times, origin_ns);
}

// ---- Creation

void *fsdp_executor_tensor(const fsdp_executor *self, int tensor) {
  const fsdp_tensor *t = &self->program->tensors[tensor];
  return self->config.device->arenas.memory[t->space] + t->address;
}

const fsdp_executor_config *fsdp_executor_config_of(const fsdp_executor *self) {
  return &self->config;
}

// What depends on the rank becomes an address or a number.
static void resolve(fsdp_executor *self) {
  const fsdp_program *program = self->program;
  self->attrs = fsdp_alloc((size_t)program->instr_count * sizeof *self->attrs);
  for (int i = 0; i < program->instr_count; i++) {
    const fsdp_instr *instr = &program->instrs[i];
    self->attrs[i] = instr->attrs;
    self->attrs[i].first_index = fsdp_affine_at(&instr->first_index, &program->mesh, self->config.rank);
    self->attrs[i].second_index = fsdp_affine_at(&instr->second_index, &program->mesh, self->config.rank);
    self->attrs[i].first_row = fsdp_affine_at(&instr->first_row, &program->mesh, self->config.rank);
    self->attrs[i].first_head = fsdp_affine_at(&instr->first_head, &program->mesh, self->config.rank);
  }
  self->views = fsdp_alloc_zeroed((size_t)program->operand_count, sizeof *self->views);
  for (int o = 0; o < program->operand_count; o++) {
    const fsdp_operand *operand = &program->operands[o];
    int64_t offset = fsdp_affine_at(&operand->offset, &program->mesh, self->config.rank);
    self->views[o] = (fsdp_view){
        .data = (unsigned char *)fsdp_executor_tensor(self, operand->tensor) + offset,
        .numel = operand->size_bytes / fsdp_dtype_bytes(operand->dtype),
        .dtype = operand->dtype,
        .access = operand->access,
    };
  }
}

// Every unit of which an update rounds a bf16 state, or decays some parameters and not others.
static void make_segments(fsdp_executor *self) {
  const fsdp_program *program = self->program;
  for (int i = 0; i < program->instr_count; i++)
    if (program->instrs[i].unit >= self->unit_count) self->unit_count = program->instrs[i].unit + 1;
  self->segments = fsdp_alloc_zeroed((size_t)self->unit_count, sizeof *self->segments);
  for (int i = 0; i < program->instr_count; i++) {
    const fsdp_instr *instr = &program->instrs[i];
    if (!is_update(self, instr)) continue;
    const fsdp_operand *slots = &program->operands[instr->first_operand + FSDP_UPDATE_FIRST_SLOT];
    const fsdp_optimizer *optimizer = self->config.plan->unit_state[instr->unit].optimizer;
    bool needed = instr->attrs.decays_some;
    for (int k = 0; k < optimizer->slot_count; k++) needed = needed || slots[k].dtype == FSDP_BF16;
    segment_list *list = &self->segments[instr->unit];
    if (needed && !list->segments)
      list->segments = fsdp_param_runs(self->config.plan, instr->unit, self->config.rank, &list->count);
  }
}

int fsdp_executor_groups(const fsdp_program *program, int rank, fsdp_comm_group groups[FSDP_COMMS_MAX]) {
  _Static_assert(FSDP_PROGRAM_COMMS_MAX <= FSDP_COMMS_MAX, "a program has no more than a world makes");
  for (int c = 0; c < program->comm_count; c++) {
    fsdp_mesh_group group = fsdp_mesh_group_of(&program->mesh, program->comms[c].axes, rank);
    groups[c] =
        (fsdp_comm_group){.color = group.color, .rank = group.rank, .size = group.size, .moves = true};
  }
  for (int i = 0; i < program->instr_count; i++) {
    const fsdp_instr *instr = &program->instrs[i];
    if (fsdp_instr_is_collective(instr) && fsdp_instr_collective_row(instr)->sums)
      groups[instr->comm].moves = false;
  }
  return program->comm_count;
}

static void check_collectives(const fsdp_executor *self) {
  for (int i = 0; i < self->program->instr_count; i++) {
    const fsdp_instr *instr = &self->program->instrs[i];
    if (!fsdp_instr_is_collective(instr)) continue;
    const fsdp_comm *comm = self->config.comms[instr->comm];
    fsdp_axis_set axes = self->program->comms[instr->comm].axes;
    fsdp_mesh_group group = fsdp_mesh_group_of(&self->program->mesh, axes, self->config.rank);
    FSDP_CHECK(comm && comm->size == group.size && (comm->size == 1 || comm->rank == group.rank),
               "instruction %d needs communicator %d", i, instr->comm);
  }
}

// What a device must know once the operands are: its scratch, the kernels to load, the products to come.
static void open_kernels(fsdp_executor *self) {
  const fsdp_kernel_backend *kernels = self->config.kernels;
  if (!kernels) return;
  int workspace = self->program->gemm_workspace;
  kernels->open(workspace >= 0 ? fsdp_executor_tensor(self, workspace) : NULL);
  for (int i = 0; i < self->program->instr_count; i++) {
    const fsdp_instr *instr = &self->program->instrs[i];
    if (instr->kind != FSDP_INSTR_OP || instr->stream == FSDP_STREAM_HOST) continue;
    fsdp_kernel_call call = make_call(self, instr, self->views + instr->first_operand);
    kernels->prepare(&call);
  }
}

static void name_instr(const void *plan, int position, char *text, size_t bytes) {
  fsdp_plan_instr_name(plan, position, text, bytes);
}

fsdp_executor *fsdp_executor_create(const fsdp_executor_config *config) {
  fsdp_executor *self = fsdp_alloc_zeroed(1, sizeof *self);
  self->config = *config;
  self->program = config->plan->program;
  for (int s = 0; s < FSDP_SPACE_COUNT; s++) {
    FSDP_CHECK(config->device->arenas.bytes[s] >= self->program->arena_bytes[s],
               "the arena has %lld bytes, the plan needs %lld", (long long)config->device->arenas.bytes[s],
               (long long)self->program->arena_bytes[s]);
  }
  FSDP_CHECK(config->device->table->enqueues == (config->kernels != NULL), "kernels of the device's queues");
  check_collectives(self);
  resolve(self);
  make_segments(self);
  self->issued = fsdp_alloc_zeroed((size_t)self->program->instr_count, sizeof *self->issued);
  self->awaited = fsdp_alloc((size_t)self->program->instr_count * sizeof *self->awaited);
  fsdp_device_mark_awaited(self->program, self->awaited);
  self->order = fsdp_alloc((size_t)(self->program->micro_batches + FSDP_MAX_SECTIONS) * sizeof *self->order);
  self->order_count = fsdp_program_step_order(self->program, self->order);
  const fsdp_graph *graph = config->plan->graph; // NULL: a program by itself, with one loss
  self->loss_count = graph ? graph->loss_count : 1;
  self->published_numel = self->loss_count + (graph ? graph->statistic_numel : 0);
  self->losses = fsdp_alloc_zeroed((size_t)self->published_numel, sizeof *self->losses);
  open_kernels(self);
  fsdp_board_set_namer(name_instr, config->plan);
  if (config->measure) {
    self->trace = fsdp_access_trace_create(self->program, config->device, self->program->gemm_workspace);
  }
  if (config->profile)
    self->times = fsdp_step_times_create(&(fsdp_step_times_config){
        .program = self->program, .device = config->device, .traced = config->traced, .rank = config->rank});
  return self;
}

void fsdp_executor_destroy(fsdp_executor *self) {
  if (!self) return;
  fsdp_executor_drain(self);
  fsdp_board_set_namer(NULL, NULL);
  for (int u = 0; u < self->unit_count; u++) free(self->segments[u].segments);
  if (self->config.kernels) self->config.kernels->close();
  fsdp_step_times_destroy(self->times);
  fsdp_access_trace_destroy(self->trace);
  free(self->losses);
  free(self->order);
  free(self->awaited);
  free(self->issued);
  free(self->segments);
  free(self->views);
  free(self->attrs);
  free(self);
}
