// Bounds and floors, by which a search leaves out what it never plans, against whole plans: for every kind on
// 8 and 16 ranks, a setting drawn at random on a machine drawn at random. None may exceed what the whole plan
// takes, and all must come close to it somewhere.
#include "runtime/plan/search/search.h"
#include "runtime/plan/search/search_internal.h"
#include "tests/support/draws.h"
#include "tests/support/random_plan.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Rounding of sums in another order.
#define ROUNDING 1e-9

// The greatest parts of whole plans that the bounds were.
typedef struct closest {
  double time[FSDP_BOUND_COUNT], memory[FSDP_SPACE_COUNT], value, work, links, batch;
  int plans;
} closest;

static double pick(random_source *random, double low, double high) {
  return low * pow(high / low, random_int(random, 0, 4) / 4.0);
}

static fsdp_search_config draw_search(random_source *random, const fsdp_device_profile *profile, int model,
                                      int ranks) {
  static const char *const presets[] = {"llama3-8b", "gpt2", "llama2-7b", "qwen3-30b-a3b"};
  fsdp_search_config c = search_on(profile, presets[model], 5, ranks);
  c.ranks_per_node = random_int(random, 0, 1) ? 8 : 4;
  c.base.seq = 1024;
  c.global_batch = 16 * random_int(random, 1, 3);
  if (model == 0) c.base.model.num_kv_heads = 2;
  if (model == 0) c.base.model.vocab_size = 500;
  if (model == 2) c.base.model.vocab_size = 32001; // no axis divides it
  c.base.reduce_dtype = random_int(random, 0, 1) ? FSDP_BF16 : FSDP_F32;
  c.base.master_dtype = random_int(random, 0, 3) ? FSDP_F32 : FSDP_BF16;
  c.base.moment_dtype = random_int(random, 0, 3) ? FSDP_F32 : FSDP_BF16;
  if (random_int(random, 0, 2) == 0) c.base.grad_clip = 0;
  c.fixed[FSDP_SEARCH_WRAP] = random_int(random, 0, 1) > 0;
  return c;
}

static fsdp_device_profile *draw_machine(random_source *random) {
  const double node_rate = pick(random, 2e9, 400e9);
  fsdp_device_profile *profile = round_machine(node_rate, node_rate * pick(random, 0.25, 4));
  profile->host_memory_rate = pick(random, 20e9, 2000e9);
  profile->up_rate = profile->down_rate = pick(random, 10e9, 100e9);
  profile->collective_slowdown = pick(random, 1, 1.3);
  profile->product_slowdown = pick(random, 1, 1.13);
  return profile;
}

// False if the kind's mesh does not divide the batch.
static bool draw_setting(random_source *random, const fsdp_search_config *search, const search_space *space,
                         const fsdp_search_kind *kind, fsdp_plan_config *c) {
  static const char *const recomputed[] = {"none", "none", "block", "block:1"};
  *c = search->base;
  c->mesh = kind->mesh;
  c->strategy = kind->strategy;
  c->cpu_offload = kind->cpu_offload;
  c->sequence_parallel = kind->sequence_parallel;
  int count = 0;
  while (search_batch(search, kind, count, &c->batch, &c->micro_batches)) count++;
  if (!count) return false;
  search_batch(search, kind, random_int(random, 0, count - 1), &c->batch, &c->micro_batches);
  c->prefetch = random_int(random, 0, 2);
  c->accumulate = (fsdp_accumulate)random_int(random, 0, 1);
  search_units_set(c, &space->units[random_int(random, 0, space->units_count - 1)]);
  fsdp_saving_parse(recomputed[random_int(random, 0, 3)], "-", FSDP_FATE_RECOMPUTE, &c->saving, NULL);
  if (random_int(random, 0, 4) == 0)
    fsdp_saving_parse("block_inputs", "-", FSDP_FATE_OFFLOAD, &c->saving, NULL);
  return true;
}

static fsdp_evaluation estimate(const fsdp_search_config *search, const fsdp_plan_config *config) {
  fsdp_evaluation e;
  int64_t drafts = 0;
  const fsdp_estimator machine = {search->profile, search->ranks_per_node, &drafts, NULL};
  assert_int_equal(fsdp_estimate_few(&machine, config, &e), FSDP_OK);
  return e;
}

