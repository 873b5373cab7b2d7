// Where the elements of a checkpoint lie follows from mesh and units: each once, in the piece of the rank
// that is said to hold it.
#include "runtime/base/check.h"
#include "runtime/base/random.h"
#include "runtime/checkpoint/checkpoint.h"
#include "tests/support/harness.h"
#include "tests/support/models.h"
#include "tests/support/unit_test.h"

#include <stdlib.h>
#include <string.h>

static const fsdp_wrap_policy wraps[] = {{FSDP_WRAP_SIZE, 6000, NULL},
                                         {FSDP_WRAP_BLOCK, 0, NULL},
                                         {FSDP_WRAP_NONE, 0, NULL},
                                         {FSDP_WRAP_MODULE, 0, "LlamaMLP"}};

// The boxes that follow from a layout hold each element of each parameter once, where the flat buffer has it.
TEST(boxes_hold_every_element) {
  for (int seed = 0; seed < 40; seed++) {
    uint32_t words[4];
    fsdp_random_words((uint64_t)seed, 0, 0, words);
    fsdp_plan_config config = harness_small_plan(1);
    config.strategy = FSDP_HYBRID;
    config.mesh = fsdp_mesh_of(1 + (int)(words[0] % 4), 1 + (int)(words[1] % 7));
    config.wrap = wraps[words[2] % 4];
    fsdp_plan *plan = plan_of_config(&config);
    fsdp_checkpoint *c = fsdp_checkpoint_create(plan, "small");
    for (int p = 0; p < c->param_count; p++) {
      const fsdp_checkpoint_param *param = &c->params[p];
      int *holders = fsdp_alloc_zeroed((size_t)param->numel, sizeof *holders);
      for (int r = 0; r < c->file_count; r++) {
        fsdp_box_list list = {0};
        int64_t columns = param->shape[param->dims - 1];
        fsdp_checkpoint_boxes(c, p, r, &list);
        const fsdp_box *boxes = list.boxes;
        for (int b = 0; b < list.count; b++) {
          for (int64_t e = 0; e < fsdp_box_numel(&boxes[b]); e++) {
            int64_t width = boxes[b].extent[param->dims - 1], row = e / width;
            int64_t at[2] = {boxes[b].start[0] + row, boxes[b].start[param->dims - 1] + e % width};
            if (param->dims == 1) at[0] = at[1];
            int64_t element = param->dims == 1 ? at[0] : at[0] * columns + at[1];
            int64_t offset = fsdp_box_offset_of(&boxes[b], at);
            assert_int_equal(offset, param->offset + element);
            holders[element] += fsdp_checkpoint_holder(c, param->unit, r, offset) == r;
          }
        }
        fsdp_box_list_free(&list);
      }
      for (int64_t e = 0; e < param->numel; e++) assert_int_equal(holders[e], 1);
      free(holders);
    }
    fsdp_checkpoint_destroy(c);
    fsdp_plan_destroy(plan);
  }
}

// Slices of shards of any size, by any number of replicas, cover each element once, and the holder is found.
TEST(pieces_cover_every_element) {
  for (int shards = 1; shards <= 5; shards++) {
    for (int replicas = 1; replicas <= 7; replicas++) {
      fsdp_checkpoint_unit unit = {.padded_numel = 16 * 9 * shards};
      fsdp_checkpoint c = {.mesh = fsdp_mesh_of(replicas, shards), .units = &unit, .unit_count = 1};
      unit.shard_axes = fsdp_mesh_axes(&c.mesh, FSDP_AXIS_FSDP);
      unit.replica_axes = fsdp_mesh_axes(&c.mesh, FSDP_AXIS_DATA);
      int held[16 * 9 * 5] = {0};
      for (int r = 0; r < shards * replicas; r++) {
        int64_t first, numel;
        fsdp_checkpoint_piece(&c, r, 0, &first, &numel);
        for (int64_t e = first; e < first + numel; e++) {
          held[e]++;
          assert_int_equal(fsdp_checkpoint_holder(&c, 0, r, e), r);
        }
      }
      for (int64_t e = 0; e < unit.padded_numel; e++) assert_int_equal(held[e], 1);
    }
  }
}
