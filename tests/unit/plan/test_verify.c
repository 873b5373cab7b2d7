// The verifier against the oracle: on random programs as they are, without each of their waits, and with
// every kind of damage.
#include "runtime/plan/memory/memory.h"
#include "runtime/plan/proof/poison.h"
#include "runtime/plan/proof/verify.h"
#include "runtime/plan/proof/waits.h"
#include "tests/support/cases.h"
#include "tests/support/draws.h"
#include "tests/support/meeting.h"
#include "tests/support/oracle.h"
#include "tests/support/random_program.h"
#include "tests/support/unit_test.h"

#include <stdlib.h>
#include <string.h>

static int programs(void) {
  return test_draws(400, 40);
}

static fsdp_program *finished_program_of(random_source *random, int ranks_max, bool poison) {
  fsdp_program *program = random_program(random, ranks_max);
  fsdp_memory_report report;
  fsdp_memory_plan(program, &(fsdp_memory_limits){.shared_bytes = 0}, &report);
  if (poison) fsdp_program_insert_poison(program);
  fsdp_waits_infer(program);
  return program;
}

static fsdp_program *finished_program(random_source *random, bool poison) {
  return finished_program_of(random, 16, poison);
}

TEST(test_accepts_sound_programs) {
  for (int seed = cases_begin(programs()); cases_run(__func__, seed); seed++) {
    random_source random = {.seed = (uint64_t)seed};
    fsdp_program *program = finished_program(&random, seed % 2);
    fsdp_violation violation;
    if (!fsdp_verify_accesses(program, &violation)) fail_msg("program %d: %s", seed, violation.message);
    assert_int_equal(violation.kind, FSDP_VIOLATION_NONE);
    assert_true(oracle_accepts(program, ORACLE_HULL));
    assert_true(oracle_accepts(program, ORACLE_EACH_RANK));
    fsdp_program_destroy(program);
  }
}

// The two tensors that a race is said to be of.
static void assert_share_bytes(const fsdp_program *program, const fsdp_violation *race) {
  assert_true(race->other_tensor >= 0);
  const fsdp_tensor *a = &program->tensors[race->tensor], *b = &program->tensors[race->other_tensor];
  assert_int_equal(a->space, b->space);
  assert_true(a->address < b->address + b->bytes && b->address < a->address + a->bytes);
}

TEST(test_every_wait_deletion) {
  int deleted = 0, races = 0, policies = 0;
  for (int seed = cases_begin(programs()); cases_run(__func__, seed); seed++) {
    random_source random = {.seed = (uint64_t)seed};
    fsdp_program *program = finished_program(&random, seed % 4 == 3);
    if (seed % 2) { // a policy can make a wait of the bytes superfluous as long as it stays
      for (int i = 0; i < program->instr_count; i++) program->instrs[i].policy = -1;
      fsdp_waits_infer(program);
    }
    oracle *o = oracle_create(program, ORACLE_HULL);
    for (int i = 0; i < program->instr_count; i++) {
      fsdp_instr *instr = &program->instrs[i];
      for (int w = 0; w < instr->wait_count; w++) {
        // The wait changes places with the last one, which is left out.
        fsdp_wait *wait = &program->waits[instr->first_wait + w];
        fsdp_wait *last = &program->waits[instr->first_wait + instr->wait_count - 1], removed = *wait;
        *wait = *last;
        instr->wait_count--;
        bool race = oracle_finds_race(o, NULL, NULL);
        fsdp_violation violation;
        assert_int_equal(fsdp_verify_accesses(program, &violation), !race);
        assert_int_equal(violation.kind, race ? FSDP_VIOLATION_RACE : FSDP_VIOLATION_NONE);
        if (race) assert_share_bytes(program, &violation);
        if (removed.reason == FSDP_WAIT_POLICY) {
          assert_false(race);
          policies++;
        } else {
          deleted += seed % 2;
          races += race && seed % 2;
        }
        instr->wait_count++;
        *wait = removed;
        assert_true(wait == last ||
                    program->waits[instr->first_wait + instr->wait_count - 1].position == last->position);
      }
    }
    oracle_destroy(o);
    fsdp_program_destroy(program);
  }
  print_message("%d waits deleted one at a time, %d races; %d policies, none\n", deleted, races, policies);
  // No wait is there that nothing needs.
  assert_int_equal(races, deleted);
  assert_true(policies > 0);
}

