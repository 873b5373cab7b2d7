// Strategies agree: one global batch gives the same losses, gradients and parameters however it is sharded,
// and every run measures the memory that was planned.
//
// The settings and their values:
//   mesh and strategy  full, grad_op, zero1, no on 1, 2, 3, 4, 8 ranks; hybrid as 2x2, 2x4, 4x2, zero1 as 2x4
//   wrap               size, block, none, module:LlamaMLP,LlamaSdpaAttention
//   offload            off, on
//   recompute          off, on
//   prefetch           0, 1, 2
//   accumulation       1; 4 reduced each; 4 local
// By default a set of runs in which every pair of values of two settings occurs; with --all (or
// FSDP_TEST_ALL=1) all combinations. The global batch is 96 sequences, which any of these numbers of ranks
// and micro-batches divides. The reference is one rank, plain. Sanitizers' builds take some of the runs.
//
// Each run is made with poison off; every pairwise run once more with poison on, equal to the bit.
#include "tests/support/draws.h"
#include "tests/support/harness.h"

#include "runtime/base/check.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 3, GLOBAL_BATCH = 96, SETTINGS = 6 };

typedef struct place {
  fsdp_strategy strategy;
  int data, fsdp;
} place;

static const place places[] = {
    {FSDP_FULL, 1, 1},    {FSDP_FULL, 1, 2},    {FSDP_FULL, 1, 3},    {FSDP_FULL, 1, 4},
    {FSDP_FULL, 1, 8},    {FSDP_GRAD_OP, 1, 1}, {FSDP_GRAD_OP, 1, 2}, {FSDP_GRAD_OP, 1, 3},
    {FSDP_GRAD_OP, 1, 4}, {FSDP_GRAD_OP, 1, 8}, {FSDP_NO, 1, 1},      {FSDP_NO, 2, 1},
    {FSDP_NO, 3, 1},      {FSDP_NO, 4, 1},      {FSDP_NO, 8, 1},      {FSDP_HYBRID, 2, 2},
    {FSDP_HYBRID, 2, 4},  {FSDP_HYBRID, 4, 2},  {FSDP_ZERO1, 1, 1},   {FSDP_ZERO1, 1, 2},
    {FSDP_ZERO1, 1, 3},   {FSDP_ZERO1, 1, 4},   {FSDP_ZERO1, 1, 8},   {FSDP_ZERO1, 2, 4},
};
enum { PLACES = sizeof places / sizeof *places };
static const fsdp_wrap_policy wraps[] = {{FSDP_WRAP_SIZE, 6000, NULL},
                                         {FSDP_WRAP_BLOCK, 0, NULL},
                                         {FSDP_WRAP_NONE, 0, NULL},
                                         {FSDP_WRAP_MODULE, 0, "LlamaMLP,LlamaSdpaAttention"}};
static const struct {
  int count;
  fsdp_accumulate kind;
} accumulations[] = {{1, FSDP_ACCUMULATE_REDUCE}, {4, FSDP_ACCUMULATE_REDUCE}, {4, FSDP_ACCUMULATE_LOCAL}};

// Values a setting has: place, wrap, offload, recompute, prefetch, accumulation.
static const int value_count[SETTINGS] = {PLACES, 4, 2, 2, 3, 3};

typedef struct choice {
  int value[SETTINGS];
} choice;

static harness_config config_of(const choice *c) {
  const place *p = &places[c->value[0]];
  harness_config config = {.plan = harness_small_plan(1), .steps = STEPS, .lr = 1e-4f, .seed = 7};
  fsdp_plan_config *plan = &config.plan;
  plan->strategy = p->strategy;
  plan->mesh = fsdp_mesh_of(p->data, p->fsdp);
  plan->wrap = wraps[c->value[1]];
  plan->cpu_offload = c->value[2];
  if (c->value[3]) plan->saving = fsdp_saving_of_blocks();
  plan->prefetch = c->value[4];
  plan->micro_batches = accumulations[c->value[5]].count;
  plan->accumulate = accumulations[c->value[5]].kind;
  plan->batch = GLOBAL_BATCH / (p->data * p->fsdp * plan->micro_batches);
  plan->seq = 5;
  return config;
}

