#include "models/window.h"

#include <stdio.h>

static void refuse(fsdp_fields *f, const json_t *types, const char *remedy) {
  fsdp_fields_refuse(f, "layer_types", types, remedy);
}

// The first layer that the list gives a window.
static int64_t first_in_list(fsdp_fields *f, const json_t *types, int64_t layers) {
  int64_t first = layers;
  char remedy[128];
  snprintf(remedy, sizeof remedy, "but must be a list with the type of each of the %lld layers",
           (long long)layers);
  if (!json_is_array(types) || (int64_t)json_array_size(types) != layers) refuse(f, types, remedy);
  for (int64_t i = 0; i < layers && !f->status; i++) {
    const json_t *type = json_array_get(types, (size_t)i);
    bool slides = fsdp_fields_is_text(type, "sliding_attention");
    if (!slides && !fsdp_fields_is_text(type, "full_attention"))
      refuse(f, type,
             "but only \"full_attention\" and \"sliding_attention\" are supported; use a model "
             "whose layers are of these types");
    else if (!slides && first < i)
      refuse(f, types,
             "but all layers after the first with a window must have it too; use a model with "
             "such layers");
    if (slides && first == layers) first = i;
  }
  return first;
}

void fsdp_window_read(fsdp_fields *f, const json_t *root, fsdp_model_config *c) {
  bool used = fsdp_fields_bool(f, root, "use_sliding_window", false);
  int64_t window = fsdp_fields_count_or_none(f, root, "sliding_window", 4096, INT32_MAX);
  int64_t first = fsdp_fields_whole(f, root, "max_window_layers", 28, INT32_MAX);
  const json_t *types = fsdp_fields_present(root, "layer_types");
  if (f->status) return;
  if (types) first = first_in_list(f, types, c->num_layers);
  if (first >= c->num_layers) return;
  if (used && window)
    c->window = window, c->first_window_layer = first;
  else if (types)
    refuse(f, types,
           "but there is no window: \"use_sliding_window\" must be true, and \"sliding_window\" its "
           "size");
}

void fsdp_window_print(const fsdp_model_config *c, json_t *root) {
  json_object_set_new(root, "use_sliding_window", json_boolean(c->window > 0));
  if (!c->window) return;
  json_object_set_new(root, "sliding_window", json_integer(c->window));
  json_object_set_new(root, "max_window_layers", json_integer(c->first_window_layer));
}
