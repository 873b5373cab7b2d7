// How fast are the collectives? usage: mpirun -np N bench_collectives [--messages] [--max BYTES]
//
// For each collective and size: time per call, CPU time that rank 0 spends on it (lost to computing),
// algorithm bandwidth (bytes / time; `bytes` is the whole buffer) and bus bandwidth, which is what the
// slowest link must have carried (nccl-tests, doc/PERFORMANCE.md): bytes / time * (n-1)/n, twice that for an
// all-reduce. Inputs are small integers, so that every sum is exact, and results are checked. Without
// --messages ranks of one node read each other directly.
#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/exec/session.h"

#include <string.h>
#include <time.h>

#define BYTES_MIN        ((int64_t)4 << 10)
#define SECONDS_PER_SIZE 0.3

typedef struct bench {
  fsdp_world *world;
  fsdp_device *device;
  fsdp_comm *comm;
  fsdp_dtype dtype;
  int64_t wrong;
} bench;

static float value_of(int rank, int64_t index) {
  return (float)((rank + index) % 8);
}

static void put(const bench *self, int64_t index, float value) {
  void *buffer = self->device->arenas.memory[FSDP_SPACE_DEVICE];
  if (self->dtype == FSDP_F32)
    ((float *)buffer)[index] = value;
  else
    ((fsdp_bf16 *)buffer)[index] = fsdp_bf16_from_f32(value);
}

static float get(const bench *self, int64_t index) {
  const void *buffer = self->device->arenas.memory[FSDP_SPACE_DEVICE];
  return self->dtype == FSDP_F32 ? ((const float *)buffer)[index]
                                 : fsdp_bf16_to_f32(((const fsdp_bf16 *)buffer)[index]);
}

// Everything in place, as training does.
static void run(const bench *self, fsdp_collective_kind what, int64_t numel) {
  int64_t slot = numel / self->comm->size;
  char *buffer = (char *)self->device->arenas.memory[FSDP_SPACE_DEVICE];
  char *own = buffer + self->comm->rank * slot * fsdp_dtype_bytes(self->dtype);
  const fsdp_collective_row *row = &fsdp_collective_rows[what];
  const fsdp_collective call = {.input = row->input == FSDP_PART_SLOT ? own : buffer,
                                .output = row->output == FSDP_PART_SLOT ? own : buffer,
                                .numel = row->input == row->output ? numel : slot,
                                .dtype = self->dtype};
  fsdp_comm_run(self->comm, what, &call);
}

static void check(bench *self, fsdp_collective_kind what, int64_t numel) {
  int size = self->comm->size, rank = self->comm->rank;
  int64_t slot = numel / size;
  const fsdp_collective_row *row = &fsdp_collective_rows[what];
  for (int64_t i = 0; i < numel; i++) put(self, i, value_of(rank, i));
  run(self, what, numel);
  int64_t begin = row->output == FSDP_PART_SLOT ? rank * slot : 0;
  int64_t end = row->output == FSDP_PART_SLOT ? begin + slot : numel;
  for (int64_t i = begin; i < end; i++) {
    float wanted = 0;
    if (!row->sums)
      wanted = value_of((int)(i / slot), i);
    else
      for (int r = 0; r < size; r++) wanted += value_of(r, i);
    self->wrong += get(self, i) != wanted;
  }
}

static double cpu_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static double seconds_per_call(const bench *self, fsdp_collective_kind what, int64_t numel, double *cpu) {
  int64_t calls = 1;
  for (;;) {
    fsdp_world_barrier(self->world);
    int64_t start_ns = fsdp_now_ns();
    double cpu_start = cpu_seconds();
    for (int64_t i = 0; i < calls; i++) run(self, what, numel);
    *cpu = (cpu_seconds() - cpu_start) / (double)calls;
    fsdp_world_barrier(self->world);
    double seconds = (double)(fsdp_now_ns() - start_ns) * 1e-9;
    // Rank 0 decides, so that all make the same calls.
    fsdp_world_broadcast(self->world, &seconds, (int64_t)sizeof seconds);
    if (seconds >= SECONDS_PER_SIZE || calls >= 1 << 20) return seconds / (double)calls;
    double wanted = SECONDS_PER_SIZE * 1.2 / (seconds > 1e-6 ? seconds : 1e-6) * (double)calls;
    calls = (int64_t)wanted + 1;
  }
}

static void measure(bench *self, fsdp_collective_kind what, int64_t bytes) {
  int size = self->comm->size;
  int64_t unit = (int64_t)size * 16, numel = bytes / fsdp_dtype_bytes(self->dtype) / unit * unit;
  if (numel == 0) return;
  check(self, what, numel);
  double cpu, seconds = seconds_per_call(self, what, numel, &cpu);
  double rate = (double)(numel * fsdp_dtype_bytes(self->dtype)) / seconds * 1e-9;
  double bus = rate * (size - 1) / size * fsdp_collective_rows[what].passes;
  if (self->world->rank != 0) return;
  printf("%-15s %-5s %12lld %12.1f %12.1f %9.3f %9.3f %8lld\n", fsdp_collective_rows[what].title,
         fsdp_dtype_name(self->dtype), (long long)(numel * fsdp_dtype_bytes(self->dtype)), seconds * 1e6,
         cpu * 1e6, rate, bus, (long long)self->wrong);
  fflush(stdout);
}

static void print_head(const bench *self) {
  if (self->world->rank != 0) return;
  printf("# %d ranks on %d nodes, communicator: %s\n", self->world->size, self->world->node_count,
         self->comm->table->name);
  printf("# %-13s %-5s %12s %12s %12s %9s %9s %8s\n", "collective", "dtype", "bytes", "us", "cpu us",
         "alg GB/s", "bus GB/s", "wrong");
}

int main(int argc, char **argv) {
  bench self = {0};
  fsdp_error error;
  int64_t bytes_max = (int64_t)64 << 20;
  bool messages = false;
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--messages") == 0)
      messages = true;
    else if (strcmp(argv[i], "--max") == 0 && i + 1 < argc)
      bytes_max = atoll(argv[++i]);
    else {
      fprintf(stderr, "usage: mpirun -np N bench_collectives [--messages] [--max BYTES]\n");
      return FSDP_ERR_OPTION;
    }
  }
  fsdp_status status = fsdp_world_create(&argc, &argv, &self.world, &error);
  FSDP_CHECK(status == FSDP_OK, "%s", error.message);
  fsdp_comm_group group = {.rank = self.world->rank, .size = self.world->size};
  fsdp_session session;
  fsdp_session_config config = {.world = self.world,
                                .arena_bytes = {bytes_max, 4096},
                                .groups = &group,
                                .group_count = 1,
                                .messages = messages};
  status = fsdp_session_create(&config, &session, &error);
  FSDP_CHECK(status == FSDP_OK, "%s", error.message);
  self.device = session.device;
  self.comm = session.comms.comm[0];
  print_head(&self);
  for (int what = 0; what < FSDP_COLLECTIVE_COUNT; what++) {
    self.dtype = FSDP_F32;
    for (int64_t bytes = BYTES_MIN; bytes <= bytes_max; bytes *= 16)
      measure(&self, (fsdp_collective_kind)what, bytes);
    measure(&self, (fsdp_collective_kind)what, bytes_max);
    self.dtype = FSDP_BF16;
    measure(&self, (fsdp_collective_kind)what, bytes_max);
  }
  fsdp_session_destroy(&session);
  fsdp_world_destroy(self.world);
  return self.wrong == 0 ? 0 : 1;
}
