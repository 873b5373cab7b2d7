#include "launcher/train/checkpointer.h"

#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/text.h"
#include "runtime/checkpoint/checkpoint_file.h"
#include "runtime/exec/state.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#define STAGING_BYTES ((int64_t)4 << 20)

// What the writer thread does.
typedef void job(fsdp_checkpointer *s);

struct fsdp_checkpointer {
  fsdp_checkpointer_config config;
  fsdp_checkpoint *checkpoint; // layout always; progress and files of the save under way
  int rank;
  uint64_t run;           // of all ranks; drawn at the start
  int64_t begun;          // saves
  bool snapshots;         // the plan keeps a snapshot; else files are written straight from the state
  unsigned char *staging; // without a snapshot
  // All ranks alike.
  bool writing, committing; // a file is being written, or was and is not settled; rank 0 completes it
  int64_t step;
  fsdp_error not_finite; // what a save found, if any did
  fsdp_error last_error; // of the last save; FSDP_OK if it is complete
  bool warned;           // of last_error
  bool told_removed;     // of a folder that is not there
  int64_t began_ns;      // the save under way
  // The writer thread does `todo` and clears it; one for every job, for none could raise its priority again.
  bool has_thread;
  pthread_t thread;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  job *todo;    // NULL: nothing
  bool copying; // the snapshot is being taken; under the mutex
  fsdp_error job_error;
  int64_t file_bytes;
  // Rank 0's: what it knows of the folder, and what is going.
  fsdp_checkpoint_index index;
  fsdp_checkpoint_gone_list gone;
};

// ---- The two jobs

// Where element `flat` of a unit's flat buffer lies in this rank's shard.
static int64_t in_shard(const fsdp_checkpointer *s, int unit, int64_t flat) {
  const fsdp_plan *plan = fsdp_executor_config_of(s->config.executor)->plan;
  return flat - fsdp_units_shard_begin(plan->units, unit, s->rank);
}

static const void *from_state(void *context, const fsdp_checkpoint_range *range) {
  fsdp_checkpointer *s = context;
  fsdp_state_read_shard(s->config.executor, range->slot, range->unit,
                        in_shard(s, range->unit, range->first_elem), range->numel, s->staging);
  return s->staging;
}

// A range of this rank's slice, in the snapshot.
static const void *from_snapshot(void *context, const fsdp_checkpoint_range *range) {
  fsdp_checkpointer *s = context;
  const fsdp_plan *plan = fsdp_executor_config_of(s->config.executor)->plan;
  const fsdp_unit *unit = &plan->units->units[range->unit];
  int place = fsdp_mesh_group_of(&plan->units->mesh, unit->replica_axes, s->rank).rank;
  int64_t first = in_shard(s, range->unit, range->first_elem) - place * fsdp_unit_slice(unit);
  int64_t width = fsdp_dtype_bytes(fsdp_plan_slot_dtype(plan, range->slot));
  int tensor = plan->unit_state[range->unit].snapshot[range->slot];
  FSDP_CHECK(first >= 0 && (first + range->numel) * width <= plan->program->tensors[tensor].bytes,
             "elements %" PRId64 " + %" PRId64 " of the snapshot of unit %d", first, range->numel,
             range->unit);
  return (const unsigned char *)fsdp_executor_tensor(s->config.executor, tensor) + first * width;
}

// On the device's thread, when the copies are complete.
static void end_copying(void *checkpointer) {
  fsdp_checkpointer *s = checkpointer;
  pthread_mutex_lock(&s->mutex);
  s->copying = false;
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->mutex);
}

static void wait_for_copies(fsdp_checkpointer *s) {
  pthread_mutex_lock(&s->mutex);
  while (s->copying) pthread_cond_wait(&s->changed, &s->mutex);
  pthread_mutex_unlock(&s->mutex);
}

static bool is_removed(const fsdp_checkpointer *s) {
  return access(s->config.folder, F_OK) != 0 && errno == ENOENT;
}

