// The options' values: one field per option.
#pragma once

#include "runtime/base/dtype.h"
#include "runtime/plan/program/schedule.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum fsdp_init { FSDP_INIT_AUTO, FSDP_INIT_WEIGHTS, FSDP_INIT_RANDOM } fsdp_init;
typedef enum fsdp_lr_schedule {
  FSDP_LR_COSINE,
  FSDP_LR_LINEAR,
  FSDP_LR_CONSTANT,
  FSDP_LR_WSD
} fsdp_lr_schedule;
typedef enum fsdp_backend { FSDP_BACKEND_AUTO, FSDP_BACKEND_CPU, FSDP_BACKEND_CUDA } fsdp_backend;
typedef enum fsdp_ckpt_async {
  FSDP_CKPT_ASYNC_AUTO,
  FSDP_CKPT_ASYNC_ON,
  FSDP_CKPT_ASYNC_OFF
} fsdp_ckpt_async;
typedef enum fsdp_ckpt_best { FSDP_CKPT_BEST_OFF, FSDP_CKPT_BEST_EVAL_LOSS } fsdp_ckpt_best;
typedef enum fsdp_compare_files { FSDP_COMPARE_CONTENTS, FSDP_COMPARE_SIZES } fsdp_compare_files;
typedef enum fsdp_resume_schedule { FSDP_SCHEDULE_CONTINUE, FSDP_SCHEDULE_RESTART } fsdp_resume_schedule;
typedef enum fsdp_router_dtype { FSDP_ROUTER_DTYPE_MODEL, FSDP_ROUTER_DTYPE_F32 } fsdp_router_dtype;
typedef enum fsdp_loss_mean { FSDP_LOSS_MEAN_TOKENS, FSDP_LOSS_MEAN_DOCUMENTS } fsdp_loss_mean;
typedef enum fsdp_help { FSDP_HELP_NONE, FSDP_HELP_TASKS, FSDP_HELP_ALL } fsdp_help;
typedef enum fsdp_program_kind {
  FSDP_PROGRAM_TRAIN = 1,
  FSDP_PROGRAM_PLAN = 2,
  FSDP_PROGRAM_EVAL = 4,
  FSDP_PROGRAM_PLANNER = 8 // what a planner can set (runtime/plan/fsdp_plan.h), beside texts of documents
} fsdp_program_kind;

#define FSDP_OPTION_MAX 160
#define FSDP_DTYPE_AUTO (-1) // the backend's default

typedef struct fsdp_options {
  char *config, *model, *data, *tokenizer, *wrap; // owned; NULL if not given and without a default
  char *routing_record, *routing_replay;          // NULL: not given
  char *resize_embeddings;                        // a number of tokens, or "tokenizer"
  char *compare;                                  // "a.yaml,b.yaml"
  char *recompute, *offload_activations;          // as saving.h reads them, or "auto"
  char *save_dir, *experiment, *resume, *log, *memory_profile, *mesh, *eval_data, *tensorboard, *rank_logs;
  char *sharding, *shard, *extra_data_axis; // of shard: "NAME=SPEC;NAME=SPEC"
  char *op_strategies, *graph;
  char *profile; // of the machine: a shipped one's name, or a file
  char *trace, *trace_steps;
  char *set;                                 // "KEY=VALUE;..."
  int64_t batch, seq, grad_accum, max_steps; // max_steps 0: none
  double num_epochs;
  int64_t warmup_steps, seed, numel_to_wrap, prefetch, ckpt_freq, ckpt_keep, log_freq,
      threads;                             // threads 0: the rank's cores
  int64_t memory_limit, host_memory_limit; // bytes, 0: not given
  double memory_margin;                    // of the device's, a share
  int64_t ranks, ranks_per_node;           // fsdp_plan; 0: not given
  int64_t tensor_parallel, context_parallel, expert_parallel;
  int64_t comm_timeout;          // seconds
  int64_t eval_freq, stop_after; // stop_after 0: never
  bool eval_at_start;
  double eval_split;                   // a fraction of the samples if below 1, else a number; 0: none
  double warmup_ratio, lr_decay_ratio; // of all steps; of the first 0: not given
  double lr, min_lr, weight_decay, beta1, beta2, eps, grad_clip;
  char *prompt, *prompt_tokens; // of samples; tokens as "1,2,3"
  char *chat_template;          // of the prompt: plain, auto, chatml or a file
  int64_t sample_every;         // steps between samples, 0: none
  int64_t max_new_tokens;
  double temperature, top_p;             // 0: greedy
  double skip_grad_norm;                 // 0: not given
  double router_aux_coef, router_z_coef; // if given
  double router_bias_rate;
  int aux_loss;     // fsdp_router_aux, if given
  int router_dtype; // fsdp_router_dtype
  int64_t max_skipped;
  int64_t check_replicas; // steps between comparisons, 0: none but at saves
  int decay;              // fsdp_decay
  int init, lr_schedule, strategy, accumulate, backend, ckpt_async; // the enums above and of schedule.h
  int ckpt_best;                                                    // fsdp_ckpt_best
  int attention;                                                    // fsdp_attention_kernel
  int64_t multiprocessors;                                          // 0: the GPU's
  int64_t gemm_multiprocessors;                                     // 0: all
  int resume_schedule;                                              // fsdp_resume_schedule
  int compare_files;                                                // fsdp_compare_files
  int param_dtype, reduce_dtype, master_dtype, moment_dtype;
  int packing, long_documents;  // fsdp_packing_choice, fsdp_long_documents
  bool document_mask;           // if given
  int64_t document_separator;   // -1: none
  int64_t expert_blocks;        // units that a layer's experts form
  double expert_capacity;       // 0: all that a rank's experts can be sent
  double imbalance;             // of prices
  int loss_mean;                // fsdp_loss_mean
  const char *dropout;          // a rate, or "config"; NULL: none
  double attention_dropout;     // if given
  bool sequence_parallel;       // where tensor has several ranks
  int nccl_register, nccl_ctas; // comm_nccl.h
  bool allow_shared_gpu, bind, verify_data;
  bool cpu_offload, measure, poison, dry_run, json, version, price;
  int help; // fsdp_help
  bool overwrite, print_config;
  bool search, auto_plan, self_test;
  char *save_plan;
  int64_t global_batch; // 0: not given
  int64_t tokens;       // of a run whose price is asked for; 0: not given
  double gpu_hour;      // what a rank's hour costs; 0: not given
  char *machines;       // "16 a100-40, 8 h100-sxm"
  bool print_model, print_program, print_sharding, print_strategies;
  int64_t trace_first, trace_last; // of trace_steps
  fsdp_mesh mesh_axes;             // as in --mesh, without those that every mesh has; count 0: not given
  bool config_sets;                // the file of --config has an option
  char overridden[256]; // "--ranks 16 → 8, ...": of the file, what the command line gives otherwise
  char aliases[512];    // "--learning-rate is --lr, ...": what was given under another trainer's name
  char replaced[512];   // "--ranks 4 replaces --ranks 8, ...": what the command line says twice
  char *run_config;     // fsdp_train: the options as the run's run.yaml says them (run_options.h)
  char *run_note;       // what was taken of the one that was there; NULL: nothing
  char *run_left_out;   // what of it --resume off begins without; NULL: nothing
  int64_t run_ranks;    // that it was written for; 0: not known
  char *evaluated;      // fsdp_eval -e: the checkpoint's model, for people; NULL: nothing
  // By row of the table: where the value came from ("" for a default).
  char place[FSDP_OPTION_MAX][128];
} fsdp_options;
