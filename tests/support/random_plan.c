#include "tests/support/random_plan.h"
#include "models/decoder_traits.h"
#include "models/family.h"
#include "models/model.h"
#include "runtime/base/check.h"
#include "tests/support/models.h"

#include <stdio.h>
#include <string.h>

// With a workspace small enough not to hide everything else.
static const fsdp_plan_backend gpu_target = {
    .name = "gpu", .gemm_workspace_bytes = 4096, .flops_per_byte = 100, .link_ratio = 10};

// A family, and what its modules and saved values are called.
typedef struct family_names {
  const char *preset;
  const char *classes[5]; // for wrapping
  const char *saved[8];
} family_names;

#define DECODER(prefix, attention)                                                                           \
  {prefix "DecoderLayer", attention "," prefix "MLP", "Linear", prefix "Model",                              \
   "Embedding," prefix "DecoderLayer"},                                                                      \
  {                                                                                                          \
    "block", "block_inputs", "residual", "rmsnorm", "attention", "swiglu", "linear:q_proj", "linear:up_proj" \
  }

static const family_names families[] = {
    {"tiny", DECODER("Llama", "LlamaSdpaAttention")},
    {"mistral-7b", DECODER("Mistral", "MistralAttention")},
    {"qwen2.5-7b", DECODER("Qwen2", "Qwen2Attention")},
    {"qwen3-8b",
     {"Qwen3DecoderLayer", "Qwen3Attention,Qwen3MLP", "Linear", "Qwen3Model", "Qwen3RMSNorm"},
     {"block", "block_inputs", "residual", "qk_norm", "attention", "swiglu", "linear:q_proj",
      "linear:up_proj"}},
    {"gpt2",
     {"GPT2Block", "GPT2Attention,GPT2MLP", "Conv1D", "GPT2Model", "Embedding,GPT2Block"},
     {"block", "block_inputs", "residual", "layernorm", "attention", "gelu", "linear:c_attn", "linear:c_fc"}},
};
enum { FAMILIES = sizeof families / sizeof *families };

static fsdp_model_config random_model(random_source *random) {
  static const int vocabularies[] = {61, 96, 257, 512};
  int kv_heads = random_int(random, 1, 2), head_dim = 8 * random_int(random, 1, 2);
  int heads = kv_heads * random_int(random, 1, 3);
  return (fsdp_model_config){.family = family_of_preset("tiny"),
                             .vocab_size = vocabularies[random_int(random, 0, 3)],
                             .hidden_size =
                                 random_int(random, 0, 1) ? heads * head_dim : 8 * random_int(random, 3, 9),
                             .intermediate_size = 4 * random_int(random, 10, 40),
                             .num_layers = random_int(random, 1, 3),
                             .num_heads = heads,
                             .num_kv_heads = kv_heads,
                             .head_dim = head_dim,
                             .max_position_embeddings = 128,
                             .norm_eps = 1e-5,
                             .rope_theta = 1e4,
                             .initializer_range = 0.02,
                             .tie_word_embeddings = random_int(random, 0, 2) == 0};
}

// Makes a Llama one of `names`' family; some get a window.
static void change_family(random_source *random, const family_names *names, fsdp_model_config *config) {
  config->family = family_of_preset(names->preset);
  if (!config->family->decoder) { // GPT-2
    config->num_kv_heads = config->num_heads;
    config->hidden_size = config->num_heads * config->head_dim;
    config->rope_theta = 0;
  } else if (random_int(random, 0, 2) == 0) {
    config->window = random_int(random, 1, 50);
    config->first_window_layer = random_int(random, 0, (int)config->num_layers - 1);
  }
}

fsdp_model_config random_model_config(random_source *random) {
  fsdp_model_config config = random_model(random);
  change_family(random, &families[random_int(random, 0, FAMILIES - 1)], &config);
  return config;
}

static fsdp_wrap_policy random_wrap(random_source *random, const family_names *names) {
  switch (random_int(random, 0, 3)) {
  case 0:
    return (fsdp_wrap_policy){.kind = FSDP_WRAP_BLOCK};
  case 1:
    return (fsdp_wrap_policy){.kind = FSDP_WRAP_NONE};
  case 2:
    return (fsdp_wrap_policy){.kind = FSDP_WRAP_MODULE, .classes = names->classes[random_int(random, 0, 4)]};
  default:
    return (fsdp_wrap_policy){.kind = FSDP_WRAP_SIZE, .numel = 1 << random_int(random, 8, 16)};
  }
}

