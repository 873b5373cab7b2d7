// How fast is a training step, and where does its time go?
//
//   [mpirun -np N] bench_step [options of fsdp_train] [--max-steps N]
//
// Trains on the built-in text from new weights and prints results of rank 0's median step: tokens/s of all
// ranks, time by op and stream, each gemm's GFLOP/s, and the rate of all gemms together. Beside that rate it
// prints the best rate that single gemms of the same shapes reach alone on this rank's cores (fsdp_gemm_run;
// bench_gemm compares that with every library). Collectives' time includes waiting for peers. With --profile
// FILE it prints what each op and stream is expected to take alone beside it. The first two steps are not
// counted.
#include "bench/step_session.h"
#include "kernels/cpu/gemm/gemm.h"
#include "launcher/train/binding.h"
#include "runtime/base/clock.h"
#include "runtime/base/random.h"
#include "runtime/plan/price/price.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WARM_UP_STEPS = 2, DEFAULT_STEPS = 10 };

typedef struct bench {
  fsdp_options options;
  fsdp_world *world;
  fsdp_binding binding;
  step_session run;
  int steps;
  double *step_ms;
  fsdp_step_sums *reports;
} bench;

static int threads_of(const bench *b) {
  return b->options.threads ? (int)b->options.threads : b->binding.core_count;
}

static void run_steps(bench *b) {
  for (int s = 0; s < WARM_UP_STEPS + b->steps; s++) {
    int64_t start_ns = fsdp_now_ns();
    fsdp_step_result result;
    fsdp_executor_run_step(b->run.session.executor, &result);
    fsdp_executor_drain(b->run.session.executor);
    if (s < WARM_UP_STEPS) continue;
    fsdp_step_stats stats;
    char message[256];
    fsdp_executor_step_stats(b->run.session.executor, result.step, &stats, message, (int)sizeof message);
    b->step_ms[s - WARM_UP_STEPS] = (double)(fsdp_now_ns() - start_ns) * 1e-6;
    b->reports[s - WARM_UP_STEPS] = stats.sums;
  }
}

// The step whose time is the median.
static int median_step(const bench *b) {
  for (int i = 0; i < b->steps; i++) {
    int below = 0, equal = 0;
    for (int j = 0; j < b->steps; j++) {
      below += b->step_ms[j] < b->step_ms[i];
      equal += j < i && b->step_ms[j] == b->step_ms[i];
    }
    if (below + equal == b->steps / 2) return i;
  }
  return 0;
}

// ---- Prices

// Milliseconds of a step alone on the machine, by op and by stream.
typedef struct priced {
  double op_ms[FSDP_OP_KIND_COUNT], stream_ms[FSDP_STREAM_COUNT];
} priced;

static void price_section(const fsdp_pricing *pricing, const fsdp_section *section, priced *sum) {
  for (int i = section->begin; i < section->end; i++) {
    const fsdp_instr *instr = &pricing->plan->program->instrs[i];
    const double ms = 1e3 * fsdp_price_of(pricing, i).seconds;
    sum->stream_ms[instr->stream] += ms;
    if (instr->kind == FSDP_INSTR_OP) sum->op_ms[instr->op] += ms;
  }
}

// Zeros without --profile.
static fsdp_status price_step(const bench *b, priced *sum, fsdp_error *error) {
  *sum = (priced){.op_ms = {0}};
  if (!b->run.setup.profile) return FSDP_OK;
  const fsdp_program *program = b->run.setup.plan->program;
  fsdp_pricing pricing;
  fsdp_status status =
      fsdp_pricing_create(b->run.setup.plan, b->run.setup.profile, b->world->local_size, &pricing, error);
  if (status != FSDP_OK) return status;
  int *order = fsdp_alloc((size_t)(program->micro_batches + 1) * sizeof *order);
  const int sections = fsdp_program_step_order(program, order);
  for (int s = 0; s < sections; s++) price_section(&pricing, &program->sections[order[s]], sum);
  free(order);
  return FSDP_OK;
}

