#include "runtime/plan/text/profile_keys.h"

#define AT(field)      offsetof(fsdp_device_profile, field)
#define PEAK_AT(dtype) (AT(peak_flops) + (dtype) * sizeof(double))

const fsdp_profile_number fsdp_profile_numbers[FSDP_PROFILE_NUMBERS] = {
    {"memory_gb", AT(memory_bytes), 9, 0, 0},
    {"memory_gbps", AT(memory_rate), 9, 0, 0},
    {"launch_us", AT(launch_s), -6, 0, 0},
    {"handoff_us", AT(handoff_s), -6, 0, 0},
    {"host_memory_gb", AT(host_memory_bytes), 9, 0, 0},
    {"host_memory_gbps", AT(host_memory_rate), 9, 0, 0},
    {"capability", AT(capability), 0, 1, 0},
};

const fsdp_profile_section fsdp_profile_sections[FSDP_PROFILE_SECTIONS] = {
    {"peak_tflops",
     3,
     {{"fp32", PEAK_AT(FSDP_F32), 12, 0, 0},
      {"bf16", PEAK_AT(FSDP_BF16), 12, 0, 0},
      {"fp16", PEAK_AT(FSDP_F16), 12, 0, 0}}},
    {"copy_gbps",
     4,
     {{"up", AT(up_rate), 9, 0, 0},
      {"down", AT(down_rate), 9, 0, 0},
      {"up_both", AT(up_both_rate), 9, 0, 0},
      {"down_both", AT(down_both_rate), 9, 0, 0}}},
    {"contention",
     3,
     {{"compute", AT(product_slowdown), 0, 1, 0},
      {"collective", AT(collective_slowdown), 0, 1, 0},
      {"gather", AT(gather_slowdown), 0, 1, 0}}},
    {"spread",
     4,
     {{"compute_low", AT(spread.compute_low), 0, 0, 0},
      {"compute_high", AT(spread.compute_high), 0, 1, 0},
      {"collective_low", AT(spread.collective_low), 0, 0, 0},
      {"collective_high", AT(spread.collective_high), 0, 1, 0}}},
    {"sustained",
     2,
     {{"products", AT(sustained.products), 0, 1, 0}, {"attention", AT(sustained.attention), 0, 1, 0}}},
    {"reserve",
     2,
     {{"context_gb", AT(context_bytes), 9, 0, AT(context_estimated)},
      {"communicator_gb", AT(communicator_bytes), 9, 0, AT(communicator_estimated)}}},
    {"network",
     3,
     {{"gbps_per_node", AT(network_rate), 9, 0, 0},
      {"latency_us", AT(network_latency_s), -6, 0, 0},
      {"node_latency_us", AT(node_latency_s), -6, 0, 0}}},
};

const char *const fsdp_profile_forms[FSDP_PROFILE_FORMS] = {"forward", "input", "weight", "any"};
const char *const fsdp_profile_directions[FSDP_PROFILE_DIRECTIONS] = {"forward", "backward", "both"};
const char *const fsdp_profile_links[FSDP_PROFILE_LINKS] = {"node", "network"};
