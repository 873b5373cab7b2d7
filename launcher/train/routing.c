#include "launcher/train/routing.h"

#include "runtime/base/check.h"
#include "runtime/base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

// How a file begins.
typedef struct header {
  char magic[8];
  int64_t version, layers, slots, experts, seq, batch; // with the first of these, what says a step's shape
  int64_t first;                                       // steps before the file's first
} header;
#define SHAPE_BYTES offsetof(header, first)
_Static_assert(sizeof(header) == 64, "a header without padding");

struct fsdp_routing {
  header header;
  int file; // of a record
  int failure;
  const char *path;
  char *temporary;
  const uint16_t *values;
  void *map; // of a replay
  size_t map_bytes;
  int *layer_of_module;
  int module_count;
};

static header header_of(const fsdp_routing_config *c) {
  const fsdp_model_config *m = &c->plan->config.model;
  return (header){.magic = {'f', 's', 'd', 'p', 'r', 'o', 'u', 't'},
                  .version = 1,
                  .layers = fsdp_model_expert_layers(m),
                  .slots = m->expert_slots,
                  .experts = m->experts,
                  .seq = c->plan->config.seq,
                  .batch = c->global_batch,
                  .first = c->first_step};
}

// Beside `path`; the caller frees it.
static char *temporary_of(const char *path) {
  size_t bytes = strlen(path) + 5;
  char *name = fsdp_alloc(bytes);
  snprintf(name, bytes, "%s.tmp", path);
  return name;
}

static fsdp_routing *create(const fsdp_routing_config *c) {
  fsdp_routing *r = fsdp_alloc_zeroed(1, sizeof *r);
  const fsdp_graph *g = c->plan->graph;
  r->header = header_of(c);
  r->file = -1;
  r->module_count = g->module_count;
  r->layer_of_module = fsdp_alloc((size_t)g->module_count * sizeof *r->layer_of_module);
  for (int m = 0; m < g->module_count; m++) r->layer_of_module[m] = -1;
  for (int v = 0; v < g->value_count; v++)
    if (g->values[v].role == FSDP_VALUE_STATISTIC)
      r->layer_of_module[g->values[v].module] = (int)(g->values[v].place / r->header.experts);
  return r;
}

static fsdp_status fail_file(const char *path, const char *what, fsdp_error *error) {
  return fsdp_fail(error, FSDP_ERR_INPUT, "%s: cannot be %s (%s); give another path", path, what,
                   strerror(errno));
}

static int64_t step_bytes_of(const header *h) {
  return 2 * h->layers * h->slots * h->seq * h->batch;
}

// The bytes of a record up to step `step`.
static int64_t bytes_to(const header *h, int64_t step) {
  return (int64_t)sizeof *h + (step - h->first) * step_bytes_of(h);
}

// The header of an open record of the wanted shape that has the steps up to its first. False: it is none.
static bool reads_steps(int file, const header *wanted, header *found) {
  struct stat about;
  return pread(file, found, sizeof *found, 0) == (ssize_t)sizeof *found &&
         memcmp(found, wanted, SHAPE_BYTES) == 0 && found->first >= 0 && found->first <= wanted->first &&
         fstat(file, &about) == 0 && about.st_size >= bytes_to(found, wanted->first);
}

static bool copy(int from, int to, int64_t bytes) {
  off_t done = 0;
  ssize_t count = 1;
  while (done < bytes && count > 0) count = sendfile(to, from, &done, (size_t)(bytes - done));
  if (count == 0) errno = EIO; // it has become shorter
  return count > 0;
}

static bool begin_new(const char *temporary, const header *begin) {
  const int file = open(temporary, O_WRONLY | O_CREAT | O_TRUNC, 0666);
  if (file < 0) return false;
  const bool written = write(file, begin, sizeof *begin) == (ssize_t)sizeof *begin;
  close(file);
  return written;
}

