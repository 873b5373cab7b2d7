#include "runtime/plan/price/simulate.h"

#include "runtime/base/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

// Micro-batches of a step that are run if it has more.
enum { MICRO_BATCHES_RUN = 4 };

struct fsdp_simulation {
  const fsdp_pricing *pricing;
  fsdp_price *prices; // by position
};

// None is a NaN; fmin and fmax, which allow for that, are calls.
static inline double lesser(double a, double b) {
  return a < b ? a : b;
}

static inline double greater(double a, double b) {
  return a > b ? a : b;
}

// An issue that another waits for.
typedef struct awaited {
  fsdp_issue issue;
  double handoff_s; // between streams
} awaited;

// A simulated program with a number of micro-batches, and the times of its steps.
typedef struct simulator {
  const fsdp_simulation *simulation;
  fsdp_program program; // a copy of the plan's, with its own number of micro-batches
  fsdp_issue_order *order;
  int64_t *first_awaited; // by place, one more at the end
  awaited *awaits;
  int64_t *places[FSDP_STREAM_COUNT]; // of each stream, in order
  int64_t stream_count[FSDP_STREAM_COUNT];
  int64_t publish; // place of the last PUBLISH, or -1
  fsdp_instr_time *times[FSDP_SIMULATED_STEPS];
} simulator;

// What a stream does.
typedef struct lane {
  int step;                // of the instruction that runs or comes next; FSDP_SIMULATED_STEPS: none is left
  int64_t next, place;     // the instruction in the stream's list, and its place
  const fsdp_price *price; // of it
  bool running;
  double remaining; // seconds alone
  int64_t awaits;   // the first of its awaits that had not ended; -1: the PUBLISH of the step before
  double known_s;   // when what ended lets it begin
  double ready_s;   // when it may begin; INFINITY: it waits for what has not ended
  double speed;
} lane;

// ---- Prices

// Positions of instructions that were priced, by a hash of what a price depends on. Layers repeat, and with
// them nearly every price.
enum { PRICED = 1024 };

typedef struct priced {
  int positions[PRICED]; // -1: free
} priced;

static uint64_t hash_of_price(const fsdp_program *program, const fsdp_instr *instr) {
  const fsdp_operand *operands = &program->operands[instr->first_operand];
  uint64_t hash = XXH3_64bits_withSeed(&instr->attrs, sizeof instr->attrs,
                                       (uint64_t)instr->kind << 48 | (uint64_t)instr->op << 32 |
                                           (uint64_t)instr->stream << 16 | (uint64_t)(instr->comm + 1));
  for (int o = 0; o < instr->operand_count; o++)
    hash = XXH3_64bits_withSeed(&operands[o].size_bytes, sizeof operands[o].size_bytes,
                                hash + (uint64_t)operands[o].access * 16 + (uint64_t)operands[o].dtype);
  return hash;
}

// Whether both have one price: it depends neither on places nor on tensors but for their sizes.
static bool are_priced_alike(const fsdp_program *program, const fsdp_instr *a, const fsdp_instr *b) {
  if (a->kind != b->kind || a->stream != b->stream || a->op != b->op || a->comm != b->comm) return false;
  const void *of_a = &a->attrs, *of_b = &b->attrs; // by bytes: padding that differs costs one price more
  if (a->operand_count != b->operand_count || memcmp(of_a, of_b, sizeof a->attrs) != 0) return false;
  for (int o = 0; o < a->operand_count; o++) {
    const fsdp_operand *x = &program->operands[a->first_operand + o];
    const fsdp_operand *y = &program->operands[b->first_operand + o];
    if (x->dtype != y->dtype || x->access != y->access || x->size_bytes != y->size_bytes) return false;
  }
  return true;
}

// As fsdp_price_of; a price whose place is taken by another one is asked again.
static fsdp_price price_once(fsdp_simulation *simulation, priced *known, int position) {
  const fsdp_program *program = simulation->pricing->plan->program;
  const fsdp_instr *instr = &program->instrs[position];
  int *place = &known->positions[hash_of_price(program, instr) % PRICED];
  if (*place >= 0 && are_priced_alike(program, &program->instrs[*place], instr))
    return simulation->prices[*place];
  *place = position;
  return fsdp_price_of(simulation->pricing, position);
}

