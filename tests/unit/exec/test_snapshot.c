// A snapshot holds the state as it was when it was begun, though steps continue beside slow copies; an
// exchange completes what replicas loaded by slices, and the low-precision copies.
#include "runtime/base/check.h"
#include "runtime/exec/state.h"
#include "tests/support/draws.h"
#include "tests/support/harness.h"
#include "tests/support/unit_test.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RANKS_MAX = 6, UNITS_MAX = 16, SNAPSHOT_STEP = 1 };

static const struct {
  fsdp_strategy strategy;
  int data, fsdp, tensor;
} places[] = {{FSDP_FULL, 1, 2, 1},   {FSDP_GRAD_OP, 1, 3, 1}, {FSDP_NO, 3, 1, 1},
              {FSDP_HYBRID, 2, 2, 1}, {FSDP_HYBRID, 3, 2, 1},  {FSDP_FULL, 1, 2, 3},
              {FSDP_NO, 2, 1, 2},     {FSDP_ZERO1, 1, 2, 1},   {FSDP_ZERO1, 2, 2, 1}};

static harness_config config_of(size_t place, bool offload, bool bf16) {
  harness_config config = {
      .plan = harness_small_plan(1), .steps = 4, .lr = 1e-2f, .seed = 7, .gradient_step = -1};
  config.plan.strategy = places[place].strategy;
  config.plan.mesh = fsdp_mesh_of(places[place].data, places[place].fsdp);
  fsdp_mesh_resize(&config.plan.mesh, FSDP_AXIS_TENSOR, places[place].tensor);
  config.plan.cpu_offload = offload;
  if (bf16) config.plan.param_dtype = config.plan.moment_dtype = FSDP_BF16;
  return config;
}

// What each rank's state and its snapshot hold, by unit and slot.
typedef struct copies {
  unsigned char *bytes[RANKS_MAX][UNITS_MAX][FSDP_SLOTS_MAX];
  int64_t counts[RANKS_MAX][UNITS_MAX][FSDP_SLOTS_MAX];
} copies;
static copies taken, expected;

static void free_copies(copies *all) {
  for (int r = 0; r < RANKS_MAX; r++)
    for (int u = 0; u < UNITS_MAX; u++)
      for (int slot = 0; slot < FSDP_SLOTS_MAX; slot++) free(all->bytes[r][u][slot]);
  memset(all, 0, sizeof *all);
}

static atomic_int snapshot_count;

static void count_snapshot(void *argument) {
  snapshot_count++;
}

static void begin_snapshot(const harness_config *config, fsdp_executor *executor, int rank, int step) {
  if (step == SNAPSHOT_STEP) fsdp_executor_begin_snapshot(executor, count_snapshot, NULL);
}

