#include "runtime/watch/board.h"
#include "runtime/base/text.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

// Most ranks that a message names.
#define NAMED_MAX 4

fsdp_board_slot fsdp_board_nobody;
fsdp_board_slot *fsdp_board_mine = &fsdp_board_nobody;

static pthread_mutex_t namer_mutex = PTHREAD_MUTEX_INITIALIZER;
static fsdp_board_namer name_place;
static const void *name_owner;

void fsdp_board_set_namer(fsdp_board_namer namer, const void *owner) {
  pthread_mutex_lock(&namer_mutex);
  name_place = namer;
  name_owner = owner;
  pthread_mutex_unlock(&namer_mutex);
}

// ---- Slots

void fsdp_board_read(const fsdp_board_slot *slot, fsdp_board_view *view) {
  memset(view, 0, sizeof *view);
  view->beat = atomic_load_explicit(&slot->beat, memory_order_relaxed);
  view->marks = atomic_load_explicit(&slot->marks, memory_order_relaxed);
  view->exchanges = atomic_load_explicit(&slot->exchanges, memory_order_relaxed);
  view->first_step = atomic_load_explicit(&slot->first_step, memory_order_relaxed);
  view->activity = atomic_load_explicit(&slot->activity, memory_order_relaxed);
  view->process = atomic_load_explicit(&slot->process, memory_order_relaxed);
  for (int i = 0; i < FSDP_LANE_COUNT; i++) {
    const fsdp_board_lane *lane = &slot->lanes[i];
    view->lanes[i].current = atomic_load_explicit(&lane->current, memory_order_relaxed);
    view->lanes[i].finished = atomic_load_explicit(&lane->finished, memory_order_relaxed);
    view->lanes[i].progress = atomic_load_explicit(&lane->progress, memory_order_relaxed);
    view->lanes[i].waits = atomic_load_explicit(&lane->waits, memory_order_relaxed);
  }
}

void fsdp_board_write(fsdp_board_slot *slot, const fsdp_board_view *view) {
  atomic_store_explicit(&slot->beat, view->beat, memory_order_relaxed);
  atomic_store_explicit(&slot->marks, view->marks, memory_order_relaxed);
  atomic_store_explicit(&slot->exchanges, view->exchanges, memory_order_relaxed);
  atomic_store_explicit(&slot->first_step, view->first_step, memory_order_relaxed);
  atomic_store_explicit(&slot->activity, view->activity, memory_order_relaxed);
  atomic_store_explicit(&slot->process, view->process, memory_order_relaxed);
  for (int i = 0; i < FSDP_LANE_COUNT; i++) {
    fsdp_board_lane *lane = &slot->lanes[i];
    atomic_store_explicit(&lane->current, view->lanes[i].current, memory_order_relaxed);
    atomic_store_explicit(&lane->finished, view->lanes[i].finished, memory_order_relaxed);
    atomic_store_explicit(&lane->progress, view->lanes[i].progress, memory_order_relaxed);
    atomic_store_explicit(&lane->waits, view->lanes[i].waits, memory_order_relaxed);
  }
}

bool fsdp_board_moved(const fsdp_board_view *before, const fsdp_board_view *after) {
  if (before->marks != after->marks || before->exchanges != after->exchanges ||
      before->activity != after->activity) {
    return true;
  }
  for (int i = 0; i < FSDP_LANE_COUNT; i++) {
    if (before->lanes[i].progress != after->lanes[i].progress ||
        before->lanes[i].current != after->lanes[i].current) {
      return true;
    }
  }
  return false;
}

int fsdp_board_waiting_lane(const fsdp_board_view *view) {
  int found = -1;
  for (int i = 0; i < FSDP_LANE_MAIN; i++) {
    if (!view->lanes[i].waits) continue;
    if (found < 0 || view->lanes[i].current < view->lanes[found].current) found = i;
  }
  return found < 0 && view->lanes[FSDP_LANE_MAIN].waits ? FSDP_LANE_MAIN : found;
}

// The furthest place that any of its streams has finished.
static fsdp_place last_finished(const fsdp_board_view *view) {
  fsdp_place last = 0;
  for (int i = 0; i < FSDP_LANE_COUNT; i++) {
    if (view->lanes[i].finished > last) last = view->lanes[i].finished;
  }
  return last;
}

int64_t fsdp_board_step(const fsdp_board_view *view) {
  fsdp_place place = last_finished(view);
  for (int i = 0; i < FSDP_LANE_COUNT; i++) {
    if (view->lanes[i].current > place) place = view->lanes[i].current;
  }
  return place ? view->first_step + fsdp_place_step(place) : 0;
}

// ---- Explaining

typedef struct sentence {
  char *text;
  size_t bytes, used;
} sentence;

__attribute__((format(printf, 2, 3))) static void say(sentence *s, const char *format, ...) {
  if (s->used >= s->bytes) return;
  va_list arguments;
  va_start(arguments, format);
  int added = vsnprintf(s->text + s->used, s->bytes - s->used, format, arguments);
  va_end(arguments);
  if (added > 0) s->used += (size_t)added;
}

static const char *activity_name(int activity) {
  static const char *const names[FSDP_ACTIVITY_COUNT] = {"starting", "loading",   "training", "evaluating",
                                                         "saving",   "finishing", "gone"};
  return activity >= 0 && activity < FSDP_ACTIVITY_COUNT ? names[activity] : "?";
}

