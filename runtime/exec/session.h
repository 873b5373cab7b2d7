// The session of one rank: device, communicators and executor, made together and destroyed in order.
//
//   plan ─► device: arenas, streams ─► communicators over the arenas ─► executor
//
// The one place that pairs a device with its kernels and its communicators.
#pragma once

#include "runtime/comm/comm_inproc.h"
#include "runtime/comm/comm_nccl.h"
#include "runtime/comm/world.h"
#include "runtime/device/gpu.h"
#include "runtime/exec/executor.h"
#include "runtime/exec/product_choice.h"

typedef struct fsdp_session_config {
  const fsdp_plan *plan; // outlives the session; NULL: communicators alone
  // The ranks: processes of a world, or threads of this process; if both are NULL, this rank is the only one.
  fsdp_world *world;
  fsdp_inproc *inproc; // fsdp_session_inproc
  int rank;            // of inproc; a world has its own
  const fsdp_gpu *gpu; // NULL or not present: the CPU
  int threads;         // CPU threads that this rank may use
  // Without a plan: sizes of the arenas, threads of each stream (as in fsdp_device_config), and the groups of
  // the world that this rank joins.
  int64_t arena_bytes[FSDP_SPACE_COUNT];
  int stream_threads[FSDP_STREAM_COUNT];
  const fsdp_comm_group *groups;
  int group_count;
  bool messages; // send messages even where peers could be read directly
  // CUDA, several ranks: as in fsdp_nccl_config.
  int comm_timeout_s;
  fsdp_nccl_register nccl_register;
  fsdp_nccl_ctas nccl_ctas;
  // As in fsdp_executor_config.
  fsdp_executor_callbacks callbacks;
  uint64_t seed;
  bool measure, profile;
  fsdp_traced_steps traced;
} fsdp_session_config;

typedef struct fsdp_session {
  fsdp_device *device;
  fsdp_comms comms;
  fsdp_executor *executor;      // NULL without a plan
  fsdp_nccl_use nccl;           // CUDA, several ranks
  fsdp_product_choice products; // of a GPU's plan
} fsdp_session;

// In a world every rank must call it, and all return the same status and error; `config` is not kept.
// `session` may be destroyed whatever is returned.
fsdp_status fsdp_session_create(const fsdp_session_config *config, fsdp_session *session, fsdp_error *error);

// One that is all zeros is allowed.
void fsdp_session_destroy(fsdp_session *session);

// Where the plan's ranks meet as threads of this process; outlives their sessions.
fsdp_inproc *fsdp_session_inproc(const fsdp_plan *plan);
