// Device profiles as YAML: what is read, printed again, built upon a base, and refused by its line.
#include "launcher/profile/profile_file.h"
#include "runtime/plan/price/price.h"
#include "runtime/plan/price/shipped_profiles.h"
#include "runtime/plan/text/value.h"
#include "runtime/plan/text/yaml_document.h"
#include "tests/support/io_files.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEAD                                                                                                 \
  "name: small\ndevice: cuda\nprocessors: 4\nmemory_gb: 16\nmemory_gbps: {value: 500, source: \"x\"}\n"

#define PRODUCTS "products: [{dtype: bf16, form: any, m: 1, n: 1, k: 1, tflops: 1}]\n"

static fsdp_device_profile *accept(const char *name) {
  fsdp_device_profile *profile;
  fsdp_error error = {0};
  if (fsdp_profile_read(name, &profile, &error) != FSDP_OK) fail_msg("%s", error.message);
  return profile;
}

static fsdp_device_profile *accept_text(const char *text) {
  io_write_text("profile.yaml", text);
  return accept(io_path("profile.yaml"));
}

// The file is refused, and the message has `part`.
static void refuse(const char *text, const char *part) {
  fsdp_device_profile *profile;
  fsdp_error error = {0};
  io_write_text("profile.yaml", text);
  assert_int_equal(fsdp_profile_read(io_path("profile.yaml"), &profile, &error), FSDP_ERR_INPUT);
  assert_null(profile);
  if (!strstr(error.message, part)) fail_msg("\"%s\" has no \"%s\"", error.message, part);
}

// ---- Decimals

TEST(decimals) {
  double value = 0;
  static const struct {
    const char *text;
    int exponent;
    double value;
  } good[] = {{"794.5", 12, 794.5e12}, {"1e6", 0, 1e6},     {"92.8", -6, 92.8e-6}, {"2.5E-3", 3, 2.5},
              {"-1.5", 0, -1.5},       {"0.1", -6, 0.1e-6}, {"33", 9, 33e9}};
  static const char *const bad[] = {"",   "e5",   "x",     "0x10",  "nan", "inf",
                                    "1e", "1e5x", "1e999", "1.2.3", "1 2", "1_0"};
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    assert_true(fsdp_value_decimal(good[i].text, good[i].exponent, &value));
    assert_true(value == good[i].value);
  }
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(fsdp_value_decimal(bad[i], 0, &value));
}

TEST(decimals_printed) {
  char out[FSDP_DECIMAL_BYTES];
  assert_string_equal(fsdp_value_print_decimal(794.5e12, 12, out), "794.5");
  assert_string_equal(fsdp_value_print_decimal(1048576, 0, out), "1048576");
  assert_string_equal(fsdp_value_print_decimal(92.8e-6, -6, out), "92.8");
  assert_string_equal(fsdp_value_print_decimal(0.05e-6, -6, out), "0.05");
  assert_string_equal(fsdp_value_print_decimal(2e12, 9, out), "2000");
  assert_string_equal(fsdp_value_print_decimal(0, 9, out), "0");
  assert_string_equal(fsdp_value_print_decimal(-0.25, 0, out), "-0.25");
  assert_string_equal(fsdp_value_print_decimal(1e-30, 0, out), "1e-30");
  uint64_t word = 88172645463325252u;
  static const int exponents[] = {-6, 0, 9, 12};
  for (int i = 0; i < 20000; i++) {
    word ^= word << 13, word ^= word >> 7, word ^= word << 17;
    double value = ldexp((double)(word >> 11), (int)(word % 140) - 110), again = 0;
    assert_true(
        fsdp_value_decimal(fsdp_value_print_decimal(value, exponents[i % 4], out), exponents[i % 4], &again));
    if (again != value) fail_msg("%.17g became %s, %.17g", value, out, again);
  }
}

// ---- What is read

