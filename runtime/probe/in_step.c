// The rates of ops that memory bounds, from timelines of steps of small models: they depend on what the ops
// before have left in caches, and on the core that has written it, which turns of operands only come near to.
//
//   a model of each family below, of a few sizes ─► plan of one rank ─► steps with a timeline
//     ─► seconds of each op, by the bytes that it moves ─► points of its curve
//
// Of a CPU. A GPU's caches hold little of what a step writes.
#include "runtime/base/check.h"
#include "runtime/exec/trial.h"
#include "runtime/plan/price/price.h"
#include "runtime/probe/run.h"

#include <stdlib.h>

#define WARM_UP_STEPS 1
#define TIMED_STEPS   2
#define SIZES_MAX     16
#define ALIKE         1.25 // below this ratio two sizes of an op count as one

// An op that steps had, and its seconds there.
typedef struct met_op {
  fsdp_op_kind kind;
  double bytes, seconds;
} met_op;

typedef struct met_ops {
  met_op *ops;
  int count;
} met_ops;

typedef struct shape {
  int64_t batch, seq;
} shape;

// A model of the preset's family, of few layers.
static fsdp_model_config small_model(const char *preset) {
  fsdp_model_config model;
  fsdp_error error;
  FSDP_CHECK(fsdp_model_preset(preset, &model, &error) == FSDP_OK, "%s", error.message);
  model.num_layers = 2;
  model.intermediate_size = model.intermediate_size * 256 / model.hidden_size;
  model.hidden_size = 256;
  model.num_kv_heads = model.num_kv_heads < model.num_heads ? 2 : 4;
  model.num_heads = 4;
  model.head_dim = 64;
  model.rotary_dim = 0;
  model.vocab_size = 2048;
  model.max_position_embeddings = 4096;
  return model;
}

static fsdp_plan *make_plan(const probe *self, const fsdp_model_config *model, shape size) {
  const fsdp_plan_config config = {
      .model = *model,
      .batch = size.batch,
      .seq = size.seq,
      .micro_batches = 1,
      .strategy = FSDP_FULL,
      .mesh = fsdp_mesh_of(1, 1),
      .wrap = {.kind = FSDP_WRAP_BLOCK},
      .param_dtype = self->dtype,
      .grad_clip = 1,
      .hyper = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8f, .weight_decay = 0.01f},
      .backend = fsdp_plan_backend_cpu()};
  fsdp_plan *plan;
  fsdp_error error;
  FSDP_CHECK(fsdp_plan_create(&config, &plan, &error) == FSDP_OK, "%s", error.message);
  return plan;
}

// ---- Steps

typedef struct timed {
  const fsdp_plan *plan;
  double *seconds; // (instructions, TIMED_STEPS)
  int *count;      // by instruction: steps that it was timed in
} timed;

static void take_times(void *context, fsdp_trial_rank *rank) {
  timed *t = context;
  int64_t origin_ns;
  const fsdp_timeline *timeline = fsdp_executor_timeline(rank->session.executor, &origin_ns);
  for (int64_t i = 0; i < timeline->count; i++) {
    const fsdp_timeline_event *event = &timeline->events[i];
    int *count = &t->count[event->position];
    if (*count < TIMED_STEPS)
      t->seconds[event->position * TIMED_STEPS + (*count)++] = event->end_s - event->begin_s;
  }
}

static void run_steps(const probe *self, timed *t) {
  const fsdp_plan_config *config = &t->plan->config;
  const int steps = WARM_UP_STEPS + TIMED_STEPS;
  const int64_t tokens = steps * config->batch * config->seq;
  int32_t *drawn = fsdp_alloc((size_t)tokens * sizeof *drawn);
  for (int64_t i = 0; i < tokens; i++) drawn[i] = probe_token(config->model.vocab_size, i);
  const fsdp_trial_config trial = {.plan = t->plan,
                                   .steps = steps,
                                   .lr = 1e-4f,
                                   .seed = 1,
                                   .kernel_threads = self->threads,
                                   .tokens = drawn,
                                   .targets = drawn,
                                   .traced = {WARM_UP_STEPS + 1, steps},
                                   .hooks = {.context = t, .ended = take_times}};
  fsdp_trial_destroy(fsdp_trial_run(&trial));
  free(drawn);
}

