// The op table: one row an op. What an op reads and writes, which kernel runs it, and how its backward is
// emitted.
//
// A forward op's row also says how its backward is emitted into a graph (backward.c) and by which op
// it is recomputed where its first output was kept. Kernels (kernels/kernels.h) receive the operands in the
// order that stands beside each kind below. An output that is written is overwritten; one that is "updated"
// is read and written (an accumulation or an in-place op): the access of the operand says which, there is no
// other flag.
//
// Dimensions: B sequences, T tokens each, N = B*T rows, C hidden size, H heads, K key/value heads, D head
// dimension, Q = (H + 2K)*D columns of the q|k|v buffer, I intermediate size, V vocabulary, P elements of a
// flat range.
#pragma once

#include "runtime/base/dtype.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// r: read, w: written, u: updated in place, w/u: either. All matrices row-major.
typedef enum fsdp_op_kind {
  // Forward.
  FSDP_OP_EMBEDDING,   // r tokens (N) i32, r weight (V,C)             -> w h (N,C)
  FSDP_OP_RMSNORM,     // r h (N,C), r weight (C)                      -> w y (N,C), w rstd (N) fp32
  FSDP_OP_ADD_RMSNORM, // r x (N,C), r delta (N,C), r weight (C)       -> w h = x + delta (N,C), w y, w rstd
  FSDP_OP_LINEAR,      // r x (N,in), r weight (out,in)                -> w y columns [offset, offset+out)
  FSDP_OP_ROPE,        // u qkv (N,Q)
  FSDP_OP_ATTENTION,   // r qkv (N,Q)                                  -> w o (N,H*D), w lse (B,H,T) fp32
  FSDP_OP_SWIGLU,      // r gate|up (N,2I)                             -> w s (N,I)
  FSDP_OP_LINEAR_CROSS_ENTROPY, // r x (N,C), r weight (V,C), r targets (N) i32, r count (1) fp32
                                //                                -> w/u loss (1) fp32, w workspace
  // Backward. d_x is the gradient of x.
  FSDP_OP_EMBEDDING_BACKWARD, // r tokens (N), r d_h (N,C)                  -> w/u d_weight (V,C)
  FSDP_OP_RMSNORM_BACKWARD,   // r h, r rstd, r weight, r d_y               -> w/u d_h (N,C), w/u d_weight (C)
  FSDP_OP_LINEAR_BACKWARD_INPUT,  // r d_y columns (N,out), r weight (out,in)   -> w/u d_x (N,in)
  FSDP_OP_LINEAR_BACKWARD_WEIGHT, // r d_y columns (N,out), r x (N,in)          -> w/u d_weight (out,in)
  FSDP_OP_ROPE_BACKWARD,          // u d_qkv (N,Q)
  FSDP_OP_ATTENTION_BACKWARD,     // r qkv, r o, r lse, r d_o (N,H*D)           -> w d_qkv (N,Q), w workspace
  FSDP_OP_SWIGLU_BACKWARD,        // r gate|up, r d_s (N,I)                     -> w d_gate|up (N,2I)
  FSDP_OP_LINEAR_CROSS_ENTROPY_BACKWARD, // r x, r weight, r targets, r count   -> w/u loss (1), w d_x (N,C),
                                         //                                        w/u d_weight (V,C), w
                                         //                                        workspace
                                         // (forward and backward at once: the loss's scale is known)
  // Movement and state, over flat ranges of P elements.
  FSDP_OP_CAST, // r source (P)                                          -> w destination (P), any two dtypes
  FSDP_OP_ADD,  // r source (P)                                          -> u destination (P), any two dtypes
  FSDP_OP_ZERO, // w destination (P), each operand a range
  FSDP_OP_SUM_SQUARES, // r source (P)                              -> w norm_weight * sum of squares (1) fp32
  FSDP_OP_SUM,         // r source (P) fp32                                     -> w sum (1) fp32
  FSDP_OP_CLIP_FACTOR, // r sum of squares (1) fp32                             -> w norm (1), w factor (1)
                       // fp32
  FSDP_OP_ADAMW,       // r grad (P), r scalars (FSDP_SCALAR_COUNT) fp32, r factor (1) fp32
  //                                          -> u master (P), u m (P), u v (P), [w copy (P)]
  FSDP_OP_CHECKSUM, // r source (P) any dtype                                 -> w digest (2) i32: the range's
                    // bytes as 64-bit words, each mixed with its index, summed modulo 2^64
  FSDP_OP_POISON,   // w destination: fills every operand with signalling NaNs (tests only)
  FSDP_OP_KIND_COUNT
} fsdp_op_kind;