static const char whole[] =
    "name: \"a \\\"b\\\"\"\ndevice: cpu\nsource: here\nprocessors: {value: 8, source: x}\nmemory_gb: 16.5\n"
    "memory_gbps: 500\nlaunch_us: 2.5\npeak_tflops: {bf16: {value: 1.25, source: y}, fp32: 0.5}\n"
    "capability: 8.9\nreserve: {context_gb: 0.75, communicator_gb: {value: 0.25, source: y, "
    "estimated: true}}\n"
    "copy_gbps: {up: 20, down: 21, up_both: 15, down_both: 16}\ncontention: {compute: 1.125, collective: "
    "1.3, gather: 1.02}\n"
    "spread: {compute_low: 0.875, compute_high: 1.25, collective_low: 0.5, collective_high: 1.5}\n"
    "sustained: {products: 1.125, attention: 1.5}\n"
    "network: {gbps_per_node: 400, latency_us: 14, node_latency_us: 3.4}\ntiles: true\n"
    "products:\n- {ranks: 2, dtype: bf16, form: weight, m: 1, n: 2, k: 3, tflops: 0.1, source: z}\n"
    "- {dtype: fp32, form: any, m: 4, n: 5, k: 6000000, tflops: {value: 0.3, source: z}}\n"
    "grouped:\n- {kernel: g1, dtype: bf16, form: any, tflops: {8: 1, 64: 2}}\n"
    "- {kernel: g2, ranks: 2, dtype: fp32, form: weight, tflops: {8: 3}, estimated: true}\nuse: {grouped: "
    "g2}\n"
    "attention:\n- {kernel: k1, dtype: bf16, head_dim: 64, direction: both, tflops: {512: 1, 1024: 2}}\n"
    "- {kernel: k2, ranks: 3, dtype: bf16, head_dim: 128, direction: backward, tflops: {512: 3}, estimated: "
    "true}\n"
    "- {kernel: k1, dtype: fp32, head_dim: 64, direction: forward, tflops: {512: 4}}\n"
    "ops:\n- {op: rmsnorm, gbps: {1e6: 100, 1e8: 200}}\n- {op: any, ranks: 2, dtype: bf16, gbps: {1000: 7}}\n"
    "collectives:\n- {kind: reduce_scatter, link: network, ranks: 16, ranks_per_node: 8, groups: 2, us: "
    "{1e6: 92.8}}\n"
    "- {kind: all_reduce, link: node, ranks: 2, us: {10: 1, 20: {value: 2, source: s}}}\n";

TEST(whole_profile) {
  fsdp_device_profile *p = accept_text(whole);
  assert_string_equal(p->name, "a \"b\"");
  assert_int_equal(p->device, FSDP_OP_CPU);
  assert_int_equal(p->processors, 8);
  assert_true(p->memory_bytes == 16.5e9 && p->memory_rate == 500e9 && p->launch_s == 2.5e-6);
  assert_true(p->peak_flops[FSDP_BF16] == 1.25e12 && p->peak_flops[FSDP_F32] == 0.5e12 &&
              p->peak_flops[FSDP_F16] == 0);
  assert_true(p->up_rate == 20e9 && p->down_rate == 21e9 && p->up_both_rate == 15e9 &&
              p->down_both_rate == 16e9);
  assert_true(p->product_slowdown == 1.125 && p->collective_slowdown == 1.3 && p->gather_slowdown == 1.02);
  assert_true(p->spread.compute_low == 0.875 && p->spread.compute_high == 1.25 &&
              p->spread.collective_low == 0.5 && p->spread.collective_high == 1.5);
  assert_true(p->sustained.products == 1.125 && p->sustained.attention == 1.5);
  assert_true(p->network_rate == 400e9 && p->network_latency_s == 14e-6 && p->node_latency_s == 3.4e-6);
  assert_true(p->capability == 8.9 && p->context_bytes == 0.75e9 && p->communicator_bytes == 0.25e9);
  assert_true(!p->context_estimated && p->communicator_estimated);
  assert_true(p->tiles);
  assert_int_equal(p->product_count, 2);
  const fsdp_profile_product *product = p->products;
  assert_true(product[0].ranks == 2 && product[0].dtype == FSDP_BF16 &&
              product[0].form == FSDP_PRODUCT_WEIGHT);
  assert_true(product[0].m == 1 && product[0].n == 2 && product[0].k == 3 &&
              product[0].flops_per_s == 0.1e12);
  assert_true(product[1].ranks == 0 && product[1].dtype == FSDP_F32 &&
              product[1].form == FSDP_PRODUCT_FORM_COUNT);
  assert_true(product[1].k == 6000000 && product[1].flops_per_s == 0.3e12);
  assert_int_equal(p->grouped_count, 2);
  assert_true(p->grouped[0].form == FSDP_PRODUCT_FORM_COUNT && !p->grouped[0].estimated &&
              p->grouped[0].rate.points[1].size == 64 && p->grouped[0].rate.points[1].value == 2e12);
  assert_true(p->grouped[1].form == FSDP_PRODUCT_WEIGHT && p->grouped[1].estimated &&
              p->grouped[1].ranks == 2 && p->grouped[1].dtype == FSDP_F32);
  assert_string_equal(p->grouped_kernel, "g2");
  // The first kernel's rows, of each dtype.
  assert_int_equal(p->attention_count, 2);
  assert_true(p->attention[0].head_dim == 64 && p->attention[0].direction == FSDP_ATTENTION_BOTH);
  assert_true(p->attention[0].rate.count == 2 && p->attention[0].rate.points[1].size == 1024 &&
              p->attention[0].rate.points[1].value == 2e12);
  assert_true(p->attention[1].dtype == FSDP_F32 && p->attention[1].direction == FSDP_ATTENTION_FORWARD);
  assert_int_equal(p->op_count, 2);
  assert_true(p->ops[0].op == FSDP_OP_RMSNORM && p->ops[0].rate.points[1].value == 200e9);
  assert_true(p->ops[0].dtype == FSDP_PROFILE_ANY_DTYPE && p->ops[1].dtype == FSDP_BF16);
  assert_true(p->ops[1].op == FSDP_OP_ROW_COUNT && p->ops[1].ranks == 2);
  assert_int_equal(p->collective_count, 2);
  const fsdp_profile_collective *collective = p->collectives;
  assert_true(collective[0].kind == FSDP_REDUCE_SCATTER && collective[0].link == FSDP_LINK_NETWORK);
  assert_true(collective[0].ranks == 16 && collective[0].ranks_per_node == 8 && collective[0].groups == 2);
  assert_true(collective[0].seconds.points[0].size == 1e6 &&
              collective[0].seconds.points[0].value == 92.8e-6);
  assert_true(collective[1].kind == FSDP_ALL_REDUCE && collective[1].link == FSDP_LINK_NODE);
  assert_true(collective[1].groups == 1 && collective[1].seconds.count == 2 &&
              collective[1].seconds.points[1].value == 2e-6);
  fsdp_device_profile_destroy(p);
}

