#include "runtime/plan/proof/waits.h"

#include "runtime/base/check.h"
#include "runtime/plan/proof/sort.h"

#include <string.h>

#define NONE (-1)
// Middle micro-batches that are walked over: after a second, a third one finds what that found.
#define MIDDLES 2

// Last accesses of one interval of bytes, as events. A write is ordered after all that came before it, so
// nothing older has to be remembered.
typedef struct access_state {
  int writer, writer_stream;
  int readers[FSDP_STREAM_COUNT]; // since the write
} access_state;

// One issue of an instruction. `clock` holds, per stream, how many of its events come before this one or are
// this one.
typedef struct event {
  int position, stream;
  int clock[FSDP_STREAM_COUNT];
} event;

// A wait that is not yet in the program; those of one instruction form a list.
typedef struct wait_node {
  int position, next;
  fsdp_wait_reason reason;
  bool needed;
} wait_node;

typedef struct inference {
  fsdp_program *program;
  int order[FSDP_SEAM_RUNS_MAX], run_count; // sections as they are issued
  // Ranges that operands access, as places among all their ends; intervals start where a bit is set.
  int *operand_low, *operand_high;
  uint64_t *starts, *starts_upper; // bit i of starts_upper: word i of starts is not zero
  access_state *states;            // by first coordinate of an interval
  // The walk.
  event *events;
  int event_count;
  int *latest;                          // by position: its most recent event
  int stream_latest[FSDP_STREAM_COUNT]; // the stream's most recent event
  wait_node *nodes;
  int node_count, node_capacity;
  int *first_node; // by position
} inference;

// ---- Intervals

static void set_start(inference *in, int index) {
  in->starts[index >> 6] |= UINT64_C(1) << (index & 63);
  in->starts_upper[index >> 12] |= UINT64_C(1) << ((index >> 6) & 63);
}

// Makes [low, high), which is not empty, one interval.
static void clear_starts(inference *in, int low, int high) {
  const int first = (low + 1) >> 6, last = high >> 6;
  const uint64_t below = ~(~UINT64_C(0) << ((low + 1) & 63)), above = ~UINT64_C(0) << (high & 63);
  // The upper bits may stay set over empty words: they only say where to look.
  if (first == last) {
    in->starts[first] &= below | above;
    return;
  }
  in->starts[first] &= below;
  for (int word = first + 1; word < last; word++) in->starts[word] = 0;
  in->starts[last] &= above;
}

// The start of the interval that holds coordinate `index`.
static int start_at_or_before(const inference *in, int index) {
  int word = index >> 6;
  uint64_t bits = in->starts[word] & (~UINT64_C(0) >> (63 - (index & 63)));
  while (!bits) {
    int upper = --word >> 6;
    uint64_t words = in->starts_upper[upper] & (~UINT64_C(0) >> (63 - (word & 63)));
    while (!words) words = in->starts_upper[--upper];
    word = (upper << 6) + 63 - __builtin_clzll(words);
    bits = in->starts[word];
  }
  return (word << 6) + 63 - __builtin_clzll(bits);
}

// The first start in (index, high), or `high`.
static int next_start(const inference *in, int index, int high) {
  int i = index + 1;
  if (i >= high) return high;
  int word = i >> 6, last_word = (high - 1) >> 6;
  uint64_t bits = in->starts[word] & (~UINT64_C(0) << (i & 63));
  while (!bits && word < last_word) bits = in->starts[++word];
  if (!bits) return high;
  int found = (word << 6) + __builtin_ctzll(bits);
  return found < high ? found : high;
}

static void split_at(inference *in, int index) {
  int start = start_at_or_before(in, index);
  if (start == index) return;
  in->states[index] = in->states[start];
  set_start(in, index);
}

// First and last byte + 1 of a tensor; the host arena lies behind the device's.
static void tensor_hull(const fsdp_program *program, int index, int64_t *low, int64_t *high) {
  const fsdp_tensor *tensor = &program->tensors[index];
  const bool on_host = tensor->space == FSDP_SPACE_HOST;
  *low = (on_host ? program->arena_bytes[FSDP_SPACE_DEVICE] : 0) + tensor->address;
  *high = *low + tensor->bytes;
}

// First and last byte + 1 that any rank accesses.
static void operand_hull(const fsdp_program *program, const fsdp_operand *operand, int64_t *low,
                         int64_t *high) {
  int64_t base, end;
  tensor_hull(program, operand->tensor, &base, &end);
  fsdp_affine_bounds(&operand->offset, &program->mesh, low, high);
  *low += base;
  *high += base + operand->size_bytes;
}

