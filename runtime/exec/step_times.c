#include "runtime/exec/step_times.h"

#include "runtime/base/check.h"
#include "runtime/base/clock.h"

#include <math.h>

#define STEPS 3 // kept: the newest, which may still run, and the two before

// The timestamps of an instruction, by number within a step; -1: none.
typedef struct marks {
  int begin, end;
  bool always_begin, always_end; // not in traced steps alone
} marks;

struct fsdp_step_times {
  fsdp_step_times_config config;
  fsdp_exposure_meter *meter;
  const fsdp_issue_order *order;
  bool queues;                   // of the device
  bool communicates;             // the program has a collective
  unsigned char *phase;          // by place
  marks *marks;                  // by place
  int mark_count;                // of a step
  fsdp_instr_time *times[STEPS]; // by step modulo STEPS; of queues: from the step's first timestamp on
  int64_t converted[STEPS];      // of queues: the step whose timestamps are in `times`
  fsdp_instr_time *placed[2];    // of queues: the measured step and the one before, on the host's clock
  int64_t origin_ns;
  fsdp_timeline *timeline; // NULL: none
  int64_t newest_traced;
  // Of queues, until the timeline is handed out: the first traced step's first timestamp on the host's clock,
  // and how long after it the newest traced step's is.
  double trace_base_s, trace_shift_s;
};

static const fsdp_instr *instr_at(const fsdp_step_times *self, int64_t place) {
  return &self->config.program->instrs[self->order->position[place]];
}

static bool is_queued(const fsdp_step_times *self, int64_t place) {
  return self->queues && instr_at(self, place)->stream != FSDP_STREAM_HOST;
}

static bool is_traced(const fsdp_step_times *self, int64_t step) {
  return step >= self->config.traced.first && step <= self->config.traced.last;
}

static bool is_timed(const fsdp_step_times *self, int64_t step) {
  return step > 0 && (!self->queues || self->communicates || is_traced(self, step));
}

// ---- Creation

static bool waits_for_others(const fsdp_program *program, const fsdp_instr *instr) {
  for (int w = 0; w < instr->wait_count; w++)
    if (program->instrs[program->waits[instr->first_wait + w].position].stream != instr->stream) return true;
  return false;
}

static int64_t run_end(const fsdp_issue_order *order, int run) {
  return run + 1 < order->run_count ? order->run_begin[run + 1] : order->count;
}

static void find_phases(fsdp_step_times *self) {
  self->phase = fsdp_alloc((size_t)self->order->count + 1);
  for (int run = 0; run < self->order->run_count; run++) {
    bool updates = self->config.program->sections[self->order->run_section[run]].kind == FSDP_SECTION_UPDATE;
    fsdp_phase phase = updates ? FSDP_PHASE_UPDATE : FSDP_PHASE_FORWARD;
    for (int64_t k = self->order->run_begin[run]; k < run_end(self->order, run); k++) {
      const fsdp_instr *instr = instr_at(self, k);
      bool is_backward = instr->kind == FSDP_INSTR_OP && fsdp_op_phase_of(instr->op) == FSDP_OP_IN_BACKWARD;
      if (phase == FSDP_PHASE_FORWARD && is_backward) phase = FSDP_PHASE_BACKWARD;
      self->phase[k] = (unsigned char)phase;
    }
  }
}

// Which timestamps untraced steps need: of the compute stream the ends of each phase, too.
static void choose_marks(fsdp_step_times *self) {
  int64_t before = -1; // on the compute stream
  for (int64_t k = 0; k < self->order->count; k++) {
    const fsdp_instr *instr = instr_at(self, k);
    marks *mine = &self->marks[k];
    *mine = (marks){.begin = -1, .end = -1};
    if (!is_queued(self, k)) continue;
    mine->always_begin = mine->always_end = self->communicates;
    if (instr->stream != FSDP_STREAM_COMPUTE) continue;
    bool same_phase = before >= 0 && self->phase[before] == self->phase[k] &&
                      self->order->run[before] == self->order->run[k];
    mine->always_begin = !same_phase || (self->communicates && waits_for_others(self->config.program, instr));
    mine->always_end = false;
    if (before >= 0) self->marks[before].always_end = mine->always_begin;
    before = k;
  }
  if (before >= 0) self->marks[before].always_end = true;
}

