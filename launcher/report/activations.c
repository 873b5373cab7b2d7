#include "launcher/report/activations.h"

#include "runtime/base/check.h"
#include "runtime/base/text.h"
#include "runtime/plan/program/saving_cost.h"

#include <string.h>

#define NAMES_MAX 32 // values that a layer saves: no family's saves as many

static const struct {
  fsdp_fate fate;
  const char *name, *bytes_key;
} fates[] = {{FSDP_FATE_KEEP, "kept", "kept_bytes"},
             {FSDP_FATE_RECOMPUTE, "recomputed", "recomputed_bytes"},
             {FSDP_FATE_OFFLOAD, "offloaded", "offloaded_bytes"}};
enum { FATE_COUNT = sizeof fates / sizeof *fates };

// ---- Totals

static void count_flops(const fsdp_program *program, fsdp_activations *a) {
  const fsdp_section *section = &program->sections[0]; // of a micro-batch; all do the same work
  int backward = fsdp_program_backward_begin(program, section);
  for (int i = section->begin; i < section->end; i++) {
    const fsdp_instr *instr = &program->instrs[i];
    if (instr->kind != FSDP_INSTR_OP) continue;
    bool again = i >= backward && fsdp_op_phase_of(instr->op) == FSDP_OP_IN_FORWARD;
    *(again ? &a->repeated_flops : &a->model_flops) += fsdp_op_flops(instr->op, &instr->attrs);
  }
}

static int64_t bytes_of(const fsdp_plan *plan, const fsdp_saved *saved, fsdp_fate fate, int layer) {
  return fsdp_saving_bytes(plan->graph, saved, plan->fates, fate, layer, plan->config.param_dtype);
}

fsdp_activations fsdp_activations_of(const fsdp_plan *plan) {
  fsdp_saved saved = fsdp_saved_create(plan->graph);
  fsdp_activations a = {.kept_bytes = bytes_of(plan, &saved, FSDP_FATE_KEEP, -1),
                        .recomputed_bytes = bytes_of(plan, &saved, FSDP_FATE_RECOMPUTE, -1),
                        .offloaded_bytes = bytes_of(plan, &saved, FSDP_FATE_OFFLOAD, -1)};
  count_flops(plan->program, &a);
  fsdp_saved_release(&saved);
  return a;
}

// ---- Names

typedef struct name_list {
  char names[NAMES_MAX][FSDP_SAVED_NAME_BYTES];
  int count;
} name_list;

// Adds a name unless it is there.
static void add_name(name_list *list, const char *name) {
  for (int i = 0; i < list->count; i++)
    if (strcmp(list->names[i], name) == 0) return;
  FSDP_CHECK(list->count < NAMES_MAX, "a layer saves more than %d names", NAMES_MAX);
  snprintf(list->names[list->count++], FSDP_SAVED_NAME_BYTES, "%s", name);
}

// The item of an option that names the value: without a module if that names only values of this fate.
static const char *item_of(const fsdp_plan *plan, const fsdp_saved *saved, const fsdp_saved_value *value,
                           char out[FSDP_SAVED_NAME_BYTES]) {
  bool alone = true;
  for (int i = 0; i < saved->count; i++) {
    const fsdp_saved_value *other = &saved->values[i];
    if (other->layer == value->layer && strcmp(other->name, value->name) == 0)
      alone = alone && plan->fates[other->value] == plan->fates[value->value];
  }
  if (!alone || value->is_layer_input) return fsdp_saved_name(plan->graph, value, out);
  snprintf(out, FSDP_SAVED_NAME_BYTES, "%s", value->name);
  return out;
}

static name_list names_of(const fsdp_plan *plan, const fsdp_saved *saved, fsdp_fate fate, int layer) {
  name_list list = {.count = 0};
  for (int i = 0; i < saved->count; i++) {
    char item[FSDP_SAVED_NAME_BYTES];
    if (saved->values[i].layer == layer && plan->fates[saved->values[i].value] == fate)
      add_name(&list, item_of(plan, saved, &saved->values[i], item));
  }
  return list;
}

// ---- What would better be recomputed

typedef struct cheaper_item {
  char name[FSDP_SAVED_NAME_BYTES];
  double ratio; // nominal time of remaking it over that of fetching it, below 1
} cheaper_item;

