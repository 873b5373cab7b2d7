// A program of the ranks that mpirun started, from its options to its exit status:
//
//   options ─► world ─► the same options on every rank ─► GPU ─► cores ─► prompt ─► run
//
// What is wrong with the options is reported when all ranks have joined.
#pragma once

#include "launcher/train/train.h"

typedef struct fsdp_rank_program {
  const char *name;
  fsdp_program_kind kind;
  bool answers; // its standard output is what was asked for, and not the account of a run
  // Fills the options; their caller destroys them in either case.
  fsdp_status (*parse)(fsdp_options *options, int argc, char **argv, fsdp_error *error);
  // What is said of going on if the job is killed; NULL: nothing.
  const char *(*advise)(const fsdp_options *options, char out[FSDP_WATCH_ADVICE_BYTES]);
  // Checks the options against the world, on every rank; NULL: they fit any.
  fsdp_status (*fit)(const fsdp_world *world, fsdp_options *options, fsdp_error *error);
  // Does the work, on every rank; returns one status on all. `options` are those of `config`, to complete.
  fsdp_status (*run)(const fsdp_train_config *config, fsdp_options *options, fsdp_error *error);
} fsdp_rank_program;

// Returns the exit status.
int fsdp_rank_program_main(const fsdp_rank_program *program, int argc, char **argv);
