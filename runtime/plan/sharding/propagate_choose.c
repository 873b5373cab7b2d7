// The candidates of one operator, and the best of them.
//
// A candidate gives each axis of the mesh to a letter, or to none. Axes of one size with the same limits that
// lie alike in all known operands are alike: of the candidates that differ by exchanging them, only that with
// the axes in the mesh's order counts, since it is the first of equals. So axes come in classes, and a class
// is shared out among letters.
#include "runtime/base/check.h"
#include "runtime/plan/sharding/propagate_internal.h"

typedef struct axis_class {
  int count, axes[FSDP_SLICE_AXES_MAX];
  int options[FSDP_OPERATOR_LETTERS + 1], option_count; // letters; letter_count: none
} axis_class;

// What a candidate costs, in order of weight.
typedef struct candidate {
  int64_t redistribution;
  double compute;
  int64_t communication;
  int64_t slices[FSDP_OPERATOR_LETTERS];
  fsdp_op_strategy axes;
} candidate;

typedef struct search {
  propagate_choice by;
  const fsdp_operator *op;
  axis_class classes[FSDP_SLICE_AXES_MAX];
  int class_count;
  fsdp_operator_strategy strategy; // the candidate being made
  candidate best;
  bool found;
} search;

// ---- Costs

static const fsdp_operator_tensor *tensor_of(const search *s, int operand) {
  return &s->by.flow->tensors[s->op->operands[operand].tensor];
}

static int64_t redistribution(const search *s) {
  int64_t bytes = 0;
  for (int k = 0; k < s->by.known->count; k++) {
    const known_operand *known = &s->by.known->items[k];
    if (known->is_shared) continue;
    fsdp_tensor_axes own = fsdp_operand_axes(s->op, known->operand, &s->strategy);
    const fsdp_operator_tensor *tensor = tensor_of(s, known->operand);
    const fsdp_tensor_axes *from = known->is_output ? &own : &known->axes;
    const fsdp_tensor_axes *to = known->is_output ? &known->axes : &own;
    fsdp_axis_set partial =
        known->is_output ? known->partial : fsdp_operand_partial(s->op, known->operand, &s->strategy);
    bytes += fsdp_redistribution_bytes(tensor, s->by.mesh, from, to) +
             fsdp_gradient_bytes(tensor, s->by.mesh, from, to, partial);
  }
  return bytes;
}

// All-reduces of outputs over letters that they lack, and of the gradients of inputs over those that these
// lack; and what is gathered inside, in the forward and the backward.
static int64_t communication(const search *s) {
  int64_t bytes = 2 * fsdp_gathered_bytes(s->by.flow, s->by.mesh, s->op, &s->strategy);
  for (int o = 0; o < s->op->operand_count; o++) {
    const fsdp_operator_tensor *tensor = tensor_of(s, o);
    if (tensor->role != FSDP_TENSOR_MADE) continue;
    int64_t ranks = fsdp_slices(s->by.mesh, fsdp_operand_partial(s->op, o, &s->strategy));
    fsdp_tensor_axes axes = fsdp_operand_axes(s->op, o, &s->strategy);
    if (ranks > 1) bytes += fsdp_part_bytes(tensor, s->by.mesh, &axes) * 2 * (ranks - 1) / ranks;
  }
  return bytes;
}

// ---- Candidates

// Whether `a` is to be taken before `b`.
static bool is_better(const search *s, const candidate *a, const candidate *b) {
  if (a->redistribution != b->redistribution) return a->redistribution < b->redistribution;
  if (!s->by.first && a->compute != b->compute) return a->compute < b->compute;
  if (!s->by.first && a->communication != b->communication) return a->communication < b->communication;
  for (int l = 0; l < s->op->letter_count; l++)
    if (a->slices[l] != b->slices[l]) return a->slices[l] < b->slices[l];
  for (int l = 0; l < s->op->letter_count; l++) { // axes in the mesh's order
    const fsdp_axis_set of_a = fsdp_strategy_axes(&a->axes, s->op->letters[l].name),
                        of_b = fsdp_strategy_axes(&b->axes, s->op->letters[l].name);
    const fsdp_axis_set only_a = of_a & ~of_b, only_b = of_b & ~of_a;
    if (only_a != only_b) return (only_a & -only_a) < (only_b & -only_b);
  }
  return false;
}

// Whether a model could run the candidate: a rank has a part of one dimension of a parameter.
static bool cuts_in_one_way(const search *s) {
  fsdp_axis_set counted = s->by.limits ? s->by.limits->followed : ~0u;
  for (int o = 0; o < s->op->input_count && s->by.flow->joins_rows; o++) {
    int cut = 0;
    if (tensor_of(s, o)->role != FSDP_TENSOR_PARAMETER) continue;
    fsdp_tensor_axes axes = fsdp_operand_axes(s->op, o, &s->strategy);
    for (int d = 0; d < FSDP_MAX_DIMS; d++) cut += (axes.dim[d] & counted) != 0;
    if (cut > 1) return false;
  }
  return true;
}

static void weigh(search *s) {
  candidate c = {.compute = 1, .axes = s->strategy.axes};
  if (!cuts_in_one_way(s)) return;
  for (int l = 0; l < s->op->letter_count; l++) {
    c.slices[l] = fsdp_slices(s->by.mesh, fsdp_operator_axes(s->op, &s->strategy, l));
    if (c.slices[l] > s->op->letters[l].limit) return;
    if (s->op->letters[l].is_even && s->op->letters[l].limit % c.slices[l] != 0) return;
    c.compute *= (double)fsdp_slice_share(s->op->letters[l].size, c.slices[l]);
  }
  c.redistribution = redistribution(s);
  c.communication = communication(s);
  if (!s->found || is_better(s, &c, &s->best)) s->best = c;
  s->found = true;
}