// What fails without the experiment's folder fails for that reason.
static void explain_removed(const fsdp_checkpointer *s, fsdp_error *error) {
  if (error->status != FSDP_ERR_INPUT || !is_removed(s)) return;
  fsdp_fail(
      error, FSDP_ERR_INPUT,
      "%s: is not there any more: it was removed during the run, or this node does not share it; make it "
      "again for the saves to come",
      s->config.folder);
}

// Writes this rank's file.
static void run_write(fsdp_checkpointer *s) {
  if (s->snapshots) {
    // A delayed compute thread delays every rank, so the writers' CPU time would add up across ranks. The
    // lowest priority would starve the writer where no core is ever idle.
    setpriority(PRIO_PROCESS, 0, 10); // of the calling thread alone, on Linux
    wait_for_copies(s);
  }
  char temporary[FSDP_CHECKPOINT_PATH_BYTES];
  fsdp_checkpoint_path(s->config.folder, s->step, FSDP_CHECKPOINT_UNFINISHED, temporary);
  fsdp_checkpoint_file_config config = {.checkpoint = s->checkpoint,
                                        .rank = s->rank,
                                        .folder = temporary,
                                        .source = s->snapshots ? from_snapshot : from_state,
                                        .context = s,
                                        .piece_bytes = STAGING_BYTES};
  s->job_error.status = FSDP_OK;
  if (fsdp_checkpoint_find_mark(s->config.folder, s->step, s->checkpoint->save, &s->job_error) == FSDP_OK)
    fsdp_checkpoint_file_write(&config, &s->file_bytes, &s->job_error);
  explain_removed(s, &s->job_error);
}

// One line, for other threads print too: what was saved, and what is gone for it, of which the first
// `replaced` had its name.
static void print_saved(const fsdp_checkpointer *s, double seconds, int64_t replaced) {
  const fsdp_checkpoint *c = s->checkpoint;
  char final[FSDP_CHECKPOINT_PATH_BYTES], gone[512] = "";
  int64_t bytes = c->files_bytes;
  size_t used = 0;
  for (int i = 0; i < c->carried_count; i++) bytes += c->carried[i].bytes;
  for (int64_t i = replaced; i < s->gone.count && used < sizeof gone - 64; i++)
    used += (size_t)snprintf(gone + used, sizeof gone - used, "%s step-%08" PRId64,
                             i == replaced ? "; removed" : ",", s->gone.items[i].step);
  if (used) snprintf(gone + used, sizeof gone - used, " (--ckpt-keep %d)", s->config.keep.newest);
  fsdp_checkpoint_path(s->config.folder, s->step, "", final);
  printf("saved:     %s, %s in %.1f s%s%s\n", final, fsdp_print_bytes(bytes).text, seconds,
         replaced ? "; it replaces an older one of its step" : "", gone);
  fflush(stdout);
}

// Completes the checkpoint (rank 0). What went after the last one has no ranks' files any more.
static void run_commit(fsdp_checkpointer *s) {
  s->job_error.status = FSDP_OK;
  fsdp_checkpoint_remove_rest(s->config.folder, &s->gone);
  if (fsdp_checkpoint_commit(s->config.folder, &s->config.model, s->checkpoint, &s->index, &s->gone,
                             &s->job_error) == FSDP_OK) {
    const double seconds = (double)(fsdp_now_ns() - s->began_ns) / 1e9;
    const int64_t replaced = s->gone.count;
    fsdp_checkpoint_prune(s->config.folder, &s->config.keep, &s->index, &s->gone);
    print_saved(s, seconds, replaced);
    s->config.saved(s->config.context);
  }
  explain_removed(s, &s->job_error);
}

// ---- The thread

static void *run_thread(void *argument) {
  fsdp_checkpointer *s = argument;
  s->todo(s);
  pthread_mutex_lock(&s->mutex);
  s->todo = NULL;
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->mutex);
  return NULL;
}

static void join_thread(fsdp_checkpointer *s) {
  if (s->has_thread) pthread_join(s->thread, NULL);
  s->has_thread = false;
}

