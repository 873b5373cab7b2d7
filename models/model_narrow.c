#include "models/decoder_traits.h"
#include "models/family.h"
#include "models/model.h"

#include <string.h>

// Sizes that are tried from the least on; heads and groups up to the latter.
enum { SIZES_TRIED = 64, HEADS_MAX = 8 };
enum { HEAD_DIM_LEAST = 8, HIDDEN_LEAST = 24, INTERMEDIATE_LEAST = 26, VOCABULARY_LEAST = 37 };

// ---- Facts

// How `ranks` cut `size` items: the bits are what a plan may depend on.
static unsigned facts_of(int64_t size, int64_t ranks) {
  int64_t part = (size + ranks - 1) / ranks;
  bool even = size % ranks == 0, fewer = size < ranks, shares = fewer && ranks % size == 0;
  bool last_is_empty = part * (ranks - 1) >= size;
  return even | (unsigned)fewer << 1 | (unsigned)shares << 2 | (unsigned)last_is_empty << 3;
}

static int differing(int64_t size, int64_t narrow, const fsdp_narrow_cuts *cuts) {
  int count = (size > 1) != (narrow > 1);
  for (int i = 0; i < cuts->count; i++)
    count += __builtin_popcount(facts_of(size, cuts->items[i].from) ^ facts_of(narrow, cuts->items[i].to));
  return count;
}

int fsdp_narrow_size(int64_t size, int64_t least, const fsdp_narrow_cuts *cuts, int64_t *out) {
  int fewest = -1;
  if (least > size) least = size;
  for (int64_t tried = least; tried <= size && tried < least + SIZES_TRIED && fewest != 0; tried++) {
    int count = differing(size, tried, cuts);
    if (fewest >= 0 && count >= fewest) continue;
    fewest = count;
    *out = tried;
  }
  return fewest;
}

// ---- Heads

// Replicas of key/value heads share the query heads of each.
static int differing_groups(int64_t kv_heads, int64_t group, int64_t narrow_kv, int64_t narrow_group,
                            const fsdp_narrow_cuts *cuts) {
  int count = 0;
  for (int i = 0; i < cuts->count; i++) {
    const fsdp_narrow_cut *cut = &cuts->items[i];
    bool shares = cut->from > kv_heads && cut->from % kv_heads == 0;
    if (!shares || cut->to % narrow_kv != 0) continue;
    count += __builtin_popcount(facts_of(group, cut->from / kv_heads) ^
                                facts_of(narrow_group, cut->to / narrow_kv));
  }
  return count;
}

static int narrow_heads(const fsdp_model_config *c, const fsdp_narrow_cuts *cuts, fsdp_model_config *out) {
  int64_t group = c->num_heads / c->num_kv_heads;
  int fewest = -1;
  for (int64_t kv = 1; kv <= c->num_kv_heads && kv <= HEADS_MAX; kv++) {
    for (int64_t g = group > 1 ? 2 : 1; g <= group && g <= HEADS_MAX; g++) {
      int count = differing(c->num_kv_heads, kv, cuts) + differing(c->num_heads, kv * g, cuts) +
                  differing_groups(c->num_kv_heads, group, kv, g, cuts);
      bool fewer_heads = count == fewest && kv * g < out->num_heads;
      if (fewest >= 0 && count >= fewest && !fewer_heads) continue;
      fewest = count;
      out->num_kv_heads = kv;
      out->num_heads = kv * g;
    }
  }
  return fewest;
}

