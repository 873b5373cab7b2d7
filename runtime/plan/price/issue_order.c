#include "runtime/plan/price/issue_order.h"

#include "runtime/base/check.h"

#include <string.h>

static void list_runs(fsdp_issue_order *order) {
  const fsdp_program *program = order->program;
  order->run_section = fsdp_alloc((size_t)(program->micro_batches + 1) * sizeof *order->run_section);
  order->run_count = fsdp_program_step_order(program, order->run_section);
  order->run_begin = fsdp_alloc((size_t)order->run_count * sizeof *order->run_begin);
  for (int r = 0; r < order->run_count; r++) {
    const fsdp_section *section = &program->sections[order->run_section[r]];
    order->run_begin[r] = order->count;
    order->count += section->end - section->begin;
  }
  order->section = fsdp_alloc(((size_t)program->instr_count + 1) * sizeof *order->section);
  for (int i = 0; i < program->instr_count; i++) order->section[i] = -1;
  for (int s = 0; s < program->section_count; s++) {
    for (int i = program->sections[s].begin; i < program->sections[s].end; i++) order->section[i] = s;
  }
}

static void list_places(fsdp_issue_order *order) {
  const fsdp_program *program = order->program;
  size_t count = (size_t)order->count + 1;
  order->position = fsdp_alloc(count * sizeof *order->position);
  order->run = fsdp_alloc(count * sizeof *order->run);
  order->previous = fsdp_alloc(count * sizeof *order->previous);
  for (int s = 0; s < FSDP_STREAM_COUNT; s++)
    order->of_stream[s] = fsdp_alloc(count * sizeof *order->of_stream[s]);
  int64_t place = 0;
  for (int r = 0; r < order->run_count; r++) {
    const fsdp_section *section = &program->sections[order->run_section[r]];
    for (int i = section->begin; i < section->end; i++, place++) {
      order->run[place] = r;
      order->position[place] = i;
      const fsdp_stream stream = program->instrs[i].stream;
      const int64_t before = order->stream_count[stream]++;
      order->previous[place] = before ? order->of_stream[stream][before - 1] : -1;
      order->of_stream[stream][before] = place;
    }
  }
}

fsdp_issue_order *fsdp_issue_order_create(const fsdp_program *program) {
  fsdp_issue_order *order = fsdp_alloc_zeroed(1, sizeof *order);
  order->program = program;
  list_runs(order);
  list_places(order);
  return order;
}

void fsdp_issue_order_destroy(fsdp_issue_order *order) {
  if (!order) return;
  free(order->position);
  free(order->run);
  free(order->run_section);
  free(order->run_begin);
  free(order->previous);
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) free(order->of_stream[s]);
  free(order->section);
  free(order);
}

int64_t fsdp_issue_order_place(const fsdp_issue_order *order, int run, int position) {
  FSDP_CHECK(run >= 0 && run < order->run_count, "section run %d of %d", run, order->run_count);
  const fsdp_section *section = &order->program->sections[order->run_section[run]];
  FSDP_CHECK(position >= section->begin && position < section->end, "instruction %d is not in section run %d",
             position, run);
  return order->run_begin[run] + position - section->begin;
}

bool fsdp_issue_order_latest(const fsdp_issue_order *order, int64_t place, int position, fsdp_issue *found) {
  int section = order->section[position];
  if (section < 0) return false;
  int run = order->run[place];
  if (order->run_section[run] == section && position >= order->position[place]) run--;
  for (int back = 0; back < 2; back++) {
    for (; run >= 0; run--) {
      if (order->run_section[run] != section) continue;
      *found = (fsdp_issue){back, fsdp_issue_order_place(order, run, position)};
      return true;
    }
    run = order->run_count - 1;
  }
  return false;
}

fsdp_issue fsdp_issue_order_previous(const fsdp_issue_order *order, int64_t place) {
  int64_t previous = order->previous[place];
  if (previous >= 0) return (fsdp_issue){0, previous};
  const fsdp_stream stream = order->program->instrs[order->position[place]].stream;
  return (fsdp_issue){1, order->of_stream[stream][order->stream_count[stream] - 1]};
}
