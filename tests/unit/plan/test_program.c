// The step program: lists, lifetimes, order of issue, hash and print.
#include "runtime/base/check.h"
#include "runtime/plan/memory/memory.h"
#include "runtime/plan/proof/waits.h"
#include "tests/support/cases.h"
#include "tests/support/random_program.h"
#include "tests/support/unit_test.h"

#include <stdlib.h>
#include <string.h>

// The sections of a step, and those of the kinds from FSDP_SECTION_EVALUATION on whose bit is in `beside`.
static fsdp_program *sections_program(int micro_batches, unsigned beside) {
  fsdp_program *program = fsdp_program_create();
  program->micro_batches = micro_batches;
  const bool of_step[] = {micro_batches == 1, micro_batches > 1, micro_batches > 2, micro_batches > 1, true};
  for (int kind = 0; kind < FSDP_SECTION_KIND_COUNT; kind++) {
    if (kind < FSDP_SECTION_EVALUATION ? !of_step[kind] : !(beside >> (kind - FSDP_SECTION_EVALUATION) & 1))
      continue;
    fsdp_program_begin_section(program, (fsdp_section_kind)kind);
    fsdp_program_instr(program, &(fsdp_instr){.unit = -1, .module = -1, .policy = -1}, NULL, 0);
    fsdp_program_end_section(program);
  }
  return program;
}

// The order as letters: o f m l u; E C S X beside steps.
static void spell(const fsdp_program *program, const int *order, int count, char *out) {
  static const char letters[FSDP_SECTION_KIND_COUNT + 1] = "ofmluECSX";
  for (int i = 0; i < count; i++) out[i] = letters[program->sections[order[i]].kind];
  out[count] = 0;
}

