// Strategies as users give them, lists of slice counts, as axes of letters.
#include "runtime/base/check.h"
#include "runtime/base/nearest.h"
#include "runtime/base/text.h"
#include "runtime/plan/mesh/names.h"
#include "runtime/plan/sharding/propagate_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct given_reader {
  const fsdp_dataflow *flow;
  const fsdp_slice_mesh *mesh;
  const fsdp_given_strategies *given;
  fsdp_operator_strategy *strategies;
  fsdp_error *error;
} given_reader;

static const fsdp_given_strategy *line_of(const given_reader *r, int op) {
  return &r->given->items[r->strategies[op].from];
}

// ---- Names

// Whether a line names an operator by its name `index`; *alone: without its kind.
static bool names_operator(const fsdp_given_strategy *line, const fsdp_operator *op, int index, bool *alone) {
  char whole[FSDP_OPERATOR_TEXT];
  *alone = fsdp_name_matches(line->name, op->names[index]);
  snprintf(whole, sizeof whole, "%s%s%s", op->names[index], *op->names[index] ? "." : "", op->kind);
  return *alone || fsdp_name_matches(line->name, whole);
}

static bool same_counts(const fsdp_given_strategy *a, const fsdp_given_strategy *b) {
  return a->list_count == b->list_count &&
         memcmp(a->entry_count, b->entry_count, sizeof a->entry_count) == 0 &&
         memcmp(a->counts, b->counts, sizeof a->counts) == 0 &&
         memcmp(a->group_count, b->group_count, sizeof a->group_count) == 0 &&
         memcmp(a->groups, b->groups, sizeof a->groups) == 0;
}

static fsdp_status fail_twice(const given_reader *r, int first, int second) {
  const fsdp_given_strategy *a = &r->given->items[first], *b = &r->given->items[second];
  return fsdp_fail(r->error, FSDP_ERR_INPUT,
                   "%s: \"%s\" and \"%s\" (%s) are one operator, which has one strategy: remove one of them",
                   b->place, b->name, a->name, a->place);
}

// *held: the line that holds for one name of an operator, -1: none. A line with the operator's kind and one
// without it are of the same weight, so that only one of them may be given.
static fsdp_status find_line(const given_reader *r, const fsdp_operator *op, int index, bool *used,
                             int *held) {
  int same = -1;
  bool alone;
  *held = -1;
  for (int i = 0; i < r->given->count; i++) {
    const fsdp_given_strategy *line = &r->given->items[i];
    const char *name = *held < 0 ? "" : r->given->items[*held].name;
    if (!names_operator(line, op, index, &alone)) continue;
    used[i] = true;
    if (*held >= 0 && fsdp_name_wins(name, line->name)) continue;
    same = *held < 0 || fsdp_name_wins(line->name, name) ? -1 : *held;
    *held = i;
  }
  return same < 0 ? FSDP_OK : fail_twice(r, same, *held);
}

// A name that belongs to several operators says not which is meant.
static fsdp_status check_alone(const given_reader *r, int op, const fsdp_given_strategy *line) {
  const fsdp_operator *o = &r->flow->operators[op];
  bool alone = false;
  for (int n = 0; n < o->name_count && !alone; n++) names_operator(line, o, n, &alone);
  for (int i = 0; i < r->flow->operator_count && alone; i++) {
    const fsdp_operator *other = &r->flow->operators[i];
    if (i == op || strcmp(other->names[0], o->names[0])) continue;
    return fsdp_fail(r->error, FSDP_ERR_INPUT,
                     "%s: \"%s\" names two operators, %s.%s and %s.%s: write which is meant", line->place,
                     line->name, o->names[0], o->kind, other->names[0], other->kind);
  }
  return FSDP_OK;
}

