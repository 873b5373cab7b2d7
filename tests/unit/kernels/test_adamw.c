// AdamW's hard cases: decay rates near 1, and skipped steps. Sums and roundings of
// an ordinary step are in test_kernels_flat.c.
#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "tests/support/kernel_case.h"
#include "tests/support/unit_test.h"

#include <float.h>
#include <math.h>

enum { COUNT = 1001 };

// torch.optim.AdamW on doubles, from the parameter 0 and without decay of it: the parameter is its update.
typedef struct reference {
  double beta1, beta2, lr, eps;
  double m[COUNT], v[COUNT];
} reference;

static double update_of(reference *r, int i, double grad, int t) {
  r->m[i] = r->beta1 * r->m[i] + (1 - r->beta1) * grad;
  r->v[i] = r->beta2 * r->v[i] + (1 - r->beta2) * grad * grad;
  double c1 = 1 - pow(r->beta1, t), c2 = 1 - pow(r->beta2, t);
  return -r->lr / c1 * r->m[i] / (sqrt(r->v[i]) / sqrt(c2) + r->eps);
}

// 1 - beta2 of a beta2 in fp32 is off by 1e-3 at 0.99999 and by 1e-2 at 0.999999; what is tolerated is the
// rounding of the states and of four fp32 constants.
TEST(test_decay_rates_near_one) {
  static const double rates[][2] = {{0.9, 0.999}, {0.9, 0.99999}, {0.9, 0.999999}, {0.99999, 0.9999999}};
  for (size_t k = 0; k < sizeof rates / sizeof *rates; k++) {
    reference r = {.beta1 = rates[k][0], .beta2 = rates[k][1], .lr = 0.125, .eps = 1e-8};
    double *grads = kernel_normal(3, 10 * (int64_t)COUNT, 1), zeros[COUNT] = {0}, one = 1;
    for (int t = 1; t <= 10; t++) {
      const double *grad = grads + (t - 1) * COUNT;
      double scalars[FSDP_SCALAR_COUNT] = {[FSDP_SCALAR_LR] = r.lr,
                                           [FSDP_SCALAR_CORRECTION1] = 1 - pow(r.beta1, t),
                                           [FSDP_SCALAR_CORRECTION2] = 1 - pow(r.beta2, t),
                                           [FSDP_SCALAR_STEP] = t};
      fsdp_op_attrs attrs = {.beta1 = r.beta1, .beta2 = r.beta2, .adam_eps = (float)r.eps};
      kernel_case c = kernel_case_of(FSDP_OP_ADAMW, attrs, 1e-6);
      kernel_case_input(&c, FSDP_F32, COUNT, FSDP_READ, grad);
      kernel_case_input(&c, FSDP_F32, FSDP_SCALAR_COUNT, FSDP_READ, scalars);
      kernel_case_input(&c, FSDP_F32, 1, FSDP_READ, &one);
      double *p = kernel_case_input(&c, FSDP_F32, COUNT, FSDP_UPDATE, zeros);
      double *m = kernel_case_input(&c, FSDP_F32, COUNT, FSDP_UPDATE, r.m);
      double *v = kernel_case_input(&c, FSDP_F32, COUNT, FSDP_UPDATE, r.v);
      for (int i = 0; i < COUNT; i++) p[i] = update_of(&r, i, (double)(float)grad[i], t);
      memcpy(m, r.m, sizeof r.m);
      memcpy(v, r.v, sizeof r.v);
      kernel_case_check(&c);
    }
    free(grads);
  }
}

// A factor that says skip leaves the bits of every state and of the copy, whatever the gradients are.
TEST(test_skip_touches_nothing) {
  static const fsdp_dtype kinds[][3] = {{FSDP_F32, FSDP_F32, FSDP_F32},
                                        {FSDP_F32, FSDP_F32, FSDP_BF16},
                                        {FSDP_BF16, FSDP_BF16, FSDP_F32},
                                        {FSDP_BF16, FSDP_BF16, FSDP_BF16}};
  static const double grads[] = {NAN, INFINITY, -INFINITY, 1e30};
  fsdp_param_run segment = {0, COUNT, 5, 77, 0, 0, false};
  for (int kind = 0; kind < 4; kind++)
    for (int g = 0; g < 4; g++) {
      fsdp_op_attrs attrs = {.beta1 = 0.9, .beta2 = 0.999, .adam_eps = 1e-8f, .weight_decay = 0.1f};
      kernel_case c = kernel_case_of(FSDP_OP_ADAMW, attrs, 0);
      double values[COUNT], factor = (double)FSDP_FACTOR_SKIP;
      const double scalars[FSDP_SCALAR_COUNT] = {1, 0.1, 0.001, 1, 1};
      for (int i = 0; i < COUNT; i++) values[i] = grads[g];
      c.segments = &segment, c.segment_count = 1;
      kernel_case_input(&c, FSDP_F32, COUNT, FSDP_READ, values);
      kernel_case_input(&c, FSDP_F32, FSDP_SCALAR_COUNT, FSDP_READ, scalars);
      kernel_case_input(&c, FSDP_F32, 1, FSDP_READ, &factor);
      for (int s = 0; s < 3; s++)
        kernel_case_input(&c, s == 0 ? kinds[kind][0] : kinds[kind][1], COUNT, FSDP_UPDATE, NULL);
      kernel_case_input(&c, kinds[kind][2], COUNT, FSDP_WRITE, NULL);
      kernel_case_run(&c);
      for (int i = 3; i < 7; i++)
        assert_memory_equal(c.operands[i].data, c.initial[i],
                            (size_t)(COUNT * fsdp_dtype_bytes(c.operands[i].dtype)));
      kernel_case_free(&c);
    }
}