static void post(fsdp_checkpointer *s, job *todo) {
  if (!s->snapshots) {
    todo(s);
    return;
  }
  FSDP_CHECK(!s->todo, "a job for a writer that has one");
  join_thread(s);
  s->todo = todo;
  sigset_t all, before; // signals are the main thread's
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int failure = pthread_create(&s->thread, NULL, run_thread, s);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  FSDP_NEED_THREAD(failure, "the thread that writes checkpoints");
  s->has_thread = true;
}

static void wait_for_job(fsdp_checkpointer *s) {
  pthread_mutex_lock(&s->mutex);
  while (s->todo) pthread_cond_wait(&s->changed, &s->mutex);
  pthread_mutex_unlock(&s->mutex);
}

// ---- Creation

// "name=value\n" ... as an object.
static void take_options(json_t *object, const char *options) {
  while (*options) {
    size_t line = strcspn(options, "\n"), name = strcspn(options, "=");
    char *key = strndup(options, name < line ? name : line);
    FSDP_NEED_MEMORY(key, "a text");
    json_t *value = name < line ? json_stringn(options + name + 1, line - name - 1) : NULL;
    if (value) json_object_set_new(object, key, value);
    free(key);
    options += line + (options[line] == '\n');
  }
}

// A number that no other run has.
static uint64_t draw_run(void) {
  uint64_t run = 0;
  if (getrandom(&run, sizeof run, 0) != sizeof run)
    run = (uint64_t)fsdp_now_ns() ^ (uint64_t)getpid() << 32 ^ (uint64_t)time(NULL);
  return run;
}

fsdp_checkpointer *fsdp_checkpointer_create(const fsdp_checkpointer_config *config) {
  fsdp_checkpointer *s = fsdp_alloc_zeroed(1, sizeof *s);
  s->config = *config;
  s->rank = config->world->rank;
  s->checkpoint = fsdp_checkpoint_create(fsdp_executor_config_of(config->executor)->plan, config->model_name);
  take_options(s->checkpoint->options, config->options);
  s->run = draw_run();
  fsdp_world_broadcast(config->world, &s->run, (int64_t)sizeof s->run);
  pthread_mutex_init(&s->mutex, NULL);
  pthread_cond_init(&s->changed, NULL);
  s->snapshots = fsdp_executor_config_of(config->executor)->plan->config.snapshot;
  if (!s->snapshots) s->staging = fsdp_alloc((size_t)STAGING_BYTES);
  return s;
}

void fsdp_checkpointer_destroy(fsdp_checkpointer *s) {
  if (!s) return;
  fsdp_error ignored = {0};
  if (s->writing || s->committing) {
    fsdp_checkpointer_finish(s, &ignored);
    fsdp_checkpointer_warn(s);
  }
  join_thread(s);
  fsdp_checkpoint_remove_rest(s->config.folder, &s->gone);
  pthread_cond_destroy(&s->changed);
  pthread_mutex_destroy(&s->mutex);
  fsdp_checkpoint_destroy(s->checkpoint);
  free(s->index.entries);
  free(s->staging);
  free(s);
}

// ---- A save

void fsdp_checkpointer_warn(fsdp_checkpointer *s) {
  if (s->last_error.status == FSDP_OK) { // so far: what completes the checkpoint may still fail
    s->told_removed = false;
    return;
  }
  // What is not finite ends the run, with its own message.
  bool told = s->warned || s->last_error.status == FSDP_ERR_NOT_FINITE;
  // One warning for a folder that is not there any more, however many saves it fails.
  bool removed = is_removed(s);
  told = told || (removed && s->told_removed);
  s->told_removed = removed;
  if (s->rank == 0 && !told) {
    fprintf(stderr, "fsdp_train: warning: the checkpoint of step %" PRId64 " was not saved: %s\n", s->step,
            s->last_error.message);
  }
  s->warned = true;
}

bool fsdp_checkpointer_can_settle(fsdp_checkpointer *s) {
  if (!s || !(s->writing || s->committing)) return false;
  pthread_mutex_lock(&s->mutex);
  bool idle = !s->todo;
  pthread_mutex_unlock(&s->mutex);
  return idle;
}

