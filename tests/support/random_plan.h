// Configurations for tests: of plans, at random (small models, every strategy and setting), and of searches,
// on a machine of round numbers.
#pragma once

#include "runtime/plan/plan.h"
#include "runtime/plan/search/search_config.h"
#include "tests/support/random_program.h"

// A configuration that fsdp_plan_create accepts.
fsdp_plan_config random_plan_config(random_source *random);

// The same of families with routed experts, on data, fsdp, expert, tensor and context of at most 12 ranks.
fsdp_plan_config random_routed_config(random_source *random);

// A small model of any family.
fsdp_model_config random_model_config(random_source *random);

// One line that describes it, for messages.
void describe_plan_config(const fsdp_plan_config *config, char *out, size_t out_bytes);

#define ROUND_FLOPS  300e12
#define ROUND_MEMORY 1.5e12

// Nodes of 8 GPUs: products at ROUND_FLOPS whatever their shape, attention at half of that, links by a ring's
// formula. `node_rate`: bytes that a rank of a node sends per second; `network_rate`: those of a node. The
// caller owns it.
fsdp_device_profile *round_machine(double node_rate, double network_rate);

// A search for a preset on `ranks` GPUs, 8 a node, with nothing fixed and no limit. layers 0: the preset's.
fsdp_search_config search_on(const fsdp_device_profile *profile, const char *preset, int layers, int ranks);
