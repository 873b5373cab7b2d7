// Streams: queues of work that any thread which waits works off, under one lock.
#include "tests/simt/simt.h"

#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <sched.h>
#include <vector>

namespace simt {

struct stream {
  std::deque<work> queue;
};

namespace {

std::recursive_mutex gate;
std::vector<std::unique_ptr<stream>> streams;

std::mt19937 &draws() {
  static std::mt19937 made(std::getenv("FSDP_SIMT_SEED") ? unsigned(atoi(std::getenv("FSDP_SIMT_SEED")))
                                                         : 1u);
  return made;
}

// The next piece of one stream; false where none can be done now.
bool work_once() {
  if (streams.empty()) return false;
  const size_t first = draws()() % streams.size();
  for (size_t i = 0; i < streams.size(); i++) {
    stream *s = streams[(first + i) % streams.size()].get();
    if (s->queue.empty() || !s->queue.front()()) continue;
    s->queue.pop_front();
    return true;
  }
  return false;
}

} // namespace

void enqueue(void *to, work piece) {
  std::lock_guard<std::recursive_mutex> lock(gate);
  if (to) {
    static_cast<stream *>(to)->queue.push_back(std::move(piece));
  } else if (!piece()) {
    fail("work that has to wait was given to no stream");
  }
}

stream *stream_create() {
  std::lock_guard<std::recursive_mutex> lock(gate);
  streams.push_back(std::make_unique<stream>());
  return streams.back().get();
}

void stream_destroy(stream *s) {
  work_until([s] { return s->queue.empty(); });
  std::lock_guard<std::recursive_mutex> lock(gate);
  for (size_t i = 0; i < streams.size(); i++) {
    if (streams[i].get() != s) continue;
    streams.erase(streams.begin() + long(i));
    return;
  }
}

void work_until(const std::function<bool()> &over) {
  for (;;) {
    {
      std::lock_guard<std::recursive_mutex> lock(gate);
      if (over()) return;
      if (work_once()) continue;
    }
    sched_yield(); // another thread's turn: the host's, or a peer's process
  }
}

bool streams_are_idle() {
  for (const auto &s : streams)
    if (!s->queue.empty()) return false;
  return true;
}

bool stream_is_idle(const stream *s) {
  return s->queue.empty();
}

void between_work(const std::function<void()> &action) {
  std::lock_guard<std::recursive_mutex> lock(gate);
  action();
}

} // namespace simt