// Whether the two are made by one op under one name, so that what remakes one remakes the other.
static bool are_made_together(const fsdp_saved_value *a, const fsdp_saved_value *b) {
  return a->maker == b->maker && strcmp(a->name, b->name) == 0;
}

// Bytes that are offloaded of what is made together with `value`; 0 if an earlier value has counted them.
static int64_t fetched_bytes(const fsdp_plan *plan, const fsdp_saved *saved, int index) {
  int64_t bytes = 0;
  for (int i = 0; i < saved->count; i++) {
    const fsdp_saved_value *value = &saved->values[i];
    if (!are_made_together(value, &saved->values[index]) || plan->fates[value->value] != FSDP_FATE_OFFLOAD)
      continue;
    if (i < index) return 0;
    bytes += fsdp_graph_bytes(plan->graph, value->value, plan->config.param_dtype);
  }
  return bytes;
}

// What a layer offloads though it would take less time to remake than to fetch. Returns the count.
static int find_cheaper(const fsdp_plan *plan, const fsdp_saved *saved, int layer,
                        cheaper_item out[NAMES_MAX]) {
  const fsdp_plan_backend *backend = plan->config.backend;
  int count = 0;
  for (int i = 0; i < saved->count; i++) {
    if (saved->values[i].layer != layer) continue;
    double fetch = (double)fetched_bytes(plan, saved, i) * backend->link_ratio;
    if (fetch == 0) continue;
    double remake = fsdp_saving_remake_time(plan->graph, saved, i, plan->fates, plan->config.param_dtype,
                                            backend->flops_per_byte);
    if (remake >= fetch) continue;
    FSDP_CHECK(count < NAMES_MAX, "a layer saves more than %d values", NAMES_MAX);
    fsdp_saved_name(plan->graph, &saved->values[i], out[count].name);
    out[count++].ratio = remake / fetch;
  }
  return count;
}

// ---- The page

// Entries of one layer, in their order.
static int layer_values(const fsdp_saved *saved, int layer, const fsdp_saved_value *out[NAMES_MAX]) {
  int count = 0;
  for (int i = 0; i < saved->count; i++) {
    if (saved->values[i].layer != layer) continue;
    FSDP_CHECK(count < NAMES_MAX, "a layer saves more than %d values", NAMES_MAX);
    out[count++] = &saved->values[i];
  }
  return count;
}

static bool are_alike(const fsdp_plan *plan, const fsdp_saved *saved, int layer, int other) {
  const fsdp_saved_value *a[NAMES_MAX], *b[NAMES_MAX];
  int count = layer_values(saved, layer, a);
  if (layer_values(saved, other, b) != count) return false;
  for (int i = 0; i < count; i++)
    if (plan->fates[a[i]->value] != plan->fates[b[i]->value] || strcmp(a[i]->name, b[i]->name) != 0 ||
        plan->graph->values[a[i]->value].numel != plan->graph->values[b[i]->value].numel)
      return false;
  return true;
}

static void print_names(const name_list *list, FILE *out) {
  for (int i = 0; i < list->count; i++) fprintf(out, "%s%s", i ? ", " : "", list->names[i]);
  fputc('\n', out);
}

// Layers first to last, which are alike.
static void print_group(const fsdp_plan *plan, const fsdp_saved *saved, int first, int last, FILE *out) {
  char label[64];
  if (first == last)
    snprintf(label, sizeof label, "layer %d", first);
  else
    snprintf(label, sizeof label, "layers %d-%d, each", first, last);
  for (int f = 0; f < FATE_COUNT; f++) {
    name_list names = names_of(plan, saved, fates[f].fate, first);
    if (!names.count) continue;
    fprintf(out, "  %-20s %-10s %10s  ", label, fates[f].name,
            fsdp_print_bytes(bytes_of(plan, saved, fates[f].fate, first)).text);
    print_names(&names, out);
    label[0] = 0;
  }
  cheaper_item items[NAMES_MAX];
  int count = find_cheaper(plan, saved, first, items);
  if (count) fprintf(out, "  %-20s cheaper recomputed than fetched, nominal time over time:", "");
  for (int i = 0; i < count; i++) fprintf(out, "%s %s %.2f", i ? "," : "", items[i].name, items[i].ratio);
  if (count) fputc('\n', out);
}

static double percent(double part, double whole) {
  return whole > 0 ? 100 * part / whole : 0;
}

