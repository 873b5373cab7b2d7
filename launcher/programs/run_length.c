#include "launcher/programs/run_length.h"

#include "launcher/setup/tokenizer.h"
#include "runtime/base/size.h"
#include "runtime/data/dataset.h"
#include "runtime/data/sampler.h"

static fsdp_status count_data(const fsdp_options *o, const fsdp_setup *setup, const fsdp_model_config *model,
                              int64_t global_batch, int64_t *steps, fsdp_error *error) {
  fsdp_data_paths paths;
  fsdp_train_tokenizer tokenizer = {0};
  fsdp_dataset *dataset = NULL;
  fsdp_status status = fsdp_data_paths_find("data", o->data, &paths, error);
  if (status == FSDP_OK) status = fsdp_train_find_tokenizer(o, setup, model->vocab_size, &tokenizer, error);
  const fsdp_dataset_config config = {.files = &paths,
                                      .tokenizer = tokenizer.path,
                                      .only_bytes = tokenizer.asked_bytes,
                                      .no_bytes = *tokenizer.no_bytes ? tokenizer.no_bytes : NULL,
                                      .seq = o->seq,
                                      .global_batch = global_batch,
                                      .vocab_size = model->vocab_size,
                                      .packing = (fsdp_packing_choice)o->packing,
                                      .longer = (fsdp_long_documents)o->long_documents,
                                      .has_separator = fsdp_options_given(o, "document-separator"),
                                      .separator = o->document_separator};
  if (status == FSDP_OK) status = fsdp_dataset_open(&config, &dataset, error);
  if (status == FSDP_OK) {
    fsdp_sampler sampler = {.sample_count = fsdp_dataset_sample_count(dataset), .global_batch = global_batch};
    status = fsdp_sampler_hold_out(&sampler, o->eval_split, error);
    if (status == FSDP_OK) *steps = fsdp_sampler_steps(&sampler, o->num_epochs);
    fsdp_dataset_close(dataset);
  }
  fsdp_train_tokenizer_destroy(&tokenizer);
  fsdp_data_paths_destroy(&paths);
  return status;
}

fsdp_status fsdp_run_length_find(const fsdp_options *o, const fsdp_setup *setup,
                                 const fsdp_model_config *model, int64_t global_batch, int64_t *steps,
                                 fsdp_error *error) {
  int64_t least = INT64_MAX;
  *steps = 0;
  if (o->data) {
    fsdp_status status = count_data(o, setup, model, global_batch, &least, error);
    if (status) return status;
  }
  const int64_t step_tokens = global_batch * o->seq;
  if (o->tokens) least = fsdp_min_i64(least, o->tokens / step_tokens + (o->tokens % step_tokens > 0));
  if (o->max_steps) least = fsdp_min_i64(least, o->max_steps);
  if (least < INT64_MAX) *steps = least;
  return FSDP_OK;
}

fsdp_status fsdp_run_length_price(const fsdp_options *options, const fsdp_setup *setup, int ranks_per_node,
                                  fsdp_price_report *report, fsdp_error *error) {
  const fsdp_plan *plan = setup->plan;
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
