#include "runtime/plan/program/saving.h"

#include "runtime/base/check.h"
#include "runtime/base/nearest.h"
#include "runtime/plan/program/saved.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char BLOCK[] = "block", BLOCK_INPUTS[] = "block_inputs";
static const char RECOMPUTE[] = "--recompute", OFFLOAD[] = "--offload-activations";

// How messages name the option that gave the rules of this fate.
static const char *option_of(const fsdp_saving *saving, fsdp_fate fate) {
  if (fate == FSDP_FATE_OFFLOAD) return *saving->offload_option ? saving->offload_option : OFFLOAD;
  return *saving->recompute_option ? saving->recompute_option : RECOMPUTE;
}

fsdp_saving fsdp_saving_of_blocks(void) {
  return (fsdp_saving){.rules = {{.name = "block", .fate = FSDP_FATE_RECOMPUTE}}, .count = 1};
}

bool fsdp_saving_equal(const fsdp_saving *a, const fsdp_saving *b) {
  if (a->count != b->count) return false;
  for (int r = 0; r < a->count; r++) {
    const fsdp_saving_rule *x = &a->rules[r], *y = &b->rules[r];
    if (x->fate != y->fate || x->layers != y->layers || strcmp(x->name, y->name) != 0) return false;
  }
  return true;
}

bool fsdp_saving_has_parts(const fsdp_saving *saving) {
  bool found = false;
  for (int r = 0; r < saving->count; r++) found = found || saving->rules[r].layers > 0;
  return found;
}

bool fsdp_saving_offloads(const fsdp_saving *saving) {
  bool found = false;
  for (int r = 0; r < saving->count; r++) found = found || saving->rules[r].fate == FSDP_FATE_OFFLOAD;
  return found;
}

// ---- Text

// The number after a rule's "@" (or "block:"), 0 if it is not a whole number of at least 1.
static int read_layers(const char *text) {
  char *end;
  long number = strtol(text, &end, 10);
  return *text >= '0' && *text <= '9' && !*end && number >= 1 && number <= INT32_MAX ? (int)number : 0;
}

static bool is_name(const char *text, size_t length) {
  static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
  return length > 0 && strspn(text, letters) >= length;
}

// One item, which is changed: "NAME", "NAME:MODULE", "block:K", with "@K". False if it is none of these.
static bool read_item(char *item, fsdp_saving_rule *rule) {
  char *layers = strchr(item, '@');
  if (layers) *layers++ = 0;
  if (!layers && strncmp(item, "block:", 6) == 0) {
    layers = item + 6;
    item[5] = 0;
  }
  if (layers) {
    rule->layers = read_layers(layers);
    if (!rule->layers) return false;
  }
  size_t length = strlen(item), name = strcspn(item, ":");
  if (!is_name(item, name) || length >= sizeof rule->name) return false;
  if (item[name] && (!is_name(item + name + 1, length - name - 1) || strcmp(item, "block:") == 0))
    return false;
  memcpy(rule->name, item, length + 1);
  return true;
}

fsdp_status fsdp_saving_parse(const char *text, const char *option, fsdp_fate fate, fsdp_saving *saving,
                              fsdp_error *error) {
  snprintf(fate == FSDP_FATE_OFFLOAD ? saving->offload_option : saving->recompute_option,
           FSDP_SAVING_OPTION_BYTES, "%s", option);
  if (!*text || strcmp(text, "none") == 0 || strcmp(text, "off") == 0) return FSDP_OK;
  for (const char *at = text;; at++) {
    at += strspn(at, " ");
    size_t length = strcspn(at, ",");
    char item[2 * FSDP_SAVING_NAME_BYTES];
    fsdp_saving_rule rule = {.fate = fate};
    snprintf(item, sizeof item, "%.*s", (int)length, at);
    if (length >= sizeof item || !read_item(item, &rule))
      return fsdp_fail(error, FSDP_ERR_OPTION,
                       "%s: '%.*s' is not an item of its list: write NAME or NAME:MODULE, with @K for the "
                       "first K layers, such as rmsnorm,swiglu@8,linear:up_proj",
                       option, (int)(length < 80 ? length : 80), at);
    if (strcmp(rule.name, "auto") == 0 || strcmp(rule.name, "none") == 0)
      return fsdp_fail(error, FSDP_ERR_OPTION, "%s: '%s' in a list of names: give it alone, or the names",
                       option, rule.name);
    if (saving->count == FSDP_SAVING_RULES_MAX)
      return fsdp_fail(error, FSDP_ERR_OPTION, "%s: more than %d items together; use block, or fewer names",
                       option, FSDP_SAVING_RULES_MAX);
    saving->rules[saving->count++] = rule;
    at += length;
    if (!*at) return FSDP_OK;
  }
}

