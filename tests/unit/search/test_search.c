// The search: what it finds fits and runs the global batch, nothing drawn at random is faster, and it changes
// over where closed formulas say.
#include "runtime/plan/search/search.h"
#include "tests/support/draws.h"
#include "tests/support/random_plan.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NODE_RATE 200e9 // bytes that a rank of a node sends per second

static fsdp_search_config search_of(const char *preset, int layers, int ranks, int64_t seq, int64_t batch,
                                    const fsdp_device_profile *profile) {
  fsdp_search_config c = search_on(profile, preset, layers, ranks);
  c.base.seq = seq;
  c.global_batch = batch;
  c.limit_bytes[FSDP_SPACE_DEVICE] = INT64_C(78000000000);
  c.limit_bytes[FSDP_SPACE_HOST] = INT64_C(200000000000);
  return c;
}

static fsdp_search_result run(const fsdp_search_config *config) {
  fsdp_search_result result;
  fsdp_error error = {0};
  if (fsdp_search_run(config, &result, &error) != FSDP_OK) fail_msg("%s", error.message);
  return result;
}

static int size_of(const fsdp_search_plan *plan, const char *axis) {
  return fsdp_mesh_size(&plan->config.mesh, axis);
}

// For tests of figures: a sanitizer would only see the other tests' paths again, in two thirds of the time.
static void skip_if_sanitized(void) {
  if (test_stride(2) == 2) skip();
}

// ---- What is found

static void check_plans(const fsdp_search_config *config, const fsdp_search_result *result) {
  assert_true(result->count > 0);
  for (int i = 0; i < result->count; i++) {
    const fsdp_search_plan *plan = &result->plans[i];
    const fsdp_plan_config *c = &plan->config;
    fsdp_search_plan again;
    assert_int_equal(fsdp_mesh_ranks(&c->mesh), config->ranks);
    assert_int_equal(c->batch * c->micro_batches * size_of(plan, "data") * size_of(plan, "fsdp"),
                     config->global_batch);
    assert_true(plan->bytes[FSDP_SPACE_DEVICE] <= config->limit_bytes[FSDP_SPACE_DEVICE]);
    assert_true(i == 0 || plan->step_s >= result->plans[i - 1].step_s);
    assert_int_equal(fsdp_search_price(config, c, &again), FSDP_OK);
    assert_true(again.hash == plan->hash && again.step_s == plan->step_s);
    fsdp_plan_config usual = *c;
    usual.prefetch = 1;
    if (c->prefetch != 1 && !config->fixed[FSDP_SEARCH_PREFETCH])
      assert_true(fsdp_search_price(config, &usual, &again) != FSDP_OK || again.hash != plan->hash);
    for (int j = 0; j < i; j++) {
      assert_true(result->plans[j].hash != plan->hash);
      const fsdp_plan_config *other = &result->plans[j].config;
      assert_true(other->strategy != c->strategy || other->cpu_offload != c->cpu_offload ||
                  other->sequence_parallel != c->sequence_parallel ||
                  memcmp(&other->mesh, &c->mesh, sizeof c->mesh) != 0);
    }
  }
}

// Whole plans take what they are estimated to take.
static void check_agreement(const fsdp_search_result *result) {
  for (int i = 0; i < result->count; i++) {
    const fsdp_search_plan *plan = &result->plans[i];
    const double error = plan->step_s / plan->estimate_s - 1;
    if (fabs(error) > 0.01) fail_msg("plan %d takes %+.2f%% of its estimate more", i, 100 * error);
    // Nothing but waits is corrected.
    assert_true(plan->estimate_s >= plan->unhindered_s * (1 - 0.005));
  }
}

// The same machine and model give the same plans, of kinds that differ, and drafts of a few layers are close
// to what whole plans take if nothing waits for memory to be free.
TEST(test_what_is_found) {
  fsdp_device_profile *profile = round_machine(NODE_RATE, 50e9);
  const fsdp_search_config config = search_of("llama2-7b", 12, 8, 1024, 32, profile);
  fsdp_search_result result = run(&config), again = run(&config);
  check_plans(&config, &result);
  assert_int_equal(result.count, again.count);
  for (int i = 0; i < result.count; i++) {
    assert_true(result.plans[i].hash == again.plans[i].hash);
    const double error = result.plans[i].draft_s / result.plans[i].unhindered_s - 1;
    const bool packed = result.plans[i].copies_s > 0; // offloaded activations
    if (!packed && fabs(error) > 0.01) fail_msg("plan %d: drafts of a few layers off by %g", i, error);
  }
  check_agreement(&result);
  fsdp_search_result_release(&result);
  fsdp_search_result_release(&again);
  fsdp_device_profile_destroy(profile);
}

