// NCCL on the CPU, over MPI: everyone gathers what everyone sent, and sums the part that is its own as a ring
// does, rounded at every hop (ring_sum; a tree or NVLS sums in a different order, with other rounding).
//
// A communicator's first collective connects to the peers. On one that blocks it returns when all have come to
// it. On one that does not (`blocking` of its configuration, or NCCL_COMM_BLOCKING, which goes first), a call
// may be "in progress": each collective is, for up to three questions (drawn by FSDP_SIMT_SEED), before it is
// enqueued. Until ncclCommGetAsyncError says ncclSuccess, another call on the communicator and any use of the
// stream are errors.
//
// A symmetric window is of memory of ncclMemAlloc, of as many bytes on every rank. With the policy of no CTAs a
// gather whose buffers both lie in one is made by copy engines, as with peer access.
#include "runtime/base/dtype.h"
#include "tests/simt/emulator/simt.h"

#define OMPI_SKIP_MPICXX // the old C++ interface, which is not linked
#define MPICH_SKIP_MPICXX
#include <dlfcn.h>
#include <mpi.h>
#include <nccl.h>

#include <cstdlib>
#include <memory>
#include <random>
#include <set>
#include <vector>

struct ncclComm {
  MPI_Comm mpi;
  int rank, size;
  bool is_blocking, is_connected = false;
  int policy = NCCL_CTA_POLICY_DEFAULT;
  uintptr_t window_begin = 0, window_end = 0;
  const char *call = nullptr; // in progress
  int polls_left = 0;         // until it is complete
  cudaStream_t stream = nullptr;
  std::function<void()> enqueue; // what is then done, if anything
};