fsdp_simulation *fsdp_simulation_create(const fsdp_pricing *pricing) {
  const fsdp_program *program = pricing->plan->program;
  fsdp_simulation *simulation = fsdp_alloc_zeroed(1, sizeof *simulation);
  priced known;
  memset(known.positions, -1, sizeof known.positions);
  simulation->pricing = pricing;
  simulation->prices = fsdp_alloc_zeroed((size_t)program->instr_count + 1, sizeof *simulation->prices);
  for (int s = 0; s < program->section_count; s++) {
    if (program->sections[s].kind >= FSDP_SECTION_EVALUATION) continue; // no part of a step
    for (int i = program->sections[s].begin; i < program->sections[s].end; i++)
      simulation->prices[i] = price_once(simulation, &known, i);
  }
  return simulation;
}

void fsdp_simulation_destroy(fsdp_simulation *simulation) {
  if (!simulation) return;
  free(simulation->prices);
  free(simulation);
}

const fsdp_price *fsdp_simulation_price_of(const fsdp_simulation *simulation, int position) {
  return &simulation->prices[position];
}

// ---- Tables

static void list_places(simulator *r) {
  const fsdp_program *program = &r->program;
  const fsdp_issue_order *order = r->order;
  for (int s = 0; s < FSDP_STREAM_COUNT; s++)
    r->places[s] = fsdp_alloc((size_t)(order->count + 1) * sizeof *r->places[s]);
  for (int64_t place = 0; place < order->count; place++) {
    const fsdp_instr *instr = &program->instrs[order->position[place]];
    r->places[instr->stream][r->stream_count[instr->stream]++] = place;
    if (instr->kind == FSDP_INSTR_PUBLISH) r->publish = place;
  }
}

// The latest issue of every awaited instruction that a step runs.
static void list_awaits(simulator *r) {
  const fsdp_program *program = &r->program;
  const fsdp_issue_order *order = r->order;
  int64_t total = 0, n = 0;
  for (int64_t place = 0; place < order->count; place++)
    total += program->instrs[order->position[place]].wait_count;
  r->first_awaited = fsdp_alloc((size_t)(order->count + 1) * sizeof *r->first_awaited);
  r->awaits = fsdp_alloc((size_t)(total + 1) * sizeof *r->awaits);
  for (int64_t place = 0; place < order->count; place++) {
    const fsdp_instr *instr = &program->instrs[order->position[place]];
    r->first_awaited[place] = n;
    for (int w = 0; w < instr->wait_count; w++) {
      const int position = program->waits[instr->first_wait + w].position;
      const bool same = program->instrs[position].stream == instr->stream;
      r->awaits[n].handoff_s = same ? 0 : r->simulation->pricing->profile->handoff_s;
      n += fsdp_issue_order_latest(order, place, position, &r->awaits[n].issue);
    }
  }
  r->first_awaited[order->count] = n;
}

static void simulator_release(simulator *r) {
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) free(r->places[s]);
  for (int s = 0; s < FSDP_SIMULATED_STEPS; s++) free(r->times[s]);
  fsdp_issue_order_destroy(r->order);
  free(r->first_awaited);
  free(r->awaits);
}

// ---- The simulation

// Finds when the lane's instruction may begin, as far as others are concerned: what ended is asked once.
static void find_ready(const simulator *r, lane *l) {
  if (l->awaits < 0) {
    const double end = l->step > 0 && r->publish >= 0 ? r->times[l->step - 1][r->publish].end_s : 0;
    if (end < 0) return;
    l->known_s = greater(l->known_s, end);
    l->awaits = r->first_awaited[l->place];
  }
  for (; l->awaits < r->first_awaited[l->place + 1]; l->awaits++) {
    const awaited *wait = &r->awaits[l->awaits];
    const int of = l->step - wait->issue.steps_back;
    if (of < 0) continue;
    const double end = r->times[of][wait->issue.place].end_s;
    if (end < 0) return;
    l->known_s = greater(l->known_s, end + wait->handoff_s);
  }
  l->ready_s = l->known_s;
}

