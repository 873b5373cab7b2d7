// Products by shape: grids of rows, inputs and outputs of a linear layer, from coarse to fine.
#include "runtime/probe/run.h"

#include <stdio.h>

typedef struct grid {
  int64_t rows[8], widths[12];
  int row_count, width_count;
} grid;

// Each holds what the one before left out. The widths of the models that a machine trains are among them.
static const grid cpu_grids[] = {
    {{128, 1024}, {128, 512, 2048}, 2, 3},
    {{256, 1024}, {64, 128, 256, 512, 1024, 2048}, 2, 6},
    {{64, 512, 4096}, {64, 128, 256, 512, 1024, 2048, 4096}, 3, 7},
    {{128, 256, 2048, 8192}, {64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 4096}, 4, 10},
    {{64, 512, 1024, 4096}, {96, 192, 384, 704, 768, 1408, 1536, 3072}, 4, 8},
};
static const grid gpu_grids[] = {
    {{1024, 8192}, {1024, 4096, 11008}, 2, 3},
    {{2048, 4096}, {1024, 2048, 4096, 8192, 14336}, 2, 5},
    {{1024, 2048, 4096, 8192, 16384}, {512, 1024, 2048, 4096, 5120, 8192, 14336, 28672}, 5, 8},
};
// The head: rows of a chunk, channels, vocabulary.
static const int64_t cpu_heads[][3] = {{256, 128, 8192},  {256, 256, 32000}, {64, 512, 32000},
                                       {512, 512, 32000}, {1024, 256, 8192}, {512, 768, 32000},
                                       {64, 128, 50304}},
                     gpu_heads[][3] = {{1024, 2048, 32000}, {1024, 4096, 32000}, {1024, 4096, 128256}};

// The layer of a product.
static fsdp_op_attrs layer_of(const fsdp_op_product *p) {
  const bool forward = p->form == FSDP_PRODUCT_FORWARD, weight = p->form == FSDP_PRODUCT_WEIGHT;
  fsdp_op_attrs attrs = {.batch = 1, .seq = weight ? p->k : p->m};
  attrs.in_features = forward ? p->k : p->n;
  attrs.out_features = forward ? p->n : weight ? p->m : p->k;
  attrs.out_stride = attrs.out_features;
  return attrs;
}

// NULL: this sweep has not measured it.
static const fsdp_profile_product *find_known(const probe *self, const fsdp_op_product *p) {
  for (int i = 0; i < self->profile->product_count; i++) {
    const fsdp_profile_product *have = &self->profile->products[i];
    if (have->ranks == self->scope && have->dtype == self->dtype && have->form == p->form &&
        have->m == p->m && have->n == p->n && have->k == p->k)
      return have;
  }
  return NULL;
}

double probe_product_s(probe *self, const fsdp_op_product *product) {
  const double flops = 2 * (double)product->m * (double)product->n * (double)product->k;
  const fsdp_profile_product *known = find_known(self, product);
  if (known) return flops / known->flops_per_s;
  const fsdp_op_attrs attrs = layer_of(product);
  probe_call *call = probe_call_create(self, fsdp_op_product_kind(product->form), &attrs, 0);
  if (!call) return 0;
  const double seconds = probe_call_measure(self, call);
  probe_call_destroy(call);
  fsdp_device_profile_add(self->profile, FSDP_PROFILE_PRODUCTS,
                          &(fsdp_profile_product){.ranks = self->scope,
                                                  .dtype = self->dtype,
                                                  .form = product->form,
                                                  .m = product->m,
                                                  .n = product->n,
                                                  .k = product->k,
                                                  .flops_per_s = flops / seconds});
  return seconds;
}

// ---- The drift

#define DRIFT_EVERY_S 0.5
#define DRIFT_TAIL    8 // a step, made at some other time, is to lie within in three of four cases

void probe_drift_watch(probe *self) {
  probe_drift *drift = self->drift;
  const double now_s = probe_elapsed(self);
  if (now_s < drift->next_s || drift->count == PROBE_DRIFT_MAX) return;
  drift->next_s = now_s + DRIFT_EVERY_S;
  const fsdp_op_product product = {FSDP_PRODUCT_FORWARD, 1024, 256, 1024, 1};
  const fsdp_op_attrs attrs = layer_of(&product);
  probe_call *call = probe_call_create(self, fsdp_op_product_kind(product.form), &attrs, 0);
  if (!call) return;
  const probe_load load = probe_call_load(self, call);
  drift->seconds[drift->count++] = probe_measure(self, &load);
  probe_call_destroy(call);
}

void probe_drift_end(probe *self) {
  if (self->drift->count > 0)
    probe_median(self->drift->seconds, self->drift->count, DRIFT_TAIL, &self->spread[PROBE_DRIFT]);
  self->drift->count = 0;
}

// ---- Grouped by expert

// A few experts of usual widths, each of which has `rows` rows of tokens that two experts have each.
static fsdp_op_attrs experts_of(const probe *self, int64_t rows) {
  const bool cuda = self->device == FSDP_OP_CUDA;
  fsdp_op_attrs attrs = {.batch = 1, .slots = 2, .experts = cuda ? 32 : 8};
  attrs.seq = rows * attrs.experts / attrs.slots;
  attrs.channels = cuda ? 2048 : 512;
  attrs.intermediate = cuda ? 1024 : 256;
  return attrs;
}

