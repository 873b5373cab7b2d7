#include "runtime/exec/access_trace.h"

#include "runtime/base/check.h"

#include <stdio.h>
#include <string.h>

// Capacity in ranges, per instruction and per operand.
#define EVENTS_PER_INSTR   8
#define EVENTS_PER_OPERAND 8
#define ERROR_BYTES        512

// What one stream has recorded in one step.
typedef struct record {
  fsdp_measure_event *events;
  int64_t count, capacity;
  char error[ERROR_BYTES]; // the first one; empty: none
} record;

// The stream's running instruction, on cache lines of its own.
typedef struct recorder {
  _Alignas(64) fsdp_access_recorder base; // the first member, which the report is made to
  fsdp_access_trace *trace;
  record steps[2];
  record *current;
  int64_t issue;
  int position;
  const fsdp_view *views;
} recorder;

struct fsdp_access_trace {
  const fsdp_program *program;
  const fsdp_device *device;
  int common;                             // tensor, or -1
  int64_t beside_bytes[FSDP_SPACE_COUNT]; // of tensors that are always live and that no step accesses
  fsdp_measure_event *held; // of tensors that are always live and that steps only read, each whole
  int held_count;
  recorder *streams;
  fsdp_measure_event *merged;
};

static void fail(recorder *self, const fsdp_instr *instr, const void *address, int64_t bytes,
                 const char *what) {
  if (self->current->error[0]) return;
  const char *name =
      instr->kind == FSDP_INSTR_OP ? fsdp_op_name(instr->op) : fsdp_instr_kind_name(instr->kind);
  snprintf(self->current->error, ERROR_BYTES, "instruction %d (%s on %s) %s: %lld bytes at %p",
           self->position, name, fsdp_stream_name(instr->stream), what, (long long)bytes, address);
}

// Whether the range lies in `tensor`.
static bool is_in(const fsdp_access_trace *trace, int tensor, const char *at, int64_t bytes) {
  if (tensor < 0) return false;
  const fsdp_tensor *t = &trace->program->tensors[tensor];
  const char *begin = (const char *)trace->device->arenas.memory[t->space] + t->address;
  return at >= begin && at + bytes <= begin + t->bytes;
}

// False if the buffer is full.
static bool add_event(recorder *self, int tensor, const char *at, int64_t bytes, fsdp_access access) {
  if (self->current->count == self->current->capacity) return false;
  fsdp_space space = self->trace->program->tensors[tensor].space;
  int64_t offset = at - (const char *)self->trace->device->arenas.memory[space];
  self->current->events[self->current->count++] = (fsdp_measure_event){.issue = self->issue,
                                                                       .buffer = tensor,
                                                                       .space = (int)space,
                                                                       .access = access,
                                                                       .begin = offset,
                                                                       .end = offset + bytes};
  return true;
}

static void record_range(fsdp_access_recorder *base, const void *address, int64_t bytes, fsdp_access access) {
  recorder *self = (recorder *)base;
  const fsdp_program *program = self->trace->program;
  const fsdp_instr *instr = &program->instrs[self->position];
  const char *wrong = "accesses bytes outside its operands";
  for (int o = 0; o < instr->operand_count; o++) {
    const fsdp_operand *operand = &program->operands[instr->first_operand + o];
    const char *begin = self->views[o].data, *at = address;
    if (at < begin || at + bytes > begin + operand->size_bytes) continue;
    wrong = "writes an operand that it should only read";
    if ((access & FSDP_WRITE) && !(operand->access & FSDP_WRITE)) continue;
    if (add_event(self, operand->tensor, at, bytes, access)) return;
    wrong = "reports more ranges than fit";
    break;
  }
  int common = self->trace->common;
  if (is_in(self->trace, common, address, bytes) && add_event(self, common, address, bytes, access)) return;
  fail(self, instr, address, bytes, wrong);
}

// Ranges that one step needs, by stream.
static void count_ranges(const fsdp_program *program, int64_t capacity[FSDP_STREAM_COUNT]) {
  int *order = fsdp_alloc((size_t)(FSDP_MAX_SECTIONS + program->micro_batches) * sizeof *order);
  int runs = fsdp_program_step_order(program, order);
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) capacity[s] = 0;
  for (int r = 0; r < runs; r++) {
    const fsdp_section *section = &program->sections[order[r]];
    for (int i = section->begin; i < section->end; i++) {
      const fsdp_instr *instr = &program->instrs[i];
      capacity[instr->stream] += EVENTS_PER_INSTR + EVENTS_PER_OPERAND * instr->operand_count;
      if (instr->kind == FSDP_INSTR_OP && fsdp_op_has(instr->op, FSDP_TRAIT_BY_ROW))
        capacity[instr->stream] += instr->attrs.batch * instr->attrs.seq;
    }
  }
  free(order);
}

int64_t fsdp_access_trace_bytes(const fsdp_program *program) {
  int64_t capacity[FSDP_STREAM_COUNT], total = 0;
  count_ranges(program, capacity);
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) total += capacity[s];
  return 3 * total * (int64_t)sizeof(fsdp_measure_event); // two steps, and one of them merged
}

