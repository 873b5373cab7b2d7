#include "runtime/plan/price/simulate.h"

#include "runtime/base/check.h"
#include "runtime/plan/price/extremes.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

// Micro-batches of a step that are run if it has more.
enum { MICRO_BATCHES_RUN = 4 };

// The price of instructions that are alike.
typedef struct priced {
  fsdp_price price;
  int position; // of the first of them
  int next;     // with the same hash; 0: none
} priced;

struct fsdp_simulation {
  const fsdp_pricing *pricing;
  priced *prices; // the first is that of no part of a step
  int price_count;
  int *price_of; // by position: an index of prices
};

// A set of streams: bit s is that of stream s.
typedef unsigned stream_set;
_Static_assert(FSDP_STREAM_COUNT <= 32, "a bit for each stream");

static inline stream_set set_of(int stream) {
  return 1u << stream;
}

// Removes the first stream of a set that has one.
static inline int take_first(stream_set *set) {
  const int first = __builtin_ctz(*set);
  *set &= *set - 1;
  return first;
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
  fsdp_exposure_meter *meter;
  const fsdp_issue_order *order; // the meter's
  int64_t *first_awaited;        // by place, one more at the end
  awaited *awaits;
  int64_t publish;     // place of the last PUBLISH, or -1
  stream_set *waiting; // by place: streams whose instruction waits for its end
  fsdp_instr_time *times[FSDP_SIMULATED_STEPS];
} simulator;

// What a stream does.
typedef struct lane {
  int step;                // of the instruction that runs or comes next; FSDP_SIMULATED_STEPS: none is left
  int64_t next, place;     // the instruction in the stream's list, and its place
  const fsdp_price *price; // of it
  double remaining;        // seconds alone
  int64_t awaits;          // the first of its awaits that had not ended; -1: the PUBLISH of the step before
  double ready_s;          // when it may begin, by what has ended
  double speed;
} lane;

typedef struct lanes {
  lane of[FSDP_STREAM_COUNT];
  stream_set running;
  stream_set ready;   // ready_s is known
  stream_set unknown; // ready_s may be
} lanes;

// ---- Prices

enum { HASHES = 1024 };

// Of most that a price depends on: attributes seldom differ where the rest does not. Multiplicative, by the
// golden ratio's 64 bits (Knuth, The Art of Computer Programming 6.4), so the high bits count.
static int hash_of_price(const fsdp_program *program, const fsdp_instr *instr) {
  const uint64_t ratio = 0x9e3779b97f4a7c15;
  const fsdp_operand *operands = &program->operands[instr->first_operand];
  uint64_t hash = (uint64_t)instr->kind << 48 | (uint64_t)instr->op << 32 | (uint64_t)instr->stream << 16 |
                  (uint64_t)(instr->comm + 1);
  for (int o = 0; o < instr->operand_count; o++)
    hash = hash * ratio + (uint64_t)operands[o].size_bytes * 64 + (uint64_t)operands[o].access * 16 +
           (uint64_t)operands[o].dtype;
  return (int)((hash * ratio >> 32) % HASHES);
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

// The index of an instruction's price, which is asked if none is alike: layers repeat, and with them nearly
// every price. `first`: by hash, 0: none.
static int find_price(fsdp_simulation *simulation, int first[HASHES], int position) {
  const fsdp_program *program = simulation->pricing->plan->program;
  const fsdp_instr *instr = &program->instrs[position];
  int *head = &first[hash_of_price(program, instr)], found = *head;
  while (found && !are_priced_alike(program, &program->instrs[simulation->prices[found].position], instr))
    found = simulation->prices[found].next;
  if (found) return found;
  found = simulation->price_count++;
  simulation->prices[found] = (priced){fsdp_price_of(simulation->pricing, position), position, *head};
  return *head = found;
}

fsdp_simulation *fsdp_simulation_create(const fsdp_pricing *pricing) {
  const fsdp_program *program = pricing->plan->program;
  const size_t count = (size_t)program->instr_count + 1;
  fsdp_simulation *simulation = fsdp_alloc_zeroed(1, sizeof *simulation);
  int first[HASHES] = {0};
  simulation->pricing = pricing;
  simulation->prices = fsdp_alloc(count * sizeof *simulation->prices);
  simulation->prices[0] = (priced){.position = -1};
  simulation->price_count = 1;
  simulation->price_of = fsdp_alloc_zeroed(count, sizeof *simulation->price_of);
  for (int s = 0; s < program->section_count; s++) {
    if (program->sections[s].kind >= FSDP_SECTION_EVALUATION) continue; // no part of a step
    for (int i = program->sections[s].begin; i < program->sections[s].end; i++)
      simulation->price_of[i] = find_price(simulation, first, i);
  }
  return simulation;
}

void fsdp_simulation_destroy(fsdp_simulation *simulation) {
  if (!simulation) return;
  free(simulation->prices);
  free(simulation->price_of);
  free(simulation);
}

const fsdp_price *fsdp_simulation_price_of(const fsdp_simulation *simulation, int position) {
  return &simulation->prices[simulation->price_of[position]].price;
}

// ---- Tables

// The latest issue of every awaited instruction that a step runs; and where its results are published.
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
    if (instr->kind == FSDP_INSTR_PUBLISH) r->publish = place;
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
  for (int s = 0; s < FSDP_SIMULATED_STEPS; s++) free(r->times[s]);
  fsdp_exposure_meter_destroy(r->meter);
  free(r->first_awaited);
  free(r->awaits);
  free(r->waiting);
}

