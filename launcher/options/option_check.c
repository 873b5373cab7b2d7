#include "launcher/options/option_check.h"

#include "launcher/options/option_query.h"
#include "models/model.h"
#include "runtime/comm/comm_nccl.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

// What a rule looks at.
typedef struct check {
  const fsdp_options *options;
  fsdp_program_kind program;
  fsdp_error *error;
} check;

static bool given(const check *c, const char *name) {
  return fsdp_options_given(c->options, name);
}
static const char *place(const check *c, const char *name) {
  return fsdp_options_place(c->options, name);
}

static fsdp_status check_learning_rate(const check *c) {
  const fsdp_options *o = c->options;
  if (given(c, "min-lr") && o->lr_schedule == FSDP_LR_CONSTANT) {
    return fsdp_fail(c->error, FSDP_ERR_OPTION,
                     "--min-lr %g (%s) has no effect with --lr-schedule constant (%s): leave one out",
                     o->min_lr, place(c, "min-lr"), place(c, "lr-schedule"));
  }
  if (o->min_lr > o->lr) {
    return fsdp_fail(c->error, FSDP_ERR_OPTION, "--min-lr %g (%s) is above --lr %g (%s): use at most that",
                     o->min_lr, place(c, "min-lr"), o->lr, place(c, "lr"));
  }
  return FSDP_OK;
}

// Whether a plan without --sharding has a use for an axis.
static bool is_used(const char *axis) {
  return !strcmp(axis, FSDP_AXIS_DATA) || !strcmp(axis, FSDP_AXIS_FSDP) || !strcmp(axis, FSDP_AXIS_TENSOR) ||
         !strcmp(axis, FSDP_AXIS_CONTEXT);
}

static fsdp_status check_mesh(const check *c) {
  const fsdp_options *o = c->options;
  if (!o->mesh_axes.count || o->sharding || o->op_strategies) return FSDP_OK; // these say what lies where
  int data = fsdp_mesh_size(&o->mesh_axes, FSDP_AXIS_DATA),
      fsdp = fsdp_mesh_size(&o->mesh_axes, FSDP_AXIS_FSDP);
  for (int a = 0; a < o->mesh_axes.count; a++) {
    const fsdp_mesh_axis *axis = &o->mesh_axes.axes[a];
    if (axis->size == 1 || is_used(axis->name)) continue;
    return fsdp_fail(
        c->error, FSDP_ERR_OPTION,
        "--mesh %s (%s): axis %s has %d ranks, but without --sharding only data, fsdp, tensor and context "
        "may have more than one: cut the batch over it, as in --sharding fsdp --extra-data-axis %s",
        o->mesh, place(c, "mesh"), axis->name, axis->size, axis->name);
  }
  if ((o->search || o->auto_plan) && !given(c, "strategy")) return FSDP_OK; // it is searched
  bool sharded = o->strategy == FSDP_FULL || o->strategy == FSDP_GRAD_OP;
  if (sharded && data != 1) {
    return fsdp_fail(
        c->error, FSDP_ERR_OPTION,
        "--mesh %s (%s): --strategy %s shards over all ranks, so data must be 1; use --strategy hybrid "
        "for %d replicas",
        o->mesh, place(c, "mesh"), fsdp_strategy_name((fsdp_strategy)o->strategy), data);
  }
  if (o->strategy == FSDP_NO && fsdp != 1) {
    return fsdp_fail(
        c->error, FSDP_ERR_OPTION,
        "--mesh %s (%s): --strategy no shards nothing, so fsdp must be 1; use --strategy hybrid for "
        "shards of %d ranks",
        o->mesh, place(c, "mesh"), fsdp);
  }
  return FSDP_OK;
}

static bool sharding_is(const check *c, const char *preset) {
  return c->options->sharding && !strcmp(c->options->sharding, preset);
}

