// Plans against the closed formulas of the strategies' memory and traffic.
#include "models/family.h"
#include "runtime/plan/search/hints.h"
#include "tests/support/models.h"
#include "tests/support/unit_test.h"

#include <string.h>

static fsdp_plan *plan_of(fsdp_plan_config config) {
  fsdp_plan *plan = plan_of_config(&config);
  assert_true(plan->verified);
  return plan;
}

static int64_t valley(const fsdp_plan *plan) {
  return plan->memory.space[FSDP_SPACE_DEVICE].valley_bytes;
}
static int64_t peak(const fsdp_plan *plan) {
  return plan->memory.space[FSDP_SPACE_DEVICE].peak_bytes;
}

TEST(test_valley_formulas) {
  fsdp_plan_config config = even_plan_config();
  int64_t P = fsdp_model_parameter_count(&config.model);
  for (int ranks = 1; ranks <= 8; ranks *= 2) {
    config = even_plan_config();
    config.mesh = fsdp_mesh_of(1, ranks);
    fsdp_plan *plan = plan_of(config);
    assert_int_equal(valley(plan), 12 * P / ranks);
    fsdp_plan_destroy(plan);
    config.strategy = FSDP_GRAD_OP;
    config.param_dtype = FSDP_BF16;
    plan = plan_of(config);
    assert_int_equal(valley(plan), 12 * P / ranks);
    fsdp_plan_destroy(plan);
    config.master_dtype = config.moment_dtype = FSDP_BF16;
    plan = plan_of(config);
    assert_int_equal(valley(plan), 6 * P / ranks);
    fsdp_plan_destroy(plan);
    // Beside the state there are whole parameters in the dtype of compute, unless they are the masters.
    config = even_plan_config();
    config.strategy = FSDP_ZERO1;
    config.mesh = fsdp_mesh_of(1, ranks);
    plan = plan_of(config);
    assert_int_equal(valley(plan), 12 * P / ranks + (ranks > 1 ? 4 * P : 0));
    fsdp_plan_destroy(plan);
    config.param_dtype = FSDP_BF16;
    plan = plan_of(config);
    assert_int_equal(valley(plan), 12 * P / ranks + 2 * P);
    fsdp_plan_destroy(plan);
    config.master_dtype = config.moment_dtype = FSDP_BF16;
    plan = plan_of(config);
    assert_int_equal(valley(plan), 6 * P / ranks + (ranks > 1 ? 2 * P : 0));
    fsdp_plan_destroy(plan);
    config = even_plan_config();
    config.strategy = FSDP_NO;
    config.mesh = fsdp_mesh_of(ranks, 1);
    plan = plan_of(config);
    assert_int_equal(valley(plan), 12 * P);
    fsdp_plan_destroy(plan);
    config.param_dtype = FSDP_BF16;
    plan = plan_of(config);
    assert_int_equal(valley(plan), 14 * P);
    fsdp_plan_destroy(plan);
  }
}

TEST(test_offload_empties_the_device) {
  for (int strategy = FSDP_FULL; strategy <= FSDP_ZERO1; strategy++) {
    fsdp_plan_config config = even_plan_config();
    config.strategy = (fsdp_strategy)strategy;
    config.mesh = strategy == FSDP_NO       ? fsdp_mesh_of(4, 1)
                  : strategy == FSDP_HYBRID ? fsdp_mesh_of(2, 2)
                                            : config.mesh;
    config.cpu_offload = true;
    fsdp_plan *plan = plan_of(config);
    int64_t shards = fsdp_mesh_size(&config.mesh, FSDP_AXIS_FSDP);
    int64_t P = fsdp_model_parameter_count(&config.model);
    assert_int_equal(valley(plan), strategy == FSDP_ZERO1 ? 4 * P : 0);
    assert_int_equal(plan->memory.space[FSDP_SPACE_HOST].valley_bytes, 12 * P / shards);
    fsdp_plan_destroy(plan);
    config.param_dtype = FSDP_BF16; // a copy of each shard in it, or of zero1's parameters on the device
    plan = plan_of(config);
    assert_int_equal(valley(plan), strategy == FSDP_ZERO1 ? 2 * P : 0);
    assert_int_equal(plan->memory.space[FSDP_SPACE_HOST].valley_bytes,
                     (strategy == FSDP_ZERO1 ? 12 : 14) * P / shards);
    fsdp_plan_destroy(plan);
  }
}

