#include "tests/support/network_run.h"

#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/comm/comm_inproc.h"
#include "runtime/device/pool.h"
#include "tests/support/network_compute.h"

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { AXES_MAX = 4 };

typedef struct network_rank {
  const fsdp_dataflow *flow;
  const fsdp_propagation *propagation;
  float *const *given;
  float **whole; // rank 0 fills it
  fsdp_inproc *inproc;
  fsdp_comm *comms[1 << AXES_MAX]; // by set of axes
  int rank, ranks;
  network_part *parts; // by tensor, as its maker puts it
  int64_t *received;   // by what is moved: bytes of this rank's new part that its old one has not
  fsdp_pool *pool;
  pthread_t thread;
} network_rank;

int64_t network_numel(const fsdp_operator_tensor *tensor) {
  int64_t numel = 1;
  for (int d = 0; d < tensor->dims; d++) numel *= tensor->shape[d];
  return numel;
}

// ---- Parts

// The place of a rank among the slices over `axes`, and their number.
static int64_t slice_of(const fsdp_slice_mesh *mesh, int ranks, int rank, fsdp_axis_set axes,
                        int64_t *slices) {
  int64_t place = 0;
  *slices = 1;
  for (int a = 0; a < mesh->count; a++) {
    ranks /= mesh->sizes[a];
    if (!(axes >> a & 1)) continue;
    place = place * mesh->sizes[a] + rank / ranks % mesh->sizes[a];
    *slices *= mesh->sizes[a];
  }
  return place;
}

// Parts are rounded up, as propagation has them: the last ones may be smaller, or empty.
static network_part part_of(const network_rank *r, int tensor, const fsdp_tensor_axes *axes, int rank) {
  const fsdp_operator_tensor *t = &r->flow->tensors[tensor];
  network_part p = {.dims = t->dims, .numel = 1, .slot_numel = 1};
  for (int d = 0; d < t->dims; d++) {
    int64_t slices, place = slice_of(&r->propagation->mesh, r->ranks, rank, axes->dim[d], &slices);
    int64_t share = fsdp_slice_share(t->shape[d], slices);
    p.begin[d] = fsdp_min_i64(place * share, t->shape[d]);
    p.shape[d] = fsdp_min_i64(share, t->shape[d] - p.begin[d]);
    p.numel *= p.shape[d];
    p.slot_numel *= share;
  }
  p.data = fsdp_alloc_zeroed((size_t)p.slot_numel, sizeof *p.data);
  return p;
}

// Copies between a part and the whole tensor.
static void copy_part(const fsdp_operator_tensor *t, const network_part *p, float *whole, bool to_whole) {
  for (int64_t e = 0; e < p->numel; e++) {
    int64_t left = e, index = 0, stride = 1;
    for (int d = p->dims - 1; d >= 0; d--) {
      index += (left % p->shape[d] + p->begin[d]) * stride;
      left /= p->shape[d];
      stride *= t->shape[d];
    }
    *(to_whole ? &whole[index] : &p->data[e]) = to_whole ? p->data[e] : whole[index];
  }
}

// The whole of a tensor, gathered from all ranks.
static float *gather(const network_rank *r, int tensor, const network_part *own,
                     const fsdp_tensor_axes *axes) {
  const fsdp_operator_tensor *t = &r->flow->tensors[tensor];
  float *all = fsdp_alloc((size_t)(own->slot_numel * r->ranks) * sizeof *all);
  float *whole = fsdp_alloc((size_t)network_numel(t) * sizeof *whole);
  fsdp_comm *comm = r->comms[(1 << r->propagation->mesh.count) - 1];
  const fsdp_collective call = {
      .input = own->data, .output = all, .numel = own->slot_numel, .dtype = FSDP_F32};
  fsdp_comm_run(comm, FSDP_ALL_GATHER, &call);
  for (int rank = 0; rank < r->ranks; rank++) {
    network_part p = part_of(r, tensor, axes, rank);
    memcpy(p.data, all + rank * own->slot_numel, (size_t)own->slot_numel * sizeof *all);
    copy_part(t, &p, whole, true);
    free(p.data);
  }
  free(all);
  return whole;
}