// A model that is one unit: what full would free after its forward is the root's, so grad_op is the same
// program. It is listed once, as full, and prefetch 1 where there is nothing to fetch.
TEST(test_programs_differ) {
  fsdp_device_profile *profile = round_machine(NODE_RATE, 50e9);
  fsdp_search_config config = search_of("tiny", 4, 8, 256, 32, profile);
  for (int wraps = 0; wraps < 2; wraps++) {
    config.base.wrap = (fsdp_wrap_policy){.kind = FSDP_WRAP_NONE};
    config.fixed[FSDP_SEARCH_WRAP] = wraps == 0;
    fsdp_search_result result = run(&config);
    check_plans(&config, &result);
    int same = 0;
    for (int k = 0; k < result.kind_count; k++) {
      const fsdp_search_kind *kind = &result.kinds[k];
      if (kind->outcome != FSDP_SEARCH_SAME) continue;
      same++;
      assert_int_equal(kind->strategy, FSDP_GRAD_OP);
    }
    for (int p = 0; p < result.count && wraps == 0; p++)
      assert_true(result.plans[p].config.strategy != FSDP_GRAD_OP && result.plans[p].config.prefetch == 1);
    assert_true(wraps > 0 || same >= 2);
    fsdp_search_result_release(&result);
  }
  fsdp_device_profile_destroy(profile);
}

// 7B on eight devices of 36 GB, where plans recompute, offload and wait for memory.
TEST(test_agreement_in_little_memory) {
  skip_if_sanitized();
  fsdp_device_profile *profile = round_machine(NODE_RATE, 50e9);
  fsdp_search_config config = search_of("llama2-7b", 0, 8, 4096, 8, profile);
  config.limit_bytes[FSDP_SPACE_DEVICE] = INT64_C(36000000000);
  fsdp_search_result result = run(&config);
  assert_int_equal(result.count, FSDP_SEARCH_PLANS);
  check_plans(&config, &result);
  check_agreement(&result);
  fsdp_search_result_release(&result);
  fsdp_device_profile_destroy(profile);
}

TEST(test_what_is_fixed) {
  fsdp_device_profile *profile = round_machine(NODE_RATE, 50e9);
  fsdp_search_config config = search_of("llama2-7b", 6, 8, 1024, 32, profile);
  config.base.strategy = FSDP_HYBRID;
  config.base.batch = 2;
  config.base.prefetch = 2;
  config.fixed[FSDP_SEARCH_STRATEGY] = config.fixed[FSDP_SEARCH_BATCH] = config.fixed[FSDP_SEARCH_PREFETCH] =
      true;
  config.fixed_tensor = 2;
  fsdp_search_result result = run(&config);
  check_plans(&config, &result);
  for (int i = 0; i < result.count; i++) {
    const fsdp_plan_config *c = &result.plans[i].config;
    assert_int_equal(c->strategy, FSDP_HYBRID);
    assert_int_equal(c->batch, 2);
    assert_int_equal(c->prefetch, 2);
    assert_int_equal(size_of(&result.plans[i], "tensor"), 2);
  }
  fsdp_search_result_release(&result);
  fsdp_device_profile_destroy(profile);
}

