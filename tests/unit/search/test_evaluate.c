// The judgement of a setting: each fidelity against the plan itself, limits by hand, and what is known of one
// setting is told of no other.
#include "runtime/plan/search/evaluate.h"
#include "tests/support/random_plan.h"
#include "tests/support/unit_test.h"

#include <string.h>

static fsdp_plan_config setting_of(const fsdp_device_profile *profile) {
  fsdp_plan_config c = search_on(profile, "gpt2", 6, 4).base;
  c.seq = 128;
  c.batch = c.micro_batches = 2;
  c.mesh = fsdp_mesh_of(1, 4);
  c.strategy = FSDP_FULL;
  c.wrap.kind = FSDP_WRAP_BLOCK;
  c.prefetch = 1;
  return c;
}

static fsdp_evaluator machine(const fsdp_device_profile *profile) {
  return (fsdp_evaluator){.profile = profile, .ranks_per_node = 4};
}

TEST(test_fidelities) {
  fsdp_device_profile *profile = round_machine(100e9, 50e9);
  fsdp_evaluator e = machine(profile);
  const fsdp_plan_config c = setting_of(profile);
  fsdp_evaluation peaks, few, draft, whole;
  fsdp_plan *plan;
  assert_int_equal(fsdp_plan_create(&c, &plan, NULL), FSDP_OK);
  assert_true(fsdp_evaluate(&e, &c, FSDP_EVALUATE_PEAKS, &peaks));
  assert_true(fsdp_evaluate(&e, &c, FSDP_EVALUATE_FEW, &few));
  assert_true(fsdp_evaluate(&e, &c, FSDP_EVALUATE_DRAFT, &draft));
  assert_true(fsdp_evaluate(&e, &c, FSDP_EVALUATE_PLAN, &whole));
  for (int s = 0; s < FSDP_SPACE_COUNT; s++) {
    const fsdp_memory_space_report *space = &plan->memory.space[s];
    const int64_t beside = s == FSDP_SPACE_DEVICE ? fsdp_plan_reserve_bytes(plan) : 0;
    assert_int_equal(whole.bytes[s], space->arena_bytes + beside);
    assert_int_equal(peaks.bytes[s], space->peak_bytes + beside);
    assert_int_equal(draft.bytes[s], space->peak_bytes + beside);
    assert_int_equal(few.bytes[s], space->peak_bytes + beside);
    assert_int_equal(whole.peak_bytes[s], space->peak_bytes);
  }
  assert_int_equal(whole.hash, fsdp_program_hash(plan->program));
  assert_int_equal(whole.sent_bytes, fsdp_traffic_sent_bytes(&plan->traffic));
  assert_int_equal(peaks.sent_bytes, whole.sent_bytes);
  assert_true(peaks.step_s == 0 && whole.step_s > 0);
  assert_true(draft.step_s <= whole.step_s * (1 + FSDP_EVALUATION_ERROR));
  assert_true(few.step_s <= whole.step_s * (1 + FSDP_EVALUATION_ERROR));
  assert_true(draft.work_s <= draft.step_s && draft.links_s <= draft.step_s);
  // Above what is allowed it is planned and not priced.
  fsdp_evaluator little = machine(profile);
  little.allowed.bytes[FSDP_SPACE_DEVICE] = whole.bytes[FSDP_SPACE_DEVICE] - 1;
  assert_true(fsdp_evaluate(&little, &c, FSDP_EVALUATE_PLAN, &few));
  assert_true(few.step_s == 0);
  assert_int_equal(few.bytes[FSDP_SPACE_DEVICE], whole.bytes[FSDP_SPACE_DEVICE]);
  fsdp_evaluator_release(&little);
  fsdp_evaluator_release(&e);
  fsdp_plan_destroy(plan);
  fsdp_device_profile_destroy(profile);
}

// Settings that differ in one field.
static int list_settings(const fsdp_plan_config *first, fsdp_plan_config out[32]) {
  int count = 0;
  for (int i = 0; i < 17; i++) out[i] = *first;
  out[++count].mesh = fsdp_mesh_of(2, 2);
  out[count].strategy = FSDP_HYBRID;
  out[++count].strategy = FSDP_GRAD_OP;
  out[++count].cpu_offload = true;
  out[++count].wrap.kind = FSDP_WRAP_NONE;
  out[++count].wrap = (fsdp_wrap_policy){.kind = FSDP_WRAP_SIZE, .numel = 1000000};
  out[++count].wrap = (fsdp_wrap_policy){.kind = FSDP_WRAP_SIZE, .numel = 5000000};
  out[++count].batch = 4;
  out[++count].seq = 64;
  out[++count].micro_batches = 3;
  out[++count].prefetch = 0;
  out[++count].accumulate = FSDP_ACCUMULATE_LOCAL;
  out[++count].reduce_dtype = first->reduce_dtype == FSDP_BF16 ? FSDP_F32 : FSDP_BF16;
  out[++count].master_dtype = first->master_dtype == FSDP_BF16 ? FSDP_F32 : FSDP_BF16;
  out[++count].moment_dtype = first->moment_dtype == FSDP_BF16 ? FSDP_F32 : FSDP_BF16;
  out[++count].saving = fsdp_saving_of_blocks();
  out[++count].param_dtype = first->param_dtype == FSDP_BF16 ? FSDP_F32 : FSDP_BF16;
  return count + 1;
}

