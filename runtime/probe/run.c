#include "runtime/probe/run.h"

#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/random.h"
#include "runtime/base/size.h"
#include "runtime/plan/plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PASSES_MIN     2
#define PASSES_MAX     1024
#define PASSES_MAX_GPU 256
#define ALIGNMENT      256
#define SETS_MAX       128
#define BETWEEN_FIRST  4
#define BETWEEN_MAX    4096
#define ROTATED_BYTES  ((int64_t)160 << 20) // several times the caches behind a core
#define FRESH_SETS     3
#define FRESH_BYTES    ((int64_t)24 << 20)
#define PATTERN        ((int64_t)1 << 20) // elements that are drawn; the inputs repeat them
#define HOST_BYTES     ((int64_t)32 << 20)

// ---- Memory

void *probe_take(probe_region *region, int64_t bytes) {
  bytes = fsdp_round_up(bytes, ALIGNMENT);
  if (bytes > region->bytes) return NULL;
  if (region->used + bytes > region->bytes) region->used = 0;
  void *memory = region->memory + region->used;
  region->used += bytes;
  return memory;
}

int probe_sets(const probe *self, int64_t bytes, bool fresh) {
  const int64_t all = fsdp_min_i64(self->inputs.bytes, self->outputs.bytes);
  const int64_t most = fresh ? FRESH_BYTES : fsdp_min_i64(all - FRESH_BYTES, ROTATED_BYTES);
  const int64_t room = fsdp_min_i64(all, most) / fsdp_max_i64(bytes, 1);
  return (int)fsdp_max_i64(1, fsdp_min_i64(room, fresh ? FRESH_SETS : SETS_MAX));
}

void probe_fill(probe *self, fsdp_dtype dtype) {
  self->dtype = dtype;
  if (!self->active) return;
  fsdp_device *device = self->session.device;
  const int64_t width = fsdp_dtype_bytes(dtype), bytes = self->inputs.bytes;
  float *drawn = fsdp_alloc((size_t)PATTERN * sizeof *drawn);
  fsdp_random_normal(1, 1, 0, PATTERN, 0, 0.5f, drawn);
  if (dtype == FSDP_BF16) {
    fsdp_bf16 *rounded = (fsdp_bf16 *)drawn; // in place: the narrower element lies behind what is read
    for (int64_t i = 0; i < PATTERN; i++) {
      const fsdp_bf16 value = fsdp_bf16_from_f32(drawn[i]);
      memcpy(&rounded[i], &value, sizeof value);
    }
  }
  for (int64_t done = 0; done < bytes; done += PATTERN * width)
    device->table->write(device, self->inputs.memory + done, drawn,
                         fsdp_min_i64(bytes - done, PATTERN * width));
  if (device->table->flush) device->table->flush(device);
  device->table->clear(device, self->outputs.memory, self->outputs.bytes);
  if (device->table->flush) device->table->flush(device);
  free(drawn);
}

// ---- Time

typedef struct passes {
  const probe *self;
  const probe_load *load;
  int wanted, done;
  int first;          // of the passes: those before it have run
  double budget_s;    // a CPU stops when it is used up, unless the number of runs is agreed on
  int first_slot;     // of the device's timestamps
  int64_t *marks_ns;  // without these: two for each pass
  double processor_s; // of the stream's thread, in all
} passes;

static void mark(passes *p, const fsdp_stream_context *context, int which) {
  if (context->native)
    context->table->timestamp(p->self->session.device, context, p->first_slot + which);
  else
    p->marks_ns[which] = fsdp_now_ns();
}

static double processor_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int runs_of(const probe_load *load) {
  return load->few ? load->few : load->sets;
}

typedef struct cooling {
  const unsigned char *memory;
  int64_t bytes, each; // of the memory; of a thread
} cooling;

static void read_part(void *argument, int64_t index, void *scratch) {
  const cooling *c = argument;
  unsigned char *sum = scratch;
  int64_t at = index * c->each % c->bytes;
  for (int64_t i = 0; i < c->each; i += 64) {
    *sum = (unsigned char)(*sum + c->memory[at]);
    at = at + 64 < c->bytes ? at + 64 : 0;
  }
}

// Reads the host's arena, which no operand is in.
static void cool(const probe *self, const fsdp_stream_context *context, int64_t bytes) {
  cooling c = {self->session.device->arenas.memory[FSDP_SPACE_HOST], HOST_BYTES, bytes};
  fsdp_pool_run(context->pool, fsdp_pool_thread_count(context->pool), read_part, &c);
}