// ---- The simulation

// Finds when the lane's instruction may begin: what ended is asked once. Returns the place of the first that
// it waits for and that has not ended; -1: there is none.
static int64_t find_ready(const simulator *r, lane *l) {
  if (l->awaits < 0) {
    const double end = l->step > 0 && r->publish >= 0 ? r->times[l->step - 1][r->publish].end_s : 0;
    if (end < 0) return r->publish;
    l->ready_s = fsdp_greater(l->ready_s, end);
    l->awaits = r->first_awaited[l->place];
  }
  for (; l->awaits < r->first_awaited[l->place + 1]; l->awaits++) {
    const awaited *wait = &r->awaits[l->awaits];
    const int of = l->step - wait->issue.steps_back;
    if (of < 0) continue;
    const double end = r->times[of][wait->issue.place].end_s;
    if (end < 0) return wait->issue.place;
    l->ready_s = fsdp_greater(l->ready_s, end + wait->handoff_s);
  }
  return -1;
}

// Makes the instruction `next` of a stream's list the lane's, or the first of the next step after the last.
static void set_next(const simulator *r, int stream, int64_t next, lanes *l) {
  lane *of = &l->of[stream];
  if (next == r->order->stream_count[stream]) {
    next = 0;
    if (++of->step == FSDP_SIMULATED_STEPS) return;
  }
  of->next = next;
  of->place = r->order->of_stream[stream][next];
  of->awaits = -1;
  of->price = fsdp_simulation_price_of(r->simulation, r->order->position[of->place]);
  l->unknown |= set_of(stream);
}

// The speed of everything that runs: 1 alone.
static void share(const simulator *r, lanes *l) {
  double asked[FSDP_RESOURCE_COUNT] = {0};
  stream_set left = l->running;
  for (int count = 0; left; count++) {
    lane *of = &l->of[take_first(&left)];
    const fsdp_price *price = of->price;
    of->speed = 1;
    if (count == 0 && !left) return; // alone
    for (int i = 0; i < FSDP_RESOURCE_COUNT; i++) asked[i] += price->share[i];
  }
  const fsdp_pricing *pricing = r->simulation->pricing;
  const double beside = pricing->crowded ? 1 : pricing->profile->collective_slowdown;
  const bool computes = l->running & set_of(FSDP_STREAM_COMPUTE);
  for (left = l->running; left;) {
    lane *of = &l->of[take_first(&left)];
    const fsdp_price *price = of->price;
    const bool lags = price->kind == FSDP_PRICE_COLLECTIVE && computes;
    double slowdown = 1;
    for (int i = 0; i < FSDP_RESOURCE_COUNT; i++) {
      if (price->share[i] <= 0) continue;
      // Beside compute a link moves less, and what shares the link has a part of that.
      const bool link = i == FSDP_RESOURCE_NODE || i == FSDP_RESOURCE_NETWORK;
      const double slower = price->share[i] > 1 ? asked[i] / price->share[i] : asked[i];
      slowdown = fsdp_greater(slowdown, slower * (lags && link ? beside : 1));
    }
    of->speed = 1 / slowdown;
  }
}