// ---- Matrix products

static double step_flops(const fsdp_plan *plan, fsdp_op_kind op) {
  double flops = 0;
  int order[1024];
  int count = plan->program->micro_batches < 1000 ? fsdp_program_step_order(plan->program, order) : 0;
  for (int s = 0; s < count; s++) {
    const fsdp_section *section = &plan->program->sections[order[s]];
    for (int i = section->begin; i < section->end; i++) {
      const fsdp_instr *instr = &plan->program->instrs[i];
      if (instr->kind == FSDP_INSTR_OP && instr->op == op) flops += fsdp_op_flops(op, &instr->attrs);
    }
  }
  return flops;
}

// The best GFLOP/s of y (N, out) = x (N, in) * weight^T over a few runs.
static double product_rate(fsdp_pool *pool, int64_t N, int64_t in, int64_t out) {
  float *x = fsdp_alloc((size_t)(N * in) * 4), *weight = fsdp_alloc((size_t)(out * in) * 4);
  float *y = fsdp_alloc((size_t)(N * out) * 4);
  fsdp_random_normal(0, 1, 0, N * in, 0, 1, x);
  fsdp_random_normal(0, 2, 0, out * in, 0, 1, weight);
  fsdp_gemm gemm = {.m = N,
                    .n = out,
                    .k = in,
                    .a = x,
                    .b = weight,
                    .c = y,
                    .a_stride = in,
                    .b_stride = in,
                    .c_stride = out,
                    .b_transposed = true};
  double best = 0;
  for (int run = 0; run < 8; run++) {
    int64_t start = fsdp_now_ns();
    fsdp_gemm_run(pool, &gemm);
    best = fmax(best, 2.0 * (double)N * (double)in * (double)out / (double)(fsdp_now_ns() - start));
  }
  free(x), free(weight), free(y);
  return best;
}

// The gemms of a forward that have one shape.
typedef struct product_shape {
  int64_t in, out, count;
} product_shape;

// The shapes that the forward's gemms have on a rank, each once, into `shapes`; returns their number.
static int product_shapes(const fsdp_graph *graph, int room, product_shape *shapes) {
  int count = 0;
  for (int i = 0; i < graph->forward_count; i++) {
    const fsdp_node *node = &graph->forward[i];
    product_shape shape = {node->attrs.channels, node->attrs.vocabulary, 1};
    if (node->weight_count > 0)
      shape = (product_shape){graph->values[node->operands[0].value].local[1],
                              graph->values[node->operands[node->operand_count - 1].value].local[1], 1};
    else if (node->kind != FSDP_OP_LINEAR_CROSS_ENTROPY)
      continue;
    int same = 0;
    while (same < count && (shapes[same].in != shape.in || shapes[same].out != shape.out)) same++;
    FSDP_CHECK(same < room, "a model with products of more than %d shapes", room);
    if (same == count)
      shapes[count++] = shape;
    else
      shapes[same].count++;
  }
  return count;
}

// Milliseconds that the step's gemms would take at the rates that their shapes reach alone.
static double ideal_product_ms(const bench *b, double *best_rate) {
  const fsdp_plan_config *c = &b->run.setup.plan->config;
  int64_t N = c->batch * b->run.setup.plan->rows.local_seq;
  product_shape shapes[32];
  int count = product_shapes(b->run.setup.plan->graph, 32, shapes);
  fsdp_pool *pool = fsdp_pool_create(threads_of(b));
  double ms = 0;
  *best_rate = 0;
  for (int i = 0; i < count; i++) {
    double rate = product_rate(pool, N, shapes[i].in, shapes[i].out);
    double flops =
        6.0 * (double)(N * c->micro_batches * shapes[i].count) * (double)shapes[i].in * (double)shapes[i].out;
    ms += flops / rate * 1e-6;
    *best_rate = fmax(*best_rate, rate);
  }
  fsdp_pool_destroy(pool);
  return ms;
}

