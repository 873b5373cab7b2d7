// Rates of ops by the bytes that they move, and of attention by sequence length.
#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/probe/run.h"

#include <math.h>

#define SIZES_MAX 8

static const float *inverse_frequencies(void) {
  static float table[128];
  for (int i = 0; i < 128; i++) table[i] = powf(10000.0f, -(float)i / 32.0f);
  return table;
}

// A layer over `rows` tokens, of the widths of models that such a device trains: a GPU has a block for a row
// of a norm, which few channels do not fill.
static fsdp_op_attrs layer_of(fsdp_op_device device, int64_t rows) {
  const bool cuda = device == FSDP_OP_CUDA;
  return (fsdp_op_attrs){.batch = 1,
                         .seq = rows,
                         .channels = cuda ? 4096 : 256,
                         .heads = cuda ? 32 : 4,
                         .kv_heads = cuda ? 8 : 2,
                         .head_dim = cuda ? 128 : 64,
                         .intermediate = cuda ? 14336 : 768,
                         .vocabulary = rows,
                         .positions = rows,
                         .in_features = cuda ? 4096 : 512,
                         .out_features = cuda ? 4096 : 512,
                         .out_stride = cuda ? 8192 : 1024,
                         .ranks = 2,
                         .inv_freq = inverse_frequencies(),
                         .eps = 1e-5f,
                         .norm_weight = 1,
                         .max_norm = 1,
                         .norm_limit = 1e30f,
                         .beta1 = 0.9,
                         .beta2 = 0.999,
                         .adam_eps = 1e-8f};
}

static fsdp_op_attrs attrs_of(const probe *self, fsdp_op_kind kind, int64_t rows) {
  fsdp_op_attrs attrs = layer_of(self->device, rows);
  const fsdp_op_letters *op = fsdp_op_letters_of(kind);
  // A position's angles serve both sequences, which have some of a table's positions.
  attrs.batch = 2;
  attrs.seq = rows / 2;
  attrs.positions = 4 * attrs.seq;
  if (fsdp_op_letter_find(op, 'r')) attrs.in_features /= 2; // of two ranks' parts
  if (fsdp_op_letter_find(op, 'z')) attrs.draws = rows, attrs.dropout = 0.1f;
  if (fsdp_op_slice_bias(op) >= 0) attrs.out_stride = attrs.out_features; // a bias is of all columns
  return attrs;
}

// Bytes that the op moves for each row; of an op over a flat range, for each element.
static double bytes_of(probe *self, fsdp_op_kind kind, int64_t rows) {
  const fsdp_op_attrs attrs = attrs_of(self, kind, rows);
  probe_call *call = probe_call_create(self, kind, &attrs, rows);
  if (!call) return 0;
  const double bytes = probe_call_work(call).bytes;
  probe_call_destroy(call);
  return bytes;
}

// The point of a curve for about `target` bytes; false if the operands do not fit, or have no more than
// `smallest` bytes.
static bool measure_point(probe *self, fsdp_op_kind kind, double row_bytes, double target, double smallest,
                          fsdp_profile_point *point) {
  const int64_t rows = fsdp_max_i64(8, (int64_t)(target / row_bytes) / 8 * 8);
  const fsdp_op_attrs attrs = attrs_of(self, kind, rows);
  probe_drift_watch(self);
  probe_call *call = probe_call_create(self, kind, &attrs, rows);
  if (!call) return false;
  const double bytes = probe_call_work(call).bytes;
  const bool larger = bytes > smallest;
  if (larger) *point = (fsdp_profile_point){bytes, bytes / probe_call_measure(self, call)};
  probe_call_destroy(call);
  return larger;
}