// Begins what can begin at `now`.
static void begin_ready(const simulator *r, lanes *l, double now) {
  while (l->unknown) {
    const int s = take_first(&l->unknown);
    const int64_t place = find_ready(r, &l->of[s]);
    *(place < 0 ? &l->ready : &r->waiting[place]) |= set_of(s);
  }
  for (stream_set left = l->ready; left;) {
    const int s = take_first(&left);
    lane *of = &l->of[s];
    if (of->ready_s > now) continue;
    r->times[of->step][of->place] = (fsdp_instr_time){now, -1};
    of->remaining = of->price->seconds;
    l->ready &= ~set_of(s);
    l->running |= set_of(s);
  }
}

// The time until the next thing ends or may begin; INFINITY: nothing will.
static double next_event_s(const lanes *l, double now) {
  double next = INFINITY;
  for (stream_set left = l->running; left;) {
    const lane *of = &l->of[take_first(&left)];
    next = fsdp_lesser(next, of->remaining / of->speed);
  }
  for (stream_set left = l->ready; left;) next = fsdp_lesser(next, l->of[take_first(&left)].ready_s - now);
  return next;
}

// Lets `seconds` pass and ends what is complete.
static void advance(const simulator *r, lanes *l, double now, double seconds) {
  for (stream_set left = l->running; left;) {
    const int s = take_first(&left);
    lane *of = &l->of[s];
    of->remaining -= seconds * of->speed;
    if (of->remaining > 1e-12) continue;
    r->times[of->step][of->place].end_s = of->ready_s = now + seconds;
    l->running &= ~set_of(s);
    l->unknown |= r->waiting[of->place];
    r->waiting[of->place] = 0;
    set_next(r, s, of->next + 1, l);
  }
}

static void run_steps(simulator *r) {
  lanes l = {.running = 0};
  double now = 0;
  r->waiting = fsdp_alloc_zeroed((size_t)r->order->count + 1, sizeof *r->waiting);
  for (int s = 0; s < FSDP_SIMULATED_STEPS; s++) {
    r->times[s] = fsdp_alloc((size_t)r->order->count * sizeof *r->times[s]);
    for (int64_t p = 0; p < r->order->count; p++) r->times[s][p] = FSDP_INSTR_TIME_NONE;
  }
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) {
    if (r->order->stream_count[s])
      set_next(r, s, 0, &l);
    else
      l.of[s].step = FSDP_SIMULATED_STEPS;
  }
  for (;;) {
    begin_ready(r, &l, now);
    share(r, &l);
    const double seconds = next_event_s(&l, now);
    if (isinf(seconds)) break;
    advance(r, &l, now, seconds);
    now += seconds;
  }
  for (int s = 0; s < FSDP_STREAM_COUNT; s++)
    FSDP_CHECK(l.of[s].step == FSDP_SIMULATED_STEPS, "a program that does not end");
}

static void simulator_create(const fsdp_simulation *simulation, int micro_batches, simulator *r) {
  *r = (simulator){.simulation = simulation, .program = *simulation->pricing->plan->program, .publish = -1};
  r->program.micro_batches = micro_batches;
  r->meter = fsdp_exposure_meter_create(&r->program);
  r->order = fsdp_exposure_meter_order(r->meter);
  list_awaits(r);
  run_steps(r);
}

