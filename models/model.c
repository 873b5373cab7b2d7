#include "models/model.h"

#include "models/family.h"
#include "runtime/base/check.h"
#include "runtime/base/nearest.h"

#include <stdio.h>
#include <string.h>

typedef struct row {
  const char *model_type, *architecture;
  const fsdp_family *family;
} row;

static const row rows[] = {
#define FAMILY(name, model_type, architecture) {model_type, architecture, &fsdp_family_##name},
#include "models/families.def"
#undef FAMILY
};
enum { ROW_COUNT = sizeof rows / sizeof *rows };

static const fsdp_family *family_of(const fsdp_model_config *config) {
  FSDP_CHECK(config->family, "a model's configuration without a family");
  return config->family;
}

// ---- From JSON and back

// Whether `value` is, or is a list that holds, the string `text`.
static bool names(const json_t *value, const char *text) {
  bool found = false;
  for (size_t i = 0; i < json_array_size(value); i++)
    found |= fsdp_fields_is_text(json_array_get(value, i), text);
  return found;
}

// The row of the object's family; NULL, after a refusal, if there is none.
static const row *choose(fsdp_fields *f, const json_t *root) {
  const json_t *type = fsdp_fields_present(root, "model_type");
  const json_t *architectures = fsdp_fields_present(root, "architectures");
  char known[2][384] = {"", ""};
  size_t used[2] = {0, 0};
  const row *found = NULL;
  for (int i = 0; i < ROW_COUNT && !found; i++) {
    const char *texts[2] = {rows[i].model_type, rows[i].architecture};
    for (int k = 0; k < 2; k++)
      used[k] += (size_t)snprintf(known[k] + used[k], sizeof known[k] - used[k], "%s\"%s\"", i ? ", " : "",
                                  texts[k]);
    FSDP_CHECK(used[0] < sizeof known[0] && used[1] < sizeof known[1], "the list of families is too long");
    if (type ? fsdp_fields_is_text(type, texts[0]) : names(architectures, texts[1])) found = &rows[i];
  }
  char remedy[448];
  if (!type && !architectures) {
    fsdp_fields_refuse_missing(f, "model_type");
  } else if (!found) {
    snprintf(remedy, sizeof remedy, "but only these can be trained: %s; take the folder of such a model",
             known[type ? 0 : 1]);
    fsdp_fields_refuse(f, type ? "model_type" : "architectures", type ? type : architectures, remedy);
  } else if (architectures && !names(architectures, found->architecture)) {
    snprintf(remedy, sizeof remedy,
             "but of \"%s\" only [\"%s\"] can be trained; take the folder of such a model", found->model_type,
             found->architecture);
    fsdp_fields_refuse(f, "architectures", architectures, remedy);
  }
  return f->status ? NULL : found;
}

// Checks how the sizes of a decoder relate to each other; each is in its range already.
static fsdp_status check(const fsdp_model_config *c, const char *where, fsdp_error *error) {
  if (c->num_heads % c->num_kv_heads)
    return fsdp_fail(
        error, FSDP_ERR_INPUT,
        "num_attention_heads %lld is not divisible by num_key_value_heads %lld in %s: each key/value head "
        "serves an equal group of heads",
        (long long)c->num_heads, (long long)c->num_kv_heads, where);
  if (c->num_heads * c->head_dim > 1 << 22 || fsdp_model_parameter_count(c) > (int64_t)1 << 46)
    return fsdp_fail(
        error, FSDP_ERR_INPUT,
        "the shape in %s is beyond what the runtime counts: heads times head_dim is %lld (at most 2^22), "
        "and there may be at most 2^46 parameters",
        where, (long long)(c->num_heads * c->head_dim));
  if (c->expert_slots > c->experts)
    return fsdp_fail(
        error, FSDP_ERR_INPUT,
        "num_experts_per_tok %lld is above the %lld experts in %s: a token goes to different ones",
        (long long)c->expert_slots, (long long)c->experts, where);
  const int64_t groups = c->route_groups ? c->route_groups : 1;
  if (groups > 1 && (c->experts % groups || c->route_groups_kept > groups ||
                     c->expert_slots > c->route_groups_kept * (c->experts / groups) ||
                     c->route_group_best > c->experts / groups))
    return fsdp_fail(
        error, FSDP_ERR_INPUT,
        "%lld experts in %lld groups (n_group), of which %lld are kept (topk_group), in %s: the "
        "groups must be equal, of at least %lld experts, and those kept have at least the %lld that "
        "a token goes to (num_experts_per_tok)",
        (long long)c->experts, (long long)groups, (long long)c->route_groups_kept, where,
        (long long)c->route_group_best, (long long)c->expert_slots);
  if (c->rope_theta > 0 && c->head_dim % 2)
    return fsdp_fail(error, FSDP_ERR_INPUT, "head_dim is %lld in %s: RoPE rotates pairs, so it must be even",
                     (long long)c->head_dim, where);
  return FSDP_OK;
}

// What Transformers reads whatever the family.
static void refuse_general(fsdp_fields *f, const json_t *root) {
  const json_t *layers = fsdp_fields_present(root, "per_layer_config");
  fsdp_fields_only_bool(f, root, "is_causal", true, "positions that see later ones");
  if (layers && !(json_is_object(layers) && json_object_size(layers) == 0))
    fsdp_fields_refuse(f, "per_layer_config", layers,
                       "but the layers here differ in nothing that the other keys do not say; use a model "
                       "without it");
  fsdp_fields_only_text(f, root, "transformers_weights", "model.safetensors");
}

