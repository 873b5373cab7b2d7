// Random sharding rules and random strategies of operators, for models of every family on meshes with one to
// three axes besides those of the batch: what a plan accepts trains as one rank does, with memory as planned.
#include "models/family.h"
#include "runtime/base/check.h"
#include "runtime/plan/mesh/names.h"
#include "runtime/plan/sharding/slices.h"
#include "tests/support/cases.h"
#include "tests/support/draws.h"
#include "tests/support/harness.h"
#include "tests/support/random_plan.h"
#include "tests/support/unit_test.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS_MAX = 12, REASONS_MAX = 256 };
enum { RULES_MAX = 96, OPERATORS_MAX = 4 };

typedef struct random_sharding {
  fsdp_plan_config plan; // whose sharding or op_strategies point into this struct
  fsdp_sharding sharding;
  fsdp_given_strategies strategies;
  bool evaluate;
} random_sharding;

// ---- Models

// Routed experts in the place of the MLPs of a decoder without a window, in all layers or in the last.
static void add_experts(random_source *random, fsdp_model_config *model) {
  static const char *const presets[] = {"tiny-mixtral", "tiny-qwen3-moe", "tiny-olmoe", "tiny-qwen2-moe",
                                        "tiny-glm4-moe"};
  const int family = random_int(random, 0, 4);
  const fsdp_model_config drawn = *model;
  fsdp_error error;
  assert_int_equal(fsdp_model_preset(presets[family], model, &error), FSDP_OK);
  model->vocab_size = drawn.vocab_size;
  model->intermediate_size = drawn.intermediate_size;
  model->expert_size = family == 0 || family == 2 ? drawn.intermediate_size : random_int(random, 9, 33);
  if (model->shared_expert_size) model->shared_expert_size = random_int(random, 9, 33);
  if (family > 2) model->first_expert_layer = random_int(random, 0, 1);
  if (family == 4) return; // whose experts lie in groups
  model->experts = random_int(random, 1, 9);
  model->expert_slots = random_int(random, 1, model->experts < 4 ? (int)model->experts : 4);
  model->num_heads = drawn.num_heads;
  model->num_kv_heads = family == 2 ? drawn.num_heads : drawn.num_kv_heads;
  model->head_dim = drawn.head_dim;
  model->hidden_size = family == 2 ? drawn.num_heads * drawn.head_dim : drawn.hidden_size;
  model->padding_token = 0;
}

static fsdp_model_config draw_model(random_source *random) {
  fsdp_model_config model = random_model_config(random);
  if (!model.window && model.family->decoder && random_int(random, 0, 3) == 0) add_experts(random, &model);
  model.num_layers = random_int(random, 1, 2);
  if (!model.experts) model.intermediate_size = random_int(random, 9, 49);
  model.initializer_range = 0.05;
  model.max_position_embeddings = 16;
  if (model.window) {
    model.window = random_int(random, 1, 8);
    model.first_window_layer = random_int(random, 0, (int)model.num_layers - 1);
  }
  return model;
}

// ---- Meshes

// What an axis cuts: the batch, the sequence of the input, or whatever rules say.
typedef enum axis_use { OF_BATCH, OF_SEQUENCE, OF_OTHERS } axis_use;

typedef struct drawing {
  random_source *random;
  random_sharding *out;
  fsdp_graph *graph;
  axis_use uses[FSDP_MESH_AXES_MAX];
} drawing;

static bool one_in(const drawing *d, int count) {
  return random_int(d->random, 1, count) == 1;
}

static void shuffle(random_source *random, int count, int *numbers) {
  for (int i = 0; i < count; i++) numbers[i] = i;
  for (int i = count - 1; i > 0; i--) {
    int j = random_int(random, 0, i), held = numbers[i];
    numbers[i] = numbers[j];
    numbers[j] = held;
  }
}

