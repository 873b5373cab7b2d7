// Calls of ops with operands made from their rows (models/graph/ops.def).
#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/probe/run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PASS_RUNS    4
#define LONG_FLOPS   1e8 // a run that is timed alone
#define OPERANDS_MAX (FSDP_OP_MAX_OPERANDS + 1)
#define COOLED_CORE  ((int64_t)4 << 20) // of a thread: what a gemm reads and writes between two other ops
#define COOLED_ALL   ((int64_t)8 << 20) // what other units do between a unit's gradients and its update
#define DENSE_SETS   3                  // of attention, which computes for long, whatever is in caches

struct probe_call {
  const probe *self;
  fsdp_op_kind kind;
  fsdp_op_attrs attrs;
  int operand_count; // the workspace included
  fsdp_op_extent extents[OPERANDS_MAX];
  bool refreshes;       // it overwrites what it reads, which would shrink to nothing from run to run
  int sets, fresh_sets; // fresh operands: the same of every fresh_sets-th set
  fsdp_view *views;     // (sets, operand_count)
};

static bool begins(const char *name, const char *with) {
  return strncmp(name, with, strlen(with)) == 0;
}

static bool is_parameter(const char *name) {
  return strstr(name, "weight") || strstr(name, "bias");
}

// States of the optimizer and gradients of weights are fp32 by default, whatever computes.
static fsdp_dtype dtype_of(const probe *self, fsdp_op_kind kind, const fsdp_op_operand *operand) {
  if (operand->has_dtype) return operand->dtype;
  if (kind == fsdp_op_move(FSDP_WRITE)) return begins(operand->name, "source") ? FSDP_F32 : FSDP_BF16;
  if (fsdp_op_phase_of(kind) == FSDP_OP_IN_UPDATE || fsdp_op_operand_has(operand, 'p')) return FSDP_F32;
  return is_parameter(operand->name) && begins(operand->name, "d_") ? FSDP_F32 : self->dtype;
}

// Norms add to the gradient that the residual stream has already; everything else is written.
static fsdp_access access_of(const fsdp_op_operand *operand) {
  return operand->may_add && strcmp(operand->name, "d_h") == 0 ? FSDP_UPDATE : operand->access;
}

static bool is_saved(const fsdp_op_operand *operand) {
  return !operand->has_dtype && !begins(operand->name, "d_") && !is_parameter(operand->name);
}

static bool reads_saved(fsdp_op_kind kind) {
  const fsdp_op_letters *op = fsdp_op_letters_of(kind);
  for (int i = 0; i < op->operand_count; i++)
    if (is_saved(&op->operands[i])) return true;
  return false;
}

// Whether an operand is what the op before has written, or what the next one reads: all of what the table
// says so of, gradients where nothing is read beside them that the forward has saved, activations that the
// forward updates in place, and of gemms and attention all but parameters and, in the backward, what the
// forward has saved. Others read that, or the state of a whole unit.
static bool is_fresh(fsdp_op_kind kind, const fsdp_op_attrs *attrs, const fsdp_op_operand *operand) {
  const bool backward = fsdp_op_phase_of(kind) == FSDP_OP_IN_BACKWARD, gradient = begins(operand->name, "d_");
  if (fsdp_op_has(kind, FSDP_TRAIT_JUST_WRITTEN)) return true;
  if (is_parameter(operand->name)) return false;
  if (fsdp_op_flops(kind, attrs) > 0) return !backward || gradient;
  if (backward) return gradient && !reads_saved(kind);
  return fsdp_op_phase_of(kind) == FSDP_OP_IN_FORWARD && operand->access == FSDP_UPDATE;
}

// ---- What operands hold

// A number that is neither a gradient nor an activation, in fp32; 0: normal numbers do.
static float constant_of(const probe_call *call, const fsdp_op_operand *operand) {
  const char *name = operand->name;
  if (strcmp(name, "count") == 0) return (float)(call->attrs.batch * call->attrs.seq);
  const bool one = strcmp(name, "rstd") == 0 || strcmp(name, "factor") == 0 || strcmp(name, "stats") == 0 ||
                   strcmp(name, "sum") == 0 || strcmp(name, "scalars") == 0 || strcmp(name, "v") == 0;
  return one ? 1 : 0;
}