static void check(const char *what, double bound, double whole, const fsdp_plan_config *c, double *most) {
  char mesh[FSDP_MESH_TEXT_BYTES], recompute[FSDP_SAVING_TEXT_BYTES];
  if (bound > whole * (1 + ROUNDING))
    fail_msg("%s: bound %g, whole plan %g: %s over %s, %s, wrap %d, %lld x %d, prefetch %d, accumulate %d, "
             "recompute %s",
             what, bound, whole, fsdp_strategy_name(c->strategy), fsdp_mesh_print(&c->mesh, ",", mesh),
             c->cpu_offload ? "states on the host" : "no offload", (int)c->wrap.kind, (long long)c->batch,
             c->micro_batches, c->prefetch, (int)c->accumulate,
             fsdp_saving_print(&c->saving, FSDP_FATE_RECOMPUTE, recompute));
  *most = fmax(*most, bound / whole);
}

// What kinds of one tensor and context have in common, drafted of the first of them.
typedef struct shared {
  search_floors floors;
  fsdp_evaluator evaluator;
} shared;

static void check_floor(const fsdp_search_config *search, const search_space *space,
                        const fsdp_search_kind *kind, const fsdp_plan_config *c, double step_s, shared *known,
                        closest *all) {
  fsdp_search_bound bound;
  int64_t batch;
  int index = 0, micro_batches;
  double any = 0;
  const search_floor *floor = search_floor_of(search, space, kind, false, &known->floors, &known->evaluator);
  check("layers of the largest", search_least_s(search, space, kind, floor, &bound), step_s, c, &any);
  floor = search_floor_of(search, space, kind, true, &known->floors, &known->evaluator);
  assert_int_equal(floor->drafted, 0);
  while (search_batch(search, kind, index, &batch, &micro_batches) && batch != c->batch) index++;
  assert_true(index < floor->count);
  check("layers of a micro-batch",
        search_batch_least_s(search, space, kind, c->micro_batches, &floor->batches[index]), step_s, c,
        &all->batch);
  check("layers", search_least_s(search, space, kind, floor, &bound), step_s, c, &any);
}

static void check_kind(random_source *random, const fsdp_search_config *search, const search_space *space,
                       const fsdp_search_kind *kind, shared *known, closest *all) {
  fsdp_plan_config config;
  fsdp_search_plan plan;
  fsdp_search_bound bound;
  fsdp_space where;
  if (!draw_setting(random, search, space, kind, &config)) return;
  if (fsdp_search_price(search, &config, &plan) != FSDP_OK) return;
  all->plans++;
  const double least_s = search_least_s(search, space, kind, NULL, &bound);
  check(fsdp_search_bound_name(bound), least_s, plan.step_s, &config, &all->time[bound]);
  check_floor(search, space, kind, &config, plan.step_s, known, all);
  const int64_t least = search_least_bytes(search, space, kind, &where);
  check("memory", (double)least, (double)plan.bytes[where], &config, &all->memory[where]);
  const int64_t value = search_value_bytes(space, kind, config.batch);
  check("a value", (double)value, (double)plan.bytes[FSDP_SPACE_DEVICE], &config, &all->value);
  // Everything kept and a unit ahead; then with another wrap and accumulation too.
  fsdp_plan_config kept = config;
  kept.saving.count = 0;
  if (kept.prefetch == 0) kept.prefetch = 1;
  check("links", estimate(search, &kept).links_s, plan.step_s, &config, &all->links);
  kept.wrap = (fsdp_wrap_policy){.kind = FSDP_WRAP_BLOCK};
  kept.expert_blocks = search->base.expert_blocks;
  kept.accumulate = kept.strategy == FSDP_ZERO1 ? FSDP_ACCUMULATE_LOCAL : FSDP_ACCUMULATE_REDUCE;
  check("work", estimate(search, &kept).work_s, plan.step_s, &config, &all->work);
}