// ---- Printed and read again

static char *print(const fsdp_device_profile *profile) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *out = open_memstream(&text, &bytes);
  fsdp_profile_print(profile, "measured \\ \"here\"", out);
  fclose(out);
  return text;
}

// What the user named a profile by stands before what it says of itself.
TEST(shown_as_asked) {
  char shown[FSDP_PROFILE_SHOWN_BYTES];
  fsdp_device_profile profile = {.name = "AMD EPYC, 2 cores"};
  assert_string_equal(fsdp_device_profile_shown(&profile, shown), "AMD EPYC, 2 cores");
  strcpy(profile.asked, "here.yaml");
  assert_string_equal(fsdp_device_profile_shown(&profile, shown), "here.yaml (AMD EPYC, 2 cores)");
  strcpy(profile.name, "h200");
  strcpy(profile.asked, "h200");
  assert_string_equal(fsdp_device_profile_shown(&profile, shown), "h200");
}

static void check_printed(const fsdp_device_profile *profile) {
  char *text = print(profile);
  fsdp_device_profile *again = accept_text(text);
  char *second = print(again);
  assert_string_equal(text, second);
  // The fixed part bit by bit, but for what each was asked for by; lists are compared as text above, whose
  // numbers are exact.
  memcpy(again->asked, profile->asked, sizeof again->asked);
  assert_memory_equal(profile, again, offsetof(fsdp_device_profile, products));
  fsdp_device_profile_destroy(again);
  free(text);
  free(second);
}

TEST(printed_and_read) {
  fsdp_device_profile *p = accept_text(whole);
  check_printed(p);
  char *text = print(p);
  static const char *const lines[] = {
      "name: \"a \\\"b\\\"\"\nsource: \"measured \\\\ \\\"here\\\"\"\ndevice: cpu\nprocessors: 8\n",
      "\nmemory_gb: 16.5\nmemory_gbps: 500\nlaunch_us: 2.5\ncapability: 8.9\npeak_tflops: {fp32: 0.5, bf16: "
      "1.25}\n",
      "\nreserve: {context_gb: 0.75, communicator_gb: {value: 0.25, estimated: true}}\n",
      "\nnetwork: {gbps_per_node: 400, latency_us: 14, node_latency_us: 3.4}\n",
      "\n- {ranks: 2, dtype: bf16, form: weight, m: 1, n: 2, k: 3, tflops: 0.1}\n",
      "\n- {kernel: \"g2\", ranks: 2, dtype: fp32, form: weight, estimated: true, tflops: {8: 3}}\n",
      "\nuse: {grouped: \"g2\"}\n",
      "\n- {kernel: \"k1\", ranks: 0, dtype: bf16, head_dim: 64, direction: both, tflops: {512: 1, 1024: "
      "2}}\n",
      "\n- {ranks: 0, op: rmsnorm, gbps: {1000000: 100, 100000000: 200}}\n",
      "\n- {kind: reduce_scatter, link: network, ranks: 16, ranks_per_node: 8, groups: 2, us: {1000000: "
      "92.8}}\n"};
  for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
    if (!strstr(text, lines[i])) fail_msg("not printed: %s\n%s", lines[i], text);
  free(text);
  fsdp_device_profile_destroy(p);
  p = accept_text(HEAD); // no lists, no network
  check_printed(p);
  fsdp_device_profile_destroy(p);
}