// --tensor-parallel and --context-parallel stand for an axis of the mesh and for what lies over it, which
// --mesh and --sharding may say themselves.
static fsdp_status check_short_form(const check *c, const char *name, int64_t size, const char *axis) {
  const fsdp_options *o = c->options;
  int mesh_size = fsdp_mesh_size(&o->mesh_axes, axis);
  if (!given(c, name)) return FSDP_OK;
  if (fsdp_mesh_find(&o->mesh_axes, axis) >= 0 && mesh_size != size)
    return fsdp_fail(c->error, FSDP_ERR_OPTION,
                     "--%s %lld (%s) and %s=%d of --mesh %s (%s) do not agree: leave one of them out", name,
                     (long long)size, place(c, name), axis, mesh_size, o->mesh, place(c, "mesh"));
  // fsdp places the batch by sequence over context, but nothing over tensor.
  bool placed = sharding_is(c, "fsdp-tp") || (sharding_is(c, "fsdp") && !strcmp(axis, FSDP_AXIS_CONTEXT));
  if (size == 1 || !o->sharding || placed) return FSDP_OK;
  char remedy[96] = "use --sharding fsdp-tp, or leave one of them out";
  if (!sharding_is(c, "fsdp") && !sharding_is(c, "fsdpv2"))
    snprintf(remedy, sizeof remedy, "with a file, give the axis its size in --mesh, as in %s=%lld", axis,
             (long long)size);
  return fsdp_fail(c->error, FSDP_ERR_OPTION,
                   "--%s %lld (%s) and --sharding %.300s (%s) both say what lies over the axis %s: %s", name,
                   (long long)size, place(c, name), o->sharding, place(c, "sharding"), axis, remedy);
}

static fsdp_status check_short_forms(const check *c) {
  const fsdp_options *o = c->options;
  fsdp_status status = check_short_form(c, "tensor-parallel", o->tensor_parallel, FSDP_AXIS_TENSOR);
  if (!status) status = check_short_form(c, "context-parallel", o->context_parallel, FSDP_AXIS_CONTEXT);
  bool alone = !given(c, "sequence-parallel") || !o->sharding || sharding_is(c, "fsdp-tp");
  if (status || alone) return status;
  return fsdp_fail(c->error, FSDP_ERR_OPTION,
                   "--sequence-parallel %s (%s) and --sharding %.300s (%s) both say how outputs lie: leave "
                   "one of them out",
                   o->sequence_parallel ? "on" : "off", place(c, "sequence-parallel"), o->sharding,
                   place(c, "sharding"));
}

static fsdp_status check_sharding(const check *c) {
  const fsdp_options *o = c->options;
  bool preset = sharding_is(c, "fsdp") || sharding_is(c, "fsdp-tp") || sharding_is(c, "fsdpv2");
  if (o->shard && !o->sharding)
    return fsdp_fail(c->error, FSDP_ERR_OPTION,
                     "--shard %.300s (%s) changes a line of --sharding, which is not given: add --sharding "
                     "fsdp, or a file",
                     o->shard, place(c, "shard"));
  if (o->extra_data_axis && !preset)
    return fsdp_fail(
        c->error, FSDP_ERR_OPTION, "--extra-data-axis %s (%s) is for --sharding fsdp, fsdp-tp and fsdpv2: %s",
        o->extra_data_axis, place(c, "extra-data-axis"),
        o->sharding ? "the file says itself what the batch lies over, as in input: [[data, fsdp], "
                      "null]; leave one out"
                    : "add one of them, or leave it out");
  return FSDP_OK;
}

// Strategies of operators say how everything lies.
static fsdp_status check_strategies(const check *c) {
  const fsdp_options *o = c->options;
  static const char *const others[] = {"sharding", "sequence-parallel"};
  for (size_t i = 0; i < sizeof others / sizeof *others && o->op_strategies; i++) {
    if (!given(c, others[i])) continue;
    return fsdp_fail(c->error, FSDP_ERR_OPTION,
                     "--%s (%s) and --op-strategies %.300s (%s) both say what lies where: leave one of them "
                     "out",
                     others[i], place(c, others[i]), o->op_strategies, place(c, "op-strategies"));
  }
  if (o->op_strategies || (!o->graph && (!o->print_strategies || o->sharding))) return FSDP_OK;
  const char *name = o->graph ? "graph" : "print-strategies";
  return fsdp_fail(c->error, FSDP_ERR_OPTION,
                   "--%s (%s) needs strategies of some operators to propagate: add --op-strategies FILE%s",
                   name, place(c, name), o->graph ? "" : " or --sharding FILE");
}

// A network of operators is propagated over and printed; it has no plan.
static fsdp_status check_graph(const check *c) {
  const fsdp_options *o = c->options;
  static const char *const others[] = {
      "model",          "json",           "print-model",     "print-program",
      "print-sharding", "memory-profile", "tensor-parallel", "context-parallel",
      "strategy",       "memory-limit",   "price",           "profile",
      "trace",          "batch-size",     "seq-length",      "recompute",
      "self-test"};
  for (size_t i = 0; i < sizeof others / sizeof *others && o->graph; i++) {
    if (!given(c, others[i])) continue;
    return fsdp_fail(c->error, FSDP_ERR_OPTION,
                     "--%s (%s) is for models, and --graph %.300s (%s) is a network of operators, of which "
                     "strategies are printed: leave one of them out",
                     others[i], place(c, others[i]), o->graph, place(c, "graph"));
  }
  return FSDP_OK;
}