// Axes in any order; those beside data, fsdp and context are `further` ones.
static bool try_mesh(drawing *d, int ranks_max) {
  static const char *const names[] = {
      FSDP_AXIS_DATA, FSDP_AXIS_FSDP, FSDP_AXIS_CONTEXT, FSDP_AXIS_TENSOR, "a", "b", FSDP_AXIS_EXPERT};
  enum { NAMES = sizeof names / sizeof *names, FIRST_FURTHER = 3 };
  int sizes[NAMES], order[NAMES], further = random_int(d->random, 1, 3), ranks = 1;
  for (int i = 0; i < NAMES; i++) sizes[i] = 1;
  if (one_in(d, 5)) sizes[0] = 2;
  if (one_in(d, 2)) sizes[1] = random_int(d->random, 2, 3);
  if (one_in(d, 3)) sizes[2] = 2;
  shuffle(d->random, NAMES - FIRST_FURTHER, order);
  for (int i = 0; i < further; i++) sizes[FIRST_FURTHER + order[i]] = random_int(d->random, 2, 3);
  for (int i = 0; i < NAMES; i++) ranks *= sizes[i];
  if (ranks > ranks_max) return false;
  fsdp_mesh mesh = {0};
  shuffle(d->random, NAMES, order);
  for (int i = 0; i < NAMES; i++)
    if (sizes[order[i]] > 1 || order[i] < 2) fsdp_mesh_add(&mesh, names[order[i]], sizes[order[i]]);
  fsdp_mesh_complete(&mesh);
  d->out->plan.mesh = mesh;
  for (int a = 0; a < mesh.count; a++) {
    const char *name = mesh.axes[a].name;
    bool batch = !strcmp(name, FSDP_AXIS_DATA) || !strcmp(name, FSDP_AXIS_FSDP);
    d->uses[a] = batch ? OF_BATCH : strcmp(name, FSDP_AXIS_CONTEXT) != 0 ? OF_OTHERS : OF_SEQUENCE;
  }
  return true;
}

// At times one of the further axes cuts the batch or the sequence too.
static void share_axes(drawing *d) {
  const fsdp_mesh *mesh = &d->out->plan.mesh;
  int others = 0;
  for (int a = 0; a < mesh->count; a++) others += mesh->axes[a].size > 1 && d->uses[a] == OF_OTHERS;
  for (int a = 0; a < mesh->count && others > 1; a++)
    if (mesh->axes[a].size > 1 && d->uses[a] == OF_OTHERS && one_in(d, 8)) {
      d->uses[a] = one_in(d, 2) ? OF_BATCH : OF_SEQUENCE;
      others--;
    }
}

// ---- Rules

static fsdp_shard_rule *add_rule(drawing *d, const char *name, int dims) {
  fsdp_sharding *s = &d->out->sharding;
  FSDP_CHECK(s->rule_count < RULES_MAX, "more than %d rules", RULES_MAX);
  fsdp_shard_rule *rule = &s->rules[s->rule_count++];
  *rule = (fsdp_shard_rule){.output = -1, .dims = dims, .place = "drawn"};
  snprintf(rule->name, sizeof rule->name, "%s", name);
  return rule;
}

// Appends the axes of `set`, in any order.
static void put(const drawing *d, fsdp_shard_rule *rule, int dim, fsdp_axis_set set) {
  const fsdp_mesh *mesh = &d->out->plan.mesh;
  int order[FSDP_MESH_AXES_MAX];
  shuffle(d->random, mesh->count, order);
  fsdp_rule_dim *to = &rule->dim[dim];
  for (int i = 0; i < mesh->count; i++)
    if (set >> order[i] & 1)
      snprintf(to->axes[to->count++], sizeof to->axes[0], "%s", mesh->axes[order[i]].name);
}

static fsdp_axis_set axes_of(const drawing *d, axis_use use) {
  fsdp_axis_set axes = 0;
  for (int a = 0; a < d->out->plan.mesh.count; a++)
    if (d->out->plan.mesh.axes[a].size > 1 && d->uses[a] == use) axes |= 1u << a;
  return axes;
}

static fsdp_axis_set some_of(const drawing *d, fsdp_axis_set axes) {
  fsdp_axis_set some = 0;
  for (int a = 0; a < FSDP_MESH_AXES_MAX; a++)
    if ((axes >> a & 1) && one_in(d, 2)) some |= 1u << a;
  return some;
}

