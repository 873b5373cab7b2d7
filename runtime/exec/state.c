#include "runtime/exec/state.h"

#include "runtime/base/check.h"
#include "runtime/base/progress.h"
#include "runtime/base/random.h"
#include "runtime/base/size.h"
#include "runtime/device/pool.h"
#include "runtime/plan/mesh/boxes.h"

#include <string.h>

// Bytes that are handed over at a time if the device prefers no number.
#define PIECE_BYTES ((int64_t)1 << 20)
// Elements that are read at a time for a snapshot: a few milliseconds from a GPU to pageable memory.
#define READ_ELEMS ((int64_t)16 << 20)
// Threads that convert what is handed over: more than saturate memory would gain nothing.
#define THREADS_MAX 8

// One unit's shard of one slot.
typedef struct shard {
  fsdp_device *device;
  unsigned char *data;
  int64_t numel;
  fsdp_dtype dtype;
} shard;

static shard shard_of(const fsdp_executor *executor, int unit, int tensor, fsdp_dtype dtype) {
  const fsdp_executor_config *config = fsdp_executor_config_of(executor);
  return (shard){.device = config->device,
                 .data = tensor < 0 ? NULL : fsdp_executor_tensor(executor, tensor),
                 .numel = config->plan->units->units[unit].shard_numel,
                 .dtype = dtype};
}

// One piece, in two dtypes.
typedef struct staging {
  int64_t bytes; // of each
  void *values, *converted;
  fsdp_pool *pool; // that converts; NULL: nothing is converted
} staging;

static staging staging_create(const fsdp_device *device, bool converts) {
  int64_t bytes = device->table->piece_bytes ? device->table->piece_bytes : PIECE_BYTES;
  return (staging){.bytes = bytes,
                   .values = fsdp_alloc((size_t)bytes),
                   .converted = fsdp_alloc((size_t)bytes),
                   .pool = converts ? fsdp_pool_create((int)fsdp_min_i64(fsdp_pool_processors(), THREADS_MAX))
                                    : NULL};
}

static void staging_destroy(staging *s) {
  if (s->pool) fsdp_pool_destroy(s->pool);
  free(s->converted);
  free(s->values);
}

// Writes `numel` staged values of `from` to a shard, rounded to its dtype, from element `first` on.
static void put_values(const shard *to, int64_t first, int64_t numel, fsdp_dtype from, const staging *s) {
  int64_t width = fsdp_dtype_bytes(to->dtype);
  const void *values = s->values;
  if (!to->data) return;
  if (from != to->dtype) {
    fsdp_view views[2] = {{.data = s->values, .numel = numel, .dtype = from, .access = FSDP_READ},
                          {.data = s->converted, .numel = numel, .dtype = to->dtype, .access = FSDP_WRITE}};
    fsdp_kernel_call call = {.kind = fsdp_op_move(FSDP_WRITE),
                             .attrs = &(fsdp_op_attrs){0},
                             .operands = views,
                             .operand_count = 2,
                             .pool = s->pool};
    fsdp_cpu_kernels()->kernels[call.kind](&call);
    values = s->converted;
  }
  to->device->table->write(to->device, to->data + first * width, values, numel * width);
}

static void clear(const shard *to) {
  if (to->data) to->device->table->clear(to->device, to->data, to->numel * fsdp_dtype_bytes(to->dtype));
}

void fsdp_state_read_shard(fsdp_executor *executor, int slot, int unit, int64_t first_elem, int64_t numel,
                           void *out) {
  const fsdp_plan *plan = fsdp_executor_config_of(executor)->plan;
  shard from = shard_of(executor, unit, plan->unit_state[unit].slot[slot], fsdp_plan_slot_dtype(plan, slot));
  FSDP_CHECK(from.data && first_elem >= 0 && numel >= 0 && first_elem <= from.numel - numel,
             "elements %lld + %lld of a shard of unit %d", (long long)first_elem, (long long)numel, unit);
  int64_t width = fsdp_dtype_bytes(from.dtype);
  // In pieces, each of them a sign of progress to the peers that wait meanwhile.
  for (int64_t done = 0; done < numel; done += READ_ELEMS) {
    int64_t piece = fsdp_min_i64(READ_ELEMS, numel - done);
    from.device->table->read(from.device, (char *)out + done * width, from.data + (first_elem + done) * width,
                             piece * width);
    fsdp_progress_mark();
  }
}

