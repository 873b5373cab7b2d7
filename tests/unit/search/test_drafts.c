// Drafts alone: a plan that is neither packed nor proved does what the whole plan does. The same instructions
// on tensors of the same sizes, the same bytes sent and live, the same price but for waits for memory.
#include "runtime/plan/search/search.h"
#include "runtime/plan/search/search_internal.h"
#include "tests/support/draws.h"
#include "tests/support/random_plan.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// An order of copies that waits change may take so much less of a step.
#define ORDER 0.01

static void check_instrs(const fsdp_program *a, const fsdp_program *b) {
  assert_int_equal(a->instr_count, b->instr_count);
  assert_int_equal(a->section_count, b->section_count);
  assert_int_equal(a->tensor_count, b->tensor_count);
  assert_memory_equal(a->sections, b->sections, (size_t)a->section_count * sizeof *a->sections);
  for (int t = 0; t < a->tensor_count; t++) {
    const fsdp_tensor *x = &a->tensors[t], *y = &b->tensors[t];
    assert_true(x->space == y->space && x->category == y->category && x->bytes == y->bytes);
    assert_true(x->begin == y->begin && x->end == y->end && x->lifetime == y->lifetime);
  }
  for (int i = 0; i < a->instr_count; i++) {
    const fsdp_instr *x = &a->instrs[i], *y = &b->instrs[i];
    assert_true(x->kind == y->kind && x->stream == y->stream && x->op == y->op && x->comm == y->comm);
    assert_true(x->unit == y->unit && x->module == y->module && x->operand_count == y->operand_count);
    for (int o = 0; o < x->operand_count; o++) {
      const fsdp_operand *p = &a->operands[x->first_operand + o], *q = &b->operands[y->first_operand + o];
      assert_true(p->tensor == q->tensor && p->dtype == q->dtype && p->access == q->access);
      assert_true(p->offset.base == q->offset.base && p->size_bytes == q->size_bytes);
    }
  }
}

static fsdp_step_price price_of(const fsdp_search_config *search, const fsdp_plan *plan) {
  fsdp_pricing pricing;
  fsdp_step_price price;
  assert_int_equal(fsdp_pricing_create(plan, search->profile, search->ranks_per_node, &pricing, NULL), 0);
  fsdp_simulation *simulation = fsdp_simulation_create(&pricing);
  fsdp_simulation_run(simulation, &price);
  fsdp_simulation_destroy(simulation);
  fsdp_step_price_release(&price);
  return price;
}

// A plan that is proved later is the plan that is proved at once.
static void check_proved_later(const fsdp_plan_config *config, const fsdp_plan *whole) {
  fsdp_plan_config unproved = *config;
  fsdp_plan *later;
  unproved.unproved = true;
  assert_int_equal(fsdp_plan_create(&unproved, &later, NULL), FSDP_OK);
  assert_false(later->verified);
  assert_memory_equal(&later->memory, &whole->memory, sizeof whole->memory);
  fsdp_plan_prove(later);
  assert_true(later->verified);
  assert_true(fsdp_program_hash(later->program) == fsdp_program_hash(whole->program));
  fsdp_plan_destroy(later);
}

static void check_draft(const fsdp_search_config *search, const fsdp_plan_config *config, bool offloads) {
  fsdp_plan_config drafted = *config;
  fsdp_plan *whole, *draft;
  fsdp_search_plan plan;
  drafted.draft = true;
  assert_int_equal(fsdp_plan_create(config, &whole, NULL), FSDP_OK);
  assert_int_equal(fsdp_plan_create(&drafted, &draft, NULL), FSDP_OK);
  assert_true(whole->verified && !draft->verified);
  check_proved_later(config, whole);
  check_instrs(whole->program, draft->program);
  assert_memory_equal(&whole->traffic, &draft->traffic, sizeof whole->traffic);
  for (int s = 0; s < FSDP_SPACE_COUNT; s++) {
    const fsdp_memory_space_report *x = &whole->memory.space[s], *y = &draft->memory.space[s];
    assert_int_equal(x->peak_bytes, y->peak_bytes);
    assert_int_equal(x->valley_bytes, y->valley_bytes);
    assert_true(y->arena_bytes >= y->peak_bytes);
  }
  const fsdp_step_price a = price_of(search, whole), b = price_of(search, draft);
  assert_true(a.flops == b.flops);
  assert_int_equal(fsdp_search_price(search, config, &plan), FSDP_OK);
  assert_true(plan.step_s == a.step_s);
  // A draft that offloads is packed once, to see what waits for its copies. Waits may also help: a gather
  // that starts later leaves the link to a reduction.
  const double free_s = plan.unhindered_s, waits = offloads ? 0.1 : 1e-9;
  if (b.step_s < free_s * (1 - (offloads ? ORDER : 1e-9)) ||
      b.step_s * (1 - FSDP_EVALUATION_ERROR) > a.step_s || (!offloads && b.step_s > free_s * (1 + waits)))
    fail_msg("%s of %.9g ms, whole plan without waits for memory %.9g, with them %.9g",
             offloads ? "draft with offload" : "draft", b.step_s * 1e3, plan.unhindered_s * 1e3,
             a.step_s * 1e3);
  fsdp_plan_destroy(whole);
  fsdp_plan_destroy(draft);
}