// Runs that do not decay, of all lengths, also across the blocks and chunks in which a kernel works: with
// gradients of zero and moments of zero a step is the decay alone.
TEST(test_some_decay) {
  enum { ELEMS = 40000, RUNS = 40 };
  for (int bf16 = 0; bf16 < 2; bf16++) {
    const fsdp_op_attrs attrs = {
        .beta1 = 0.9, .beta2 = 0.999, .adam_eps = 1e-8f, .weight_decay = 0.5f, .decays_some = true};
    kernel_case c = kernel_case_of(FSDP_OP_ADAMW, attrs, 0);
    fsdp_param_run runs[RUNS];
    int64_t begin = 0;
    int count = 0;
    for (; count < RUNS && begin < ELEMS; count++, begin += 16) {
      int64_t numel = fsdp_min_i64(ELEMS - begin, 1 + (int64_t)count * count * 37 % 2300);
      runs[count] = (fsdp_param_run){
          .shard_offset = begin, .numel = numel, .random_stream = 3, .undecayed = count % 3 > 0};
      begin += numel;
    }
    double *ones = fsdp_alloc(ELEMS * sizeof *ones), *zeros = fsdp_alloc_zeroed(ELEMS, sizeof *zeros);
    const double one = 1, scalars[FSDP_SCALAR_COUNT] = {0.5, 0.1, 0.001, 1, 1}; // a weight keeps 3/4
    for (int i = 0; i < ELEMS; i++) ones[i] = 1;
    c.segments = runs, c.segment_count = count;
    kernel_case_input(&c, FSDP_F32, ELEMS, FSDP_READ, zeros);
    kernel_case_input(&c, FSDP_F32, FSDP_SCALAR_COUNT, FSDP_READ, scalars);
    kernel_case_input(&c, FSDP_F32, 1, FSDP_READ, &one);
    double *master = kernel_case_input(&c, bf16 ? FSDP_BF16 : FSDP_F32, ELEMS, FSDP_UPDATE, ones);
    for (int s = 0; s < 2; s++) kernel_case_input(&c, FSDP_F32, ELEMS, FSDP_UPDATE, zeros);
    for (int i = 0; i < ELEMS; i++) master[i] = NAN; // padding: not compared
    for (int r = 0; r < count; r++)
      for (int64_t i = 0; i < runs[r].numel; i++)
        master[runs[r].shard_offset + i] = runs[r].undecayed ? 1 : 0.75;
    kernel_case_check(&c);
    free(ones), free(zeros);
  }
}

// Which norms are skipped: what is no number or infinite always, and what is above the limit.
TEST(test_which_norms_skip) {
  static const struct {
    float sum, limit;
    bool skips;
  } cases[] = {
      {NAN, FLT_MAX, true}, {INFINITY, FLT_MAX, true},
      {-1, FLT_MAX, true},  {FLT_MAX, FLT_MAX, false},
      {0, FLT_MAX, false},  {16, 4, false},
      {16.00001f, 4, true}, {15.9f, 4, false},
      {INFINITY, 4, true},  {NAN, 4, true},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    fsdp_op_attrs attrs = {.max_norm = 1, .norm_limit = cases[i].limit};
    kernel_case c = kernel_case_of(FSDP_OP_CLIP_FACTOR, attrs, 0);
    double sum = (double)cases[i].sum;
    kernel_case_input(&c, FSDP_F32, 1, FSDP_READ, &sum);
    kernel_case_output(&c, FSDP_F32, 1);
    kernel_case_output(&c, FSDP_F32, 1);
    kernel_case_run(&c);
    double norm = kernel_value(&c.operands[1], 0), factor = kernel_value(&c.operands[2], 0);
    assert_int_equal(factor == (double)FSDP_FACTOR_SKIP, cases[i].skips);
    if (!cases[i].skips) assert_true(factor > 0 && factor <= 1);
    assert_int_equal(FSDP_NORM_SKIPS((float)norm, cases[i].limit), cases[i].skips); // what the host sees
    kernel_case_free(&c);
  }
}