const char *fsdp_saving_print(const fsdp_saving *saving, fsdp_fate fate, char out[FSDP_SAVING_TEXT_BYTES]) {
  size_t used = 0;
  out[0] = 0;
  for (int i = 0; i < saving->count; i++) {
    const fsdp_saving_rule *rule = &saving->rules[i];
    if (rule->fate != fate) continue;
    char layers[16] = "";
    const char *mark = strcmp(rule->name, BLOCK) == 0 ? ":" : "@";
    if (rule->layers) snprintf(layers, sizeof layers, "%s%d", mark, rule->layers);
    used += (size_t)snprintf(out + used, FSDP_SAVING_TEXT_BYTES - used, "%s%s%s", used ? "," : "", rule->name,
                             layers);
    FSDP_CHECK(used < FSDP_SAVING_TEXT_BYTES, "rules of more than %d bytes", FSDP_SAVING_TEXT_BYTES);
  }
  if (!used) snprintf(out, FSDP_SAVING_TEXT_BYTES, "none");
  return out;
}

// ---- Fates

// Whether the rule names the value in the layers that it takes. Recomputing what enters a layer would repeat
// the layers before it, and a choice might be another one, so no rule does that.
static bool covers(const fsdp_saving_rule *rule, const fsdp_graph *graph, const fsdp_saved_value *value) {
  if (rule->layers && value->layer >= rule->layers) return false;
  if (rule->fate == FSDP_FATE_RECOMPUTE && value->is_made_once) return false;
  if (strcmp(rule->name, BLOCK) == 0) return !value->is_layer_input;
  if (strcmp(rule->name, BLOCK_INPUTS) == 0) return value->is_layer_input;
  size_t length = strcspn(rule->name, ":");
  if (strlen(value->name) != length || strncmp(rule->name, value->name, length) != 0) return false;
  return !rule->name[length] || fsdp_saved_is_of(graph, value, rule->name + length + 1);
}

// Later ranks win.
static int rank_of(const fsdp_saving_rule *rule) {
  if (rule->fate == FSDP_FATE_OFFLOAD) return 1;
  return strcmp(rule->name, BLOCK) == 0 ? 0 : 2;
}

// The items that rules may have, each once: names first, then with their modules.
#define ITEMS_MAX 64

typedef struct item_list {
  char text[ITEMS_MAX][FSDP_SAVING_NAME_BYTES];
  int count, name_count;
} item_list;

static void add_item(item_list *list, const char *name, const char *module) {
  char item[FSDP_SAVING_NAME_BYTES];
  snprintf(item, sizeof item, "%.20s%s%.40s", name, *module ? ":" : "", module);
  for (int i = 0; i < list->count; i++)
    if (strcmp(list->text[i], item) == 0) return;
  if (list->count < ITEMS_MAX) memcpy(list->text[list->count++], item, sizeof item);
}

