// Replicas hold the same bits, whatever is sharded, offloaded or rounded; one bit of one of them is found and
// named. The check section reads what it says.
#include "bench/world_inproc.h"
#include "launcher/train/replicas.h"
#include "runtime/base/check.h"
#include "tests/support/harness.h"
#include "tests/support/unit_test.h"

#include <string.h>

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

enum { RANKS_MAX = 24 };

// The comparison by threads, and what each found.
typedef struct comparison {
  const fsdp_mesh *mesh;
  const fsdp_axis_set *axes;
  const uint64_t *digests; // of all ranks
  int count;
  fsdp_drift drifts[RANKS_MAX];
  bool agrees[RANKS_MAX][RANKS_MAX];
} comparison;

static void compare_one(fsdp_world *world, void *argument) {
  comparison *c = argument;
  const fsdp_digests mine = {c->mesh, c->axes, c->digests + (int64_t)world->rank * c->count, c->count};
  c->drifts[world->rank] = (fsdp_drift){.agrees = c->agrees[world->rank]};
  fsdp_replicas_compare(world, &mine, &c->drifts[world->rank]);
}

// What rank 0 found; all find the same.
static fsdp_drift compare_all(comparison *c, bool *agrees) {
  int ranks = fsdp_mesh_ranks(c->mesh);
  assert_true(ranks <= RANKS_MAX);
  fsdp_inproc_job_run(
      &(fsdp_inproc_job){.size = ranks, .ranks_per_node = 4, .run = compare_one, .argument = c}, NULL);
  for (int r = 1; r < ranks; r++) {
    assert_int_equal(c->drifts[r].digest, c->drifts[0].digest);
    if (c->drifts[0].digest < 0) continue;
    assert_int_equal(c->drifts[r].rank, c->drifts[0].rank);
    assert_int_equal(c->drifts[r].agreement, c->drifts[0].agreement);
    assert_memory_equal(c->agrees[r], c->agrees[0], (size_t)ranks * sizeof(bool));
  }
  memcpy(agrees, c->agrees[0], (size_t)ranks * sizeof(bool));
  return c->drifts[0];
}

static fsdp_drift compare(const harness_result *result, bool agrees[RANKS_MAX]) {
  fsdp_axis_set axes[64];
  comparison c = {.mesh = &result->plan->program->mesh,
                  .axes = axes,
                  .digests = result->digests,
                  .count = fsdp_plan_digest_count(result->plan)};
  assert_true(c.count <= 64);
  for (int d = 0; d < c.count; d++)
    axes[d] = result->plan->units->units[fsdp_plan_digest_unit(result->plan, d, NULL)].replica_axes;
  return compare_all(&c, agrees);
}

static const struct {
  fsdp_strategy strategy;
  int data, fsdp, tensor; // norms have replicas over tensor, weights have none
} places[] = {{FSDP_NO, 2, 1, 1},   {FSDP_NO, 4, 1, 1},     {FSDP_HYBRID, 2, 2, 1}, {FSDP_HYBRID, 3, 2, 1},
              {FSDP_FULL, 1, 2, 2}, {FSDP_HYBRID, 2, 1, 4}, {FSDP_ZERO1, 2, 2, 1},  {FSDP_ZERO1, 1, 2, 2}};