// On the stream.
static void run_passes(const fsdp_work *work, const fsdp_stream_context *context) {
  passes *p = work->owner;
  const probe_load *load = p->load;
  const int runs = runs_of(load);
  p->processor_s = -processor_seconds();
  for (p->done = 0; p->done < p->wanted; p->done++) {
    const int first = (p->first + p->done) * runs;
    for (int i = 0; load->refresh && i < runs; i++)
      load->refresh(load->context, context, (first + i) % load->sets);
    if (load->cooled_bytes > 0) cool(p->self, context, load->cooled_bytes);
    mark(p, context, 2 * p->done);
    for (int i = 0; i < runs; i++) load->run(load->context, context, (first + i) % load->sets);
    mark(p, context, 2 * p->done + 1);
    if (context->native || load->agreed) continue;
    const double spent_s = 1e-9 * (double)(p->marks_ns[2 * p->done + 1] - p->marks_ns[0]);
    if (spent_s > p->budget_s && p->done + 1 >= PASSES_MIN) {
      p->done++;
      break;
    }
  }
  p->processor_s += processor_seconds();
}

static uint64_t launch(passes *p) {
  fsdp_device *device = p->self->session.device;
  const fsdp_work work = {.run = run_passes, .owner = p, .awaited = true};
  return device->table->launch(device, p->load->stream, &work);
}

static void finish(const passes *p, uint64_t ticket) {
  fsdp_device *device = p->self->session.device;
  device->table->synchronize(device, p->load->stream, ticket);
}

