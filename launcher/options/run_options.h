// The options that a run was started with, kept in its experiment's folder as a file for --config:
//
//   outputs/NAME/run.yaml     written when the run starts; to the next start with -e NAME it gives what
//                             that was not given, so that `fsdp_train -e NAME` alone continues
//
//   command line ──► --config FILE ──► run.yaml ──► defaults        the first that says it
//
// What belongs to one start alone (--trace, what is printed), and what the folder's own name says, is not in
// it. --resume of a checkpoint and --resume-schedule restart stand in it until the run has saved one since.
#pragma once

#include "launcher/options/options.h"
#include "runtime/base/nearest.h"

// Fills `options` for fsdp_train as fsdp_options_parse does, then from the experiment's run.yaml unless
// --resume off starts over. Its options that contradict those that are given give way. Sets run_config, and
// run_note or run_left_out if there was such a file. -e alone with a name that is not there, but near one
// that is, is refused. FSDP_ERR_OPTION, FSDP_ERR_INPUT; the caller destroys `options` in either case.
fsdp_status fsdp_run_options_parse(fsdp_options *options, int argc, char **argv, fsdp_error *error);

// Once the number of ranks is known: a mesh of run.yaml that is not one of so many ranks gives way, with what
// is sharded over it. FSDP_ERR_OPTION.
fsdp_status fsdp_run_options_fit(fsdp_options *options, int ranks, fsdp_error *error);

// The lines of run.yaml that say from which checkpoint, `from` ("auto": the newest), and with which schedule
// the run that was started has to begin.
void fsdp_run_options_print_start(const fsdp_options *options, const char *from, FILE *out);

// " (did you mean mine?)" with the experiments in --save-dir whose names are near that of -e; "" if there are
// none, or one whose name differs in digits alone.
void fsdp_run_options_near(const fsdp_options *options, char question[FSDP_NEAREST_TEXT]);

// Adds to a message about a path of run.yaml that is not there, where paths of that file are relative to.
void fsdp_run_options_explain(const fsdp_options *options, fsdp_error *error);

// The path of the experiment's run.yaml.
void fsdp_run_options_path(const fsdp_options *options, char *path, size_t path_bytes);

// --print-config: every option that was given, also what belongs to one start alone; defaults as comments.
void fsdp_run_options_print(const fsdp_options *options, FILE *out);
