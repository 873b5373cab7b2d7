#include "runtime/plan/sharding/sharding.h"

#include "runtime/base/check.h"
#include "runtime/base/nearest.h"
#include "runtime/plan/mesh/names.h"
#include "runtime/plan/sharding/tensor_preset.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

// Different sets of axes that weights may lie over. Each makes up to three communicators (to gather, to
// reduce, to sum over its replicas); one is of all ranks, and a few are of activations:
// FSDP_PROGRAM_COMMS_MAX.
#define SETS_MAX 8

typedef enum target_kind { TARGET_INPUT, TARGET_PARAM, TARGET_TIE, TARGET_STORED, TARGET_OUTPUT } target_kind;

// What a rule can name.
typedef struct shard_target {
  target_kind kind;
  int index;           // of the parameter or the module
  int output, outputs; // of a module's; else 0 of 1
  bool is_list;        // an index is right for one output, too
  bool is_reversed;    // of stored weights: the last two dimensions are the weight's in reverse
  int dims;
  int rule;  // that holds for it, or -1
  int named; // the first rule that names all of it or one of its outputs, or -1
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

static shard_target *add_target(resolver *r, target_kind kind, int index, int dims, const char *name) {
  shard_target *t = &r->targets[r->target_count++];
  *t = (shard_target){.kind = kind, .index = index, .outputs = 1, .dims = dims, .rule = -1, .named = -1};
  snprintf(t->name, sizeof t->name, "%s", name);
  return t;
}

// Whether weight files name a parameter otherwise.
static bool has_stored_names(const fsdp_param *param) {
  return param->stored[0] != NULL;
}

// A name of weight files, below the module that it lies in; `cut` and `tail` are taken out.
static void add_stored(resolver *r, int param, int which, const char *cut, const char *tail, int dims) {
  const fsdp_param *p = &r->graph->params[param];
  char path[FSDP_NAME_BYTES], name[FSDP_NAME_BYTES];
  const char *stored = p->stored[which], *at = *cut ? strstr(stored, cut) : stored;
  const char *rest = at + strlen(cut);
  fsdp_graph_module_path(r->graph, p->stored_below, path);
  const int length = snprintf(name, sizeof name, "%s.%.*s%.*s", path, (int)(at - stored), stored,
                              (int)(strlen(rest) - strlen(tail)), rest);
  FSDP_CHECK(length < FSDP_NAME_BYTES, "a stored name longer than %d bytes", FSDP_NAME_BYTES);
  if (strchr(name, '*')) *strchr(name, '*') = '0'; // any expert's number
  add_target(r, TARGET_STORED, param, dims, name);
}

// The names that weight files have for a parameter: of one tensor its name, of stacked experts that of each,
// "experts.*.w1.weight" (out, in), and of the stacks by themselves, "experts.w1" (experts, in, out), unless
// the parameter is called so.
static void list_stored(resolver *r, int param) {
  const fsdp_param *p = &r->graph->params[param];
  for (int i = 0; i < FSDP_STORED_MAX_NAMES && p->stored[i]; i++) {
    if (!strchr(p->stored[i], '*')) {
      add_stored(r, param, i, "", "", p->dims);
      continue;
    }
    add_stored(r, param, i, "", "", p->dims - 1);
    add_stored(r, param, i, ".*", ".weight", p->dims);
    shard_target *stack = &r->targets[r->target_count - 1];
    stack->is_reversed = true;
    if (!strcmp(stack->name, p->name)) r->target_count--; // it lies as the parameter of that name
  }
}

// A layer with routed experts returns a list where its model has losses of the router.
static bool returns_list(const resolver *r, int module) {
  bool routed = false;
  for (int p = 0; p < r->graph->param_count; p++) routed |= has_stored_names(&r->graph->params[p]);
  return routed && fsdp_graph_layer_of(r->graph, module) == module;
}

static void list_outputs(resolver *r, int module) {
  const fsdp_module *m = &r->graph->modules[module];
  char path[FSDP_NAME_BYTES];
  fsdp_graph_module_path(r->graph, module, path);
  for (int i = 0; i < m->output_count; i++) {
    shard_target *t = add_target(r, TARGET_OUTPUT, module, m->output_dims[i], path);
    t->output = i;
    t->outputs = m->output_count;
    t->is_list = t->outputs > 1 || returns_list(r, module);
  }
}

static void list_targets(resolver *r) {
  const fsdp_graph *g = r->graph;
  int most = 1 + (1 + 2 * FSDP_STORED_MAX_NAMES) * g->param_count + g->tie_count +
             FSDP_MODULE_MAX_OUTPUTS * g->module_count;
  r->targets = fsdp_alloc_zeroed((size_t)most, sizeof *r->targets);
  add_target(r, TARGET_INPUT, 0, 2, "input");
  for (int p = 0; p < g->param_count; p++)
    add_target(r, TARGET_PARAM, p, g->params[p].dims, g->params[p].name);
  for (int p = 0; p < g->param_count; p++) list_stored(r, p);
  for (int i = 0; i < g->tie_count; i++) {
    int param = g->ties[i].param;
    add_target(r, TARGET_TIE, param, g->params[param].dims, g->ties[i].name);
  }
  for (int m = 0; m < g->module_count; m++) list_outputs(r, m);
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
  int found = fsdp_nearest_phrase(pattern, names, count);
  if (found >= 0) memcpy(out, patterns[found], FSDP_NAME_BYTES);
  free(patterns);
  free(names);
  return found >= 0 ? out : NULL;
}

// Whether `name` has * where `known` has no number.
static bool has_star_for_name(const char *name, const char *known) {
  bool star = false;
  for (;;) {
    const size_t here = strcspn(name, "."), there = strcspn(known, ".");
    const bool any = here == 1 && *name == '*';
    if (!any && (here != there || strncmp(name, known, here) != 0)) return false;
    star = star || (any && !isdigit((unsigned char)*known));
    name += here, known += there;
    if (!*name || !*known) return star && !*name && !*known;
    name++, known++;
  }
}

// The number of the first part that is one, -1 if none is; into *bytes what is before it.
static long first_number(const char *name, size_t *bytes) {
  const char *at = name;
  while (*at && !isdigit((unsigned char)*at)) at += strcspn(at, "."), at += *at == '.';
  *bytes = (size_t)(at - name);
  return *at ? strtol(at, NULL, 10) : -1;
}

// Why no target has the name of a rule, or what it may have meant.
static void explain_unknown(const resolver *r, const char *name, char *out, size_t out_bytes) {
  char near[FSDP_NAME_BYTES], pattern[FSDP_NAME_BYTES];
  const char *meant = nearest(r, name, near);
  size_t bytes, same;
  long most = -1, asked = first_number(name, &bytes);
  fsdp_name_pattern(name, pattern);
  for (int t = 0; t < r->target_count; t++) {
    if (has_star_for_name(name, r->targets[t].name)) {
      snprintf(out, out_bytes, "* is any integer, and stands for no name");
      return;
    }
    const long number = first_number(r->targets[t].name, &same);
    if (same == bytes && !strncmp(name, r->targets[t].name, bytes) && number > most) most = number;
  }
  if (meant && asked > most && most >= 0 && !strcmp(meant, pattern))
    snprintf(out, out_bytes, "the model has %.*s.0 to %.*s.%ld", (int)bytes - 1, name, (int)bytes - 1, name,
             most);
  else
    snprintf(out, out_bytes, "%s%s%s", meant ? "did you mean " : "nothing is near", meant ? meant : "",
             meant ? "?" : "");
}

// "q_proj" (a.yaml:3; did you mean ...?), ...
static fsdp_status fail_unknown(const resolver *r, const bool *known) {
  char list[860] = "", why[2 * FSDP_NAME_BYTES + 64];
  size_t used = 0;
  int left = 0, unknown = 0;
  for (int i = 0; i < r->sharding->rule_count; i++) {
    const fsdp_shard_rule *rule = &r->sharding->rules[i];
    char one[3 * FSDP_NAME_BYTES + 264];
    if (known[i]) continue;
    explain_unknown(r, rule->name, why, sizeof why);
    unknown++;
    int length =
        snprintf(one, sizeof one, "%s\"%s\" (%s; %s)", used ? ", " : "", rule->name, rule->place, why);
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

// Of `x` and `x[0]`, one is too many.
static fsdp_status fail_mixed(const resolver *r, const fsdp_shard_rule *rule, const fsdp_shard_rule *other) {
  const fsdp_shard_rule *with = rule->output < 0 ? other : rule, *without = rule->output < 0 ? rule : other;
  return fsdp_fail(r->error, FSDP_ERR_INPUT,
                   "%s: \"%s[%d]\" names one output of what \"%s\" (%s) names whole: remove one of them",
                   with->place, with->name, with->output, without->name, without->place);
}

static fsdp_status fail_range(const resolver *r, const shard_target *t, const fsdp_shard_rule *rule) {
  const char *name = *t->name ? t->name : "the model's output";
  if (t->outputs == 1)
    return fsdp_fail(r->error, FSDP_ERR_INPUT,
                     "%s: \"%s[%d]\": the index is out of range: %s is one tensor, not a list; write \"%s\"",
                     rule->place, rule->name, rule->output, name, rule->name);
  return fsdp_fail(
      r->error, FSDP_ERR_INPUT,
      "%s: \"%s[%d]\": the index is out of range: %s has the outputs [0] to [%d]; use one of them",
      rule->place, rule->name, rule->output, name, t->outputs - 1);
}

// Rule `index` names the target, or one output of its module. An index is wrong whichever rule wins.
static fsdp_status match_one(const resolver *r, shard_target *t, int index) {
  const fsdp_shard_rule *rule = rule_of(r, index), *named = rule_of(r, t->named), *held = rule_of(r, t->rule);
  if (t->named < 0) t->named = index;
  if (named && (named->output < 0) != (rule->output < 0)) return fail_mixed(r, rule, named);
  if (rule->output >= (t->is_list ? t->outputs : 0)) return fail_range(r, t, rule);
  if (rule->output >= 0 && rule->output != t->output) return FSDP_OK;
  if (!held || fsdp_name_wins(rule->name, held->name)) t->rule = index;
  return FSDP_OK;
}

// Finds the rule that holds for each target; every rule must match something.
static fsdp_status match(resolver *r) {
  int count = r->sharding->rule_count;
  bool *known = fsdp_alloc_zeroed((size_t)count + 1, sizeof *known), all = true;
  fsdp_status status = FSDP_OK;
  for (int t = 0; t < r->target_count; t++)
    for (int i = 0; i < count; i++) {
      if (!fsdp_name_matches(r->sharding->rules[i].name, r->targets[t].name)) continue;
      known[i] = true;
      if (!status) status = match_one(r, &r->targets[t], i);
    }
  for (int i = 0; i < count; i++) all = all && known[i];
  if (!all) status = fail_unknown(r, known);
  free(known);
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
  if (!strcasecmp(text, "none") || !strcmp(text, "-"))
    return fsdp_fail(r->error, FSDP_ERR_INPUT,
                     "%s: the mesh has no axis \"%s\": write null for a dimension that nothing cuts", place,
                     text);
  list_axes(r->mesh, known, sizeof known);
  return fsdp_fail(r->error, FSDP_ERR_INPUT,
                   "%s: the mesh has no axis \"%s\": its axes are %s; name it in --mesh, or use one of these",
                   place, text, known);
}

static fsdp_status read_spec(const resolver *r, const fsdp_shard_rule *rule, fsdp_spec *spec) {
  fsdp_axis_set seen = 0;
  *spec = (fsdp_spec){.dims = rule->dims, .source = rule->is_preset ? FSDP_SPEC_PRESET : FSDP_SPEC_GIVEN};
  snprintf(spec->place, sizeof spec->place, "%s", rule->place);
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
                                        "the weight has", "the output has"};
    const shard_target *target = &r->targets[t];
    const fsdp_shard_rule *rule = rule_of(r, target->rule);
    if (!rule || rule->dims == target->dims) continue;
    bool is_output = target->kind == TARGET_OUTPUT && target->dims == FSDP_OUTPUT_DIMS;
    const char *meaning = target->kind == TARGET_INPUT ? " (batch, sequence)"
                          : is_output                  ? " (batch, sequence, channels)"
                                                       : "";
    const char *one =
        target->outputs > 1 && rule->output < 0 ? ", or name one of its outputs, as in [0]" : "";
    status = fsdp_fail(r->error, FSDP_ERR_INPUT,
                       "%s: \"%s\" has %d entr%s, but %s %d dimension%s%s: write one entry for each%s",
                       rule->place, rule->name, rule->dims, rule->dims == 1 ? "y" : "ies",
                       words[target->kind], target->dims, target->dims == 1 ? "" : "s", meaning, one);
  }
  return status;
}

// ---- Placements

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
    r->out->input.dim[0] = r->specs[first].dim[0];
  return FSDP_OK;
}