// A setting of each kind, or of each `stride`-th.
static void check_search(random_source *random, const fsdp_search_config *search, int stride, closest *all) {
  search_space space;
  assert_int_equal(search_space_create(search, &space, NULL), FSDP_OK);
  shared known = {.evaluator = search_evaluator_of(search)};
  int count;
  fsdp_search_kind *kinds = search_kinds_create(search, &space, &count);
  for (int k = 0; k < count; k += stride) check_kind(random, search, &space, &kinds[k], &known, all);
  free(kinds);
  free(known.floors.items);
  fsdp_evaluator_release(&known.evaluator);
  search_space_release(&space);
}

TEST(test_bounds) {
  const int repeats = test_draws(1, 1);
  random_source random = {.seed = 3};
  closest all = {.plans = 0};
  for (int turn = 0; turn < 7 * repeats; turn++) {
    const int ranks = turn % 2 ? 16 : 8;
    fsdp_device_profile *profile = draw_machine(&random);
    fsdp_search_config search = draw_search(&random, profile, turn % 3, ranks);
    search.fixed[FSDP_SEARCH_SEQUENCE_PARALLEL] = turn % 7 < 6;
    check_search(&random, &search, test_stride(8), &all);
    fsdp_device_profile_destroy(profile);
  }
  print_message("%d plans; closest: compute %.3f, communication %.3f, updates %.3f, device %.3f, host %.3f, "
                "a value %.3f, work %.3f, links %.3f, layers %.3f\n",
                all.plans, all.time[FSDP_BOUND_COMPUTE], all.time[FSDP_BOUND_COMMUNICATION],
                all.time[FSDP_BOUND_UPDATE], all.memory[FSDP_SPACE_DEVICE], all.memory[FSDP_SPACE_HOST],
                all.value, all.work, all.links, all.batch);
  if (test_whole()) {
    assert_true(all.plans > 300);
    assert_true(all.time[FSDP_BOUND_UPDATE] > 0.8 && all.work > 0.9 && all.links > 0.98);
    assert_true(all.batch > 0.9);
    assert_true(all.memory[FSDP_SPACE_DEVICE] > 0.7 && all.memory[FSDP_SPACE_HOST] > 0.9);
    assert_true(all.value > 0.02);
  }
}

// Experts over an axis or not, in blocks or not.
TEST(test_bounds_of_experts) {
  random_source random = {.seed = 5};
  closest all = {.plans = 0};
  for (int turn = 0; turn < 3 * test_draws(1, 1); turn++) {
    fsdp_device_profile *profile = draw_machine(&random);
    fsdp_search_config search = draw_search(&random, profile, 3, 8);
    search.base.model.num_layers = 3;
    search.fixed[FSDP_SEARCH_WRAP] = false;
    check_search(&random, &search, 3 * test_stride(8), &all);
    fsdp_device_profile_destroy(profile);
  }
  print_message("%d plans of experts\n", all.plans);
  if (test_whole()) assert_true(all.plans > 60);
}

// Products alone: hardly anything to send, read or keep beside them.
TEST(test_compute) {
  fsdp_device_profile *profile = round_machine(1e15, 1e15);
  profile->memory_rate = profile->host_memory_rate = 1e18;
  profile->launch_s = 0;
  for (int ranks = 8; ranks <= 16; ranks *= 2) {
    fsdp_search_config search = search_on(profile, "llama2-7b", 5, ranks);
    search.base.seq = 256;
    search.global_batch = 4 * ranks;
    search.base.batch = 4;
    search.base.mesh = fsdp_mesh_of(1, ranks);
    search_space space;
    fsdp_search_plan plan;
    fsdp_search_bound bound;
    double most = 0;
    const fsdp_search_kind kind = {.mesh = search.base.mesh, .strategy = FSDP_FULL};
    assert_int_equal(search_space_create(&search, &space, NULL), FSDP_OK);
    assert_int_equal(fsdp_search_price(&search, &search.base, &plan), FSDP_OK);
    check("compute", search_least_s(&search, &space, &kind, NULL, &bound), plan.step_s, &search.base, &most);
    assert_int_equal(bound, FSDP_BOUND_COMPUTE);
    assert_true(most > 0.9);
    search_space_release(&space);
  }
  fsdp_device_profile_destroy(profile);
}

