// What a report says of saved activations: bytes by fate from closed formulas, layers that are alike folded,
// names that the options take, and the picture's panel of the host.
#include "launcher/report/activations.h"
#include "launcher/report/memory_profile.h"
#include "tests/support/models.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// n rows of C channels, H heads of D, G of keys and values, F the intermediate size, V the vocabulary.
enum { B = 2, T = 24, N = B * T, C = 128, H = 4, G = 2, D = 32, F = 384, V = 256, L = 6 };
enum {
  ENTERS = N * C,
  NORM = N * (C + 1),
  QKV = N * (H + 2 * G) * D,
  ATTENTION = N * H * D + N * H,
  SUM = N * C,
  GATE_UP = N * 2 * F,
  SWIGLU = N * F,
  SAVED = ENTERS + 2 * NORM + QKV + ATTENTION + SUM + GATE_UP + SWIGLU
};

static fsdp_plan *plan_of(const char *recomputed, const char *offloaded, const fsdp_plan_backend *backend) {
  fsdp_plan_config config = {.model = {.family = family_of_preset("tiny"),
                                       .vocab_size = V,
                                       .hidden_size = C,
                                       .intermediate_size = F,
                                       .num_layers = L,
                                       .num_heads = H,
                                       .num_kv_heads = G,
                                       .head_dim = D,
                                       .norm_eps = 1e-5,
                                       .rope_theta = 1e4},
                             .batch = B,
                             .seq = T,
                             .micro_batches = 3,
                             .mesh = fsdp_mesh_of(1, 2),
                             .wrap = {.kind = FSDP_WRAP_BLOCK},
                             .prefetch = 1,
                             .param_dtype = FSDP_F32,
                             .backend = backend};
  return plan_of_saving(config, recomputed, offloaded);
}

static char *page_of(const fsdp_plan *plan) {
  char *text = NULL;
  size_t bytes;
  FILE *out = open_memstream(&text, &bytes);
  fsdp_activations_print(plan, out);
  fclose(out);
  return text;
}

// FLOPs of a micro-batch: three gemms a parameter in forward and backward, of the head too; attention's
// backward makes the scores again.
static double linear_flops(void) {
  return 2.0 * N * C * ((H + 2 * G) * D + H * D + 3 * F);
}
static double attention_flops(void) {
  return 2 * 2.0 * B * H * D * (T * (T + 1) / 2.0);
}
static double model_flops(void) {
  return L * (3 * linear_flops() + 3.5 * attention_flops()) + 3 * 2.0 * N * C * V;
}

TEST(totals) {
  fsdp_plan *plan = plan_of("none", "none", fsdp_plan_backend_cpu());
  fsdp_activations a = fsdp_activations_of(plan);
  assert_int_equal(a.kept_bytes, 4 * L * SAVED);
  assert_int_equal(a.recomputed_bytes + a.offloaded_bytes, 0);
  assert_true(fabs(a.model_flops - model_flops()) < 1e-9 * model_flops() && a.repeated_flops == 0);
  char line[256];
  assert_false(fsdp_activations_line(plan, line, sizeof line));
  fsdp_plan_destroy(plan);
  plan = plan_of("block:4,swiglu", "attention,block_inputs@3", fsdp_plan_backend_cpu());
  a = fsdp_activations_of(plan);
  int64_t offloaded = 3 * ENTERS + 5 * ATTENTION, recomputed = 4 * (SAVED - ENTERS - ATTENTION) + 2 * SWIGLU;
  assert_int_equal(a.offloaded_bytes, 4 * offloaded); // of the last layer, nothing
  assert_int_equal(a.recomputed_bytes, 4 * recomputed);
  assert_int_equal(a.kept_bytes, 4 * (L * SAVED - offloaded - recomputed));
  // Attention was saved, and nobody reads what down_proj makes.
  double repeated = 4 * (linear_flops() - 2.0 * N * C * F);
  assert_true(fabs(a.repeated_flops - repeated) < 1e-9 * repeated);
  assert_true(fabs(a.model_flops - model_flops()) < 1e-9 * model_flops());
  assert_true(fsdp_activations_line(plan, line, sizeof line));
  char share[64];
  snprintf(share, sizeof share, "(%.2f%% of the FLOPs again)", 100 * repeated / model_flops());
  if (!strstr(line, share)) fail_msg("no '%s' in: %s", share, line);
  fsdp_plan_destroy(plan);
}

