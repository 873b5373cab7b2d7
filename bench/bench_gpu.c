// How fast is each kernel on a GPU, against what that GPU can do?
//
//   bench_gpu [--model llama-1b|llama3-8b|tiny] [--batch B] [--seq T] [--repeat N]
//
// First the ceilings: a bf16 product of 8192^3 (cuBLASLt, by the algorithm measured fastest) and a copy of 1
// GiB from device to device. Then every op of a layer, of the head and of the update at the model's shapes,
// in bf16 with fp32 gradients: microseconds, TFLOP/s of matrix products (attention counted causally) or GB/s
// of operands read and written once, and the share of the ceiling. Operands are random numbers; small ones
// are rotated, so that they do not lie in the cache; the time is the median of N measurements by events, each
// of several launches, after a warm-up.
#include "kernels/cuda/cuda_kernels.h"
#include "runtime/base/check.h"
#include "runtime/base/random.h"
#include "runtime/base/size.h"
#include "runtime/exec/cuda_check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SETS_MAX     16
#define SETS_BYTES   ((int64_t)512 << 20) // of all the sets together: several times any cache
#define PATTERN      ((int64_t)1 << 20)   // elements drawn; longer operands repeat them
#define MEASURE_MS   10.0
#define REPEATS_MAX  31
#define COPY_BYTES   ((int64_t)1 << 30)
#define FLAT_ELEMS   ((int64_t)1 << 27)
#define PRODUCT_SIDE 8192

typedef struct shape {
  const char *name;
  int64_t C, H, K, I, V, flat, side;
} shape;

static const shape shapes[] = {
    {"llama-1b", 4096, 32, 32, 11008, 32000, FLAT_ELEMS, PRODUCT_SIDE},
    {"llama3-8b", 4096, 32, 8, 14336, 128256, FLAT_ELEMS, PRODUCT_SIDE},
    {"tiny", 128, 4, 2, 352, 256, 1 << 12, 64}, // to try the program out
};

typedef struct bench {
  const shape *shape;
  int64_t B, T;
  int repeats;
  cudaStream_t stream;
  cudaEvent_t begin, end;
  double flops_ceiling, bytes_ceiling; // a second; 0: being measured
} bench;

// What an operand is: `elems` of a dtype, or of small whole numbers below `below` (tokens).
typedef struct operand {
  int64_t elems;
  fsdp_dtype dtype;
  int access;
  int32_t below;
} operand;

typedef struct launch_set {
  fsdp_view views[FSDP_OP_MAX_OPERANDS + 1];
  unsigned char *memory;
} launch_set;

// ---- Operands

static int64_t bytes_of(const operand *o) {
  return o->elems * fsdp_dtype_bytes(o->dtype);
}

// Fills device memory: a pattern from the host, then copies of it.
static void fill(const operand *o, void *memory) {
  int64_t elems = fsdp_min_i64(o->elems, PATTERN), width = fsdp_dtype_bytes(o->dtype);
  unsigned char *pattern = fsdp_alloc((size_t)(elems * width));
  float *drawn = fsdp_alloc((size_t)elems * sizeof *drawn);
  fsdp_random_normal(1, 2, 0, elems, 0, 0.5f, drawn);
  for (int64_t i = 0; i < elems; i++) {
    if (o->dtype == FSDP_F32) ((float *)pattern)[i] = drawn[i] * drawn[i] + 0.01f;
    if (o->dtype == FSDP_BF16) ((fsdp_bf16 *)pattern)[i] = fsdp_bf16_from_f32(drawn[i]);
    if (o->dtype == FSDP_I32) ((int32_t *)pattern)[i] = (int32_t)(i * 7919 % o->below);
  }
  for (int64_t done = 0; done < o->elems; done += elems) {
    int64_t count = fsdp_min_i64(elems, o->elems - done);
    CALL_CUDA(cudaMemcpy((unsigned char *)memory + done * width, done ? memory : (void *)pattern,
                         (size_t)(count * width), cudaMemcpyDefault));
  }
  free(drawn);
  free(pattern);
}

