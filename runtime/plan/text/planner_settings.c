#include "runtime/plan/text/planner_settings.h"

#include "runtime/base/check.h"
#include "runtime/base/nearest.h"
#include "runtime/plan/text/value.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef enum setting_kind {
  WHOLE, // int64_t
  INT,
  SIZE, // int64_t
  REAL,
  SHARE,
  FLAG,
  WORD, // an enum, or an int
  TEXT
} setting_kind;

typedef struct setting {
  const char *name;
  setting_kind kind;
  size_t offset;
  const char *form; // what a message says of its values
  int64_t low, high;
  const fsdp_choice *words;
  int fixes; // the fsdp_search_field that it fixes, -1: none
} setting;

#define AT(field)                        .offset = offsetof(fsdp_settings, field)
#define RANGE(from, to)                  .low = (from), .high = (to), .form = "a whole number"
#define WHOLE_OF(field, from, to)        .kind = WHOLE, AT(field), RANGE(from, to)
#define INT_OF(field, from, to)          .kind = INT, AT(field), RANGE(from, to)
#define SIZE_OF(field)                   .kind = SIZE, AT(field), .form = "a size such as 80GB"
#define FLAG_OF(field)                   .kind = FLAG, AT(field), .form = "on or off"
#define WORD_OF(field, choices, allowed) .kind = WORD, AT(field), .words = (choices), .form = (allowed)
#define TEXT_OF(field, of)               .kind = TEXT, AT(field), .form = (of)
#define RANKS_MAX                        1000000

static const fsdp_choice backends[] = {
    {"cpu", FSDP_OP_CPU, NULL}, {"cuda", FSDP_OP_CUDA, "gpu"}, {"auto", -1, NULL}, {NULL, 0, NULL}};

static const setting table[] = {
    {"ranks", WHOLE_OF(ranks, 1, RANKS_MAX), .fixes = -1},
    {"ranks-per-node", WHOLE_OF(ranks_per_node, 1, RANKS_MAX), .fixes = -1},
    {"mesh", TEXT_OF(mesh, "axes with sizes, as in data=2,fsdp=4"), .fixes = FSDP_SEARCH_MESH},
    {"tensor-parallel", WHOLE_OF(tensor_parallel, 1, RANKS_MAX), .fixes = -1},
    {"context-parallel", WHOLE_OF(context_parallel, 1, RANKS_MAX), .fixes = -1},
    {"expert-parallel", WHOLE_OF(expert_parallel, 1, RANKS_MAX), .fixes = -1},
    {"sequence-parallel", FLAG_OF(plan.sequence_parallel), .fixes = FSDP_SEARCH_SEQUENCE_PARALLEL},
    {"batch-size", WHOLE_OF(plan.batch, 1, 1000000), .fixes = FSDP_SEARCH_BATCH},
    {"seq-length", WHOLE_OF(plan.seq, 1, 1 << 24), .fixes = -1},
    {"grad-accum", INT_OF(plan.micro_batches, 1, 1000000), .fixes = FSDP_SEARCH_MICRO_BATCHES},
    {"global-batch", WHOLE_OF(global_batch, 1, INT32_MAX), .fixes = -1},
    {"strategy", WORD_OF(plan.strategy, fsdp_strategy_words, "one of full, grad_op, zero1, no and hybrid"),
     .fixes = FSDP_SEARCH_STRATEGY},
    {"wrap", TEXT_OF(wrap, "one of size, block, none and module:NAME,..."), .fixes = FSDP_SEARCH_WRAP},
    {"numel-to-wrap", WHOLE_OF(plan.wrap.numel, 1, INT64_MAX), .fixes = FSDP_SEARCH_WRAP},
    {"prefetch", INT_OF(plan.prefetch, 0, 1000), .fixes = FSDP_SEARCH_PREFETCH},
    {"accumulate", WORD_OF(plan.accumulate, fsdp_accumulate_words, "reduce or local"),
     .fixes = FSDP_SEARCH_ACCUMULATE},
    {"recompute", TEXT_OF(recompute, "none, block, block:K or ops"), .fixes = FSDP_SEARCH_RECOMPUTE},
    {"offload-activations", TEXT_OF(offload_activations, "none, block_inputs or ops"),
     .fixes = FSDP_SEARCH_OFFLOAD_ACTIVATIONS},
    {"cpu-offload", FLAG_OF(plan.cpu_offload), .fixes = FSDP_SEARCH_CPU_OFFLOAD},
    {"param-dtype", WORD_OF(plan.param_dtype, fsdp_dtype_words, "bf16 or fp32"), .fixes = -1},
    {"reduce-dtype", WORD_OF(plan.reduce_dtype, fsdp_dtype_words, "bf16 or fp32"), .fixes = -1},
    {"master-dtype", WORD_OF(plan.master_dtype, fsdp_dtype_words, "bf16 or fp32"), .fixes = -1},
    {"moment-dtype", WORD_OF(plan.moment_dtype, fsdp_dtype_words, "bf16 or fp32"), .fixes = -1},
    {"expert-blocks", INT_OF(plan.expert_blocks, 1, 1 << 16), .fixes = FSDP_SEARCH_EXPERT_BLOCKS},
    {"expert-capacity", .kind = REAL, AT(plan.expert_capacity), .form = "a number from 0 on", .fixes = -1},
    {"grad-clip", .kind = REAL, AT(grad_clip), .form = "a number from 0 on", .fixes = -1},
    {"backend", WORD_OF(backend, backends, "cpu, cuda or auto"), .fixes = -1},
    {"memory-limit", SIZE_OF(plan.limits.bytes[FSDP_SPACE_DEVICE]), .fixes = -1},
    {"host-memory-limit", SIZE_OF(plan.limits.bytes[FSDP_SPACE_HOST]), .fixes = -1},
    {"memory-margin", .kind = SHARE, AT(memory_margin), .form = "a share below 1, as in 3%", .fixes = -1},
};
enum { COUNT = sizeof table / sizeof *table };

