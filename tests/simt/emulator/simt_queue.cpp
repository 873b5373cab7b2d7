// Streams: queues of work that any thread which waits works off, under one lock.
#include "tests/simt/emulator/simt.h"

#include <cstdlib>
#include <ctime>
#include <deque>
#include <dirent.h>
#include <memory>
#include <mutex>
#include <random>
#include <sched.h>

namespace simt {

struct piece {
  work run;
  const char *what;
  bool is_remote;
  uint64_t number; // over all streams, in the order in which they were given
};

struct stream {
  std::deque<piece> queue;
  bool is_blocking = true, is_destroyed = false;
  int priority = 0;              // below 0: before others
  const char *held_by = nullptr; // a call that has yet to be enqueued
};

namespace {

std::recursive_mutex gate;
std::vector<std::unique_ptr<stream>> streams;
stream legacy; // the stream NULL
uint64_t given, done;

typedef std::lock_guard<std::recursive_mutex> locked;

std::mt19937 &draws() {
  static std::mt19937 made(std::getenv("FSDP_SIMT_SEED") ? unsigned(atoi(std::getenv("FSDP_SIMT_SEED")))
                                                         : 1u);
  return made;
}

stream *stream_of(void *s) {
  return s ? static_cast<stream *>(s) : &legacy;
}

bool is_before(const stream &a, uint64_t number) {
  return !a.queue.empty() && a.queue.front().number < number;
}

// Whether the legacy default stream and the blocking ones let the stream's next piece begin.
bool may_begin(const stream &s) {
  const uint64_t number = s.queue.front().number;
  if (&s != &legacy) return !s.is_blocking || !is_before(legacy, number);
  for (const auto &other : streams)
    if (other->is_blocking && is_before(*other, number)) return false;
  return true;
}

// The piece leaves the queue before it runs if it ends in an expected error.
bool work_on(stream *s) {
  if (s->queue.empty() || !may_begin(*s) || !s->queue.front().run()) return false;
  s->queue.pop_front();
  done++;
  return true;
}

void forget(stream *s) {
  for (size_t i = 0; i < streams.size(); i++) {
    if (streams[i].get() != s) continue;
    streams.erase(streams.begin() + long(i));
    return;
  }
}

// The next piece of one stream; false if none can be done now.
bool work_once() {
  const size_t count = streams.size() + 1, first = draws()() % count;
  for (size_t i = 0; i < count; i++) {
    const size_t at = (first + i) % count;
    stream *s = at < streams.size() ? streams[at].get() : &legacy;
    if (!work_on(s)) continue;
    if (s->is_destroyed && s->queue.empty()) forget(s);
    return true;
  }
  return false;
}

// What the streams wait for; true if a different process may end it.
bool describe(std::string *text) {
  bool is_remote = false;
  for (size_t i = 0; i <= streams.size(); i++) {
    const stream &s = i < streams.size() ? *streams[i] : legacy;
    if (s.queue.empty()) continue;
    is_remote = is_remote || s.queue.front().is_remote;
    *text += std::string(text->empty() ? "" : ", ") + (&s == &legacy ? "the default stream" : "a stream") +
             " is at " + s.queue.front().what;
  }
  return is_remote;
}

bool is_only_thread() {
  int threads = 0;
  DIR *tasks = opendir("/proc/self/task");
  if (!tasks) return false;
  for (const dirent *task = readdir(tasks); task; task = readdir(tasks)) threads += task->d_name[0] != '.';
  closedir(tasks);
  return threads == 1;
}

time_t now_s() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec;
}

// For a thread that finds nothing to do: since when, and whether that can change.
struct patience {
  uint64_t given_then = 0, done_then = 0;
  time_t since_s = 0;
  int turns = 0;
};

void check_patience(patience *p, const char *what) {
  static const char *const limit = std::getenv("FSDP_SIMT_STUCK_S");
  if (p->turns++ == 0 || p->given_then != given || p->done_then != done) *p = {given, done, now_s(), 1};
  if (p->turns % 1024 != 100) return; // looking is a few system calls
  std::string waits;
  if (describe(&waits)) return;
  if (!is_only_thread() && now_s() - p->since_s < (limit ? atoi(limit) : 60)) return;
  fail("deadlock: %s waits, and nobody can end it: %s", what,
       waits.empty() ? "no work is left" : waits.c_str());
}

} // namespace

void enqueue(void *to, work run, const char *what, bool is_remote) {
  locked lock(gate);
  stream *s = stream_of(to);
  stream_check_free(to, what);
  s->queue.push_back({std::move(run), what, is_remote, ++given});
}

stream *stream_create(bool is_blocking, int priority) {
  locked lock(gate);
  streams.push_back(std::make_unique<stream>());
  streams.back()->is_blocking = is_blocking;
  streams.back()->priority = priority;
  return streams.back().get();
}

int stream_priority(void *of) {
  locked lock(gate);
  return stream_of(of)->priority;
}

void stream_destroy(stream *s) {
  locked lock(gate);
  stream_check_free(s, "cudaStreamDestroy");
  s->is_destroyed = true;
  if (s->queue.empty()) forget(s);
}

void work_until(const std::function<bool()> &over, const char *what) {
  for (patience own;;) {
    {
      locked lock(gate);
      if (over()) return;
      if (work_once()) continue;
      check_patience(&own, what);
    }
    if (own.turns < 100) {
      sched_yield(); // yield to another thread: the host's, or a peer's process
    } else {
      const timespec pause = {0, own.turns < 1000 ? 50000 : 1000000};
      nanosleep(&pause, nullptr);
    }
  }
}

bool streams_are_idle() {
  for (const auto &s : streams)
    if (!s->queue.empty()) return false;
  return legacy.queue.empty();
}

bool stream_is_idle(void *wanted) {
  if (wanted) return static_cast<stream *>(wanted)->queue.empty();
  for (const auto &s : streams)
    if (s->is_blocking && !s->queue.empty()) return false;
  return legacy.queue.empty();
}

void stream_hold(void *held, const char *call) {
  locked lock(gate);
  stream_of(held)->held_by = call;
}

void stream_check_free(void *used, const char *what) {
  locked lock(gate);
  const char *call = stream_of(used)->held_by;
  if (call)
    fail("%s uses a stream while %s is in progress: it is not enqueued until ncclCommGetAsyncError has said "
         "ncclSuccess",
         what, call);
}

void streams_check_free(const char *what) {
  locked lock(gate);
  for (const auto &s : streams) stream_check_free(s.get(), what);
  stream_check_free(nullptr, what);
}

void streams_clear() {
  locked lock(gate);
  for (const auto &s : streams) s->queue.clear(), s->held_by = nullptr;
  legacy.queue.clear();
  legacy.held_by = nullptr;
}

void between_work(const std::function<void()> &action) {
  locked lock(gate);
  action();
}

} // namespace simt