static void describe(const choice *c, char *out, size_t bytes) {
  const place *p = &places[c->value[0]];
  snprintf(out, bytes, "%s data=%d,fsdp=%d wrap %d offload %d recompute %d prefetch %d accumulation %d %s",
           fsdp_strategy_name(p->strategy), p->data, p->fsdp, c->value[1], c->value[2], c->value[3],
           c->value[4], accumulations[c->value[5]].count,
           accumulations[c->value[5]].kind == FSDP_ACCUMULATE_LOCAL ? "local" : "reduce");
}

static void compare_tensors(const char *run, const char *what, const harness_tensor *mine,
                            const harness_tensor *reference, int count, double tolerance) {
  for (int p = 0; p < count; p++) {
    double difference = harness_difference(&mine[p], &reference[p]);
    if (!(difference <= tolerance))
      fail_msg("%s: %s of %s differs by %.2g", run, what, mine[p].name, difference);
  }
}

static void check_memory(const char *run, const harness_result *result) {
  char message[256];
  if (!harness_memory_as_planned(result, message, sizeof message)) fail_msg("%s: %s", run, message);
  const fsdp_memory_space_report *device = &result->planned.space[FSDP_SPACE_DEVICE];
  if ((double)device->arena_bytes > 1.02 * (double)device->peak_bytes &&
      device->arena_bytes > device->peak_bytes + 65536)
    fail_msg("%s: arena of %lld bytes for a peak of %lld", run, (long long)device->arena_bytes,
             (long long)device->peak_bytes);
}

// fp32 sums in a different order.
static const harness_tolerance of_sums = {.loss = 1e-5, .gradient = 1e-5, .value = 1e-4};

static void check_run(const choice *c, const harness_result *reference, bool poisoned) {
  char run[256];
  describe(c, run, sizeof run);
  harness_config config = config_of(c);
  harness_result *result = harness_train(&config);
  const char *difference = harness_compare(result, reference, &of_sums);
  if (difference) fail_msg("%s: %s", run, difference);
  check_memory(run, result);
  if (poisoned) {
    config.plan.poison = true;
    harness_result *same = harness_train(&config);
    difference = harness_compare(same, result, &(harness_tolerance){0});
    if (difference) fail_msg("%s, poisoned: %s", run, difference);
    check_memory(run, same);
    harness_free(same);
  }
  harness_free(result);
}

// ---- which runs

// Marks the pairs of values that a run covers; returns how many were new.
static int cover(const choice *c, bool *covered) {
  int fresh = 0, pair = 0;
  for (int a = 0; a < SETTINGS; a++) {
    for (int b = a + 1; b < SETTINGS; b++, pair++) {
      bool *cell = &covered[(pair * PLACES + c->value[a]) * PLACES + c->value[b]];
      fresh += !*cell;
      *cell = true;
    }
  }
  return fresh;
}

static int uncovered(const choice *c, const bool *covered) {
  int fresh = 0, pair = 0;
  for (int a = 0; a < SETTINGS; a++)
    for (int b = a + 1; b < SETTINGS; b++, pair++)
      fresh += !covered[(pair * PLACES + c->value[a]) * PLACES + c->value[b]];
  return fresh;
}

static choice nth_choice(int n) {
  choice c;
  for (int s = 0; s < SETTINGS; s++) {
    c.value[s] = n % value_count[s];
    n /= value_count[s];
  }
  return c;
}

static int choice_count(void) {
  int count = 1;
  for (int s = 0; s < SETTINGS; s++) count *= value_count[s];
  return count;
}

// Greedy: always the run that covers most pairs that none has covered yet. Returns the number of runs.
static int pairwise(choice *out) {
  bool *covered = fsdp_alloc_zeroed((size_t)15 * PLACES * PLACES, sizeof *covered);
  int count = 0;
  for (;;) {
    int best = -1, best_fresh = 0;
    for (int n = 0; n < choice_count(); n++) {
      choice c = nth_choice(n);
      int fresh = uncovered(&c, covered);
      if (fresh > best_fresh) best = n, best_fresh = fresh;
    }
    if (best < 0) break;
    out[count] = nth_choice(best);
    cover(&out[count++], covered);
  }
  free(covered);
  return count;
}