// Slow copies: updates that did not wait for them would change what they read.
static void delay_copies(const harness_config *config, int rank, const fsdp_instr *instr) {
  if (instr->kind == FSDP_INSTR_D2H && instr->unit >= 0)
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

static void keep_snapshot(const harness_config *config, fsdp_executor *executor, int rank) {
  const fsdp_plan *plan = fsdp_executor_config_of(executor)->plan;
  assert_true(plan->units->count <= UNITS_MAX);
  for (int u = 0; u < plan->units->count; u++) {
    for (int slot = 0; slot < FSDP_SLOTS_MAX; slot++) {
      int tensor = plan->unit_state[u].snapshot[slot];
      if (tensor < 0) continue;
      int64_t bytes = plan->program->tensors[tensor].bytes;
      taken.counts[rank][u][slot] = bytes;
      taken.bytes[rank][u][slot] = fsdp_alloc((size_t)bytes);
      memcpy(taken.bytes[rank][u][slot], fsdp_executor_tensor(executor, tensor), (size_t)bytes);
    }
  }
}

// The slices that the snapshot should have: read from the state when no stream runs.
static void keep_slices(const harness_config *config, fsdp_executor *executor, int rank) {
  const fsdp_plan *plan = fsdp_executor_config_of(executor)->plan;
  for (int u = 0; u < plan->units->count; u++) {
    const fsdp_unit *unit = &plan->units->units[u];
    if (unit->shard_numel == 0) continue;
    int place = fsdp_mesh_group_of(&plan->program->mesh, unit->replica_axes, rank).rank;
    int64_t slice = unit->shard_numel / 16 / unit->replica_count * 16;
    int64_t numel = unit->shard_numel - (unit->replica_count - 1) * slice;
    for (int slot = 0; slot < plan->optimizer->slot_count; slot++) {
      int64_t bytes = numel * fsdp_dtype_bytes(fsdp_plan_slot_dtype(plan, slot));
      expected.counts[rank][u][slot] = bytes;
      expected.bytes[rank][u][slot] = fsdp_alloc((size_t)bytes);
      fsdp_state_read_shard(executor, slot, u, place * slice, numel, expected.bytes[rank][u][slot]);
    }
  }
}

static void compare_copies(size_t place) {
  for (int r = 0; r < RANKS_MAX; r++)
    for (int u = 0; u < UNITS_MAX; u++)
      for (int slot = 0; slot < FSDP_SLOTS_MAX; slot++) {
        int64_t bytes = expected.counts[r][u][slot];
        assert_int_equal(taken.counts[r][u][slot], bytes);
        if (bytes && memcmp(taken.bytes[r][u][slot], expected.bytes[r][u][slot], (size_t)bytes) != 0)
          fail_msg("place %zu, rank %d, unit %d, slot %d: not the state after step %d", place, r, u, slot,
                   SNAPSHOT_STEP);
      }
}

static void train(const harness_config *config) {
  harness_result *result = harness_train(config);
  assert_string_equal(result->failure, "");
  char message[256];
  if (!harness_memory_as_planned(result, message, sizeof message)) fail_msg("%s", message);
  harness_free(result);
}

TEST(test_a_snapshot_is_of_one_step) {
  for (size_t place = 0; place < sizeof places / sizeof *places; place++) {
    for (int kind = 0; kind < 4; kind++) {
      if (test_sanitized() && kind != (int)place % 4) continue;
      harness_config config = config_of(place, kind % 2, kind / 2);
      config.plan.snapshot = true;
      config.after_step = begin_snapshot;
      config.before_instr = delay_copies;
      config.after_steps = keep_snapshot;
      snapshot_count = 0;
      train(&config);
      assert_int_equal(snapshot_count, places[place].data * places[place].fsdp * places[place].tensor);
      config = config_of(place, kind % 2, kind / 2);
      config.steps = SNAPSHOT_STEP + 1;
      config.after_steps = keep_slices;
      train(&config);
      compare_copies(place);
      free_copies(&taken);
      free_copies(&expected);
    }
  }
}

// By rank: whether the results of the step after the snapshot are known; and whether its copies gave up
// waiting for them, which a stream does that the results stand behind.
static atomic_bool results_known[RANKS_MAX], gave_up[RANKS_MAX];
enum { GIVE_UP_AFTER_MS = 20000 };

static void note_results(const harness_config *config, fsdp_executor *executor, int rank, int step) {
  begin_snapshot(config, executor, rank, step);
  if (step == SNAPSHOT_STEP + 1) results_known[rank] = true;
}

static void hold_copies(const harness_config *config, int rank, const fsdp_instr *instr) {
  // Without offload, what a unit has is copied down for a snapshot alone.
  if (instr->kind != FSDP_INSTR_D2H || instr->unit < 0) return;
  if (config->plan.cpu_offload && instr->stream != FSDP_STREAM_SNAPSHOT) return;
  for (int ms = 0; ms < GIVE_UP_AFTER_MS && !results_known[rank] && !gave_up[rank]; ms++)
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  if (!results_known[rank]) gave_up[rank] = true;
}

// A step's loss and norm come to the host while copies of a snapshot are still to be made.
TEST(test_results_pass_a_snapshot) {
  for (size_t place = 0; place < sizeof places / sizeof *places; place++) {
    if (test_sanitized() && place % 4) continue;
    for (int offload = 0; offload < 2; offload++) {
      harness_config config = config_of(place, offload, false);
      config.plan.snapshot = true;
      config.after_step = note_results;
      config.before_instr = hold_copies;
      for (int r = 0; r < RANKS_MAX; r++) results_known[r] = gave_up[r] = false;
      train(&config);
      for (int r = 0; r < RANKS_MAX; r++) assert_false(gave_up[r]);
      assert_true(results_known[0]);
    }
  }
}

// What replicas load by slices and exchange trains as what each of them loads whole, copies included.
TEST(test_slices_are_completed) {
  for (size_t place = 0; place < sizeof places / sizeof *places; place++) {
    for (int kind = 0; kind < 4; kind++) {
      if (test_sanitized() && kind != (int)place % 4) continue;
      harness_config config = config_of(place, kind % 2, kind / 2);
      harness_result *whole = harness_train(&config);
      config.plan.exchange = true;
      harness_result *sliced = harness_train(&config);
      assert_string_equal(whole->failure, "");
      assert_string_equal(sliced->failure, "");
      assert_memory_equal(sliced->loss, whole->loss, (size_t)whole->steps * sizeof *whole->loss);
      for (int p = 0; p < whole->param_count; p++)
        assert_memory_equal(sliced->parameters[p].values, whole->parameters[p].values,
                            (size_t)whole->parameters[p].numel * sizeof(float));
      harness_free(whole);
      harness_free(sliced);
    }
  }
}
