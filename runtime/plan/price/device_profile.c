#include "runtime/plan/price/device_profile.h"

#include "runtime/base/check.h"

#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

fsdp_device_profile *fsdp_device_profile_create(void) {
  fsdp_device_profile *profile = fsdp_alloc_zeroed(1, sizeof *profile);
  profile->product_slowdown = profile->collective_slowdown = 1;
  return profile;
}

// ---- Lists

// Where a profile has a list: the pointer to its rows and their number; and a row's bytes and its curve (0:
// none).
static const struct {
  size_t rows, count, bytes, curve;
} lists[FSDP_PROFILE_LISTS] = {
#define AT(field) offsetof(fsdp_device_profile, field)
    [FSDP_PROFILE_PRODUCTS] = {AT(products), AT(product_count), sizeof(fsdp_profile_product), 0},
    [FSDP_PROFILE_GROUPED] = {AT(grouped), AT(grouped_count), sizeof(fsdp_profile_grouped),
                              offsetof(fsdp_profile_grouped, rate)},
    [FSDP_PROFILE_ATTENTION] = {AT(attention), AT(attention_count), sizeof(fsdp_profile_attention),
                                offsetof(fsdp_profile_attention, rate)},
    [FSDP_PROFILE_OPS] = {AT(ops), AT(op_count), sizeof(fsdp_profile_op), offsetof(fsdp_profile_op, rate)},
    [FSDP_PROFILE_COLLECTIVES] = {AT(collectives), AT(collective_count), sizeof(fsdp_profile_collective),
                                  offsetof(fsdp_profile_collective, seconds)}};

static int *count_of(const fsdp_device_profile *profile, fsdp_profile_list list) {
  return (int *)((uintptr_t)profile + lists[list].count);
}

const void *fsdp_device_profile_rows(const fsdp_device_profile *profile, fsdp_profile_list list, int *count) {
  void *rows;
  memcpy(&rows, (const char *)profile + lists[list].rows, sizeof rows);
  *count = *count_of(profile, list);
  return rows;
}

size_t fsdp_device_profile_row_bytes(fsdp_profile_list list) {
  return lists[list].bytes;
}

static void set_rows(fsdp_device_profile *profile, fsdp_profile_list list, void *rows, int count) {
  memcpy((char *)profile + lists[list].rows, &rows, sizeof rows);
  *count_of(profile, list) = count;
}

static fsdp_profile_curve *curve_at(fsdp_profile_list list, const void *rows, int index) {
  return (fsdp_profile_curve *)((uintptr_t)rows + lists[list].bytes * (size_t)index + lists[list].curve);
}

void fsdp_device_profile_add(fsdp_device_profile *profile, fsdp_profile_list list, const void *row) {
  const int step = 16;
  int count;
  void *rows = (void *)(uintptr_t)fsdp_device_profile_rows(profile, list, &count);
  if (count % step == 0) rows = fsdp_realloc(rows, (size_t)(count + step) * lists[list].bytes);
  memcpy((char *)rows + (size_t)count * lists[list].bytes, row, lists[list].bytes);
  if (lists[list].curve) {
    fsdp_profile_curve *curve = curve_at(list, rows, count);
    const fsdp_profile_point *points = curve->points;
    FSDP_CHECK(curve->count > 0, "a curve without points");
    curve->points = fsdp_alloc((size_t)curve->count * sizeof *points);
    memcpy(curve->points, points, (size_t)curve->count * sizeof *points);
  }
  set_rows(profile, list, rows, count + 1);
}

void fsdp_device_profile_clear(fsdp_device_profile *profile, fsdp_profile_list list) {
  int count;
  void *rows = (void *)(uintptr_t)fsdp_device_profile_rows(profile, list, &count);
  for (int i = 0; i < count && lists[list].curve; i++) free(curve_at(list, rows, i)->points);
  free(rows);
  set_rows(profile, list, NULL, 0);
}

