// What differs from a setting in one thing: variations by hand; remedies leave ranks and the step's sequences
// as they are, and what has a remedy already has it no more.
#include "runtime/plan/search/neighbours.h"
#include "tests/support/random_plan.h"
#include "tests/support/unit_test.h"

#include <string.h>

static fsdp_plan_config setting_of(const fsdp_device_profile *profile) {
  fsdp_plan_config c = search_on(profile, "gpt2", 6, 4).base;
  c.seq = 128;
  c.batch = c.micro_batches = 2;
  c.mesh = fsdp_mesh_of(1, 4);
  c.strategy = FSDP_FULL;
  c.wrap = (fsdp_wrap_policy){.kind = FSDP_WRAP_SIZE, .numel = 1000};
  c.prefetch = 1;
  return c;
}

TEST(test_variations) {
  static const char *const wanted[] = {"--batch-size 1",
                                       "--batch-size 3",
                                       "--grad-accum 1",
                                       "--grad-accum 3",
                                       "--prefetch 0",
                                       "--prefetch 2",
                                       "--recompute block:1",
                                       "--numel-to-wrap 500",
                                       "--numel-to-wrap 2000",
                                       "--mesh data=1,fsdp=2,tensor=2",
                                       "--mesh data=1,fsdp=2,context=2"};
  fsdp_device_profile *profile = round_machine(100e9, 50e9);
  fsdp_evaluator e = {.profile = profile, .ranks_per_node = 4};
  int count, found = 0;
  const fsdp_neighbour *list = fsdp_neighbours(&count);
  for (int n = 0; n < count; n++) {
    fsdp_plan_config c = setting_of(profile);
    char options[FSDP_NEIGHBOUR_BYTES];
    if (list[n].is_remedy || !list[n].apply(&list[n], &e, &c, options)) continue;
    assert_string_equal(options, wanted[found++]);
    assert_int_equal(fsdp_mesh_ranks(&c.mesh), 4);
  }
  assert_int_equal(found, sizeof wanted / sizeof *wanted);
  fsdp_device_profile_destroy(profile);
}

static int64_t sequences_of(const fsdp_plan_config *c) {
  return c->batch * c->micro_batches * fsdp_mesh_size(&c->mesh, FSDP_AXIS_DATA) *
         fsdp_mesh_size(&c->mesh, FSDP_AXIS_FSDP);
}

TEST(test_remedies_keep_the_step) {
  fsdp_device_profile *profile = round_machine(100e9, 50e9);
  fsdp_evaluator e = {.profile = profile, .ranks_per_node = 4};
  for (int s = 0; s < FSDP_SPACE_COUNT; s++) e.allowed.bytes[s] = 1; // nothing fits
  int count, applied = 0;
  const fsdp_neighbour *list = fsdp_neighbours(&count);
  for (int n = 0; n < count; n++) {
    fsdp_plan_config c = setting_of(profile);
    char options[FSDP_NEIGHBOUR_BYTES];
    c.strategy = FSDP_GRAD_OP;
    c.accumulate = FSDP_ACCUMULATE_LOCAL;
    if (!list[n].is_remedy || !list[n].apply(&list[n], &e, &c, options)) continue;
    applied++;
    assert_int_equal(fsdp_mesh_ranks(&c.mesh), 4);
    assert_int_equal(sequences_of(&c), 16);
    assert_int_equal(c.seq == 128, strstr(options, "--seq-length") == NULL);
    if (list[n].repeats) continue;
    fsdp_plan_config again = c;
    assert_false(list[n].apply(&list[n], &e, &again, options));
  }
  assert_int_equal(applied, 13); // all but bf16 gradients, which need bf16 parameters
  fsdp_evaluator_release(&e);
  fsdp_device_profile_destroy(profile);
}
