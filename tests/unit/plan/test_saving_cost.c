// The cost of what is recomputed and offloaded, against the instructions of whole programs and closed
// formulas.
#include "runtime/plan/plan.h"
#include "runtime/plan/program/saving_cost.h"
#include "tests/support/cases.h"
#include "tests/support/models.h"
#include "tests/support/random_plan.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PROGRAMS       150
#define FLOPS_PER_BYTE 7.0 // below that of some of the gemms here, above that of others

static fsdp_plan_config base_config(void) {
  return (fsdp_plan_config){.model = {.family = family_of_preset("tiny"),
                                      .vocab_size = 256,
                                      .hidden_size = 128,
                                      .intermediate_size = 384,
                                      .num_layers = 4,
                                      .num_heads = 4,
                                      .num_kv_heads = 2,
                                      .head_dim = 32,
                                      .norm_eps = 1e-5,
                                      .rope_theta = 1e4},
                            .batch = 2,
                            .seq = 24,
                            .micro_batches = 1,
                            .mesh = fsdp_mesh_of(1, 2),
                            .wrap = {.kind = FSDP_WRAP_BLOCK},
                            .prefetch = 1,
                            .grad_clip = 1.0f,
                            .backend = fsdp_plan_backend_cpu()};
}

static fsdp_op_work instr_work(const fsdp_program *program, const fsdp_instr *instr) {
  fsdp_op_extent extents[FSDP_OP_MAX_OPERANDS];
  for (int o = 0; o < instr->operand_count; o++) {
    const fsdp_operand *operand = &program->operands[instr->first_operand + o];
    extents[o] = (fsdp_op_extent){operand->dtype, operand->access, operand->size_bytes};
  }
  return fsdp_op_work_of(instr->op, &instr->attrs, extents, instr->operand_count);
}

// The forward ops in the backward of a section.
static fsdp_repeated_work work_in_section(const fsdp_program *program, const fsdp_section *section) {
  fsdp_repeated_work sum = {0};
  bool is_backward = false;
  for (int p = section->begin; p < section->end; p++) {
    const fsdp_instr *instr = &program->instrs[p];
    if (instr->kind != FSDP_INSTR_OP) continue;
    is_backward = is_backward || fsdp_op_phase_of(instr->op) == FSDP_OP_IN_BACKWARD;
    if (!is_backward || fsdp_op_phase_of(instr->op) != FSDP_OP_IN_FORWARD) continue;
    fsdp_op_work work = instr_work(program, instr);
    sum.flops += work.flops;
    sum.bytes += work.bytes;
    sum.time += fmax(work.bytes, work.flops / FLOPS_PER_BYTE);
  }
  return sum;
}

// Bytes that cross the host link on a stream in a section.
static int64_t bytes_on_stream(const fsdp_program *program, const fsdp_section *section, fsdp_stream stream) {
  int64_t bytes = 0;
  for (int p = section->begin; p < section->end; p++)
    if (program->instrs[p].stream == stream)
      bytes += program->operands[program->instrs[p].first_operand].size_bytes;
  return bytes;
}

// One gemm per linear layer if `is_joined`: then bytes and time are equal too.
static void check_plan(const fsdp_plan *plan, bool is_joined) {
  fsdp_dtype dtype = plan->config.param_dtype;
  fsdp_saved saved = fsdp_saved_create(plan->graph);
  fsdp_repeated_work whole = fsdp_saving_repeated_work(plan->graph, plan->fates, -1, dtype, FLOPS_PER_BYTE);
  int64_t offloaded = fsdp_saving_bytes(plan->graph, &saved, plan->fates, FSDP_FATE_OFFLOAD, -1, dtype);
  for (int s = 0; s < plan->program->section_count; s++) {
    const fsdp_section *section = &plan->program->sections[s];
    if (section->kind >= FSDP_SECTION_UPDATE) continue;
    fsdp_repeated_work found = work_in_section(plan->program, section);
    assert_true(found.flops == whole.flops);
    assert_true(found.bytes >= whole.bytes && found.time >= whole.time);
    if (is_joined)
      assert_true(found.bytes == whole.bytes && fabs(found.time - whole.time) <= 1e-9 * found.time);
    assert_int_equal(bytes_on_stream(plan->program, section, FSDP_STREAM_SAVE), offloaded);
    assert_int_equal(bytes_on_stream(plan->program, section, FSDP_STREAM_LOAD), offloaded);
  }
  // The layers together are the whole.
  fsdp_repeated_work sum = {0};
  int64_t bytes = 0;
  for (int layer = 0; layer < plan->graph->block_count; layer++) {
    fsdp_repeated_work one =
        fsdp_saving_repeated_work(plan->graph, plan->fates, layer, dtype, FLOPS_PER_BYTE);
    sum.flops += one.flops;
    sum.bytes += one.bytes;
    bytes += fsdp_saving_bytes(plan->graph, &saved, plan->fates, FSDP_FATE_OFFLOAD, layer, dtype);
  }
  assert_true(sum.flops == whole.flops && sum.bytes == whole.bytes && bytes == offloaded);
  fsdp_saved_release(&saved);
}

