#include "runtime/plan/sharding/propagate.h"

#include "runtime/base/check.h"
#include "runtime/plan/sharding/propagate_internal.h"

#include <stdlib.h>
#include <string.h>

// ---- Neighbours

typedef struct propagator {
  const fsdp_dataflow *flow;
  fsdp_propagation *out;
  fsdp_tensor_reader *holder; // by tensor: the first decided reader of an input or a parameter, op -1: none
  bool *reached;              // in this wave
  int *waits;                 // operands whose other side this wave still has to decide
  int *queue, queue_end;
  int *near; // an operator's neighbours on one side
  known_neighbours known;
  const fsdp_operator_limits *limits; // by operator, NULL: none
  fsdp_error *error;
} propagator;

static bool is_decided(const propagator *p, int op) {
  return p->out->operators[op].decision != FSDP_UNDECIDED;
}

static const fsdp_operator_operand *operand_of(const propagator *p, int op, int operand) {
  return &p->flow->operators[op].operands[operand];
}

static const fsdp_operator_tensor *tensor_of(const propagator *p, int op, int operand) {
  return &p->flow->tensors[operand_of(p, op, operand)->tensor];
}

// Where the maker of a tensor, which is decided, puts it.
static fsdp_tensor_axes made_axes(const propagator *p, int tensor) {
  int maker = p->flow->tensors[tensor].maker;
  const fsdp_operator *op = &p->flow->operators[maker];
  int operand = op->input_count;
  while (op->operands[operand].tensor != tensor) operand++;
  return fsdp_operand_axes(op, operand, &p->out->operators[maker]);
}

static fsdp_tensor_axes reader_axes(const propagator *p, fsdp_tensor_reader r) {
  return fsdp_operand_axes(&p->flow->operators[r.op], r.operand, &p->out->operators[r.op]);
}

// Where an input of an operator lies. False: it is not decided yet.
static bool input_axes(const propagator *p, int op, int operand, fsdp_tensor_axes *axes) {
  const fsdp_operator_tensor *tensor = tensor_of(p, op, operand);
  fsdp_tensor_reader holder = p->holder[operand_of(p, op, operand)->tensor];
  if (tensor->maker >= 0 ? !is_decided(p, tensor->maker) : holder.op < 0) return false;
  *axes = tensor->maker >= 0 ? made_axes(p, operand_of(p, op, operand)->tensor) : reader_axes(p, holder);
  return true;
}

// ---- Deciding one

static void add_known(propagator *p, known_operand known) {
  p->known.items = fsdp_grow(p->known.items, p->known.count + 1, &p->known.capacity, sizeof *p->known.items);
  p->known.items[p->known.count++] = known;
}

static void find_known(propagator *p, int op, bool with_outputs) {
  const fsdp_operator *o = &p->flow->operators[op];
  known_operand known;
  p->known.count = 0;
  for (int i = 0; i < o->input_count; i++) {
    bool shared = tensor_of(p, op, i)->role == FSDP_TENSOR_PARAMETER;
    known = (known_operand){.operand = i, .is_shared = shared};
    if (input_axes(p, op, i, &known.axes)) add_known(p, known);
  }
  for (int i = o->input_count; i < o->operand_count && with_outputs; i++) {
    int tensor = o->operands[i].tensor;
    for (int r = p->flow->first_reader[tensor]; r < p->flow->first_reader[tensor + 1]; r++) {
      int other = p->flow->readers[r].op, operand = p->flow->readers[r].operand;
      if (!is_decided(p, other)) continue;
      known = (known_operand){.operand = i, .is_output = true, .axes = reader_axes(p, p->flow->readers[r])};
      known.partial = fsdp_operand_partial(&p->flow->operators[other], operand, &p->out->operators[other]);
      add_known(p, known);
    }
  }
}

// Notes what the operator, now decided, is the first to read.
static void hold_inputs(propagator *p, int op) {
  const fsdp_operator *o = &p->flow->operators[op];
  for (int i = 0; i < o->input_count; i++) {
    fsdp_tensor_reader *holder = &p->holder[o->operands[i].tensor];
    if (holder->op < 0) *holder = (fsdp_tensor_reader){op, i};
  }
}

