// A communicator that does not block is refused, and so are several ones whose launches nobody orders, and a
// collective on a stream that gives way to others. A right caller is not. On one rank, without mpirun.
#include "tests/simt/simt.h"

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

job start() {
  job j;
  ncclUniqueId id;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  void *memory;
  config.blocking = 1;
  ncclGetUniqueId(&id);
  ncclCommInitRankConfig(&j.comm, 1, id, 0, &config);
  made.push_back(j.comm);
  cudaStreamCreateWithPriority(&j.stream, cudaStreamNonBlocking, simt::PRIORITY_HIGHEST);
  cudaMalloc(&memory, 2 * elements * sizeof(float));
  j.in = static_cast<float *>(memory);
  j.out = j.in + elements;
  for (int i = 0; i < elements; i++) j.in[i] = float(i);
  cudaDeviceSynchronize();
  return j;
}

const struct {
  const char *name, *finding;
  void (*use)(const job &);
} rules[] = {
    {"a communicator that does not block", "ncclCommSplit makes a communicator that does not block",
     [](const job &j) {
       ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
       ncclComm_t part;
       config.blocking = is_wrong ? 0 : 1;
       ncclCommSplit(j.comm, 0, 0, &part, &config);
       made.push_back(part);
       ncclAllReduce(j.in, j.out, elements, ncclFloat32, ncclSum, part, j.stream);
     }},
    {"launches in no order", "deadlock unless NCCL orders their launches",
     [](const job &j) {
       ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
       ncclComm_t part;
       setenv("NCCL_LAUNCH_ORDER_IMPLICIT", is_wrong ? "0" : "1", 1);
       ncclCommSplit(j.comm, 0, 0, &part, &config);
       made.push_back(part);
       ncclAllReduce(j.in, j.out, elements, ncclFloat32, ncclSum, part, j.stream);
     }},
    {"a stream that others overtake", "ncclAllReduce on a stream of priority 0",
     [](const job &j) {
       cudaStream_t stream;
       cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, is_wrong ? 0 : simt::PRIORITY_HIGHEST);
       ncclAllReduce(j.in, j.out, elements, ncclFloat32, ncclSum, j.comm, stream);
     }},
};

void expect(bool held, const char *name, const char *what, const std::string &message) {
  failures += !held;
  if (!held) printf("FAILED %s: %s (%s)\n", name, what, message.c_str());
}

void check_rules() {
  for (const auto &rule : rules) {
    is_wrong = true;
    const std::string message = simt::expect_error([&] { rule.use(start()); });
    expect(message.find(rule.finding) != std::string::npos, rule.name, "is not found", message);
    printf("%-40s %s\n", rule.name, message.c_str());
    is_wrong = false;
    const std::string nothing = simt::expect_error([&] {
      const job j = start();
      rule.use(j);
      cudaDeviceSynchronize();
      for (int i = 0; i < elements; i++)
        if (j.out[i] != float(i)) simt::fail("element %d is %g", i, double(j.out[i]));
    });
    expect(nothing.empty(), rule.name, "is reported in a correct program", nothing);
  }
}

} // namespace

int main() {
  MPI_Init(nullptr, nullptr);
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1);
  check_rules();
  for (ncclComm_t comm : made) ncclCommDestroy(comm);
  simt::memory_free_beyond(0);
  MPI_Finalize();
  printf("%d failed\n", failures);
  return failures ? 1 : 0;
}
