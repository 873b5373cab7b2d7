#include "launcher/train/learning_rate.h"

#include "runtime/base/size.h"

#include <math.h>

int64_t fsdp_learning_rate_warmup(const fsdp_learning_rate *rate, double ratio) {
  const double steps = ratio * (double)(rate->total_steps - rate->first_step);
  return (int64_t)ceil(steps - 1e-6); // 0.1 * 30 is a little more than 3
}

// Of the steps after the warm-up, `left`, those in which the rate decays.
static int64_t decay_steps(const fsdp_learning_rate *rate, int64_t left) {
  const double steps = round(rate->decay_ratio * (double)(rate->total_steps - rate->first_step));
  return fsdp_min_i64((int64_t)steps, left);
}

double fsdp_learning_rate_at(const fsdp_learning_rate *rate, int64_t step) {
  step -= rate->first_step;
  if (step < rate->warmup_steps) return rate->lr * (double)(step + 1) / (double)rate->warmup_steps;
  int64_t left = rate->total_steps - rate->first_step - rate->warmup_steps;
  double done = left > 0 ? (double)(step - rate->warmup_steps) / (double)left : 0;
  switch (rate->schedule) {
  case FSDP_LR_COSINE:
    return rate->min_lr + (rate->lr - rate->min_lr) * (1 + cos(M_PI * done)) / 2;
  case FSDP_LR_LINEAR:
    return rate->lr + (rate->min_lr - rate->lr) * done;
  case FSDP_LR_WSD: {
    const int64_t decay = decay_steps(rate, left), begin = rate->warmup_steps + left - decay;
    return step < begin ? rate->lr
                        : rate->lr + (rate->min_lr - rate->lr) * (double)(step - begin) / (double)decay;
  }
  case FSDP_LR_CONSTANT:
    break;
  }
  return rate->lr;
}
