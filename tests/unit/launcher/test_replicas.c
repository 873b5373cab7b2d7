// Replicas hold the same bits, whatever is sharded, offloaded or rounded; one bit of one of them is found and
// named. The check section reads what it says.
#include "launcher/train/replicas.h"
#include "runtime/base/check.h"
#include "runtime/exec/state.h"
#include "tests/support/harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static harness_config config_of(fsdp_strategy strategy, int data, int fsdp, bool offload, bool bf16) {
  harness_config config = {
      .plan = harness_small_plan(1), .steps = 3, .lr = 1e-2f, .seed = 7, .gradient_step = -1};
  config.plan.strategy = strategy;
  config.plan.mesh = fsdp_mesh_of(data, fsdp);
  config.plan.cpu_offload = offload;
  config.plan.check = true;
  if (bf16) config.plan.master_dtype = config.plan.moment_dtype = config.plan.param_dtype = FSDP_BF16;
  return config;
}

static fsdp_drift compare(const harness_result *result, bool agrees[8]) {
  fsdp_drift drift = {.agrees = agrees};
  fsdp_axis_set axes[64];
  const fsdp_mesh *mesh = &result->plan->program->mesh;
  int count = fsdp_plan_digest_count(result->plan);
  assert_true(count <= 64);
  for (int d = 0; d < count; d++)
    axes[d] = result->plan->units->units[fsdp_plan_digest_unit(result->plan, d)].replica_axes;
  fsdp_replicas_compare(mesh, axes, result->digests, count, &drift);
  return drift;
}

static const struct {
  fsdp_strategy strategy;
  int data, fsdp, tensor; // norms have replicas over tensor, weights have none
} places[] = {{FSDP_NO, 2, 1, 1},   {FSDP_NO, 4, 1, 1},     {FSDP_HYBRID, 2, 2, 1}, {FSDP_HYBRID, 3, 2, 1},
              {FSDP_FULL, 1, 2, 2}, {FSDP_HYBRID, 2, 1, 4}, {FSDP_ZERO1, 2, 2, 1},  {FSDP_ZERO1, 1, 2, 2}};

// bf16 states are rounded with random bits, which must be the same in all replicas.
static void test_replicas_agree(void **state) {
  (void)state;
  for (size_t p = 0; p < sizeof places / sizeof *places; p++)
    for (int kind = 0; kind < 4; kind++) {
      harness_config config =
          config_of(places[p].strategy, places[p].data, places[p].fsdp, kind % 2, kind / 2);
      fsdp_mesh_resize(&config.plan.mesh, FSDP_AXIS_TENSOR, places[p].tensor);
      harness_result *result = harness_train(&config);
      bool agrees[8];
      assert_string_equal(result->failure, "");
      fsdp_drift drift = compare(result, agrees);
      if (drift.digest >= 0)
        fail_msg("place %zu, kind %d: digest %d of rank %d differs", p, kind, drift.digest, drift.rank);
      harness_free(result);
    }
}

// ---- One bit

typedef struct flip {
  int rank, unit, part;
} flip;
static flip flipped;

static void flip_bit(const harness_config *config, fsdp_executor *executor, int rank) {
  (void)config;
  if (rank != flipped.rank) return;
  const fsdp_plan *plan = fsdp_executor_config_of(executor)->plan;
  const fsdp_unit_state *state = &plan->unit_state[flipped.unit];
  int tensor = state->slot[flipped.part];
  unsigned char *bytes = fsdp_executor_tensor(executor, tensor);
  bytes[plan->program->tensors[tensor].bytes / 2] ^= 0x10;
}

static void test_one_bit_is_found(void **state) {
  (void)state;
  for (int rank = 0; rank < 6; rank++) {
    harness_config config = config_of(FSDP_HYBRID, 3, 2, rank % 2, rank / 3);
    config.after_steps = flip_bit;
    flipped = (flip){.rank = rank, .unit = rank % 4, .part = rank % 3};
    harness_result *result = harness_train(&config);
    assert_string_equal(result->failure, "");
    bool agrees[8];
    fsdp_drift drift = compare(result, agrees);
    assert_true(drift.digest >= 0);
    assert_int_equal(drift.digest % 3, flipped.part);
    assert_int_equal(fsdp_plan_digest_unit(result->plan, drift.digest), flipped.unit);
    assert_int_equal(drift.rank, rank % 2);
    assert_int_equal(drift.agreement, 2);
    for (int replica = 0; replica < 3; replica++) assert_int_equal(agrees[replica], replica != rank / 2);
    harness_free(result);
  }
}