// A mapping with a text `source`.
static void check_sourced(yaml_document_t *document, const yaml_node_t *node, const char *what) {
  assert_int_equal(node->type, YAML_MAPPING_NODE);
  for (const yaml_node_pair_t *pair = node->data.mapping.pairs.start; pair < node->data.mapping.pairs.top;
       pair++)
    if (!strcmp(fsdp_yaml_text(yaml_document_get_node(document, pair->key)), "source") &&
        *fsdp_yaml_text(yaml_document_get_node(document, pair->value)))
      return;
  fail_msg("%s, line %d: no source", what, fsdp_yaml_line(node));
}

static fsdp_status check_sources(void *context, yaml_document_t *document, fsdp_error *error) {
  static const char *const words[] = {"name", "device", "tiles", "use", "base"};
  static const char *const sections[] = {"peak_tflops", "copy_gbps", "contention", "network",
                                         "reserve",     "spread",    "sustained"};
  const yaml_node_t *root = yaml_document_get_root_node(document);
  for (const yaml_node_pair_t *pair = root->data.mapping.pairs.start; pair < root->data.mapping.pairs.top;
       pair++) {
    const char *key = fsdp_yaml_text(yaml_document_get_node(document, pair->key));
    const yaml_node_t *value = yaml_document_get_node(document, pair->value);
    bool is_word = false, is_section = false;
    for (int i = 0; i < 5; i++) is_word = is_word || !strcmp(words[i], key);
    for (int i = 0; i < 7; i++) is_section = is_section || !strcmp(sections[i], key);
    if (is_word) continue;
    if (value->type == YAML_SEQUENCE_NODE) {
      for (const yaml_node_item_t *item = value->data.sequence.items.start;
           item < value->data.sequence.items.top; item++)
        check_sourced(document, yaml_document_get_node(document, *item), context);
    } else if (is_section) {
      for (const yaml_node_pair_t *one = value->data.mapping.pairs.start; one < value->data.mapping.pairs.top;
           one++)
        check_sourced(document, yaml_document_get_node(document, one->value), context);
    } else {
      check_sourced(document, value, context);
    }
  }
  return FSDP_OK;
}

// A GPU is known, and what this program runs on it has rates of its own, in every dtype that it takes. They
// are marked as long as nobody has measured them, and no more than what the GPU can do.
static void check_kernels(const fsdp_device_profile *p) {
  static const fsdp_profile_direction directions[] = {FSDP_ATTENTION_FORWARD, FSDP_ATTENTION_BACKWARD};
  const fsdp_op_gpu gpu = fsdp_device_profile_gpu(p);
  assert_true(gpu.capability == (strstr(p->name, "a100") ? 80 : *p->name == 'h' ? 90 : 100));
  assert_int_equal(gpu.multiprocessors, strstr(p->name, "a100") ? 108 : *p->name == 'h' ? 132 : 148);
  for (int k = FSDP_ATTENTION_GENERAL; k <= FSDP_ATTENTION_WGMMA; k++) {
    for (int dtype = FSDP_F32; dtype <= FSDP_BF16; dtype++) {
      fsdp_op_gpu asked = gpu;
      fsdp_error error = {0};
      asked.attention = (fsdp_attention_kernel)k;
      const bool runs = fsdp_attention_check(&asked, (fsdp_dtype)dtype, 128, false, &error) == FSDP_OK;
      const bool priced =
          fsdp_device_profile_check(p, (fsdp_dtype)dtype, (fsdp_attention_kernel)k, &error) == FSDP_OK;
      if (runs != priced) fail_msg("%s: kernel %d, dtype %d", p->name, k, dtype);
      for (int d = 0; d < 2 && runs; d++) {
        const fsdp_profile_attention_call call = {.kernel = (fsdp_attention_kernel)k,
                                                  .dtype = (fsdp_dtype)dtype,
                                                  .head_dim = 128,
                                                  .seq = 4096,
                                                  .direction = directions[d],
                                                  .flops = 1e15};
        bool estimated = false;
        const double seconds = fsdp_profile_attention_s(p, 1, &call, &estimated);
        assert_int_equal(estimated, *p->name != 'h'); // an H200 has run them
        assert_true(1e15 / seconds < 0.6 * p->peak_flops[FSDP_BF16] && 1e15 / seconds > 2e12);
      }
    }
  }
}