static void measure_op(probe *self, fsdp_op_kind kind) {
  static const double cpu_sizes[] = {32, 4e3, 32e3, 256e3, 1e6, 4e6, 16e6, 64e6},
                      gpu_sizes[] = {1e6, 8e6, 64e6, 512e6, 2e9};
  const bool cuda = self->device == FSDP_OP_CUDA;
  const double *sizes = cuda ? gpu_sizes : cpu_sizes;
  // Of a flat range, which may be a whole shard, more than caches hold, too.
  const int of_rows = 7, of_ranges = sizeof cpu_sizes / sizeof *cpu_sizes;
  const int size_count = cuda ? sizeof gpu_sizes / sizeof *gpu_sizes
                         : fsdp_op_letter_find(fsdp_op_letters_of(kind), 'p') ? of_ranges
                                                                              : of_rows;
  const int step = self->coarse ? 2 : 1;
  const int64_t few = cuda ? 32 : 1024; // of a GPU's wide rows, more may not fit where there is little memory
  const double row_bytes = (bytes_of(self, kind, 2 * few) - bytes_of(self, kind, few)) / (double)few;
  fsdp_profile_point points[SIZES_MAX];
  fsdp_profile_op entry = {
      .ranks = self->scope, .op = kind, .dtype = self->dtype, .rate = {.points = points}};
  // An op of a few numbers has one size.
  for (int i = 0; i < (row_bytes > 0 ? size_count : 1); i += step) {
    const int have = entry.rate.count;
    entry.rate.count += measure_point(self, kind, row_bytes > 0 ? row_bytes : 1, sizes[i],
                                      have ? points[have - 1].size : 0, &points[have]);
  }
  if (entry.rate.count > 0) fsdp_device_profile_add(self->profile, FSDP_PROFILE_OPS, &entry);
}

// Whether a step runs the op, and memory bounds it: it has no gemms. Checks of state and poison are no part
// of a step. Routed rows are where the data says, which numbers made from a row alone do not.
static bool is_bound_by_memory(const probe *self, fsdp_op_kind kind) {
  static const char of_experts[] = {'e', 'q', 'a', 'u'};
  const fsdp_op_attrs attrs = layer_of(self->device, 64);
  for (size_t i = 0; i < sizeof of_experts; i++)
    if (fsdp_op_letter_find(fsdp_op_letters_of(kind), of_experts[i])) return false;
  return fsdp_op_flops(kind, &attrs) == 0 && kind != FSDP_PLAN_OP_CHECKSUM && kind != FSDP_PLAN_OP_POISON;
}

void probe_ops(probe *self) {
  for (int kind = 0; kind < FSDP_OP_KIND_COUNT; kind++)
    if (fsdp_op_runs_on(self->device, (fsdp_op_kind)kind) && is_bound_by_memory(self, (fsdp_op_kind)kind))
      measure_op(self, (fsdp_op_kind)kind);
}

// ---- The head

// What its gemms take, each measured at its own shape.
static double head_products_s(probe *self, fsdp_op_kind kind, const fsdp_op_attrs *attrs) {
  fsdp_op_product products[FSDP_OP_PRODUCTS_MAX];
  const int count = fsdp_op_products(kind, attrs, products);
  double seconds = 0;
  for (int i = 0; i < count; i++) seconds += products[i].count * probe_product_s(self, &products[i]);
  return seconds;
}

// The rate of the rows of logits: what a launch takes beyond its gemms, which a profile has by themselves.
static bool measure_head(probe *self, fsdp_op_kind kind, const fsdp_op_attrs *shape,
                         fsdp_profile_point *point) {
  fsdp_op_attrs attrs = *shape;
  if (fsdp_op_letter_find(fsdp_op_letters_of(kind), 'v')->is_whole)
    attrs.chunk_rows = fsdp_op_chunk_rows(self->device, attrs.seq, attrs.vocabulary, FSDP_F32);
  probe_call *call = probe_call_create(self, kind, &attrs, 0);
  if (!call) return false;
  const double bytes = probe_call_work(call).row_bytes, seconds = probe_call_measure(self, call);
  probe_call_destroy(call);
  const double products_s = head_products_s(self, kind, &attrs);
  // Gemms that ran faster inside leave nothing to tell: the rows took a twentieth at least.
  *point = (fsdp_profile_point){bytes, bytes / fmax(seconds - products_s, 0.05 * seconds)};
  return true;
}