static void make_set(launch_set *set, const operand *operands, int count) {
  int64_t bytes = 0;
  for (int i = 0; i < count; i++) bytes += fsdp_round_up(bytes_of(&operands[i]), 256);
  void *memory = NULL;
  CALL_CUDA(cudaMalloc(&memory, (size_t)bytes));
  CALL_CUDA(cudaMemset(memory, 0, (size_t)bytes));
  set->memory = memory;
  int64_t at = 0;
  for (int i = 0; i < count; i++) {
    set->views[i] = (fsdp_view){set->memory + at, operands[i].elems, operands[i].dtype, operands[i].access};
    at += fsdp_round_up(bytes_of(&operands[i]), 256);
  }
}

// ---- Time

static void launch_sets(const bench *b, fsdp_kernel_call *call, const launch_set *sets, int set_count,
                        int launches) {
  for (int i = 0; i < launches; i++) {
    call->operands = sets[i % set_count].views;
    call->stream = b->stream;
    fsdp_cuda_kernels()->kernels[call->kind](call);
  }
}

static float time_ms(const bench *b, fsdp_kernel_call *call, const launch_set *sets, int set_count,
                     int launches) {
  float ms = 0;
  CALL_CUDA(cudaEventRecord(b->begin, b->stream));
  launch_sets(b, call, sets, set_count, launches);
  CALL_CUDA(cudaEventRecord(b->end, b->stream));
  CALL_CUDA(cudaEventSynchronize(b->end));
  CALL_CUDA(cudaEventElapsedTime(&ms, b->begin, b->end));
  return ms / (float)launches;
}

static int compare_floats(const void *left, const void *right) {
  float a = *(const float *)left, b = *(const float *)right;
  return (a > b) - (a < b);
}

static double median_s(const bench *b, fsdp_kernel_call *call, const launch_set *sets, int set_count) {
  float times[REPEATS_MAX];
  launch_sets(b, call, sets, set_count, 2 * set_count);
  float once = time_ms(b, call, sets, set_count, set_count);
  int launches = (int)fsdp_max_i64(set_count, (int64_t)(MEASURE_MS / fmaxf(once, 1e-3f)));
  for (int i = 0; i < b->repeats; i++) times[i] = time_ms(b, call, sets, set_count, launches);
  qsort(times, (size_t)b->repeats, sizeof *times, compare_floats);
  return (double)times[b->repeats / 2] / 1e3;
}

static void print_result(const bench *b, const char *name, double s, double flops, double bytes) {
  bool products = flops > 0;
  double rate = (products ? flops : bytes) / s, ceiling = products ? b->flops_ceiling : b->bytes_ceiling;
  printf("%-44s %10.1f us %9.1f %-7s", name, 1e6 * s, rate / (products ? 1e12 : 1e9),
         products ? "TFLOP/s" : "GB/s");
  if (ceiling > 0) printf(" %5.1f%%", 100 * rate / ceiling);
  putchar('\n');
  fflush(stdout);
}

// Measures one op; `operands` without the workspace, which is added. Returns what it reached a second.
static double run(bench *b, const char *label, fsdp_op_kind kind, fsdp_op_attrs attrs, int count,
                  const operand *operands) {
  operand all[FSDP_OP_MAX_OPERANDS + 1];
  memcpy(all, operands, (size_t)count * sizeof *all);
  int64_t workspace = fsdp_op_workspace_bytes(FSDP_OP_CUDA, kind, &attrs, operands[0].elems);
  int total = count;
  if (workspace > 0) all[total++] = (operand){(workspace + 3) / 4, FSDP_F32, FSDP_WRITE, 0};
  double bytes = 0, set_bytes = 0;
  for (int i = 0; i < total; i++) {
    double once = (double)bytes_of(&all[i]);
    set_bytes += once;
    if (i < count) bytes += all[i].access == FSDP_UPDATE ? 2 * once : once;
  }
  int set_count = (int)fmin(SETS_MAX, 1 + (double)SETS_BYTES / set_bytes);
  launch_set sets[SETS_MAX];
  fsdp_segment segment = {.numel = operands[0].elems, .random_stream = 1};
  fsdp_kernel_call call = {.kind = kind,
                           .attrs = &attrs,
                           .operand_count = total,
                           .segments = &segment,
                           .segment_count = kind == FSDP_OP_ADAMW};
  for (int s = 0; s < set_count; s++) make_set(&sets[s], all, total);
  CALL_CUDA(cudaDeviceSynchronize());
  call.operands = sets[0].views;
  fsdp_cuda_prepare(&call);
  for (int s = 0; s < set_count; s++) {
    for (int i = 0; i < count; i++) fill(&all[i], sets[s].views[i].data);
  }
  CALL_CUDA(cudaDeviceSynchronize());
  double s = median_s(b, &call, sets, set_count), flops = fsdp_op_flops(kind, &attrs);
  char name[96];
  snprintf(name, sizeof name, "%s%s%s", fsdp_op_name(kind), *label ? ", " : "", label);
  print_result(b, name, s, flops, bytes);
  for (int i = 0; i < set_count; i++) CALL_CUDA(cudaFree(sets[i].memory));
  return (flops > 0 ? flops : bytes) / s;
}