// A product of several weights may be given by any of their names, and alike by several.
static fsdp_status match_operator(const given_reader *r, int op, bool *used) {
  const fsdp_operator *o = &r->flow->operators[op];
  int held = -1;
  for (int n = 0; n < o->name_count; n++) {
    int line;
    fsdp_status status = find_line(r, o, n, used, &line);
    if (status) return status;
    if (line < 0) continue;
    if (held >= 0 && !same_counts(&r->given->items[held], &r->given->items[line]))
      return fail_twice(r, held, line);
    held = line;
  }
  r->strategies[op].from = held;
  if (held >= 0) r->strategies[op].decision = FSDP_DECIDED_GIVEN;
  if (held >= 0) r->strategies[op].place = r->given->items[held].place;
  return held >= 0 ? check_alone(r, op, &r->given->items[held]) : FSDP_OK;
}

// The names that were probably meant, as fsdp_nearest_question has them.
static void nearest(const given_reader *r, const char *name, char out[FSDP_NEAREST_TEXT]) {
  size_t most = 2 * FSDP_OPERATOR_NAMES * (size_t)r->flow->operator_count + 1;
  char(*patterns)[FSDP_OPERATOR_TEXT] = fsdp_alloc(most * sizeof *patterns);
  const char **names = fsdp_alloc(most * sizeof *names);
  char pattern[FSDP_NAME_BYTES];
  int count = 0;
  for (int o = 0; o < r->flow->operator_count; o++) {
    const fsdp_operator *op = &r->flow->operators[o];
    for (int n = 0; n < 2 * op->name_count; n++) {
      fsdp_name_pattern(op->names[n / 2], pattern);
      snprintf(patterns[count], sizeof *patterns, "%s%s%s", pattern, n % 2 ? "." : "", n % 2 ? op->kind : "");
      int known = 0;
      while (known < count && strcmp(patterns[known], patterns[count])) known++;
      names[count] = patterns[count];
      count += known == count;
    }
  }
  fsdp_name_pattern(name, pattern);
  fsdp_nearest_question(pattern, names, count, out);
  free(names);
  free(patterns);
}

static fsdp_status match(const given_reader *r) {
  bool *used = fsdp_alloc_zeroed((size_t)r->given->count + 1, sizeof *used);
  fsdp_status status = FSDP_OK;
  for (int o = 0; o < r->flow->operator_count && !status; o++) status = match_operator(r, o, used);
  for (int i = 0; i < r->given->count && !status; i++) {
    char near[FSDP_NEAREST_TEXT];
    const fsdp_given_strategy *line = &r->given->items[i];
    if (used[i]) continue;
    nearest(r, line->name, near);
    status = fsdp_fail(r->error, FSDP_ERR_INPUT,
                       "%s: no operator has the name \"%s\"%s; --print-strategies lists all names",
                       line->place, line->name, near);
  }
  free(used);
  return status;
}

// ---- Counts

__attribute__((format(printf, 3, 4))) static fsdp_status fail_line(const given_reader *r, int op,
                                                                   const char *format, ...) {
  char what[384];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(what, sizeof what, format, arguments);
  va_end(arguments);
  return fsdp_fail(r->error, FSDP_ERR_INPUT, "%s: \"%s\": %s", line_of(r, op)->place, line_of(r, op)->name,
                   what);
}

// The first operand of a list.
static int operand_of_list(const fsdp_operator *op, int list) {
  int operand = 0;
  while (op->operands[operand].list != list) operand++;
  return operand;
}

// Takes the count of one letter.
static fsdp_status take_count(const given_reader *r, int op, int letter, int count, int64_t *counts) {
  const fsdp_operator *o = &r->flow->operators[op];
  if (count < 1) return fail_line(r, op, "a count is below 1: use 1 for a dimension that is whole");
  if (count == 1 && (letter < 0 || counts[letter] <= 1)) {
    if (letter >= 0) counts[letter] = 1;
    return FSDP_OK;
  }
  if (letter < 0) return fail_line(r, op, "a dimension of one item, or a part of one, cannot be cut: use 1");
  const fsdp_operator_letter *l = &o->letters[letter];
  if (counts[letter] && counts[letter] != count)
    return fail_line(r, op, "%lld and %d slices of one dimension (%c), which its inputs share: use one count",
                     (long long)counts[letter], count, l->name);
  if (l->is_whole)
    return fail_line(r, op, "%d slices of a dimension (%c) that must be whole: use 1", count, l->name);
  if (count > l->limit)
    return fail_line(r, op, "%d slices of a dimension (%c) of %lld items: use at most as many", count,
                     l->name, (long long)l->limit);
  if (l->is_even && l->limit % count != 0)
    return fail_line(r, op,
                     "%d slices of a dimension (%c) of %lld items, which are cut evenly: use a divisor of "
                     "%lld",
                     count, l->name, (long long)l->limit, (long long)l->limit);
  counts[letter] = count;
  return FSDP_OK;
}

