// How fast is each kernel of a training step on a GPU, against what that GPU can do?
//
//   bench_gpu [--ceilings] [--repeat N] [--side N] [--json FILE] [--kernels NAME,...] [--parts]
//             [--unfenced] [options of fsdp_plan]
//
// First the ceilings: a bf16 gemm of 8192^3 (cuBLASLt, by the algorithm measured fastest) and a copy of 1 GiB
// from device to device; --side N makes them N^3 and 16 N^2 bytes, --ceilings stops there. Then every
// distinct kernel of the step that the options plan (bench/step_ops.h), with the plan's own shapes, chunks
// and element types; with --kernels those alone whose name begins with one of the NAMEs. With --ranks N and a
// mesh they are the first rank's, timed on one GPU without communication: head_, context_ and columns are
// kernels of meshes. Per kernel it prints launches per step, microseconds, TFLOP/s of gemms (attention
// counted causally) or GB/s of operands read and written once, the share of the ceiling, and milliseconds per
// step. With --parts what launches several kernels, as attention's backward does, is also timed launch by
// launch, between events. With --unfenced attention's forward by wgmma is timed again, at the end, without
// the fence in its copying warps (models/graph/attention_kernel.h); no sum counts it.
//
// Operands are random numbers of the magnitudes that training has, never zeros: a GPU that multiplies zeros
// draws less power and, others report, is faster. Small operands are rotated, so that they do not stay in the
// cache. The time is the median of N measurements by events, each of several launches, after a warm-up.
// --json writes one line per kernel, as soon as it is known; with --profile it has the kernel's price on that
// machine, too.
#include "bench/gpu/timing.h"
#include "bench/step_ops.h"
#include "launcher/setup/setup.h"
#include "runtime/base/check.h"
#include "runtime/base/random.h"
#include "runtime/base/size.h"
#include "runtime/plan/price/price.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PATTERN    ((int64_t)1 << 20) // elements drawn; longer operands repeat them
#define MEASURE_MS 10.0
#define SIDE       8192 // of the ceilings
#define SIDE_MAX   32768

#define PARTS_MAX       16
#define PART_NAME_BYTES 64

// Of C++'s runtime.
char *__cxa_demangle(const char *name, char *out, size_t *bytes, int *status);

typedef struct arguments {
  bool ceilings_only, parts, unfenced;
  int repeats, side;
  const char *json, *kernels; // NULL: none; all
  int plan_argc;
  char **plan_argv; // owned
} arguments;

typedef struct bench {
  gpu_timer timer;
  bool times_parts;
  json_t *parts;                       // of the call measured last; NULL: none
  const fsdp_pricing *pricing;         // NULL: without a profile
  FILE *json;                          // NULL: none
  double flops_ceiling, bytes_ceiling; // a second; 0: being measured
  double step_s;                       // of all kernels so far, with their launches in a step
} bench;

// ---- What operands hold

typedef struct draw {
  float mean, deviation;
  bool magnitude; // no negative ones: a second moment, a reciprocal deviation
  int32_t below;  // of whole numbers: tokens
} draw;

static draw draw_of(const step_op *op, int operand) {
  const draw usual = {.deviation = 1, .below = (int32_t)op->attrs.vocabulary};
  const draw weight = {.deviation = 0.02f}, tiny = {.deviation = 1e-3f};
  switch (op->instr->op) {
  case FSDP_OP_LINEAR:
  case FSDP_OP_LINEAR_BIAS:
  case FSDP_OP_LINEAR_ADD:
  case FSDP_OP_LINEAR_BIAS_ADD:
  case FSDP_OP_LINEAR_BACKWARD_INPUT:
    return operand == 1 ? weight : usual;
  case FSDP_OP_LINEAR_CROSS_ENTROPY:
  case FSDP_OP_LINEAR_CROSS_ENTROPY_BACKWARD: // operand 3: how many targets count
    if (operand == 3) return (draw){.mean = (float)(op->attrs.batch * op->attrs.seq)};
    return operand == 1 ? weight : usual;
  case FSDP_OP_HEAD_LOSS:
  case FSDP_OP_HEAD_BACKWARD: // statistics of the rows: maxima, sums, logits of the targets
    if (operand == 0) return (draw){.mean = 5, .deviation = 0.1f, .magnitude = true};
    if (operand == 2) return (draw){.mean = (float)(op->attrs.batch * op->attrs.seq)};
    return operand == 4 ? weight : usual;
  case FSDP_OP_HEAD_LOGITS:
    return operand == 1 ? weight : usual;
  case FSDP_OP_RMSNORM_BACKWARD:
    return operand == 1 ? (draw){.mean = 1, .deviation = 0.1f, .magnitude = true} : usual;
  case FSDP_OP_LAYERNORM_BACKWARD: // mean and reciprocal deviation
    return operand == 2 ? (draw){.mean = 1, .deviation = 0.1f, .magnitude = true} : usual;
  case FSDP_OP_CLIP_FACTOR:
    return (draw){.mean = 1, .magnitude = true};
  case FSDP_OP_ADAMW: // gradient, scalars, factor, master, first and second moment
    if (operand == 2) return (draw){.mean = 1};
    if (operand == 3) return weight;
    return operand == 5 ? (draw){.deviation = 1e-6f, .magnitude = true} : tiny;
  default:
    return usual;
  }
}

