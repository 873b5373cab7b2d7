#include "runtime/plan/text/profile_keys.h"

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

// By value of fsdp_op_product_form, fsdp_profile_direction, fsdp_profile_link and fsdp_op_device.
static const char *const forms[] = {"forward", "input", "weight", "any"};
static const char *const directions[] = {"forward", "backward", "both"};
static const char *const links[] = {"node", "network"};
static const char *const devices[] = {"cpu", "cuda"};

#define COUNT(array)     (int)(sizeof(array) / sizeof *(array))
#define WHOLE(least)     .type = FSDP_KEY_WHOLE, .number = (least)
#define LONG(least)      .type = FSDP_KEY_LONG, .number = (least)
#define WORD(first, of)  .type = FSDP_KEY_WORD, .number = (first), .words = (of), .count = COUNT(of)
#define FLAG             .type = FSDP_KEY_FLAG
#define NAME(bytes)      .type = FSDP_KEY_NAME, .number = (bytes)
#define KERNEL(index)    .type = FSDP_KEY_KERNEL, .number = (index), .what = "the name of a kernel"
#define NUMBER(exponent) .type = FSDP_KEY_NUMBER, .number = (exponent)
#define FROM_1           .type = FSDP_KEY_NUMBER, .least = 1
#define CURVE(exponent)  .type = FSDP_KEY_CURVE, .number = (exponent)
#define MAPPING(of)      .type = FSDP_KEY_MAPPING, .fields = (of), .count = COUNT(of)
#define LIST(list, of)   .type = FSDP_KEY_LIST, .number = (list), .fields = (of), .count = COUNT(of)
#define IN(row, field)   .offset = offsetof(fsdp_profile_##row, field)
#define AT(field)        .offset = offsetof(fsdp_device_profile, field)
#define PEAK_AT(dtype)   .offset = offsetof(fsdp_device_profile, peak_flops) + (dtype) * sizeof(double)
#define MARKED_AT(field) .mark = offsetof(fsdp_device_profile, field)
#define REQUIRED         .required = true
#define SOURCE                                                                                               \
  { "source", .type = FSDP_KEY_SOURCE }

// ---- Rows of lists

static const fsdp_profile_field product_fields[] = {
    {"ranks", WHOLE(0), IN(product, ranks)},
    {"dtype", WORD(FSDP_F32, dtypes), IN(product, dtype), REQUIRED},
    {"form", WORD(FSDP_PRODUCT_FORWARD, forms), IN(product, form), REQUIRED},
    {"m", LONG(1), IN(product, m), REQUIRED},
    {"n", LONG(1), IN(product, n), REQUIRED},
    {"k", LONG(1), IN(product, k), REQUIRED},
    {"tflops", NUMBER(12), IN(product, flops_per_s), REQUIRED},
    SOURCE};
static const fsdp_profile_field grouped_fields[] = {
    {"kernel", NAME(FSDP_PROFILE_KERNEL_BYTES), IN(grouped, kernel), .what = "a kernel", REQUIRED},
    {"ranks", WHOLE(0), IN(grouped, ranks)},
    {"dtype", WORD(FSDP_F32, dtypes), IN(grouped, dtype), REQUIRED},
    {"form", WORD(FSDP_PRODUCT_FORWARD, forms), IN(grouped, form), REQUIRED},
    {"estimated", FLAG, IN(grouped, estimated)},
    {"tflops", CURVE(12), IN(grouped, rate), REQUIRED},
    SOURCE};
static const fsdp_profile_field attention_fields[] = {
    {"kernel", NAME(FSDP_PROFILE_KERNEL_BYTES), IN(attention, kernel), .what = "a kernel", REQUIRED},
    {"ranks", WHOLE(0), IN(attention, ranks)},
    {"dtype", WORD(FSDP_F32, dtypes), IN(attention, dtype), REQUIRED},
    {"head_dim", WHOLE(1), IN(attention, head_dim), REQUIRED},
    {"direction", WORD(FSDP_ATTENTION_FORWARD, directions), IN(attention, direction), REQUIRED},
    {"estimated", FLAG, IN(attention, estimated)},
    {"tflops", CURVE(12), IN(attention, rate), REQUIRED},
    SOURCE};
static const fsdp_profile_field op_fields[] = {{"ranks", WHOLE(0), IN(op, ranks)},
                                               {"op", WORD(0, ops), IN(op, op), REQUIRED},
                                               {"dtype", WORD(FSDP_F32, dtypes), IN(op, dtype)},
                                               {"gbps", CURVE(9), IN(op, rate), REQUIRED},
                                               SOURCE};