int32_t probe_token(int64_t vocabulary, int64_t i) {
  const double share = (double)(i * 7919 % 10007) / 10007;
  return (int32_t)fsdp_min_i64(vocabulary - 1, (int64_t)pow((double)vocabulary, share) - 1);
}

// Elements of an operand of integers: tokens; or the order of routed rows of which each expert has as many,
// those of one slot of a token after the other.
static void make_integers(const probe_call *call, const char *name, int64_t count, int32_t *out) {
  const fsdp_op_attrs *a = &call->attrs;
  const int64_t each = a->experts ? fsdp_max_i64(1, a->batch * a->seq * a->slots / a->experts) : 1;
  const bool offsets = strcmp(name, "offsets") == 0, slots = strcmp(name, "slots") == 0;
  for (int64_t i = 0; i < count; i++)
    out[i] = offsets ? (int32_t)(i * each)
             : slots ? (int32_t)(i % each * a->experts + i / each)
                     : probe_token(fsdp_max_i64(1, a->vocabulary), i);
}

static void write_view(const probe_call *call, const char *name, const fsdp_view *view, float value) {
  fsdp_device *device = call->self->session.device;
  float *values = fsdp_alloc((size_t)view->numel * sizeof *values);
  for (int64_t i = 0; i < view->numel; i++) values[i] = value;
  if (view->dtype == FSDP_I32) make_integers(call, name, view->numel, (int32_t *)values);
  device->table->write(device, view->data, values, 4 * view->numel);
  free(values);
}

// What a set reads and later writes: copies of the inputs.
static void refresh(void *context, const fsdp_stream_context *stream, int set) {
  const probe_call *call = context;
  for (int i = 0; i < call->operand_count; i++) {
    const fsdp_view *view = &call->views[set * call->operand_count + i];
    const int64_t bytes = fsdp_min_i64(view->numel * fsdp_dtype_bytes(view->dtype), call->self->inputs.bytes);
    if (view->access == FSDP_UPDATE && view->numel > 1)
      stream->table->copy(stream, view->data, call->self->inputs.memory, bytes);
  }
}

static void fill_updated(const fsdp_work *work, const fsdp_stream_context *context) {
  const probe_call *call = work->owner;
  for (int set = 0; set < call->sets; set++) refresh(work->owner, context, set);
}

// Attention's backward reads the forward's results: of other numbers, exp(score - lse) overflows.
static void fill_by_forward(const fsdp_work *work, const fsdp_stream_context *context) {
  const probe_call *call = work->owner;
  for (int set = 0; set < call->sets; set++) {
    fsdp_view forward[3];
    memcpy(forward, &call->views[set * call->operand_count], sizeof forward);
    forward[1].access = forward[2].access = FSDP_WRITE;
    const fsdp_kernel_call launch = {.kind = FSDP_PLAN_OP_ATTENTION,
                                     .attrs = &call->attrs,
                                     .operands = forward,
                                     .operand_count = 3,
                                     .pool = context->pool,
                                     .stream = context->native};
    call->self->kernels->kernels[launch.kind](&launch);
  }
}

static void run_once(const probe_call *call,
                     void (*run)(const fsdp_work *work, const fsdp_stream_context *context)) {
  fsdp_device *device = call->self->session.device;
  const fsdp_work work = {.run = run, .owner = (void *)(uintptr_t)call, .awaited = true};
  device->table->synchronize(device, FSDP_STREAM_COMPUTE,
                             device->table->launch(device, FSDP_STREAM_COMPUTE, &work));
}

static void fill(const probe_call *call) {
  const fsdp_op_letters *op = fsdp_op_letters_of(call->kind);
  fsdp_device *device = call->self->session.device;
  run_once(call, fill_updated);
  for (int set = 0; set < call->sets; set++)
    for (int i = 0; i < call->operand_count && fsdp_op_operand_row(op, &call->attrs, i); i++) {
      const fsdp_view *view = &call->views[set * call->operand_count + i];
      const float value = constant_of(call, &op->operands[i]);
      if ((view->access & FSDP_READ) && (view->dtype == FSDP_I32 || value != 0))
        write_view(call, op->operands[i].name, view, value);
    }
  if (device->table->flush) device->table->flush(device);
  if (call->kind == FSDP_PLAN_OP_ATTENTION_BACKWARD) run_once(call, fill_by_forward);
}

