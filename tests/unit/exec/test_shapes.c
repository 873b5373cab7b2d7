// Odd shapes, run for real: random models and settings against one plain rank on the same global batch,
// poisoned, with measured memory as planned. Nothing here divides anything: one or three key/value heads, a
// vocabulary of 257, sequence 1, three ranks, a head dimension that is not hidden / heads, tied and untied.
#include "runtime/base/random.h"
#include "tests/support/cases.h"
#include "tests/support/draws.h"
#include "tests/support/harness.h"
#include "tests/support/models.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <string.h>

enum { STEPS = 2, GLOBAL_BATCH = 24 };

typedef struct draws {
  uint64_t run, index;
} draws;

// A number in [0, count).
static int draw(draws *d, int count) {
  uint32_t words[4];
  fsdp_random_words(d->run, 99, d->index++, words);
  return (int)(words[0] % (uint32_t)count);
}

static fsdp_model_config draw_model(draws *d) {
  static const int vocabularies[] = {3, 17, 101, 257, 1000};
  int kv_heads = 1 + draw(d, 3), group = 1 + draw(d, 4), head_dim = 2 * (1 + draw(d, 9));
  fsdp_model_config model = {.family = family_of_preset("tiny"),
                             .vocab_size = vocabularies[draw(d, 5)],
                             .hidden_size = 1 + draw(d, 40),
                             .intermediate_size = 1 + draw(d, 70),
                             .num_layers = 1 + draw(d, 3),
                             .num_heads = kv_heads * group,
                             .num_kv_heads = kv_heads,
                             .head_dim = head_dim,
                             .max_position_embeddings = 64,
                             .norm_eps = 1e-5,
                             .rope_theta = 10000,
                             .rope_factor = 2,
                             .rope_low_freq_factor = 1,
                             .rope_high_freq_factor = 4,
                             .rope_original_max_position = 16,
                             .initializer_range = 0.08,
                             .tie_word_embeddings = draw(d, 2)};
  model.rope_scaling = (fsdp_rope_scaling)draw(d, 3);
  return model;
}

static void draw_place(draws *d, fsdp_plan_config *plan) {
  static const int ranks[] = {1, 2, 3, 4, 6, 8};
  static const int halves[][2] = {{2, 2}, {2, 3}, {3, 2}, {2, 4}, {4, 2}, {1, 3}, {3, 1}};
  int n = ranks[draw(d, 6)];
  const int *grid = halves[draw(d, 7)];
  plan->strategy = (fsdp_strategy)draw(d, 5);
  plan->mesh = plan->strategy == FSDP_HYBRID || (plan->strategy == FSDP_ZERO1 && n > 4)
                   ? fsdp_mesh_of(grid[0], grid[1])
               : plan->strategy == FSDP_NO ? fsdp_mesh_of(n, 1)
                                           : fsdp_mesh_of(1, n);
}

static void draw_settings(draws *d, fsdp_plan_config *plan) {
  static const char *const classes[] = {"LlamaMLP", "Linear", "LlamaRMSNorm,LlamaSdpaAttention",
                                        "LlamaModel"};
  static const int accumulations[] = {1, 1, 2, 4};
  plan->wrap = (fsdp_wrap_policy){(fsdp_wrap_kind)draw(d, 4), 1 + draw(d, 4000), classes[draw(d, 4)]};
  plan->cpu_offload = draw(d, 2);
  if (draw(d, 2)) plan->saving = fsdp_saving_of_blocks();
  plan->prefetch = draw(d, 4);
  plan->micro_batches = accumulations[draw(d, 4)];
  plan->accumulate = (fsdp_accumulate)draw(d, 2);
  plan->grad_clip = draw(d, 2) ? 0.5f : 0;
  plan->poison = true;
}

static double mean_magnitude(const harness_tensor *gradient) {
  double sum = 0;
  for (int64_t i = 0; i < gradient->numel; i++) sum += fabs((double)gradient->values[i]);
  return sum / (double)gradient->numel;
}

// Whether a gradient is rounding noise: at sequence 1 the softmax is of one number, so that of q and k is
// zero but for it, and AdamW would make full steps of the noise's signs.
static bool is_noise(const harness_tensor *gradient) {
  return mean_magnitude(gradient) <= 1e-6;
}

// Sums in fp32 of terms of the order of 1e-2 are off by some 1e-9, however far they cancel: with one channel
// the norms leave only signs, and gradients before them are hardly above that.
static double tolerance_of(const harness_tensor *gradient) {
  return 1e-4 + 2e-9 / mean_magnitude(gradient);
}

static void compare(int run, const harness_result *mine, const harness_result *reference) {
  for (int p = 0; p < mine->param_count; p++) {
    if (is_noise(&reference->gradients[p])) {
      assert_true(is_noise(&mine->gradients[p]));
      continue;
    }
    double gradient = harness_difference(&mine->gradients[p], &reference->gradients[p]);
    double value = harness_difference(&mine->parameters[p], &reference->parameters[p]);
    if (!(gradient <= tolerance_of(&reference->gradients[p]) && value <= 1e-4))
      fail_msg("run %d: %s: gradient differs by %.2g, value by %.2g", run, mine->gradients[p].name, gradient,
               value);
  }
}

static void check_run(int run) {
  draws d = {.run = (uint64_t)run};
  harness_config config = {.plan = harness_small_plan(1), .steps = STEPS, .lr = 1e-4f, .seed = (uint64_t)run};
  config.plan.model = draw_model(&d);
  config.plan.seq = draw(&d, 4) ? 1 + draw(&d, 20) : 1;
  harness_config plain = config;
  draw_place(&d, &config.plan);
  draw_settings(&d, &config.plan);
  config.kernel_threads = 1 + draw(&d, 2);
  int64_t parts = fsdp_mesh_ranks(&config.plan.mesh) * config.plan.micro_batches;
  int64_t batch = (GLOBAL_BATCH + parts - 1) / parts;
  config.plan.batch = batch;
  plain.plan.batch = batch * parts;
  plain.plan.wrap = (fsdp_wrap_policy){.kind = FSDP_WRAP_NONE};
  plain.plan.grad_clip = config.plan.grad_clip;
  harness_result *reference = harness_train(&plain), *result = harness_train(&config);
  if (reference->failure[0] || result->failure[0])
    fail_msg("run %d: %s%s", run, reference->failure, result->failure);
  for (int s = 0; s < STEPS; s++) {
    double loss = (double)reference->loss[s], norm = (double)reference->grad_norm[s];
    if (!(fabs((double)result->loss[s] - loss) <= 1e-5 * loss))
      fail_msg("run %d: loss %.8g, expected %.8g", run, (double)result->loss[s], loss);
    if (!(fabs((double)result->grad_norm[s] - norm) <= 1e-4 * norm))
      fail_msg("run %d: norm %.8g, expected %.8g", run, (double)result->grad_norm[s], norm);
  }
  compare(run, result, reference);
  char message[256];
  if (!harness_memory_as_planned(result, message, sizeof message)) fail_msg("run %d: %s", run, message);
  harness_free(reference);
  harness_free(result);
}

TEST(test_random_shapes) {
  int runs = test_all() ? 2000 : test_draws(80, 10);
  for (int run = cases_begin(runs); cases_run(__func__, run); run++) check_run(run);
}