static fsdp_status place_outputs(resolver *r) {
  fsdp_specs_outputs_as_input(r->out, r->graph);
  if (r->sharding->preset == FSDP_SHARDING_FSDP_TP) // weights, too, for which rules come later
    fsdp_tensor_preset(r->out, r->graph, r->mesh, r->sharding->sequence_parallel);
  for (int t = 0; t < r->target_count; t++) {
    const shard_target *target = &r->targets[t];
    if (target->kind == TARGET_OUTPUT && target->rule >= 0)
      r->out->outputs[target->index][target->output] = r->specs[target->rule];
  }
  return FSDP_OK;
}

// Whether two specs store a weight alike: cut flat over the same axes of the input's, and over each other
// axis in the same dimension.
static bool same_storage(const resolver *r, const fsdp_spec *a, const fsdp_spec *b) {
  fsdp_axis_set flat = fsdp_spec_axes(&r->out->input, r->mesh);
  bool same = fsdp_spec_axes(a, r->mesh) == fsdp_spec_axes(b, r->mesh);
  for (int d = 0; d < FSDP_MAX_DIMS && same; d++)
    same = !((fsdp_dim_axis_set(&a->dim[d], r->mesh) ^ fsdp_dim_axis_set(&b->dim[d], r->mesh)) & ~flat);
  return same;
}

