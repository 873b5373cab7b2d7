// What does it cost to keep fewer activations on the device: the time of a step against the share of its
// FLOPs that is repeated, and against the bytes that go to the host and back?
//
//   bench_saving [options of fsdp_train] [--max-steps ROUNDS]
//
// Runs of one model differ in --recompute and --offload-activations alone, and lie in memory together. Every
// round runs one step of each, beginning with a different run than the round before; a ratio is of two steps
// of one round, so that what else the machine does meanwhile falls on both. Prints medians of the rounds, of
// time and of the process' processor time, and the quartiles of the ratios. One rank; the first round is not
// counted. All runs have the same losses, bit for bit, or it fails.
#include "bench/step_session.h"
#include "launcher/report/activations.h"
#include "launcher/train/binding.h"
#include "runtime/base/clock.h"
#include "runtime/base/size.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DEFAULT_ROUNDS = 7, TEXT_BYTES = 64 };

// A run. `quarters` quarters of the layers are recomputed whole, beside `names`.
static const struct {
  const char *names;
  int quarters;
  const char *offloaded;
} choices[] = {{"", 0, "none"},
               {"rmsnorm,swiglu", 0, "none"},
               {"rmsnorm,swiglu", 1, "none"},
               {"", 1, "none"},
               {"", 2, "none"},
               {"", 3, "none"},
               {"", 4, "none"},
               {"", 0, "block_inputs"},
               {"", 0, "residual,attention"},
               {"", 0, "block"},
               {"rmsnorm,swiglu", 0, "residual,attention"},
               {"", 4, "block_inputs"}};
enum { RUNS = sizeof choices / sizeof *choices };

typedef struct bench {
  int argc, threads, rounds;
  char **argv;
  fsdp_world *world;
  fsdp_binding binding;
  fsdp_options options[RUNS];
  step_session runs[RUNS];
  char recomputed[RUNS][TEXT_BYTES];
  double *ms[RUNS], *cpu_ms[RUNS]; // by round
} bench;

static void recompute_text(int run, int64_t layers, char out[TEXT_BYTES]) {
  const char *names = choices[run].names;
  int quarters = choices[run].quarters;
  if (!quarters)
    snprintf(out, TEXT_BYTES, "%s", *names ? names : "none");
  else if (quarters == 4)
    snprintf(out, TEXT_BYTES, "block");
  else
    snprintf(out, TEXT_BYTES, "%s%sblock:%d", names, *names ? "," : "",
             (int)fsdp_max_i64(1, layers * quarters / 4));
}

// The first run says how many layers the model has.
static fsdp_status open_run(bench *b, int run, fsdp_error *error) {
  int64_t layers = run ? b->runs[0].setup.plan->graph->block_count : 0;
  char recompute[] = "--recompute", offload[] = "--offload-activations", offloaded[TEXT_BYTES];
  recompute_text(run, layers, b->recomputed[run]);
  snprintf(offloaded, sizeof offloaded, "%s", choices[run].offloaded);
  char **argv = fsdp_alloc((size_t)(b->argc + 5) * sizeof *argv);
  memcpy(argv, b->argv, (size_t)b->argc * sizeof *argv);
  char *const added[] = {recompute, b->recomputed[run], offload, offloaded, NULL};
  memcpy(argv + b->argc, added, sizeof added);
  fsdp_status status = fsdp_options_parse(&b->options[run], FSDP_PROGRAM_TRAIN, b->argc + 4, argv, error);
  if (status == FSDP_OK && run == 0) {
    b->threads = b->options[0].threads ? (int)b->options[0].threads : b->binding.core_count;
    b->rounds = b->options[0].max_steps ? (int)b->options[0].max_steps : DEFAULT_ROUNDS;
  }
  if (status == FSDP_OK)
    status = step_session_open(&b->options[run], b->world, b->threads, b->rounds + 1, &b->runs[run], error);
  free(argv);
  return status;
}

static double cpu_now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

