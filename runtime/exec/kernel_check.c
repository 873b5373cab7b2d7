#include "runtime/exec/kernel_check.h"

#include "kernels/kernels.h"
#include "runtime/base/cache_file.h"
#include "runtime/base/check.h"
#include "runtime/base/job.h"
#include "runtime/base/random.h"
#include "runtime/base/size.h"
#include "runtime/device/device.h"
#include "runtime/device/pool.h"
#include "runtime/exec/build_id.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define ALIGNMENT     256
#define ARENA_BYTES   (INT64_C(4) << 20) // of the greatest case, with room
#define LAUNCHES_MAX  4096
#define IDENTITY_SIZE 512
#define DOCUMENT      90 // tokens of one, where there are documents: no multiple of a tile

// ---- A case: one op on the CPU and on the GPU

typedef struct operand {
  fsdp_dtype dtype;
  fsdp_access access;
  int64_t numel, bytes;
  unsigned char *host; // inputs and the CPU's results
  void *device;
} operand;

typedef struct kernel_case {
  fsdp_op_kind kind;
  fsdp_op_attrs attrs;
  operand operands[FSDP_OP_MAX_OPERANDS];
  int count;
  // What operand i begins as, in place of drawn numbers; NULL: drawn.
  const operand *given[FSDP_OP_MAX_OPERANDS];
} kernel_case;

// What the comparisons found; remembered.
typedef struct verdict {
  unsigned attention_distrusted, grouped_distrusted;
  char finding[200]; // the first of what differs
} verdict;

typedef struct checker {
  fsdp_device *device;
  const fsdp_kernel_backend *backend;
  fsdp_pool *pool;
  int capability;
  verdict *found;
} checker;

static float value_at(const operand *o, const unsigned char *data, int64_t i) {
  float value;
  fsdp_bf16 half;
  if (o->dtype == FSDP_F32) {
    memcpy(&value, data + 4 * i, 4);
    return value;
  }
  memcpy(&half, data + 2 * i, 2);
  return fsdp_bf16_to_f32(half);
}

static void draw(const kernel_case *c, operand *o) {
  float *values = fsdp_alloc((size_t)o->numel * sizeof *values);
  const uint64_t stream = fsdp_random_stream(fsdp_op_name(c->kind)) + (uint64_t)(o - c->operands);
  fsdp_random_normal(1, stream, 0, o->numel, 0, 1, values);
  for (int64_t i = 0; i < o->numel; i++) {
    const fsdp_bf16 half = fsdp_bf16_from_f32(values[i]);
    if (o->dtype == FSDP_F32)
      memcpy(o->host + 4 * i, &values[i], 4);
    else
      memcpy(o->host + 2 * i, &half, 2);
  }
  free(values);
}

// Documents of DOCUMENT tokens, and a last one of what is left.
static void fill_starts(const kernel_case *c, operand *o) {
  for (int64_t i = 0; i < o->numel; i++) {
    const int64_t position = i % c->attrs.documents;
    ((int32_t *)(void *)o->host)[i] = (int32_t)(position - position % DOCUMENT);
  }
}

// A third of the rows drop nothing.
static void fill_draws(operand *o) {
  for (int64_t row = 0; row < o->numel / FSDP_DROPOUT_WORDS; row++) {
    int32_t *words = (int32_t *)(void *)o->host + FSDP_DROPOUT_WORDS * row;
    fsdp_dropout_row(1, 0, 0, row, words);
    if (row % 3 == 0) words[0] = 0;
  }
}

// Of routed rows expert 1 has none, the one before it the first two thirds, the one behind it the others.
// Slots are in no order.
static void fill_routing(operand *o, bool is_offsets, int64_t routed) {
  int32_t *numbers = (int32_t *)(void *)o->host;
  for (int64_t i = 0; i < o->numel && !is_offsets; i++) numbers[i] = (int32_t)(7 * i % routed);
  for (int64_t i = 0; i < o->numel && is_offsets; i++)
    numbers[i] = (int32_t)(i == 0 ? 0 : i < o->numel - 1 ? 2 * routed / 3 : routed);
}

