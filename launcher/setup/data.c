#include "launcher/setup/data.h"

fsdp_dataset_config fsdp_data_config(const fsdp_options *options, const fsdp_data_paths *files,
                                     const fsdp_train_tokenizer *tokenizer, int64_t seq, int64_t vocab_size) {
  return (fsdp_dataset_config){.files = files,
                               .tokenizer = tokenizer->path,
                               .only_bytes = tokenizer->asked_bytes,
                               .no_bytes = *tokenizer->no_bytes ? tokenizer->no_bytes : NULL,
                               .seq = seq,
                               .global_batch = 1,
                               .vocab_size = vocab_size,
                               .packing = (fsdp_packing_choice)options->packing,
                               .longer = (fsdp_long_documents)options->long_documents,
                               .has_separator = fsdp_options_given(options, "document-separator"),
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
  fsdp_train_tokenizer_destroy(&tokenizer);
  fsdp_data_paths_destroy(&paths);
  return status;
}
