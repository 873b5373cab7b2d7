// Attention's launchers: operands, rowsum(d_o * o), and the implementation that the plan says.
#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/ops.cuh"
#include "runtime/base/random_math.h"

#include <initializer_list>
#include <math.h>

namespace {

// ---- Operands

constexpr int threads_count = 256;
constexpr int64_t general_head_max = 256;

// Where the first key head's columns of k and of v begin in what holds k|v, which may be q|k|v.
template <class T> struct kv_columns { T *k, *v; };
template <class T> kv_columns<T> kv_columns_of(const attention_shape &s, T *kv) {
  T *k = s.has_kv ? kv : kv + int64_t(s.H) * s.D;
  return {k, k + int64_t(s.K) * s.D};
}

// Whether the plan's kernel, which must be able to take these operands, is one of tensor cores. Their rows
// must start on 16 bytes for cp.async.
bool runs_on_tensor_cores(const fsdp_kernel_call *call, const attention_shape &s,
                          std::initializer_list<const void *> operands) {
  const fsdp_attention_kernel kernel = call->attrs->attention;
  FSDP_CHECK(fsdp_cuda_attention_kernels() >> kernel & 1, "%s: no kernel %d here", fsdp_op_name(call->kind),
             int(kernel));
  if (kernel == FSDP_ATTENTION_GENERAL) return false;
  FSDP_CHECK(!s.drop.draws, "%s by %s drops no probabilities", fsdp_op_name(call->kind),
             fsdp_attention_kernel_name(kernel));
  bool fits = call->operands[0].dtype == FSDP_BF16 && s.D % 8 == 0 && s.D <= 128;
  for (const void *operand : operands) fits = fits && is_aligned(operand);
  FSDP_CHECK(fits, "%s by %s: rows of %s, heads of %d", fsdp_op_name(call->kind),
             fsdp_attention_kernel_name(kernel), fsdp_dtype_name(call->operands[0].dtype), s.D);
  return true;
}

// ---- rowsum(d_o * o)

// Lanes that share a row of o of one head: a power of two, so that they are of one warp.
template <int WIDTH> int sharers_of(int D) {
  int lanes = 1;
  while (lanes < warp_lanes && lanes * WIDTH < D) lanes *= 2;
  return lanes;
}

template <class T, int WIDTH>
__global__ void __launch_bounds__(threads_count)
    sum_delta(attention_shape s, int sharers, const T *o, const T *d_o, float *delta) {
  const int rows = threads_count / sharers, index = int(blockIdx.x) * rows + int(threadIdx.x) / sharers;
  const bool exists = index < s.B * s.T * s.H; // (rows, H)
  const int64_t at = int64_t(index) * s.D;
  float sum = 0;
  for (int c = int(threadIdx.x) % sharers * WIDTH; exists && c < s.D; c += sharers * WIDTH) {
    float x[WIDTH], y[WIDTH];
    load_floats<WIDTH>(o + at + c, x);
    load_floats<WIDTH>(d_o + at + c, y);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) sum += x[i] * y[i];
  }
  for (int bits = sharers / 2; bits > 0; bits /= 2) sum += __shfl_xor_sync(whole_warp, sum, bits);
  if (!exists || int(threadIdx.x) % sharers != 0) return;
  const int row = index / s.H;
  const row_place place = place_of(s.queries, row);
  global_store(delta + statistic_at(s, place.sequence, index - row * s.H, place.index), sum);
}

template <class T, int WIDTH>
void launch_delta(const attention_shape &s, const T *o, const T *d_o, float *delta, launch_stream stream) {
  const int sharers = sharers_of<WIDTH>(s.D);
  launch({blocks_of(int64_t(s.B) * s.T * s.H, threads_count / sharers), threads_count, stream},
         sum_delta<T, WIDTH>, s, sharers, o, d_o, delta);
}

// ---- d_k and d_v from their parts

// d_k|d_v, 2K * D columns of rows `stride` apart: sums of the parts in order. A thread has one vector.
__global__ void __launch_bounds__(threads_count)
    add_head_parts(const float *parts, int head_parts, int rows, int columns, bf16 *d_kv, int stride) {
  constexpr int width = vector_numel<bf16>;
  const int64_t index = int64_t(blockIdx.x) * threads_count + int(threadIdx.x);
  const int64_t numel = int64_t(rows) * columns, at = index * width;
  if (at >= numel) return;
  float sum[width];
  load_floats<width>(parts + at, sum);
  for (int part = 1; part < head_parts; part++) {
    float x[width];
    load_floats<width>(parts + part * numel + at, x);
#pragma unroll
    for (int i = 0; i < width; i++) sum[i] += x[i];
  }
  const int64_t row = at / columns;
  store_floats<width>(d_kv + row * stride + (at - row * columns), sum);
}