// So have its products grouped by expert.
static void check_grouped(const fsdp_device_profile *p) {
  for (int dtype = FSDP_F32; dtype <= FSDP_BF16; dtype++) {
    const fsdp_op_product product = {FSDP_PRODUCT_FORWARD, 512, 1024, 1024, 16};
    const fsdp_profile_grouped_call call = {(fsdp_dtype)dtype, product, 16,
                                            dtype == FSDP_F32 ? FSDP_GROUPED_GENERAL : FSDP_GROUPED_MMA};
    bool estimated = false, known = false;
    const double rate = 2.0 * 512 * 1024 * 1024 * 16 / fsdp_profile_grouped_s(p, 1, &call, &estimated);
    for (int i = 0; i < p->grouped_count; i++)
      known |= !strcmp(p->grouped[i].kernel, fsdp_profile_grouped_kernel(p, &call));
    assert_true(known && rate > 2e12 && rate < 0.8 * p->peak_flops[FSDP_BF16]);
    assert_int_equal(estimated, *p->name != 'h');
  }
}

TEST(shipped_profiles) {
  for (const fsdp_shipped_profile *shipped = fsdp_shipped_profiles; shipped->name; shipped++) {
    const char *name = shipped->name;
    fsdp_device_profile *p = accept(name);
    fsdp_error error = {0};
    assert_string_equal(p->name, name);
    assert_int_equal(p->device, FSDP_OP_CUDA);
    check_kernels(p);
    check_grouped(p);
    check_printed(p);
    fsdp_device_profile_destroy(p);
    char copy[FSDP_PROFILE_NAME_BYTES];
    snprintf(copy, sizeof copy, "%s", name);
    const char *text = shipped->text;
    const fsdp_yaml_source source = {
        .path = name, .text = text, .text_bytes = strlen(text), .what = "a profile", .bad = FSDP_ERR_INPUT};
    IO_OK(fsdp_yaml_visit(&source, check_sources, copy, &error), &error);
  }
  assert_non_null(fsdp_shipped_profile_find("h100-sxm"));
  // As people write it: in capitals, and the name of a machine that there is once.
  const struct {
    const char *name, *means;
  } names[] = {
      {"H100-SXM", "h100-sxm"}, {"h100", "h100-sxm"}, {"H200", "h200"},   {"a100", NULL}, {"h10", NULL},
      {"h100-", NULL},          {"", NULL},           {"h100-sxm5", NULL}};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    const fsdp_shipped_profile *found = fsdp_shipped_profile_find(names[i].name);
    assert_int_equal(found != NULL, names[i].means != NULL);
    if (found) assert_string_equal(found->name, names[i].means);
  }
}

// ---- Bases

// Of 1e12 FLOPs; takes nothing to launch.
static void check_price(const fsdp_device_profile *p, fsdp_attention_kernel kernel, double wanted_s) {
  const fsdp_profile_attention_call call = {.kernel = kernel,
                                            .dtype = FSDP_BF16,
                                            .head_dim = 64,
                                            .seq = 8,
                                            .direction = FSDP_ATTENTION_BACKWARD,
                                            .flops = 1e12};
  bool estimated = true;
  assert_true(fabs(fsdp_profile_attention_s(p, 1, &call, &estimated) - wanted_s) < 1e-9 && !estimated);
}

