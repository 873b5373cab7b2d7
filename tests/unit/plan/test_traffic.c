// Bytes that a rank sends in a step, by mesh axes, against closed formulas for Llama models on meshes with
// tensor, sequence and context parallelism.
#include "models/family.h"
#include "runtime/plan/plan.h"
#include "tests/support/draws.h"
#include "tests/support/models.h"
#include "tests/support/unit_test.h"

#include <string.h>

typedef struct traffic_case {
  const char *model;
  int data, fsdp, context, tensor; // ranks on each axis
  fsdp_strategy strategy;
  bool sequence_parallel, bf16; // bf16: parameters and activations; gradients are reduced in fp32
  int64_t batch, seq;
  int micro_batches;
  const char *recompute; // NULL: what is saved is kept
} traffic_case;

// What the formulas are written in.
typedef struct quantities {
  int64_t L, C;             // layers, hidden size
  int64_t T, X, S, R;       // ranks on tensor, context, fsdp, data
  int64_t replicas, groups; // tensor factored: ranks with the same key/value heads, sets of such heads
  int64_t n, piece;         // rows of a rank; those of one piece (n without sequence parallelism)
  int64_t e;                // bytes of an element of parameters and activations
  int64_t q, kv, f, v;      // query and key/value columns, intermediate and vocabulary entries of a rank
} quantities;

static int64_t share(int64_t count, int64_t ranks) {
  return (count + ranks - 1) / ranks;
}

static quantities quantities_of(const traffic_case *c, const fsdp_model_config *m) {
  quantities q = {.L = m->num_layers, .C = m->hidden_size, .e = c->bf16 ? 2 : 4};
  q.T = c->tensor, q.X = c->context, q.S = c->fsdp, q.R = c->data;
  // Beyond the key/value heads, tensor is key/value x replica: replica the greatest divisor of T, and of the
  // query heads of a key/value head, that is no more than T / heads.
  int64_t queries = m->num_heads / m->num_kv_heads;
  q.replicas = q.T > m->num_kv_heads ? q.T / m->num_kv_heads : 1;
  while (q.T % q.replicas || queries % q.replicas) q.replicas--;
  q.groups = q.T / q.replicas;
  // Whole key/value heads, of each the same number of query heads on every replica.
  int64_t heads = share(m->num_kv_heads, q.groups);
  q.kv = heads * m->head_dim;
  q.q = heads * (queries / q.replicas) * m->head_dim;
  q.f = share(m->intermediate_size, q.T);
  q.v = share(m->vocab_size, q.T);
  // A part of the sequence is a chunk of its head and one of its tail; two chunks are whole pieces.
  int64_t pieces = c->sequence_parallel ? q.T : 1, piece = share(c->seq, pieces);
  if (q.X > 1) {
    int64_t multiple = pieces % 2 ? pieces : pieces / 2;
    piece = 2 * share(share(c->seq, 2 * q.X), multiple) * multiple / pieces;
  }
  q.piece = c->batch * piece;
  q.n = q.piece * pieces;
  return q;
}

// ---- One collective

// A ring all-gather or reduce-scatter sends every part but one.
static int64_t ring(int64_t part_bytes, int64_t ranks) {
  return part_bytes * (ranks - 1);
}

// A ring all-reduce does both.
static int64_t all_reduce(int64_t bytes, int64_t ranks) {
  return 2 * bytes * (ranks - 1) / ranks;
}

// ---- The parameters of one unit

typedef struct unit_bytes {
  int64_t shard;        // elements of a rank's shard
  int64_t gathers;      // in a step, over fsdp and context
  int64_t tensor_ranks; // over which the gradients are summands, beside data
} unit_bytes;

static int64_t aligned(int64_t numel, int64_t multiple) {
  return share(numel, multiple) * multiple;
}

enum { UNITS_MAX = 6 };

