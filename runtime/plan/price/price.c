#include "runtime/plan/price/price.h"

#include "runtime/base/check.h"
#include "runtime/base/size.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

// Threads of a stream beside compute, at most (runtime/exec/device_config.c).
#define SIDE_THREADS 4.0

const char *fsdp_price_kind_name(fsdp_price_kind kind) {
  static const char *const names[FSDP_PRICE_KIND_COUNT] = {"products",   "attention", "moves", "update",
                                                           "collective", "copy",      "call"};
  return names[kind];
}

// The greatest place on its node of a rank from which groups over `axes` begin, which are 0 on these. Axes
// after `axis` have led to `place`, and neighbours on `axis` are `step` ranks apart.
static int last_place(const fsdp_mesh *mesh, fsdp_axis_set axes, int ranks_per_node, int axis, int step,
                      int place) {
  if (axis < 0) return place;
  const int size = mesh->axes[axis].size, count = axes >> axis & 1 ? 1 : size;
  int last = 0;
  for (int c = 0; c < count && last < ranks_per_node - 1; c++) {
    if (c > 0 && c * step % ranks_per_node == 0) break; // places repeat
    const int from = (place + c * step) % ranks_per_node;
    const int found = last_place(mesh, axes, ranks_per_node, axis - 1, step * size, from);
    if (found > last) last = found;
  }
  return last;
}

// Members of a group that are less than `reach` ranks behind the first, on `axis` and the axes before it.
static int members_within(const fsdp_mesh *mesh, fsdp_axis_set axes, int reach, int axis, int step) {
  if (axis < 0) return 1;
  const int size = mesh->axes[axis].size;
  if (!(axes >> axis & 1)) return members_within(mesh, axes, reach, axis - 1, step * size);
  int count = 0;
  for (int c = 0; c < size && c * step < reach; c++)
    count += members_within(mesh, axes, reach - c * step, axis - 1, step * size);
  return count;
}

// All groups of a communicator are priced as the one that is spread the most: with the fewest ranks on the
// node of its first.
fsdp_profile_group fsdp_profile_group_of(const fsdp_mesh *mesh, fsdp_axis_set axes, int ranks_per_node) {
  const int axis = mesh->count - 1;
  const int last = last_place(mesh, axes, ranks_per_node, axis, 1, 0);
  fsdp_profile_group group = {.ranks = fsdp_mesh_group_size(mesh, axes)};
  group.ranks_per_node = members_within(mesh, axes, ranks_per_node - last, axis, 1);
  group.groups = (int)fsdp_max_i64(1, ranks_per_node / group.ranks_per_node);
  return group;
}

// What is on the host would cost nothing without its rates.
static fsdp_status check_offload(const fsdp_plan_config *config, const fsdp_device_profile *profile,
                                 fsdp_error *error) {
  const bool copies = config->cpu_offload || fsdp_saving_offloads(&config->saving);
  const bool updates = config->cpu_offload && profile->device != FSDP_OP_CPU;
  const char *missing = copies && (profile->up_rate <= 0 || profile->down_rate <= 0) ? "copy_gbps"
                        : updates && profile->host_memory_rate <= 0                  ? "host_memory_gbps"
                                                                                     : NULL;
  char shown[FSDP_PROFILE_SHOWN_BYTES];
  if (!missing) return FSDP_OK;
  return fsdp_fail(
      error, FSDP_ERR_INPUT,
      "--profile %s has no %s, which what is offloaded to the host takes: add it, or offload nothing",
      fsdp_device_profile_shown(profile, shown), missing);
}

fsdp_status fsdp_pricing_check(const fsdp_plan_config *config, const fsdp_device_profile *profile,
                               fsdp_error *error) {
  if (profile->device == config->backend->device) {
    fsdp_status status = fsdp_plan_check_attention(config, error);
    if (status == FSDP_OK)
      status = fsdp_device_profile_check(profile, config->param_dtype, fsdp_plan_attention(config), error);
    return status ? status : check_offload(config, profile, error);
  }
  char shown[FSDP_PROFILE_SHOWN_BYTES];
  return fsdp_fail(error, FSDP_ERR_OPTION,
                   "--profile %s is of a %s, and the plan is for a %s: add --backend %s",
                   fsdp_device_profile_shown(profile, shown), profile->device == FSDP_OP_CPU ? "CPU" : "GPU",
                   config->backend->device == FSDP_OP_CPU ? "CPU" : "GPU",
                   profile->device == FSDP_OP_CPU ? "cpu" : "cuda");
}

