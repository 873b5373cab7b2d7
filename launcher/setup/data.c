#include "launcher/setup/data.h"

#include "runtime/base/check.h"

#include <stdlib.h>

fsdp_dataset_config fsdp_data_config(const fsdp_options *options, const fsdp_data_paths *files,
                                     const fsdp_train_tokenizer *tokenizer, int64_t seq, int64_t vocab_size) {
  const bool sized = fsdp_options_given(options, "batch-size") || fsdp_options_given(options, "grad-accum");
  const bool searches = options->search || options->auto_plan || (options->machines && !options->price);
  return (fsdp_dataset_config){.files = files,
                               .tokenizer = *tokenizer->path ? tokenizer->path : NULL,
                               .only_bytes = tokenizer->asked_bytes,
                               .no_bytes = *tokenizer->no_bytes ? tokenizer->no_bytes : NULL,
                               .seq = seq,
                               .global_batch = 1,
                               .searches_batch = options->global_batch || (searches && !sized),
                               .vocab_size = vocab_size,
                               .packing = (fsdp_packing_choice)options->packing,
                               .longer = (fsdp_long_documents)options->long_documents,
                               .has_separator = options->document_separator >= 0,
                               .separator = options->document_separator};
}

fsdp_status fsdp_data_open(const fsdp_options *options, const fsdp_setup *setup, int64_t vocab_size,
                           int64_t global_batch, fsdp_dataset **dataset, fsdp_error *error) {
  fsdp_data_paths paths;
  fsdp_train_tokenizer tokenizer = {0};
  *dataset = NULL;
  fsdp_status status = fsdp_data_paths_find("data", options->data, &paths, error);
  if (status == FSDP_OK) status = fsdp_train_find_tokenizer(options, setup, vocab_size, &tokenizer, error);
  fsdp_dataset_config config = fsdp_data_config(options, &paths, &tokenizer, options->seq, vocab_size);
  config.global_batch = global_batch;
  if (status == FSDP_OK) status = fsdp_dataset_open(&config, dataset, error);
  fsdp_data_paths_destroy(&paths);
  return status;
}

// Weights of the data, if it has any.
static fsdp_status mix(const fsdp_options *options, const fsdp_dataset *dataset, fsdp_sampler *sampler,
                       fsdp_error *error) {
  const int count = dataset->group_count;
  if (count == 1) return FSDP_OK;
  fsdp_error why;
  fsdp_sampler_group *groups = fsdp_alloc_zeroed((size_t)count, sizeof *groups);
  for (int g = 0; g < count; g++) {
    const fsdp_dataset_group group = fsdp_dataset_group_at(dataset, g);
    groups[g] =
        (fsdp_sampler_group){.share = group.share, .first = group.first_sample, .count = group.sample_count};
  }
  const fsdp_status status = fsdp_sampler_mix(sampler, groups, count, &why);
  free(groups);
  return status ? fsdp_refuse(options, error, status, "{A data}: %.600s", why.message) : status;
}

// In place of the samples that *sampler holds out: about as many, of whole records.
static fsdp_status hold_out_records(const fsdp_options *options, fsdp_dataset *dataset, fsdp_sampler *sampler,
                                    fsdp_error *error) {
  int64_t held[FSDP_SAMPLER_GROUPS_MAX] = {sampler->held_out};
  for (int g = 0; g < sampler->group_count; g++) held[g] = sampler->groups[g].held_out;
  fsdp_status status = fsdp_dataset_hold_out(dataset, sampler->seed, held, error);
  if (status != FSDP_OK) return status;
  const fsdp_sampler other = *sampler;
  *sampler = (fsdp_sampler){
      .seed = other.seed, .sample_count = dataset->sample_count, .global_batch = other.global_batch};
  for (int g = 0; g < dataset->group_count; g++) held[g] = fsdp_dataset_group_at(dataset, g).held_count;
  status = mix(options, dataset, sampler, error);
  return status == FSDP_OK ? fsdp_sampler_hold_out_last(sampler, held, error) : status;
}

fsdp_status fsdp_data_sampler(const fsdp_options *options, fsdp_dataset *dataset, int64_t global_batch,
                              fsdp_sampler *sampler, fsdp_error *error) {
  fsdp_error why;
  *sampler = (fsdp_sampler){
      .seed = (uint64_t)options->seed, .sample_count = dataset->sample_count, .global_batch = global_batch};
  fsdp_status status = mix(options, dataset, sampler, error);
  if (status != FSDP_OK) return status;
  status = fsdp_sampler_hold_out(sampler, options->eval_split, &why);
  if (status == FSDP_OK && sampler->held_out > 0 && fsdp_dataset_divides_records(dataset))
    status = hold_out_records(options, dataset, sampler, &why);
  return status ? fsdp_refuse(options, error, status, "{A eval-split}: %.600s", why.message) : status;
}
