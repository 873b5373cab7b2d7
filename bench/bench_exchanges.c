// What do the small exchanges of a run cost with many ranks? usage: bench_exchanges LIST [RANKS]
//
// LIST is what a run has written with FSDP_EXCHANGES=LIST: rank 0's exchanges outside the steps' programs, of
// which RANKS (20) made it, on one node. They are made again by the same code at 64 to 100,000 ranks, 8 a
// node, over links that only count; up to 1,024 also by threads that send real messages, which must be as
// many. A group of a part of LIST's ranks is the same part of the others. Prints the greatest counts of a
// rank, and of a node's ranks together; and what the watch and a failure cost.
#include "bench/world_inproc.h"
#include "runtime/base/check.h"
#include "runtime/exchange/small_sum.h"
#include "runtime/watch/hearing.h"
#include "runtime/watch/watch_judge.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NODE_RANKS = 8, EXCHANGES_MAX = 4096, SIZES = 5 };
// Threads, and the bytes of each in an exchange, at most.
enum { THREADS_MAX = 1024, THREAD_BYTES_MAX = 1200 };
static const int sizes[SIZES] = {64, 256, 1024, 16384, 100000};

typedef enum whom { WORLD, NODE, NODES, SOME, WHOM_COUNT } whom;

typedef struct exchange {
  fsdp_exchange_kind kind;
  whom among;
  int size;
  int64_t bytes;
  bool of_nodes; // bytes of each of the nodes: what their first ranks have gathered, handed out in each
} exchange;

typedef struct list {
  const char *name;
  exchange items[EXCHANGES_MAX];
  int count, listed_ranks;
} list;

// ---- The list

static int index_of(const char *word, const char *const *words, int count) {
  int i = 0;
  while (i < count && strcmp(word, words[i]) != 0) i++;
  FSDP_CHECK(i < count, "'%s' in the list", word);
  return i;
}

static bool read_line(FILE *file, char activity[32], exchange *made) {
  static const char *const kinds[] = {"reduce", "broadcast", "gather", "gather_first"};
  static const char *const groups[] = {"world", "node", "nodes", "some"};
  char kind[32], among[32];
  if (fscanf(file, "%31s %31s %31s %d %" SCNd64, activity, kind, among, &made->size, &made->bytes) != 5)
    return false;
  made->kind = (fsdp_exchange_kind)index_of(kind, kinds, FSDP_EXCHANGE_KIND_COUNT);
  made->among = (whom)index_of(among, groups, WHOM_COUNT);
  return true;
}

static void append(list *l, const exchange *made) {
  FSDP_CHECK(l->count < EXCHANGES_MAX, "more than %d exchanges", EXCHANGES_MAX);
  const exchange *before = l->count > 0 ? &l->items[l->count - 1] : NULL;
  bool follows = before && before->kind == FSDP_EXCHANGE_GATHER && before->among == NODES;
  exchange *added = &l->items[l->count++];
  *added = *made;
  added->of_nodes = follows && made->kind == FSDP_EXCHANGE_BROADCAST && made->among == NODE;
  if (added->of_nodes) added->bytes = before->bytes;
}

static int64_t bytes_of(const exchange *e, int size) {
  return e->bytes * (e->of_nodes ? (size + NODE_RANKS - 1) / NODE_RANKS : 1);
}

static bool is_same(const exchange *a, const exchange *b) {
  return a->kind == b->kind && a->among == b->among && a->size == b->size && a->bytes == b->bytes &&
         a->of_nodes == b->of_nodes;
}

static bool has(const list *l, const exchange *wanted) {
  for (int i = 0; i < l->count; i++)
    if (is_same(&l->items[i], wanted)) return true;
  return false;
}

enum { START, STEP, EVALUATION, SAVE, ERROR, LISTS };