fsdp_status fsdp_pricing_check_group(const fsdp_device_profile *profile, fsdp_collective_kind kind,
                                     const fsdp_profile_group *group, fsdp_error *error) {
  const bool across = group->ranks > group->ranks_per_node;
  char shown[FSDP_PROFILE_SHOWN_BYTES];
  if (group->ranks == 1 || fsdp_profile_collective_s(profile, kind, group, 1e6) > 0) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_INPUT, "--profile %s says nothing of %s %s: %s",
                   fsdp_device_profile_shown(profile, shown), fsdp_collective_rows[kind].name,
                   across ? "between nodes" : "inside a node",
                   across ? "give `network`, or a greater --ranks-per-node"
                          : "measure collectives, as in mpirun -np 4 fsdp_profile");
}

// Every kind of collective over every group must have a time.
static fsdp_status check_collectives(const fsdp_pricing *pricing, fsdp_error *error) {
  const fsdp_program *program = pricing->plan->program;
  bool checked[FSDP_PROGRAM_COMMS_MAX][FSDP_COLLECTIVE_COUNT] = {{false}};
  for (int i = 0; i < program->instr_count; i++) {
    const fsdp_instr *instr = &program->instrs[i];
    if (!fsdp_instr_is_collective(instr)) continue;
    bool *is_checked = &checked[instr->comm][fsdp_instr_collective(instr)];
    if (*is_checked) continue;
    *is_checked = true;
    fsdp_status status = fsdp_pricing_check_group(pricing->profile, fsdp_instr_collective(instr),
                                                  &pricing->groups[instr->comm], error);
    if (status) return status;
  }
  return FSDP_OK;
}

fsdp_status fsdp_pricing_create(const fsdp_plan *plan, const fsdp_device_profile *profile, int ranks_per_node,
                                fsdp_pricing *pricing, fsdp_error *error) {
  const fsdp_program *program = plan->program;
  fsdp_status status = fsdp_pricing_check(&plan->config, profile, error);
  if (status) return status;
  *pricing = (fsdp_pricing){.plan = plan, .profile = profile};
  pricing->ranks_per_node = (int)fsdp_min_i64(ranks_per_node, fsdp_mesh_ranks(&program->mesh));
  pricing->crowded = profile->device == FSDP_OP_CPU && pricing->ranks_per_node > profile->processors;
  pricing->copies_gathers =
      !pricing->crowded && !fsdp_pricing_why_no_copies(plan, profile, pricing->ranks_per_node);
  for (int c = 0; c < program->comm_count; c++)
    pricing->groups[c] =
        fsdp_profile_group_of(&program->mesh, program->comms[c].axes, pricing->ranks_per_node);
  return check_collectives(pricing, error);
}

static void assume(fsdp_plan_backend *backend, const char *key) {
  const size_t used = strlen(backend->assumed);
  const int added =
      snprintf(backend->assumed + used, sizeof backend->assumed - used, "%s%s", used ? ", " : "", key);
  FSDP_CHECK(added < (int)(sizeof backend->assumed - used), "keys in %s", backend->assumed);
}

// FLOPs per second of gemms: the data sheet's, or of a GPU whose peak is not known the fastest product's.
static double nominal_flops(const fsdp_device_profile *profile) {
  if (profile->peak_flops[FSDP_BF16] > 0) return profile->peak_flops[FSDP_BF16];
  return profile->product_count ? fsdp_profile_best_rate(profile, 1, FSDP_BF16) : 0;
}

