#include "launcher/options/option_check.h"

#include "models/model.h"
#include "runtime/plan/text/settings.h"

#include <math.h>
#include <string.h>

static fsdp_status check_files(const fsdp_options *o, fsdp_error *error) {
  enum { STEPS_TRACED_MAX = 100 };
  if (o->init == FSDP_INIT_WEIGHTS && fsdp_model_is_preset(o->model))
    return fsdp_refuse(o, error, FSDP_ERR_OPTION,
                       "{A init}: the preset '%s' has no weights; give a model folder, or --init random",
                       o->model);
  const char *end = o->memory_profile ? strrchr(o->memory_profile, '.') : ".svg";
  if (!end || (strcmp(end, ".json") != 0 && strcmp(end, ".svg") != 0))
    return fsdp_refuse(o, error, FSDP_ERR_OPTION,
                       "{Q memory-profile}: use a name that ends in .json or .svg");
  if (o->trace && o->trace_last - o->trace_first >= STEPS_TRACED_MAX)
    return fsdp_refuse(o, error, FSDP_ERR_OPTION, "{A trace-steps}: trace at most %d steps",
                       STEPS_TRACED_MAX);
  // An experiment's name becomes a folder below --save-dir and nothing else.
  const char *name = o->experiment;
  if (name && (!strcmp(name, ".") || !strcmp(name, "..") || strchr(name, '/')))
    return fsdp_refuse(
        o, error, FSDP_ERR_OPTION,
        "{Q experiment-name}: use the name of a folder, without '/'; --save-dir sets where it is");
  return FSDP_OK;
}

static fsdp_status check_extra_axis(const fsdp_options *o, fsdp_error *error) {
  bool preset = fsdp_settings_sharding_is(o, "fsdp") || fsdp_settings_sharding_is(o, "fsdp-tp") ||
                fsdp_settings_sharding_is(o, "fsdpv2");
  if (!o->extra_data_axis || preset) return FSDP_OK;
  return fsdp_refuse(
      o, error, FSDP_ERR_OPTION, "{A extra-data-axis} is for --sharding fsdp, fsdp-tp and fsdpv2: %s",
      o->sharding
          ? "the file says itself what the batch lies over, as in input: [[data, fsdp], null]; leave one out"
          : "add one of them, or leave it out");
}

// Values of several options that are compared as numbers.
static fsdp_status check_numbers(const fsdp_options *o, fsdp_error *error) {
  if (o->min_lr > o->lr)
    return fsdp_refuse(o, error, FSDP_ERR_OPTION, "{A min-lr} is above {A lr}: use at most that");
  if (o->eval_split >= 1 && o->eval_split != floor(o->eval_split))
    return fsdp_refuse(o, error, FSDP_ERR_OPTION,
                       "{A eval-split}: use a fraction below 1, or a whole number of samples");
  return FSDP_OK;
}

fsdp_status fsdp_options_check(const fsdp_options *options, fsdp_program_kind program, fsdp_error *error) {
  static fsdp_status (*const checks[])(const fsdp_options *, fsdp_error *) = {
      fsdp_settings_check, check_extra_axis, check_files, check_numbers};
  fsdp_status status = fsdp_options_check_rules(options, program, error);
  // Of plans to compare, each is checked by itself.
  for (size_t i = 0; i < sizeof checks / sizeof *checks && !status && !options->compare; i++)
    status = checks[i](options, error);
  return status;
}
