// Programs small enough to judge by hand: what every rank reads, on few ranks and on many; collectives and
// communicators. If there are few enough ranks, the oracle judges them too.
#include "runtime/base/check.h"
#include "runtime/plan/memory/memory.h"
#include "runtime/plan/proof/verify.h"
#include "runtime/plan/proof/waits.h"
#include "tests/support/oracle.h"
#include "tests/support/unit_test.h"

#include <string.h>

enum { SLOT = 64 };

static fsdp_program *create(int replicas, int shards) {
  fsdp_program *program = fsdp_program_create();
  program->mesh = fsdp_mesh_of(replicas, shards);
  fsdp_program_begin_section(program, FSDP_SECTION_ONLY);
  return program;
}

static int tensor(fsdp_program *program, int slots) {
  fsdp_tensor t = {.lifetime = FSDP_LIVE_SECTION, .unit = -1, .module = -1, .bytes = (int64_t)slots * SLOT};
  snprintf(t.name, sizeof t.name, "t%d", program->tensor_count);
  return fsdp_program_tensor(program, &t);
}

// `size` bytes from `offset` on, `stride` further for each rank of the shard group.
static fsdp_operand moving(int t, fsdp_access access, int64_t offset, int64_t size, int64_t stride) {
  return (fsdp_operand){.tensor = t,
                        .access = access,
                        .dtype = FSDP_F32,
                        .offset = {.base = offset, .stride = {0, stride}}, // data, fsdp
                        .size_bytes = size};
}

static fsdp_operand fixed(int t, fsdp_access access, int64_t offset, int64_t size) {
  return moving(t, access, offset, size, 0);
}

static int op(fsdp_program *program, fsdp_stream stream, fsdp_operand operand) {
  fsdp_instr instr = {
      .kind = FSDP_INSTR_OP, .stream = stream, .op = FSDP_OP_ADD, .unit = -1, .module = -1, .policy = -1};
  return fsdp_program_instr(program, &instr, &operand, 1);
}

static int collective(fsdp_program *program, fsdp_instr_kind kind, const char *axes, fsdp_stream stream,
                      fsdp_operand a, fsdp_operand b) {
  fsdp_instr instr = {.kind = kind, .stream = stream, .unit = -1, .module = -1, .policy = -1};
  instr.comm = fsdp_program_comm_add(program, fsdp_mesh_axes(&program->mesh, axes), stream);
  return fsdp_program_instr(program, &instr, (fsdp_operand[]){a, b}, b.access ? 2 : 1);
}

static const fsdp_operand none = {0};

// Completes the program, judges it and destroys it.
static fsdp_violation judge(fsdp_program *program) {
  fsdp_program_end_section(program);
  fsdp_program_begin_section(program, FSDP_SECTION_UPDATE);
  fsdp_program_end_section(program);
  fsdp_program_lifetimes(program);
  fsdp_memory_report report;
  fsdp_memory_plan(program, &(fsdp_memory_limits){.shared_bytes = 0}, &report);
  fsdp_waits_infer(program);
  fsdp_violation violation;
  bool proved = fsdp_verify_accesses(program, &violation);
  assert_int_equal(proved, violation.kind == FSDP_VIOLATION_NONE);
  if (fsdp_mesh_ranks(&program->mesh) <= 64 && violation.kind != FSDP_VIOLATION_UNPROVED)
    assert_int_equal(proved, oracle_accepts(program, ORACLE_HULL));
  fsdp_program_destroy(program);
  return violation;
}

static void assert_says(fsdp_violation violation, fsdp_violation_kind kind, const char *text) {
  if (violation.kind != kind || !strstr(violation.message, text))
    fail_msg("kind %d, %s; expected %d, %s", violation.kind, violation.message, kind, text);
}

// ---- What ranks read

// Slots 0, 1 and 7 of eight are written, by writes that do not move; every rank reads its own.
TEST(test_ranks_in_the_middle_read_nothing) {
  fsdp_program *p = create(1, 8);
  int t = tensor(p, 8);
  op(p, FSDP_STREAM_COMPUTE, fixed(t, FSDP_WRITE, 0, 2 * SLOT));
  op(p, FSDP_STREAM_COMPUTE, fixed(t, FSDP_WRITE, 7 * SLOT, SLOT));
  op(p, FSDP_STREAM_REDUCE, moving(t, FSDP_READ, 0, SLOT, SLOT));
  assert_says(judge(p), FSDP_VIOLATION_STALE_READ, "(rank 2), where nothing written lies");
}

