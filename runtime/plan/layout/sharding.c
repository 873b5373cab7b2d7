#include "runtime/plan/layout/sharding.h"

#include "runtime/base/check.h"
#include "runtime/base/nearest.h"
#include "runtime/plan/layout/names.h"

#include <stdlib.h>
#include <string.h>

// Different sets of axes that weights may lie over. Each makes up to three communicators (to
// gather, to reduce, to sum over its replicas), and one is of all ranks: FSDP_PROGRAM_COMMS_MAX.
#define SETS_MAX 5

typedef enum target_kind { TARGET_INPUT, TARGET_PARAM, TARGET_TIE, TARGET_OUTPUT } target_kind;

// What a rule can name.
typedef struct shard_target {
  target_kind kind;
  int index; // of the parameter or the module
  int dims;
  int rule; // that holds for it, or -1
  char name[FSDP_NAME_BYTES];
} shard_target;

typedef struct resolver {
  const fsdp_sharding *sharding;
  const fsdp_graph *graph;
  const fsdp_mesh *mesh;
  shard_target *targets;
  int target_count;
  fsdp_spec *specs; // by rule
  fsdp_specs *out;
  fsdp_error *error;
} resolver;

// ---- Names

static void add_target(resolver *r, target_kind kind, int index, int dims, const char *name) {
  shard_target *t = &r->targets[r->target_count++];
  *t = (shard_target){.kind = kind, .index = index, .dims = dims, .rule = -1};
  snprintf(t->name, sizeof t->name, "%s", name);
}

static void list_targets(resolver *r) {
  const fsdp_graph *g = r->graph;
  int most = 1 + g->param_count + g->tie_count + g->module_count;
  r->targets = fsdp_alloc_zeroed((size_t)most, sizeof *r->targets);
  add_target(r, TARGET_INPUT, 0, 2, "input");
  for (int p = 0; p < g->param_count; p++)
    add_target(r, TARGET_PARAM, p, g->params[p].dims, g->params[p].name);
  for (int i = 0; i < g->tie_count; i++) {
    int param = g->ties[i].param;
    add_target(r, TARGET_TIE, param, g->params[param].dims, g->ties[i].name);
  }
  for (int m = 0; m < g->module_count; m++) {
    char path[FSDP_NAME_BYTES];
    fsdp_graph_module_path(g, m, path);
    if (fsdp_module_has_output(g, m)) add_target(r, TARGET_OUTPUT, m, FSDP_OUTPUT_DIMS, path);
  }
}

// The name that was probably meant, NULL if none is near.
static const char *nearest(const resolver *r, const char *name, char out[FSDP_NAME_BYTES]) {
  const char **names = fsdp_alloc((size_t)r->target_count * sizeof *names);
  char(*patterns)[FSDP_NAME_BYTES] = fsdp_alloc((size_t)r->target_count * sizeof *patterns);
  int count = 0;
  for (int t = 0; t < r->target_count; t++) {
    fsdp_name_pattern(r->targets[t].name, patterns[count]);
    int known = 0;
    while (known < count && strcmp(patterns[known], patterns[count])) known++;
    if (known == count && *patterns[count]) names[count] = patterns[count], count++;
  }
  char pattern[FSDP_NAME_BYTES];
  fsdp_name_pattern(name, pattern);
  int found = fsdp_nearest_word(pattern, names, count);
  if (found >= 0) memcpy(out, patterns[found], FSDP_NAME_BYTES);
  free(patterns);
  free(names);
  return found >= 0 ? out : NULL;
}

// "q_proj" (a.yaml:3; did you mean ...?), ...
static fsdp_status fail_unknown(const resolver *r, const bool *known) {
  char list[860] = "", near[FSDP_NAME_BYTES];
  size_t used = 0;
  int left = 0, unknown = 0;
  for (int i = 0; i < r->sharding->rule_count; i++) {
    const fsdp_shard_rule *rule = &r->sharding->rules[i];
    char one[2 * FSDP_NAME_BYTES + 200];
    if (known[i]) continue;
    const char *meant = nearest(r, rule->name, near);
    unknown++;
    int length = snprintf(one, sizeof one, "%s\"%s\" (%s; %s%s%s)", used ? ", " : "", rule->name, rule->place,
                          meant ? "did you mean " : "nothing is near", meant ? meant : "", meant ? "?" : "");
    if (used + (size_t)length >= sizeof list)
      left++;
    else
      used += (size_t)snprintf(list + used, sizeof list - used, "%s", one);
  }
  char more[32] = "";
  if (left) snprintf(more, sizeof more, " and %d more", left);
  return fsdp_fail(r->error, FSDP_ERR_INPUT,
                   "--sharding: no weight or module has the name%s %s%s; --print-sharding without --sharding "
                   "lists all names",
                   unknown == 1 ? "" : "s", list, more);
}