static char *copy_of(const char *text) {
  char *copy = strdup(text);
  FSDP_NEED_MEMORY(copy, "a setting");
  return copy;
}

fsdp_settings fsdp_settings_create(void) {
  return (fsdp_settings){
      .plan = {.batch = 1,
               .seq = 1024,
               .micro_batches = 1,
               .strategy = FSDP_FULL,
               .sequence_parallel = true,
               .expert_blocks = 1,
               .wrap.numel = 100000000,
               .prefetch = 1,
               .param_dtype = FSDP_DTYPE_COUNT,
               .hyper = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8F, .weight_decay = 0.01F}},
      .ranks = 1,
      .tensor_parallel = 1,
      .context_parallel = 1,
      .expert_parallel = 1,
      .backend = -1,
      .grad_clip = 1,
      .memory_margin = -1,
      .wrap = copy_of("size"),
      .recompute = copy_of("none"),
      .offload_activations = copy_of("none")};
}

void fsdp_settings_release(fsdp_settings *settings) {
  free(settings->mesh);
  free(settings->wrap);
  free(settings->recompute);
  free(settings->offload_activations);
}

// Whether a text is of its setting's form; lists of what is saved are read with the model.
static bool is_text(const setting *row, const char *text) {
  if (row->fixes == FSDP_SEARCH_MESH) return fsdp_value_mesh(text, &(fsdp_mesh){0});
  if (row->fixes == FSDP_SEARCH_WRAP) return fsdp_value_wrap(text, &(fsdp_wrap_policy){0});
  return strcmp(text, "auto") != 0;
}