static void make_operands(kernel_case *c, fsdp_dtype dtype) {
  const fsdp_op_letters *op = fsdp_op_letters_of(c->kind);
  c->count = fsdp_op_operand_count(op, &c->attrs);
  for (int i = 0; i < c->count; i++) {
    const fsdp_op_operand *row = fsdp_op_operand_row(op, &c->attrs, i);
    operand *o = &c->operands[i];
    o->dtype = row->has_dtype ? row->dtype : dtype;
    o->access = row->access;
    o->numel = fsdp_op_operand_numel(&c->attrs, row, 0);
    o->bytes = o->numel * fsdp_dtype_bytes(o->dtype);
    o->host = fsdp_alloc((size_t)o->bytes);
    if (c->given[i])
      memcpy(o->host, c->given[i]->host, (size_t)o->bytes);
    else if (row->given == FSDP_GIVEN_BY_DOCUMENTS)
      fill_starts(c, o);
    else if (row->given == FSDP_GIVEN_BY_DRAWS)
      fill_draws(o);
    else if (o->dtype == FSDP_I32)
      fill_routing(o, strcmp(row->name, "offsets") == 0, c->attrs.seq * c->attrs.slots);
    else if (o->access & FSDP_READ)
      draw(c, o);
  }
}

static void release(kernel_case *c) {
  for (int i = 0; i < c->count; i++) free(c->operands[i].host);
}

static fsdp_kernel_call call_of(const kernel_case *c, const fsdp_view *views, int count) {
  return (fsdp_kernel_call){.kind = c->kind, .attrs = &c->attrs, .operands = views, .operand_count = count};
}

static void run_on_cpu(const checker *self, kernel_case *c) {
  fsdp_view views[FSDP_OP_MAX_OPERANDS + 1];
  const int64_t scratch = fsdp_op_workspace_bytes(FSDP_OP_CPU, c->kind, &c->attrs, 0);
  int count = 0;
  for (; count < c->count; count++) {
    const operand *o = &c->operands[count];
    views[count] = (fsdp_view){o->host, o->numel, o->dtype, o->access};
  }
  void *workspace = fsdp_alloc((size_t)scratch);
  if (scratch > 0) views[count++] = (fsdp_view){workspace, scratch / 4, FSDP_F32, FSDP_WRITE};
  fsdp_op_attrs attrs = c->attrs;
  attrs.attention = FSDP_ATTENTION_CPU;
  attrs.head_parts = 1;
  fsdp_kernel_call call = call_of(c, views, count);
  call.attrs = &attrs;
  call.pool = self->pool;
  fsdp_cpu_kernels()->kernels[c->kind](&call);
  free(workspace);
}

typedef struct launch {
  const fsdp_kernel_backend *backend;
  fsdp_kernel_call call;
} launch;

static void run_launch(const fsdp_work *work, const fsdp_stream_context *context) {
  launch *l = work->owner;
  l->call.stream = context->native;
  l->backend->table->kernels[l->call.kind](&l->call);
}

// NaNs stand where nothing was written yet.
static void place(const checker *self, kernel_case *c, fsdp_view *views, int *count) {
  const fsdp_device_table *table = self->device->table;
  unsigned char *at = self->device->arenas.memory[FSDP_SPACE_DEVICE];
  int64_t used = 0;
  unsigned char *nans = fsdp_alloc((size_t)ARENA_BYTES);
  memset(nans, 0xff, (size_t)ARENA_BYTES);
  const int64_t scratch = fsdp_op_workspace_bytes(FSDP_OP_CUDA, c->kind, &c->attrs, 0);
  for (*count = 0; *count < c->count + (scratch > 0); ++*count) {
    const bool is_scratch = *count == c->count;
    operand *o = &c->operands[is_scratch ? 0 : *count];
    const int64_t bytes = is_scratch ? scratch : o->bytes;
    FSDP_CHECK(used + bytes <= ARENA_BYTES, "a case of more than %lld bytes", (long long)ARENA_BYTES);
    views[*count] = is_scratch ? (fsdp_view){at + used, scratch / 4, FSDP_F32, FSDP_WRITE}
                               : (fsdp_view){at + used, o->numel, o->dtype, o->access};
    const bool reads = !is_scratch && (o->access & FSDP_READ);
    table->write(self->device, at + used, reads ? o->host : nans, bytes);
    if (!is_scratch) o->device = at + used;
    used += fsdp_round_up(bytes, ALIGNMENT);
  }
  if (table->flush) table->flush(self->device);
  free(nans);
}

static void run_on_gpu(const checker *self, kernel_case *c) {
  fsdp_view views[FSDP_OP_MAX_OPERANDS + 1];
  int count;
  const fsdp_device_table *table = self->device->table;
  place(self, c, views, &count);
  launch l = {.backend = self->backend, .call = call_of(c, views, count)};
  self->backend->prepare(&l.call);
  const fsdp_work work = {.run = run_launch, .owner = &l, .awaited = true};
  table->synchronize(self->device, FSDP_STREAM_COMPUTE,
                     table->launch(self->device, FSDP_STREAM_COMPUTE, &work));
}

