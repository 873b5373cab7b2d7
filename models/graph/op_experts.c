// Routed experts: the router's choice, the order of routed rows, and products grouped by expert.
#include "models/graph/backward.h"
#include "models/graph/op_row.h"
#include "runtime/base/check.h"
#include "runtime/base/size.h"

#include <math.h>
#include <string.h>

// ---- Products

// Those of a wave that a rank's experts have.
static int64_t routed_rows(const fsdp_op_attrs *attrs) {
  const int64_t held = attrs->held_experts ? attrs->held_experts : attrs->experts;
  int64_t routed = attrs->batch * attrs->seq * attrs->slots;
  if (attrs->extent) routed = routed * held / attrs->extent; // those of a rank's experts
  if (attrs->extent && attrs->load > 1)
    routed = (int64_t)fmin((double)routed * attrs->load, (double)fsdp_op_letter_size(attrs, 'a', 0));
  // Of a wave, those that are left for it.
  routed = fsdp_max_i64(0, fsdp_min_i64(routed - attrs->first_routed, fsdp_op_letter_size(attrs, 'u', 0)));
  return routed * attrs->experts / held; // those of a block
}

double fsdp_op_routed_share(const fsdp_op_attrs *attrs) {
  const int64_t places = fsdp_op_letter_size(attrs, 'u', 0);
  return places ? (double)routed_rows(attrs) / (double)places : 1;
}

int fsdp_op_offsets_operand(fsdp_op_kind kind) {
  const fsdp_op_letters *op = fsdp_op_letters_of(kind);
  for (int o = 0; o < op->operand_count && fsdp_op_letter_find(op, 'u'); o++)
    if (strcmp(op->operands[o].name, "offsets") == 0) return o;
  return -1;
}

fsdp_op_product fsdp_op_expert_product(const fsdp_op_attrs *attrs, fsdp_op_product_form form, int64_t out,
                                       int64_t in) {
  const int64_t routed = routed_rows(attrs), rows = fsdp_max_i64(1, routed / attrs->experts);
  return fsdp_op_product_of(form, rows, out, in, (double)routed / (double)rows);
}

const char *fsdp_grouped_kernel_name(fsdp_grouped_kernel kernel) {
  static const char *const names[FSDP_GROUPED_KERNEL_COUNT] = {"cpu", "general", "mma", "wgmma"};
  FSDP_CHECK((unsigned)kernel < FSDP_GROUPED_KERNEL_COUNT, "kernel %d of grouped products", (int)kernel);
  return names[kernel];
}

// The best one that multiplies rows of `dtype`, of these widths, on this device.
static fsdp_grouped_kernel kernel_of(fsdp_op_device device, const fsdp_op_gpu *gpu, fsdp_dtype dtype,
                                     int64_t out, int64_t in) {
  enum { MULTIPLE = 8 }; // of tensor cores: rows start on 16 bytes
  if (device == FSDP_OP_CPU) return FSDP_GROUPED_CPU;
  if (dtype != FSDP_BF16 || out % MULTIPLE != 0 || in % MULTIPLE != 0) return FSDP_GROUPED_GENERAL;
  const bool has_wgmma = gpu->capability == 90 && !(gpu->attention_missing >> FSDP_ATTENTION_WGMMA & 1);
  int kernel = has_wgmma ? FSDP_GROUPED_WGMMA : FSDP_GROUPED_MMA;
  while (kernel > FSDP_GROUPED_GENERAL && gpu->grouped_distrusted >> kernel & 1) kernel--;
  return (fsdp_grouped_kernel)kernel;
}

void fsdp_op_expert_up_attrs(fsdp_op_device device, const fsdp_op_gpu *gpu, fsdp_op_attrs *attrs,
                             const fsdp_dtype *dtypes) {
  attrs->products = kernel_of(device, gpu, dtypes[0], 2 * attrs->intermediate, attrs->channels);
}

void fsdp_op_expert_down_attrs(fsdp_op_device device, const fsdp_op_gpu *gpu, fsdp_op_attrs *attrs,
                               const fsdp_dtype *dtypes) {
  attrs->products = kernel_of(device, gpu, dtypes[0], attrs->channels, attrs->intermediate);
}