static const fsdp_profile_field collective_fields[] = {
    {"kind", WORD(0, collectives), IN(collective, kind), REQUIRED},
    {"link", WORD(FSDP_LINK_NODE, links), IN(collective, link), REQUIRED},
    {"ranks", WHOLE(2), IN(collective, ranks), REQUIRED},
    {"ranks_per_node", WHOLE(0), IN(collective, ranks_per_node)},
    {"groups", WHOLE(0), IN(collective, groups)},
    {"us", CURVE(-6), IN(collective, seconds), REQUIRED},
    SOURCE};

// ---- The top

static const fsdp_profile_field use_fields[] = {{"attention", KERNEL(0), AT(attention_kernel)},
                                                {"grouped", KERNEL(1), AT(grouped_kernel)}};
static const fsdp_profile_field peak_fields[] = {{"fp32", NUMBER(12), PEAK_AT(FSDP_F32)},
                                                 {"bf16", NUMBER(12), PEAK_AT(FSDP_BF16)},
                                                 {"fp16", NUMBER(12), PEAK_AT(FSDP_F16)}};
static const fsdp_profile_field copy_fields[] = {{"up", NUMBER(9), AT(up_rate)},
                                                 {"down", NUMBER(9), AT(down_rate)},
                                                 {"up_both", NUMBER(9), AT(up_both_rate)},
                                                 {"down_both", NUMBER(9), AT(down_both_rate)}};
static const fsdp_profile_field contention_fields[] = {{"compute", FROM_1, AT(product_slowdown)},
                                                       {"collective", FROM_1, AT(collective_slowdown)},
                                                       {"gather", FROM_1, AT(gather_slowdown)}};
static const fsdp_profile_field spread_fields[] = {{"compute_low", NUMBER(0), AT(spread.compute_low)},
                                                   {"compute_high", FROM_1, AT(spread.compute_high)},
                                                   {"collective_low", NUMBER(0), AT(spread.collective_low)},
                                                   {"collective_high", FROM_1, AT(spread.collective_high)}};
static const fsdp_profile_field sustained_fields[] = {{"products", FROM_1, AT(sustained.products)},
                                                      {"attention", FROM_1, AT(sustained.attention)}};
static const fsdp_profile_field reserve_fields[] = {
    {"context_gb", NUMBER(9), AT(context_bytes), MARKED_AT(context_estimated)},
    {"communicator_gb", NUMBER(9), AT(communicator_bytes), MARKED_AT(communicator_estimated)}};
static const fsdp_profile_field network_fields[] = {{"gbps_per_node", NUMBER(9), AT(network_rate)},
                                                    {"latency_us", NUMBER(-6), AT(network_latency_s)},
                                                    {"node_latency_us", NUMBER(-6), AT(node_latency_s)}};

static const fsdp_profile_field fields[] = {
    {"name", NAME(FSDP_PROFILE_NAME_BYTES), AT(name), .what = "the name"},
    {"device", WORD(FSDP_OP_CPU, devices), AT(device)},
    SOURCE,
    {"base", .type = FSDP_KEY_BASE},
    {"use", .type = FSDP_KEY_USE, .fields = use_fields, .count = COUNT(use_fields)},
    {"processors", WHOLE(1), AT(processors)},
    {"tiles", FLAG, AT(tiles)},
    {"products", LIST(FSDP_PROFILE_PRODUCTS, product_fields)},
    {"grouped", LIST(FSDP_PROFILE_GROUPED, grouped_fields)},
    {"attention", LIST(FSDP_PROFILE_ATTENTION, attention_fields)},
    {"ops", LIST(FSDP_PROFILE_OPS, op_fields)},
    {"collectives", LIST(FSDP_PROFILE_COLLECTIVES, collective_fields)},
    {"memory_gb", NUMBER(9), AT(memory_bytes)},
    {"memory_gbps", NUMBER(9), AT(memory_rate)},
    {"launch_us", NUMBER(-6), AT(launch_s)},
    {"handoff_us", NUMBER(-6), AT(handoff_s)},
    {"host_memory_gb", NUMBER(9), AT(host_memory_bytes)},
    {"host_memory_gbps", NUMBER(9), AT(host_memory_rate)},
    {"capability", FROM_1, AT(capability)},
    {"peak_tflops", MAPPING(peak_fields)},
    {"copy_gbps", MAPPING(copy_fields)},
    {"contention", MAPPING(contention_fields)},
    {"spread", MAPPING(spread_fields)},
    {"sustained", MAPPING(sustained_fields)},
    {"reserve", MAPPING(reserve_fields)},
    {"network", MAPPING(network_fields)},
};
_Static_assert(COUNT(fields) == FSDP_PROFILE_FIELDS_MAX,
               "a mapping of more fields than its readers have room for");

const fsdp_profile_field fsdp_profile_top = {"", MAPPING(fields)};
