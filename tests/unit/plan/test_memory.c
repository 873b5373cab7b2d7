// The memory plan: valley, peak and timeline against direct sums; packing against overlap and its
// lower bound.
#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/plan/memory/extend.h"
#include "runtime/plan/memory/memory.h"
#include "runtime/plan/memory/pack.h"
#include "runtime/plan/memory/pack_list.h"
#include "runtime/plan/memory/pack_search.h"
#include "runtime/plan/proof/poison.h"
#include "tests/support/cases.h"
#include "tests/support/draws.h"
#include "tests/support/oracle.h"
#include "tests/support/random_plan.h"
#include "tests/support/unit_test.h"

#include <stdlib.h>
#include <string.h>

static int programs(void) {
  return test_draws(300, 30);
}

static bool lives(const fsdp_tensor *tensor, fsdp_space space, int position) {
  return tensor->space == space && tensor->begin <= position && position <= tensor->end;
}

static int64_t sum_at(const fsdp_program *program, fsdp_space space, int category, int position) {
  int64_t sum = 0;
  for (int t = 0; t < program->tensor_count; t++)
    if (lives(&program->tensors[t], space, position) && (int)program->tensors[t].category == category)
      sum += program->tensors[t].bytes;
  return sum;
}

static void check_report(const fsdp_program *program, fsdp_space space,
                         const fsdp_memory_space_report *report) {
  int64_t *timeline = fsdp_memory_live(program, space, true);
  int64_t peak = 0, greatest = 0, valley = 0, always[FSDP_CATEGORY_COUNT] = {0};
  int peak_position = 0;
  for (int i = 0; i < program->instr_count; i++) {
    int64_t sum = 0;
    for (int c = 0; c < FSDP_CATEGORY_COUNT; c++) {
      assert_int_equal(timeline[i * FSDP_CATEGORY_COUNT + c], sum_at(program, space, c, i));
      sum += timeline[i * FSDP_CATEGORY_COUNT + c];
    }
    bool in_step = false;
    for (int s = 0; s < program->section_count; s++)
      in_step = in_step || (program->sections[s].kind == FSDP_SECTION_UPDATE && i < program->sections[s].end);
    if (in_step && sum > peak) peak = sum, peak_position = i;
    if (sum > greatest) greatest = sum;
  }
  for (int t = 0; t < program->tensor_count; t++)
    if (program->tensors[t].space == space && program->tensors[t].lifetime == FSDP_LIVE_ALWAYS)
      valley += program->tensors[t].bytes, always[program->tensors[t].category] += program->tensors[t].bytes;
  assert_int_equal(report->peak_bytes, peak);
  assert_int_equal(report->greatest_bytes, greatest);
  if (peak > 0) assert_int_equal(report->peak_position, peak_position);
  assert_int_equal(report->valley_bytes, valley);
  assert_int_equal(report->arena_bytes, program->arena_bytes[space]);
  int64_t by_category = 0;
  for (int c = 0; c < FSDP_CATEGORY_COUNT; c++) {
    assert_int_equal(report->peak_by_category[c], timeline[report->peak_position * FSDP_CATEGORY_COUNT + c]);
    by_category += report->peak_by_category[c];
    assert_int_equal(report->valley_by_category[c], always[c]);
  }
  assert_int_equal(by_category, peak);
  free(timeline);
}

TEST(test_reports_of_random_programs) {
  for (int seed = cases_begin(programs()); cases_run(__func__, seed); seed++) {
    random_source random = {.seed = (uint64_t)seed};
    fsdp_program *program = random_program(&random, 16);
    fsdp_memory_report report, after;
    fsdp_memory_plan(program, &(fsdp_memory_limits){.shared_bytes = 0}, &report);
    assert_false(oracle_finds_overlap(program));
    assert_false(oracle_finds_out_of_range(program));
    for (int space = 0; space < FSDP_SPACE_COUNT; space++)
      check_report(program, (fsdp_space)space, &report.space[space]);
    // The same program gives the same addresses, so every rank has them.
    fsdp_program *again = copy_program(program);
    fsdp_memory_plan(again, &(fsdp_memory_limits){.shared_bytes = 0}, &after);
    assert_int_equal(fsdp_program_hash(again), fsdp_program_hash(program));
    fsdp_program_destroy(again);
    fsdp_program_destroy(program);
  }
}