// Makes the instruction `next` of a stream's list the lane's, or the first of the next step after the last.
static void set_next(const simulator *r, int stream, int64_t next, lane *l) {
  if (next == r->stream_count[stream]) {
    next = 0;
    if (++l->step == FSDP_SIMULATED_STEPS) return;
  }
  l->next = next;
  l->place = r->places[stream][next];
  l->awaits = -1;
  l->ready_s = INFINITY;
  l->price = &r->simulation->prices[r->order->position[l->place]];
}

// The speed of everything that runs: 1 alone.
static void share(const simulator *r, lane lanes[FSDP_STREAM_COUNT]) {
  double asked[FSDP_RESOURCE_COUNT] = {0};
  int running = 0;
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) {
    if (!lanes[s].running) continue;
    const fsdp_price *price = lanes[s].price;
    running++;
    lanes[s].speed = 1;
    for (int i = 0; i < FSDP_RESOURCE_COUNT; i++) asked[i] += price->share[i];
  }
  if (running == 1) return;
  const fsdp_pricing *pricing = r->simulation->pricing;
  const double beside = pricing->crowded ? 1 : pricing->profile->collective_slowdown;
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) {
    if (!lanes[s].running) continue;
    const fsdp_price *price = lanes[s].price;
    const bool lags = price->kind == FSDP_PRICE_COLLECTIVE && lanes[FSDP_STREAM_COMPUTE].running;
    double slowdown = 1;
    for (int i = 0; i < FSDP_RESOURCE_COUNT; i++) {
      if (price->share[i] <= 0) continue;
      // Beside compute a link moves less, and what shares the link has a part of that.
      const bool link = i == FSDP_RESOURCE_NODE || i == FSDP_RESOURCE_NETWORK;
      slowdown = greater(slowdown, asked[i] / greater(1, price->share[i]) * (lags && link ? beside : 1));
    }
    lanes[s].speed = 1 / slowdown;
  }
}

// Begins what can begin at `now`.
static void begin_ready(const simulator *r, lane lanes[FSDP_STREAM_COUNT], double now) {
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) {
    lane *l = &lanes[s];
    if (l->running || l->step == FSDP_SIMULATED_STEPS) continue;
    if (isinf(l->ready_s)) find_ready(r, l);
    if (l->ready_s > now) continue;
    r->times[l->step][l->place] = (fsdp_instr_time){now, -1};
    l->running = true;
    l->remaining = l->price->seconds;
  }
}

// The time until the next thing ends or may begin; INFINITY: nothing will.
static double next_event_s(const lane lanes[FSDP_STREAM_COUNT], double now) {
  double next = INFINITY;
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) {
    if (lanes[s].running)
      next = lesser(next, lanes[s].remaining / lanes[s].speed);
    else if (lanes[s].step < FSDP_SIMULATED_STEPS)
      next = lesser(next, lanes[s].ready_s - now);
  }
  return next;
}

// Lets `seconds` pass and ends what is complete.
static void advance(const simulator *r, lane lanes[FSDP_STREAM_COUNT], double now, double seconds) {
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) {
    lane *l = &lanes[s];
    if (!l->running) continue;
    l->remaining -= seconds * l->speed;
    if (l->remaining > 1e-12) continue;
    r->times[l->step][l->place].end_s = l->known_s = now + seconds;
    l->running = false;
    set_next(r, s, l->next + 1, l);
  }
}

static void run_steps(simulator *r) {
  lane lanes[FSDP_STREAM_COUNT] = {0};
  double now = 0;
  for (int s = 0; s < FSDP_SIMULATED_STEPS; s++) {
    r->times[s] = fsdp_alloc((size_t)r->order->count * sizeof *r->times[s]);
    for (int64_t p = 0; p < r->order->count; p++) r->times[s][p] = FSDP_INSTR_TIME_NONE;
  }
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) {
    if (r->stream_count[s])
      set_next(r, s, 0, &lanes[s]);
    else
      lanes[s].step = FSDP_SIMULATED_STEPS;
  }
  for (;;) {
    begin_ready(r, lanes, now);
    share(r, lanes);
    const double seconds = next_event_s(lanes, now);
    if (isinf(seconds)) break;
    advance(r, lanes, now, seconds);
    now += seconds;
  }
  for (int s = 0; s < FSDP_STREAM_COUNT; s++)
    FSDP_CHECK(lanes[s].step == FSDP_SIMULATED_STEPS, "a program that does not end");
}