// All of the start; of steps each kind of exchange once; of evaluations and saves the longest.
static void read_lists(const char *path, int ranks, list lists[LISTS]) {
  static list now;
  static const char *const names[LISTS] = {"start", "a step, with its checks", "an evaluation", "a save",
                                           "an error, told to all"};
  FILE *file = fopen(path, "r");
  FSDP_CHECK(file, "%s cannot be read", path);
  char activity[32], before[32] = "";
  exchange made;
  memset(&made, 0, sizeof made); // compared as bytes
  for (int i = 0; i < LISTS; i++) lists[i].name = names[i], lists[i].listed_ranks = ranks;
  while (read_line(file, activity, &made)) {
    bool same = strcmp(activity, before) == 0;
    int which = strcmp(before, "evaluate") == 0 ? EVALUATION : SAVE;
    if (!same && now.count > lists[which].count) {
      memcpy(lists[which].items, now.items, sizeof now.items);
      lists[which].count = now.count;
    }
    if (!same) now.count = 0;
    snprintf(before, sizeof before, "%s", activity);
    if (strcmp(activity, "start") == 0 || strcmp(activity, "load") == 0) append(&lists[START], &made);
    if (strcmp(activity, "step") == 0 && !has(&lists[STEP], &made)) append(&lists[STEP], &made);
    if (strcmp(activity, "evaluate") == 0 || strcmp(activity, "save") == 0) append(&now, &made);
  }
  fclose(file);
  append(&lists[ERROR], &(exchange){.kind = FSDP_EXCHANGE_REDUCE, .bytes = 8});
  append(&lists[ERROR], &(exchange){.kind = FSDP_EXCHANGE_BROADCAST, .bytes = (int64_t)sizeof(fsdp_error)});
}

// ---- Making them again

typedef struct totals {
  int64_t sent, sent_bytes, received, received_bytes;
} totals;

static void count_swap(void *owner, const fsdp_swap *swap) {
  totals *self = owner;
  if (swap->to >= 0) self->sent++, self->sent_bytes += swap->out_bytes;
  if (swap->from >= 0) self->received++, self->received_bytes += swap->in_bytes;
}

// This rank's place among the ranks that take part; all places are a link's ranks, which a link that counts
// takes.
static fsdp_peers peers_of(const list *l, const exchange *e, const fsdp_link *link, int rank, int size) {
  fsdp_peers peers = {.link = link, .place = rank, .size = size};
  if (e->among == NODE) {
    int rest = size - rank / NODE_RANKS * NODE_RANKS;
    peers.place = rank % NODE_RANKS, peers.size = rest < NODE_RANKS ? rest : NODE_RANKS;
  } else if (e->among == NODES) {
    peers.place = rank % NODE_RANKS ? -1 : rank / NODE_RANKS;
    peers.size = (size + NODE_RANKS - 1) / NODE_RANKS;
  } else if (e->among == SOME && l->listed_ranks % e->size == 0) {
    int groups = l->listed_ranks / e->size; // ranks of a group are so far apart
    peers.size = size / groups, peers.place = rank / groups < peers.size ? rank / groups : -1;
  } else if (e->among == SOME) {
    peers.size = e->size < size ? e->size : size, peers.place = rank < peers.size ? rank : -1;
  }
  return peers;
}

static void combine_nothing(void *owner, void *data, const void *other) {
  (void)owner, (void)data, (void)other;
}

// `size` ranks in all. `counts`: over a link that reads and writes nothing, so that a gather needs no memory.
static void make(const exchange *e, const fsdp_peers *peers, int size, bool counts) {
  int64_t bytes = bytes_of(e, size),
          all_bytes = bytes * (e->kind >= FSDP_EXCHANGE_GATHER && !counts ? size : 1);
  char *mine = fsdp_alloc_zeroed(1, (size_t)bytes + 1), *all = fsdp_alloc((size_t)all_bytes + 1);
  if (e->kind == FSDP_EXCHANGE_REDUCE)
    fsdp_exchange_combine(peers, mine, all, bytes, combine_nothing, NULL);
  else if (e->kind == FSDP_EXCHANGE_BROADCAST)
    fsdp_exchange_broadcast(peers, 0, mine, bytes);
  else if (e->kind == FSDP_EXCHANGE_GATHER)
    fsdp_exchange_gather_behind(peers, all, bytes);
  else
    fsdp_exchange_gather_first(peers, mine, bytes, all);
  free(mine), free(all);
}

// What one rank of `size` sends and receives.
static totals count_rank(const list *l, int rank, int size) {
  totals made = {0};
  const fsdp_link link = {.owner = &made, .swap = count_swap};
  for (int i = 0; i < l->count; i++) {
    const fsdp_peers peers = peers_of(l, &l->items[i], &link, rank, size);
    if (peers.place >= 0) make(&l->items[i], &peers, size, true);
  }
  return made;
}

