// Collectives by group and bytes, copies, and how much compute and communication slow each other down.
#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/probe/run.h"

#include <math.h>
#include <string.h>

#define COPY_BYTES     ((int64_t)32 << 20)
#define COPY_BYTES_GPU ((int64_t)1 << 30)
#define LAUNCHES       1000
#define LAUNCH_ROUNDS  7
#define GATHER_SETS    8 // shards come from the state of units before; gradients were just written
#define REDUCE_SETS    3
#define CROWDED_WIDTH  256 // of products between collectives: a fraction of a rank's turn on its core

// ---- Collectives

typedef struct collective_load {
  fsdp_comm *comm;
  fsdp_collective_kind kind;
  int64_t numel; // of the whole, fp32
  unsigned char *whole, *part;
  int64_t stride; // from one set to the next
} collective_load;

// As a step does it: a shard is gathered from the state, and reduced into a buffer of its own.
static void run_collective(void *context, const fsdp_stream_context *stream, int set) {
  const collective_load *l = context;
  unsigned char *whole = l->whole + set * l->stride, *part = l->part + set * l->stride;
  const fsdp_collective_row *row = &fsdp_collective_rows[l->kind];
  const bool apart = row->input == FSDP_PART_SLOT || row->meets == FSDP_MEETS_NOWHERE;
  const fsdp_collective call = {.input = apart ? part : whole,
                                .output = row->output == FSDP_PART_SLOT ? part : whole,
                                .numel = row->input == row->output ? l->numel : l->numel / l->comm->size,
                                .dtype = FSDP_F32,
                                .stream = stream->native};
  fsdp_comm_run(l->comm, l->kind, &call);
}

// False if the buffers do not fit. `bytes` becomes what the group's size divides.
static bool make_collective(const probe *self, int group, fsdp_collective_kind kind, int64_t *bytes,
                            collective_load *l, probe_load *load) {
  const int64_t size = self->links[group].ranks;
  const int64_t numel = *bytes < 64 * size ? *bytes / 4 : *bytes / 4 / (16 * size) * 16 * size;
  *bytes = 4 * numel;
  // Both halves of the arena begin alike on every rank. Behind the operands of an op that runs too.
  const int64_t stride = fsdp_round_up(*bytes, 4096);
  const int64_t taken = fsdp_round_up(fsdp_max_i64(self->inputs.used, self->outputs.used), 4096);
  const int64_t room = (fsdp_min_i64(self->outputs.bytes, self->inputs.bytes) - taken) / stride;
  if (room < 1) return false;
  *l = (collective_load){.comm = self->session.comms.comm[group],
                         .kind = kind,
                         .numel = numel,
                         .whole = self->outputs.memory + taken,
                         .part = self->inputs.memory + taken,
                         .stride = stride};
  *load = (probe_load){
      .run = run_collective,
      .context = l,
      .stream = FSDP_STREAM_GATHER,
      .sets = (int)fsdp_min_i64(fsdp_collective_rows[kind].sums ? REDUCE_SETS : GATHER_SETS, room),
      .agreed = true};
  // Sums of the inputs stay small; an all-reduce adds to what it has made.
  return true;
}

// A product of square matrices; NULL if its operands do not fit.
static probe_call *make_product(probe *self, int64_t width) {
  const fsdp_op_attrs attrs = {
      .batch = 1, .seq = width, .in_features = width, .out_features = width, .out_stride = width};
  return probe_call_create(self, fsdp_op_product_kind(FSDP_PRODUCT_FORWARD), &attrs, 0);
}

// Where ranks share cores, a rank that comes to a collective between ops finds others that have no core just
// then. What it adds to the ops around it counts, less the handoffs, which are priced by themselves.
static double added_by(const probe *self, const probe_load *product, double product_s,
                       const probe_load *collective) {
  const double both_s = probe_measure_between(self, product, collective);
  return fmax(both_s - product_s - 2 * self->profile->handoff_s, 0.1 * both_s);
}

