// Plans of thousands of random configurations: all proved, and all within the arena's bound. Without each of
// their waits, they are judged as the oracle judges them.
#include "runtime/plan/proof/verify.h"
#include "runtime/plan/proof/waits.h"
#include "tests/support/cases.h"
#include "tests/support/draws.h"
#include "tests/support/oracle.h"
#include "tests/support/random_plan.h"
#include "tests/support/unit_test.h"

#include <stdlib.h>
#include <string.h>

static int configs(void) {
  return test_all() ? 10000 : test_draws(4000, 300);
}

static int mutated(void) {
  return test_draws(60, 4);
}

static fsdp_plan *plan_of(const fsdp_plan_config *config) {
  fsdp_plan *plan = NULL;
  fsdp_error error = {0};
  char text[512];
  describe_plan_config(config, text, sizeof text);
  if (fsdp_plan_create(config, &plan, &error) != FSDP_OK) fail_msg("%s: %s", text, error.message);
  return plan;
}

TEST(test_random_configs) {
  double worst = 0, sum = 0;
  int over = 0;
  for (int seed = cases_begin(configs()); cases_run(__func__, seed); seed++) {
    random_source random = {.seed = (uint64_t)seed};
    fsdp_plan_config config = random_plan_config(&random);
    fsdp_plan *plan = plan_of(&config);
    assert_true(plan->verified);
    const fsdp_memory_space_report *device = &plan->memory.space[FSDP_SPACE_DEVICE];
    double ratio = (double)device->arena_bytes / (double)device->greatest_bytes;
    sum += ratio;
    if (ratio > worst) worst = ratio;
    if ((double)device->arena_bytes > 1.02 * (double)device->greatest_bytes &&
        device->arena_bytes > device->greatest_bytes + 65536) {
      over++;
      char text[512];
      describe_plan_config(&config, text, sizeof text);
      print_message("%d: arena %lld for %lld live (%.4f): %s\n", seed, (long long)device->arena_bytes,
                    (long long)device->greatest_bytes, ratio, text);
    }
    fsdp_plan_destroy(plan);
  }
  print_message("%d configurations: arena / peak %.5f on average, %.5f at worst\n", configs(),
                sum / configs(), worst);
  assert_int_equal(over, 0);
}

// The same, over more ranks than are checked one by one.
// Whether the op's row counts rows by batch and sequence.
static bool has_rows(fsdp_op_kind kind) {
  const fsdp_op_letters *op = fsdp_op_letters_of(kind);
  return fsdp_op_letter_find(op, 'n') || fsdp_op_letter_find(op, 'b');
}

// An op of one sequence more than its operands have, and one that lacks its last operand.
TEST(test_launches_are_checked) {
  int checked = 0;
  for (int seed = cases_begin(mutated()); cases_run(__func__, seed); seed++) {
    random_source random = {.seed = 70000 + (uint64_t)seed};
    fsdp_plan_config config = random_plan_config(&random);
    fsdp_plan *plan = plan_of(&config);
    fsdp_program *program = plan->program;
    for (int i = 0; i < program->instr_count; i++) {
      fsdp_instr *instr = &program->instrs[i];
      fsdp_violation violation;
      if (instr->kind != FSDP_INSTR_OP || !has_rows(instr->op)) continue;
      if (random_int(&random, 0, 9) > 0) continue;
      instr->attrs.batch++;
      assert_false(fsdp_verify(program, &violation));
      assert_int_equal(violation.kind, FSDP_VIOLATION_OPERANDS);
      assert_int_equal(violation.position, i);
      assert_non_null(strstr(violation.message, fsdp_op_name(instr->op)));
      instr->attrs.batch--;
      int count = instr->operand_count;
      // Without its last operand, whatever follows.
      instr->operand_count = fsdp_op_operand_count(fsdp_op_letters_of(instr->op), &instr->attrs) - 1;
      assert_false(fsdp_verify(program, &violation));
      instr->operand_count = count;
      checked++;
    }
    assert_true(fsdp_verify(program, NULL));
    fsdp_plan_destroy(plan);
  }
  assert_true(checked > mutated());
}

