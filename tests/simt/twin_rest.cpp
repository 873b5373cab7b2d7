// Every op that the other groups have no case of, on operands made from its row in models/graph/ops.def; and
// a few ops that they do have, so that what is made from the rows is tried whatever is missing.
#include "tests/simt/twin.h"

#include "runtime/base/check.h"

#include <cmath>
#include <set>

namespace {

constexpr int64_t flat_elems = 1001;

// The kinds that the other groups have cases of.
std::set<int> kinds_with_cases() {
  const twin_choice before = twin_chosen();
  twin_choose(TWIN_NOTE);
  twin_rows();
  twin_flat();
  twin_products();
  twin_experts();
  twin_attention_fp32();
  twin_attention_bf16();
  twin_choose(before);
  return twin_noted();
}

// No two letters of one size; `columns` of a row.
fsdp_op_attrs attrs_of(int64_t columns) {
  fsdp_op_attrs attrs = {};
  attrs.batch = 3;
  attrs.seq = 17;
  attrs.channels = attrs.intermediate = attrs.in_features = columns;
  attrs.heads = 4;
  attrs.kv_heads = 2;
  attrs.head_dim = 16;
  attrs.vocabulary = 37;
  attrs.out_features = attrs.out_stride = 24;
  attrs.chunk_rows = 20;
  attrs.eps = 1e-5f;
  attrs.dropout = 0.3f;
  attrs.drop_key = 0x123456789abcdefu;
  return attrs;
}

void add_operand(twin_case *c, const fsdp_op_operand &operand, fsdp_dtype dtype, bool adds) {
  const int64_t numel = fsdp_op_operand_numel(&c->attrs, &operand, flat_elems);
  if (operand.has_dtype) dtype = operand.dtype;
  if (operand.access == FSDP_UPDATE) {
    twin_update(c, dtype, numel);
  } else if (operand.access == FSDP_WRITE) {
    twin_result(c, adds && operand.may_add, dtype, numel);
  } else if (dtype == FSDP_I32) {
    std::vector<int32_t> values;
    for (int64_t i = 0; i < numel; i++) values.push_back(int32_t(i % c->attrs.vocabulary));
    twin_integers(c, values);
  } else {
    std::vector<float> values;
    for (int64_t i = 0; i < numel; i++)
      values.push_back(std::sin(0.37f * float(i) + float(c->operands.size())));
    values.back() = 1; // a last element that counts: the red zones' cases leave it out
    twin_values(c, dtype, values, FSDP_READ);
  }
}

void check(fsdp_op_kind kind, fsdp_dtype dtype, int64_t columns, bool adds) {
  const fsdp_op_letters *op = fsdp_op_letters_of(kind);
  bool may_add = false;
  for (int i = 0; i < op->operand_count; i++) may_add = may_add || op->operands[i].may_add;
  if (adds && !may_add) return;
  twin_case c = twin_of(kind, attrs_of(columns), dtype);
  c.name += " by its row, columns " + std::to_string(columns) + (adds ? " update" : "");
  const fsdp_op_operand &last = op->operands[op->operand_count - 1];
  if (last.given == FSDP_GIVEN_BY_DRAWS) { // rows and columns of a larger whole
    c.attrs.draws = c.attrs.batch * c.attrs.seq + 5;
    c.attrs.first_row = 2;
    c.attrs.first_index = columns % 2 ? 7 : 0;
  }
  for (int i = 0; i < op->operand_count; i++)
    if (!op->operands[i].given || op->operands[i].given == FSDP_GIVEN_BY_DRAWS)
      add_operand(&c, op->operands[i], dtype, adds);
  const int64_t cpu_bytes = fsdp_op_workspace_bytes(FSDP_OP_CPU, kind, &c.attrs, flat_elems);
  if (cpu_bytes || fsdp_op_workspace_bytes(FSDP_OP_CUDA, kind, &c.attrs, flat_elems))
    twin_workspace(&c, cpu_bytes / 4);
  twin_check(c);
}

} // namespace

void twin_rest() {
  static const std::set<int> others = kinds_with_cases();
  std::set<int> kinds = {FSDP_OP_RMSNORM, FSDP_OP_LINEAR_BACKWARD_WEIGHT, FSDP_OP_SWIGLU_BACKWARD,
                         FSDP_OP_ADD};
  for (int kind : kinds) FSDP_CHECK(others.count(kind), "%s has no case", fsdp_op_name(fsdp_op_kind(kind)));
  for (int kind = 0; kind < FSDP_OP_KIND_COUNT; kind++)
    if (!others.count(kind) && fsdp_op_runs_on(FSDP_OP_CUDA, fsdp_op_kind(kind))) kinds.insert(kind);
  for (int kind : kinds)
    for (fsdp_dtype dtype : {FSDP_F32, FSDP_BF16})
      for (int64_t columns : {9, 80, 1000})
        for (bool adds : {false, true}) check(fsdp_op_kind(kind), dtype, columns, adds);
}