// ---- Making

// Where an operand lies: normal numbers that are only read are shared by all calls.
static void *place_of(probe *self, const probe_call *call, int i) {
  const fsdp_op_letters *op = fsdp_op_letters_of(call->kind);
  const fsdp_op_extent *extent = &call->extents[i];
  const bool by_forward = call->kind == FSDP_PLAN_OP_ATTENTION_BACKWARD && (i == 1 || i == 2);
  const bool normal = fsdp_op_operand_row(op, &call->attrs, i) && extent->access == FSDP_READ &&
                      extent->dtype == self->dtype && constant_of(call, &op->operands[i]) == 0 && !by_forward;
  return probe_take(normal ? &self->inputs : &self->outputs, extent->bytes);
}

static void list_operands(const probe *self, probe_call *call, int64_t flat) {
  const fsdp_op_letters *op = fsdp_op_letters_of(call->kind);
  fsdp_dtype dtypes[OPERANDS_MAX] = {FSDP_F32};
  const int named = fsdp_op_operand_count(op, &call->attrs);
  for (int i = 0; i < named; i++) dtypes[i] = dtype_of(self, call->kind, &op->operands[i]);
  fsdp_op_complete_attrs(self->device, &self->target, call->kind, &call->attrs, dtypes);
  for (int i = 0; i < named; i++) {
    const fsdp_op_operand *operand = &op->operands[i];
    if (operand->optional) continue; // the last one
    call->extents[call->operand_count++] =
        (fsdp_op_extent){dtypes[i], access_of(operand),
                         fsdp_op_operand_numel(&call->attrs, operand, flat) * fsdp_dtype_bytes(dtypes[i])};
  }
  const int64_t workspace = fsdp_op_workspace_bytes(self->device, call->kind, &call->attrs, flat);
  if (workspace > 0) call->extents[call->operand_count++] = (fsdp_op_extent){FSDP_F32, FSDP_WRITE, workspace};
}

static bool is_fresh_at(const probe_call *call, int i) {
  const fsdp_op_letters *op = fsdp_op_letters_of(call->kind);
  const bool workspace = !fsdp_op_operand_row(op, &call->attrs, i);
  return workspace || is_fresh(call->kind, &call->attrs, &op->operands[i]);
}

// Returns the bytes of a set.
static int64_t count_sets(const probe *self, probe_call *call) {
  int64_t bytes[2] = {0, 0}; // lasting, fresh
  for (int i = 0; i < call->operand_count; i++)
    bytes[is_fresh_at(call, i)] += fsdp_round_up(call->extents[i].bytes, 256);
  call->fresh_sets = probe_sets(self, bytes[1], true);
  call->sets = bytes[0] > 0 ? probe_sets(self, bytes[0], false) : call->fresh_sets;
  const bool dense = self->device == FSDP_OP_CPU && !fsdp_op_makes_gemms(call->kind) &&
                     fsdp_op_flops(call->kind, &call->attrs) > LONG_FLOPS;
  if (dense) call->sets = (int)fsdp_min_i64(call->sets, DENSE_SETS);
  return bytes[0] + bytes[1];
}

static bool place_operands(probe *self, probe_call *call) {
  const int count = call->operand_count;
  for (int set = 0; set < call->sets; set++)
    for (int i = 0; i < count; i++) {
      const fsdp_op_extent *extent = &call->extents[i];
      fsdp_view *view = &call->views[set * count + i];
      if (set >= call->fresh_sets && is_fresh_at(call, i)) {
        *view = call->views[set % call->fresh_sets * count + i];
        continue;
      }
      void *data = place_of(self, call, i);
      if (!data) return false;
      *view =
          (fsdp_view){data, extent->bytes / fsdp_dtype_bytes(extent->dtype), extent->dtype, extent->access};
    }
  return true;
}