// Rules for some of what the layers save.
static fsdp_saving random_saving(random_source *random, const family_names *names, int64_t layers) {
  enum { NAMES = sizeof names->saved / sizeof *names->saved };
  fsdp_saving saving = {0};
  for (int i = 0; i < NAMES; i++) {
    fsdp_saving_rule rule = {.fate = (fsdp_fate)random_int(random, FSDP_FATE_NONE, FSDP_FATE_OFFLOAD + 2)};
    if (rule.fate == FSDP_FATE_RECOMPUTE ? i == 1 : rule.fate != FSDP_FATE_OFFLOAD) continue;
    snprintf(rule.name, sizeof rule.name, "%s", names->saved[i]);
    if (random_int(random, 0, 1)) rule.layers = (int)random_int(random, 1, (int)layers);
    saving.rules[saving.count++] = rule;
  }
  return saving;
}

// Cuts a part of the configurations over tensor and context too, with few other ranks beside them and the
// axes in any order.
static void change_mesh(random_source *random, fsdp_plan_config *config) {
  static const char *const names[] = {FSDP_AXIS_DATA, FSDP_AXIS_FSDP, FSDP_AXIS_TENSOR, FSDP_AXIS_CONTEXT};
  const fsdp_mesh *old = &config->mesh;
  int sizes[4] = {fsdp_mesh_size(old, FSDP_AXIS_DATA), fsdp_mesh_size(old, FSDP_AXIS_FSDP)};
  if (random_int(random, 0, 1)) return;
  sizes[2] = random_int(random, 1, 4);
  sizes[3] = random_int(random, 1, 3);
  for (int i = 0; i < 2; i++)
    if (sizes[i] > 3) sizes[i] = random_int(random, 1, 3);
  config->sequence_parallel = random_int(random, 0, 1);
  fsdp_mesh mesh = {0};
  int first = random_int(random, 0, 3), stride = random_int(random, 0, 1) ? 1 : 3;
  for (int i = 0; i < 4; i++) {
    int axis = (first + i * stride) % 4;
    fsdp_mesh_add(&mesh, names[axis], sizes[axis]);
  }
  fsdp_mesh_complete(&mesh);
  config->mesh = mesh;
}

fsdp_plan_config random_plan_config(random_source *random) {
  // New families and meshes change no configuration without them.
  random_source apart = {.seed = random->seed, .next = (uint64_t)1 << 32};
  random_source of_mesh = {.seed = random->seed, .next = (uint64_t)1 << 33};
  random_source of_documents = {.seed = random->seed, .next = (uint64_t)1 << 35};
  random_source of_loss = {.seed = random->seed, .next = (uint64_t)1 << 36};
  random_source of_strategy = {.seed = random->seed, .next = (uint64_t)1 << 34};
  const family_names *names = &families[random_int(&apart, 0, FAMILIES - 1)];
  fsdp_plan_config config = {.model = random_model(random),
                             .batch = random_int(random, 1, 2),
                             .seq = random_int(random, 4, 48),
                             .micro_batches = random_int(random, 1, 4),
                             .strategy = (fsdp_strategy)random_int(random, 0, 3),
                             .wrap = random_wrap(random, names),
                             .cpu_offload = random_int(random, 0, 1),
                             .prefetch = random_int(random, 0, 3),
                             .accumulate = (fsdp_accumulate)random_int(random, 0, 1),
                             .param_dtype = (fsdp_dtype)random_int(random, 0, 1),
                             .reduce_dtype = (fsdp_dtype)random_int(random, 0, 1),
                             .master_dtype = (fsdp_dtype)random_int(random, 0, 1),
                             .moment_dtype = (fsdp_dtype)random_int(random, 0, 1),
                             .grad_clip = random_int(random, 0, 1) ? 1.0f : 0.0f,
                             .hyper = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8f, .weight_decay = 0.01f},
                             .evaluation = random_int(random, 0, 1),
                             .poison = random_int(random, 0, 3) == 0,
                             .backend = random_int(random, 0, 1) ? &gpu_target : fsdp_plan_backend_cpu()};
  int shards = random_int(random, 1, 9), replicas = random_int(random, 1, 4);
  bool replicated = config.strategy == FSDP_NO || config.strategy == FSDP_HYBRID;
  config.mesh = fsdp_mesh_of(replicated ? replicas : 1, config.strategy == FSDP_NO ? 1 : shards);
  config.saving = random_saving(random, names, config.model.num_layers);
  config.check = random_int(random, 0, 1);
  config.snapshot = random_int(random, 0, 2) == 0;
  config.exchange = random_int(random, 0, 2) == 0;
  change_family(&apart, names, &config.model);
  change_mesh(&of_mesh, &config);
  config.documents = random_int(&of_documents, 0, 3) == 0 && config.backend->device == FSDP_OP_CPU;
  config.loss_of_documents = random_int(&of_loss, 0, 3) == 0;
  if (random_int(&of_loss, 0, 2) == 0) {
    config.dropout.embedding = random_int(&of_loss, 0, 1) ? 0.1f : 0;
    config.dropout.residual = random_int(&of_loss, 0, 1) ? 0.2f : 0;
    const bool attends = random_int(&of_loss, 0, 1) && config.backend->device == FSDP_OP_CPU;
    config.dropout.attention = attends ? 0.3f : 0;
  }
  if (random_int(&of_strategy, 0, 3) == 0) config.strategy = FSDP_ZERO1;
  return config;
}