// What a walk over a slot does with each piece of a run.
typedef struct walk {
  fsdp_executor *executor;
  const fsdp_executor_config *config; // its
  int slot;
  fsdp_dtype dtype; // of the values handed over
  bool writes;      // what the callback gives, each replica a slice
  bool draws;       // the device draws the values, by `seed`; there is no callback then
  uint64_t seed;
  fsdp_state_callback callback; // NULL: zeros are all
  void *context;
  fsdp_error *error;
  staging staging;
} walk;

static void draw_run(const walk *self, const fsdp_shard_run *run, const shard *to) {
  if (!to->data) return;
  const fsdp_param *param = &self->config->plan->graph->params[run->param];
  fsdp_drawing drawing = {.seed = self->seed,
                          .stream = fsdp_random_stream(param->name),
                          .first = run->element_index,
                          .numel = run->numel,
                          .zero_first = param->zero_first,
                          .zero_numel = param->zero_numel,
                          .mean = param->init_mean,
                          .deviation = param->init_deviation};
  self->config->kernels->draw(&drawing, to->data + run->shard_offset * fsdp_dtype_bytes(to->dtype), to->dtype,
                              to->device->table->write_stream(to->device));
}

static fsdp_status walk_run(const walk *self, int unit, const fsdp_shard_run *run, const shard *data,
                            const shard *copy) {
  const fsdp_plan *plan = self->config->plan;
  int64_t piece = self->staging.bytes / (int64_t)sizeof(float), width = fsdp_dtype_bytes(data->dtype);
  if (self->draws) {
    draw_run(self, run, data);
    draw_run(self, run, copy);
    return FSDP_OK;
  }
  for (int64_t done = 0; done < run->numel; done += piece) {
    fsdp_state_range range = {.unit = unit,
                              .param = plan->graph->params[run->param].whole,
                              .name = plan->graph->params[run->param].name,
                              .first_elem = run->element_index + done,
                              .numel = fsdp_min_i64(piece, run->numel - done),
                              .dtype = self->dtype};
    int64_t at = run->shard_offset + done;
    fsdp_progress_mark();
    if (!self->writes) {
      data->device->table->read(data->device, self->staging.values, data->data + at * width,
                                range.numel * width);
    }
    fsdp_status status = self->callback(self->context, &range, self->staging.values, self->error);
    if (status != FSDP_OK) return status;
    if (!self->writes) continue;
    put_values(data, at, range.numel, self->dtype, &self->staging);
    put_values(copy, at, range.numel, self->dtype, &self->staging);
  }
  return FSDP_OK;
}

// Elements [first, first + numel) of the shard.
static fsdp_status walk_range(const walk *self, int unit, const shard *data, const shard *copy, int64_t first,
                              int64_t numel) {
  const fsdp_plan *plan = self->config->plan;
  const int rank = self->config->rank;
  int64_t begin = fsdp_units_shard_begin(plan->units, unit, rank);
  const fsdp_unit_range range = {.unit = unit, .rank = rank, .first = begin + first, .numel = numel};
  int count = 0;
  fsdp_shard_run *runs = fsdp_units_runs(plan->units, plan->graph, &range, &count);
  fsdp_status status = FSDP_OK;
  for (int i = 0; i < count && status == FSDP_OK; i++) {
    runs[i].shard_offset += first;
    status = walk_run(self, unit, &runs[i], data, copy);
  }
  free(runs);
  return status;
}

