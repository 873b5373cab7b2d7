#include "models/experts.h"

#include "models/decoder_traits.h"
#include "models/family.h"

#include <stdio.h>

enum { EXPERTS_MAX = 1 << 16 };

// ---- The configuration

static void refuse_unless_one(fsdp_fields *f, const json_t *root, const char *key) {
  if (fsdp_fields_count(f, root, key, 1, INT32_MAX) != 1)
    fsdp_fields_refuse(f, key, fsdp_fields_present(root, key),
                       "but only models with experts in every layer are supported; it must be 1");
}

static void refuse_dense_layers(fsdp_fields *f, const json_t *root) {
  const json_t *layers = fsdp_fields_present(root, "mlp_only_layers");
  refuse_unless_one(f, root, "decoder_sparse_step");
  if (layers && (!json_is_array(layers) || json_array_size(layers) > 0))
    fsdp_fields_refuse(f, "mlp_only_layers", layers,
                       "but only models with experts in every layer are supported; it must be []");
}

void fsdp_experts_read(fsdp_fields *f, const json_t *root, fsdp_model_config *c) {
  const fsdp_decoder *d = c->family->decoder;
  fsdp_fields_only_false(f, root, "output_router_logits", "auxiliary losses of the router");
  const json_t *noise = fsdp_fields_present(root, "router_jitter_noise");
  if (noise && (!json_is_number(noise) || json_number_value(noise) != 0))
    fsdp_fields_refuse(f, "router_jitter_noise", noise,
                       "but noise of the router is not supported; it must be 0");
  refuse_dense_layers(f, root);
  // Transformers writes either name, and reads both.
  const char *other = "num_local_experts";
  const char *key =
      !fsdp_fields_present(root, d->experts_key) && fsdp_fields_present(root, other) ? other : d->experts_key;
  c->experts = fsdp_fields_count(f, root, key, d->experts_default, EXPERTS_MAX);
  c->expert_slots = fsdp_fields_count(f, root, "num_experts_per_tok", d->expert_slots_default, EXPERTS_MAX);
  c->expert_size = c->intermediate_size;
}

void fsdp_experts_print(const fsdp_model_config *c, json_t *root) {
  json_object_set_new(root, c->family->decoder->experts_key, json_integer(c->experts));
  json_object_set_new(root, "num_experts_per_tok", json_integer(c->expert_slots));
  json_object_set_new(root, "output_router_logits", json_false());
}