namespace {

struct exchange {
  std::vector<unsigned char> sent, received; // received: by rank
  MPI_Request request = MPI_REQUEST_NULL;
  bool begun = false;
};

size_t bytes_of(ncclDataType_t type) {
  return type == ncclFloat32 ? 4 : 2;
}

float element(const unsigned char *data, ncclDataType_t type, size_t i) {
  if (type == ncclFloat32) return reinterpret_cast<const float *>(data)[i];
  return fsdp_bf16_to_f32(reinterpret_cast<const fsdp_bf16 *>(data)[i]);
}

void check_range(const void *address, size_t bytes) {
  simt::memory_check(address, bytes, 1);
}

// In place means one place only to the library; anything else must not overlap.
void check_overlap(const char *what, const void *input, size_t input_bytes, const void *output,
                   size_t output_bytes, const void *in_place) {
  const auto in = reinterpret_cast<uintptr_t>(input), out = reinterpret_cast<uintptr_t>(output);
  const bool overlap = in < out + output_bytes && out < in + input_bytes;
  if (overlap && reinterpret_cast<uintptr_t>(in_place) != (output_bytes < input_bytes ? out : in))
    simt::fail("%s: its buffers overlap, but not as an operation in place has them", what);
}

// Of the library that the emulated machine has; 0: it has none.
int library_version() {
  const char *text = std::getenv("FSDP_SIMT_NCCL");
  return text ? atoi(text) : NCCL_VERSION_CODE;
}

std::set<void *> allocated; // by ncclMemAlloc
int copied, symmetric, scalable_calls;

bool is_in_window(const ncclComm *comm, const void *address, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  return begin >= comm->window_begin && begin + bytes <= comm->window_end;
}

void note_buffers(const ncclComm *comm, const void *input, size_t input_bytes, const void *output,
                  size_t output_bytes, bool is_gather) {
  if (!is_in_window(comm, input, input_bytes) || !is_in_window(comm, output, output_bytes)) return;
  (is_gather && comm->policy == NCCL_CTA_POLICY_ZERO ? copied : symmetric)++;
}

constexpr int polls_max = 3;

int draw_polls() {
  static std::mt19937 draws(std::getenv("FSDP_SIMT_SEED") ? unsigned(atoi(std::getenv("FSDP_SIMT_SEED")))
                                                          : 1u);
  return int(draws() % (polls_max + 1));
}

void check_settled(const ncclComm *comm, const char *call) {
  if (comm->call)
    simt::fail("%s on a communicator whose %s is in progress: ask ncclCommGetAsyncError until it is complete",
               call, comm->call);
}

ncclResult_t begin(ncclComm_t comm, const char *call, int polls) {
  check_settled(comm, call);
  if (comm->is_blocking || polls == 0) return ncclSuccess;
  comm->call = call;
  comm->polls_left = polls;
  return ncclInProgress;
}

void connect(ncclComm_t comm, const char *call) {
  MPI_Request met;
  simt::between_work([&] { MPI_Ibarrier(comm->mpi, &met); });
  simt::work_until(
      [&] {
        int over = 0;
        MPI_Test(&met, &over, MPI_STATUS_IGNORE);
        return over != 0;
      },
      call);
  comm->is_connected = true;
}

ncclResult_t begin_collective(ncclComm_t comm, const char *call, cudaStream_t stream,
                              const std::function<void()> &enqueue) {
  if (simt::stream_priority(stream) != simt::PRIORITY_HIGHEST)
    simt::fail("%s on a stream of priority %d: every peer waits while kernels of other streams delay it",
               call, simt::stream_priority(stream));
  if (comm->is_blocking && !comm->is_connected) connect(comm, call);
  const ncclResult_t result = begin(comm, call, draw_polls());
  if (result == ncclSuccess) {
    enqueue();
  } else {
    simt::stream_check_free(stream, call);
    simt::stream_hold(stream, call);
    comm->stream = stream;
    comm->enqueue = enqueue;
  }
  return result;
}

void settle(ncclComm_t comm) {
  comm->call = nullptr;
  if (!comm->enqueue) return;
  const auto enqueue = std::move(comm->enqueue);
  comm->enqueue = nullptr;
  simt::stream_hold(comm->stream, nullptr);
  enqueue();
}

// Gathers `bytes` of every rank, then runs `finish` with what everyone sent, one after the other.
ncclResult_t gather(ncclComm_t comm, const char *call, const void *input, size_t bytes, cudaStream_t stream,
                    const std::function<void(const unsigned char *)> &finish) {
  auto state = std::make_shared<exchange>();
  const simt::work exchange_all = [=] {
    if (!state->begun) {
      const auto *from = static_cast<const unsigned char *>(input);
      state->sent.assign(from, from + bytes);
      state->received.resize(bytes * size_t(comm->size));
      MPI_Iallgather(state->sent.data(), int(bytes), MPI_BYTE, state->received.data(), int(bytes), MPI_BYTE,
                     comm->mpi, &state->request);
      state->begun = true;
    }
    int over = 0;
    MPI_Test(&state->request, &over, MPI_STATUS_IGNORE);
    if (over) finish(state->received.data());
    return over != 0;
  };
  return begin_collective(comm, call, stream,
                          [=] { simt::enqueue(stream, exchange_all, call, /*is_remote=*/true); });
}

// output[i] = the sum over ranks of element first + i of what each sent; `chunk_numel` elements of it are a
// chunk of the ring.
void sum(ncclComm_t comm, const unsigned char *all, size_t sent_count, size_t first, size_t count,
         size_t chunk_numel, ncclDataType_t type, void *output) {
  std::vector<float> values(size_t(comm->size));
  for (size_t i = 0; i < count; i++) {
    for (size_t r = 0; r < values.size(); r++) values[r] = element(all, type, r * sent_count + first + i);
    const auto chunk = int((first + i) / chunk_numel);
    const float total = simt::ring_sum(values.data(), comm->size, chunk, type == ncclBfloat16);
    if (type == ncclFloat32) {
      static_cast<float *>(output)[i] = total;
    } else {
      static_cast<fsdp_bf16 *>(output)[i] = fsdp_bf16_from_f32(total);
    }
  }
}

ncclComm_t make(MPI_Comm mpi, const ncclConfig_t *config, bool is_blocking) {
  const char *user = std::getenv("NCCL_COMM_BLOCKING");
  auto *comm = new ncclComm;
  comm->mpi = mpi;
  comm->is_blocking = user ? atoi(user) != 0 : config ? config->blocking != 0 : is_blocking;
  if (config && library_version() >= 22800) comm->policy = config->CTAPolicy;
  MPI_Comm_rank(mpi, &comm->rank);
  MPI_Comm_size(mpi, &comm->size);
  return comm;
}

} // namespace