fsdp_plan_backend fsdp_pricing_backend(const fsdp_device_profile *profile) {
  if (profile->device == FSDP_OP_CPU) return *fsdp_plan_backend_cpu();
  fsdp_plan_backend backend = *fsdp_plan_backend_cuda();
  const double flops = nominal_flops(profile), memory = profile->memory_rate, up = profile->up_rate;
  if (profile->capability <= 0) assume(&backend, "capability"); // fsdp_plan_gpu
  if (profile->context_bytes > 0) {
    backend.reserve_bytes = (int64_t)profile->context_bytes;
    backend.reserve_estimated = profile->context_estimated;
  } else {
    assume(&backend, "context_gb");
  }
  if (profile->communicator_bytes > 0) {
    backend.comm_reserve_bytes = (int64_t)profile->communicator_bytes;
    backend.comm_reserve_estimated = profile->communicator_estimated;
  } else {
    assume(&backend, "communicator_gb");
  }
  if (flops > 0 && memory > 0)
    backend.flops_per_byte = flops / memory;
  else
    assume(&backend, "peak_tflops");
  if (up > 0 && memory > 0)
    backend.link_ratio = memory / up;
  else
    assume(&backend, "copy_gbps");
  return backend;
}

// ---- Ops

static const fsdp_operand *operands_of(const fsdp_plan *plan, const fsdp_instr *instr) {
  return &plan->program->operands[instr->first_operand];
}

// Of the rank that takes longest: whose experts get most.
static fsdp_op_attrs attrs_of(const fsdp_plan *plan, const fsdp_instr *instr) {
  fsdp_op_attrs attrs = instr->attrs;
  attrs.load = plan->config.imbalance;
  return attrs;
}

fsdp_op_work fsdp_price_work(const fsdp_plan *plan, const fsdp_instr *instr) {
  fsdp_op_extent extents[FSDP_OP_MAX_OPERANDS];
  const fsdp_operand *operands = operands_of(plan, instr);
  const int count = (int)fsdp_min_i64(instr->operand_count, FSDP_OP_MAX_OPERANDS);
  const fsdp_op_attrs attrs = attrs_of(plan, instr);
  for (int i = 0; i < count; i++)
    extents[i] = (fsdp_op_extent){operands[i].dtype, operands[i].access, operands[i].size_bytes};
  return fsdp_op_work_of(instr->op, &attrs, extents, count);
}

// The element type that an op's gemms read: that of the plan's parameters in compute.
static double products_s(const fsdp_pricing *p, const fsdp_instr *instr, bool *estimated) {
  fsdp_op_product products[FSDP_OP_PRODUCTS_MAX];
  const fsdp_op_attrs attrs = attrs_of(p->plan, instr);
  const int count = fsdp_op_products(instr->op, &attrs, products);
  double seconds = 0;
  if (fsdp_op_is_grouped(instr->op)) {
    const fsdp_profile_grouped_call call = {p->plan->config.param_dtype, products[0], attrs.experts,
                                            attrs.products};
    return fsdp_profile_grouped_s(p->profile, p->ranks_per_node, &call, estimated);
  }
  for (int i = 0; i < count; i++)
    seconds +=
        fsdp_profile_product_s(p->profile, p->ranks_per_node, p->plan->config.param_dtype, &products[i]);
  // Cut for fewer multiprocessors a product takes as much longer.
  const fsdp_op_gpu *gpu = &p->plan->config.gpu;
  return gpu->gemm_multiprocessors ? seconds * gpu->multiprocessors / gpu->gemm_multiprocessors : seconds;
}

// What documents leave of attention's pairs; and of these, the multiple of the mean that the rank with most
// has, for which the others wait.
static const fsdp_document_work *work_of_documents(const fsdp_pricing *p, const fsdp_instr *instr) {
  static const fsdp_document_work all = {0};
  return instr->attrs.documents ? &p->plan->config.document_work[instr->attrs.window > 0] : &all;
}
static double or_one(double factor) {
  return factor > 0 ? factor : 1;
}

// The length of a sequence whose queries see as many keys on average.
static int64_t length_alike(const fsdp_pricing *p, const fsdp_instr *instr) {
  const fsdp_op_attrs *a = &instr->attrs;
  const double T = (double)(a->kv_seq > 0 ? a->kv_seq : a->seq);
  const double W = a->window > 0 ? fmin((double)a->window, T) : T;
  const double keys = W * (1 - (W - 1) / (2 * T)); // (W (W + 1) / 2 + (T - W) W) / T
  return (int64_t)fmax(1, fmin(2 * or_one(work_of_documents(p, instr)->left) * keys, W));
}

