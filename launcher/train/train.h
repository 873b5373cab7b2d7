// Training: from a plan to the last step, on every rank of the world.
//
//   options ─► plan ─► program ─► data, weights, log ─► device ─► state ─► steps ─► summary
//
// Ranks agree on options, program and files before they act on them.
//
// Whatever fails on one rank is shared before any rank continues, so all leave together with one message.
#pragma once

#include "launcher/options/options.h"
#include "launcher/text/sample.h"
#include "launcher/train/binding.h"
#include "runtime/comm/world.h"
#include "runtime/device/gpu.h"

typedef struct fsdp_train_config {
  fsdp_program_kind program; // fsdp_train or fsdp_eval
  fsdp_world *world;
  const fsdp_options *options; // the same on every rank
  const fsdp_binding *binding;
  const fsdp_gpu *gpu;    // not present: train on the CPU
  const char *why_cpu;    // then (device_line.h)
  fsdp_sample *sample;    // the prompt, if there is one
  fsdp_text_codec *codec; // of rank 0
} fsdp_train_config;

// Checks that every rank was started with rank 0's options. FSDP_ERR_OPTION, on every rank alike, names the
// first that differs.
fsdp_status fsdp_train_agree_on_options(fsdp_world *world, const fsdp_options *options, fsdp_error *error);

// Plans and trains; or evaluates, samples and prints. *stop_signal is the signal that ended the run early, or
// 0. Every rank returns the same status, and the same error.
fsdp_status fsdp_train_run(const fsdp_train_config *config, int *stop_signal, fsdp_error *error);
