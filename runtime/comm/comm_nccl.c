// The only file with raw NCCL calls. The library is loaded when several ranks use GPUs, and never linked.
#include "runtime/comm/comm_nccl.h"

#include "runtime/base/check.h"
#include "runtime/base/cuda_check.h"
#include "runtime/base/library.h"
#include "runtime/comm/watchdog.h"

#include <nccl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

// ---- The library

// With these versions a function or a setting came; the header's is what this build knows, the library's may
// be older or newer.
#define SINCE_LEAST   21900 // ncclMemAlloc, ncclCommRegister
#define SINCE_ROOTS   22300 // several roots start a communicator
#define SINCE_ORDERS  22600 // NCCL_LAUNCH_ORDER_IMPLICIT
#define SINCE_WINDOWS 22800 // symmetric windows, and policies that use them

#define FUNCTIONS(f)                                                                                         \
  f(ncclAllGather);                                                                                          \
  f(ncclAllReduce);                                                                                          \
  f(ncclCommDeregister);                                                                                     \
  f(ncclCommDestroy);                                                                                        \
  f(ncclCommFinalize);                                                                                       \
  f(ncclCommGetAsyncError);                                                                                  \
  f(ncclCommInitRankConfig);                                                                                 \
  f(ncclCommRegister);                                                                                       \
  f(ncclCommSplit);                                                                                          \
  f(ncclGetErrorString);                                                                                     \
  f(ncclGetLastError);                                                                                       \
  f(ncclGetUniqueId);                                                                                        \
  f(ncclGetVersion);                                                                                         \
  f(ncclMemAlloc);                                                                                           \
  f(ncclMemFree);                                                                                            \
  f(ncclReduceScatter)

// NULL in a library that is older than they are.
#if NCCL_VERSION_CODE >= SINCE_WINDOWS
#define LATER_FUNCTIONS(f)                                                                                   \
  f(ncclCommInitRankScalable);                                                                               \
  f(ncclCommWindowRegister);                                                                                 \
  f(ncclCommWindowDeregister)
#elif NCCL_VERSION_CODE >= SINCE_ROOTS
#define LATER_FUNCTIONS(f) f(ncclCommInitRankScalable)
#else
#define LATER_FUNCTIONS(f)
#endif

typedef struct nccl_functions {
#define DECLARE(name) __typeof__(&(name)) name
  FUNCTIONS(DECLARE);
  LATER_FUNCTIONS(DECLARE);
#undef DECLARE
  int version; // 22809: 2.28.9; 0: not loaded
} nccl_functions;

// Of a build that found the header and no library.
#ifndef FSDP_NCCL_FOLDER
#define FSDP_NCCL_FOLDER ""
#endif
#define INSTEAD "use one rank, or --backend cpu"

static nccl_functions nccl; // all zero until it is loaded

static void print_version(int version, char out[32]) {
  const int major = version < 10000 ? 1000 : 10000; // 2804: 2.8.4
  snprintf(out, 32, "%d.%d.%d", version / major, version % major / 100, version % 100);
}

static fsdp_status check_least(int version, fsdp_error *error) {
  if (version >= SINCE_LEAST) return FSDP_OK;
  char have[32], least[32];
  print_version(version, have);
  print_version(SINCE_LEAST, least);
  return fsdp_fail(error, FSDP_ERR_PEER,
                   "libnccl.so.2 is NCCL %s, and %s or later is needed: install it, or add the folder of a "
                   "newer one to LD_LIBRARY_PATH, or " INSTEAD,
                   have, least);
}

