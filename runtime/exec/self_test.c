#include "runtime/exec/self_test.h"

#include "runtime/base/text.h"
#include "runtime/plan/narrow.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Two updates: gradients of a step are those of weights that the one before it has changed.
enum { STEPS = 3 };
#define LR     3e-4f
#define SPREAD 0.05f // norms and biases differ from element to element, too
#define SEED   24
// Of the norm of all gradients. A gradient below it is what rounding leaves of zero, as that of queries and
// keys in sequences of one token, and has no digit to compare.
#define IDLE_NORM 1e-6
// One below this is a sum of terms that cancel for the most part: its rounding is of their size.
#define LEAST_NORM 1e-2

typedef struct comparison {
  const fsdp_trial *trial, *alone;
  const fsdp_graph *graph;
  fsdp_self_test_report *report;
  char *message;
  size_t message_bytes;
} comparison;

// Whether a difference is within the tolerance; remembers the largest, and what it is of.
static bool accept(const comparison *c, double difference, const char *what) {
  fsdp_self_test_report *report = c->report;
  bool within = difference <= FSDP_SELF_TEST_TOLERANCE; // not where it is no number
  if (difference > report->largest || !*report->where) {
    report->largest = difference;
    snprintf(report->where, sizeof report->where, "%s", what);
  }
  return within;
}

static bool same_number(const comparison *c, const char *what, float found, float expected) {
  double difference = fabs((double)found - (double)expected) / fabs((double)expected);
  if (accept(c, found == expected ? 0 : difference, what) && isfinite(expected)) return true;
  snprintf(c->message, c->message_bytes, "%s is %.7g in place of %.7g", what, (double)found,
           (double)expected);
  return false;
}

static double norm_of(const fsdp_trial_tensor *tensor) {
  double squares = 0;
  for (int64_t e = 0; e < tensor->numel; e++)
    squares += (double)tensor->values[e] * (double)tensor->values[e];
  return sqrt(squares);
}

// Loads of experts are no gradients: they are much larger, and count what pads sequences.
static double norm_of_gradients(const comparison *c, const fsdp_trial_tensor *tensors) {
  double squares = 0;
  for (int p = 0; p < c->trial->param_count; p++)
    if (!c->graph->params[p].balances) squares += norm_of(&tensors[p]) * norm_of(&tensors[p]);
  return sqrt(squares);
}

// Loads that no bias moves by are read by nothing.
static bool is_compared(const comparison *c, int param) {
  return !c->graph->params[param].balances || c->trial->moves_biases;
}

// "[3, 17]", of an element of a parameter.
static const char *print_place(const fsdp_param *param, int64_t element, char out[96]) {
  int64_t index[FSDP_MAX_DIMS];
  size_t used = 0;
  for (int d = param->dims - 1; d >= 0; d--) {
    index[d] = element % param->shape[d];
    element /= param->shape[d];
  }
  for (int d = 0; d < param->dims; d++)
    used += (size_t)snprintf(out + used, 96 - used, "%s%lld", d ? ", " : "[", (long long)index[d]);
  snprintf(out + used, 96 - used, "]");
  return out;
}

// Names the element that differs most.
static void describe_gradient(const comparison *c, int step, int param, double difference) {
  const fsdp_trial_tensor *found = &c->trial->gradients[step * c->trial->param_count + param];
  const fsdp_trial_tensor *expected = &c->alone->gradients[step * c->trial->param_count + param];
  double most = -1;
  int64_t at = 0;
  char place[96];
  for (int64_t e = 0; e < found->numel; e++) {
    double apart = fabs((double)found->values[e] - (double)expected->values[e]);
    if (apart <= most) continue;
    most = apart;
    at = e;
    if (!isfinite(apart)) break;
  }
  snprintf(c->message, c->message_bytes,
           "the gradient of %s in step %d differs by %.2g of its norm, most at %s: %.7g in place of %.7g",
           found->name, step + 1, difference, print_place(&c->graph->params[param], at, place),
           (double)found->values[at], (double)expected->values[at]);
}