void describe_plan_config(const fsdp_plan_config *c, char *out, size_t out_bytes) {
  char mesh[FSDP_MESH_TEXT_BYTES], saving[2][FSDP_SAVING_TEXT_BYTES];
  snprintf(out, out_bytes,
           "%s %s %s V=%lld C=%lld I=%lld L=%lld H=%lld K=%lld D=%lld W=%lld@%lld tied=%d B=%lld T=%lld "
           "accumulation=%d(%s) wrap=%d "
           "(%lld %s) offload=%d recompute=%s offload-activations=%s prefetch=%d %s/%s/%s/%s clip=%g "
           "evaluation=%d check=%d "
           "snapshot=%d exchange=%d poison=%d sequence-parallel=%d documents=%d loss-of-documents=%d "
           "dropout=%g,%g,%g expert-blocks=%d %s",
           c->model.family->block_class, fsdp_strategy_name(c->strategy),
           fsdp_mesh_print(&c->mesh, ",", mesh), (long long)c->model.vocab_size,
           (long long)c->model.hidden_size, (long long)c->model.intermediate_size,
           (long long)c->model.num_layers, (long long)c->model.num_heads, (long long)c->model.num_kv_heads,
           (long long)c->model.head_dim, (long long)c->model.window, (long long)c->model.first_window_layer,
           c->model.tie_word_embeddings, (long long)c->batch, (long long)c->seq, c->micro_batches,
           c->accumulate == FSDP_ACCUMULATE_LOCAL ? "local" : "reduce", (int)c->wrap.kind,
           (long long)c->wrap.numel, c->wrap.classes ? c->wrap.classes : "", c->cpu_offload,
           fsdp_saving_print(&c->saving, FSDP_FATE_RECOMPUTE, saving[0]),
           fsdp_saving_print(&c->saving, FSDP_FATE_OFFLOAD, saving[1]), c->prefetch,
           fsdp_dtype_name(c->param_dtype), fsdp_dtype_name(c->reduce_dtype),
           fsdp_dtype_name(c->master_dtype), fsdp_dtype_name(c->moment_dtype), (double)c->grad_clip,
           c->evaluation, c->check, c->snapshot, c->exchange, c->poison, c->sequence_parallel, c->documents,
           c->loss_of_documents, (double)c->dropout.embedding, (double)c->dropout.attention,
           (double)c->dropout.residual, c->expert_blocks, c->backend->name);
}

// ---- Routed experts

enum { ROUTED_RANKS_MAX = 12 };

