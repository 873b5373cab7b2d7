// The group of one rank on the CUDA device: copies where input and output differ, nothing else.
#include "runtime/base/check.h"
#include "runtime/exec/comm_nccl.h"
#include "runtime/exec/cuda_check.h"

static void self_move(fsdp_comm *comm, const fsdp_collective *call) {
  (void)comm;
  int64_t bytes = call->elems * fsdp_dtype_bytes(call->dtype);
  fsdp_collective_touch(call, call->input, bytes, FSDP_READ);
  if (call->output == call->input) return;
  CALL_CUDA(cudaMemcpyAsync(call->output, call->input, (size_t)bytes, cudaMemcpyDeviceToDevice,
                            (cudaStream_t)call->stream));
  fsdp_collective_touch(call, call->output, bytes, FSDP_WRITE);
}

static void self_all_reduce(fsdp_comm *comm, const fsdp_collective *call) {
  (void)comm;
  fsdp_all_reduce_touch(call);
}

static void self_destroy(fsdp_comm *comm) {
  free(comm);
}

fsdp_comm *fsdp_cuda_comm_self(void) {
  static const fsdp_comm_table table = {"self", self_move, self_move, self_all_reduce, self_destroy};
  fsdp_comm *comm = fsdp_alloc_zeroed(1, sizeof *comm);
  *comm = (fsdp_comm){.table = &table, .rank = 0, .size = 1};
  return comm;
}