// ---- Ceilings

static fsdp_op_attrs linear_attrs(int64_t rows, int64_t in, int64_t out) {
  return (fsdp_op_attrs){.batch = 1, .seq = rows, .in_features = in, .out_features = out, .out_stride = out};
}

static void measure_ceilings(bench *b) {
  int64_t n = b->shape->side;
  b->flops_ceiling = run(b, "8192^3", FSDP_OP_LINEAR, linear_attrs(n, n, n), 3,
                         (operand[]){{n * n, FSDP_BF16, FSDP_READ, 0},
                                     {n * n, FSDP_BF16, FSDP_READ, 0},
                                     {n * n, FSDP_BF16, FSDP_WRITE, 0}});
  int64_t bytes = fsdp_min_i64(COPY_BYTES, 64 * b->shape->flat);
  void *from, *to;
  CALL_CUDA(cudaMalloc(&from, (size_t)bytes));
  CALL_CUDA(cudaMalloc(&to, (size_t)bytes));
  CALL_CUDA(cudaMemset(from, 1, (size_t)bytes));
  CALL_CUDA(cudaMemset(to, 1, (size_t)bytes));
  CALL_CUDA(cudaDeviceSynchronize());
  float best_ms = INFINITY, ms = 0;
  for (int i = 0; i < 10; i++) {
    CALL_CUDA(cudaEventRecord(b->begin, b->stream));
    CALL_CUDA(cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDefault, b->stream));
    CALL_CUDA(cudaEventRecord(b->end, b->stream));
    CALL_CUDA(cudaEventSynchronize(b->end));
    CALL_CUDA(cudaEventElapsedTime(&ms, b->begin, b->end));
    if (i > 1) best_ms = fminf(best_ms, ms);
  }
  CALL_CUDA(cudaFree(from));
  CALL_CUDA(cudaFree(to));
  print_result(b, "copy from device to device", (double)best_ms / 1e3, 0, 2 * (double)bytes);
  b->bytes_ceiling = 2 * (double)bytes / ((double)best_ms / 1e3);
}

// ---- The ops of a step

static void bench_linear(bench *b, const char *label, int64_t in, int64_t out) {
  int64_t N = b->B * b->T;
  fsdp_op_attrs attrs = linear_attrs(N, in, out);
  run(b, label, FSDP_OP_LINEAR, attrs, 3,
      (operand[]){{N * in, FSDP_BF16, FSDP_READ, 0},
                  {out * in, FSDP_BF16, FSDP_READ, 0},
                  {N * out, FSDP_BF16, FSDP_WRITE, 0}});
  run(b, label, FSDP_OP_LINEAR_BACKWARD_INPUT, attrs, 3,
      (operand[]){{N * out, FSDP_BF16, FSDP_READ, 0},
                  {out * in, FSDP_BF16, FSDP_READ, 0},
                  {N * in, FSDP_BF16, FSDP_WRITE, 0}});
  run(b, label, FSDP_OP_LINEAR_BACKWARD_WEIGHT, attrs, 3,
      (operand[]){{N * out, FSDP_BF16, FSDP_READ, 0},
                  {N * in, FSDP_BF16, FSDP_READ, 0},
                  {out * in, FSDP_F32, FSDP_WRITE, 0}});
}