static harness_result *reference_run(void) {
  choice plain = {{0}};
  harness_config config = config_of(&plain);
  config.plan.wrap = (fsdp_wrap_policy){.kind = FSDP_WRAP_NONE};
  harness_result *reference = harness_train(&config);
  assert_string_equal(reference->failure, "");
  return reference;
}

static void test_agree(void **state) {
  bool all = *state != NULL;
  harness_result *reference = reference_run();
  choice *runs = fsdp_alloc((size_t)choice_count() * sizeof *runs);
  int count = all ? choice_count() : pairwise(runs);
  int every = test_stride(12), made = 0;
  for (int i = 0; i < count; i += every, made++) {
    choice c = all ? nth_choice(i) : runs[i];
    check_run(&c, reference, !all || i % 7 == 0);
    if (all && (i + 1) % 100 == 0) print_message("%d of %d runs agree\n", i + 1, count);
  }
  print_message("%d runs agree with one rank, each with measured memory as planned\n", made);
  free(runs);
  harness_free(reference);
}

// Initial weights are the same bits whatever the sharding.
static void test_initial_weights(void **state) {
  harness_result *reference = NULL;
  for (int i = 0; i < PLACES; i += test_stride(5)) {
    choice c = {{i, i % 4, i % 2, 0, 1, 0}};
    harness_config config = config_of(&c);
    config.steps = 1;
    config.lr = 0;
    config.plan.hyper.weight_decay = 0;
    config.gradient_step = -1;
    harness_result *result = harness_train(&config);
    assert_string_equal(result->failure, "");
    if (reference) {
      compare_tensors("initial weights", "value", result->parameters, reference->parameters,
                      result->param_count, 0);
      harness_free(result);
    } else {
      reference = result;
    }
  }
  harness_free(reference);
}

// bf16 parameters, gradients and states: different rounding, but the same training within its precision.
static void test_bf16_stays_close(void **state) {
  harness_result *reference = reference_run();
  for (int i = 0; i < PLACES; i += test_stride(5)) {
    choice c = {{i, i % 4, i / 2 % 2, i % 2, 1, i % 3}};
    harness_config config = config_of(&c);
    // Of fp32 parameters only the reduction is in bf16; not where one rank may run on a GPU, which refuses
    // it.
    bool fp32 = i % 2 && places[i].data * places[i].fsdp > 1;
    config.plan.param_dtype = fp32 ? FSDP_F32 : FSDP_BF16;
    config.plan.reduce_dtype = i % 4 ? FSDP_BF16 : FSDP_F32;
    config.plan.master_dtype = config.plan.moment_dtype = i % 6 ? FSDP_F32 : FSDP_BF16;
    char run[256];
    describe(&c, run, sizeof run);
    harness_result *result = harness_train(&config);
    if (result->failure[0]) fail_msg("%s in bf16: %s", run, result->failure);
    for (int s = 0; s < STEPS; s++)
      if (!(fabs((double)(result->loss[s] - reference->loss[s])) <= 1e-2 * (double)reference->loss[s]))
        fail_msg("%s in bf16: loss of step %d is %.8g", run, s, (double)result->loss[s]);
    compare_tensors(run, "bf16 gradient", result->gradients, reference->gradients, result->param_count, 3e-2);
    check_memory(run, result);
    harness_free(result);
  }
  harness_free(reference);
}

// One rank that sums micro-batches in bf16 against the same in fp32. Each of N sums is rounded to 8 bits, by
// 2^-9 of it at most, and none is greater than the last here (micro-batches agree more than they differ): so
// N 2^-9 bounds the difference of a tensor's norm, and of all together. The losses of the first step are made
// before any gradient.
static void test_sums_in_bf16(void **state) {
  for (int count = 2; count <= (test_sanitized() ? 4 : 32); count *= 2) {
    choice c = {{count == 8 ? 10 : 0, 1, 0, 0, 1, 1}}; // full, or no
    harness_config config = config_of(&c);
    config.plan.micro_batches = count;
    config.plan.batch = GLOBAL_BATCH / count;
    config.plan.param_dtype = config.plan.master_dtype = config.plan.moment_dtype = FSDP_BF16;
    config.steps = 2;
    config.gradient_step = 0;
    config.plan.reduce_dtype = FSDP_F32;
    harness_result *wide = harness_train(&config);
    config.plan.reduce_dtype = FSDP_BF16;
    harness_result *narrow = harness_train(&config);
    char run[64];
    snprintf(run, sizeof run, "%d micro-batches", count);
    if (wide->failure[0] || narrow->failure[0]) fail_msg("%s: %s%s", run, wide->failure, narrow->failure);
    double bound = count * 0x1p-9;
    assert_true(narrow->loss[0] == wide->loss[0]);
    assert_true(fabs((double)(narrow->loss[1] - wide->loss[1])) <= 1e-3 * (double)wide->loss[1]);
    assert_true(fabs((double)(narrow->grad_norm[0] - wide->grad_norm[0])) <=
                bound * (double)wide->grad_norm[0]);
    compare_tensors(run, "bf16 sum", narrow->gradients, wide->gradients, wide->param_count, bound);
    check_memory(run, narrow);
    harness_free(narrow);
    harness_free(wide);
  }
}