// What a rule says of a parameter that it calls by another name.
static fsdp_spec named_spec(const resolver *r, const shard_target *target) {
  const fsdp_spec given = r->specs[target->rule];
  fsdp_spec spec = given;
  const int own = r->graph->params[target->index].dims;
  spec.dims = own;
  for (int d = 0; d < given.dims && given.dims < own; d++) spec.dim[d + 1] = given.dim[d]; // of each expert
  if (given.dims < own) spec.dim[0] = (fsdp_dim_axes){0};
  if (target->is_reversed) spec.dim[own - 2] = given.dim[own - 1], spec.dim[own - 1] = given.dim[own - 2];
  return spec;
}

// A tied weight, and one that holds several of the files', has the rules of all its names.
static fsdp_status place_params(resolver *r) {
  int *held = fsdp_alloc((size_t)(r->graph->param_count + 1) * sizeof *held); // rules, by parameter
  fsdp_status status = FSDP_OK;
  for (int p = 0; p < r->graph->param_count; p++) held[p] = -1;
  for (int t = 0; t < r->target_count && !status; t++) {
    const shard_target *target = &r->targets[t];
    bool is_weight =
        target->kind == TARGET_PARAM || target->kind == TARGET_TIE || target->kind == TARGET_STORED;
    if (!is_weight || target->rule < 0) continue;
    const fsdp_spec named = named_spec(r, target), *spec = &named;
    const fsdp_shard_rule *rule = rule_of(r, target->rule), *other = rule_of(r, held[target->index]);
    if (!other) {
      r->out->params[target->index] = *spec;
      held[target->index] = target->rule;
    } else if (!same_storage(r, spec, &r->out->params[target->index])) {
      status = fsdp_fail(r->error, FSDP_ERR_INPUT,
                         "%s: \"%s\" lies otherwise than \"%s\" (%s), but both name one %s weight: use the "
                         "same axes, or remove one of them",
                         rule->place, rule->name, other->name, other->place,
                         target->kind == TARGET_STORED ? "stacked" : "tied");
    }
  }
  free(held);
  return status;
}

