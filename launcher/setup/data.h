// The data set that --data and the options about documents describe.
#pragma once

#include "launcher/setup/tokenizer.h"
#include "runtime/data/data_paths.h"
#include "runtime/data/dataset.h"
#include "runtime/data/sampler.h"

// What every program opens alike: samples of `seq` tokens, one a step. `files` and `tokenizer` are borrowed.
fsdp_dataset_config fsdp_data_config(const fsdp_options *options, const fsdp_data_paths *files,
                                     const fsdp_train_tokenizer *tokenizer, int64_t seq, int64_t vocab_size);

// Opens it as training does, but that nothing is verified, with `global_batch` samples a step; `setup` has
// the model's folder. FSDP_ERR_INPUT if the data cannot be read or is not for the model's tokenizer; *dataset
// is then NULL.
fsdp_status fsdp_data_open(const fsdp_options *options, const fsdp_setup *setup, int64_t vocab_size,
                           int64_t global_batch, fsdp_dataset **dataset, fsdp_error *error);

// The order in which training takes the samples, mixed by the weights of --data, and what --eval-split holds
// out of them: whole records, for which the samples of *dataset are made anew where it divides records.
// FSDP_ERR_OPTION if they cannot be divided so.
fsdp_status fsdp_data_sampler(const fsdp_options *options, fsdp_dataset *dataset, int64_t global_batch,
                              fsdp_sampler *sampler, fsdp_error *error);
