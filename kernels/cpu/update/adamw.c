// AdamW (Loshchilov and Hutter 2019) as torch.optim.AdamW, on flat shards.
//
// A state kept in bf16 is rounded stochastically: up with the probability of the part that is cut off, so
// that small updates are not lost on average. State s (0 master, 1 m, 2 v) of the parameter's element e takes
// 16 random bits: lane e mod 8 of the block of seven rounds of Philox (seed ^ step, the parameter's stream,
// 3 * floor(e / 8) + s). Word w of that block holds lane 2w in its low half and lane 2w + 1 in its high
// half. So the result does not depend on how the parameter is sharded. Padding between parameters rounds to
// nearest.
//
// A factor of FSDP_FACTOR_SKIP leaves everything unchanged.
#include "kernels/cpu/operand.h"
#include "runtime/base/random_rounds.h"

#include <math.h>

enum { BLOCK = 16384, CHUNK = 512, STATES = 3 };
enum { LANES = 8, WIDTH = 16 }; // 16-bit lanes of a Philox block; blocks drawn side by side
// Blocks of a chunk, which may begin inside one, and of what is drawn beyond its end.
enum { CHUNK_BLOCKS = CHUNK / LANES + 1 + WIDTH - 1 };

typedef struct update {
  const fsdp_kernel_call *call;
  const fsdp_view *grad, *state[STATES], *copy; // state: master, m, v
  int64_t count;
  uint64_t key; // of the random words
  float factor, decay, step_size, root_correction2, rest1, beta2, rest2, eps;
} update;

static void advance(const update *k, float decay, const float *restrict grad, float *restrict master,
                    float *restrict m, float *restrict v, int64_t count) {
  const float factor = k->factor, step_size = k->step_size, eps = k->eps;
  const float rest1 = k->rest1, beta2 = k->beta2, rest2 = k->rest2;
  const float inverse_root = 1.0f / k->root_correction2;
  for (int64_t i = 0; i < count; i++) {
    float g = grad[i] * factor;
    float first = m[i] + rest1 * (g - m[i]), second = beta2 * v[i] + rest2 * g * g;
    m[i] = first;
    v[i] = second;
    master[i] = decay * master[i] - step_size * first / (sqrtf(second) * inverse_root + eps);
  }
}

static int64_t end_of(const fsdp_param_run *run) {
  return run->shard_offset + run->numel;
}

// Advances elements [first, first + count), which begin in `segment` or before it: each run with its decay.
// Where it does not matter, in padding, all decays.
static void advance_runs(const update *k, int64_t first, int64_t count, const float *grad,
                         float *const values[STATES], int segment) {
  const fsdp_kernel_call *call = k->call;
  if (!call->attrs->decays_some) {
    advance(k, k->decay, grad, values[0], values[1], values[2], count);
    return;
  }
  for (int64_t at = first, end = first; at < first + count; at = end) {
    while (segment < call->segment_count && end_of(&call->segments[segment]) <= at) segment++;
    const fsdp_param_run *run = segment < call->segment_count ? &call->segments[segment] : NULL;
    const bool inside = run && run->shard_offset <= at;
    end = first + count;
    if (run) end = fsdp_min_i64(end, inside ? end_of(run) : run->shard_offset);
    advance(k, inside && run->undecayed ? 1 : k->decay, grad + (at - first), values[0] + (at - first),
            values[1] + (at - first), values[2] + (at - first), end - at);
  }
}

// The lanes of state `state` for elements [8 * first, 8 * (first + count)); fsdp_philox, unrolled over blocks
// so that it becomes vector code.
static void draw(uint64_t key, uint64_t stream, int state, uint64_t first, int64_t count,
                 uint16_t lanes[CHUNK_BLOCKS * LANES]) {
  for (int64_t block = 0; block < count; block += WIDTH) {
    uint32_t c0[WIDTH], c1[WIDTH], c2[WIDTH], c3[WIDTH], k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int i = 0; i < WIDTH; i++) {
      uint64_t index = STATES * (first + (uint64_t)(block + i)) + (uint64_t)state;
      c0[i] = (uint32_t)index, c1[i] = (uint32_t)(index >> 32);
      c2[i] = (uint32_t)stream, c3[i] = (uint32_t)(stream >> 32);
    }
    for (int round = 0; round < FSDP_ROUNDING_ROUNDS; round++) {
      for (int i = 0; i < WIDTH; i++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0[i], p1 = (uint64_t)0xCD9E8D57u * c2[i];
        c0[i] = (uint32_t)(p1 >> 32) ^ c1[i] ^ k0, c2[i] = (uint32_t)(p0 >> 32) ^ c3[i] ^ k1;
        c1[i] = (uint32_t)p1, c3[i] = (uint32_t)p0;
      }
      k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    for (int i = 0; i < WIDTH; i++) {
      uint16_t *out = lanes + (block + i) * LANES;
      out[0] = (uint16_t)c0[i], out[1] = (uint16_t)(c0[i] >> 16);
      out[2] = (uint16_t)c1[i], out[3] = (uint16_t)(c1[i] >> 16);
      out[4] = (uint16_t)c2[i], out[5] = (uint16_t)(c2[i] >> 16);
      out[6] = (uint16_t)c3[i], out[7] = (uint16_t)(c3[i] >> 16);
    }
  }
}

