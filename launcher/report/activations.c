#include "launcher/report/activations.h"

#include "runtime/base/check.h"
#include "runtime/base/text.h"
#include "runtime/plan/program/saving_cost.h"

#include <string.h>

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

// ---- A layer

static void put(json_t *object, const char *key, json_t *value) {
  FSDP_CHECK(value && json_object_set_new(object, key, value) == 0, "JSON member %s", key);
}

static void append(json_t *array, json_t *value) {
  FSDP_CHECK(value && json_array_append_new(array, value) == 0, "JSON of activations");
}

// Adds a name unless it is there.
static void add_name(json_t *names, const char *name) {
  const json_t *have;
  size_t i;
  json_array_foreach(names, i, have) {
    if (strcmp(json_string_value(have), name) == 0) return;
  }
  append(names, json_string(name));
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

static json_t *names_of(const fsdp_plan *plan, const fsdp_saved *saved, fsdp_fate fate, int layer) {
  json_t *names = json_array();
  for (int i = 0; i < saved->count; i++) {
    char item[FSDP_SAVED_NAME_BYTES];
    if (saved->values[i].layer == layer && plan->fates[saved->values[i].value] == fate)
      add_name(names, item_of(plan, saved, &saved->values[i], item));
  }
  return names;
}

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

// What a layer offloads though it would take less time to remake than to fetch: nominal time over time.
static json_t *cheaper_of(const fsdp_plan *plan, const fsdp_saved *saved, int layer) {
  const fsdp_plan_backend *backend = plan->config.backend;
  json_t *cheaper = json_object();
  for (int i = 0; i < saved->count; i++) {
    if (saved->values[i].layer != layer) continue;
    char name[FSDP_SAVED_NAME_BYTES];
    double fetch = (double)fetched_bytes(plan, saved, i) * backend->link_ratio;
    if (fetch == 0) continue;
    double remake = fsdp_saving_remake_time(plan->graph, saved, i, plan->fates, plan->config.param_dtype,
                                            backend->flops_per_byte);
    if (remake < fetch)
      put(cheaper, fsdp_saved_name(plan->graph, &saved->values[i], name), json_real(remake / fetch));
  }
  return cheaper;
}

static json_t *layers_of(const fsdp_plan *plan, const fsdp_saved *saved) {
  json_t *layers = json_array();
  for (int layer = 0; layer < plan->graph->block_count; layer++) {
    json_t *entry = json_object();
    for (int f = 0; f < FATE_COUNT; f++) {
      put(entry, fates[f].name, names_of(plan, saved, fates[f].fate, layer));
      put(entry, fates[f].bytes_key, json_integer(bytes_of(plan, saved, fates[f].fate, layer)));
    }
    put(entry, "cheaper_recomputed", cheaper_of(plan, saved, layer));
    append(layers, entry);
  }
  return layers;
}

// ---- The page

// Layers first to last, which are alike.
static void print_group(json_t *layer, int first, int last, FILE *out) {
  char label[64];
  if (first == last)
    snprintf(label, sizeof label, "layer %d", first);
  else
    snprintf(label, sizeof label, "layers %d-%d, each", first, last);
  for (int f = 0; f < FATE_COUNT; f++) {
    const json_t *names = json_object_get(layer, fates[f].name), *name;
    const int64_t bytes = json_integer_value(json_object_get(layer, fates[f].bytes_key));
    size_t i;
    if (!json_array_size(names)) continue;
    fprintf(out, "  %-20s %-10s %10s  ", label, fates[f].name, fsdp_print_bytes(bytes).text);
    json_array_foreach(names, i, name) fprintf(out, "%s%s", i ? ", " : "", json_string_value(name));
    fputc('\n', out);
    label[0] = 0;
  }
  json_t *cheaper = json_object_get(layer, "cheaper_recomputed"), *ratio;
  const char *name, *before = " ";
  if (!json_object_size(cheaper)) return;
  fprintf(out, "  %-20s cheaper recomputed than fetched, nominal time over time:", "");
  json_object_foreach(cheaper, name, ratio) {
    fprintf(out, "%s%s %.2f", before, name, json_real_value(ratio));
    before = ", ";
  }
  fputc('\n', out);
}

static double percent(double part, double whole) {
  return whole > 0 ? 100 * part / whole : 0;
}

void fsdp_activations_print(const fsdp_plan *plan, FILE *out) {
  fsdp_saved saved = fsdp_saved_create(plan->graph);
  fsdp_activations a = fsdp_activations_of(plan);
  fprintf(out, "\nActivations that layers save for the backward, bytes of a micro-batch\n");
  json_t *layers = layers_of(plan, &saved);
  for (int first = 0; first < plan->graph->block_count;) {
    json_t *layer = json_array_get(layers, (size_t)first);
    int next = first + 1;
    while (json_equal(layer, json_array_get(layers, (size_t)next))) next++;
    print_group(layer, first, next - 1, out);
    first = next;
  }
  json_decref(layers);
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

json_t *fsdp_activations_json(const fsdp_plan *plan) {
  fsdp_saved saved = fsdp_saved_create(plan->graph);
  fsdp_activations a = fsdp_activations_of(plan);
  json_t *root = json_object();
  put(root, "kept_bytes", json_integer(a.kept_bytes));
  put(root, "recomputed_bytes", json_integer(a.recomputed_bytes));
  put(root, "offloaded_bytes", json_integer(a.offloaded_bytes));
  put(root, "model_flops", json_real(a.model_flops));
  put(root, "recomputed_flops", json_real(a.repeated_flops));
  put(root, "recomputed_share", json_real(a.model_flops > 0 ? a.repeated_flops / a.model_flops : 0));
  put(root, "layers", layers_of(plan, &saved));
  fsdp_saved_release(&saved);
  return root;
}