// Takes the axes of one letter whose count says over which ranks.
static fsdp_status take_groups(const given_reader *r, int op, int letter, int list, int entry,
                               fsdp_axis_set *axes) {
  const fsdp_given_strategy *line = line_of(r, op);
  fsdp_axis_set all = 0, own;
  for (int g = 0; g < line->group_count[list][entry]; g++) {
    const fsdp_slice_group group = line->groups[list][entry][g];
    bool has = fsdp_slice_group_axes(r->mesh, group, &own);
    for (int l = 0; l < r->flow->operators[op].letter_count && has; l++)
      has = l == letter || !(own & axes[l]);
    if (!has || all & own)
      return fail_line(
          r, op,
          "%d@%d: the mesh has no axes of %d ranks that lie %d apart, or something else is cut "
          "over them; --print-strategies begins with its axes, of which the last one's ranks lie "
          "1 apart",
          group.count, group.stride, group.count, group.stride);
    all |= own;
  }
  if (!all) return FSDP_OK;
  if (axes[letter] && axes[letter] != all)
    return fail_line(r, op, "a dimension (%c), which its inputs share, is cut over different ranks",
                     r->flow->operators[op].letters[letter].name);
  axes[letter] = all;
  return FSDP_OK;
}

static fsdp_status take_list(const given_reader *r, int op, int list, int64_t *counts, fsdp_axis_set *axes) {
  const fsdp_operator *o = &r->flow->operators[op];
  const fsdp_given_strategy *line = line_of(r, op);
  int operand = operand_of_list(o, list), entries = line->entry_count[list];
  const fsdp_operator_tensor *tensor = &r->flow->tensors[o->operands[operand].tensor];
  bool joins = fsdp_operand_joins_rows(r->flow, o, operand) && entries == tensor->dims - 1;
  if (entries != tensor->dims && !joins)
    return fail_line(r, op, "list %d has %d count%s, but %.100s has %d dimension%s: write one for each",
                     list + 1, entries, fsdp_plural(entries), tensor->name, tensor->dims,
                     fsdp_plural(tensor->dims));
  fsdp_status status = FSDP_OK;
  for (int e = 0; e < entries && !status; e++) {
    int dim = e + (joins && e > 0);
    int letter = o->operands[operand].letter[dim];
    status = take_count(r, op, letter, line->counts[list][e], counts);
    if (!status && letter >= 0) status = take_groups(r, op, letter, list, e, axes);
  }
  return status;
}

// ---- Axes

static fsdp_status fail_axes(const given_reader *r, int op, const int64_t *counts) {
  int64_t ranks = fsdp_slices(r->mesh, (1u << r->mesh->count) - 1), product = 1;
  char sizes[128] = "";
  size_t used = 0;
  for (int l = 0; l < r->flow->operators[op].letter_count; l++) {
    product *= counts[l];
    if (ranks % counts[l] == 0 && ranks % product == 0) continue;
    return fail_line(r, op, "%lld slice%s %s %lld rank%s; change the count", (long long)product,
                     fsdp_plural(product), product == counts[l] ? "do not divide" : "in all do not divide",
                     (long long)ranks, fsdp_plural(ranks));
  }
  for (int a = 0; a < r->mesh->count && used < sizeof sizes; a++)
    used += (size_t)snprintf(sizes + used, sizeof sizes - used, "%s%d", a ? ", " : "", r->mesh->sizes[a]);
  return fail_line(r, op,
                   "the counts do not fit the axes of the mesh, %s: each count is the product of some axes, "
                   "and an axis belongs to one; change --mesh, or the counts",
                   sizes);
}