static void simulator_create(const fsdp_simulation *simulation, int micro_batches, simulator *r) {
  *r = (simulator){.simulation = simulation, .program = *simulation->pricing->plan->program, .publish = -1};
  r->program.micro_batches = micro_batches;
  r->order = fsdp_issue_order_create(&r->program);
  list_places(r);
  list_awaits(r);
  run_steps(r);
}

// ---- What a step takes

// The event `index` of a stream in the last two steps that were run.
static const fsdp_instr_time *recent_event(const simulator *r, fsdp_stream stream, int64_t index) {
  const int64_t count = r->stream_count[stream];
  const int step = FSDP_SIMULATED_STEPS - 2 + (int)(index / count);
  return &r->times[step][r->places[stream][index % count]];
}

static double overlap_s(const fsdp_instr_time *a, const fsdp_instr_time *b) {
  return greater(0, lesser(a->end_s, b->end_s) - greater(a->begin_s, b->begin_s));
}

// The running time of a stream's work in `step`, less that beside events of the stream `beside`
// (FSDP_STREAM_COUNT: none), by what it goes to.
static void sum_kinds(const simulator *r, fsdp_stream stream, fsdp_stream beside, const fsdp_instr_time *step,
                      fsdp_step_price *price) {
  const int64_t others = beside < FSDP_STREAM_COUNT ? 2 * r->stream_count[beside] : 0;
  int64_t first = 0; // of `beside`, that ends after the event begins
  for (int64_t i = 0; i < 2 * r->stream_count[stream]; i++) {
    fsdp_instr_time time = *recent_event(r, stream, i);
    double seconds = overlap_s(&time, step);
    time = (fsdp_instr_time){greater(time.begin_s, step->begin_s), lesser(time.end_s, step->end_s)};
    while (first < others && recent_event(r, beside, first)->end_s <= time.begin_s) first++;
    for (int64_t k = first; seconds > 0 && k < others; k++) {
      const fsdp_instr_time *other = recent_event(r, beside, k);
      if (other->begin_s >= time.end_s) break;
      seconds -= overlap_s(other, &time);
    }
    const int position = r->order->position[r->places[stream][i % r->stream_count[stream]]];
    const fsdp_price *of = &r->simulation->prices[position];
    price->kind_s[of->kind] += greater(0, seconds);
    if (of->estimated) price->estimated_s[of->kind] += greater(0, seconds);
  }
}

static void sum_places(const simulator *r, fsdp_step_price *price) {
  const fsdp_instr_time *times = r->times[FSDP_SIMULATED_STEPS - 1];
  for (int64_t p = 0; p < r->order->count; p++) {
    const int position = r->order->position[p];
    price->flops += r->simulation->prices[position].flops;
    price->busy_s[r->program.instrs[position].stream] += times[p].end_s - times[p].begin_s;
  }
}

static void measure(const simulator *r, fsdp_step_price *price) {
  const int last = FSDP_SIMULATED_STEPS - 1;
  const fsdp_instr_time *const steps[3] = {r->times[last - 1], r->times[last], NULL};
  fsdp_exposure_meter *meter = fsdp_exposure_meter_create(&r->program);
  fsdp_exposure e;
  fsdp_exposure_measure(meter, steps, &e);
  *price = (fsdp_step_price){.step_s = e.step_s,
                             .comm_s = e.comm_s,
                             .h2d_s = e.h2d_s,
                             .d2h_s = e.d2h_s,
                             .other_s = e.other_s,
                             .unit_count = e.unit_count};
  memcpy(price->comm_axes_s, e.comm_axes_s, sizeof price->comm_axes_s);
  price->comm_unit_s = fsdp_alloc((size_t)(e.unit_count + 1) * sizeof *price->comm_unit_s);
  memcpy(price->comm_unit_s, e.comm_unit_s, (size_t)(e.unit_count + 1) * sizeof *price->comm_unit_s);
  const fsdp_instr_time step = {e.begin_s, e.end_s};
  sum_kinds(r, FSDP_STREAM_COMPUTE, FSDP_STREAM_COUNT, &step, price);
  sum_kinds(r, FSDP_STREAM_HOST, FSDP_STREAM_COMPUTE, &step, price);
  sum_places(r, price);
  fsdp_exposure_meter_destroy(meter);
}