// The greatest difference from the CPU's results, relative to their greatest number; infinite for a NaN.
static double difference(const checker *self, const kernel_case *c) {
  double worst = 0;
  for (int i = 0; i < c->count; i++) {
    const operand *o = &c->operands[i];
    if (!(o->access & FSDP_WRITE)) continue;
    unsigned char *result = fsdp_alloc((size_t)o->bytes);
    self->device->table->read(self->device, result, o->device, o->bytes);
    double most = 0, greatest = 0;
    for (int64_t k = 0; k < o->numel; k++) {
      const double expected = value_at(o, o->host, k), apart = fabs(value_at(o, result, k) - expected);
      if (!(apart <= most)) most = isnan(apart) ? INFINITY : apart;
      greatest = fmax(greatest, fabs(expected));
    }
    worst = fmax(worst, most / greatest);
    free(result);
  }
  return worst;
}

// Runs the case on both; `c` keeps the CPU's results.
static double compare(const checker *self, kernel_case *c, fsdp_dtype dtype) {
  make_operands(c, dtype);
  run_on_gpu(self, c);
  run_on_cpu(self, c);
  return difference(self, c);
}

// ---- Attention, by each kernel

// In bf16 the kernels round probabilities and their gradients to 8 bits before their products, and the
// results once more, as the CPU's do; a wrong tile, row or scale is off by tens of per cent.
#define FORWARD_TOLERANCE  2e-2
#define BACKWARD_TOLERANCE 4e-2

// Both widths of the kernels' tiles; rows past several tiles, which end inside one; groups of heads, also cut
// over blocks; gradients rotated back; a window; rows in pieces, which take kernels of their own; documents,
// without a window and with one; and dropout, which the general kernels alone have.
static const struct attention_case {
  int64_t seq, heads, kv_heads, head_dim, window, pieces, head_parts;
  bool rotates_back, documents;
  float dropout;
} attention_cases[] = {
    {300, 1, 1, 64, 0, 1, 1, true, false, 0},    {136, 2, 1, 128, 0, 1, 2, true, false, 0},
    {200, 2, 1, 128, 70, 1, 1, false, false, 0}, {136, 1, 1, 64, 0, 2, 1, false, false, 0},
    {300, 2, 1, 64, 0, 1, 2, true, true, 0},     {200, 1, 1, 128, 70, 1, 1, false, true, 0},
    {136, 2, 1, 64, 0, 1, 1, false, false, 0.2f}};

static kernel_case attention_case(const struct attention_case *a, fsdp_op_kind kind,
                                  fsdp_attention_kernel kernel) {
  static float inv_freq[64];
  const bool general = kernel == FSDP_ATTENTION_GENERAL;
  for (int i = 0; i < 64; i++) inv_freq[i] = powf(1e4f, (float)-i / 64);
  return (kernel_case){.kind = kind,
                       .attrs = {.batch = 1,
                                 .seq = a->seq,
                                 .heads = a->heads,
                                 .kv_heads = a->kv_heads,
                                 .head_dim = a->head_dim,
                                 .window = a->window,
                                 .piece = a->pieces > 1 ? a->seq / a->pieces : 0,
                                 .head_parts = general ? 1 : a->head_parts,
                                 .rotates_back = !general && a->rotates_back,
                                 .inv_freq = inv_freq,
                                 .documents = a->documents ? a->seq : 0,
                                 .dropout = a->dropout,
                                 .draws = a->dropout > 0 ? a->seq : 0,
                                 .attention = kernel}};
}

static void find_difference(const checker *self, const struct attention_case *a, fsdp_attention_kernel kernel,
                            const char *direction, double apart, double tolerance) {
  verdict *found = self->found;
  if (apart <= tolerance) return;
  found->attention_distrusted |= 1u << kernel;
  if (found->finding[0]) return;
  snprintf(found->finding, sizeof found->finding,
           "attention's %s by %s differs from the CPU's by %.2g of its greatest number (%" PRId64
           " rows of %" PRId64 " heads of %" PRId64 ")",
           direction, fsdp_attention_kernel_name(kernel), apart, a->seq, a->heads, a->head_dim);
}

