#include "launcher/train/learning_rate.h"

#include <math.h>

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
  case FSDP_LR_CONSTANT:
    break;
  }
  return rate->lr;
}
