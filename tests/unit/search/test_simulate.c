// The price of a step on machines that are simple enough for closed formulas.
#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/plan/price/simulate.h"
#include "tests/support/models.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FLOPS_PER_S 1e12
#define RANKS       2

static fsdp_plan_config config_of(int ranks, int micro_batches) {
  fsdp_plan_config config = {.batch = 2,
                             .seq = 256,
                             .micro_batches = micro_batches,
                             .strategy = FSDP_FULL,
                             .mesh = fsdp_mesh_of(1, ranks),
                             .wrap = {.kind = FSDP_WRAP_BLOCK},
                             .prefetch = 1,
                             .backend = fsdp_plan_backend_cuda()};
  config.model = model_of_preset("llama-1b");
  return config;
}

// Products and attention at one rate, other ops and collectives at `bytes_per_s` of their own.
static fsdp_device_profile *machine(double flops_per_s, double op_rate, double collective_rate) {
  fsdp_device_profile *profile = fsdp_device_profile_create();
  fsdp_profile_point one = {1, flops_per_s}, op = {1, op_rate}, byte = {1, 1 / collective_rate};
  snprintf(profile->name, sizeof profile->name, "test");
  profile->device = FSDP_OP_CUDA;
  profile->processors = 1;
  profile->memory_rate = op_rate;
  for (int dtype = FSDP_F32; dtype <= FSDP_BF16; dtype++) {
    fsdp_device_profile_add(profile, FSDP_PROFILE_PRODUCTS,
                            &(fsdp_profile_product){.dtype = (fsdp_dtype)dtype,
                                                    .form = FSDP_PRODUCT_FORM_COUNT,
                                                    .m = 1,
                                                    .n = 1,
                                                    .k = 1,
                                                    .flops_per_s = flops_per_s});
    fsdp_device_profile_add(profile, FSDP_PROFILE_ATTENTION,
                            &(fsdp_profile_attention){.dtype = (fsdp_dtype)dtype,
                                                      .head_dim = 128,
                                                      .direction = FSDP_ATTENTION_BOTH,
                                                      .rate = {&one, 1}});
  }
  fsdp_device_profile_add(profile, FSDP_PROFILE_OPS,
                          &(fsdp_profile_op){.op = FSDP_OP_ROW_COUNT, .rate = {&op, 1}});
  for (int kind = 0; kind < FSDP_COLLECTIVE_COUNT; kind++)
    fsdp_device_profile_add(
        profile, FSDP_PROFILE_COLLECTIVES,
        &(fsdp_profile_collective){
            .kind = (fsdp_collective_kind)kind, .ranks = RANKS, .groups = 1, .seconds = {&byte, 1}});
  return profile;
}

static fsdp_step_price price_on(const fsdp_plan_config *config, const fsdp_device_profile *profile,
                                fsdp_traffic *traffic) {
  fsdp_plan *plan;
  fsdp_pricing pricing;
  fsdp_error error;
  fsdp_step_price price;
  if (fsdp_plan_create(config, &plan, &error)) fail_msg("%s", error.message);
  if (fsdp_pricing_create(plan, profile, RANKS, &pricing, &error)) fail_msg("%s", error.message);
  fsdp_simulation *simulation = fsdp_simulation_create(&pricing);
  fsdp_simulation_run(simulation, &price);
  fsdp_simulation_destroy(simulation);
  if (traffic) *traffic = plan->traffic;
  fsdp_plan_destroy(plan);
  return price;
}

static void assert_near(double found, double expected, double relative) {
  if (!(fabs(found - expected) <= relative * fabs(expected)))
    fail_msg("found %.9g, expected %.9g within %g", found, expected, relative);
}