// Embedding, head, a layer's matrices, those of keys and values if replicas hold them, a layer's norms, and
// the root's norm; `times` is how often. Every parameter starts at a multiple of 16 elements,
// every shard is a multiple of 16.
//
// Gathers: under full and hybrid before each forward and before each backward; the embedding's backward reads
// no weight, the head's follows its forward. Under grad_op once a step, as is the root under all; so are the
// shards that zero1 has updated.
static int units_of(const traffic_case *c, const quantities *q, unit_bytes *units, int64_t *times) {
  bool stays = c->strategy == FSDP_GRAD_OP || c->strategy == FSDP_ZERO1;
  int64_t once = stays ? 1 : c->micro_batches, twice = stays ? 1 : 2 * c->micro_batches;
  int64_t shards = 16 * q->S * q->X;
  int64_t norm_ranks = c->sequence_parallel ? q->T : 1; // each has the rows of its piece
  int64_t qo = 2 * aligned(q->q * q->C, 16), kv = 2 * aligned(q->kv * q->C, 16);
  int64_t mlp = 3 * aligned(q->f * q->C, 16), table = aligned(q->v * q->C, 16);
  bool apart = q->replicas > 1;
  const struct {
    int64_t numel, gathers, tensor_ranks, times;
  } all[] = {{table, once, 1, 2},
             {qo + mlp + (apart ? 0 : kv), twice, 1, q->L},
             {apart ? kv : 0, twice, q->replicas, q->L},
             {2 * aligned(q->C, 16), twice, norm_ranks, q->L},
             {aligned(q->C, 16), 1, norm_ranks, 1}};
  int count = 0;
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    if (!all[i].numel) continue;
    units[count] =
        (unit_bytes){aligned(all[i].numel, shards) / (q->S * q->X), all[i].gathers, all[i].tensor_ranks};
    times[count++] = all[i].times;
  }
  return count;
}

// ---- By axes

typedef struct expected {
  fsdp_axis_set axes[16];
  int64_t bytes[16];
  int count;
} expected;

static void expect(expected *e, fsdp_axis_set axes, int64_t bytes) {
  int i = 0;
  while (i < e->count && e->axes[i] != axes) i++;
  if (i == e->count) e->axes[e->count++] = axes;
  e->bytes[i] += bytes;
}

// Rows between the products of a layer, over tensor.
//
// With sequence parallelism: a layer gathers the pieces before q|k|v and before gate|up and scatters the sums
// after o and after down; its backward does the inverse of each: 4 gathers and 4 scatters. The embedding
// scatters its sums (backward: gathers), and the head gathers (backward: scatters). If what a layer gathers
// is not kept, it is gathered again for the weights' gradients: 6 gathers and 4 scatters.
// Without: sums of all rows after o and after down, and in the backward before q|k|v and before gate|up: 4.
// One for the embedding's forward, and one for the head's backward.
// Both: the head's statistics, 12 bytes a row from every rank.
static int64_t tensor_rows(const traffic_case *c, const quantities *q) {
  int64_t moves = q->L * (c->recompute ? 10 : 8) + 4;
  int64_t rows = c->sequence_parallel ? moves * ring(q->piece * q->C * q->e, q->T)
                                      : (4 * q->L + 2) * all_reduce(q->n * q->C * q->e, q->T);
  return rows + ring(12 * q->n, q->T);
}

// Keys and values of a rank's heads, over context: gathered in the forward and, as they are not kept, again
// in the backward; and their gradients scattered.
static int64_t context_rows(const quantities *q) {
  return q->L * 3 * ring(q->n * 2 * q->kv * q->e, q->X);
}

static expected expected_of(const traffic_case *c, const quantities *q, const fsdp_mesh *mesh) {
  expected e = {0};
  fsdp_axis_set data = fsdp_mesh_axes(mesh, "data"), tensor = fsdp_mesh_axes(mesh, "tensor");
  fsdp_axis_set context = fsdp_mesh_axes(mesh, "context"), shards = fsdp_mesh_axes(mesh, "fsdp,context");
  unit_bytes units[UNITS_MAX];
  int64_t times[UNITS_MAX];
  expect(&e, tensor, c->micro_batches * tensor_rows(c, q));
  expect(&e, context, c->micro_batches * context_rows(q));
  int count = units_of(c, q, units, times);
  for (int u = 0; u < count; u++) {
    const unit_bytes *unit = &units[u];
    // Weights in bf16 or fp32; gradients in fp32, scattered over what shards the unit, then the shards summed
    // over the ranks that have other summands.
    expect(&e, shards, times[u] * unit->gathers * ring(unit->shard * q->e, q->S * q->X));
    int64_t reductions = c->strategy == FSDP_ZERO1 ? 1 : c->micro_batches;
    expect(&e, shards, reductions * times[u] * ring(unit->shard * 4, q->S * q->X));
    fsdp_axis_set sums = data | (unit->tensor_ranks > 1 ? tensor : 0);
    expect(&e, sums, times[u] * all_reduce(unit->shard * 4, q->R * unit->tensor_ranks));
  }
  // Scalars: count of targets and loss over the ranks with other tokens, the norm over all.
  expect(&e, data | shards, 2 * all_reduce(4, q->R * q->S * q->X));
  expect(&e, fsdp_mesh_all_axes(mesh), all_reduce(4, fsdp_mesh_ranks(mesh)));
  return e;
}