// Shares out the axes of class `index` from `axis` on, among its options from `option` on.
static void share_out(search *s, int index, int axis, int option) {
  if (index == s->class_count) {
    weigh(s);
    return;
  }
  const axis_class *class = &s->classes[index];
  if (axis == class->count) {
    share_out(s, index + 1, 0, 0);
    return;
  }
  for (int o = option; o < class->option_count; o++) {
    const int letter = class->options[o];
    const fsdp_axis_set bit = 1u << class->axes[axis];
    fsdp_axis_set none = 0, *of = &none;
    if (letter < s->op->letter_count) of = &s->strategy.axes.of[s->op->letters[letter].name - 'a'];
    *of |= bit;
    share_out(s, index, axis + 1, o);
    *of &= ~bit;
  }
}

// ---- Classes

static int dim_of_axis(const fsdp_tensor_axes *axes, int axis) {
  for (int d = 0; d < FSDP_MAX_DIMS; d++)
    if (axes->dim[d] >> axis & 1) return d;
  return -1;
}

// Whether a letter (letter_count: none) may have an axis at all.
static bool within_limits(const search *s, int letter, int axis) {
  if (letter < s->op->letter_count && s->op->letters[letter].is_whole) return false;
  return !s->by.limits || s->by.limits->letters[letter] >> axis & 1;
}

static bool alike(const search *s, int a, int b) {
  bool same = s->by.mesh->sizes[a] == s->by.mesh->sizes[b];
  if (s->by.limits) same = same && (s->by.limits->followed >> a & 1) == (s->by.limits->followed >> b & 1);
  for (int l = 0; l <= s->op->letter_count && same; l++)
    same = within_limits(s, l, a) == within_limits(s, l, b);
  for (int k = 0; k < s->by.known->count && same; k++) {
    const known_operand *known = &s->by.known->items[k];
    same = dim_of_axis(&known->axes, a) == dim_of_axis(&known->axes, b) &&
           (known->partial >> a & 1) == (known->partial >> b & 1);
  }
  return same;
}

// Whether an axis may cut any of some letters.
static bool cuts_any(const search *s, unsigned letters, int axis) {
  for (int l = 0; l < s->op->letter_count; l++)
    if (letters >> l & 1 && within_limits(s, l, axis)) return true;
  return false;
}

// Whether the masks of a followed axis allow it on a letter (letter_count: none), given the first input that
// is made by an operator.
static bool follows(const search *s, int letter, int axis) {
  const fsdp_operator_limits *limits = s->by.limits;
  if (!limits || !(limits->followed >> axis & 1)) return true;
  const known_operand *input = NULL;
  for (int k = 0; k < s->by.known->count && !input; k++) {
    const known_operand *known = &s->by.known->items[k];
    if (!known->is_output && tensor_of(s, known->operand)->role == FSDP_TENSOR_MADE) input = known;
  }
  bool must = limits->must_match_input >> letter & 1, may = limits->may_match_input >> letter & 1;
  if (!input) return !may;
  int dim = dim_of_axis(&input->axes, axis);
  int held = dim < 0 ? -1 : s->op->operands[input->operand].letter[dim];
  if (limits->cut_where_whole && dim < 0 && cuts_any(s, limits->cut_where_whole, axis))
    return limits->cut_where_whole >> letter & 1;
  if (must || may) return held == letter;
  return held < 0 || !(limits->must_match_input >> held & 1);
}

// Whether a letter (letter_count: none) may have an axis: all that is known, or all parameters, stay.
static bool permits(const search *s, int letter, int axis, bool suits) {
  if (!within_limits(s, letter, axis) || !follows(s, letter, axis)) return false;
  for (int k = 0; k < s->by.known->count; k++) {
    const known_operand *known = &s->by.known->items[k];
    if (!known->is_shared && !suits) continue;
    int own = letter < s->op->letter_count ? fsdp_operand_dim(&s->op->operands[known->operand], letter) : -1;
    if (own != dim_of_axis(&known->axes, axis)) return false;
  }
  return true;
}

static void find_classes(search *s, bool suits) {
  s->class_count = 0;
  for (int a = 0; a < s->by.mesh->count; a++) {
    int c = 0;
    while (c < s->class_count && !alike(s, s->classes[c].axes[0], a)) c++;
    axis_class *class = &s->classes[c];
    if (c == s->class_count) {
      s->class_count++;
      *class = (axis_class){0};
      for (int l = 0; l <= s->op->letter_count; l++)
        if (permits(s, l, a, suits)) class->options[class->option_count++] = l;
    }
    class->axes[class->count++] = a;
  }
}

bool propagate_choose(const propagate_choice *choice, fsdp_operator_strategy *strategy) {
  search s = {.by = *choice, .op = &choice->flow->operators[choice->op]};
  for (int suits = 1; suits >= 0 && !s.found; suits--) {
    find_classes(&s, suits);
    share_out(&s, 0, 0, 0);
    strategy->redistributes = !suits;
  }
  strategy->axes = s.best.axes;
  return s.found;
}