// Bytes sent per rank in a step for micro-batches A, under `block`: every unit but embedding and head is read
// again by the backward; the root holds the final norm.
TEST(test_traffic_formulas) {
  for (int micro_batches = 1; micro_batches <= 4; micro_batches++) {
    for (int local = 0; local <= 1; local++) {
      fsdp_plan_config config = even_plan_config();
      config.micro_batches = micro_batches;
      config.accumulate = local ? FSDP_ACCUMULATE_LOCAL : FSDP_ACCUMULATE_REDUCE;
      int64_t P = fsdp_model_parameter_count(&config.model), A = micro_batches, F = 4;
      int64_t table = config.model.vocab_size * config.model.hidden_size, root = config.model.hidden_size;
      int64_t reductions = local ? 1 : A;

      fsdp_plan *plan = plan_of(config);
      assert_int_equal(plan->traffic.bytes[FSDP_ALL_GATHER],
                       (A * (2 * (P - root - 2 * table) + 2 * table) + root) * 4 / F * (F - 1));
      assert_int_equal(plan->traffic.bytes[FSDP_REDUCE_SCATTER], reductions * 4 * P / F * (F - 1));
      assert_int_equal(plan->traffic.bytes[FSDP_ALL_REDUCE], 0);
      fsdp_plan_destroy(plan);

      config.strategy = FSDP_GRAD_OP;
      config.param_dtype = FSDP_BF16;
      plan = plan_of(config);
      assert_int_equal(plan->traffic.bytes[FSDP_ALL_GATHER], 2 * P / F * (F - 1));
      assert_int_equal(plan->traffic.bytes[FSDP_REDUCE_SCATTER], reductions * 4 * P / F * (F - 1));
      fsdp_plan_destroy(plan);

      config.strategy = FSDP_ZERO1;
      plan = plan_of(config);
      assert_int_equal(plan->traffic.bytes[FSDP_ALL_GATHER], 2 * P / F * (F - 1));
      assert_int_equal(plan->traffic.bytes[FSDP_REDUCE_SCATTER], reductions * 4 * P / F * (F - 1));
      assert_int_equal(plan->traffic.bytes[FSDP_ALL_REDUCE], 0);
      fsdp_plan_destroy(plan);

      config.strategy = FSDP_NO;
      config.mesh = fsdp_mesh_of(4, 1);
      config.reduce_dtype = FSDP_BF16;
      plan = plan_of(config);
      assert_int_equal(plan->traffic.bytes[FSDP_ALL_GATHER], 0);
      assert_int_equal(plan->traffic.bytes[FSDP_REDUCE_SCATTER], 0);
      assert_int_equal(plan->traffic.bytes[FSDP_ALL_REDUCE], 2 * 2 * P * 3 / 4);
      fsdp_plan_destroy(plan);

      config = even_plan_config();
      config.micro_batches = micro_batches;
      config.accumulate = local ? FSDP_ACCUMULATE_LOCAL : FSDP_ACCUMULATE_REDUCE;
      config.strategy = FSDP_HYBRID;
      config.mesh = fsdp_mesh_of(4, 2);
      plan = plan_of(config);
      assert_int_equal(plan->traffic.bytes[FSDP_ALL_REDUCE], 2 * 4 * (P / 2) * 3 / 4);
      assert_int_equal(plan->traffic.bytes[FSDP_REDUCE_SCATTER], reductions * 4 * P / 2);
      fsdp_plan_destroy(plan);
    }
  }
}