static fsdp_status check_files(const check *c) {
  const fsdp_options *o = c->options;
  if (o->init == FSDP_INIT_WEIGHTS && fsdp_model_is_preset(o->model)) {
    return fsdp_fail(
        c->error, FSDP_ERR_OPTION,
        "--init weights (%s): the preset '%s' has no weights; give a model folder, or --init random",
        place(c, "init"), o->model);
  }
  if (o->memory_profile) {
    const char *end = strrchr(o->memory_profile, '.');
    if (!end || (strcmp(end, ".json") != 0 && strcmp(end, ".svg") != 0)) {
      return fsdp_fail(c->error, FSDP_ERR_OPTION,
                       "--memory-profile '%s' (%s): use a name that ends in .json or .svg", o->memory_profile,
                       place(c, "memory-profile"));
    }
  }
  enum { STEPS_TRACED_MAX = 100 };
  if (given(c, "trace-steps") && !o->trace)
    return fsdp_fail(c->error, FSDP_ERR_OPTION,
                     "--trace-steps %s (%s) has no effect without --trace FILE: add it, or leave this out",
                     o->trace_steps, place(c, "trace-steps"));
  if (given(c, "trace-steps") && c->program == FSDP_PROGRAM_PLAN)
    return fsdp_fail(
        c->error, FSDP_ERR_OPTION,
        "--trace-steps %s (%s): fsdp_plan --trace writes two simulated steps, and later ones are "
        "as the second: leave it out, or trace a run of fsdp_train",
        o->trace_steps, place(c, "trace-steps"));
  if (o->trace && o->trace_last - o->trace_first >= STEPS_TRACED_MAX)
    return fsdp_fail(c->error, FSDP_ERR_OPTION, "--trace-steps %s (%s): trace at most %d steps",
                     o->trace_steps, place(c, "trace-steps"), STEPS_TRACED_MAX);
  return FSDP_OK;
}

static fsdp_status check_evaluation(const check *c) {
  const fsdp_options *o = c->options;
  if (o->eval_data && o->eval_split > 0) {
    return fsdp_fail(
        c->error, FSDP_ERR_OPTION,
        "--eval-data '%.300s' (%s) and --eval-split %g (%s) both choose what to evaluate on: leave "
        "one out",
        o->eval_data, place(c, "eval-data"), o->eval_split, place(c, "eval-split"));
  }
  if (o->eval_split >= 1 && o->eval_split != floor(o->eval_split)) {
    return fsdp_fail(c->error, FSDP_ERR_OPTION,
                     "--eval-split %g (%s): use a fraction below 1, or a whole number of samples",
                     o->eval_split, place(c, "eval-split"));
  }
  if (o->eval_freq > 0 && !fsdp_options_evaluate(o)) {
    return fsdp_fail(
        c->error, FSDP_ERR_OPTION,
        "--eval-freq %lld (%s) has nothing to evaluate on: add --eval-data FILE, or --eval-split "
        "0.05",
        (long long)o->eval_freq, place(c, "eval-freq"));
  }
  return FSDP_OK;
}

// Each of the files to compare is checked by itself; here only what does not go with several of them.
static fsdp_status check_comparison(const check *c) {
  const char *const alone[] = {
      "config",    "print-model",    "print-program", "print-sharding", "print-strategies",
      "graph",     "memory-profile", "trace",         "search",         "save-plan",
      "machines",  "global-batch",   "self-test"};
  for (size_t i = 0; i < sizeof alone / sizeof *alone; i++) {
    if (!given(c, alone[i])) continue;
    return fsdp_fail(c->error, FSDP_ERR_OPTION,
                     "--%s (%s) is about one plan, --compare (%s) about several: leave one out", alone[i],
                     place(c, alone[i]), place(c, "compare"));
  }
  return FSDP_OK;
}

