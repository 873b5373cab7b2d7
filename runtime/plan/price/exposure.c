#include "runtime/plan/price/exposure.h"

#include "runtime/base/check.h"
#include "runtime/plan/price/extremes.h"

#include <math.h>
#include <string.h>

#define WORK_STREAMS 2 // compute, host

// An instruction that ran: in steps[slot], at a place in the order of issue.
typedef struct issued {
  int slot;
  int64_t issue;
} issued;

struct fsdp_exposure_meter {
  fsdp_issue_order *order;
  double *unit_s; // by unit + 1
  int unit_count;
  void (*visit)(void *context, const fsdp_exposed_part *part);
  void *visit_context;
};

static const fsdp_stream work_streams[WORK_STREAMS] = {FSDP_STREAM_COMPUTE, FSDP_STREAM_HOST};

// ---- Tables

fsdp_exposure_meter *fsdp_exposure_meter_create(const fsdp_program *program) {
  fsdp_exposure_meter *meter = fsdp_alloc_zeroed(1, sizeof *meter);
  meter->order = fsdp_issue_order_create(program);
  for (int64_t k = 0; k < meter->order->count; k++) {
    const fsdp_instr *instr = &program->instrs[meter->order->position[k]];
    if (instr->unit >= meter->unit_count) meter->unit_count = instr->unit + 1;
  }
  meter->unit_s = fsdp_alloc_zeroed((size_t)meter->unit_count + 1, sizeof *meter->unit_s);
  return meter;
}

void fsdp_exposure_meter_destroy(fsdp_exposure_meter *meter) {
  if (!meter) return;
  fsdp_issue_order_destroy(meter->order);
  free(meter->unit_s);
  free(meter);
}

const fsdp_issue_order *fsdp_exposure_meter_order(const fsdp_exposure_meter *meter) {
  return meter->order;
}

void fsdp_exposure_meter_visit(fsdp_exposure_meter *meter,
                               void (*visit)(void *context, const fsdp_exposed_part *part), void *context) {
  meter->visit = visit;
  meter->visit_context = context;
}

// ---- What an instruction follows

typedef struct walker {
  fsdp_exposure_meter *meter;
  const fsdp_instr_time *const *steps;
  fsdp_exposure *exposure;
} walker;

static const fsdp_instr *instr_of(const walker *walk, issued which) {
  const fsdp_issue_order *order = walk->meter->order;
  return &order->program->instrs[order->position[which.issue]];
}

static fsdp_instr_time time_of(const walker *walk, issued which) {
  const fsdp_instr_time *step = which.slot >= 0 ? walk->steps[which.slot] : NULL;
  return step ? step[which.issue] : FSDP_INSTR_TIME_NONE;
}

static void take_later(const walker *walk, issued which, issued *latest, fsdp_instr_time *latest_time) {
  fsdp_instr_time time = time_of(walk, which);
  if (time.end_s < time.begin_s || time.end_s <= latest_time->end_s) return;
  *latest = which;
  *latest_time = time;
}

// Of what `which` follows, the one that ended last and after `after_s`; false if none did.
static bool latest_cause(const walker *walk, issued which, double after_s, issued *cause,
                         fsdp_instr_time *time) {
  const fsdp_issue_order *order = walk->meter->order;
  const fsdp_instr *instr = instr_of(walk, which);
  fsdp_issue found = fsdp_issue_order_previous(order, which.issue);
  *time = (fsdp_instr_time){after_s, after_s};
  take_later(walk, (issued){which.slot - found.steps_back, found.place}, cause, time);
  for (int w = 0; w < instr->wait_count; w++) {
    int position = order->program->waits[instr->first_wait + w].position;
    if (fsdp_issue_order_latest(order, which.issue, position, &found))
      take_later(walk, (issued){which.slot - found.steps_back, found.place}, cause, time);
  }
  return time->end_s > after_s;
}

// ---- Gaps

static void add_part(const walker *walk, issued which, double begin_s, double end_s) {
  fsdp_exposure *exposure = walk->exposure;
  const fsdp_exposure_meter *meter = walk->meter;
  const fsdp_instr *instr = instr_of(walk, which);
  double seconds = end_s - begin_s;
  if (fsdp_instr_is_collective(instr)) {
    exposure->comm_s += seconds;
    exposure->comm_axes_s[meter->order->program->comms[instr->comm].axes] += seconds;
    meter->unit_s[instr->unit + 1] += seconds;
  } else if (instr->kind == FSDP_INSTR_H2D) {
    exposure->h2d_s += seconds;
  } else if (instr->kind == FSDP_INSTR_D2H) {
    exposure->d2h_s += seconds;
  } else {
    exposure->other_s += seconds;
    return;
  }
  if (!meter->visit) return;
  meter->visit(meter->visit_context,
               &(fsdp_exposed_part){meter->order->position[which.issue], begin_s, end_s});
}