// The backward starts from the CPU's results of the forward, so that each is judged by itself.
static void check_attention(const checker *self, fsdp_attention_kernel kernel) {
  for (size_t i = 0; i < sizeof attention_cases / sizeof *attention_cases; i++) {
    const struct attention_case *a = &attention_cases[i];
    if (a->dropout > 0 && kernel != FSDP_ATTENTION_GENERAL) continue;
    kernel_case forward = attention_case(a, FSDP_PLAN_OP_ATTENTION, kernel),
                backward = attention_case(a, FSDP_PLAN_OP_ATTENTION_BACKWARD, kernel);
    find_difference(self, a, kernel, "forward", compare(self, &forward, FSDP_BF16), FORWARD_TOLERANCE);
    const int outputs = 3; // q|k|v, o, lse: the backward's first operands
    for (int k = 0; k < outputs; k++) backward.given[k] = &forward.operands[k];
    find_difference(self, a, kernel, "backward", compare(self, &backward, FSDP_BF16), BACKWARD_TOLERANCE);
    release(&forward);
    release(&backward);
  }
}

static bool is_there(const checker *self, fsdp_attention_kernel kernel) {
  const fsdp_op_gpu gpu = {.capability = self->capability,
                           .attention = kernel,
                           .attention_missing = ~self->backend->attention_kernels()};
  fsdp_error error;
  return fsdp_attention_check(&gpu, FSDP_BF16, attention_cases[0].head_dim, false, &error) == FSDP_OK;
}

// ---- Products grouped by expert, by each kernel

// Sums of 24 to 340 products in another order, rounded to 8 bits.
#define EXPERTS_TOLERANCE 1e-2

// Returns the op that differs, or NULL. The tiles of wgmma are large: its case has several of each expert,
// and more steps than there are stages.
static const char *find_wrong_experts(const checker *self, fsdp_grouped_kernel kernel, double *apart) {
  const bool large = kernel == FSDP_GROUPED_WGMMA;
  for (int k = 0; k < FSDP_OP_KIND_COUNT; k++) {
    if (!fsdp_op_is_grouped((fsdp_op_kind)k)) continue;
    kernel_case c = {.kind = (fsdp_op_kind)k,
                     .attrs = {.batch = 1,
                               .seq = large ? 255 : 20,
                               .channels = large ? 264 : 40,
                               .intermediate = large ? 328 : 24,
                               .slots = 2,
                               .experts = 3,
                               .products = kernel}};
    *apart = compare(self, &c, FSDP_BF16);
    release(&c);
    if (*apart > EXPERTS_TOLERANCE) return fsdp_op_name(c.kind);
  }
  return NULL;
}

static fsdp_status check_experts(const checker *self, fsdp_error *error) {
  double apart;
  const char *wrong = find_wrong_experts(self, FSDP_GROUPED_GENERAL, &apart);
  if (wrong)
    return fsdp_fail(
        error, FSDP_ERR_PEER,
        "this GPU computes wrong numbers: %s by the general kernel differs from the CPU's by %.2g of "
        "its greatest number; use another GPU, another driver, or --backend cpu",
        wrong, apart);
  const bool has_wgmma = is_there(self, FSDP_ATTENTION_WGMMA);
  for (int k = has_wgmma ? FSDP_GROUPED_WGMMA : FSDP_GROUPED_MMA; k > FSDP_GROUPED_GENERAL; k--) {
    const fsdp_grouped_kernel kernel = (fsdp_grouped_kernel)k;
    wrong = find_wrong_experts(self, kernel, &apart);
    if (!wrong) continue;
    self->found->grouped_distrusted |= 1u << k;
    if (!self->found->finding[0])
      snprintf(self->found->finding, sizeof self->found->finding,
               "%s by %s differs from the CPU's by %.2g of its greatest number", wrong,
               fsdp_grouped_kernel_name(kernel), apart);
  }
  return FSDP_OK;
}

// ---- Products, by the library's first guess

static fsdp_status check_products(const checker *self, fsdp_error *error) {
  for (int i = 0; i < 6; i++) {
    const fsdp_dtype dtype = i < 3 ? FSDP_BF16 : FSDP_F32;
    kernel_case c = {
        .kind = fsdp_op_product_kind((fsdp_op_product_form)(i % FSDP_PRODUCT_FORM_COUNT)),
        .attrs = {.batch = 1, .seq = 136, .in_features = 192, .out_features = 264, .out_stride = 264}};
    const double apart = compare(self, &c, dtype);
    release(&c);
    // Sums of 264 products in a different order; results in bf16 are rounded to 8 bits.
    if (apart <= (dtype == FSDP_F32 ? 1e-5 : 1e-2)) continue;
    return fsdp_fail(
        error, FSDP_ERR_PEER,
        "this GPU computes wrong numbers: %s in %s differs from the CPU's by %.2g of its greatest "
        "number; use another GPU, another driver or library, or --backend cpu",
        fsdp_op_name(c.kind), fsdp_dtype_name(dtype), apart);
  }
  return FSDP_OK;
}