void fsdp_device_profile_destroy(fsdp_device_profile *profile) {
  if (!profile) return;
  for (int list = 0; list < FSDP_PROFILE_LISTS; list++)
    fsdp_device_profile_clear(profile, (fsdp_profile_list)list);
  free(profile);
}

const char *fsdp_device_profile_shown(const fsdp_device_profile *profile,
                                      char out[FSDP_PROFILE_SHOWN_BYTES]) {
  const bool same = !*profile->asked || strcmp(profile->asked, profile->name) == 0;
  snprintf(out, FSDP_PROFILE_SHOWN_BYTES, same ? "%s" : "%s (%s)", same ? profile->name : profile->asked,
           profile->name);
  return out;
}

fsdp_device_profile *fsdp_device_profile_nominal(const fsdp_plan_backend *backend) {
  const double memory = 1e12, link = memory / backend->link_ratio; // of any memory: ratios alone count
  fsdp_profile_point rate = {1, backend->flops_per_byte * memory}, read[] = {{1, 1 / memory}, {memory, 1}};
  fsdp_device_profile *profile = fsdp_device_profile_create();
  snprintf(profile->name, sizeof profile->name, "nominal");
  profile->device = backend->device;
  profile->processors = INT_MAX;
  profile->memory_rate = profile->host_memory_rate = profile->network_rate = memory;
  profile->up_rate = profile->down_rate = profile->up_both_rate = profile->down_both_rate = link;
  for (fsdp_dtype dtype = 0; dtype < FSDP_DTYPE_COUNT; dtype++) {
    const fsdp_profile_product product = {
        .dtype = dtype, .form = FSDP_PRODUCT_FORM_COUNT, .m = 1, .n = 1, .k = 1, .flops_per_s = rate.value};
    const fsdp_profile_attention attention = {
        .dtype = dtype, .head_dim = 1, .direction = FSDP_ATTENTION_BOTH, .rate = {&rate, 1}};
    fsdp_device_profile_add(profile, FSDP_PROFILE_PRODUCTS, &product);
    fsdp_device_profile_add(profile, FSDP_PROFILE_ATTENTION, &attention);
  }
  for (fsdp_collective_kind kind = 0; kind < FSDP_COLLECTIVE_COUNT; kind++) {
    const fsdp_profile_collective collective = {.kind = kind, .ranks = 2, .seconds = {read, 2}};
    fsdp_device_profile_add(profile, FSDP_PROFILE_COLLECTIVES, &collective);
  }
  return profile;
}

void fsdp_device_profile_set_network(fsdp_device_profile *profile, int ranks) {
  for (int i = 0; i < profile->collective_count; i++) {
    const fsdp_profile_collective *c = &profile->collectives[i];
    if (c->kind != FSDP_ALL_GATHER || c->link != FSDP_LINK_NETWORK || c->ranks != ranks) continue;
    const fsdp_profile_point *first = c->seconds.points, *last = &first[c->seconds.count - 1];
    const double moved = last->size * (ranks - 1) / ranks, more_s = last->value - first->value;
    profile->network_rate = moved / (more_s > 0 ? more_s : last->value);
    profile->network_latency_s = first->value / ((double)ranks / c->ranks_per_node);
  }
}

const char *fsdp_profile_kernel_name(fsdp_attention_kernel kernel, char out[FSDP_PROFILE_KERNEL_BYTES]) {
  const bool gpu = kernel != FSDP_ATTENTION_CPU;
  snprintf(out, FSDP_PROFILE_KERNEL_BYTES, "fsdp%s%s", gpu ? "-" : "",
           gpu ? fsdp_attention_kernel_name(kernel) : "");
  return out;
}

fsdp_op_gpu fsdp_device_profile_gpu(const fsdp_device_profile *profile) {
  if (profile->device != FSDP_OP_CUDA) return (fsdp_op_gpu){0};
  return (fsdp_op_gpu){.capability = (int)lround(10 * profile->capability),
                       .multiprocessors = profile->processors};
}