fsdp_status fsdp_nccl_load(fsdp_error *error) {
  if (nccl.version > 0) return FSDP_OK;
  nccl_functions found = {0};
  fsdp_library_function functions[32] = {{"ncclGetVersion", &found.ncclGetVersion, false}};
  fsdp_library library = {.title = "NCCL",
                          .file = "libnccl.so.2",
                          .folder = FSDP_NCCL_FOLDER,
                          .source = "which comes with NCCL's package and with PyTorch",
                          .instead = INSTEAD,
                          .least = "2.19",
                          .functions = functions,
                          .function_count = 1};
  // The version first: a library that is too old lacks functions too.
  fsdp_status status = fsdp_library_load(&library, error);
  if (status != FSDP_OK) return status;
  if (found.ncclGetVersion(&found.version) != ncclSuccess) found.version = 0;
  status = check_least(found.version, error);
  if (status != FSDP_OK) return status;
  int count = 0;
#define REQUIRE(name) functions[count++] = (fsdp_library_function){#name, &found.name, false}
  FUNCTIONS(REQUIRE);
#undef REQUIRE
#define TRY(name) functions[count++] = (fsdp_library_function){#name, &found.name, true}
  LATER_FUNCTIONS(TRY);
#undef TRY
  library.function_count = count;
  status = fsdp_library_load(&library, error);
  if (status == FSDP_OK) nccl = found;
  return status;
}

// ---- Communicators

// Shared by the communicators of a process; destroyed with the last of them.
typedef struct shared_part {
  fsdp_watchdog *watchdog;
  pthread_mutex_t calls; // held during a call: the watchdog asks a communicator only between them
  ncclComm_t world;
  ncclComm_t all[FSDP_COMMS_MAX]; // whom the watchdog asks; NULL: none
  int users;
} shared_part;

typedef struct nccl_comm {
  fsdp_comm base;
  ncclComm_t comm;
  shared_part *shared;
  void *registration; // of the arena; NULL: none
#if NCCL_VERSION_CODE >= SINCE_WINDOWS
  ncclWindow_t window; // of the arena; NULL: none
#endif
} nccl_comm;

// ---- Calls

static void fail_call(const char *call, ncclComm_t comm, ncclResult_t result) {
  FSDP_JOB_PEER_FAIL(call, "%s: %s", nccl.ncclGetErrorString(result),
                     comm ? nccl.ncclGetLastError(comm) : "");
}

// A call may wait for peers: the first on a communicator connects to them, and a full queue of the GPU takes
// nothing. The watch then says who has not come, and ends the job after the time limit.
static void show_call(bool begins) {
  fsdp_lane_wait(&fsdp_board_mine->lanes[FSDP_LANE_MAIN], begins);
}