// FLOPs of a micro-batch: each weight of a product three times, attention's two gemms forward and five
// backward over T (T + 1) / 2 pairs.
static double micro_batch_flops(const fsdp_plan_config *c) {
  const fsdp_model_config *m = &c->model;
  const double n = (double)(c->batch * c->seq), C = (double)m->hidden_size, F = (double)m->intermediate_size;
  const double q = (double)(m->num_heads * m->head_dim), kv = (double)(m->num_kv_heads * m->head_dim);
  const double weights =
      (double)m->num_layers * (C * (q + 2 * kv) + q * C + 3 * C * F) + C * (double)m->vocab_size;
  const double pairs = (double)c->batch * (double)c->seq * (double)(c->seq + 1) / 2;
  return 6 * n * weights + 7 * (double)m->num_layers * 2 * pairs * q;
}

// Alone, a step is its work, one thing after the other; of many micro-batches only some are run.
TEST(test_work) {
  for (int micro_batches = 1; micro_batches <= 9; micro_batches += 4) {
    const fsdp_plan_config config = config_of(1, micro_batches);
    fsdp_device_profile *profile = machine(FLOPS_PER_S, 1e30, 1);
    fsdp_step_price price = price_on(&config, profile, NULL);
    const double flops = micro_batches * micro_batch_flops(&config);
    assert_near(price.flops, flops, 1e-9);
    assert_near(price.step_s, flops / FLOPS_PER_S, 1e-9);
    assert_near(price.kind_s[FSDP_PRICE_PRODUCTS] + price.kind_s[FSDP_PRICE_ATTENTION], price.step_s, 1e-9);
    assert_true(price.comm_s == 0);
    fsdp_step_price_release(&price);
    fsdp_device_profile_destroy(profile);
  }
}

// Every micro-batch but the first adds to the gradients of the gemms' weights, which it reads; the embedding
// and the norms have no gemms. Each layer's two residuals are added by gemms.
TEST(test_added) {
  const double rate = 1e9;
  for (int micro_batches = 1; micro_batches <= 3; micro_batches++) {
    const fsdp_plan_config config = config_of(1, micro_batches);
    const fsdp_model_config *m = &config.model;
    fsdp_device_profile *profile = machine(FLOPS_PER_S, 1e30, 1);
    fsdp_step_price without = price_on(&config, profile, NULL);
    profile->memory_rate = rate;
    fsdp_step_price with = price_on(&config, profile, NULL);
    const double C = (double)m->hidden_size, F = (double)m->intermediate_size;
    const double q = (double)(m->num_heads * m->head_dim), kv = (double)(m->num_kv_heads * m->head_dim);
    const double weights =
        (double)m->num_layers * (C * (q + 2 * kv) + q * C + 3 * C * F) + C * (double)m->vocab_size;
    const double residual =
        (double)(config.batch * config.seq * m->hidden_size) * (double)fsdp_dtype_bytes(config.param_dtype);
    const double read =
        (micro_batches - 1) * 4 * weights + micro_batches * 2 * (double)m->num_layers * residual;
    assert_near(with.kind_s[FSDP_PRICE_PRODUCTS] - without.kind_s[FSDP_PRICE_PRODUCTS] + 1, read / rate + 1,
                1e-6);
    fsdp_step_price_release(&with);
    fsdp_step_price_release(&without);
    fsdp_device_profile_destroy(profile);
  }
}

// If computing takes no time, a step is its communication: collectives over one link share it, whatever their
// streams.
TEST(test_communication) {
  for (int micro_batches = 1; micro_batches <= 6; micro_batches += 5) {
    const fsdp_plan_config config = config_of(RANKS, micro_batches);
    fsdp_device_profile *profile = machine(1e30, 1e30, 1e9);
    profile->product_slowdown = micro_batches; // of compute alone
    fsdp_traffic t;
    fsdp_step_price price = price_on(&config, profile, &t);
    // What a ring sends is (F - 1) / F of the whole buffer, and twice that for an all-reduce.
    const double share = (RANKS - 1.0) / RANKS;
    const double bytes = (double)(t.bytes[FSDP_ALL_GATHER] + t.bytes[FSDP_REDUCE_SCATTER]) / share +
                         (double)(t.bytes[FSDP_ALL_REDUCE] + t.scalar_bytes) / (2 * share);
    assert_near(price.step_s, bytes / 1e9, 1e-6);
    assert_near(price.comm_s, price.step_s, 1e-6);
    fsdp_step_price_release(&price);
    fsdp_device_profile_destroy(profile);
  }
}