fsdp_memory_limits fsdp_device_profile_memory(const fsdp_device_profile *profile, int local_ranks) {
  FSDP_CHECK(local_ranks > 0, "a node of %d ranks", local_ranks);
  const int64_t memory = (int64_t)profile->memory_bytes;
  const int64_t host = (int64_t)(profile->host_memory_bytes / local_ranks);
  if (profile->device == FSDP_OP_CPU) return (fsdp_memory_limits){.shared_bytes = memory / local_ranks};
  return (fsdp_memory_limits){.bytes = {memory, host}, .room_bytes = memory};
}

// Whether the entry's rate is the kernel's, or that of all. A CPU has one, whatever a profile calls it.
static bool is_of_kernel(const fsdp_device_profile *profile, const fsdp_profile_attention *entry,
                         fsdp_attention_kernel kernel) {
  char name[FSDP_PROFILE_KERNEL_BYTES];
  const bool other = profile->device == FSDP_OP_CPU || *profile->attention_kernel;
  return other || !*entry->kernel || !strcmp(entry->kernel, fsdp_profile_kernel_name(kernel, name));
}

static bool is_of_attention(const fsdp_device_profile *profile, const fsdp_profile_attention *entry,
                            const fsdp_profile_attention_call *call) {
  return entry->dtype == call->dtype && is_of_kernel(profile, entry, call->kernel) &&
         (entry->direction == call->direction || entry->direction == FSDP_ATTENTION_BOTH);
}

static bool has_attention(const fsdp_device_profile *profile, const fsdp_profile_attention_call *call) {
  for (int i = 0; i < profile->attention_count; i++)
    if (is_of_attention(profile, &profile->attention[i], call)) return true;
  return false;
}

// What the profile says of attention is of other kernels.
static fsdp_status fail_kernel(const fsdp_device_profile *profile, const fsdp_profile_attention_call *call,
                               const char *other, fsdp_error *error) {
  char name[FSDP_PROFILE_KERNEL_BYTES], shown[FSDP_PROFILE_SHOWN_BYTES];
  return fsdp_fail(
      error, FSDP_ERR_INPUT,
      "--profile %s has no rates of attention by %s in %s: measure them with fsdp_profile, choose "
      "another --attention or --param-dtype, or price that of %s by `use: {attention: %s}`",
      fsdp_device_profile_shown(profile, shown), fsdp_profile_kernel_name(call->kernel, name),
      fsdp_dtype_name(call->dtype), other, other);
}

fsdp_status fsdp_device_profile_check(const fsdp_device_profile *profile, fsdp_dtype dtype,
                                      fsdp_attention_kernel kernel, fsdp_error *error) {
  fsdp_profile_attention_call call = {.kernel = kernel, .dtype = dtype, .direction = FSDP_ATTENTION_FORWARD};
  const char *other = NULL; // the kernel of the first entry in this dtype
  bool products = false;
  const bool ops = profile->op_count > 0 || profile->memory_rate > 0;
  for (int i = 0; i < profile->product_count; i++) products = products || profile->products[i].dtype == dtype;
  for (int i = profile->attention_count - 1; i >= 0; i--)
    if (profile->attention[i].dtype == dtype) other = profile->attention[i].kernel;
  const bool forward = has_attention(profile, &call);
  call.direction = FSDP_ATTENTION_BACKWARD;
  const bool backward = has_attention(profile, &call);
  if (products && ops && !forward && !backward && other) return fail_kernel(profile, &call, other, error);
  const char *missing = !products   ? "rates of products"
                        : !forward  ? "rates of attention's forward"
                        : !backward ? "rates of attention's backward"
                        : !ops      ? "the rate of memory"
                                    : NULL;
  char shown[FSDP_PROFILE_SHOWN_BYTES];
  if (!missing) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_INPUT,
                   "--profile %s has no %s in %s: choose another --param-dtype, or measure this machine with "
                   "fsdp_profile",
                   fsdp_device_profile_shown(profile, shown), missing, fsdp_dtype_name(dtype));
}

// ---- Curves