static fsdp_mesh mesh_of(const traffic_case *c) {
  fsdp_mesh mesh = {0};
  fsdp_mesh_add(&mesh, FSDP_AXIS_DATA, c->data);
  fsdp_mesh_add(&mesh, FSDP_AXIS_FSDP, c->fsdp);
  fsdp_mesh_add(&mesh, FSDP_AXIS_TENSOR, c->tensor);
  fsdp_mesh_add(&mesh, FSDP_AXIS_CONTEXT, c->context); // behind tensor, which may be factored
  fsdp_mesh_complete(&mesh);
  return mesh;
}

static fsdp_plan *plan_of(const traffic_case *c) {
  fsdp_plan_config config = {.batch = c->batch,
                             .seq = c->seq,
                             .micro_batches = c->micro_batches,
                             .accumulate =
                                 c->strategy == FSDP_ZERO1 ? FSDP_ACCUMULATE_LOCAL : FSDP_ACCUMULATE_REDUCE,
                             .strategy = c->strategy,
                             .mesh = mesh_of(c),
                             .sequence_parallel = c->sequence_parallel,
                             .wrap = {.kind = FSDP_WRAP_BLOCK},
                             .prefetch = 1,
                             .grad_clip = 1.0f,
                             .param_dtype = c->bf16 ? FSDP_BF16 : FSDP_F32,
                             .backend = fsdp_plan_backend_cpu()};
  fsdp_error error = {0};
  config.model = model_of_preset(c->model);
  if (c->recompute &&
      fsdp_saving_parse(c->recompute, "--recompute", FSDP_FATE_RECOMPUTE, &config.saving, &error))
    fail_msg("%s", error.message);
  fsdp_plan *plan = NULL;
  if (fsdp_plan_create(&config, &plan, &error)) fail_msg("%s", error.message);
  return plan;
}

static void check_case(const traffic_case *c) {
  fsdp_plan *plan = plan_of(c);
  const fsdp_mesh *mesh = &plan->config.mesh;
  quantities q = quantities_of(c, &plan->config.model);
  expected e = expected_of(c, &q, mesh);
  for (fsdp_axis_set axes = 1; axes < 1u << FSDP_MESH_AXES_MAX; axes++) {
    int64_t bytes = 0;
    for (int i = 0; i < e.count; i++) bytes += e.axes[i] == axes ? e.bytes[i] : 0;
    if (plan->traffic.by_axes[axes] == bytes) continue;
    char names[FSDP_MESH_TEXT_BYTES], sizes[FSDP_MESH_TEXT_BYTES];
    fail_msg("%s, %s, %s: %lld bytes over %s, but the formula says %lld", c->model,
             fsdp_mesh_print(mesh, ",", sizes), c->sequence_parallel ? "sequence parallel" : "whole rows",
             (long long)plan->traffic.by_axes[axes], fsdp_mesh_print_axes(mesh, axes, names),
             (long long)bytes);
  }
  fsdp_plan_destroy(plan);
}