TEST(test_drafts) {
  static const char *const presets[] = {"llama3-8b", "gpt2"};
  fsdp_device_profile *profile = round_machine(100e9, 50e9);
  random_source random = {.seed = 5};
  for (int n = 0; n < test_draws(120, 12); n++) {
    const int ranks = 1 << random_int(&random, 0, 4);
    fsdp_search_config search = search_on(profile, presets[n % 2], random_int(&random, 1, 4), ranks);
    search.base.seq = 1024;
    int count;
    search.global_batch = ranks;
    search_space space;
    assert_int_equal(search_space_create(&search, &space, NULL), FSDP_OK);
    fsdp_search_kind *kinds = search_kinds_create(&search, &space, &count);
    const fsdp_search_kind *kind = &kinds[random_int(&random, 0, count - 1)];
    fsdp_plan_config c = search.base;
    c.mesh = kind->mesh;
    c.strategy = kind->strategy;
    c.cpu_offload = kind->cpu_offload;
    c.batch = random_int(&random, 1, 2);
    c.micro_batches = random_int(&random, 1, 4);
    c.prefetch = random_int(&random, 0, 3);
    c.accumulate = (fsdp_accumulate)random_int(&random, 0, 1);
    c.wrap.kind = random_int(&random, 0, 2) ? FSDP_WRAP_BLOCK : FSDP_WRAP_NONE;
    if (random_int(&random, 0, 1)) c.saving = fsdp_saving_of_blocks();
    const bool offloads = random_int(&random, 0, 2) == 0;
    if (offloads) fsdp_saving_parse("block_inputs", "-", FSDP_FATE_OFFLOAD, &c.saving, NULL);
    check_draft(&search, &c, offloads);
    free(kinds);
    search_space_release(&space);
  }
  fsdp_device_profile_destroy(profile);
}

// What is remembered of a setting is what drafts of it say, and is not made again.
TEST(test_remembered) {
  static const char *const recomputed[] = {"none", "block"};
  fsdp_device_profile *profile = round_machine(5e9, 5e9);
  const fsdp_search_config search = search_on(profile, "gpt2", 6, 4);
  fsdp_evaluator evaluator = search_evaluator_of(&search);
  int64_t drafts = 0;
  const fsdp_estimator machine = {profile, search.ranks_per_node, &drafts, NULL};
  random_source random = {.seed = 9};
  for (int n = 0; n < test_draws(150, 40); n++) {
    fsdp_plan_config c = search.base;
    fsdp_evaluation known, made;
    c.seq = 256;
    c.mesh = fsdp_mesh_of(1, 4);
    c.strategy = random_int(&random, 0, 1) ? FSDP_FULL : FSDP_GRAD_OP;
    c.cpu_offload = random_int(&random, 0, 1);
    c.batch = random_int(&random, 1, 2);
    c.micro_batches = random_int(&random, 2, 3);
    c.prefetch = random_int(&random, 0, 1);
    c.accumulate = (fsdp_accumulate)random_int(&random, 0, 1);
    c.wrap.kind = random_int(&random, 0, 1) ? FSDP_WRAP_BLOCK : FSDP_WRAP_NONE;
    fsdp_saving_parse(recomputed[random_int(&random, 0, 1)], "-", FSDP_FATE_RECOMPUTE, &c.saving, NULL);
    assert_int_equal(fsdp_estimate_few(&machine, &c, &made), FSDP_OK);
    for (int again = 0; again < 2; again++) {
      const int64_t before = evaluator.drafts;
      assert_true(fsdp_evaluate(&evaluator, &c, FSDP_EVALUATE_FEW, &known));
      assert_true(!again || evaluator.drafts == before);
      assert_true(known.step_s == made.step_s && known.work_s == made.work_s);
      assert_memory_equal(known.bytes, made.bytes, sizeof made.bytes);
    }
  }
  fsdp_evaluator_release(&evaluator);
  fsdp_device_profile_destroy(profile);
}