// Communication that is short beside computing is hidden, but for the first gather and the last reduction;
// what it takes of the processors is felt.
TEST(test_overlap) {
  fsdp_plan_config config = config_of(RANKS, 1);
  fsdp_device_profile *profile = machine(FLOPS_PER_S, 1e30, 1e30);
  fsdp_step_price alone = price_on(&config, profile, NULL);
  fsdp_device_profile_destroy(profile);
  profile = machine(FLOPS_PER_S, 1e30, 1e12);
  fsdp_traffic traffic;
  fsdp_step_price beside = price_on(&config, profile, &traffic);
  const double comm =
      2.0 * (double)(traffic.bytes[FSDP_ALL_GATHER] + traffic.bytes[FSDP_REDUCE_SCATTER]) / 1e12;
  assert_true(beside.comm_s > 0 && beside.comm_s < 0.6 * comm);
  assert_near(beside.step_s, alone.step_s + beside.comm_s, 1e-6);
  // At half speed meanwhile, a step is longer by half of what is hidden, which itself takes twice as long.
  profile->product_slowdown = 2;
  fsdp_step_price slowed = price_on(&config, profile, &traffic);
  const double hidden = slowed.busy_s[FSDP_STREAM_GATHER] + slowed.busy_s[FSDP_STREAM_REDUCE] - slowed.comm_s;
  assert_true(slowed.step_s > beside.step_s + 0.4 * (comm - beside.comm_s));
  assert_true(slowed.step_s <= alone.step_s + slowed.comm_s + hidden);
  // Gathers that copy engines make leave compute its rate, and reductions do not; a plan may do without.
  profile->gather_slowdown = 1;
  fsdp_step_price kernels = price_on(&config, profile, &traffic);
  config.copies_gathers = true;
  fsdp_step_price copied = price_on(&config, profile, &traffic);
  assert_true(copied.step_s < slowed.step_s && copied.step_s > beside.step_s);
  assert_true(kernels.step_s == slowed.step_s);
  fsdp_step_price_release(&kernels);
  profile->gather_slowdown = 0;
  fsdp_step_price_release(&copied);
  // A collective that is slowed beside compute takes longer, and compute does not.
  profile->product_slowdown = 1;
  profile->collective_slowdown = 2;
  fsdp_step_price crowded = price_on(&config, profile, &traffic);
  assert_true(crowded.busy_s[FSDP_STREAM_GATHER] > 1.5 * beside.busy_s[FSDP_STREAM_GATHER]);
  assert_near(crowded.step_s, alone.step_s + crowded.comm_s, 1e-6);
  fsdp_step_price_release(&crowded);
  fsdp_step_price_release(&alone);
  fsdp_step_price_release(&beside);
  fsdp_step_price_release(&slowed);
  fsdp_device_profile_destroy(profile);
}

