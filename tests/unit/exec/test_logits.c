// The logits of one row of an evaluation, and plans of evaluations alone.
#include "tests/support/draws.h"
#include "tests/support/harness.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <string.h>

enum { V = 101, RANKS_MAX = 4, ROWS_MAX = 16 };

typedef struct place {
  fsdp_strategy strategy;
  int data, fsdp, tensor, context;
  int64_t batch, seq;
  bool sequence_parallel, offload;
} place;

// Four sequences in all, but in the last ones.
static const place places[] = {
    {FSDP_FULL, 1, 1, 1, 1, 4, 12, false, false},   {FSDP_FULL, 1, 2, 1, 1, 2, 12, false, false},
    {FSDP_FULL, 1, 1, 2, 1, 4, 12, true, false},    {FSDP_FULL, 1, 1, 2, 1, 4, 12, false, true},
    {FSDP_FULL, 1, 1, 1, 2, 4, 12, false, false},   {FSDP_FULL, 1, 1, 2, 2, 4, 12, true, false},
    {FSDP_HYBRID, 2, 2, 1, 1, 1, 12, false, false}, {FSDP_NO, 2, 1, 2, 1, 2, 12, true, false},
    {FSDP_ZERO1, 1, 2, 1, 2, 2, 12, false, true},   {FSDP_GRAD_OP, 1, 4, 1, 1, 1, 12, false, false},
};
enum { PLACES = sizeof places / sizeof *places };

static fsdp_plan_config plan_of(const place *p) {
  fsdp_plan_config plan = harness_small_plan(1);
  plan.strategy = p->strategy;
  plan.mesh = (fsdp_mesh){0};
  fsdp_mesh_add(&plan.mesh, "data", p->data);
  fsdp_mesh_add(&plan.mesh, "fsdp", p->fsdp);
  fsdp_mesh_add(&plan.mesh, "tensor", p->tensor);
  fsdp_mesh_add(&plan.mesh, "context", p->context);
  fsdp_mesh_complete(&plan.mesh);
  plan.batch = p->batch;
  plan.seq = p->seq;
  plan.sequence_parallel = p->sequence_parallel;
  plan.cpu_offload = p->offload;
  plan.poison = true;
  plan.evaluation = plan.logits = true;
  return plan;
}

// ---- What is asked for

static int64_t asked_position;    // of sequence 0, or of none
static float found[RANKS_MAX][V]; // by rank
static const int64_t positions[] = {0, 5, 11};

// The row of the position on a rank.
static int64_t row_of(const fsdp_plan *plan, int rank, int64_t position) {
  int part;
  fsdp_plan_batch_part(plan, rank, &part);
  for (int64_t index = 0; index < plan->rows.local_seq && part == 0; index++)
    if (fsdp_rows_position(&plan->rows, &plan->units->mesh, rank, index) == position)
      return fsdp_rows_row(&plan->rows, 0, index);
  return FSDP_NO_ROW;
}

static void ask(const harness_config *config, fsdp_executor *executor, int rank) {
  const fsdp_plan *plan = fsdp_executor_config_of(executor)->plan;
  fsdp_executor_run_logits(executor, row_of(plan, rank, asked_position), found[rank]);
}

static harness_result *run(const place *p, int64_t position) {
  asked_position = position;
  harness_config config = {.plan = plan_of(p),
                           .steps = 1,
                           .lr = 0,
                           .seed = 3,
                           .spread = 0.2f,
                           .gradient_step = -1,
                           .after_steps = ask};
  harness_result *result = harness_train(&config);
  if (result->failure[0]) fail_msg("%s", result->failure);
  return result;
}

// ---- Tests