// Bytes of the gradients that one rank sums over micro-batches: fp32, unless all that is made of them is bf16
// too, and always for more micro-batches than 8 bits can sum.
TEST(test_accumulated_gradients) {
  for (int i = 0; i < 8; i++) {
    fsdp_plan_config config = even_plan_config();
    config.mesh = fsdp_mesh_of(1, 1);
    config.param_dtype = FSDP_BF16;
    config.micro_batches = i == 7 ? 129 : 128;
    config.reduce_dtype = i == 1 ? FSDP_F32 : FSDP_BF16;
    config.master_dtype = i == 2 ? FSDP_F32 : FSDP_BF16;
    config.moment_dtype = i == 3 ? FSDP_F32 : FSDP_BF16;
    config.accumulate = i == 4 ? FSDP_ACCUMULATE_LOCAL : FSDP_ACCUMULATE_REDUCE;
    config.strategy = i == 5 ? FSDP_NO : FSDP_FULL;
    if (i == 6) fsdp_mesh_resize(&config.mesh, FSDP_AXIS_FSDP, 2); // scattered: summed in fp32 shards
    bool bf16 = i == 0 || i == 4 || i == 5;
    fsdp_plan *plan = plan_of(config);
    int64_t bytes = 0, numel = 0;
    for (int u = 0; u < plan->units->count; u++) {
      int tensor = plan->unit_state[u].grad_shard;
      if (tensor < 0) continue;
      bytes += plan->program->tensors[tensor].bytes;
      numel += plan->units->units[u].shard_numel;
    }
    assert_int_equal(bytes, numel * (bf16 ? 2 : 4));
    fsdp_plan_destroy(plan);
  }
}

// 7B under the size policy at 1e8: the published counts.
TEST(test_traffic_of_7b) {
  fsdp_plan_config config = even_plan_config();
  config.model = model_of_preset("llama2-7b");
  config.mesh = fsdp_mesh_of(1, 8);
  config.wrap = (fsdp_wrap_policy){FSDP_WRAP_SIZE, 100000000, NULL};
  fsdp_plan *plan = plan_of(config);
  int64_t P = 6738415616, table = (int64_t)32000 * 4096;
  assert_int_equal(plan->traffic.bytes[FSDP_ALL_GATHER], (2 * P - 2 * table) * 4 / 8 * 7);
  assert_int_equal(plan->traffic.bytes[FSDP_REDUCE_SCATTER], 4 * P / 8 * 7);
  assert_int_equal(valley(plan), 12 * P / 8);
  const fsdp_hints hints = fsdp_hints_of(plan);
  assert_int_equal(hints.unit, 1);
  config.wrap.kind = FSDP_WRAP_BLOCK;
  fsdp_plan *block = plan_of(config);
  assert_true(hints.saved_bytes > 0);
  assert_int_equal(hints.saved_bytes, peak(plan) - peak(block));
  fsdp_plan_destroy(block);
  fsdp_plan_destroy(plan);
}

// 7B on two replicas of four shards, by the axes that the bytes are sent over: shards and their gradients
// over fsdp, the shards' sums over data, and count, loss and norm over both.
TEST(test_traffic_of_7b_by_axes) {
  fsdp_plan_config config = even_plan_config();
  config.model = model_of_preset("llama2-7b");
  config.strategy = FSDP_HYBRID;
  config.mesh = fsdp_mesh_of(2, 4);
  fsdp_plan *plan = plan_of(config);
  int64_t P = 6738415616, table = (int64_t)32000 * 4096, norm = 4096;
  int64_t gathered = 2 * (P - 2 * table - norm) + 2 * table + norm, sum = 0;
  const fsdp_traffic *traffic = &plan->traffic;
  fsdp_axis_set data = fsdp_mesh_axes(&config.mesh, "data"), fsdp = fsdp_mesh_axes(&config.mesh, "fsdp");
  assert_int_equal(traffic->by_axes[fsdp], gathered * 4 / 4 * 3 + P * 4 / 4 * 3);
  assert_int_equal(traffic->by_axes[data], 2 * (P * 4 / 4) / 2);
  assert_int_equal(traffic->by_axes[data | fsdp], 3 * (2 * 4 * 7 / 8));
  for (size_t axes = 0; axes < sizeof traffic->by_axes / sizeof *traffic->by_axes; axes++)
    sum += traffic->by_axes[axes];
  assert_int_equal(sum, traffic->bytes[FSDP_ALL_GATHER] + traffic->bytes[FSDP_REDUCE_SCATTER] +
                            traffic->bytes[FSDP_ALL_REDUCE] + traffic->scalar_bytes);
  fsdp_plan_destroy(plan);
}

