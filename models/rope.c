#include "models/rope.h"

#include "models/decoder_traits.h"
#include "models/family.h"
#include "runtime/base/check.h"

#include <math.h>

static void read_kind(fsdp_fields *f, const json_t *rope, fsdp_model_config *config) {
  const json_t *kind = fsdp_fields_present(rope, "rope_type");
  if (!kind) kind = fsdp_fields_present(rope, "type");
  config->rope_scaling = FSDP_ROPE_DEFAULT;
  if (!kind || fsdp_fields_is_text(kind, "default")) return;
  if (fsdp_fields_is_text(kind, "linear")) {
    config->rope_scaling = FSDP_ROPE_LINEAR;
  } else if (fsdp_fields_is_text(kind, "llama3")) {
    config->rope_scaling = FSDP_ROPE_LLAMA3;
  } else {
    fsdp_fields_refuse(
        f, "rope_type", kind,
        "but only \"default\", \"linear\" and \"llama3\" are supported; use a model with one of these");
    return;
  }
  config->rope_factor = fsdp_fields_positive(f, rope, "factor", 0);
  if (!f->status && config->rope_factor < 1)
    fsdp_fields_refuse(f, "factor", fsdp_fields_present(rope, "factor"), "but must be at least 1");
  if (config->rope_scaling == FSDP_ROPE_LINEAR) return;
  config->rope_low_freq_factor = fsdp_fields_positive(f, rope, "low_freq_factor", 0);
  config->rope_high_freq_factor = fsdp_fields_positive(f, rope, "high_freq_factor", 0);
  if (!f->status && config->rope_high_freq_factor <= config->rope_low_freq_factor)
    fsdp_fields_refuse(f, "high_freq_factor", fsdp_fields_present(rope, "high_freq_factor"),
                       "but must be above \"low_freq_factor\"");
}

// The innermost one counts. Of most families whole heads are rotated.
static void read_partial(fsdp_fields *f, const json_t *rope, const json_t *root, fsdp_model_config *c) {
  const double usual = c->family->decoder ? c->family->decoder->rotary_share : 0;
  const json_t *places[2] = {root, rope};
  double share = usual;
  for (int i = 0; i < 2; i++) {
    const json_t *partial = places[i] ? fsdp_fields_present(places[i], "partial_rotary_factor") : NULL;
    if (!partial) continue;
    share = json_number_value(partial);
    if (usual > 0 ? !json_is_number(partial) || share <= 0 || share > 1
                  : !json_is_number(partial) || share != 1)
      fsdp_fields_refuse(f, "partial_rotary_factor", partial,
                         usual > 0 ? "but must be a number above 0 and at most 1"
                                   : "but only whole heads are rotated; it must be 1.0");
  }
  if (f->status || usual <= 0 || share == 1) return;
  c->rotary_dim = (int64_t)((double)c->head_dim * share);
  if (c->rotary_dim < 2 || c->rotary_dim % 2)
    f->status = fsdp_fail(f->error, FSDP_ERR_INPUT,
                          "%s: \"partial_rotary_factor\" %g rotates %lld of the %lld elements of a head, but "
                          "pairs are rotated; it must give an even number of them",
                          f->where, share, (long long)c->rotary_dim, (long long)c->head_dim);
}

// Families with several kinds of attention may have such an object for each of them.
static void refuse_several(fsdp_fields *f, const json_t *rope) {
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)rope, key, value) {
    if (json_is_object(value))
      fsdp_fields_refuse(
          f, key, value,
          "but all layers are rotated alike here; what it holds must stand one level above, in its place");
  }
}

void fsdp_rope_read(fsdp_fields *f, const json_t *root, double theta_default, fsdp_model_config *config) {
  const char *key = "rope_scaling";
  const json_t *rope = fsdp_fields_present(root, key);
  if (!rope || (json_is_object(rope) && json_object_size(rope) == 0))
    rope = fsdp_fields_present(root, key = "rope_parameters");
  if (rope && !json_is_object(rope)) {
    fsdp_fields_refuse(f, key, rope, "but must be an object with \"rope_type\" (or null)");
    return;
  }
  read_partial(f, rope, root, config);
  // The innermost one counts; the default is Transformers' for files without the key.
  double outer = fsdp_fields_positive(f, root, "rope_theta", theta_default);
  config->rope_theta = rope ? fsdp_fields_positive(f, rope, "rope_theta", outer) : outer;
  if (!rope) return;
  refuse_several(f, rope);
  read_kind(f, rope, config);
  if (config->rope_scaling == FSDP_ROPE_LLAMA3) {
    // Here the outermost one counts, as in Transformers.
    key = "original_max_position_embeddings";
    int64_t inner = fsdp_fields_count(f, rope, key, config->max_position_embeddings, INT64_MAX);
    config->rope_original_max_position = fsdp_fields_count(f, root, key, inner, INT64_MAX);
  }
}

json_t *fsdp_rope_print(const fsdp_model_config *config) {
  if (config->rope_scaling == FSDP_ROPE_DEFAULT) return json_null();
  if (config->rope_scaling == FSDP_ROPE_LINEAR)
    return json_pack("{s:s, s:f}", "rope_type", "linear", "factor", config->rope_factor);
  return json_pack("{s:s, s:f, s:f, s:f, s:I}", "rope_type", "llama3", "factor", config->rope_factor,
                   "low_freq_factor", config->rope_low_freq_factor, "high_freq_factor",
                   config->rope_high_freq_factor, "original_max_position_embeddings",
                   (json_int_t)config->rope_original_max_position);
}

// Transformers' modeling_rope_utils defines both scalings.
float *fsdp_rope_inv_freq(const fsdp_model_config *c) {
  const int64_t rotated = c->rotary_dim ? c->rotary_dim : c->head_dim, half = rotated / 2;
  float *inv_freq = fsdp_alloc_zeroed((size_t)half, sizeof *inv_freq);
  for (int64_t i = 0; i < half; i++) {
    float exponent = (float)(2 * i) / (float)rotated;
    float plain = 1.0f / powf((float)c->rope_theta, exponent);
    if (c->rope_scaling == FSDP_ROPE_LINEAR) plain /= (float)c->rope_factor;
    inv_freq[i] = plain;
    if (c->rope_scaling != FSDP_ROPE_LLAMA3) continue;
    double context = (double)c->rope_original_max_position, wavelength = 2 * 3.14159265358979323846 / plain;
    if (wavelength > context / c->rope_low_freq_factor) {
      inv_freq[i] = plain / (float)c->rope_factor;
    } else if (wavelength >= context / c->rope_high_freq_factor) {
      double smooth = (context / wavelength - c->rope_low_freq_factor) /
                      (c->rope_high_freq_factor - c->rope_low_freq_factor);
      inv_freq[i] = (float)((1 - smooth) * plain / c->rope_factor + smooth * plain);
    }
  }
  return inv_freq;
}