// Hardly any compute, and nodes between which a rank has a quarter to four times the rate inside: gradients
// are summed over replicas while weights are gathered for the backward.
TEST(test_links) {
  static const fsdp_strategy strategies[] = {FSDP_HYBRID, FSDP_ZERO1};
  for (int n = 0; n < 2 * 2 * 5; n++) {
    const double rate = 1e9, network = rate * 8 / 4 * (1 << n / 4);
    fsdp_device_profile *profile = round_machine(rate, network);
    fsdp_search_config search = search_on(profile, "llama2-7b", 12, 16);
    search.base.model.vocab_size = 500;
    search.base.seq = 512;
    search.global_batch = 16;
    search.base.mesh = fsdp_mesh_of(2, 8);
    search.base.strategy = strategies[n % 2];
    search.fixed[FSDP_SEARCH_WRAP] = n / 2 % 2;
    search_space space;
    fsdp_search_plan plan;
    fsdp_search_bound bound;
    double most = 0;
    const fsdp_search_kind kind = {
        .mesh = search.base.mesh, .strategy = search.base.strategy, .batch_parts = 16};
    assert_int_equal(search_space_create(&search, &space, NULL), FSDP_OK);
    assert_int_equal(fsdp_search_price(&search, &search.base, &plan), FSDP_OK);
    check("links", search_least_s(&search, &space, &kind, NULL, &bound), plan.step_s, &search.base, &most);
    assert_int_equal(bound, FSDP_BOUND_COMMUNICATION);
    assert_true(most > (search.fixed[FSDP_SEARCH_WRAP] || kind.strategy == FSDP_ZERO1 ? 0.9 : 0.65));
    fsdp_device_profile_destroy(profile);
    search_space_release(&space);
  }
}

// Weights that no device holds whole are gathered for every forward and every backward, and gradients reduced
// with every micro-batch.
TEST(test_links_in_little_memory) {
  const int64_t weights = INT64_C(2) * 24 * 202383360;
  double most[2] = {0};
  for (int n = 0; n < 8; n++) {
    const bool little = n % 2 > 0, blocks = n / 2 % 2 > 0;
    fsdp_device_profile *profile = round_machine(1e9, n / 4 ? 20e9 : 2e9);
    fsdp_search_config search = search_on(profile, "llama2-7b", 24, 16);
    search.base.model.vocab_size = 512;
    search.base.seq = 256;
    search.global_batch = 32;
    search.base.mesh = fsdp_mesh_of(1, 16);
    search.base.micro_batches = 2;
    search.base.prefetch = 1 + n / 4;
    if (blocks) search.base.wrap = (fsdp_wrap_policy){.kind = FSDP_WRAP_BLOCK};
    search.base.wrap.numel = 100000000;
    if (little) search.limit_bytes[FSDP_SPACE_DEVICE] = weights - 1;
    search_space space;
    fsdp_search_plan plan;
    fsdp_search_bound bound;
    const fsdp_search_kind kind = {.mesh = search.base.mesh, .strategy = FSDP_FULL, .batch_parts = 16};
    assert_int_equal(search_space_create(&search, &space, NULL), FSDP_OK);
    assert_int_equal(fsdp_search_price(&search, &search.base, &plan), FSDP_OK);
    const search_batch_floor none = {.layers_s = 0};
    check("links in little memory", search_batch_least_s(&search, &space, &kind, 2, &none), plan.step_s,
          &search.base, &most[little]);
    assert_true(search_least_s(&search, &space, &kind, NULL, &bound) <= plan.step_s);
    fsdp_device_profile_destroy(profile);
    search_space_release(&space);
  }
  assert_true(most[true] > 0.85 && most[false] < 0.6);
}

