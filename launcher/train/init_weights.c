#include "launcher/train/init_weights.h"

#include "runtime/base/random.h"
#include "runtime/base/size.h"

#include <string.h>

// Elements that a thread draws at a time: whole blocks of the generator.
#define PART_ELEMS ((int64_t)1 << 14)

typedef struct drawing {
  const fsdp_param *param;
  uint64_t seed, stream;
  int64_t first, numel;
  float *out;
} drawing;

static void draw_part(void *argument, int64_t index, void *scratch) {
  const drawing *d = argument;
  (void)scratch;
  int64_t begin = index * PART_ELEMS, count = fsdp_min_i64(PART_ELEMS, d->numel - begin);
  fsdp_random_normal(d->seed, d->stream, d->first + begin, count, d->param->init_mean,
                     d->param->init_deviation, d->out + begin);
  int64_t zero = fsdp_max_i64(d->param->zero_first - d->first, begin);
  int64_t end = fsdp_min_i64(d->param->zero_first + d->param->zero_numel - d->first, begin + count);
  if (zero < end) memset(d->out + zero, 0, (size_t)(end - zero) * sizeof *d->out);
}

void fsdp_init_param(fsdp_pool *pool, const fsdp_param *param, uint64_t seed, int64_t first, int64_t numel,
                     float *out) {
  drawing d = {.param = param,
               .seed = seed,
               .stream = fsdp_random_stream(param->name),
               .first = first,
               .numel = numel,
               .out = out};
  fsdp_pool_run(pool, (numel + PART_ELEMS - 1) / PART_ELEMS, draw_part, &d);
}