static fsdp_status check_outputs(const check *c) {
  const fsdp_options *o = c->options;
  if (c->program != FSDP_PROGRAM_PLAN) return FSDP_OK;
  const struct {
    const char *name;
    bool on;
  } printed[] = {{"json", o->json},
                 {"print-sharding", o->print_sharding},
                 {"print-strategies", o->print_strategies},
                 {"print-model", o->print_model},
                 {"print-program", o->print_program}};
  for (int one = 0; one < 3; one++) { // those that are read by programs are printed alone
    for (int other = one + 1; other < 5 && printed[one].on; other++) {
      if (!printed[other].on) continue;
      return fsdp_fail(c->error, FSDP_ERR_OPTION,
                       "--%s (%s) and --%s (%s) would both fill the standard output: use one at a time",
                       printed[one].name, place(c, printed[one].name), printed[other].name,
                       place(c, printed[other].name));
    }
  }
  if (o->self_test && o->print_strategies)
    return fsdp_fail(c->error, FSDP_ERR_OPTION,
                     "--print-strategies (%s) makes no plan that --self-test (%s) could test: use one at a "
                     "time",
                     place(c, "print-strategies"), place(c, "self-test"));
  if (o->ranks_per_node > 0 && o->ranks_per_node > o->ranks) {
    return fsdp_fail(c->error, FSDP_ERR_OPTION, "--ranks-per-node %lld (%s) is more than --ranks %lld (%s)",
                     (long long)o->ranks_per_node, place(c, "ranks-per-node"), (long long)o->ranks,
                     place(c, "ranks"));
  }
  return FSDP_OK;
}

// --machines says ranks and profile of several plans, and is about their steps alone.
static fsdp_status check_machines(const check *c) {
  const fsdp_options *o = c->options;
  static const char *const others[] = {"ranks",          "profile",          "compare",     "save-plan",
                                       "trace",          "print-model",      "self-test",   "print-program",
                                       "print-sharding", "print-strategies", "memory-profile"};
  const bool runs = o->search || o->price || o->machines;
  for (size_t i = 0; i < sizeof others / sizeof *others && o->machines; i++) {
    // Both are set of each machine.
    if (!given(c, others[i]) || strcmp(place(c, others[i]), "--machines") == 0) continue;
    return fsdp_fail(c->error, FSDP_ERR_OPTION,
                     "--%s (%s) is about one machine or plan, --machines (%s) about several: leave one out",
                     others[i], place(c, others[i]), place(c, "machines"));
  }
  const char *unused = o->tokens && !runs ? "tokens" : o->gpu_hour > 0 && !runs ? "gpu-hour" : NULL;
  return unused ? fsdp_fail(c->error, FSDP_ERR_OPTION,
                            "--%s (%s) has no effect without a price: add --price or --search, with "
                            "--profile, or --machines",
                            unused, place(c, unused))
                : FSDP_OK;
}

// What --search, --auto and --price need, and what does not go with them.
static fsdp_status check_choice(const check *c) {
  const fsdp_options *o = c->options;
  static const char *const one[] = {"price",          "trace",          "print-model",
                                    "print-program",  "print-sharding", "print-strategies",
                                    "memory-profile", "op-strategies",  "self-test"};
  bool plans = c->program == FSDP_PROGRAM_PLAN;
  const char *priced = o->search ? "search" : o->price ? "price" : plans && o->trace ? "trace" : NULL;
  fsdp_status status = check_machines(c);
  if (status) return status;
  if (priced && !o->profile && !o->machines)
    return fsdp_fail(c->error, FSDP_ERR_OPTION,
                     "--%s (%s) needs a machine to price for: add --profile NAME, such as h100-sxm, or "
                     "--profile FILE, which fsdp_profile writes",
                     priced, place(c, priced));
  for (size_t i = 0; i < sizeof one / sizeof *one && o->search; i++) {
    if (!given(c, one[i])) continue;
    return fsdp_fail(
        c->error, FSDP_ERR_OPTION,
        "--search (%s) prints several plans, and --%s (%s) is about one: search with --save-plan "
        "FILE first, then give --config FILE with --%s",
        place(c, "search"), one[i], place(c, one[i]), one[i]);
  }
  if (o->auto_plan && o->op_strategies)
    return fsdp_fail(
        c->error, FSDP_ERR_OPTION,
        "--auto (%s) chooses the mesh that --op-strategies %.200s (%s) is written for: leave one "
        "of them out",
        place(c, "auto"), o->op_strategies, place(c, "op-strategies"));
  if (o->save_plan && !o->search)
    return fsdp_fail(c->error, FSDP_ERR_OPTION,
                     "--save-plan %.300s (%s) writes what a search finds: add --search", o->save_plan,
                     place(c, "save-plan"));
  const bool searches = o->search || o->auto_plan || (o->machines && !o->price);
  if (o->global_batch && !searches)
    return fsdp_fail(c->error, FSDP_ERR_OPTION,
                     "--global-batch %lld (%s) has no effect without %s: add it, or give --batch-size and "
                     "--grad-accum",
                     (long long)o->global_batch, place(c, "global-batch"), plans ? "--search" : "--auto");
  return FSDP_OK;
}