// Rules may cut the batch over other axes than data and fsdp: a step has as many sequences as were asked for.
TEST(test_rules_cut_the_batch) {
  static const struct {
    fsdp_sharding_preset preset;
    const char *data_axis, *mesh[2]; // the mesh's axes; "": it is open
    int sizes[2], parts;             // parts of a plan: 0: as many as fsdp times data_axis have ranks
  } cases[] = {{FSDP_SHARDING_FSDP, "replica", {"replica", "fsdp"}, {2, 4}, 8},
               {FSDP_SHARDING_FSDP, "", {"data", "fsdp"}, {2, 4}, 8},
               {FSDP_SHARDING_FSDP, "tensor", {"", ""}, {0, 0}, 0},
               {FSDP_SHARDING_FSDPV2, "", {"", ""}, {0, 0}, 8}};
  fsdp_device_profile *profile = round_machine(NODE_RATE, 50e9);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    fsdp_search_config config = search_of("llama2-7b", 4, 8, 1024, 32, profile);
    fsdp_sharding rules = {.preset = cases[i].preset};
    memcpy(rules.data_axis, cases[i].data_axis, strlen(cases[i].data_axis) + 1);
    config.base.sharding = &rules;
    config.fixed[FSDP_SEARCH_STRATEGY] = true;
    config.fixed[FSDP_SEARCH_MESH] = *cases[i].mesh[0] != 0;
    config.base.mesh = (fsdp_mesh){0};
    for (int a = 0; a < 2 && *cases[i].mesh[a]; a++)
      fsdp_mesh_add(&config.base.mesh, cases[i].mesh[a], cases[i].sizes[a]);
    fsdp_mesh_complete(&config.base.mesh);
    fsdp_search_result result = run(&config);
    assert_true(result.count > 0);
    for (int p = 0; p < result.count; p++) {
      const fsdp_search_plan *plan = &result.plans[p];
      const int over = size_of(plan, "fsdp") * fsdp_mesh_size(&plan->config.mesh, cases[i].data_axis);
      assert_int_equal(
          plan->config.batch * plan->config.micro_batches * (cases[i].parts ? cases[i].parts : over), 32);
    }
    fsdp_search_result_release(&result);
  }
  fsdp_device_profile_destroy(profile);
}

// ---- Nothing drawn is faster

static int64_t divisor(random_source *random, int64_t of) {
  int64_t d;
  do d = random_int(random, 1, (int)of);
  while (of % d);
  return d;
}

static fsdp_plan_config draw(random_source *random, const fsdp_search_config *search) {
  static const char *const recomputed[] = {"none", "block", "rmsnorm,swiglu", "block:3", "rmsnorm,swiglu@4"};
  fsdp_plan_config c = search->base;
  const int tensor = (int)divisor(random, search->ranks), left = search->ranks / tensor;
  const int context = (int)divisor(random, left), data = (int)divisor(random, left / context);
  c.mesh = (fsdp_mesh){0};
  fsdp_mesh_add(&c.mesh, "data", data);
  fsdp_mesh_add(&c.mesh, "fsdp", left / context / data);
  if (context > 1) fsdp_mesh_add(&c.mesh, "context", context);
  if (tensor > 1) fsdp_mesh_add(&c.mesh, "tensor", tensor);
  fsdp_mesh_complete(&c.mesh);
  c.strategy = (fsdp_strategy)random_int(random, FSDP_FULL, FSDP_ZERO1);
  const int64_t rank = search->global_batch / (left / context);
  c.batch = divisor(random, rank);
  c.micro_batches = (int)(rank / c.batch);
  c.prefetch = random_int(random, 0, 2);
  c.cpu_offload = random_int(random, 0, 7) == 0;
  c.accumulate = (fsdp_accumulate)random_int(random, 0, 1);
  if (random_int(random, 0, 3) == 0) c.wrap = (fsdp_wrap_policy){.kind = FSDP_WRAP_NONE};
  if (random_int(random, 0, 3) == 0) c.wrap = (fsdp_wrap_policy){.kind = FSDP_WRAP_SIZE, .numel = 100000000};
  fsdp_saving_parse(recomputed[random_int(random, 0, 4)], "-", FSDP_FATE_RECOMPUTE, &c.saving, NULL);
  if (random_int(random, 0, 5) == 0)
    fsdp_saving_parse("block_inputs", "-", FSDP_FATE_OFFLOAD, &c.saving, NULL);
  return c;
}