TEST(test_random_configs_of_many_ranks) {
  const int shard_counts[] = {17, 18, 31, 64, 100, 1000};
  for (int seed = cases_begin(configs() / 10); cases_run(__func__, seed); seed++) {
    random_source random = {.seed = 3000000 + (uint64_t)seed};
    fsdp_plan_config config = random_plan_config(&random);
    fsdp_mesh_resize(&config.mesh, config.strategy == FSDP_NO ? FSDP_AXIS_DATA : FSDP_AXIS_FSDP,
                     shard_counts[random_int(&random, 0, 5)]);
    fsdp_plan *plan = plan_of(&config);
    assert_true(plan->verified);
    fsdp_plan_destroy(plan);
  }
}

// What deleting each wait did, as counts.
typedef struct deletions {
  int waits, races, superfluous, policies;
} deletions;

static void delete_each_wait(fsdp_program *program, deletions *counts) {
  oracle *o = oracle_create(program, ORACLE_EACH_RANK);
  assert_false(oracle_finds_race(o, NULL, NULL));
  for (int i = 0; i < program->instr_count; i++) {
    fsdp_instr *instr = &program->instrs[i];
    for (int w = 0; w < instr->wait_count; w++) {
      fsdp_wait *wait = &program->waits[instr->first_wait + w];
      fsdp_wait *last = &program->waits[instr->first_wait + instr->wait_count - 1], removed = *wait;
      *wait = *last;
      *last = removed;
      instr->wait_count--;
      bool race = oracle_finds_race(o, NULL, NULL);
      assert_int_equal(fsdp_verify(program, NULL), !race);
      instr->wait_count++;
      counts->waits++;
      counts->races += race;
      counts->superfluous += !race && removed.reason != FSDP_WAIT_POLICY;
      counts->policies += removed.reason == FSDP_WAIT_POLICY;
      if (removed.reason == FSDP_WAIT_POLICY) assert_false(race);
    }
  }
  oracle_destroy(o);
}

TEST(test_every_wait_deletion) {
  deletions counts = {0};
  for (int seed = 0, done = 0; done < mutated(); seed++) {
    random_source random = {.seed = 1000000 + (uint64_t)seed};
    fsdp_plan_config config = random_plan_config(&random);
    config.prefetch = random_int(&random, 1, 3);
    config.cpu_offload = seed % 3 != 0;
    fsdp_plan *plan = plan_of(&config);
    if (plan->program->instr_count < 700) { // the oracle is quadratic
      delete_each_wait(plan->program, &counts);
      done++;
    }
    fsdp_plan_destroy(plan);
  }
  print_message("%d waits of plans deleted one at a time: %d races, %d policies, %d that a policy implied\n",
                counts.waits, counts.races, counts.policies, counts.superfluous);
  assert_true(counts.races > 0 && counts.policies > 0);
}

// Routed experts on every axis, in waves too: proved on both devices, and judged as the oracle does without
// each of their waits.
TEST(test_routed_configs) {
  for (int seed = cases_begin(test_draws(150, 10)); cases_run(__func__, seed); seed++) {
    random_source random = {.seed = 4000000 + (uint64_t)seed};
    fsdp_plan_config config = random_routed_config(&random);
    if (seed % 2) {
      config.backend = fsdp_plan_backend_cuda();
      config.model.router_aux = FSDP_ROUTER_AUX_MICRO; // another has kernels for a CPU alone
    }
    fsdp_plan *plan = plan_of(&config);
    assert_true(plan->verified);
    fsdp_plan_destroy(plan);
  }
}

TEST(test_every_wait_of_routed_plans) {
  deletions counts = {0};
  int waves = 0, blocks = 0;
  for (int seed = 0, done = 0; done < test_draws(6, 1); seed++) {
    random_source random = {.seed = 5000000 + (uint64_t)seed};
    fsdp_plan_config config = random_routed_config(&random);
    config.prefetch = random_int(&random, 1, 2);
    config.model.num_layers = 1;
    config.evaluation = config.poison = false;
    fsdp_mesh_resize(&config.mesh, FSDP_AXIS_EXPERT, 2);
    const int held = (int)(config.model.experts + 1) / 2;
    if (config.expert_blocks > held) config.expert_blocks = held;
    if (!fsdp_model_expert_layers(&config.model)) config.expert_blocks = 1;
    if (done % 2 == 0) config.expert_capacity = 0.25;
    fsdp_plan *plan = plan_of(&config);
    if (plan->program->instr_count < 700) { // the oracle is quadratic
      for (int n = 0; n < plan->graph->forward_count; n++)
        waves += plan->graph->forward[n].attrs.first_routed > 0;
      delete_each_wait(plan->program, &counts);
      blocks += config.expert_blocks > 1;
      done++;
    }
    fsdp_plan_destroy(plan);
  }
  print_message("%d waits of plans with experts deleted one at a time: %d races, %d policies\n", counts.waits,
                counts.races, counts.policies);
  assert_true(counts.races > 0 && waves > 0 && (blocks > 0 || test_draws(6, 1) < 6));
}