// Micro-batches are summed in fp32 even if each is reduced in bf16. Two or three roundings to bf16, 2^-9 each
// of a micro-batch's gradient, leave 2.9e-3 to 4.0e-3 of the sum; a sum that is itself kept in bf16 is
// rounded 31 times more and is off by 6.7e-3 or more.
static void test_micro_batches_are_summed_in_fp32(void **state) {
  const place sharded[] = {
      {FSDP_FULL, 1, 2}, {FSDP_GRAD_OP, 1, 2}, {FSDP_NO, 2, 1}, {FSDP_HYBRID, 2, 2}, {FSDP_ZERO1, 1, 2}};
  for (int i = 0; i < 5; i += test_stride(3)) {
    for (int kind = 0; kind < 2; kind++) {
      harness_config config = {.plan = harness_small_plan(1), .steps = 1, .seed = 7};
      config.plan.seq = 5;
      config.plan.batch = 128;
      harness_result *reference = harness_train(&config);
      config.plan.strategy = sharded[i].strategy;
      config.plan.mesh = fsdp_mesh_of(sharded[i].data, sharded[i].fsdp);
      config.plan.micro_batches = 32;
      config.plan.accumulate = kind ? FSDP_ACCUMULATE_LOCAL : FSDP_ACCUMULATE_REDUCE;
      config.plan.batch = 4 / (sharded[i].data * sharded[i].fsdp);
      config.plan.reduce_dtype = FSDP_BF16;
      harness_result *result = harness_train(&config);
      assert_string_equal(result->failure, "");
      compare_tensors(fsdp_strategy_name(sharded[i].strategy), "bf16 gradient", result->gradients,
                      reference->gradients, result->param_count, 6e-3);
      harness_free(result);
      harness_free(reference);
    }
  }
}

// A limit that nothing reaches clips nothing: the same bits as without clipping, where updates follow their
// reductions and take the scalar 1 for the factor.
static void test_clipping_nothing_changes_nothing(void **state) {
  for (int i = 0; i < 8; i += test_stride(3)) {
    harness_result *results[2];
    for (int clips = 0; clips < 2; clips++) {
      harness_config config = {.plan = harness_small_plan(2), .steps = STEPS, .lr = 1e-3f, .seed = 3};
      config.plan.cpu_offload = i & 1;
      config.plan.strategy = i & 2 ? FSDP_ZERO1 : FSDP_FULL;
      config.plan.param_dtype = i & 4 ? FSDP_BF16 : FSDP_F32;
      config.plan.grad_clip = clips ? 1e30f : 0;
      config.gradient_step = -1;
      results[clips] = harness_train(&config);
      assert_string_equal(results[clips]->failure, "");
    }
    compare_tensors("clipping nothing", "value", results[0]->parameters, results[1]->parameters,
                    results[0]->param_count, 0);
    for (int clips = 0; clips < 2; clips++) harness_free(results[clips]);
  }
}

int main(int count, char **arguments) {
  bool all = (count > 1 && !strcmp(arguments[1], "--all")) || test_all();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_prestate(test_agree, all ? &all : NULL),
      cmocka_unit_test(test_initial_weights),
      cmocka_unit_test(test_clipping_nothing_changes_nothing),
      cmocka_unit_test(test_bf16_stays_close),
      cmocka_unit_test(test_sums_in_bf16),
      cmocka_unit_test(test_micro_batches_are_summed_in_fp32),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