#define CALL_NCCL(self, name, ...)                                                                           \
  do {                                                                                                       \
    pthread_mutex_lock(&(self)->shared->calls);                                                              \
    show_call(true);                                                                                         \
    ncclResult_t nccl_result = nccl.name(__VA_ARGS__);                                                       \
    show_call(false);                                                                                        \
    pthread_mutex_unlock(&(self)->shared->calls);                                                            \
    if (nccl_result != ncclSuccess) fail_call(#name, (self)->comm, nccl_result);                             \
  } while (0)

static ncclDataType_t type_of(fsdp_dtype dtype) {
  FSDP_CHECK(dtype == FSDP_F32 || dtype == FSDP_BF16, "collectives take fp32 and bf16, not %s",
             fsdp_dtype_name(dtype));
  return dtype == FSDP_F32 ? ncclFloat32 : ncclBfloat16;
}

// A gather moves bytes as they are: integers go as numbers of as many.
static ncclDataType_t moved_type_of(fsdp_dtype dtype) {
  return type_of(dtype == FSDP_I32 ? FSDP_F32 : dtype);
}

// ---- Collectives

static void nccl_all_gather(fsdp_comm *comm, const fsdp_collective *call) {
  nccl_comm *self = (nccl_comm *)comm;
  CALL_NCCL(self, ncclAllGather, call->input, call->output, (size_t)call->numel, moved_type_of(call->dtype),
            self->comm, (cudaStream_t)call->stream);
  fsdp_watchdog_post(self->shared->watchdog, call->stream, call->lane, call->place);
}

static void nccl_reduce_scatter(fsdp_comm *comm, const fsdp_collective *call) {
  nccl_comm *self = (nccl_comm *)comm;
  int64_t slot = call->numel * fsdp_dtype_bytes(call->dtype);
  uintptr_t input = (uintptr_t)call->input, output = (uintptr_t)call->output;
  bool inside = output >= input && output < input + (uintptr_t)(slot * comm->size);
  // In place means the own slot to the library; an output elsewhere in the input gets its copy afterwards.
  void *own = (void *)(input + (uintptr_t)(slot * comm->rank));
  void *target = inside ? own : call->output;
  CALL_NCCL(self, ncclReduceScatter, call->input, target, (size_t)call->numel, type_of(call->dtype), ncclSum,
            self->comm, (cudaStream_t)call->stream);
  if (target != call->output) {
    CALL_CUDA(cudaMemcpyAsync(call->output, target, (size_t)slot, cudaMemcpyDeviceToDevice,
                              (cudaStream_t)call->stream));
  }
  fsdp_watchdog_post(self->shared->watchdog, call->stream, call->lane, call->place);
}

static void nccl_all_reduce(fsdp_comm *comm, const fsdp_collective *call) {
  nccl_comm *self = (nccl_comm *)comm;
  CALL_NCCL(self, ncclAllReduce, call->output, call->output, (size_t)call->numel, type_of(call->dtype),
            ncclSum, self->comm, (cudaStream_t)call->stream);
  fsdp_watchdog_post(self->shared->watchdog, call->stream, call->lane, call->place);
}

// ---- Start and end

// The watchdog's question to every communicator, unless a call is under way.
static void look_at_comms(void *owner) {
  shared_part *shared = owner;
  if (pthread_mutex_trylock(&shared->calls) != 0) return;
  for (int g = 0; g < FSDP_COMMS_MAX; g++) {
    ncclResult_t result = ncclSuccess;
    if (!shared->all[g]) continue;
    ncclResult_t asked = nccl.ncclCommGetAsyncError(shared->all[g], &result);
    if (asked != ncclSuccess) result = asked;
    if (result == ncclSuccess || result == ncclInProgress) continue;
    FSDP_JOB_PEER_FAIL("ncclCommGetAsyncError", "communicator %d has failed: %s (%s)", g,
                       nccl.ncclGetErrorString(result), nccl.ncclGetLastError(shared->all[g]));
  }
  pthread_mutex_unlock(&shared->calls);
}

static void finish(ncclComm_t comm) {
  show_call(true);
  nccl.ncclCommFinalize(comm);
  show_call(false);
  nccl.ncclCommDestroy(comm);
}

// The watchdog must not ask a communicator that is going, so it goes with the first of them.
static void nccl_destroy(fsdp_comm *comm) {
  nccl_comm *self = (nccl_comm *)comm;
  shared_part *shared = self->shared;
  fsdp_watchdog_destroy(shared->watchdog);
  shared->watchdog = NULL;
  if (self->registration) nccl.ncclCommDeregister(self->comm, self->registration);
#if NCCL_VERSION_CODE >= SINCE_WINDOWS
  if (self->window) nccl.ncclCommWindowDeregister(self->comm, self->window);
#endif
  if (self->comm != shared->world) finish(self->comm);
  free(self);
  if (--shared->users > 0) return;
  finish(shared->world);
  pthread_mutex_destroy(&shared->calls);
  free(shared);
}

static fsdp_status fail_start(const char *call, ncclResult_t result, fsdp_error *error) {
  if (result == ncclInProgress) {
    return fsdp_fail(error, FSDP_ERR_PEER,
                     "%s returned before it was complete: unset NCCL_COMM_BLOCKING, with which NCCL starts a "
                     "thread for every collective",
                     call);
  }
  return fsdp_fail(error, FSDP_ERR_PEER, "%s failed: %s (%s); NCCL_DEBUG=INFO says more", call,
                   nccl.ncclGetErrorString(result), nccl.ncclGetLastError(NULL));
}

// Communicators block: on one that does not, every call starts a thread from NCCL 2.26 on, and must be asked
// about until that has ended. Between buffers of symmetric windows a gather is made by copy engines; other
// collectives take as few multiprocessors as reach the links' rate. `group`: NULL if it makes no collective.
static ncclConfig_t settings_of(const fsdp_nccl_use *use, const fsdp_comm_group *group) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
#if NCCL_VERSION_CODE >= SINCE_WINDOWS
  if (use->policies && group)
    config.CTAPolicy = use->windows && group->moves ? NCCL_CTA_POLICY_ZERO : NCCL_CTA_POLICY_EFFICIENCY;
#else
  (void)use, (void)group;
#endif
  return config;
}

