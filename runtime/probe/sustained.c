// How much longer ops take in a step than the profile's rates say, on a GPU: a step keeps it busy for
// seconds, and its clock falls to what the power limit allows. Products and attention of a layer run in turn
// without a pause, in about the shares that they have of a step.
#include "runtime/base/size.h"
#include "runtime/probe/run.h"

#include <math.h>

#define SPAN_S       1.5 // until the clock stands still, and the rounds that count
#define ROUNDS_TIMED 16  // the last ones
#define ROUNDS_MAX   4096
#define WIDTH        4096 // channels of the layer; its other sizes follow
#define WIDTH_MIN    64
#define HEAD_DIM     128

enum { FORWARD, INPUT, WEIGHT, ATTENTION, ATTENTION_BACKWARD, PARTS };
static const int runs_of[PARTS] = {4, 4, 4, 1, 1}; // in a round

typedef struct mix {
  probe *self;
  probe_call *calls[PARTS];
  probe_load loads[PARTS];
  double priced_s[PARTS], in_step_s[PARTS]; // of a run
  int rounds;
} mix;

static bool is_attention(int part) {
  return part >= ATTENTION;
}

static fsdp_op_attrs attrs_of(int part, int64_t width) {
  const int64_t rows = 2 * width;
  fsdp_op_attrs attrs = {.batch = 1, .seq = rows};
  if (is_attention(part)) {
    attrs.batch = 2;
    attrs.seq = rows / 2;
    attrs.head_dim = fsdp_min_i64(HEAD_DIM, width / 2);
    attrs.heads = width / attrs.head_dim;
    attrs.kv_heads = fsdp_max_i64(1, attrs.heads / 4);
  } else {
    attrs.in_features = width;
    attrs.out_features = attrs.out_stride = 7 * width / 2;
  }
  return attrs;
}

static fsdp_op_kind kind_of(int part) {
  static const fsdp_op_product_form forms[] = {FSDP_PRODUCT_FORWARD, FSDP_PRODUCT_INPUT, FSDP_PRODUCT_WEIGHT};
  if (is_attention(part)) return part == ATTENTION ? FSDP_PLAN_OP_ATTENTION : FSDP_PLAN_OP_ATTENTION_BACKWARD;
  return fsdp_op_product_kind(forms[part]);
}

static void release(mix *m) {
  for (int i = 0; i < PARTS; i++) probe_call_destroy(m->calls[i]);
}

// False: its operands do not fit. Making a call clears the first bytes of the outputs: products, which only
// write there, come first, and attention's backward, which reads what its forward has left, comes last.
static bool create(mix *m, int64_t width) {
  bool fits = true;
  m->self->outputs.used = 0;
  for (int i = 0; i < PARTS; i++) {
    const fsdp_op_attrs attrs = attrs_of(i, width);
    m->calls[i] = fits ? probe_call_create(m->self, kind_of(i), &attrs, 0) : NULL;
    fits = m->calls[i] != NULL;
    if (fits) m->loads[i] = probe_call_load(m->self, m->calls[i]);
  }
  if (!fits) release(m);
  return fits;
}

static double priced_s(const mix *m, int part) {
  const probe *self = m->self;
  const fsdp_op_attrs *attrs = probe_call_attrs(m->calls[part]);
  if (is_attention(part)) {
    const fsdp_profile_attention_call call = {.kernel = attrs->attention,
                                              .dtype = self->dtype,
                                              .head_dim = (int)attrs->head_dim,
                                              .seq = attrs->seq,
                                              .direction = part == ATTENTION ? FSDP_ATTENTION_FORWARD
                                                                             : FSDP_ATTENTION_BACKWARD,
                                              .flops = probe_call_work(m->calls[part]).flops};
    bool estimated;
    return fsdp_profile_attention_s(self->profile, self->scope, &call, &estimated);
  }
  fsdp_op_product products[FSDP_OP_PRODUCTS_MAX];
  const int count = fsdp_op_products(kind_of(part), attrs, products);
  double seconds = 0;
  for (int i = 0; i < count; i++)
    seconds += fsdp_profile_product_s(self->profile, self->scope, self->dtype, &products[i]);
  return seconds;
}

