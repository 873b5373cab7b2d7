#include "runtime/comm/world_inproc.h"

#include "runtime/base/check.h"
#include "runtime/comm/world_internal.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

// Of a rank's thread: exchanges need little.
#define STACK_BYTES ((size_t)1 << 18)

typedef struct member {
  const fsdp_inproc_job *job;
  fsdp_world world;
  pthread_t thread;
} member;

static void *start(void *argument) {
  member *self = argument;
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
  member *members = fsdp_alloc_zeroed((size_t)job->size, sizeof *members);
  pthread_attr_t small;
  int failure = pthread_attr_init(&small) || pthread_attr_setstacksize(&small, STACK_BYTES);
  for (int r = 0; r < job->size && !failure; r++) {
    member *m = &members[r];
    m->job = job;
    m->world = (fsdp_world){.rank = r, .size = job->size, .link = fsdp_inproc_link(links, r)};
    join_node(&m->world, job->ranks_per_node);
    failure = pthread_create(&m->thread, &small, start, m);
  }
  FSDP_NEED_THREAD(failure, "one of %d ranks, which are threads,", job->size);
  pthread_attr_destroy(&small);
  for (int r = 0; r < job->size; r++) {
    pthread_join(members[r].thread, NULL);
    if (counts) counts[r] = fsdp_inproc_link_counts(links, r);
  }
  free(members);
  fsdp_inproc_links_destroy(links);
}