// The choice of gemm algorithms leaves NaNs where the operands lie, with which gemms run faster than with
// numbers: it is made on memory of outputs, of which no other call is in use, and which is then zero again.
static void prepare(probe *self, const probe_call *call) {
  fsdp_device *device = self->session.device;
  probe_region scratch = {.memory = self->outputs.memory, .bytes = self->outputs.bytes};
  fsdp_view views[OPERANDS_MAX];
  for (int i = 0; i < call->operand_count; i++) {
    const fsdp_op_extent *extent = &call->extents[i];
    views[i] = (fsdp_view){probe_take(&scratch, extent->bytes),
                           extent->bytes / fsdp_dtype_bytes(extent->dtype), extent->dtype, extent->access};
  }
  const fsdp_kernel_call launch = {
      .kind = call->kind, .attrs = &call->attrs, .operands = views, .operand_count = call->operand_count};
  self->backend->prepare(&launch);
  fsdp_products_measure(self->backend->products);
  device->table->clear(device, scratch.memory, scratch.used);
  device->table->flush(device);
}

probe_call *probe_call_create(probe *self, fsdp_op_kind kind, const fsdp_op_attrs *attrs, int64_t flat) {
  probe_call *call = fsdp_alloc_zeroed(1, sizeof *call);
  *call = (probe_call){.self = self, .kind = kind, .attrs = *attrs};
  call->refreshes = fsdp_op_has(kind, FSDP_TRAIT_SHRINKS);
  list_operands(self, call, flat);
  const int64_t bytes = count_sets(self, call);
  call->views = fsdp_alloc_zeroed((size_t)(call->sets * call->operand_count), sizeof *call->views);
  if (bytes > self->outputs.bytes || !place_operands(self, call)) {
    probe_call_destroy(call);
    return NULL;
  }
  if (!self->active) return call;
  if (self->backend) prepare(self, call);
  fill(call);
  return call;
}

void probe_call_destroy(probe_call *call) {
  if (!call) return;
  free(call->views);
  free(call);
}

// ---- Running

static void run(void *context, const fsdp_stream_context *stream, int set) {
  const probe_call *call = context;
  const fsdp_kernel_call launch = {.kind = call->kind,
                                   .attrs = &call->attrs,
                                   .operands = &call->views[set * call->operand_count],
                                   .operand_count = call->operand_count,
                                   .pool = stream->pool,
                                   .stream = stream->native};
  call->self->kernels->kernels[call->kind](&launch);
}

probe_load probe_call_load(const probe *self, probe_call *call) {
  // A short kernel of a GPU takes no longer than a timestamp: it runs on every set between two.
  const double flops = fsdp_op_flops(call->kind, &call->attrs);
  // Of a CPU each run is timed, as a step's trace does.
  const bool cuda = self->device == FSDP_OP_CUDA, all = cuda && flops == 0;
  const bool updates = fsdp_op_phase_of(call->kind) == FSDP_OP_IN_UPDATE; // after the whole backward
  return (probe_load){.run = run,
                      .refresh = call->refreshes ? refresh : NULL,
                      .context = call,
                      .stream = FSDP_STREAM_COMPUTE,
                      .sets = call->sets,
                      .few = all                           ? 0
                             : !cuda || flops > LONG_FLOPS ? 1
                                                           : PASS_RUNS,
                      .cooled_bytes = cuda || flops > 0 ? 0
                                      : updates         ? COOLED_ALL
                                                        : COOLED_CORE};
}

double probe_call_measure(const probe *self, probe_call *call) {
  const probe_load load = probe_call_load(self, call);
  const double seconds = probe_measure(self, &load);
  return self->sweeps ? probe_sweeps_median(self->sweeps, seconds) : seconds;
}

fsdp_op_work probe_call_work(const probe_call *call) {
  const int count = call->operand_count;
  const bool has_workspace = !fsdp_op_operand_row(fsdp_op_letters_of(call->kind), &call->attrs, count - 1);
  return fsdp_op_work_of(call->kind, &call->attrs, call->extents, has_workspace ? count - 1 : count);
}

const fsdp_op_attrs *probe_call_attrs(const probe_call *call) {
  return &call->attrs;
}