// States of the weights' own type are the weights where nothing shards them: no copy lies beside them.
TEST(test_equal_states) {
  static const fsdp_strategy strategies[] = {FSDP_NO, FSDP_GRAD_OP};
  fsdp_device_profile *profile = round_machine(100e9, 50e9);
  for (int n = 0; n < 4; n++) {
    fsdp_search_config search = search_on(profile, "llama2-7b", 5, 4);
    search.base.seq = 256;
    search.global_batch = 4;
    search.base.strategy = strategies[n % 2];
    search.base.mesh = fsdp_mesh_of(4, 1);
    if (n % 2) search.base.mesh = fsdp_mesh_of(1, 1), search.ranks = 1;
    search.base.master_dtype = n / 2 ? FSDP_F32 : FSDP_BF16;
    search.base.saving = fsdp_saving_of_blocks();
    search.base.grad_clip = 0;
    search_space space;
    fsdp_search_plan plan;
    fsdp_space where;
    double most = 0;
    const fsdp_search_kind kind = {.mesh = search.base.mesh, .strategy = search.base.strategy};
    assert_int_equal(search_space_create(&search, &space, NULL), FSDP_OK);
    assert_int_equal(fsdp_search_price(&search, &search.base, &plan), FSDP_OK);
    const int64_t least = search_least_bytes(&search, &space, &kind, &where);
    check("states", (double)least, (double)plan.bytes[where], &search.base, &most);
    assert_true(most > 0.75);
    search_space_release(&space);
  }
  fsdp_device_profile_destroy(profile);
}

// What links take at least of units inside layers, against estimates of each wrap and prefetch.
TEST(test_links_left) {
  random_source random = {.seed = 7};
  double most = 0;
  for (int turn = 0; turn < 6 * test_draws(1, 1); turn++) {
    fsdp_device_profile *profile = draw_machine(&random);
    fsdp_search_config search = draw_search(&random, profile, turn % 3, 16);
    search_space space;
    int count;
    search.base.model.num_layers = 24;
    search.fixed[FSDP_SEARCH_WRAP] = false;
    search.fixed[FSDP_SEARCH_SEQUENCE_PARALLEL] = true;
    assert_int_equal(search_space_create(&search, &space, NULL), FSDP_OK);
    space.units_count = space.usual_units_count; // nothing else is left out by it
    fsdp_search_kind *kinds = search_kinds_create(&search, &space, &count);
    for (int k = 0; k < count; k += test_stride(4)) {
      fsdp_plan_config config;
      if (!draw_setting(&random, &search, &space, &kinds[k], &config)) continue;
      if (config.wrap.kind == FSDP_WRAP_NONE) continue;
      fsdp_plan_config layers = config;
      layers.prefetch = 1;
      layers.wrap = (fsdp_wrap_policy){.kind = FSDP_WRAP_BLOCK};
      fsdp_evaluator evaluator = search_evaluator_of(&search);
      fsdp_evaluation one_ahead, e;
      const bool planned = fsdp_evaluate(&evaluator, &layers, FSDP_EVALUATE_FEW, &one_ahead) &&
                           fsdp_evaluate(&evaluator, &config, FSDP_EVALUATE_FEW, &e);
      const double bound = planned ? search_links_left(&search, &space) * one_ahead.links_s : 0;
      if (planned && e.links_s > 0) check("links of units inside layers", bound, e.links_s, &config, &most);
      fsdp_evaluator_release(&evaluator);
    }
    free(kinds);
    fsdp_device_profile_destroy(profile);
    search_space_release(&space);
  }
  print_message("links of units inside layers: closest %.3f\n", most);
  assert_true(most > 0.85);
}

// Every divisor of a rank's sequences, in order, as by trying them all.
TEST(test_batches) {
  fsdp_device_profile *profile = round_machine(1e9, 1e9);
  fsdp_search_config search = search_on(profile, "llama2-7b", 1, 1);
  search.base.seq = 2048;
  search.base.mesh = fsdp_mesh_of(1, 1);
  const fsdp_search_kind kind = {.mesh = search.base.mesh, .strategy = FSDP_FULL, .batch_parts = 1};
  const int64_t most = INT32_MAX / search.base.seq;
  const int64_t batches[] = {1,   2,    3,     4,      12,      49,        97,
                             720, 9973, 65536, 720720, 1000000, 999999937, 1000000000};
  for (size_t n = 0; n < sizeof batches / sizeof *batches; n++) {
    int index = 0, micro_batches;
    int64_t batch;
    search.global_batch = batches[n];
    for (int64_t b = 1; b <= batches[n] && b <= most; b++) {
      if (batches[n] % b || batches[n] / b > 1000000) continue;
      assert_true(search_batch(&search, &kind, index++, &batch, &micro_batches));
      assert_int_equal(batch, b);
      assert_int_equal(micro_batches, batches[n] / b);
    }
    assert_false(search_batch(&search, &kind, index, &batch, &micro_batches));
  }
  fsdp_device_profile_destroy(profile);
}