int64_t fsdp_experts_parameter_count(const fsdp_model_config *c, int64_t count) {
  return c->hidden_size * (c->experts + 3 * count * c->expert_size);
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

static int router_module(fsdp_parts *p, int block) {
  char name[FSDP_NAME_BYTES];
  snprintf(name, sizeof name, "%sTopKRouter", p->config->family->decoder->prefix);
  int module = fsdp_graph_module(p->graph, block, "gate", name, "");
  fsdp_param_spec weight = {.name = "weight",
                            .dims = 2,
                            .shape = {p->config->experts, p->config->hidden_size},
                            .init_deviation = (float)p->config->initializer_range,
                            .stored = {stored_name(p, NAME_ROUTER)},
                            .stored_below = p->graph->modules[block].parent};
  fsdp_graph_param(p->graph, module, &weight);
  return module;
}

static int experts_module(fsdp_parts *p, int block) {
  const fsdp_model_config *c = p->config;
  char name[FSDP_NAME_BYTES];
  snprintf(name, sizeof name, "%sExperts", c->family->decoder->prefix);
  int module = fsdp_graph_module(p->graph, block, "experts", name, "");
  fsdp_param_spec gate_up = {.name = "gate_up_proj",
                             .dims = 3,
                             .shape = {c->experts, 2 * c->expert_size, c->hidden_size},
                             .init_deviation = (float)c->initializer_range,
                             .stored = {stored_name(p, NAME_GATE), stored_name(p, NAME_UP)},
                             .stored_below = p->graph->modules[block].parent};
  fsdp_param_spec down = {.name = "down_proj",
                          .dims = 3,
                          .shape = {c->experts, c->hidden_size, c->expert_size},
                          .init_deviation = (float)c->initializer_range,
                          .stored = {stored_name(p, NAME_DOWN)},
                          .stored_below = p->graph->modules[block].parent};
  fsdp_graph_param(p->graph, module, &gate_up);
  fsdp_graph_param(p->graph, module, &down);
  fsdp_graph_module(p->graph, module, "act_fn", c->family->decoder->activation, "");
  return module;
}

fsdp_experts_modules fsdp_experts_module_tree(fsdp_parts *p, int layer) {
  const fsdp_decoder *d = p->config->family->decoder;
  fsdp_experts_modules m;
  char name[FSDP_NAME_BYTES];
  snprintf(name, sizeof name, "%sSparseMoeBlock", d->prefix);
  m.block = fsdp_graph_module(p->graph, layer, "mlp", name, "");
  if (d->experts_first) m.experts = experts_module(p, m.block);
  m.gate = router_module(p, m.block);
  if (!d->experts_first) m.experts = experts_module(p, m.block);
  return m;
}

// ---- Ops

typedef struct routed {
  fsdp_parts *parts;
  int module;
  int64_t rows; // routed ones
} routed;

static int value(const routed *r, const char *name, fsdp_value_dtype dtype, int64_t rows, int64_t columns) {
  return fsdp_graph_value(r->parts->graph, FSDP_VALUE_ACTIVATION, dtype, r->module, name, columns ? 2 : 1,
                          (int64_t[]){rows, columns});
}

// A node of an op whose last `written` operands are made.
static void add_node(const routed *r, fsdp_op_kind kind, int count, const int *operands, int written) {
  const fsdp_model_config *c = r->parts->config;
  fsdp_node *n = fsdp_graph_forward_node(r->parts->graph, kind, r->module, r->parts->block);
  n->attrs = r->parts->attrs;
  n->attrs.intermediate = c->expert_size;
  n->attrs.experts = c->experts;
  n->attrs.slots = c->expert_slots;
  n->attrs.route_normalises = c->normalises_routes;
  for (int i = 0; i < count; i++)
    fsdp_node_operand_add(n, operands[i], i < count - written ? FSDP_READ : FSDP_WRITE);
}

static int stack_of(const routed *r, const char *name) {
  return r->parts->graph->params[fsdp_graph_param_of(r->parts->graph, r->module, name)].value;
}

int fsdp_experts_mlp(fsdp_parts *p, int x, const fsdp_experts_modules *m) {
  const fsdp_model_config *c = p->config;
  const int64_t N = p->rows, C = c->hidden_size, I = c->expert_size, E = c->experts, k = c->expert_slots;
  int logits = fsdp_parts_linear(p, x, 1, &m->gate, "logits");
  routed r = {p, m->gate, N * k};
  int weights = value(&r, "weights", FSDP_VALUE_F32, N, k),
      chosen = value(&r, "experts", FSDP_VALUE_I32, N, k);
  add_node(&r, FSDP_OP_ROUTE, 3, (int[]){logits, weights, chosen}, 2);
  r.module = m->experts;
  int slots = value(&r, "slots", FSDP_VALUE_I32, r.rows, 0);
  int offsets = value(&r, "offsets", FSDP_VALUE_I32, E + 1, 0);
  add_node(&r, FSDP_OP_ROUTE_ORDER, 3, (int[]){chosen, slots, offsets}, 2);
  int gate_up = value(&r, "gate_up", FSDP_VALUE_COMPUTE, r.rows, 2 * I);
  add_node(&r, FSDP_OP_EXPERT_UP, 5, (int[]){x, stack_of(&r, "gate_up_proj"), slots, offsets, gate_up}, 1);
  int s = value(&r, "s", FSDP_VALUE_COMPUTE, r.rows, I);
  add_node(&r, FSDP_OP_EXPERT_SWIGLU, 4, (int[]){gate_up, weights, slots, s}, 1);
  int z = value(&r, "z", FSDP_VALUE_COMPUTE, r.rows, C);
  add_node(&r, FSDP_OP_EXPERT_DOWN, 5, (int[]){s, stack_of(&r, "down_proj"), slots, offsets, z}, 1);
  int y = value(&r, "mlp", FSDP_VALUE_COMPUTE, N, C);
  add_node(&r, FSDP_OP_COMBINE, 2, (int[]){z, y}, 1);
  return y;
}
