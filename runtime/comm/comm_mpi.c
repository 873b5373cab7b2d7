// The world and the communicators over MPI: the only file that calls it.
//
// Collectives exchange pieces between every pair of ranks. Each rank sends as much as in a ring, only two
// rounds of pieces are buffered, and counts never exceed an int. MPI's own collectives would take temporary
// memory of the data's size, and its blocking calls spin on the core that computes: here a waiting rank polls
// and sleeps.
#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/comm/world_internal.h"
#include "runtime/exchange/comm_sum.h"
#include "runtime/exchange/small_sum.h"
#include "runtime/watch/board.h"

#include <mpi.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// Polls before the first sleep, and how long a sleep is: it doubles from the first to the last.
#define POLLS_BEFORE_SLEEP 64
#define SLEEP_US_MIN       20
#define SLEEP_US_MAX       200
// Of a rank that others must not notice (fsdp_world_set_patient).
#define PATIENT_SLEEP_US_MAX 2000
// Bytes of a round's pieces over all peers, and of one piece, at most.
#define ROUND_BYTES ((int64_t)16 << 20)
#define PIECE_BYTES ((int64_t)1 << 20)
// Of messages of exchanges; pieces of collectives have 0.
#define LINK_TAG 1

static void check_mpi(int code, const char *call) {
  if (code == MPI_SUCCESS) return;
  char message[MPI_MAX_ERROR_STRING] = "unknown error";
  int length = 0;
  MPI_Error_string(code, message, &length);
  FSDP_JOB_PEER_FAIL(call, "%s", message);
}
#define CALL_MPI(name, ...) check_mpi(name(__VA_ARGS__), #name)

// Waits for all requests, asleep after a moment, for `sleep_us_max` at a time at most. MPI moves data only
// while it is called, so it is polled. `indices` holds one per request. Every complete one is progress of
// `lane` (NULL: none).
static void wait_all(MPI_Request *requests, int *indices, int count, fsdp_board_lane *lane,
                     long sleep_us_max) {
  long sleep_us = SLEEP_US_MIN;
  for (int polls = 0;; polls++) {
    int some = 0;
    CALL_MPI(MPI_Testsome, count, requests, &some, indices, MPI_STATUSES_IGNORE);
    if (some == MPI_UNDEFINED) break; // none is left
    if (some > 0) {
      if (lane) fsdp_lane_move(lane);
      continue;
    }
    if (polls < POLLS_BEFORE_SLEEP) continue;
    fsdp_lane_wait(lane, true);
    nanosleep(&(struct timespec){.tv_nsec = sleep_us * 1000}, NULL);
    sleep_us = sleep_us * 2 < sleep_us_max ? sleep_us * 2 : sleep_us_max;
  }
  fsdp_lane_wait(lane, false);
}

// ---- Links

// Where messages of exchanges go, and which lane waits for them; NULL: the main thread's.
typedef struct mpi_link {
  MPI_Comm comm;
  fsdp_board_lane *lane;
  long sleep_us_max;
} mpi_link;

static mpi_link world_link;

