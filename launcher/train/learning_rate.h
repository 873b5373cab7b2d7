// The learning rate of each step.
//
//   s < W          lr * (s + 1) / W      warm-up over W steps, the last of them at lr
//   else           p = (s - W) / (S - W): the part of the remaining steps that is done, 0 at first
//     cosine       min + (lr - min) * (1 + cos(pi p)) / 2
//     linear       lr + (min - lr) * p
//     constant     lr
//
// s counts from 0, S is the number of steps of the run: lr would be min at step S, the one after the last. A
// schedule that begins at a later step counts both from there.
#pragma once

#include "launcher/options/options.h"

#include <stdint.h>

typedef struct fsdp_learning_rate {
  fsdp_lr_schedule schedule;
  double lr, min_lr;
  int64_t warmup_steps, total_steps;
  int64_t first_step; // at which the schedule begins
} fsdp_learning_rate;

// The rate of step `step`, counted from 0.
double fsdp_learning_rate_at(const fsdp_learning_rate *rate, int64_t step);