static void run_rounds(bench *b) {
  for (int run = 0; run < RUNS; run++) {
    b->ms[run] = fsdp_alloc((size_t)b->rounds * sizeof(double));
    b->cpu_ms[run] = fsdp_alloc((size_t)b->rounds * sizeof(double));
  }
  for (int round = -1; round < b->rounds; round++) {
    float losses[RUNS];
    for (int i = 0; i < RUNS; i++) {
      int run = (i + round + 1) % RUNS;
      fsdp_executor *executor = b->runs[run].session.executor;
      double cpu = cpu_now_ms();
      int64_t start_ns = fsdp_now_ns();
      fsdp_step_result result;
      fsdp_executor_run_step(executor, &result);
      fsdp_executor_drain(executor);
      losses[run] = result.loss;
      if (round < 0) continue;
      b->ms[run][round] = (double)(fsdp_now_ns() - start_ns) * 1e-6;
      b->cpu_ms[run][round] = cpu_now_ms() - cpu;
    }
    for (int run = 1; run < RUNS; run++)
      FSDP_CHECK(losses[0] == losses[run],
                 "round %d: loss %.9g with --recompute %s --offload-activations %s, but %.9g with all kept",
                 round, (double)losses[run], b->recomputed[run], choices[run].offloaded, (double)losses[0]);
  }
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

// The value below which `part` of the rounds' quotients lie; `of` NULL: of the values themselves.
static double quantile(const double *values, const double *of, int count, double part) {
  double *sorted = fsdp_alloc((size_t)count * sizeof *sorted);
  for (int i = 0; i < count; i++) sorted[i] = of ? values[i] / of[i] : values[i];
  qsort(sorted, (size_t)count, sizeof *sorted, ascending);
  double at = part * (count - 1);
  int below = (int)at, above = below + 1 < count ? below + 1 : below;
  double result = sorted[below] + (at - below) * (sorted[above] - sorted[below]);
  free(sorted);
  return result;
}

static void print_report(const bench *b) {
  const fsdp_plan *plan = b->runs[0].setup.plan;
  printf("%s, %d layers, %d threads, %lld tokens per step, %d rounds\n\n", b->runs[0].setup.model_name,
         plan->graph->block_count, b->threads, (long long)step_session_tokens(&b->runs[0]), b->rounds);
  printf(
      "| `--recompute` | `--offload-activations` | arena, MB | to the host and back, MB | FLOPs repeated | "
      "ms | processor ms | time over that with all kept (quartiles) | processor time over that |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (int run = 0; run < RUNS; run++) {
    const fsdp_plan *p = b->runs[run].setup.plan;
    fsdp_activations a = fsdp_activations_of(p);
    const double *ms = b->ms[run], *cpu = b->cpu_ms[run];
    printf("| `%s` | `%s` | %.1f | %.1f | %.1f%% | %.1f | %.1f | %.3f (%.3f to %.3f) | %.3f |\n",
           b->recomputed[run], choices[run].offloaded,
           (double)p->memory.space[FSDP_SPACE_DEVICE].arena_bytes * 1e-6, (double)a.offloaded_bytes * 1e-6,
           100 * a.repeated_flops / a.model_flops, quantile(ms, NULL, b->rounds, 0.5),
           quantile(cpu, NULL, b->rounds, 0.5), quantile(ms, b->ms[0], b->rounds, 0.5),
           quantile(ms, b->ms[0], b->rounds, 0.25), quantile(ms, b->ms[0], b->rounds, 0.75),
           quantile(cpu, b->cpu_ms[0], b->rounds, 0.5));
  }
}

static fsdp_status run(bench *b, fsdp_error *error) {
  if (b->world->size > 1)
    return fsdp_fail(error, FSDP_ERR_OPTION, "bench_saving runs on one rank, not on %d: leave mpirun out",
                     b->world->size);
  fsdp_binding_bind(b->world, &(fsdp_binding_config){.bind = true}, &b->binding);
  for (int i = 0; i < RUNS; i++) {
    fsdp_status status = open_run(b, i, error);
    if (status != FSDP_OK) return status;
  }
  run_rounds(b);
  print_report(b);
  return FSDP_OK;
}

int main(int argc, char **argv) {
  static bench b;
  fsdp_error error = {0};
  fsdp_status status = fsdp_world_create(&argc, &argv, &b.world, &error);
  b.argc = argc;
  b.argv = argv;
  if (status == FSDP_OK) status = run(&b, &error);
  if (status != FSDP_OK) fprintf(stderr, "bench_saving: error: %s\n", error.message);
  for (int i = 0; i < RUNS; i++) {
    free(b.ms[i]), free(b.cpu_ms[i]);
    step_session_close(&b.runs[i]);
    fsdp_options_destroy(&b.options[i]);
  }
  fsdp_world_destroy(b.world);
  return (int)status;
}
