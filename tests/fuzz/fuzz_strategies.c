// Strategies of operators (--op-strategies FILE), through propagation on a listed network and on a model.
#include "launcher/setup/listed_file.h"
#include "launcher/setup/strategies_file.h"
#include "models/model.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/propagated.h"

static const fsdp_dataflow *listed_network(void) {
  static fsdp_dataflow *flow;
  fsdp_graph *graph;
  fsdp_error error = {0};
  if (flow) return flow;
  FSDP_CHECK(fsdp_listed_read("tests/golden/strategies/weights.yaml", &graph, &error) == FSDP_OK, "%s",
             error.message);
  flow = fsdp_dataflow_of_graph(graph, 1, FSDP_F32);
  fsdp_graph_destroy(graph);
  return flow;
}

static const fsdp_dataflow *model_network(void) {
  static fsdp_dataflow *flow;
  fsdp_model_config config = {0};
  fsdp_error error = {0};
  if (flow) return flow;
  FSDP_CHECK(fsdp_model_preset("tiny", &config, &error) == FSDP_OK, "%s", error.message);
  fsdp_graph *graph = fsdp_model_forward(&config, 2, 30);
  flow = fsdp_dataflow_of_graph(graph, 3, FSDP_BF16);
  fsdp_graph_destroy(graph);
  return flow;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fsdp_options options = {.op_strategies = (char *)(uintptr_t)fsdp_fuzz_file("given.yaml", data, size)};
  fsdp_given_strategies *given;
  fsdp_error error = {0};
  if (fsdp_strategies_read(&options, &given, &error) == FSDP_OK) {
    fsdp_fuzz_propagate(listed_network(), given);
    fsdp_fuzz_propagate(model_network(), given);
  }
  fsdp_strategies_destroy(given);
  return 0;
}