static void print_price(const bench *b, double ms) {
  if (b->run.setup.profile) printf(" %9.2f expected", ms);
  putchar('\n');
}

static void print_report(const bench *b, const priced *expected) {
  const fsdp_plan *plan = b->run.setup.plan;
  int median = median_step(b);
  const fsdp_step_sums *r = &b->reports[median];
  double ms = b->step_ms[median], product_ms = 0, product_flops = 0, best_rate = 0;
  double tokens = (double)step_session_tokens(&b->run);
  printf("%s, %d ranks of %d threads, %.0f tokens per step, %s\n", b->run.setup.model_name, b->world->size,
         threads_of(b), tokens, fsdp_gemm_library(plan->config.param_dtype));
  printf("median step %.1f ms, %.0f tokens/s\n\n%-32s %10s %7s %9s\n", ms, tokens / ms * 1e3, "op of rank 0",
         "ms", "share", "GFLOP/s");
  for (int op = 0; op < FSDP_OP_KIND_COUNT; op++) {
    if (r->op_ms[op] <= 0) continue;
    double flops = step_flops(plan, (fsdp_op_kind)op);
    printf("%-32s %10.2f %6.1f%%", fsdp_op_name((fsdp_op_kind)op), r->op_ms[op], 100 * r->op_ms[op] / ms);
    if (flops > 0)
      printf(" %9.1f", flops / r->op_ms[op] * 1e-6);
    else
      printf("%10s", "");
    print_price(b, expected->op_ms[op]);
    if (!fsdp_op_makes_gemms((fsdp_op_kind)op)) continue;
    product_ms += r->op_ms[op];
    product_flops += flops;
  }
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) {
    printf("stream %-25s %10.2f %6.1f%%%10s", fsdp_stream_name((fsdp_stream)s), r->busy_ms[s],
           100 * r->busy_ms[s] / ms, "");
    print_price(b, expected->stream_ms[s]);
  }
  double ideal_ms = ideal_product_ms(b, &best_rate);
  printf(
      "\nmatrix products: %.1f%% of the step, %.1f GFLOP/s; alone, the same shapes take %.1f ms, so they run "
      "at %.0f%%\n"
      "of that (the loss's softmax counted as product time); the best single product reaches %.1f GFLOP/s\n",
      100 * product_ms / ms, product_flops / product_ms * 1e-6, ideal_ms, 100 * ideal_ms / product_ms,
      best_rate);
}

static fsdp_status run(bench *b, fsdp_error *error) {
  fsdp_binding_bind(b->world, &(fsdp_binding_config){.bind = true}, &b->binding);
  b->steps = b->options.max_steps ? (int)b->options.max_steps : DEFAULT_STEPS;
  b->step_ms = fsdp_alloc_zeroed((size_t)b->steps, sizeof *b->step_ms);
  b->reports = fsdp_alloc_zeroed((size_t)b->steps, sizeof *b->reports);
  fsdp_status status =
      step_session_open(&b->options, b->world, threads_of(b), b->steps + WARM_UP_STEPS, &b->run, error);
  priced expected;
  if (status == FSDP_OK) status = price_step(b, &expected, error);
  if (status != FSDP_OK) return status;
  run_steps(b);
  fsdp_world_barrier(b->world);
  if (b->world->rank == 0) print_report(b, &expected);
  fsdp_world_barrier(b->world);
  return FSDP_OK;
}

int main(int argc, char **argv) {
  static bench b;
  fsdp_error error = {0};
  fsdp_status status = fsdp_world_create(&argc, &argv, &b.world, &error);
  if (status == FSDP_OK) status = fsdp_options_parse(&b.options, FSDP_PROGRAM_TRAIN, argc, argv, &error);
  if (status == FSDP_OK) status = run(&b, &error);
  if (status != FSDP_OK) fprintf(stderr, "bench_step: error: %s\n", error.message);
  free(b.step_ms), free(b.reports);
  step_session_close(&b.run);
  fsdp_options_destroy(&b.options);
  fsdp_world_destroy(b.world);
  return (int)status;
}
