// Published shapes of the Llama family, and checks of any shape.
#include "models/llama.h"

#include <stdio.h>
#include <string.h>

typedef struct preset {
  const char *name;
  fsdp_llama_config config;
} preset;

#define LLAMA2                                                                                               \
  .vocab_size = 32000, .max_position_embeddings = 4096, .rms_norm_eps = 1e-5, .rope_theta = 1e4,             \
  .rope_factor = 1, .initializer_range = 0.02
#define LLAMA3 .vocab_size = 128256, .rms_norm_eps = 1e-5, .rope_theta = 5e5, .initializer_range = 0.02
// The 3.0 release (llama3-8b, llama3-70b) has 8k positions and plain RoPE; 405B came with 3.1 and its
// scaling.
#define LLAMA3_0 LLAMA3, .max_position_embeddings = 8192, .rope_factor = 1
#define LLAMA3_1                                                                                             \
  LLAMA3, .max_position_embeddings = 131072, .rope_scaling = FSDP_ROPE_LLAMA3, .rope_factor = 8,             \
          .rope_low_freq_factor = 1, .rope_high_freq_factor = 4, .rope_original_max_position = 8192
#define SHAPE(C, I, L, H, K)                                                                                 \
  .hidden_size = (C), .intermediate_size = (I), .num_layers = (L), .num_heads = (H), .num_kv_heads = (K),    \
  .head_dim = (C) / (H)

static const preset presets[] = {
    {"tiny",
     {.vocab_size = 256,
      .max_position_embeddings = 4096,
      .rms_norm_eps = 1e-5,
      .rope_theta = 1e4,
      .rope_factor = 1,
      .initializer_range = 0.02,
      SHAPE(128, 352, 4, 4, 2)}},
    {"llama-1b",
     {.vocab_size = 32000,
      .max_position_embeddings = 2048,
      .rms_norm_eps = 1e-6,
      .rope_theta = 1e4,
      .rope_factor = 1,
      .initializer_range = 0.02,
      SHAPE(4096, 11008, 4, 32, 32)}},
    {"llama2-7b", {LLAMA2, SHAPE(4096, 11008, 32, 32, 32)}},
    {"llama2-13b", {LLAMA2, SHAPE(5120, 13824, 40, 40, 40)}},
    {"llama2-70b", {LLAMA2, SHAPE(8192, 28672, 80, 64, 8)}},
    {"llama3-8b", {LLAMA3_0, SHAPE(4096, 14336, 32, 32, 8)}},
    {"llama3-70b", {LLAMA3_0, SHAPE(8192, 28672, 80, 64, 8)}},
    {"llama3-405b", {LLAMA3_1, SHAPE(16384, 53248, 126, 128, 8)}},
};
static const int preset_count = (int)(sizeof presets / sizeof *presets);

bool fsdp_llama_is_preset(const char *name) {
  for (int i = 0; i < preset_count; i++)
    if (!strcmp(presets[i].name, name)) return true;
  return false;
}

const char *fsdp_llama_preset_name(int index) {
  return index >= 0 && index < preset_count ? presets[index].name : NULL;
}

fsdp_status fsdp_llama_preset(const char *name, fsdp_llama_config *config, fsdp_error *error) {
  char names[256] = "";
  for (int i = 0; i < preset_count; i++) {
    if (!strcmp(presets[i].name, name)) {
      *config = presets[i].config;
      return FSDP_OK;
    }
    size_t used = strlen(names);
    snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", presets[i].name);
  }
  return fsdp_fail(error, FSDP_ERR_OPTION, "no model preset '%s': the presets are %s", name, names);
}

// One field's range, for a message that names it.
static fsdp_status check_range(const char *field, int64_t value, int64_t most, const char *where,
                               fsdp_error *error) {
  if (value >= 1 && value <= most) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_INPUT, "%s is %lld in %s: it must be between 1 and %lld", field,
                   (long long)value, where, (long long)most);
}