static int append_ends(fsdp_record *ends, int count, int64_t low, int64_t high, int *low_place,
                       int *high_place) {
  ends[count] = (fsdp_record){low, low_place};
  ends[count + 1] = (fsdp_record){high, high_place};
  return count + 2;
}

// Sets the places of all ends. Returns their number; place 0 is the arena's beginning.
static int set_places(fsdp_record *ends, int count) {
  const fsdp_record *sorted = fsdp_sort_records(ends, ends + count, count);
  int last = 0;
  for (int i = 0; i < count; i++) {
    if (sorted[i].key != (i > 0 ? sorted[i - 1].key : 0)) last++;
    *(int *)sorted[i].of = last;
  }
  return last + 1;
}

// Most operands access all of a tensor, so that few ends are to be sorted beside those of tensors.
static void map_operands(inference *in) {
  const fsdp_program *program = in->program;
  const int operands = program->operand_count, tensors = program->tensor_count;
  int *lows = fsdp_alloc((size_t)(operands + tensors) * sizeof *lows);
  int *highs = fsdp_alloc((size_t)(operands + tensors) * sizeof *highs);
  fsdp_record *ends = fsdp_alloc((size_t)(4 * (operands + tensors) + 1) * sizeof *ends);
  int count = 0;
  for (int t = 0; t < tensors; t++) {
    int64_t low, high;
    tensor_hull(program, t, &low, &high);
    count = append_ends(ends, count, low, high, &lows[operands + t], &highs[operands + t]);
  }
  for (int o = 0; o < operands; o++) {
    const fsdp_operand *operand = &program->operands[o];
    int64_t low, high, first, end;
    operand_hull(program, operand, &low, &high);
    tensor_hull(program, operand->tensor, &first, &end);
    lows[o] = NONE;
    if (low != first || high != end) count = append_ends(ends, count, low, high, &lows[o], &highs[o]);
  }
  const int unique = set_places(ends, count);
  for (int o = 0; o < operands; o++) {
    if (lows[o] != NONE) continue;
    lows[o] = lows[operands + program->operands[o].tensor];
    highs[o] = highs[operands + program->operands[o].tensor];
  }
  in->operand_low = lows;
  in->operand_high = highs;
  free(ends);
  in->starts = fsdp_alloc_zeroed((size_t)unique / 64 + 1, sizeof *in->starts);
  in->starts_upper = fsdp_alloc_zeroed((size_t)unique / 4096 + 1, sizeof *in->starts_upper);
  in->states = fsdp_alloc((size_t)unique * sizeof *in->states);
}

// ---- Waits of an instruction

static bool touch_each_other(const fsdp_program *program, int position, int other) {
  const fsdp_instr *a = &program->instrs[position], *b = &program->instrs[other];
  for (int i = 0; i < a->operand_count; i++) {
    const fsdp_operand *x = &program->operands[a->first_operand + i];
    int64_t x_low, x_high;
    operand_hull(program, x, &x_low, &x_high);
    for (int j = 0; j < b->operand_count; j++) {
      const fsdp_operand *y = &program->operands[b->first_operand + j];
      int64_t y_low, y_high;
      if (x->tensor != y->tensor || ((x->access | y->access) & FSDP_WRITE) == 0) continue;
      operand_hull(program, y, &y_low, &y_high);
      if (x_low < y_high && y_low < x_high) return true;
    }
  }
  return false;
}

static void add_wait(inference *in, int position, int awaited, fsdp_wait_reason reason) {
  in->nodes = fsdp_grow(in->nodes, in->node_count + 1, &in->node_capacity, sizeof *in->nodes);
  in->nodes[in->node_count] = (wait_node){awaited, in->first_node[position], reason, false};
  in->first_node[position] = in->node_count++;
}

// Whether everything up to event `awaited` comes before what `clock` stands for.
static bool covers(const inference *in, const int *clock, int awaited) {
  const event *e = &in->events[awaited];
  return clock[e->stream] >= e->clock[e->stream];
}

static void join(const inference *in, int *clock, int awaited) {
  for (int s = 0; s < FSDP_STREAM_COUNT; s++)
    if (in->events[awaited].clock[s] > clock[s]) clock[s] = in->events[awaited].clock[s];
}

// The event of `position`, with the clock that its stream gives it; its waits are not in it yet.
static int begin_event(inference *in, int position) {
  int index = in->event_count++, stream = (int)in->program->instrs[position].stream;
  event *e = &in->events[index];
  memset(e, 0, sizeof *e);
  if (in->stream_latest[stream] >= 0) *e = in->events[in->stream_latest[stream]];
  e->position = position;
  e->stream = stream;
  e->clock[stream]++;
  return index;
}

