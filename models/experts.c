#include "models/experts.h"

#include "models/decoder_traits.h"
#include "models/family.h"

#include <stdio.h>

enum { EXPERTS_MAX = 1 << 16 };

// ---- The configuration

static double read_coefficient(fsdp_fields *f, const json_t *root, const char *key, double fallback) {
  const json_t *value = fsdp_fields_present(root, key);
  if (value && json_is_number(value) && json_number_value(value) == 0) return 0;
  return fallback > 0 || value ? fsdp_fields_positive(f, root, key, fallback) : 0;
}

// The layers that have an MLP instead, by the keys of Qwen.
static void read_dense_layers(fsdp_fields *f, const json_t *root, fsdp_model_config *c) {
  const json_t *layers = fsdp_fields_present(root, "mlp_only_layers");
  c->expert_layer_step = fsdp_fields_count(f, root, "decoder_sparse_step", 1, INT32_MAX);
  if (layers && !json_is_array(layers))
    fsdp_fields_refuse(f, "mlp_only_layers", layers, "but must be a list of layers' numbers");
  for (size_t i = 0; i < json_array_size(layers) && !f->status; i++) {
    const json_t *item = json_array_get(layers, i);
    const int64_t layer = json_integer_value(item);
    if (!json_is_integer(item) || (layer >= FSDP_MODEL_LISTED_DENSE && layer < c->num_layers))
      fsdp_fields_refuse(f, "mlp_only_layers", layers, "but must be a list of layers' numbers below 256");
    else if (layer >= 0 && layer < c->num_layers)
      c->dense_layers[layer / 64] |= (uint64_t)1 << layer % 64;
  }
}

static void print_dense_layers(const fsdp_model_config *c, json_t *root) {
  json_t *layers = json_array();
  for (int64_t i = 0; i < FSDP_MODEL_LISTED_DENSE; i++)
    if (c->dense_layers[i / 64] >> i % 64 & 1) json_array_append_new(layers, json_integer(i));
  json_object_set_new(root, "decoder_sparse_step",
                      json_integer(c->expert_layer_step ? c->expert_layer_step : 1));
  json_object_set_new(root, "mlp_only_layers", layers);
}

bool fsdp_model_has_experts(const fsdp_model_config *c, int64_t layer) {
  if (!c->experts || layer < c->first_expert_layer) return false;
  if (layer < FSDP_MODEL_LISTED_DENSE && c->dense_layers[layer / 64] >> layer % 64 & 1) return false;
  return c->expert_layer_step <= 1 || (layer + 1) % c->expert_layer_step == 0;
}

int64_t fsdp_model_expert_layers(const fsdp_model_config *c) {
  int64_t count = 0;
  for (int64_t layer = 0; layer < c->num_layers; layer++) count += fsdp_model_has_experts(c, layer);
  return count;
}

// Transformers adds the loss where it outputs the router's logits, and in some families never. What it has
// not counts if this program wrote it: "router_aux_loss" is its own key. Other programs write such
// coefficients too, which do nothing in Transformers.
static void read_losses(fsdp_fields *f, const json_t *root, fsdp_model_config *c) {
  const fsdp_decoder *d = c->family->decoder;
  const json_t *aux = fsdp_fields_present(root, "router_aux_loss");
  const double coef = read_coefficient(f, root, "router_aux_loss_coef", d->aux_coef_default);
  const bool output = fsdp_fields_bool(f, root, "output_router_logits", false);
  const double z = read_coefficient(f, root, "router_z_loss_coef", 0);
  if (output && (d->aux_coef_default > 0 || aux)) c->router_aux_coef = coef;
  if (aux) c->router_z_coef = z;
  if (fsdp_fields_is_text(aux, "rank"))
    c->router_aux = FSDP_ROUTER_AUX_RANK;
  else if (fsdp_fields_is_text(aux, "sequence"))
    c->router_aux = FSDP_ROUTER_AUX_SEQUENCE;
  else if (aux && !fsdp_fields_is_text(aux, "micro"))
    fsdp_fields_refuse(f, "router_aux_loss", aux, "but must be \"micro\", \"rank\" or \"sequence\"");
}

