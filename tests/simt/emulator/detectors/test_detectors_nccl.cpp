// Communicators that do not block: a caller that does not ask until a collective is enqueued, and then uses
// the communicator or the stream, is found; one that asks is not. So are a collective on a stream that gives way
// to others, and several communicators whose launches nobody orders. On one rank, without mpirun.
#include "tests/simt/emulator/simt.h"

#define OMPI_SKIP_MPICXX
#define MPICH_SKIP_MPICXX
#include <mpi.h>
#include <nccl.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr int elements = 4;
int failures;
bool is_wrong;
std::vector<ncclComm_t> made; // kept to the end: what ends in an error cannot destroy its own

struct job {
  ncclComm_t comm;
  cudaStream_t stream;
  float *in, *out;
};

void settle(ncclComm_t comm) {
  for (ncclResult_t result = ncclInProgress; result == ncclInProgress;) ncclCommGetAsyncError(comm, &result);
}

job start(int blocking) {
  job j;
  ncclUniqueId id;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  void *memory;
  config.blocking = blocking;
  ncclGetUniqueId(&id);
  ncclCommInitRankConfig(&j.comm, 1, id, 0, &config);
  made.push_back(j.comm);
  settle(j.comm);
  cudaStreamCreateWithPriority(&j.stream, cudaStreamNonBlocking, simt::PRIORITY_HIGHEST);
  cudaMalloc(&memory, 2 * elements * sizeof(float));
  j.in = static_cast<float *>(memory);
  j.out = j.in + elements;
  for (int i = 0; i < elements; i++) j.in[i] = float(i);
  cudaDeviceSynchronize();
  return j;
}

// Collectives until one is in progress; the right caller then asks until it is complete.
void gather_in_progress(const job &j) {
  ncclResult_t result = ncclSuccess;
  for (int tries = 0; tries < 64 && result == ncclSuccess; tries++)
    result = ncclAllGather(j.in, j.out, elements, ncclFloat32, j.comm, j.stream);
  if (result != ncclInProgress) simt::fail("no collective was in progress");
  if (!is_wrong) settle(j.comm);
}

const struct {
  const char *name, *finding;
  void (*use)(const job &);
} rules[] = {
    {"a second collective", "on a communicator whose ncclAllGather is in progress",
     [](const job &j) {
       ncclAllReduce(j.out, j.out, elements, ncclFloat32, ncclSum, j.comm, j.stream);
       settle(j.comm);
     }},
    {"another call on the communicator", "ncclCommFinalize on a communicator",
     [](const job &j) {
       ncclCommFinalize(j.comm);
       settle(j.comm);
     }},
    {"a copy on the stream", "cudaMemcpyAsync uses a stream",
     [](const job &j) { cudaMemcpyAsync(j.in, j.out, 4, cudaMemcpyDefault, j.stream); }},
    {"an event on the stream", "cudaEventRecord uses a stream",
     [](const job &j) {
       static cudaEvent_t event;
       if (!event) cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
       cudaEventRecord(event, j.stream);
     }},
    {"a wait for the stream", "cudaStreamSynchronize uses a stream",
     [](const job &j) { cudaStreamSynchronize(j.stream); }},
    {"a wait for the device", "cudaDeviceSynchronize uses a stream",
     [](const job &) { cudaDeviceSynchronize(); }},
    {"launches in no order", "deadlock unless NCCL orders their launches",
     [](const job &j) {
       ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
       ncclComm_t part;
       config.blocking = 1;
       settle(j.comm);
       setenv("NCCL_LAUNCH_ORDER_IMPLICIT", is_wrong ? "0" : "1", 1);
       ncclCommSplit(j.comm, 0, 0, &part, &config);
       settle(j.comm);
       made.push_back(part);
       ncclAllReduce(j.out, j.out, elements, ncclFloat32, ncclSum, part, j.stream);
     }},
    {"a stream that others overtake", "ncclAllReduce on a stream of priority 0",
     [](const job &j) {
       cudaStream_t stream;
       settle(j.comm);
       cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, is_wrong ? 0 : simt::PRIORITY_HIGHEST);
       ncclAllReduce(j.out, j.out, elements, ncclFloat32, ncclSum, j.comm, stream);
       settle(j.comm);
     }},
};

void expect(bool held, const char *name, const char *what, const std::string &message) {
  failures += !held;
  if (!held) printf("FAILED %s: %s (%s)\n", name, what, message.c_str());
}

void check_rules() {
  for (const auto &rule : rules) {
    is_wrong = true;
    const std::string message = simt::expect_error([&] {
      const job j = start(0);
      gather_in_progress(j);
      rule.use(j);
    });
    expect(message.find(rule.finding) != std::string::npos, rule.name, "is not found", message);
    printf("%-40s %s\n", rule.name, message.c_str());
    is_wrong = false;
    const std::string nothing = simt::expect_error([&] {
      const job j = start(0);
      gather_in_progress(j);
      rule.use(j);
      cudaDeviceSynchronize();
      for (int i = 0; i < elements; i++)
        if (j.out[i] != float(i)) simt::fail("element %d is %g", i, double(j.out[i]));
    });
    expect(nothing.empty(), rule.name, "is reported in a correct program", nothing);
  }
}

// A blocking communicator always returns ncclSuccess; a non-blocking one returns both.
void check_answers() {
  for (int blocking = 0; blocking < 2; blocking++) {
    const job j = start(blocking);
    int at_once = 0;
    for (int i = 0; i < 64; i++) {
      at_once += ncclAllReduce(j.in, j.in, elements, ncclBfloat16, ncclSum, j.comm, j.stream) == ncclSuccess;
      settle(j.comm);
    }
    cudaDeviceSynchronize();
    printf("%-40s %d of 64 calls are enqueued at once\n",
           blocking ? "a blocking communicator" : "one that does not block", at_once);
    expect(blocking ? at_once == 64 : at_once > 0 && at_once < 64, "results", "are not drawn", "");
  }
}

} // namespace

int main() {
  MPI_Init(nullptr, nullptr);
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1);
  check_rules();
  check_answers();
  for (ncclComm_t comm : made) {
    settle(comm);
    ncclCommDestroy(comm);
  }
  simt::memory_free_beyond(0);
  MPI_Finalize();
  printf("%d failed\n", failures);
  return failures ? 1 : 0;
}