static item_list items_of(const fsdp_graph *graph, const fsdp_saved *saved) {
  item_list list = {.count = 0};
  add_item(&list, BLOCK, "");
  add_item(&list, BLOCK_INPUTS, "");
  for (int i = 0; i < saved->count; i++) add_item(&list, saved->values[i].name, "");
  list.name_count = list.count;
  for (int i = 0; i < saved->count; i++) {
    const fsdp_node *node = &graph->forward[saved->values[i].maker];
    if (saved->values[i].is_layer_input) continue;
    add_item(&list, saved->values[i].name, graph->modules[node->module].name);
    for (int w = 0; w < node->weight_count; w++)
      add_item(&list, saved->values[i].name,
               graph->modules[graph->params[graph->values[node->weights[w]].param].module].name);
  }
  return list;
}

// The rule names nothing that a layer saves.
static fsdp_status fail_unknown(const fsdp_saving_rule *rule, const char *option, const fsdp_saved *saved,
                                const fsdp_graph *graph, fsdp_error *error) {
  item_list items = items_of(graph, saved);
  const char *texts[ITEMS_MAX];
  char names[320] = "", meant[FSDP_SAVING_NAME_BYTES + 24] = "";
  size_t used = 0;
  for (int i = 0; i < items.count; i++) texts[i] = items.text[i];
  for (int i = 0; i < items.name_count && used < sizeof names; i++)
    used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", items.text[i]);
  int nearest = fsdp_nearest_word(rule->name, texts, items.count);
  if (nearest >= 0) snprintf(meant, sizeof meant, "; did you mean %s?", items.text[nearest]);
  return fsdp_fail(error, FSDP_ERR_OPTION,
                   "%s: a layer of this model saves nothing named '%s' for its backward%s It saves %s; of "
                   "several one is NAME:MODULE, such as %s",
                   option, rule->name, *meant ? meant : ".", names, items.text[items.name_count]);
}

static fsdp_status check_rule(const fsdp_saving *saving, int index, const fsdp_saved *saved,
                              const fsdp_graph *graph, fsdp_error *error) {
  const fsdp_saving_rule *rule = &saving->rules[index];
  const char *option = option_of(saving, rule->fate);
  if (rule->layers > graph->block_count)
    return fsdp_fail(error, FSDP_ERR_OPTION, "%s: %s in %d layers, but the model has %d; give at most that",
                     option, rule->name, rule->layers, graph->block_count);
  for (int i = 0; i < index; i++) {
    const fsdp_saving_rule *other = &saving->rules[i];
    if (strcmp(rule->name, other->name) != 0) continue;
    if (rule->fate == other->fate)
      return fsdp_fail(error, FSDP_ERR_OPTION, "%s names %s twice; name it once", option, rule->name);
    const fsdp_saving_rule *again = rule->fate == FSDP_FATE_RECOMPUTE ? rule : other;
    if (strcmp(rule->name, BLOCK) != 0 && !again->layers)
      return fsdp_fail(error, FSDP_ERR_OPTION,
                       "%s and %s both name %s: what is recomputed in every layer is not offloaded; name it "
                       "once",
                       option_of(saving, FSDP_FATE_RECOMPUTE), option_of(saving, FSDP_FATE_OFFLOAD),
                       rule->name);
  }
  if (strcmp(rule->name, BLOCK) == 0) return FSDP_OK; // nothing, if no layer has a backward
  for (int i = 0; i < saved->count; i++)
    if (covers(rule, graph, &saved->values[i])) return FSDP_OK;
  if (strcmp(rule->name, BLOCK_INPUTS) == 0)
    return fsdp_fail(error, FSDP_ERR_OPTION,
                     "%s: block_inputs: what enters a layer can be offloaded (--offload-activations "
                     "block_inputs), not recomputed, as that would repeat the layers before it",
                     option);
  return fail_unknown(rule, option, saved, graph, error);
}

