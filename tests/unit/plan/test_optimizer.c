// optimizer.h by example: AdamW's state, its step's scalars, and what does not train.
#include "runtime/plan/program/optimizer.h"
#include "tests/support/unit_test.h"

// Master, m and v in fp32 are 12 bytes an element, in bf16 6.
TEST(test_bytes) {
  assert_int_equal(fsdp_optimizer_elem_bytes(FSDP_OPTIMIZER_ADAMW, FSDP_F32, FSDP_F32), 12);
  assert_int_equal(fsdp_optimizer_elem_bytes(FSDP_OPTIMIZER_ADAMW, FSDP_BF16, FSDP_BF16), 6);
  assert_int_equal(fsdp_optimizer_elem_bytes(FSDP_OPTIMIZER_ADAMW, FSDP_F32, FSDP_BF16), 8);
}

// The corrections of update t are 1 - beta^t.
TEST(test_scalars) {
  const fsdp_hyper hyper = {.beta1 = 0.5, .beta2 = 0.75};
  float scalars[FSDP_SCALAR_COUNT] = {0};
  fsdp_optimizer_scalars(FSDP_OPTIMIZER_ADAMW, &hyper, 2, scalars);
  assert_true(scalars[FSDP_SCALAR_STEP] == 2);
  assert_true(scalars[FSDP_SCALAR_CORRECTION1] == 0.75F && scalars[FSDP_SCALAR_CORRECTION2] == 0.4375F);
}

// Parameters that do not train have no state but themselves, and no update.
TEST(test_frozen_units) {
  const fsdp_unit trains = {.trainable = true}, stays = {.trainable = false};
  assert_string_equal(fsdp_optimizer_of(FSDP_OPTIMIZER_ADAMW, &trains)->name, "adamw");
  const fsdp_optimizer *frozen = fsdp_optimizer_of(FSDP_OPTIMIZER_ADAMW, &stays);
  assert_int_equal(frozen->slot_count, 1);
  assert_int_equal(frozen->update, FSDP_OP_ROW_COUNT);
}

// `matrices`: neither norms nor biases shrink.
TEST(test_decay) {
  const fsdp_param matrix = {.dims = 2}, norm = {.dims = 1};
  const fsdp_hyper all = {.decay = FSDP_DECAY_ALL}, matrices = {.decay = FSDP_DECAY_MATRICES};
  assert_true(fsdp_hyper_decays(&all, &norm) && fsdp_hyper_decays(&matrices, &matrix));
  assert_false(fsdp_hyper_decays(&matrices, &norm));
}
