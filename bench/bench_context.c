// Does attention's work of packed rows fall on the ranks of a context group as a plan counts it?
//
//   bench_context --model DIR --data FILE --ranks 4 --context-parallel 4 [--max-steps ROWS]
//                 [options of fsdp_plan]
//
// For rows in the order of training (64, or ROWS), runs the attention of a layer, forward and backward, of
// each rank of one group, one after the other on one thread, and takes the least processor time of three
// runs. What is measured is the time of each row's rank with most, of all rows together, over that of the
// mean of the group. Beside it is what the plan counts in pairs of a query and a key, over these rows and
// over those that it prices. Of a row that is one document all ranks have as much.
#include "kernels/kernels.h"
#include "launcher/setup/data.h"
#include "launcher/setup/document_work.h"
#include "runtime/base/check.h"
#include "runtime/base/random.h"
#include "runtime/data/dataset.h"
#include "runtime/data/sampler.h"
#include "runtime/device/pool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DEFAULT_ROWS = 64, RUNS = 3, DIRECTIONS = 2, PARTS_MAX = 64 };

// An op of the plan with operands of its own.
typedef struct op {
  const fsdp_instr *instr;
  fsdp_view views[FSDP_OP_MAX_OPERANDS];
} op;

typedef struct bench {
  fsdp_options options;
  fsdp_setup setup;
  fsdp_train_tokenizer tokenizer;
  fsdp_data_paths paths;
  fsdp_dataset *dataset;
  fsdp_pool *pool;
  op ops[DIRECTIONS];
  int32_t *starts;
} bench;

// Sums over rows, in seconds or in pairs.
typedef struct unequal {
  double most, mean;
} unequal;

static double now_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// The first instruction of the kind; NULL: there is none.
static const fsdp_instr *find_instr(const fsdp_program *program, fsdp_op_kind kind) {
  for (int i = 0; i < program->instr_count; i++)
    if (program->instrs[i].kind == FSDP_INSTR_OP && program->instrs[i].op == kind) return &program->instrs[i];
  return NULL;
}

// Small numbers, so that probabilities are neither 0 nor 1; the one operand of integers is the documents'.
static void make_operands(bench *b, op *made) {
  const fsdp_operand *operands = &b->setup.plan->program->operands[made->instr->first_operand];
  FSDP_CHECK(made->instr->operand_count <= FSDP_OP_MAX_OPERANDS, "%d operands", made->instr->operand_count);
  for (int i = 0; i < made->instr->operand_count; i++) {
    const fsdp_operand *o = &operands[i];
    const int64_t numel = o->size_bytes / fsdp_dtype_bytes(o->dtype);
    fsdp_view *view = &made->views[i];
    *view = (fsdp_view){.numel = numel, .dtype = o->dtype, .access = o->access};
    view->data = o->dtype == FSDP_I32 ? b->starts
                                      : fsdp_alloc_zeroed((size_t)numel, (size_t)fsdp_dtype_bytes(o->dtype));
    if (o->dtype == FSDP_F32) fsdp_random_normal(1, (uint64_t)i, 0, numel, 0, 0.1f, view->data);
  }
}

static void free_operands(op *made) {
  for (int i = 0; made->instr && i < made->instr->operand_count; i++)
    if (made->views[i].dtype != FSDP_I32) free(made->views[i].data);
}

// The least seconds of a few runs as `rank`.
static double time_op(const bench *b, const op *timed, int rank) {
  const fsdp_program *program = b->setup.plan->program;
  fsdp_op_attrs attrs = timed->instr->attrs;
  attrs.first_index = fsdp_affine_at(&timed->instr->first_index, &program->mesh, rank);
  attrs.second_index = fsdp_affine_at(&timed->instr->second_index, &program->mesh, rank);
  const fsdp_kernel_call call = {.kind = timed->instr->op,
                                 .attrs = &attrs,
                                 .operands = timed->views,
                                 .operand_count = timed->instr->operand_count,
                                 .pool = b->pool};
  double best = INFINITY;
  for (int run = 0; run < RUNS; run++) {
    const double begin = now_s();
    fsdp_cpu_kernels()->kernels[timed->instr->op](&call);
    best = fmin(best, now_s() - begin);
  }
  return best;
}

// Pairs of a query of `rank` and a key that it sees, in the row.
static double count_pairs(const bench *b, int rank) {
  const fsdp_rows *rows = &b->setup.plan->rows;
  const int64_t window = b->ops[0].instr->attrs.window;
  double pairs = 0;
  for (int64_t i = 0; i < rows->local_seq; i++) {
    const int64_t query = fsdp_rows_position(rows, &b->setup.plan->config.mesh, rank, i);
    const int64_t seen = query - b->starts[query] + 1;
    pairs += (double)(window > 0 && window < seen ? window : seen);
  }
  return pairs;
}

static void add(unequal *sum, const double *of_rank, int ranks) {
  double most = 0;
  for (int rank = 0; rank < ranks; rank++) {
    most = fmax(most, of_rank[rank]);
    sum->mean += of_rank[rank] / ranks;
  }
  sum->most += most;
}

