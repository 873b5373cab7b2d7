// Launchers of the products grouped by expert: operands, and the implementation that the plan says.
#include "kernels/cuda/experts/grouped.cuh"
#include "kernels/cuda/ops.cuh"

#include <initializer_list>

namespace {

// Operands 2 and 3 of every product are slots and offsets. A weight has `out` rows of `in` columns.
grouped_shape shape_of(const fsdp_kernel_call *call, int64_t out, int64_t in) {
  const fsdp_op_attrs *attrs = call->attrs;
  const int64_t rows = fsdp_op_letter_size(attrs, 'u', 0);
  FSDP_CHECK(attrs->slots > 0 && attrs->batch * attrs->seq * attrs->slots <= INT32_MAX &&
                 out <= INT32_MAX / 2 && in <= INT32_MAX / 2,
             "%s: %lld routed rows of %lld and %lld elements", fsdp_op_name(call->kind), (long long)rows,
             (long long)in, (long long)out);
  return {data_of<int>(&call->operands[2]),
          data_of<int>(&call->operands[3]),
          int(attrs->experts),
          int(out),
          int(in),
          int(attrs->first_routed),
          int(rows),
          divisor_of(attrs->slots)};
}

// Whether the plan's kernel, which must be able to take these operands, is one of tensor cores. Their rows
// must start on 16 bytes for cp.async.
bool runs_on_tensor_cores(const fsdp_kernel_call *call, const grouped_shape &s,
                          std::initializer_list<const void *> operands) {
  const fsdp_grouped_kernel kernel = call->attrs->products;
  FSDP_CHECK(kernel != FSDP_GROUPED_CPU && (has_wgmma || kernel != FSDP_GROUPED_WGMMA),
             "%s: no kernel %d here", fsdp_op_name(call->kind), int(kernel));
  if (kernel == FSDP_GROUPED_GENERAL) return false;
  bool fits = call->operands[0].dtype == FSDP_BF16 && s.out % 8 == 0 && s.in % 8 == 0;
  for (const void *operand : operands) fits = fits && is_aligned(operand);
  FSDP_CHECK(fits, "%s by %s: rows of %s, of %d and %d elements", fsdp_op_name(call->kind),
             fsdp_grouped_kernel_name(kernel), fsdp_dtype_name(call->operands[0].dtype), s.out, s.in);
  return true;
}

template <class Problem> void run_on_tensor_cores(const fsdp_kernel_call *call, const Problem &p) {
  if constexpr (has_wgmma) {
    if (call->attrs->products == FSDP_GROUPED_WGMMA) {
      grouped_hopper(p, stream_of(call));
      return;
    }
  }
  grouped_tensor(p, stream_of(call));
}

struct product_of {
  int64_t out, in;
  bool is_input, gathers;
};

void run_product(const fsdp_kernel_call *call, const product_of &of) {
  const fsdp_view *o = open_operands(call);
  const grouped_shape shape = shape_of(call, of.out, of.in);
  with_type(o[0].dtype, [&](auto number) {
    using T = decltype(number);
    const grouped_product<T> p = {shape,
                                  {numbers_of<T>(call, 0), of.gathers},
                                  numbers_of<T>(call, 1),
                                  numbers_of<T>(call, 4),
                                  of.is_input};
    if constexpr (sizeof(T) == 2) {
      if (runs_on_tensor_cores(call, shape, {p.a.data, p.weight, p.c})) {
        run_on_tensor_cores(call, p);
        return;
      }
    }
    grouped_general(p, stream_of(call));
  });
}

struct gradient_of {
  int64_t out, in;
  bool gathers_d_y, gathers_x;
};

void run_gradient(const fsdp_kernel_call *call, const gradient_of &of) {
  const fsdp_view *o = open_operands(call);
  const grouped_shape shape = shape_of(call, of.out, of.in);
  with_type(o[0].dtype, [&](auto number) {
    using T = decltype(number);
    with_type(o[4].dtype, [&](auto gradient) {
      using G = decltype(gradient);
      const grouped_gradient<T, G> p = {shape,
                                        {numbers_of<T>(call, 0), of.gathers_d_y},
                                        {numbers_of<T>(call, 1), of.gathers_x},
                                        numbers_of<G>(call, 4),
                                        updates(&o[4])};
      if constexpr (sizeof(T) == 2) {
        if (runs_on_tensor_cores(call, shape, {p.d_y.data, p.x.data, p.d_weight})) {
          run_on_tensor_cores(call, p);
          return;
        }
      }
      grouped_general(p, stream_of(call));
    });
  });
}

} // namespace

void cuda_expert_up(const fsdp_kernel_call *call) {
  run_product(call, {2 * call->attrs->intermediate, call->attrs->channels, false, true});
}

void cuda_expert_down(const fsdp_kernel_call *call) {
  run_product(call, {call->attrs->channels, call->attrs->intermediate, false, false});
}

void cuda_expert_up_backward_input(const fsdp_kernel_call *call) {
  run_product(call, {2 * call->attrs->intermediate, call->attrs->channels, true, false});
}

void cuda_expert_down_backward_input(const fsdp_kernel_call *call) {
  run_product(call, {call->attrs->channels, call->attrs->intermediate, true, true});
}

void cuda_expert_up_backward_weight(const fsdp_kernel_call *call) {
  run_gradient(call, {2 * call->attrs->intermediate, call->attrs->channels, false, true});
}

void cuda_expert_down_backward_weight(const fsdp_kernel_call *call) {
  run_gradient(call, {call->attrs->channels, call->attrs->intermediate, true, false});
}