// Without slot `hole` of `shards`, which only rank `hole` reads.
TEST(test_a_hole_at_any_rank) {
  for (int replicas = 1; replicas <= 3; replicas++) {
    for (int shards = 2; shards <= 16; shards++) {
      for (int hole = -1; hole < shards; hole++) {
        fsdp_program *p = create(replicas, shards);
        int t = tensor(p, shards);
        if (hole != 0) op(p, FSDP_STREAM_COMPUTE, fixed(t, FSDP_WRITE, 0, (hole < 0 ? shards : hole) * SLOT));
        if (hole >= 0 && hole + 1 < shards)
          op(p, FSDP_STREAM_GATHER,
             fixed(t, FSDP_WRITE, (hole + 1) * SLOT, (int64_t)(shards - hole - 1) * SLOT));
        op(p, FSDP_STREAM_REDUCE, moving(t, FSDP_READ, 0, SLOT, SLOT));
        char rank[32];
        snprintf(rank, sizeof rank, "(rank %d)", hole);
        if (hole >= 0)
          assert_says(judge(p), FSDP_VIOLATION_STALE_READ, rank);
        else
          assert_int_equal(judge(p).kind, FSDP_VIOLATION_NONE);
      }
    }
  }
}

// The stride of a read against the write's: equal on every rank, or on rank 0 alone.
TEST(test_another_stride) {
  const int shard_counts[] = {2, 3, 16, 17, 64, 16384};
  for (int i = 0; i < 6; i++) {
    for (int difference = -4; difference <= 4; difference += 4) {
      int shards = shard_counts[i];
      fsdp_program *p = create(1, shards);
      int t = tensor(p, shards);
      op(p, FSDP_STREAM_COMPUTE, moving(t, FSDP_WRITE, 0, SLOT, SLOT));
      op(p, FSDP_STREAM_REDUCE, moving(t, FSDP_READ, 0, 4, SLOT + (difference < 0 ? -4 : 0)));
      fsdp_violation violation = judge(p);
      if (difference >= 0)
        assert_int_equal(violation.kind, FSDP_VIOLATION_NONE);
      else
        assert_int_equal(violation.kind, FSDP_VIOLATION_STALE_READ);
    }
  }
}

// Written in pieces that move alike, by the reader's own stride, read across them.
TEST(test_pieces_of_a_slot) {
  for (int shards = 15; shards <= 18; shards++) {
    for (int hole = 0; hole < 2; hole++) {
      fsdp_program *p = create(2, shards);
      int t = tensor(p, shards);
      op(p, FSDP_STREAM_COMPUTE, moving(t, FSDP_WRITE, 24, SLOT - 24, SLOT));
      op(p, FSDP_STREAM_COMPUTE, moving(t, FSDP_WRITE, 0, hole ? 20 : 24, SLOT));
      op(p, FSDP_STREAM_REDUCE, moving(t, FSDP_READ, 8, SLOT - 12, SLOT));
      fsdp_violation_kind kind = judge(p).kind;
      assert_int_equal(kind, hole ? FSDP_VIOLATION_STALE_READ : FSDP_VIOLATION_NONE);
    }
  }
}

// All ranks but the first and the last two read what was never written: found rank by rank up to 16, rejected
// without a rank above.
TEST(test_many_ranks_are_not_guessed) {
  for (int shards = 15; shards <= 18; shards++) {
    for (int sound = 0; sound < 2; sound++) {
      fsdp_program *p = create(1, shards);
      int t = tensor(p, shards);
      op(p, FSDP_STREAM_COMPUTE, moving(t, FSDP_WRITE, 0, SLOT, SLOT));
      // Rank r reads slot shards - 1 - r, or (sound) that is written first, by a write that runs backwards.
      if (sound) op(p, FSDP_STREAM_COMPUTE, moving(t, FSDP_WRITE, (shards - 1) * SLOT, SLOT, -SLOT));
      op(p, FSDP_STREAM_REDUCE, moving(t, FSDP_READ, (shards - 1) * SLOT, SLOT, -SLOT));
      assert_int_equal(judge(p).kind, sound ? FSDP_VIOLATION_NONE : FSDP_VIOLATION_STALE_READ);
    }
    // Every slot but those in the middle, written without moving: the ends are right, the middle is not.
    fsdp_program *p = create(1, shards);
    int t = tensor(p, shards);
    op(p, FSDP_STREAM_COMPUTE, fixed(t, FSDP_WRITE, 0, 2 * SLOT));
    op(p, FSDP_STREAM_COMPUTE, fixed(t, FSDP_WRITE, (shards - 1) * SLOT, SLOT));
    op(p, FSDP_STREAM_REDUCE, moving(t, FSDP_READ, 0, SLOT, SLOT));
    if (shards <= 16)
      assert_says(judge(p), FSDP_VIOLATION_STALE_READ, "(rank 2)");
    else
      assert_says(judge(p), FSDP_VIOLATION_UNPROVED, "not proved for more than 16 ranks");
  }
}