// Fills device memory: a pattern from the host, then copies of it. Operands differ by `stream`.
static void fill(const fsdp_view *v, const draw *d, uint64_t stream) {
  int64_t numel = fsdp_min_i64(v->numel, PATTERN), width = fsdp_dtype_bytes(v->dtype);
  unsigned char *pattern = fsdp_alloc((size_t)(numel * width));
  float *drawn = fsdp_alloc((size_t)numel * sizeof *drawn);
  fsdp_random_normal(1, stream, 0, numel, d->mean, d->deviation, drawn);
  for (int64_t i = 0; i < numel; i++) {
    float value = d->magnitude ? fabsf(drawn[i]) : drawn[i];
    if (v->dtype == FSDP_F32) ((float *)pattern)[i] = value;
    if (v->dtype == FSDP_BF16) ((fsdp_bf16 *)pattern)[i] = fsdp_bf16_from_f32(value);
    if (v->dtype == FSDP_I32) ((int32_t *)pattern)[i] = (int32_t)(i * 7919 % d->below);
  }
  for (int64_t done = 0; done < v->numel; done += numel) {
    int64_t count = fsdp_min_i64(numel, v->numel - done);
    CALL_CUDA(cudaMemcpy((unsigned char *)v->data + done * width, done ? v->data : (void *)pattern,
                         (size_t)(count * width), cudaMemcpyDefault));
  }
  free(drawn);
  free(pattern);
}

static void fill_scalars(const fsdp_view *v) {
  float scalars[FSDP_SCALAR_COUNT] = {0};
  const float step = 12;
  scalars[FSDP_SCALAR_LR] = 1e-5f;
  scalars[FSDP_SCALAR_CORRECTION1] = 1 - powf(0.9f, step);
  scalars[FSDP_SCALAR_CORRECTION2] = 1 - powf(0.999f, step);
  scalars[FSDP_SCALAR_STEP] = step;
  scalars[FSDP_SCALAR_ONE] = 1;
  CALL_CUDA(cudaMemcpy(v->data, scalars, sizeof scalars, cudaMemcpyDefault));
}

// Attention's backward must read the forward's real results: exp(score - lse) of other values overflows. The
// forward's operands come first, its results behind what it reads: qkv, and kv of attention by context.
static void fill_by_forward(const bench *b, const step_op *op, fsdp_view *views) {
  const bool by_context = op->instr->op == FSDP_OP_CONTEXT_ATTENTION_BACKWARD;
  const int count = by_context ? 4 : 3;
  fsdp_view forward[4];
  memcpy(forward, views, (size_t)count * sizeof *forward);
  forward[count - 2].access = forward[count - 1].access = FSDP_WRITE;
  const fsdp_kernel_call call = {.kind = by_context ? FSDP_OP_CONTEXT_ATTENTION : FSDP_OP_ATTENTION,
                                 .attrs = &op->attrs,
                                 .operands = forward,
                                 .operand_count = count,
                                 .stream = b->timer.stream};
  CALL_CUDA(cudaDeviceSynchronize()); // copies within the device, which this stream does not wait for
  fsdp_cuda_kernels()->kernels[call.kind](&call);
  CALL_CUDA(cudaStreamSynchronize(b->timer.stream));
}