static void bench_layer(bench *b, fsdp_op_attrs attrs) {
  const shape *m = b->shape;
  int64_t N = b->B * b->T, C = m->C, D = C / m->H, Q = (m->H + 2 * m->K) * D;
  operand rows = {N * C, FSDP_BF16, FSDP_READ, 0}, made = {N * C, FSDP_BF16, FSDP_WRITE, 0};
  operand statistic = {N, FSDP_F32, FSDP_WRITE, 0}, known = {N, FSDP_F32, FSDP_READ, 0};
  operand weight = {C, FSDP_BF16, FSDP_READ, 0};
  run(b, "", FSDP_OP_ADD_RMSNORM, attrs, 6, (operand[]){rows, rows, weight, made, made, statistic});
  run(b, "", FSDP_OP_RMSNORM_BACKWARD, attrs, 6,
      (operand[]){rows, known, weight, rows, made, {C, FSDP_F32, FSDP_WRITE, 0}});
  run(b, "", FSDP_OP_ROPE, attrs, 1, (operand[]){{N * Q, FSDP_BF16, FSDP_UPDATE, 0}});
  operand heads = {N * m->H, FSDP_F32, FSDP_WRITE, 0}, seen = {N * m->H, FSDP_F32, FSDP_READ, 0};
  operand qkv = {N * Q, FSDP_BF16, FSDP_READ, 0}, d_qkv = {N * Q, FSDP_BF16, FSDP_WRITE, 0};
  run(b, "", FSDP_OP_ATTENTION, attrs, 3, (operand[]){qkv, made, heads});
  run(b, "", FSDP_OP_ATTENTION_BACKWARD, attrs, 5, (operand[]){qkv, rows, seen, rows, d_qkv});
  operand gates = {N * 2 * m->I, FSDP_BF16, FSDP_READ, 0}, d_gates = {N * 2 * m->I, FSDP_BF16, FSDP_WRITE, 0};
  run(b, "", FSDP_OP_SWIGLU, attrs, 2, (operand[]){gates, {N * m->I, FSDP_BF16, FSDP_WRITE, 0}});
  run(b, "", FSDP_OP_SWIGLU_BACKWARD, attrs, 3,
      (operand[]){gates, {N * m->I, FSDP_BF16, FSDP_READ, 0}, d_gates});
  bench_linear(b, "q k v", C, Q);
  bench_linear(b, "o", C, C);
  bench_linear(b, "gate up", C, 2 * m->I);
  bench_linear(b, "down", m->I, C);
}

static void bench_ends(bench *b, fsdp_op_attrs attrs) {
  const shape *m = b->shape;
  int64_t N = b->B * b->T, C = m->C;
  operand rows = {N * C, FSDP_BF16, FSDP_READ, 0}, made = {N * C, FSDP_BF16, FSDP_WRITE, 0};
  operand tokens = {N, FSDP_I32, FSDP_READ, (int32_t)m->V}, table = {m->V * C, FSDP_BF16, FSDP_READ, 0};
  operand d_table = {m->V * C, FSDP_F32, FSDP_WRITE, 0}, one = {1, FSDP_F32, FSDP_READ, 0};
  operand loss = {1, FSDP_F32, FSDP_WRITE, 0};
  run(b, "", FSDP_OP_EMBEDDING, attrs, 3, (operand[]){tokens, table, made});
  run(b, "", FSDP_OP_EMBEDDING_BACKWARD, attrs, 3, (operand[]){tokens, rows, d_table});
  run(b, "", FSDP_OP_LINEAR_CROSS_ENTROPY_BACKWARD, attrs, 7,
      (operand[]){rows, table, tokens, one, loss, made, d_table});
}

