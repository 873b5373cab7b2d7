#include "launcher/train/routing.h"

#include "runtime/base/check.h"
#include "runtime/base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC "fsdprout"
// Numbers of the header: those that say a step's shape, those that say which tokens it has, and the last one.
enum { SHAPE = 6, DATA = SHAPE, SAME = 10, NUMBERS = 11, HEADER_BYTES = 8 + 8 * NUMBERS };

struct fsdp_routing {
  int file; // of a record
  int failure;
  const char *path;
  char *temporary;
  const uint16_t *values;
  void *map; // of a replay
  size_t map_bytes;
  int64_t layers, slots, seq, batch, first; // steps before the file's first
  int *layer_of_module;
  int module_count;
};

static void numbers_of(const fsdp_routing_config *c, int64_t numbers[NUMBERS]) {
  const fsdp_model_config *m = &c->plan->config.model;
  const int64_t all[NUMBERS] = {2,
                                fsdp_model_expert_layers(m),
                                m->expert_slots,
                                m->experts,
                                c->plan->config.seq,
                                c->sampler->global_batch,
                                (int64_t)c->data,
                                (int64_t)c->sampler->seed,
                                c->sampler->held_out,
                                c->shift,
                                c->first_step};
  memcpy(numbers, all, sizeof all);
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
  int64_t numbers[NUMBERS];
  numbers_of(c, numbers);
  r->file = -1;
  r->layers = numbers[1], r->slots = numbers[2], r->seq = numbers[4], r->batch = numbers[5];
  r->module_count = g->module_count;
  r->layer_of_module = fsdp_alloc((size_t)g->module_count * sizeof *r->layer_of_module);
  for (int m = 0; m < g->module_count; m++) r->layer_of_module[m] = -1;
  for (int v = 0; v < g->value_count; v++)
    if (g->values[v].role == FSDP_VALUE_STATISTIC)
      r->layer_of_module[g->values[v].module] = (int)(g->values[v].place / numbers[3]);
  return r;
}

static fsdp_status fail_file(const char *path, const char *what, fsdp_error *error) {
  return fsdp_fail(error, FSDP_ERR_INPUT, "%s: cannot be %s (%s); give another path", path, what,
                   strerror(errno));
}

static int64_t step_bytes_of(const int64_t numbers[NUMBERS]) {
  return 2 * numbers[1] * numbers[2] * numbers[4] * numbers[5];
}

// The numbers of an open record of the wanted shape that has the steps up to first_step. False: it is none.
static bool reads_steps(int file, const int64_t wanted[NUMBERS], int64_t found[NUMBERS]) {
  char header[HEADER_BYTES];
  struct stat about;
  if (pread(file, header, sizeof header, 0) != (ssize_t)sizeof header || memcmp(header, MAGIC, 8) != 0)
    return false;
  memcpy(found, header + 8, NUMBERS * sizeof *found);
  const int64_t first = found[SAME], steps = wanted[SAME];
  if (memcmp(found, wanted, SAME * sizeof *found) != 0 || first < 0 || first > steps) return false;
  return fstat(file, &about) == 0 && (about.st_size - HEADER_BYTES) / step_bytes_of(wanted) >= steps - first;
}

static bool copy(int from, int to, int64_t bytes) {
  char buffer[1 << 16];
  for (int64_t done = 0; done < bytes;) {
    const size_t most = bytes - done < (int64_t)sizeof buffer ? (size_t)(bytes - done) : sizeof buffer;
    const ssize_t count = pread(from, buffer, most, (off_t)done);
    if (count == 0) errno = EIO; // it has become shorter
    if (count <= 0 || write(to, buffer, (size_t)count) != count) return false;
    done += count;
  }
  return true;
}

static bool begin_new(const char *temporary, const int64_t numbers[NUMBERS]) {
  char header[HEADER_BYTES] = MAGIC;
  memcpy(header + 8, numbers, NUMBERS * sizeof *numbers);
  const int file = open(temporary, O_WRONLY | O_CREAT | O_TRUNC, 0666);
  if (file < 0) return false;
  const bool written = write(file, header, sizeof header) == (ssize_t)sizeof header;
  close(file);
  if (!written) unlink(temporary);
  return written;
}

