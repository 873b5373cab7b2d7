// Small exchanges: what ranks agree on outside the steps, over messages between two of them.
//
//   reduce         all ranks' numbers, combined, on all ranks   recursive doubling     log2 P messages a rank
//   broadcast      one rank's bytes on all ranks                binomial tree          log2 P at the root
//   gather         all ranks' bytes on all ranks                Bruck's                log2 P, of P x bytes
//   gather_first   all ranks' bytes on the first                binomial tree          1; log2 P received
//
// So a rank has connections to log P others, however many there are. (R. Thakur, R. Rabenseifner, W. Gropp:
// Optimization of Collective Communication Operations in MPICH, 2005.) An MPI library's own collectives that
// do not block may be linear: Open MPI's all-gather (libnbc) sends to every rank.
//
// All of a group make the same calls in the same order. A result of numbers is the same bits everywhere.
#pragma once

#include <stdint.h>

// One message out and one in at the same time, between ranks of a link; -1: no such message.
typedef struct fsdp_swap {
  int to, from;
  const void *out;
  int64_t out_bytes;
  void *in;
  int64_t in_bytes;
} fsdp_swap;

// Of a message at most; more bytes are several.
#define FSDP_SWAP_BYTES_MAX ((int64_t)1 << 20)

typedef enum fsdp_exchange_kind {
  FSDP_EXCHANGE_REDUCE,
  FSDP_EXCHANGE_BROADCAST,
  FSDP_EXCHANGE_GATHER,
  FSDP_EXCHANGE_GATHER_FIRST,
  FSDP_EXCHANGE_KIND_COUNT
} fsdp_exchange_kind;

typedef struct fsdp_peers fsdp_peers;

// How the ranks of a process group send each other messages: MPI's, or threads' of one process in tests.
typedef struct fsdp_link {
  void *owner;
  // Returns, asleep in between, when both messages are through. Those from one rank to another arrive in
  // order.
  void (*swap)(void *owner, const fsdp_swap *swap);
  // Of every exchange that this rank takes part in: its peers and the bytes of each; NULL: none.
  void (*note)(void *note_owner, const fsdp_peers *peers, fsdp_exchange_kind kind, int64_t bytes);
  void *note_owner;
} fsdp_link;

// Some of a link's ranks, in an order.
struct fsdp_peers {
  const fsdp_link *link;
  const int *ranks; // by place; NULL: places are the link's ranks
  int place, size;  // this rank's place; -1: it is none of them, and every call returns at once
};

typedef enum fsdp_reduction { FSDP_REDUCE_SUM, FSDP_REDUCE_MIN, FSDP_REDUCE_MAX } fsdp_reduction;

// values[i] = all peers' values[i], combined.
void fsdp_exchange_reduce(const fsdp_peers *peers, fsdp_reduction how, int64_t *values, int count);

// *data = all peers' *data, combined: combine(owner, data, other) puts both into data, whichever is whose.
// `other` is memory for as many bytes.
void fsdp_exchange_combine(const fsdp_peers *peers, void *data, void *other, int64_t bytes,
                           void (*combine)(void *owner, void *data, const void *other), void *owner);

// Replaces *data by that of the peer at place `root`.
void fsdp_exchange_broadcast(const fsdp_peers *peers, int root, void *data, int64_t bytes);

// out[size * bytes], in the order of places.
void fsdp_exchange_gather(const fsdp_peers *peers, const void *mine, int64_t bytes, void *out);

// The same without memory of its own: slots[0] is this place's, slots[i] becomes that of place + i, modulo
// size.
void fsdp_exchange_gather_behind(const fsdp_peers *peers, void *slots, int64_t bytes);

// As fsdp_exchange_gather, on the first place alone; `out` is not used on the others.
void fsdp_exchange_gather_first(const fsdp_peers *peers, const void *mine, int64_t bytes, void *out);