// What is proved runs to its end on all ranks whatever their delays; with one communicator on two streams
// some delays make its members meet with different calls, or not at all.
TEST(test_ranks_meet) {
  int failed = 0, shared = 0;
  for (int seed = cases_begin(programs()); cases_run(__func__, seed); seed++) {
    random_source random = {.seed = (uint64_t)seed};
    fsdp_program *program = finished_program(&random, false);
    for (int i = 0; i < 5; i++) assert_int_equal(meet(program, &random), MEETING_COMPLETE);
    int collective = 0;
    for (int i = 0; i < program->instr_count; i++) {
      fsdp_instr *instr = &program->instrs[i];
      if (instr->kind < FSDP_INSTR_ALL_GATHER || instr->kind > FSDP_INSTR_ALL_REDUCE) continue;
      if (collective++ % 2)
        instr->stream = instr->stream == FSDP_STREAM_GATHER ? FSDP_STREAM_REDUCE : FSDP_STREAM_GATHER;
    }
    fsdp_waits_infer(program);
    if (oracle_finds_shared_communicator(program)) {
      fsdp_violation violation;
      assert_false(fsdp_verify_accesses(program, &violation));
      assert_int_equal(violation.kind, FSDP_VIOLATION_COMMUNICATOR);
      shared++;
      for (int i = 0; i < 5; i++) failed += meet(program, &random) != MEETING_COMPLETE;
    }
    fsdp_program_destroy(program);
  }
  print_message("%d programs with one communicator on two streams: %d of their runs failed\n", shared,
                failed);
  assert_true(failed > 0);
}

static void swap_instrs(fsdp_program *program, random_source *random) {
  const fsdp_section *section = &program->sections[random_int(random, 0, program->section_count - 1)];
  if (section->end - section->begin < 2) return;
  int a = random_int(random, section->begin, section->end - 1),
      b = random_int(random, section->begin, section->end - 1);
  fsdp_instr moved = program->instrs[a];
  program->instrs[a] = program->instrs[b];
  program->instrs[b] = moved;
}

// One random damage; some do no harm.
static void damage(fsdp_program *program, random_source *random) {
  if (program->tensor_count == 0) return;
  fsdp_instr *instr = &program->instrs[random_int(random, 0, program->instr_count - 1)];
  fsdp_tensor *tensor = &program->tensors[random_int(random, 0, program->tensor_count - 1)];
  const fsdp_tensor *other = &program->tensors[random_int(random, 0, program->tensor_count - 1)];
  switch (random_int(random, 0, 13)) {
  case 0: // the last use after the reuse, or the first before the write
    swap_instrs(program, random);
    break;
  case 1: // the same, with lifetimes and waits that follow
    swap_instrs(program, random);
    fsdp_program_lifetimes(program);
    fsdp_waits_infer(program);
    break;
  case 2: // two tensors at one address, live together or not
    tensor->address = other->address;
    break;
  case 3:
    tensor->address = other->address;
    fsdp_waits_infer(program);
    break;
  case 4:
    tensor->end -= random_int(random, 1, 3);
    break;
  case 5:
    instr->stream = (fsdp_stream)random_int(random, 0, FSDP_STREAM_COUNT - 1);
    break;
  case 6:
    if (program->wait_count > 0)
      program->waits[random_int(random, 0, program->wait_count - 1)].position =
          random_int(random, 0, program->instr_count - 1);
    break;
  case 7:
    if (instr->operand_count > 0) program->operands[instr->first_operand].offset.base += 4;
    break;
  case 10: // wrong for some ranks: an operand that moves otherwise
    if (instr->operand_count > 0)
      program->operands[instr->first_operand + random_int(random, 0, instr->operand_count - 1)]
          .offset.stride[random_int(random, 0, program->mesh.count - 1)] += 4 * random_int(random, -4, 4);
    break;
  case 11: // a piece that lies where its neighbour does, or overlaps it
    if (instr->operand_count > 0) {
      fsdp_operand *operand = &program->operands[instr->first_operand];
      operand->offset.base +=
          random_int(random, 0, 1) ? operand->size_bytes : -operand->size_bytes / 2 / 4 * 4;
    }
    break;
  case 13: // the next collective from there, over a different group
    while (instr < &program->instrs[program->instr_count - 1] && !fsdp_instr_is_collective(instr)) instr++;
    if (program->comm_count > 0) instr->comm = random_int(random, 0, program->comm_count - 1);
    break;
  case 12:
    if (instr->operand_count > 0) program->operands[instr->first_operand].size_bytes -= 4;
    break;
  case 8: // a write becomes a read or the other way round
    if (instr->operand_count > 0)
      program->operands[instr->first_operand].access = (fsdp_access)random_int(random, 1, 3);
    break;
  default: // an instruction works on a different tensor of the same size
    for (int o = 0; o < instr->operand_count; o++) {
      fsdp_operand *operand = &program->operands[instr->first_operand + o];
      if (other->bytes == program->tensors[operand->tensor].bytes)
        operand->tensor = (int)(other - program->tensors);
    }
  }
}