// The first group that spans the world takes the world's communicator: one belongs to one stream. -1: none.
static int world_group(const fsdp_world *world, const fsdp_nccl_config *config) {
  for (int g = 0; g < config->group_count; g++)
    if (config->groups[g].size == world->size) return g;
  return -1;
}

// Why there are no symmetric windows; NULL: all ranks can have them. `version`: the oldest library's.
static const char *why_no_windows(fsdp_world *world, const fsdp_nccl_wish *wish, int64_t version) {
  const bool shared = fsdp_world_min(world, !wish->shares_gpu) == 0;
  if (wish->registers == FSDP_NCCL_REGISTER_OFF) return "--nccl-register is off";
  if (NCCL_VERSION_CODE < SINCE_WINDOWS) return "this was built with a header older than NCCL 2.28";
  if (version < SINCE_WINDOWS) return "a rank's NCCL is older than 2.28";
  if (shared) return "ranks share a GPU";
  if (world->local_size < world->size) return "ranks are on several nodes";
  return NULL;
}

fsdp_nccl_use fsdp_nccl_choose(fsdp_world *world, const fsdp_nccl_wish *wish) {
  const int64_t oldest = fsdp_world_min(world, nccl.version);
  const char *why = why_no_windows(world, wish, oldest);
  fsdp_nccl_use use = {.windows = !why, .registers = !why || wish->registers == FSDP_NCCL_REGISTER_ON};
  // Of buffers that are not registered the policies change nothing.
  use.policies = use.registers && wish->ctas == FSDP_NCCL_CTAS_AUTO && NCCL_VERSION_CODE >= SINCE_WINDOWS &&
                 oldest >= SINCE_WINDOWS;
  char version[32];
  print_version(nccl.version, version);
  snprintf(use.text, sizeof use.text, "NCCL %s, %s%s%s%s%s", version,
           use.windows     ? "the arena a symmetric window"
           : use.registers ? "the arena registered"
                           : "buffers not registered",
           use.windows ? "" : " (no symmetric window: ", use.windows ? "" : why, use.windows ? "" : ")",
           !use.policies ? ""
           : use.windows ? ", gathers by copy engines, other collectives by few multiprocessors"
                         : ", by few multiprocessors");
  return use;
}

// Collectives of several communicators wait for each other's peers on the GPU, and deadlock if two GPUs start
// them in different orders. NCCL then starts them in the order of the calls, the same on every rank, but a
// collective also waits until the one before it has begun; a single communicator needs none of it. What the
// user has set stays. Gathers by copy engines count: without peer access NCCL makes them by kernels.
static void order_launches(const fsdp_nccl_config *config) {
  int count = 0;
  for (int g = 0; g < config->group_count; g++) count += config->groups[g].size > 1;
  if (count > 1) setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
}

// An older NCCL does not order what it starts for several communicators.
static void check_version(const fsdp_world *world) {
  char version[32];
  if (world->rank > 0 || nccl.version >= SINCE_ORDERS) return;
  print_version(nccl.version, version);
  fsdp_job_note("NCCL %s cannot order the collectives of several communicators, so that they may wait for "
                "each other forever; use NCCL 2.26 or later",
                version);
}

// A root tells ranks each other's addresses, one after the other.
static int count_roots(fsdp_world *world, const fsdp_nccl_config *config) {
  const int root_ranks = config->root_ranks > 0 ? config->root_ranks : FSDP_NCCL_ROOT_RANKS;
  bool many = NCCL_VERSION_CODE >= SINCE_ROOTS && nccl.version >= SINCE_ROOTS;
  // Ranks may have different libraries: they must agree.
  return fsdp_world_min(world, many) != 0 ? (world->size + root_ranks - 1) / root_ranks : 1;
}