// Ops with gemms over a vocabulary.
void probe_head(probe *self) {
  static const struct {
    int64_t rows, channels, vocabulary;
  } cpu_shapes[] = {{256, 128, 256}, {1024, 256, 1024}, {512, 256, 4096}, {128, 256, 32000}},
    gpu_shapes[] = {{2048, 1024, 8192}, {2048, 2048, 32000}, {4096, 4096, 32000}};
  const bool cuda = self->device == FSDP_OP_CUDA;
  for (int h = 0; h < FSDP_OP_KIND_COUNT; h++) {
    const fsdp_op_kind kind = (fsdp_op_kind)h;
    if (!fsdp_op_makes_gemms(kind) || !fsdp_op_letter_find(fsdp_op_letters_of(kind), 'v')) continue;
    fsdp_profile_point points[SIZES_MAX];
    fsdp_profile_op entry = {
        .ranks = self->scope, .op = kind, .dtype = self->dtype, .rate = {.points = points}};
    for (int i = 0; i < (self->coarse ? 3 : cuda ? 3 : 4); i += self->coarse ? 2 : 1) {
      fsdp_op_attrs attrs = layer_of(self->device, cuda ? gpu_shapes[i].rows : cpu_shapes[i].rows);
      attrs.channels = cuda ? gpu_shapes[i].channels : cpu_shapes[i].channels;
      attrs.vocabulary = cuda ? gpu_shapes[i].vocabulary : cpu_shapes[i].vocabulary;
      entry.rate.count += measure_head(self, kind, &attrs, &points[entry.rate.count]);
    }
    if (entry.rate.count > 0) fsdp_device_profile_add(self->profile, FSDP_PROFILE_OPS, &entry);
  }
}

// ---- Attention

// By the kernel that the probe's target asks for, whose name in the profile is `kernel`.
static void measure_attention(probe *self, const char *kernel, int head_dim,
                              fsdp_profile_direction direction) {
  const bool cuda = self->device == FSDP_OP_CUDA;
  // A launch of the general kernels over 16384 keys takes most of a second.
  const bool general = cuda && self->target.attention == FSDP_ATTENTION_GENERAL;
  const int64_t first = cuda ? 512 : 32, last = cuda && !general ? 16384 : 2048;
  const int64_t tokens = general ? 2048 : cuda ? 16384 : 512;
  const fsdp_op_kind kind =
      direction == FSDP_ATTENTION_FORWARD ? FSDP_PLAN_OP_ATTENTION : FSDP_PLAN_OP_ATTENTION_BACKWARD;
  fsdp_profile_point points[16];
  fsdp_profile_attention entry = {.ranks = self->scope,
                                  .dtype = self->dtype,
                                  .head_dim = head_dim,
                                  .direction = direction,
                                  .rate = {.points = points}};
  snprintf(entry.kernel, sizeof entry.kernel, "%s", kernel);
  for (int64_t seq = first; seq <= last; seq *= cuda && !self->coarse ? 2 : 4) {
    fsdp_op_attrs attrs = layer_of(self->device, seq);
    attrs.batch = fsdp_max_i64(1, tokens / seq);
    attrs.head_dim = head_dim;
    attrs.heads = fsdp_max_i64(2, (cuda ? 2048 : 256) / head_dim);
    attrs.kv_heads = attrs.heads / 2;
    probe_drift_watch(self);
    probe_call *call = probe_call_create(self, kind, &attrs, 0);
    if (!call) break;
    points[entry.rate.count++] =
        (fsdp_profile_point){(double)seq, probe_call_work(call).flops / probe_call_measure(self, call)};
    probe_call_destroy(call);
  }
  if (entry.rate.count > 0) fsdp_device_profile_add(self->profile, FSDP_PROFILE_ATTENTION, &entry);
}

static void measure_head_dims(probe *self, const char *kernel) {
  static const int head_dims[] = {32, 64, 128};
  for (size_t i = 0; i < sizeof head_dims / sizeof *head_dims; i++) {
    measure_attention(self, kernel, head_dims[i], FSDP_ATTENTION_FORWARD);
    measure_attention(self, kernel, head_dims[i], FSDP_ATTENTION_BACKWARD);
  }
}

void probe_attention(probe *self) {
  char name[FSDP_PROFILE_KERNEL_BYTES];
  if (self->device == FSDP_OP_CPU) {
    measure_head_dims(self, fsdp_profile_kernel_name(FSDP_ATTENTION_CPU, name));
    return;
  }
  for (int k = FSDP_ATTENTION_WGMMA; k >= FSDP_ATTENTION_GENERAL; k--) {
    const fsdp_attention_kernel kernel = (fsdp_attention_kernel)k;
    fsdp_error unused = {0};
    self->target.attention = kernel;
    if (fsdp_attention_check(&self->target, self->dtype, 32, false, &unused) == FSDP_OK)
      measure_head_dims(self, fsdp_profile_kernel_name(kernel, name));
  }
  self->target.attention = FSDP_ATTENTION_AUTO;
}