static void number_marks(fsdp_step_times *self) {
  bool traces = self->config.traced.last > 0;
  for (int64_t k = 0; k < self->order->count; k++) {
    marks *mine = &self->marks[k];
    if (!is_queued(self, k)) continue;
    if (traces || mine->always_begin) mine->begin = self->mark_count++;
    if (traces || mine->always_end) mine->end = self->mark_count++;
  }
  if (self->mark_count == 0) return;
  self->config.device->table->reserve_timestamps(self->config.device, STEPS * self->mark_count);
}

static fsdp_instr_time *make_times(int64_t count) {
  fsdp_instr_time *times = fsdp_alloc(((size_t)count + 1) * sizeof *times);
  for (int64_t k = 0; k < count; k++) times[k] = FSDP_INSTR_TIME_NONE;
  return times;
}

fsdp_step_times *fsdp_step_times_create(const fsdp_step_times_config *config) {
  fsdp_step_times *self = fsdp_alloc_zeroed(1, sizeof *self);
  self->config = *config;
  self->meter = fsdp_exposure_meter_create(config->program);
  self->order = fsdp_exposure_meter_order(self->meter);
  self->queues = config->device->table->enqueues;
  for (int64_t k = 0; k < self->order->count; k++)
    self->communicates = self->communicates || fsdp_instr_is_collective(instr_at(self, k));
  for (int s = 0; s < STEPS; s++) self->times[s] = make_times(self->order->count);
  find_phases(self);
  if (self->queues) {
    for (int s = 0; s < 2; s++) self->placed[s] = make_times(self->order->count);
    self->marks = fsdp_alloc(((size_t)self->order->count + 1) * sizeof *self->marks);
    choose_marks(self);
    number_marks(self);
  }
  self->origin_ns = fsdp_now_ns();
  if (config->traced.last > 0) {
    int64_t steps = config->traced.last - config->traced.first + 1;
    self->timeline = fsdp_timeline_create(config->program, steps * self->order->count);
  }
  return self;
}

void fsdp_step_times_destroy(fsdp_step_times *self) {
  if (!self) return;
  fsdp_exposure_meter_destroy(self->meter);
  for (int s = 0; s < STEPS; s++) free(self->times[s]);
  for (int s = 0; s < 2; s++) free(self->placed[s]);
  free(self->marks);
  free(self->phase);
  fsdp_timeline_destroy(self->timeline);
  free(self);
}

// ---- On the streams

void fsdp_step_times_record(fsdp_step_times *self, int64_t step, int64_t place, int64_t begin_ns,
                            int64_t end_ns) {
  self->times[step % STEPS][place] = (fsdp_instr_time){(double)(begin_ns - self->origin_ns) * 1e-9,
                                                       (double)(end_ns - self->origin_ns) * 1e-9};
}

// The timestamp's number, or -1 if it is not taken in this step.
static int slot_of(const fsdp_step_times *self, int64_t step, int64_t place, bool ends) {
  const marks *mine = &self->marks[place];
  bool taken = ends ? mine->always_end : mine->always_begin;
  if (!taken && !is_traced(self, step)) return -1;
  return (int)(step % STEPS) * self->mark_count + (ends ? mine->end : mine->begin);
}

void fsdp_step_times_mark(fsdp_step_times *self, int64_t step, int64_t place,
                          const fsdp_stream_context *context, bool ends) {
  int slot = slot_of(self, step, place, ends);
  if (slot >= 0) self->config.device->table->timestamp(self->config.device, context, slot);
}

// ---- Device times to the host's clock

// The first timestamp of a step, which its others count from.
static int first_slot(const fsdp_step_times *self, int64_t step) {
  for (int64_t k = 0; k < self->order->count; k++) {
    int slot = is_queued(self, k) ? slot_of(self, step, k, false) : -1;
    if (slot >= 0) return slot;
  }
  FSDP_CHECK(false, "step %lld has no timestamp", (long long)step);
}

