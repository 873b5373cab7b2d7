// The mesh that strategies of operators need.
#pragma once

#include "launcher/setup/mesh_choice.h"
#include "runtime/plan/plan.h"

// Where options leave the axes to the strategies (no --mesh, no --tensor-parallel, no --context-parallel),
// propagates over the prime factors of the ranks and takes config->mesh from what comes out. config has its
// model and strategies. FSDP_ERR_INPUT, FSDP_ERR_OPTION.
fsdp_status fsdp_propagate_mesh(const fsdp_options *options, const fsdp_setup_ranks *ranks,
                                fsdp_plan_config *config, fsdp_error *error);
