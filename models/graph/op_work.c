// What an op does, from its row and its operands' letters.
#include "models/graph/op_row.h"

#include <math.h>
#include <string.h>

// The one gemm of an op.
static fsdp_op_product product_of(fsdp_op_kind kind, const fsdp_op_attrs *attrs) {
  const fsdp_op_product_form form = (fsdp_op_product_form)(fsdp_op_row_of(kind)->product - 1);
  const fsdp_op_operand *weight = fsdp_op_letters_of(kind)->operands;
  while (!strstr(weight->name, "weight")) weight++;
  const int64_t out = fsdp_op_dim_size(attrs, &weight->dims[weight->dim_count - 2], 0);
  const int64_t in = fsdp_op_dim_size(attrs, &weight->dims[weight->dim_count - 1], 0);
  if (fsdp_op_is_grouped(kind)) return fsdp_op_expert_product(attrs, form, out, in);
  return fsdp_op_product_of(form, attrs->batch * attrs->seq, out, in, 1);
}

int fsdp_op_products(fsdp_op_kind kind, const fsdp_op_attrs *attrs,
                     fsdp_op_product products[FSDP_OP_PRODUCTS_MAX]) {
  const fsdp_op_row *row = fsdp_op_row_of(kind);
  if (row->product) products[0] = product_of(kind, attrs);
  return row->product ? 1 : row->products ? row->products(kind, attrs, products) : 0;
}

double fsdp_op_flops(fsdp_op_kind kind, const fsdp_op_attrs *attrs) {
  const fsdp_op_row *row = fsdp_op_row_of(kind);
  fsdp_op_product products[FSDP_OP_PRODUCTS_MAX];
  const int count = fsdp_op_products(kind, attrs, products);
  double flops = row->flops ? row->flops(attrs) : 0;
  for (int i = 0; i < count; i++)
    flops += products[i].count * 2.0 * (double)products[i].m * (double)products[i].n * (double)products[i].k;
  return flops;
}

// Bytes of an operand's columns beside the slice that it has of them.
static double bytes_beside(const fsdp_op_attrs *attrs, const fsdp_op_operand *row, fsdp_dtype dtype) {
  const fsdp_op_dim *columns = &row->dims[row->dim_count - 1];
  if (!columns->is_slice) return 0;
  const int64_t others = attrs->out_stride - fsdp_op_dim_size(attrs, columns, 0);
  return (double)(attrs->batch * attrs->seq * others * fsdp_dtype_bytes(dtype));
}

fsdp_op_work fsdp_op_work_of(fsdp_op_kind kind, const fsdp_op_attrs *attrs, const fsdp_op_extent *operands,
                             int operand_count) {
  const fsdp_op_row *row = fsdp_op_row_of(kind);
  const fsdp_op_letters *op = fsdp_op_letters_of(kind);
  bool repeated = op->operands[op->operand_count - 1].repeated;
  fsdp_op_work work = {.flops = fsdp_op_flops(kind, attrs)};
  for (int i = 0; i < operand_count && (repeated || i < fsdp_op_operand_count(op, attrs)); i++) {
    const fsdp_op_operand *of = fsdp_op_operand_row(op, attrs, i);
    const bool routed = fsdp_op_operand_has(of, 'u');
    // A kernel passes over places without a routed row; of a block it writes its own beside others'.
    const double places = (double)operands[i].bytes;
    const double bytes = routed ? floor(fsdp_op_routed_share(attrs) * places) : places;
    const bool beside = routed && of->may_add && attrs->held_experts;
    const bool adds = operands[i].access == FSDP_UPDATE && !beside;
    if (adds) work.added_bytes += bytes;
    work.bytes += bytes;
    if (row->traits[FSDP_TRAIT_SLICED])
      work.bytes -= (adds ? 2 : 1) * bytes_beside(attrs, of, operands[i].dtype);
  }
  work.bytes += work.added_bytes;
  if (row->residual) work.added_bytes += (double)operands[row->residual - 1].bytes;
  if (row->work) row->work(attrs, operands, &work);
  return work;
}