// FSDP_TEST_DRAWS=2000 draws more, FSDP_TEST_SEED=8 others.
TEST(test_random_settings) {
  const char *seed = getenv("FSDP_TEST_SEED");
  const int draws = test_draws(100, 3);
  fsdp_device_profile *profile = round_machine(NODE_RATE, 50e9);
  fsdp_search_config config = search_of("llama2-7b", 8, 8, 2048, 32, profile);
  config.limit_bytes[FSDP_SPACE_DEVICE] = INT64_C(16000000000);
  fsdp_search_result result = run(&config);
  random_source random = {.seed = seed ? (uint64_t)atoll(seed) : 7};
  int feasible = 0, tried = 0;
  while (feasible < draws && tried++ < 40 * draws) {
    const fsdp_plan_config setting = draw(&random, &config);
    fsdp_search_plan plan;
    if (fsdp_search_price(&config, &setting, &plan) != FSDP_OK) continue;
    feasible++;
    if (plan.step_s < result.plans[0].step_s) {
      char mesh[FSDP_MESH_TEXT_BYTES], rules[FSDP_SAVING_TEXT_BYTES];
      fail_msg("draw %d takes %g ms, the best found %g: %s %s, wrap %d, %lld x %d, prefetch %d, recompute %s",
               tried, plan.step_s * 1e3, result.plans[0].step_s * 1e3, fsdp_strategy_name(setting.strategy),
               fsdp_mesh_print(&setting.mesh, ",", mesh), (int)setting.wrap.kind, (long long)setting.batch,
               setting.micro_batches, setting.prefetch,
               fsdp_saving_print(&setting.saving, FSDP_FATE_RECOMPUTE, rules));
    }
  }
  assert_true(feasible >= draws);
  fsdp_search_result_release(&result);
  fsdp_device_profile_destroy(profile);
}

// ---- Memory

// Of the recomputed layers of the last rule, one less does not fit.
TEST(test_just_enough) {
  fsdp_device_profile *profile = round_machine(NODE_RATE, 50e9);
  fsdp_search_config config = search_of("llama2-7b", 12, 8, 4096, 8, profile);
  config.base.mesh = fsdp_mesh_of(1, 8);
  config.base.strategy = FSDP_FULL;
  for (int f = 0; f < FSDP_SEARCH_FIELD_COUNT; f++) config.fixed[f] = f != FSDP_SEARCH_RECOMPUTE;
  fsdp_search_plan whole;
  assert_int_equal(fsdp_search_price(&config, &config.base, &whole), FSDP_OK);
  fsdp_plan_config block = config.base;
  block.saving = fsdp_saving_of_blocks();
  fsdp_search_plan least;
  assert_int_equal(fsdp_search_price(&config, &block, &least), FSDP_OK);
  int partial = 0;
  double before = 0;
  for (int i = 0; i < 6; i++) {
    const int64_t most = whole.bytes[FSDP_SPACE_DEVICE], saved = most - least.bytes[FSDP_SPACE_DEVICE];
    config.limit_bytes[FSDP_SPACE_DEVICE] = most - saved * i / 6;
    fsdp_search_result result = run(&config);
    assert_int_equal(result.count, 1);
    fsdp_plan_config c = result.plans[0].config;
    assert_true(result.plans[0].step_s >= before * (1 - 0.005)); // packing may wait more or less
    before = result.plans[0].step_s;
    for (int r = 0; r < c.saving.count; r++) {
      if (c.saving.rules[r].layers <= 1) continue;
      fsdp_search_plan fewer;
      for (int other = 0; other < c.saving.count; other++)
        if (c.saving.rules[other].layers > 1) c.saving.rules[other].layers--;
      // One fewer does not fit, or packs so tightly that it waits for memory.
      const fsdp_status status = fsdp_search_price(&config, &c, &fewer);
      assert_true(status == FSDP_ERR_CAPACITY || fewer.step_s > result.plans[0].step_s);
      partial++;
      break;
    }
    fsdp_search_result_release(&result);
  }
  assert_true(partial >= 3);
  fsdp_device_profile_destroy(profile);
}

// With all else given: what blocks save is more than other variants do, and nothing fits without.
TEST(test_blocks_alone) {
  fsdp_device_profile *profile = round_machine(NODE_RATE, 50e9);
  fsdp_search_config config = search_of("qwen3-30b-a3b", 4, 8, 1024, 8, profile);
  config.base.mesh = fsdp_mesh_of(1, 8);
  for (int f = 0; f < FSDP_SEARCH_FIELD_COUNT; f++) config.fixed[f] = f != FSDP_SEARCH_EXPERT_BLOCKS;
  fsdp_search_plan whole, blocks;
  fsdp_plan_config four = config.base;
  four.expert_blocks = 4;
  assert_int_equal(fsdp_search_price(&config, &config.base, &whole), FSDP_OK);
  assert_int_equal(fsdp_search_price(&config, &four, &blocks), FSDP_OK);
  config.limit_bytes[FSDP_SPACE_DEVICE] =
      (3 * blocks.bytes[FSDP_SPACE_DEVICE] + whole.bytes[FSDP_SPACE_DEVICE]) / 4;
  fsdp_search_result found = run(&config);
  check_plans(&config, &found);
  assert_true(found.plans[0].config.expert_blocks > 1);
  fsdp_search_result_release(&found);
  fsdp_device_profile_destroy(profile);
}