static int ascending(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

// Below, what lies between is chance.
#define SPREAD_LEAST 8

double probe_median(double *seconds, int count, int tail, probe_spread *spread) {
  qsort(seconds, (size_t)count, sizeof *seconds, ascending);
  const int last = count - 1;
  const double median = seconds[last / 2];
  if (spread && count >= SPREAD_LEAST && seconds[0] > 0) {
    spread->low += log(seconds[last / tail] / median);
    spread->high += log(seconds[last - last / tail] / median);
    spread->count++;
  }
  return median;
}

// Seconds of a run, from the marks: the mean, or the median; their spread is added unless it is NULL.
static double seconds_of(const passes *p, bool mean, probe_spread *spread) {
  fsdp_device *device = p->self->session.device;
  double *each = fsdp_alloc((size_t)p->done * sizeof *each), sum = 0;
  for (int i = 0; i < p->done; i++) {
    each[i] = device->table->enqueues ? 1e-3 * device->table->timestamp_ms(device, p->first_slot + 2 * i,
                                                                           p->first_slot + 2 * i + 1)
                                      : 1e-9 * (double)(p->marks_ns[2 * i + 1] - p->marks_ns[2 * i]);
    sum += each[i];
  }
  const double median = probe_median(each, p->done, 4, spread);
  free(each);
  return (mean ? sum / p->done : median) / runs_of(p->load);
}

static passes make_passes(const probe *self, const probe_load *load, int wanted, int first_slot) {
  const int most = self->session.device->table->enqueues ? PASSES_MAX_GPU : PASSES_MAX;
  passes p = {.self = self, .load = load, .budget_s = self->unit_s, .first_slot = first_slot};
  p.wanted = (int)fsdp_max_i64(1, fsdp_min_i64(wanted, most));
  p.marks_ns = fsdp_alloc((size_t)p.wanted * 2 * sizeof *p.marks_ns);
  return p;
}

// Runs `wanted` passes after `first` alone on the machine; returns the seconds of a run, and of its stream's
// thread.
static double time_alone(const probe *self, const probe_load *load, int first, int wanted,
                         probe_spread *spread, double *processor_s) {
  passes p = make_passes(self, load, wanted, 0);
  p.first = first;
  finish(&p, launch(&p));
  const double seconds = seconds_of(&p, self->crowded, spread);
  *processor_s = p.processor_s / (p.done * runs_of(load));
  free(p.marks_ns);
  return seconds;
}

double probe_mean(const probe *self, double mine) {
  const fsdp_world *world = self->world;
  if (world->size == 1) return mine;
  // In whole picoseconds: the sum is then the same on all ranks.
  int64_t sums[2] = {self->active ? (int64_t)(mine * 1e12) : 0, self->active};
  fsdp_world_reduce(self->world, FSDP_REDUCE_SUM, sums, 2);
  return 1e-12 * (double)sums[0] / (double)sums[1];
}

double probe_elapsed(const probe *self) {
  double seconds = 1e-9 * (double)(fsdp_now_ns() - self->start_ns);
  fsdp_world_broadcast(self->world, &seconds, (int64_t)sizeof seconds);
  return seconds;
}

// The first pass touches memory and wakes threads, and tells how many are enough where that must be known
// before: on queues, and where all ranks make as many.
double probe_measure(const probe *self, const probe_load *load) {
  const bool queues = self->session.device->table->enqueues;
  double once = 0, seconds = 0, wanted = PASSES_MAX, unused;
  if (self->active && queues) time_alone(self, load, 0, 1, NULL, &unused); // loads the kernel
  if (self->active) once = time_alone(self, load, 0, 1, NULL, &unused);
  if (load->agreed) once = probe_mean(self, once);
  fsdp_world_barrier(self->world);
  if (self->active) {
    if (load->agreed || queues) wanted = fmin(PASSES_MAX, ceil(self->unit_s / (once * runs_of(load) + 1e-9)));
    seconds = time_alone(self, load, 1, (int)fmax(2, wanted), &self->spread[load->agreed], &unused);
  }
  return probe_mean(self, seconds);
}

double probe_sweeps_median(probe_sweeps *sweeps, double seconds) {
  double sorted[PROBE_SWEEPS_MAX];
  const int place = sweeps->next++;
  if (sweeps->sweep == 0 && place % 256 == 0)
    sweeps->seconds = fsdp_realloc(sweeps->seconds, (size_t)(place + 256) * sizeof *sweeps->seconds);
  if (sweeps->sweep == 0) sweeps->count = place + 1;
  FSDP_CHECK(place < sweeps->count, "a sweep with more measurements than the first, %d", sweeps->count);
  sweeps->seconds[place][sweeps->sweep] = seconds;
  memcpy(sorted, sweeps->seconds[place], (size_t)(sweeps->sweep + 1) * sizeof *sorted);
  return probe_median(sorted, sweeps->sweep + 1, 4, NULL);
}

double probe_measure_beside(const probe *self, const probe_load *load, double load_s,
                            const probe_load *beside, double beside_s) {
  const double span_s = self->session.device->table->enqueues ? 0.01 : fmax(8 * self->unit_s, 0.2);
  const int runs = (int)fmax(3, ceil(span_s / (load_s * runs_of(load))));
  const int others = beside ? (int)fmax(3, ceil(4 * span_s / (beside_s * runs_of(beside)))) : 0;
  double seconds = 0;
  fsdp_world_barrier(self->world);
  if (self->active) {
    probe_load fixed = *load, other = beside ? *beside : *load;
    fixed.agreed = other.agreed = true;
    passes first = make_passes(self, &other, others, 2 * PASSES_MAX_GPU);
    passes second = make_passes(self, &fixed, runs, 0);
    const uint64_t started = beside ? launch(&first) : 0, ended = launch(&second);
    finish(&second, ended);
    seconds = seconds_of(&second, true, NULL);
    finish(&first, started);
    free(first.marks_ns);
    free(second.marks_ns);
  }
  return probe_mean(self, seconds);
}

double probe_processor_s(const probe *self, const probe_load *load, int count) {
  double seconds = 0;
  fsdp_world_barrier(self->world);
  if (self->active) time_alone(self, load, 0, count, NULL, &seconds);
  return probe_mean(self, seconds);
}

// ---- Between ops

// One run; the round is its set.
static void run_single(const fsdp_work *work, const fsdp_stream_context *context) {
  const probe_load *load = work->owner;
  load->run(load->context, context, (int)work->round);
}

static uint64_t launch_single(const probe *self, const probe_load *load, int run) {
  fsdp_device *device = self->session.device;
  const fsdp_work work = {
      .run = run_single, .owner = (void *)(uintptr_t)load, .round = run % load->sets, .awaited = true};
  return device->table->launch(device, load->stream, &work);
}

double probe_time_between(const probe *self, const probe_load *op, const probe_load *load, int count) {
  if (!self->active) return probe_mean(self, 0);
  fsdp_device *device = self->session.device;
  uint64_t ticket = 0;
  const int64_t start_ns = fsdp_now_ns();
  for (int i = 0; i < count; i++) {
    ticket = launch_single(self, op, i);
    if (!load) continue;
    device->table->wait(device, load->stream, op->stream, ticket);
    ticket = launch_single(self, load, i);
    device->table->wait(device, op->stream, load->stream, ticket);
  }
  device->table->synchronize(device, load ? load->stream : op->stream, ticket);
  return probe_mean(self, 1e-9 * (double)(fsdp_now_ns() - start_ns) / count);
}

double probe_measure_between(const probe *self, const probe_load *op, const probe_load *load) {
  const double span_s = self->coarse ? 0.05 : 0.2;
  fsdp_world_barrier(self->world);
  const double once = probe_time_between(self, op, load, BETWEEN_FIRST);
  fsdp_world_barrier(self->world);
  return probe_time_between(self, op, load, (int)fmin(BETWEEN_MAX, fmax(BETWEEN_FIRST, ceil(span_s / once))));
}

// ---- Session

static void add_group(probe *self, const fsdp_comm_group *group, const fsdp_profile_collective *link) {
  // A rank that sleeps is a group by itself, which no other has the color of.
  const fsdp_comm_group alone = {.color = (1 << 24) + self->world->rank, .rank = 0, .size = 1};
  FSDP_CHECK(self->group_count < PROBE_GROUPS_MAX, "more than %d sizes of groups", PROBE_GROUPS_MAX);
  self->groups[self->group_count] = self->active ? *group : alone;
  self->links[self->group_count++] = *link;
}

// Neighbours on a node in groups of 2, 4, ... and all; then all nodes together.
static void make_groups(probe *self) {
  const fsdp_world *world = self->world;
  self->group_count = 0;
  for (int size = 2; size <= self->ranks;
       size = size < self->ranks && 2 * size > self->ranks ? self->ranks : 2 * size) {
    if (self->ranks % size != 0) continue;
    add_group(
        self,
        &(fsdp_comm_group){.color = world->node_index * 4096 + world->local_rank / size,
                           .rank = world->local_rank % size,
                           .size = size},
        &(fsdp_profile_collective){
            .link = FSDP_LINK_NODE, .ranks = size, .ranks_per_node = size, .groups = self->ranks / size});
  }
  if (world->node_count > 1)
    add_group(self,
              &(fsdp_comm_group){.color = 0,
                                 .rank = world->node_index * self->ranks + world->local_rank,
                                 .size = world->node_count * self->ranks},
              &(fsdp_profile_collective){.link = FSDP_LINK_NETWORK,
                                         .ranks = world->node_count * self->ranks,
                                         .ranks_per_node = self->ranks,
                                         .groups = 1});
}

static int64_t arena_bytes(const probe *self) {
  const int64_t mib = (int64_t)1 << 20;
  if (self->device == FSDP_OP_CUDA) return fsdp_min_i64(self->gpu_bytes / 4, 8192 * mib);
  return (int64_t)fmin(512, fmax(192, 8 * self->seconds)) * mib;
}

static void divide_arena(probe *self) {
  unsigned char *memory = self->session.device->arenas.memory[FSDP_SPACE_DEVICE];
  int64_t bytes = self->session.device->arenas.bytes[FSDP_SPACE_DEVICE], workspace = 0;
  if (self->backend) {
    workspace = fsdp_plan_backend_cuda()->gemm_workspace_bytes;
    self->backend->open(memory);
  }
  const int64_t half = (bytes - workspace) / 2 / ALIGNMENT * ALIGNMENT;
  self->inputs = (probe_region){.memory = memory + workspace, .bytes = half};
  self->outputs = (probe_region){.memory = memory + workspace + half, .bytes = half};
}

fsdp_status probe_open(probe *self, int ranks, fsdp_error *error) {
  const bool cuda = self->device == FSDP_OP_CUDA;
  self->ranks = ranks;
  self->active = self->world->local_rank < ranks;
  fsdp_world_set_patient(self->world, !self->active);
  self->crowded = !cuda && ranks > self->cores;
  self->scope = cuda ? 0 : ranks;
  self->threads = self->bind(self->bind_context, ranks);
  make_groups(self);
  fsdp_session_config session = {.world = self->world,
                                 .gpu = self->gpu,
                                 .threads = self->threads,
                                 .arena_bytes = {arena_bytes(self), HOST_BYTES},
                                 .groups = self->groups,
                                 .group_count = self->group_count,
                                 .comm_timeout_s = 300};
  session.stream_threads[FSDP_STREAM_COMPUTE] = self->threads;
  session.stream_threads[FSDP_STREAM_GATHER] = 1;
  session.stream_threads[FSDP_STREAM_H2D] = session.stream_threads[FSDP_STREAM_D2H] = 1;
  fsdp_status status = fsdp_session_create(&session, &self->session, error);
  if (status) return status;
  self->backend = cuda ? fsdp_cuda_backend() : NULL;
  self->kernels = cuda ? self->backend->table : fsdp_cpu_kernels();
  fsdp_device *device = self->session.device;
  // Of two loads beside each other, two for each pass.
  if (device->table->enqueues) device->table->reserve_timestamps(device, 4 * PASSES_MAX_GPU);
  divide_arena(self);
  if (self->active && !cuda) memset(device->arenas.memory[FSDP_SPACE_HOST], 1, (size_t)HOST_BYTES); // touched
  probe_fill(self, cuda ? FSDP_BF16 : FSDP_F32);
  return FSDP_OK;
}

void probe_close(probe *self) {
  fsdp_world_set_patient(self->world, false);
  if (self->backend) self->backend->close();
  fsdp_session_destroy(&self->session);
}
