#include "runtime/exchange/exchange.h"

#include "runtime/base/check.h"
#include "runtime/base/size.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

// Numbers of a reduction that need no memory but the stack's.
#define FEW 64

static void note(const fsdp_peers *peers, fsdp_exchange_kind kind, int64_t bytes) {
  if (peers->link->note) peers->link->note(peers->link->note_owner, peers, kind, bytes);
}

static int rank_at(const fsdp_peers *peers, int place) {
  if (place < 0) return -1;
  return peers->ranks ? peers->ranks[place] : place;
}

// One message out and one in, in pieces; to and from are places, -1: none.
static void swap(const fsdp_peers *peers, const fsdp_swap *whole) {
  int64_t out_bytes = whole->to < 0 ? 0 : whole->out_bytes;
  int64_t in_bytes = whole->from < 0 ? 0 : whole->in_bytes, bytes = fsdp_max_i64(out_bytes, in_bytes);
  for (int64_t done = 0; done < bytes; done += FSDP_SWAP_BYTES_MAX) {
    int64_t out = fsdp_min_i64(FSDP_SWAP_BYTES_MAX, out_bytes - done);
    int64_t in = fsdp_min_i64(FSDP_SWAP_BYTES_MAX, in_bytes - done);
    fsdp_swap piece = {.to = -1, .from = -1};
    if (out > 0) {
      piece.to = rank_at(peers, whole->to);
      piece.out = (const char *)whole->out + done;
      piece.out_bytes = out;
    }
    if (in > 0) {
      piece.from = rank_at(peers, whole->from);
      piece.in = (char *)whole->in + done;
      piece.in_bytes = in;
    }
    peers->link->swap(peers->link->owner, &piece);
  }
}

static void send_to(const fsdp_peers *peers, int to, const void *data, int64_t bytes) {
  swap(peers, &(fsdp_swap){.to = to, .out = data, .out_bytes = bytes, .from = -1});
}

static void receive_from(const fsdp_peers *peers, int from, void *data, int64_t bytes) {
  swap(peers, &(fsdp_swap){.to = -1, .from = from, .in = data, .in_bytes = bytes});
}

// Every peer doubles how many it speaks for; of a number that is no power of two, some first lend their
// neighbour theirs.
void fsdp_exchange_combine(const fsdp_peers *peers, void *data, void *other, int64_t bytes,
                           void (*combine)(void *owner, void *data, const void *other), void *owner) {
  if (peers->place < 0) return;
  note(peers, FSDP_EXCHANGE_REDUCE, bytes);
  int even = 1, place = peers->place;
  while (2 * even <= peers->size) even *= 2;
  int lenders = peers->size - even; // the even ones of the first 2 * lenders
  bool pairs = place < 2 * lenders;
  if (pairs && place % 2 == 0) {
    send_to(peers, place + 1, data, bytes);
    receive_from(peers, place + 1, data, bytes);
    return;
  }
  if (pairs) {
    receive_from(peers, place - 1, other, bytes);
    combine(owner, data, other);
  }
  int number = pairs ? place / 2 : place - lenders;
  for (int distance = 1; distance < even; distance *= 2) {
    int met = number ^ distance, at = met < lenders ? 2 * met + 1 : met + lenders;
    swap(peers, &(fsdp_swap){at, at, data, bytes, other, bytes});
    combine(owner, data, other);
  }
  if (pairs) send_to(peers, place - 1, data, bytes);
}

typedef struct reduction {
  fsdp_reduction how;
  int count;
} reduction;

static void combine_numbers(void *owner, void *data, const void *other) {
  const reduction *self = owner;
  int64_t *values = data;
  const int64_t *others = other;
  for (int i = 0; i < self->count; i++) {
    switch (self->how) {
    case FSDP_REDUCE_SUM:
      values[i] = (int64_t)((uint64_t)values[i] + (uint64_t)others[i]); // hashes may wrap
      break;
    case FSDP_REDUCE_MIN:
      values[i] = fsdp_min_i64(values[i], others[i]);
      break;
    case FSDP_REDUCE_MAX:
      values[i] = fsdp_max_i64(values[i], others[i]);
      break;
    }
  }
}