static void bench_flat(bench *b, fsdp_op_attrs attrs) {
  int64_t P = b->shape->flat;
  operand one = {1, FSDP_F32, FSDP_READ, 0}, scalars = {FSDP_SCALAR_COUNT, FSDP_F32, FSDP_READ, 0};
  run(b, "fp32 to bf16", FSDP_OP_CAST, attrs, 2,
      (operand[]){{P, FSDP_F32, FSDP_READ, 0}, {P, FSDP_BF16, FSDP_WRITE, 0}});
  run(b, "", FSDP_OP_ADD, attrs, 2, (operand[]){{P, FSDP_F32, FSDP_READ, 0}, {P, FSDP_F32, FSDP_UPDATE, 0}});
  run(b, "", FSDP_OP_SUM_SQUARES, attrs, 2,
      (operand[]){{P, FSDP_F32, FSDP_READ, 0}, {1, FSDP_F32, FSDP_WRITE, 0}});
  for (int bf16 = 0; bf16 < 2; bf16++) {
    fsdp_dtype d = bf16 ? FSDP_BF16 : FSDP_F32;
    operand state = {P, d, FSDP_UPDATE, 0};
    run(b, bf16 ? "bf16 states" : "fp32 states", FSDP_OP_ADAMW, attrs, 6,
        (operand[]){{P, d, FSDP_READ, 0}, scalars, one, state, state, state});
  }
}

// ---- The program

static const shape *find_shape(const char *name) {
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
    if (strcmp(shapes[i].name, name) == 0) return &shapes[i];
  return NULL;
}

static bench parse(int argc, char **argv) {
  bench b = {.shape = &shapes[0], .B = 6, .T = 2048, .repeats = 5};
  bool good = argc % 2 == 1;
  for (int i = 1; i < argc && good; i += 2) {
    int64_t number = atoll(argv[i + 1]);
    if (strcmp(argv[i], "--model") == 0) {
      good = (b.shape = find_shape(argv[i + 1])) != NULL;
    } else if (strcmp(argv[i], "--batch") == 0) {
      good = (b.B = number) > 0;
    } else if (strcmp(argv[i], "--seq") == 0) {
      good = (b.T = number) > 0;
    } else if (strcmp(argv[i], "--repeat") == 0) {
      b.repeats = (int)number;
      good = number > 0 && number <= REPEATS_MAX;
    } else {
      good = false;
    }
  }
  if (good) return b;
  fprintf(stderr, "usage: bench_gpu [--model llama-1b|llama3-8b|tiny] [--batch B] [--seq T] [--repeat N]\n");
  exit(2);
}

int main(int argc, char **argv) {
  bench b = parse(argc, argv);
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    fprintf(stderr, "bench_gpu: there is no GPU here\n");
    return 77;
  }
  struct cudaDeviceProp properties;
  CALL_CUDA(cudaSetDevice(0));
  CALL_CUDA(cudaGetDeviceProperties(&properties, 0));
  CALL_CUDA(cudaStreamCreateWithPriority(&b.stream, cudaStreamNonBlocking, 0));
  CALL_CUDA(cudaEventCreateWithFlags(&b.begin, cudaEventDefault));
  CALL_CUDA(cudaEventCreateWithFlags(&b.end, cudaEventDefault));
  void *scratch;
  CALL_CUDA(cudaMalloc(&scratch, (size_t)FSDP_CUDA_GEMM_WORKSPACE_BYTES));
  fsdp_cuda_gemm_open(scratch);
  const shape *m = b.shape;
  float inv_freq[128];
  for (int i = 0; i < 128; i++) inv_freq[i] = powf(1e4f, -(float)i / 64);
  // As many rows of logits at one time as a model's head takes (models/llama.c).
  int64_t chunk = fsdp_min_i64(fsdp_min_i64(b.B * b.T, 1024), fsdp_max_i64(64, ((int64_t)16 << 20) / m->V));
  fsdp_op_attrs attrs = {.batch = b.B,
                         .seq = b.T,
                         .channels = m->C,
                         .heads = m->H,
                         .kv_heads = m->K,
                         .head_dim = m->C / m->H,
                         .hidden = m->I,
                         .vocabulary = m->V,
                         .chunk_rows = chunk,
                         .inv_freq = inv_freq,
                         .eps = 1e-5f,
                         .beta1 = 0.9f,
                         .beta2 = 0.95f,
                         .adam_eps = 1e-8f};
  printf("# %s, %s, batch %lld, sequence %lld\n", properties.name, m->name, (long long)b.B, (long long)b.T);
  measure_ceilings(&b);
  bench_layer(&b, attrs);
  bench_ends(&b, attrs);
  bench_flat(&b, attrs);
  fsdp_cuda_gemm_close();
  return 0;
}