// FILE.tmp with the steps before, from FILE, or from FILE.tmp itself if the run was killed.
static fsdp_status continue_record(const fsdp_routing_config *c, const char *temporary, int64_t *kept_from,
                                   fsdp_error *error) {
  const header wanted = header_of(c);
  header found;
  const int record = open(c->path, O_RDONLY), killed = open(temporary, O_RDWR);
  bool written = true;
  fsdp_status status = FSDP_OK;
  if (record >= 0 && reads_steps(record, &wanted, &found)) {
    const int file = open(temporary, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    written = file >= 0 && copy(record, file, bytes_to(&found, c->first_step));
    if (file >= 0) close(file);
    *kept_from = found.first;
  } else if (killed >= 0 && reads_steps(killed, &wanted, &found)) {
    written = ftruncate(killed, bytes_to(&found, c->first_step)) == 0;
    *kept_from = found.first;
  } else if (record >= 0) {
    status = fsdp_fail(error, FSDP_ERR_INPUT,
                       "--routing-record %s: it is no record of this model, sequences and batch that has the "
                       "%lld step%s before this start, and would be lost; give another FILE, for the steps "
                       "from here on",
                       c->path, (long long)c->first_step, fsdp_plural(c->first_step));
  } else {
    written = begin_new(temporary, &wanted);
  }
  if (!written) status = fail_file(c->path, "written", error);
  if (record >= 0) close(record);
  if (killed >= 0) close(killed);
  return status;
}

fsdp_status fsdp_routing_begin_record(const fsdp_routing_config *c, int64_t *kept_from, fsdp_error *error) {
  char *temporary = temporary_of(c->path);
  const header begin = header_of(c);
  fsdp_status status = FSDP_OK;
  *kept_from = c->first_step;
  if (c->first_step > 0)
    status = continue_record(c, temporary, kept_from, error);
  else if (!begin_new(temporary, &begin))
    status = fail_file(c->path, "written", error);
  free(temporary);
  return status;
}

fsdp_status fsdp_routing_open_record(const fsdp_routing_config *c, fsdp_routing **routing,
                                     fsdp_error *error) {
  fsdp_routing *r = create(c);
  r->path = c->path;
  r->temporary = temporary_of(c->path);
  r->file = open(r->temporary, O_RDWR);
  *routing = r;
  if (r->file >= 0 && pread(r->file, &r->header, sizeof r->header, 0) == (ssize_t)sizeof r->header)
    return FSDP_OK;
  return fail_file(c->path, "written", error);
}

int fsdp_routing_failure(const fsdp_routing *r) {
  return r->failure;
}

fsdp_status fsdp_routing_end_record(fsdp_routing *r, int failure, fsdp_error *error) {
  errno = failure;
  if (!failure && rename(r->temporary, r->path) == 0) return FSDP_OK;
  fail_file(r->path, "written", error);
  unlink(r->temporary);
  return error->status;
}

static fsdp_status check_header(fsdp_routing *r, const fsdp_routing_config *c, fsdp_error *error) {
  static const char *const names[] = {"version", "layers with experts",  "experts of a token",
                                      "experts", "tokens of a sequence", "sequences of a step"};
  const header *found = r->map, *wanted = &r->header;
  if (r->map_bytes < sizeof *found || memcmp(found->magic, wanted->magic, sizeof found->magic) != 0)
    return fsdp_fail(error, FSDP_ERR_INPUT, "%s: is no file of --routing-record; give one", c->path);
  const int64_t *has = &found->version, *wants = &wanted->version;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (has[i] != wants[i])
      return fsdp_fail(error, FSDP_ERR_INPUT,
                       "%s: its %s is %lld, and this run's %lld; give the file of a run of the same model, "
                       "sequences and batch",
                       c->path, names[i], (long long)has[i], (long long)wants[i]);
  const int64_t step_bytes = step_bytes_of(wanted), first = found->first;
  const int64_t end = first + ((int64_t)r->map_bytes - (int64_t)sizeof *found) / step_bytes;
  if (end < c->steps)
    return fsdp_fail(error, FSDP_ERR_INPUT,
                     "%s: has the experts of %lld steps, and this run makes %lld; lower --max-steps", c->path,
                     (long long)end, (long long)c->steps);
  r->header.first = first;
  const int64_t numel = (c->steps - first) * step_bytes / 2;
  for (int64_t i = 0; i < numel; i++)
    if (r->values[i] >= wanted->experts)
      return fsdp_fail(error, FSDP_ERR_INPUT, "%s: names expert %d of %lld; record it again", c->path,
                       r->values[i], (long long)wanted->experts);
  for (int64_t i = 0; i < numel; i++)
    for (int64_t j = i - i % wanted->slots; j < i; j++)
      if (r->values[i] == r->values[j])
        return fsdp_fail(error, FSDP_ERR_INPUT, "%s: sends a token to expert %d twice; record it again",
                         c->path, r->values[i]);
  return FSDP_OK;
}

fsdp_status fsdp_routing_open_replay(const fsdp_routing_config *c, fsdp_routing **routing,
                                     fsdp_error *error) {
  fsdp_routing *r = create(c);
  struct stat information;
  const int file = open(c->path, O_RDONLY);
  *routing = r;
  if (file < 0) return fail_file(c->path, "read", error);
  if (fstat(file, &information) == 0 && information.st_size > 0) {
    r->map = mmap(NULL, (size_t)information.st_size, PROT_READ, MAP_SHARED, file, 0);
    if (r->map == MAP_FAILED) r->map = NULL;
    if (r->map) r->map_bytes = (size_t)information.st_size;
  }
  close(file);
  if (r->map) r->values = (const void *)((const header *)r->map + 1);
  return check_header(r, c, error);
}

fsdp_status fsdp_routing_check_start(const fsdp_routing *r, int64_t first_step, fsdp_error *error) {
  if (r->header.first <= first_step) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_INPUT,
                   "--routing-replay: the record begins after step %lld, where the run that wrote it was "
                   "resumed, and this run after step %lld; give a record with these steps",
                   (long long)r->header.first, (long long)first_step);
}