void launch_add_head_parts(const attention_gradient<bf16> &p, launch_stream stream) {
  const attention_shape &s = p.shape;
  const int rows = s.B * s.S, columns = 2 * s.K * s.D;
  launch({blocks_of(int64_t(rows) * columns / vector_numel<bf16>, threads_count), threads_count, stream},
         add_head_parts, p.parts, p.head_parts, rows, columns, p.d_k, s.kv_width);
}

// ---- Which kernels run

void tensor_forward(fsdp_attention_kernel kernel, const attention_forward<bf16> &p, launch_stream stream) {
  if constexpr (has_wgmma) {
    if (kernel >= FSDP_ATTENTION_WGMMA) {
      attention_hopper_forward(p, kernel == FSDP_ATTENTION_WGMMA, stream);
      return;
    }
  }
  attention_tensor_forward(p, stream);
}

void tensor_backward(fsdp_attention_kernel kernel, const attention_gradient<bf16> &p, launch_stream stream) {
  bool done = false;
  if constexpr (has_wgmma) {
    if (kernel >= FSDP_ATTENTION_WGMMA) attention_hopper_backward(p, stream), done = true;
  }
  if (!done) attention_tensor_backward(p, stream);
  if (p.head_parts > 1) launch_add_head_parts(p, stream);
}

// Operands: q|k|v or q, [k|v,] o, lse.
void run_forward(const fsdp_kernel_call *call) {
  open_operands(call);
  const attention_shape s = attention_shape_of(call);
  const int kv = s.has_kv;
  with_type(call->operands[0].dtype, [&](auto number) {
    using T = decltype(number);
    const kv_columns<const T> columns = kv_columns_of<const T>(s, numbers_of<T>(call, kv));
    const attention_forward<T> p = {
        s,         numbers_of<T>(call, 0),      columns.k,
        columns.v, numbers_of<T>(call, kv + 1), data_of<float>(&call->operands[kv + 2])};
    const bool on_tensor_cores = runs_on_tensor_cores(call, s, {p.q, p.k, p.v, p.o});
    if constexpr (sizeof(T) == 2) {
      if (on_tensor_cores) {
        tensor_forward(call->attrs->attention, p, stream_of(call));
        return;
      }
    }
    attention_general_forward(p, stream_of(call));
  });
}

// Operands: q|k|v or q, [k|v,] o, lse, d_o, d_q|d_k|d_v or d_q[, d_k|d_v].
void run_backward(const fsdp_kernel_call *call) {
  open_operands(call);
  const attention_shape s = attention_shape_of(call);
  const int kv = s.has_kv;
  const int head_parts = int(fsdp_op_attention_head_parts(call->attrs));
  FSDP_CHECK(s.G % head_parts == 0, "%d heads of a group in %d parts", s.G, head_parts);
  auto *parts = data_of<float>(fsdp_kernel_workspace(call));
  float *delta = parts + fsdp_op_attention_parts_bytes(call->attrs) / 4;
  with_type(call->operands[0].dtype, [&](auto number) {
    using T = decltype(number);
    const T *o = numbers_of<T>(call, kv + 1), *d_o = numbers_of<T>(call, kv + 3);
    constexpr int width = vector_numel<T>;
    const bool wide = takes_vectors<T>(s.D, o, d_o);
    (wide ? launch_delta<T, width> : launch_delta<T, 1>)(s, o, d_o, delta, stream_of(call));
    const kv_columns<const T> columns = kv_columns_of<const T>(s, numbers_of<T>(call, kv));
    const kv_columns<T> gradients = kv_columns_of(s, numbers_of<T>(call, 2 * kv + 4));
    attention_gradient<T> p = {s,           numbers_of<T>(call, 0),
                               columns.k,   columns.v,
                               d_o,         data_of<float>(&call->operands[kv + 2]),
                               delta,       numbers_of<T>(call, kv + 4),
                               gradients.k, gradients.v,
                               head_parts,  parts,
                               false,       {}};
    if (call->attrs->rotates_back) {
      FSDP_CHECK(fsdp_op_attention_can_rotate(call->attrs) && call->attrs->inv_freq,
                 "%s of heads of %d, rotated back", fsdp_op_name(call->kind), s.D);
      p.rotates_back = true;
      memcpy(p.inv_freq, call->attrs->inv_freq, size_t(s.D / 2) * sizeof(float));
    }
    const bool on_tensor_cores = runs_on_tensor_cores(call, s, {p.q, p.k, p.v, p.d_o, p.d_q, p.d_k, p.d_v});
    if constexpr (sizeof(T) == 2) {
      if (on_tensor_cores) {
        tensor_backward(call->attrs->attention, p, stream_of(call));
        return;
      }
    }
    attention_general_backward(p, stream_of(call));
  });
}

