#include "launcher/options/option_check.h"

#include "launcher/options/option_query.h"
#include "models/model.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

// What a check looks at.
typedef struct check {
  const fsdp_options *options;
  fsdp_program_kind program;
  fsdp_error *error;
} check;

static bool given(const check *c, const char *name) {
  return fsdp_options_given(c->options, name);
}

// Whether a plan without --sharding has a use for an axis.
static bool is_used(const char *axis) {
  return !strcmp(axis, FSDP_AXIS_DATA) || !strcmp(axis, FSDP_AXIS_FSDP) || !strcmp(axis, FSDP_AXIS_TENSOR) ||
         !strcmp(axis, FSDP_AXIS_CONTEXT) || !strcmp(axis, FSDP_AXIS_EXPERT);
}

static fsdp_status check_mesh(const check *c) {
  const fsdp_options *o = c->options;
  if (!o->mesh_axes.count || o->sharding || o->op_strategies) return FSDP_OK; // these say what lies where
  int data = fsdp_mesh_size(&o->mesh_axes, FSDP_AXIS_DATA),
      fsdp = fsdp_mesh_size(&o->mesh_axes, FSDP_AXIS_FSDP);
  for (int a = 0; a < o->mesh_axes.count; a++) {
    const fsdp_mesh_axis *axis = &o->mesh_axes.axes[a];
    if (axis->size == 1 || is_used(axis->name)) continue;
    return fsdp_refuse(
        o, c->error, FSDP_ERR_OPTION,
        "{A mesh}: axis %s has %d ranks, but without --sharding only data, fsdp, tensor, context and expert "
        "may have more than one: cut the batch over it, as in --sharding fsdp --extra-data-axis %s",
        axis->name, axis->size, axis->name);
  }
  if ((o->search || o->auto_plan) && !given(c, "strategy")) return FSDP_OK; // it is searched
  bool sharded = o->strategy == FSDP_FULL || o->strategy == FSDP_GRAD_OP;
  if (sharded && data != 1)
    return fsdp_refuse(o, c->error, FSDP_ERR_OPTION,
                       "{A mesh}: --strategy %s shards over all ranks, so data must be 1; use --strategy "
                       "hybrid for %d replicas",
                       fsdp_strategy_name((fsdp_strategy)o->strategy), data);
  if (o->strategy != FSDP_NO || fsdp == 1) return FSDP_OK;
  return fsdp_refuse(o, c->error, FSDP_ERR_OPTION,
                     "{A mesh}: --strategy no shards nothing, so fsdp must be 1; use --strategy hybrid for "
                     "shards of %d ranks",
                     fsdp);
}

static bool sharding_is(const check *c, const char *preset) {
  return c->options->sharding && !strcmp(c->options->sharding, preset);
}

// --tensor-parallel, --context-parallel and --expert-parallel stand for an axis of the mesh and what lies
// over it, which
// --mesh and --sharding may say themselves.
static fsdp_status check_short_form(const check *c, const char *name, int64_t size, const char *axis) {
  const fsdp_options *o = c->options;
  int mesh_size = fsdp_mesh_size(&o->mesh_axes, axis);
  if (!given(c, name)) return FSDP_OK;
  if (fsdp_mesh_find(&o->mesh_axes, axis) >= 0 && mesh_size != size)
    return fsdp_refuse(o, c->error, FSDP_ERR_OPTION,
                       "{A %s} and %s=%d of {A mesh} do not agree: leave one of them out", name, axis,
                       mesh_size);
  // fsdp places the batch over expert and, by sequence, over context, but nothing over tensor.
  bool placed = sharding_is(c, "fsdp-tp") || (sharding_is(c, "fsdp") && strcmp(axis, FSDP_AXIS_TENSOR) != 0);
  if (size == 1 || !o->sharding || placed) return FSDP_OK;
  char remedy[96] = "use --sharding fsdp-tp, or leave one of them out";
  if (!sharding_is(c, "fsdp") && !sharding_is(c, "fsdpv2"))
    snprintf(remedy, sizeof remedy, "with a file, give the axis its size in --mesh, as in %s=%lld", axis,
             (long long)size);
  return fsdp_refuse(o, c->error, FSDP_ERR_OPTION,
                     "{A %s} and {A sharding} both say what lies over the axis %s: %s", name, axis, remedy);
}