TEST(base_and_use) {
  io_write_text("base.yaml", whole);
  fsdp_device_profile *p =
      accept_text("name: other\nbase: base.yaml\nuse: {attention: k2, grouped: g1}\nlaunch_us: 9\n"
                  "copy_gbps: {down: 1}\nops:\n- {op: any, gbps: {10: 1}}\n");
  assert_string_equal(p->name, "other");
  assert_true(p->launch_s == 9e-6 && p->memory_rate == 500e9); // a number replaces a number
  assert_true(p->up_rate == 20e9 && p->down_rate == 1e9);
  assert_true(p->communicator_bytes == 0.25e9 && p->communicator_estimated);
  assert_string_equal(p->grouped_kernel, "g1");
  assert_int_equal(p->op_count, 1); // a list the list
  assert_int_equal(p->product_count, 2);
  // k2 has no rows in fp32: there the first kernel counts.
  assert_int_equal(p->attention_count, 2);
  assert_string_equal(p->attention[0].kernel, "k2");
  assert_true(p->attention[0].dtype == FSDP_BF16 && p->attention[1].dtype == FSDP_F32);
  fsdp_device_profile_destroy(p);
  p = accept_text("base: base.yaml\nreserve: {communicator_gb: 0.5}\n"); // with its mark
  assert_true(p->context_bytes == 0.75e9 && p->communicator_bytes == 0.5e9 && !p->communicator_estimated);
  fsdp_device_profile_destroy(p);
  p = accept_text("base: h100-sxm\nlaunch_us: 9\n");
  assert_string_equal(p->name, "h100-sxm");
  assert_true(p->launch_s == 9e-6 && p->processors == 132);
  fsdp_device_profile_destroy(p);
  refuse("base: base.yaml\nuse: {grouped: g3}\n",
         "profile.yaml:2: no row of grouped has the kernel \"g3\"; the first has \"g1\"");
  refuse("base: base.yaml\nuse: {attention: k3}\n",
         "profile.yaml:2: no row of attention has the kernel \"k3\"");
  // A GPU's program has several kernels, of which the plan chooses one.
  p = accept_text(HEAD PRODUCTS
                  "attention:\n- {kernel: fsdp-mma, dtype: bf16, head_dim: 64, direction: both, tflops: {1: "
                  "2}}\n- {kernel: flash2, dtype: bf16, head_dim: 64, direction: both, tflops: {1: 4}}\n");
  check_price(p, FSDP_ATTENTION_MMA, 0.5);
  fsdp_error error = {0};
  assert_int_equal(fsdp_device_profile_check(p, FSDP_BF16, FSDP_ATTENTION_MMA, &error), FSDP_OK);
  assert_int_equal(fsdp_device_profile_check(p, FSDP_BF16, FSDP_ATTENTION_WGMMA, &error), FSDP_ERR_INPUT);
  assert_non_null(strstr(error.message, "no rates of attention by fsdp-wgmma in bf16"));
  assert_non_null(strstr(error.message, "`use: {attention: fsdp-mma}`"));
  fsdp_device_profile_destroy(p);
  p = accept_text(HEAD PRODUCTS
                  "attention:\n- {kernel: fsdp-mma, dtype: bf16, head_dim: 64, direction: both, tflops: {1: "
                  "2}}\n- {kernel: flash2, dtype: bf16, head_dim: 64, direction: both, tflops: {1: 4}}\n"
                  "use: {attention: flash2}\n");
  check_price(p, FSDP_ATTENTION_MMA, 0.25);
  check_price(p, FSDP_ATTENTION_WGMMA, 0.25);
  check_printed(p);
  fsdp_device_profile_destroy(p);
  refuse("base: nowhere.yaml\n", "profile.yaml:1: unknown base \"");
  refuse("base: [1]\n", "profile.yaml:1: the base is neither");
  refuse("base: profile.yaml\n", "profile.yaml:1: base \"");
  io_write_text("base.yaml", "processors: 8\nbase: ./profile.yaml\n");
  refuse("base: base.yaml\n", "base.yaml:2: base \"");
}

// ---- The backend of plans

// Without a profile a GPU's plan has the figures of the shipped one that the planner names.
TEST(default_backend) {
  fsdp_device_profile *p;
  fsdp_error error = {0};
  assert_string_equal(fsdp_plan_default_profile(), "h100-sxm");
  assert_int_equal(fsdp_profile_read(fsdp_plan_default_profile(), &p, &error), FSDP_OK);
  const fsdp_plan_backend own = fsdp_pricing_backend(p), *none = fsdp_plan_backend_cuda();
  assert_true(none->reserve_bytes == (int64_t)p->context_bytes && none->reserve_bytes == own.reserve_bytes);
  assert_true(none->comm_reserve_bytes == (int64_t)p->communicator_bytes &&
              none->comm_reserve_bytes == own.comm_reserve_bytes);
  assert_true(none->reserve_estimated == p->context_estimated &&
              own.reserve_estimated == p->context_estimated);
  assert_true(none->comm_reserve_estimated == p->communicator_estimated &&
              own.comm_reserve_estimated == p->communicator_estimated);
  assert_true(none->flops_per_byte == p->peak_flops[FSDP_BF16] / p->memory_rate &&
              none->flops_per_byte == own.flops_per_byte);
  assert_true(none->link_ratio == p->memory_rate / p->up_rate && none->link_ratio == own.link_ratio);
  assert_true(none->gemm_workspace_bytes == own.gemm_workspace_bytes && !*own.assumed && !*none->assumed);
  const fsdp_op_gpu unknown = {0}, gpu = fsdp_plan_gpu(&unknown), its = fsdp_device_profile_gpu(p);
  assert_true(gpu.capability == its.capability && gpu.multiprocessors == its.multiprocessors);
  fsdp_device_profile_destroy(p);
}