// A write that does not move as the first one did puts an end to what was known of it.
TEST(test_a_write_between) {
  for (int shards = 8; shards <= 40; shards += 32) {
    fsdp_program *p = create(1, shards);
    int a = tensor(p, shards);
    op(p, FSDP_STREAM_COMPUTE, moving(a, FSDP_WRITE, 0, SLOT, SLOT));
    op(p, FSDP_STREAM_REDUCE, moving(a, FSDP_READ, 0, SLOT, SLOT));
    int b = tensor(p, shards); // takes a's bytes
    op(p, FSDP_STREAM_COMPUTE, moving(b, FSDP_WRITE, 0, SLOT, SLOT));
    op(p, FSDP_STREAM_REDUCE, moving(b, FSDP_READ, 0, SLOT, SLOT));
    assert_int_equal(judge(p).kind, FSDP_VIOLATION_NONE);
    p = create(1, shards);
    a = tensor(p, shards), b = tensor(p, shards);
    op(p, FSDP_STREAM_COMPUTE, moving(a, FSDP_WRITE, 0, SLOT, SLOT));
    op(p, FSDP_STREAM_REDUCE, moving(a, FSDP_READ, 0, SLOT, SLOT));
    op(p, FSDP_STREAM_REDUCE, moving(b, FSDP_READ, 0, SLOT, SLOT));
    assert_says(judge(p), FSDP_VIOLATION_STALE_READ, "reads t1");
  }
}

// A tensor of the step is written first and read in the middle section; later in that section another takes
// its bytes, or some of them. The first run of the middle section reads what it should, the second the
// other's data, on every rank or on rank 4 alone.
static fsdp_violation judge_middle(int shards, int micro_batches, int kind) {
  fsdp_program *p = create(1, shards);
  p->micro_batches = micro_batches;
  p->sections[0].kind = FSDP_SECTION_FIRST;
  int t = tensor(p, shards), u = tensor(p, shards);
  const fsdp_operand takes[] = {fixed(u, FSDP_WRITE, 0, (int64_t)shards * SLOT),
                                moving(u, FSDP_WRITE, 0, SLOT, SLOT), fixed(u, FSDP_WRITE, 4 * SLOT, SLOT)};
  p->tensors[t].lifetime = FSDP_LIVE_STEP;
  op(p, FSDP_STREAM_COMPUTE, moving(t, FSDP_WRITE, 0, SLOT, SLOT));
  fsdp_program_end_section(p);
  fsdp_program_begin_section(p, FSDP_SECTION_MIDDLE);
  op(p, FSDP_STREAM_REDUCE, moving(t, FSDP_READ, 0, SLOT, SLOT));
  op(p, FSDP_STREAM_COMPUTE, takes[kind]);
  fsdp_program_end_section(p);
  fsdp_program_begin_section(p, FSDP_SECTION_LAST);
  return judge(p);
}

TEST(test_a_write_before_the_next_micro_batch) {
  for (int shards = 8; shards <= 40; shards += 32) {
    for (int kind = 0; kind < 3; kind++) {
      assert_int_equal(judge_middle(shards, 3, kind).kind, FSDP_VIOLATION_NONE); // one middle micro-batch
      if (kind == 2 && shards > 16)
        assert_says(judge_middle(shards, 4, kind), FSDP_VIOLATION_UNPROVED, "reads t0");
      else
        assert_says(judge_middle(shards, 4, kind), FSDP_VIOLATION_STALE_READ,
                    kind == 2 ? "(rank 4), where t1 lies" : "where t1 lies");
    }
  }
}

// ---- Collectives

