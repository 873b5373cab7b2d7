// Planted bugs: each kernel here is wrong in one way, and its right twin is not; the harness must name the
// one and pass the other, under every order of threads.
#include "kernels/cuda/vector.cuh"

#include <cstdio>

namespace {

constexpr int threads = 64;

struct planted {
  bool wrong;
  float *out;
  const float *in;
  float *parts;    // of every thread of the grid
  unsigned *count; // zero
};

// A value goes from every thread to its neighbour in a different warp.
void missing_barrier(planted p) {
  FSDP_SHARED(float, values, threads);
  values[int(threadIdx.x)] = 0;
  __syncthreads();
  values[int(threadIdx.x)] = 1;
  if (!p.wrong) __syncthreads();
  p.out[threadIdx.x] = values[(int(threadIdx.x) + 32) % threads];
}

// The array is reused while a different warp may still read it.
void missing_barrier_before_reuse(planted p) {
  FSDP_SHARED(float, values, threads);
  values[int(threadIdx.x)] = 1;
  __syncthreads();
  float sum = values[(int(threadIdx.x) + 32) % threads];
  if (!p.wrong) __syncthreads();
  values[int(threadIdx.x)] = sum;
  p.out[threadIdx.x] = sum;
}

// Within a warp __syncwarp is enough, and a shuffle is not.
void shuffle_instead_of_syncwarp(planted p) {
  FSDP_SHARED(float, values, threads);
  values[int(threadIdx.x)] = 1;
  if (p.wrong) {
    __shfl_sync(whole_warp, 1, 0);
  } else {
    __syncwarp();
  }
  p.out[threadIdx.x] = values[int(threadIdx.x) ^ 1];
}

// __syncwarp orders no other warp.
void syncwarp_instead_of_barrier(planted p) {
  FSDP_SHARED(float, values, threads);
  values[int(threadIdx.x)] = 0;
  __syncthreads();
  values[int(threadIdx.x)] = 1;
  if (p.wrong) {
    __syncwarp();
  } else {
    __syncthreads();
  }
  p.out[threadIdx.x] = values[(int(threadIdx.x) + 32) % threads];
}

void two_writers(planted p) {
  FSDP_SHARED(float, value, 1);
  if (p.wrong ? threadIdx.x < 2 : threadIdx.x == 0) value[0] = 1;
  __syncthreads();
  p.out[threadIdx.x] = value[0];
}

void index_off_by_one(planted p) {
  FSDP_SHARED(float, values, threads);
  values[int(threadIdx.x) + (p.wrong ? 1 : 0)] = 1;
  __syncthreads();
  p.out[threadIdx.x] = values[threads - 1];
}

void dynamic_out_of_bounds(planted p) {
  FSDP_SHARED_DYNAMIC(bytes);
  const smem<float> values = bytes.part<float>(0, threads + (p.wrong ? 1 : 0));
  values[int(threadIdx.x)] = 1;
  p.out[threadIdx.x] = values[int(threadIdx.x)];
}

void uninitialised_read(planted p) {
  FSDP_SHARED(float, values, threads);
  if (!p.wrong || threadIdx.x != 40) values[int(threadIdx.x)] = 1;
  __syncthreads();
  p.out[threadIdx.x] = values[int(threadIdx.x)];
}

// What an earlier block left behind is nothing that this one has written.
void read_of_last_block(planted p) {
  FSDP_SHARED(float, values, threads);
  if (!p.wrong || (blockIdx.x == 0) == (gridDim.y == 1)) values[int(threadIdx.x)] = 1;
  p.out[threadIdx.x] = values[int(threadIdx.x)];
}

void missing_async_wait(planted p) {
  FSDP_SHARED(float, values, threads * 4);
  cp_async16(values.address(int(threadIdx.x) * 4), p.in + threadIdx.x * 4, true);
  cp_async_commit();
  if (!p.wrong) cp_async_wait<0>();
  p.out[threadIdx.x] = values[int(threadIdx.x) * 4];
  cp_async_wait<0>();
}

// The wait leaves the group that is then read in flight.
void wait_for_too_few_groups(planted p) {
  FSDP_SHARED(float, values, threads * 4);
  cp_async16(values.address(int(threadIdx.x) * 4), p.in + threadIdx.x * 4, true);
  cp_async_commit();
  if (p.wrong) {
    cp_async_wait<1>();
  } else {
    cp_async_wait<0>();
  }
  p.out[threadIdx.x] = values[int(threadIdx.x) * 4];
  cp_async_wait<0>();
}

// A wait is for the thread's own copies: others' need a barrier too.
void missing_barrier_after_async_wait(planted p) {
  FSDP_SHARED(float, values, threads * 4);
  values[int(threadIdx.x) * 4] = 0;
  __syncthreads();
  cp_async16(values.address(int(threadIdx.x) * 4), p.in + threadIdx.x * 4, true);
  cp_async_commit();
  cp_async_wait<0>();
  if (!p.wrong) __syncthreads();
  p.out[threadIdx.x] = values[(int(threadIdx.x) + 32) % threads * 4];
}

void unaligned_async_copy(planted p) {
  FSDP_SHARED(float, values, threads * 4 + 4);
  cp_async16(values.address(int(threadIdx.x) * 4 + (p.wrong ? 1 : 0)), p.in + threadIdx.x * 4, true);
  cp_async_commit();
  cp_async_wait<0>();
  p.out[threadIdx.x] = 1;
}

void barrier_for_half(planted p) {
  if (!p.wrong || threadIdx.x < 32) __syncthreads();
  p.out[threadIdx.x] = 1;
}

void two_barriers_for_one(planted p) {
  if (p.wrong && threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  p.out[threadIdx.x] = 1;
}

void early_return(planted p) {
  p.out[threadIdx.x] = 1;
  if (p.wrong && threadIdx.x == 5) return;
  __syncthreads();
}

void shuffle_without_all_lanes(planted p) {
  float x = 1;
  if (!p.wrong || threadIdx.x % 32 != 7) x = __shfl_xor_sync(whole_warp, x, 1);
  p.out[threadIdx.x] = x;
}

void shuffle_from_outside_the_mask(planted p) {
  p.out[threadIdx.x] = threadIdx.x % 32 < 16 ? __shfl_sync(0x0000ffffu, 1.0f, p.wrong ? 20 : 3) : 1.0f;
}

void read_beside_an_operand(planted p) {
  p.out[threadIdx.x] = global_load(p.in + threadIdx.x + (p.wrong ? threads * 4 : 0)) * 0 + 1;
}

void unaligned_vector(planted p) {
  p.out[threadIdx.x] = global_load(reinterpret_cast<const float4 *>(p.in + (p.wrong ? 1 : 0))).x * 0 + 1;
}

// ---- Between blocks, through device memory

float *own_part(planted p) {
  return p.parts + blockIdx.x * threads + threadIdx.x;
}
const float *other_part(planted p) {
  return p.parts + (gridDim.x - 1 - blockIdx.x) * threads + threadIdx.x;
}

// That they store the same value does not make it right: a block may do so later than another reads.
void two_blocks_store(planted p) {
  if (p.wrong || blockIdx.x == 0) global_store(p.out + threadIdx.x, 1.0f);
}

void load_of_another_block(planted p) {
  global_store(own_part(p), 1.0f);
  const float x = global_load(p.wrong ? other_part(p) : own_part(p));
  p.out[threadIdx.x] = x * 0 + 1;
}

void store_over_another_block(planted p) {
  const float x = global_load(p.wrong ? p.in + 0 : p.in + threadIdx.x);
  if (p.wrong && blockIdx.x == 1) global_store(const_cast<float *>(p.in), x);
  p.out[threadIdx.x] = x;
}

// Neighbouring bf16 belong to different blocks; a store of both of them takes the other's too.
void store_of_a_whole_word(planted p) {
  auto *halves = reinterpret_cast<uint16_t *>(p.parts) + 2 * threadIdx.x;
  if (p.wrong) {
    global_store(reinterpret_cast<uint32_t *>(halves), 0u);
  } else {
    global_store(halves + blockIdx.x, uint16_t(0));
  }
  p.out[threadIdx.x] = 1;
}

void async_copy_of_another_block(planted p) {
  FSDP_SHARED(float, values, threads * 4);
  global_store(own_part(p), 1.0f);
  const float *source = p.wrong ? p.parts + (threadIdx.x & ~3u) : p.in + (threadIdx.x & ~3u);
  cp_async16(values.address(int(threadIdx.x) * 4), source, true);
  cp_async_commit();
  cp_async_wait<0>();
  p.out[threadIdx.x] = 1;
}

void plain_counter(planted p) {
  if (threadIdx.x == 0 && p.wrong) global_store(p.count, global_load(p.count) + 1);
  if (threadIdx.x == 0 && !p.wrong) atomicAdd(p.count, 1u);
  p.out[threadIdx.x] = 1;
}

// The last block to come to the counter reads what all have stored: the pattern of CUDA's guide.
enum class lack { fence, barrier, counter };
template <lack LACK> void last_block(planted p) {
  FSDP_SHARED(int, is_last, 1);
  global_store(own_part(p), 1.0f);
  if (!(p.wrong && LACK == lack::fence)) __threadfence();
  if (!(p.wrong && LACK == lack::barrier)) __syncthreads();
  if (threadIdx.x == 0) {
    const unsigned before = atomicInc(p.count, gridDim.x - 1);
    is_last[0] = p.wrong && LACK == lack::counter ? true : before == gridDim.x - 1;
  }
  __syncthreads();
  if (is_last[0]) global_store(p.out + threadIdx.x, global_load(own_part(p)) * global_load(other_part(p)));
}

const struct {
  const char *name, *finding; // a piece of the message
  void (*kernel)(planted);
} plants[] = {
    {"a missing barrier", "race", missing_barrier},
    {"a missing barrier before an array is used again", "race", missing_barrier_before_reuse},
    {"a shuffle in place of __syncwarp", "race", shuffle_instead_of_syncwarp},
    {"__syncwarp in place of a barrier", "race", syncwarp_instead_of_barrier},
    {"two writers of one value", "race", two_writers},
    {"an index off by one", "indexed with 64", index_off_by_one},
    {"dynamic shared memory out of bounds", "a part of 65 elements", dynamic_out_of_bounds},
    {"an uninitialised read", "before anything was written", uninitialised_read},
    {"a read of what the last block left", "before anything was written", read_of_last_block},
    {"a missing wait for cp.async", "in flight", missing_async_wait},
    {"a wait for too few groups", "in flight", wait_for_too_few_groups},
    {"a missing barrier after the wait", "race", missing_barrier_after_async_wait},
    {"an unaligned cp.async", "not aligned", unaligned_async_copy},
    {"a barrier for half of the block", "divergent barrier", barrier_for_half},
    {"two barriers for one", "divergent barrier", two_barriers_for_one},
    {"an early return", "divergent barrier", early_return},
    {"a shuffle without all lanes", "never come", shuffle_without_all_lanes},
    {"a shuffle from outside the mask", "does not take part", shuffle_from_outside_the_mask},
    {"a read beside an operand", "out of bounds", read_beside_an_operand},
    {"an unaligned vector", "not aligned", unaligned_vector},
    {"two blocks that store one value", "race on device memory", two_blocks_store},
    {"a load of what another block stores", "race on device memory", load_of_another_block},
    {"a store over what another block loads", "race on device memory", store_over_another_block},
    {"a store of a whole word for half of it", "race on device memory", store_of_a_whole_word},
    {"a cp.async of what another block stores", "race on device memory", async_copy_of_another_block},
    {"a counter that is not atomic", "race on device memory", plain_counter},
    {"a last block without a fence", "race on device memory", last_block<lack::fence>},
    {"a last block without a barrier", "race on device memory", last_block<lack::barrier>},
    {"a last block that is not the last", "race on device memory", last_block<lack::counter>},
};

int failures;

void expect(bool held, const char *what, const char *plant, const std::string &message) {
  failures += !held;
  if (!held) printf("FAILED %s: %s (%s)\n", plant, what, message.c_str());
}

struct buffers {
  float *out, *in, *parts;
  unsigned *count;
};

void check(size_t index, const buffers &b) {
  const auto &plant = plants[index];
  for (int order = 0; order < simt::order_count; order++) {
    simt::set_order(static_cast<simt::order>(order));
    for (bool wrong : {true, false}) {
      const planted p = {wrong, b.out, b.in, b.parts, b.count};
      *b.count = 0;
      std::string message = simt::expect_error([&] {
        simt::launch(
            {dim3(2), dim3(threads), threads * sizeof(float), reinterpret_cast<const void *>(plant.kernel)},
            [&] { plant.kernel(p); });
      });
      if (wrong) {
        expect(message.find(plant.finding) != std::string::npos, "is not found", plant.name, message);
        if (order == 0) printf("%-50s %s\n", plant.name, message.c_str());
      } else {
        expect(message.empty(), "is reported in a correct program", plant.name, message);
        for (int t = 0; t < threads; t++) expect(b.out[t] == 1.0f, "wrong result", plant.name, message);
      }
    }
  }
}

template <class T> T *allocate(int count) {
  return static_cast<T *>(simt::memory_allocate(size_t(count) * sizeof(T)));
}

} // namespace

int main() {
  const buffers b = {allocate<float>(threads), allocate<float>(threads * 4), allocate<float>(threads * 2),
                     allocate<unsigned>(1)};
  for (int i = 0; i < threads * 4; i++) b.in[i] = 1;
  for (size_t i = 0; i < sizeof plants / sizeof *plants; i++) check(i, b);
  simt::memory_free_beyond(0);
  printf("%d failed\n", failures);
  return failures ? 1 : 0;
}