// ---- What a step takes

// The place of the event `index` of a stream in the last two steps that were run.
static inline int64_t recent_place(const simulator *r, fsdp_stream stream, int64_t index) {
  const int64_t count = r->order->stream_count[stream];
  return r->order->of_stream[stream][index < count ? index : index - count];
}

static inline const fsdp_instr_time *recent_event(const simulator *r, fsdp_stream stream, int64_t index) {
  const int step = FSDP_SIMULATED_STEPS - (index < r->order->stream_count[stream] ? 2 : 1);
  return &r->times[step][recent_place(r, stream, index)];
}

static double overlap_s(const fsdp_instr_time *a, const fsdp_instr_time *b) {
  return fsdp_greater(0, fsdp_lesser(a->end_s, b->end_s) - fsdp_greater(a->begin_s, b->begin_s));
}

// The running time of a stream's work in `step`, less that beside events of the stream `beside`
// (FSDP_STREAM_COUNT: none), by what it goes to.
static void sum_kinds(const simulator *r, fsdp_stream stream, fsdp_stream beside, const fsdp_instr_time *step,
                      fsdp_step_price *price) {
  const int64_t others = beside < FSDP_STREAM_COUNT ? 2 * r->order->stream_count[beside] : 0;
  int64_t first = 0; // of `beside`, that ends after the event begins
  for (int64_t i = 0; i < 2 * r->order->stream_count[stream]; i++) {
    fsdp_instr_time time = *recent_event(r, stream, i);
    double seconds = overlap_s(&time, step);
    time = (fsdp_instr_time){fsdp_greater(time.begin_s, step->begin_s), fsdp_lesser(time.end_s, step->end_s)};
    while (first < others && recent_event(r, beside, first)->end_s <= time.begin_s) first++;
    for (int64_t k = first; seconds > 0 && k < others; k++) {
      const fsdp_instr_time *other = recent_event(r, beside, k);
      if (other->begin_s >= time.end_s) break;
      seconds -= overlap_s(other, &time);
    }
    const int position = r->order->position[recent_place(r, stream, i)];
    const fsdp_price *of = fsdp_simulation_price_of(r->simulation, position);
    price->kind_s[of->kind] += fsdp_greater(0, seconds);
    if (of->estimated) price->estimated_s[of->kind] += fsdp_greater(0, seconds);
  }
}

static void sum_places(const simulator *r, fsdp_step_price *price) {
  const fsdp_instr_time *times = r->times[FSDP_SIMULATED_STEPS - 1];
  for (int64_t p = 0; p < r->order->count; p++) {
    const int position = r->order->position[p];
    price->flops += fsdp_simulation_price_of(r->simulation, position)->flops;
    price->busy_s[r->program.instrs[position].stream] += times[p].end_s - times[p].begin_s;
  }
}

static void measure(const simulator *r, fsdp_step_price *price) {
  const int last = FSDP_SIMULATED_STEPS - 1;
  const fsdp_instr_time *const steps[3] = {r->times[last - 1], r->times[last], NULL};
  fsdp_exposure e;
  fsdp_exposure_measure(r->meter, steps, &e);
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
}

// Adds `count` times what the last micro-batch added: the difference between `price` and `less`, of each of
// their numbers, which come first.
static void extend_price(fsdp_step_price *price, const fsdp_step_price *less, double count) {
  double *of_step = &price->step_s;
  const double *of_less = &less->step_s;
  for (size_t i = 0; i < offsetof(fsdp_step_price, comm_unit_s) / sizeof *of_step; i++)
    of_step[i] += count * (of_step[i] - of_less[i]);
  for (int u = 0; u <= price->unit_count; u++)
    price->comm_unit_s[u] += count * (price->comm_unit_s[u] - less->comm_unit_s[u]);
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
  for (int64_t p = 0; p < r.order->count; p++) begin = fsdp_lesser(begin, r.times[first][p].begin_s);
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