static void fill_set(const bench *b, const step_op *op, gpu_set *set) {
  for (int i = 0; i < op->instr->operand_count; i++) {
    const draw d = draw_of(op, i);
    if (op->instr->op == FSDP_OP_ADAMW && i == 1) {
      fill_scalars(&set->views[i]);
    } else {
      fill(&set->views[i], &d, (uint64_t)i + 2);
    }
  }
  if (op->instr->op == FSDP_OP_ATTENTION_BACKWARD || op->instr->op == FSDP_OP_CONTEXT_ATTENTION_BACKWARD)
    fill_by_forward(b, op, set->views);
}

// ---- The launches of one call apart

// An observer is given nothing but the launch.
static struct {
  cudaEvent_t after[PARTS_MAX];
  const void *kernels[PARTS_MAX];
  int count;
} seen;

static void note_launch(const void *kernel, void *stream) {
  const int index = seen.count++;
  if (index >= PARTS_MAX) return;
  CALL_CUDA(cudaEventRecord(seen.after[index], stream));
  seen.kernels[index] = kernel;
}

// "sum_delta" of "void (anonymous namespace)::sum_delta<float, 4>(...)".
static void print_kernel_name(const void *kernel, char out[PART_NAME_BYTES]) {
  static const char nobody[] = "(anonymous namespace)::";
  const char *mangled = "", *at;
  int status = 0;
  CALL_CUDA(cudaFuncGetName(&mangled, kernel));
  char *readable = __cxa_demangle(mangled, NULL, NULL, &status);
  at = status == 0 ? readable : mangled;
  if (strncmp(at, "void ", 5) == 0) at += 5;
  if (strncmp(at, nobody, strlen(nobody)) == 0) at += strlen(nobody);
  snprintf(out, PART_NAME_BYTES, "%.*s", (int)strcspn(at, "<("), at);
  free(readable);
}

// What each launch of a call takes, the median of the measurements; empty for one launch, and for more than
// PARTS_MAX.
static json_t *time_parts(const bench *b, fsdp_kernel_call *call, const gpu_set *set) {
  float ms[PARTS_MAX][GPU_REPEATS_MAX];
  for (int i = 0; i < PARTS_MAX; i++) CALL_CUDA(cudaEventCreateWithFlags(&seen.after[i], cudaEventDefault));
  for (int r = 0; r < b->timer.repeats; r++) {
    seen.count = 0;
    CALL_CUDA(cudaEventRecord(b->timer.begin, b->timer.stream));
    fsdp_cuda_observe_launches(note_launch);
    gpu_launch(&b->timer, call, set, 1, 1);
    fsdp_cuda_observe_launches(NULL);
    CALL_CUDA(cudaStreamSynchronize(b->timer.stream));
    for (int i = 0; i < seen.count && i < PARTS_MAX; i++)
      CALL_CUDA(cudaEventElapsedTime(&ms[i][r], i ? seen.after[i - 1] : b->timer.begin, seen.after[i]));
  }
  json_t *parts = json_array();
  for (int i = 0; i < seen.count && seen.count > 1 && seen.count <= PARTS_MAX; i++) {
    char name[PART_NAME_BYTES];
    print_kernel_name(seen.kernels[i], name);
    qsort(ms[i], (size_t)b->timer.repeats, sizeof *ms[i], gpu_compare_floats);
    json_array_append_new(
        parts, json_pack("{s:s, s:f}", "kernel", name, "us", 1e3 * (double)ms[i][b->timer.repeats / 2]));
  }
  for (int i = 0; i < PARTS_MAX; i++) CALL_CUDA(cudaEventDestroy(seen.after[i]));
  return parts;
}

// ---- Results

static void write_json(const bench *b, const char *label, int64_t count, double s, const fsdp_op_work *work,
                       double price_us) {
  if (!b->json) return;
  const double ceiling = work->flops > 0 ? b->flops_ceiling : b->bytes_ceiling;
  const double rate = (work->flops > 0 ? work->flops : work->bytes) / s;
  json_t *line = json_pack("{s:s, s:I, s:f, s:f, s:f, s:f}", "label", label, "count", (json_int_t)count, "us",
                           1e6 * s, "flops", work->flops, "bytes", work->bytes, "rate", rate);
  if (json_array_size(b->parts) > 0) json_object_set(line, "parts", b->parts);
  if (price_us > 0) json_object_set_new(line, "price_us", json_real(price_us));
  json_object_set_new(line, "share", ceiling > 0 ? json_real(rate / ceiling) : json_null());
  json_dumpf(line, b->json, JSON_COMPACT);
  fputc('\n', b->json);
  fflush(b->json);
  json_decref(line);
}