void fsdp_routing_close(fsdp_routing *r) {
  if (!r) return;
  if (r->file >= 0) close(r->file);
  if (r->map) munmap(r->map, r->map_bytes);
  free(r->temporary);
  free(r->layer_of_module);
  free(r);
}

int64_t fsdp_routing_layer_of(const fsdp_routing *r, const fsdp_instr *instr) {
  if (instr->kind != FSDP_INSTR_OP || instr->op != FSDP_PLAN_OP_ROUTE_COUNTS) return -1;
  FSDP_CHECK(instr->module >= 0 && instr->module < r->module_count, "module %d", instr->module);
  return r->layer_of_module[instr->module];
}

static int64_t place_of(const fsdp_routing *r, int64_t step, int64_t sequence, int64_t position) {
  FSDP_CHECK(position >= 0 && position < r->header.seq, "position %lld of %lld", (long long)position,
             (long long)r->header.seq);
  return (((step - r->header.first) * r->header.batch + sequence) * r->header.seq + position) *
         r->header.layers * r->header.slots;
}

void fsdp_routing_write(fsdp_routing *r, int64_t step, int64_t sequence, int64_t position, int64_t layer,
                        const int32_t *experts) {
  uint16_t values[1024];
  if (r->failure) return;
  const int64_t first = place_of(r, step, sequence, position) + layer * r->header.slots;
  for (int64_t done = 0, now; done < r->header.slots; done += now) {
    now = r->header.slots - done < 1024 ? r->header.slots - done : 1024;
    for (int64_t i = 0; i < now; i++) values[i] = (uint16_t)experts[done + i];
    const ssize_t written =
        pwrite(r->file, values, 2 * (size_t)now, (off_t)((int64_t)sizeof r->header + 2 * (first + done)));
    if (written == 2 * now) continue;
    r->failure = written < 0 ? errno : ENOSPC; // what a partial write means
    return;
  }
}

void fsdp_routing_read(const fsdp_routing *r, int64_t step, int64_t sequence, int64_t position,
                       int32_t *experts) {
  const uint16_t *values = r->values + place_of(r, step, sequence, position);
  for (int64_t i = 0; i < r->header.layers * r->header.slots; i++) experts[i] = values[i];
}

int64_t fsdp_routing_width(const fsdp_routing *r) {
  return r->header.layers * r->header.slots;
}