static void print_losses(const fsdp_model_config *c, json_t *root) {
  json_object_set_new(root, "output_router_logits", json_boolean(c->router_aux_coef > 0));
  static const char *const kinds[] = {"micro", "rank", "sequence"};
  if (c->router_aux_coef > 0)
    json_object_set_new(root, "router_aux_loss_coef", json_real(c->router_aux_coef));
  if (c->router_aux_coef > 0 || c->router_z_coef > 0)
    json_object_set_new(root, "router_aux_loss", json_string(kinds[c->router_aux]));
  if (c->router_z_coef > 0) json_object_set_new(root, "router_z_loss_coef", json_real(c->router_z_coef));
}

// Transformers writes either name, and reads both: of two numbers the one that stands later.
static const char *experts_key(fsdp_fields *f, const json_t *root, const fsdp_decoder *d) {
  const json_t *value = fsdp_fields_present(root, d->experts_key);
  const json_t *other = d->other_experts_key ? fsdp_fields_present(root, d->other_experts_key) : NULL;
  char remedy[96];
  snprintf(remedy, sizeof remedy, "but \"%s\", which means the same, is another number; remove one of them",
           d->experts_key);
  if (value && other && !json_equal(value, other)) fsdp_fields_refuse(f, d->other_experts_key, other, remedy);
  return other && !value ? d->other_experts_key : d->experts_key;
}

void fsdp_experts_read(fsdp_fields *f, const json_t *root, fsdp_model_config *c) {
  const fsdp_decoder *d = c->family->decoder;
  read_losses(f, root, c);
  const json_t *noise = fsdp_fields_present(root, "router_jitter_noise");
  if (noise && (!json_is_number(noise) || json_number_value(noise) != 0))
    fsdp_fields_refuse(f, "router_jitter_noise", noise,
                       "but noise of the router is not supported; it must be 0");
  if (d->lists_dense_layers) read_dense_layers(f, root, c);
  c->experts = fsdp_fields_count(f, root, experts_key(f, root, d), d->experts_default, EXPERTS_MAX);
  c->expert_slots = fsdp_fields_count(f, root, "num_experts_per_tok", d->expert_slots_default, EXPERTS_MAX);
  c->expert_size = c->intermediate_size;
  const json_t *dtype = fsdp_fields_present(root, "router_dtype");
  c->router_f32 = d->routes_in_f32 || fsdp_fields_is_text(dtype, "float32");
  fsdp_fields_only_text(f, root, "router_dtype", "float32");
}

void fsdp_experts_print(const fsdp_model_config *c, json_t *root) {
  json_object_set_new(root, c->family->decoder->experts_key, json_integer(c->experts));
  json_object_set_new(root, "num_experts_per_tok", json_integer(c->expert_slots));
  print_losses(c, root);
  if (c->router_f32 && !c->family->decoder->routes_in_f32)
    json_object_set_new(root, "router_dtype", json_string("float32"));
  if (c->family->decoder->lists_dense_layers) print_dense_layers(c, root);
}

int64_t fsdp_experts_parameter_count(const fsdp_model_config *c, int64_t count) {
  const int64_t shared = 3 * c->shared_expert_size + c->gates_shared_expert;
  return c->hidden_size * (c->experts + 3 * count * c->expert_size + shared);
}

// ---- Modules

// The tensors of weight files: an expert's gate, up and down, and the router.
enum { NAME_GATE, NAME_UP, NAME_DOWN, NAME_ROUTER };

static const char *stored_name(const fsdp_parts *p, int which) {
  static const char *const own[] = {"mlp.experts.*.gate_proj.weight", "mlp.experts.*.up_proj.weight",
                                    "mlp.experts.*.down_proj.weight", "mlp.gate.weight"};
  const char *const *names = p->config->family->decoder->expert_names;
  return (names ? names : own)[which];
}

static void add_activation(fsdp_parts *p, int module) {
  const char *name = p->config->family->decoder->activation;
  fsdp_graph_module(p->graph, module, "act_fn", name ? name : "SiLUActivation", "");
}

static int router_module(fsdp_parts *p, int block) {
  const fsdp_decoder *d = p->config->family->decoder;
  char name[FSDP_NAME_BYTES];
  fsdp_decoder_class(d, d->router_class ? d->router_class : "TopKRouter", name);
  int module = fsdp_graph_module(p->graph, block, "gate", name, "");
  fsdp_param weight = {.name = "weight",
                       .dims = 2,
                       .shape = {p->config->experts, p->config->hidden_size},
                       .init_deviation = (float)p->config->initializer_range,
                       .stored_f32 = d->routes_in_f32,
                       .stored = {stored_name(p, NAME_ROUTER)},
                       .stored_below = p->graph->modules[block].parent};
  fsdp_graph_param(p->graph, module, &weight);
  const fsdp_param bias = {.name = "e_score_correction_bias",
                           .dims = 1,
                           .shape = {p->config->experts},
                           .balances = true,
                           .stored_f32 = true};
  if (p->config->route_bias) fsdp_graph_param(p->graph, module, &bias);
  return module;
}