static double price_us(const bench *b, const step_op *op) {
  if (!b->pricing) return 0;
  return 1e6 * fsdp_price_of(b->pricing, (int)(op->instr - b->pricing->plan->program->instrs)).seconds;
}

// `price_us`: 0: none.
static void report(bench *b, const char *label, int64_t count, double s, const fsdp_op_work *work,
                   double price_us) {
  const bool products = work->flops > 0;
  const double rate = (products ? work->flops : work->bytes) / s;
  const double ceiling = products ? b->flops_ceiling : b->bytes_ceiling;
  printf("%-66s %4lld x %10.1f us %8.1f %-7s", label, (long long)count, 1e6 * s,
         rate / (products ? 1e12 : 1e9), products ? "TFLOP/s" : "GB/s");
  if (ceiling > 0) printf(" %5.1f%% %8.2f ms per step", 100 * rate / ceiling, 1e3 * (double)count * s);
  putchar('\n');
  for (size_t i = 0; i < json_array_size(b->parts); i++) {
    const json_t *part = json_array_get(b->parts, i);
    printf("  of it %-66s %10.1f us\n", json_string_value(json_object_get(part, "kernel")),
           json_real_value(json_object_get(part, "us")));
  }
  fflush(stdout);
  write_json(b, label, count, s, work, price_us);
}

// Measures one kernel; returns seconds per launch.
static double run(bench *b, const step_op *op) {
  const fsdp_instr *instr = op->instr;
  int64_t set_bytes = 0;
  for (int i = 0; i < instr->operand_count; i++) set_bytes += op->operands[i].size_bytes;
  const int set_count = gpu_set_count(set_bytes);
  gpu_set sets[GPU_SETS_MAX];
  for (int s = 0; s < set_count; s++) gpu_set_create(&sets[s], op->operands, instr->operand_count);
  CALL_CUDA(cudaDeviceSynchronize());
  const fsdp_param_run segment = {.numel = sets[0].views[0].numel, .random_stream = 1};
  fsdp_kernel_call call = {.kind = instr->op,
                           .attrs = &op->attrs,
                           .operands = sets[0].views,
                           .operand_count = instr->operand_count,
                           .segments = &segment,
                           .segment_count = instr->op == FSDP_OP_ADAMW};
  fsdp_cuda_prepare(&call);
  fsdp_products_measure(&fsdp_cuda_products);
  for (int s = 0; s < set_count; s++) fill_set(b, op, &sets[s]);
  CALL_CUDA(cudaDeviceSynchronize());
  const double s = gpu_median_s(&b->timer, &call, sets, set_count);
  json_decref(b->parts);
  b->parts = b->times_parts ? time_parts(b, &call, &sets[0]) : NULL;
  gpu_sets_destroy(sets, set_count);
  return s;
}

// ---- Ceilings

static void measure_product(bench *b, int64_t n) {
  const fsdp_instr instr = {.kind = FSDP_INSTR_OP, .op = FSDP_OP_LINEAR, .operand_count = 3};
  const fsdp_op_attrs attrs = {.batch = 1, .seq = n, .in_features = n, .out_features = n, .out_stride = n};
  const fsdp_operand operands[3] = {{.dtype = FSDP_BF16, .access = FSDP_READ, .size_bytes = 2 * n * n},
                                    {.dtype = FSDP_BF16, .access = FSDP_READ, .size_bytes = 2 * n * n},
                                    {.dtype = FSDP_BF16, .access = FSDP_WRITE, .size_bytes = 2 * n * n}};
  const step_op op = {.instr = &instr, .attrs = attrs, .operands = operands, .count = 1};
  const fsdp_op_work work = step_op_work(&op);
  const double s = run(b, &op);
  char label[STEP_OP_LABEL_BYTES];
  snprintf(label, sizeof label, "ceiling: product of %lld^3, bf16", (long long)n);
  report(b, label, 1, s, &work, 0);
  b->flops_ceiling = work.flops / s;
}

