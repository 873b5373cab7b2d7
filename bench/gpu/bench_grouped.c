// How fast are products grouped by expert, beside our dense product of as many rows?
//
//   bench_grouped [--only MODEL,...] [--rows N,...] [--products KERNEL,...] [--repeat N] [--json FILE]
//
// Experts of Mixtral's, Qwen3-30B's and OLMoE's widths (mixtral, qwen3-30b, olmoe; `small` is for tests and
// runs only if it is named), each with N routed rows (32, 128, 512 and 2048), of tokens in a drawn order, so
// that gathered rows are real ones. Each of the six ops (forward, and the gradients of input and weight, of
// the product up and the product down), by each kernel that this GPU has (--products). Beside them the linear
// op with as many rows in all and the same widths, by cuBLASLt's algorithm measured fastest. bf16, random
// normal operands, the median of N measurements by events.
//
// What each kernel makes is compared with what mma makes, in pieces from one end of the result to the other:
// "apart" is the norm of the difference over that of the result. Above 1e-2 the status is 1. --json writes a
// line for each op and kernel; bench/gpu/grouped.py puts PyTorch's beside them.
#include "bench/gpu/timing.h"
#include "runtime/base/check.h"
#include "runtime/base/random.h"
#include "runtime/base/size.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MEASURE_MS  5.0
#define REPEATS     5
#define APART_MAX   1e-2 // results of two kernels, both rounded to bf16 from sums in fp32
#define PIECES      128  // of a result, that are compared
#define PIECE_NUMEL ((int64_t)1 << 16)
#define ROWS_MAX    8 // that one run times
#define NOT_HERE    77

typedef struct model {
  const char *name;
  int64_t channels, intermediate, experts, slots;
  bool by_name; // runs only if it is named
} model;

static const model models[] = {{"mixtral", 4096, 14336, 8, 2, false},
                               {"qwen3-30b", 2048, 768, 128, 8, false},
                               {"olmoe", 2048, 1024, 64, 8, false},
                               {"small", 72, 40, 4, 2, true}};

#define REFERENCE FSDP_GROUPED_MMA

typedef struct arguments {
  const char *only, *products, *json; // NULL: all models; the tensor cores'; none
  int64_t rows[ROWS_MAX];
  int rows_count, repeats;
} arguments;

typedef struct bench {
  const arguments *arguments;
  const char *products; // kernels, between commas
  gpu_timer timer;
  FILE *json; // NULL: none
  bool differs;
} bench;

// One op with so many routed rows of each expert.
typedef struct grouped_case {
  const model *of;
  fsdp_op_kind kind;
  int64_t rows;
  fsdp_op_attrs attrs;
  fsdp_operand operands[FSDP_OP_MAX_OPERANDS];
  int operand_count;
  fsdp_op_product product; // of one expert
} grouped_case;

// Whether `name` is one of those between commas.
static bool is_among(const char *name, const char *names) {
  for (const char *at = names; *at;) {
    size_t length = strcspn(at, ",");
    if (length == strlen(name) && strncmp(name, at, length) == 0) return true;
    at += length + (at[length] == ',');
  }
  return false;
}

// ---- Operands

static int describe(fsdp_op_kind kind, const fsdp_op_attrs *attrs, fsdp_operand *operands) {
  const fsdp_op_letters *op = fsdp_op_letters_of(kind);
  const int count = fsdp_op_operand_count(op, attrs);
  for (int i = 0; i < count; i++) {
    const fsdp_op_operand *row = fsdp_op_operand_row(op, attrs, i);
    const fsdp_dtype dtype = row->has_dtype ? row->dtype : FSDP_BF16;
    operands[i] =
        (fsdp_operand){.dtype = dtype,
                       .access = row->access,
                       .size_bytes = fsdp_op_operand_numel(attrs, row, 0) * fsdp_dtype_bytes(dtype)};
  }
  return count;
}

static int compare_slots(const void *left, const void *right) {
  return *(const int32_t *)left - *(const int32_t *)right;
}