// The same by a thread, with real messages.
static void run_rank(fsdp_world *world, void *argument) {
  const list *l = argument;
  for (int i = 0; l && i < l->count; i++) {
    fsdp_peers peers = peers_of(l, &l->items[i], &world->link, world->rank, world->size);
    const exchange *e = &l->items[i];
    int *ranks = fsdp_alloc((size_t)peers.size * sizeof *ranks), stride = 1, first = 0;
    if (e->among == NODE) first = world->rank / NODE_RANKS * NODE_RANKS;
    if (e->among == NODES) stride = NODE_RANKS;
    if (e->among == SOME && l->listed_ranks % e->size == 0)
      stride = l->listed_ranks / e->size, first = world->rank % stride;
    for (int p = 0; p < peers.size; p++) ranks[p] = first + p * stride;
    peers.ranks = ranks;
    if (peers.place >= 0) make(e, &peers, world->size, false);
    free(ranks);
  }
}

static bool is_equal(const totals *counted, const fsdp_link_counts *sent, const fsdp_link_counts *start) {
  return counted->sent == sent->sent - start->sent &&
         counted->sent_bytes == sent->sent_bytes - start->sent_bytes &&
         counted->received == sent->received - start->received &&
         counted->received_bytes == sent->received_bytes - start->received_bytes;
}

// Compares the counts of all ranks with those of threads; returns the most ranks that one has sent to.
static int compare_with_threads(const list *whole, int size) {
  static list few; // so that threads need little memory
  list *l = &few;
  *l = *whole;
  for (int i = 0; i < l->count; i++)
    if (l->items[i].bytes > THREAD_BYTES_MAX) l->items[i].bytes = THREAD_BYTES_MAX;
  fsdp_link_counts *all = fsdp_alloc(2 * (size_t)size * sizeof *all), *start = all + size;
  fsdp_inproc_job job = {.size = size, .ranks_per_node = NODE_RANKS, .run = run_rank};
  fsdp_inproc_job_run(&job, start); // making the worlds alone
  job.argument = l;
  fsdp_inproc_job_run(&job, all);
  int peers = 0;
  for (int r = 0; r < size; r++) {
    totals counted = count_rank(l, r, size);
    FSDP_CHECK(is_equal(&counted, &all[r], &start[r]), "%s: rank %d of %d sends other messages", l->name, r,
               size);
    if (all[r].peers > peers) peers = all[r].peers;
  }
  free(all);
  return peers;
}

// ---- Printing

static void print_list(const list *l) {
  int64_t sent[SIZES] = {0}, bytes[SIZES] = {0}, node[SIZES] = {0};
  int peers[SIZES] = {0};
  for (int s = 0; s < SIZES; s++) {
    totals of_node = {0};
    for (int r = 0; r < sizes[s]; r++) {
      totals of = count_rank(l, r, sizes[s]);
      if (r % NODE_RANKS == 0) of_node = (totals){0};
      of_node.sent += of.sent;
      if (of.sent + of.received > sent[s]) sent[s] = of.sent + of.received;
      if (of.sent_bytes + of.received_bytes > bytes[s]) bytes[s] = of.sent_bytes + of.received_bytes;
      if (of_node.sent > node[s]) node[s] = of_node.sent;
    }
    if (sizes[s] <= THREADS_MAX) peers[s] = compare_with_threads(l, sizes[s]);
  }
  printf("| %s (%d) | messages of a rank |", l->name, l->count);
  for (int s = 0; s < SIZES; s++) printf(" %" PRId64 " |", sent[s]);
  printf("\n| | bytes of a rank |");
  for (int s = 0; s < SIZES; s++) printf(" %" PRId64 " |", bytes[s]);
  printf("\n| | messages sent by a node |");
  for (int s = 0; s < SIZES; s++) printf(" %" PRId64 " |", node[s]);
  printf("\n| | ranks that one sends to |");
  for (int s = 0; s < SIZES; s++) peers[s] ? printf(" %d |", peers[s]) : printf(" |");
  printf("\n");
}