// ---- Order

// The axes of `some` in the mesh's order, in the places that they have among the others.
static void order_dim(fsdp_dim_axes *dim, fsdp_axis_set some) {
  for (int i = 0; i < dim->count; i++)
    for (int j = 0; j < i; j++) {
      signed char held = dim->axes[i];
      if (!(some >> held & 1) || !(some >> dim->axes[j] & 1) || dim->axes[j] < held) continue;
      dim->axes[i] = dim->axes[j];
      dim->axes[j] = held;
    }
}

// Axes cut a dimension in the mesh's order, the first one outermost, however a list has them. The batch alone
// lies as it is written: its parts may be in any order. Over the input's axes a weight lies flat.
static fsdp_status order_axes(resolver *r) {
  const fsdp_axis_set others = ~fsdp_spec_axes(&r->out->input, r->mesh);
  order_dim(&r->out->input.dim[1], ~0u);
  for (int p = 0; p < r->graph->param_count; p++)
    for (int d = 0; d < FSDP_MAX_DIMS; d++) order_dim(&r->out->params[p].dim[d], others);
  for (int m = 0; m < r->graph->module_count; m++)
    for (int i = 0; i < r->graph->modules[m].output_count; i++)
      for (int d = 1; d < FSDP_MAX_DIMS; d++) order_dim(&r->out->outputs[m][i].dim[d], others);
  return FSDP_OK;
}

