// The programs' options: one table says everything about each, and parsing, help, checks and comparison read
// it.
//
//   defaults ──► --config FILE (YAML) ──► command line ──► fsdp_options ──► fsdp_options_check (combinations)
//
// An error is one sentence that names the option, the value, its place (command line or file:line) and what
// is allowed.
#pragma once

#include "runtime/base/dtype.h"
#include "runtime/base/status.h"
#include "runtime/plan/plan.h"

#include <stdio.h>

typedef enum fsdp_init { FSDP_INIT_AUTO, FSDP_INIT_WEIGHTS, FSDP_INIT_RANDOM } fsdp_init;
typedef enum fsdp_lr_schedule { FSDP_LR_COSINE, FSDP_LR_LINEAR, FSDP_LR_CONSTANT } fsdp_lr_schedule;
typedef enum fsdp_backend { FSDP_BACKEND_AUTO, FSDP_BACKEND_CPU, FSDP_BACKEND_CUDA } fsdp_backend;
typedef enum fsdp_ckpt_async {
  FSDP_CKPT_ASYNC_AUTO,
  FSDP_CKPT_ASYNC_ON,
  FSDP_CKPT_ASYNC_OFF
} fsdp_ckpt_async;
typedef enum fsdp_compare_files { FSDP_COMPARE_CONTENTS, FSDP_COMPARE_SIZES } fsdp_compare_files;
typedef enum fsdp_resume_schedule { FSDP_SCHEDULE_CONTINUE, FSDP_SCHEDULE_RESTART } fsdp_resume_schedule;
typedef enum fsdp_program_kind { FSDP_PROGRAM_TRAIN = 1, FSDP_PROGRAM_PLAN = 2 } fsdp_program_kind;

#define FSDP_OPTION_MAX 96
#define FSDP_DTYPE_AUTO (-1) // the backend's default

typedef struct fsdp_options {
  char *config, *model, *data, *tokenizer, *wrap; // owned; NULL where not given and without a default
  char *compare;                                  // "a.yaml,b.yaml"
  char *save_dir, *experiment, *resume, *log, *memory_profile, *mesh, *eval_data, *tensorboard, *rank_logs;
  int64_t batch, seq, grad_accum, num_epochs, max_steps; // max_steps 0: none
  int64_t warmup_steps, seed, numel_to_wrap, prefetch, ckpt_freq, ckpt_keep, log_freq,
      threads;                             // threads 0: the rank's cores
  int64_t memory_limit, host_memory_limit; // bytes, 0: not given
  int64_t ranks, ranks_per_node;           // fsdp_plan; 0: not given
  int64_t comm_timeout;                    // seconds
  int64_t eval_freq;
  double eval_split; // below 1 a part of the samples, else how many; 0: none
  double lr, min_lr, weight_decay, beta1, beta2, eps, grad_clip;
  double skip_grad_norm; // 0: not given
  int64_t max_skipped;
  int64_t check_replicas; // steps between comparisons, 0: none but at saves
  int init, lr_schedule, strategy, accumulate, backend, ckpt_async; // the enums above and of plan.h
  int resume_schedule;                                              // fsdp_resume_schedule
  int compare_files;                                                // fsdp_compare_files
  int recompute;                                                    // 1: blocks
  int param_dtype, reduce_dtype, master_dtype, moment_dtype;
  bool allow_shared_gpu, nccl_register, bind, verify_data;
  bool cpu_offload, measure, poison, print_model, print_program, dry_run, json, help, version;
  fsdp_mesh mesh_axes; // of --mesh; count 0: not given
  char aliases[512];   // "--learning-rate is --lr, ...": what was given under another trainer's name
  // By row of the table: where the value came from ("" for a default).
  char place[FSDP_OPTION_MAX][128];
} fsdp_options;

// Fills `options` from defaults, the YAML file that --config names, and the command line, then checks
// combinations. With --help or --version nothing else is looked at. FSDP_ERR_OPTION; FSDP_ERR_INPUT for a
// configuration file that cannot be read. The caller destroys `options` in either case.
fsdp_status fsdp_options_parse(fsdp_options *options, fsdp_program_kind program, int argc, char **argv,
                               fsdp_error *error);
// The same with `config` in place of the files that --compare names.
fsdp_status fsdp_options_parse_compared(fsdp_options *options, fsdp_program_kind program, int argc,
                                        char **argv, const char *config, fsdp_error *error);
void fsdp_options_destroy(fsdp_options *options);

// Sets the option `name` to `text`, as if it stood at `place`. The name may have underscores for dashes or be
// another trainer's (option_alias.h). FSDP_ERR_OPTION.
fsdp_status fsdp_options_set(fsdp_options *options, fsdp_program_kind program, const char *name,
                             const char *text, const char *place, fsdp_error *error);

// Combinations that contradict each other (launcher/cli/option_check.c). FSDP_ERR_OPTION.
fsdp_status fsdp_options_check(const fsdp_options *options, fsdp_program_kind program, fsdp_error *error);

// Note `index` (from 0) about the options, as a sentence: another trainer's names, and what has no effect but
// harms nothing (a threshold beside --wrap block, so that the hint's `--wrap block` can simply be added to a
// command). False behind the last.
bool fsdp_options_note(const fsdp_options *options, int index, char *note, int note_bytes);

// Whether a user gave the option, and where ("command line", "run.yaml:3", or "default").
bool fsdp_options_given(const fsdp_options *options, const char *name);
const char *fsdp_options_place(const fsdp_options *options, const char *name);

// Whether replicas are compared: at saves, or every so many steps.
bool fsdp_options_check_replicas(const fsdp_options *options);

// Whether there is anything to evaluate on.
bool fsdp_options_evaluate(const fsdp_options *options);

// The wrap policy that --wrap and --numel-to-wrap say; its class names point into `options`.
fsdp_wrap_policy fsdp_options_wrap(const fsdp_options *options);

// Every option but --config as "name=value\n", defaults included: what ranks compare. The caller frees it.
char *fsdp_options_describe(const fsdp_options *options);

// One entry an option that `program` has, and the exit statuses.
void fsdp_options_print_help(fsdp_program_kind program, FILE *out);