// From the loss backwards: what the first one is wrong by, others are too.
static bool same_gradients(const comparison *c, int step, bool *idle) {
  int count = c->trial->param_count;
  const fsdp_trial_tensor *found = &c->trial->gradients[step * count];
  const fsdp_trial_tensor *expected = &c->alone->gradients[step * count];
  double total = norm_of_gradients(c, expected);
  for (int p = count - 1; p >= 0; p--) {
    if (!is_compared(c, p)) continue;
    double norm = norm_of(&expected[p]), apart = fsdp_trial_difference(&found[p], &expected[p]);
    if (norm > 0) apart *= norm;
    if (norm <= IDLE_NORM * total && norm_of(&found[p]) <= IDLE_NORM * total) continue;
    idle[p] = false;
    double difference = apart > 0 || isnan(apart) ? apart / fmax(norm, LEAST_NORM * total) : 0;
    char what[FSDP_NAME_BYTES + 32];
    snprintf(what, sizeof what, "%s in step %d", found[p].name, step + 1);
    if (accept(c, difference, what)) continue;
    describe_gradient(c, step, p, norm > 0 ? apart / norm : difference);
    return false;
  }
  return true;
}

// In the order in which a step computes them.
static bool same_step(const comparison *c, int step, bool *idle) {
  char loss[64], norm[64];
  snprintf(loss, sizeof loss, "the loss of step %d", step + 1);
  snprintf(norm, sizeof norm, "the gradient norm of step %d", step + 1);
  return same_number(c, loss, c->trial->loss[step], c->alone->loss[step]) && same_gradients(c, step, idle) &&
         same_number(c, norm, c->trial->grad_norm[step], c->alone->grad_norm[step]);
}

bool fsdp_self_test_compare(const fsdp_trial *trial, const fsdp_trial *alone, const fsdp_graph *graph,
                            fsdp_self_test_report *report, char *message, size_t message_bytes) {
  const comparison c = {trial, alone, graph, report, message, message_bytes};
  bool *idle = fsdp_alloc((size_t)trial->param_count * sizeof *idle), same = true;
  report->parameters = report->idle = 0;
  report->largest = 0;
  report->where[0] = 0;
  for (int p = 0; p < trial->param_count; p++) idle[p] = true;
  for (int step = 0; step < trial->steps && same; step++) same = same_step(&c, step, idle);
  for (int p = 0; p < trial->param_count; p++) {
    report->parameters += is_compared(&c, p);
    report->idle += is_compared(&c, p) && idle[p];
  }
  free(idle);
  same =
      same && same_number(&c, "the loss of the evaluation", trial->evaluation_loss, alone->evaluation_loss);
  if (!same || report->idle < report->parameters) return same;
  snprintf(message, message_bytes, "all gradients are zero, which compares nothing");
  return false;
}

static fsdp_trial *run(const fsdp_plan *plan) {
  const fsdp_trial_config config = {.plan = plan,
                                    .steps = STEPS,
                                    .lr = LR,
                                    .seed = SEED,
                                    .spread = SPREAD,
                                    .gradient_steps = STEPS,
                                    .evaluate = true,
                                    .kernel_threads = 1};
  return fsdp_trial_run(&config);
}

static fsdp_status fail(const fsdp_self_test_report *report, const char *what, fsdp_error *error) {
  char mesh[FSDP_MESH_TEXT_BYTES];
  return fsdp_fail(
      error, FSDP_ERR_OPTION,
      "--self-test: a model of %d narrow layer%s on %d rank%s (%s) does not train as on one rank: "
      "%s; do not train with this plan: change what it cuts otherwise than the defaults do (--sharding, "
      "--op-strategies), and report the defect",
      report->layers, fsdp_plural(report->layers), report->ranks, fsdp_plural(report->ranks),
      fsdp_mesh_print(&report->mesh, ",", mesh), what);
}

static fsdp_status compare_plans(const fsdp_plan *plan, const fsdp_plan *plain, fsdp_self_test_report *report,
                                 fsdp_error *error) {
  char what[640];
  bool same = false;
  fsdp_trial *trial = run(plan), *alone = run(plain);
  const char *failure = trial->failure[0] ? trial->failure : alone->failure;
  if (failure[0])
    snprintf(what, sizeof what, "%s", failure);
  else
    same = fsdp_self_test_compare(trial, alone, plan->graph, report, what, sizeof what);
  fsdp_trial_destroy(trial);
  fsdp_trial_destroy(alone);
  return same ? FSDP_OK : fail(report, what, error);
}

// The loss of a rank's part of each sequence is none that one rank could make.
static fsdp_status check_losses(const fsdp_plan *plan, fsdp_error *error) {
  const fsdp_model_config *model = &plan->config.model;
  const bool of_rank =
      model->router_aux == FSDP_ROUTER_AUX_RANK && (model->router_aux_coef > 0 || model->router_z_coef > 0);
  if (!of_rank || plan->rows.parts == 1) return FSDP_OK;
  return fsdp_fail(
      error, FSDP_ERR_OPTION,
      "--self-test: with --aux-loss rank the router's loss is of each rank's rows, and these are a "
      "part of each sequence, so that no single rank has it: test with --aux-loss micro");
}