// Whether the op makes such products of the form.
static bool makes(fsdp_op_kind kind, const fsdp_op_attrs *attrs, fsdp_op_product_form form) {
  fsdp_op_product products[FSDP_OP_PRODUCTS_MAX];
  return fsdp_op_is_grouped(kind) && fsdp_op_products(kind, attrs, products) == 1 && products[0].form == form;
}

// By which they are made: the same for all ops.
static fsdp_grouped_kernel grouped_kernel_of(const probe *self, fsdp_op_product_form form) {
  fsdp_op_attrs attrs = experts_of(self, 1);
  const fsdp_dtype dtypes[] = {self->dtype};
  int kind = 0;
  while (!makes((fsdp_op_kind)kind, &attrs, form)) kind++;
  fsdp_op_complete_attrs(self->device, &self->target, (fsdp_op_kind)kind, &attrs, dtypes);
  return attrs.products;
}

// Of all ops that make such products of the form, together; 0: their operands do not fit.
static double grouped_rate(probe *self, fsdp_op_product_form form, int64_t rows) {
  const fsdp_op_attrs attrs = experts_of(self, rows);
  double flops = 0, seconds = 0;
  for (int k = 0; k < FSDP_OP_KIND_COUNT; k++) {
    const fsdp_op_kind kind = (fsdp_op_kind)k;
    if (!makes(kind, &attrs, form)) continue;
    probe_call *call = probe_call_create(self, kind, &attrs, 0);
    if (!call) return 0;
    flops += fsdp_op_flops(kind, &attrs);
    seconds += probe_call_measure(self, call);
    probe_call_destroy(call);
  }
  return flops / seconds;
}

void probe_grouped(probe *self) {
  static const int64_t cpu_rows[] = {4, 16, 64, 256, 512}, gpu_rows[] = {16, 64, 128, 256, 1024};
  enum { SIZES = 5 };
  const bool cuda = self->device == FSDP_OP_CUDA;
  for (int form = 0; form < FSDP_PRODUCT_FORM_COUNT; form++) {
    fsdp_profile_point points[SIZES];
    fsdp_profile_grouped entry = {.ranks = self->scope,
                                  .dtype = self->dtype,
                                  .form = (fsdp_op_product_form)form,
                                  .rate = {.points = points}};
    snprintf(entry.kernel, sizeof entry.kernel, cuda ? "fsdp-%s" : "fsdp",
             fsdp_grouped_kernel_name(grouped_kernel_of(self, entry.form)));
    for (int i = 0; i < SIZES; i += self->coarse ? 2 : 1) {
      const int64_t rows = cuda ? gpu_rows[i] : cpu_rows[i];
      const double rate = grouped_rate(self, entry.form, rows);
      if (rate > 0) points[entry.rate.count++] = (fsdp_profile_point){(double)rows, rate};
    }
    if (entry.rate.count > 0) fsdp_device_profile_add(self->profile, FSDP_PROFILE_GROUPED, &entry);
  }
}

// ---- All shapes

// The three products of a layer.
static void measure_layer(probe *self, int64_t rows, int64_t in, int64_t out) {
  const fsdp_op_product products[] = {{FSDP_PRODUCT_FORWARD, rows, out, in, 1},
                                      {FSDP_PRODUCT_INPUT, rows, in, out, 1},
                                      {FSDP_PRODUCT_WEIGHT, out, in, rows, 1}};
  for (int i = 0; i < 3; i++) probe_product_s(self, &products[i]);
  probe_drift_watch(self);
}

// Whether time is up, after `layers` layers; sweeps after the first have as many as that.
static bool is_over(const probe *self, double until_s, int layers) {
  probe_sweeps *sweeps = self->sweeps;
  if (sweeps && sweeps->sweep > 0) return layers >= sweeps->layers;
  if (sweeps) sweeps->layers = layers;
  return probe_elapsed(self) > until_s;
}

void probe_products(probe *self, double until_s) {
  const bool cuda = self->device == FSDP_OP_CUDA;
  const grid *grids = cuda ? gpu_grids : cpu_grids;
  const int grid_count = cuda ? sizeof gpu_grids / sizeof *gpu_grids : sizeof cpu_grids / sizeof *cpu_grids;
  const int64_t(*heads)[3] = cuda ? gpu_heads : cpu_heads;
  const int head_count = cuda ? sizeof gpu_heads / sizeof *gpu_heads : sizeof cpu_heads / sizeof *cpu_heads;
  // A launch that takes longer than several measurements tells no more than a smaller one.
  const double flops_max = !cuda ? 2e9 : self->dtype == FSDP_F32 ? 2e12 : 2e13;
  int layers = 0;
  for (int g = 0; g < grid_count; g++) {
    const grid *one = &grids[g];
    for (int r = 0; r < one->row_count; r++)
      for (int i = 0; i < one->width_count; i++)
        for (int o = 0; o < one->width_count; o++) {
          const int64_t rows = one->rows[r], in = one->widths[i], out = one->widths[o];
          if (g > 0 && is_over(self, until_s, layers)) return;
          if (2 * (double)rows * (double)in * (double)out > flops_max) continue;
          measure_layer(self, rows, in, out);
          layers++;
        }
    for (int h = 0; g == 1 && h < head_count && !is_over(self, until_s, layers); h++, layers++)
      measure_layer(self, heads[h][0], heads[h][1], heads[h][2]);
  }
  if (self->sweeps && self->sweeps->sweep == 0) self->sweeps->layers = layers;
}
