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

static const char *const dtypes[] = {"fp32", "bf16", "fp16"};
static const char *const ops[] = {
#define FSDP_OP(KIND, name, PHASE, operands, RULES) #name,
#include "models/graph/ops.def"
#define FSDP_GRAPH_OP(KIND, name, PHASE, operands, RULES) #name,
#include "models/graph/ops.def"
    "any"};
static const char *const collectives[] = {
#define FSDP_COLLECTIVE(KIND, name, ...) #name,
#include "runtime/base/collectives.def"
};

// By value of fsdp_op_product_form, fsdp_profile_direction and fsdp_profile_link.
static const char *const forms[] = {"forward", "input", "weight", "any"};
static const char *const directions[] = {"forward", "backward", "both"};
static const char *const links[] = {"node", "network"};

#define COUNT(array) (int)(sizeof(array) / sizeof *(array))
#define WORDS(names) names, COUNT(names)

static const fsdp_profile_field product_fields[] = {
    {"ranks", FSDP_FIELD_WHOLE, offsetof(fsdp_profile_product, ranks), false, 0, NULL, 0},
    {"dtype", FSDP_FIELD_WORD, offsetof(fsdp_profile_product, dtype), true, FSDP_F32, WORDS(dtypes)},
    {"form", FSDP_FIELD_WORD, offsetof(fsdp_profile_product, form), true, FSDP_PRODUCT_FORWARD, WORDS(forms)},
    {"m", FSDP_FIELD_LONG, offsetof(fsdp_profile_product, m), true, 1, NULL, 0},
    {"n", FSDP_FIELD_LONG, offsetof(fsdp_profile_product, n), true, 1, NULL, 0},
    {"k", FSDP_FIELD_LONG, offsetof(fsdp_profile_product, k), true, 1, NULL, 0},
    {"tflops", FSDP_FIELD_RATE, offsetof(fsdp_profile_product, flops_per_s), true, 12, NULL, 0},
};
static const fsdp_profile_field grouped_fields[] = {
    {"kernel", FSDP_FIELD_NAME, offsetof(fsdp_profile_grouped, kernel), true, 0, NULL, 0},
    {"ranks", FSDP_FIELD_WHOLE, offsetof(fsdp_profile_grouped, ranks), false, 0, NULL, 0},
    {"dtype", FSDP_FIELD_WORD, offsetof(fsdp_profile_grouped, dtype), true, FSDP_F32, WORDS(dtypes)},
    {"form", FSDP_FIELD_WORD, offsetof(fsdp_profile_grouped, form), true, FSDP_PRODUCT_FORWARD, WORDS(forms)},
    {"estimated", FSDP_FIELD_FLAG, offsetof(fsdp_profile_grouped, estimated), false, 0, NULL, 0},
    {"tflops", FSDP_FIELD_CURVE, offsetof(fsdp_profile_grouped, rate), true, 12, NULL, 0},
};
static const fsdp_profile_field attention_fields[] = {
    {"kernel", FSDP_FIELD_NAME, offsetof(fsdp_profile_attention, kernel), true, 0, NULL, 0},
    {"ranks", FSDP_FIELD_WHOLE, offsetof(fsdp_profile_attention, ranks), false, 0, NULL, 0},
    {"dtype", FSDP_FIELD_WORD, offsetof(fsdp_profile_attention, dtype), true, FSDP_F32, WORDS(dtypes)},
    {"head_dim", FSDP_FIELD_WHOLE, offsetof(fsdp_profile_attention, head_dim), true, 1, NULL, 0},
    {"direction", FSDP_FIELD_WORD, offsetof(fsdp_profile_attention, direction), true, FSDP_ATTENTION_FORWARD,
     WORDS(directions)},
    {"estimated", FSDP_FIELD_FLAG, offsetof(fsdp_profile_attention, estimated), false, 0, NULL, 0},
    {"tflops", FSDP_FIELD_CURVE, offsetof(fsdp_profile_attention, rate), true, 12, NULL, 0},
};
static const fsdp_profile_field op_fields[] = {
    {"ranks", FSDP_FIELD_WHOLE, offsetof(fsdp_profile_op, ranks), false, 0, NULL, 0},
    {"op", FSDP_FIELD_WORD, offsetof(fsdp_profile_op, op), true, 0, WORDS(ops)},
    {"dtype", FSDP_FIELD_WORD, offsetof(fsdp_profile_op, dtype), false, FSDP_F32, WORDS(dtypes)},
    {"gbps", FSDP_FIELD_CURVE, offsetof(fsdp_profile_op, rate), true, 9, NULL, 0},
};
static const fsdp_profile_field collective_fields[] = {
    {"kind", FSDP_FIELD_WORD, offsetof(fsdp_profile_collective, kind), true, 0, WORDS(collectives)},
    {"link", FSDP_FIELD_WORD, offsetof(fsdp_profile_collective, link), true, FSDP_LINK_NODE, WORDS(links)},
    {"ranks", FSDP_FIELD_WHOLE, offsetof(fsdp_profile_collective, ranks), true, 2, NULL, 0},
    {"ranks_per_node", FSDP_FIELD_WHOLE, offsetof(fsdp_profile_collective, ranks_per_node), false, 0, NULL,
     0},
    {"groups", FSDP_FIELD_WHOLE, offsetof(fsdp_profile_collective, groups), false, 0, NULL, 0},
    {"us", FSDP_FIELD_CURVE, offsetof(fsdp_profile_collective, seconds), true, -6, NULL, 0},
};

const struct fsdp_profile_list_key fsdp_profile_lists[FSDP_PROFILE_LISTS] = {
    [FSDP_PROFILE_PRODUCTS] = {"products", product_fields, COUNT(product_fields)},
    [FSDP_PROFILE_GROUPED] = {"grouped", grouped_fields, COUNT(grouped_fields)},
    [FSDP_PROFILE_ATTENTION] = {"attention", attention_fields, COUNT(attention_fields)},
    [FSDP_PROFILE_OPS] = {"ops", op_fields, COUNT(op_fields)},
    [FSDP_PROFILE_COLLECTIVES] = {"collectives", collective_fields, COUNT(collective_fields)},
};