static const fsdp_shard_rule *rule_of(const resolver *r, int index) {
  return index < 0 ? NULL : &r->sharding->rules[index];
}

static fsdp_status fail_index(const resolver *r, const shard_target *t, const fsdp_shard_rule *rule,
                              const fsdp_shard_rule *other) {
  if (other && (other->output < 0) != (rule->output < 0)) {
    const fsdp_shard_rule *with = rule->output < 0 ? other : rule, *without = rule->output < 0 ? rule : other;
    return fsdp_fail(r->error, FSDP_ERR_INPUT,
                     "%s: \"%s[%d]\" names one output of what \"%s\" (%s) names whole: remove one of them",
                     with->place, with->name, with->output, without->name, without->place);
  }
  return fsdp_fail(r->error, FSDP_ERR_INPUT,
                   "%s: \"%s[%d]\": the index is out of range: %s is one tensor, not a list; write \"%s\"",
                   rule->place, rule->name, rule->output, *t->name ? t->name : "the model's output",
                   rule->name);
}

// Finds the rule that holds for each target; every rule must match something.
static fsdp_status match(resolver *r) {
  int count = r->sharding->rule_count;
  bool *known = fsdp_alloc_zeroed((size_t)count + 1, sizeof *known), all = true;
  fsdp_status status = FSDP_OK;
  for (int t = 0; t < r->target_count; t++) {
    shard_target *target = &r->targets[t];
    for (int i = 0; i < count; i++) {
      if (!fsdp_name_matches(r->sharding->rules[i].name, target->name)) continue;
      const fsdp_shard_rule *rule = rule_of(r, i), *held = rule_of(r, target->rule);
      known[i] = true;
      // An index is wrong whichever rule wins.
      bool mixed = held && (held->output < 0) != (rule->output < 0);
      if (!status && mixed) status = fail_index(r, target, rule, held);
      if (!held || fsdp_name_wins(rule->name, held->name)) target->rule = i;
    }
  }
  for (int i = 0; i < count; i++) all = all && known[i];
  if (!all) status = fail_unknown(r, known);
  free(known);
  for (int t = 0; t < r->target_count && !status; t++) {
    const fsdp_shard_rule *rule = rule_of(r, r->targets[t].rule);
    if (rule && rule->output >= 0) status = fail_index(r, &r->targets[t], rule, NULL);
  }
  return status;
}

// ---- Axes

static void list_axes(const fsdp_mesh *mesh, char *out, size_t bytes) {
  size_t used = 0;
  for (int a = 0; a < mesh->count && used < bytes; a++)
    used += (size_t)snprintf(out + used, bytes - used, "%s%s", used ? ", " : "", mesh->axes[a].name);
}

// The axis that a rule names, by its name or by its index in the mesh as given.
static fsdp_status find_axis(const resolver *r, const char *place, const char *text, int *axis) {
  const fsdp_mesh *given = r->sharding->given.count ? &r->sharding->given : r->mesh;
  char known[FSDP_MESH_TEXT_BYTES];
  bool integer = *text && strspn(text, "0123456789") == strlen(text);
  long index = integer ? strtol(text, NULL, 10) : -1;
  if (index >= given->count) {
    list_axes(given, known, sizeof known);
    return fsdp_fail(r->error, FSDP_ERR_INPUT,
                     "%s: mesh index %s is out of range: the mesh's axes are %s, numbered from 0", place,
                     text, known);
  }
  *axis = fsdp_mesh_find(r->mesh, integer ? given->axes[index].name : text);
  if (*axis >= 0) return FSDP_OK;
  list_axes(r->mesh, known, sizeof known);
  return fsdp_fail(r->error, FSDP_ERR_INPUT,
                   "%s: the mesh has no axis \"%s\": its axes are %s; name it in --mesh, or use one of these",
                   place, text, known);
}

