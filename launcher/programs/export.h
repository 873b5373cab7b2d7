// From a checkpoint to a Hugging Face folder, and what a checkpoint holds for a person to read.
//
//   checkpoint ─► model-00001-of-00003.safetensors ... │ index │ config.json │ generation, tokenizer files
//
// Parameters pass through a few megabytes, in the order of the state dict; every byte read is verified. The
// folder appears whole or not at all.
#pragma once

#include "runtime/base/dtype.h"
#include "runtime/base/status.h"

#include <stdint.h>
#include <stdio.h>

typedef struct fsdp_export_config {
  const char *checkpoint;  // its folder, or an experiment's, of which the newest is taken, or EXPERIMENT/WORD
                           // with a word of fsdp_checkpoint_named
  const char *to;          // a folder that is not there yet, or is empty
  int dtype;               // an fsdp_dtype, or -1: that of the checkpoint's parameters
  int64_t max_shard_bytes; // of a file's tensors; one tensor may be larger
} fsdp_export_config;

typedef struct fsdp_export_result {
  int64_t parameters, bytes; // written
  int files, carried;        // of weights; of the model's folder
  int64_t step;
  fsdp_dtype dtype;
} fsdp_export_result;

// FSDP_ERR_INPUT if the checkpoint is damaged, or the folder is there already or cannot be written.
fsdp_status fsdp_export_run(const fsdp_export_config *config, fsdp_export_result *result, fsdp_error *error);

// Prints the checkpoints of the experiment's folder, oldest first: step, time, losses, size. FSDP_ERR_INPUT.
fsdp_status fsdp_export_list(const char *experiment, FILE *out, fsdp_error *error);

// Prints step, model, layout, files, and the options that are not defaults. FSDP_ERR_INPUT.
fsdp_status fsdp_export_inspect(const char *checkpoint, FILE *out, fsdp_error *error);