TEST(test_peaks_rank_by_strategy) {
  for (int ranks = 2; ranks <= 8; ranks *= 2) {
    int64_t peaks[4];
    const fsdp_strategy order[4] = {FSDP_FULL, FSDP_GRAD_OP, FSDP_ZERO1, FSDP_NO};
    for (int i = 0; i < 4; i++) {
      fsdp_plan_config config = even_plan_config();
      config.strategy = order[i];
      config.mesh = order[i] == FSDP_NO ? fsdp_mesh_of(ranks, 1) : fsdp_mesh_of(1, ranks);
      fsdp_plan *plan = plan_of(config);
      peaks[i] = peak(plan);
      fsdp_plan_destroy(plan);
    }
    assert_true(peaks[0] < peaks[1]);
    assert_true(peaks[1] < peaks[2]);
    assert_true(peaks[2] < peaks[3]);
  }
}

TEST(test_recompute_and_prefetch_move_the_peak) {
  fsdp_plan_config config = even_plan_config();
  config.model.num_layers = 8;
  fsdp_plan *plain = plan_of(config);
  config.saving = fsdp_saving_of_blocks();
  fsdp_plan *recomputed = plan_of(config);
  config.prefetch = 0;
  fsdp_plan *lazy = plan_of(config);
  assert_true(peak(recomputed) < peak(plain));
  assert_true(peak(lazy) < peak(recomputed));
  fsdp_plan_destroy(plain);
  fsdp_plan_destroy(recomputed);
  fsdp_plan_destroy(lazy);
}

// If the whole step is within reach, a unit that is gathered once for its forward is still there for its
// backward: each is gathered once. At depth 1 every unit but the embedding, which the backward does not read,
// and the head, whose forward is its backward, is gathered twice; so is the root, which stays gathered.
TEST(test_deep_prefetch_gathers_once) {
  fsdp_plan_config config = even_plan_config();
  fsdp_plan *shallow = plan_of(config);
  config.prefetch = 2 * shallow->units->count;
  fsdp_plan *deep = plan_of(config);
  int64_t all = 0, layers = 0;
  for (int u = 0; u < deep->units->count; u++) {
    int64_t sent = 3 * deep->units->units[u].shard_numel * 4; // fp32, to the other three ranks
    all += sent;
    if (strstr(deep->units->units[u].path, ".layers.")) layers += sent;
  }
  assert_int_equal(deep->traffic.bytes[FSDP_ALL_GATHER], all);
  assert_int_equal(shallow->traffic.bytes[FSDP_ALL_GATHER], all + layers);
  fsdp_plan_destroy(shallow);
  fsdp_plan_destroy(deep);
}

// Of a layer, in the forward or the backward: what computes with it first, and the first and the last of its
// gathers before that; -1: none.
typedef struct layer_step {
  int first_gather, last_gather, first_use;
} layer_step;