static int slot_of(const mix *m, int64_t round, int part) {
  return (int)((round - (m->rounds - ROUNDS_TIMED)) * PARTS + part) * 2;
}

static void run_round(const fsdp_work *work, const fsdp_stream_context *context) {
  const mix *m = work->owner;
  fsdp_device *device = m->self->session.device;
  const bool timed = work->round >= m->rounds - ROUNDS_TIMED;
  for (int i = 0; i < PARTS; i++) {
    const probe_load *load = &m->loads[i];
    if (timed) context->table->timestamp(device, context, slot_of(m, work->round, i));
    for (int r = 0; r < runs_of[i]; r++)
      load->run(load->context, context, (int)((work->round * runs_of[i] + r) % load->sets));
    if (timed) context->table->timestamp(device, context, slot_of(m, work->round, i) + 1);
  }
}

static void time_rounds(mix *m, int rounds) {
  m->rounds = rounds;
  fsdp_device *device = m->self->session.device;
  uint64_t ticket = 0;
  for (int64_t round = 0; round < m->rounds; round++) {
    const fsdp_work work = {.run = run_round, .owner = m, .round = round, .awaited = true};
    ticket = device->table->launch(device, FSDP_STREAM_COMPUTE, &work);
  }
  device->table->synchronize(device, FSDP_STREAM_COMPUTE, ticket);
  for (int i = 0; i < PARTS; i++) {
    double seconds[ROUNDS_TIMED];
    for (int r = 0; r < ROUNDS_TIMED; r++) {
      const int slot = slot_of(m, m->rounds - ROUNDS_TIMED + r, i);
      seconds[r] = 1e-3 * device->table->timestamp_ms(device, slot, slot + 1) / runs_of[i];
    }
    m->in_step_s[i] = probe_median(seconds, ROUNDS_TIMED, 4, NULL);
  }
}

// How much longer the parts from `first` to `last` take, together.
static double ratio_of(const mix *m, int first, int last) {
  double priced = 0, in_step = 0;
  for (int i = first; i <= last; i++) priced += m->priced_s[i], in_step += m->in_step_s[i];
  return fmax(1, in_step / priced);
}

void probe_sustained(probe *self) {
  if (!self->session.device->table->enqueues) return;
  mix m = {.self = self};
  int64_t width = WIDTH;
  while (!create(&m, width)) {
    if (width <= WIDTH_MIN) return;
    width /= 2;
  }
  fsdp_error lacking = {0};
  if (fsdp_device_profile_check(self->profile, self->dtype, probe_call_attrs(m.calls[ATTENTION])->attention,
                                &lacking) != FSDP_OK) { // on a GPU whose memory no product fitted
    release(&m);
    return;
  }
  for (int i = 0; i < PARTS; i++) m.priced_s[i] = priced_s(&m, i);
  if (self->active) {
    time_rounds(&m, ROUNDS_TIMED); // loads kernels, and tells how many rounds are enough
    double round_s = 0;
    for (int i = 0; i < PARTS; i++) round_s += runs_of[i] * m.in_step_s[i];
    time_rounds(&m, (int)fmin(ROUNDS_MAX, fmax(ROUNDS_TIMED, ceil(SPAN_S / round_s))));
  }
  for (int i = 0; i < PARTS; i++) m.in_step_s[i] = probe_mean(self, m.in_step_s[i]);
  self->profile->sustained = (fsdp_profile_sustained){
      .products = ratio_of(&m, FORWARD, WEIGHT), .attention = ratio_of(&m, ATTENTION, ATTENTION_BACKWARD)};
  release(&m);
}