double fsdp_profile_curve_at(const fsdp_profile_curve *curve, double size) {
  const fsdp_profile_point *p = curve->points;
  const int last = curve->count - 1;
  if (size <= p[0].size) return p[0].value;
  if (size >= p[last].size) return p[last].value;
  int i = 1;
  while (p[i].size < size) i++;
  const double share = log(size / p[i - 1].size) / log(p[i].size / p[i - 1].size);
  return exp(log(p[i - 1].value) + share * log(p[i].value / p[i - 1].value));
}

// ---- Scopes

// The number of ranks that the entries to use have, found one entry after the other from -1 on: the greatest
// that is at most `ranks`, or else the least. An entry of 0 ranks counts as one of the asked number.
static int closer_scope(int best, int entry, int ranks) {
  if (entry == 0 || best == 0) return 0;
  if (best < 0) return entry;
  if (entry <= ranks) return entry > best || best > ranks ? entry : best;
  return entry < best ? entry : best;
}

// How much longer everything takes if ranks share a CPU's cores that were not shared when it was measured.
// Each is bound to one core (launcher/train/binding.c); those on the fullest core, which take turns, end
// last.
static double crowding(const fsdp_device_profile *profile, int scope, int ranks) {
  const int cores = scope > profile->processors ? scope : profile->processors;
  return profile->device == FSDP_OP_CPU && scope > 0 && ranks > cores ? ceil((double)ranks / cores) : 1;
}

// ---- Products

// Of the entries in `dtype`; -1: there are none.
static int products_scope(const fsdp_device_profile *profile, fsdp_dtype dtype, int ranks) {
  int scope = -1;
  for (int i = 0; i < profile->product_count; i++)
    if (profile->products[i].dtype == dtype) scope = closer_scope(scope, profile->products[i].ranks, ranks);
  return scope;
}

// The share of a multiprocessor's work that a product's shape leaves: the last wave of tiles is not full, and
// each tile fills its pipeline before it runs at full rate. Of the tile shapes that libraries have the best
// counts. A tile of fewer elements reads more for each FLOP.
static double shape_efficiency(const fsdp_device_profile *profile, double m, double n, double k) {
  static const struct {
    double m, n, rate;
  } tiles[] = {{256, 128, 1}, {128, 256, 1}, {128, 128, 0.95}, {128, 64, 0.8}, {64, 128, 0.8}, {64, 64, 0.6}};
  const double fill = 128; // of k: the steps before the first sum and after the last
  double best = 0;
  if (!profile->tiles) return 1;
  for (size_t t = 0; t < sizeof tiles / sizeof *tiles; t++) {
    const double count = ceil(m / tiles[t].m) * ceil(n / tiles[t].n);
    const double waves = ceil(count / profile->processors);
    const double rate = tiles[t].rate * m * n / (waves * profile->processors * tiles[t].m * tiles[t].n);
    best = fmax(best, rate);
  }
  return best * k / (k + fill);
}

// A measured product's rate, of which a part is left to its shape.
typedef struct whole_rate {
  int64_t m, n, k;
  double processors, rate, log;
} whole_rate;

// The logarithm of the rate of the profile's product `index`, divided by what its shape leaves of the device.
// Every price of a product asks it of all of them, so answers are kept, with all that they depend on.
static double whole_rate_log(const fsdp_device_profile *profile, int index) {
  enum { KEPT = 64, NO_TILES = -1 };
  static _Thread_local whole_rate kept[KEPT];
  const fsdp_profile_product *p = &profile->products[index];
  const double processors = profile->tiles ? profile->processors : NO_TILES;
  whole_rate *of = &kept[index % KEPT];
  const bool same = of->m == p->m && of->n == p->n && of->k == p->k && of->processors == processors;
  if (same && of->rate == p->flops_per_s) return of->log;
  *of = (whole_rate){p->m, p->n, p->k, processors, p->flops_per_s, 0};
  of->log = log(of->rate / shape_efficiency(profile, (double)p->m, (double)p->n, (double)p->k));
  return of->log;
}