static layer_step layer_step_of(const fsdp_plan *plan, int layer, bool is_backward) {
  const fsdp_program *program = plan->program;
  const fsdp_section *section = &program->sections[0];
  const int turn = fsdp_program_backward_begin(program, section);
  layer_step step = {-1, -1, -1};
  char prefix[64];
  const size_t length = (size_t)snprintf(prefix, sizeof prefix, "model.layers.%d", layer);
  for (int i = is_backward ? turn : section->begin; i < section->end; i++) {
    const fsdp_instr *instr = &program->instrs[i];
    for (int o = 0; o < instr->operand_count; o++) {
      const fsdp_tensor *tensor = &program->tensors[program->operands[instr->first_operand + o].tensor];
      const char *end = tensor->name + length;
      if (tensor->category != FSDP_CATEGORY_GATHERED || strncmp(tensor->name, prefix, length) != 0) continue;
      if (*end != ' ' && *end != '.') continue; // of layer 10
      const bool gathers = instr->stream == FSDP_STREAM_GATHER && step.first_use < 0;
      if (gathers && step.first_gather < 0) step.first_gather = i;
      if (gathers) step.last_gather = i;
      if (instr->stream == FSDP_STREAM_COMPUTE && step.first_use < 0) step.first_use = i;
    }
    if (!is_backward && i + 1 == turn) break;
  }
  return step;
}

// A layer's units are gathered together, as many layers ahead as the depth says: with tensor parallelism,
// which makes two units of a layer (norms, products), as without.
TEST(test_prefetch_counts_layers) {
  fsdp_plan_config config = even_plan_config();
  config.model.num_layers = 8;
  for (int tensor = 1; tensor <= 2; tensor++) {
    config.mesh = (fsdp_mesh){0};
    fsdp_mesh_add(&config.mesh, "fsdp", 2);
    fsdp_mesh_add(&config.mesh, "tensor", tensor);
    fsdp_mesh_complete(&config.mesh);
    for (config.prefetch = 0; config.prefetch <= 2; config.prefetch++) {
      const int ahead = config.prefetch;
      fsdp_plan *plan = plan_of(config);
      for (int layer = ahead + 1; layer < 8; layer++) {
        const layer_step step = layer_step_of(plan, layer, false);
        assert_true(tensor == 1 || step.first_gather < step.last_gather);
        assert_true(step.last_gather < layer_step_of(plan, layer - ahead, false).first_use);
        assert_true(step.first_gather > layer_step_of(plan, layer - ahead - 1, false).first_use);
      }
      for (int layer = 0; layer + ahead < 7; layer++) {
        const layer_step step = layer_step_of(plan, layer, true);
        assert_true(tensor == 1 || step.first_gather < step.last_gather);
        assert_true(step.last_gather < layer_step_of(plan, layer + ahead, true).first_use);
        assert_true(step.first_gather > layer_step_of(plan, layer + ahead + 1, true).first_use);
      }
      fsdp_plan_destroy(plan);
    }
  }
}

TEST(test_plans_are_reproducible) {
  fsdp_plan_config config = even_plan_config();
  fsdp_plan *a = plan_of(config), *b = plan_of(config);
  assert_true(fsdp_program_hash(a->program) == fsdp_program_hash(b->program));
  fsdp_plan_destroy(b);
  config.prefetch = 2;
  b = plan_of(config);
  assert_true(fsdp_program_hash(a->program) != fsdp_program_hash(b->program));
  fsdp_plan_destroy(a);
  fsdp_plan_destroy(b);
}

// Each element counts once in the norm: a unit's squares are weighted by its replicas before they are summed
// over all ranks, and the clip factor takes the sum as it is.
TEST(test_norm_weights) {
  for (int replicas = 1; replicas <= 3; replicas++) {
    fsdp_plan_config config = even_plan_config();
    config.strategy = FSDP_HYBRID;
    config.mesh = fsdp_mesh_of(replicas, 2);
    fsdp_plan *plan = plan_of(config);
    int parts = 0;
    for (int i = 0; i < plan->program->instr_count; i++) {
      const fsdp_instr *instr = &plan->program->instrs[i];
      if (instr->kind != FSDP_INSTR_OP || instr->op != FSDP_OP_SUM_SQUARES) continue;
      assert_true(instr->attrs.norm_weight == 1.0f / (float)replicas);
      parts++;
    }
    assert_int_equal(parts * 3, fsdp_plan_digest_count(plan));
    fsdp_plan_destroy(plan);
  }
}