// How a root begins; its first rank has it made.
typedef struct root {
  ncclUniqueId id;
  ncclResult_t result;
} root;

// The roots on every rank: those of several are gathered by the first, which hands them out. Root i is for
// the ranks from ranks[i] on, as NCCL divides them: the first have one more where they do not divide.
static void find_roots(fsdp_world *world, root *roots, int count) {
  int *ranks = fsdp_alloc((size_t)count * sizeof *ranks), rest = world->size % count;
  for (int i = 0; i < count; i++) ranks[i] = world->size / count * i + (i < rest ? i : rest);
  const fsdp_peers firsts = fsdp_world_among(world, ranks, count);
  root mine;
  memset(&mine, 0, sizeof mine);
  if (firsts.place >= 0) mine.result = nccl.ncclGetUniqueId(&mine.id);
  fsdp_exchange_gather_first(&firsts, &mine, (int64_t)sizeof mine, roots);
  fsdp_world_broadcast(world, roots, count * (int64_t)sizeof *roots);
  free(ranks);
}

static ncclResult_t join(const fsdp_world *world, ncclConfig_t config, const root *roots, int count,
                         ncclComm_t *comm) {
  if (count == 1) return nccl.ncclCommInitRankConfig(comm, world->size, roots[0].id, world->rank, &config);
#if NCCL_VERSION_CODE >= SINCE_ROOTS
  ncclUniqueId *ids = fsdp_alloc((size_t)count * sizeof *ids);
  for (int i = 0; i < count; i++) ids[i] = roots[i].id;
  ncclResult_t result = nccl.ncclCommInitRankScalable(comm, world->size, world->rank, count, ids, &config);
  free(ids);
  return result;
#else
  FSDP_CHECK(count == 1, "%d roots of an NCCL that has one", count);
  return ncclInvalidUsage;
#endif
}

static fsdp_status join_world(fsdp_world *world, const fsdp_nccl_config *config, shared_part *shared,
                              fsdp_error *error) {
  const int count = count_roots(world, config);
  root *roots = fsdp_alloc_zeroed((size_t)count, sizeof *roots);
  find_roots(world, roots, count);
  ncclResult_t made = ncclSuccess;
  for (int i = 0; i < count && made == ncclSuccess; i++) made = roots[i].result;
  fsdp_status status = FSDP_OK;
  if (made != ncclSuccess) {
    status = fail_start("ncclGetUniqueId", made, error);
  } else {
    show_call(true);
    const int group = world_group(world, config);
    const ncclConfig_t settings = settings_of(&config->use, group < 0 ? NULL : &config->groups[group]);
    ncclResult_t result = join(world, settings, roots, count, &shared->world);
    show_call(false);
    if (result != ncclSuccess) {
      const char *call = count == 1 ? "ncclCommInitRankConfig" : "ncclCommInitRankScalable";
      status = fail_start(call, result, error);
    }
  }
  free(roots);
  return status;
}

static fsdp_status split(const fsdp_nccl_config *config, shared_part *shared, int index, fsdp_error *error) {
  const fsdp_comm_group *group = &config->groups[index];
  ncclConfig_t settings = settings_of(&config->use, group);
  show_call(true);
  ncclResult_t result =
      nccl.ncclCommSplit(shared->world, group->color, group->rank, &shared->all[index], &settings);
  show_call(false);
  return result == ncclSuccess ? FSDP_OK : fail_start("ncclCommSplit", result, error);
}