// Tokens in a drawn order, `slots` times: each expert takes the next `rows` of them, no token twice, as it
// has no more rows than there are tokens. Those of an expert are in the order of their slots.
static void draw_slots(const grouped_case *c, int32_t *slots) {
  const int64_t tokens = c->attrs.seq, count = tokens * c->attrs.slots;
  int32_t *order = fsdp_alloc((size_t)tokens * sizeof *order);
  for (int64_t i = 0; i < tokens; i++) order[i] = (int32_t)i;
  for (int64_t i = tokens - 1; i > 0; i--) {
    uint32_t words[4];
    fsdp_random_words(1, 3, (uint64_t)i, words);
    const int64_t other = (int64_t)words[0] % (i + 1);
    const int32_t held = order[i];
    order[i] = order[other];
    order[other] = held;
  }
  for (int64_t i = 0; i < count; i++) slots[i] = (int32_t)(order[i % tokens] * c->attrs.slots + i / tokens);
  for (int64_t e = 0; e < c->attrs.experts; e++)
    qsort(slots + e * c->rows, (size_t)c->rows, sizeof *slots, compare_slots);
  free(order);
}

static void write_integers(const grouped_case *c, const fsdp_view *v, bool is_offsets) {
  int32_t *numbers = fsdp_alloc((size_t)v->numel * sizeof *numbers);
  if (!is_offsets) draw_slots(c, numbers);
  for (int64_t i = 0; i < v->numel && is_offsets; i++) numbers[i] = (int32_t)(i * c->rows);
  CALL_CUDA(cudaMemcpy(v->data, numbers, (size_t)v->numel * sizeof *numbers, cudaMemcpyDefault));
  free(numbers);
}

static void draw_floats(const bench *b, const fsdp_view *v, uint64_t stream) {
  const fsdp_drawing normal = {.seed = 1, .stream = stream, .numel = v->numel, .deviation = 1};
  fsdp_cuda_draw(&normal, v->data, v->dtype, b->timer.stream);
}

// `c` is of the grouped op; NULL: there are no integers.
static void fill_set(const bench *b, const grouped_case *c, const gpu_set *set, int operand_count) {
  for (int i = 0; i < operand_count; i++) {
    const fsdp_view *v = &set->views[i];
    if (v->dtype == FSDP_I32)
      write_integers(c, v, i == fsdp_op_offsets_operand(c->kind));
    else if (v->access & FSDP_READ)
      draw_floats(b, v, (uint64_t)i + 2);
  }
  CALL_CUDA(cudaDeviceSynchronize());
}

static int64_t bytes_of(const fsdp_operand *operands, int count) {
  int64_t bytes = 0;
  for (int i = 0; i < count; i++) bytes += operands[i].size_bytes;
  return bytes;
}

static grouped_case case_of(const model *m, fsdp_op_kind kind, int64_t rows) {
  grouped_case c = {.of = m,
                    .kind = kind,
                    .rows = rows,
                    .attrs = {.batch = 1,
                              .seq = m->experts * rows / m->slots,
                              .channels = m->channels,
                              .intermediate = m->intermediate,
                              .slots = m->slots,
                              .experts = m->experts}};
  c.operand_count = describe(kind, &c.attrs, c.operands);
  fsdp_op_product products[FSDP_OP_PRODUCTS_MAX];
  FSDP_CHECK(fsdp_op_products(kind, &c.attrs, products) == 1, "%s: one product an expert",
             fsdp_op_name(kind));
  c.product = products[0];
  return c;
}

static double flops_of(const grouped_case *c) {
  return 2 * (double)c->product.m * (double)c->product.n * (double)c->product.k * (double)c->of->experts;
}

// ---- Our dense product

static double time_dense(const bench *b, const grouped_case *c) {
  const fsdp_op_product *p = &c->product;
  const bool is_weight = p->form == FSDP_PRODUCT_WEIGHT, is_input = p->form == FSDP_PRODUCT_INPUT;
  const int64_t out = is_weight ? p->m : is_input ? p->k : p->n, in = is_weight || is_input ? p->n : p->k;
  const fsdp_op_attrs attrs = {
      .batch = 1, .seq = c->rows * c->of->experts, .in_features = in, .out_features = out, .out_stride = out};
  const fsdp_op_kind kind = fsdp_op_product_kind(p->form);
  fsdp_operand operands[FSDP_OP_MAX_OPERANDS];
  gpu_set sets[GPU_SETS_MAX];
  const int count = describe(kind, &attrs, operands), set_count = gpu_set_count(bytes_of(operands, count));
  for (int s = 0; s < set_count; s++) gpu_set_create(&sets[s], operands, count);
  CALL_CUDA(cudaDeviceSynchronize());
  fsdp_kernel_call call = {.kind = kind, .attrs = &attrs, .operands = sets[0].views, .operand_count = count};
  fsdp_cuda_prepare(&call);
  fsdp_products_measure(&fsdp_cuda_products);
  for (int s = 0; s < set_count; s++) fill_set(b, NULL, &sets[s], count);
  const double seconds = gpu_median_s(&b->timer, &call, sets, set_count);
  gpu_sets_destroy(sets, set_count);
  return seconds;
}