// The decided neighbour on the side that a wave comes from whose layout an operator, now decided, takes over:
// the first of those, or, where all have another, the first.
static int neighbour(const propagator *p, int op, bool forward) {
  const fsdp_operator *o = &p->flow->operators[op];
  int first = -1;
  for (int i = forward ? 0 : o->input_count; i < (forward ? o->input_count : o->operand_count); i++) {
    fsdp_tensor_axes own = fsdp_operand_axes(o, i, &p->out->operators[op]), other;
    int tensor = o->operands[i].tensor, maker = p->flow->tensors[tensor].maker;
    int end = forward ? p->flow->first_reader[tensor] + (maker >= 0) : p->flow->first_reader[tensor + 1];
    for (int r = p->flow->first_reader[tensor]; r < end; r++) {
      int found = forward ? maker : p->flow->readers[r].op;
      if (!is_decided(p, found)) continue;
      other = forward ? made_axes(p, tensor) : reader_axes(p, p->flow->readers[r]);
      if (!memcmp(&own, &other, sizeof own)) return found;
      if (first < 0) first = found;
    }
  }
  return first;
}

static fsdp_status fail_shared(const propagator *p, int op) {
  char name[FSDP_OPERATOR_TEXT], other[FSDP_OPERATOR_TEXT];
  for (int k = 0; k < p->known.count; k++) {
    int operand = p->known.items[k].operand;
    if (!p->known.items[k].is_shared) continue;
    return fsdp_fail(
        p->error, FSDP_ERR_INPUT,
        "no strategy of %s suits %s as %s has it, and both read it: give %s another strategy, or "
        "leave it out",
        fsdp_operator_print(p->flow, op, name), tensor_of(p, op, operand)->name,
        fsdp_operator_print(p->flow, p->holder[operand_of(p, op, operand)->tensor].op, other), other);
  }
  for (int i = 0; i < p->flow->operators[op].input_count; i++) {
    const int maker = p->flow->tensors[operand_of(p, op, i)->tensor].maker;
    const fsdp_operator_strategy *given = maker < 0 ? NULL : &p->out->operators[maker];
    if (!given || given->decision != FSDP_DECIDED_GIVEN || !given->place) continue;
    return fsdp_fail(
        p->error, FSDP_ERR_INPUT,
        "%s: no strategy of %s takes what %s makes with this line: cut its weights otherwise, or "
        "leave the line out",
        given->place, fsdp_operator_print(p->flow, op, name), fsdp_operator_print(p->flow, maker, other));
  }
  return fsdp_fail(
      p->error, FSDP_ERR_INPUT,
      "--sharding: no strategy of %s goes with the lines of its weights and of its output: a weight "
      "is cut in one dimension alone; change one of them",
      fsdp_operator_print(p->flow, op, name));
}

static fsdp_status decide(propagator *p, int op, fsdp_decision decision) {
  bool forward = decision == FSDP_DECIDED_FORWARD, by_default = decision == FSDP_DECIDED_DEFAULT;
  fsdp_operator_strategy *strategy = &p->out->operators[op];
  find_known(p, op, !forward);
  const propagate_choice choice = {.flow = p->flow,
                                   .mesh = &p->out->mesh,
                                   .op = op,
                                   .known = &p->known,
                                   .limits = p->limits ? &p->limits[op] : NULL,
                                   .first = by_default};
  if (!propagate_choose(&choice, strategy)) return fail_shared(p, op);
  strategy->from = by_default ? -1 : neighbour(p, op, forward);
  strategy->decision = decision;
  hold_inputs(p, op);
  return FSDP_OK;
}

// ---- Waves

// Lists into p->near the operators that make what an operator reads, or those that read what it makes.
// Returns their number.
static int list_near(const propagator *p, int op, bool makers) {
  const fsdp_operator *o = &p->flow->operators[op];
  int count = 0;
  for (int i = 0; i < o->input_count && makers; i++)
    if (tensor_of(p, op, i)->maker >= 0) p->near[count++] = tensor_of(p, op, i)->maker;
  for (int i = o->input_count; i < o->operand_count && !makers; i++)
    for (int r = p->flow->first_reader[o->operands[i].tensor];
         r < p->flow->first_reader[o->operands[i].tensor + 1]; r++)
      p->near[count++] = p->flow->readers[r].op;
  return count;
}