#define OLD_GPU "name: a\ndevice: cuda\nprocessors: 4\nmemory_gb: 1\nmemory_gbps: 500\n"
#define GPU     OLD_GPU "capability: 8.0\n"

// A profile's own figures count; what it does not say is the default's, and named.
TEST(own_backend) {
  const fsdp_plan_backend *none = fsdp_plan_backend_cuda();
  fsdp_device_profile *p =
      accept_text(GPU "reserve: {context_gb: 0.75, communicator_gb: {value: 0.25, estimated: "
                      "true}}\npeak_tflops: {bf16: 100}\ncopy_gbps: {up: 20}\n");
  fsdp_plan_backend own = fsdp_pricing_backend(p);
  assert_true(own.reserve_bytes == 750000000 && own.comm_reserve_bytes == 250000000);
  assert_true(!own.reserve_estimated && own.comm_reserve_estimated);
  assert_true(own.flops_per_byte == 200 && own.link_ratio == 25 && !*own.assumed);
  fsdp_device_profile_destroy(p);
  p = accept_text(GPU "reserve: {communicator_gb: 0.25}\nproducts:\n"
                      "- {dtype: bf16, form: any, m: 8, n: 8, k: 8, tflops: 50}\n"
                      "- {dtype: bf16, form: any, m: 9, n: 8, k: 8, tflops: 40}\n");
  own = fsdp_pricing_backend(p); // no peak: the fastest product's rate
  assert_true(own.flops_per_byte == 100 && own.link_ratio == none->link_ratio);
  assert_true(own.reserve_bytes == none->reserve_bytes && own.comm_reserve_bytes == 250000000);
  assert_true(own.reserve_estimated == none->reserve_estimated && !own.comm_reserve_estimated);
  assert_string_equal(own.assumed, "context_gb, copy_gbps");
  fsdp_device_profile_destroy(p);
  p = accept_text(OLD_GPU);
  own = fsdp_pricing_backend(p);
  assert_string_equal(own.assumed, "capability, context_gb, communicator_gb, peak_tflops, copy_gbps");
  assert_true(own.flops_per_byte == none->flops_per_byte);
  fsdp_device_profile_destroy(p);
  p = accept_text(whole); // a CPU has no reserve
  own = fsdp_pricing_backend(p);
  assert_true(own.device == FSDP_OP_CPU && own.reserve_bytes == 0 && own.comm_reserve_bytes == 0);
  fsdp_device_profile_destroy(p);
}

// ---- What is refused

TEST(refused_at_the_top) {
  fsdp_device_profile *profile;
  fsdp_error error = {0};
  assert_int_equal(fsdp_profile_read("a100", &profile, &error), FSDP_ERR_INPUT);
  assert_non_null(strstr(error.message, "unknown profile \"a100\": shipped are "));
  assert_non_null(strstr(error.message, "h100-sxm"));
  refuse("", "no device");
  refuse("device: cuda\n", "no name");
  refuse("- 1\n", "profile.yaml:1: not a mapping");
  refuse("name: [a]\n", "profile.yaml:1: the name is not a word");
  refuse(HEAD "procesors: 4\n", "profile.yaml:6: unknown key \"procesors\": did you mean processors?");
  refuse(HEAD "tiles: yes\n", "profile.yaml:6: unknown tiles \"yes\": use one of false, true");
  refuse(HEAD "processors: 4\n", "profile.yaml:6: a second processors, after that in line 3");
  refuse(HEAD "capability: 8.65\n", "capability 8.65 is no compute capability, as in 9.0");
  refuse(HEAD "launch_us: 0\n", "profile.yaml:6: launch_us is 0: use a number above 0");
  refuse(HEAD "launch_us: -2\n", "profile.yaml:6: launch_us is -2");
  refuse(HEAD "launch_us: fast\n", "profile.yaml:6: launch_us is \"fast\", which is not a number");
  refuse(HEAD "launch_us: {source: x}\n", "profile.yaml:6: launch_us is not a number: write 2.5, or {value");
  refuse(HEAD "launch_us: {value: 2, value: 3}\n", "profile.yaml:6: a second value; remove one");
  refuse(HEAD "launch_us: {value: 2, source: x, source: y}\n", "a second source");
  refuse(HEAD "use: {attention: a, attention: b}\n", "profile.yaml:6: a second attention");
  refuse(HEAD "launch_us: 1e300\n",
         "profile.yaml:6: launch_us is 1e300: in its unit that is beyond any machine");
  refuse(HEAD "launch_us: 1e-10\n", "profile.yaml:6: launch_us is 1e-10: in its unit that is beyond");
  refuse(HEAD "launch_us: {value: 2, sauce: x}\n", "unknown key \"sauce\": did you mean source?");
  refuse(HEAD "launch_us: {value: 2, estimated: true}\n",
         "unknown key \"estimated\": use one of value, source");
  refuse(HEAD "reserve: {context_gb: {value: 1, estimated: yes}}\n",
         "profile.yaml:6: unknown mark of an estimate \"yes\": use one of false, true");
  refuse(HEAD "reserve: {context_gb: {value: 1, estimated: true, estimated: true}}\n", "a second estimated");
  refuse(HEAD "reserve: {context_gb: {estimated: true}}\n", "context_gb is not a number");
  refuse(HEAD "reserve: {context_gb: 0}\n", "context_gb is 0: use a number above 0, or leave it out");
  refuse(HEAD "contention: {compute: 0.9}\n", "compute is 0.9: use a number from 1");
  refuse(HEAD "peak_tflops: {int32: 1}\n",
         "profile.yaml:6: unknown key \"int32\": use one of fp32, bf16, fp16");
  refuse(HEAD "copy_gbps: {up: 1, up: 2}\n", "profile.yaml:6: a second up");
  refuse(HEAD "network: 5\n", "profile.yaml:6: network is not a mapping");
  refuse("device: gpu\n", "profile.yaml:1: unknown device \"gpu\"");
  refuse("name: a\ndevice: cpu\nprocessors: 2.5\n",
         "profile.yaml:3: processors is \"2.5\": use a whole number from 1");
  refuse("name: a\ndevice: cpu\nprocessors: 2\nmemory_gb: 1\n", "no memory_gbps");
}

