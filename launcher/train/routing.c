#include "launcher/train/routing.h"

#include "runtime/base/check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC "fsdprout"
enum { HEADER_BYTES = 64, NUMBERS = 7 };

struct fsdp_routing {
  int file; // of a record
  int failure;
  char *path, *temporary;
  const uint16_t *values;
  void *map; // of a replay
  size_t map_bytes;
  int64_t layers, slots, seq, batch;
  int *layer_of_module;
  int module_count;
};

static void numbers_of(const fsdp_routing_config *c, int64_t numbers[NUMBERS]) {
  const fsdp_model_config *m = &c->plan->config.model;
  const int64_t all[NUMBERS] = {
      1, fsdp_model_expert_layers(m), m->expert_slots, m->experts, c->plan->config.seq, c->global_batch, 0};
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

fsdp_status fsdp_routing_begin_record(const fsdp_routing_config *c, fsdp_error *error) {
  char header[HEADER_BYTES] = MAGIC;
  numbers_of(c, (int64_t *)(void *)(header + 8));
  char *temporary = temporary_of(c->path);
  const int file = open(temporary, O_WRONLY | O_CREAT | O_TRUNC, 0666);
  free(temporary);
  if (file < 0) return fail_file(c->path, "written", error);
  const bool written = write(file, header, sizeof header) == (ssize_t)sizeof header;
  close(file);
  return written ? FSDP_OK : fail_file(c->path, "written", error);
}

fsdp_status fsdp_routing_open_record(const fsdp_routing_config *c, fsdp_routing **routing,
                                     fsdp_error *error) {
  fsdp_routing *r = create(c);
  r->path = strdup(c->path);
  FSDP_NEED_MEMORY(r->path, "a path");
  r->temporary = temporary_of(c->path);
  r->file = open(r->temporary, O_WRONLY);
  *routing = r;
  return r->file >= 0 ? FSDP_OK : fail_file(c->path, "written", error);
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

static fsdp_status check_header(const fsdp_routing *r, const fsdp_routing_config *c, fsdp_error *error) {
  static const char *const names[NUMBERS] = {"version",        "layers with experts",  "experts of a token",
                                             "experts",        "tokens of a sequence", "sequences of a step",
                                             "reserved number"};
  int64_t found[NUMBERS], wanted[NUMBERS];
  if (r->map_bytes < HEADER_BYTES || memcmp(r->map, MAGIC, 8) != 0)
    return fsdp_fail(error, FSDP_ERR_INPUT, "%s: is no file of --routing-record; give one", c->path);
  memcpy(found, (const char *)r->map + 8, sizeof found);
  numbers_of(c, wanted);
  for (int i = 0; i < NUMBERS; i++)
    if (found[i] != wanted[i])
      return fsdp_fail(error, FSDP_ERR_INPUT,
                       "%s: its %s is %lld, and this run's %lld; give the file of a run of the same model, "
                       "sequences and batch",
                       c->path, names[i], (long long)found[i], (long long)wanted[i]);
  const int64_t step_bytes = 2 * wanted[1] * wanted[2] * wanted[4] * wanted[5];
  const int64_t steps = ((int64_t)r->map_bytes - HEADER_BYTES) / step_bytes;
  if (steps < c->steps)
    return fsdp_fail(error, FSDP_ERR_INPUT,
                     "%s: has the experts of %lld steps, and this run makes %lld; lower --max-steps", c->path,
                     (long long)steps, (long long)c->steps);
  for (int64_t i = 0; i < c->steps * step_bytes / 2; i++)
    if (r->values[i] >= wanted[3])
      return fsdp_fail(error, FSDP_ERR_INPUT, "%s: names expert %d of %lld; record it again", c->path,
                       r->values[i], (long long)wanted[3]);
  for (int64_t i = 0; i < c->steps * step_bytes / 2; i++)
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
  if (r->map) r->values = (const uint16_t *)(const void *)((const char *)r->map + HEADER_BYTES);
  return check_header(r, c, error);
}

void fsdp_routing_close(fsdp_routing *r) {
  if (!r) return;
  if (r->file >= 0) close(r->file);
  if (r->map) munmap(r->map, r->map_bytes);
  free(r->path);
  free(r->temporary);
  free(r->layer_of_module);
  free(r);
}

int64_t fsdp_routing_layer_of(const fsdp_routing *r, const fsdp_instr *instr) {
  if (instr->kind != FSDP_INSTR_OP || !fsdp_op_counts_choices(instr->op)) return -1;
  FSDP_CHECK(instr->module >= 0 && instr->module < r->module_count, "module %d", instr->module);
  return r->layer_of_module[instr->module];
}

static int64_t place_of(const fsdp_routing *r, int64_t step, int64_t sequence, int64_t position) {
  FSDP_CHECK(position >= 0 && position < r->seq, "position %lld of %lld", (long long)position,
             (long long)r->seq);
  return ((step * r->batch + sequence) * r->seq + position) * r->layers * r->slots;
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