// Each layer's bytes and names in the JSON; the names are items that give the same fates.
TEST(json) {
  fsdp_plan *plan = plan_of("swiglu,rmsnorm:input_layernorm@4", "residual@2", fsdp_plan_backend_cuda());
  json_t *root = fsdp_activations_json(plan), *layer, *layers = json_object_get(root, "layers");
  static const char *const keys[] = {"kept_bytes", "recomputed_bytes", "offloaded_bytes"};
  json_int_t sums[3] = {0};
  size_t l;
  assert_int_equal(json_array_size(layers), L);
  json_array_foreach(layers, l, layer) {
    int64_t offloaded = l < 2 ? ENTERS + SUM : 0, recomputed = SWIGLU + (l < 4 ? NORM : 0);
    assert_int_equal(json_integer_value(json_object_get(layer, "offloaded_bytes")), 4 * offloaded);
    assert_int_equal(json_integer_value(json_object_get(layer, "recomputed_bytes")), 4 * recomputed);
    assert_int_equal(json_integer_value(json_object_get(layer, "kept_bytes")),
                     4 * (SAVED - offloaded - recomputed));
    for (int i = 0; i < 3; i++) sums[i] += json_integer_value(json_object_get(layer, keys[i]));
    const json_t *names = json_object_get(layer, "recomputed");
    assert_int_equal(json_array_size(names), l < 4 ? 2 : 1);
    assert_string_equal(json_string_value(json_array_get(names, json_array_size(names) - 1)), "swiglu");
    if (l < 4) assert_string_equal(json_string_value(json_array_get(names, 0)), "rmsnorm:input_layernorm");
    names = json_object_get(layer, "offloaded");
    assert_int_equal(json_array_size(names), l < 2 ? 2 : 0);
    if (l < 2) {
      assert_string_equal(json_string_value(json_array_get(names, 0)), "block_inputs");
      assert_string_equal(json_string_value(json_array_get(names, 1)), "residual");
    }
  }
  for (int i = 0; i < 3; i++) assert_int_equal(json_integer_value(json_object_get(root, keys[i])), sums[i]);
  assert_true(json_real_value(json_object_get(root, "recomputed_share")) == 0); // no gemm is repeated
  json_decref(root);
  fsdp_plan_destroy(plan);
}

static void check_page(const char *recomputed, const char *offloaded, const fsdp_plan_backend *backend,
                       const char *const *wanted, const char *absent) {
  fsdp_plan *plan = plan_of(recomputed, offloaded, backend);
  char *page = page_of(plan);
  const char *at = page;
  for (int i = 0; wanted[i]; i++) {
    at = strstr(at, wanted[i]);
    if (!at) fail_msg("no '%s', or not there, in:\n%s", wanted[i], page);
  }
  if (absent && strstr(page, absent)) fail_msg("'%s' in:\n%s", absent, page);
  free(page);
  fsdp_plan_destroy(plan);
}

TEST(pages) {
  const fsdp_plan_backend *cpu = fsdp_plan_backend_cpu(), *gpu = fsdp_plan_backend_cuda();
  check_page("none", "none", cpu,
             (const char *const[]){"layers 0-5, each", "kept", "block_inputs, rmsnorm, linear, attention,",
                                   "residual, swiglu", "together", "recomputed 0 B, offloaded 0 B", NULL},
             "repeated");
  check_page("block:2,swiglu", "none", cpu,
             (const char *const[]){"layers 0-1, each", "recomputed", "linear", "layers 2-5, each", "kept",
                                   "recomputed", "swiglu\n", "repeated", "of the model's FLOPs", NULL},
             "layers 0-5");
  check_page("linear:q_proj", "none", cpu,
             (const char *const[]){"kept", "linear:gate_proj", "recomputed", "linear:q_proj\n", NULL}, NULL);
  // To remake a norm moves fewer bytes than cross a GPU's slow link; a CPU's link is its memory.
  check_page("none", "rmsnorm@2", gpu,
             (const char *const[]){"layers 0-1, each", "offloaded", "rmsnorm\n", "cheaper recomputed",
                                   "rmsnorm:input_layernorm 0.04, rmsnorm:post_attention_layernorm 0.04\n",
                                   "layers 2-5, each", NULL},
             NULL);
  check_page("none", "rmsnorm@2", cpu, (const char *const[]){"offloaded", NULL}, "cheaper");
  check_page("none", "block_inputs", gpu, (const char *const[]){"block_inputs", NULL}, "cheaper");
  // One layer that differs stands alone.
  check_page("none", "attention", gpu,
             (const char *const[]){"layers 0-4, each", "offloaded", "attention\n", "layer 5 ", NULL}, NULL);
}

static int count_of(const char *text, const char *part) {
  int count = 0;
  for (const char *at = strstr(text, part); at; at = strstr(at + 1, part)) count++;
  return count;
}

TEST(picture) {
  static const char *const offloaded[] = {"none", "attention"};
  for (int i = 0; i < 2; i++) {
    fsdp_plan *plan = plan_of("none", offloaded[i], fsdp_plan_backend_cpu());
    fsdp_memory_profile profile = fsdp_memory_profile_create(plan, "tiny");
    char *svg = NULL;
    size_t bytes;
    FILE *out = open_memstream(&svg, &bytes);
    fsdp_memory_svg_print(&profile, out);
    fclose(out);
    assert_int_equal(count_of(svg, "bytes live on the device"), 1);
    assert_int_equal(count_of(svg, "bytes live on the host"), i);
    // At the host's peak, what is offloaded of every layer but the last is there, as activations.
    const fsdp_memory_space_report *host = &plan->memory.space[FSDP_SPACE_HOST];
    assert_int_equal(host->peak_by_category[FSDP_CATEGORY_ACTIVATIONS], i * 4 * (L - 1) * ATTENTION);
    free(svg);
    fsdp_memory_profile_destroy(&profile);
    fsdp_plan_destroy(plan);
  }
}
