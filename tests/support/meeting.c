#include "tests/support/meeting.h"

#include "runtime/base/check.h"

#include <string.h>

#define RANKS_MAX 16

// One issue of an instruction, the same on every rank.
typedef struct issue {
  int position, stream;
  int *awaited; // issues
  int awaited_count;
} issue;

typedef struct world {
  const fsdp_program *program;
  issue *issues;
  int issue_count, ranks;
  bool *is_done;                                 // by rank and issue
  int next[RANKS_MAX][FSDP_STREAM_COUNT];        // the stream's first issue that has not started
  int running[RANKS_MAX][FSDP_STREAM_COUNT];     // a collective that has joined its queue, or -1
  int *queue[RANKS_MAX][FSDP_PROGRAM_COMMS_MAX]; // of issues
  int queued[RANKS_MAX][FSDP_PROGRAM_COMMS_MAX], left[RANKS_MAX][FSDP_PROGRAM_COMMS_MAX];
} world;

static bool is_collective(const fsdp_instr *instr) {
  return instr->kind == FSDP_INSTR_ALL_GATHER || instr->kind == FSDP_INSTR_REDUCE_SCATTER ||
         instr->kind == FSDP_INSTR_ALL_REDUCE;
}

// Ranks of a group differ in its axes alone.
static bool are_members(const fsdp_program *program, int comm, int rank, int other) {
  const fsdp_mesh *mesh = &program->mesh;
  for (int a = mesh->count - 1; a >= 0; a--) {
    int size = mesh->axes[a].size;
    if (rank % size != other % size && !(program->comms[comm].axes >> a & 1)) return false;
    rank /= size, other /= size;
  }
  return true;
}

// ---- Issues

static void issue_section(world *w, const fsdp_section *section, int *recent) {
  for (int i = section->begin; i < section->end; i++) {
    const fsdp_instr *instr = &w->program->instrs[i];
    issue *e = &w->issues[w->issue_count];
    *e = (issue){.position = i, .stream = (int)instr->stream};
    e->awaited = fsdp_alloc((size_t)instr->wait_count * sizeof *e->awaited);
    for (int k = 0; k < instr->wait_count; k++) {
      int awaited = recent[w->program->waits[instr->first_wait + k].position];
      if (awaited >= 0) e->awaited[e->awaited_count++] = awaited;
    }
    recent[i] = w->issue_count++;
  }
}

static world *world_create(const fsdp_program *program) {
  world *w = fsdp_alloc_zeroed(1, sizeof *w);
  w->program = program;
  w->ranks = fsdp_mesh_ranks(&program->mesh);
  FSDP_CHECK(w->ranks <= RANKS_MAX, "%d ranks", w->ranks);
  size_t room = 2 * (size_t)program->instr_count;
  w->issues = fsdp_alloc(room * sizeof *w->issues);
  int *recent = fsdp_alloc((size_t)program->instr_count * sizeof *recent);
  for (int i = 0; i < program->instr_count; i++) recent[i] = -1;
  for (int step = 0; step < 2; step++)
    for (int s = 0; s < program->section_count; s++) issue_section(w, &program->sections[s], recent);
  free(recent);
  w->is_done = fsdp_alloc_zeroed((size_t)w->ranks * room, sizeof *w->is_done);
  for (int rank = 0; rank < w->ranks; rank++) {
    for (int s = 0; s < FSDP_STREAM_COUNT; s++) w->running[rank][s] = -1;
    for (int g = 0; g < program->comm_count; g++)
      w->queue[rank][g] = fsdp_alloc(room * sizeof *w->queue[rank][g]);
  }
  return w;
}

static void world_destroy(world *w) {
  for (int e = 0; e < w->issue_count; e++) free(w->issues[e].awaited);
  for (int rank = 0; rank < w->ranks; rank++)
    for (int g = 0; g < w->program->comm_count; g++) free(w->queue[rank][g]);
  free(w->issues);
  free(w->is_done);
  free(w);
}

// ---- Running

static bool *done(world *w, int rank, int e) {
  return &w->is_done[(int64_t)rank * w->issue_count + e];
}

static void finish(world *w, int rank, int e) {
  *done(w, rank, e) = true;
  w->running[rank][w->issues[e].stream] = -1;
}

// Starts the next issue of a stream if it may; an instruction of the rank alone is done at once.
static bool advance(world *w, int rank, int stream) {
  int *next = &w->next[rank][stream];
  if (w->running[rank][stream] >= 0) return false;
  while (*next < w->issue_count && w->issues[*next].stream != stream) ++*next;
  if (*next == w->issue_count) return false;
  int e = *next;
  for (int k = 0; k < w->issues[e].awaited_count; k++)
    if (!*done(w, rank, w->issues[e].awaited[k])) return false;
  ++*next;
  const fsdp_instr *instr = &w->program->instrs[w->issues[e].position];
  if (is_collective(instr)) {
    w->running[rank][stream] = e;
    w->queue[rank][instr->comm][w->queued[rank][instr->comm]++] = e;
  } else {
    finish(w, rank, e);
  }
  return true;
}

// The first of the queue of `rank`, or -1.
static int first_call(const world *w, int rank, int group) {
  bool waits = w->left[rank][group] < w->queued[rank][group];
  return waits ? w->queue[rank][group][w->left[rank][group]] : -1;
}

// Completes the first call of a group if all of its members have come. False after a mismatch.
static bool join_members(world *w, int rank, int group, bool *progress) {
  int e = first_call(w, rank, group);
  if (e < 0) return true;
  for (int other = 0; other < w->ranks; other++) {
    if (!are_members(w->program, group, rank, other)) continue;
    int call = first_call(w, other, group);
    if (call < 0) return true;
    if (call != e) return false;
  }
  for (int other = 0; other < w->ranks; other++) {
    if (!are_members(w->program, group, rank, other)) continue;
    w->left[other][group]++;
    finish(w, other, e);
  }
  *progress = true;
  return true;
}

static bool everything_is_done(world *w) {
  bool all = true;
  for (int rank = 0; rank < w->ranks; rank++)
    for (int e = 0; e < w->issue_count; e++) all = all && *done(w, rank, e);
  return all;
}

meeting meet(const fsdp_program *program, random_source *random) {
  world *w = world_create(program);
  meeting result = MEETING_COMPLETE;
  for (bool progress = true; progress && result == MEETING_COMPLETE;) {
    progress = false;
    // A few streams of a few ranks at random, then each in turn, so that every ready instruction starts.
    for (int i = 0; i < 4 * w->ranks; i++)
      progress |=
          advance(w, random_int(random, 0, w->ranks - 1), random_int(random, 0, FSDP_STREAM_COUNT - 1));
    int first = random_int(random, 0, w->ranks * FSDP_STREAM_COUNT - 1);
    for (int i = 0; i < w->ranks * FSDP_STREAM_COUNT && !progress; i++) {
      int k = (first + i) % (w->ranks * FSDP_STREAM_COUNT);
      progress = advance(w, k / FSDP_STREAM_COUNT, k % FSDP_STREAM_COUNT);
    }
    for (int rank = 0; rank < w->ranks; rank++)
      for (int group = 0; group < program->comm_count; group++)
        if (!join_members(w, rank, group, &progress)) result = MEETING_MISMATCH;
  }
  if (result == MEETING_COMPLETE && !everything_is_done(w)) result = MEETING_STUCK;
  world_destroy(w);
  return result;
}