static fsdp_violation judge_gather(int shards, int64_t slot_bytes, int64_t offset, int64_t stride) {
  fsdp_program *p = create(2, shards);
  int t = tensor(p, shards + 2);
  op(p, FSDP_STREAM_COMPUTE, fixed(t, FSDP_WRITE, 0, (int64_t)(shards + 2) * SLOT));
  collective(p, FSDP_INSTR_ALL_GATHER, "fsdp", FSDP_STREAM_GATHER,
             moving(t, FSDP_READ, offset, slot_bytes, stride),
             fixed(t, FSDP_WRITE, SLOT, (int64_t)shards * SLOT));
  return judge(p);
}

TEST(test_all_gather_operands) {
  for (int shards = 2; shards <= 40; shards += 19) {
    assert_int_equal(judge_gather(shards, SLOT, SLOT, SLOT).kind, FSDP_VIOLATION_NONE);
    assert_says(judge_gather(shards, SLOT - 4, SLOT, SLOT), FSDP_VIOLATION_OPERANDS,
                "its output is not one input for each rank");
    const int64_t wrong[][2] = {{0, SLOT}, {SLOT + 4, SLOT}, {SLOT, SLOT - 4}, {SLOT, 0}, {2 * SLOT, SLOT}};
    for (int i = 0; i < 5; i++)
      assert_says(judge_gather(shards, SLOT, wrong[i][0], wrong[i][1]), FSDP_VIOLATION_OPERANDS,
                  "not this rank's slot of it on every rank");
    // Beside the output no place is wrong.
    assert_int_equal(judge_gather(shards, SLOT, 0, 0).kind, FSDP_VIOLATION_NONE);
    assert_int_equal(judge_gather(shards, SLOT, (int64_t)(shards + 1) * SLOT, 0).kind, FSDP_VIOLATION_NONE);
  }
}

static fsdp_violation judge_scatter(int shards, int64_t slot_bytes, int64_t offset, int64_t stride) {
  fsdp_program *p = create(1, shards);
  int t = tensor(p, shards + 1);
  op(p, FSDP_STREAM_COMPUTE, fixed(t, FSDP_WRITE, 0, (int64_t)(shards + 1) * SLOT));
  collective(p, FSDP_INSTR_REDUCE_SCATTER, "fsdp", FSDP_STREAM_REDUCE,
             fixed(t, FSDP_READ, 0, (int64_t)shards * SLOT),
             moving(t, FSDP_WRITE, offset, slot_bytes, stride));
  return judge(p);
}

TEST(test_reduce_scatter_operands) {
  for (int shards = 3; shards <= 35; shards += 16) {
    assert_int_equal(judge_scatter(shards, SLOT, 0, SLOT).kind, FSDP_VIOLATION_NONE);
    assert_int_equal(judge_scatter(shards, SLOT, 0, 0).kind, FSDP_VIOLATION_NONE);
    assert_int_equal(judge_scatter(shards, SLOT, 2 * SLOT, 0).kind, FSDP_VIOLATION_NONE);
    assert_int_equal(judge_scatter(shards, SLOT, (int64_t)shards * SLOT, 0).kind, FSDP_VIOLATION_NONE);
    assert_says(judge_scatter(shards, SLOT / 2, 0, SLOT), FSDP_VIOLATION_OPERANDS,
                "its input is not one output for each rank");
    const int64_t wrong[][2] = {{4, 0}, {0, 4}, {(shards - 1) * SLOT + 4, 0}};
    for (int i = 0; i < 3; i++)
      assert_says(judge_scatter(shards, SLOT, wrong[i][0], wrong[i][1]), FSDP_VIOLATION_OPERANDS,
                  "not at the start of one of its slots on every rank");
  }
}

static fsdp_violation judge_instr(fsdp_instr_kind kind, fsdp_operand a, fsdp_operand b) {
  fsdp_program *p = create(1, 2);
  int host = tensor(p, 4), device = tensor(p, 4);
  p->tensors[host].space = FSDP_SPACE_HOST;
  op(p, FSDP_STREAM_COMPUTE, fixed(host, FSDP_WRITE, 0, 4 * SLOT));
  op(p, FSDP_STREAM_COMPUTE, fixed(device, FSDP_WRITE, 0, 4 * SLOT));
  collective(p, kind, "data,fsdp", FSDP_STREAM_REDUCE, a, b);
  return judge(p);
}