static fsdp_status read_spec(const resolver *r, const fsdp_shard_rule *rule, fsdp_spec *spec) {
  fsdp_axis_set seen = 0;
  *spec = (fsdp_spec){.dims = rule->dims};
  for (int d = 0; d < rule->dims && d < FSDP_MAX_DIMS; d++) {
    for (int i = 0; i < rule->dim[d].count; i++) {
      int axis;
      fsdp_status status = find_axis(r, rule->place, rule->dim[d].axes[i], &axis);
      if (status) return status;
      if (seen >> axis & 1)
        return fsdp_fail(r->error, FSDP_ERR_INPUT,
                         "%s: \"%s\" names axis %s twice: an axis cuts one dimension, once; remove one",
                         rule->place, rule->name, r->mesh->axes[axis].name);
      seen |= 1u << axis;
      spec->dim[d].axes[spec->dim[d].count++] = (signed char)axis;
    }
  }
  return FSDP_OK;
}

static fsdp_status read_specs(resolver *r) {
  r->specs = fsdp_alloc_zeroed((size_t)r->sharding->rule_count + 1, sizeof *r->specs);
  fsdp_status status = FSDP_OK;
  for (int i = 0; i < r->sharding->rule_count && !status; i++)
    status = read_spec(r, rule_of(r, i), &r->specs[i]);
  for (int t = 0; t < r->target_count && !status; t++) {
    static const char *const words[] = {"tokens and targets have", "the weight has", "the weight has",
                                        "the output has"};
    static const char *const meanings[] = {" (batch, sequence)", "", "", " (batch, sequence, channels)"};
    const shard_target *target = &r->targets[t];
    const fsdp_shard_rule *rule = rule_of(r, target->rule);
    if (!rule || rule->dims == target->dims) continue;
    status =
        fsdp_fail(r->error, FSDP_ERR_INPUT,
                  "%s: \"%s\" has %d entr%s, but %s %d dimension%s%s: write one entry for each", rule->place,
                  rule->name, rule->dims, rule->dims == 1 ? "y" : "ies", words[target->kind], target->dims,
                  target->dims == 1 ? "" : "s", meanings[target->kind]);
  }
  return status;
}

// ---- What runs

// The axes of `dim` with more than one rank, in order.
static fsdp_dim_axes without_ones(const fsdp_dim_axes *dim, const fsdp_mesh *mesh) {
  fsdp_dim_axes out = {0};
  for (int i = 0; i < dim->count; i++)
    if (mesh->axes[dim->axes[i]].size > 1) out.axes[out.count++] = dim->axes[i];
  return out;
}

static bool same_axes(const fsdp_dim_axes *a, const fsdp_dim_axes *b) {
  return a->count == b->count && memcmp(a->axes, b->axes, (size_t)a->count) == 0;
}

// Activations may be cut in their first dimension alone.
static fsdp_status check_activation(const resolver *r, const fsdp_shard_rule *rule, const fsdp_spec *spec) {
  char text[FSDP_SPEC_TEXT_BYTES], batch[FSDP_SPEC_TEXT_BYTES];
  const fsdp_spec first = {.dims = 1, .dim = {without_ones(&r->out->input.dim[0], r->mesh)}};
  for (int d = 1; d < spec->dims; d++) {
    fsdp_dim_axes cut = without_ones(&spec->dim[d], r->mesh);
    const fsdp_mesh_axis *axis = cut.count ? &r->mesh->axes[cut.axes[0]] : NULL;
    if (axis)
      return fsdp_fail(r->error, FSDP_ERR_INPUT,
                       "%s: \"%s\": %s cuts dimension %d over axis %s of %d ranks: only the batch, dimension "
                       "0, can be cut yet (no tensor, sequence or context parallelism); use %s=1 in --mesh",
                       rule->place, rule->name, fsdp_spec_print(spec, r->mesh, text), d, axis->name,
                       axis->size, axis->name);
  }
  fsdp_dim_axes own = without_ones(&spec->dim[0], r->mesh);
  if (same_axes(&own, &first.dim[0])) return FSDP_OK;
  return fsdp_fail(r->error, FSDP_ERR_INPUT,
                   "%s: \"%s\": %s differs from the batch, which lies over %s: activations are not moved "
                   "between ranks yet; use the batch's axes, in its order, for dimension 0",
                   rule->place, rule->name, fsdp_spec_print(spec, r->mesh, text),
                   fsdp_spec_print(&first, r->mesh, batch));
}