static bool has_rule(const drawing *d, const char *name) {
  for (int i = 0; i < d->out->sharding.rule_count; i++)
    if (!strcmp(d->out->sharding.rules[i].name, name)) return true;
  return false;
}

// Of all layers, or, in one draw of eight, of one.
static bool name_of(const drawing *d, const char *full, char out[FSDP_NAME_BYTES]) {
  fsdp_name_pattern(full, out);
  if (d->out->plan.seq % 8 == 7) snprintf(out, FSDP_NAME_BYTES, "%s", full);
  return !has_rule(d, out);
}

// Cuts `outputs` and `inputs` of a weight, and at times has axes of the input on either.
static void rule_weight(drawing *d, int value, fsdp_axis_set outputs, fsdp_axis_set inputs) {
  const fsdp_param *param = &d->graph->params[d->graph->values[value].param];
  char name[FSDP_NAME_BYTES];
  if (!name_of(d, param->name, name)) return;
  fsdp_shard_rule *rule = add_rule(d, name, param->dims);
  fsdp_axis_set flat = some_of(d, axes_of(d, OF_BATCH) | axes_of(d, OF_SEQUENCE));
  const int first = param->dims > 2 ? random_int(d->random, 0, 1) : 0; // or experts
  put(d, rule, param->dims > 1 && param->transposed ? 1 : first, outputs);
  if (param->dims > 1) put(d, rule, param->transposed ? 0 : first + 1, inputs);
  put(d, rule, random_int(d->random, 0, param->dims - 1), flat);
}

// Every axis cuts outputs, inputs or neither of a product.
static void rule_product(drawing *d, const fsdp_node *node, bool partial) {
  fsdp_axis_set others = axes_of(d, OF_OTHERS), outputs = some_of(d, others);
  fsdp_axis_set inputs = some_of(d, others & ~outputs);
  if (partial && one_in(d, 2)) return;
  for (int w = 0; w < node->weight_count; w++) {
    bool alike = !one_in(d, 40);
    rule_weight(d, node->weights[w], alike ? outputs : some_of(d, outputs), inputs);
    if (node->bias_count && !one_in(d, 20)) rule_weight(d, node->biases[w], inputs ? 0 : outputs, 0);
  }
}

// Embeddings, the head and norms.
static void rule_others(drawing *d, bool partial) {
  for (int p = 0; p < d->graph->param_count; p++) {
    const fsdp_param *param = &d->graph->params[p];
    fsdp_axis_set others = axes_of(d, OF_OTHERS), rows = 0;
    char pattern[FSDP_NAME_BYTES];
    fsdp_name_pattern(param->name, pattern);
    if (has_rule(d, pattern) || has_rule(d, param->name) || one_in(d, partial ? 2 : 6)) continue;
    if (param->dims > 1 && strstr(param->name, "wpe") == NULL && !one_in(d, 3)) rows = some_of(d, others);
    if (param->dims == 1 && one_in(d, 40)) rows = some_of(d, others);
    rule_weight(d, param->value, rows, one_in(d, 30) ? some_of(d, others & ~rows) : 0);
  }
}

static void rule_outputs(drawing *d) {
  const int often = random_int(d->random, 2, 8);
  for (int m = 0; m < d->graph->module_count; m++) {
    const fsdp_module *module = &d->graph->modules[m];
    char path[FSDP_NAME_BYTES], name[FSDP_NAME_BYTES];
    fsdp_graph_module_path(d->graph, m, path);
    if (!path[0] || module->output_count != 1 || module->output_dims[0] != FSDP_OUTPUT_DIMS) continue;
    if (!one_in(d, often) || !name_of(d, path, name)) continue;
    fsdp_axis_set others = axes_of(d, OF_OTHERS), rows = some_of(d, others);
    fsdp_shard_rule *rule = add_rule(d, name, FSDP_OUTPUT_DIMS);
    rule->dim[0] = d->out->sharding.rules[0].dim[0];
    rule->dim[1] = d->out->sharding.rules[0].dim[1];
    put(d, rule, 1, rows);
    put(d, rule, 2, one_in(d, 2) ? some_of(d, others & ~rows) : 0);
  }
}

// ---- Plans