// The rate at a shape, from the measured ones nearest to it: their mean in logarithms, weighted by the
// inverse square of the distance in log (m, n, k). Each point's rate is first divided by what its own shape
// leaves of the device.
static double product_rate(const fsdp_device_profile *profile, int scope, fsdp_dtype dtype,
                           const fsdp_op_product *product, bool any_form) {
  double weights = 0, sum = 0;
  for (int i = 0; i < profile->product_count; i++) {
    const fsdp_profile_product *point = &profile->products[i];
    if (point->dtype != dtype || point->ranks != scope) continue;
    if (!any_form && point->form != product->form && point->form != FSDP_PRODUCT_FORM_COUNT) continue;
    const double dm = log((double)point->m / (double)product->m);
    const double dn = log((double)point->n / (double)product->n);
    const double dk = log((double)point->k / (double)product->k);
    const double distance = dm * dm + dn * dn + dk * dk;
    const double weight = 1 / pow(distance + 1e-3, 2);
    weights += weight;
    sum += weight * whole_rate_log(profile, i);
  }
  return weights > 0 ? exp(sum / weights) : 0;
}

double fsdp_profile_product_s(const fsdp_device_profile *profile, int ranks, fsdp_dtype dtype,
                              const fsdp_op_product *product) {
  const int scope = products_scope(profile, dtype, ranks);
  double rate = product_rate(profile, scope, dtype, product, false);
  if (rate == 0) rate = product_rate(profile, scope, dtype, product, true);
  FSDP_CHECK(rate > 0, "a profile without products in %s", fsdp_dtype_name(dtype));
  const double m = (double)product->m, n = (double)product->n, k = (double)product->k;
  const double width = (double)fsdp_dtype_bytes(dtype);
  double seconds = 2 * m * n * k / (rate * shape_efficiency(profile, m, n, k));
  if (profile->tiles) seconds = fmax(seconds, width * (m * k + k * n + m * n) / profile->memory_rate);
  return product->count * (seconds * crowding(profile, scope, ranks) + profile->launch_s);
}

// ---- Products grouped by expert

static bool has_grouped(const fsdp_device_profile *profile, const char *kernel) {
  for (int i = 0; i < profile->grouped_count; i++)
    if (!strcmp(profile->grouped[i].kernel, kernel)) return true;
  return false;
}

static const char wgmma_rows[] = "fsdp-wgmma";

const char *fsdp_profile_grouped_kernel(const fsdp_device_profile *profile,
                                        const fsdp_profile_grouped_call *call) {
  if (*profile->grouped_kernel) return profile->grouped_kernel;
  if (profile->device == FSDP_OP_CPU) return "fsdp";
  if (call->kernel == FSDP_GROUPED_WGMMA && has_grouped(profile, wgmma_rows)) return wgmma_rows;
  return call->kernel >= FSDP_GROUPED_MMA ? "fsdp-mma" : "fsdp-general";
}

// Whether those rows are of a kernel that is not the plan's, without a `use` that says so.
static bool stands_in(const fsdp_device_profile *profile, const fsdp_profile_grouped_call *call) {
  return profile->device == FSDP_OP_CUDA && !*profile->grouped_kernel && call->kernel == FSDP_GROUPED_WGMMA &&
         !has_grouped(profile, wgmma_rows);
}

// A CPU's table is of its own kernel, whatever it is called. The form's own rows before those of any.
static const fsdp_profile_grouped *find_grouped(const fsdp_device_profile *profile, int ranks,
                                                const fsdp_profile_grouped_call *call) {
  const char *kernel = fsdp_profile_grouped_kernel(profile, call);
  const fsdp_op_product_form form = call->product.form;
  const fsdp_profile_grouped *best = NULL;
  int scope = -1;
  for (int i = 0; i < profile->grouped_count; i++)
    if (profile->grouped[i].dtype == call->dtype)
      scope = closer_scope(scope, profile->grouped[i].ranks, ranks);
  for (int i = 0; i < profile->grouped_count; i++) {
    const fsdp_profile_grouped *entry = &profile->grouped[i];
    const bool own = profile->device == FSDP_OP_CPU || !strcmp(entry->kernel, kernel);
    if (entry->dtype != call->dtype || entry->ranks != scope || !own) continue;
    if (entry->form == form || (entry->form == FSDP_PRODUCT_FORM_COUNT && !best)) best = entry;
  }
  return best;
}