static int experts_module(fsdp_parts *p, int block) {
  const fsdp_model_config *c = p->config;
  char name[FSDP_NAME_BYTES];
  fsdp_decoder_class(c->family->decoder, "Experts", name);
  int module = fsdp_graph_module(p->graph, block, "experts", name, "");
  fsdp_param gate_up = {.name = "gate_up_proj",
                        .dims = 3,
                        .shape = {c->experts, 2 * c->expert_size, c->hidden_size},
                        .init_deviation = (float)c->initializer_range,
                        .stored = {stored_name(p, NAME_GATE), stored_name(p, NAME_UP)},
                        .stored_below = p->graph->modules[block].parent};
  fsdp_param down = {.name = "down_proj",
                     .dims = 3,
                     .shape = {c->experts, c->hidden_size, c->expert_size},
                     .init_deviation = (float)c->initializer_range,
                     .stored = {stored_name(p, NAME_DOWN)},
                     .stored_below = p->graph->modules[block].parent};
  fsdp_graph_param(p->graph, module, &gate_up);
  fsdp_graph_param(p->graph, module, &down);
  add_activation(p, module);
  return module;
}

fsdp_mlp_modules fsdp_experts_mlp_tree(fsdp_parts *p, int parent, const char *own, int64_t size) {
  const int64_t C = p->config->hidden_size;
  char name[FSDP_NAME_BYTES];
  fsdp_decoder_class(p->config->family->decoder, "MLP", name);
  fsdp_mlp_modules m = {.mlp = fsdp_graph_module(p->graph, parent, own, name, "")};
  m.gate = fsdp_parts_linear_module(p, m.mlp, "gate_proj", C, size, false);
  m.up = fsdp_parts_linear_module(p, m.mlp, "up_proj", C, size, false);
  m.down = fsdp_parts_linear_module(p, m.mlp, "down_proj", size, C, false);
  add_activation(p, m.mlp);
  return m;
}

fsdp_experts_modules fsdp_experts_module_tree(fsdp_parts *p, int layer) {
  const fsdp_decoder *d = p->config->family->decoder;
  fsdp_experts_modules m;
  char name[FSDP_NAME_BYTES];
  fsdp_decoder_class(d, d->block_class ? d->block_class : "SparseMoeBlock", name);
  m.block = fsdp_graph_module(p->graph, layer, "mlp", name, "");
  if (d->experts_first) m.experts = experts_module(p, m.block);
  m.gate = router_module(p, m.block);
  if (!d->experts_first) m.experts = experts_module(p, m.block);
  if (p->config->shared_expert_size) {
    m.shared = fsdp_experts_mlp_tree(p, m.block, d->shared_name ? d->shared_name : "shared_expert",
                                     p->config->shared_expert_size);
    if (p->config->gates_shared_expert)
      m.shared_gate =
          fsdp_parts_linear_module(p, m.block, "shared_expert_gate", p->config->hidden_size, 1, false);
  }
  return m;
}

// ---- Ops

typedef struct routed {
  fsdp_parts *parts;
  int module;
  int64_t rows; // routed ones
} routed;

static int value(const routed *r, const char *name, fsdp_value_dtype dtype, int64_t rows, int64_t columns) {
  return fsdp_parts_value(r->parts, r->module, name, dtype, rows, columns);
}

static fsdp_node *add_node(const routed *r, fsdp_op_kind kind, int count, const int *operands) {
  const fsdp_model_config *c = r->parts->config;
  fsdp_node *n = fsdp_parts_node(r->parts, kind, r->module, count, operands);
  n->attrs.intermediate = c->expert_size;
  n->attrs.experts = c->experts;
  n->attrs.slots = c->expert_slots;
  n->attrs.route_score = c->route_score;
  n->attrs.route_normalises = c->normalises_routes;
  n->attrs.route_scale = (float)c->route_scale;
  if (c->route_groups > 1) {
    n->attrs.route_groups = c->route_groups;
    n->attrs.route_groups_kept = c->route_groups_kept;
    n->attrs.route_group_best = c->route_group_best;
  }
  return n;
}