// Where a node must be repeated whole for one of its outputs, the others are made again too: nothing is
// gained by saving them. With a sum of the residual stream its norm is, whichever node makes the sum.
static void recompute_together(const fsdp_graph *graph, const fsdp_saved_value *value, fsdp_fate *fates) {
  const fsdp_node *node = &graph->forward[value->maker];
  bool saved[FSDP_OP_MAX_OPERANDS] = {false};
  for (int o = 0; o < node->operand_count; o++) {
    fsdp_fate fate = fates[node->operands[o].value];
    saved[o] =
        node->operands[o].access == FSDP_WRITE && fate != FSDP_FATE_NONE && fate != FSDP_FATE_RECOMPUTE;
  }
  fsdp_op_remainder left;
  if (fsdp_op_remainder_of(node->kind, saved, &left)) return;
  for (int o = 0; o < node->operand_count; o++)
    if (saved[o]) fates[node->operands[o].value] = FSDP_FATE_RECOMPUTE;
}

// Whether the backward reads a value: itself, or to gather it again.
static bool is_read(const fsdp_graph *graph, const fsdp_fate *fates, int value) {
  for (int n = 0; n < graph->backward_count; n++)
    for (int o = 0; o < graph->backward[n].operand_count; o++)
      if (graph->backward[n].operands[o].value == value &&
          (graph->backward[n].operands[o].access & FSDP_READ))
        return true;
  for (int n = 0; n < graph->forward_count; n++) {
    const fsdp_node *node = &graph->forward[n];
    if (fsdp_node_redistributes(node) && node->operand_count > 1 && node->operands[0].value == value &&
        fates[node->operands[1].value] == FSDP_FATE_RECOMPUTE)
      return true;
  }
  return false;
}

// What would be gathered again need not be saved where the gathered value is.
static void drop_gathered(const fsdp_graph *graph, fsdp_fate *fates) {
  for (int n = graph->forward_count - 1; n >= 0; n--) {
    const fsdp_node *node = &graph->forward[n];
    if (!fsdp_node_redistributes(node) || node->operand_count < 2) continue;
    int source = node->operands[0].value, made = node->operands[1].value;
    if (!graph->values[made].regathered || fates[made] == FSDP_FATE_RECOMPUTE) continue;
    if (!is_read(graph, fates, source)) fates[source] = FSDP_FATE_NONE;
  }
}

// The sum that the last layer's gemm makes for the norm behind the layers, which no rule names.
static void keep_last_sum(const fsdp_graph *graph, fsdp_fate *fates) {
  for (int n = 0; n + 1 < graph->forward_count; n++) {
    const fsdp_node *node = &graph->forward[n];
    if (fsdp_node_adds_residual(node) && graph->forward[n + 1].block < 0)
      fates[node->operands[node->operand_count - 1].value] = FSDP_FATE_KEEP;
  }
}

fsdp_status fsdp_saving_resolve(const fsdp_saving *saving, const fsdp_graph *graph, int ahead,
                                fsdp_fate *fates, fsdp_error *error) {
  fsdp_saved saved = fsdp_saved_create(graph);
  fsdp_status status = FSDP_OK;
  for (int i = 0; i < saving->count && !status; i++) status = check_rule(saving, i, &saved, graph, error);
  for (int v = 0; v < graph->value_count; v++) fates[v] = FSDP_FATE_NONE;
  keep_last_sum(graph, fates);
  for (int i = 0; i < saved.count && !status; i++) {
    fsdp_fate *fate = &fates[saved.values[i].value];
    int best = -1;
    *fate = graph->values[saved.values[i].value].regathered ? FSDP_FATE_RECOMPUTE : FSDP_FATE_KEEP;
    for (int r = 0; r < saving->count; r++) {
      const fsdp_saving_rule *rule = &saving->rules[r];
      if (rank_of(rule) <= best || !covers(rule, graph, &saved.values[i])) continue;
      best = rank_of(rule);
      *fate = rule->fate;
    }
    if (*fate == FSDP_FATE_OFFLOAD && saved.values[i].layer + ahead >= graph->block_count && ahead > 0)
      *fate = FSDP_FATE_KEEP;
  }
  for (int i = 0; i < saved.count && !status; i++)
    if (fates[saved.values[i].value] == FSDP_FATE_RECOMPUTE)
      recompute_together(graph, &saved.values[i], fates);
  if (!status) drop_gathered(graph, fates);
  fsdp_saved_release(&saved);
  return status;
}