// What an op must know beside its operands. Fields that an op does not name in its row are zero.
typedef struct fsdp_op_attrs {
  int64_t batch, seq;                // B, T; N = batch * seq
  int64_t channels;                  // C
  int64_t heads, kv_heads, head_dim; // H, K, D
  int64_t hidden;                    // I
  int64_t vocabulary;                // V
  int64_t in_features, out_features; // of one matrix product
  int64_t out_stride, out_offset;    // row width of y (or d_y) and this product's first column, in elements
  int64_t chunk_rows;                // cross-entropy: rows of x whose logits exist at one time
  // Of an op that works on indices [first_index, first_index + n) of something larger, n from its shapes:
  // where that begins, which may depend on the rank, and the real extent of the whole (0: first_index + n).
  // What lies at or above `extent` is padding. Embedding: rows of the vocabulary, n = V. RoPE: positions,
  // n = T; no extent.
  int64_t first_index, extent;
  const float *inv_freq; // RoPE: D/2 inverse frequencies, owned by the graph
  float eps;             // RMSNorm
  float norm_weight;     // sum of squares: its factor, so that each element counts once whatever its replicas
  float max_norm;        // clip: factor = min(1, max_norm / (norm + 1e-6)), 1 where max_norm is 0
  float norm_limit;      // clip: above it, or where the norm is not a number, factor = FSDP_FACTOR_SKIP
  double beta1, beta2;   // 1 - beta and the corrections are taken of these, then rounded
  float adam_eps, weight_decay;
} fsdp_op_attrs;

// The factor that says: this step updates nothing. AdamW leaves master, m, v and the copy as they are.
#define FSDP_FACTOR_SKIP (-1.0f)

// The rule by which a step is skipped, for the clip factor on the device and for the host, which sees the
// same norm: infinity and NaN are above every limit. `limit` is FLT_MAX where none is given.
#define FSDP_NORM_SKIPS(norm, limit) (!((norm) <= (limit)))

// Indices into the fp32 step scalars that a step receives from the host (FSDP_OP_ADAMW's second operand).
enum {
  FSDP_SCALAR_LR,          // learning rate of this step
  FSDP_SCALAR_CORRECTION1, // 1 - beta1^t, t the update's number from 1: skipped steps do not count
  FSDP_SCALAR_CORRECTION2, // 1 - beta2^t
  FSDP_SCALAR_STEP,        // t (exact up to 2^24), the counter of stochastic rounding
  FSDP_SCALAR_ONE,         // 1.0: the factor of an update that nothing clips
  FSDP_SCALAR_COUNT
};

#define FSDP_OP_MAX_OPERANDS 8
#define FSDP_TARGET_IGNORED  (-100) // a target that the loss does not count

// "linear", "attention_backward", ...
const char *fsdp_op_name(fsdp_op_kind kind);

// Multiply-add work of the op's matrix products as 2*m*n*k FLOPs (attention counted causally), for rates and
// prices.
double fsdp_op_flops(fsdp_op_kind kind, const fsdp_op_attrs *attrs);

// Whether the op makes matrix products through the device's library, and so uses that one's scratch.
bool fsdp_op_has_products(fsdp_op_kind kind);

// Whose kernels run an op: what differs between devices in the list of instructions.
typedef enum fsdp_op_device { FSDP_OP_CPU, FSDP_OP_CUDA } fsdp_op_device;

// Rows whose logits exist at one time (attrs.chunk_rows) where the head's weight gradient is of this dtype;
// FSDP_F32 where there is none.
int64_t fsdp_op_chunk_rows(int64_t rows, int64_t vocabulary, fsdp_dtype gradient);

// Bytes of the workspace that the device's kernel takes as one more, last operand (written, fp32), a multiple
// of 4; 0: it takes none. A function of the shape alone; `flat_elems` is P of ops over flat ranges.
//
//                                CPU             CUDA
//   attention_backward           4*B*H*T         4*B*H*T                 rowsum(d_o * o)
//   linear_cross_entropy(_b.)    4*chunk*V       4*(chunk*V + N)         logits of a chunk; each row's loss
//   embedding_backward           0               4*(V + 1 + N)           positions sorted by token
//   rmsnorm_backward             0               4*C*min(N, 512)         partial sums of d_weight
//   sum_squares                  0               8*min(1024, P/8192 up)  partial sums, fp64
int64_t fsdp_op_workspace_bytes(fsdp_op_device device, fsdp_op_kind kind, const fsdp_op_attrs *attrs,
                                int64_t flat_elems);

#ifdef __cplusplus
}
#endif
