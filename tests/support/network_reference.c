#include "tests/support/network_reference.h"

#include "tests/support/network_compute.h"
#include "tests/support/network_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// One item of an operator's work: an index for each letter.
typedef struct item {
  const fsdp_dataflow *flow;
  const fsdp_operator *op;
  float *const *values;
  int64_t at[FSDP_OPERATOR_LETTERS];
} item;

static const fsdp_operator_tensor *tensor_of(const item *i, int operand) {
  return &i->flow->tensors[i->op->operands[operand].tensor];
}

static int64_t size_of(const item *i, char letter) {
  return i->op->letters[fsdp_operator_letter_find(i->op, letter)].size;
}

static int64_t *at(item *i, char letter) {
  return &i->at[fsdp_operator_letter_find(i->op, letter)];
}

// The item's element of an operand. Fewer heads of keys serve several heads of queries.
static int64_t element(const item *i, int operand) {
  const fsdp_operator_tensor *t = tensor_of(i, operand);
  int64_t index = 0;
  for (int d = 0; d < t->dims; d++) {
    int letter = i->op->operands[operand].letter[d];
    int64_t at = letter < 0 ? 0 : i->at[letter] / (i->op->letters[letter].size / t->shape[d]);
    index = index * t->shape[d] + at;
  }
  return index;
}

static double value(const item *i, int operand) {
  return (double)i->values[i->op->operands[operand].tensor][element(i, operand)];
}

// ---- Kinds with rules of their own

static double normed(const item *i) {
  item other = *i;
  double squares = 0, channels = (double)size_of(i, 'c');
  for (*at(&other, 'c') = 0; *at(&other, 'c') < size_of(i, 'c'); ++*at(&other, 'c'))
    squares += pow(value(&other, 0), 2);
  return value(i, 0) / sqrt(squares / channels + (double)NETWORK_NORM_EPS) * value(i, 1);
}

// The product of a query and a key, divided by the root of its channels.
static double logit(item i) {
  double sum = 0, channels = (double)size_of(&i, 'd');
  for (*at(&i, 'd') = 0; *at(&i, 'd') < size_of(&i, 'd'); ++*at(&i, 'd')) sum += value(&i, 0) * value(&i, 1);
  return sum / sqrt(channels);
}

// An error of the logits is one of the weights.
static double attended(const item *i, double *scale) {
  item other = *i;
  double most = -INFINITY, least = INFINITY, sum = 0, weighted = 0, greatest = 0;
  int64_t *s = at(&other, 's'), end = *at(&other, 't') + 1;
  for (*s = 0; *s < end; ++*s) most = fmax(most, logit(other)), least = fmin(least, logit(other));
  for (*s = 0; *s < end; ++*s) {
    double weight = exp(logit(other) - most);
    sum += weight;
    weighted += weight * value(&other, 2);
    greatest = fmax(greatest, fabs(value(&other, 2)));
  }
  *scale = greatest * (1 + fmax(fabs(most), fabs(least)));
  return weighted / sum;
}

// The element of the output that an item of a slice is, -1: none.
static int64_t sliced(const item *i) {
  const fsdp_operator_tensor *x = tensor_of(i, 0), *out = tensor_of(i, 1);
  int64_t index = 0;
  for (int d = 0; d < x->dims; d++) {
    int64_t place = i->at[i->op->operands[0].letter[d]];
    if (i->op->operands[1].letter[d] < 0) place -= i->op->begin;
    if (place < 0 || place >= out->shape[d]) return -1;
    index = index * out->shape[d] + place;
  }
  return index;
}

// ---- All

// Adds an item's summand to the output.
static void add_item(const item *i, double *out, double *scale) {
  const char *kind = i->op->kind;
  int64_t to = element(i, i->op->input_count);
  double summand = 0, size = -1;
  if (!strcmp(kind, "slice")) to = sliced(i);
  if (to < 0) return;
  if (!strcmp(kind, "rmsnorm")) {
    summand = normed(i);
  } else if (!strcmp(kind, "attention")) {
    if (i->at[fsdp_operator_letter_find(i->op, 's')] > 0) return;
    summand = attended(i, &size);
  } else if (!strcmp(kind, "gather")) {
    summand = value(i, 1) == (double)i->at[0] ? value(i, 0) : 0;
  } else if (!strcmp(kind, "add")) {
    summand = value(i, 0) + value(i, 1);
    size = fabs(value(i, 0)) + fabs(value(i, 1));
  } else if (!strcmp(kind, "mul") || !strcmp(kind, "matmul")) {
    summand = value(i, 0) * value(i, 1);
  } else {
    summand = value(i, 0);
  }
  if (!strcmp(kind, "relu") && summand < 0) summand = 0;
  for (int l = 0; l < i->op->letter_count && !strcmp(kind, "reduce_mean"); l++)
    if (fsdp_operand_dim(&i->op->operands[1], l) < 0) summand /= (double)i->op->letters[l].size;
  out[to] += summand;
  scale[to] += size < 0 ? fabs(summand) : size;
}

void network_reference(const fsdp_dataflow *flow, int op, float *const *values, double *out, double *scale) {
  item i = {.flow = flow, .op = &flow->operators[op], .values = values};
  int64_t items = 1;
  size_t numel = (size_t)network_numel(tensor_of(&i, i.op->input_count));
  memset(out, 0, numel * sizeof *out);
  memset(scale, 0, numel * sizeof *scale);
  for (int l = 0; l < i.op->letter_count; l++) items *= i.op->letters[l].size;
  for (int64_t n = 0; n < items; n++) {
    int64_t left = n;
    for (int l = i.op->letter_count - 1; l >= 0; l--) {
      i.at[l] = left % i.op->letters[l].size;
      left /= i.op->letters[l].size;
    }
    add_item(&i, out, scale);
  }
}