// The batch lies over what `input` says, else the preset, else the first rule for an output of a file.
static fsdp_status place_batch(resolver *r) {
  const fsdp_sharding *s = r->sharding;
  int first = s->rule_count;
  for (int t = 1; t < r->target_count; t++)
    if (r->targets[t].kind == TARGET_OUTPUT && r->targets[t].rule >= 0 && r->targets[t].rule < first)
      first = r->targets[t].rule;
  if (r->targets[0].rule >= 0)
    r->out->input = r->specs[r->targets[0].rule];
  else if (s->preset == FSDP_SHARDING_FILE && first < s->rule_count)
    r->out->input.dim[0] = without_ones(&r->specs[first].dim[0], r->mesh);
  const fsdp_shard_rule *rule = rule_of(r, r->targets[0].rule);
  return rule ? check_activation(r, rule, &r->out->input) : FSDP_OK;
}

static fsdp_status place_outputs(resolver *r) {
  fsdp_status status = FSDP_OK;
  for (int t = 0; t < r->target_count && !status; t++) {
    const shard_target *target = &r->targets[t];
    if (target->kind != TARGET_OUTPUT) continue;
    fsdp_spec *spec = &r->out->modules[target->index];
    *spec = (fsdp_spec){.dims = FSDP_OUTPUT_DIMS, .dim = {r->out->input.dim[0]}};
    if (target->rule < 0) continue;
    *spec = r->specs[target->rule];
    status = check_activation(r, rule_of(r, target->rule), spec);
  }
  return status;
}

static fsdp_status check_weight(const resolver *r, const fsdp_shard_rule *rule, const fsdp_spec *spec) {
  fsdp_axis_set outside = fsdp_spec_axes(spec, r->mesh) & ~fsdp_spec_axes(&r->out->input, r->mesh);
  char text[FSDP_SPEC_TEXT_BYTES];
  for (int a = 0; a < r->mesh->count; a++) {
    const fsdp_mesh_axis *axis = &r->mesh->axes[a];
    if (!(outside >> a & 1)) continue;
    return fsdp_fail(r->error, FSDP_ERR_INPUT,
                     "%s: \"%s\": %s cuts a weight over axis %s of %d ranks, over which the batch does not "
                     "lie: that is tensor parallelism, which is not built yet; use %s=1 in --mesh, or cut "
                     "the batch over it",
                     rule->place, rule->name, fsdp_spec_print(spec, r->mesh, text), axis->name, axis->size,
                     axis->name);
  }
  return FSDP_OK;
}

// A tied weight has the rules of both names.
static fsdp_status place_params(resolver *r) {
  int *held = fsdp_alloc((size_t)(r->graph->param_count + 1) * sizeof *held); // rules, by parameter
  fsdp_status status = FSDP_OK;
  for (int p = 0; p < r->graph->param_count; p++) held[p] = -1;
  for (int t = 0; t < r->target_count && !status; t++) {
    const shard_target *target = &r->targets[t];
    bool is_weight = target->kind == TARGET_PARAM || target->kind == TARGET_TIE;
    if (!is_weight || target->rule < 0) continue;
    const fsdp_spec *spec = &r->specs[target->rule];
    const fsdp_shard_rule *rule = rule_of(r, target->rule), *other = rule_of(r, held[target->index]);
    status = check_weight(r, rule, spec);
    if (!other) {
      r->out->params[target->index] = *spec;
      held[target->index] = target->rule;
    } else if (!status &&
               fsdp_spec_axes(spec, r->mesh) != fsdp_spec_axes(&r->out->params[target->index], r->mesh)) {
      status = fsdp_fail(r->error, FSDP_ERR_INPUT,
                         "%s: \"%s\" lies over other axes than \"%s\" (%s), but both name one tied weight: "
                         "use the same axes, or remove one of them",
                         rule->place, rule->name, other->name, other->place);
    }
  }
  free(held);
  return status;
}

// ---- Presets