TEST(test_step_order) {
  const struct {
    int micro_batches;
    const char *order;
  } cases[] = {{1, "ou"}, {2, "flu"}, {3, "fmlu"}, {4, "fmmlu"}, {7, "fmmmmmlu"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    fsdp_program *program = sections_program(cases[i].micro_batches, 15);
    int order[16];
    char text[16];
    spell(program, order, fsdp_program_step_order(program, order), text);
    assert_string_equal(text, cases[i].order);
    fsdp_program_destroy(program);
  }
}

// Every seam of a step with itself, and every two of (step, sections beside it) one after the other.
TEST(test_seam_order) {
  for (int micro_batches = 1; micro_batches <= 9; micro_batches++) {
    for (unsigned beside = 0; beside < 16; beside++) {
      fsdp_program *program = sections_program(micro_batches, beside);
      int order[FSDP_SEAM_RUNS_MAX], count = fsdp_program_seam_order(program, 3, order);
      assert_true(count < FSDP_SEAM_RUNS_MAX);
      char text[FSDP_SEAM_RUNS_MAX + 1];
      spell(program, order, count, text);
      const char *seams[] = {micro_batches == 1 ? "ouou" : "luf", micro_batches == 1 ? "ou" : "lu",
                             micro_batches == 2 ? "fl" : "",      micro_batches > 2 ? "fm" : "",
                             micro_batches > 3 ? "mm" : "",       micro_batches > 4 ? "mmm" : "",
                             micro_batches > 2 ? "ml" : ""};
      for (size_t i = 0; i < sizeof seams / sizeof seams[0]; i++) assert_non_null(strstr(text, seams[i]));
      if (micro_batches == 3) assert_null(strstr(text, "mm"));
      const char first = micro_batches == 1 ? 'o' : 'f', letters[] = "ECSX";
      for (int a = 0; a < 4; a++) {
        bool present = beside >> a & 1;
        assert_int_equal(strchr(text, letters[a]) != NULL, present);
        if (!present) continue;
        assert_non_null(strstr(text, (char[]){'u', letters[a], 0}));
        assert_non_null(strstr(text, (char[]){letters[a], first, 0}));
        for (int b = 0; b < 4; b++)
          if (beside >> b & 1) assert_non_null(strstr(text, (char[]){letters[a], letters[b], 0}));
      }
      assert_int_equal(text[0], first);
      assert_int_equal(text[count - 1], 'u');
      fsdp_program_destroy(program);
    }
  }
}

TEST(test_lifetimes) {
  for (int seed = cases_begin(200); cases_run(__func__, seed); seed++) {
    random_source random = {.seed = (uint64_t)seed};
    fsdp_program *program = random_program(&random, 16);
    for (int t = 0; t < program->tensor_count; t++) {
      int begin = -1, end = -1;
      for (int i = 0; i < program->instr_count; i++)
        for (int o = 0; o < program->instrs[i].operand_count; o++)
          if (program->operands[program->instrs[i].first_operand + o].tensor == t) {
            begin = begin < 0 ? i : begin;
            end = i;
          }
      const fsdp_tensor *tensor = &program->tensors[t];
      if (tensor->lifetime == FSDP_LIVE_ALWAYS) begin = 0, end = program->instr_count - 1;
      assert_int_equal(tensor->end, end);
      assert_int_equal(tensor->begin, end < 0 ? 0 : begin);
    }
    fsdp_program_destroy(program);
  }
}

TEST(test_set_waits) {
  fsdp_program *program = sections_program(1, 1);
  const fsdp_wait waits[] = {{2, FSDP_WAIT_DATA}, {1, FSDP_WAIT_REUSE}, {0, FSDP_WAIT_POLICY}};
  fsdp_program_set_waits(program, waits, (int[]){1, 0, 2});
  assert_int_equal(program->wait_count, 3);
  assert_int_equal(program->instrs[1].wait_count, 0);
  assert_int_equal(program->waits[program->instrs[2].first_wait + 1].reason, FSDP_WAIT_POLICY);
  fsdp_program_set_waits(program, NULL, (int[]){0, 0, 0});
  assert_int_equal(program->wait_count, 0);
  fsdp_program_destroy(program);
}

// Whatever ranks must agree on changes the hash; equal programs have equal ones.
TEST(test_hash) {
  random_source random = {.seed = 3};
  fsdp_program *program = random_program(&random, 16);
  fsdp_memory_report report;
  fsdp_memory_plan(program, &(fsdp_memory_limits){.shared_bytes = 0}, &report);
  fsdp_waits_infer(program);
  assert_true(program->wait_count > 0 && program->operand_count > 0);
  uint64_t hash = fsdp_program_hash(program);
  for (int change = 0; change < 27; change++) {
    fsdp_program *copy = copy_program(program);
    fsdp_instr *instr = &copy->instrs[copy->instr_count / 2];
    fsdp_operand *operand = &copy->operands[copy->operand_count / 2];
    fsdp_tensor *tensor = &copy->tensors[copy->tensor_count / 2];
    void *const ints[] = {&instr->kind,
                          &instr->stream,
                          &instr->op,
                          &instr->comm,
                          &instr->unit,
                          &instr->module,
                          &operand->tensor,
                          &operand->dtype,
                          &operand->access,
                          &tensor->category,
                          &tensor->unit,
                          &tensor->begin,
                          &tensor->end,
                          &copy->waits[0].position,
                          &copy->waits[0].reason,
                          &copy->micro_batches,
                          &copy->mesh.axes[1].size,
                          &copy->sections[0].end};
    int64_t *const sizes[] = {&instr->attrs.batch,   &instr->attrs.positions,    &instr->attrs.window,
                              &operand->offset.base, &operand->offset.stride[1], &tensor->address,
                              &copy->arena_bytes[1]};
    assert_true(fsdp_program_hash(copy) == hash);
    if (change < 18)
      *(int *)ints[change] ^= 1;
    else if (change < 25)
      (*sizes[change - 18])++;
    else if (change < 26)
      instr->attrs.eps += 1e-6f;
    else
      instr->attrs.weight_transposed = !instr->attrs.weight_transposed;
    if (fsdp_program_hash(copy) == hash) fail_msg("change %d does not show in the hash", change);
    fsdp_program_destroy(copy);
  }
  fsdp_program_destroy(program);
}

TEST(test_print) {
  fsdp_program *program = fsdp_program_create();
  fsdp_mesh_resize(&program->mesh, FSDP_AXIS_FSDP, 2);
  int unit =
      fsdp_program_tensor(program, &(fsdp_tensor){.name = "layers.0.gathered", .bytes = 256, .unit = 1});
  fsdp_program_begin_section(program, FSDP_SECTION_ONLY);
  fsdp_axis_set axes = fsdp_mesh_axes(&program->mesh, FSDP_AXIS_FSDP);
  fsdp_operand operands[2] = {{.tensor = unit,
                               .access = FSDP_READ,
                               .offset = fsdp_affine_of_place(&program->mesh, axes, 0, 128),
                               .size_bytes = 128},
                              {.tensor = unit, .access = FSDP_WRITE, .size_bytes = 256}};
  fsdp_instr gather = {.kind = FSDP_INSTR_ALL_GATHER,
                       .stream = FSDP_STREAM_GATHER,
                       .comm = fsdp_program_comm_add(program, axes, FSDP_STREAM_GATHER),
                       .unit = 1,
                       .policy = -1};
  fsdp_program_instr(program, &gather, operands, 2);
  fsdp_instr use = {.kind = FSDP_INSTR_OP, .op = FSDP_OP_LINEAR, .unit = -1, .policy = -1};
  operands[0] = (fsdp_operand){.tensor = unit, .access = FSDP_UPDATE, .offset.base = 64, .size_bytes = 64};
  fsdp_program_instr(program, &use, operands, 1);
  fsdp_program_end_section(program);
  fsdp_program_set_waits(program, (fsdp_wait[]){{0, FSDP_WAIT_DATA}, {1, FSDP_WAIT_POLICY}}, (int[]){0, 2});
  char *text = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  assert_non_null(out);
  fsdp_program_print(program, out);
  fclose(out);
  const char *list = strstr(text, "only:\n"); // below the legend
  assert_true(text[0] == '#' && list);
  assert_string_equal(
      list, "only:\n"
            "     0 gather    all_gather                    unit=1 over=fsdp r "
            "layers.0.gathered[0:128 +fsdp*128] w layers.0.gathered\n"
            "     1 compute   linear                        u layers.0.gathered[64:128] | waits 0(data) "
            "1(policy)\n");
  free(text);
  fsdp_program_destroy(program);
}

TEST(test_names) {
  assert_string_equal(fsdp_stream_name(FSDP_STREAM_D2H), "d2h");
  assert_string_equal(fsdp_stream_name(FSDP_STREAM_HOST), "host");
  assert_string_equal(fsdp_category_name(FSDP_CATEGORY_INPUTS), "inputs");
  assert_string_equal(fsdp_instr_kind_name(FSDP_INSTR_PUBLISH), "publish");
  assert_string_equal(fsdp_section_name(FSDP_SECTION_EVALUATION), "evaluation");
  assert_string_equal(fsdp_section_name(FSDP_SECTION_CHECK), "check");
  assert_string_equal(fsdp_section_name(FSDP_SECTION_SNAPSHOT), "snapshot");
  assert_string_equal(fsdp_section_name(FSDP_SECTION_EXCHANGE), "exchange");
  assert_string_equal(fsdp_instr_kind_name(FSDP_INSTR_DIGESTS), "digests");
}