// Rows of all experts together.
static double routed_rows(const fsdp_profile_grouped_call *call) {
  const fsdp_op_product *p = &call->product;
  return fmax(1, p->count * (double)(p->form == FSDP_PRODUCT_WEIGHT ? p->k : p->m));
}

// Tiles have 128 rows; a weight's gradient sums over 64 at a time.
static double tile_rows(const fsdp_profile_grouped_call *call) {
  return call->product.form == FSDP_PRODUCT_WEIGHT ? 64 : 128;
}

// What loads that differ take more than such that fill their tiles as `rows` each do.
static double tile_waste(const fsdp_device_profile *profile, const fsdp_profile_grouped_call *call,
                         double rows) {
  const double tile = tile_rows(call);
  return profile->tiles ? fmax(1, (rows + (tile - 1) / 2) / (tile * ceil(rows / tile))) : 1;
}

// By the rate of one product with the rows of all experts; at least what reading their weights takes.
static double grouped_as_one_s(const fsdp_device_profile *profile, int ranks,
                               const fsdp_profile_grouped_call *call) {
  fsdp_op_product one = call->product;
  const bool sums_rows = one.form == FSDP_PRODUCT_WEIGHT;
  const double routed = routed_rows(call), experts = (double)call->experts;
  const double weights = experts * (double)one.n * (double)(sums_rows ? one.m : one.k);
  const double read_s = weights * (double)fsdp_dtype_bytes(call->dtype) / profile->memory_rate;
  *(sums_rows ? &one.k : &one.m) = (int64_t)ceil(routed);
  one.count = 1;
  const double tiled = routed + experts * (tile_rows(call) - 1) / 2;
  return fmax(fsdp_profile_product_s(profile, ranks, call->dtype, &one) * tiled / routed, read_s);
}

double fsdp_profile_grouped_s(const fsdp_device_profile *profile, int ranks,
                              const fsdp_profile_grouped_call *call, bool *estimated) {
  const fsdp_profile_grouped *entry = find_grouped(profile, ranks, call);
  const fsdp_op_product *p = &call->product;
  *estimated = entry ? entry->estimated || stands_in(profile, call) : profile->device == FSDP_OP_CUDA;
  if (!entry && profile->tiles) return grouped_as_one_s(profile, ranks, call);
  if (!entry) return fsdp_profile_product_s(profile, ranks, call->dtype, p);
  const double rows = fmax(1, routed_rows(call) / (double)call->experts);
  const double flops = 2 * (double)p->m * (double)p->n * (double)p->k * p->count;
  const double seconds = flops * tile_waste(profile, call, rows) / fsdp_profile_curve_at(&entry->rate, rows);
  return seconds * crowding(profile, entry->ranks, ranks) + profile->launch_s;
}

double fsdp_profile_best_rate(const fsdp_device_profile *profile, int ranks, fsdp_dtype dtype) {
  const int scope = products_scope(profile, dtype, ranks);
  double best = 0;
  for (int i = 0; i < profile->product_count; i++) {
    const fsdp_profile_product *p = &profile->products[i];
    if (p->dtype != dtype || p->ranks != scope) continue;
    const double shape = shape_efficiency(profile, (double)p->m, (double)p->n, (double)p->k);
    best = fmax(best, p->flops_per_s / shape);
  }
  return best / crowding(profile, scope, ranks);
}

// ---- Attention and other ops