TEST(test_copies_and_sums) {
  enum { HOST, DEVICE };
  fsdp_operand from = fixed(HOST, FSDP_READ, 0, SLOT), to = fixed(DEVICE, FSDP_WRITE, SLOT, SLOT);
  assert_int_equal(judge_instr(FSDP_INSTR_H2D, from, to).kind, FSDP_VIOLATION_NONE);
  assert_says(judge_instr(FSDP_INSTR_D2H, from, to), FSDP_VIOLATION_OPERANDS, "the wrong memory");
  to.size_bytes += 4;
  assert_says(judge_instr(FSDP_INSTR_H2D, from, to), FSDP_VIOLATION_OPERANDS, "differ in size");
  to.size_bytes = SLOT, to.dtype = FSDP_BF16;
  assert_says(judge_instr(FSDP_INSTR_H2D, from, to), FSDP_VIOLATION_OPERANDS, "one dtype");
  assert_says(judge_instr(FSDP_INSTR_H2D, from, none), FSDP_VIOLATION_OPERANDS, "the operands");
  fsdp_operand sum = fixed(DEVICE, FSDP_UPDATE, 0, SLOT);
  assert_int_equal(judge_instr(FSDP_INSTR_ALL_REDUCE, sum, none).kind, FSDP_VIOLATION_NONE);
  assert_says(judge_instr(FSDP_INSTR_ALL_REDUCE, sum, sum), FSDP_VIOLATION_OPERANDS, "the operands");
  sum.access = FSDP_READ;
  assert_says(judge_instr(FSDP_INSTR_ALL_REDUCE, sum, none), FSDP_VIOLATION_OPERANDS, "read and written");
  sum = fixed(HOST, FSDP_UPDATE, 0, SLOT);
  assert_says(judge_instr(FSDP_INSTR_ALL_REDUCE, sum, none), FSDP_VIOLATION_OPERANDS, "the wrong memory");
  sum = fixed(DEVICE, FSDP_UPDATE, 0, SLOT - 2);
  assert_says(judge_instr(FSDP_INSTR_ALL_REDUCE, sum, none), FSDP_VIOLATION_OPERANDS, "whole elements");
}

TEST(test_one_communicator_on_two_streams) {
  fsdp_program *p = create(2, 2);
  int t = tensor(p, 1), u = tensor(p, 1);
  op(p, FSDP_STREAM_COMPUTE, fixed(t, FSDP_WRITE, 0, SLOT));
  op(p, FSDP_STREAM_COMPUTE, fixed(u, FSDP_WRITE, 0, SLOT));
  collective(p, FSDP_INSTR_ALL_REDUCE, "data,fsdp", FSDP_STREAM_REDUCE, fixed(t, FSDP_UPDATE, 0, SLOT), none);
  int second = collective(p, FSDP_INSTR_ALL_REDUCE, "data,fsdp", FSDP_STREAM_GATHER,
                          fixed(u, FSDP_UPDATE, 0, SLOT), none);
  p->instrs[second].comm = 0;
  assert_says(judge(p), FSDP_VIOLATION_COMMUNICATOR, "from two streams");
}

TEST(test_communicators_that_do_not_exist) {
  for (int which = 0; which < 3; which++) {
    fsdp_program *p = create(2, 2);
    int t = tensor(p, 1);
    op(p, FSDP_STREAM_COMPUTE, fixed(t, FSDP_WRITE, 0, SLOT));
    int sum = collective(p, FSDP_INSTR_ALL_REDUCE, "data,fsdp", FSDP_STREAM_REDUCE,
                         fixed(t, FSDP_UPDATE, 0, SLOT), none);
    if (which == 0) p->instrs[sum].comm = -1;
    if (which == 1) p->instrs[sum].comm = 1;
    if (which == 2) p->comms[0].axes |= 1u << p->mesh.count;
    fsdp_program_end_section(p);
    fsdp_program_begin_section(p, FSDP_SECTION_UPDATE);
    fsdp_program_end_section(p);
    fsdp_program_lifetimes(p);
    p->arena_bytes[FSDP_SPACE_DEVICE] = SLOT;
    fsdp_waits_infer(p);
    fsdp_violation violation;
    assert_false(fsdp_verify_accesses(p, &violation));
    assert_says(violation, FSDP_VIOLATION_COMMUNICATOR, which == 2 ? "an axis" : "communicator");
    fsdp_program_destroy(p);
  }
}