// ---- Ops

// The index of an op with these bytes, which is added if there is none.
static int index_of(met_ops *met, fsdp_op_kind kind, double bytes) {
  for (int i = 0; i < met->count; i++)
    if (met->ops[i].kind == kind && met->ops[i].bytes == bytes) return i;
  met->ops = fsdp_realloc(met->ops, (size_t)(met->count + 1) * sizeof *met->ops);
  met->ops[met->count] = (met_op){.kind = kind, .bytes = bytes};
  return met->count++;
}

static fsdp_profile_op *entry_of(const probe *self, fsdp_op_kind kind) {
  for (int i = 0; i < self->profile->op_count; i++) {
    fsdp_profile_op *entry = &self->profile->ops[i];
    if (entry->op == kind && entry->ranks == self->scope && entry->dtype == self->dtype) return entry;
  }
  return NULL;
}

// Whether the instruction is an op that memory bounds, and that has the rank's threads to itself: nothing is
// gathered ahead. The update is left out: the state of these models stays in caches, that of others does not.
static bool is_met(const probe *self, const fsdp_plan *plan, const fsdp_instr *instr) {
  const bool alone = instr->stream == FSDP_STREAM_COMPUTE || instr->stream == FSDP_STREAM_GATHER;
  return instr->kind == FSDP_INSTR_OP && alone && instr->op != plan->optimizer->update &&
         !fsdp_op_makes_gemms(instr->op) && entry_of(self, instr->op);
}

// Adds the plan's ops, with the median seconds of all that move as many bytes.
static void add_ops(const probe *self, const timed *t, met_ops *met) {
  const fsdp_program *program = t->plan->program;
  int *of = fsdp_alloc((size_t)program->instr_count * sizeof *of);
  double *seconds = fsdp_alloc((size_t)program->instr_count * TIMED_STEPS * sizeof *seconds);
  met_ops mine = {0};
  for (int i = 0; i < program->instr_count; i++) {
    const fsdp_instr *instr = &program->instrs[i];
    of[i] =
        is_met(self, t->plan, instr) ? index_of(&mine, instr->op, fsdp_price_work(t->plan, instr).bytes) : -1;
  }
  for (int m = 0; m < mine.count; m++) {
    int count = 0;
    for (int i = 0; i < program->instr_count; i++)
      for (int s = 0; of[i] == m && s < t->count[i]; s++) seconds[count++] = t->seconds[i * TIMED_STEPS + s];
    const double median = probe_mean(self, count ? probe_median(seconds, count, 4, NULL) : 0);
    FSDP_CHECK(median > 0, "%s was not timed", fsdp_op_name(mine.ops[m].kind));
    const int index = index_of(met, mine.ops[m].kind, mine.ops[m].bytes);
    met->ops[index].seconds = probe_sweeps_median(self->sweeps, median);
  }
  free(mine.ops);
  free(seconds);
  free(of);
}

static void measure_plan(const probe *self, const fsdp_plan *plan, met_ops *met) {
  const size_t instrs = (size_t)plan->program->instr_count;
  timed t = {.plan = plan,
             .seconds = fsdp_alloc(instrs * TIMED_STEPS * sizeof(double)),
             .count = fsdp_alloc_zeroed(instrs, sizeof(int))};
  fsdp_world_barrier(self->world);
  if (self->active) run_steps(self, &t);
  add_ops(self, &t, met);
  free(t.seconds);
  free(t.count);
}