static fsdp_status apply_preset(resolver *r) {
  const fsdp_sharding *s = r->sharding;
  const bool v2 = s->preset == FSDP_SHARDING_FSDPV2;
  int fsdp = fsdp_mesh_find(r->mesh, FSDP_AXIS_FSDP), data = -1;
  for (int p = 0; p < r->graph->param_count; p++)
    r->out->params[p] = (fsdp_spec){.dims = r->graph->params[p].dims};
  if (s->preset == FSDP_SHARDING_FILE) return FSDP_OK;
  if (s->given.count && fsdp_mesh_find(&s->given, FSDP_AXIS_FSDP) < 0)
    return fsdp_fail(r->error, FSDP_ERR_OPTION,
                     "--sharding %s needs a mesh with an axis fsdp, on which weights lie: give it in --mesh, "
                     "as in --mesh fsdp=N",
                     v2 ? "fsdpv2" : "fsdp");
  if (*s->data_axis) {
    fsdp_status status = find_axis(r, "--extra-data-axis", s->data_axis, &data);
    if (status) return status;
    if (data == fsdp)
      return fsdp_fail(r->error, FSDP_ERR_OPTION,
                       "--extra-data-axis fsdp: the batch lies over it already; name another axis");
  } else if (!v2) {
    data = fsdp_mesh_find(r->mesh, FSDP_AXIS_DATA);
  }
  fsdp_dim_axes *batch = &r->out->input.dim[0];
  *batch = (fsdp_dim_axes){0};
  if (data >= 0) batch->axes[batch->count++] = (signed char)data;
  batch->axes[batch->count++] = (signed char)fsdp;
  for (int p = 0; p < r->graph->param_count; p++) {
    const fsdp_param *param = &r->graph->params[p];
    int largest = 0;
    for (int d = 1; d < param->dims && v2; d++)
      if (param->shape[d] > param->shape[largest]) largest = d;
    r->out->params[p].dim[largest] = (fsdp_dim_axes){.count = 1, .axes = {(signed char)fsdp}};
  }
  return FSDP_OK;
}

// Preset weights, like rules', and axes without any use.
static fsdp_status check_mesh(const resolver *r) {
  fsdp_axis_set batch = fsdp_spec_axes(&r->out->input, r->mesh), sets[SETS_MAX];
  bool file = r->sharding->preset == FSDP_SHARDING_FILE;
  int count = 0;
  for (int a = 0; a < r->mesh->count; a++) {
    const fsdp_mesh_axis *axis = &r->mesh->axes[a];
    if (axis->size == 1 || batch >> a & 1) continue;
    return fsdp_fail(r->error, FSDP_ERR_OPTION,
                     "--mesh: axis %s has %d ranks, over which the batch does not lie, so they would all do "
                     "the same: cut the batch over it with %s%s%s, or use %s=1",
                     axis->name, axis->size, file ? "a line input: [[..., " : "--extra-data-axis ",
                     axis->name, file ? "], null] in the sharding file" : "", axis->name);
  }
  for (int p = 0; p < r->graph->param_count; p++) {
    fsdp_axis_set axes = fsdp_spec_axes(&r->out->params[p], r->mesh);
    int known = 0;
    while (known < count && sets[known] != axes) known++;
    if (known == SETS_MAX)
      return fsdp_fail(r->error, FSDP_ERR_INPUT,
                       "--sharding: weights lie over more than %d different sets of axes: use fewer",
                       SETS_MAX);
    sets[known] = axes;
    count += known == count;
  }
  return FSDP_OK;
}

fsdp_status fsdp_sharding_resolve(const fsdp_sharding *sharding, const fsdp_graph *graph,
                                  const fsdp_mesh *mesh, fsdp_specs **specs, fsdp_error *error) {
  static fsdp_status (*const match_steps[])(resolver *) = {match,       read_specs,    apply_preset,
                                                           place_batch, place_outputs, place_params};
  resolver r = {.sharding = sharding, .graph = graph, .mesh = mesh, .error = error};
  fsdp_status status = FSDP_OK;
  r.out = fsdp_specs_default(graph, mesh);
  list_targets(&r);
  for (size_t i = 0; i < sizeof match_steps / sizeof *match_steps && !status; i++)
    status = match_steps[i](&r);
  if (!status) status = check_mesh(&r);
  if (status)
    fsdp_specs_destroy(r.out);
  else
    *specs = r.out;
  free(r.specs);
  free(r.targets);
  return status;
}