#define PRODUCT "products:\n- {dtype: bf16, form: any, m: 1, n: 1, k: 1"

TEST(refused_rows) {
  refuse(HEAD "products: {m: 1}\n", "profile.yaml:6: products is not a list");
  refuse(HEAD "products:\n- 5\n", "profile.yaml:7: a row is not a mapping");
  refuse(HEAD PRODUCT "}\n", "profile.yaml:7: a row has no tflops");
  refuse(HEAD PRODUCT ", tflops: 0}\n", "profile.yaml:7: tflops is 0");
  refuse(HEAD PRODUCT ", k: 2, tflops: 1}\n", "profile.yaml:7: a second k");
  refuse(HEAD PRODUCT ", tflop: 1}\n", "unknown key \"tflop\": did you mean tflops?");
  refuse(HEAD "products:\n- {dtype: f32}\n", "unknown dtype \"f32\": did you mean fp32?");
  refuse(HEAD "products:\n- {dtype: int8}\n", "unknown dtype \"int8\": use one of fp32, bf16, fp16");
  refuse(HEAD "products:\n- {form: transposed}\n", "unknown form \"transposed\": use one of forward");
  refuse(HEAD "products:\n- {m: 0}\n", "m is \"0\": use a whole number from 1");
  refuse(HEAD "products:\n- {ranks: -1}\n", "ranks is \"-1\": use a whole number from 0");
  refuse(HEAD "attention:\n- {kernel: 123456789012345678901234}\n", "a kernel is not a word of at most 23");
  refuse(HEAD "attention:\n- {direction: back}\n", "unknown direction \"back\": did you mean backward?");
  refuse(HEAD "ops:\n- {op: rmsnrm}\n", "unknown op \"rmsnrm\": did you mean rmsnorm?");
  refuse(HEAD "ops:\n- {op: any, gbps: {}}\n", "gbps has no points");
  refuse(HEAD "ops:\n- {op: any, gbps: {1e6: 1, 1e6: 2}}\n",
         "sizes of gbps do not increase at 1e6: sort them");
  refuse(HEAD "ops:\n- {op: any, gbps: {0: 1}}\n", "a size is 0");
  refuse(HEAD "ops:\n- {op: any, gbps: {1: 0}}\n", "gbps is 0");
  refuse(HEAD "collectives:\n- {kind: broadcast}\n", "unknown kind \"broadcast\": use one of all_gather");
  refuse(HEAD "collectives:\n- {link: nod}\n", "unknown link \"nod\": did you mean node?");
  refuse(HEAD "collectives:\n- {ranks: 1}\n", "ranks is \"1\": use a whole number from 2");
  refuse(HEAD PRODUCT ", tflops: 1, source: [a]}\n", "profile.yaml:7: a source is not a text");
}

int main(void) {
  return run_all_tests(io_set_up, io_tear_down);
}