// "412, all_gather of model.layers.3, step 17"
static void say_place(sentence *s, fsdp_place place, const fsdp_board_view *view) {
  int position = fsdp_place_position(place);
  say(s, "%d", position);
  char name[256] = "";
  if (name_place) name_place(name_owner, position, name, sizeof name);
  if (name[0]) say(s, ", %s", name);
  if (fsdp_place_step(place) > 0) say(s, ", step %" PRId64, view->first_step + fsdp_place_step(place));
}

static void say_rank(sentence *s, const fsdp_board_rank *rank) {
  say(s, "rank %d (host %s)", rank->rank, rank->host);
}

static void say_waiting(sentence *s, const fsdp_board_rank *rank) {
  const fsdp_board_view *view = &rank->view;
  int lane = fsdp_board_waiting_lane(view);
  say_rank(s, rank);
  if (lane >= 0 && lane != FSDP_LANE_MAIN && view->lanes[lane].current) {
    say(s, " waits at instruction ");
    say_place(s, view->lanes[lane].current, view);
  } else {
    say(s, " waits for all ranks in exchange %" PRIu64 ", while %s", view->exchanges,
        activity_name(view->activity));
  }
}

// What is known of a rank that others wait for.
static void say_awaited(sentence *s, const fsdp_board_rank *r, const fsdp_board_view *waiter) {
  fsdp_place last = last_finished(&r->view);
  say_rank(s, r);
  if (r->view.beat == 0 && r->state != FSDP_RANK_ENDED) {
    say(s, " has not been heard of");
  } else if (waiter && fsdp_board_waiting_lane(waiter) == FSDP_LANE_MAIN) {
    say(s, " has come to exchange %" PRIu64 ", while %s", r->view.exchanges, activity_name(r->view.activity));
  } else if (last) {
    say(s, " last finished ");
    say_place(s, last, &r->view);
  } else {
    say(s, " has finished no instruction yet, while %s", activity_name(r->view.activity));
  }
  switch (r->state) {
  case FSDP_RANK_ENDED:
    say(s, " and has ended (process %d): it was killed or crashed", r->view.process);
    break;
  case FSDP_RANK_SILENT:
    say(s, " and shows no sign of life: its process %d is stopped, or its machine hangs", r->view.process);
    break;
  case FSDP_RANK_UNREACHABLE:
    say(s, " and cannot be reached: it is stopped, or its machine or the network is down");
    break;
  case FSDP_RANK_ALIVE:
  case FSDP_RANK_LEFT:
    if (fsdp_board_waiting_lane(&r->view) >= 0) say(s, " and waits too");
    break;
  }
}

// How likely a rank is the cause: the worst state first, then ranks that do not wait, then ranks that are
// behind.
static int suspicion(const fsdp_board_rank *rank) {
  switch (rank->state) {
  case FSDP_RANK_ENDED:
    return 4;
  case FSDP_RANK_SILENT:
    return 3;
  case FSDP_RANK_UNREACHABLE:
    return 2;
  case FSDP_RANK_ALIVE:
    return fsdp_board_waiting_lane(&rank->view) < 0;
  case FSDP_RANK_LEFT:
    break;
  }
  return 0;
}

// Of ranks that all wait, the one with the least progress.
static int furthest_behind(const fsdp_board_rank *ranks, int count, int waiter) {
  int behind = -1;
  for (int r = 0; r < count; r++) {
    if (r == waiter || ranks[r].state == FSDP_RANK_LEFT) continue;
    if (behind < 0) behind = r;
    const fsdp_board_view *a = &ranks[r].view, *b = &ranks[behind].view;
    if (a->exchanges < b->exchanges ||
        (a->exchanges == b->exchanges && last_finished(a) < last_finished(b))) {
      behind = r;
    }
  }
  return behind;
}

void fsdp_board_explain(const fsdp_board_rank *ranks, int count, int self, char *text, size_t bytes) {
  sentence s = {text, bytes, 0};
  int waiter = -1, worst = 0, named = 0, left_out = 0;
  for (int r = 0; r < count; r++) {
    int level = suspicion(&ranks[r]);
    if (level > worst) worst = level;
    bool waits = ranks[r].state == FSDP_RANK_ALIVE && fsdp_board_waiting_lane(&ranks[r].view) >= 0;
    if (waits && (waiter < 0 || r == self)) waiter = r;
  }
  pthread_mutex_lock(&namer_mutex);
  const char *separator = "";
  if (waiter >= 0) {
    say_waiting(&s, &ranks[waiter]);
    separator = "; ";
  }
  const fsdp_board_view *waiting = waiter >= 0 ? &ranks[waiter].view : NULL;
  int behind = worst == 0 ? furthest_behind(ranks, count, waiter) : -1;
  for (int r = 0; r < count; r++) {
    bool awaited = worst > 0 ? suspicion(&ranks[r]) == worst : r == behind;
    if (!awaited) continue;
    if (++named > NAMED_MAX) {
      left_out++;
      continue;
    }
    say(&s, "%s", separator);
    say_awaited(&s, &ranks[r], waiting);
    separator = "; ";
  }
  if (left_out > 0) say(&s, "; and %d more rank%s like it", left_out, fsdp_plural(left_out));
  pthread_mutex_unlock(&namer_mutex);
}