static fsdp_tensor_axes made_axes(const network_rank *r, int tensor) {
  int maker = r->flow->tensors[tensor].maker;
  const fsdp_operator *op = &r->flow->operators[maker];
  return fsdp_operand_axes(op, op->input_count, &r->propagation->operators[maker]);
}

// The entry of what is moved, -1: the input lies as its operator wants it.
static int find_moved(const network_rank *r, int op, int operand) {
  for (int m = 0; m < r->propagation->moved_count; m++)
    if (r->propagation->moved[m].reader == op && r->propagation->moved[m].operand == operand) return m;
  return -1;
}

// Where an input or a parameter of the network lies: as readers want it for which it is not moved.
static fsdp_tensor_axes given_axes(const network_rank *r, int tensor) {
  for (int o = 0; o < r->flow->operator_count; o++) {
    const fsdp_operator *op = &r->flow->operators[o];
    for (int i = 0; i < op->input_count; i++)
      if (op->operands[i].tensor == tensor && find_moved(r, o, i) < 0)
        return fsdp_operand_axes(op, i, &r->propagation->operators[o]);
  }
  FSDP_CHECK(false, "%s is moved for all that read it", r->flow->tensors[tensor].name);
}

// Items of a part that are in another part, too.
static int64_t common_numel(const network_part *a, const network_part *b) {
  int64_t numel = 1;
  for (int d = 0; d < a->dims; d++) {
    int64_t end = fsdp_min_i64(a->begin[d] + a->shape[d], b->begin[d] + b->shape[d]);
    numel *= fsdp_max_i64(end - fsdp_max_i64(a->begin[d], b->begin[d]), 0);
  }
  return numel;
}

// An operator's input as it wants it; the caller frees its data.
static network_part input_part(const network_rank *r, int op, int operand) {
  const fsdp_operator *o = &r->flow->operators[op];
  int tensor = o->operands[operand].tensor, moved = find_moved(r, op, operand);
  const fsdp_operator_tensor *t = &r->flow->tensors[tensor];
  bool is_made = t->role == FSDP_TENSOR_MADE;
  fsdp_tensor_axes wanted = fsdp_operand_axes(o, operand, &r->propagation->operators[op]);
  fsdp_tensor_axes lies = is_made ? made_axes(r, tensor) : given_axes(r, tensor);
  FSDP_CHECK((moved < 0) == !memcmp(&lies, &wanted, sizeof lies), "%s: input %d is moved, or is not",
             o->names[0], operand);
  network_part p = part_of(r, tensor, &lies, r->rank);
  if (is_made)
    memcpy(p.data, r->parts[tensor].data, (size_t)p.numel * sizeof *p.data);
  else
    copy_part(t, &p, r->given[tensor], false);
  if (moved < 0) return p;
  network_part new_part = part_of(r, tensor, &wanted, r->rank);
  float *whole = gather(r, tensor, &p, &lies);
  copy_part(t, &new_part, whole, false);
  r->received[moved] = (new_part.numel - common_numel(&p, &new_part)) * t->item_bytes;
  free(whole);
  free(p.data);
  return new_part;
}

// ---- Operators

// Sums an output over the axes of the letters that it lacks.
static void sum_partial(const network_rank *r, int op, network_part *out) {
  const fsdp_operator *o = &r->flow->operators[op];
  fsdp_axis_set lacking = 0;
  for (int l = 0; l < o->letter_count; l++)
    if (fsdp_operand_dim(&o->operands[o->input_count], l) < 0)
      lacking |= fsdp_operator_axes(o, &r->propagation->operators[op], l);
  if (!lacking || out->numel == 0) return;
  fsdp_comm *comm = r->comms[lacking];
  const fsdp_collective call = {.output = out->data, .numel = out->numel, .dtype = FSDP_F32};
  fsdp_comm_run(comm, FSDP_ALL_REDUCE, &call);
}

static void run_operator(const network_rank *r, int op) {
  const fsdp_operator *o = &r->flow->operators[op];
  int made = o->operands[o->input_count].tensor;
  fsdp_tensor_axes axes = made_axes(r, made);
  network_part in[FSDP_OPERATOR_OPERANDS], *out = &r->parts[made];
  for (int i = 0; i < o->input_count; i++) in[i] = input_part(r, op, i);
  *out = part_of(r, made, &axes, r->rank);
  network_compute(r->flow, op, in, out, r->pool);
  sum_partial(r, op, out);
  for (int i = 0; i < o->input_count; i++) free(in[i].data);
  float *whole = gather(r, made, out, &axes);
  if (r->rank == 0)
    r->whole[made] = whole;
  else
    free(whole);
}

