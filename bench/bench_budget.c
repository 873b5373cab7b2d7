// What work does a training step have, kernel by kernel?
//
//   bench_budget [options of fsdp_plan]
//
// Plans the step and prints, as JSON, each distinct kernel of the first rank with its launches, FLOPs and
// bytes, for bench/budget.py to price. Needs no GPU.
#include "bench/step_ops.h"
#include "launcher/report/progress.h"
#include "launcher/setup/setup.h"

static json_t *op_json(const step_op *op) {
  char label[STEP_OP_LABEL_BYTES];
  const fsdp_op_work work = step_op_work(op);
  return json_pack("{s:s, s:s, s:I, s:f, s:f, s:f}", "label", step_op_label(op, label), "op",
                   fsdp_op_name(op->instr->op), "count", (json_int_t)op->count, "flops", work.flops, "bytes",
                   work.bytes, "row_bytes", work.row_bytes);
}

static void print_plan(const fsdp_plan *plan, const char *model) {
  const fsdp_plan_config *c = &plan->config;
  step_ops list = step_ops_create(plan);
  json_t *ops = json_array();
  for (int i = 0; i < list.count; i++) json_array_append_new(ops, op_json(&list.ops[i]));
  json_t *report =
      json_pack("{s:s, s:I, s:I, s:I, s:f, s:I, s:o}", "model", model, "batch", (json_int_t)c->batch, "seq",
                (json_int_t)c->seq, "tokens", (json_int_t)(c->batch * c->seq * c->micro_batches),
                "flops_per_token", fsdp_model_flops_per_token(&c->model, c->seq, FSDP_FLOPS_CAUSAL),
                "arena_bytes", (json_int_t)plan->program->arena_bytes[FSDP_SPACE_DEVICE], "ops", ops);
  json_dumpf(report, stdout, JSON_INDENT(1));
  putchar('\n');
  json_decref(report);
  step_ops_destroy(&list);
}

int main(int argc, char **argv) {
  fsdp_options options;
  fsdp_setup setup = {0};
  fsdp_error error = {0};
  fsdp_status status = fsdp_options_parse(&options, FSDP_PROGRAM_PLAN, argc, argv, &error);
  if (status == FSDP_OK) {
    const fsdp_setup_ranks ranks = fsdp_setup_ranks_planned(&options);
    status = fsdp_setup_create(&options, FSDP_PROGRAM_PLAN, &ranks, &setup, &error);
  }
  if (status == FSDP_OK) print_plan(setup.plan, setup.model_name);
  if (status != FSDP_OK) fprintf(stderr, "bench_budget: error: %s\n", error.message);
  fsdp_setup_destroy(&setup);
  fsdp_options_destroy(&options);
  return (int)status;
}