TEST(test_poison_changes_no_sum) {
  for (int seed = cases_begin(programs()); cases_run(__func__, seed); seed++) {
    random_source random = {.seed = (uint64_t)seed};
    fsdp_program *program = random_program(&random, 16);
    fsdp_memory_report before, after;
    fsdp_memory_plan(program, &(fsdp_memory_limits){.shared_bytes = 0}, &before);
    fsdp_program *poisoned = copy_program(program);
    fsdp_program_insert_poison(poisoned);
    fsdp_program *unchanged = copy_program(poisoned);
    fsdp_memory_plan(poisoned, &(fsdp_memory_limits){.shared_bytes = 0}, &after);
    for (int space = 0; space < FSDP_SPACE_COUNT; space++) {
      assert_int_equal(after.space[space].peak_bytes, before.space[space].peak_bytes);
      assert_int_equal(after.space[space].valley_bytes, before.space[space].valley_bytes);
    }
    int poison_count = 0;
    for (int i = 0; i < unchanged->instr_count; i++)
      poison_count += unchanged->instrs[i].op == FSDP_OP_POISON;
    int expected = 0;
    for (int t = 0; t < program->tensor_count; t++) {
      const fsdp_tensor *x = &program->tensors[t], *y = &unchanged->tensors[t];
      assert_int_equal(x->address, y->address);
      if (x->lifetime != FSDP_LIVE_ALWAYS && x->end >= x->begin) expected += 2;
      if (x->lifetime == FSDP_LIVE_ALWAYS || x->end < x->begin) continue;
      // Poison stands right before the first instruction and right after the last.
      assert_int_equal(unchanged->instrs[y->begin - 1].op, FSDP_OP_POISON);
      assert_int_equal(unchanged->instrs[y->end + 1].op, FSDP_OP_POISON);
    }
    assert_int_equal(poison_count, expected);
    assert_int_equal(unchanged->instr_count, program->instr_count + poison_count);
    // Lifetimes found anew are the ones that were carried over.
    fsdp_program_lifetimes(poisoned);
    for (int t = 0; t < program->tensor_count; t++) {
      assert_int_equal(poisoned->tensors[t].begin, unchanged->tensors[t].begin);
      assert_int_equal(poisoned->tensors[t].end, unchanged->tensors[t].end);
    }
    fsdp_program_destroy(program);
    fsdp_program_destroy(poisoned);
    fsdp_program_destroy(unchanged);
  }
}

// ---- Packing

static void check_packing(const fsdp_pack_item *items, int count, int64_t base, int64_t top) {
  int64_t highest = base;
  for (int i = 0; i < count; i++) {
    assert_true(items[i].address >= base);
    assert_int_equal(items[i].address % items[i].align, 0);
    if (items[i].address + items[i].bytes > highest) highest = items[i].address + items[i].bytes;
    for (int j = 0; j < i; j++) {
      const fsdp_pack_item *x = &items[i], *y = &items[j];
      bool together = x->begin <= y->end && y->begin <= x->end;
      assert_false(together && x->address < y->address + y->bytes && y->address < x->address + x->bytes);
    }
  }
  assert_int_equal(top, highest);
}