// Settings share a placement if they differ in what has no part in it, and then too have plans of their own.
TEST(test_placements_are_shared) {
  fsdp_plan_config settings[32];
  fsdp_device_profile *profile = round_machine(100e9, 50e9);
  const fsdp_plan_config first = setting_of(profile);
  const int count = list_settings(&first, settings);
  fsdp_placements recent = {{NULL}};
  for (int i = 0; i < count; i++) {
    const fsdp_plan_config *c = &settings[i];
    const bool apart = c->cpu_offload != first.cpu_offload || c->prefetch != first.prefetch ||
                       c->accumulate != first.accumulate || c->saving.count != first.saving.count;
    fsdp_plan *plan, *near, *alone;
    assert_int_equal(fsdp_plan_create_among(&first, &recent, &plan, NULL), FSDP_OK);
    assert_int_equal(fsdp_plan_create_among(c, &recent, &near, NULL), FSDP_OK);
    assert_int_equal(fsdp_plan_create(c, &alone, NULL), FSDP_OK);
    assert_int_equal(near->placement == plan->placement, apart || i == 0);
    assert_int_equal(fsdp_program_hash(near->program), fsdp_program_hash(alone->program));
    assert_int_equal(fsdp_program_hash(plan->program) == fsdp_program_hash(near->program), i == 0);
    fsdp_plan_destroy(plan);
    fsdp_plan_destroy(near);
    fsdp_plan_destroy(alone);
  }
  fsdp_placements_release(&recent);
  fsdp_device_profile_destroy(profile);
}

TEST(test_no_setting_is_taken_for_another) {
  fsdp_evaluator e = {.ranks_per_node = 4};
  fsdp_plan_config settings[32];
  fsdp_device_profile *profile = round_machine(100e9, 50e9);
  const fsdp_plan_config first = setting_of(profile);
  const int count = list_settings(&first, settings);
  for (int again = 0; again < 2; again++) {
    for (int i = 0; i < count; i++) {
      fsdp_evaluation known;
      fsdp_plan *plan;
      assert_true(fsdp_evaluate(&e, &settings[i], FSDP_EVALUATE_PLAN, &known));
      assert_int_equal(e.plans, again ? count : i + 1);
      if (again) continue;
      assert_int_equal(fsdp_plan_create(&settings[i], &plan, NULL), FSDP_OK);
      assert_int_equal(known.hash, fsdp_program_hash(plan->program));
      fsdp_plan_destroy(plan);
    }
  }
  // What makes no plan is known too, and stays out of the answer.
  fsdp_plan_config impossible = first;
  impossible.mesh = fsdp_mesh_of(2, 2);
  fsdp_evaluation untouched = {.hash = 7};
  assert_false(fsdp_evaluate(&e, &impossible, FSDP_EVALUATE_PLAN, &untouched));
  assert_false(fsdp_evaluate(&e, &impossible, FSDP_EVALUATE_PLAN, &untouched));
  assert_int_equal(e.plans, count + 1);
  assert_int_equal(untouched.hash, 7);
  fsdp_evaluator_release(&e);
  fsdp_device_profile_destroy(profile);
}

TEST(test_excess) {
  const int64_t bytes[FSDP_SPACE_COUNT] = {[FSDP_SPACE_DEVICE] = 100, [FSDP_SPACE_HOST] = 40};
  fsdp_space where = FSDP_SPACE_HOST;
  fsdp_memory_limits limits = {.shared_bytes = 0};
  assert_int_equal(fsdp_excess_of(&limits, bytes, &where), 0);
  limits.bytes[FSDP_SPACE_DEVICE] = 100;
  assert_int_equal(fsdp_excess_of(&limits, bytes, &where), 0);
  limits.bytes[FSDP_SPACE_HOST] = 10;
  assert_int_equal(fsdp_excess_of(&limits, bytes, NULL), 30);
  limits.bytes[FSDP_SPACE_DEVICE] = 60;
  assert_int_equal(fsdp_excess_of(&limits, bytes, &where), 40);
  assert_int_equal(where, FSDP_SPACE_DEVICE);
  limits.shared_bytes = 95;
  assert_int_equal(fsdp_excess_of(&limits, bytes, &where), 45);
}