void fsdp_activations_print(const fsdp_plan *plan, FILE *out) {
  fsdp_saved saved = fsdp_saved_create(plan->graph);
  fsdp_activations a = fsdp_activations_of(plan);
  fprintf(out, "\nActivations that layers save for the backward, bytes of a micro-batch\n");
  for (int first = 0, layers = plan->graph->block_count; first < layers;) {
    int last = first;
    while (last + 1 < layers && are_alike(plan, &saved, first, last + 1)) last++;
    print_group(plan, &saved, first, last, out);
    first = last + 1;
  }
  fprintf(out, "  %-20s kept %s, recomputed %s, offloaded %s to the host and back\n", "together",
          fsdp_print_bytes(a.kept_bytes).text, fsdp_print_bytes(a.recomputed_bytes).text,
          fsdp_print_bytes(a.offloaded_bytes).text);
  if (a.recomputed_bytes > 0) {
    fsdp_repeated_work work = fsdp_saving_repeated_work(
        plan->graph, plan->fates, -1, plan->config.param_dtype, plan->config.backend->flops_per_byte);
    fprintf(out, "  %-20s %.2f%% of the model's FLOPs; ops that read and write %s\n", "repeated",
            percent(a.repeated_flops, a.model_flops), fsdp_print_bytes((int64_t)work.bytes).text);
  }
  fsdp_saved_release(&saved);
}

bool fsdp_activations_line(const fsdp_plan *plan, char *out, size_t out_bytes) {
  fsdp_activations a = fsdp_activations_of(plan);
  if (!a.recomputed_bytes && !a.offloaded_bytes) return false;
  snprintf(out, out_bytes,
           "kept %s, recomputed %s (%.2f%% of the FLOPs again), offloaded %s, of what %d layer%s save%s",
           fsdp_print_bytes(a.kept_bytes).text, fsdp_print_bytes(a.recomputed_bytes).text,
           percent(a.repeated_flops, a.model_flops), fsdp_print_bytes(a.offloaded_bytes).text,
           plan->graph->block_count, fsdp_plural(plan->graph->block_count),
           plan->graph->block_count == 1 ? "s" : "");
  return true;
}

// ---- JSON

static void put(json_t *object, const char *key, json_t *value) {
  FSDP_CHECK(value && json_object_set_new(object, key, value) == 0, "JSON member %s", key);
}

static json_t *layer_json(const fsdp_plan *plan, const fsdp_saved *saved, int layer) {
  json_t *entry = json_object(), *cheaper = json_object();
  for (int f = 0; f < FATE_COUNT; f++) {
    name_list names = names_of(plan, saved, fates[f].fate, layer);
    json_t *list = json_array();
    for (int i = 0; i < names.count; i++)
      FSDP_CHECK(json_array_append_new(list, json_string(names.names[i])) == 0, "JSON name %d", i);
    put(entry, fates[f].name, list);
    put(entry, fates[f].bytes_key, json_integer(bytes_of(plan, saved, fates[f].fate, layer)));
  }
  cheaper_item items[NAMES_MAX];
  int count = find_cheaper(plan, saved, layer, items);
  for (int i = 0; i < count; i++) put(cheaper, items[i].name, json_real(items[i].ratio));
  put(entry, "cheaper_recomputed", cheaper);
  return entry;
}

json_t *fsdp_activations_json(const fsdp_plan *plan) {
  fsdp_saved saved = fsdp_saved_create(plan->graph);
  fsdp_activations a = fsdp_activations_of(plan);
  json_t *root = json_object(), *layers = json_array();
  for (int layer = 0; layer < plan->graph->block_count; layer++)
    FSDP_CHECK(json_array_append_new(layers, layer_json(plan, &saved, layer)) == 0, "JSON layer %d", layer);
  put(root, "kept_bytes", json_integer(a.kept_bytes));
  put(root, "recomputed_bytes", json_integer(a.recomputed_bytes));
  put(root, "offloaded_bytes", json_integer(a.offloaded_bytes));
  put(root, "model_flops", json_real(a.model_flops));
  put(root, "recomputed_flops", json_real(a.repeated_flops));
  put(root, "recomputed_share", json_real(a.model_flops > 0 ? a.repeated_flops / a.model_flops : 0));
  put(root, "layers", layers);
  fsdp_saved_release(&saved);
  return root;
}
