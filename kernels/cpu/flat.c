// Movement and reductions over flat ranges.
#include "kernels/cpu/operand.h"

#include <math.h>

enum {
  BLOCK = 16384, // elements of a task
  CHUNK = 1024,  // elements that are converted at a time
  SUMS_MAX = 1024,
};

typedef struct flat {
  const fsdp_view *source, *destination;
  int64_t count, first; // `first`: of this region
  bool squares;
  double sums[SUMS_MAX];
} flat;

static void cast_block(void *argument, int64_t index, void *scratch) {
  const flat *k = argument;
  int64_t first = index * BLOCK, n = fsdp_min_i64(BLOCK, k->count - first);
  (void)scratch;
  FSDP_CPU(convert)
  (k->source->dtype, element(k->source, first), k->destination->dtype, element(k->destination, first), n);
}

// Runs a body over the blocks of two operands.
static void move(const fsdp_kernel_call *call, void (*block)(void *argument, int64_t index, void *scratch)) {
  const fsdp_view *o = open_operands(call, 0);
  flat k = {.source = &o[0], .destination = &o[1], .count = o[0].numel};
  fsdp_pool_run(call->pool, blocks_of(k.count, BLOCK), block, &k);
}

void FSDP_CPU(cast)(const fsdp_kernel_call *call) {
  move(call, cast_block);
}

static void add_block(void *argument, int64_t index, void *scratch) {
  const flat *k = argument;
  float *buffer = scratch;
  int64_t end = fsdp_min_i64(k->count, (index + 1) * BLOCK);
  for (int64_t i = index * BLOCK; i < end; i += CHUNK) {
    int64_t n = fsdp_min_i64(CHUNK, end - i);
    const float *source = load(k->source, i, n, buffer);
    float *sum = result(k->destination, i, buffer + CHUNK);
    if (sum == buffer + CHUNK) load_into(k->destination, i, n, sum);
    for (int64_t j = 0; j < n; j++) sum[j] += source[j];
    store(k->destination, i, n, sum);
  }
}

void FSDP_CPU(add)(const fsdp_kernel_call *call) {
  move(call, add_block);
}

static void zero_block(void *argument, int64_t index, void *scratch) {
  const flat *k = argument;
  int64_t first = index * BLOCK, n = fsdp_min_i64(BLOCK, k->count - first);
  (void)scratch;
  memset(element(k->destination, first), 0, (size_t)(n * fsdp_dtype_bytes(k->destination->dtype)));
}

// Runs a body over the blocks of every operand.
static void fill(const fsdp_kernel_call *call, void (*block)(void *argument, int64_t index, void *scratch)) {
  const fsdp_view *o = open_operands(call, 0);
  for (int i = 0; i < call->operand_count; i++) {
    flat k = {.destination = &o[i], .count = o[i].numel};
    fsdp_pool_run(call->pool, blocks_of(k.count, BLOCK), block, &k);
  }
}

void FSDP_CPU(zero)(const fsdp_kernel_call *call) {
  fill(call, zero_block);
}

// Signalling NaN: the quiet bit is clear and another bit of the fraction is set.
static void poison_block(void *argument, int64_t index, void *scratch) {
  const flat *k = argument;
  int64_t first = index * BLOCK, n = fsdp_min_i64(BLOCK, k->count - first);
  (void)scratch;
  if (fsdp_dtype_bytes(k->destination->dtype) == 4) {
    uint32_t *words = element(k->destination, first);
    for (int64_t i = 0; i < n; i++) words[i] = 0x7fa0dead;
  } else {
    uint16_t *words = element(k->destination, first),
             pattern = k->destination->dtype == FSDP_F16 ? 0x7d01 : 0x7fa1;
    for (int64_t i = 0; i < n; i++) words[i] = pattern;
  }
}

void FSDP_CPU(poison)(const fsdp_kernel_call *call) {
  fill(call, poison_block);
}

// In fp32 over a chunk, in double from there on.
static void sum_block(void *argument, int64_t index, void *scratch) {
  flat *k = argument;
  float *buffer = scratch, *ones = buffer + CHUNK;
  int64_t end = fsdp_min_i64(k->count, k->first + (index + 1) * BLOCK);
  double sum = 0;
  for (int i = 0; i < CHUNK; i++) ones[i] = 1.0f;
  for (int64_t i = k->first + index * BLOCK; i < end; i += CHUNK) {
    int64_t n = fsdp_min_i64(CHUNK, end - i);
    const float *x = load(k->source, i, n, buffer);
    sum += (double)vf_dot(x, k->squares ? x : ones, n);
  }
  k->sums[index] = sum;
}

static void reduce(const fsdp_kernel_call *call, bool squares) {
  const fsdp_view *o = open_operands(call, 0), *sum = &o[1];
  flat k = {.source = &o[0], .count = o[0].numel, .squares = squares};
  double total = 0;
  for (k.first = 0; k.first < k.count; k.first += (int64_t)BLOCK * SUMS_MAX) {
    int64_t blocks = fsdp_min_i64(SUMS_MAX, blocks_of(k.count - k.first, BLOCK));
    fsdp_pool_run(call->pool, blocks, sum_block, &k);
    for (int64_t i = 0; i < blocks; i++) total += k.sums[i];
  }
  if (squares) total *= (double)call->attrs->norm_weight;
  float *out = sum->data;
  *out = (float)(updates(sum) ? (double)*out + total : total);
}

void FSDP_CPU(sum_squares)(const fsdp_kernel_call *call) {
  reduce(call, true);
}

void FSDP_CPU(sum)(const fsdp_kernel_call *call) {
  reduce(call, false);
}

void FSDP_CPU(clip_factor)(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  const fsdp_view *o = open_operands(call, 0);
  float norm = sqrtf(*(const float *)o[0].data), factor = attrs->max_norm / (norm + 1e-6f);
  *(float *)o[1].data = norm;
  *(float *)o[2].data = FSDP_NORM_SKIPS(norm, attrs->norm_limit) ? FSDP_FACTOR_SKIP
                        : attrs->max_norm == 0 || factor > 1.0f  ? 1.0f
                                                                 : factor;
}