// All-reduces of few values in a step on the CPU, one of them.
static void print_small_sum(void) {
  int64_t sent[SIZES] = {0}, bytes[SIZES] = {0};
  for (int s = 0; s < SIZES; s++) {
    fsdp_comm_sum *sum = fsdp_alloc(sizeof *sum);
    for (int r = 0; r < sizes[s];
         r += r < 2 * FSDP_SMALL_SUM_BLOCK || r + FSDP_SMALL_SUM_BLOCK >= sizes[s] ? 1 : 64) {
      totals made = {0};
      const fsdp_link link = {.owner = &made, .swap = count_swap};
      fsdp_small_sum *small = fsdp_small_sum_create(&link, r, sizes[s], sum);
      float value = 0;
      fsdp_small_sum_run(small, &value, 1, FSDP_F32);
      fsdp_small_sum_destroy(small);
      if (made.sent + made.received > sent[s]) sent[s] = made.sent + made.received;
      if (made.sent_bytes + made.received_bytes > bytes[s]) bytes[s] = made.sent_bytes + made.received_bytes;
    }
    free(sum);
  }
  printf("| a sum of one value by messages | messages of a rank |");
  for (int s = 0; s < SIZES; s++) printf(" %" PRId64 " |", sent[s]);
  printf("\n| | bytes of a rank |");
  for (int s = 0; s < SIZES; s++) printf(" %" PRId64 " |", bytes[s]);
  printf("\n");
}

// What the watch of rank 0 sends and reads, and the memory of a failure: mails, their copies and its tables.
static void print_watch(void) {
  int64_t nodes[SIZES], mail[SIZES], reads[SIZES], over[SIZES], memory[SIZES];
  for (int s = 0; s < SIZES; s++) {
    size_t size = (size_t)sizes[s];
    int *node = fsdp_alloc(size * sizeof *node), told = 0;
    const char **hosts = fsdp_alloc(size * sizeof *hosts);
    for (int r = 0; r < sizes[s]; r++) node[r] = r / NODE_RANKS * NODE_RANKS, hosts[r] = "host";
    fsdp_hearing hearing;
    fsdp_hearing_find(
        &(fsdp_hearing_config){.size = sizes[s], .circle = FSDP_WATCH_CIRCLE, .node = node, .hosts = hosts},
        &hearing);
    for (int i = 0; i < hearing.count; i++) told += !hearing.heard[i].local;
    nodes[s] = told / NODE_RANKS;
    mail[s] = nodes[s] * fsdp_watch_mail_bytes(NODE_RANKS);
    reads[s] = hearing.count * (int64_t)sizeof(fsdp_board_slot);
    over[s] = told;
    memory[s] =
        hearing.count * (int64_t)(sizeof(fsdp_watch_seen) + sizeof(fsdp_heard) + sizeof(fsdp_board_rank)) +
        (2 + nodes[s]) * fsdp_watch_mail_bytes(NODE_RANKS) + told * fsdp_watch_mail_bytes(0) +
        2 * (int64_t)(size * sizeof(void *));
    fsdp_hearing_release(&hearing);
    free(hosts), free(node);
  }
  const struct {
    const char *what;
    const int64_t *counts;
  } rows[] = {{"the watch, twice a second | messages of a node", nodes},
              {" | bytes of a node", mail},
              {"the watch, a tick | bytes that a rank reads", reads},
              {"a lost rank | messages of the one that reports, and of each node that passes it on", over},
              {" | bytes of memory of a rank", memory}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    printf("| %s |", rows[i].what);
    for (int s = 0; s < SIZES; s++) printf(" %" PRId64 " |", rows[i].counts[s]);
    printf("\n");
  }
}

int main(int argc, char **argv) {
  static list lists[LISTS];
  if (argc < 2) {
    fprintf(stderr, "usage: bench_exchanges LIST [RANKS]\n");
    return 2;
  }
  read_lists(argv[1], argc > 2 ? atoi(argv[2]) : 20, lists);
  printf("| what (exchanges) | ranks |");
  for (int s = 0; s < SIZES; s++) printf(" %d |", sizes[s]);
  printf("\n| --- | --- |");
  for (int s = 0; s < SIZES; s++) printf(" ---: |");
  printf("\n");
  for (int i = 0; i < LISTS; i++) print_list(&lists[i]);
  print_small_sum();
  print_watch();
  return 0;
}