static void mpi_swap(void *owner, const fsdp_swap *swap) {
  mpi_link *self = owner;
  MPI_Request requests[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
  int indices[2];
  if (swap->from >= 0) {
    CALL_MPI(MPI_Irecv, swap->in, (int)swap->in_bytes, MPI_BYTE, swap->from, LINK_TAG, self->comm,
             &requests[0]);
  }
  if (swap->to >= 0) {
    CALL_MPI(MPI_Isend, swap->out, (int)swap->out_bytes, MPI_BYTE, swap->to, LINK_TAG, self->comm,
             &requests[1]);
  }
  wait_all(requests, indices, 2, self->lane ? self->lane : &fsdp_board_mine->lanes[FSDP_LANE_MAIN],
           self->sleep_us_max);
}

// ---- Messages

// Data in `size` slots of `slot_elems`, of which the last may be shorter or empty, so that there are
// `total_elems`.
typedef struct slots {
  char *data;
  int64_t slot_elems, total_elems;
  fsdp_dtype dtype;
} slots;

typedef struct message_comm {
  fsdp_comm base;
  MPI_Comm comm;
  fsdp_comm_sum sum;
  mpi_link exchanges;
  fsdp_link link;
  fsdp_small_sum *small;
  fsdp_board_lane *lane; // of the call under way
  int *indices;          // for wait_all
  int64_t piece_bytes;
  char *pieces[2];          // one of every peer's, for two rounds
  MPI_Request *requests[2]; // a receive and a send for every rank, for two rounds
} message_comm;

// The part of a slot that a round covers.
static int64_t part_of(const message_comm *self, const slots *data, int slot, int64_t round, int64_t *first) {
  int64_t numel = self->piece_bytes / fsdp_dtype_bytes(data->dtype);
  int64_t begin = slot * data->slot_elems;
  int64_t end = fsdp_min_i64(begin + data->slot_elems, data->total_elems);
  *first = begin + round * numel;
  return fsdp_max_i64(0, fsdp_min_i64(numel, end - *first));
}

static int64_t round_count(const message_comm *self, const slots *data) {
  int64_t numel = self->piece_bytes / fsdp_dtype_bytes(data->dtype);
  return (data->slot_elems + numel - 1) / numel;
}

static MPI_Request receive(message_comm *self, int peer, void *data, int64_t bytes) {
  MPI_Request request = MPI_REQUEST_NULL;
  if (bytes > 0) CALL_MPI(MPI_Irecv, data, (int)bytes, MPI_BYTE, peer, 0, self->comm, &request);
  return request;
}

static MPI_Request post(message_comm *self, int peer, const void *data, int64_t bytes) {
  MPI_Request request = MPI_REQUEST_NULL;
  if (bytes > 0) CALL_MPI(MPI_Isend, data, (int)bytes, MPI_BYTE, peer, 0, self->comm, &request);
  return request;
}

static char *piece_of(message_comm *self, int peer, int64_t round) {
  return self->pieces[round % 2] + peer * self->piece_bytes;
}

// Of a gather, whose `own` is this rank's slot wherever it lies: that to every peer, and theirs into their
// slots. Of a sum, without it: every peer's slot to that peer, and what they have for this rank into pieces.
static void start_round(message_comm *self, const slots *data, const char *own, int64_t round) {
  const int size = self->base.size, rank = self->base.rank;
  const int64_t width = fsdp_dtype_bytes(data->dtype);
  int64_t first, own_first;
  const int64_t own_bytes = part_of(self, data, rank, round, &own_first) * width;
  MPI_Request *requests = self->requests[round % 2];
  for (int k = 1; k < size; k++) {
    const int from = (rank + size - k) % size, to = (rank + k) % size;
    const int64_t bytes = part_of(self, data, own ? from : to, round, &first) * width;
    char *part = data->data + first * width;
    if (own) {
      requests[2 * k] = receive(self, from, part, bytes);
      requests[2 * k + 1] = post(self, to, own + (own_first - rank * data->slot_elems) * width, own_bytes);
    } else {
      requests[2 * k] = receive(self, from, piece_of(self, from, round), own_bytes);
      requests[2 * k + 1] = post(self, to, part, bytes);
    }
  }
}

// Sums the round's part of the own slot over ranks, in their order.
static void sum_round(message_comm *self, const slots *data, int64_t round, char *output) {
  int64_t width = fsdp_dtype_bytes(data->dtype), first;
  int64_t numel = part_of(self, data, self->base.rank, round, &first);
  const char *own = data->data + first * width;
  output += (first - self->base.rank * data->slot_elems) * width;
  for (int64_t done = 0; done < numel; done += FSDP_COMM_SUM_TILE_ELEMS) {
    int64_t count = fsdp_min_i64(FSDP_COMM_SUM_TILE_ELEMS, numel - done);
    for (int r = 0; r < self->base.size; r++) {
      const char *values = r == self->base.rank ? own : piece_of(self, r, round);
      fsdp_comm_sum_add(&self->sum, r == 0, values + done * width, count, data->dtype);
    }
    fsdp_comm_sum_store(&self->sum, output + done * width, count, data->dtype);
  }
}

// A gather of `own`, or without it a sum: output = that over ranks of the own slot. It may begin any slot: a
// part is overwritten when it has been sent.
static void run_rounds(message_comm *self, const slots *data, const void *own, void *output) {
  const int64_t rounds = round_count(self, data);
  start_round(self, data, own, 0);
  for (int64_t round = 0; round < rounds; round++) {
    if (round + 1 < rounds) start_round(self, data, own, round + 1);
    wait_all(self->requests[round % 2], self->indices, 2 * self->base.size, self->lane, SLEEP_US_MAX);
    if (!own) sum_round(self, data, round, output);
  }
}

static void message_all_gather(fsdp_comm *comm, const fsdp_collective *call) {
  message_comm *self = (message_comm *)comm;
  self->lane = call->lane;
  int64_t slot = call->numel * fsdp_dtype_bytes(call->dtype);
  slots data = {call->output, call->numel, call->numel * comm->size, call->dtype};
  char *own = data.data + comm->rank * slot;
  run_rounds(self, &data, call->input, NULL);
  if (own != call->input) memcpy(own, call->input, (size_t)slot);
}

static void message_reduce_scatter(fsdp_comm *comm, const fsdp_collective *call) {
  message_comm *self = (message_comm *)comm;
  self->lane = call->lane;
  slots data = {(char *)(uintptr_t)call->input, call->numel, call->numel * comm->size, call->dtype};
  run_rounds(self, &data, NULL, call->output);
}

static void message_all_reduce(fsdp_comm *comm, const fsdp_collective *call) {
  message_comm *self = (message_comm *)comm;
  self->lane = call->lane;
  int64_t width = fsdp_dtype_bytes(call->dtype), bytes = call->numel * width;
  if (bytes <= FSDP_SMALL_SUM_BYTES) {
    self->exchanges.lane = call->lane;
    fsdp_small_sum_run(self->small, call->output, call->numel, call->dtype);
    return;
  }
  int64_t slot = fsdp_round_up((call->numel + comm->size - 1) / comm->size, 16);
  slots data = {call->output, slot, call->numel, call->dtype};
  char *own = data.data + fsdp_min_i64(comm->rank * slot, call->numel) * width;
  run_rounds(self, &data, NULL, own);
  run_rounds(self, &data, own, NULL);
}

static void message_destroy(fsdp_comm *comm) {
  message_comm *self = (message_comm *)comm;
  MPI_Comm_free(&self->comm);
  for (int i = 0; i < 2; i++) free(self->pieces[i]), free(self->requests[i]);
  free(self->indices);
  fsdp_small_sum_destroy(self->small);
  free(self);
}

fsdp_comm *fsdp_world_split_messages(int color, int key, int64_t piece_bytes) {
  static const fsdp_comm_table table = {.name = "messages",
                                        .run = {[FSDP_ALL_GATHER] = message_all_gather,
                                                [FSDP_REDUCE_SCATTER] = message_reduce_scatter,
                                                [FSDP_ALL_REDUCE] = message_all_reduce},
                                        .destroy = message_destroy};
  MPI_Comm comm;
  CALL_MPI(MPI_Comm_split, MPI_COMM_WORLD, color < 0 ? MPI_UNDEFINED : color, key, &comm);
  if (comm == MPI_COMM_NULL) return NULL;
  CALL_MPI(MPI_Comm_set_errhandler, comm, MPI_ERRORS_RETURN);
  message_comm *self = fsdp_alloc_zeroed(1, sizeof *self);
  self->base.table = &table;
  self->comm = comm;
  CALL_MPI(MPI_Comm_rank, comm, &self->base.rank);
  CALL_MPI(MPI_Comm_size, comm, &self->base.size);
  self->exchanges = (mpi_link){.comm = comm, .sleep_us_max = SLEEP_US_MAX};
  self->link = (fsdp_link){.owner = &self->exchanges, .swap = mpi_swap};
  self->small = fsdp_small_sum_create(&self->link, self->base.rank, self->base.size, &self->sum);
  int64_t size = self->base.size, fair = ROUND_BYTES / size;
  self->piece_bytes = piece_bytes > 0 ? piece_bytes : fsdp_min_i64(PIECE_BYTES, fair);
  self->piece_bytes = fsdp_round_up(fsdp_max_i64(self->piece_bytes, 64), 64);
  self->indices = fsdp_alloc((size_t)(2 * size) * sizeof *self->indices);
  for (int i = 0; i < 2; i++) {
    self->pieces[i] = fsdp_alloc((size_t)(size * self->piece_bytes));
    self->requests[i] = fsdp_alloc((size_t)(2 * size) * sizeof(MPI_Request));
    // A round leaves out this rank's own two.
    for (int r = 0; r < 2 * size; r++) self->requests[i][r] = MPI_REQUEST_NULL;
  }
  return &self->base;
}

// ---- Mail of the watch

// On a communicator of its own, so that nothing waits behind a step's messages for a match. Errors are
// ignored: the watch detects ranks that cannot be reached.
typedef struct mail {
  MPI_Comm comm;
  int size, bytes_max;
  MPI_Request *sends; // one under way to each rank
  char **sent;        // its data
  MPI_Request receive;
  char *received;
} mail;

static bool is_over(MPI_Request *request) {
  int done = 0;
  return MPI_Test(request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done;
}

static bool mail_post(void *owner, int rank, const void *data, int bytes) {
  mail *self = owner;
  if (bytes > self->bytes_max || !is_over(&self->sends[rank])) return false;
  free(self->sent[rank]);
  self->sent[rank] = fsdp_alloc((size_t)bytes);
  memcpy(self->sent[rank], data, (size_t)bytes);
  return MPI_Isend(self->sent[rank], bytes, MPI_BYTE, rank, 0, self->comm, &self->sends[rank]) == MPI_SUCCESS;
}

// One at a time: a mail is far below what MPI sends at once.
static int mail_take(void *owner, void *data, int capacity, int *from) {
  mail *self = owner;
  if (self->receive == MPI_REQUEST_NULL) {
    int arrived = 0;
    MPI_Message message;
    MPI_Status status;
    int code = MPI_Improbe(MPI_ANY_SOURCE, 0, self->comm, &arrived, &message, &status);
    if (code != MPI_SUCCESS || !arrived) return 0;
    code = MPI_Imrecv(self->received, self->bytes_max, MPI_BYTE, &message, &self->receive);
    if (code != MPI_SUCCESS) return 0;
  }
  int done = 0, bytes = 0;
  MPI_Status status;
  if (MPI_Test(&self->receive, &done, &status) != MPI_SUCCESS || !done) return 0;
  MPI_Get_count(&status, MPI_BYTE, &bytes);
  if (bytes <= 0 || bytes > capacity) return 0;
  memcpy(data, self->received, (size_t)bytes);
  *from = status.MPI_SOURCE;
  return bytes;
}

void fsdp_world_open_mail(fsdp_world *world, int bytes_max) {
  mail *self = fsdp_alloc_zeroed(1, sizeof *self);
  size_t count = (size_t)world->size;
  self->size = world->size;
  self->bytes_max = bytes_max;
  CALL_MPI(MPI_Comm_dup, MPI_COMM_WORLD, &self->comm);
  CALL_MPI(MPI_Comm_set_errhandler, self->comm, MPI_ERRORS_RETURN);
  self->sends = fsdp_alloc(count * sizeof *self->sends);
  self->sent = fsdp_alloc_zeroed(count, sizeof *self->sent);
  self->received = fsdp_alloc((size_t)self->bytes_max);
  self->receive = MPI_REQUEST_NULL;
  for (size_t r = 0; r < count; r++) self->sends[r] = MPI_REQUEST_NULL;
  world->mail = (fsdp_mail){.owner = self, .post = mail_post, .take = mail_take};
}

// Messages still under way are dropped: every rank has left.
static void close_mail(fsdp_world *world) {
  mail *self = world->mail.owner;
  if (!self) return;
  bool idle = is_over(&self->receive);
  for (int r = 0; r < self->size; r++) idle = is_over(&self->sends[r]) && idle;
  for (int r = 0; idle && r < self->size; r++) free(self->sent[r]);
  if (idle) free(self->received);
  MPI_Comm_free(&self->comm);
  free(self->sends), free(self->sent);
  free(self);
}

// ---- The world

fsdp_status fsdp_world_create(int *argc, char ***argv, fsdp_world **world, fsdp_error *error) {
  int provided = 0;
  if (MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS) {
    return fsdp_fail(error, FSDP_ERR_PEER, "MPI could not be started; start the command with mpirun");
  }
  if (provided < MPI_THREAD_MULTIPLE) {
    MPI_Finalize();
    return fsdp_fail(error, FSDP_ERR_PEER,
                     "MPI offers thread level %d, but streams need MPI_THREAD_MULTIPLE (%d); use an MPI that "
                     "was built with it",
                     provided, MPI_THREAD_MULTIPLE);
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  fsdp_world *self = fsdp_alloc_zeroed(1, sizeof *self);
  CALL_MPI(MPI_Comm_rank, MPI_COMM_WORLD, &self->rank);
  CALL_MPI(MPI_Comm_size, MPI_COMM_WORLD, &self->size);
  // A rank that sends to one of another node that is killed is to report that one's end, not to share it.
  if (self->size > 1) signal(SIGPIPE, SIG_IGN);
  gethostname(self->host, sizeof self->host - 1);
  fsdp_job_name(self->rank, self->host);
  MPI_Comm node;
  CALL_MPI(MPI_Comm_split_type, MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, self->rank, MPI_INFO_NULL, &node);
  CALL_MPI(MPI_Comm_rank, node, &self->local_rank);
  CALL_MPI(MPI_Comm_size, node, &self->local_size);
  int leader = self->rank;
  CALL_MPI(MPI_Bcast, &leader, 1, MPI_INT, 0, node);
  CALL_MPI(MPI_Comm_free, &node);
  world_link = (mpi_link){.comm = MPI_COMM_WORLD, .sleep_us_max = SLEEP_US_MAX};
  self->link = (fsdp_link){.owner = &world_link, .swap = mpi_swap};
  fsdp_world_list_exchanges(self);
  fsdp_world_find_nodes(self, leader);
  if (self->size > 1) fsdp_world_watch_start(self);
  *world = self;
  return FSDP_OK;
}

void fsdp_world_set_patient(fsdp_world *world, bool patient) {
  (void)world;
  world_link.sleep_us_max = patient ? PATIENT_SLEEP_US_MAX : SLEEP_US_MAX;
}

void fsdp_world_destroy(fsdp_world *world) {
  if (!world) return;
  // Once all have arrived no rank is missed; until then the watch still guards the wait.
  fsdp_board_enter(FSDP_ACTIVITY_FINISHING);
  fsdp_world_barrier(world);
  if (world->watch) fsdp_watch_leave(world->watch);
  close_mail(world);
  MPI_Finalize();
  fsdp_world_watch_stop(world);
  fsdp_world_release_nodes(world);
  if (world->exchanges) fclose(world->exchanges);
  free(world);
}
