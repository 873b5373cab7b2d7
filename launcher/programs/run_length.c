#include "launcher/programs/run_length.h"

#include "launcher/setup/data.h"
#include "runtime/base/size.h"
#include "runtime/base/text.h"

// The steps of `global_batch` sequences that `epochs` of --data make.
static fsdp_status count_data(const fsdp_options *o, const fsdp_setup *setup, const fsdp_model_config *model,
                              int64_t global_batch, double epochs, int64_t *steps, fsdp_error *error) {
  fsdp_dataset *dataset;
  fsdp_status status = fsdp_data_open(o, setup, model->vocab_size, global_batch, &dataset, error);
  if (status == FSDP_OK) {
    fsdp_sampler sampler;
    status = fsdp_data_sampler(o, dataset, global_batch, &sampler, error);
    if (status == FSDP_OK) *steps = fsdp_sampler_steps(&sampler, epochs);
    fsdp_dataset_close(dataset);
  }
  return status;
}

fsdp_status fsdp_run_length_find(const fsdp_options *o, const fsdp_setup *setup,
                                 const fsdp_model_config *model, int64_t global_batch, int64_t *steps,
                                 fsdp_error *error) {
  int64_t least = INT64_MAX;
  *steps = 0;
  if (o->data) {
    fsdp_status status = count_data(o, setup, model, global_batch, o->num_epochs, &least, error);
    if (status) return status;
  }
  const int64_t step_tokens = global_batch * o->seq;
  if (o->tokens) least = fsdp_min_i64(least, o->tokens / step_tokens + (o->tokens % step_tokens > 0));
  if (o->max_steps) least = fsdp_min_i64(least, o->max_steps);
  if (least < INT64_MAX) *steps = least;
  return FSDP_OK;
}

fsdp_status fsdp_run_length_most(const fsdp_options *o, const fsdp_setup *setup,
                                 const fsdp_model_config *model, int64_t *most, fsdp_error *error) {
  *most = INT64_MAX;
  fsdp_status status = o->data ? count_data(o, setup, model, 1, 1, most, error) : FSDP_OK;
  if (o->tokens) *most = fsdp_min_i64(*most, o->tokens / o->seq);
  *most = fsdp_max_i64(*most, 1);
  return status;
}

bool fsdp_run_length_note(const fsdp_options *o, int64_t step_tokens, char note[FSDP_RUN_LENGTH_NOTE_BYTES]) {
  if (!o->tokens || o->tokens >= step_tokens) return false;
  snprintf(
      note, FSDP_RUN_LENGTH_NOTE_BYTES,
      "--tokens %s (%s) is less than one step of %s tokens, and the price is of one whole step: for less, "
      "lower the global batch or --seq-length",
      fsdp_print_int(o->tokens).text, fsdp_options_place(o, "tokens"), fsdp_print_int(step_tokens).text);
  return true;
}

fsdp_status fsdp_run_length_price(const fsdp_options *options, const fsdp_setup *setup,
                                  fsdp_price_report *report, fsdp_error *error) {
  const fsdp_plan *plan = setup->plan;
  const int ranks_per_node = fsdp_setup_ranks_planned(options).ranks_per_node;
  const double step_tokens = fsdp_plan_step_tokens(plan);
  int64_t steps;
  fsdp_status status = fsdp_price_report_create(plan, setup->profile, ranks_per_node, report, error);
  if (status) return status;
  status = fsdp_run_length_find(options, setup, &plan->config.model, (int64_t)step_tokens / plan->config.seq,
                                &steps, error);
  report->run = fsdp_run_price_of(steps, step_tokens, report->step.step_s,
                                  fsdp_mesh_ranks(&plan->config.mesh), options->gpu_hour);
  return status;
}
