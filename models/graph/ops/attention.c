// Causal attention over rows of q|k|v, or of q with keys and values in rows of their own, and the rotation of
// q and k before it.
#include "models/graph/backward.h"
#include "models/graph/op_row.h"

bool fsdp_node_rotates(const fsdp_node *node, const fsdp_op_attrs *attrs, const fsdp_node *next) {
  return node->kind == FSDP_OP_ATTENTION_BACKWARD && next && next->kind == FSDP_OP_ROPE_BACKWARD &&
         next->operands[0].value == node->operands[4].value && fsdp_op_attention_can_rotate(attrs);
}

void fsdp_node_take_context(fsdp_node *attention, int q, int kv) {
  const fsdp_node whole = *attention;
  attention->kind = FSDP_OP_CONTEXT_ATTENTION;
  attention->operand_count = 0;
  fsdp_node_operand_add(attention, q, FSDP_READ);
  fsdp_node_operand_add(attention, kv, FSDP_READ);
  for (int o = 1; o < whole.operand_count; o++)
    fsdp_node_operand_add(attention, whole.operands[o].value, whole.operands[o].access);
}

void fsdp_op_attention_attrs(fsdp_op_device device, const fsdp_op_gpu *gpu, fsdp_op_attrs *attrs,
                             const fsdp_dtype *dtypes) {
  if (device != FSDP_OP_CUDA) return;
  attrs->attention = fsdp_attention_kernel_of(gpu, dtypes[0], attrs->head_dim, attrs->dropout > 0);
}

// Positions that have keys.
static int64_t key_count(const fsdp_op_attrs *attrs) {
  return attrs->kv_seq ? attrs->kv_seq : attrs->seq;
}

// A window as long as the sequence hides nothing.
static bool has_window(const fsdp_op_attrs *attrs) {
  return attrs->window > 0 && attrs->window < key_count(attrs);
}

// FLOPs of one of attention's gemms, over the pairs that the causal mask and the window leave: query q sees
// min(q + 1, window) keys. Of a sequence in parts, each counts an equal share of the whole's pairs: its two
// chunks of queries have that many, with a window nearly.
static double gemm_flops(const fsdp_op_attrs *attrs) {
  double T = (double)key_count(attrs), W = has_window(attrs) ? (double)attrs->window : T;
  double pairs = W * (W + 1.0) / 2.0 + (T - W) * W;
  if (attrs->kv_parts > 1) pairs /= (double)attrs->kv_parts;
  return 2.0 * (double)attrs->batch * pairs * (double)(attrs->heads * attrs->head_dim);
}

// q k^T and p v
double fsdp_op_attention_flops(const fsdp_op_attrs *attrs) {
  return 2.0 * gemm_flops(attrs);
}

// The scores again, d_p, d_q, d_k and d_v
double fsdp_op_attention_backward_flops(const fsdp_op_attrs *attrs) {
  return 5.0 * gemm_flops(attrs);
}

int64_t fsdp_op_attention_choose_parts(const fsdp_op_attrs *attrs, int64_t multiprocessors) {
  if (attrs->attention < FSDP_ATTENTION_MMA) return 1;
  int64_t keys = attrs->attention == FSDP_ATTENTION_MMA ? FSDP_ATTENTION_MMA_KEYS : FSDP_ATTENTION_WGMMA_KEYS;
  int64_t blocks = attrs->batch * attrs->kv_heads * ((key_count(attrs) + keys - 1) / keys);
  int64_t group = attrs->heads / attrs->kv_heads, parts = 1;
  while (parts < group && (group % parts != 0 || blocks * parts < 4 * multiprocessors)) parts++;
  return parts;
}

bool fsdp_op_attention_can_rotate(const fsdp_op_attrs *attrs) {
  return attrs->attention >= FSDP_ATTENTION_MMA && !attrs->rotary_dim &&
         (attrs->head_dim == 64 || attrs->head_dim == 128);
}

int64_t fsdp_op_attention_head_parts(const fsdp_op_attrs *attrs) {
  return attrs->head_parts > 1 ? attrs->head_parts : 1;
}

int64_t fsdp_op_attention_parts_bytes(const fsdp_op_attrs *attrs) {
  int64_t parts = fsdp_op_attention_head_parts(attrs), columns = 2 * attrs->kv_heads * attrs->head_dim;
  return parts > 1 ? 4 * parts * attrs->batch * key_count(attrs) * columns : 0;
}

void fsdp_op_attention_backward_attrs(fsdp_op_device device, const fsdp_op_gpu *gpu, fsdp_op_attrs *attrs,
                                      const fsdp_dtype *dtypes) {
  fsdp_op_attention_attrs(device, gpu, attrs, dtypes);
  attrs->head_parts = fsdp_op_attention_choose_parts(attrs, gpu->multiprocessors);
}

int64_t fsdp_op_attention_backward_cuda_bytes(const fsdp_op_attrs *attrs, int64_t flat_elems) {
  return fsdp_op_attention_parts_bytes(attrs) + fsdp_op_attention_backward_bytes(attrs, flat_elems);
}

// rowsum(d_o * o)
int64_t fsdp_op_attention_backward_bytes(const fsdp_op_attrs *attrs, int64_t flat_elems) {
  (void)flat_elems;
  return 4 * attrs->batch * attrs->heads * attrs->seq;
}
