#include "runtime/exec/profile.h"

#include "runtime/base/check.h"

#include <string.h>

typedef struct span {
  int64_t first_ns, last_ns; // 0, 0: nothing yet
} span;

// One stream's records, on cache lines of their own.
typedef struct book {
  _Alignas(64) int64_t busy_ns[2];
  int64_t op_ns[2][FSDP_OP_KIND_COUNT];
  span *spans[2]; // by section run and phase
} book;

struct fsdp_profile {
  book *streams;
  unsigned char *phase;       // by position
  signed char *begins, *ends; // by position: the phase, or -1
  int *op;                    // by position: its op, -1 if it is not a kernel
  int runs;                   // sections of a step
};

static bool is_backward(const fsdp_instr *instr) {
  return instr->kind == FSDP_INSTR_OP && fsdp_op_phase_of(instr->op) == FSDP_OP_IN_BACKWARD;
}

// The first and the last compute instruction of each phase.
static void find_ends(fsdp_profile *profile, const fsdp_section *section) {
  int first[FSDP_PHASE_COUNT], last[FSDP_PHASE_COUNT];
  for (int p = 0; p < FSDP_PHASE_COUNT; p++) first[p] = last[p] = -1;
  for (int i = section->begin; i < section->end; i++) {
    int phase = profile->phase[i] / 2;
    if (profile->phase[i] % 2 == 0) continue;
    if (first[phase] < 0) first[phase] = i;
    last[phase] = i;
  }
  for (int p = 0; p < FSDP_PHASE_COUNT; p++) {
    if (first[p] < 0) continue;
    profile->begins[first[p]] = (signed char)p;
    profile->ends[last[p]] = (signed char)p;
  }
}

fsdp_profile *fsdp_profile_create(const fsdp_program *program) {
  fsdp_profile *profile = fsdp_alloc_zeroed(1, sizeof *profile);
  profile->runs = program->micro_batches + FSDP_MAX_SECTIONS;
  profile->phase = fsdp_alloc_zeroed((size_t)program->instr_count, 1);
  profile->begins = fsdp_alloc((size_t)program->instr_count);
  profile->ends = fsdp_alloc((size_t)program->instr_count);
  memset(profile->begins, -1, (size_t)program->instr_count);
  memset(profile->ends, -1, (size_t)program->instr_count);
  profile->op = fsdp_alloc((size_t)program->instr_count * sizeof *profile->op);
  for (int i = 0; i < program->instr_count; i++) {
    const fsdp_instr *instr = &program->instrs[i];
    profile->op[i] = instr->kind == FSDP_INSTR_OP ? (int)instr->op : -1;
  }
  for (int s = 0; s < program->section_count; s++) {
    const fsdp_section *section = &program->sections[s];
    fsdp_phase phase = section->kind == FSDP_SECTION_UPDATE ? FSDP_PHASE_UPDATE : FSDP_PHASE_FORWARD;
    for (int i = section->begin; i < section->end; i++) {
      if (phase == FSDP_PHASE_FORWARD && is_backward(&program->instrs[i])) phase = FSDP_PHASE_BACKWARD;
      profile->phase[i] = (unsigned char)(phase * 2 + (program->instrs[i].stream == FSDP_STREAM_COMPUTE));
    }
    find_ends(profile, section);
  }
  profile->streams = aligned_alloc(64, FSDP_STREAM_COUNT * sizeof *profile->streams);
  FSDP_NEED_MEMORY(profile->streams, "the profile");
  memset(profile->streams, 0, FSDP_STREAM_COUNT * sizeof *profile->streams);
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) {
    for (int p = 0; p < 2; p++) {
      profile->streams[s].spans[p] =
          fsdp_alloc_zeroed((size_t)(profile->runs * FSDP_PHASE_COUNT), sizeof(span));
    }
  }
  return profile;
}

void fsdp_profile_destroy(fsdp_profile *profile) {
  if (!profile) return;
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) {
    for (int p = 0; p < 2; p++) free(profile->streams[s].spans[p]);
  }
  free(profile->streams);
  free(profile->phase);
  free(profile->begins);
  free(profile->ends);
  free(profile->op);
  free(profile);
}

void fsdp_profile_begin_step(fsdp_profile *profile, int64_t step) {
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) {
    book *mine = &profile->streams[s];
    mine->busy_ns[step % 2] = 0;
    memset(mine->op_ns[step % 2], 0, sizeof mine->op_ns[0]);
    memset(mine->spans[step % 2], 0, (size_t)(profile->runs * FSDP_PHASE_COUNT) * sizeof(span));
  }
}

int fsdp_profile_phase_begins(const fsdp_profile *profile, int position) {
  return profile->begins[position];
}

int fsdp_profile_phase_ends(const fsdp_profile *profile, int position) {
  return profile->ends[position];
}

static void widen(span *whole, span part) {
  if (part.last_ns == 0) return;
  if (whole->last_ns == 0 || part.first_ns < whole->first_ns) whole->first_ns = part.first_ns;
  if (part.last_ns > whole->last_ns) whole->last_ns = part.last_ns;
}

void fsdp_profile_instr(fsdp_profile *profile, const fsdp_profile_sample *sample) {
  book *mine = &profile->streams[sample->stream];
  mine->busy_ns[sample->step % 2] += sample->end_ns - sample->start_ns;
  int op = profile->op[sample->position];
  if (op >= 0) mine->op_ns[sample->step % 2][op] += sample->end_ns - sample->start_ns;
  int phase = profile->phase[sample->position] / 2;
  bool compute = profile->phase[sample->position] % 2;
  if (phase != FSDP_PHASE_UPDATE && !compute) return;
  widen(&mine->spans[sample->step % 2][sample->section_run * FSDP_PHASE_COUNT + phase],
        (span){sample->start_ns, sample->end_ns});
}

void fsdp_profile_report_step(const fsdp_profile *profile, int64_t step, fsdp_profile_report *report) {
  memset(report, 0, sizeof *report);
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) {
    report->busy_ms[s] = (double)profile->streams[s].busy_ns[step % 2] * 1e-6;
    for (int op = 0; op < FSDP_OP_KIND_COUNT; op++)
      report->op_ms[op] += (double)profile->streams[s].op_ns[step % 2][op] * 1e-6;
  }
  for (int i = 0; i < profile->runs * FSDP_PHASE_COUNT; i++) {
    span whole = {0, 0};
    for (int s = 0; s < FSDP_STREAM_COUNT; s++) widen(&whole, profile->streams[s].spans[step % 2][i]);
    report->phase_ms[i % FSDP_PHASE_COUNT] += (double)(whole.last_ns - whole.first_ns) * 1e-6;
  }
}
