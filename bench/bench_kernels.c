// How fast is each CPU kernel at the shapes of a training step?
//
//   bench_kernels [--threads N] [--seq T] [--batch B] [--bf16] [--seconds S]
//
// Prints milliseconds of the best run, GFLOP/s of gemms (attention counted causally) and GB/s of
// operands read and written once. The model has 100M parameters: C 768, 12 heads of 64 over 4 key/value
// heads, I 2048, V 32000.
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/kernels.h"
#include "runtime/base/check.h"
#include "runtime/base/random.h"

#include <string.h>
#include <time.h>

typedef struct options {
  int threads;
  int64_t batch, seq;
  fsdp_dtype dtype;
  double seconds;
} options;

static const int64_t C = 768, H = 12, K = 4, D = 64, I = 2048, V = 32000, Q = (12 + 2 * 4) * 64, P = 1 << 23;

static double now_s(int threads) {
  struct timespec t;
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static fsdp_view make(int64_t numel, fsdp_dtype dtype, fsdp_access access) {
  fsdp_view view = {fsdp_alloc((size_t)(numel * fsdp_dtype_bytes(dtype))), numel, dtype, access};
  float *drawn = fsdp_alloc((size_t)numel * sizeof *drawn);
  fsdp_random_normal(1, (uint64_t)numel, 0, numel, 0, 0.5f, drawn);
  for (int64_t i = 0; i < numel; i++) {
    if (dtype == FSDP_F32) ((float *)view.data)[i] = drawn[i];
    if (dtype == FSDP_BF16) ((fsdp_bf16 *)view.data)[i] = fsdp_bf16_from_f32(drawn[i]);
    if (dtype == FSDP_I32) ((int32_t *)view.data)[i] = (int32_t)(i * 7919 % V);
  }
  free(drawn);
  return view;
}

static void bench(const options *o, fsdp_pool *pool, fsdp_op_kind kind, fsdp_op_attrs attrs,
                  const fsdp_view *views, int count) {
  fsdp_kernel_call call = {
      .kind = kind, .attrs = &attrs, .operands = views, .operand_count = count, .pool = pool};
  attrs.batch = o->batch, attrs.seq = o->seq, attrs.channels = C, attrs.vocabulary = V;
  attrs.heads = H, attrs.kv_heads = K, attrs.head_dim = D, attrs.intermediate = I;
  double best_s = 1e30, bytes = 0;
  for (int i = 0; i < count; i++) {
    double once = (double)(views[i].numel * fsdp_dtype_bytes(views[i].dtype));
    bytes += views[i].access == FSDP_UPDATE ? 2 * once : once;
  }
  for (double spent = 0; spent < o->seconds;) {
    double start = now_s(o->threads);
    fsdp_cpu_kernels()->kernels[kind](&call);
    double elapsed = now_s(o->threads) - start;
    spent += elapsed;
    if (elapsed < best_s) best_s = elapsed;
  }
  double flops = fsdp_op_flops(kind, &attrs);
  printf("%-30s %10.3f ms", fsdp_op_name(kind), 1e3 * best_s);
  if (flops > 0) {
    printf(" %9.1f GFLOP/s\n", flops / best_s / 1e9);
  } else {
    printf(" %9.1f GB/s\n", bytes / best_s / 1e9);
  }
  fflush(stdout);
  for (int i = 0; i < count; i++) free(views[i].data);
}

static void bench_rows(const options *o, fsdp_pool *pool) {
  int64_t N = o->batch * o->seq;
  fsdp_dtype d = o->dtype;
  float inv_freq[32];
  for (int i = 0; i < 32; i++) inv_freq[i] = 1.0f / (float)(1 + i * i);
  fsdp_op_attrs norm = {.eps = 1e-5f}, rope = {.inv_freq = inv_freq}, learned = {.positions = o->seq},
                none = {0};
  bench(o, pool, FSDP_OP_EMBEDDING, none,
        (fsdp_view[]){make(N, FSDP_I32, FSDP_READ), make(V * C, d, FSDP_READ), make(N * C, d, FSDP_WRITE)},
        3);
  bench(o, pool, FSDP_OP_EMBEDDING_BACKWARD, none,
        (fsdp_view[]){make(N, FSDP_I32, FSDP_READ), make(N * C, d, FSDP_READ),
                      make(V * C, FSDP_F32, FSDP_WRITE)},
        3);
  bench(o, pool, FSDP_OP_ADD_RMSNORM, norm,
        (fsdp_view[]){make(N * C, d, FSDP_READ), make(N * C, d, FSDP_READ), make(C, d, FSDP_READ),
                      make(N * C, d, FSDP_WRITE), make(N * C, d, FSDP_WRITE), make(N, FSDP_F32, FSDP_WRITE)},
        6);
  bench(o, pool, FSDP_OP_RMSNORM_BACKWARD, norm,
        (fsdp_view[]){make(N * C, d, FSDP_READ), make(N, FSDP_F32, FSDP_READ), make(C, d, FSDP_READ),
                      make(N * C, d, FSDP_READ), make(N * C, d, FSDP_WRITE), make(C, FSDP_F32, FSDP_WRITE)},
        6);
  bench(o, pool, FSDP_OP_ADD_POSITIONS, learned,
        (fsdp_view[]){make(o->seq * C, d, FSDP_READ), make(N * C, d, FSDP_UPDATE)}, 2);
  bench(o, pool, FSDP_OP_POSITIONS_BACKWARD, learned,
        (fsdp_view[]){make(N * C, d, FSDP_READ), make(o->seq * C, FSDP_F32, FSDP_WRITE)}, 2);
  bench(o, pool, FSDP_OP_ADD_LAYERNORM, norm,
        (fsdp_view[]){make(N * C, d, FSDP_READ), make(N * C, d, FSDP_READ), make(C, d, FSDP_READ),
                      make(C, d, FSDP_READ), make(N * C, d, FSDP_WRITE), make(N * C, d, FSDP_WRITE),
                      make(N, FSDP_F32, FSDP_WRITE), make(N, FSDP_F32, FSDP_WRITE)},
        8);
  bench(o, pool, FSDP_OP_LAYERNORM_BACKWARD, norm,
        (fsdp_view[]){make(N * C, d, FSDP_READ), make(N, FSDP_F32, FSDP_READ), make(N, FSDP_F32, FSDP_READ),
                      make(C, d, FSDP_READ), make(N * C, d, FSDP_READ), make(N * C, d, FSDP_WRITE),
                      make(C, FSDP_F32, FSDP_WRITE), make(C, FSDP_F32, FSDP_WRITE)},
        8);
  bench(o, pool, FSDP_OP_GELU, none, (fsdp_view[]){make(N * I, d, FSDP_READ), make(N * I, d, FSDP_WRITE)}, 2);
  bench(o, pool, FSDP_OP_GELU_BACKWARD, none,
        (fsdp_view[]){make(N * I, d, FSDP_READ), make(N * I, d, FSDP_UPDATE)}, 2);
  bench(o, pool, FSDP_OP_ROPE, rope, (fsdp_view[]){make(N * Q, d, FSDP_UPDATE)}, 1);
  bench(o, pool, FSDP_OP_SWIGLU, none,
        (fsdp_view[]){make(N * 2 * I, d, FSDP_READ), make(N * I, d, FSDP_WRITE)}, 2);
  bench(o, pool, FSDP_OP_SWIGLU_BACKWARD, none,
        (fsdp_view[]){make(N * I, d, FSDP_READ), make(N * 2 * I, d, FSDP_UPDATE)}, 2);
}

static void bench_products(const options *o, fsdp_pool *pool) {
  int64_t N = o->batch * o->seq, chunk = 256;
  fsdp_dtype d = o->dtype;
  fsdp_op_attrs linear = {.in_features = C, .out_features = 2 * I, .out_stride = 2 * I};
  fsdp_op_attrs bias = {.out_features = C, .out_stride = C}, none = {0};
  fsdp_op_attrs head = {.chunk_rows = chunk};
  bench(o, pool, FSDP_OP_ATTENTION, none,
        (fsdp_view[]){make(N * Q, d, FSDP_READ), make(N * H * D, d, FSDP_WRITE),
                      make(N * H, FSDP_F32, FSDP_WRITE)},
        3);
  bench(o, pool, FSDP_OP_ATTENTION_BACKWARD, none,
        (fsdp_view[]){make(N * Q, d, FSDP_READ), make(N * H * D, d, FSDP_READ),
                      make(N * H, FSDP_F32, FSDP_READ), make(N * H * D, d, FSDP_READ),
                      make(N * Q, d, FSDP_WRITE), make(N * H, FSDP_F32, FSDP_WRITE)},
        6);
  bench(
      o, pool, FSDP_OP_LINEAR, linear,
      (fsdp_view[]){make(N * C, d, FSDP_READ), make(2 * I * C, d, FSDP_READ), make(N * 2 * I, d, FSDP_WRITE)},
      3);
  bench(o, pool, FSDP_OP_LINEAR_BIAS, linear,
        (fsdp_view[]){make(N * C, d, FSDP_READ), make(2 * I * C, d, FSDP_READ), make(2 * I, d, FSDP_READ),
                      make(N * 2 * I, d, FSDP_WRITE)},
        4);
  bench(
      o, pool, FSDP_OP_LINEAR_BACKWARD_INPUT, linear,
      (fsdp_view[]){make(N * 2 * I, d, FSDP_READ), make(2 * I * C, d, FSDP_READ), make(N * C, d, FSDP_WRITE)},
      3);
  bench(o, pool, FSDP_OP_LINEAR_BACKWARD_WEIGHT, linear,
        (fsdp_view[]){make(N * 2 * I, d, FSDP_READ), make(N * C, d, FSDP_READ),
                      make(2 * I * C, FSDP_F32, FSDP_WRITE)},
        3);
  bench(o, pool, FSDP_OP_ADD_BIAS, bias, (fsdp_view[]){make(C, d, FSDP_READ), make(N * C, d, FSDP_UPDATE)},
        2);
  bench(o, pool, FSDP_OP_BIAS_BACKWARD, linear,
        (fsdp_view[]){make(N * 2 * I, d, FSDP_READ), make(2 * I, FSDP_F32, FSDP_WRITE)}, 2);
  bench(o, pool, FSDP_OP_LINEAR_CROSS_ENTROPY_BACKWARD, head,
        (fsdp_view[]){make(N * C, d, FSDP_READ), make(V * C, d, FSDP_READ), make(N, FSDP_I32, FSDP_READ),
                      make(1, FSDP_F32, FSDP_READ), make(1, FSDP_F32, FSDP_WRITE), make(N * C, d, FSDP_WRITE),
                      make(V * C, FSDP_F32, FSDP_WRITE), make(chunk * V, FSDP_F32, FSDP_WRITE)},
        8);
  head.ranks = 2; // their statistics; the shard here has the vocabulary's V entries
  bench(o, pool, FSDP_OP_HEAD_LOGITS, head,
        (fsdp_view[]){make(N * C, d, FSDP_READ), make(V * C, d, FSDP_READ), make(N, FSDP_I32, FSDP_READ),
                      make(N * V, FSDP_F32, FSDP_WRITE), make(N * 3, FSDP_F32, FSDP_WRITE)},
        5);
  bench(o, pool, FSDP_OP_HEAD_BACKWARD, head,
        (fsdp_view[]){make(2 * N * 3, FSDP_F32, FSDP_READ), make(N, FSDP_I32, FSDP_READ),
                      make(1, FSDP_F32, FSDP_READ), make(N * C, d, FSDP_READ), make(V * C, d, FSDP_READ),
                      make(1, FSDP_F32, FSDP_WRITE), make(N * V, FSDP_F32, FSDP_UPDATE),
                      make(N * C, d, FSDP_WRITE), make(V * C, FSDP_F32, FSDP_WRITE)},
        9);
}

static void bench_flat(const options *o, fsdp_pool *pool) {
  fsdp_op_attrs adamw = {.beta1 = 0.9, .beta2 = 0.95, .adam_eps = 1e-8f}, none = {0};
  bench(o, pool, FSDP_OP_CAST, none,
        (fsdp_view[]){make(P, FSDP_F32, FSDP_READ), make(P, FSDP_BF16, FSDP_WRITE)}, 2);
  bench(o, pool, FSDP_OP_ADD, none,
        (fsdp_view[]){make(P, FSDP_F32, FSDP_READ), make(P, FSDP_F32, FSDP_UPDATE)}, 2);
  bench(o, pool, FSDP_OP_SUM_SQUARES, none,
        (fsdp_view[]){make(P, FSDP_F32, FSDP_READ), make(1, FSDP_F32, FSDP_WRITE)}, 2);
  for (int bf16 = 0; bf16 < 2; bf16++) {
    fsdp_dtype s = bf16 ? FSDP_BF16 : FSDP_F32;
    fsdp_view views[] = {make(P, FSDP_F32, FSDP_READ), make(FSDP_SCALAR_COUNT, FSDP_F32, FSDP_READ),
                         make(1, FSDP_F32, FSDP_READ), make(P, s, FSDP_UPDATE),
                         make(P, s, FSDP_UPDATE),      make(P, s, FSDP_UPDATE)};
    float *v = views[5].data;
    for (int64_t i = 0; !bf16 && i < P; i++) v[i] *= v[i];
    for (int i = 0; i < FSDP_SCALAR_COUNT; i++) ((float *)views[1].data)[i] = 0.5f;
    printf("%s state: ", bf16 ? "bf16" : "fp32");
    bench(o, pool, FSDP_OP_ADAMW, adamw, views, 6);
  }
}

static options parse(int argc, char **argv) {
  options o = {.threads = 1, .batch = 2, .seq = 512, .dtype = FSDP_F32, .seconds = 0.2};
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--bf16") == 0) {
      o.dtype = FSDP_BF16;
    } else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc) {
      o.threads = atoi(argv[++i]);
    } else if (strcmp(argv[i], "--batch") == 0 && i + 1 < argc) {
      o.batch = atoll(argv[++i]);
    } else if (strcmp(argv[i], "--seq") == 0 && i + 1 < argc) {
      o.seq = atoll(argv[++i]);
    } else if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc) {
      o.seconds = atof(argv[++i]);
    } else {
      fprintf(stderr, "usage: bench_kernels [--threads N] [--seq T] [--batch B] [--bf16] [--seconds S]\n");
      exit(2);
    }
  }
  if (o.threads < 1 || o.batch < 1 || o.seq < 1) {
    fprintf(stderr, "bench_kernels: --threads, --batch and --seq take positive numbers\n");
    exit(2);
  }
  return o;
}

int main(int argc, char **argv) {
  options o = parse(argc, argv);
  fsdp_pool *pool = fsdp_pool_create(o.threads);
  printf("# batch %lld, sequence %lld, %s, %d threads, gemm: %s\n", (long long)o.batch, (long long)o.seq,
         fsdp_dtype_name(o.dtype), o.threads, fsdp_gemm_library(o.dtype));
  bench_rows(&o, pool);
  bench_products(&o, pool);
  bench_flat(&o, pool);
  fsdp_pool_destroy(pool);
  return 0;
}
