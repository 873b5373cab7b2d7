// The learning rate of each step.
//
//   s < W          lr * (s + 1) / W      warm-up over W steps, the last of them at lr
//   else           p = (s - W) / (S - W): the part of the remaining steps that is done, 0 at first
//     cosine       min + (lr - min) * (1 + cos(pi p)) / 2
//     linear       lr + (min - lr) * p
//     constant     lr
//     wsd          lr; in the last D = round(ratio * S) steps, or as many as W leaves, a line from lr to min
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
  double decay_ratio; // wsd
  int64_t first_step; // at which the schedule begins
} fsdp_learning_rate;

// W of a warm-up that is a share of all steps; rounded up, as Transformers rounds it.
int64_t fsdp_learning_rate_warmup(const fsdp_learning_rate *rate, double ratio);

// The rate of step `step`, counted from 0.
double fsdp_learning_rate_at(const fsdp_learning_rate *rate, int64_t step);