static fsdp_plan_config base_plan(random_source *random) {
  static const fsdp_strategy strategies[] = {FSDP_FULL, FSDP_GRAD_OP, FSDP_ZERO1};
  fsdp_plan_config plan = {.model = draw_model(random),
                           .batch = random_int(random, 1, 2),
                           .seq = random_int(random, 1, 13),
                           .micro_batches = random_int(random, 1, 2),
                           .strategy = strategies[random_int(random, 0, 2)],
                           .wrap = {.kind = random_int(random, 0, 2) ? FSDP_WRAP_BLOCK : FSDP_WRAP_NONE},
                           .prefetch = random_int(random, 0, 2),
                           .accumulate = (fsdp_accumulate)random_int(random, 0, 1),
                           .cpu_offload = random_int(random, 0, 7) == 0,
                           .sequence_parallel = true,
                           .grad_clip = 1.0f,
                           .hyper = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-5f, .weight_decay = 0.01f},
                           .evaluation = true,
                           .documents = random_int(random, 0, 3) == 0,
                           .poison = random_int(random, 0, 1),
                           .backend = fsdp_plan_backend_cpu()};
  if (random_int(random, 0, 2) == 0) plan.saving = fsdp_saving_of_blocks();
  return plan;
}

static void begin(drawing *d, int ranks_max) {
  *d->out = (random_sharding){.plan = base_plan(d->random)};
  while (!try_mesh(d, ranks_max)) {
  }
  d->graph = fsdp_model_forward(&d->out->plan.model, d->out->plan.batch, d->out->plan.seq);
}

// Of 2 to `ranks_max` ranks, in fp32. Rules say most of what a model has, or about half of it; products that
// read one value are cut alike most of the time, and axes of one list stand in any order. The caller destroys
// *out, which must not move.
static void random_sharding_rules(random_source *random, int ranks_max, random_sharding *out) {
  drawing d = {.random = random, .out = out};
  begin(&d, ranks_max);
  share_axes(&d);
  out->sharding.rules = fsdp_alloc_zeroed(RULES_MAX, sizeof *out->sharding.rules);
  fsdp_shard_rule *input = add_rule(&d, "input", 2);
  put(&d, input, 0, axes_of(&d, OF_BATCH));
  put(&d, input, 1, axes_of(&d, OF_SEQUENCE));
  const bool partial = one_in(&d, 2);
  for (int n = 0; n < d.graph->forward_count; n++)
    if (d.graph->forward[n].weight_count) rule_product(&d, &d.graph->forward[n], partial);
  rule_others(&d, partial);
  rule_outputs(&d);
  out->plan.sharding = &out->sharding;
  fsdp_graph_destroy(d.graph);
}

// ---- Operators

// The letter that an axis cuts of an operator: b or t of axes of the input, any other but b of others; -1:
// none.
static int draw_letter(const drawing *d, const fsdp_operator *op, axis_use use) {
  int batch = fsdp_operator_letter_find(op, 'b');
  if (use == OF_BATCH) return batch;
  if (use == OF_SEQUENCE) return fsdp_operator_letter_find(op, 't');
  int letter = random_int(d->random, 0, op->letter_count);
  return letter == op->letter_count || letter == batch || op->letters[letter].is_whole ? -1 : letter;
}