// Cuts the rectangle of positions [0, positions) and bytes [low, high) into items that fill it exactly.
static void cut(random_source *random, fsdp_pack_item *items, int *count, int begin, int end, int64_t low,
                int64_t high) {
  bool narrow = end - begin < 4, flat = high - low < 256;
  if (*count > 110 || (narrow && flat) || random_int(random, 0, 9) == 0) {
    items[(*count)++] = (fsdp_pack_item){begin, end - 1, high - low, 64, 0};
    return;
  }
  if (flat || (!narrow && random_int(random, 0, 1))) {
    int middle = random_int(random, begin + 1, end - 1);
    cut(random, items, count, begin, middle, low, high);
    cut(random, items, count, middle, end, low, high);
  } else {
    int64_t middle = low + 64 * random_int(random, 1, (int)((high - low) / 64) - 1);
    cut(random, items, count, begin, end, low, middle);
    cut(random, items, count, begin, end, middle, high);
  }
}

// A rectangle that was cut up can be put together again without any waste; 2% are allowed.
TEST(test_packs_what_fits_exactly) {
  int solved = 0;
  double sum = 0;
  for (int seed = cases_begin(programs()); cases_run(__func__, seed); seed++) {
    random_source random = {.seed = (uint64_t)seed};
    fsdp_pack_item items[256];
    int count = 0, windows[2] = {0, 20};
    cut(&random, items, &count, 0, 40, 0, 64 * 200);
    fsdp_pack_config config = {.window_begins = windows,
                               .window_count = 2,
                               .base = 1024,
                               .target = 1.0,
                               .limit = 1024 + 64 * 200 + 64 * 4,
                               .effort = 20000000};
    int64_t top = fsdp_pack(&config, items, count);
    check_packing(items, count, config.base, top);
    assert_true(top >= 1024 + 64 * 200);
    solved += top <= config.limit;
    sum += (double)(top - 1024) / (64 * 200);
  }
  print_message("%d rectangles: %.4f of the bound on average, %d within 2%%\n", programs(), sum / programs(),
                solved);
  assert_true(solved * 100 >= programs() * 98);
}

// What ends low enough to be of use is found as if nothing had been said of use.
TEST(test_a_packing_of_no_use_ends_early) {
  int ended = 0;
  for (int seed = cases_begin(programs()); cases_run(__func__, seed); seed++) {
    random_source random = {.seed = (uint64_t)seed};
    fsdp_pack_item items[256], again[256];
    int count = 0, windows[2] = {0, 20};
    cut(&random, items, &count, 0, 40, 0, 64 * 200);
    fsdp_pack_config config = {
        .window_begins = windows, .window_count = 2, .base = 1024, .target = 1.0, .effort = seed % 2 * 10000};
    memcpy(again, items, sizeof items);
    const int64_t top = fsdp_pack(&config, items, count);
    config.useful = top;
    assert_int_equal(fsdp_pack(&config, again, count), top);
    for (int i = 0; i < count; i++) assert_int_equal(again[i].address, items[i].address);
    config.useful = top - 1;
    const int64_t useless = fsdp_pack(&config, again, count);
    assert_true(useless >= top);
    ended += useless == INT64_MAX;
  }
  assert_true(ended > 0);
}

static bool lives_with(const fsdp_pack_item *a, const fsdp_pack_item *b) {
  return a->begin <= b->end && a->end >= b->begin;
}

// Whether `item` may lie at `address`, beside all items.
static bool is_free(const fsdp_pack_item *items, int count, const fsdp_pack_item *item, int64_t address) {
  for (int i = 0; i < count; i++)
    if (lives_with(&items[i], item) && items[i].address < address + item->bytes &&
        address < items[i].address + items[i].bytes)
      return false;
  return true;
}