// What stays in memory throughout a step, and of which a step accesses nothing (a snapshot), or reads what it
// needs (rows of a table that does not train).
static void find_lasting(fsdp_access_trace *trace) {
  const fsdp_program *program = trace->program;
  fsdp_access *accesses = fsdp_alloc_zeroed((size_t)program->tensor_count, sizeof *accesses);
  trace->held = fsdp_alloc((size_t)program->tensor_count * sizeof *trace->held);
  if (trace->common >= 0) accesses[trace->common] = FSDP_UPDATE;
  for (int s = 0; s < program->section_count; s++) {
    const fsdp_section *section = &program->sections[s];
    for (int i = section->begin; i < section->end && section->kind < FSDP_SECTION_EVALUATION; i++)
      for (int o = 0; o < program->instrs[i].operand_count; o++) {
        const fsdp_operand *operand = &program->operands[program->instrs[i].first_operand + o];
        accesses[operand->tensor] |= operand->access;
      }
  }
  for (int t = 0; t < program->tensor_count; t++) {
    const fsdp_tensor *tensor = &program->tensors[t];
    if (tensor->lifetime != FSDP_LIVE_ALWAYS) continue;
    if (!accesses[t]) trace->beside_bytes[tensor->space] += tensor->bytes;
    if (accesses[t] != FSDP_READ) continue;
    trace->held[trace->held_count++] = (fsdp_measure_event){.buffer = t,
                                                            .space = (int)tensor->space,
                                                            .access = FSDP_READ,
                                                            .begin = tensor->address,
                                                            .end = tensor->address + tensor->bytes};
  }
  free(accesses);
}

fsdp_access_trace *fsdp_access_trace_create(const fsdp_program *program, const fsdp_device *device,
                                            int common) {
  fsdp_access_trace *trace = fsdp_alloc_zeroed(1, sizeof *trace);
  trace->program = program;
  trace->device = device;
  trace->common = common;
  find_lasting(trace);
  trace->streams = aligned_alloc(64, FSDP_STREAM_COUNT * sizeof *trace->streams);
  FSDP_NEED_MEMORY(trace->streams, "the trace");
  memset(trace->streams, 0, FSDP_STREAM_COUNT * sizeof *trace->streams);
  int64_t total = 0, capacity[FSDP_STREAM_COUNT];
  count_ranges(program, capacity);
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) {
    recorder *self = &trace->streams[s];
    self->base.range = record_range;
    self->trace = trace;
    for (int p = 0; p < 2; p++) {
      self->steps[p].capacity = capacity[s];
      self->steps[p].events = fsdp_alloc((size_t)capacity[s] * sizeof *self->steps[p].events);
    }
    total += capacity[s];
  }
  trace->merged = fsdp_alloc((size_t)(total + trace->held_count) * sizeof *trace->merged);
  return trace;
}

void fsdp_access_trace_destroy(fsdp_access_trace *trace) {
  if (!trace) return;
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) {
    for (int p = 0; p < 2; p++) free(trace->streams[s].steps[p].events);
  }
  free(trace->streams);
  free(trace->merged);
  free(trace->held);
  free(trace);
}

void fsdp_access_trace_begin_step(fsdp_access_trace *trace, int64_t step) {
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) {
    record *mine = &trace->streams[s].steps[step % 2];
    mine->count = 0;
    mine->error[0] = '\0';
  }
}

fsdp_access_recorder *fsdp_access_trace_instr(fsdp_access_trace *trace, int64_t step, int64_t issue,
                                              int position, const fsdp_view *views) {
  recorder *self = &trace->streams[trace->program->instrs[position].stream];
  self->current = &self->steps[step % 2];
  self->issue = issue;
  self->position = position;
  self->views = views;
  return &self->base;
}

// Each stream's events are in the order of issue: merges them into one list.
static int64_t merge(fsdp_access_trace *trace, int64_t step) {
  int64_t next[FSDP_STREAM_COUNT] = {0}, count = trace->held_count;
  if (count > 0) memcpy(trace->merged, trace->held, (size_t)count * sizeof *trace->held);
  for (;;) {
    const record *first = NULL;
    int chosen = -1;
    for (int s = 0; s < FSDP_STREAM_COUNT; s++) {
      const record *other = &trace->streams[s].steps[step % 2];
      if (next[s] == other->count) continue;
      if (first && first->events[next[chosen]].issue <= other->events[next[s]].issue) continue;
      first = other;
      chosen = s;
    }
    if (!first) return count;
    trace->merged[count++] = first->events[next[chosen]++];
  }
}

bool fsdp_access_trace_measure(fsdp_access_trace *trace, int64_t step, int64_t issue_count,
                               fsdp_measurement *measurement, char *message, int message_bytes) {
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) {
    const char *error = trace->streams[s].steps[step % 2].error;
    if (!error[0]) continue;
    snprintf(message, (size_t)message_bytes, "%s", error);
    return false;
  }
  if (!fsdp_measure(trace->merged, merge(trace, step), issue_count, measurement, message, message_bytes))
    return false;
  for (int s = 0; s < FSDP_SPACE_COUNT; s++) {
    measurement->valley_bytes[s] += trace->beside_bytes[s];
    measurement->peak_bytes[s] += trace->beside_bytes[s];
  }
  return true;
}