static void end_event(inference *in, int position, int index) {
  in->latest[position] = index;
  in->stream_latest[in->events[index].stream] = index;
}

static void begin_walk(inference *in) {
  in->event_count = 0;
  for (int i = 0; i < in->program->instr_count; i++) in->latest[i] = NONE;
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) in->stream_latest[s] = NONE;
}

// ---- Finding waits

static int later(int event_index, int candidate) {
  return candidate > event_index ? candidate : event_index;
}

// need[s]: the latest event of stream s that the instruction must come after.
static void find_needs(inference *in, const fsdp_instr *instr, int need[FSDP_STREAM_COUNT]) {
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) need[s] = NONE;
  for (int o = instr->first_operand; o < instr->first_operand + instr->operand_count; o++) {
    int low = in->operand_low[o], high = in->operand_high[o];
    if (low == high) continue;
    bool writes = (in->program->operands[o].access & FSDP_WRITE) != 0;
    split_at(in, low);
    split_at(in, high);
    for (int i = low; i < high; i = next_start(in, i, high)) {
      const access_state *state = &in->states[i];
      if (state->writer >= 0) need[state->writer_stream] = later(need[state->writer_stream], state->writer);
      if (!writes) continue;
      for (int s = 0; s < FSDP_STREAM_COUNT; s++) need[s] = later(need[s], state->readers[s]);
    }
  }
}

static void record_accesses(inference *in, const fsdp_instr *instr, int index) {
  for (int o = instr->first_operand; o < instr->first_operand + instr->operand_count; o++) {
    int low = in->operand_low[o], high = in->operand_high[o];
    if (low == high || (in->program->operands[o].access & FSDP_WRITE) != 0) continue;
    for (int i = low; i < high; i = next_start(in, i, high)) in->states[i].readers[instr->stream] = index;
  }
  for (int o = instr->first_operand; o < instr->first_operand + instr->operand_count; o++) {
    int low = in->operand_low[o], high = in->operand_high[o];
    if (low == high || (in->program->operands[o].access & FSDP_WRITE) == 0) continue;
    clear_starts(in, low, high);
    in->states[low].writer = index;
    in->states[low].writer_stream = (int)instr->stream;
    for (int s = 0; s < FSDP_STREAM_COUNT; s++) in->states[low].readers[s] = NONE;
  }
}

static void join_waits(const inference *in, int position, int *clock) {
  for (int n = in->first_node[position]; n >= 0; n = in->nodes[n].next) {
    int awaited = in->latest[in->nodes[n].position];
    if (awaited >= 0) join(in, clock, awaited);
  }
}

// Adds the waits that the needs require and nothing implies yet.
static void add_missing(inference *in, int position, const int *need, const int *clock) {
  int missing[FSDP_STREAM_COUNT], count = 0; // events
  for (int s = 0; s < FSDP_STREAM_COUNT; s++)
    if (need[s] >= 0 && !covers(in, clock, need[s])) missing[count++] = need[s];
  for (int m = 0; m < count; m++) {
    bool implied = false;
    for (int other = 0; other < count && !implied; other++)
      implied = other != m && covers(in, in->events[missing[other]].clock, missing[m]);
    if (implied) continue;
    // An instruction accesses the same bytes in each of its runs, so only the most recent run matters.
    int awaited = in->events[missing[m]].position;
    FSDP_CHECK(in->latest[awaited] == missing[m], "position %d waits for an earlier run of %d", position,
               awaited);
    add_wait(in, position, awaited,
             touch_each_other(in->program, position, awaited) ? FSDP_WAIT_DATA : FSDP_WAIT_REUSE);
  }
}

// Issues the whole seam order and adds every wait that it requires.
static void find_waits(inference *in) {
  begin_walk(in);
  set_start(in, 0);
  in->states[0].writer = NONE;
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) in->states[0].readers[s] = NONE;
  for (int k = 0; k < in->run_count; k++) {
    const fsdp_section *section = &in->program->sections[in->order[k]];
    for (int i = section->begin; i < section->end; i++) {
      const fsdp_instr *instr = &in->program->instrs[i];
      int need[FSDP_STREAM_COUNT];
      find_needs(in, instr, need);
      int index = begin_event(in, i), *clock = in->events[index].clock;
      join_waits(in, i, clock);
      add_missing(in, i, need, clock);
      join_waits(in, i, clock);
      record_accesses(in, instr, index);
      end_event(in, i, index);
    }
  }
}

// ---- Leaving out what others imply