static double attention_s(const fsdp_pricing *p, const fsdp_instr *instr, double flops, bool *estimated) {
  const fsdp_op_attrs *a = &instr->attrs;
  const bool backward = fsdp_op_phase_of(instr->op) == FSDP_OP_IN_BACKWARD;
  const fsdp_profile_attention_call call = {.kernel = a->attention,
                                            .dtype = p->plan->config.param_dtype,
                                            .head_dim = (int)a->head_dim,
                                            .seq = length_alike(p, instr),
                                            .direction =
                                                backward ? FSDP_ATTENTION_BACKWARD : FSDP_ATTENTION_FORWARD,
                                            .flops = flops};
  return fsdp_profile_attention_s(p->profile, p->ranks_per_node, &call, estimated);
}

// The share of the processors that an op takes: all of them on the streams that work. Beside these, casts and
// sums are bound by memory: on a GPU they take as much as a collective, on a CPU the threads of their stream.
static double processors_of(const fsdp_pricing *p, const fsdp_instr *instr) {
  const double threads = fmax(1, (double)p->profile->processors / p->ranks_per_node);
  if (instr->stream == FSDP_STREAM_COMPUTE || instr->stream == FSDP_STREAM_HOST) return 1;
  return p->profile->device == FSDP_OP_CPU ? fmin(1, SIDE_THREADS / threads)
                                           : p->profile->product_slowdown - 1;
}

// How much longer such an op takes in a step than its rate says.
static double sustained_of(const fsdp_device_profile *profile, fsdp_price_kind kind) {
  const fsdp_profile_sustained *s = &profile->sustained;
  const double ratio = kind == FSDP_PRICE_PRODUCTS    ? s->products
                       : kind == FSDP_PRICE_ATTENTION ? s->attention
                                                      : 1;
  return fmax(1, ratio);
}

static fsdp_price price_op(const fsdp_pricing *p, const fsdp_instr *instr) {
  fsdp_op_work work = fsdp_price_work(p->plan, instr);
  const fsdp_dtype dtype = p->plan->config.param_dtype;
  const fsdp_document_work *documents = work_of_documents(p, instr);
  work.flops *= or_one(documents->left);
  fsdp_price price = {.flops = work.flops};
  double bytes = work.bytes;
  if (fsdp_op_makes_gemms(instr->op)) {
    price.kind = FSDP_PRICE_PRODUCTS;
    price.seconds = products_s(p, instr, &price.estimated);
    if (work.row_bytes > 0)
      price.seconds += fsdp_profile_op_s(p->profile, p->ranks_per_node, instr->op, dtype, work.row_bytes);
    price.seconds += fsdp_profile_added_s(p->profile, p->ranks_per_node, instr->op, work.added_bytes);
    bytes += work.row_bytes;
  } else if (work.flops > 0) {
    price.kind = FSDP_PRICE_ATTENTION;
    price.seconds = attention_s(p, instr, work.flops * or_one(documents->most), &price.estimated);
  } else {
    price.kind = fsdp_op_phase_of(instr->op) == FSDP_OP_IN_UPDATE ? FSDP_PRICE_UPDATE : FSDP_PRICE_MOVES;
    price.seconds = fsdp_profile_op_s(p->profile, p->ranks_per_node, instr->op, dtype, bytes);
  }
  price.seconds *= sustained_of(p->profile, price.kind);
  const double rate = p->profile->memory_rate;
  price.share[FSDP_RESOURCE_PROCESSORS] = processors_of(p, instr);
  if (rate > 0 && price.seconds > 0)
    price.share[FSDP_RESOURCE_MEMORY] = fmin(1, bytes / rate / price.seconds);
  return price;
}

// Of a GPU's plan: work on the host is bound by its memory.
static fsdp_price price_host_op(const fsdp_pricing *p, const fsdp_instr *instr) {
  const fsdp_op_work work = fsdp_price_work(p->plan, instr);
  fsdp_price price = {.kind = FSDP_PRICE_UPDATE};
  if (p->profile->host_memory_rate > 0)
    price.seconds = work.bytes * p->ranks_per_node / p->profile->host_memory_rate;
  price.share[FSDP_RESOURCE_HOST] = 1;
  return price;
}