// Where heads fill the residual stream, they still do. Pairs are rotated: an even size stays even.
static int narrow_widths(const fsdp_model_config *c, const fsdp_narrow_cuts *cuts, fsdp_model_config *out) {
  int64_t least = HEAD_DIM_LEAST + c->head_dim % 2;
  int fewest = -1;
  out->head_dim = c->head_dim < least ? c->head_dim : least;
  if (c->hidden_size != c->num_heads * c->head_dim)
    return fsdp_narrow_size(c->hidden_size, HIDDEN_LEAST, cuts, &out->hidden_size);
  for (int64_t tried = out->head_dim; tried <= c->head_dim && tried < least + 16; tried += 2) {
    int count = differing(c->hidden_size, out->num_heads * tried, cuts);
    if (fewest >= 0 && count >= fewest) continue;
    fewest = count;
    out->head_dim = tried;
    out->hidden_size = out->num_heads * tried;
  }
  return fewest;
}

// ---- The rest

// A window inside a sequence stays inside it.
static int64_t narrow_window(const fsdp_model_config *c, const fsdp_narrowing *n) {
  if (c->window <= 1 || c->window >= n->seq) return c->window;
  int64_t window = (c->window * n->narrow_seq + n->seq / 2) / n->seq;
  if (window >= n->narrow_seq) window = n->narrow_seq - 1;
  return window < 2 ? (n->narrow_seq > 2 ? 2 : 1) : window;
}

static int narrow_positions(const fsdp_model_config *c, const fsdp_narrowing *n, fsdp_model_config *out) {
  if (!c->family->learned_positions) return 0;
  if (c->max_position_embeddings > n->seq)
    return fsdp_narrow_size(c->max_position_embeddings, n->narrow_seq + 1, &n->cuts,
                            &out->max_position_embeddings);
  out->max_position_embeddings = n->narrow_seq;
  return differing(c->max_position_embeddings, n->narrow_seq, &n->cuts);
}

// Kept layers are as they were: with experts or without. The first ones without them are counted where the
// family cannot list any.
static void narrow_dense_layers(const fsdp_model_config *c, const fsdp_narrowing *n, fsdp_model_config *out) {
  if (!c->experts) return;
  out->first_expert_layer = 0;
  out->expert_layer_step = c->expert_layer_step > 0;
  memset(out->dense_layers, 0, sizeof out->dense_layers);
  for (int i = 0; i < n->layer_count && i < FSDP_MODEL_LISTED_DENSE; i++) {
    if (fsdp_model_has_experts(c, n->layers[i])) continue;
    if (c->family->decoder->lists_dense_layers)
      out->dense_layers[i / 64] |= (uint64_t)1 << i % 64;
    else
      out->first_expert_layer++;
  }
}

int fsdp_model_narrow(const fsdp_model_config *config, const fsdp_narrowing *n, fsdp_model_config *out) {
  *out = *config;
  int count = narrow_heads(config, &n->cuts, out);
  count += narrow_widths(config, &n->cuts, out);
  count += fsdp_narrow_size(config->intermediate_size, INTERMEDIATE_LEAST, &n->cuts, &out->intermediate_size);
  if (config->experts)
    count += fsdp_narrow_size(config->expert_size, INTERMEDIATE_LEAST, &n->cuts, &out->expert_size);
  if (config->shared_expert_size)
    count +=
        fsdp_narrow_size(config->shared_expert_size, INTERMEDIATE_LEAST, &n->cuts, &out->shared_expert_size);
  if (config->rotary_dim)
    out->rotary_dim = 2 * ((config->rotary_dim * out->head_dim / config->head_dim + 1) / 2);
  count += fsdp_narrow_size(config->vocab_size, VOCABULARY_LEAST, &n->cuts, &out->vocab_size);
  count += narrow_positions(config, n, out);
  if (config->padding_token == config->vocab_size)
    out->padding_token = out->vocab_size;
  else if (config->padding_token)
    out->padding_token = 1 + (config->padding_token - 1) % (out->vocab_size - 1);
  out->window = narrow_window(config, n);
  out->num_layers = n->layer_count;
  out->first_window_layer = 0;
  out->replays_routes = false; // nothing is recorded of it
  narrow_dense_layers(config, n, out);
  for (int i = 0; i < n->layer_count; i++)
    out->first_window_layer += n->layers[i] < config->first_window_layer;
  return count;
}