// ---- Presets

static void cut_largest(const resolver *r, int p) {
  const fsdp_param *param = &r->graph->params[p];
  int largest = 0;
  for (int d = 1; d < param->dims; d++)
    if (param->shape[d] > param->shape[largest]) largest = d;
  r->out->params[p] = (fsdp_spec){.dims = param->dims};
  fsdp_dim_axes_add(&r->out->params[p].dim[largest], r->mesh, FSDP_AXIS_FSDP);
}

// Weights, and the batch as data (or data_axis) and fsdp. r->out has the default.
static fsdp_status apply_preset(resolver *r) {
  static const char *const names[] = {"", "fsdp", "fsdp-tp", "fsdpv2"};
  const fsdp_sharding *s = r->sharding;
  const bool v2 = s->preset == FSDP_SHARDING_FSDPV2;
  for (int p = 0; p < r->graph->param_count && s->preset == FSDP_SHARDING_FILE; p++)
    r->out->params[p] = (fsdp_spec){.dims = r->graph->params[p].dims};
  if (s->preset == FSDP_SHARDING_FILE) {
    r->out->input.dim[1] = (fsdp_dim_axes){0};
    return FSDP_OK;
  }
  if (s->given.count && fsdp_mesh_find(&s->given, FSDP_AXIS_FSDP) < 0 &&
      (v2 || s->preset == FSDP_SHARDING_FSDP))
    return fsdp_fail(r->error, FSDP_ERR_OPTION,
                     "--sharding %s needs a mesh with an axis fsdp, on which weights lie: give it in --mesh, "
                     "as in --mesh fsdp=N",
                     names[s->preset]);
  fsdp_dim_axes *batch = &r->out->input.dim[0];
  const char *data = v2 ? "" : FSDP_AXIS_DATA;
  if (*s->data_axis) {
    int axis;
    fsdp_status status = find_axis(r, "--extra-data-axis", s->data_axis, &axis);
    if (status) return status;
    data = r->mesh->axes[axis].name;
    if (!strcmp(data, FSDP_AXIS_FSDP))
      return fsdp_fail(r->error, FSDP_ERR_OPTION,
                       "--extra-data-axis fsdp: the batch lies over it already; name another axis");
    if (!v2 && !strcmp(data, FSDP_AXIS_CONTEXT))
      return fsdp_fail(r->error, FSDP_ERR_OPTION,
                       "--extra-data-axis context: the sequence lies over it already; name another axis");
  }
  *batch = (fsdp_dim_axes){0};
  fsdp_dim_axes_add(batch, r->mesh, data);
  fsdp_dim_axes_add(batch, r->mesh, FSDP_AXIS_FSDP);
  if (!v2 && strcmp(data, FSDP_AXIS_EXPERT) != 0) fsdp_dim_axes_add(batch, r->mesh, FSDP_AXIS_EXPERT);
  if (v2) r->out->input.dim[1] = (fsdp_dim_axes){0};
  for (int p = 0; p < r->graph->param_count && v2; p++) cut_largest(r, p);
  for (int p = 0; p < r->graph->param_count; p++) {
    r->out->params[p].source = FSDP_SPEC_PRESET;
    snprintf(r->out->params[p].place, sizeof r->out->params[p].place, "--sharding %s", names[s->preset]);
  }
  return FSDP_OK;
}