// One expert's rows side by side: no row chooses an expert twice, so there are n at most.
int64_t fsdp_op_expert_rows_bytes(const fsdp_op_attrs *attrs, int64_t flat_elems) {
  (void)flat_elems;
  return 4 * attrs->batch * attrs->seq * attrs->channels;
}

// Routed rows of each chunk of slots, by expert (kernels/cuda/experts/route_order.cu).
int64_t fsdp_op_route_order_cuda_bytes(const fsdp_op_attrs *attrs, int64_t flat_elems) {
  const int64_t slots = attrs->batch * attrs->seq * attrs->slots;
  (void)flat_elems;
  return 4 * ((slots + FSDP_ROUTE_ORDER_CHUNK - 1) / FSDP_ROUTE_ORDER_CHUNK) * attrs->experts;
}

// A sum of each expert's probabilities, one of squared logarithms and one of ones, of each part of the rows.
int64_t fsdp_op_route_sums_cuda_bytes(const fsdp_op_attrs *attrs, int64_t flat_elems) {
  (void)flat_elems;
  return 4 * ((attrs->batch * attrs->seq + FSDP_ROUTE_SUM_ROWS - 1) / FSDP_ROUTE_SUM_ROWS) *
         (attrs->experts + 2);
}

// ---- Waves

int64_t fsdp_op_later_wave_rows(const fsdp_op_attrs *attrs) {
  enum { WAVES_MOST = 3 };
  return fsdp_max_i64(attrs->routed, (attrs->arrivals - attrs->routed + WAVES_MOST - 1) / WAVES_MOST);
}

void fsdp_graph_count_overflow(fsdp_graph *graph, const fsdp_node *grouped) {
  enum { OFFSETS = 3 };
  const fsdp_node wave = *grouped; // nodes may move
  const int overflow = fsdp_graph_statistic(graph, wave.module, "overflow", 2);
  FSDP_CHECK(fsdp_op_is_grouped(wave.kind) && wave.attrs.routed > 0, "%s has no waves",
             fsdp_op_name(wave.kind));
  fsdp_node *n = fsdp_graph_forward_node(graph, FSDP_OP_ROUTE_OVERFLOW, wave.module, wave.block);
  n->attrs = wave.attrs;
  fsdp_node_operand_add(n, wave.operands[OFFSETS].value, FSDP_READ);
  fsdp_node_operand_add(n, overflow, FSDP_WRITE);
}

// ---- Imbalance

// The same of one layer of `count` experts, of which each rank has `held` that lie side by side.
static double imbalance_of(const float *rows, int64_t count, int64_t held) {
  double greatest = 0, sum = 0;
  for (int64_t first = 0; first < count; first += held) {
    double of_rank = 0;
    for (int64_t e = first; e < fsdp_min_i64(count, first + held); e++) of_rank += (double)rows[e];
    greatest = fmax(greatest, of_rank);
    sum += of_rank;
  }
  return greatest * (double)count / (sum * (double)held);
}

double fsdp_graph_imbalance(const fsdp_graph *graph, const float *rows) {
  double sum = 0;
  int layers = 0;
  for (int i = 0; i < graph->forward_count; i++) {
    const fsdp_op_attrs *attrs = &graph->forward[i].attrs;
    if (graph->forward[i].kind != FSDP_OP_ROUTE_ORDER) continue;
    const int64_t count = attrs->extent ? attrs->extent : attrs->experts;
    sum += imbalance_of(rows, count, attrs->experts);
    rows += count;
    layers++;
  }
  return layers ? sum / layers : 1;
}

// ---- Backward

// The bias only chooses. In the place of a gradient it has its experts' loads.
void fsdp_op_route_biased_emit(fsdp_graph *graph, const fsdp_node *f) {
  fsdp_backward_by_names(graph, FSDP_OP_ROUTE_BACKWARD, f);
  fsdp_backward_by_names(graph, FSDP_OP_ROUTE_LOADS, f);
}