// value + count * (value - less)
static void extend(double *value, double less, double count) {
  *value += count * (*value - less);
}

// Adds `count` times what the last micro-batch added: the difference between `price` and `less`.
static void extend_price(fsdp_step_price *price, const fsdp_step_price *less, double count) {
  extend(&price->step_s, less->step_s, count);
  extend(&price->flops, less->flops, count);
  extend(&price->comm_s, less->comm_s, count);
  extend(&price->h2d_s, less->h2d_s, count);
  extend(&price->d2h_s, less->d2h_s, count);
  extend(&price->other_s, less->other_s, count);
  for (int k = 0; k < FSDP_PRICE_KIND_COUNT; k++) {
    extend(&price->kind_s[k], less->kind_s[k], count);
    extend(&price->estimated_s[k], less->estimated_s[k], count);
  }
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) extend(&price->busy_s[s], less->busy_s[s], count);
  for (int a = 0; a < 1 << FSDP_MESH_AXES_MAX; a++)
    extend(&price->comm_axes_s[a], less->comm_axes_s[a], count);
  for (int u = 0; u <= price->unit_count; u++) extend(&price->comm_unit_s[u], less->comm_unit_s[u], count);
}

static void price_of_micro_batches(const fsdp_simulation *simulation, int micro_batches,
                                   fsdp_step_price *price) {
  simulator r;
  simulator_create(simulation, micro_batches, &r);
  measure(&r, price);
  simulator_release(&r);
}

void fsdp_simulation_run(fsdp_simulation *simulation, fsdp_step_price *price) {
  const int micro_batches = simulation->pricing->plan->program->micro_batches;
  if (micro_batches <= MICRO_BATCHES_RUN) {
    price_of_micro_batches(simulation, micro_batches, price);
    return;
  }
  fsdp_step_price less;
  price_of_micro_batches(simulation, MICRO_BATCHES_RUN, price);
  price_of_micro_batches(simulation, MICRO_BATCHES_RUN - 1, &less);
  extend_price(price, &less, micro_batches - MICRO_BATCHES_RUN);
  fsdp_step_price_release(&less);
}

void fsdp_step_price_release(fsdp_step_price *price) {
  free(price->comm_unit_s);
  price->comm_unit_s = NULL;
}

fsdp_timeline *fsdp_simulation_timeline(fsdp_simulation *simulation) {
  const fsdp_program *program = simulation->pricing->plan->program;
  const int first = FSDP_SIMULATED_STEPS - 2;
  simulator r;
  simulator_create(simulation, program->micro_batches, &r);
  fsdp_timeline *timeline = fsdp_timeline_create(program, 2 * r.order->count);
  double begin = INFINITY;
  for (int64_t p = 0; p < r.order->count; p++) begin = lesser(begin, r.times[first][p].begin_s);
  for (int step = first; step < FSDP_SIMULATED_STEPS; step++) {
    for (int64_t p = 0; p < r.order->count; p++) {
      const fsdp_timeline_event event = {.position = r.order->position[p],
                                         .step = step - first + 1,
                                         .run = r.order->run[p],
                                         .begin_s = r.times[step][p].begin_s - begin,
                                         .end_s = r.times[step][p].end_s - begin};
      fsdp_timeline_append(timeline, &event);
    }
  }
  simulator_release(&r);
  return timeline;
}

double fsdp_plan_step_tokens(const fsdp_plan *plan) {
  const fsdp_plan_config *c = &plan->config;
  int part;
  return (double)fsdp_plan_batch_part(plan, 0, &part) * (double)(c->batch * c->seq) * c->micro_batches;
}

double fsdp_pricing_mfu(const fsdp_pricing *pricing, double step_s, fsdp_flops_convention convention) {
  const fsdp_plan *plan = pricing->plan;
  const fsdp_plan_config *c = &plan->config;
  const double peak = pricing->profile->peak_flops[c->param_dtype];
  if (peak <= 0) return 0;
  return fsdp_plan_step_tokens(plan) * fsdp_model_flops_per_token(&c->model, c->seq, convention) /
         (step_s * peak * fsdp_mesh_ranks(&c->mesh));
}