static bool read_value(const setting *row, const char *text, fsdp_settings *settings) {
  void *field = (char *)settings + row->offset;
  int64_t whole;
  double real;
  switch (row->kind) {
  case WHOLE:
  case INT:
    if (!fsdp_value_int(text, &whole) || whole < row->low || whole > row->high) return false;
    if (row->kind == INT)
      *(int *)field = (int)whole;
    else
      *(int64_t *)field = whole;
    return true;
  case SIZE:
    if (!fsdp_value_size(text, &whole) || whole < 1) return false;
    *(int64_t *)field = whole;
    return true;
  case REAL:
  case SHARE:
    if (!(row->kind == REAL ? fsdp_value_real : fsdp_value_share)(text, &real) || real < 0) return false;
    if (row->kind == SHARE && real >= 1) return false;
    *(double *)field = real;
    return true;
  case FLAG:
    return fsdp_value_flag(text, field);
  case WORD:
    return fsdp_value_choice(text, row->words, field);
  case TEXT:
    if (!is_text(row, text)) return false;
    free(*(char **)field);
    *(char **)field = copy_of(text);
    return true;
  }
  return false;
}

fsdp_status fsdp_settings_set(fsdp_settings *settings, const char *name, const char *text,
                              fsdp_error *error) {
  const char *names[COUNT];
  for (int i = 0; i < COUNT; i++) {
    names[i] = table[i].name;
    if (strcmp(name, table[i].name) != 0) continue;
    if (!read_value(&table[i], text, settings))
      return fsdp_fail(error, FSDP_ERR_OPTION, "%s '%.200s': give %s", name, text, table[i].form);
    if (table[i].fixes >= 0) settings->fixed[table[i].fixes] = true;
    return FSDP_OK;
  }
  char question[FSDP_NEAREST_TEXT];
  return fsdp_fail(error, FSDP_ERR_OPTION, "unknown setting '%.100s'%s; runtime/plan/fsdp_plan.h lists them",
                   name, fsdp_nearest_question(name, names, COUNT, question));
}

int fsdp_settings_ranks_per_node(const fsdp_settings *settings) {
  if (settings->ranks_per_node) return (int)settings->ranks_per_node;
  return settings->ranks < 8 ? (int)settings->ranks : 8;
}

fsdp_status fsdp_settings_mesh(const fsdp_settings *settings, fsdp_mesh *mesh, fsdp_error *error) {
  const struct {
    const char *axis;
    int64_t size;
  } inner[] = {{FSDP_AXIS_CONTEXT, settings->context_parallel},
               {FSDP_AXIS_EXPERT, settings->expert_parallel},
               {FSDP_AXIS_TENSOR, settings->tensor_parallel}};
  const int64_t replica = settings->tensor_parallel * settings->context_parallel * settings->expert_parallel,
                left = settings->ranks / replica;
  const int node = fsdp_settings_ranks_per_node(settings);
  int64_t shards = left;
  bool possible = true;
  *mesh = (fsdp_mesh){0};
  if (settings->mesh) {
    fsdp_value_mesh(settings->mesh, mesh);
  } else {
    if (settings->plan.strategy == FSDP_NO) shards = 1;
    if (settings->plan.strategy == FSDP_HYBRID) shards = node > replica ? node / replica : 1;
    possible = left > 0 && left % shards == 0 && fsdp_mesh_add(mesh, FSDP_AXIS_DATA, (int)(left / shards)) &&
               fsdp_mesh_add(mesh, FSDP_AXIS_FSDP, (int)shards);
  }
  for (int i = 0; i < 3 && possible; i++)
    if (inner[i].size > 1 && fsdp_mesh_find(mesh, inner[i].axis) < 0)
      possible = fsdp_mesh_add(mesh, inner[i].axis, (int)inner[i].size);
  if (possible) fsdp_mesh_complete(mesh);
  if (possible && fsdp_mesh_ranks(mesh) == settings->ranks) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_OPTION,
                   "ranks %lld with tensor-parallel %lld, context-parallel %lld, expert-parallel %lld and "
                   "mesh %s: no such mesh; give "
                   "sizes whose product is the number of ranks",
                   (long long)settings->ranks, (long long)settings->tensor_parallel,
                   (long long)settings->context_parallel, (long long)settings->expert_parallel,
                   settings->mesh ? settings->mesh : "not set");
}