static void measure_copy(bench *b, int64_t bytes) {
  void *from, *to;
  CALL_CUDA(cudaMalloc(&from, (size_t)bytes));
  CALL_CUDA(cudaMalloc(&to, (size_t)bytes));
  const draw usual = {.deviation = 1};
  const fsdp_view source = {from, bytes / 2, FSDP_BF16, FSDP_WRITE};
  fill(&source, &usual, 2);
  CALL_CUDA(cudaDeviceSynchronize());
  float best_ms = INFINITY, ms = 0;
  for (int i = 0; i < 10; i++) {
    CALL_CUDA(cudaEventRecord(b->timer.begin, b->timer.stream));
    CALL_CUDA(cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDefault, b->timer.stream));
    CALL_CUDA(cudaEventRecord(b->timer.end, b->timer.stream));
    CALL_CUDA(cudaEventSynchronize(b->timer.end));
    CALL_CUDA(cudaEventElapsedTime(&ms, b->timer.begin, b->timer.end));
    if (i > 1) best_ms = fminf(best_ms, ms);
  }
  CALL_CUDA(cudaFree(from));
  CALL_CUDA(cudaFree(to));
  const fsdp_op_work work = {.bytes = 2 * (double)bytes};
  json_decref(b->parts);
  b->parts = NULL;
  report(b, "ceiling: copy from device to device, read and written", 1, (double)best_ms / 1e3, &work, 0);
  b->bytes_ceiling = work.bytes / ((double)best_ms / 1e3);
}

// ---- The program

// Whether the name begins with one of those between commas; NULL: any does.
static bool is_wanted(const char *name, const char *kernels) {
  if (!kernels) return true;
  for (const char *at = kernels; *at;) {
    size_t length = strcspn(at, ",");
    if (length > 0 && strncmp(name, at, length) == 0) return true;
    at += length + (at[length] == ',');
  }
  return false;
}

// Last, so that one that hangs takes no other result with it. No choice names this kernel.
static void bench_unfenced(bench *b, const fsdp_plan *plan, const step_ops *list, const char *kernels) {
  if (fsdp_plan_attention(&plan->config) != FSDP_ATTENTION_WGMMA) {
    printf("# --unfenced is for attention by wgmma\n");
    return;
  }
  for (int i = 0; i < list->count; i++) {
    step_op op = list->ops[i];
    if (op.instr->op != FSDP_OP_ATTENTION && op.instr->op != FSDP_OP_CONTEXT_ATTENTION) continue;
    if (!is_wanted(fsdp_op_name(op.instr->op), kernels)) continue;
    const fsdp_op_work work = step_op_work(&op);
    char label[STEP_OP_LABEL_BYTES + 32];
    op.attrs.attention = FSDP_ATTENTION_WGMMA_UNFENCED;
    snprintf(label, sizeof label, "%s by %s", op.label,
             fsdp_attention_kernel_name(FSDP_ATTENTION_WGMMA_UNFENCED));
    report(b, label, op.count, run(b, &op), &work, price_us(b, &op));
  }
}

static void bench_step(bench *b, const fsdp_plan *plan, const arguments *a) {
  const char *kernels = a->kernels;
  step_ops list = step_ops_create(plan);
  int timed = 0;
  for (int i = 0; i < list.count; i++) {
    if (!is_wanted(fsdp_op_name(list.ops[i].instr->op), kernels)) continue;
    timed++;
    const fsdp_op_work work = step_op_work(&list.ops[i]);
    const double s = run(b, &list.ops[i]);
    report(b, list.ops[i].label, list.ops[i].count, s, &work, price_us(b, &list.ops[i]));
    b->step_s += (double)list.ops[i].count * s;
  }
  if (timed == 0) {
    fprintf(stderr, "bench_gpu: error: no kernel of the step has a name that begins as --kernels %s says\n",
            kernels);
    exit(2);
  }
  const fsdp_plan_config *c = &plan->config;
  if (!kernels)
    printf("all kernels of a step: %.1f ms, %.0f tokens/s with nothing between them\n", 1e3 * b->step_s,
           (double)(c->batch * c->seq * c->micro_batches) / b->step_s);
  if (a->unfenced) bench_unfenced(b, plan, &list, kernels);
  step_ops_destroy(&list);
}