// ---- What kernels make, compared

static int64_t pieces_numel(const fsdp_view *v) {
  return fsdp_min_i64(v->numel, PIECES * PIECE_NUMEL);
}

// All of a small result; of another, pieces from its start to its end.
static void read_pieces(const fsdp_view *v, fsdp_bf16 *pieces) {
  const bool is_small = v->numel <= PIECES * PIECE_NUMEL;
  for (int i = 0; i < (is_small ? 1 : PIECES); i++) {
    const int64_t numel = is_small ? v->numel : PIECE_NUMEL;
    const int64_t at = is_small ? 0 : (v->numel - PIECE_NUMEL) / (PIECES - 1) * i;
    CALL_CUDA(cudaMemcpy(pieces + i * PIECE_NUMEL, (const fsdp_bf16 *)v->data + at,
                         (size_t)numel * sizeof *pieces, cudaMemcpyDefault));
  }
}

static double distance(const fsdp_bf16 *made, const fsdp_bf16 *expected, int64_t numel) {
  double error = 0, size = 0;
  for (int64_t i = 0; i < numel; i++) {
    const double right = (double)fsdp_bf16_to_f32(expected[i]),
                 apart = (double)fsdp_bf16_to_f32(made[i]) - right;
    error += apart * apart;
    size += right * right;
  }
  return sqrt(error / size);
}

// Runs the call once on a result of NaNs.
static void make(const bench *b, fsdp_kernel_call *call, const gpu_set *set, fsdp_bf16 *pieces) {
  const fsdp_view *result = &set->views[call->operand_count - 1];
  fsdp_cuda_prepare(call);
  CALL_CUDA(cudaMemset(result->data, 0xff, (size_t)(result->numel * fsdp_dtype_bytes(result->dtype))));
  CALL_CUDA(cudaDeviceSynchronize());
  gpu_launch(&b->timer, call, set, 1, 1);
  CALL_CUDA(cudaStreamSynchronize(b->timer.stream));
  read_pieces(result, pieces);
}

// ---- Results

static void report(bench *b, const grouped_case *c, const char *kernel, double s, double dense_s,
                   double apart) {
  const double flops = flops_of(c), share = dense_s / s;
  printf("%-10s %5lld rows  %-27s %-8s %10.1f us %7.1f TFLOP/s  dense %7.1f  share %5.1f%%  apart %.1e%s\n",
         c->of->name, (long long)c->rows, fsdp_op_name(c->kind), kernel, 1e6 * s, flops / s / 1e12,
         flops / dense_s / 1e12, 100 * share, apart, apart <= APART_MAX ? "" : "  DIFFERS");
  fflush(stdout);
  b->differs = b->differs || !(apart <= APART_MAX);
  if (!b->json) return;
  json_t *line = json_pack("{s:s, s:I, s:s, s:s, s:f, s:f, s:f, s:f, s:o}", "model", c->of->name, "rows",
                           (json_int_t)c->rows, "op", fsdp_op_name(c->kind), "by", kernel, "us", 1e6 * s,
                           "tflops", flops / s / 1e12, "dense_us", 1e6 * dense_s, "dense_tflops",
                           flops / dense_s / 1e12, "apart", isfinite(apart) ? json_real(apart) : json_null());
  json_dumpf(line, b->json, JSON_COMPACT);
  fputc('\n', b->json);
  fflush(b->json);
  json_decref(line);
}

