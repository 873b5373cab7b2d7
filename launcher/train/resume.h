// Resuming from a checkpoint: which one, and its state into this run's shards.
//
//   create ─► next ─► load ──► ok
//              ▲        │ damaged: reported, the next older one
//              └────────┘ (named by --resume PATH, or none left: FSDP_ERR_INPUT)
//
// Ranks, strategy, wrapping, offload and dtypes may differ from those of the run that saved; the model may
// not. Every function here is called by all ranks, and returns alike on all.
#pragma once

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/comm/world.h"
#include "runtime/exec/executor.h"

typedef struct fsdp_resume fsdp_resume;

typedef struct fsdp_resume_config {
  fsdp_world *world;
  const fsdp_plan *plan; // outlives the resume
  const char *path;      // --resume's: "auto", a word (fsdp_checkpoint_named), or a checkpoint's or an
                         // experiment's folder
  const char *place;     // where --resume was given, for messages
  const char *folder;    // of this experiment, for "auto" and words
} fsdp_resume_config;

// Looks for the newest checkpoint whose manifest and files are there, before memory is taken.
// fsdp_resume_checkpoint is NULL afterwards if "auto" finds no checkpoint at all. FSDP_ERR_INPUT if
// checkpoints are there but none can be used, the named one is damaged, or it is of a different model.
fsdp_status fsdp_resume_create(const fsdp_resume_config *config, fsdp_resume **resume, fsdp_error *error);
void fsdp_resume_destroy(fsdp_resume *resume); // NULL is allowed

// Fills masters and moments from the checkpoint (there must be one), reading only what this rank's shards
// need; falls back to older ones as above. Converts if dtypes differ, rounding to nearest.
fsdp_status fsdp_resume_load(fsdp_resume *resume, fsdp_executor *executor, fsdp_error *error);

// The checkpoint resumed from: NULL if there is none; its folder; bytes that all ranks together have read.
const fsdp_checkpoint *fsdp_resume_checkpoint(const fsdp_resume *resume);
const char *fsdp_resume_path(const fsdp_resume *resume);
int64_t fsdp_resume_bytes_read(const fsdp_resume *resume);