static void measure_collective(probe *self, int group, fsdp_collective_kind kind, const probe_load *product,
                               double product_s) {
  const bool cuda = self->device == FSDP_OP_CUDA;
  const bool few = fsdp_collective_rows[kind].meets == FSDP_MEETS_SAME; // a step's scalars too
  const int64_t last = cuda ? (int64_t)1 << 30 : (int64_t)32 << 20;
  fsdp_profile_point points[16];
  fsdp_profile_collective entry = self->links[group];
  entry.kind = kind;
  entry.seconds = (fsdp_profile_curve){.points = points};
  for (int64_t at = few ? 4 : 4096; at <= last; at *= at < 4096 ? 1024 : at < ((int64_t)1 << 20) ? 8 : 4) {
    collective_load l;
    probe_load load;
    int64_t bytes = at;
    if (!make_collective(self, group, kind, &bytes, &l, &load)) break;
    points[entry.seconds.count++] = (fsdp_profile_point){
        (double)bytes, product ? added_by(self, product, product_s, &load) : probe_measure(self, &load)};
  }
  // More bytes take no less: what disturbs a measurement only adds to it.
  for (int i = entry.seconds.count - 2; i >= 0; i--)
    points[i].value = fmin(points[i].value, points[i + 1].value);
  if (entry.seconds.count > 0) fsdp_device_profile_add(self->profile, FSDP_PROFILE_COLLECTIVES, &entry);
}

void probe_collectives(probe *self) {
  probe_call *call = self->crowded ? make_product(self, CROWDED_WIDTH) : NULL;
  probe_load product;
  double product_s = 0;
  FSDP_NEED_MEMORY(call || !self->crowded, "a product of %d x %d", CROWDED_WIDTH, CROWDED_WIDTH);
  if (call) {
    product = probe_call_load(self, call);
    product_s = probe_measure_between(self, &product, NULL);
  }
  for (int g = 0; g < self->group_count; g++) {
    for (int kind = 0; kind < FSDP_COLLECTIVE_COUNT; kind++)
      measure_collective(self, g, (fsdp_collective_kind)kind, call ? &product : NULL, product_s);
    if (self->links[g].link == FSDP_LINK_NETWORK)
      fsdp_device_profile_set_network(self->profile, self->links[g].ranks);
  }
  probe_call_destroy(call);
}

// ---- Copies

typedef struct copy_load {
  unsigned char *to, *from;
  int64_t bytes;
} copy_load;

static void run_copy(void *context, const fsdp_stream_context *stream, int set) {
  const copy_load *l = context;
  (void)set;
  stream->table->copy(stream, l->to, l->from, l->bytes);
}

void probe_copies(probe *self) {
  const bool cuda = self->device == FSDP_OP_CUDA;
  unsigned char *host = self->session.device->arenas.memory[FSDP_SPACE_HOST];
  const int64_t region = fsdp_min_i64(self->inputs.bytes, self->outputs.bytes);
  const int64_t half = fsdp_min_i64(self->session.device->arenas.bytes[FSDP_SPACE_HOST] / 2, region);
  const int64_t inside = fsdp_min_i64(cuda ? COPY_BYTES_GPU : COPY_BYTES, region);
  copy_load device = {self->outputs.memory, self->inputs.memory, inside};
  copy_load up = {self->outputs.memory, host, half}, down = {host + half, self->inputs.memory, half};
  const probe_load loads[] = {
      {.run = run_copy, .context = &device, .stream = FSDP_STREAM_COMPUTE, .sets = 1},
      {.run = run_copy, .context = &up, .stream = FSDP_STREAM_H2D, .sets = 1},
      {.run = run_copy, .context = &down, .stream = FSDP_STREAM_D2H, .sets = 1},
  };
  double seconds[3];
  if (self->active) memset(host, 0, (size_t)(2 * half)); // touched
  for (int i = 0; i < 3; i++) seconds[i] = probe_measure(self, &loads[i]);
  fsdp_device_profile *profile = self->profile;
  profile->memory_rate = 2 * (double)inside / seconds[0];
  profile->up_rate = (double)half / seconds[1];
  profile->down_rate = (double)half / seconds[2];
  const double up_s = probe_measure_beside(self, &loads[1], seconds[1], &loads[2], seconds[2]);
  const double down_s = probe_measure_beside(self, &loads[2], seconds[2], &loads[1], seconds[1]);
  profile->up_both_rate = fmin(profile->up_rate, (double)half / up_s);
  profile->down_both_rate = fmin(profile->down_rate, (double)half / down_s);
}