static int most_of(const char *axis, fsdp_search_config *search, int64_t seq, int64_t global_batch) {
  int count, most = 0;
  search->base.seq = seq;
  search->global_batch = global_batch;
  search_space space;
  assert_int_equal(search_space_create(search, &space, NULL), FSDP_OK);
  fsdp_search_kind *kinds = search_kinds_create(search, &space, &count);
  for (int k = 0; k < count; k++) most = (int)fmax(most, fsdp_mesh_size(&kinds[k].mesh, axis));
  free(kinds);
  search_space_release(&space);
  return most;
}

// Context cuts into fewer than 256 rows only as far as sequences are too few for the ranks, and shards what
// fsdp does not: every strategy that shards is tried on such meshes.
TEST(test_contexts) {
  fsdp_device_profile *profile = round_machine(1e9, 1e9);
  fsdp_search_config search = search_on(profile, "gpt2", 1, 64);
  int count, alone[FSDP_ZERO1 + 1] = {0};
  assert_int_equal(most_of(FSDP_AXIS_CONTEXT, &search, 512, 64), 2);
  assert_int_equal(most_of(FSDP_AXIS_CONTEXT, &search, 512, 16), 4);
  assert_int_equal(most_of(FSDP_AXIS_CONTEXT, &search, 32, 16), 2);
  search.base.seq = 1024;
  search.ranks = 16;
  search_space space;
  assert_int_equal(search_space_create(&search, &space, NULL), FSDP_OK);
  fsdp_search_kind *kinds = search_kinds_create(&search, &space, &count);
  for (int k = 0; k < count; k++)
    if (fsdp_mesh_size(&kinds[k].mesh, FSDP_AXIS_FSDP) == 1 &&
        fsdp_mesh_size(&kinds[k].mesh, FSDP_AXIS_CONTEXT) > 1)
      alone[kinds[k].strategy]++;
  for (int strategy = 0; strategy <= FSDP_ZERO1; strategy++) assert_true(alone[strategy] > 0);
  free(kinds);
  fsdp_device_profile_destroy(profile);
  search_space_release(&space);
}

// More ranks of tensor than GPT-2's twelve heads where a step's rows are few for a layer's weights.
TEST(test_more_tensor_than_heads) {
  fsdp_device_profile *profile = round_machine(1e9, 1e9);
  fsdp_search_config search = search_on(profile, "gpt2", 1, 64);
  search.ranks_per_node = 8;
  assert_int_equal(most_of(FSDP_AXIS_TENSOR, &search, 32, 4), 64);
  assert_int_equal(most_of(FSDP_AXIS_TENSOR, &search, 1024, 64), 8);
  fsdp_device_profile_destroy(profile);
}

// The set that offloads most: what takes a gemm to make. What takes none is made again, and no longer kept.
TEST(test_offloaded) {
  fsdp_device_profile *profile = round_machine(1e9, 1e9);
  fsdp_search_config search = search_on(profile, "llama2-7b", 3, 8);
  search.base.seq = 1024;
  search.global_batch = 16;
  search_space space;
  assert_int_equal(search_space_create(&search, &space, NULL), FSDP_OK);
  const search_saved *most = NULL;
  for (int c = 0; c < space.chain_count; c++)
    for (int s = 0; s < space.chains[c].count; s++) {
      const search_saved *set = &space.chains[c].sets[s];
      if (*set->offload && (!most || strlen(set->offload) > strlen(most->offload))) most = set;
    }
  assert_non_null(most);
  static const char *const dear[] = {"block_inputs", "linear", "attention"};
  static const char *const cheap[] = {"rmsnorm", "swiglu"};
  for (size_t i = 0; i < sizeof dear / sizeof *dear; i++) {
    assert_non_null(strstr(most->offload, dear[i]));
    assert_null(strstr(most->recompute, dear[i]));
  }
  for (size_t i = 0; i < sizeof cheap / sizeof *cheap; i++) {
    assert_non_null(strstr(most->recompute, cheap[i]));
    assert_null(strstr(most->offload, cheap[i]));
  }
  fsdp_device_profile_destroy(profile);
  search_space_release(&space);
}