// An experiment's name becomes a folder below --save-dir and nothing else.
static bool is_folder_name(const char *name) {
  return strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && !strchr(name, '/');
}

static fsdp_status check_experiment(const check *c) {
  const fsdp_options *o = c->options;
  bool resume_path = strcmp(o->resume, "auto") != 0 && strcmp(o->resume, "off") != 0;
  if (!o->experiment) {
    const char *const wanting[] = {"ckpt-freq", "ckpt-keep", "ckpt-async"};
    for (size_t i = 0; i < sizeof wanting / sizeof *wanting; i++) {
      bool never = i == 0 && o->ckpt_freq == 0;
      if (!given(c, wanting[i]) || never) continue;
      return fsdp_fail(
          c->error, FSDP_ERR_OPTION,
          "--%s (%s) saves nothing without -e: name the experiment with -e NAME, or leave it out", wanting[i],
          place(c, wanting[i]));
    }
  } else if (!is_folder_name(o->experiment)) {
    return fsdp_fail(
        c->error, FSDP_ERR_OPTION,
        "--experiment-name '%s' (%s): use the name of a folder, without '/'; --save-dir sets where it is",
        o->experiment, place(c, "experiment-name"));
  }
  if (resume_path && !o->experiment) {
    return fsdp_fail(c->error, FSDP_ERR_OPTION,
                     "--resume '%s' (%s) requires an experiment: add -e NAME, or leave it out", o->resume,
                     place(c, "resume"));
  }
  if (o->resume_schedule == FSDP_SCHEDULE_RESTART && (!o->experiment || strcmp(o->resume, "off") == 0)) {
    return fsdp_fail(
        c->error, FSDP_ERR_OPTION,
        "--resume-schedule restart (%s) requires a run to resume: add -e NAME%s, or leave it out",
        place(c, "resume-schedule"), strcmp(o->resume, "off") == 0 ? " without --resume off" : "");
  }
  return FSDP_OK;
}

// Without clipping an update may run before the norm is known.
static fsdp_status check_skipping(const check *c) {
  const char *const names[] = {"skip-grad-norm", "max-skipped"};
  for (size_t i = 0; i < sizeof names / sizeof *names && c->options->grad_clip == 0; i++) {
    if (!given(c, names[i])) continue;
    return fsdp_fail(
        c->error, FSDP_ERR_OPTION,
        "--%s (%s): with --grad-clip 0 (%s) updates run before the norm is known, so none can be "
        "skipped; use a --grad-clip, 1e30 to clip nothing",
        names[i], place(c, names[i]), place(c, "grad-clip"));
  }
  return FSDP_OK;
}

static fsdp_status check_sizes(const check *c) {
  const fsdp_options *o = c->options;
  if (o->nccl_register == FSDP_NCCL_REGISTER_ON && o->backend == FSDP_BACKEND_CPU) {
    return fsdp_fail(c->error, FSDP_ERR_OPTION,
                     "--nccl-register (%s) is for GPUs, and --backend cpu (%s) uses none: leave one out",
                     place(c, "nccl-register"), place(c, "backend"));
  }
  if (o->batch * o->seq > INT32_MAX) {
    return fsdp_fail(
        c->error, FSDP_ERR_OPTION,
        "--batch-size %lld (%s) times --seq-length %lld (%s) is more than 2147483647 tokens: use less",
        (long long)o->batch, place(c, "batch-size"), (long long)o->seq, place(c, "seq-length"));
  }
  return FSDP_OK;
}

fsdp_status fsdp_options_check(const fsdp_options *options, fsdp_program_kind program, fsdp_error *error) {
  static fsdp_status (*const rules[])(const check *) = {
      check_learning_rate, check_mesh,  check_short_forms, check_sharding, check_strategies,
      check_graph,         check_files, check_evaluation,  check_outputs,  check_choice,
      check_experiment,    check_sizes, check_skipping};
  const check c = {options, program, error};
  if (options->compare) return check_comparison(&c);
  for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
    fsdp_status status = rules[i](&c);
    if (status != FSDP_OK) return status;
  }
  return FSDP_OK;
}