// A layer's experts are gathered in blocks where memory is lacking: such a plan is found, it is faster than
// the best without, and it fits where nothing does without.
TEST(test_expert_blocks) {
  fsdp_device_profile *profile = round_machine(NODE_RATE, 50e9);
  fsdp_search_config config = search_of("qwen3-30b-a3b", 4, 8, 4096, 16, profile);
  config.base.mesh = fsdp_mesh_of(1, 8);
  config.base.batch = 2;
  for (int f = 0; f < FSDP_SEARCH_FIELD_COUNT; f++)
    config.fixed[f] = f != FSDP_SEARCH_RECOMPUTE && f != FSDP_SEARCH_PREFETCH;
  fsdp_search_plan whole, blocks;
  fsdp_plan_config four = config.base;
  four.expert_blocks = 4;
  assert_int_equal(fsdp_search_price(&config, &config.base, &whole), FSDP_OK);
  assert_int_equal(fsdp_search_price(&config, &four, &blocks), FSDP_OK);
  const int64_t most = whole.bytes[FSDP_SPACE_DEVICE], least = blocks.bytes[FSDP_SPACE_DEVICE];
  assert_true(least < most);
  for (int less = 0; less < 2; less++) {
    config.limit_bytes[FSDP_SPACE_DEVICE] = least - less * (most - least) / 4;
    config.fixed[FSDP_SEARCH_EXPERT_BLOCKS] = false;
    fsdp_search_result found = run(&config);
    check_plans(&config, &found);
    assert_true(found.plans[0].config.expert_blocks > 1);
    config.fixed[FSDP_SEARCH_EXPERT_BLOCKS] = true;
    fsdp_search_result without = run(&config);
    assert_int_equal(without.count, !less);
    if (!less) assert_true(found.plans[0].step_s < 0.8 * without.plans[0].step_s);
    fsdp_search_result_release(&found);
    fsdp_search_result_release(&without);
  }
  fsdp_device_profile_destroy(profile);
}

TEST(test_nothing_fits) {
  fsdp_device_profile *profile = round_machine(NODE_RATE, 50e9);
  fsdp_search_config config = search_of("llama2-7b", 6, 8, 1024, 8, profile);
  config.limit_bytes[FSDP_SPACE_DEVICE] = INT64_C(1500000000);
  config.limit_bytes[FSDP_SPACE_HOST] = INT64_C(1000000);
  fsdp_search_result result = run(&config);
  assert_int_equal(result.count, 0);
  for (int k = 0; k < result.kind_count; k++)
    assert_true(result.kinds[k].outcome == FSDP_SEARCH_TOO_LARGE ||
                result.kinds[k].outcome == FSDP_SEARCH_IMPOSSIBLE);
  assert_int_equal(fsdp_mesh_ranks(&result.least.mesh), 8);
  fsdp_search_result_release(&result);
  config.global_batch = 3;
  config.base.mesh = fsdp_mesh_of(1, 8);
  config.fixed[FSDP_SEARCH_MESH] = true;
  fsdp_error error = {0};
  if (fsdp_search_run(&config, &result, &error) == FSDP_OK) {
    assert_int_equal(result.count, 0);
    assert_int_equal(result.kinds[0].outcome, FSDP_SEARCH_IMPOSSIBLE);
    fsdp_search_result_release(&result);
  }
  fsdp_device_profile_destroy(profile);
}

// ---- Closed formulas

// Gathering every weight twice and reducing gradients takes (2 + 2 + 4) / node rate seconds for each of a
// rank's weights; computing 6 tokens / FLOPs. Below tokens = 8 / 6 FLOPs / rate, communication bounds FSDP.
TEST(test_when_fsdp_is_bound) {
  fsdp_device_profile *profile = round_machine(20e9, 50e9);
  const double tokens = 8.0 / 6 * ROUND_FLOPS / 20e9 * 7 / 8;
  for (int above = 0; above < 2; above++) {
    const int64_t seq = 512, batch = (int64_t)(tokens / (double)seq * (above ? 2 : 0.5));
    fsdp_search_config config = search_of("llama2-7b", 12, 8, seq, 8 * batch, profile);
    config.base.mesh = fsdp_mesh_of(1, 8);
    config.base.strategy = FSDP_FULL;
    config.base.batch = batch;
    config.fixed[FSDP_SEARCH_MESH] = config.fixed[FSDP_SEARCH_STRATEGY] = config.fixed[FSDP_SEARCH_BATCH] =
        true;
    fsdp_search_result result = run(&config);
    assert_int_equal(result.count, 2); // with the states on the device and on the host
    assert_int_equal(result.plans[0].bound, above ? FSDP_BOUND_COMPUTE : FSDP_BOUND_COMMUNICATION);
    fsdp_search_result_release(&result);
  }
  fsdp_device_profile_destroy(profile);
}