// Which rows hold a token.
static int real_rows(const routed *r) {
  return fsdp_graph_input(r->parts->graph, FSDP_INPUT_REAL, r->parts->rows);
}

static int stack_of(const routed *r, const char *name) {
  return r->parts->graph->params[fsdp_graph_param_of(r->parts->graph, r->module, name)].value;
}

int fsdp_experts_dense(fsdp_parts *p, int x, const fsdp_mlp_modules *m) {
  int gate_up = fsdp_parts_linear(p, x, 2, (int[]){m->gate, m->up}, "gate_up");
  int s = fsdp_parts_swiglu(p, gate_up, m->mlp);
  return fsdp_parts_linear(p, s, 1, &m->down, "mlp");
}

// This layer's part of the mean over layers and sequences.
static void add_sequences(routed *r, int logits, int chosen, fsdp_experts_sums *sums) {
  const fsdp_model_config *c = r->parts->config;
  const bool first = sums->total < 0;
  if (first) sums->total = value(r, "total", FSDP_VALUE_F32, 1, 0);
  const int factors = value(r, "factors", FSDP_VALUE_F32, r->parts->graph->batch, c->experts);
  fsdp_node *n =
      add_node(r, FSDP_OP_ROUTE_SEQUENCES, 5, (int[]){logits, chosen, real_rows(r), sums->total, factors});
  if (!first) n->operands[3].access = FSDP_UPDATE;
  n->attrs.aux_weight = (float)(c->router_aux_coef / (double)fsdp_model_expert_layers(c));
  n->attrs.aux_of_rank = true; // nothing is summed over ranks before the loss is
}

// What the losses of all layers are made of (fsdp_experts_losses).
static void add_sums(routed *r, int logits, int chosen, fsdp_experts_sums *sums) {
  const fsdp_model_config *c = r->parts->config;
  const bool first = sums->sums < 0;
  if (c->router_aux_coef == 0 && c->router_z_coef == 0) return;
  if (first) {
    sums->sums = value(r, "sums", FSDP_VALUE_F32, 2 * c->experts + 1, 0);
    sums->z = value(r, "z", FSDP_VALUE_F32, 1, 0);
  }
  fsdp_node *n =
      add_node(r, FSDP_OP_ROUTE_SUMS, 5, (int[]){logits, chosen, real_rows(r), sums->sums, sums->z});
  for (int o = 3; o < 5 && !first; o++) n->operands[o].access = FSDP_UPDATE;
  if (c->router_aux == FSDP_ROUTER_AUX_SEQUENCE && c->router_aux_coef > 0)
    add_sequences(r, logits, chosen, sums);
}

void fsdp_experts_losses(fsdp_parts *p, int module, const fsdp_experts_sums *sums) {
  const fsdp_model_config *c = p->config;
  fsdp_graph *g = p->graph;
  if (sums->sums < 0) return;
  routed r = {p, module, 0};
  const int aux = fsdp_graph_loss(g, "aux_loss"), z = fsdp_graph_loss(g, "z_loss");
  const int factors = value(&r, "factors", FSDP_VALUE_F32, c->experts + 1, 0);
  fsdp_op_attrs *attrs =
      &add_node(&r, FSDP_OP_ROUTE_LOSS, 5, (int[]){sums->sums, sums->z, aux, z, factors})->attrs;
  const bool joint = c->router_aux != FSDP_ROUTER_AUX_SEQUENCE;
  attrs->aux_weight = joint ? (float)c->router_aux_coef : 0;
  attrs->z_weight = (float)c->router_z_coef;
  attrs->aux_of_rank = c->router_aux == FSDP_ROUTER_AUX_RANK;
  if (sums->total < 0) return;
  add_node(&r, FSDP_OP_ROUTE_TOTAL, 2, (int[]){sums->total, fsdp_graph_loss(g, "sequence_loss")});
}