// The first instruction of `section` at or after `from` that accesses `tensor`, or -1.
static int next_touch(const fsdp_program *program, int tensor, int from, int end) {
  for (int i = from; i < end; i++)
    for (int o = 0; o < program->instrs[i].operand_count; o++)
      if (program->operands[program->instrs[i].first_operand + o].tensor == tensor) return i;
  return -1;
}

static bool overlap(const fsdp_tensor *x, const fsdp_tensor *y) {
  return x->space == y->space && x->address < y->address + y->bytes && y->address < x->address + x->bytes;
}

// Exchanges the last use of a tensor with the first instruction of the one that takes its bytes over.
static bool swap_free_with_use(fsdp_program *program, int tensor) {
  const fsdp_tensor *x = &program->tensors[tensor];
  int heir = -1;
  for (int t = 0; t < program->tensor_count; t++) {
    const fsdp_tensor *y = &program->tensors[t];
    if (y->begin > x->end && overlap(x, y) && (heir < 0 || y->begin < program->tensors[heir].begin)) heir = t;
  }
  if (heir < 0) return false;
  int a = x->end, b = program->tensors[heir].begin;
  if (next_touch(program, heir, b, b + 1) < 0 || next_touch(program, tensor, a, a + 1) < 0) return false;
  fsdp_instr moved = program->instrs[a];
  program->instrs[a] = program->instrs[b];
  program->instrs[b] = moved;
  return true;
}

TEST(test_swapped_frees_and_shared_addresses) {
  int swapped = 0, shared = 0;
  for (int seed = cases_begin(mutated() * 3); cases_run(__func__, seed); seed++) {
    random_source random = {.seed = 2000000 + (uint64_t)seed};
    fsdp_plan_config config = random_plan_config(&random);
    config.poison = false;
    fsdp_plan *plan = plan_of(&config);
    for (int i = 0; i < 20; i++) {
      int t = random_int(&random, 0, plan->program->tensor_count - 1);
      int u = random_int(&random, 0, plan->program->tensor_count - 1);
      fsdp_program *copy = copy_program(plan->program);
      if (swap_free_with_use(copy, t)) {
        swapped++;
        assert_false(fsdp_verify(copy, NULL)); // lifetimes and waits as planned
        fsdp_program_lifetimes(copy);
        assert_false(fsdp_verify(copy, NULL)); // lifetimes as they have become
        fsdp_waits_infer(copy);
        assert_false(fsdp_verify(copy, NULL)); // waits for the new order: the data is gone all the same
      }
      fsdp_program_destroy(copy);
      copy = copy_program(plan->program);
      fsdp_tensor *x = &copy->tensors[t], *y = &copy->tensors[u];
      if (t != u && x->space == y->space && x->begin <= y->end && y->begin <= x->end &&
          x->bytes <= y->bytes && x->bytes > 0 && x->end >= x->begin) {
        shared++;
        x->address = y->address;
        fsdp_violation violation;
        assert_false(fsdp_verify(copy, &violation));
        assert_int_equal(violation.kind, FSDP_VIOLATION_OVERLAP);
        fsdp_waits_infer(copy);
        assert_false(fsdp_verify(copy, NULL));
      }
      fsdp_program_destroy(copy);
    }
    fsdp_plan_destroy(plan);
  }
  print_message(
      "%d frees swapped with the next use, %d live tensors put at another's address: all rejected\n", swapped,
      shared);
  assert_true(swapped > mutated() && shared > mutated());
}
