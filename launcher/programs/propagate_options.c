#include "launcher/programs/plan_commands.h"

#include "launcher/report/strategies.h"
#include "launcher/setup/listed_file.h"
#include "launcher/setup/setup.h"
#include "launcher/setup/sharding_file.h"
#include "launcher/setup/strategies_file.h"

#include <stdio.h>

// What is printed; `named` has the axes' names, if there are any.
typedef struct printed {
  fsdp_given_strategies *given;
  fsdp_propagation *propagation;
  fsdp_mesh mesh;
  bool named;
  fsdp_specs *specs; // of --sharding, else NULL
} printed;

static fsdp_dtype compute_dtype(const fsdp_options *options) {
  return options->param_dtype == FSDP_DTYPE_AUTO ? FSDP_F32 : (fsdp_dtype)options->param_dtype;
}

static fsdp_status of_file(const fsdp_options *options, const fsdp_setup_ranks *ranks, printed *p,
                           fsdp_error *error) {
  p->named = options->mesh_axes.count > 0;
  fsdp_status status = p->named ? fsdp_mesh_choose(options, ranks, &p->mesh, error) : FSDP_OK;
  if (status) return status;
  const fsdp_slice_mesh slices =
      p->named ? fsdp_slice_mesh_of(&p->mesh) : fsdp_slice_mesh_of_ranks(ranks->ranks);
  fsdp_graph *graph;
  status = fsdp_listed_read(options->graph, &graph, error);
  if (status) return status;
  fsdp_dataflow *flow = fsdp_dataflow_of_graph(graph, 1, compute_dtype(options));
  fsdp_graph_destroy(graph);
  status = fsdp_propagate(flow, &slices, p->given, &p->propagation, error);
  if (status)
    fsdp_dataflow_destroy(flow);
  else
    p->propagation->own_flow = flow;
  return status;
}

// A sharding file's weights, or a preset's, and what follows for the others.
static fsdp_status of_sharding(const fsdp_options *options, const fsdp_graph *graph, fsdp_dtype compute,
                               printed *p, fsdp_error *error) {
  fsdp_sharding *sharding;
  fsdp_status status = fsdp_sharding_read(options, &sharding, error);
  if (!status) status = fsdp_sharding_resolve(sharding, graph, &p->mesh, &p->specs, error);
  if (!status) status = fsdp_specs_complete(p->specs, graph, &p->mesh, compute, &p->propagation, error);
  fsdp_sharding_destroy(sharding);
  return status;
}

static fsdp_status of_model(const fsdp_options *options, const fsdp_setup_ranks *ranks, printed *p,
                            fsdp_error *error) {
  fsdp_setup setup = {0};
  fsdp_plan_config config = {.batch = options->batch,
                             .seq = options->seq,
                             .strategy = (fsdp_strategy)options->strategy,
                             .op_strategies = p->given};
  config.param_dtype = fsdp_dtype_bytes(compute_dtype(options)) == 2 ? FSDP_BF16 : FSDP_F32;
  if (options->param_dtype == FSDP_DTYPE_AUTO && options->backend == FSDP_BACKEND_CUDA)
    config.param_dtype = FSDP_BF16;
  fsdp_status status = fsdp_setup_read_model(options, &setup, &config.model, error);
  if (!status) status = fsdp_mesh_choose(options, ranks, &config.mesh, error);
  if (!status) status = fsdp_propagate_mesh(options, ranks, &config, error);
  if (status) return status;
  const fsdp_slice_mesh slices = fsdp_slice_mesh_of(&config.mesh);
  fsdp_graph *graph = fsdp_model_forward(&config.model, config.batch, config.seq);
  p->mesh = config.mesh;
  p->named = true;
  if (options->sharding)
    status = of_sharding(options, graph, config.param_dtype, p, error);
  else
    status = fsdp_propagate_graph(graph, &slices, p->given, config.param_dtype, &p->propagation, error);
  fsdp_graph_destroy(graph);
  return status;
}

fsdp_status fsdp_propagate_and_print(const fsdp_options *options, fsdp_error *error) {
  const fsdp_setup_ranks ranks = fsdp_setup_ranks_planned(options);
  printed p = {0};
  fsdp_status status = fsdp_strategies_read(options, &p.given, error);
  if (!status) status = (options->graph ? of_file : of_model)(options, &ranks, &p, error);
  if (!status) {
    fsdp_strategies_warn(p.propagation, "fsdp_plan", stderr);
    fsdp_strategies_print(p.propagation, p.named ? &p.mesh : NULL, stdout);
  }
  fsdp_propagation_destroy(p.propagation);
  fsdp_strategies_destroy(p.given);
  fsdp_specs_destroy(p.specs);
  return status;
}