void fsdp_exchange_reduce(const fsdp_peers *peers, fsdp_reduction how, int64_t *values, int count) {
  int64_t few[FEW], *others = count <= FEW ? few : fsdp_alloc((size_t)count * sizeof *others);
  reduction self = {how, count};
  fsdp_exchange_combine(peers, values, others, count * (int64_t)sizeof *values, combine_numbers, &self);
  if (others != few) free(others);
}

// Piece by piece, so that a rank passes on the first while the next is under way.
void fsdp_exchange_broadcast(const fsdp_peers *peers, int root, void *data, int64_t bytes) {
  if (peers->place < 0) return;
  note(peers, FSDP_EXCHANGE_BROADCAST, bytes);
  int size = peers->size, behind = (peers->place - root + size) % size, top = 1;
  while (behind > 0 ? !(behind & top) : top < size) top *= 2; // what receives it at `behind & top`
  for (int64_t done = 0; done < bytes; done += FSDP_SWAP_BYTES_MAX) {
    char *piece = (char *)data + done;
    int64_t count = fsdp_min_i64(FSDP_SWAP_BYTES_MAX, bytes - done);
    if (behind > 0) receive_from(peers, (behind - top + root) % size, piece, count);
    for (int distance = top / 2; distance > 0; distance /= 2) {
      if (behind + distance < size) send_to(peers, (behind + distance + root) % size, piece, count);
    }
  }
}

// After each message a peer has twice as many slots: its own and those behind it.
void fsdp_exchange_gather_behind(const fsdp_peers *peers, void *slots, int64_t bytes) {
  if (peers->place < 0) return;
  note(peers, FSDP_EXCHANGE_GATHER, bytes);
  int size = peers->size, place = peers->place;
  for (int have = 1; have < size; have *= 2) {
    int64_t more = (have < size - have ? have : size - have) * bytes;
    swap(peers, &(fsdp_swap){.to = (place - have + size) % size,
                             .out = slots,
                             .out_bytes = more,
                             .from = (place + have) % size,
                             .in = (char *)slots + have * bytes,
                             .in_bytes = more});
  }
}

void fsdp_exchange_gather(const fsdp_peers *peers, const void *mine, int64_t bytes, void *out) {
  if (peers->place < 0) return;
  char *slots = fsdp_alloc((size_t)(peers->size * bytes));
  memcpy(slots, mine, (size_t)bytes);
  fsdp_exchange_gather_behind(peers, slots, bytes);
  int64_t first = (int64_t)(peers->size - peers->place) * bytes; // of the slots up to the last place
  memcpy((char *)out + peers->place * bytes, slots, (size_t)first);
  memcpy(out, slots + first, (size_t)(peers->place * bytes));
  free(slots);
}

void fsdp_exchange_gather_first(const fsdp_peers *peers, const void *mine, int64_t bytes, void *out) {
  if (peers->place < 0) return;
  note(peers, FSDP_EXCHANGE_GATHER_FIRST, bytes);
  int size = peers->size, place = peers->place, limit = 1;
  while (place > 0 ? !(place & limit) : limit < size) limit *= 2; // slots of this place's branch
  int64_t branch = limit < size - place ? limit : size - place;
  char *slots = place == 0 ? out : fsdp_alloc((size_t)(branch * bytes));
  memmove(slots, mine, (size_t)bytes);
  for (int have = 1; have < branch; have *= 2) {
    int64_t more = have < branch - have ? have : branch - have;
    receive_from(peers, place + have, slots + have * bytes, more * bytes);
  }
  if (place == 0) return;
  send_to(peers, place - limit, slots, branch * bytes);
  free(slots);
}