static fsdp_given_strategy draw_operator(const drawing *d, const fsdp_dataflow *flow,
                                         const fsdp_slice_mesh *mesh) {
  int index = random_int(d->random, 0, flow->operator_count - 1);
  const fsdp_operator *op = &flow->operators[index];
  int letter_of[FSDP_SLICE_AXES_MAX], behind = 1, stride[FSDP_SLICE_AXES_MAX];
  int64_t slices[FSDP_OPERATOR_LETTERS];
  for (int l = 0; l < op->letter_count; l++) slices[l] = 1;
  for (int a = mesh->count - 1; a >= 0; a--) {
    int letter = letter_of[a] = draw_letter(d, op, d->uses[mesh->axis[a]]);
    stride[a] = behind;
    behind *= mesh->sizes[a];
    if (letter < 0) continue;
    if (slices[letter] * mesh->sizes[a] > op->letters[letter].limit)
      letter_of[a] = -1;
    else
      slices[letter] *= mesh->sizes[a];
  }
  char name[FSDP_OPERATOR_TEXT];
  fsdp_given_strategy given = {.list_count = op->list_count, .place = "drawn"};
  snprintf(given.name, sizeof given.name, "%s", fsdp_operator_print(flow, index, name));
  for (int i = 0; i < op->input_count; i++) {
    given.entry_count[i] = flow->tensors[op->operands[i].tensor].dims;
    for (int e = 0; e < given.entry_count[i]; e++) {
      given.counts[i][e] = 1;
      for (int a = 0; a < mesh->count; a++) {
        if (op->operands[i].letter[e] < 0 || letter_of[a] != op->operands[i].letter[e]) continue;
        given.counts[i][e] *= mesh->sizes[a];
        given.groups[i][e][given.group_count[i][e]++] = (fsdp_slice_group){mesh->sizes[a], stride[a]};
      }
    }
  }
  return given;
}

// The same with strategies of one to four operators, over any of the axes.
static void random_sharding_operators(random_source *random, int ranks_max, random_sharding *out) {
  drawing d = {.random = random, .out = out};
  begin(&d, ranks_max);
  const fsdp_slice_mesh mesh = fsdp_slice_mesh_of(&out->plan.mesh);
  fsdp_dataflow *flow = fsdp_dataflow_of_graph(d.graph, fsdp_mesh_ranks(&out->plan.mesh), FSDP_F32);
  out->strategies.items = fsdp_alloc_zeroed(OPERATORS_MAX, sizeof *out->strategies.items);
  snprintf(out->strategies.place, sizeof out->strategies.place, "drawn");
  for (int wanted = random_int(random, 1, OPERATORS_MAX); wanted > 0; wanted--) {
    fsdp_given_strategy *item = &out->strategies.items[out->strategies.count];
    *item = draw_operator(&d, flow, &mesh);
    bool named = false;
    for (int i = 0; i < out->strategies.count; i++)
      named = named || !strcmp(out->strategies.items[i].name, item->name);
    out->strategies.count += !named;
  }
  out->plan.op_strategies = &out->strategies;
  fsdp_dataflow_destroy(flow);
  fsdp_graph_destroy(d.graph);
}

static void random_sharding_destroy(random_sharding *sharding) {
  free(sharding->sharding.rules);
  free(sharding->strategies.items);
}

// ---- Text

static void describe_rule(const fsdp_shard_rule *rule, FILE *out) {
  fprintf(out, "\n  %s: [", rule->name);
  for (int d = 0; d < rule->dims; d++) {
    fprintf(out, "%s[", d ? ", " : "");
    for (int a = 0; a < rule->dim[d].count; a++) fprintf(out, "%s%s", a ? ", " : "", rule->dim[d].axes[a]);
    fputc(']', out);
  }
  fputc(']', out);
}

static void describe_strategy(const fsdp_given_strategy *given, FILE *out) {
  fprintf(out, "\n  %s: [", given->name);
  for (int i = 0; i < given->list_count; i++) {
    fprintf(out, "%s[", i ? ", " : "");
    for (int e = 0; e < given->entry_count[i]; e++) {
      if (e) fputs(", ", out);
      if (!given->group_count[i][e]) fprintf(out, "%d", given->counts[i][e]);
      for (int g = 0; g < given->group_count[i][e]; g++)
        fprintf(out, "%s%d@%d", g ? "+" : "", given->groups[i][e][g].count, given->groups[i][e][g].stride);
    }
    fputc(']', out);
  }
  fputc(']', out);
}

// Mesh, model and rules, for messages; the caller frees it.
static char *describe_sharding(const random_sharding *sharding) {
  char *text = NULL, plan[1024];
  size_t size;
  FILE *out = open_memstream(&text, &size);
  describe_plan_config(&sharding->plan, plan, sizeof plan);
  fputs(plan, out);
  for (int r = 0; r < sharding->sharding.rule_count; r++) describe_rule(&sharding->sharding.rules[r], out);
  for (int i = 0; i < sharding->strategies.count; i++) describe_strategy(&sharding->strategies.items[i], out);
  fclose(out);
  return text;
}