static double between_s(const fsdp_step_times *self, int from, int to) {
  return self->config.device->table->timestamp_ms(self->config.device, from, to) * 1e-3;
}

// The timestamps of a complete step into its times. A stretch of the compute stream that was timed at its
// ends alone stands as one long instruction in the place of its first.
static void convert(fsdp_step_times *self, int64_t step) {
  if (self->converted[step % STEPS] == step) return;
  self->converted[step % STEPS] = step;
  int from = first_slot(self, step);
  int64_t open[FSDP_STREAM_COUNT];
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) open[s] = -1;
  fsdp_instr_time *times = self->times[step % STEPS];
  for (int64_t k = 0; k < self->order->count; k++) {
    if (!is_queued(self, k)) continue;
    fsdp_stream stream = instr_at(self, k)->stream;
    times[k] = FSDP_INSTR_TIME_NONE;
    int begin = slot_of(self, step, k, false), end = slot_of(self, step, k, true);
    if (begin >= 0) {
      open[stream] = k;
      times[k].begin_s = between_s(self, from, begin);
      times[k].end_s = times[k].begin_s;
    }
    if (end >= 0) times[open[stream]].end_s = fmax(between_s(self, from, end), times[open[stream]].begin_s);
  }
}

// Where on the host's clock the step's first timestamp was, at the latest.
static double base_of(const fsdp_step_times *self, int64_t step) {
  const fsdp_instr_time *times = self->times[step % STEPS];
  const fsdp_program *program = self->config.program;
  double base_s = INFINITY;
  for (int64_t k = 0; k < self->order->count; k++) {
    const fsdp_instr *instr = instr_at(self, k);
    if (is_queued(self, k)) continue;
    for (int w = 0; w < instr->wait_count; w++) {
      fsdp_issue awaited;
      int position = program->waits[instr->first_wait + w].position;
      if (!fsdp_issue_order_latest(self->order, k, position, &awaited) || awaited.steps_back > 0) continue;
      fsdp_instr_time time = times[awaited.place];
      if (is_queued(self, awaited.place) && time.end_s >= time.begin_s)
        base_s = fmin(base_s, times[k].begin_s - time.end_s);
    }
  }
  FSDP_CHECK(isfinite(base_s), "no instruction of the host waits for one of the device");
  return base_s;
}

static void place_times(const fsdp_step_times *self, int64_t step, double base_s, fsdp_instr_time *placed) {
  const fsdp_instr_time *times = self->times[step % STEPS];
  for (int64_t k = 0; k < self->order->count; k++) {
    bool moves = is_queued(self, k) && times[k].end_s >= times[k].begin_s;
    placed[k].begin_s = times[k].begin_s + (moves ? base_s : 0);
    placed[k].end_s = times[k].end_s + (moves ? base_s : 0);
  }
}

// ---- Sums

// The times of a phase in one run: of threads, and the places of a device's queue that begin and end it.
typedef struct phase_span {
  double begin_s, end_s;
  int64_t first, last; // -1: none
} phase_span;

static double span_s(const fsdp_step_times *self, int64_t step, const phase_span *span) {
  const double threads_s = span->end_s < span->begin_s ? 0 : span->end_s - span->begin_s;
  if (span->first < 0) return threads_s;
  const int from = slot_of(self, step, span->first, false), to = slot_of(self, step, span->last, true);
  return fmax(threads_s, between_s(self, from, to)); // an update may run in both, side by side
}