static fsdp_status read_operator(const given_reader *r, int op) {
  const fsdp_operator *o = &r->flow->operators[op];
  const fsdp_given_strategy *line = line_of(r, op);
  int64_t counts[FSDP_OPERATOR_LETTERS] = {0};
  fsdp_axis_set axes[FSDP_OPERATOR_LETTERS] = {0};
  fsdp_status status = FSDP_OK;
  if (line->list_count != o->list_count)
    return fail_line(r, op, "%d list%s of counts for %d input%s: write one list for each input",
                     line->list_count, fsdp_plural(line->list_count), o->list_count,
                     fsdp_plural(o->list_count));
  for (int l = 0; l < o->list_count && !status; l++) status = take_list(r, op, l, counts, axes);
  if (status) return status;
  fsdp_axis_set used = 0;
  int64_t open[FSDP_OPERATOR_LETTERS]; // counts that say not over which ranks
  for (int l = 0; l < o->letter_count; l++) {
    counts[l] = counts[l] ? counts[l] : 1;
    open[l] = axes[l] ? 1 : counts[l];
    used |= axes[l];
  }
  bool fits = fsdp_slices_take_axes(r->mesh, open, o->letter_count, used, axes);
  for (int l = 0; l < o->letter_count; l++) r->strategies[op].axes.of[o->letters[l].name - 'a'] = axes[l];
  return fits ? FSDP_OK : fail_axes(r, op, counts);
}

// ---- Shared parameters

static fsdp_status fail_contradiction(const given_reader *r, int tensor, int op, int other) {
  char name[FSDP_OPERATOR_TEXT], other_name[FSDP_OPERATOR_TEXT];
  return fsdp_fail(r->error, FSDP_ERR_INPUT,
                   "%s: %s and %s (%s) cut %s, which both read, differently: give them the same cut, or "
                   "remove one of them",
                   line_of(r, op)->place, fsdp_operator_print(r->flow, op, name),
                   fsdp_operator_print(r->flow, other, other_name), line_of(r, other)->place,
                   r->flow->tensors[tensor].name);
}

// All given operators that read a parameter cut it alike.
static fsdp_status check_shared(const given_reader *r) {
  const fsdp_dataflow *n = r->flow;
  fsdp_tensor_reader *first = fsdp_alloc((size_t)(n->tensor_count + 1) * sizeof *first); // by parameter
  fsdp_status status = FSDP_OK;
  for (int t = 0; t < n->tensor_count; t++) first[t].op = -1;
  for (int o = 0; o < n->operator_count && !status; o++) {
    const fsdp_operator *op = &n->operators[o];
    for (int i = 0; i < op->input_count && !status && r->strategies[o].decision; i++) {
      const int t = op->operands[i].tensor;
      if (n->tensors[t].role != FSDP_TENSOR_PARAMETER) continue;
      if (first[t].op < 0) first[t] = (fsdp_tensor_reader){o, i};
      const int before = first[t].op;
      const fsdp_tensor_axes own = fsdp_operand_axes(op, i, &r->strategies[o]);
      const fsdp_tensor_axes other =
          fsdp_operand_axes(&n->operators[before], first[t].operand, &r->strategies[before]);
      if (memcmp(&own, &other, sizeof own) != 0) status = fail_contradiction(r, t, o, before);
    }
  }
  free(first);
  return status;
}

fsdp_status propagate_read_given(const fsdp_dataflow *flow, const fsdp_slice_mesh *mesh,
                                 const fsdp_given_strategies *given, fsdp_operator_strategy *strategies,
                                 fsdp_error *error) {
  const given_reader r = {flow, mesh, given, strategies, error};
  if (given->count == 0)
    return fsdp_fail(error, FSDP_ERR_INPUT,
                     "%s: no operator is given a strategy, so there is nothing to propagate: give one, as in "
                     "`fc1: [[2, 1], [1, 4]]`",
                     given->place);
  fsdp_status status = match(&r);
  for (int o = 0; o < flow->operator_count && !status; o++)
    if (strategies[o].decision) status = read_operator(&r, o);
  return status ? status : check_shared(&r);
}