static void time_case(bench *b, grouped_case *c) {
  gpu_set sets[GPU_SETS_MAX];
  const int set_count = gpu_set_count(bytes_of(c->operands, c->operand_count));
  const double dense_s = time_dense(b, c);
  for (int s = 0; s < set_count; s++) gpu_set_create(&sets[s], c->operands, c->operand_count);
  CALL_CUDA(cudaDeviceSynchronize());
  for (int s = 0; s < set_count; s++) fill_set(b, c, &sets[s], c->operand_count);
  fsdp_kernel_call call = {
      .kind = c->kind, .attrs = &c->attrs, .operands = sets[0].views, .operand_count = c->operand_count};
  const int64_t numel = pieces_numel(&sets[0].views[c->operand_count - 1]);
  fsdp_bf16 *expected = fsdp_alloc((size_t)numel * sizeof *expected),
            *made = fsdp_alloc((size_t)numel * sizeof *made);
  c->attrs.products = REFERENCE;
  make(b, &call, &sets[0], expected);
  for (int k = FSDP_GROUPED_WGMMA; k > FSDP_GROUPED_CPU; k--) {
    const char *name = fsdp_grouped_kernel_name((fsdp_grouped_kernel)k);
    if (!is_among(name, b->products)) continue;
    c->attrs.products = (fsdp_grouped_kernel)k;
    make(b, &call, &sets[0], made);
    const double apart = distance(made, expected, numel);
    report(b, c, name, gpu_median_s(&b->timer, &call, sets, set_count), dense_s, apart);
  }
  free(expected);
  free(made);
  gpu_sets_destroy(sets, set_count);
}

static void time_model(bench *b, const model *m) {
  for (int r = 0; r < b->arguments->rows_count; r++)
    for (int k = 0; k < FSDP_OP_KIND_COUNT; k++) {
      if (!fsdp_op_is_grouped((fsdp_op_kind)k)) continue;
      grouped_case c = case_of(m, (fsdp_op_kind)k, b->arguments->rows[r]);
      time_case(b, &c);
    }
}

// ---- The program

static bool is_wanted(const model *m, const char *only) {
  return only ? is_among(m->name, only) : !m->by_name;
}

static _Noreturn void refuse(const char *why) {
  fprintf(stderr, "bench_grouped: error: %s\n", why);
  exit(2);
}

static void read_rows(const char *text, arguments *a) {
  for (a->rows_count = 0; *text && a->rows_count < ROWS_MAX; a->rows_count++) {
    char *end;
    a->rows[a->rows_count] = strtoll(text, &end, 10);
    // Experts' rows are tokens times slots, and there are as many sums as an int counts.
    if (end == text || a->rows[a->rows_count] < 1 || a->rows[a->rows_count] % 8 != 0 ||
        a->rows[a->rows_count] > 1 << 16)
      refuse("--rows takes multiples of 8 up to 65536");
    text = end + (*end == ',');
  }
}

static arguments parse(int argc, char **argv) {
  arguments a = {.rows = {32, 128, 512, 2048}, .rows_count = 4, .repeats = REPEATS};
  for (int i = 1; i < argc; i += 2) {
    const char *value = i + 1 < argc ? argv[i + 1] : NULL;
    if (!value) refuse("an option without a value");
    if (strcmp(argv[i], "--only") == 0)
      a.only = value;
    else if (strcmp(argv[i], "--rows") == 0)
      read_rows(value, &a);
    else if (strcmp(argv[i], "--products") == 0)
      a.products = value;
    else if (strcmp(argv[i], "--repeat") == 0)
      a.repeats = atoi(value);
    else if (strcmp(argv[i], "--json") == 0)
      a.json = value;
    else
      refuse("unknown option; use --only, --rows, --products, --repeat, --json");
  }
  if (a.repeats < 1 || a.repeats > GPU_REPEATS_MAX) refuse("--repeat takes 1 to 31");
  return a;
}

int main(int argc, char **argv) {
  const arguments a = parse(argc, argv);
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    fprintf(stderr, "bench_grouped: this machine has no GPU\n");
    return NOT_HERE;
  }
  bench b = {.arguments = &a, .timer = gpu_timer_open(a.repeats, MEASURE_MS)};
  if (a.json && !(b.json = fopen(a.json, "w"))) refuse("the file of --json cannot be written");
  void *scratch = gpu_products_open();
  struct cudaDeviceProp properties;
  CALL_CUDA(cudaGetDeviceProperties(&properties, 0));
  const bool has_wgmma = properties.major == 9 && properties.minor == 0 &&
                         fsdp_cuda_attention_kernels() >> FSDP_ATTENTION_WGMMA & 1;
  b.products = a.products ? a.products : has_wgmma ? "wgmma,mma" : "mma";
  if (!has_wgmma && is_among("wgmma", b.products)) refuse("wgmma is not of this GPU, or of this executable");
  printf("# %s, bf16\n", properties.name);
  for (size_t i = 0; i < sizeof models / sizeof *models; i++)
    if (is_wanted(&models[i], a.only)) time_model(&b, &models[i]);
  gpu_products_close(scratch);
  if (b.json) fclose(b.json);
  return b.differs ? 1 : 0;
}