// Whether the plan has an op that no plan before it had.
static bool has_another(const probe *self, const fsdp_plan *plan, const met_ops *met) {
  bool had[FSDP_OP_KIND_COUNT] = {false};
  for (int i = 0; i < met->count; i++) had[met->ops[i].kind] = true;
  for (int i = 0; i < plan->program->instr_count; i++)
    if (is_met(self, plan, &plan->program->instrs[i]) && !had[plan->program->instrs[i].op]) return true;
  return false;
}

// Measures steps of each size, if the model has an op that no model before it had.
static void measure_model(const probe *self, const fsdp_model_config *model, met_ops *met) {
  static const shape shapes[] = {{2, 256}, {1, 128}, {2, 1024}};
  const int count = self->coarse ? 1 : sizeof shapes / sizeof *shapes;
  bool wanted = true;
  for (int s = 0; s < count && wanted; s++) {
    fsdp_plan *plan = make_plan(self, model, shapes[s]);
    wanted = s > 0 || has_another(self, plan, met);
    if (wanted) measure_plan(self, plan, met);
    fsdp_plan_destroy(plan);
  }
}

// ---- Curves

static int by_bytes(const void *a, const void *b) {
  const met_op *x = a, *y = b;
  return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

// Bytes per second of an op, by bytes, ascending. Nearly the same bytes, as other shapes have, are one point.
static int list_rates(const met_ops *met, fsdp_op_kind kind, fsdp_profile_point points[SIZES_MAX]) {
  int count = 0;
  double bytes = 0, seconds = 0, first = 0;
  for (int i = 0; i < met->count; i++) {
    const met_op *op = &met->ops[i];
    if (op->kind != kind) continue;
    if (count == 0 || op->bytes > ALIKE * first) {
      FSDP_CHECK(count < SIZES_MAX, "more than %d sizes of an op", SIZES_MAX);
      count++;
      bytes = seconds = 0;
      first = op->bytes;
    }
    bytes += op->bytes;
    seconds += op->seconds;
    points[count - 1] = (fsdp_profile_point){first, bytes / seconds};
  }
  return count;
}

void probe_settle_curve(fsdp_profile_curve *curve, const fsdp_profile_point *met, int count) {
  fsdp_profile_point *ratios = fsdp_alloc((size_t)count * sizeof *ratios), *points;
  points = fsdp_alloc((size_t)(curve->count + count) * sizeof *points);
  const fsdp_profile_curve ratio = {ratios, count};
  int total = 0, next = 0;
  for (int i = 0; i < count; i++)
    ratios[i] = (fsdp_profile_point){met[i].size, met[i].value / fsdp_profile_curve_at(curve, met[i].size)};
  for (int i = 0; i <= curve->count; i++) {
    const fsdp_profile_point *old = i < curve->count ? &curve->points[i] : NULL;
    while (next < count && (!old || met[next].size < ALIKE * old->size)) points[total++] = met[next++];
    if (old && (!next || old->size > ALIKE * met[next - 1].size))
      points[total++] =
          (fsdp_profile_point){old->size, old->value * fsdp_profile_curve_at(&ratio, old->size)};
  }
  free(ratios);
  free(curve->points);
  *curve = (fsdp_profile_curve){points, total};
}

void probe_in_step(probe *self) {
  if (self->device == FSDP_OP_CUDA) return;
  met_ops met = {0};
  const char *preset;
  for (int i = 0; (preset = fsdp_model_preset_name(i)) != NULL; i++) {
    const fsdp_model_config model = small_model(preset);
    if (!model.experts) measure_model(self, &model, &met);
  }
  qsort(met.ops, (size_t)met.count, sizeof *met.ops, by_bytes);
  for (int kind = 0; kind < FSDP_OP_KIND_COUNT; kind++) {
    fsdp_profile_point points[SIZES_MAX];
    const int count = list_rates(&met, (fsdp_op_kind)kind, points);
    if (count > 0) probe_settle_curve(&entry_of(self, (fsdp_op_kind)kind)->rate, points, count);
  }
  free(met.ops);
}