// What an estimate, made of models of few layers, says of memory is what the whole model's plan needs at its
// peaks.
TEST(test_peaks) {
  fsdp_device_profile *profile = round_machine(100e9, 50e9);
  random_source random = {.seed = 11};
  for (int n = 0; n < test_draws(60, 12); n++) {
    const fsdp_search_config search =
        search_on(profile, n % 2 ? "gpt2" : "llama3-8b", random_int(&random, 6, 16), 4);
    fsdp_plan_config c = search.base;
    fsdp_evaluation estimate, several;
    int64_t drafts = 0;
    const fsdp_estimator machine = {profile, search.ranks_per_node, &drafts, NULL};
    fsdp_plan *plan;
    c.seq = 16 << random_int(&random, 0, 6);
    c.mesh = fsdp_mesh_of(1, 4);
    c.strategy = random_int(&random, 0, 1) ? FSDP_FULL : FSDP_GRAD_OP;
    c.cpu_offload = random_int(&random, 0, 3) == 0;
    c.batch = random_int(&random, 1, 3);
    c.micro_batches = random_int(&random, 1, 3);
    c.prefetch = random_int(&random, 0, 2);
    c.wrap.kind = FSDP_WRAP_BLOCK;
    if (random_int(&random, 0, 1)) c.saving = fsdp_saving_of_blocks();
    assert_int_equal(fsdp_estimate_few(&machine, &c, &estimate), FSDP_OK);
    assert_int_equal(fsdp_estimate_several(&machine, &c, &several), FSDP_OK);
    c.draft = true;
    assert_int_equal(fsdp_plan_create(&c, &plan, NULL), FSDP_OK);
    for (int s = 0; s < FSDP_SPACE_COUNT; s++) {
      const int64_t beside = s == FSDP_SPACE_DEVICE ? fsdp_plan_reserve_bytes(plan) : 0;
      assert_int_equal(estimate.bytes[s], plan->memory.space[s].peak_bytes + beside);
      assert_int_equal(several.bytes[s], estimate.bytes[s]);
    }
    fsdp_plan_destroy(plan);
  }
  fsdp_device_profile_destroy(profile);
}

// Where links are as busy as kernels, streams fall behind each other slowly: what few layers say of a step is
// off by more than what several do.
TEST(test_several) {
  random_source random = {.seed = 13};
  double most_few = 0, most_several = 0;
  for (int n = 0; n < test_draws(40, 8); n++) {
    fsdp_device_profile *profile = round_machine(100e9, 5e9 * random_int(&random, 2, 20));
    const fsdp_search_config search = search_on(profile, "llama3-8b", 32, 64);
    fsdp_plan_config c = search.base;
    fsdp_evaluation few, several, whole;
    int64_t drafts = 0;
    const fsdp_estimator machine = {profile, 4, &drafts, NULL};
    c.seq = 128;
    c.batch = 32;
    c.mesh = fsdp_mesh_of(2, 8);
    fsdp_mesh_add(&c.mesh, FSDP_AXIS_TENSOR, 4);
    fsdp_mesh_complete(&c.mesh);
    c.strategy = FSDP_ZERO1;
    c.accumulate = FSDP_ACCUMULATE_LOCAL;
    c.prefetch = random_int(&random, 0, 2);
    c.wrap.kind = FSDP_WRAP_BLOCK;
    assert_int_equal(fsdp_estimate_few(&machine, &c, &few), FSDP_OK);
    assert_int_equal(fsdp_estimate_several(&machine, &c, &several), FSDP_OK);
    assert_int_equal(fsdp_estimate_whole(&machine, &c, &whole), FSDP_OK);
    most_few = fmax(most_few, fabs(few.step_s / whole.step_s - 1));
    most_several = fmax(most_several, fabs(several.step_s / whole.step_s - 1));
    fsdp_device_profile_destroy(profile);
  }
  print_message("off by at most %.2f%% with few layers, %.2f%% with several\n", 100 * most_few,
                100 * most_several);
  assert_true(most_several < 0.015);
  if (test_whole()) assert_true(most_few > 2 * most_several);
}