// ---- Who is named

static void test_majority(void **state) {
  (void)state;
  static const struct {
    int replicas;
    uint64_t digests[5];
    int agreement;
    bool agrees[5];
  } cases[] = {
      {2, {1, 2}, 0, {false, false}},
      {3, {1, 2, 1}, 2, {true, false, true}},
      {3, {2, 1, 1}, 2, {false, true, true}},
      {3, {1, 2, 3}, 0, {false, false, false}},
      {4, {1, 1, 2, 2}, 0, {false, false, false, false}},
      {5, {4, 3, 4, 3, 3}, 3, {false, true, false, true, true}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    bool agrees[5];
    fsdp_drift drift = {.agrees = agrees};
    fsdp_mesh mesh = fsdp_mesh_of(cases[i].replicas, 1);
    fsdp_axis_set axes = fsdp_mesh_axes(&mesh, "data");
    fsdp_replicas_compare(&mesh, &axes, cases[i].digests, 1, &drift);
    assert_int_equal(drift.digest, 0);
    assert_int_equal(drift.agreement, cases[i].agreement);
    assert_memory_equal(agrees, cases[i].agrees, (size_t)cases[i].replicas * sizeof *agrees);
  }
  bool agrees[2];
  fsdp_drift drift = {.agrees = agrees};
  fsdp_mesh mesh = fsdp_mesh_of(2, 1);
  fsdp_axis_set axes = fsdp_mesh_axes(&mesh, "data");
  fsdp_replicas_compare(&mesh, (fsdp_axis_set[]){axes, axes}, (uint64_t[]){5, 6, 5, 6}, 2, &drift);
  assert_int_equal(drift.digest, -1);
}

// ---- The section

// Present if there are replicas and a comparison is requested; it reads every byte of the state once and
// writes none.
static void test_section(void **state) {
  (void)state;
  for (int i = 0; i < 8; i++) {
    bool asked = i % 2, replicas = i / 2 % 2, offload = i / 4 % 2;
    harness_config config =
        config_of(replicas ? FSDP_HYBRID : FSDP_FULL, replicas ? 2 : 1, 2, offload, false);
    config.plan.check = asked;
    fsdp_plan *plan;
    fsdp_error error;
    assert_int_equal(fsdp_plan_create(&config.plan, &plan, &error), FSDP_OK);
    int64_t state_bytes = 0;
    for (int u = 0; u < plan->units->count; u++) state_bytes += 12 * plan->units->units[u].shard_numel;
    const fsdp_program *program = plan->program;
    const fsdp_section *last = &program->sections[program->section_count - 1];
    assert_int_equal(last->kind == FSDP_SECTION_CHECK, asked && replicas);
    assert_int_equal(fsdp_plan_check_bytes(plan), asked && replicas ? state_bytes : 0);
    assert_int_equal(fsdp_replicas_present(plan), asked && replicas);
    for (int p = last->begin; p < last->end && last->kind == FSDP_SECTION_CHECK; p++) {
      const fsdp_instr *instr = &program->instrs[p];
      for (int o = 0; o < instr->operand_count; o++) {
        const fsdp_operand *operand = &program->operands[instr->first_operand + o];
        bool always = program->tensors[operand->tensor].lifetime == FSDP_LIVE_ALWAYS;
        assert_true(!always || operand->access == FSDP_READ);
        assert_true(instr->kind != FSDP_INSTR_D2H || !always); // nothing of the state is copied
      }
    }
    fsdp_plan_destroy(plan);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_replicas_agree),
      cmocka_unit_test(test_one_bit_is_found),
      cmocka_unit_test(test_majority),
      cmocka_unit_test(test_section),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