fsdp_status fsdp_model_read(const json_t *root, const char *where, fsdp_model_config *config,
                            fsdp_error *error) {
  fsdp_fields f = {.where = where, .error = error};
  *config = (fsdp_model_config){0};
  const row *chosen = choose(&f, root);
  if (!chosen) return f.status;
  f.model_type = chosen->model_type;
  config->family = chosen->family;
  const json_t *quantised = fsdp_fields_present(root, "quantization_config");
  if (quantised)
    fsdp_fields_refuse(&f, "quantization_config", quantised,
                       "but quantised weights cannot be trained; take the original ones");
  refuse_general(&f, root);
  config->family->read(&f, root, config);
  return f.status ? f.status : check(config, where, error);
}

json_t *fsdp_model_print(const fsdp_model_config *config) {
  const fsdp_family *family = family_of(config);
  const row *found = rows;
  while (found < rows + ROW_COUNT && found->family != family) found++;
  FSDP_CHECK(found < rows + ROW_COUNT, "a family that is not in families.def");
  json_t *root =
      json_pack("{s:[s], s:s}", "architectures", found->architecture, "model_type", found->model_type);
  FSDP_CHECK(root, "a family whose names are not valid JSON");
  family->print(config, root);
  return root;
}

bool fsdp_model_is_buffer(const char *name) {
  size_t length = strlen(name);
  for (int i = 0; i < ROW_COUNT; i++) {
    const char *const *ending = rows[i].family->buffers;
    for (; ending && *ending; ending++) {
      size_t tail = strlen(*ending);
      if (length >= tail && !strcmp(name + length - tail, *ending)) return true;
    }
  }
  return false;
}

// ---- Presets

// Preset `index`, counted over all families; NULL after the last.
static const fsdp_preset *preset_at(int index, const fsdp_family **family) {
  for (int i = 0; i < ROW_COUNT && index >= 0; i++) {
    *family = rows[i].family;
    for (const fsdp_preset *preset = rows[i].family->presets; preset->name; preset++)
      if (index-- == 0) return preset;
  }
  return NULL;
}

const char *fsdp_model_preset_name(int index) {
  const fsdp_family *family;
  const fsdp_preset *preset = preset_at(index, &family);
  return preset ? preset->name : NULL;
}

bool fsdp_model_is_preset(const char *name) {
  const char *preset;
  for (int i = 0; (preset = fsdp_model_preset_name(i)); i++)
    if (!strcmp(preset, name)) return true;
  return false;
}

#define PRESETS_MAX 64

fsdp_status fsdp_model_preset(const char *name, fsdp_model_config *config, fsdp_error *error) {
  char known[768] = "", meant[64] = "";
  const char *names[PRESETS_MAX];
  size_t used = 0;
  int count = 0;
  const fsdp_family *family;
  const fsdp_preset *preset;
  for (int i = 0; (preset = preset_at(i, &family)); i++) {
    if (!strcmp(preset->name, name)) {
      *config = preset->config;
      config->family = family;
      return FSDP_OK;
    }
    used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", preset->name);
    FSDP_CHECK(used < sizeof known && count < PRESETS_MAX, "the list of presets is too long");
    names[count++] = preset->name;
  }
  const int nearest = fsdp_nearest_word(name, names, count);
  if (nearest >= 0) snprintf(meant, sizeof meant, " (did you mean %s?)", names[nearest]);
  return fsdp_fail(error, FSDP_ERR_OPTION, "no model preset '%s'%s: the presets are %s", name, meant, known);
}

const char *fsdp_model_type(int index) {
  return index >= 0 && index < ROW_COUNT ? rows[index].model_type : NULL;
}

// ---- What it is

int64_t fsdp_model_parameter_count(const fsdp_model_config *config) {
  return family_of(config)->parameter_count(config);
}

double fsdp_model_flops_per_token(const fsdp_model_config *config, int64_t seq,
                                  fsdp_flops_convention convention) {
  return family_of(config)->flops_per_token(config, seq, convention);
}

fsdp_status fsdp_model_check_seq(const fsdp_model_config *config, int64_t seq, fsdp_error *error) {
  if (!family_of(config)->learned_positions || seq <= config->max_position_embeddings) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_OPTION,
                   "--seq-length %lld: the model has only %lld learned positions; lower --seq-length",
                   (long long)seq, (long long)config->max_position_embeddings);
}

bool fsdp_model_note(const fsdp_model_config *config, char *out, size_t out_bytes) {
  const fsdp_family *family = family_of(config);
  return family->note && family->note(config, out, out_bytes);
}

bool fsdp_model_dropout(const fsdp_model_config *config, fsdp_dropout *rates) {
  const fsdp_family *family = family_of(config);
  *rates = (fsdp_dropout){0};
  if (family->dropout) family->dropout(config, rates);
  return family->dropout != NULL;
}

fsdp_graph *fsdp_model_forward(const fsdp_model_config *config, int64_t batch, int64_t seq) {
  const fsdp_family *family = family_of(config);
  fsdp_graph *graph = fsdp_graph_create(batch, seq);
  graph->block_count = (int)config->num_layers;
  graph->block_class = family->block_class;
  graph->skips_extra_layers = family->skips_extra_layers;
  if (family->base_prefix) graph->base_prefix = family->base_prefix;
  family->build(config, graph);
  return graph;
}

fsdp_graph *fsdp_model_graph(const fsdp_model_config *config, int64_t batch, int64_t seq) {
  fsdp_graph *graph = fsdp_model_forward(config, batch, seq);
  fsdp_graph_backward(graph);
  return graph;
}