TEST(test_strategies_refuse_meshes) {
  const struct {
    fsdp_strategy strategy;
    fsdp_mesh mesh;
  } cases[] = {
      {FSDP_FULL, fsdp_mesh_of(2, 2)}, {FSDP_GRAD_OP, fsdp_mesh_of(4, 1)}, {FSDP_NO, fsdp_mesh_of(1, 4)}};
  for (int i = 0; i < 3; i++) {
    fsdp_plan_config config = even_plan_config();
    config.strategy = cases[i].strategy;
    config.mesh = cases[i].mesh;
    fsdp_plan *plan = NULL;
    fsdp_error error = {0};
    assert_int_equal(fsdp_plan_create(&config, &plan, &error), FSDP_ERR_OPTION);
    assert_non_null(strstr(error.message, "--mesh"));
  }
}

// The family of the other tests, with one thing more that its graph or its configuration says.
static const fsdp_family *base_family;
static void build_frozen(const fsdp_model_config *config, fsdp_graph *graph) {
  base_family->build(config, graph);
  for (int p = 0; p < graph->param_count; p++) graph->params[p].trainable = false;
}

TEST(test_what_no_op_can_do_is_refused) {
  fsdp_plan_config config = even_plan_config();
  base_family = config.model.family;
  fsdp_family frozen = *base_family, learned = *base_family;
  frozen.build = build_frozen;
  learned.learned_positions = true;
  config.model.max_position_embeddings = config.seq - 1;
  const struct {
    const fsdp_family *family;
    fsdp_status status;
    const char *parts[2];
  } cases[] = {{base_family, FSDP_OK, {"", ""}},
               {&frozen, FSDP_ERR_INPUT, {"no parameter", "trains"}},
               {&learned, FSDP_ERR_OPTION, {"--seq-length 32", "31 learned positions"}}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    fsdp_plan *plan = NULL;
    fsdp_error error = {0};
    config.model.family = cases[i].family;
    assert_int_equal(fsdp_plan_create(&config, &plan, &error), cases[i].status);
    for (int p = 0; p < 2; p++) assert_non_null(strstr(error.message, cases[i].parts[p]));
    fsdp_plan_destroy(plan);
  }
  config.model.max_position_embeddings = config.seq;
  fsdp_plan_destroy(plan_of(config)); // as many positions as tokens
}

// The head's chunks follow the device and the dtype of its weight's gradient, and the planned workspace
// follows the chunks; on a GPU it holds the loss of each row too. There are 1024 chunks at most.
TEST(test_workspace_of_the_head) {
  assert_int_equal(fsdp_op_chunk_rows(FSDP_OP_CUDA, 1 << 20, 2, FSDP_F32), 1024);
  assert_int_equal(fsdp_op_chunk_rows(FSDP_OP_CUDA, 1 << 24, 2, FSDP_F32), 16384);
  assert_int_equal(fsdp_op_chunk_rows(FSDP_OP_CPU, (1 << 20) + 1, 32000, FSDP_F32), 1025);
  const struct {
    const fsdp_plan_backend *backend;
    fsdp_dtype reduce_dtype;
    int64_t chunk_rows, losses_bytes;
  } cases[] = {{fsdp_plan_backend_cpu(), FSDP_F32, 256, 0},
               {fsdp_plan_backend_cpu(), FSDP_BF16, 8192 / 4, 0},
               {fsdp_plan_backend_cuda(), FSDP_F32, 524, 4 * 8192},
               {fsdp_plan_backend_cuda(), FSDP_BF16, 8192 / 4, 4 * 8192}};
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    fsdp_plan_config config = even_plan_config();
    config.batch = 4, config.seq = 2048;
    config.model.vocab_size = 32000;
    config.backend = cases[c].backend;
    config.reduce_dtype = cases[c].reduce_dtype;
    fsdp_plan *plan = plan_of(config);
    const fsdp_program *program = plan->program;
    int heads = 0;
    for (int i = 0; i < program->instr_count; i++) {
      const fsdp_instr *instr = &program->instrs[i];
      if (instr->kind != FSDP_INSTR_OP || instr->op != FSDP_OP_LINEAR_CROSS_ENTROPY_BACKWARD) continue;
      const fsdp_operand *operands = &program->operands[instr->first_operand];
      heads++;
      assert_int_equal(operands[6].dtype, config.reduce_dtype);
      assert_int_equal(instr->attrs.chunk_rows, cases[c].chunk_rows);
      assert_int_equal(operands[7].size_bytes, 4 * cases[c].chunk_rows * 32000 + cases[c].losses_bytes);
    }
    assert_int_equal(heads, 1);
    fsdp_plan_destroy(plan);
  }
}