TEST(test_against_programs) {
  static const char *const choices[][2] = {{"none", "none"},
                                           {"block", "none"},
                                           {"block", "block_inputs"},
                                           {"block:2,swiglu", "attention,residual"},
                                           {"rmsnorm,swiglu", "residual@3"},
                                           {"linear:q_proj,rmsnorm:input_layernorm", "block"},
                                           {"linear,residual", "none"},
                                           {"attention@1", "linear:up_proj"}};
  for (size_t i = 0; i < sizeof choices / sizeof *choices; i++)
    for (int dtype = FSDP_F32; dtype <= FSDP_BF16; dtype++) {
      fsdp_plan_config config = base_config();
      config.param_dtype = (fsdp_dtype)dtype;
      config.micro_batches = 1 + (int)(i % 3);
      fsdp_plan *plan = plan_of_saving(config, choices[i][0], choices[i][1]);
      check_plan(plan, true);
      fsdp_plan_destroy(plan);
    }
}

TEST(test_against_random_programs) {
  for (int seed = cases_begin(PROGRAMS); cases_run(__func__, seed); seed++) {
    random_source random = {.seed = 4000000 + (uint64_t)seed};
    fsdp_plan_config config = random_plan_config(&random);
    // Prices are of ops: no collective is repeated.
    fsdp_mesh_resize(&config.mesh, FSDP_AXIS_TENSOR, 1);
    fsdp_mesh_resize(&config.mesh, FSDP_AXIS_CONTEXT, 1);
    fsdp_plan *plan;
    fsdp_error error;
    if (fsdp_plan_create(&config, &plan, &error) != FSDP_OK) fail_msg("%d: %s", seed, error.message);
    check_plan(plan, false);
    fsdp_plan_destroy(plan);
  }
}

// B x T = n rows of C channels, H heads of D, G of keys and values, F the intermediate size.
enum { B = 2, T = 24, N = B * T, C = 128, H = 4, G = 2, D = 32, F = 384, L = 4 };

// A layer recomputed whole repeats all but its last product, whose output only the next layer's sum reads.
TEST(test_block_formula) {
  fsdp_plan *plan = plan_of_saving(base_config(), "block:3", "none");
  fsdp_repeated_work work = fsdp_saving_repeated_work(plan->graph, plan->fates, -1, FSDP_F32, FLOPS_PER_BYTE);
  double products = 2.0 * N * C * ((H + 2 * G) * D + H * D + 2 * F);
  double attention = 2 * 2.0 * B * H * D * (T * (T + 1) / 2.0); // causal pairs, with k and with v
  assert_true(work.flops == 3 * (products + attention));
  fsdp_saved saved = fsdp_saved_create(plan->graph);
  int64_t entering = (int64_t)N * C;
  int64_t inside = (int64_t)N * (2 * (C + 1) + C + (H + 2 * G) * D + H * D + H + 2 * F + F);
  assert_int_equal(fsdp_saving_bytes(plan->graph, &saved, plan->fates, FSDP_FATE_RECOMPUTE, -1, FSDP_F32),
                   4 * 3 * inside);
  assert_int_equal(fsdp_saving_bytes(plan->graph, &saved, plan->fates, FSDP_FATE_KEEP, -1, FSDP_F32),
                   4 * (L * entering + inside));
  assert_int_equal(fsdp_saving_bytes(plan->graph, &saved, plan->fates, FSDP_FATE_KEEP, 1, FSDP_F32),
                   4 * entering);
  fsdp_saved_release(&saved);
  fsdp_plan_destroy(plan);
}