// Every rank registers the same bytes: the plan is the same everywhere, and so is an operand's offset.
static fsdp_status register_arena(const fsdp_nccl_config *config, nccl_comm *comm, fsdp_error *error) {
  const fsdp_arenas *arenas = config->arenas;
  if (!config->use.registers || arenas->bytes[FSDP_SPACE_DEVICE] == 0) return FSDP_OK;
#if NCCL_VERSION_CODE >= SINCE_WINDOWS
  if (config->use.windows) {
    show_call(true);
    ncclResult_t made = nccl.ncclCommWindowRegister(comm->comm, arenas->memory[FSDP_SPACE_DEVICE],
                                                    (size_t)arenas->bytes[FSDP_SPACE_DEVICE], &comm->window,
                                                    NCCL_WIN_COLL_SYMMETRIC);
    show_call(false);
    return made == ncclSuccess ? FSDP_OK : fail_start("ncclCommWindowRegister", made, error);
  }
#endif
  ncclResult_t result = nccl.ncclCommRegister(comm->comm, arenas->memory[FSDP_SPACE_DEVICE],
                                              (size_t)arenas->bytes[FSDP_SPACE_DEVICE], &comm->registration);
  return result == ncclSuccess ? FSDP_OK : fail_start("ncclCommRegister", result, error);
}

static fsdp_status create_group(const fsdp_world *world, const fsdp_nccl_config *config, shared_part *shared,
                                int index, fsdp_comm **comm, fsdp_error *error) {
  static const fsdp_comm_table table = {.name = "nccl",
                                        .run = {[FSDP_ALL_GATHER] = nccl_all_gather,
                                                [FSDP_REDUCE_SCATTER] = nccl_reduce_scatter,
                                                [FSDP_ALL_REDUCE] = nccl_all_reduce},
                                        .destroy = nccl_destroy};
  const fsdp_comm_group *group = &config->groups[index];
  if (group->size == 1) {
    *comm = fsdp_cuda_comm_self();
    return FSDP_OK;
  }
  if (index == world_group(world, config)) {
    FSDP_CHECK(group->rank == world->rank, "communicator %d has rank %d of the world's %d", index,
               group->rank, world->rank);
    shared->all[index] = shared->world;
  } else {
    fsdp_status status = split(config, shared, index, error);
    if (status != FSDP_OK) return status;
  }
  nccl_comm *made = fsdp_alloc_zeroed(1, sizeof *made);
  made->base = (fsdp_comm){.table = &table, .rank = group->rank, .size = group->size};
  made->comm = shared->all[index];
  made->shared = shared;
  shared->users++;
  *comm = &made->base;
  return register_arena(config, made, error);
}

fsdp_status fsdp_nccl_comms(fsdp_world *world, const fsdp_nccl_config *config, fsdp_comms *comms,
                            fsdp_error *error) {
  memset(comms, 0, sizeof *comms);
  FSDP_CHECK(config->group_count >= 0 && config->group_count <= FSDP_COMMS_MAX, "%d communicators",
             config->group_count);
  comms->count = config->group_count;
  shared_part *shared = fsdp_alloc_zeroed(1, sizeof *shared);
  FSDP_CHECK(pthread_mutex_init(&shared->calls, NULL) == 0, "a mutex could not be made");
  FSDP_CHECK(nccl.version > 0, "call fsdp_nccl_load first");
  check_version(world);
  order_launches(config);
  fsdp_status status = join_world(world, config, shared, error);
  for (int g = 0; g < comms->count && status == FSDP_OK; g++) {
    status = create_group(world, config, shared, g, &comms->comm[g], error);
  }
  // A start that failed ends the job: what it has made is left to the end of the process.
  if (status != FSDP_OK) return status;
  int ordinal = 0;
  CALL_CUDA(cudaGetDevice(&ordinal));
  shared->watchdog = fsdp_watchdog_create(&(fsdp_watchdog_config){
      .timeout_s = config->timeout_s, .ordinal = ordinal, .look = look_at_comms, .owner = shared});
  return FSDP_OK;
}

void *fsdp_nccl_alloc(int64_t bytes) {
  void *memory = NULL;
  return nccl.ncclMemAlloc(&memory, (size_t)bytes) == ncclSuccess ? memory : NULL;
}

void fsdp_nccl_free(void *memory) {
  if (nccl.ncclMemFree(memory) != ncclSuccess) FSDP_JOB_FAIL("ncclMemFree", "the arena could not be freed");
}