// How many blocks share a group's heads follows from the GPU, and the planned workspace follows from that.
TEST(test_workspace_of_attention) {
  const struct {
    fsdp_dtype dtype;
    int multiprocessors;
    int64_t head_parts;
  } cases[] = {{FSDP_BF16, 132, 4}, {FSDP_BF16, 16, 2}, {FSDP_BF16, 8, 1}, {FSDP_F32, 132, 1}};
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    fsdp_plan_config config = even_plan_config();
    config.batch = 1, config.seq = 2048;
    config.model.hidden_size = 256, config.model.num_heads = 8;
    config.model.num_kv_heads = 2;
    config.backend = fsdp_plan_backend_cuda();
    config.param_dtype = cases[c].dtype;
    config.gpu.multiprocessors = cases[c].multiprocessors;
    config.gpu.capability = 90;
    fsdp_plan *plan = plan_of(config);
    const fsdp_program *program = plan->program;
    int found = 0;
    for (int i = 0; i < program->instr_count; i++) {
      const fsdp_instr *instr = &program->instrs[i];
      if (instr->kind != FSDP_INSTR_OP || instr->op != FSDP_OP_ATTENTION_BACKWARD) continue;
      const fsdp_operand *operands = &program->operands[instr->first_operand];
      const int64_t parts = cases[c].head_parts, columns = 2 * 2 * 32;
      found++;
      assert_int_equal(instr->attrs.head_parts, parts);
      assert_int_equal(operands[5].size_bytes, 4 * 2048 * (8 + (parts > 1 ? parts * columns : 0)));
    }
    assert_true(found > 0);
    fsdp_plan_destroy(plan);
  }
}

// Attention's backward does rope_backward's work where its kernel can: tensor cores, heads that fill a tile.
TEST(test_rotation_by_attention) {
  const struct {
    const fsdp_plan_backend *backend;
    fsdp_dtype dtype;
    int64_t head_dim;
    bool together;
  } cases[] = {{fsdp_plan_backend_cuda(), FSDP_BF16, 64, true},
               {fsdp_plan_backend_cuda(), FSDP_BF16, 128, true},
               {fsdp_plan_backend_cuda(), FSDP_BF16, 96, false},
               {fsdp_plan_backend_cuda(), FSDP_F32, 64, false},
               {fsdp_plan_backend_cpu(), FSDP_BF16, 64, false}};
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    fsdp_plan_config config = even_plan_config();
    config.model.head_dim = cases[c].head_dim;
    config.backend = cases[c].backend;
    config.param_dtype = cases[c].dtype;
    fsdp_plan *plan = plan_of(config);
    const fsdp_program *program = plan->program;
    int attention = 0, rope = 0;
    for (int i = 0; i < program->instr_count; i++) {
      const fsdp_instr *instr = &program->instrs[i];
      if (instr->kind != FSDP_INSTR_OP) continue;
      rope += instr->op == FSDP_OP_ROPE_BACKWARD;
      if (instr->op != FSDP_OP_ATTENTION_BACKWARD) continue;
      attention++;
      assert_int_equal(instr->attrs.rotates_back, cases[c].together);
      if (cases[c].together) assert_non_null(instr->attrs.inv_freq);
    }
    assert_int_equal(rope, cases[c].together ? 0 : attention);
    assert_true(attention >= 3);
    fsdp_plan_destroy(plan);
  }
}