// ---- Collectives and copies

// The share of the processors that data takes on its way. Where ranks share cores, one rank's wait is
// another's turn: a core is never idle, and what it does for a collective it does not do for a product.
static double moving_share(const fsdp_pricing *p) {
  return p->crowded ? 1 : p->profile->product_slowdown - 1;
}

const char *fsdp_pricing_why_no_copies(const fsdp_plan *plan, const fsdp_device_profile *profile,
                                       int ranks_per_node) {
  if (!plan->config.copies_gathers) return "by --nccl-register or --set nccl-ctas";
  if (fsdp_mesh_ranks(&plan->program->mesh) > ranks_per_node) return "ranks are on several nodes";
  return profile->gather_slowdown > 0 ? NULL : "the profile has no contention of gathers by copy engines";
}

static fsdp_price price_collective(const fsdp_pricing *p, const fsdp_instr *instr) {
  const fsdp_profile_group *group = &p->groups[instr->comm];
  const double bytes = (double)fsdp_program_whole_bytes(p->plan->program, instr);
  fsdp_price price = {.kind = FSDP_PRICE_COLLECTIVE};
  if (bytes > 0)
    price.seconds = fsdp_profile_collective_s(p->profile, fsdp_instr_collective(instr), group, bytes);
  const bool is_inside = group->ranks <= group->ranks_per_node;
  const bool is_copied = !fsdp_instr_collective_row(instr)->sums && p->copies_gathers;
  price.share[FSDP_RESOURCE_PROCESSORS] = is_copied ? p->profile->gather_slowdown - 1 : moving_share(p);
  price.share[is_inside ? FSDP_RESOURCE_NODE : FSDP_RESOURCE_NETWORK] = 1;
  return price;
}

static fsdp_price price_copy(const fsdp_pricing *p, const fsdp_instr *instr) {
  const bool up = instr->kind == FSDP_INSTR_H2D;
  const double rate = up ? p->profile->up_rate : p->profile->down_rate;
  const double both = up ? p->profile->up_both_rate : p->profile->down_both_rate;
  fsdp_price price = {.kind = FSDP_PRICE_COPY};
  if (rate > 0) price.seconds = (double)operands_of(p->plan, instr)->size_bytes / rate + p->profile->launch_s;
  price.share[up ? FSDP_RESOURCE_UP : FSDP_RESOURCE_DOWN] = 1;
  // A link that is slower in both directions at once: what the other direction takes of this one.
  if (both > 0 && both < rate) price.share[up ? FSDP_RESOURCE_DOWN : FSDP_RESOURCE_UP] = rate / both - 1;
  if (p->profile->device == FSDP_OP_CPU) price.share[FSDP_RESOURCE_PROCESSORS] = moving_share(p);
  return price;
}

static fsdp_price price_median(const fsdp_pricing *pricing, int position) {
  const fsdp_instr *instr = &pricing->plan->program->instrs[position];
  if (fsdp_instr_is_collective(instr)) return price_collective(pricing, instr);
  switch (instr->kind) {
  case FSDP_INSTR_OP:
    if (fsdp_instr_is_poison(instr)) return (fsdp_price){.kind = FSDP_PRICE_CALL};
    return instr->stream == FSDP_STREAM_HOST && pricing->profile->device != FSDP_OP_CPU
               ? price_host_op(pricing, instr)
               : price_op(pricing, instr);
  case FSDP_INSTR_H2D:
  case FSDP_INSTR_D2H:
    return price_copy(pricing, instr);
  default:
    return (fsdp_price){.kind = FSDP_PRICE_CALL};
  }
}

fsdp_price fsdp_price_of(const fsdp_pricing *pricing, int position) {
  fsdp_price price = price_median(pricing, position);
  const fsdp_profile_spread *spread = &pricing->profile->spread;
  const bool low = pricing->end == FSDP_PRICE_LOW, collective = price.kind == FSDP_PRICE_COLLECTIVE;
  double factor = low ? spread->compute_low : spread->compute_high;
  if (collective) factor = low ? spread->collective_low : spread->collective_high;
  if (pricing->end != FSDP_PRICE_MEDIAN && factor > 0) price.seconds *= factor;
  return price;
}