// What fsdp_pack_list_gap returns, by a scan of the placed items in order of addresses.
static fsdp_pack_gap scan_gap(fsdp_pack_item *const *placed, int count, const fsdp_pack_item *item,
                              int64_t base, bool tightest) {
  int64_t top = base, best = -1, best_gap = INT64_MAX;
  for (int i = 0; i < count; i++) {
    if (!lives_with(placed[i], item)) continue;
    const int64_t start = fsdp_round_up(top, item->align), gap = placed[i]->address - start;
    if (gap >= item->bytes && gap < best_gap) {
      best = start, best_gap = gap;
      if (!tightest || gap == item->bytes) return (fsdp_pack_gap){best, placed[i]->address, i};
    }
    if (placed[i]->address + placed[i]->bytes > top) top = placed[i]->address + placed[i]->bytes;
  }
  return (fsdp_pack_gap){best >= 0 ? best : fsdp_round_up(top, item->align), INT64_MAX, count};
}

static int count_together(fsdp_pack_item *const *placed, int count, const fsdp_pack_item *item,
                          int64_t below) {
  int together = 0;
  for (int i = 0; i < count; i++) together += placed[i]->address < below && lives_with(placed[i], item);
  return together;
}

// Puts the item before the first at its address or above.
static void insert(fsdp_pack_item **placed, int count, fsdp_pack_item *item) {
  int at = count;
  for (; at > 0 && placed[at - 1]->address >= item->address; at--) placed[at] = placed[at - 1];
  placed[at] = item;
}

static fsdp_pack_item draw_item(random_source *random, int positions, int long_lived) {
  const bool is_long = random_int(random, 1, 100) <= long_lived;
  const int begin = random_int(random, 0, positions);
  return (fsdp_pack_item){.begin = begin,
                          .end = begin + random_int(random, 0, is_long ? positions : 8),
                          .bytes = random_int(random, 1, 9),
                          .align = 1 << random_int(random, 0, 3)};
}

// Both gaps and what is counted are those of a plain scan, whatever the chunks: items are live together in
// long runs, in none, or mixed; few or many positions, some of them outside those that the list expects.
TEST(test_lists_agree_with_a_scan) {
  fsdp_pack_list list = {0}; // its chunks are used again
  for (int seed = 0; seed < test_draws(40, 10); seed++) {
    random_source random = {.seed = (uint64_t)seed};
    const int long_lived = random_int(&random, 0, 100), positions = random_int(&random, 1, 400);
    const int tight = random_int(&random, 0, 15);
    fsdp_pack_item items[300], *placed[300];
    fsdp_pack_list_clear(&list, random_int(&random, 0, positions / 2), positions);
    for (int i = 0; i < 300; i++) {
      items[i] = draw_item(&random, positions, long_lived);
      for (int tightest = 0; tightest < 2; tightest++) {
        const fsdp_pack_gap found = fsdp_pack_list_gap(&list, &items[i], 16, tightest);
        const fsdp_pack_gap expected = scan_gap(placed, i, &items[i], 16, tightest);
        assert_int_equal(found.address, expected.address);
        assert_int_equal(found.below, expected.below);
        assert_int_equal(found.before, expected.before);
        assert_true(is_free(items, i, &items[i], found.address));
        items[i].address = found.address;
        if (tightest) continue;
        int64_t first = 16;
        while (!is_free(items, i, &items[i], first)) first += items[i].align;
        assert_int_equal(found.address, first);
      }
      const int64_t below = random_int(&random, 0, 300);
      assert_int_equal(fsdp_pack_list_together(&list, &items[i], below),
                       count_together(placed, i, &items[i], below));
      if (random_int(&random, 0, tight) == 0) items[i].address += random_int(&random, 1, 16); // a gap below
      insert(placed, i, &items[i]);
      fsdp_pack_list_insert(&list, &items[i]);
    }
  }
  fsdp_pack_list_release(&list);
}

// ---- Extended lifetimes

#define STEPS 600

// Adds a byte count to the sums at some positions.
static void add_live(int64_t *live, const fsdp_pack_item *item) {
  for (int x = item->begin; x <= item->end; x++) live[x] += item->bytes;
}