TEST(test_damaged_programs) {
  int found[FSDP_VIOLATION_KIND_COUNT] = {0};
  for (int seed = cases_begin(programs()); cases_run(__func__, seed); seed++) {
    random_source random = {.seed = (uint64_t)seed};
    fsdp_program *program = finished_program(&random, seed % 4 == 3);
    for (int i = 0; i < 20; i++) {
      fsdp_program *copy = copy_program(program);
      for (int count = random_int(&random, 1, 2); count > 0; count--) damage(copy, &random);
      fsdp_violation violation;
      bool sound = fsdp_verify_accesses(copy, &violation);
      if (sound != oracle_accepts(copy, ORACLE_HULL))
        fail_msg("program %d, damage %d: verifier %d (%s)", seed, i, sound, violation.message);
      found[violation.kind]++;
      // The kind is the first that was found, so the oracle finds that one too.
      if (violation.kind == FSDP_VIOLATION_OVERLAP) assert_true(oracle_finds_overlap(copy));
      if (violation.kind == FSDP_VIOLATION_STALE_READ) assert_true(oracle_finds_stale_read(copy));
      if (violation.kind == FSDP_VIOLATION_OUT_OF_RANGE) assert_true(oracle_finds_out_of_range(copy));
      if (violation.kind == FSDP_VIOLATION_OPERANDS) assert_true(oracle_finds_bad_operands(copy));
      if (violation.kind == FSDP_VIOLATION_COMMUNICATOR) assert_true(oracle_finds_shared_communicator(copy));
      fsdp_program_destroy(copy);
    }
    fsdp_program_destroy(program);
  }
  print_message("damaged: %d sound, %d races, %d stale reads, %d overlaps, %d out of range, %d operands, %d "
                "communicators\n",
                found[FSDP_VIOLATION_NONE], found[FSDP_VIOLATION_RACE], found[FSDP_VIOLATION_STALE_READ],
                found[FSDP_VIOLATION_OVERLAP], found[FSDP_VIOLATION_OUT_OF_RANGE],
                found[FSDP_VIOLATION_OPERANDS], found[FSDP_VIOLATION_COMMUNICATOR]);
  // At most 16 ranks are decided exactly.
  assert_int_equal(found[FSDP_VIOLATION_UNPROVED], 0);
  for (int kind = 0; kind < FSDP_VIOLATION_UNPROVED; kind++) assert_true(found[kind] > programs() / 20);
}

// A wait for what stands beside the list, on either side.
TEST(test_waits_end_with_the_list) {
  random_source random = {.seed = 1};
  fsdp_program *program = finished_program(&random, false);
  fsdp_violation violation;
  assert_true(program->wait_count > 0);
  for (int end = 0; end < 2; end++) {
    program->waits[0].position = end ? program->instr_count : -1;
    assert_false(fsdp_verify(program, &violation));
    assert_int_equal(violation.kind, FSDP_VIOLATION_OUT_OF_RANGE);
    program->waits[0].position = end ? program->instr_count - 1 : 0;
    fsdp_verify(program, &violation);
    assert_int_not_equal(violation.kind, FSDP_VIOLATION_OUT_OF_RANGE);
  }
  fsdp_program_destroy(program);
}

// On more ranks than are checked one by one: sound programs are accepted, and what is accepted is sound.
TEST(test_many_ranks) {
  int many = 0, accepted = 0, unproved = 0;
  for (int seed = cases_begin(programs() / 4); cases_run(__func__, seed); seed++) {
    random_source random = {.seed = (uint64_t)seed};
    fsdp_program *program = finished_program_of(&random, 64, seed % 4 == 3);
    fsdp_violation violation;
    if (!fsdp_verify_accesses(program, &violation)) fail_msg("program %d: %s", seed, violation.message);
    many += fsdp_mesh_ranks(&program->mesh) > 16;
    for (int i = 0; i < 20; i++) {
      fsdp_program *copy = copy_program(program);
      damage(copy, &random);
      bool sound = fsdp_verify_accesses(copy, &violation);
      unproved += violation.kind == FSDP_VIOLATION_UNPROVED;
      accepted += sound;
      bool truth = oracle_accepts(copy, ORACLE_HULL);
      if (sound != truth && violation.kind != FSDP_VIOLATION_UNPROVED)
        fail_msg("program %d, damage %d: verifier %d (%s)", seed, i, sound, violation.message);
      fsdp_program_destroy(copy);
    }
    fsdp_program_destroy(program);
  }
  print_message("%d programs of more than 16 ranks; of those damaged %d accepted, %d not proved\n", many,
                accepted, unproved);
  // Under a sanitizer ten programs are all, and one of them in ten has so many ranks.
  assert_true(many > programs() / 40 - 1 && accepted > programs() / 20);
}
