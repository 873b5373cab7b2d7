// NCCL on the CPU, over MPI: everyone gathers what everyone sent, and sums the part that is its own. Calls on
// a communicator that is being made are "in progress" for a while, as those of one that does not block are.
#include "runtime/base/dtype.h"
#include "tests/simt/simt.h"

#define OMPI_SKIP_MPICXX // the old C++ interface, which is not linked
#define MPICH_SKIP_MPICXX
#include <mpi.h>
#include <nccl.h>

#include <memory>
#include <vector>

struct ncclComm {
  MPI_Comm mpi;
  int rank, size;
  int polls_left; // until it answers that it is done
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

// Gathers `bytes` of every rank, then runs `finish` with what everyone sent, one after the other.
void gather(ncclComm_t comm, const void *input, size_t bytes, cudaStream_t stream,
            const std::function<void(const unsigned char *)> &finish) {
  auto state = std::make_shared<exchange>();
  simt::enqueue(stream, [=] {
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
  });
}

// output[i] = the sum over ranks of element first + i of what each sent.
void sum(ncclComm_t comm, const unsigned char *all, size_t sent_count, size_t first, size_t count,
         ncclDataType_t type, void *output) {
  for (size_t i = 0; i < count; i++) {
    float total = 0;
    for (size_t r = 0; r < size_t(comm->size); r++) total += element(all, type, r * sent_count + first + i);
    if (type == ncclFloat32) {
      static_cast<float *>(output)[i] = total;
    } else {
      static_cast<fsdp_bf16 *>(output)[i] = fsdp_bf16_from_f32(total);
    }
  }
}

ncclComm_t make(MPI_Comm mpi) {
  auto *comm = new ncclComm{mpi, 0, 0, 3};
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
ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
  *id = {};
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId, int rank, ncclConfig_t *) {
  MPI_Comm mpi;
  MPI_Comm_dup(MPI_COMM_WORLD, &mpi);
  *comm = make(mpi);
  return (*comm)->rank == rank && (*comm)->size == size ? ncclInProgress : ncclInvalidArgument;
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *made, ncclConfig_t *) {
  MPI_Comm mpi;
  MPI_Comm_split(comm->mpi, color, key, &mpi);
  *made = make(mpi);
  comm->polls_left = 3;
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *result) {
  simt::between_work([&] {
    *result = comm->polls_left > 0 ? ncclInProgress : ncclSuccess;
    if (comm->polls_left > 0) comm->polls_left--;
  });
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  comm->polls_left = 3;
  return ncclInProgress;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  MPI_Comm_free(&comm->mpi);
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommRegister(ncclComm_t, void *address, size_t bytes, void **handle) {
  check_range(address, bytes);
  *handle = address;
  return ncclSuccess;
}
ncclResult_t ncclCommDeregister(ncclComm_t, void *) {
  return ncclSuccess;
}
ncclResult_t ncclMemAlloc(void **address, size_t bytes) {
  return cudaMalloc(address, bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
ncclResult_t ncclMemFree(void *address) {
  return cudaFree(address) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclAllGather(const void *input, void *output, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  const size_t bytes = count * bytes_of(type), all = bytes * size_t(comm->size);
  check_range(input, bytes);
  check_range(output, all);
  check_overlap("ncclAllGather", input, bytes, output, all,
                static_cast<unsigned char *>(output) + size_t(comm->rank) * bytes);
  gather(comm, input, bytes, stream, [=](const unsigned char *received) { memcpy(output, received, all); });
  return ncclSuccess;
}
ncclResult_t ncclReduceScatter(const void *input, void *output, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  const size_t bytes = count * bytes_of(type), sent = count * size_t(comm->size);
  if (op != ncclSum) return ncclInvalidArgument;
  check_range(input, sent * bytes_of(type));
  check_range(output, bytes);
  check_overlap("ncclReduceScatter", input, sent * bytes_of(type), output, bytes,
                static_cast<const unsigned char *>(input) + size_t(comm->rank) * bytes);
  gather(comm, input, sent * bytes_of(type), stream, [=](const unsigned char *received) {
    sum(comm, received, sent, size_t(comm->rank) * count, count, type, output);
  });
  return ncclSuccess;
}
ncclResult_t ncclAllReduce(const void *input, void *output, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  const size_t bytes = count * bytes_of(type);
  if (op != ncclSum) return ncclInvalidArgument;
  check_range(input, bytes);
  check_range(output, bytes);
  check_overlap("ncclAllReduce", input, bytes, output, bytes, input);
  gather(comm, input, bytes, stream,
         [=](const unsigned char *received) { sum(comm, received, count, 0, count, type, output); });
  return ncclSuccess;
}

} // extern "C"