static fsdp_status check_short_forms(const check *c) {
  const fsdp_options *o = c->options;
  fsdp_status status = check_short_form(c, "tensor-parallel", o->tensor_parallel, FSDP_AXIS_TENSOR);
  if (!status) status = check_short_form(c, "context-parallel", o->context_parallel, FSDP_AXIS_CONTEXT);
  if (!status) status = check_short_form(c, "expert-parallel", o->expert_parallel, FSDP_AXIS_EXPERT);
  bool alone = !given(c, "sequence-parallel") || !o->sharding || sharding_is(c, "fsdp-tp");
  if (status || alone) return status;
  return fsdp_refuse(
      o, c->error, FSDP_ERR_OPTION,
      "{A sequence-parallel} and {A sharding} both say how outputs lie: leave one of them out");
}

static fsdp_status check_files(const check *c) {
  const fsdp_options *o = c->options;
  enum { STEPS_TRACED_MAX = 100 };
  if (o->init == FSDP_INIT_WEIGHTS && fsdp_model_is_preset(o->model))
    return fsdp_refuse(o, c->error, FSDP_ERR_OPTION,
                       "{A init}: the preset '%s' has no weights; give a model folder, or --init random",
                       o->model);
  const char *end = o->memory_profile ? strrchr(o->memory_profile, '.') : ".svg";
  if (!end || (strcmp(end, ".json") != 0 && strcmp(end, ".svg") != 0))
    return fsdp_refuse(o, c->error, FSDP_ERR_OPTION,
                       "{Q memory-profile}: use a name that ends in .json or .svg");
  if (o->trace && o->trace_last - o->trace_first >= STEPS_TRACED_MAX)
    return fsdp_refuse(o, c->error, FSDP_ERR_OPTION, "{A trace-steps}: trace at most %d steps",
                       STEPS_TRACED_MAX);
  // An experiment's name becomes a folder below --save-dir and nothing else.
  const char *name = o->experiment;
  if (name && (!strcmp(name, ".") || !strcmp(name, "..") || strchr(name, '/')))
    return fsdp_refuse(
        o, c->error, FSDP_ERR_OPTION,
        "{Q experiment-name}: use the name of a folder, without '/'; --save-dir sets where it is");
  return FSDP_OK;
}

static fsdp_status check_extra_axis(const check *c) {
  const fsdp_options *o = c->options;
  bool preset = sharding_is(c, "fsdp") || sharding_is(c, "fsdp-tp") || sharding_is(c, "fsdpv2");
  if (!o->extra_data_axis || preset) return FSDP_OK;
  return fsdp_refuse(
      o, c->error, FSDP_ERR_OPTION, "{A extra-data-axis} is for --sharding fsdp, fsdp-tp and fsdpv2: %s",
      o->sharding
          ? "the file says itself what the batch lies over, as in input: [[data, fsdp], null]; leave one out"
          : "add one of them, or leave it out");
}

// Values of several options that are compared as numbers.
static fsdp_status check_numbers(const check *c) {
  const fsdp_options *o = c->options;
  if (o->min_lr > o->lr)
    return fsdp_refuse(o, c->error, FSDP_ERR_OPTION, "{A min-lr} is above {A lr}: use at most that");
  if (o->eval_split >= 1 && o->eval_split != floor(o->eval_split))
    return fsdp_refuse(o, c->error, FSDP_ERR_OPTION,
                       "{A eval-split}: use a fraction below 1, or a whole number of samples");
  if (o->ranks_per_node > 0 && o->ranks_per_node > o->ranks)
    return fsdp_refuse(o, c->error, FSDP_ERR_OPTION, "{A ranks-per-node} is more than {A ranks}");
  if (o->batch * o->seq > INT32_MAX)
    return fsdp_refuse(o, c->error, FSDP_ERR_OPTION,
                       "{A batch-size} times {A seq-length} is more than 2147483647 tokens: use less");
  return FSDP_OK;
}

fsdp_status fsdp_options_check(const fsdp_options *options, fsdp_program_kind program, fsdp_error *error) {
  static fsdp_status (*const checks[])(const check *) = {check_mesh, check_short_forms, check_extra_axis,
                                                         check_files, check_numbers};
  const check c = {options, program, error};
  fsdp_status status = fsdp_options_check_rules(options, program, error);
  // Of plans to compare, each is checked by itself.
  for (size_t i = 0; i < sizeof checks / sizeof *checks && !status && !options->compare; i++)
    status = checks[i](&c);
  return status;
}