// Whether a word is no word of the language: a name, a number, or a list.
static bool is_named(const char *word, size_t length) {
  for (size_t i = 0; i < length; i++)
    if (!isalpha((unsigned char)word[i]) && !strchr(",:;-'", word[i])) return true;
  return length == 1 && *word != 'a';
}

// What a refusal says, without names, numbers and places: those of one reason are equal. Returns `out`.
static const char *reason_of_refusal(const char *message, char *out, size_t bytes) {
  size_t used = 0;
  const char *colon = strstr(message, ": ");
  if (colon) message = colon + 2; // the place
  out[0] = 0;
  while (*message && used + 2 < bytes) {
    size_t length = strcspn(message, " ");
    if (is_named(message, length)) {
      if (used < 3 || strcmp(out + used - 3, ".. ") != 0)
        used += (size_t)snprintf(out + used, bytes - used, ".. ");
    } else {
      used += (size_t)snprintf(out + used, bytes - used, "%.*s ", (int)length, message);
    }
    if (used >= bytes) used = bytes - 1;
    message += length + strspn(message + length, " ");
  }
  return out;
}

// ---- Runs

// Refusals by reason.
typedef struct tally {
  int trained, refused, reasons, completed;
  struct {
    char text[200], example[600];
    int count;
  } reason[REASONS_MAX];
} tally;

static void count_refusal(tally *t, const char *message) {
  char text[sizeof t->reason[0].text];
  int i = 0;
  t->refused++;
  reason_of_refusal(message, text, sizeof text);
  while (i < t->reasons && strcmp(t->reason[i].text, text) != 0) i++;
  if (i == REASONS_MAX) return;
  if (i == t->reasons) {
    snprintf(t->reason[t->reasons].text, sizeof text, "%s", text);
    snprintf(t->reason[t->reasons++].example, sizeof t->reason[0].example, "%s", message);
  }
  t->reason[i].count++;
}

static void print_tally(const tally *t) {
  print_message("%d draws train as one rank does, %d of them completed; %d are refused\n", t->trained,
                t->completed, t->refused);
  for (int i = 0; i < t->reasons && getenv("FSDP_TEST_DRAWS"); i++)
    print_message("%6d  %s\n", t->reason[i].count, t->reason[i].example);
}

typedef void draw_sharding(random_source *random, int ranks_max, random_sharding *out);

static void try_draws(const char *test, uint64_t seed, int count, draw_sharding *draw) {
  tally *t = calloc(1, sizeof *t);
  for (int n = cases_begin(count); cases_run(test, n); n++) {
    random_source random = {.seed = seed + (uint64_t)n};
    random_sharding sharding;
    draw(&random, RANKS_MAX, &sharding);
    char *run = describe_sharding(&sharding);
    fsdp_plan *plan;
    fsdp_error error;
    if (getenv("FSDP_TEST_CASE")) print_message("%s\n", run);
    fsdp_status status = fsdp_plan_create(&sharding.plan, &plan, &error);
    if (status) {
      assert_true(status == FSDP_ERR_INPUT || status == FSDP_ERR_OPTION);
      assert_true(strlen(error.message) > 20);
      count_refusal(t, error.message);
    } else {
      harness_result *reference = harness_train_alone(plan, NULL),
                     *mine = harness_train_same(&sharding.plan, NULL);
      const char *difference = harness_same_difference(mine, reference);
      if (difference) {
        print_message("%s\n", run); // longer than what fail_msg prints
        fail_msg("%s", difference);
      }
      t->completed += plan->propagation != NULL;
      t->trained++;
      harness_free(mine);
      harness_free(reference);
      fsdp_plan_destroy(plan);
    }
    free(run);
    random_sharding_destroy(&sharding);
  }
  print_tally(t);
  free(t);
}

TEST(test_random_rules) {
  try_draws(__func__, 20000000, test_draws(320, 16), random_sharding_rules);
}

TEST(test_random_operators) {
  try_draws(__func__, 30000000, test_draws(120, 8), random_sharding_operators);
}