// The next node of a layer from `n` on; behind the last: the count.
static int next_of_layer(const fsdp_graph *graph, int layer, int n) {
  while (n < graph->forward_count && graph->forward[n].block != layer) n++;
  return n;
}

// Whether a layer of the twin has the ops and conversions of the plan's, in their order.
static bool is_layer_alike(const fsdp_graph *plan, int layer, const fsdp_graph *twin, int narrow) {
  int a = next_of_layer(plan, layer, 0), b = next_of_layer(twin, narrow, 0);
  while (a < plan->forward_count && b < twin->forward_count) {
    const fsdp_node *x = &plan->forward[a], *y = &twin->forward[b];
    if (x->kind != y->kind || x->conversion.from != y->conversion.from ||
        x->conversion.to != y->conversion.to)
      return false;
    a = next_of_layer(plan, layer, a + 1);
    b = next_of_layer(twin, narrow, b + 1);
  }
  return a == plan->forward_count && b == twin->forward_count;
}

// Whether routed rows of a layer take several waves, of which the twin has its own number.
static bool takes_waves(const fsdp_graph *graph, int layer) {
  bool waves = false;
  for (int n = next_of_layer(graph, layer, 0); n < graph->forward_count;
       n = next_of_layer(graph, layer, n + 1))
    waves = waves || graph->forward[n].attrs.first_routed > 0;
  return waves;
}

// The first layer of the plan that the twin's has other nodes than; -1: none.
static int unlike_layer(const fsdp_plan *plan, const fsdp_plan *twin, const fsdp_narrow *narrow) {
  for (int i = 0; i < twin->graph->block_count; i++)
    if (!takes_waves(plan->graph, narrow->layers[i]) &&
        !is_layer_alike(plan->graph, narrow->layers[i], twin->graph, i))
      return narrow->layers[i];
  return -1;
}

fsdp_status fsdp_self_test(const fsdp_plan *plan, fsdp_self_test_report *report, fsdp_error *error) {
  const fsdp_status losses = check_losses(plan, error);
  if (losses) return losses;
  fsdp_narrow *narrow = fsdp_narrow_create(plan);
  const fsdp_plan_config *c = &narrow->config;
  fsdp_plan *twin = NULL, *plain = NULL;
  fsdp_error reason;
  *report = (fsdp_self_test_report){.mesh = c->mesh,
                                    .ranks = fsdp_mesh_ranks(&c->mesh),
                                    .steps = STEPS,
                                    .layers = (int)c->model.num_layers,
                                    .micro_batches = c->micro_batches,
                                    .unlike = -1};
  fsdp_status status = fsdp_plan_create(c, &twin, &reason);
  if (!status) {
    const fsdp_plan_config alone = fsdp_narrow_alone(twin);
    status = fsdp_plan_create(&alone, &plain, &reason);
  }
  if (status)
    status = fsdp_fail(error, FSDP_ERR_OPTION, "--self-test: the narrow model cannot be planned: %.900s",
                       reason.message);
  else
    status = compare_plans(twin, plain, report, error);
  if (!status) report->unlike = unlike_layer(plan, twin, narrow);
  fsdp_plan_destroy(plain);
  fsdp_plan_destroy(twin);
  fsdp_narrow_destroy(narrow);
  return status;
}

const char *fsdp_self_test_print(const fsdp_self_test_report *report, char out[FSDP_SELF_TEST_TEXT]) {
  char mesh[FSDP_MESH_TEXT_BYTES], idle[64] = "", unlike[96] = "";
  if (report->idle) snprintf(idle, sizeof idle, " (%d of them zero)", report->idle);
  if (report->unlike >= 0)
    snprintf(unlike, sizeof unlike,
             "; layer %d of the plan is cut otherwise than the twin's, and this says nothing of it",
             report->unlike);
  snprintf(
      out, FSDP_SELF_TEST_TEXT,
      "%d layer%s on %d rank%s (%s) train%s as on one: %d steps of %d micro-batch%s, losses, norms, all %d "
      "gradients%s and an evaluation; largest difference %.1e (%s)%s",
      report->layers, fsdp_plural(report->layers), report->ranks, fsdp_plural(report->ranks),
      fsdp_mesh_print(&report->mesh, ",", mesh), report->layers == 1 ? "s" : "", report->steps,
      report->micro_batches, report->micro_batches == 1 ? "" : "es", report->parameters, idle,
      report->largest, report->where, unlike);
  return out;
}