// The entry of this direction with the nearest head dimension.
static const fsdp_profile_attention *find_attention(const fsdp_device_profile *profile, int scope,
                                                    const fsdp_profile_attention_call *call,
                                                    fsdp_profile_direction direction) {
  const fsdp_profile_attention *best = NULL;
  for (int i = 0; i < profile->attention_count; i++) {
    const fsdp_profile_attention *entry = &profile->attention[i];
    if (entry->ranks != scope || entry->direction != direction || !is_of_attention(profile, entry, call))
      continue;
    if (!best || abs(entry->head_dim - call->head_dim) < abs(best->head_dim - call->head_dim)) best = entry;
  }
  return best;
}

double fsdp_profile_attention_s(const fsdp_device_profile *profile, int ranks,
                                const fsdp_profile_attention_call *call, bool *estimated) {
  int scope = -1;
  for (int i = 0; i < profile->attention_count; i++)
    if (is_of_attention(profile, &profile->attention[i], call))
      scope = closer_scope(scope, profile->attention[i].ranks, ranks);
  const fsdp_profile_attention *entry = find_attention(profile, scope, call, call->direction);
  if (!entry) entry = find_attention(profile, scope, call, FSDP_ATTENTION_BOTH);
  FSDP_CHECK(entry, "a profile without attention in %s", fsdp_dtype_name(call->dtype));
  const double rate = fsdp_profile_curve_at(&entry->rate, (double)call->seq);
  *estimated = entry->estimated;
  return call->flops / rate * crowding(profile, scope, ranks) + profile->launch_s;
}

// How well an entry fits: the op before the element type; 0: not at all.
static int fit_of(const fsdp_profile_op *entry, fsdp_op_kind op, fsdp_dtype dtype) {
  if (entry->op != op && entry->op != FSDP_OP_ROW_COUNT) return 0;
  const int same = entry->dtype == dtype ? 3 : entry->dtype == FSDP_PROFILE_ANY_DTYPE ? 2 : 1;
  return same + (entry->op == op ? 3 : 0);
}

double fsdp_profile_op_s(const fsdp_device_profile *profile, int ranks, fsdp_op_kind op, fsdp_dtype dtype,
                         double bytes) {
  double rate = profile->memory_rate;
  int scope = 0;
  if (profile->op_count > 0) {
    scope = -1;
    for (int i = 0; i < profile->op_count; i++) scope = closer_scope(scope, profile->ops[i].ranks, ranks);
    const fsdp_profile_op *found = NULL;
    int best = 0;
    for (int i = 0; i < profile->op_count; i++) {
      const int fit = profile->ops[i].ranks == scope ? fit_of(&profile->ops[i], op, dtype) : 0;
      if (fit > best) found = &profile->ops[i], best = fit;
    }
    // On a CPU no op takes less than the smallest of several that were measured.
    if (found && found->rate.count > 1 && profile->device == FSDP_OP_CPU)
      bytes = fmax(bytes, found->rate.points[0].size);
    if (found) rate = fsdp_profile_curve_at(&found->rate, bytes);
  }
  FSDP_CHECK(rate > 0, "a profile without a rate of memory");
  return bytes / rate * crowding(profile, scope, ranks) + profile->launch_s;
}

// The rate of a copy is that of as many ranks as have a core each.
double fsdp_profile_added_s(const fsdp_device_profile *profile, int ranks, fsdp_op_kind op, double bytes) {
  const int scope = profile->processors < ranks ? profile->processors : ranks;
  const bool is_residual = fsdp_op_residual(op) >= 0;
  double rate = profile->memory_rate;
  for (int i = 0; i < profile->op_count && is_residual; i++)
    if (profile->ops[i].op == op) rate = fsdp_profile_curve_at(&profile->ops[i].rate, bytes);
  return rate > 0 ? bytes / rate * crowding(profile, scope, ranks) : 0;
}

// ---- Collectives

// What a ring moves over each link, as a multiple of the buffer.
static double ring_share(fsdp_collective_kind kind, double ranks) {
  return fsdp_collective_rows[kind].passes * (ranks - 1) / ranks;
}

// The seconds of a measured curve at a size: below its first point those of that point, above its last one in
// proportion.
static double curve_seconds(const fsdp_profile_curve *curve, double bytes) {
  const fsdp_profile_point *last = &curve->points[curve->count - 1];
  if (bytes > last->size) return last->value * bytes / last->size;
  return fsdp_profile_curve_at(curve, bytes);
}