// The gap from `begin_s` to `end_s`, which the work `which` ended.
static void explain_gap(const walker *walk, double begin_s, double end_s, issued which) {
  issued cause;
  fsdp_instr_time time;
  while (end_s > begin_s && latest_cause(walk, which, begin_s, &cause, &time)) {
    double until_s = fsdp_lesser(time.end_s, end_s);
    double from_s = fsdp_greater(fsdp_lesser(time.begin_s, end_s), begin_s);
    walk->exposure->other_s += end_s - until_s;
    add_part(walk, cause, from_s, until_s);
    end_s = from_s;
    which = cause;
  }
  walk->exposure->other_s += end_s - begin_s;
}

// ---- The step

// The place of entry `index` of a work stream, if it is work and was recorded; else -1.
static int64_t recorded_work(const fsdp_issue_order *order, const fsdp_instr_time *times, fsdp_stream stream,
                             int64_t index) {
  const int64_t place = order->of_stream[stream][index];
  const fsdp_instr *instr = &order->program->instrs[order->position[place]];
  const bool is_work = stream == FSDP_STREAM_COMPUTE || instr->kind == FSDP_INSTR_OP;
  return is_work && times[place].end_s >= times[place].begin_s ? place : -1;
}

// The end of the step's last work; false if none was recorded.
static bool last_work_end(const fsdp_exposure_meter *meter, const fsdp_instr_time *times, double *end_s) {
  bool found = false;
  for (int w = 0; times && w < WORK_STREAMS; w++) {
    int64_t place = -1;
    for (int64_t i = meter->order->stream_count[work_streams[w]] - 1; i >= 0 && place < 0; i--)
      place = recorded_work(meter->order, times, work_streams[w], i);
    if (place >= 0 && (!found || times[place].end_s > *end_s)) *end_s = times[place].end_s;
    found = found || place >= 0;
  }
  return found;
}

static double first_begin(const fsdp_exposure_meter *meter, const fsdp_instr_time *times) {
  double begin_s = INFINITY;
  for (int64_t k = 0; k < meter->order->count; k++)
    if (times[k].end_s >= times[k].begin_s) begin_s = fsdp_lesser(begin_s, times[k].begin_s);
  return begin_s;
}

// A work stream's next entry, in steps[slot].
typedef struct cursor {
  int slot;
  int64_t index;
} cursor;

// The first recorded work from the cursor on, which is left there; false at the end of the three steps.
static bool next_work(const walker *walk, int w, cursor *at, issued *which) {
  const fsdp_issue_order *order = walk->meter->order;
  for (; at->slot < 3; at->slot++, at->index = 0) {
    const fsdp_instr_time *step = walk->steps[at->slot];
    for (; step && at->index < order->stream_count[work_streams[w]]; at->index++) {
      *which = (issued){at->slot, recorded_work(order, step, work_streams[w], at->index)};
      if (which->issue >= 0) return true;
    }
  }
  return false;
}

// Walks the work of both streams in the order of begin; on each stream that is the order of issue.
static void walk_gaps(const walker *walk) {
  fsdp_exposure *exposure = walk->exposure;
  cursor next[WORK_STREAMS] = {{0, 0}};
  double covered_s = exposure->begin_s;
  while (covered_s < exposure->end_s) {
    issued earliest = {-1, 0};
    int from = -1;
    for (int w = 0; w < WORK_STREAMS; w++) {
      issued which;
      if (!next_work(walk, w, &next[w], &which)) continue;
      if (from >= 0 && time_of(walk, which).begin_s >= time_of(walk, earliest).begin_s) continue;
      earliest = which;
      from = w;
    }
    if (from < 0) break;
    fsdp_instr_time time = time_of(walk, earliest);
    double until_s = fsdp_lesser(time.begin_s, exposure->end_s);
    if (until_s > covered_s) explain_gap(walk, covered_s, until_s, earliest);
    double end_s = fsdp_lesser(time.end_s, exposure->end_s), begin_s = fsdp_greater(until_s, covered_s);
    if (end_s > begin_s) exposure->work_s += end_s - begin_s;
    covered_s = fsdp_greater(covered_s, time.end_s);
    next[from].index++;
  }
}

void fsdp_exposure_measure(fsdp_exposure_meter *meter, const fsdp_instr_time *const steps[3],
                           fsdp_exposure *exposure) {
  memset(exposure, 0, sizeof *exposure);
  memset(meter->unit_s, 0, ((size_t)meter->unit_count + 1) * sizeof *meter->unit_s);
  exposure->comm_unit_s = meter->unit_s;
  exposure->unit_count = meter->unit_count;
  FSDP_CHECK(last_work_end(meter, steps[1], &exposure->end_s), "a step without recorded work");
  if (!last_work_end(meter, steps[0], &exposure->begin_s)) exposure->begin_s = first_begin(meter, steps[1]);
  exposure->begin_s = fmin(exposure->begin_s, exposure->end_s);
  exposure->step_s = exposure->end_s - exposure->begin_s;
  walker walk = {meter, steps, exposure};
  walk_gaps(&walk);
}
