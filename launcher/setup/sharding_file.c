#include "launcher/setup/sharding_file.h"

#include "runtime/base/check.h"
#include "runtime/base/text.h"
#include "runtime/data/yaml_file.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static fsdp_status read_assignments(fsdp_sharding *s, const fsdp_options *options, fsdp_error *error) {
  char *list = fsdp_strdup(options->shard, "a text"), *rest = list;
  fsdp_status status = FSDP_OK;
  while (rest && !status) {
    char *one = strsep(&rest, ";");
    if (one[strspn(one, " \n")])
      status = fsdp_sharding_read_assignment(s, one, fsdp_options_place(options, "shard"), error);
  }
  free(list);
  return status;
}

fsdp_status fsdp_sharding_read(const fsdp_options *options, fsdp_sharding **sharding, fsdp_error *error) {
  *sharding = NULL;
  if (!options->sharding) return FSDP_OK;
  fsdp_sharding *s = *sharding = fsdp_alloc_zeroed(1, sizeof *s);
  fsdp_status status = FSDP_OK;
  s->given = options->mesh_axes;
  s->sequence_parallel = options->sequence_parallel;
  if (options->extra_data_axis) snprintf(s->data_axis, sizeof s->data_axis, "%s", options->extra_data_axis);
  if (!fsdp_sharding_find_preset(options->sharding, &s->preset)) {
    const fsdp_yaml_source source = {
        .path = options->sharding,
        .what = "a YAML file of rules, or one of the presets fsdp, fsdp-tp and fsdpv2",
        .bad = FSDP_ERR_INPUT};
    status = fsdp_sharding_read_rules(s, &source, fsdp_yaml_visit_file, error);
  }
  return !status && options->shard ? read_assignments(s, options, error) : status;
}

static bool names_axis(const fsdp_shard_rule *rule, const char *axis) {
  for (int d = 0; d < rule->dims && d < FSDP_MAX_DIMS; d++) {
    for (int a = 0; a < rule->dim[d].count; a++) {
      if (strcmp(rule->dim[d].axes[a], axis) == 0) return true;
    }
  }
  return false;
}

// Whether an axis that rules name cuts nothing, as its size is not given.
static bool is_left_out(const fsdp_sharding *sharding, const fsdp_mesh *mesh, const char *axis) {
  if (isdigit((unsigned char)axis[0]) || !strcmp(axis, FSDP_AXIS_DATA) || !strcmp(axis, FSDP_AXIS_FSDP))
    return false;
  for (int a = 0; a < sharding->given.count; a++) {
    if (strcmp(sharding->given.axes[a].name, axis) == 0) return false;
  }
  return fsdp_mesh_size(mesh, axis) == 1;
}

// What a preset, or --strategy beside one or a file, leaves uncut.
static void note_presets(const fsdp_options *options, const fsdp_sharding *sharding, const fsdp_mesh *mesh,
                         const char *head, FILE *out) {
  bool names_fsdp = sharding->preset != FSDP_SHARDING_FILE;
  for (int r = 0; r < sharding->rule_count; r++)
    names_fsdp = names_fsdp || names_axis(&sharding->rules[r], FSDP_AXIS_FSDP);
  if (sharding->preset == FSDP_SHARDING_FSDP_TP && is_left_out(sharding, mesh, FSDP_AXIS_TENSOR))
    fprintf(out,
            "%saxis tensor of --sharding fsdp-tp has 1 rank, so nothing is cut over it; give "
            "--tensor-parallel N\n",
            head);
  if (options->strategy == FSDP_NO && names_fsdp && !sharding->given.count && fsdp_mesh_ranks(mesh) > 1)
    fprintf(
        out,
        "%s--strategy no (%s) gives the axis fsdp 1 rank, so --sharding %.200s cuts nothing over it; leave "
        "--strategy out, or give --mesh fsdp=N\n",
        head, fsdp_options_place(options, "strategy"), options->sharding);
}

void fsdp_sharding_notes(const fsdp_options *options, const fsdp_sharding *sharding, const fsdp_mesh *mesh,
                         const char *head, FILE *out) {
  if (!sharding) return;
  note_presets(options, sharding, mesh, head, out);
  for (int r = 0; r < sharding->rule_count; r++) {
    const fsdp_shard_rule *rule = &sharding->rules[r];
    for (int d = 0; d < rule->dims && d < FSDP_MAX_DIMS; d++) {
      for (int a = 0; a < rule->dim[d].count; a++) {
        const char *axis = rule->dim[d].axes[a];
        bool seen = false;
        for (int before = 0; before < r && !seen; before++) seen = names_axis(&sharding->rules[before], axis);
        if (seen || !is_left_out(sharding, mesh, axis)) continue;
        int rules = 0;
        for (int each = r; each < sharding->rule_count; each++)
          rules += names_axis(&sharding->rules[each], axis);
        fprintf(out,
                "%saxis %s, named in %d line%s of --sharding %.200s, has 1 rank, so nothing is cut over it; "
                "give --mesh ...,%s=N\n",
                head, axis, rules, fsdp_plural(rules), options->sharding, axis);
      }
    }
  }
}