static fsdp_status check_ranges(const fsdp_llama_config *c, const char *where, fsdp_error *error) {
  const struct {
    const char *field;
    int64_t value, most;
  } fields[] = {
      {"vocab_size", c->vocab_size, INT32_MAX},
      {"hidden_size", c->hidden_size, 1 << 22},
      {"intermediate_size", c->intermediate_size, 1 << 24},
      {"num_hidden_layers", c->num_layers, 1 << 14},
      {"num_attention_heads", c->num_heads, 1 << 16},
      {"num_key_value_heads", c->num_kv_heads, 1 << 16},
      {"head_dim", c->head_dim, 1024},
  };
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
    fsdp_status status = check_range(fields[i].field, fields[i].value, fields[i].most, where, error);
    if (status) return status;
  }
  return FSDP_OK;
}

fsdp_status fsdp_llama_check(const fsdp_llama_config *c, const char *where, fsdp_error *error) {
  fsdp_status status = check_ranges(c, where, error);
  if (status) return status;
  if (c->num_heads % c->num_kv_heads)
    return fsdp_fail(
        error, FSDP_ERR_INPUT,
        "num_attention_heads %lld is not divisible by num_key_value_heads %lld in %s: each key/value head "
        "serves an equal group of heads",
        (long long)c->num_heads, (long long)c->num_kv_heads, where);
  if (c->num_heads * c->head_dim > 1 << 22 || fsdp_llama_parameter_count(c) > (int64_t)1 << 46)
    return fsdp_fail(
        error, FSDP_ERR_INPUT,
        "the shape in %s is beyond what the runtime counts: heads times head_dim is %lld (at most 2^22), "
        "and the parameters may number 2^46 at most",
        where, (long long)(c->num_heads * c->head_dim));
  if (c->head_dim % 2)
    return fsdp_fail(error, FSDP_ERR_INPUT, "head_dim is %lld in %s: RoPE rotates pairs, so it must be even",
                     (long long)c->head_dim, where);
  if (!(c->rms_norm_eps > 0) || !(c->rms_norm_eps < 1))
    return fsdp_fail(error, FSDP_ERR_INPUT, "rms_norm_eps is %g in %s: it must be above 0 and below 1",
                     c->rms_norm_eps, where);
  if (!(c->rope_theta > 0))
    return fsdp_fail(error, FSDP_ERR_INPUT, "rope_theta is %g in %s: it must be above 0", c->rope_theta,
                     where);
  if (c->rope_scaling != FSDP_ROPE_DEFAULT && !(c->rope_factor >= 1))
    return fsdp_fail(error, FSDP_ERR_INPUT, "the rope scaling's factor is %g in %s: it must be at least 1",
                     c->rope_factor, where);
  if (c->rope_scaling == FSDP_ROPE_LLAMA3 &&
      !(c->rope_low_freq_factor > 0 && c->rope_high_freq_factor > c->rope_low_freq_factor &&
        c->rope_original_max_position > 0))
    return fsdp_fail(
        error, FSDP_ERR_INPUT,
        "the llama3 rope scaling in %s has low_freq_factor %g, high_freq_factor %g, "
        "original_max_position_embeddings %lld: the first must be above 0 and below the second, the last "
        "above 0",
        where, c->rope_low_freq_factor, c->rope_high_freq_factor, (long long)c->rope_original_max_position);
  return FSDP_OK;
}

int64_t fsdp_llama_parameter_count(const fsdp_llama_config *c) {
  int64_t heads = (2 * c->num_heads + 2 * c->num_kv_heads) * c->head_dim * c->hidden_size;
  int64_t layer = heads + 3 * c->intermediate_size * c->hidden_size + 2 * c->hidden_size;
  int64_t tables = (c->tie_word_embeddings ? 1 : 2) * c->vocab_size * c->hidden_size;
  return c->num_layers * layer + tables + c->hidden_size;
}