fsdp_status fsdp_routing_check_path(const char *path, fsdp_error *error) {
  char magic[8] = "";
  struct stat about;
  if (stat(path, &about) != 0 || (S_ISREG(about.st_mode) && about.st_size == 0)) return FSDP_OK;
  const int file = S_ISREG(about.st_mode) ? open(path, O_RDONLY) : -1;
  const bool is_record = file >= 0 && pread(file, magic, 8, 0) == 8 && memcmp(magic, MAGIC, 8) == 0;
  if (file >= 0) close(file);
  if (is_record) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_INPUT,
                   "--routing-record %s: is there, but is no routing record, and would be lost; give another "
                   "FILE, or remove it",
                   path);
}

// FILE.tmp with the steps before, from FILE, or from FILE.tmp itself if the run was killed.
static fsdp_status continue_record(const fsdp_routing_config *c, const char *temporary, int64_t *kept_from,
                                   fsdp_error *error) {
  int64_t wanted[NUMBERS], found[NUMBERS];
  numbers_of(c, wanted);
  const int record = open(c->path, O_RDONLY), killed = open(temporary, O_RDWR);
  bool written = true;
  fsdp_status status = FSDP_OK;
  if (record >= 0 && reads_steps(record, wanted, found)) {
    const int file = open(temporary, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    const int64_t bytes = HEADER_BYTES + (c->first_step - found[SAME]) * step_bytes_of(wanted);
    written = file >= 0 && copy(record, file, bytes);
    if (file >= 0) close(file);
    *kept_from = found[SAME];
  } else if (killed >= 0 && reads_steps(killed, wanted, found)) {
    written = ftruncate(killed, HEADER_BYTES + (c->first_step - found[SAME]) * step_bytes_of(wanted)) == 0;
    *kept_from = found[SAME];
  } else if (record >= 0) {
    status =
        fsdp_fail(error, FSDP_ERR_INPUT,
                  "--routing-record %s: it is no record of this model, data, --seed and batch that has the "
                  "%lld step%s before this start, and would be lost; give another FILE, for the steps "
                  "from here on",
                  c->path, (long long)c->first_step, fsdp_plural(c->first_step));
  } else {
    written = begin_new(temporary, wanted);
  }
  if (!written) status = fail_file(c->path, "written", error);
  if (record >= 0) close(record);
  if (killed >= 0) close(killed);
  return status;
}

fsdp_status fsdp_routing_begin_record(const fsdp_routing_config *c, int64_t *kept_from, fsdp_error *error) {
  char *temporary = temporary_of(c->path);
  int64_t numbers[NUMBERS];
  fsdp_status status = FSDP_OK;
  numbers_of(c, numbers);
  *kept_from = c->first_step;
  if (c->first_step > 0)
    status = continue_record(c, temporary, kept_from, error);
  else if (!begin_new(temporary, numbers))
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
  const off_t place = 8 + SAME * (off_t)sizeof r->first;
  if (r->file >= 0 && pread(r->file, &r->first, sizeof r->first, place) == (ssize_t)sizeof r->first)
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

// A replayed record's numbers, and in `bytes` how many its header has. Version 1 does not say which tokens it
// is of.
static void read_numbers(const fsdp_routing *r, int64_t numbers[NUMBERS], size_t *bytes) {
  memcpy(numbers, (const char *)r->map + 8, NUMBERS * sizeof *numbers);
  *bytes = HEADER_BYTES;
  if (numbers[0] != 1) return;
  *bytes = 8 + (DATA + 1) * sizeof *numbers;
  numbers[0] = 2;
  numbers[SAME] = numbers[DATA];
  memset(&numbers[DATA], 0, (SAME - DATA) * sizeof *numbers);
}

// Compares the numbers from `first` up to `end`.
static fsdp_status check_numbers(const fsdp_routing *r, const fsdp_routing_config *c, int first, int end,
                                 fsdp_error *error) {
  static const char *const names[SAME] = {"version",
                                          "layers with experts",
                                          "experts of a token",
                                          "experts",
                                          "tokens of a sequence",
                                          "sequences of a step",
                                          "hash of the data",
                                          "--seed",
                                          "number of held-out samples",
                                          "steps between its own number and its place in the data"};
  int64_t found[NUMBERS], wanted[NUMBERS];
  size_t bytes;
  read_numbers(r, found, &bytes);
  numbers_of(c, wanted);
  for (int i = first; i < end; i++)
    if (found[i] != wanted[i])
      return fsdp_fail(
          error, FSDP_ERR_INPUT,
          "%s: its %s is %lld, and this run's %lld; give the file of a run of the same model, data, "
          "--seed, sequences and batch",
          c->path, names[i], (long long)found[i], (long long)wanted[i]);
  return FSDP_OK;
}

static fsdp_status check_header(fsdp_routing *r, const fsdp_routing_config *c, fsdp_error *error) {
  int64_t found[NUMBERS], wanted[NUMBERS];
  if (r->map_bytes < HEADER_BYTES || memcmp(r->map, MAGIC, 8) != 0)
    return fsdp_fail(error, FSDP_ERR_INPUT, "%s: is no file of --routing-record; give one", c->path);
  size_t header_bytes;
  read_numbers(r, found, &header_bytes);
  numbers_of(c, wanted);
  if (check_numbers(r, c, 0, SHAPE, error) != FSDP_OK) return error->status;
  const int64_t step_bytes = step_bytes_of(wanted), first = found[SAME];
  const int64_t end = first + ((int64_t)r->map_bytes - (int64_t)header_bytes) / step_bytes;
  if (end < c->steps)
    return fsdp_fail(error, FSDP_ERR_INPUT,
                     "%s: has the experts of %lld steps, and this run makes %lld; lower --max-steps", c->path,
                     (long long)end, (long long)c->steps);
  r->first = first;
  r->values = (const uint16_t *)(const void *)((const char *)r->map + header_bytes);
  const int64_t numel = (c->steps - first) * step_bytes / 2;
  for (int64_t i = 0; i < numel; i++)
    if (r->values[i] >= wanted[3])
      return fsdp_fail(error, FSDP_ERR_INPUT, "%s: names expert %d of %lld; record it again", c->path,
                       r->values[i], (long long)wanted[3]);
  for (int64_t i = 0; i < numel; i++)
    for (int64_t j = i - i % wanted[2]; j < i; j++)
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
  return check_header(r, c, error);
}

fsdp_status fsdp_routing_check_start(const fsdp_routing *r, const fsdp_routing_config *c, fsdp_error *error) {
  int64_t found[NUMBERS];
  size_t bytes;
  read_numbers(r, found, &bytes);
  if (found[DATA] && check_numbers(r, c, DATA, SAME, error) != FSDP_OK) return error->status;
  if (r->first <= c->first_step) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_INPUT,
                   "--routing-replay: the record begins after step %lld, where the run that wrote it was "
                   "resumed, and this run after step %lld; give a record with these steps",
                   (long long)r->first, (long long)c->first_step);
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
  FSDP_CHECK(position >= 0 && position < r->seq, "position %lld of %lld", (long long)position,
             (long long)r->seq);
  return (((step - r->first) * r->batch + sequence) * r->seq + position) * r->layers * r->slots;
}

void fsdp_routing_write(fsdp_routing *r, int64_t step, int64_t sequence, int64_t position, int64_t layer,
                        const int32_t *experts) {
  uint16_t values[1024];
  if (r->failure) return;
  const int64_t first = place_of(r, step, sequence, position) + layer * r->slots;
  for (int64_t done = 0, now; done < r->slots; done += now) {
    now = r->slots - done < 1024 ? r->slots - done : 1024;
    for (int64_t i = 0; i < now; i++) values[i] = (uint16_t)experts[done + i];
    const ssize_t written =
        pwrite(r->file, values, 2 * (size_t)now, (off_t)(HEADER_BYTES + 2 * (first + done)));
    if (written == 2 * now) continue;
    r->failure = written < 0 ? errno : ENOSPC; // what a partial write means
    return;
  }
}

void fsdp_routing_read(const fsdp_routing *r, int64_t step, int64_t sequence, int64_t position,
                       int32_t *experts) {
  const uint16_t *values = r->values + place_of(r, step, sequence, position);
  for (int64_t i = 0; i < r->layers * r->slots; i++) experts[i] = values[i];
}

int64_t fsdp_routing_width(const fsdp_routing *r) {
  return r->layers * r->slots;
}