// What this replica loads of a shard, or hands over: of one that an exchange completes its slice, and what is
// left over after the last one's.
static fsdp_status walk_slice(const walk *self, int unit, const shard *data, const shard *copy) {
  const fsdp_plan *plan = self->config->plan;
  const fsdp_unit *u = &plan->units->units[unit];
  const bool sliced = self->writes && self->callback && plan->config.exchange && u->replica_count > 1;
  const int64_t slice = sliced ? fsdp_unit_slice(u) : 0, rest = slice * u->replica_count;
  const int replica = fsdp_mesh_group_of(&plan->units->mesh, u->replica_axes, self->config->rank).rank;
  fsdp_status status = walk_range(self, unit, data, copy, slice * replica, slice);
  return status ? status : walk_range(self, unit, data, copy, rest, data->numel - rest);
}

static fsdp_status walk_unit(const walk *self, int unit) {
  const fsdp_plan *plan = self->config->plan;
  const fsdp_unit_state *state = &plan->unit_state[unit];
  shard data =
      shard_of(self->executor, unit, state->slot[self->slot], fsdp_plan_slot_dtype(plan, self->slot));
  const bool exchanged = self->writes && self->callback && plan->config.exchange;
  const bool copies = self->slot == FSDP_SLOT_MASTER && !exchanged;
  shard copy = shard_of(self->executor, unit, copies ? state->copy : -1, plan->config.param_dtype);
  if (!data.data) return FSDP_OK;
  if (self->writes) {
    clear(&data);
    clear(&copy);
  }
  return self->callback || self->draws ? walk_slice(self, unit, &data, &copy) : FSDP_OK;
}

static fsdp_status walk_all(walk self) {
  self.config = fsdp_executor_config_of(self.executor);
  fsdp_device *device = self.config->device;
  const fsdp_units *units = self.config->plan->units;
  self.staging = staging_create(device, self.writes && self.callback);
  fsdp_status status = FSDP_OK;
  for (int u = 0; u < units->count && status == FSDP_OK; u++) {
    if (units->units[u].shard_numel > 0) status = walk_unit(&self, u);
  }
  if (self.writes && device->table->flush) device->table->flush(device);
  staging_destroy(&self.staging);
  return status;
}

// The slots that begin a new run with zeros.
static fsdp_status clear_slots(fsdp_executor *executor, fsdp_error *error) {
  const fsdp_optimizer *optimizer = fsdp_executor_config_of(executor)->plan->optimizer;
  fsdp_status status = FSDP_OK;
  for (int slot = 0; slot < optimizer->slot_count && status == FSDP_OK; slot++) {
    if (optimizer->slots[slot].start != FSDP_SLOT_FROM_ZERO) continue;
    status = walk_all((walk){.executor = executor, .slot = slot, .writes = true, .error = error});
  }
  return status;
}

fsdp_status fsdp_state_fill(fsdp_executor *executor, fsdp_state_callback source, void *context,
                            fsdp_error *error) {
  fsdp_status status = walk_all((walk){.executor = executor,
                                       .slot = FSDP_SLOT_MASTER,
                                       .dtype = FSDP_F32,
                                       .writes = true,
                                       .callback = source,
                                       .context = context,
                                       .error = error});
  return status == FSDP_OK ? clear_slots(executor, error) : status;
}

void fsdp_state_draw(fsdp_executor *executor, uint64_t seed) {
  fsdp_error none = {0};
  walk_all((walk){.executor = executor,
                  .slot = FSDP_SLOT_MASTER,
                  .writes = true,
                  .draws = true,
                  .seed = seed,
                  .error = &none});
  clear_slots(executor, &none);
}

// A walk over a slot in its own dtype.
static fsdp_status walk_slot(walk all) {
  all.dtype = fsdp_plan_slot_dtype(fsdp_executor_config_of(all.executor)->plan, all.slot);
  return walk_all(all);
}

fsdp_status fsdp_state_save(fsdp_executor *executor, int slot, fsdp_state_callback sink, void *context,
                            fsdp_error *error) {
  return walk_slot(
      (walk){.executor = executor, .slot = slot, .callback = sink, .context = context, .error = error});
}

fsdp_status fsdp_state_load(fsdp_executor *executor, int slot, fsdp_state_callback source, void *context,
                            fsdp_error *error) {
  return walk_slot((walk){.executor = executor,
                          .slot = slot,
                          .writes = true,
                          .callback = source,
                          .context = context,
                          .error = error});
}
