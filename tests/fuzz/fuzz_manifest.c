// A checkpoint's manifest. Its checksum would hide the rest from a fuzzer, so it is made right, by the rule
// that docs/checkpoints.md states, unless the input begins with '!'.
#include "runtime/checkpoint/checkpoint.h"
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

// The text with a right checksum, or NULL if it is not a JSON object. The caller frees it.
static char *seal(const char *text) {
  json_t *root = json_loads(text, 0, NULL);
  if (!json_is_object(root)) {
    json_decref(root);
    return NULL;
  }
  json_object_del(root, "checksum");
  char *compact = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
  XXH128_hash_t hash = XXH3_128bits(compact, strlen(compact));
  char hex[33];
  snprintf(hex, sizeof hex, "%016llx%016llx", (unsigned long long)hash.high64,
           (unsigned long long)hash.low64);
  json_object_set_new(root, "checksum", json_string(hex));
  free(compact);
  compact = json_dumps(root, JSON_REAL_PRECISION(17));
  json_decref(root);
  return compact;
}

// Asks everything of a layout that has been accepted.
static void walk(const fsdp_checkpoint *c) {
  int ranks = fsdp_mesh_ranks(&c->mesh);
  FSDP_CHECK(fsdp_checkpoint_numel(c) >= 0, "a negative number of elements");
  for (int u = 0; u < c->unit_count; u++) {
    int64_t covered = 0;
    for (int r = 0; r < ranks && ranks <= 64; r++) {
      int64_t first, numel;
      fsdp_checkpoint_piece(c, r, u, &first, &numel);
      FSDP_CHECK(first >= 0 && numel >= 0 && first + numel <= c->units[u].padded_numel, "a piece outside");
      if (numel > 0) FSDP_CHECK(fsdp_checkpoint_holder(c, u, r, first) == r, "a piece of a different rank");
      covered += numel;
    }
    fsdp_axis_set buffers =
        fsdp_mesh_all_axes(&c->mesh) & ~c->units[u].shard_axes & ~c->units[u].replica_axes;
    int64_t whole = c->units[u].padded_numel * fsdp_mesh_group_size(&c->mesh, buffers);
    FSDP_CHECK(ranks > 64 || covered == whole, "pieces do not cover the unit");
  }
  for (int p = 0; p < c->param_count; p++) {
    int64_t covered = 0, groups = 0; // each may be a box
    for (int b = 0; b < c->params[p].cut.block_count; b++) groups += c->params[p].cut.blocks[b].groups;
    if (groups > 10000) continue;
    for (int r = 0; r < ranks && ranks <= 64; r++) {
      fsdp_box_list list = {0};
      fsdp_checkpoint_boxes(c, p, r, &list);
      for (int b = 0; b < list.count; b++) covered += fsdp_box_numel(&list.boxes[b]);
      fsdp_box_list_free(&list);
    }
    const int64_t *shape = c->params[p].shape;
    const int64_t indices = fsdp_cut_part_indices(&c->params[p].cut, &c->mesh, shape[0]);
    const int copies = ranks / fsdp_mesh_group_size(&c->mesh, fsdp_cut_axes(&c->params[p].cut));
    FSDP_CHECK(ranks > 64 || covered == copies * (c->params[p].numel / shape[0] * indices),
               "boxes do not cover the parameter");
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *text = fsdp_alloc(size + 1);
  memcpy(text, data, size);
  text[size] = 0;
  char *sealed = text[0] == '!' ? NULL : seal(text);
  fsdp_checkpoint *first, *second;
  fsdp_error error = {0};
  if (fsdp_checkpoint_parse("checkpoint.json", sealed ? sealed : text, &first, &error) == FSDP_OK) {
    walk(first);
    char *printed = fsdp_checkpoint_print(first);
    fsdp_status status = fsdp_checkpoint_parse("the printed manifest", printed, &second, &error);
    FSDP_CHECK(status == FSDP_OK, "refused as printed: %s", error.message);
    char *again = fsdp_checkpoint_print(second);
    FSDP_CHECK(strcmp(printed, again) == 0, "the manifest changed by printing and reading");
    fsdp_checkpoint_destroy(first);
    fsdp_checkpoint_destroy(second);
    free(printed);
    free(again);
  }
  free(sealed);
  free(text);
  return 0;
}