// The entry of `saved` in `layer` with this name.
static int find(const fsdp_saved *saved, int layer, const char *name) {
  for (int i = 0; i < saved->count; i++)
    if (saved->values[i].layer == layer && strcmp(saved->values[i].name, name) == 0 &&
        !saved->values[i].is_layer_input)
      return i;
  fail_msg("no %s in layer %d", name, layer);
  return -1;
}

static double remake_time(const fsdp_plan *plan, const char *name) {
  fsdp_saved saved = fsdp_saved_create(plan->graph);
  double time = fsdp_saving_remake_time(plan->graph, &saved, find(&saved, 1, name), plan->fates, FSDP_F32,
                                        FLOPS_PER_BYTE);
  fsdp_saved_release(&saved);
  return time;
}

// Sets the fate of what layer 1 saves of `module`'s op.
static void set_fate(fsdp_plan *plan, const char *module, fsdp_fate fate) {
  fsdp_saved saved = fsdp_saved_create(plan->graph);
  for (int i = 0; i < saved.count; i++)
    if (saved.values[i].layer == 1 && fsdp_saved_is_of(plan->graph, &saved.values[i], module))
      plan->fates[saved.values[i].value] = fate;
  fsdp_saved_release(&saved);
}

TEST(test_remake_time) {
  double norm = 4.0 * (2 * N * C + C + N), swiglu = 4.0 * 3 * N * F;
  double gate_up = 2.0 * N * C * 2 * F / FLOPS_PER_BYTE; // the gemm moves fewer bytes than that
  fsdp_plan *plan = plan_of_saving(base_config(), "none", "block");
  assert_true(remake_time(plan, "rmsnorm") == norm); // y and rstd come of one repetition
  assert_true(remake_time(plan, "swiglu") == swiglu);
  // The gemm makes the sum and moves fewer bytes than that; its norm is made again with it.
  assert_true(remake_time(plan, "residual") == norm + 2.0 * N * C * H * D / FLOPS_PER_BYTE);
  fsdp_saved saved = fsdp_saved_create(plan->graph);
  for (int i = 0; i < saved.count; i++) {
    double time = fsdp_saving_remake_time(plan->graph, &saved, i, plan->fates, FSDP_F32, FLOPS_PER_BYTE);
    if (saved.values[i].is_layer_input) assert_true(isinf(time)); // it is never recomputed
    if (saved.values[i].layer == 1 && fsdp_saved_is_of(plan->graph, &saved.values[i], "up_proj"))
      assert_true(time == gate_up);
  }
  fsdp_saved_release(&saved);
  // What it is made of is remade anyway, for its own backward.
  set_fate(plan, "up_proj", FSDP_FATE_RECOMPUTE);
  assert_true(remake_time(plan, "swiglu") == swiglu);
  fsdp_plan_destroy(plan);
}

// A rank's experts are sent as many rows as it has slots, though there is room for all that they can be sent.
TEST(test_routed_rows) {
  for (int expert = 1; expert <= 4; expert *= 2)
    for (int blocks = 1; blocks <= 2; blocks++) {
      fsdp_plan_config config = base_config();
      const fsdp_model_config *m = &config.model;
      config.model = model_of_preset("tiny-qwen3-moe");
      fsdp_mesh_resize(&config.mesh, FSDP_AXIS_EXPERT, expert);
      config.expert_blocks = blocks;
      fsdp_plan *plan = plan_of_saving(config, "expert_swiglu", "none");
      const fsdp_repeated_work work =
          fsdp_saving_repeated_work(plan->graph, plan->fates, 1, FSDP_F32, FLOPS_PER_BYTE);
      // Gate, up and their product of each row; of each block, the weight and the place of every slot that
      // the ranks gathered, and where experts begin.
      const int64_t rows = N * m->expert_slots, slots = expert * rows, begins = m->experts / expert + 1;
      const int64_t items = 3 * rows * m->expert_size + blocks * (2 * slots + begins);
      assert_true(work.bytes == (double)(4 * items));
      fsdp_plan_destroy(plan);
    }
}

// An H100's gemms by its data sheet, its memory and its link to the host as measured.
TEST(test_nominal_ratios) {
  const fsdp_plan_backend *gpu = fsdp_plan_backend_cuda(), *cpu = fsdp_plan_backend_cpu();
  assert_true(fabs(gpu->flops_per_byte - 989e12 / 2573e9) < 1e-9);
  assert_true(fabs(gpu->link_ratio - 2573e9 / 55.43e9) < 1e-9);
  assert_true(cpu->flops_per_byte == 8 && cpu->link_ratio == 1);
}