static fsdp_model_config routed_model(random_source *random) {
  static const char *const presets[] = {"tiny-mixtral", "tiny-qwen3-moe", "tiny-olmoe", "tiny-qwen2-moe",
                                        "tiny-glm4-moe"};
  const fsdp_model_config sizes = random_model_config(random);
  fsdp_model_config model;
  fsdp_error error;
  FSDP_CHECK(fsdp_model_preset(presets[random_int(random, 0, 4)], &model, &error) == FSDP_OK, "%s",
             error.message);
  model.vocab_size = sizes.vocab_size, model.hidden_size = sizes.hidden_size;
  model.num_heads = sizes.num_heads, model.head_dim = sizes.head_dim;
  model.num_kv_heads = model.family->decoder->wide_qk_norm ? model.num_heads : sizes.num_kv_heads;
  if (model.rotary_dim) model.rotary_dim = model.head_dim / 2;
  model.num_layers = random_int(random, 1, 2);
  model.initializer_range = 0.05;
  model.max_position_embeddings = 16;
  model.window = model.first_window_layer = 0;
  model.experts = random_int(random, 2, 7);
  model.expert_slots = random_int(random, 1, (int)model.experts);
  model.expert_size = model.intermediate_size = random_int(random, 3, 21);
  if (model.shared_expert_size) model.shared_expert_size = random_int(random, 1, 2) * model.expert_size;
  if (model.first_expert_layer) model.first_expert_layer = model.num_layers - 1;
  if (!model.route_bias) model.normalises_routes = random_int(random, 0, 1);
  return model;
}

static fsdp_mesh routed_mesh(random_source *random, fsdp_strategy strategy) {
  static const char *const names[] = {FSDP_AXIS_DATA, FSDP_AXIS_FSDP, FSDP_AXIS_EXPERT, FSDP_AXIS_TENSOR,
                                      FSDP_AXIS_CONTEXT};
  const bool replicas = strategy == FSDP_HYBRID || strategy == FSDP_NO || strategy == FSDP_ZERO1;
  fsdp_mesh mesh;
  do {
    const int sizes[] = {replicas ? random_int(random, 1, 2) : 1,
                         strategy == FSDP_NO ? 1 : random_int(random, 1, 3), random_int(random, 1, 4),
                         random_int(random, 0, 1) ? random_int(random, 1, 3) : 1,
                         random_int(random, 0, 2) ? 1 : random_int(random, 1, 3)};
    const int first = random_int(random, 0, 4), stride = random_int(random, 1, 4);
    mesh = (fsdp_mesh){0};
    for (int i = 0; i < 5; i++)
      fsdp_mesh_add(&mesh, names[(first + i * stride) % 5], sizes[(first + i * stride) % 5]);
    fsdp_mesh_complete(&mesh);
  } while (fsdp_mesh_ranks(&mesh) > ROUTED_RANKS_MAX);
  return mesh;
}

// To a third of the configurations that may have them.
static void add_router_losses(random_source *random, fsdp_plan_config *plan) {
  const int context = fsdp_mesh_size(&plan->mesh, FSDP_AXIS_CONTEXT);
  const bool cuts_rows = fsdp_mesh_size(&plan->mesh, FSDP_AXIS_TENSOR) > 1 && plan->sequence_parallel;
  if (cuts_rows || random_int(random, 0, 2)) return;
  plan->model.router_aux_coef = random_int(random, 0, 2) ? 0.3 : 0;
  plan->model.router_z_coef = random_int(random, 0, 1) ? 0.01 : 0;
  if (context == 1 && random_int(random, 0, 1)) plan->model.router_aux = FSDP_ROUTER_AUX_SEQUENCE;
}