// A layer of P parameters and C columns takes 6 P tokens / (8 FLOPs) seconds on each of 8 ranks, and moves
// some 9 activations of 2 C bytes a token, of which a ring sends 7/8: below rate = 21 C FLOPs / P, with its
// size above a small multiple of C rate / FLOPs, tensor parallelism waits longer than it computes.
TEST(test_when_tensor_is_bound) {
  const double columns = 4096, params = 202.4e6, critical = 9 * 14.0 / 6 * columns * ROUND_FLOPS / params;
  for (int above = 0; above < 2; above++) {
    fsdp_device_profile *profile = round_machine(critical * (above ? 2.5 : 0.4), 50e9);
    fsdp_search_config config = search_of("llama2-7b", 12, 8, 512, 16, profile);
    config.base.mesh = (fsdp_mesh){0};
    fsdp_mesh_add(&config.base.mesh, "tensor", 8);
    fsdp_mesh_complete(&config.base.mesh);
    config.base.batch = 16;
    config.fixed[FSDP_SEARCH_MESH] = config.fixed[FSDP_SEARCH_STRATEGY] = config.fixed[FSDP_SEARCH_BATCH] =
        true;
    config.fixed[FSDP_SEARCH_CPU_OFFLOAD] = config.fixed[FSDP_SEARCH_SEQUENCE_PARALLEL] = true;
    fsdp_search_result result = run(&config);
    assert_int_equal(result.count, 1);
    const fsdp_search_plan *plan = &result.plans[0];
    assert_true(above ? plan->comm_s < plan->step_s / 2 : plan->comm_s > plan->step_s / 2);
    fsdp_search_result_release(&result);
    fsdp_device_profile_destroy(profile);
  }
}

// Between slow links replicas of shard groups send less than shards over all: hybrid. Between fast ones, or
// inside a node, one shard group leaves more memory and hides as much.
TEST(test_slow_links) {
  skip_if_sanitized();
  fsdp_device_profile *slow = round_machine(NODE_RATE, 10e9), *fast = round_machine(NODE_RATE, 8 * NODE_RATE);
  fsdp_search_config config = search_of("llama2-7b", 8, 16, 4096, 64, slow);
  config.limit_bytes[FSDP_SPACE_DEVICE] = INT64_C(20000000000); // less than whole states
  config.fixed_tensor = config.fixed_context = 1;
  fsdp_search_result result = run(&config);
  check_plans(&config, &result);
  assert_int_equal(
      result.plans[0].config.strategy == FSDP_HYBRID || result.plans[0].config.strategy == FSDP_ZERO1, 1);
  assert_true(size_of(&result.plans[0], "data") > 1);
  fsdp_search_result_release(&result);
  config.fixed_tensor = 0;
  config.profile = fast;
  result = run(&config);
  assert_int_equal(size_of(&result.plans[0], "tensor"), 1);
  fsdp_search_result_release(&result);
  fsdp_device_profile_destroy(slow);
  fsdp_device_profile_destroy(fast);
}

// With fewer sequences than ranks only tensor and context divide the rest; with many, neither is worth its
// communication.
TEST(test_tensor_for_small_batches) {
  skip_if_sanitized();
  fsdp_device_profile *profile = round_machine(NODE_RATE, 50e9);
  fsdp_search_config config = search_of("llama2-7b", 8, 8, 1024, 2, profile);
  fsdp_search_result result = run(&config);
  assert_true(size_of(&result.plans[0], "tensor") * size_of(&result.plans[0], "context") >= 4);
  fsdp_search_result_release(&result);
  config.global_batch = 128;
  result = run(&config);
  assert_int_equal(size_of(&result.plans[0], "tensor"), 1);
  assert_int_equal(size_of(&result.plans[0], "context"), 1);
  fsdp_search_result_release(&result);
  fsdp_device_profile_destroy(profile);
}