attention_drop drop_of(const fsdp_kernel_call *call, int64_t group) {
  const fsdp_op_attrs *attrs = call->attrs;
  const int64_t rows = attrs->batch * attrs->seq;
  attention_drop drop = {};
  const int32_t *draws = fsdp_kernel_given(call, FSDP_GIVEN_BY_DRAWS);
  if (!draws) return drop;
  FSDP_CHECK(attrs->dropout >= 0 && attrs->dropout < 1 && attrs->first_row >= 0 &&
                 attrs->first_row + rows <= attrs->draws,
             "%s at a rate of %g, rows %lld + %lld of %lld draws", fsdp_op_name(call->kind),
             double(attrs->dropout), (long long)attrs->first_row, (long long)rows, (long long)attrs->draws);
  drop.draws = draws + FSDP_DROPOUT_WORDS * attrs->first_row;
  drop.op = attrs->drop_key;
  drop.limit = fsdp_dropout_limit(attrs->dropout);
  drop.scale = fsdp_dropout_scale(attrs->dropout);
  drop.first_head = int(attrs->first_head);
  drop.head_group = int(attrs->head_group ? attrs->head_group : group);
  return drop;
}

} // namespace

attention_shape attention_shape_of(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  const int64_t H = attrs->heads, K = attrs->kv_heads, D = attrs->head_dim;
  FSDP_CHECK(K > 0 && H % K == 0 && D > 0, "%lld heads over %lld key/value heads of %lld", (long long)H,
             (long long)K, (long long)D);
  FSDP_CHECK(D <= general_head_max, "%s: head dimension %lld exceeds %lld", fsdp_op_name(call->kind),
             (long long)D, (long long)general_head_max);
  const fsdp_row_map queries = fsdp_row_map_of(call);
  const fsdp_key_map keys = fsdp_key_map_of(call, &queries);
  FSDP_CHECK(keys.seq < INT32_MAX / 4 && attrs->batch * attrs->seq * H <= INT32_MAX / 2,
             "%s: %lld sequences of %lld, %lld heads", fsdp_op_name(call->kind), (long long)attrs->batch,
             (long long)keys.seq, (long long)H);
  FSDP_CHECK(attrs->window >= 0, "%s: a window of %lld keys", fsdp_op_name(call->kind),
             (long long)attrs->window);
  attention_shape s = {};
  s.B = int(attrs->batch);
  s.T = int(attrs->seq);
  s.S = int(keys.seq);
  s.H = int(H);
  s.K = int(K);
  s.G = int(H / K);
  s.D = int(D);
  s.window = attrs->window > 0 && attrs->window < keys.seq ? int(attrs->window) : INT32_MAX / 2;
  s.has_kv = call->kind == FSDP_OP_CONTEXT_ATTENTION || call->kind == FSDP_OP_CONTEXT_ATTENTION_BACKWARD;
  s.Q = int(s.has_kv ? attrs->out_stride : (H + 2 * K) * D);
  FSDP_CHECK(s.Q >= H * D && attrs->out_offset == 0, "%s: q in columns %lld + %lld of %d",
             fsdp_op_name(call->kind), (long long)attrs->out_offset, (long long)(H * D), s.Q);
  s.kv_width = int(s.has_kv ? 2 * K * D : s.Q);
  s.scale = float(1.0 / sqrt(double(D)));
  s.queries = row_map_of(queries);
  s.keys = key_map_of(keys);
  s.starts = fsdp_kernel_given(call, FSDP_GIVEN_BY_DOCUMENTS);
  s.documents = int(attrs->documents);
  s.drop = drop_of(call, s.G);
  FSDP_CHECK(!s.starts || attrs->documents == keys.seq, "%s: starts of %lld positions, %lld keys",
             fsdp_op_name(call->kind), (long long)attrs->documents, (long long)keys.seq);
  return s;
}

extern "C" unsigned fsdp_cuda_attention_kernels(void) {
  const unsigned wgmma = 1u << FSDP_ATTENTION_WGMMA | 1u << FSDP_ATTENTION_WGMMA_UNFENCED;
  return 1u << FSDP_ATTENTION_GENERAL | 1u << FSDP_ATTENTION_MMA | (has_wgmma ? wgmma : 0);
}

void cuda_attention(const fsdp_kernel_call *call) {
  run_forward(call);
}

void cuda_attention_backward(const fsdp_kernel_call *call) {
  run_backward(call);
}

void cuda_context_attention(const fsdp_kernel_call *call) {
  run_forward(call);
}

void cuda_context_attention_backward(const fsdp_kernel_call *call) {
  run_backward(call);
}