static void *run_rank(void *argument) {
  network_rank *r = argument;
  r->pool = fsdp_pool_create(1);
  r->parts = fsdp_alloc_zeroed((size_t)r->flow->tensor_count, sizeof *r->parts);
  for (int set = 0; set < 1 << r->propagation->mesh.count; set++)
    r->comms[set] = fsdp_inproc_comm(r->inproc, set, r->rank);
  for (int o = 0; o < r->flow->operator_count; o++) run_operator(r, o);
  for (int set = 0; set < 1 << r->propagation->mesh.count; set++) fsdp_comm_destroy(r->comms[set]);
  for (int t = 0; t < r->flow->tensor_count; t++) free(r->parts[t].data);
  free(r->parts);
  fsdp_pool_destroy(r->pool);
  return NULL;
}

// ---- All ranks

// A communicator for every set of axes.
static fsdp_inproc *make_comms(const fsdp_slice_mesh *mesh, int ranks) {
  int sets = 1 << mesh->count;
  FSDP_CHECK(mesh->count <= AXES_MAX, "%d axes", mesh->count);
  fsdp_comm_group *groups = fsdp_alloc((size_t)(ranks * sets) * sizeof *groups);
  for (int rank = 0; rank < ranks; rank++) {
    for (int set = 0; set < sets; set++) {
      int64_t size, others;
      int64_t place = slice_of(mesh, ranks, rank, (fsdp_axis_set)set, &size);
      int64_t color = slice_of(mesh, ranks, rank, (fsdp_axis_set)(sets - 1 - set), &others);
      groups[rank * sets + set] =
          (fsdp_comm_group){.color = (int)color, .rank = (int)place, .size = (int)size};
    }
  }
  fsdp_inproc *inproc = fsdp_inproc_create(groups, sets, ranks);
  free(groups);
  return inproc;
}

float **network_run(const fsdp_dataflow *flow, const fsdp_propagation *propagation, float *const *given,
                    int64_t *received) {
  int ranks = (int)fsdp_slices(&propagation->mesh, (1u << propagation->mesh.count) - 1);
  int moved = propagation->moved_count;
  float **whole = fsdp_alloc_zeroed((size_t)flow->tensor_count, sizeof *whole);
  network_rank *all = fsdp_alloc_zeroed((size_t)ranks, sizeof *all);
  int64_t *bytes = fsdp_alloc_zeroed((size_t)(ranks * moved + 1), sizeof *bytes);
  fsdp_inproc *inproc = make_comms(&propagation->mesh, ranks);
  for (int r = 0; r < ranks; r++) {
    all[r] = (network_rank){.flow = flow,
                            .propagation = propagation,
                            .given = given,
                            .whole = whole,
                            .inproc = inproc,
                            .rank = r,
                            .ranks = ranks,
                            .received = bytes + (ptrdiff_t)r * moved};
    int failed = pthread_create(&all[r].thread, NULL, run_rank, &all[r]);
    FSDP_CHECK(!failed, "no thread for rank %d", r);
  }
  for (int r = 0; r < ranks; r++) {
    pthread_join(all[r].thread, NULL);
    for (int m = 0; m < moved && received; m++)
      received[m] = r ? fsdp_max_i64(received[m], all[r].received[m]) : all[r].received[m];
  }
  fsdp_inproc_destroy(inproc);
  free(bytes);
  free(all);
  return whole;
}

float **network_run_alone(const fsdp_dataflow *flow, float *const *given) {
  fsdp_propagation alone = {.operators =
                                fsdp_alloc_zeroed((size_t)flow->operator_count, sizeof *alone.operators)};
  float **whole = network_run(flow, &alone, given, NULL);
  free(alone.operators);
  return whole;
}

void network_values_free(const fsdp_dataflow *flow, float **values) {
  for (int t = 0; t < flow->tensor_count; t++) free(values[t]);
  free(values);
}
