#include "runtime/comm/watch_judge.h"

#include "runtime/base/job.h"
#include "runtime/base/size.h"

// A rank without a heartbeat for this long is reported as silent.
#define SILENT_MS 3000
// How long a node that would report gives way to the one that knows more, and a rank that was asked to end to
// the process that ends the rest of the job.
#define GIVE_WAY_MS 1000
#define ASKED_MS    2000

bool fsdp_watch_has_left(const fsdp_watch_seen *r) {
  return r->view.activity == FSDP_ACTIVITY_LEFT;
}

int64_t fsdp_watch_last_moved_ms(const fsdp_watch_known *self) {
  int64_t moved_ms = fsdp_max_i64(self->started_ms, self->elsewhere_ms);
  for (int i = 0; i < self->count; i++) moved_ms = fsdp_max_i64(moved_ms, self->ranks[i].moved_ms);
  return moved_ms;
}

static int64_t silent_ms(const fsdp_watch_known *self) {
  return fsdp_min_i64(SILENT_MS, self->limit_ms);
}

static bool node_answers(const fsdp_watch_known *self, int node, int64_t now) {
  for (int i = 0; i < self->count; i++) {
    const fsdp_watch_seen *rank = &self->ranks[i];
    if (rank->node == node && !rank->ended && now - rank->beat_ms < silent_ms(self)) return true;
  }
  return false;
}

fsdp_rank_state fsdp_watch_state_of(const fsdp_watch_known *self, const fsdp_watch_seen *rank, int64_t now) {
  if (fsdp_watch_has_left(rank)) return FSDP_RANK_LEFT;
  if (rank->ended) return FSDP_RANK_ENDED;
  if (now - rank->beat_ms < silent_ms(self)) return FSDP_RANK_ALIVE;
  if (!rank->local && !node_answers(self, rank->node, now)) return FSDP_RANK_UNREACHABLE;
  return FSDP_RANK_SILENT;
}

fsdp_watch_verdict fsdp_watch_judge(const fsdp_watch_known *self, int64_t now) {
  if (self->failed) return FSDP_VERDICT_FAILED;
  bool silent = false;
  for (int i = 0; i < self->count; i++) {
    const fsdp_watch_seen *rank = &self->ranks[i];
    if (self->leaving || fsdp_watch_has_left(rank) || i == self->self) continue;
    if (rank->ended) return FSDP_VERDICT_ENDED;
    silent = silent || now - rank->beat_ms >= self->limit_ms;
  }
  if (silent) return FSDP_VERDICT_SILENT;
  bool waits = fsdp_board_waiting_lane(&self->ranks[self->self].view) >= 0;
  bool stands = now - fsdp_watch_last_moved_ms(self) >= self->limit_ms + self->spread_ms;
  return waits && stands ? FSDP_VERDICT_STUCK : FSDP_VERDICT_NONE;
}

const fsdp_watch_seen *fsdp_watch_find_stopped(const fsdp_watch_known *self, int64_t now) {
  for (int i = 0; i < self->count; i++) {
    const fsdp_watch_seen *rank = &self->ranks[i];
    if (!rank->local || i == self->self || rank->ended || rank->view.process == 0) continue;
    if (now - rank->beat_ms >= silent_ms(self)) return rank;
  }
  return NULL;
}

// A node reports its own ranks at once. It reports others if their node cannot, which it knows only after a
// while; of ranks that merely wait for each other the first node speaks. In a job of more nodes than a circle
// those that know most come first, and each gives way until it would know of the one before.
int64_t fsdp_watch_courtesy_ms(const fsdp_watch_known *self, fsdp_watch_verdict why, int64_t now) {
  if (why == FSDP_VERDICT_FAILED) return self->follows ? GIVE_WAY_MS : 0;
  int64_t asked_ms = fsdp_job_is_asked_to_end() ? ASKED_MS : 0, others_ms = 0;
  if (why == FSDP_VERDICT_ENDED) return asked_ms;
  if (self->leaving) return asked_ms + (fsdp_watch_find_stopped(self, now) ? 0 : GIVE_WAY_MS);
  bool own = false, known = false;
  for (int i = 0; i < self->count; i++) {
    const fsdp_watch_seen *rank = &self->ranks[i];
    fsdp_rank_state state = fsdp_watch_state_of(self, rank, now);
    if (rank->local && state == FSDP_RANK_SILENT) return asked_ms;
    bool missed = state == FSDP_RANK_SILENT || state == FSDP_RANK_UNREACHABLE;
    if (missed) others_ms = fsdp_max_i64(others_ms, GIVE_WAY_MS * (1 + rank->order));
    if (rank->rank < self->node && state == FSDP_RANK_ALIVE) others_ms = fsdp_max_i64(others_ms, GIVE_WAY_MS);
    bool awaited = state == FSDP_RANK_ALIVE && fsdp_board_waiting_lane(&rank->view) < 0;
    own = own || (awaited && rank->local);
    known = known || missed || awaited;
  }
  if (self->spread_ms == 0 || why != FSDP_VERDICT_STUCK) return asked_ms + others_ms;
  if (own) return asked_ms;
  if (known) return asked_ms + fsdp_max_i64(others_ms, GIVE_WAY_MS);
  return asked_ms + 2 * GIVE_WAY_MS + self->spread_ms * (self->node == 0 ? 1 : 2);
}