// On any mesh every rank gets the same bits, and those of one rank but for rounding.
TEST(test_meshes) {
  for (size_t i = 0; i < sizeof positions / sizeof *positions; i++) {
    float alone[V];
    harness_free(run(&places[0], positions[i]));
    memcpy(alone, found[0], sizeof alone);
    for (size_t k = 1 + i % (size_t)test_stride(3); k < PLACES; k += (size_t)test_stride(3)) {
      const place *p = &places[k];
      harness_free(run(p, positions[i]));
      for (int rank = 0; rank < p->data * p->fsdp * p->tensor * p->context; rank++) {
        assert_memory_equal(found[rank], found[0], sizeof alone);
        for (int v = 0; v < V; v++)
          if (!(fabsf(found[rank][v] - alone[v]) < 1e-4f))
            fail_msg("place %zu, position %lld, entry %d: %g and %g", k, (long long)positions[i], v,
                     (double)found[rank][v], (double)alone[v]);
      }
    }
  }
}

// Different positions have different logits; a row that no rank has gives none.
TEST(test_rows) {
  float first[V];
  harness_free(run(&places[4], 0));
  memcpy(first, found[0], sizeof first);
  harness_free(run(&places[4], 11));
  assert_memory_not_equal(first, found[0], sizeof first);
  harness_free(run(&places[4], 12));
  for (int v = 0; v < V; v++) assert_true(found[0][v] == 0);
}

// Where all tokens are one and all targets another, every row has the loss that the head's own kernel gives.
TEST(test_loss) {
  enum { TOKEN = 7, TARGET = 40, TOKENS = 4 * 4 * 12 };
  static int32_t tokens[TOKENS], targets[TOKENS];
  for (int i = 0; i < TOKENS; i++) tokens[i] = TOKEN, targets[i] = TARGET;
  for (size_t k = 0; k < 6; k++) {
    asked_position = 9;
    harness_config config = {.plan = plan_of(&places[k]),
                             .steps = 1,
                             .seed = 3,
                             .spread = 0.2f,
                             .gradient_step = -1,
                             .evaluate = true,
                             .tokens = tokens,
                             .targets = targets,
                             .after_steps = ask};
    harness_result *result = harness_train(&config);
    if (result->failure[0]) fail_msg("%s", result->failure);
    double sum = 0;
    for (int v = 0; v < V; v++) sum += exp((double)found[0][v]);
    const double loss = log(sum) - (double)found[0][TARGET];
    if (!(fabs(loss - (double)result->evaluation_loss) < 1e-5))
      fail_msg("place %zu: %.7f, of the logits %.7f", k, (double)result->evaluation_loss, loss);
    harness_free(result);
  }
}

// A plan of evaluations alone: its step is an evaluation, of a training plan's loss; its state is the
// parameters, its memory as planned.
TEST(test_only) {
  harness_config training = {
      .plan = plan_of(&places[0]), .steps = 1, .seed = 3, .spread = 0.2f, .gradient_step = -1};
  harness_result *trained = harness_train(&training);
  if (trained->failure[0]) fail_msg("%s", trained->failure);
  for (size_t k = 0; k < PLACES; k += (size_t)test_stride(3)) {
    const place *p = &places[k];
    char message[256];
    harness_config config = {.plan = plan_of(p), .steps = 2, .seed = 3, .spread = 0.2f, .gradient_step = -1};
    config.plan.evaluation_only = true;
    config.plan.evaluation = false;
    config.plan.poison = k % 2 == 1;
    harness_result *result = harness_train(&config);
    if (result->failure[0]) fail_msg("place %zu: %s", k, result->failure);
    if (!harness_memory_as_planned(result, message, sizeof message)) fail_msg("place %zu: %s", k, message);
    if (!(fabsf(result->loss[0] - trained->loss[0]) < 1e-5f))
      fail_msg("place %zu: loss %g, in training %g", k, (double)result->loss[0], (double)trained->loss[0]);
    int64_t bytes = 0, wholes = 0;
    for (int u = 0; u < result->plan->units->count; u++) {
      const fsdp_unit *unit = &result->plan->units->units[u];
      bytes += 4 * unit->shard_numel;
      if (result->plan->unit_state[u].whole >= 0) wholes += 4 * unit->padded_numel;
    }
    const fsdp_space space = p->offload ? FSDP_SPACE_HOST : FSDP_SPACE_DEVICE;
    assert_int_equal(result->planned.space[space].valley_bytes, bytes + (p->offload ? 0 : wholes));
    harness_free(result);
  }
  harness_free(trained);
}