// Small items are extended one after the other, position by position, within their sections and up to the
// greatest sum; others are not, without jobs.
TEST(test_small_items_are_extended_as_far_as_they_fit) {
  for (int seed = 0; seed < test_draws(60, 15); seed++) {
    random_source random = {.seed = (uint64_t)seed};
    const int middle = random_int(&random, 1, STEPS - 1);
    fsdp_instr *instrs = fsdp_alloc_zeroed(STEPS, sizeof *instrs);
    fsdp_program program = {
        .instrs = instrs,
        .instr_count = STEPS,
        .sections = {{FSDP_SECTION_ONLY, 0, middle}, {FSDP_SECTION_UPDATE, middle, STEPS}},
        .section_count = 2};
    fsdp_pack_item items[200], extended[200];
    int64_t live[STEPS] = {0}, greatest = 0;
    for (int i = 0; i < 200; i++) {
      const bool is_small = i % 2;
      const int begin = random_int(&random, 0, STEPS - 1);
      const int end = begin + random_int(&random, 0, is_small ? 8 : STEPS - 1);
      items[i] = (fsdp_pack_item){.begin = begin,
                                  .end = end < STEPS ? end : STEPS - 1,
                                  .bytes = is_small ? random_int(&random, 1, 9) : 1000000,
                                  .align = 1};
      add_live(live, &items[i]);
    }
    for (int x = 0; x < STEPS; x++) greatest = live[x] > greatest ? live[x] : greatest;
    memcpy(extended, items, sizeof items);
    fsdp_extend_lifetimes(&program, &(fsdp_extension){.next_share = 1, .further_share = 1}, extended, 200);
    for (int i = 0; i < 200; i++) {
      fsdp_pack_item *item = &items[i];
      const int first = item->begin < middle ? 0 : middle, last = item->end < middle ? middle - 1 : STEPS - 1;
      if (i % 2) {
        while (item->begin > first && live[item->begin - 1] + item->bytes <= greatest)
          live[--item->begin] += item->bytes;
        while (item->end < last && live[item->end + 1] + item->bytes <= greatest)
          live[++item->end] += item->bytes;
      }
      assert_int_equal(extended[i].begin, item->begin);
      assert_int_equal(extended[i].end, item->end);
    }
    free(instrs);
  }
}

TEST(test_search_says_what_is_impossible) {
  // Three items of 64 bytes, all live at once, need 192.
  fsdp_pack_item items[3] = {{0, 2, 64, 64, -7}, {1, 3, 64, 64, -7}, {2, 2, 64, 64, -7}};
  fsdp_pack_search_config config = {.base = 128, .limit = 128 + 191, .effort = 1000000};
  assert_false(fsdp_pack_search(&config, items, 3));
  assert_int_equal(items[0].address, -7);
  config.limit = 128 + 192;
  assert_true(fsdp_pack_search(&config, items, 3));
  check_packing(items, 3, 128, 128 + 192);
  assert_true(fsdp_pack_search(&config, items, 0));
}

TEST(test_empty_program) {
  fsdp_program *program = fsdp_program_create();
  fsdp_program_begin_section(program, FSDP_SECTION_ONLY);
  fsdp_program_end_section(program);
  fsdp_program_begin_section(program, FSDP_SECTION_UPDATE);
  fsdp_program_end_section(program);
  fsdp_tensor state_tensor = {
      .name = "master", .lifetime = FSDP_LIVE_ALWAYS, .unit = 0, .module = -1, .bytes = 100};
  fsdp_program_tensor(program, &state_tensor);
  fsdp_program_lifetimes(program);
  fsdp_memory_report report;
  fsdp_memory_plan(program, &(fsdp_memory_limits){.shared_bytes = 0}, &report);
  assert_int_equal(report.space[FSDP_SPACE_DEVICE].valley_bytes, 100);
  assert_int_equal(report.space[FSDP_SPACE_DEVICE].arena_bytes, 100);
  assert_int_equal(report.space[FSDP_SPACE_HOST].arena_bytes, 0);
  fsdp_program_destroy(program);
}