fsdp_plan_config random_routed_config(random_source *random) {
  random_source of_losses = {.seed = random->seed + 77};
  fsdp_plan_config plan = {.model = routed_model(random),
                           .batch = random_int(random, 1, 2),
                           .seq = random_int(random, 1, 13),
                           .micro_batches = random_int(random, 1, 2),
                           .strategy = (fsdp_strategy)random_int(random, FSDP_FULL, FSDP_ZERO1),
                           .wrap = {.kind = random_int(random, 0, 2) ? FSDP_WRAP_BLOCK : FSDP_WRAP_NONE},
                           .prefetch = random_int(random, 0, 2),
                           .accumulate = (fsdp_accumulate)random_int(random, 0, 1),
                           .cpu_offload = random_int(random, 0, 5) == 0,
                           .sequence_parallel = random_int(random, 0, 1),
                           .grad_clip = 1.0f,
                           .hyper = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-5f, .weight_decay = 0.01f},
                           .evaluation = true,
                           .poison = random_int(random, 0, 1),
                           .backend = fsdp_plan_backend_cpu()};
  if (random_int(random, 0, 3) == 0) plan.wrap = (fsdp_wrap_policy){.kind = FSDP_WRAP_SIZE, .numel = 900};
  const int saved = random_int(random, 0, 3);
  if (saved == 1) plan.saving = fsdp_saving_of_blocks();
  if (saved == 2)
    plan.saving = (fsdp_saving){.rules = {{.name = "block", .fate = FSDP_FATE_OFFLOAD}}, .count = 1};
  static const double capacities[] = {0, 0.25, 0.7, 1, 1.25, 4};
  plan.expert_capacity = capacities[random_int(random, 0, 5)];
  plan.mesh = routed_mesh(random, plan.strategy);
  add_router_losses(&of_losses, &plan);
  const int ranks = fsdp_mesh_size(&plan.mesh, FSDP_AXIS_EXPERT);
  const int held = (int)(plan.model.experts + ranks - 1) / ranks;
  plan.expert_blocks = random_int(&of_losses, 0, 2) ? random_int(&of_losses, 1, held) : 1;
  if (plan.expert_blocks > 1) plan.wrap = (fsdp_wrap_policy){.kind = FSDP_WRAP_BLOCK};
  return plan;
}

// ---- Searches

fsdp_device_profile *round_machine(double node_rate, double network_rate) {
  fsdp_device_profile *p = fsdp_device_profile_create();
  strcpy(p->name, "round");
  p->device = FSDP_OP_CUDA;
  p->processors = 100;
  p->memory_bytes = 80e9;
  p->peak_flops[FSDP_BF16] = ROUND_FLOPS;
  p->memory_rate = ROUND_MEMORY;
  p->host_memory_rate = 100e9;
  p->up_rate = p->down_rate = 25e9;
  p->launch_s = 1e-6;
  p->network_rate = network_rate;
  const fsdp_profile_product product = {0, FSDP_BF16, FSDP_PRODUCT_FORM_COUNT, 4096, 4096, 4096, ROUND_FLOPS};
  fsdp_device_profile_add(p, FSDP_PROFILE_PRODUCTS, &product);
  fsdp_profile_point rate[] = {{1024, ROUND_FLOPS / 2}};
  const fsdp_profile_attention attention = {
      .dtype = FSDP_BF16, .head_dim = 128, .direction = FSDP_ATTENTION_BOTH, .rate = {rate, 1}};
  fsdp_device_profile_add(p, FSDP_PROFILE_ATTENTION, &attention);
  for (int kind = 0; kind < FSDP_COLLECTIVE_COUNT; kind++) {
    const double share = fsdp_collective_rows[kind].passes * 7.0 / 8;
    fsdp_profile_point seconds[] = {{1e4, 1e4 * share / node_rate + 1e-6},
                                    {1e9, 1e9 * share / node_rate + 1e-6}};
    const fsdp_profile_collective collective = {
        .kind = (fsdp_collective_kind)kind, .link = FSDP_LINK_NODE, .ranks = 8, .seconds = {seconds, 2}};
    fsdp_device_profile_add(p, FSDP_PROFILE_COLLECTIVES, &collective);
  }
  return p;
}

fsdp_search_config search_on(const fsdp_device_profile *profile, const char *preset, int layers, int ranks) {
  fsdp_search_config c = {.base = {.batch = 1,
                                   .micro_batches = 1,
                                   .sequence_parallel = true,
                                   .wrap = {.kind = FSDP_WRAP_BLOCK},
                                   .prefetch = 1,
                                   .param_dtype = FSDP_BF16,
                                   .grad_clip = 1.0f,
                                   .hyper = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8f},
                                   .backend = fsdp_plan_backend_cuda()},
                          .ranks = ranks,
                          .ranks_per_node = ranks < 8 ? ranks : 8,
                          .profile = profile};
  c.base.model = model_of_preset(preset);
  if (layers) c.base.model.num_layers = layers;
  return c;
}