static void add_run(const fsdp_step_times *self, int64_t step, int run, fsdp_step_sums *sums) {
  phase_span spans[FSDP_PHASE_COUNT];
  for (int p = 0; p < FSDP_PHASE_COUNT; p++) spans[p] = (phase_span){INFINITY, -INFINITY, -1, -1};
  for (int64_t k = self->order->run_begin[run]; k < run_end(self->order, run); k++) {
    const fsdp_instr *instr = instr_at(self, k);
    const fsdp_instr_time *time = &self->times[step % STEPS][k];
    const bool computes = instr->stream == FSDP_STREAM_COMPUTE;
    phase_span *span = &spans[self->phase[k]];
    if (is_queued(self, k)) {
      if (computes && span->first < 0) span->first = k;
      if (computes) span->last = k;
      continue;
    }
    const double ms = 1e3 * (time->end_s - time->begin_s);
    sums->busy_ms[instr->stream] += ms;
    if (instr->kind == FSDP_INSTR_OP) sums->op_ms[instr->op] += ms;
    if (!computes && self->phase[k] != FSDP_PHASE_UPDATE) continue;
    span->begin_s = fmin(span->begin_s, time->begin_s);
    span->end_s = fmax(span->end_s, time->end_s);
  }
  for (int p = 0; p < FSDP_PHASE_COUNT; p++) sums->phase_ms[p] += 1e3 * span_s(self, step, &spans[p]);
}

void fsdp_step_times_sum(const fsdp_step_times *self, int64_t step, fsdp_step_sums *sums) {
  *sums = (fsdp_step_sums){0};
  for (int run = 0; run < self->order->run_count; run++) add_run(self, step, run, sums);
}

// ---- The measured step

// Appends a traced step to the timeline. Queued instructions count from the first traced step's first
// timestamp until all are there: the least of the steps' bases is the best.
static void append(fsdp_step_times *self, int64_t step) {
  bool first = step == self->config.traced.first;
  FSDP_CHECK(first || self->newest_traced == step - 1, "step %lld is traced before the one before it",
             (long long)step);
  self->newest_traced = step;
  if (self->queues) {
    self->trace_shift_s =
        first ? 0 : self->trace_shift_s + between_s(self, first_slot(self, step - 1), first_slot(self, step));
    double base_s = base_of(self, step) - self->trace_shift_s;
    self->trace_base_s = first ? base_s : fmin(self->trace_base_s, base_s);
  }
  const fsdp_instr_time *times = self->times[step % STEPS];
  for (int64_t k = 0; k < self->order->count; k++) {
    double shift_s = is_queued(self, k) ? self->trace_shift_s : 0;
    fsdp_timeline_append(self->timeline, &(fsdp_timeline_event){.rank = self->config.rank,
                                                                .position = self->order->position[k],
                                                                .step = step,
                                                                .run = self->order->run[k],
                                                                .begin_s = times[k].begin_s + shift_s,
                                                                .end_s = times[k].end_s + shift_s});
  }
}

void fsdp_step_times_measure(fsdp_step_times *self, int64_t step, fsdp_exposure *exposure) {
  *exposure = (fsdp_exposure){0};
  if (!is_timed(self, step)) return;
  bool follows = is_timed(self, step - 1);
  const fsdp_instr_time *steps[3] = {follows ? self->times[(step - 1) % STEPS] : NULL,
                                     self->times[step % STEPS], NULL};
  if (self->queues) {
    convert(self, step);
    double base_s = base_of(self, step);
    place_times(self, step, base_s, self->placed[1]);
    if (follows) {
      convert(self, step - 1);
      double before_s = base_s - between_s(self, first_slot(self, step - 1), first_slot(self, step));
      place_times(self, step - 1, before_s, self->placed[0]);
    }
    steps[0] = follows ? self->placed[0] : NULL;
    steps[1] = self->placed[1];
  }
  fsdp_exposure_measure(self->meter, steps, exposure);
  if (is_traced(self, step) && step > self->newest_traced) append(self, step);
}

const fsdp_timeline *fsdp_step_times_timeline(fsdp_step_times *self, int64_t *origin_ns) {
  *origin_ns = self->origin_ns;
  for (int64_t e = 0; self->queues && self->timeline && e < self->timeline->count; e++) {
    fsdp_timeline_event *event = &self->timeline->events[e];
    if (self->config.program->instrs[event->position].stream == FSDP_STREAM_HOST) continue;
    event->begin_s += self->trace_base_s;
    event->end_s += self->trace_base_s;
  }
  self->trace_base_s = 0; // they are in place now
  return self->timeline;
}