// Marks what is reached from decided operators. Operators are in the order of makers before readers.
static void mark(propagator *p, bool forward) {
  const int operators = p->flow->operator_count;
  for (int i = 0; i < operators; i++) {
    const int o = forward ? i : operators - 1 - i, count = list_near(p, o, forward);
    bool reached = false;
    p->waits[o] = 0;
    for (int n = 0; n < count; n++) {
      reached = reached || is_decided(p, p->near[n]) || p->reached[p->near[n]];
      p->waits[o] += p->reached[p->near[n]];
    }
    p->reached[o] = reached && !is_decided(p, o);
  }
}

// `op` is decided: one wait less for those that the wave reaches through it.
static void release(propagator *p, int op, bool forward) {
  const int count = list_near(p, op, !forward);
  for (int n = 0; n < count; n++)
    if (--p->waits[p->near[n]] == 0 && p->reached[p->near[n]]) p->queue[p->queue_end++] = p->near[n];
}

// Decides what is reached in one direction, breadth first. *any: there was something.
static fsdp_status run_wave(propagator *p, bool forward, bool *any) {
  fsdp_status status = FSDP_OK;
  mark(p, forward);
  p->queue_end = 0;
  for (int o = 0; o < p->flow->operator_count; o++)
    if (p->reached[o] && p->waits[o] == 0) p->queue[p->queue_end++] = o;
  for (int at = 0; at < p->queue_end && !status; at++) {
    status = decide(p, p->queue[at], forward ? FSDP_DECIDED_FORWARD : FSDP_DECIDED_BACKWARD);
    if (!status) release(p, p->queue[at], forward);
    *any = true;
  }
  return status;
}

static fsdp_status run(propagator *p) {
  fsdp_status status = FSDP_OK;
  for (int o = 0; o < p->flow->operator_count; o++)
    if (is_decided(p, o)) hold_inputs(p, o);
  for (bool any = true; any && !status;) {
    any = false;
    status = run_wave(p, true, &any);
    if (!status) status = run_wave(p, false, &any);
  }
  for (int o = 0; o < p->flow->operator_count && !status; o++)
    if (!is_decided(p, o)) status = decide(p, o, FSDP_DECIDED_DEFAULT);
  return status;
}

// ---- What comes out

// Bytes that all readers of an input of the graph receive of it if it lies as one of them wants it.
static int64_t input_bytes(const propagator *p, int tensor, fsdp_tensor_reader holder) {
  const fsdp_tensor_axes lies = reader_axes(p, holder);
  int64_t bytes = 0;
  for (int r = p->flow->first_reader[tensor]; r < p->flow->first_reader[tensor + 1]; r++) {
    const fsdp_tensor_axes wanted = reader_axes(p, p->flow->readers[r]);
    bytes += fsdp_redistribution_bytes(&p->flow->tensors[tensor], &p->out->mesh, &lies, &wanted);
  }
  return bytes;
}

// Whether an earlier reader of a tensor wants it as reader `at` does.
static bool is_wanted_before(const propagator *p, int tensor, int at) {
  const fsdp_tensor_axes own = reader_axes(p, p->flow->readers[at]);
  for (int r = p->flow->first_reader[tensor]; r < at; r++) {
    const fsdp_tensor_axes other = reader_axes(p, p->flow->readers[r]);
    if (!memcmp(&own, &other, sizeof own)) return true;
  }
  return false;
}

// Inputs of the graph come to lie so that their readers receive least, of equals as the first in order
// wants them: this depends on strategies alone, and not on who was decided first.
static void place_inputs(propagator *p) {
  for (int t = 0; t < p->flow->tensor_count; t++) {
    int64_t least = INT64_MAX;
    if (p->flow->tensors[t].role != FSDP_TENSOR_INPUT) continue;
    for (int r = p->flow->first_reader[t]; r < p->flow->first_reader[t + 1]; r++) {
      if (is_wanted_before(p, t, r)) continue;
      int64_t bytes = input_bytes(p, t, p->flow->readers[r]);
      if (bytes < least) p->holder[t] = p->flow->readers[r];
      if (bytes < least) least = bytes;
    }
  }
}