// Whether any rank found the state to be not finite, which is worse than a disk that fails.
static void share_not_finite(fsdp_checkpointer *s) {
  fsdp_error found = s->job_error;
  if (found.status != FSDP_ERR_NOT_FINITE) found.status = FSDP_OK;
  if (fsdp_world_share_error(s->config.world, &found) != FSDP_OK) s->not_finite = found;
}

static void settle(fsdp_checkpointer *s) {
  s->writing = false;
  s->last_error = s->job_error;
  if (fsdp_world_share_error(s->config.world, &s->last_error) != FSDP_OK) {
    share_not_finite(s);
    fsdp_checkpoint_abandon(s->config.folder, s->checkpoint, s->rank);
    return;
  }
  s->checkpoint->files_bytes = fsdp_world_sum(s->config.world, s->file_bytes);
  s->committing = true;
  if (s->rank == 0) post(s, run_commit);
}

// All learn how rank 0 completed the checkpoint, and remove their files of what is gone for it.
static void finish_commit(fsdp_checkpointer *s) {
  struct {
    fsdp_error error;
    fsdp_checkpoint_gone_list gone;
  } outcome;
  wait_for_job(s);
  s->committing = false;
  memset(&outcome, 0, sizeof outcome);
  outcome.error = s->job_error;
  outcome.gone = s->gone;
  fsdp_world_broadcast(s->config.world, &outcome, (int64_t)sizeof outcome);
  s->last_error = outcome.error;
  fsdp_checkpoint_remove_files(s->config.folder, &outcome.gone, s->rank, s->config.world->size);
}

void fsdp_checkpointer_settle(fsdp_checkpointer *s) {
  if (s->writing)
    settle(s);
  else if (s->committing)
    finish_commit(s);
  fsdp_checkpointer_warn(s);
}

fsdp_status fsdp_checkpointer_finish(fsdp_checkpointer *s, fsdp_error *error) {
  if (s->writing) {
    if (s->snapshots) fsdp_executor_end_snapshot(s->config.executor);
    wait_for_job(s);
    settle(s);
  }
  if (s->committing) finish_commit(s);
  if (s->last_error.status != FSDP_OK) *error = s->last_error;
  return s->last_error.status;
}

fsdp_status fsdp_checkpointer_begin(fsdp_checkpointer *s, const fsdp_checkpoint_progress *progress,
                                    fsdp_error *error) {
  fsdp_checkpointer_finish(s, error);
  fsdp_checkpointer_warn(s);
  if (fsdp_checkpointer_not_finite(s, error) != FSDP_OK) return error->status;
  error->status = FSDP_OK;
  s->warned = false;
  s->began_ns = fsdp_now_ns();
  s->step = progress->step;
  s->checkpoint->progress = *progress;
  s->checkpoint->progress.results.saved_s = (int64_t)time(NULL);
  s->checkpoint->save = XXH64(&s->begun, sizeof s->begun, s->run);
  s->begun++;
  if (s->rank == 0) fsdp_checkpoint_begin(s->config.folder, s->step, s->checkpoint->save, error);
  explain_removed(s, error);
  s->last_error = *error;
  if (fsdp_world_share_error(s->config.world, &s->last_error) != FSDP_OK) {
    *error = s->last_error;
    return error->status;
  }
  if (s->snapshots) {
    s->copying = true; // no thread of the checkpointer runs now
    fsdp_executor_begin_snapshot(s->config.executor, end_copying, s);
  }
  s->writing = true;
  post(s, run_write);
  // Without a snapshot the file is written by now.
  return s->snapshots ? FSDP_OK : fsdp_checkpointer_finish(s, error);
}

fsdp_status fsdp_checkpointer_not_finite(const fsdp_checkpointer *s, fsdp_error *error) {
  if (s->not_finite.status != FSDP_OK) *error = s->not_finite;
  return s->not_finite.status;
}

int64_t fsdp_checkpointer_step(const fsdp_checkpointer *s) {
  return s->step;
}
