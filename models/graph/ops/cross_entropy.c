// The linear head with cross-entropy, over chunks of rows whose logits exist at one time: of the whole
// vocabulary, or of a shard of it (head_*).
#include "models/graph/backward.h"
#include "models/graph/op_row.h"
#include "runtime/base/size.h"

// With an fp32 gradient: about 64 MiB of fp32 logits, at least 64 rows, at least a sixteenth of all rows, and
// at most 1024. Every chunk reads and writes the head's whole weight gradient: for 126 chunks that memory
// traffic would take 8% of an 8B model's step on a GPU.
//
// On a CPU that traffic costs less beside the gemms, and logits that stay in the cache save some: about 16
// MiB of logits, at least 256 rows, within the limits above. The chunks are nearly equal.
//
// A bf16 gradient is rounded after every chunk. So a chunk is then a quarter of all rows, in whole tiles of a
// gemm, within 2 GiB of logits: as many bytes as an fp32 copy of an 8B model's gradient would take, with a
// fourth of its traffic. The error of four roundings is 1.6 times that of one, of sixteen 2.9 times.
//
// There are 1024 chunks at most: of so many rows, the logits are little beside what else a layer has of them,
// and a plan's time grows with the square of its instructions.
int64_t fsdp_op_chunk_rows(fsdp_op_device device, int64_t rows, int64_t vocabulary, fsdp_dtype gradient) {
  const int64_t tile = 128, logits_max = ((int64_t)2 << 30) / 4, chunks_max = 1024;
  int64_t chunk = fsdp_max_i64(64, ((int64_t)16 << 20) / vocabulary);
  chunk = fsdp_min_i64(fsdp_max_i64(chunk, rows / 16), 1024);
  if (device == FSDP_OP_CPU) {
    chunk = fsdp_min_i64(chunk, fsdp_max_i64(256, ((int64_t)4 << 20) / vocabulary));
    const int64_t chunks = (rows + chunk - 1) / chunk;
    chunk = fsdp_min_i64(chunk, fsdp_round_up((rows + chunks - 1) / chunks, 16));
  }
  if (gradient != FSDP_F32) {
    int64_t quarter = fsdp_round_up((rows + 3) / 4, tile);
    chunk = fsdp_max_i64(chunk, fsdp_min_i64(quarter, logits_max / vocabulary / tile * tile));
  }
  return fsdp_min_i64(rows, fsdp_max_i64(chunk, (rows + chunks_max - 1) / chunks_max));
}

void fsdp_op_cross_entropy_attrs(fsdp_op_device device, const fsdp_op_gpu *gpu, fsdp_op_attrs *attrs,
                                 const fsdp_dtype *dtypes) {
  (void)gpu, (void)dtypes;
  attrs->chunk_rows = fsdp_op_chunk_rows(device, attrs->batch * attrs->seq, attrs->vocabulary, FSDP_F32);
}

void fsdp_op_cross_entropy_backward_attrs(fsdp_op_device device, const fsdp_op_gpu *gpu, fsdp_op_attrs *attrs,
                                          const fsdp_dtype *dtypes) {
  (void)gpu;
  attrs->chunk_rows = fsdp_op_chunk_rows(device, attrs->batch * attrs->seq, attrs->vocabulary, dtypes[6]);
}

void fsdp_op_cross_entropy_emit(fsdp_graph *graph, const fsdp_node *f) {
  fsdp_node *n = fsdp_backward_node(graph, FSDP_OP_LINEAR_CROSS_ENTROPY_BACKWARD, f);
  for (int i = 0; i < 4; i++) fsdp_node_operand_add(n, f->operands[i].value, FSDP_READ);
  fsdp_node_operand_add(n, f->operands[4].value, FSDP_WRITE);
  fsdp_backward_output(graph, n, f->operands[0].value);
  n->attrs.weight_frozen = !graph->values[f->operands[1].value].needs_gradient;
  if (!n->attrs.weight_frozen) fsdp_backward_output(graph, n, f->operands[1].value);
  if (n->attrs.loss_of_documents) fsdp_node_operand_add(n, f->operands[5].value, FSDP_READ);
}

static int64_t rows_of(const fsdp_op_attrs *attrs) {
  return attrs->batch * attrs->seq;
}

// From the logits, but where those are given, to d_x and d_weight in a backward. On a shard of the
// vocabulary, those of the rows of one chunk a call.
int fsdp_op_head_products(fsdp_op_kind kind, const fsdp_op_attrs *a,
                          fsdp_op_product products[FSDP_OP_PRODUCTS_MAX]) {
  const bool backward = fsdp_op_phase_of(kind) == FSDP_OP_IN_BACKWARD;
  const int64_t v = a->vocabulary, c = a->channels, rows = a->chunk_rows ? a->chunk_rows : rows_of(a);
  const double count = (double)rows_of(a) / (double)rows;
  int n = 0;
  if (kind != FSDP_OP_HEAD_BACKWARD)
    products[n++] = fsdp_op_product_of(FSDP_PRODUCT_FORWARD, rows, v, c, count);
  if (backward) products[n++] = fsdp_op_product_of(FSDP_PRODUCT_INPUT, rows, v, c, count);
  if (backward && !a->weight_frozen)
    products[n++] = fsdp_op_product_of(FSDP_PRODUCT_WEIGHT, rows, v, c, count);
  return n;
}

static double logits_numel(const fsdp_op_attrs *attrs) {
  return (double)(attrs->batch * attrs->seq) * (double)attrs->vocabulary;
}

// The row's maximum and sum.
void fsdp_op_logits_work(const fsdp_op_attrs *attrs, const fsdp_op_extent *operands, fsdp_op_work *work) {
  (void)operands;
  work->row_bytes = 4 * logits_numel(attrs);
}

// Also writes the row's gradients over the logits. Every chunk but the first adds to the weight's gradient,
// which is read and written once more for each.
void fsdp_op_cross_entropy_backward_work(const fsdp_op_attrs *attrs, const fsdp_op_extent *operands,
                                         fsdp_op_work *work) {
  const int64_t chunks = (attrs->batch * attrs->seq + attrs->chunk_rows - 1) / attrs->chunk_rows;
  work->row_bytes = (8 + (double)fsdp_dtype_bytes(operands[0].dtype)) * logits_numel(attrs);
  if (!attrs->weight_frozen) work->bytes += 2 * (double)(chunks - 1) * (double)operands[6].bytes;
}

// The logits of a chunk.
int64_t fsdp_op_cross_entropy_cpu_bytes(const fsdp_op_attrs *attrs, int64_t flat_elems) {
  (void)flat_elems;
  return 4 * attrs->chunk_rows * attrs->vocabulary;
}

// And the loss of each row.
int64_t fsdp_op_cross_entropy_cuda_bytes(const fsdp_op_attrs *attrs, int64_t flat_elems) {
  return fsdp_op_cross_entropy_cpu_bytes(attrs, flat_elems) + 4 * attrs->batch * attrs->seq;
}

// Reads the row's logits and writes their gradients over them; the gemms read the gradients.
void fsdp_op_head_backward_work(const fsdp_op_attrs *attrs, const fsdp_op_extent *operands,
                                fsdp_op_work *work) {
  const double width = (double)fsdp_dtype_bytes(operands[3].dtype);
  work->row_bytes = (4 + width) * logits_numel(attrs);
  work->bytes += width * logits_numel(attrs) - 2 * (double)operands[6].bytes;
}