static void measure(bench *b, int64_t row_count) {
  const fsdp_rows *rows = &b->setup.plan->rows;
  const int ranks = (int)rows->parts;
  const fsdp_sampler sampler = {
      .seed = (uint64_t)b->options.seed, .sample_count = b->dataset->sample_count, .global_batch = 1};
  unequal counted = {0}, forward = {0}, both = {0};
  double pairs[PARTS_MAX], seconds[PARTS_MAX], of_forward[PARTS_MAX];
  for (int64_t row = 0; row < row_count; row++) {
    fsdp_dataset_fill_starts(b->dataset, fsdp_sampler_sample(&sampler, 0, row, 0),
                             rows->parts * rows->local_seq, b->starts);
    for (int rank = 0; rank < ranks; rank++) {
      pairs[rank] = count_pairs(b, rank);
      of_forward[rank] = time_op(b, &b->ops[0], rank);
      seconds[rank] = of_forward[rank] + time_op(b, &b->ops[1], rank);
    }
    add(&counted, pairs, ranks);
    add(&forward, of_forward, ranks);
    add(&both, seconds, ranks);
  }
  const fsdp_document_work *work = &b->setup.plan->config.document_work[b->ops[0].instr->attrs.window > 0];
  printf("%lld rows of %lld tokens on the %d ranks of a context group, %.1f%% of attention left\n",
         (long long)row_count, (long long)b->setup.plan->config.seq, ranks, 100 * work->left);
  printf("the most of a rank over the mean, of rows:\n");
  printf("plan, over the rows that it prices   %.3f\n", work->context);
  printf("plan, these rows                     %.3f\n", counted.most / counted.mean);
  printf("measured, forward                    %.3f  (%.2f ms the mean of a rank)\n",
         forward.most / forward.mean, 1e3 * forward.mean / (double)row_count);
  printf("measured, forward and backward       %.3f  (%.2f ms)\n", both.most / both.mean,
         1e3 * both.mean / (double)row_count);
}

static fsdp_status open_data(bench *b, fsdp_error *error) {
  const fsdp_options *o = &b->options;
  const fsdp_plan_config *c = &b->setup.plan->config;
  fsdp_status status = fsdp_data_paths_find("data", o->data, &b->paths, error);
  if (status == FSDP_OK)
    status = fsdp_train_find_tokenizer(o, &b->setup, c->model.vocab_size, &b->tokenizer, error);
  const fsdp_dataset_config data = fsdp_data_config(o, &b->paths, &b->tokenizer, c->seq, c->model.vocab_size);
  return status == FSDP_OK ? fsdp_dataset_open(&data, &b->dataset, error) : status;
}

static fsdp_status run(bench *b, fsdp_error *error) {
  const fsdp_setup_ranks ranks = fsdp_setup_ranks_planned(&b->options);
  fsdp_status status = fsdp_setup_create(&b->options, FSDP_PROGRAM_PLAN, &ranks, &b->setup, error);
  if (status != FSDP_OK) return status;
  fsdp_plan_config *c = &b->setup.plan->config;
  const fsdp_rows *rows = &b->setup.plan->rows;
  b->ops[0].instr = find_instr(b->setup.plan->program, FSDP_OP_CONTEXT_ATTENTION);
  b->ops[1].instr = find_instr(b->setup.plan->program, FSDP_OP_CONTEXT_ATTENTION_BACKWARD);
  if (!b->ops[0].instr || !b->ops[1].instr || !c->documents || !b->options.data || c->batch != 1 ||
      rows->parts != ranks.ranks || rows->parts > PARTS_MAX || c->backend->device != FSDP_OP_CPU)
    return fsdp_fail(error, FSDP_ERR_OPTION,
                     "the plan is not of one context group of up to %d CPU ranks on one row with documents: "
                     "give --data FILE, --ranks N, --context-parallel N, --batch-size 1, --backend cpu",
                     PARTS_MAX);
  status = fsdp_document_work_find(&b->options, &b->setup, &b->setup.plan->config, error);
  if (status == FSDP_OK) status = open_data(b, error);
  if (status != FSDP_OK) return status;
  b->starts = fsdp_alloc((size_t)(rows->parts * rows->local_seq) * sizeof *b->starts);
  b->pool = fsdp_pool_create(1);
  for (int i = 0; i < DIRECTIONS; i++) make_operands(b, &b->ops[i]);
  const int64_t samples = b->dataset->sample_count;
  const int64_t wanted = b->options.max_steps ? b->options.max_steps : DEFAULT_ROWS;
  measure(b, wanted < samples ? wanted : samples);
  return FSDP_OK;
}

int main(int argc, char **argv) {
  static bench b;
  fsdp_error error = {0};
  fsdp_status status = fsdp_options_parse(&b.options, FSDP_PROGRAM_PLAN, argc, argv, &error);
  if (status == FSDP_OK) status = run(&b, &error);
  if (status != FSDP_OK) fprintf(stderr, "bench_context: error: %s\n", error.message);
  for (int i = 0; i < DIRECTIONS; i++) free_operands(&b.ops[i]);
  if (b.pool) fsdp_pool_destroy(b.pool);
  free(b.starts);
  fsdp_dataset_close(b.dataset);
  fsdp_data_paths_destroy(&b.paths);
  fsdp_setup_destroy(&b.setup);
  fsdp_options_destroy(&b.options);
  return (int)status;
}