// The entry of the kind and link with the number of ranks, then of groups, nearest to the asked.
static const fsdp_profile_collective *find_collective(const fsdp_device_profile *profile,
                                                      fsdp_collective_kind kind, fsdp_profile_link link,
                                                      const fsdp_profile_group *group) {
  const fsdp_profile_collective *best = NULL;
  double least = 0;
  for (int i = 0; i < profile->collective_count; i++) {
    const fsdp_profile_collective *entry = &profile->collectives[i];
    if (entry->kind != kind || entry->link != link) continue;
    const double groups = fabs(log((double)(entry->groups ? entry->groups : 1) / group->groups));
    const double distance =
        16 * fabs(log((double)entry->ranks / group->ranks)) + groups +
        (entry->ranks_per_node ? fabs(log((double)entry->ranks_per_node / group->ranks_per_node)) : 0);
    if (!best || distance < least) best = entry, least = distance;
  }
  return best;
}

// Inside a node: the nearest measured group, its time in proportion to what a ring moves and to its hops.
static double node_s(const fsdp_device_profile *profile, fsdp_collective_kind kind,
                     const fsdp_profile_group *group, double bytes) {
  const fsdp_profile_collective *entry = find_collective(profile, kind, FSDP_LINK_NODE, group);
  if (!entry) return 0;
  double seconds = curve_seconds(&entry->seconds, bytes);
  if (entry->ranks == group->ranks) return seconds;
  const double floor = fmin(seconds, curve_seconds(&entry->seconds, 0));
  const double hops = (group->ranks - 1.0) / (entry->ranks - 1.0);
  const double moved = ring_share(kind, group->ranks) / ring_share(kind, entry->ranks);
  return floor * hops + (seconds - floor) * moved;
}

// The hops between nodes that data makes one after the other. A ring passes every node; a tree,
// as NCCL uses for all-reduces and (PAT) among groups of one rank a node, has their logarithm.
static double hops_across(fsdp_collective_kind kind, const fsdp_profile_group *group, double nodes) {
  const bool tree = fsdp_collective_rows[kind].tree || group->ranks_per_node == 1;
  return tree ? ceil(log2(nodes)) : nodes - 1;
}

// Over the network. The slowest link is that between nodes: a group has the share of its node's links that
// its ranks are of all that communicate. Every hop of every pass adds its latency.
static double network_s(const fsdp_device_profile *profile, fsdp_collective_kind kind,
                        const fsdp_profile_group *group, double bytes) {
  const double rate = profile->network_rate / group->groups, ranks = group->ranks;
  const double nodes = ceil(ranks / group->ranks_per_node), across = hops_across(kind, group, nodes);
  const double inside = across == nodes - 1 ? ranks - nodes : group->ranks_per_node - 1;
  const double latency = across * profile->network_latency_s + inside * profile->node_latency_s;
  return fsdp_collective_rows[kind].passes * latency + bytes * ring_share(kind, ranks) / rate;
}

double fsdp_profile_collective_s(const fsdp_device_profile *profile, fsdp_collective_kind kind,
                                 const fsdp_profile_group *group, double bytes) {
  if (group->ranks <= 1) return 0;
  if (group->ranks <= group->ranks_per_node) return node_s(profile, kind, group, bytes);
  const fsdp_profile_collective *measured = find_collective(profile, kind, FSDP_LINK_NETWORK, group);
  if (measured && measured->ranks == group->ranks) return curve_seconds(&measured->seconds, bytes);
  if (profile->network_rate <= 0) return 0;
  // What moves inside nodes meanwhile is no faster there than alone.
  fsdp_profile_group inside = *group;
  inside.ranks = group->ranks_per_node;
  const double across = network_s(profile, kind, group, bytes);
  return inside.ranks > 1 ? fmax(across, node_s(profile, kind, &inside, bytes)) : across;
}
