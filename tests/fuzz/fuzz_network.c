// Networks of operators (--graph FILE), through propagation from the first operator.
#include "launcher/setup/listed_file.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/propagated.h"

#include <stdio.h>

// Two slices of the first letter that can have them.
static fsdp_given_strategy first_strategy(const fsdp_dataflow *flow) {
  const fsdp_operator *op = &flow->operators[0];
  fsdp_given_strategy given = {.list_count = op->list_count, .place = "fuzz:1"};
  int cut = 0;
  while (cut < op->letter_count && (op->letters[cut].is_whole || op->letters[cut].limit < 2)) cut++;
  snprintf(given.name, sizeof given.name, "%s", op->names[0]);
  for (int i = 0; i < op->input_count; i++) {
    given.entry_count[i] = flow->tensors[op->operands[i].tensor].dims;
    for (int d = 0; d < given.entry_count[i]; d++)
      given.counts[i][d] = op->operands[i].letter[d] == cut ? 2 : 1;
  }
  return given;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fsdp_graph *graph;
  fsdp_error error = {0};
  if (fsdp_listed_read(fsdp_fuzz_file("network.yaml", data, size), &graph, &error) != FSDP_OK) return 0;
  fsdp_dataflow *flow = fsdp_dataflow_of_graph(graph, 1, FSDP_F32);
  fsdp_graph_destroy(graph);
  fsdp_given_strategy first = first_strategy(flow);
  const fsdp_given_strategies given = {.items = &first, .count = 1, .place = "fuzz"};
  fsdp_fuzz_propagate(flow, &given);
  fsdp_dataflow_destroy(flow);
  return 0;
}
