#include "launcher/report/trace_file.h"
#include "launcher/train/trainer.h"
#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/size.h"
#include "runtime/base/text.h"
#include "runtime/comm/clock_offsets.h"

#include <inttypes.h>
#include <stdlib.h>

// Ranks whose events are written: all of so many, else one of each node, of so many nodes at most.
#define TRACED_MAX 64
// What one exchange may bring to rank 0.
#define EXCHANGE_BYTES (INT64_C(64) << 20)

typedef struct traced {
  int ranks[TRACED_MAX], count; // ascending, from rank 0 on
} traced;

static traced choose_ranks(const fsdp_world *world) {
  bool all = world->size <= TRACED_MAX;
  traced chosen = {.count = all ? world->size : world->node_count};
  if (chosen.count > TRACED_MAX) chosen.count = TRACED_MAX;
  for (int i = 0; i < chosen.count; i++) {
    int64_t node = (int64_t)i * world->node_count / chosen.count;
    chosen.ranks[i] = all ? i : world->nodes.first[node];
  }
  return chosen;
}

fsdp_status fsdp_train_trace_check(fsdp_trainer *t, fsdp_error *error) {
  const fsdp_options *o = t->options;
  int64_t steps = t->total_steps - t->feed.first_step;
  if (!o->trace || steps >= o->trace_last || steps == 0) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_OPTION,
                   "--trace-steps %s (%s): this run makes %" PRId64
                   " step%s: trace some of these, or train for longer",
                   o->trace_steps, fsdp_options_place(o, "trace-steps"), steps, fsdp_plural(steps));
}

// The events of the traced ranks on rank 0, on its clock; NULL on the others. They lie in the same order on
// all ranks, so only times are sent.
static fsdp_timeline *merge(fsdp_trainer *t, const traced *chosen, int64_t origin_ns,
                            const fsdp_clock_offset *offsets, const fsdp_timeline *mine) {
  fsdp_peers peers = fsdp_world_among(t->world, chosen->ranks, chosen->count);
  if (peers.place < 0) return NULL;
  int64_t count = chosen->count, origins_ns[TRACED_MAX];
  int64_t piece = fsdp_max_i64(1, EXCHANGE_BYTES / (count * (int64_t)sizeof(fsdp_instr_time)));
  if (piece > mine->count) piece = mine->count;
  fsdp_exchange_gather_first(&peers, &origin_ns, (int64_t)sizeof origin_ns, origins_ns);
  fsdp_instr_time *own = fsdp_alloc((size_t)piece * sizeof *own), *all = NULL;
  fsdp_timeline *merged = NULL;
  if (peers.place == 0) {
    all = fsdp_alloc((size_t)(piece * count) * sizeof *all);
    merged = fsdp_timeline_create(mine->program, mine->count * count);
  }
  for (int64_t done = 0; done < mine->count; done += piece) {
    int64_t some = fsdp_min_i64(piece, mine->count - done);
    for (int64_t i = 0; i < some; i++)
      own[i] = (fsdp_instr_time){mine->events[done + i].begin_s, mine->events[done + i].end_s};
    fsdp_exchange_gather_first(&peers, own, some * (int64_t)sizeof *own, all);
    for (int r = 0; r < count && merged; r++) {
      double shift_s = (double)(origins_ns[r] - offsets[r].ns - origins_ns[0]) * 1e-9;
      for (int64_t i = 0; i < some; i++) {
        fsdp_timeline_event event = mine->events[done + i];
        event.rank = chosen->ranks[r];
        event.step += t->feed.first_step;
        event.begin_s = all[r * some + i].begin_s + shift_s;
        event.end_s = all[r * some + i].end_s + shift_s;
        fsdp_timeline_append(merged, &event);
      }
    }
  }
  free(own);
  free(all);
  return merged;
}

static void print_written(const fsdp_trainer *t, const traced *chosen, const fsdp_clock_offset *offsets) {
  const fsdp_options *o = t->options;
  int64_t error_ns = 0;
  for (int r = 0; r < chosen->count; r++) error_ns = fsdp_max_i64(error_ns, offsets[r].error_ns);
  printf("trace:     steps %" PRId64 " to %" PRId64 " of %d rank%s in %s",
         t->feed.first_step + o->trace_first, t->feed.first_step + o->trace_last, chosen->count,
         fsdp_plural(chosen->count), o->trace);
  if (error_ns > 0) printf("; clocks agree within %.1f us", (double)error_ns / 1e3);
  printf("\n");
  fflush(stdout);
}

int64_t fsdp_train_trace_write(fsdp_trainer *t) {
  const fsdp_options *o = t->options;
  if (!o->trace || t->traced || !t->recorded || t->record.step - t->feed.first_step < o->trace_last) return 0;
  int64_t began_ns = fsdp_now_ns(), origin_ns;
  t->traced = true;
  fsdp_clock_offset offsets[TRACED_MAX];
  const traced chosen = choose_ranks(t->world);
  fsdp_clock_offsets_measure(t->world, chosen.ranks, chosen.count, offsets);
  const fsdp_timeline *mine = fsdp_executor_timeline(t->session.executor, &origin_ns);
  fsdp_timeline *merged = merge(t, &chosen, origin_ns, offsets, mine);
  if (fsdp_trainer_is_first(t)) {
    fsdp_error error;
    const fsdp_trace_source source = {
        .plan = t->setup.plan, .timeline = merged, .model_name = t->setup.model_name, .kind = "measured"};
    if (fsdp_trace_write(o->trace, &source, &error) == FSDP_OK)
      print_written(t, &chosen, offsets);
    else
      fprintf(stderr, "fsdp_train: warning: %s; training continues, without the trace\n", error.message);
  }
  fsdp_timeline_destroy(merged);
  fsdp_world_barrier(t->world);
  return fsdp_now_ns() - began_ns;
}
