// The candidates of one operator, and the best of them.
//
// A candidate gives each axis of the mesh to a letter, or to none. Axes of one size with the same limits that
// lie alike in all known operands are alike: of the candidates that differ by exchanging them, only that with
// the axes in the mesh's order counts, since it is the first of equals. So axes come in classes, and a class
// is shared out among letters.
#include "runtime/base/check.h"
#include "runtime/plan/sharding/propagate_internal.h"

#include <string.h>

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
  fsdp_axis_set letters[FSDP_OPERATOR_LETTERS];
} candidate;

typedef struct search {
  const fsdp_dataflow *flow;
  const fsdp_slice_mesh *mesh;
  const fsdp_operator *op;
  const known_neighbours *known;
  const fsdp_operator_limits *limits;
  bool first;
  axis_class classes[FSDP_SLICE_AXES_MAX];
  int class_count;
  fsdp_axis_set letters[FSDP_OPERATOR_LETTERS + 1]; // the candidate being made
  candidate best;
  bool found;
} search;

// ---- Costs

static fsdp_operator_strategy strategy_of(const search *s) {
  fsdp_operator_strategy strategy = {.from = -1};
  for (int l = 0; l < s->op->letter_count; l++)
    strategy.axes.of[s->op->letters[l].name - 'a'] = s->letters[l];
  return strategy;
}

static const fsdp_operator_tensor *tensor_of(const search *s, int operand) {
  return &s->flow->tensors[s->op->operands[operand].tensor];
}

static int64_t redistribution(const search *s) {
  int64_t bytes = 0;
  for (int k = 0; k < s->known->count; k++) {
    const known_operand *known = &s->known->items[k];
    if (known->is_shared) continue;
    const fsdp_operator_strategy strategy = strategy_of(s);
    fsdp_tensor_axes own = fsdp_operand_axes(s->op, known->operand, &strategy);
    const fsdp_operator_tensor *tensor = tensor_of(s, known->operand);
    const fsdp_tensor_axes *from = known->is_output ? &own : &known->axes;
    const fsdp_tensor_axes *to = known->is_output ? &known->axes : &own;
    fsdp_axis_set partial =
        known->is_output ? known->partial : fsdp_operand_partial(s->op, known->operand, &strategy);
    bytes += fsdp_redistribution_bytes(tensor, s->mesh, from, to) +
             fsdp_gradient_bytes(tensor, s->mesh, from, to, partial);
  }
  return bytes;
}

// All-reduces of outputs over letters that they lack, and of the gradients of inputs over those that these
// lack; and what is gathered inside, in the forward and the backward.
static int64_t communication(const search *s) {
  const fsdp_operator_strategy strategy = strategy_of(s);
  int64_t bytes = 2 * fsdp_gathered_bytes(s->flow, s->mesh, s->op, &strategy);
  for (int o = 0; o < s->op->operand_count; o++) {
    const fsdp_operator_tensor *tensor = tensor_of(s, o);
    if (tensor->role != FSDP_TENSOR_MADE) continue;
    int64_t ranks = fsdp_slices(s->mesh, fsdp_operand_partial(s->op, o, &strategy));
    fsdp_tensor_axes axes = fsdp_operand_axes(s->op, o, &strategy);
    if (ranks > 1) bytes += fsdp_part_bytes(tensor, s->mesh, &axes) * 2 * (ranks - 1) / ranks;
  }
  return bytes;
}

// ---- Candidates

// Whether `a` is to be taken before `b`.
static bool is_better(const search *s, const candidate *a, const candidate *b) {
  if (a->redistribution != b->redistribution) return a->redistribution < b->redistribution;
  if (!s->first && a->compute != b->compute) return a->compute < b->compute;
  if (!s->first && a->communication != b->communication) return a->communication < b->communication;
  for (int l = 0; l < s->op->letter_count; l++)
    if (a->slices[l] != b->slices[l]) return a->slices[l] < b->slices[l];
  for (int l = 0; l < s->op->letter_count; l++) { // axes in the mesh's order
    fsdp_axis_set only_a = a->letters[l] & ~b->letters[l], only_b = b->letters[l] & ~a->letters[l];
    if (only_a != only_b) return (only_a & -only_a) < (only_b & -only_b);
  }
  return false;
}

// Whether a model could run the candidate: a rank has a part of one dimension of a parameter.
static bool cuts_in_one_way(const search *s) {
  const fsdp_operator_strategy strategy = strategy_of(s);
  fsdp_axis_set counted = s->limits ? s->limits->followed : ~0u;
  for (int o = 0; o < s->op->input_count && s->flow->joins_rows; o++) {
    int cut = 0;
    if (tensor_of(s, o)->role != FSDP_TENSOR_PARAMETER) continue;
    fsdp_tensor_axes axes = fsdp_operand_axes(s->op, o, &strategy);
    for (int d = 0; d < FSDP_MAX_DIMS; d++) cut += (axes.dim[d] & counted) != 0;
    if (cut > 1) return false;
  }
  return true;
}

static void weigh(search *s) {
  candidate c = {.compute = 1};
  if (!cuts_in_one_way(s)) return;
  for (int l = 0; l < s->op->letter_count; l++) {
    c.slices[l] = fsdp_slices(s->mesh, s->letters[l]);
    if (c.slices[l] > s->op->letters[l].limit) return;
    if (s->op->letters[l].is_even && s->op->letters[l].limit % c.slices[l] != 0) return;
    c.compute *= (double)fsdp_slice_share(s->op->letters[l].size, c.slices[l]);
    c.letters[l] = s->letters[l];
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
    fsdp_axis_set bit = 1u << class->axes[axis];
    s->letters[class->options[o]] |= bit;
    share_out(s, index, axis + 1, o);
    s->letters[class->options[o]] &= ~bit;
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
  return !s->limits || s->limits->letters[letter] >> axis & 1;
}

static bool alike(const search *s, int a, int b) {
  bool same = s->mesh->sizes[a] == s->mesh->sizes[b];
  if (s->limits) same = same && (s->limits->followed >> a & 1) == (s->limits->followed >> b & 1);
  for (int l = 0; l <= s->op->letter_count && same; l++)
    same = within_limits(s, l, a) == within_limits(s, l, b);
  for (int k = 0; k < s->known->count && same; k++) {
    const known_operand *known = &s->known->items[k];
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
  const fsdp_operator_limits *limits = s->limits;
  if (!limits || !(limits->followed >> axis & 1)) return true;
  const known_operand *input = NULL;
  for (int k = 0; k < s->known->count && !input; k++) {
    const known_operand *known = &s->known->items[k];
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
  for (int k = 0; k < s->known->count; k++) {
    const known_operand *known = &s->known->items[k];
    if (!known->is_shared && !suits) continue;
    int own = letter < s->op->letter_count ? fsdp_operand_dim(&s->op->operands[known->operand], letter) : -1;
    if (own != dim_of_axis(&known->axes, axis)) return false;
  }
  return true;
}

static void find_classes(search *s, bool suits) {
  s->class_count = 0;
  for (int a = 0; a < s->mesh->count; a++) {
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
  search s = {.flow = choice->flow,
              .mesh = choice->mesh,
              .op = &choice->flow->operators[choice->op],
              .known = choice->known,
              .limits = choice->limits,
              .first = choice->first};
  for (int suits = 1; suits >= 0 && !s.found; suits--) {
    find_classes(&s, suits);
    share_out(&s, 0, 0, 0);
    strategy->redistributes = !suits;
  }
  memcpy(s.letters, s.best.letters, sizeof s.best.letters);
  strategy->axes = strategy_of(&s).axes;
  return s.found;
}