static void round_stochastically(const float *restrict values, const uint16_t *restrict lanes,
                                 fsdp_bf16 *restrict out, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    uint32_t bits;
    memcpy(&bits, values + i, sizeof bits);
    uint32_t added = (bits + lanes[i]) >> 16, quiet = bits >> 16 | 0x40u;
    uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t rounded = magnitude == 0x7f800000u ? bits >> 16 : added; // infinity stays
    out[i] = (fsdp_bf16)(magnitude > 0x7f800000u ? quiet : rounded);
  }
}

// The index in the parameter of element `offset` of a run; *neighbours: how many of `count` lie side by side.
static uint64_t element_of(const fsdp_param_run *run, int64_t offset, int64_t count, int64_t *neighbours) {
  *neighbours = count;
  if (run->row_numel == 0) return (uint64_t)(run->element_index + offset);
  int64_t row = offset / run->row_numel, within = offset % run->row_numel;
  *neighbours = fsdp_min_i64(count, run->row_numel - within);
  return (uint64_t)(run->element_index + row * run->row_step + within);
}

// Stores elements [first, first + count) of the states; those in segments are rounded stochastically.
static void store_states(const update *k, int64_t first, int64_t count, float *const values[STATES],
                         int *segment) {
  uint16_t lanes[CHUNK_BLOCKS * LANES];
  const fsdp_kernel_call *call = k->call;
  bool bf16 = false;
  for (int s = 0; s < STATES; s++) {
    store(k->state[s], first, count, values[s]); // nearest; what lies in a segment is stored again below
    bf16 = bf16 || k->state[s]->dtype == FSDP_BF16;
  }
  if (!bf16) return;
  while (*segment < call->segment_count && end_of(&call->segments[*segment]) <= first) ++*segment;
  for (int i = *segment; i < call->segment_count && call->segments[i].shard_offset < first + count; i++) {
    const fsdp_param_run *run = &call->segments[i];
    int64_t from = fsdp_max_i64(first, run->shard_offset);
    int64_t n = fsdp_min_i64(first + count, run->shard_offset + run->numel) - from;
    if (n <= 0) continue;
    for (int64_t end = from + n; from < end; from += n) {
      uint64_t index = element_of(run, from - run->shard_offset, end - from, &n);
      uint64_t block = index / LANES, block_end = (index + (uint64_t)n + LANES - 1) / LANES;
      for (int s = 0; s < STATES; s++) {
        if (k->state[s]->dtype != FSDP_BF16) continue;
        draw(k->key, run->random_stream, s, block, (int64_t)(block_end - block), lanes);
        round_stochastically(values[s] + (from - first), lanes + index % LANES, element(k->state[s], from),
                             n);
      }
    }
  }
}

// The first segment that ends behind element `first`.
static int find_segment(const fsdp_kernel_call *call, int64_t first) {
  int low = 0, high = call->segment_count;
  while (low < high) {
    int middle = low + (high - low) / 2;
    if (end_of(&call->segments[middle]) <= first)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

static void update_block(void *argument, int64_t index, void *scratch) {
  const update *k = argument;
  float *buffer = scratch;
  int64_t end = fsdp_min_i64(k->count, (index + 1) * BLOCK);
  int segment = find_segment(k->call, index * BLOCK);
  for (int64_t i = index * BLOCK; i < end; i += CHUNK) {
    int64_t n = fsdp_min_i64(CHUNK, end - i);
    const float *grad = load(k->grad, i, n, buffer);
    float *values[STATES];
    for (int s = 0; s < STATES; s++) {
      float *own = buffer + (s + 1) * CHUNK;
      values[s] = result(k->state[s], i, own);
      if (values[s] == own) load_into(k->state[s], i, n, own);
    }
    advance_runs(k, i, n, grad, values, segment);
    store_states(k, i, n, values, &segment);
    // The copy is of the master as stored, so that it equals a later cast of the master.
    if (k->copy) store(k->copy, i, n, load(k->state[0], i, n, values[0]));
  }
}

void FSDP_CPU(adamw)(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  // A skipped step reports the same operands as any other.
  const fsdp_view *o = open_operands(call, 0);
  update k = {.call = call, .grad = &o[0], .count = o[0].numel};
  for (int s = 0; s < STATES; s++) k.state[s] = &o[3 + s];
  if (call->operand_count == 7) k.copy = &o[6];
  const float *scalars = o[1].data;
  k.key = call->seed ^ (uint64_t)scalars[FSDP_SCALAR_STEP];
  k.factor = *(const float *)o[2].data;
  k.decay = 1.0f - scalars[FSDP_SCALAR_LR] * attrs->weight_decay;
  k.step_size = scalars[FSDP_SCALAR_LR] / scalars[FSDP_SCALAR_CORRECTION1];
  k.root_correction2 = sqrtf(scalars[FSDP_SCALAR_CORRECTION2]);
  k.rest1 = (float)(1 - attrs->beta1);
  k.beta2 = (float)attrs->beta2;
  k.rest2 = (float)(1 - attrs->beta2);
  k.eps = attrs->adam_eps;
  if (k.factor == FSDP_FACTOR_SKIP) return;
  fsdp_pool_run(call->pool, blocks_of(k.count, BLOCK), update_block, &k);
}
