#include "runtime/exec/session.h"

#include "runtime/base/check.h"
#include "runtime/comm/comm_nccl.h"
#include "runtime/exec/device_config.h"

#include <string.h>

#define QUEUE_CAPACITY 1024 // of streams without a plan

static bool is_cuda(const fsdp_session_config *config) {
  return config->gpu && config->gpu->present;
}

static int rank_of(const fsdp_session_config *config) {
  return config->world ? config->world->rank : config->rank;
}

// Makes an error of any rank known to all of them.
static fsdp_status settle(const fsdp_session_config *config, fsdp_error *error) {
  return config->world ? fsdp_world_share_error(config->world, error) : error->status;
}

static void create_device(const fsdp_session_config *config, fsdp_session *session, fsdp_error *error) {
  bool has_peers = config->world && config->world->size > 1;
  fsdp_device_config device = {.shared = has_peers};
  if (is_cuda(config)) device.ordinal = config->gpu->ordinal;
  if (is_cuda(config) && has_peers) {
    session->nccl =
        fsdp_nccl_choose(config->world, &(fsdp_nccl_wish){.registers = config->nccl_register,
                                                          .ctas = config->nccl_ctas,
                                                          .shares_gpu = config->gpu->sharers > 1});
  }
  if (session->nccl.registers) {
    device.allocate = fsdp_nccl_alloc;
    device.release = fsdp_nccl_free;
  }
  if (config->plan) {
    fsdp_device_configure(config->plan->program, config->threads, &device);
  } else {
    memcpy(device.arena_bytes, config->arena_bytes, sizeof device.arena_bytes);
    memcpy(device.stream_threads, config->stream_threads, sizeof device.stream_threads);
    device.queue_capacity = QUEUE_CAPACITY;
  }
  const fsdp_device_table *table = is_cuda(config) ? fsdp_device_cuda() : fsdp_device_cpu();
  FSDP_CHECK(table, "a GPU in a build without CUDA");
  table->create(&device, &session->device, error);
}

// The communicators of threads, or of a rank that is the only one.
static void create_local_comms(const fsdp_session_config *config, int count, fsdp_comms *comms) {
  comms->count = count;
  for (int c = 0; c < count; c++) {
    comms->comm[c] = config->inproc    ? fsdp_inproc_comm(config->inproc, c, config->rank)
                     : is_cuda(config) ? fsdp_cuda_comm_self()
                                       : fsdp_comm_self();
  }
}

static void create_comms(const fsdp_session_config *config, fsdp_session *session, fsdp_error *error) {
  fsdp_comm_group own[FSDP_COMMS_MAX];
  const fsdp_comm_group *groups = config->plan ? own : config->groups;
  int count = config->group_count;
  if (config->plan) count = fsdp_executor_groups(config->plan->program, rank_of(config), own);
  fsdp_comms made = {.count = 0};
  fsdp_status status = FSDP_OK;
  if (!config->world || config->world->size == 1) {
    create_local_comms(config, count, &made);
  } else if (is_cuda(config)) {
    status = fsdp_nccl_comms(config->world,
                             &(fsdp_nccl_config){.groups = groups,
                                                 .group_count = count,
                                                 .arenas = &session->device->arenas,
                                                 .timeout_s = config->comm_timeout_s,
                                                 .use = session->nccl},
                             &made, error);
  } else {
    status = fsdp_world_comms(config->world,
                              &(fsdp_comms_config){.groups = groups,
                                                   .group_count = count,
                                                   .arenas = &session->device->arenas,
                                                   .messages = config->messages},
                              &made, error);
  }
  // After a failed start, what it made is left to the process's end.
  if (status == FSDP_OK) session->comms = made;
}

static void create_executor(const fsdp_session_config *config, fsdp_session *session) {
  fsdp_executor_config executor = {.plan = config->plan,
                                   .rank = rank_of(config),
                                   .device = session->device,
                                   .kernels = is_cuda(config) ? fsdp_cuda_backend() : NULL,
                                   .callbacks = config->callbacks,
                                   .seed = config->seed,
                                   .measure = config->measure,
                                   .profile = config->profile,
                                   .traced = config->traced};
  memcpy(executor.comms, session->comms.comm, sizeof executor.comms);
  session->executor = fsdp_executor_create(&executor);
}

fsdp_status fsdp_session_create(const fsdp_session_config *config, fsdp_session *session, fsdp_error *error) {
  memset(session, 0, sizeof *session);
  error->status = FSDP_OK;
  create_device(config, session, error);
  if (settle(config, error) != FSDP_OK) return error->status;
  create_comms(config, session, error);
  if (settle(config, error) != FSDP_OK) return error->status;
  if (!config->plan) return FSDP_OK;
  if (is_cuda(config)) fsdp_cuda_backend()->products->limit(config->plan->config.gpu.gemm_multiprocessors);
  create_executor(config, session); // which notes the products
  if (!is_cuda(config)) return FSDP_OK;
  return fsdp_product_choice_make(config->world, config->gpu, fsdp_cuda_backend()->products,
                                  &session->products, error);
}

void fsdp_session_destroy(fsdp_session *session) {
  fsdp_executor_destroy(session->executor);
  fsdp_comms_destroy(&session->comms);
  if (session->device) session->device->table->destroy(session->device);
  memset(session, 0, sizeof *session);
}

fsdp_inproc *fsdp_session_inproc(const fsdp_plan *plan) {
  int ranks = fsdp_mesh_ranks(&plan->program->mesh), count = plan->program->comm_count;
  fsdp_comm_group *groups = fsdp_alloc((size_t)(ranks * count + FSDP_COMMS_MAX) * sizeof *groups);
  for (int r = 0; r < ranks; r++) fsdp_executor_groups(plan->program, r, &groups[r * count]);
  fsdp_inproc *inproc = fsdp_inproc_create(groups, count, ranks);
  free(groups);
  return inproc;
}