static fsdp_status check_kernels(const checker *self, fsdp_error *error) {
  verdict *found = self->found;
  self->backend->open(NULL);
  fsdp_status status = check_products(self, error);
  if (status == FSDP_OK) status = check_experts(self, error);
  for (int k = FSDP_ATTENTION_WGMMA; k >= FSDP_ATTENTION_GENERAL && status == FSDP_OK; k--)
    if (is_there(self, (fsdp_attention_kernel)k)) check_attention(self, (fsdp_attention_kernel)k);
  self->backend->close();
  if (status != FSDP_OK || !(found->attention_distrusted & 1u << FSDP_ATTENTION_GENERAL)) return status;
  return fsdp_fail(error, FSDP_ERR_PEER,
                   "this GPU computes wrong numbers: %s; use another GPU, another driver, or --backend cpu",
                   found->finding);
}

static fsdp_status check_on(const fsdp_gpu *gpu, verdict *found, fsdp_error *error) {
  checker self = {.backend = fsdp_cuda_backend(), .capability = gpu->capability, .found = found};
  fsdp_device_config device = {.ordinal = gpu->ordinal, .queue_capacity = 16, .event_capacity = 16};
  device.arena_bytes[FSDP_SPACE_DEVICE] = ARENA_BYTES;
  device.stream_threads[FSDP_STREAM_COMPUTE] = 1;
  fsdp_status status = fsdp_device_cuda()->create(&device, &self.device, error);
  if (status != FSDP_OK) return status;
  self.pool = fsdp_pool_create(1);
  status = check_kernels(&self, error);
  fsdp_pool_destroy(self.pool);
  self.device->table->destroy(self.device);
  return status;
}

// ---- What is remembered: "attention 4 experts 0 attention's forward by wgmma differs ..."

static void identify(const fsdp_gpu *gpu, char out[IDENTITY_SIZE]) {
  char kind[FSDP_GPU_KIND_BYTES], library[64];
  fsdp_cuda_backend()->products->name(library, sizeof library);
  int used = snprintf(out, IDENTITY_SIZE, "%s, %s, build %016" PRIx64 ", GPU ", fsdp_gpu_kind(gpu, kind),
                      library, fsdp_build_id());
  for (size_t i = 0; i < sizeof gpu->uuid; i++)
    used += snprintf(out + used, IDENTITY_SIZE - (size_t)used, "%02x", gpu->uuid[i]);
}

static bool recall(const char *name, const char *identity, verdict *found) {
  char why[FSDP_CACHE_WHY_BYTES];
  int used = 0;
  char *text = fsdp_cache_read(name, identity, why);
  if (why[0]) fsdp_job_note("%s: the GPU's kernels are compared again", why);
  bool known = text &&
               sscanf(text, "attention %u experts %u %n", &found->attention_distrusted,
                      &found->grouped_distrusted, &used) == 2 &&
               used > 0;
  if (known)
    snprintf(found->finding, sizeof found->finding, "%.*s", (int)strcspn(text + used, "\n"), text + used);
  free(text);
  return known;
}

static void remember(const char *name, const char *identity, const verdict *found) {
  char text[sizeof found->finding + 32], why[FSDP_CACHE_WHY_BYTES];
  snprintf(text, sizeof text, "attention %u experts %u %s\n", found->attention_distrusted,
           found->grouped_distrusted, found->finding);
  if (!fsdp_cache_write(name, identity, text, why))
    fsdp_job_note("%s: the next run compares the GPU's kernels again", why);
}

static verdict known; // one GPU per process
static bool is_known;

fsdp_status fsdp_kernel_check(const fsdp_gpu *gpu, fsdp_op_gpu *target, fsdp_error *error) {
  char identity[IDENTITY_SIZE], name[64];
  if (!is_known) {
    identify(gpu, identity);
    snprintf(name, sizeof name, "kernels-%016" PRIx64, XXH64(identity, strlen(identity), 0));
    if (!recall(name, identity, &known)) {
      known = (verdict){0};
      fsdp_status status = check_on(gpu, &known, error);
      if (status != FSDP_OK) return status;
      remember(name, identity, &known);
    }
    is_known = true;
  }
  target->attention_distrusted = known.attention_distrusted;
  target->grouped_distrusted = known.grouped_distrusted;
  return FSDP_OK;
}

const char *fsdp_kernel_check_finding(void) {
  return known.finding;
}