// bf16 states are rounded with random bits, which must be the same in all replicas.
TEST(test_replicas_agree) {
  for (size_t p = 0; p < sizeof places / sizeof *places; p++)
    for (int kind = 0; kind < 4; kind++) {
      harness_config config =
          config_of(places[p].strategy, places[p].data, places[p].fsdp, kind % 2, kind / 2);
      fsdp_mesh_resize(&config.plan.mesh, FSDP_AXIS_TENSOR, places[p].tensor);
      harness_result *result = harness_train(&config);
      bool agrees[RANKS_MAX];
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
  if (rank != flipped.rank) return;
  const fsdp_plan *plan = fsdp_executor_config_of(executor)->plan;
  const fsdp_unit_state *state = &plan->unit_state[flipped.unit];
  int tensor = state->slot[flipped.part];
  unsigned char *bytes = fsdp_executor_tensor(executor, tensor);
  bytes[plan->program->tensors[tensor].bytes / 2] ^= 0x10;
}

TEST(test_one_bit_is_found) {
  for (int rank = 0; rank < 6; rank++) {
    harness_config config = config_of(FSDP_HYBRID, 3, 2, rank % 2, rank / 3);
    config.after_steps = flip_bit;
    flipped = (flip){.rank = rank, .unit = rank % 4, .part = rank % 3};
    harness_result *result = harness_train(&config);
    assert_string_equal(result->failure, "");
    bool agrees[RANKS_MAX];
    fsdp_drift drift = compare(result, agrees);
    assert_true(drift.digest >= 0);
    assert_int_equal(drift.digest % 3, flipped.part);
    assert_int_equal(fsdp_plan_digest_unit(result->plan, drift.digest, NULL), flipped.unit);
    assert_int_equal(drift.rank, rank % 2);
    assert_int_equal(drift.agreement, 2);
    for (int replica = 0; replica < 3; replica++) assert_int_equal(agrees[replica], replica != rank / 2);
    harness_free(result);
  }
}

// ---- Who is named

TEST(test_majority) {
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
    int agreement = fsdp_replicas_majority(cases[i].digests, cases[i].replicas, agrees);
    assert_int_equal(agreement, cases[i].agreement);
    assert_memory_equal(agrees, cases[i].agrees, (size_t)cases[i].replicas * sizeof *agrees);
  }
}

// One digest of one rank differs, over any of three sets of axes of a mesh of 2 x 3 x 2: its group is found,
// and of several the first digest's lowest.
TEST(test_which_group) {
  fsdp_mesh mesh = {0};
  assert_true(fsdp_mesh_add(&mesh, "data", 2) && fsdp_mesh_add(&mesh, "fsdp", 3));
  assert_true(fsdp_mesh_add(&mesh, "tensor", 2));
  const fsdp_axis_set data = fsdp_mesh_axes(&mesh, "data"), tensor = fsdp_mesh_axes(&mesh, "tensor");
  const fsdp_axis_set axes[4] = {data, tensor, data, data | tensor};
  uint64_t digests[12][4];
  bool agrees[RANKS_MAX];
  comparison c = {.mesh = &mesh, .axes = axes, .digests = &digests[0][0], .count = 4};
  for (int wrong = -1; wrong < 4; wrong++)
    for (int rank = 0; rank < (wrong < 0 ? 1 : 12); rank++) {
      // Rank = data * 6 + fsdp * 2 + tensor: what should agree is made of the other coordinates.
      for (int r = 0; r < 12; r++) {
        const int f = r / 2 % 3, t = r % 2, d = r / 6;
        const int alike[4] = {10 + 2 * f + t, 20 + 3 * d + f, 30 + 2 * f + t, 40 + f};
        for (int i = 0; i < 4; i++) digests[r][i] = (uint64_t)(alike[i] + 100 * (i == wrong && r == rank));
      }
      if (wrong >= 0) digests[11][3] += 7; // of two that differ the first is named
      fsdp_drift drift = compare_all(&c, agrees);
      assert_int_equal(drift.digest, wrong);
      if (wrong < 0) continue;
      static const int lowest[3][12] = {{0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5},
                                        {0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10},
                                        {0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5}};
      if (wrong < 3) assert_int_equal(drift.rank, lowest[wrong][rank]);
      if (wrong == 3) assert_int_equal(drift.rank, rank / 2 % 3 * 2 < 4 ? rank / 2 % 3 * 2 : 4);
      // Of two each, or of four, of which rank 11 may be a second one that differs.
      const int agreement = wrong < 3 ? 0 : rank / 2 % 3 == 2 && rank != 11 ? 2 : 3;
      assert_int_equal(drift.agreement, agreement);
    }
}

// ---- The section

// Present if there are replicas and a comparison is requested; it reads every byte of the state once and
// writes none.
TEST(test_section) {
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