// ---- The mesh

// The axes that anything lies over.
static fsdp_axis_set used_axes(const resolver *r) {
  fsdp_axis_set used = fsdp_spec_axes(&r->out->input, r->mesh);
  for (int p = 0; p < r->graph->param_count; p++) used |= fsdp_spec_axes(&r->out->params[p], r->mesh);
  for (int m = 0; m < r->graph->module_count; m++)
    for (int i = 0; i < r->graph->modules[m].output_count; i++)
      used |= fsdp_spec_axes(&r->out->outputs[m][i], r->mesh);
  return used;
}

static fsdp_status fail_unused(const resolver *r, const fsdp_mesh_axis *axis) {
  bool file = r->sharding->preset == FSDP_SHARDING_FILE, tensor = !strcmp(axis->name, FSDP_AXIS_TENSOR);
  char remedy[120];
  if (file)
    snprintf(remedy, sizeof remedy, "cut weights over it, or the batch with a line input: [[..., %s], null]",
             axis->name);
  else if (tensor)
    snprintf(remedy, sizeof remedy, "cut weights over it with --sharding fsdp-tp");
  else
    snprintf(remedy, sizeof remedy, "cut the batch over it with --extra-data-axis %s", axis->name);
  return fsdp_fail(
      r->error, FSDP_ERR_OPTION,
      "--mesh: axis %s has %d ranks, over which nothing lies, so they would all do the same: %s, "
      "or use %s=1",
      axis->name, axis->size, remedy, axis->name);
}

// Axes without any use, and more sets of axes than there are communicators for.
static fsdp_status check_mesh(resolver *r) {
  const fsdp_axis_set used = used_axes(r);
  fsdp_axis_set sets[SETS_MAX];
  int count = 0;
  for (int a = 0; a < r->mesh->count; a++)
    if (r->mesh->axes[a].size > 1 && !(used >> a & 1)) return fail_unused(r, &r->mesh->axes[a]);
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
  static fsdp_status (*const steps[])(resolver *) = {match,         read_specs,   apply_preset, place_batch,
                                                     place_outputs, place_params, order_axes,   check_mesh};
  resolver r = {.sharding = sharding, .graph = graph, .mesh = mesh, .error = error};
  fsdp_status status = FSDP_OK;
  r.out = fsdp_specs_default(graph, mesh);
  list_targets(&r);
  for (size_t i = 0; i < sizeof steps / sizeof *steps && !status; i++) status = steps[i](&r);
  if (status)
    fsdp_specs_destroy(r.out);
  else
    *specs = r.out;
  free(r.specs);
  free(r.targets);
  return status;
}
