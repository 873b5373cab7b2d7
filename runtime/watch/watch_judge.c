#include "runtime/watch/watch_judge.h"

#include "runtime/base/job.h"
#include "runtime/base/size.h"

// A rank without a heartbeat for this long is reported as silent.
#define SILENT_MS 3000
// The delay of a node's report: behind a node that knows more, the same where mails are frequent, and after a
// request to end, behind the process that ends the rest of the job.
#define GIVE_WAY_MS 1000
#define AWAITS_MS   500
#define ASKED_MS    2000
#define BEFORE_MAX  2
#define LATE_MS     1000
// From mpirun's SIGCONT to its SIGKILL, and a tick.
#define ENDING_MS 2300

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

bool fsdp_watch_is_stopped(const fsdp_watch_known *self, const fsdp_watch_seen *rank, int64_t now) {
  return rank->local && !rank->ended && rank->view.process != 0 && now - rank->beat_ms >= silent_ms(self);
}

const fsdp_watch_seen *fsdp_watch_find_stopped(const fsdp_watch_known *self, int64_t now) {
  for (int i = 0; i < self->count; i++) {
    if (i != self->self && fsdp_watch_is_stopped(self, &self->ranks[i], now)) return &self->ranks[i];
  }
  return NULL;
}

int64_t fsdp_watch_waited_ms(const fsdp_watch_known *self, int64_t since_ms, int64_t now) {
  int64_t waited_ms = now - since_ms;
  for (int i = 0; i < self->count; i++) {
    const fsdp_watch_seen *rank = &self->ranks[i];
    if (rank->local || fsdp_watch_state_of(self, rank, now) != FSDP_RANK_ALIVE) continue;
    int64_t beats = (int64_t)(rank->view.beat - rank->suspect_beat);
    waited_ms = fsdp_min_i64(waited_ms, beats * FSDP_WATCH_BEAT_MS);
  }
  return waited_ms;
}

// Of the nodes before this one those that show signs of life; no more than matter.
static int count_before(const fsdp_watch_known *self, int64_t now) {
  int count = 0, last = -1;
  for (int i = 0; i < self->count && count < BEFORE_MAX; i++) {
    const fsdp_watch_seen *rank = &self->ranks[i];
    if (rank->node >= self->node || rank->node == last) continue;
    if (fsdp_watch_state_of(self, rank, now) != FSDP_RANK_ALIVE) continue;
    last = rank->node;
    count++;
  }
  return count;
}

// A node reports its own ranks at once. It reports ranks of another node after a delay, in case that node
// cannot. The first node with signs of life reports a node that is gone, and ranks that wait for each other.
// A node that reached the run's end before this one sends no more mail, and reports its own stopped rank. In
// a job of more nodes than a circle the nodes that know most report first; each next one waits until it would
// have heard of that report.
int64_t fsdp_watch_courtesy_ms(const fsdp_watch_known *self, fsdp_watch_verdict why, int64_t now) {
  if (why == FSDP_VERDICT_FAILED) return self->follows ? GIVE_WAY_MS : 0;
  int64_t asked_ms = fsdp_job_is_asked_to_end() ? ASKED_MS : 0, home_ms = 0;
  if (why == FSDP_VERDICT_ENDED) return asked_ms;
  if (self->leaving) return asked_ms + (fsdp_watch_find_stopped(self, now) ? 0 : GIVE_WAY_MS);
  bool own = false, awaits = false, misses = false;
  bool finishes = self->ranks[self->self].view.activity == FSDP_ACTIVITY_FINISHING;
  int order = 0;
  for (int i = 0; i < self->count; i++) {
    const fsdp_watch_seen *rank = &self->ranks[i];
    fsdp_rank_state state = fsdp_watch_state_of(self, rank, now);
    bool waits = fsdp_board_waiting_lane(&rank->view) >= 0;
    if (state == FSDP_RANK_SILENT && rank->local) return asked_ms;
    // A late rank of this node may be the one that took its mail.
    bool late = rank->local && state == FSDP_RANK_ALIVE && now - rank->beat_ms >= LATE_MS;
    if (state == FSDP_RANK_SILENT || late || (state == FSDP_RANK_UNREACHABLE && finishes))
      home_ms = GIVE_WAY_MS;
    if (state == FSDP_RANK_SILENT || state == FSDP_RANK_UNREACHABLE) {
      misses = true;
      order = rank->order > order ? rank->order : order;
    }
    own = own || (state == FSDP_RANK_ALIVE && !waits && rank->local);
    awaits = awaits || (state == FSDP_RANK_ALIVE && !waits);
  }
  if (self->spread_ms == 0) return asked_ms + home_ms + GIVE_WAY_MS * count_before(self, now);
  if (misses) return asked_ms + home_ms + GIVE_WAY_MS * order;
  if (own) return asked_ms;
  if (awaits) return asked_ms + AWAITS_MS;
  return asked_ms + 2 * AWAITS_MS + self->spread_ms +
         (self->node == 0 ? 0 : self->spread_ms + 2 * GIVE_WAY_MS);
}

bool fsdp_watch_is_cut_off(const fsdp_watch_known *self, fsdp_watch_verdict why, int64_t now) {
  if (self->leaving && fsdp_watch_find_stopped(self, now)) return false;
  for (int i = 0; i < self->count; i++) {
    fsdp_rank_state state = fsdp_watch_state_of(self, &self->ranks[i], now);
    if (state == FSDP_RANK_UNREACHABLE) return true;
    if (why == FSDP_VERDICT_STUCK && state == FSDP_RANK_LEFT && !self->ranks[i].local) return true;
  }
  return false;
}

// Whether a rank of this node has been seen to leave.
static bool node_leaves(const fsdp_watch_known *self, int node) {
  for (int i = 0; i < self->count; i++)
    if (self->ranks[i].node == node && fsdp_watch_has_left(&self->ranks[i])) return true;
  return false;
}

// Whether those without a heartbeat are all of other nodes, of which other ranks have left.
static bool others_leave(const fsdp_watch_known *self, int64_t now) {
  bool all = true, any = false;
  for (int i = 0; i < self->count; i++) {
    const fsdp_watch_seen *rank = &self->ranks[i];
    const fsdp_rank_state state = fsdp_watch_state_of(self, rank, now);
    if (i == self->self || (state != FSDP_RANK_SILENT && state != FSDP_RANK_UNREACHABLE)) continue;
    any = true;
    all = all && !rank->local && node_leaves(self, rank->node);
  }
  return any && all;
}

bool fsdp_watch_is_reported_elsewhere(const fsdp_watch_known *self, fsdp_watch_verdict why, int64_t now) {
  const bool finishes = self->ranks[self->self].view.activity == FSDP_ACTIVITY_FINISHING;
  if (why != FSDP_VERDICT_SILENT && why != FSDP_VERDICT_STUCK) return false;
  if (finishes && others_leave(self, now)) return true;
  // If one of this node has left, all ranks of the job have come to the end.
  const bool all_came = self->leaving || (finishes && node_leaves(self, self->node));
  if (all_came && self->of_daemon && !fsdp_watch_find_stopped(self, now)) return true;
  return (finishes || self->leaving) && fsdp_job_was_continued(ENDING_MS);
}