// Two axes: fsdp x tensor.
TEST(test_tensor) {
  const traffic_case cases[] = {
      {"llama2-7b", 1, 8, 1, 2, FSDP_FULL, true, false, 1, 1024, 1, NULL},
      {"llama2-7b", 1, 8, 1, 2, FSDP_FULL, false, true, 2, 1024, 1, NULL},
      {"llama2-7b", 1, 1, 1, 8, FSDP_FULL, true, true, 1, 4096, 1, NULL},
      {"llama2-70b", 1, 16, 1, 8, FSDP_GRAD_OP, true, true, 1, 4096, 2, NULL},
      {"llama2-70b", 1, 4, 1, 16, FSDP_FULL, true, true, 1, 4096, 1, NULL},
      {"llama3-405b", 1, 64, 1, 8, FSDP_FULL, true, true, 1, 8192, 1, NULL},
      {"llama3-405b", 1, 64, 1, 16, FSDP_GRAD_OP, false, true, 1, 8192, 1, NULL},
      {"llama2-7b", 1, 8, 1, 2, FSDP_ZERO1, true, true, 1, 1024, 4, NULL},
      {"llama2-7b", 1, 4, 1, 4, FSDP_ZERO1, false, false, 1, 1024, 1, NULL},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i += (size_t)test_stride(3)) check_case(&cases[i]);
}

// Three axes: data x fsdp x tensor, fsdp x context x tensor, and all four.
TEST(test_three_axes) {
  const traffic_case cases[] = {
      {"llama2-7b", 2, 4, 1, 2, FSDP_HYBRID, true, false, 1, 1024, 3, NULL},
      {"llama2-7b", 2, 4, 1, 2, FSDP_HYBRID, false, true, 1, 1024, 1, NULL},
      {"llama2-7b", 1, 4, 2, 2, FSDP_FULL, true, true, 1, 4096, 1, NULL},
      {"llama2-7b", 1, 2, 4, 1, FSDP_FULL, false, false, 1, 4096, 1, NULL},
      {"llama2-70b", 1, 8, 8, 8, FSDP_FULL, true, true, 1, 32768, 1, NULL},
      {"llama2-70b", 2, 2, 2, 16, FSDP_HYBRID, true, true, 1, 8192, 1, NULL},
      {"llama2-7b", 4, 1, 1, 2, FSDP_NO, true, false, 1, 1024, 2, NULL},
      {"llama2-70b", 4, 1, 1, 16, FSDP_NO, false, true, 1, 1024, 1, NULL},
      {"llama3-405b", 8, 16, 1, 8, FSDP_HYBRID, true, true, 1, 8192, 1, NULL},
      {"llama3-405b", 1, 1024, 2, 8, FSDP_FULL, true, true, 1, 8192, 1, NULL},
      {"llama3-405b", 1, 32, 4, 16, FSDP_GRAD_OP, false, true, 1, 32768, 1, NULL},
      {"llama2-70b", 2, 2, 2, 16, FSDP_ZERO1, true, true, 1, 8192, 3, NULL},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i += (size_t)test_stride(3)) check_case(&cases[i]);
}

// Nothing divides: padded heads, columns, vocabulary, positions and shards are sent too.
TEST(test_odd_sizes) {
  const traffic_case cases[] = {
      {"llama2-7b", 1, 5, 1, 3, FSDP_FULL, true, false, 2, 1000, 1, NULL},
      {"llama2-7b", 3, 2, 3, 5, FSDP_HYBRID, true, true, 1, 1001, 1, NULL},
      {"llama2-70b", 1, 3, 1, 12, FSDP_FULL, true, true, 1, 1000, 1, NULL},
      {"llama2-70b", 1, 3, 2, 20, FSDP_FULL, true, true, 1, 1000, 1, NULL},
      {"llama3-405b", 1, 7, 3, 6, FSDP_FULL, false, true, 1, 333, 1, NULL},
      {"llama2-7b", 1, 5, 1, 3, FSDP_ZERO1, true, true, 2, 1000, 2, NULL},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i += (size_t)test_stride(3)) check_case(&cases[i]);
}

TEST(test_gathered_again) {
  const traffic_case cases[] = {
      {"llama2-7b", 1, 4, 1, 2, FSDP_FULL, true, true, 1, 1024, 1, "gather"},
      {"llama2-70b", 1, 4, 2, 16, FSDP_FULL, true, true, 1, 1024, 2, "gather"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i += (size_t)test_stride(3)) check_case(&cases[i]);
}