// Removes our own options; the rest plans the step, for a GPU.
static arguments parse(int argc, char **argv) {
  arguments a = {
      .repeats = 5, .side = SIDE, .plan_argv = fsdp_alloc((size_t)(argc + 3) * sizeof *a.plan_argv)};
  static char backend[] = "--backend", cuda[] = "cuda";
  a.plan_argv[a.plan_argc++] = argv[0];
  a.plan_argv[a.plan_argc++] = backend;
  a.plan_argv[a.plan_argc++] = cuda;
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--ceilings") == 0) {
      a.ceilings_only = true;
    } else if (strcmp(argv[i], "--unfenced") == 0) {
      a.unfenced = true;
    } else if (strcmp(argv[i], "--parts") == 0) {
      a.parts = true;
    } else if (strcmp(argv[i], "--json") == 0 && i + 1 < argc) {
      a.json = argv[++i];
    } else if (strcmp(argv[i], "--kernels") == 0 && i + 1 < argc) {
      a.kernels = argv[++i];
    } else if (strcmp(argv[i], "--repeat") == 0 && i + 1 < argc) {
      a.repeats = atoi(argv[++i]);
    } else if (strcmp(argv[i], "--side") == 0 && i + 1 < argc) {
      a.side = atoi(argv[++i]);
    } else {
      a.plan_argv[a.plan_argc++] = argv[i];
    }
  }
  a.plan_argv[a.plan_argc] = NULL;
  if (a.repeats >= 1 && a.repeats <= GPU_REPEATS_MAX && a.side >= 1 && a.side <= SIDE_MAX) return a;
  fprintf(stderr, "bench_gpu: error: --repeat takes 1 to %d, --side 1 to %d\n", GPU_REPEATS_MAX, SIDE_MAX);
  exit(2);
}

static bench open_bench(const arguments *a) {
  bench b = {.timer = gpu_timer_open(a->repeats, MEASURE_MS), .times_parts = a->parts};
  if (a->json && !(b.json = fopen(a->json, "w"))) {
    fprintf(stderr, "bench_gpu: error: %s cannot be written\n", a->json);
    exit(3);
  }
  return b;
}

static void run_all(const arguments *a, const fsdp_setup *setup, const fsdp_pricing *pricing) {
  bench b = open_bench(a);
  void *scratch = gpu_products_open();
  b.pricing = pricing;
  struct cudaDeviceProp properties;
  CALL_CUDA(cudaGetDeviceProperties(&properties, 0));
  const fsdp_plan_config *c = &setup->plan->config;
  printf("# %s, %s, batch %lld, sequence %lld\n", properties.name, setup->model_name, (long long)c->batch,
         (long long)c->seq);
  measure_product(&b, a->side);
  measure_copy(&b, (int64_t)16 * a->side * a->side);
  if (!a->ceilings_only) bench_step(&b, setup->plan, a);
  json_decref(b.parts);
  if (b.json) fclose(b.json);
  gpu_products_close(scratch);
}

// What the plan's kernels depend on; all 0 without a GPU.
static fsdp_op_gpu find_target(void) {
  struct cudaDeviceProp properties;
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return (fsdp_op_gpu){0};
  CALL_CUDA(cudaGetDeviceProperties(&properties, 0));
  return (fsdp_op_gpu){.capability = 10 * properties.major + properties.minor,
                       .multiprocessors = properties.multiProcessorCount,
                       .attention_missing = ~fsdp_cuda_attention_kernels()};
}

int main(int argc, char **argv) {
  arguments a = parse(argc, argv);
  fsdp_options options;
  fsdp_setup setup = {0};
  fsdp_pricing pricing;
  fsdp_error error = {0};
  fsdp_status status = fsdp_options_parse(&options, FSDP_PROGRAM_PLAN, a.plan_argc, a.plan_argv, &error);
  if (status == FSDP_OK) {
    fsdp_setup_ranks ranks = fsdp_setup_ranks_planned(&options);
    ranks.target = find_target();
    status = fsdp_setup_create(&options, FSDP_PROGRAM_PLAN, &ranks, &setup, &error);
    if (status == FSDP_OK && setup.profile)
      status = fsdp_pricing_create(setup.plan, setup.profile, ranks.ranks_per_node, &pricing, &error);
  }
  if (status != FSDP_OK) fprintf(stderr, "bench_gpu: error: %s\n", error.message);
  int exit_status = (int)status, count = 0;
  if (status == FSDP_OK && (cudaGetDeviceCount(&count) != cudaSuccess || count == 0)) {
    fprintf(stderr, "bench_gpu: this machine has no GPU\n");
    exit_status = 77;
  } else if (status == FSDP_OK) {
    run_all(&a, &setup, setup.profile ? &pricing : NULL);
  }
  fsdp_setup_destroy(&setup);
  fsdp_options_destroy(&options);
  free(a.plan_argv);
  return exit_status;
}
