#include "bench/world_inproc.h"

#include "runtime/base/check.h"
#include "runtime/comm/world_internal.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Of a rank's thread: exchanges need little.
#define STACK_BYTES ((size_t)1 << 18)

// ---- Links

typedef struct letter {
  struct letter *next;
  int from;
  int64_t bytes;
  char data[];
} letter;

typedef struct member {
  fsdp_inproc_links *links;
  int rank;
  pthread_mutex_t mutex; // of the box
  pthread_cond_t filled;
  letter *oldest, **end; // what has come and is not taken yet
  fsdp_link_counts counts;
  int *peers; // counts.peers, ascending
} member;

struct fsdp_inproc_links {
  int size;
  member *members;
};

fsdp_inproc_links *fsdp_inproc_links_create(int size) {
  fsdp_inproc_links *links = fsdp_alloc_zeroed(1, sizeof *links);
  links->size = size;
  links->members = fsdp_alloc_zeroed((size_t)size, sizeof *links->members);
  for (int r = 0; r < size; r++) {
    member *m = &links->members[r];
    m->links = links;
    m->rank = r;
    m->end = &m->oldest;
    FSDP_CHECK(pthread_mutex_init(&m->mutex, NULL) == 0 && pthread_cond_init(&m->filled, NULL) == 0,
               "the link of rank %d could not be made", r);
  }
  return links;
}

void fsdp_inproc_links_destroy(fsdp_inproc_links *links) {
  for (int r = 0; links && r < links->size; r++) {
    member *m = &links->members[r];
    FSDP_CHECK(!m->oldest, "a message from rank %d to rank %d is left", m->oldest->from, r);
    pthread_cond_destroy(&m->filled);
    pthread_mutex_destroy(&m->mutex);
    free(m->peers);
  }
  if (links) free(links->members);
  free(links);
}

static void note_peer(member *self, int peer) {
  int at = 0, count = self->counts.peers;
  while (at < count && self->peers[at] < peer) at++;
  if (at < count && self->peers[at] == peer) return;
  self->peers = fsdp_realloc(self->peers, (size_t)(count + 1) * sizeof *self->peers);
  memmove(self->peers + at + 1, self->peers + at, (size_t)(count - at) * sizeof *self->peers);
  self->peers[at] = peer;
  self->counts.peers++;
}

static void put(member *self, int to, const void *data, int64_t bytes) {
  FSDP_CHECK(to < self->links->size && to != self->rank, "rank %d sends to rank %d", self->rank, to);
  member *other = &self->links->members[to];
  letter *made = fsdp_alloc(sizeof *made + (size_t)bytes);
  *made = (letter){.from = self->rank, .bytes = bytes};
  memcpy(made->data, data, (size_t)bytes);
  note_peer(self, to);
  self->counts.sent++;
  self->counts.sent_bytes += bytes;
  pthread_mutex_lock(&other->mutex);
  *other->end = made;
  other->end = &made->next;
  pthread_cond_signal(&other->filled);
  pthread_mutex_unlock(&other->mutex);
}

static void take(member *self, int from, void *data, int64_t bytes) {
  pthread_mutex_lock(&self->mutex);
  letter **at = &self->oldest, *found;
  while (!*at || (*at)->from != from) {
    if (*at) {
      at = &(*at)->next;
      continue;
    }
    pthread_cond_wait(&self->filled, &self->mutex);
    at = &self->oldest;
  }
  found = *at;
  *at = found->next;
  if (!found->next) self->end = at;
  pthread_mutex_unlock(&self->mutex);
  FSDP_CHECK(found->bytes == bytes, "rank %d awaits %lld bytes of rank %d, not %lld", self->rank,
             (long long)bytes, from, (long long)found->bytes);
  memcpy(data, found->data, (size_t)bytes);
  free(found);
  self->counts.received++;
  self->counts.received_bytes += bytes;
}

static void swap(void *owner, const fsdp_swap *swap) {
  member *self = owner;
  if (swap->to >= 0) put(self, swap->to, swap->out, swap->out_bytes);
  if (swap->from >= 0) take(self, swap->from, swap->in, swap->in_bytes);
}

fsdp_link fsdp_inproc_link(fsdp_inproc_links *links, int rank) {
  return (fsdp_link){.owner = &links->members[rank], .swap = swap};
}

fsdp_link_counts fsdp_inproc_link_counts(const fsdp_inproc_links *links, int rank) {
  return links->members[rank].counts;
}

// ---- Worlds

typedef struct runner {
  const fsdp_inproc_job *job;
  fsdp_world world;
  pthread_t thread;
} runner;

static void *start(void *argument) {
  runner *self = argument;
  fsdp_world *world = &self->world;
  fsdp_world_find_nodes(world, world->rank - world->local_rank);
  self->job->run(world, self->job->argument);
  fsdp_world_release_nodes(world);
  return NULL;
}

static void join_node(fsdp_world *world, int ranks_per_node) {
  int first = world->rank / ranks_per_node * ranks_per_node, rest = world->size - first;
  world->local_rank = world->rank - first;
  world->local_size = rest < ranks_per_node ? rest : ranks_per_node;
  snprintf(world->host, sizeof world->host, "node%d", world->rank / ranks_per_node);
}

void fsdp_inproc_job_run(const fsdp_inproc_job *job, fsdp_link_counts *counts) {
  fsdp_inproc_links *links = fsdp_inproc_links_create(job->size);
  runner *runners = fsdp_alloc_zeroed((size_t)job->size, sizeof *runners);
  pthread_attr_t small;
  int failure = pthread_attr_init(&small) || pthread_attr_setstacksize(&small, STACK_BYTES);
  for (int r = 0; r < job->size && !failure; r++) {
    runner *m = &runners[r];
    m->job = job;
    m->world = (fsdp_world){.rank = r, .size = job->size, .link = fsdp_inproc_link(links, r)};
    join_node(&m->world, job->ranks_per_node);
    failure = pthread_create(&m->thread, &small, start, m);
  }
  FSDP_NEED_THREAD(failure, "one of %d ranks, which are threads,", job->size);
  pthread_attr_destroy(&small);
  for (int r = 0; r < job->size; r++) {
    pthread_join(runners[r].thread, NULL);
    if (counts) counts[r] = fsdp_inproc_link_counts(links, r);
  }
  free(runners);
  fsdp_inproc_links_destroy(links);
}