// Lists the inputs that lie otherwise than their readers want them.
static void list_moved(propagator *p) {
  fsdp_propagation *out = p->out;
  out->moved = fsdp_alloc((size_t)(p->flow->first_reader[p->flow->tensor_count] + 1) * sizeof *out->moved);
  for (int o = 0; o < p->flow->operator_count; o++) {
    for (int i = 0; i < p->flow->operators[o].input_count; i++) {
      fsdp_tensor_axes lies = {{0}}, wanted = reader_axes(p, (fsdp_tensor_reader){o, i});
      bool known = input_axes(p, o, i, &lies);
      FSDP_CHECK(known, "an operator was left out");
      if (!memcmp(&lies, &wanted, sizeof lies)) continue;
      fsdp_axis_set partial = fsdp_operand_partial(&p->flow->operators[o], i, &out->operators[o]);
      fsdp_moved_input *moved = &out->moved[out->moved_count++];
      *moved = (fsdp_moved_input){.tensor = operand_of(p, o, i)->tensor, .reader = o, .operand = i};
      moved->forward_bytes = fsdp_redistribution_bytes(tensor_of(p, o, i), &out->mesh, &lies, &wanted);
      moved->backward_bytes = fsdp_gradient_bytes(tensor_of(p, o, i), &out->mesh, &lies, &wanted, partial);
      out->forward_bytes += moved->forward_bytes;
      out->backward_bytes += moved->backward_bytes;
    }
  }
}

fsdp_status fsdp_propagate_within(const fsdp_dataflow *flow, const fsdp_slice_mesh *mesh,
                                  const fsdp_operator_limits *limits, const fsdp_operator_strategy *decided,
                                  fsdp_propagation **out, fsdp_error *error) {
  size_t operators = (size_t)flow->operator_count, tensors = (size_t)flow->tensor_count;
  propagator p = {.flow = flow,
                  .out = fsdp_alloc_zeroed(1, sizeof(fsdp_propagation)),
                  .holder = fsdp_alloc((tensors + 1) * sizeof(fsdp_tensor_reader)),
                  .reached = fsdp_alloc_zeroed(operators, sizeof(bool)),
                  .waits = fsdp_alloc_zeroed(operators, sizeof(int)),
                  .queue = fsdp_alloc(operators * sizeof(int)),
                  .limits = limits,
                  .error = error};
  p.out->flow = flow;
  p.out->mesh = *mesh;
  p.out->operators = fsdp_alloc(operators * sizeof *p.out->operators);
  memcpy(p.out->operators, decided, operators * sizeof *decided);
  for (size_t t = 0; t < tensors; t++) p.holder[t].op = -1;
  p.near = fsdp_alloc((size_t)(flow->first_reader[tensors] + FSDP_OPERATOR_OPERANDS) * sizeof(int));
  fsdp_status status = run(&p);
  if (!status) place_inputs(&p);
  if (!status) list_moved(&p);
  free(p.holder);
  free(p.reached);
  free(p.waits);
  free(p.queue);
  free(p.near);
  free(p.known.items);
  if (status) fsdp_propagation_destroy(p.out);
  *out = status ? NULL : p.out;
  return status;
}

fsdp_status fsdp_propagate(const fsdp_dataflow *flow, const fsdp_slice_mesh *mesh,
                           const fsdp_given_strategies *given, fsdp_propagation **out, fsdp_error *error) {
  fsdp_operator_strategy *decided = fsdp_alloc_zeroed((size_t)flow->operator_count + 1, sizeof *decided);
  fsdp_status status = propagate_read_given(flow, mesh, given, decided, error);
  *out = NULL;
  if (!status) status = fsdp_propagate_within(flow, mesh, NULL, decided, out, error);
  free(decided);
  return status;
}

void fsdp_propagation_destroy(fsdp_propagation *propagation) {
  if (!propagation) return;
  fsdp_dataflow_destroy(propagation->own_flow);
  free(propagation->operators);
  free(propagation->moved);
  free(propagation);
}