// Its forward makes them.
void fsdp_op_route_loss_emit(fsdp_graph *graph, const fsdp_node *f) {
  enum { SUMS, Z, LOSS, Z_LOSS, FACTORS };
  graph->values[f->operands[SUMS].value].gradient = f->operands[FACTORS].value;
}

// A place for the gradient of each routed row of x; `routed` has as many rows.
static int routed_gradient(fsdp_graph *graph, const fsdp_node *f, int x, int routed) {
  const fsdp_value of = graph->values[x], rows = graph->values[routed];
  int made = fsdp_graph_value(graph, FSDP_VALUE_GRADIENT, FSDP_VALUE_COMPUTE, f->module, "d_z", 2,
                              (int64_t[]){rows.shape[0], of.shape[1]});
  graph->values[made].local[0] = rows.local[0];
  graph->values[made].local[1] = of.local[1];
  graph->values[made].local_numel = rows.local[0] * of.local[1];
  return made;
}

// The places that were found with these slots.
static int places_of(const fsdp_graph *graph, int slots) {
  enum { EXPERTS, SLOTS, OFFSETS, PLACES };
  for (const fsdp_node *n = graph->forward; n < graph->forward + graph->forward_count; n++)
    if (n->kind == FSDP_OP_ROUTE_ORDER && n->operands[SLOTS].value == slots) return n->operands[PLACES].value;
  FSDP_CHECK(false, "nothing made the slots '%s'", graph->values[slots].name);
}

// The input's gradient comes last: the input, which the weight's needs, makes room for it.
void fsdp_op_expert_up_emit(fsdp_graph *graph, const fsdp_node *f) {
  enum { X, WEIGHT, SLOTS, OFFSETS, GATE_UP };
  const fsdp_node_operand *o = f->operands;
  const int gradient = fsdp_backward_gradient(graph, o[GATE_UP].value);
  fsdp_backward_by_names(graph, FSDP_OP_EXPERT_UP_BACKWARD_WEIGHT, f);
  if (!graph->values[o[X].value].needs_gradient) return;
  int d_z = routed_gradient(graph, f, o[X].value, o[GATE_UP].value);
  fsdp_node *n = fsdp_backward_node(graph, FSDP_OP_EXPERT_UP_BACKWARD_INPUT, f);
  fsdp_node_operand_add(n, gradient, FSDP_READ);
  fsdp_node_operand_add(n, o[WEIGHT].value, FSDP_READ);
  fsdp_node_operand_add(n, o[SLOTS].value, FSDP_READ);
  fsdp_node_operand_add(n, o[OFFSETS].value, FSDP_READ);
  fsdp_node_operand_add(n, d_z, FSDP_WRITE);
  n = fsdp_backward_node(graph, FSDP_OP_COMBINE, f);
  fsdp_node_operand_add(n, d_z, FSDP_READ);
  fsdp_node_operand_add(n, places_of(graph, o[SLOTS].value), FSDP_READ);
  fsdp_backward_output(graph, n, o[X].value);
}

// The gradient of z is that of the rows' sum (fsdp_op_combine_emit).
void fsdp_op_expert_down_emit(fsdp_graph *graph, const fsdp_node *f) {
  fsdp_backward_by_names(graph, FSDP_OP_EXPERT_DOWN_BACKWARD_WEIGHT, f);
  fsdp_backward_by_names(graph, FSDP_OP_EXPERT_DOWN_BACKWARD_INPUT, f);
}

// Both summands have the sum's gradient, which nothing changes before they have read it.
void fsdp_op_shared_add_emit(fsdp_graph *graph, const fsdp_node *f) {
  const int gradient = fsdp_backward_gradient(graph, f->operands[2].value);
  for (int i = 0; i < 2; i++) graph->values[f->operands[i].value].gradient = gradient;
}

// Every slot's gradient is its row's: the backward of the op that made the slots reads that.
void fsdp_op_combine_emit(fsdp_graph *graph, const fsdp_node *f) {
  enum { Z, PLACES, Y };
  graph->values[f->operands[Z].value].gradient = fsdp_backward_gradient(graph, f->operands[Y].value);
}