// The experts that a row chooses, and their weights.
static int route(routed *r, int logits, int *chosen) {
  const fsdp_model_config *c = r->parts->config;
  const int64_t N = r->parts->rows, k = c->expert_slots;
  int weights = value(r, "weights", FSDP_VALUE_F32, N, k);
  *chosen = value(r, "experts", FSDP_VALUE_I32, N, k);
  int operands[6] = {logits}, count = 1;
  if (c->route_bias) operands[count++] = stack_of(r, "e_score_correction_bias");
  if (c->route_bias) operands[count++] = real_rows(r);
  if (c->replays_routes)
    operands[count++] =
        fsdp_graph_input(r->parts->graph, FSDP_INPUT_ROUTES, N * k * fsdp_model_expert_layers(c));
  operands[count++] = weights;
  operands[count++] = *chosen;
  static const fsdp_op_kind kinds[2][2] = {{FSDP_OP_ROUTE, FSDP_OP_ROUTE_BIASED},
                                           {FSDP_OP_ROUTE_GIVEN, FSDP_OP_ROUTE_GIVEN_BIASED}};
  fsdp_node *n = add_node(r, kinds[c->replays_routes][c->route_bias], count, operands);
  if (c->replays_routes) {
    n->attrs.out_stride = k * fsdp_model_expert_layers(c);
    n->attrs.out_features = k;
    n->attrs.out_offset = r->parts->graph->statistic_numel / c->experts * k;
  }
  const int counts = fsdp_graph_statistic(r->parts->graph, r->module, "counts", c->experts);
  add_node(r, FSDP_OP_ROUTE_COUNTS, 2, (int[]){*chosen, counts});
  return weights;
}

// What the routed experts made and, if there is one, what the shared expert makes of x; `gate` is a number of
// each row, or -1.
static int add_shared(routed *r, int x, int y, int gate, const fsdp_experts_modules *m) {
  fsdp_parts *p = r->parts;
  const int64_t N = p->rows, C = p->config->hidden_size;
  if (!p->config->shared_expert_size) return y;
  int shared = fsdp_experts_dense(p, x, &m->shared);
  r->module = m->block;
  if (p->config->gates_shared_expert) {
    int gated = value(r, "gated", FSDP_VALUE_COMPUTE, N, C);
    add_node(r, FSDP_OP_SHARED_GATE, 3, (int[]){shared, gate, gated});
    shared = gated;
  }
  int sum = value(r, "mlp", FSDP_VALUE_COMPUTE, N, C);
  add_node(r, FSDP_OP_SHARED_ADD, 3, (int[]){y, shared, sum});
  return sum;
}

int fsdp_experts_mlp(fsdp_parts *p, int x, const fsdp_experts_modules *m, fsdp_experts_sums *sums) {
  const fsdp_model_config *c = p->config;
  const int64_t N = p->rows, C = c->hidden_size, I = c->expert_size, E = c->experts, k = c->expert_slots;
  int logits = fsdp_parts_linear(p, x, 1, &m->gate, "logits");
  // Before the experts: what all ranks that cut these make of x comes first, in the backward last.
  int gate = c->gates_shared_expert ? fsdp_parts_linear(p, x, 1, &m->shared_gate, "shared_gate") : -1;
  if (c->router_f32) p->graph->values[logits].dtype = FSDP_VALUE_F32;
  routed r = {p, m->gate, N * k};
  int chosen, weights = route(&r, logits, &chosen);
  add_sums(&r, logits, chosen, sums);
  r.module = m->experts;
  int slots = value(&r, "slots", FSDP_VALUE_I32, r.rows, 0);
  int offsets = value(&r, "offsets", FSDP_VALUE_I32, E + 1, 0);
  int places = value(&r, "places", FSDP_VALUE_I32, N, k);
  add_node(&r, FSDP_OP_ROUTE_ORDER, 4, (int[]){chosen, slots, offsets, places});
  int gate_up = value(&r, "gate_up", FSDP_VALUE_COMPUTE, r.rows, 2 * I);
  add_node(&r, FSDP_OP_EXPERT_UP, 5, (int[]){x, stack_of(&r, "gate_up_proj"), slots, offsets, gate_up});
  int s = value(&r, "s", FSDP_VALUE_COMPUTE, r.rows, I);
  add_node(&r, FSDP_OP_EXPERT_SWIGLU, 5, (int[]){gate_up, weights, places, offsets, s});
  int z = value(&r, "z", FSDP_VALUE_COMPUTE, r.rows, C);
  add_node(&r, FSDP_OP_EXPERT_DOWN, 5, (int[]){s, stack_of(&r, "down_proj"), slots, offsets, z});
  int y = value(&r, c->shared_expert_size ? "routed" : "mlp", FSDP_VALUE_COMPUTE, N, C);
  add_node(&r, FSDP_OP_COMBINE, 3, (int[]){z, places, y});
  return add_shared(&r, x, y, gate, m);
}