// Marks the policy waits (or the others, if `policy` is false) that some run of the program needs: those that
// neither the stream's order nor the instruction's other waits imply. In a directed acyclic graph all implied
// edges may be removed at once and every order stays.
static void mark_needed(inference *in, int position, int index, bool policy) {
  int *clock = in->events[index].clock;
  int own_clock[FSDP_STREAM_COUNT];
  if (in->first_node[position] < 0) return;
  memcpy(own_clock, clock, sizeof own_clock);
  for (int n = in->first_node[position]; n >= 0; n = in->nodes[n].next) {
    int awaited = in->latest[in->nodes[n].position];
    if (awaited < 0) continue;
    join(in, clock, awaited);
    if ((in->nodes[n].reason == FSDP_WAIT_POLICY) != policy || covers(in, own_clock, awaited)) continue;
    bool implied = false;
    for (int m = in->first_node[position]; m >= 0 && !implied; m = in->nodes[m].next) {
      int other = in->latest[in->nodes[m].position];
      implied = m != n && other >= 0 && covers(in, in->events[other].clock, awaited);
    }
    if (!implied) in->nodes[n].needed = true;
  }
}

static void drop_implied(inference *in, bool policy) {
  begin_walk(in);
  for (int n = 0; n < in->node_count; n++)
    in->nodes[n].needed = (in->nodes[n].reason == FSDP_WAIT_POLICY) != policy;
  for (int k = 0; k < in->run_count; k++) {
    const fsdp_section *section = &in->program->sections[in->order[k]];
    for (int i = section->begin; i < section->end; i++) {
      int index = begin_event(in, i);
      mark_needed(in, i, index, policy);
      end_event(in, i, index);
    }
  }
  for (int i = 0; i < in->program->instr_count; i++) {
    int *link = &in->first_node[i];
    while (*link >= 0) {
      if (in->nodes[*link].needed)
        link = &in->nodes[*link].next;
      else
        *link = in->nodes[*link].next;
    }
  }
}

// A policy never replaces a wait that the bytes require, so policies come after those are complete.
static void add_policies(inference *in) {
  const fsdp_program *program = in->program;
  for (int i = 0; i < program->instr_count; i++) {
    int awaited = program->instrs[i].policy;
    if (awaited < 0 || program->instrs[awaited].stream == program->instrs[i].stream) continue;
    bool present = false;
    for (int n = in->first_node[i]; n >= 0; n = in->nodes[n].next)
      present = present || in->nodes[n].position == awaited;
    if (!present) add_wait(in, i, awaited, FSDP_WAIT_POLICY);
  }
}

static int compare_waits(const void *a, const void *b) {
  return ((const fsdp_wait *)a)->position - ((const fsdp_wait *)b)->position;
}

static void store_waits(inference *in) {
  fsdp_program *program = in->program;
  fsdp_wait *waits = fsdp_alloc((size_t)in->node_count * sizeof *waits);
  int *counts = fsdp_alloc_zeroed((size_t)program->instr_count, sizeof *counts);
  int total = 0;
  for (int i = 0; i < program->instr_count; i++) {
    int first = total;
    for (int n = in->first_node[i]; n >= 0; n = in->nodes[n].next)
      waits[total++] = (fsdp_wait){in->nodes[n].position, in->nodes[n].reason};
    counts[i] = total - first;
    if (counts[i] > 1) qsort(waits + first, (size_t)counts[i], sizeof *waits, compare_waits);
  }
  fsdp_program_set_waits(program, waits, counts);
  free(waits);
  free(counts);
}

void fsdp_waits_infer(fsdp_program *program) {
  inference in = {.program = program};
  int events = 0;
  in.run_count = fsdp_program_seam_order(program, MIDDLES, in.order);
  for (int k = 0; k < in.run_count; k++)
    events += program->sections[in.order[k]].end - program->sections[in.order[k]].begin;
  in.events = fsdp_alloc((size_t)events * sizeof *in.events);
  in.latest = fsdp_alloc((size_t)program->instr_count * sizeof *in.latest);
  in.first_node = fsdp_alloc((size_t)program->instr_count * sizeof *in.first_node);
  for (int i = 0; i < program->instr_count; i++) in.first_node[i] = NONE;
  map_operands(&in);

  find_waits(&in);
  drop_implied(&in, false);
  add_policies(&in);
  drop_implied(&in, true);
  store_waits(&in);

  free(in.operand_low);
  free(in.operand_high);
  free(in.starts);
  free(in.starts_upper);
  free(in.states);
  free(in.events);
  free(in.latest);
  free(in.nodes);
  free(in.first_node);
}
