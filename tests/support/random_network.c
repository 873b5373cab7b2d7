#include "tests/support/random_network.h"

#include "runtime/base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int network_add_tensor(fsdp_graph *graph, const char *name, fsdp_value_role role, int64_t rows,
                       int64_t columns) {
  const int64_t shape[] = {rows, columns};
  return fsdp_listed_tensor(graph, role, name, columns ? 2 : 1, shape);
}

int network_add_operator(fsdp_graph *graph, const char *kind, const char *name, int a, int b) {
  fsdp_error error = {0};
  const fsdp_listed_operator op = {.name = name,
                                   .kind = kind,
                                   .inputs = {a, b},
                                   .input_count = b < 0 ? 1 : 2,
                                   .keeps_axis = true,
                                   .place = "test:1"};
  fsdp_status status = fsdp_listed_add(graph, &op, &error);
  FSDP_CHECK(!status, "%s", error.message);
  return graph->value_count - 1;
}

fsdp_dataflow *network_of_listed(fsdp_graph *graph) {
  fsdp_dataflow *flow = fsdp_dataflow_of_graph(graph, 1, FSDP_F32);
  fsdp_graph_destroy(graph);
  return flow;
}

int network_find(const fsdp_dataflow *flow, const char *name) {
  for (int t = 0; t < flow->tensor_count; t++)
    if (!strcmp(flow->tensors[t].name, name)) return t;
  return -1;
}

fsdp_graph *network_feed_forward(void) {
  fsdp_graph *n = fsdp_listed_create();
  int x = network_add_tensor(n, "x", FSDP_VALUE_INPUT, 16, 32);
  int w1 = network_add_tensor(n, "w1", FSDP_VALUE_PARAM, 32, 64);
  int b1 = network_add_tensor(n, "b1", FSDP_VALUE_PARAM, 64, 0);
  int w2 = network_add_tensor(n, "w2", FSDP_VALUE_PARAM, 64, 32);
  int h = network_add_operator(n, "matmul", "fc1", x, w1);
  h = network_add_operator(n, "add", "bias", h, b1);
  h = network_add_operator(n, "relu", "act", h, -1);
  network_add_operator(n, "matmul", "fc2", h, w2);
  return n;
}

fsdp_given_strategy strategy_of_text(const char *text) {
  fsdp_given_strategy given = {.place = "test:1"};
  const char *at = strstr(text, ": ");
  snprintf(given.name, sizeof given.name, "%.*s", (int)(at - text), text);
  for (at += 3; *at; at++) {
    if (*at == '[') given.list_count++;
    if (*at < '0' || *at > '9') continue;
    int list = given.list_count - 1, entry = given.entry_count[list]++, *groups = given.group_count[list];
    int *count = &given.counts[list][entry];
    *count = (int)strtol(at, (char **)(uintptr_t)&at, 10);
    for (int last = *count; *at == '@'; *count *= last) {
      fsdp_slice_group *group = &given.groups[list][entry][groups[entry]++];
      *group = (fsdp_slice_group){last, (int)strtol(at + 1, (char **)(uintptr_t)&at, 10)};
      if (*at != '+') break;
      last = (int)strtol(at + 1, (char **)(uintptr_t)&at, 10);
    }
    at--;
  }
  return given;
}

// ---- Random networks

// A tensor of the same shape that is no parameter; -1: none.
static int find_alike(random_source *random, const fsdp_graph *n, int value) {
  int found = -1;
  for (int v = 0; v < n->value_count; v++) {
    const fsdp_value *a = &n->values[v], *b = &n->values[value];
    bool same = v != value && a->role != FSDP_VALUE_PARAM && a->dims == b->dims;
    if (same && !memcmp(a->shape, b->shape, sizeof a->shape) && random_int(random, 0, 1)) found = v;
  }
  return found;
}

// One operator on tensor `x`. Returns its output.
static int add_random(random_source *random, fsdp_graph *n, int64_t unit, int x, const char *name) {
  const int64_t columns = n->values[x].shape[1];
  const fsdp_value_role parameter = FSDP_VALUE_PARAM;
  char weight[32];
  int alike = find_alike(random, n, x);
  snprintf(weight, sizeof weight, "%s_weight", name);
  switch (alike >= 0 ? random_int(random, 6, 7) : random_int(random, 0, 5)) {
  case 0:
  case 1:
    return network_add_operator(
        n, "matmul", name, x,
        network_add_tensor(n, weight, parameter, columns, unit * random_int(random, 1, 3)));
  case 2:
    return network_add_operator(n, "transpose", name, x, -1);
  case 3:
    return network_add_operator(n, "rmsnorm", name, x, network_add_tensor(n, weight, parameter, columns, 0));
  case 4:
    return network_add_operator(n, "add", name, x, network_add_tensor(n, weight, parameter, columns, 0));
  case 5:
    return network_add_operator(n, "relu", name, x, -1);
  case 6:
    return network_add_operator(n, "add", name, x, alike);
  default:
    return network_add_operator(n, "mul", name, alike, x);
  }
}

fsdp_dataflow *random_network(random_source *random, int64_t unit) {
  fsdp_graph *n = fsdp_listed_create();
  int made[8], count = 0;
  made[count++] = network_add_tensor(n, "x", FSDP_VALUE_INPUT, unit * random_int(random, 1, 3),
                                     unit * random_int(random, 1, 3));
  for (int left = random_int(random, 3, 6); left > 0; left--) {
    char name[16];
    snprintf(name, sizeof name, "op%d", n->forward_count);
    int x = made[random_int(random, 0, 2) ? count - 1 : random_int(random, 0, count - 1)];
    made[count++] = add_random(random, n, unit, x, name);
  }
  return network_of_listed(n);
}

fsdp_given_strategy random_strategy(random_source *random, const fsdp_dataflow *flow,
                                    const fsdp_slice_mesh *mesh) {
  const fsdp_operator *op = &flow->operators[random_int(random, 0, flow->operator_count - 1)];
  int counts[FSDP_OPERATOR_LETTERS];
  for (int l = 0; l < op->letter_count; l++) counts[l] = 1;
  for (int a = 0; a < mesh->count; a++) {
    int letter = random_int(random, 0, op->letter_count);
    if (letter == op->letter_count || op->letters[letter].is_whole) continue;
    int count = counts[letter] * mesh->sizes[a];
    bool divides = !op->letters[letter].is_even || op->letters[letter].limit % count == 0;
    if (count <= op->letters[letter].limit && divides) counts[letter] = count;
  }
  fsdp_given_strategy given = {.list_count = op->list_count, .place = "random"};
  snprintf(given.name, sizeof given.name, "%s", op->names[0]);
  for (int i = 0; i < op->input_count; i++) {
    given.entry_count[i] = flow->tensors[op->operands[i].tensor].dims;
    for (int d = 0; d < given.entry_count[i]; d++)
      given.counts[i][d] = op->operands[i].letter[d] < 0 ? 1 : counts[op->operands[i].letter[d]];
  }
  return given;
}

int random_strategies(random_source *random, const fsdp_dataflow *flow, const fsdp_slice_mesh *mesh, int most,
                      fsdp_given_strategy *items) {
  int count = 0;
  for (int wanted = random_int(random, 1, most); wanted > 0; wanted--) {
    items[count] = random_strategy(random, flow, mesh);
    bool named = false;
    for (int i = 0; i < count; i++) named = named || !strcmp(items[i].name, items[count].name);
    count += !named;
  }
  return count;
}