extern "C" {

const char *ncclGetErrorString(ncclResult_t result) {
  return result == ncclSuccess ? "no error" : result == ncclInProgress ? "in progress" : "invalid usage";
}
const char *ncclGetLastError(ncclComm_t) {
  return "";
}
ncclResult_t ncclGetVersion(int *version) {
  *version = library_version();
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
  *id = {};
  static int made; // an id is of one call of one rank
  int owner[2] = {0, ++made};
  MPI_Comm_rank(MPI_COMM_WORLD, &owner[0]);
  memcpy(id->internal, owner, sizeof owner);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId, int rank,
                                    ncclConfig_t *config) {
  MPI_Comm mpi;
  MPI_Comm_dup(MPI_COMM_WORLD, &mpi);
  *comm = make(mpi, config, true);
  if ((*comm)->rank != rank || (*comm)->size != size) return ncclInvalidArgument;
  return begin(*comm, "ncclCommInitRankConfig", polls_max);
}
// The same ids on all ranks, each of a different rank.
ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int size, int rank, int id_count, ncclUniqueId *ids,
                                      ncclConfig_t *config) {
  MPI_Comm mpi;
  MPI_Comm_dup(MPI_COMM_WORLD, &mpi);
  *comm = make(mpi, config, true);
  if ((*comm)->rank != rank || (*comm)->size != size) return ncclInvalidArgument;
  int counts[2] = {id_count, -id_count}, right = id_count >= 1 && id_count <= size;
  MPI_Allreduce(MPI_IN_PLACE, counts, 2, MPI_INT, MPI_MAX, mpi);
  if (counts[0] != -counts[1]) simt::fail("ncclCommInitRankScalable with %d ids and %d", id_count, counts[0]);
  std::vector<ncclUniqueId> first(ids, ids + id_count);
  MPI_Bcast(first.data(), int(sizeof(ncclUniqueId)) * id_count, MPI_BYTE, 0, mpi);
  std::vector<bool> owns(size_t(size), false);
  for (int i = 0; i < id_count && right; i++) {
    int owner[2];
    memcpy(owner, ids[i].internal, sizeof owner);
    right = memcmp(&first[size_t(i)], &ids[i], sizeof ids[i]) == 0 && owner[1] > 0 && owner[0] >= 0 &&
            owner[0] < size && !owns[size_t(owner[0])];
    if (right) owns[size_t(owner[0])] = true;
  }
  MPI_Allreduce(MPI_IN_PLACE, &right, 1, MPI_INT, MPI_MIN, mpi);
  if (!right)
    simt::fail("ncclCommInitRankScalable: its ids are not the same everywhere, or not of as many ranks");
  scalable_calls++;
  return begin(*comm, "ncclCommInitRankScalable", polls_max);
}
int simt_nccl_scalable_calls(void) {
  return scalable_calls;
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *made, ncclConfig_t *config) {
  const char *ordered = getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  if (!ordered || strcmp(ordered, "1") != 0)
    simt::fail("collectives of several communicators on one GPU deadlock unless NCCL orders their launches");
  check_settled(comm, "ncclCommSplit");
  MPI_Comm mpi;
  MPI_Comm_split(comm->mpi, color, key, &mpi);
  *made = make(mpi, config, comm->is_blocking);
  begin(*made, "ncclCommSplit", polls_max);
  return begin(comm, "ncclCommSplit", polls_max);
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *result) {
  simt::between_work([&] {
    *result = comm->call && comm->polls_left-- > 0 ? ncclInProgress : ncclSuccess;
    if (*result == ncclSuccess) settle(comm);
  });
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return begin(comm, "ncclCommFinalize", polls_max);
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  check_settled(comm, "ncclCommDestroy");
  MPI_Comm_free(&comm->mpi);
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommRegister(ncclComm_t comm, void *address, size_t bytes, void **handle) {
  check_settled(comm, "ncclCommRegister");
  check_range(address, bytes);
  *handle = address;
  return ncclSuccess;
}
ncclResult_t ncclCommDeregister(ncclComm_t comm, void *) {
  check_settled(comm, "ncclCommDeregister");
  return ncclSuccess;
}
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *address, size_t bytes, ncclWindow_t *window,
                                    int flags) {
  check_settled(comm, "ncclCommWindowRegister");
  check_range(address, bytes);
  if (flags != NCCL_WIN_COLL_SYMMETRIC || allocated.count(address) == 0) return ncclInvalidArgument;
  long long sizes[2] = {(long long)bytes, -(long long)bytes};
  MPI_Allreduce(MPI_IN_PLACE, sizes, 2, MPI_LONG_LONG, MPI_MAX, comm->mpi);
  if (sizes[0] != -sizes[1]) simt::fail("ncclCommWindowRegister of %zu bytes, and of %lld", bytes, sizes[0]);
  comm->window_begin = reinterpret_cast<uintptr_t>(address);
  comm->window_end = comm->window_begin + bytes;
  *window = reinterpret_cast<ncclWindow_t>(comm);
  return ncclSuccess;
}
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  check_settled(comm, "ncclCommWindowDeregister");
  return reinterpret_cast<ncclWindow_t>(comm) == window ? ncclSuccess : ncclInvalidArgument;
}
int simt_nccl_copied(void) {
  return copied;
}
int simt_nccl_symmetric(void) {
  return symmetric;
}
ncclResult_t ncclMemAlloc(void **address, size_t bytes) {
  if (cudaMalloc(address, bytes) != cudaSuccess) return ncclUnhandledCudaError;
  allocated.insert(*address);
  return ncclSuccess;
}
ncclResult_t ncclMemFree(void *address) {
  if (allocated.erase(address) == 0) return ncclInvalidArgument;
  return cudaFree(address) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclAllGather(const void *input, void *output, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  const size_t bytes = count * bytes_of(type), all = bytes * size_t(comm->size);
  check_range(input, bytes);
  check_range(output, all);
  check_overlap("ncclAllGather", input, bytes, output, all,
                static_cast<unsigned char *>(output) + size_t(comm->rank) * bytes);
  note_buffers(comm, input, bytes, output, all, true);
  return gather(comm, "ncclAllGather", input, bytes, stream,
                [=](const unsigned char *received) { memcpy(output, received, all); });
}
ncclResult_t ncclReduceScatter(const void *input, void *output, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  const size_t bytes = count * bytes_of(type), sent = count * size_t(comm->size);
  if (op != ncclSum) return ncclInvalidArgument;
  check_range(input, sent * bytes_of(type));
  check_range(output, bytes);
  check_overlap("ncclReduceScatter", input, sent * bytes_of(type), output, bytes,
                static_cast<const unsigned char *>(input) + size_t(comm->rank) * bytes);
  note_buffers(comm, input, sent * bytes_of(type), output, bytes, false);
  return gather(comm, "ncclReduceScatter", input, sent * bytes_of(type), stream,
                [=](const unsigned char *received) {
                  sum(comm, received, sent, size_t(comm->rank) * count, count, count, type, output);
                });
}
ncclResult_t ncclAllReduce(const void *input, void *output, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  const size_t bytes = count * bytes_of(type);
  if (op != ncclSum) return ncclInvalidArgument;
  check_range(input, bytes);
  check_range(output, bytes);
  check_overlap("ncclAllReduce", input, bytes, output, bytes, input);
  const size_t chunk = (count + size_t(comm->size) - 1) / size_t(comm->size);
  note_buffers(comm, input, bytes, output, bytes, false);
  return gather(comm, "ncclAllReduce", input, bytes, stream, [=](const unsigned char *received) {
    sum(comm, received, count, 0, count, chunk, type, output);
  });
}

// ---- The library as one that is loaded

void *simt_dlopen(const char *file, int) {
  static int library;
  return strstr(file, "libnccl.so.2") && library_version() > 0 ? &library : nullptr;
}
char *simt_dlerror(void) {
  static char text[] = "libnccl.so.2: the emulated machine has none";
  return text;
}
void *simt_dlsym(void *, const char *name) {
#define FUNCTION(name, since)                                                                                \
  { #name, reinterpret_cast < void *>(name), since }
  static const struct {
    const char *name;
    void *function;
    int since; // the version of NCCL
  } functions[] = {
      FUNCTION(ncclAllGather, 2000),
      FUNCTION(ncclAllReduce, 2000),
      FUNCTION(ncclCommDeregister, 21900),
      FUNCTION(ncclCommDestroy, 2000),
      FUNCTION(ncclCommFinalize, 21400),
      FUNCTION(ncclCommGetAsyncError, 20400),
      FUNCTION(ncclCommInitRankConfig, 21400),
      FUNCTION(ncclCommInitRankScalable, 22300),
      FUNCTION(ncclCommRegister, 21900),
      FUNCTION(ncclCommSplit, 21800),
      FUNCTION(ncclCommWindowDeregister, 22700),
      FUNCTION(ncclCommWindowRegister, 22700),
      FUNCTION(ncclGetErrorString, 2000),
      FUNCTION(ncclGetLastError, 2000),
      FUNCTION(ncclGetUniqueId, 2000),
      FUNCTION(ncclGetVersion, 2000),
      FUNCTION(ncclMemAlloc, 21900),
      FUNCTION(ncclMemFree, 21900),
      FUNCTION(ncclReduceScatter, 2000),
  };
#undef FUNCTION
  for (const auto &one : functions)
    if (strcmp(one.name, name) == 0 && library_version() >= one.since) return one.function;
  return nullptr;
}

} // extern "C"