// ---- Contention

void probe_contention(probe *self) {
  if (self->group_count == 0) return;
  const bool cuda = self->device == FSDP_OP_CUDA;
  probe_call *call = make_product(self, cuda ? 4096 : 512);
  int64_t bytes = cuda ? (int64_t)64 << 20 : (int64_t)4 << 20;
  collective_load l;
  probe_load gather;
  const int group = self->group_count - 1; // of all ranks
  if (call && make_collective(self, group, FSDP_ALL_GATHER, &bytes, &l, &gather)) {
    gather.sets = 1;
    const probe_load product = probe_call_load(self, call);
    // Means of equal numbers of runs are compared.
    const double product_s = probe_measure(self, &product), gather_s = probe_measure(self, &gather);
    const double alone[] = {probe_measure_beside(self, &product, product_s, NULL, 0),
                            probe_measure_beside(self, &gather, gather_s, NULL, 0)};
    self->profile->product_slowdown =
        fmax(1, probe_measure_beside(self, &product, product_s, &gather, gather_s) / alone[0]);
    self->profile->collective_slowdown =
        fmax(1, probe_measure_beside(self, &gather, gather_s, &product, product_s) / alone[1]);
    // The product lacks at least what the collective's thread takes of a core while it takes so much longer,
    // and at most the half of one that both have.
    if (!cuda) {
      const double beside_s = gather_s * self->profile->collective_slowdown;
      const double share = probe_processor_s(self, &gather, 50) / beside_s;
      const double lacking = probe_mean(self, fmin(0.5, share) / self->threads);
      self->profile->product_slowdown = fmax(self->profile->product_slowdown, 1 / (1 - lacking));
    }
  }
  probe_call_destroy(call);
}

// ---- Launches

static void run_nothing(void *context, const fsdp_stream_context *stream, int set) {
  (void)context, (void)stream, (void)set;
}

// From one instruction to the next, and from one that another stream waits for to that stream's next.
void probe_launches(probe *self) {
  fsdp_device_profile *profile = self->profile;
  const probe_load nothing = {.run = run_nothing, .stream = FSDP_STREAM_COMPUTE, .sets = 1},
                   other = {.run = run_nothing, .stream = FSDP_STREAM_GATHER, .sets = 1};
  double launch_s[LAUNCH_ROUNDS], handoff_s[LAUNCH_ROUNDS];
  for (int round = -1; round < LAUNCH_ROUNDS; round++) { // the first wakes threads and fills caches
    const int at = round < 0 ? 0 : round;
    launch_s[at] = probe_time_between(self, &nothing, NULL, LAUNCHES);
    handoff_s[at] = probe_time_between(self, &nothing, &other, LAUNCHES / 2) / 2; // two instructions each
  }
  profile->launch_s = probe_median(launch_s, LAUNCH_ROUNDS, 4, NULL);
  profile->handoff_s = fmax(0, probe_median(handoff_s, LAUNCH_ROUNDS, 4, NULL) - profile->launch_s);
  if (self->device != FSDP_OP_CUDA) return;
  // A queue is never empty in a step: kernels follow each other as they do here.
  const fsdp_op_attrs attrs = {.batch = 1, .seq = 1};
  probe_call *call = probe_call_create(self, FSDP_PLAN_OP_ZERO, &attrs, 64);
  if (call) profile->launch_s = probe_call_measure(self, call);
  probe_call_destroy(call);
}
