#include "launcher/setup/propagate_mesh.h"

fsdp_status fsdp_propagate_mesh(const fsdp_options *options, const fsdp_setup_ranks *ranks,
                                fsdp_plan_config *config, fsdp_error *error) {
  bool open = !options->mesh_axes.count && options->tensor_parallel == 1 && options->context_parallel == 1 &&
              options->expert_parallel == 1;
  if (!config->op_strategies || !open) return FSDP_OK;
  const fsdp_slice_mesh primes = fsdp_slice_mesh_of_ranks(ranks->ranks);
  const char *batch = config->strategy == FSDP_NO ? FSDP_AXIS_DATA : FSDP_AXIS_FSDP;
  fsdp_graph *graph = fsdp_model_forward(&config->model, config->batch, config->seq);
  fsdp_propagation *propagation;
  fsdp_status status =
      fsdp_propagate_graph(graph, &primes, config->op_strategies, config->param_dtype, &propagation, error);
  if (!status) status = fsdp_mesh_of_propagation(propagation, batch, &config->mesh, error);
  fsdp_propagation_destroy(propagation);
  fsdp_graph_destroy(graph);
  return status;
}
