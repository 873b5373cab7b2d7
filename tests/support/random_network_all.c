// Random networks of all kinds of operators.
#include "tests/support/random_network.h"

#include "runtime/base/check.h"

#include <stdio.h>
#include <string.h>

typedef struct grower {
  random_source *random;
  fsdp_graph *graph;
  int ranks;
  int x; // the value that the next operator reads
  fsdp_listed_operator spec;
  char name[16];
} grower;

static const fsdp_value *current(const grower *g) {
  return &g->graph->values[g->x];
}

static int draw(const grower *g, int low, int high) {
  return random_int(g->random, low, high);
}

static int64_t draw_size(const grower *g) {
  return draw(g, 0, 1) ? g->ranks : draw(g, 1, 9);
}

// A new input or parameter.
static int add_tensor(const grower *g, fsdp_value_role role, int dims, const int64_t *shape) {
  char name[16];
  snprintf(name, sizeof name, "t%d", g->graph->value_count);
  return fsdp_listed_tensor(g->graph, role, name, dims, shape);
}

static fsdp_value_role draw_role(const grower *g) {
  return draw(g, 0, 1) ? FSDP_VALUE_PARAM : FSDP_VALUE_INPUT;
}

// ---- Kinds: each fills in g->spec; false if the current tensor does not suit it

static bool grow_matmul(grower *g) {
  const fsdp_value *x = current(g);
  int dims = x->dims > 2 && draw(g, 0, 1) ? x->dims : 2;
  int64_t shape[FSDP_MAX_DIMS];
  if (x->dims < 2) return false;
  for (int d = 0; d < dims - 2; d++) shape[d] = x->shape[d];
  g->spec.transposed = draw(g, 0, 1);
  shape[dims - 2 + g->spec.transposed] = x->shape[x->dims - 1];
  shape[dims - 1 - g->spec.transposed] = draw_size(g);
  g->spec.inputs[1] = add_tensor(g, draw_role(g), dims, shape);
  g->spec.input_count = 2;
  return true;
}

// The other operand has the last dimensions, some of them as one item, or is of the same shape. Either may
// come first.
static bool grow_broadcast(grower *g) {
  const fsdp_value *x = current(g);
  int dims = draw(g, 0, x->dims), swapped = draw(g, 0, 1), other = -1;
  int64_t shape[FSDP_MAX_DIMS];
  for (int v = 0; v < g->graph->value_count && draw(g, 0, 1); v++) {
    const fsdp_value *b = &g->graph->values[v];
    bool same = b->role == FSDP_VALUE_ACTIVATION && b->dims == x->dims;
    if (same && !memcmp(b->shape, x->shape, sizeof b->shape)) other = v;
  }
  for (int d = 0; d < dims; d++) shape[d] = draw(g, 0, 3) ? x->shape[x->dims - dims + d] : 1;
  if (other < 0) other = add_tensor(g, draw_role(g), dims, shape);
  g->spec.inputs[swapped] = g->x;
  g->spec.inputs[!swapped] = other;
  g->spec.input_count = 2;
  return true;
}

static bool grow_relu(grower *g) {
  (void)g;
  return true;
}

static bool grow_transpose(grower *g) {
  int dims = current(g)->dims;
  if (dims < 2) return false;
  g->spec.permutation_count = draw(g, 0, 3) ? dims : 0;
  for (int d = 0; d < dims; d++) {
    int place = draw(g, 0, d);
    g->spec.permutation[d] = g->spec.permutation[place];
    g->spec.permutation[place] = d;
  }
  return true;
}

static bool grow_mean(grower *g) {
  if (current(g)->dims == 0) return false;
  g->spec.axis = draw(g, 0, current(g)->dims - 1);
  g->spec.keeps_axis = draw(g, 0, 1);
  return true;
}

static bool grow_slice(grower *g) {
  if (current(g)->dims == 0) return false;
  g->spec.axis = draw(g, 0, current(g)->dims - 1);
  int items = (int)current(g)->shape[g->spec.axis];
  g->spec.size = draw(g, 1, items);
  g->spec.begin = draw(g, 0, items - (int)g->spec.size);
  return true;
}

static bool grow_gather(grower *g) {
  int64_t shape[FSDP_MAX_DIMS];
  int dims = draw(g, 1, 3);
  if (current(g)->dims != 2) return false;
  for (int d = 0; d < dims; d++) shape[d] = draw_size(g);
  g->spec.inputs[1] = add_tensor(g, FSDP_VALUE_INPUT, dims, shape);
  g->spec.input_count = 2;
  return true;
}

static bool grow_rmsnorm(grower *g) {
  const fsdp_value *x = current(g);
  if (x->dims == 0) return false;
  g->spec.inputs[1] = add_tensor(g, draw_role(g), 1, &x->shape[x->dims - 1]);
  g->spec.input_count = 2;
  return true;
}

static bool grow_attention(grower *g) {
  const fsdp_value *x = current(g);
  int64_t shape[FSDP_MAX_DIMS];
  if (x->dims != 4) return false;
  memcpy(shape, x->shape, sizeof shape);
  for (int64_t heads = 1; heads <= x->shape[1]; heads++)
    if (x->shape[1] % heads == 0 && (heads == 1 || draw(g, 0, 1))) shape[1] = heads;
  shape[2] += draw(g, 0, 3);
  g->spec.inputs[1] = add_tensor(g, FSDP_VALUE_INPUT, 4, shape);
  g->spec.inputs[2] = add_tensor(g, FSDP_VALUE_INPUT, 4, shape);
  g->spec.input_count = 3;
  return true;
}

// ---- All

static const struct {
  const char *name;
  bool (*grow)(grower *g);
} kinds[] = {{"matmul", grow_matmul},      {"add", grow_broadcast},       {"mul", grow_broadcast},
             {"relu", grow_relu},          {"transpose", grow_transpose}, {"reduce_mean", grow_mean},
             {"slice", grow_slice},        {"gather", grow_gather},       {"rmsnorm", grow_rmsnorm},
             {"attention", grow_attention}};
enum { KINDS = sizeof kinds / sizeof *kinds };

fsdp_dataflow *random_network_of_all(random_source *random, int ranks) {
  grower g = {.random = random, .graph = fsdp_listed_create(), .ranks = ranks};
  int64_t shape[FSDP_MAX_DIMS];
  int made[8], count = 0;
  for (int d = 0; d < FSDP_MAX_DIMS; d++) shape[d] = draw_size(&g);
  made[count++] = add_tensor(&g, FSDP_VALUE_INPUT, draw(&g, 2, 4), shape);
  for (int left = draw(&g, 3, 6); left > 0;) {
    g.x = made[draw(&g, 0, 2) ? count - 1 : draw(&g, 0, count - 1)];
    int kind = draw(&g, 0, KINDS - 1);
    snprintf(g.name, sizeof g.name, "op%d", g.graph->forward_count);
    g.spec = (fsdp_listed_operator){
        .name = g.name, .kind = kinds[kind].name, .inputs = {g.x}, .input_count = 1, .place = "random"};
    if (!kinds[kind].grow(&g)) continue;
    fsdp_error error = {0};
    fsdp_status status = fsdp_listed_add(g.graph, &g.spec, &error);
    FSDP_CHECK(!status, "%s", error.message);
    made[count++] = g.graph->value_count - 1;
    left--;
  }
  return network_of_listed(g.graph);
}