static int compare_times(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

// Whether an event of compute, or of a collective, runs at a time.
static bool runs_at(const fsdp_timeline *timeline, double at, bool collective) {
  for (int64_t e = 0; e < timeline->count; e++) {
    const fsdp_timeline_event *event = &timeline->events[e];
    const fsdp_instr *instr = &timeline->program->instrs[event->position];
    const bool counts = collective ? fsdp_instr_is_collective(instr) : instr->stream == FSDP_STREAM_COMPUTE;
    if (counts && event->begin_s <= at && at < event->end_s) return true;
  }
  return false;
}

// A link moves half as much beside compute, whether one collective uses it then or two share it.
TEST(test_shared_link_beside_compute) {
  fsdp_plan_config config = config_of(RANKS, 1);
  config.model.num_layers = 8; // of which the first are gathered again while others are reduced
  fsdp_device_profile *profile = machine(FLOPS_PER_S, 1e30, 1e11);
  fsdp_plan *plan;
  fsdp_pricing pricing;
  profile->collective_slowdown = 2;
  assert_int_equal(fsdp_plan_create(&config, &plan, NULL), FSDP_OK);
  assert_int_equal(fsdp_pricing_create(plan, profile, RANKS, &pricing, NULL), FSDP_OK);
  fsdp_simulation *simulation = fsdp_simulation_create(&pricing);
  fsdp_timeline *timeline = fsdp_simulation_timeline(simulation);
  double *times = fsdp_alloc((size_t)timeline->count * 2 * sizeof *times), alone = 0, moved = 0, both = 0;
  int64_t count = 0;
  for (int64_t e = 0; e < timeline->count; e++) {
    const fsdp_timeline_event *event = &timeline->events[e];
    if (fsdp_instr_is_collective(&plan->program->instrs[event->position]))
      alone += fsdp_simulation_price_of(simulation, event->position)->seconds;
    times[count++] = event->begin_s;
    times[count++] = event->end_s;
  }
  qsort(times, (size_t)count, sizeof *times, compare_times);
  for (int64_t i = 0; i + 1 < count; i++) {
    const double middle = (times[i] + times[i + 1]) / 2, seconds = times[i + 1] - times[i];
    if (seconds <= 0 || !runs_at(timeline, middle, true)) continue;
    const bool beside = runs_at(timeline, middle, false);
    moved += beside ? seconds / 2 : seconds;
    both += beside ? seconds : 0;
  }
  assert_true(both > 0.3 * alone);
  assert_near(moved, alone, 1e-9);
  free(times);
  fsdp_timeline_destroy(timeline);
  fsdp_simulation_destroy(simulation);
  fsdp_plan_destroy(plan);
  fsdp_device_profile_destroy(profile);
}

// Where ranks share cores, nothing is hidden: a core that communicates computes for none of them.
TEST(test_turns) {
  fsdp_plan_config config = config_of(RANKS, 2);
  config.backend = fsdp_plan_backend_cpu();
  fsdp_device_profile *fast = machine(FLOPS_PER_S, 1e30, 1e30), *slow = machine(FLOPS_PER_S, 1e30, 1e12);
  fast->device = slow->device = FSDP_OP_CPU;
  slow->collective_slowdown = 3; // beside compute that has cores of its own
  for (int cores = RANKS / 2; cores <= RANKS; cores += RANKS / 2) {
    fast->processors = slow->processors = cores;
    fsdp_traffic t;
    fsdp_step_price alone = price_on(&config, fast, NULL), price = price_on(&config, slow, &t);
    const double share = (RANKS - 1.0) / RANKS;
    const double bytes = (double)(t.bytes[FSDP_ALL_GATHER] + t.bytes[FSDP_REDUCE_SCATTER]) / share +
                         (double)(t.bytes[FSDP_ALL_REDUCE] + t.scalar_bytes) / (2 * share);
    if (cores < RANKS)
      assert_near(price.step_s, alone.step_s + bytes / 1e12, 1e-6);
    else
      assert_true(price.step_s < alone.step_s + 0.5 * bytes / 1e12);
    fsdp_step_price_release(&alone);
    fsdp_step_price_release(&price);
  }
  fsdp_device_profile_destroy(fast);
  fsdp_device_profile_destroy(slow);
}

// A timeline has each instruction of two steps once, in its stream's order, after what it waits for.
TEST(test_timeline) {
  const fsdp_plan_config config = config_of(RANKS, 3);
  fsdp_device_profile *profile = machine(FLOPS_PER_S, 1e12, 1e10);
  fsdp_plan *plan;
  fsdp_pricing pricing;
  assert_int_equal(fsdp_plan_create(&config, &plan, NULL), FSDP_OK);
  assert_int_equal(fsdp_pricing_create(plan, profile, RANKS, &pricing, NULL), FSDP_OK);
  fsdp_simulation *simulation = fsdp_simulation_create(&pricing);
  fsdp_timeline *timeline = fsdp_simulation_timeline(simulation);
  int order[16], runs = fsdp_program_step_order(plan->program, order);
  int64_t count = 0;
  for (int r = 0; r < runs; r++)
    count += plan->program->sections[order[r]].end - plan->program->sections[order[r]].begin;
  assert_int_equal(timeline->count, 2 * count);
  double end[FSDP_STREAM_COUNT] = {0},
         *run_end = fsdp_alloc_zeroed((size_t)plan->program->instr_count, sizeof *run_end);
  for (int64_t e = 0; e < timeline->count; e++) {
    const fsdp_timeline_event *event = &timeline->events[e];
    const fsdp_instr *instr = &plan->program->instrs[event->position];
    assert_true(event->begin_s >= end[instr->stream] - 1e-12 && event->end_s >= event->begin_s);
    for (int w = 0; w < instr->wait_count; w++)
      assert_true(event->begin_s >= run_end[plan->program->waits[instr->first_wait + w].position] - 1e-12);
    end[instr->stream] = run_end[event->position] = event->end_s;
  }
  free(run_end);
  fsdp_timeline_destroy(timeline);
  fsdp_simulation_destroy(simulation);
  fsdp_plan_destroy(plan);
  fsdp_device_profile_destroy(profile);
}

// ---- Single operations

TEST(test_interpolation) {
  fsdp_profile_point points[] = {{1e3, 1}, {1e5, 4}, {1e6, 40}};
  const fsdp_profile_curve curve = {points, 3};
  assert_near(fsdp_profile_curve_at(&curve, 1), 1, 1e-12);
  assert_near(fsdp_profile_curve_at(&curve, 1e4), 2, 1e-12); // the geometric mean
  assert_near(fsdp_profile_curve_at(&curve, 1e5), 4, 1e-12);
  assert_near(fsdp_profile_curve_at(&curve, 1e9), 40, 1e-12);
}

// Over nodes a group has the part of its node's links that its ranks are of those that communicate, and every
// hop takes its time: those of a ring, or, in a tree, their logarithm.
TEST(test_network) {
  fsdp_device_profile *profile = machine(1, 1, 1e30);
  profile->network_rate = 100e9;
  profile->network_latency_s = 10e-6;
  profile->node_latency_s = 1e-6;
  const fsdp_profile_group whole = {.ranks = 32, .ranks_per_node = 8, .groups = 1};
  const fsdp_profile_group rail = {.ranks = 4, .ranks_per_node = 1, .groups = 8};
  const double bytes = 1e9;
  assert_near(fsdp_profile_collective_s(profile, FSDP_ALL_GATHER, &whole, bytes),
              3 * 10e-6 + 28 * 1e-6 + bytes * 31 / 32 / 100e9, 1e-9);
  assert_near(fsdp_profile_collective_s(profile, FSDP_ALL_REDUCE, &rail, bytes),
              2 * 2 * 10e-6 + 2 * bytes * 3 / 4 / 12.5e9, 1e-9);
  fsdp_device_profile_destroy(profile);
}

// The network by gathers of 0.1 GB and 1 GB over it, by one size alone, and by sizes that took equally long.
TEST(test_network_measured) {
  const struct {
    fsdp_profile_point points[2];
    int count;
    double rate, latency_s;
  } cases[] = {{{{1e8, 0.02}, {1e9, 0.22}}, 2, 0.75e9 / 0.2, 0.01},
               {{{1e9, 0.25}}, 1, 3e9, 0.125},
               {{{1e8, 0.25}, {1e9, 0.25}}, 2, 3e9, 0.125}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    fsdp_device_profile *profile = machine(1, 1, 1e30);
    fsdp_profile_point points[2];
    memcpy(points, cases[i].points, sizeof points);
    const fsdp_profile_collective gather = {.kind = FSDP_ALL_GATHER,
                                            .link = FSDP_LINK_NETWORK,
                                            .ranks = 4,
                                            .ranks_per_node = 2,
                                            .groups = 1,
                                            .seconds = {points, cases[i].count}};
    fsdp_device_profile_add(profile, FSDP_PROFILE_COLLECTIVES, &gather);
    fsdp_device_profile_set_network(profile, 8);
    assert_true(profile->network_rate == 0);
    fsdp_device_profile_set_network(profile, 4);
    assert_near(profile->network_rate, cases[i].rate, 1e-3);
    assert_near(profile->network_latency_s, cases[i].latency_s, 1e-12);
    fsdp_device_profile_destroy(profile);
  }
}

// Of groups that nodes cut differently the one counts that is spread the most.
TEST(test_groups) {
  const fsdp_mesh mesh = fsdp_mesh_of(3, 4);
  const fsdp_axis_set inner = (fsdp_axis_set)1 << fsdp_mesh_find(&mesh, FSDP_AXIS_FSDP);
  const fsdp_axis_set outer = (fsdp_axis_set)1 << fsdp_mesh_find(&mesh, FSDP_AXIS_DATA);
  const struct {
    fsdp_axis_set axes;
    int ranks_per_node, ranks, together, groups;
  } cases[] = {{inner, 4, 4, 4, 1},  {inner, 8, 4, 4, 2}, {inner, 6, 4, 2, 3},
               {inner, 12, 4, 4, 3}, {outer, 4, 3, 1, 4}, {outer, 12, 3, 3, 4}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const fsdp_profile_group g = fsdp_profile_group_of(&mesh, cases[i].axes, cases[i].ranks_per_node);
    if (g.ranks != cases[i].ranks || g.ranks_per_node != cases[i].together || g.groups != cases[i].groups)
      fail_msg("case %zu: %d ranks, %d on a node, %d groups", i, g.ranks, g.ranks_per_node, g.groups);
  }
}

// Ranks of the group of `first` that are on its node, counted one by one.
static int count_together(const fsdp_mesh *mesh, fsdp_axis_set axes, int first, int ranks_per_node) {
  int count = 0;
  for (int place = 0; place < fsdp_mesh_group_size(mesh, axes); place++)
    count += fsdp_mesh_group_member(mesh, axes, first, place) / ranks_per_node == first / ranks_per_node;
  return count;
}

// The same over every set of axes of meshes of up to three, on nodes of every size.
TEST(test_groups_counted) {
  for (int sizes = 0; sizes < 5 * 5 * 5; sizes++) {
    fsdp_mesh mesh = fsdp_mesh_of(1 + sizes % 5, 1 + sizes / 5 % 5);
    fsdp_mesh_resize(&mesh, FSDP_AXIS_TENSOR, 1 + sizes / 25);
    const int ranks = fsdp_mesh_ranks(&mesh);
    for (fsdp_axis_set axes = 0; axes < 1u << mesh.count; axes++) {
      if (axes & ~fsdp_mesh_all_axes(&mesh)) continue;
      for (int ranks_per_node = 1; ranks_per_node <= ranks; ranks_per_node++) {
        int least = ranks;
        for (int first = 0; first < ranks; first++)
          if (fsdp_mesh_group_member(&mesh, axes, first, 0) == first)
            least = (int)fsdp_min_i64(least, count_together(&mesh, axes, first, ranks_per_node));
        assert_int_equal(fsdp_profile_group_of(&mesh, axes, ranks_per_node).ranks_per_node, least);
      }
    }
  }
}

// Tiles fill a device in whole waves.
TEST(test_tiles) {
  fsdp_device_profile *profile = machine(1e15, 1e30, 1);
  profile->processors = 100;
  profile->tiles = true;
  profile->products[0].m = profile->products[1].m = 256 * 100;
  profile->products[0].n = profile->products[1].n = 128;
  profile->products[0].k = profile->products[1].k = 4096;
  const fsdp_op_product full = {FSDP_PRODUCT_FORWARD, 256 * 100, 128, 4096, 1};
  const fsdp_op_product more = {FSDP_PRODUCT_FORWARD, 256 * 200, 128, 4096, 1};
  const fsdp_op_product odd = {FSDP_PRODUCT_FORWARD, 256 * 101, 128, 4096, 1};
  const double one = fsdp_profile_product_s(profile, 1, FSDP_BF16, &full);
  assert_near(one, 2.0 * 256 * 100 * 128 * 4096 / 1e15, 1e-9);
  assert_near(fsdp_profile_product_s(profile, 1, FSDP_BF16, &more), 2 * one, 1e-9);
  const double two = fsdp_profile_product_s(profile, 1, FSDP_BF16, &odd);
  assert_true(two > 1.2 * one && two <= 2 * one * 1.0001);
  fsdp_device_profile_destroy(profile);
}

// More ranks than were measured take the rates of the most that were, and beyond the cores less.
TEST(test_ranks) {
  fsdp_device_profile *profile = fsdp_device_profile_create();
  const fsdp_op_product product = {FSDP_PRODUCT_FORWARD, 64, 64, 64, 1};
  const double flops = 2.0 * 64 * 64 * 64;
  profile->device = FSDP_OP_CPU;
  profile->processors = 2;
  for (int ranks = 1; ranks <= 2; ranks++)
    fsdp_device_profile_add(profile, FSDP_PROFILE_PRODUCTS,
                            &(fsdp_profile_product){.ranks = ranks,
                                                    .dtype = FSDP_F32,
                                                    .form = FSDP_PRODUCT_FORWARD,
                                                    .m = 64,
                                                    .n = 64,
                                                    .k = 64,
                                                    .flops_per_s = 3e9 / ranks});
  assert_near(fsdp_profile_product_s(profile, 1, FSDP_F32, &product), flops / 3e9, 1e-9);
  assert_near(fsdp_profile_product_s(profile, 2, FSDP_F32, &product), 2 * flops / 3e9, 1e-9);
  assert_near(fsdp_profile_product_s(profile, 4, FSDP_F32, &product), 4 * flops / 3e9, 1e-9);
  // The fullest core has two of three ranks.
  assert_near(fsdp_profile_product_s(profile, 3, FSDP_F32, &product), 4 * flops / 3e9, 1e-9);
  // Numbers of ranks that only another element type was measured with do not count.
  fsdp_device_profile_add(profile, FSDP_PROFILE_PRODUCTS,
                          &(fsdp_profile_product){.ranks = 4,
                                                  .dtype = FSDP_BF16,
                                                  .form = FSDP_PRODUCT_FORWARD,
                                                  .m = 64,
                                                  .n = 64,
                                                  .k = 64,
                                                  .flops_per_s = 9e9});
  assert_near(fsdp_profile_product_s(profile, 4, FSDP_F32, &product), 4 * flops / 3e9, 1e-9);
  assert_near(fsdp_profile_product_s(profile, 1, FSDP_BF16, &product), flops / 9e9, 1e-9);
  fsdp_device_profile_destroy(profile);
}

// An op's own entry comes before that of any op, then its element type's before one of another.
TEST(test_op_rates) {
  fsdp_device_profile *profile = fsdp_device_profile_create();
  fsdp_profile_point rates[] = {{1, 1e9}, {1, 2e9}, {1, 3e9}};
  const fsdp_profile_op entries[] = {
      {.op = FSDP_OP_ROW_COUNT, .dtype = FSDP_BF16, .rate = {&rates[0], 1}},
      {.op = FSDP_OP_RMSNORM, .dtype = FSDP_F32, .rate = {&rates[1], 1}},
      {.op = FSDP_OP_ROW_COUNT, .dtype = FSDP_PROFILE_ANY_DTYPE, .rate = {&rates[2], 1}},
  };
  for (int i = 0; i < 3; i++) fsdp_device_profile_add(profile, FSDP_PROFILE_OPS, &entries[i]);
  assert_near(fsdp_profile_op_s(profile, 1, FSDP_OP_RMSNORM, FSDP_F32, 6e9), 3, 1e-9);
  assert_near(fsdp_profile_op_s(profile, 1, FSDP_OP_RMSNORM, FSDP_BF16, 6e9), 3, 1e-9);
  assert_near(fsdp_profile_op_s(profile, 1, FSDP_OP_SWIGLU, FSDP_BF16, 6e9), 6, 1e-9);
  assert_near(fsdp_profile_op_s(profile, 1, FSDP_OP_SWIGLU, FSDP_F32, 6e9), 2, 1e-9);
  fsdp_device_profile_destroy(profile);
}

// A CPU's op of a few numbers takes as long as the smallest that was measured; a GPU's, and one of a single
// size, take what their bytes take.
TEST(test_least_op) {
  fsdp_profile_point rates[] = {{1e3, 1e9}, {1e6, 1e9}};
  for (int device = FSDP_OP_CPU; device <= FSDP_OP_CUDA; device++)
    for (int count = 1; count <= 2; count++) {
      fsdp_device_profile *profile = fsdp_device_profile_create();
      profile->device = (fsdp_op_device)device;
      fsdp_device_profile_add(profile, FSDP_PROFILE_OPS,
                              &(fsdp_profile_op){.op = FSDP_OP_SUM, .rate = {rates, count}});
      const bool least = device == FSDP_OP_CPU && count == 2;
      assert_near(fsdp_profile_op_s(profile, 1, FSDP_OP_SUM, FSDP_F32, 10), least ? 1e-6 : 1e-8, 1e-9);
      assert_near(fsdp_profile_op_s(profile, 1, FSDP_OP_SUM, FSDP_F32, 4e3), 4e-6, 1e-9);
      fsdp_device_profile_destroy(profile);
    }
}

// Attention of an element type is known if both directions are, with whatever numbers of ranks.
TEST(test_attention_rows) {
  fsdp_device_profile *profile = machine(1e12, 1e12, 1e12);
  fsdp_profile_point rate = {1, 2e9};
  fsdp_profile_attention row = {.ranks = 2,
                                .dtype = FSDP_F16,
                                .head_dim = 64,
                                .direction = FSDP_ATTENTION_BACKWARD,
                                .rate = {&rate, 1}};
  fsdp_error error;
  fsdp_device_profile_add(
      profile, FSDP_PROFILE_PRODUCTS,
      &(fsdp_profile_product){
          .dtype = FSDP_F16, .form = FSDP_PRODUCT_FORM_COUNT, .m = 1, .n = 1, .k = 1, .flops_per_s = 1});
  assert_int_equal(fsdp_device_profile_check(profile, FSDP_F16, FSDP_ATTENTION_MMA, &error), FSDP_ERR_INPUT);
  fsdp_device_profile_add(profile, FSDP_PROFILE_ATTENTION, &row);
  assert_int_equal(fsdp_device_profile_check(profile, FSDP_F16, FSDP_ATTENTION_MMA, &error), FSDP_ERR_INPUT);
  assert_non_null(strstr(error.message, "attention's forward in fp16"));
  row.direction = FSDP_ATTENTION_FORWARD;
  row.ranks = 1;
  rate.value = 4e9;
  fsdp_device_profile_add(profile, FSDP_PROFILE_ATTENTION, &row);
  assert_int_equal(fsdp_device_profile_check(profile, FSDP_F16, FSDP_ATTENTION_MMA, &error), FSDP_OK);
  for (int ranks = 1; ranks <= 4; ranks++) {
    fsdp_profile_attention_call call = {.kernel = FSDP_ATTENTION_MMA,
                                        .dtype = FSDP_F16,
                                        .head_dim = 64,
                                        .seq = 128,
                                        .direction = FSDP_ATTENTION_FORWARD,
                                        .flops = 4e9};
    bool estimated = true;
    assert_near(fsdp_profile_attention_s(profile, ranks, &call, &estimated), 1, 1e-9);
    assert_false(estimated);
    call.direction = FSDP_ATTENTION_BACKWARD;
    assert_near(fsdp_profile_attention_s(profile, ranks, &call, &estimated), 2, 1e-9);
  }
  fsdp_device_profile_destroy(profile);
}
