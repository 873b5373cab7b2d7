#include "runtime/checkpoint/checkpoint_file.h"

#include "runtime/base/check.h"
#include "runtime/base/descriptors.h"
#include "runtime/base/finite.h"
#include "runtime/base/progress.h"
#include "runtime/base/size.h"
#include "runtime/checkpoint/checkpoint_ends.h"
#include "runtime/checkpoint/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define CHUNK       FSDP_CHECKPOINT_CHUNK_BYTES
#define PATH_BYTES  FSDP_CHECKPOINT_FILE_BYTES
#define WINDOW      64 // chunks that are read at once, at most
#define PIECE_BYTES ((int64_t)4 << 20)

// ---- Writing

// The data stream: appended to the file, and hashed chunk by chunk.
typedef struct stream {
  fsdp_safetensors_writer *writer;
  XXH3_state_t *hash; // of the chunk that is not full yet
  int64_t chunk_fill, chunks;
  uint64_t *sums;
} stream;

static fsdp_status check_finite(const fsdp_checkpoint_file_config *config, const fsdp_checkpoint_range *range,
                                const void *values, fsdp_error *error) {
  const fsdp_checkpoint *c = config->checkpoint;
  const fsdp_checkpoint_slot *slot = &c->slots[range->slot];
  const int64_t bad = fsdp_first_not_finite(slot->dtype, values, range->numel);
  if (bad < 0) return FSDP_OK;
  int64_t index = range->first_elem + bad;
  const int owner = fsdp_checkpoint_element(c, range->unit, config->rank, index, &index);
  return fsdp_fail(error, FSDP_ERR_NOT_FINITE,
                   "%s of %s is %s at element %" PRId64
                   ": the state is not saved; lower --lr, raise --warmup-steps, or look at the data",
                   slot->name, owner < 0 ? "the padding" : c->params[owner].name,
                   fsdp_not_finite_name(slot->dtype, values, bad), index);
}

static void end_chunk(stream *s) {
  s->sums[s->chunks++] = XXH3_64bits_digest(s->hash);
  XXH3_64bits_reset(s->hash);
  s->chunk_fill = 0;
}

static fsdp_status append(stream *s, const unsigned char *data, int64_t bytes, fsdp_error *error) {
  for (int64_t done = 0; done < bytes;) {
    if (s->chunk_fill == 0 && bytes - done >= CHUNK) { // in one go, which is faster
      s->sums[s->chunks++] = XXH3_64bits(data + done, (size_t)CHUNK);
      done += CHUNK;
      continue;
    }
    int64_t part = fsdp_min_i64(bytes - done, CHUNK - s->chunk_fill);
    XXH3_64bits_update(s->hash, data + done, (size_t)part);
    s->chunk_fill += part;
    done += part;
    if (s->chunk_fill == CHUNK) end_chunk(s);
  }
  return fsdp_safetensors_writer_append(s->writer, data, bytes, error);
}

static fsdp_status append_ranges(stream *s, const fsdp_checkpoint_file_config *config, fsdp_error *error) {
  const fsdp_checkpoint *c = config->checkpoint;
  const int64_t limit = config->piece_bytes ? config->piece_bytes : PIECE_BYTES;
  for (int slot = 0; slot < c->slot_count; slot++) {
    int64_t width = fsdp_dtype_bytes(c->slots[slot].dtype);
    for (int u = 0; u < c->unit_count; u++) {
      int64_t first, numel;
      fsdp_checkpoint_piece(c, config->rank, u, &first, &numel);
      for (int64_t done = 0, now; done < numel; done += now) {
        now = fsdp_min_i64(limit / width, numel - done);
        const fsdp_checkpoint_range range = {slot, u, first + done, now};
        const void *values = config->source(config->context, &range);
        fsdp_status status = check_finite(config, &range, values, error);
        if (status == FSDP_OK) status = append(s, values, now * width, error);
        if (status != FSDP_OK) return status;
      }
    }
  }
  return FSDP_OK;
}

// Names are shared by all units of a slot through `names`, which the caller frees.
static fsdp_safetensors_tensor *declare(const fsdp_checkpoint *c, int rank, int64_t sums, char **names,
                                        int *count) {
  enum { BYTES = FSDP_NAME_BYTES + 16 };
  size_t capacity = (size_t)(c->unit_count * c->slot_count) + 1;
  fsdp_safetensors_tensor *tensors = fsdp_alloc_zeroed(capacity, sizeof *tensors);
  *names = fsdp_alloc(capacity * BYTES);
  *count = 0;
  for (int slot = 0; slot < c->slot_count; slot++) {
    for (int u = 0; u < c->unit_count; u++) {
      int64_t first, numel;
      fsdp_checkpoint_piece(c, rank, u, &first, &numel);
      if (numel == 0) continue;
      char *name = *names + *count * BYTES;
      snprintf(name, BYTES, "%s/%s", c->slots[slot].name, c->units[u].path);
      tensors[(*count)++] =
          (fsdp_safetensors_tensor){.name = name, .dtype = c->slots[slot].dtype, .dims = 1, .shape = {numel}};
    }
  }
  tensors[(*count)++] =
      (fsdp_safetensors_tensor){.name = "checksums", .dtype = FSDP_I32, .dims = 2, .shape = {sums, 2}};
  return tensors;
}

// The data, the checksums of its chunks, and that of the whole file.
static fsdp_status write_data(stream *s, const fsdp_checkpoint_file_config *config,
                              fsdp_checkpoint_ends *ends, fsdp_error *error) {
  fsdp_status status = append_ranges(s, config, error);
  if (status != FSDP_OK) return status;
  if (s->chunk_fill > 0) end_chunk(s);
  const void *header = fsdp_safetensors_writer_header(s->writer, &ends->header_bytes);
  fsdp_checkpoint_ends_hash(ends, header, s->sums, s->sums + s->chunks);
  return fsdp_safetensors_writer_append(s->writer, s->sums,
                                        fsdp_checkpoint_ends_sums(ends) * (int64_t)sizeof *s->sums, error);
}

// The folder of the ranks' files that this one belongs to; another rank may have made it.
static fsdp_status make_folder(const char *path, fsdp_error *error) {
  char folder[PATH_BYTES];
  snprintf(folder, sizeof folder, "%s", path);
  *strrchr(folder, '/') = 0;
  if (mkdir(folder, 0777) == 0 || errno == EEXIST) return FSDP_OK;
  return fsdp_fail_write(folder, "making it", error);
}

fsdp_status fsdp_checkpoint_file_write(const fsdp_checkpoint_file_config *config, int64_t *file_bytes,
                                       fsdp_error *error) {
  const fsdp_checkpoint *c = config->checkpoint;
  char path[PATH_BYTES], *names;
  int count;
  *file_bytes = 0;
  fsdp_checkpoint_file_path(c, config->folder, config->rank, path);
  if (c->file_count > FSDP_CHECKPOINT_FOLDER_FILES && make_folder(path, error) != FSDP_OK)
    return error->status;
  fsdp_checkpoint_ends ends = {
      .checkpoint = c, .rank = config->rank, .data_bytes = fsdp_checkpoint_data_bytes(c, config->rank)};
  int64_t sums = fsdp_checkpoint_ends_sums(&ends);
  fsdp_safetensors_tensor *tensors = declare(c, config->rank, sums, &names, &count);
  fsdp_safetensors_writer_config writer = {
      .path = path, .tensors = tensors, .tensor_count = count, .format = "fsdp checkpoint", .direct = true};
  stream s = {.hash = XXH3_createState(), .sums = fsdp_alloc((size_t)sums * sizeof *s.sums)};
  FSDP_NEED_MEMORY(s.hash, "a hash");
  XXH3_64bits_reset(s.hash);
  fsdp_status status = fsdp_safetensors_writer_create(&writer, &s.writer, error);
  if (status == FSDP_OK) {
    status = write_data(&s, config, &ends, error);
    if (status == FSDP_OK)
      status = fsdp_safetensors_writer_finish(s.writer, error);
    else
      fsdp_safetensors_writer_abandon(s.writer);
  }
  if (status == FSDP_OK) *file_bytes = fsdp_checkpoint_ends_file_bytes(&ends);
  XXH3_freeState(s.hash);
  free(s.sums);
  free(names);
  free(tensors);
  return status;
}

// ---- Reading

typedef struct source_file {
  int descriptor; // -1: not open yet
  bool verified;  // header and sums
  uint64_t *sums;
  int64_t header_bytes, data_bytes;
  int64_t *offsets; // of every (slot, unit) in the data
  // The last chunk that was read of it: a unit's end and the next one's beginning often share one.
  unsigned char *tail;
  int64_t tail_chunk;
} source_file;

struct fsdp_checkpoint_reader {
  const fsdp_checkpoint *checkpoint;
  char *folder;
  source_file *files;
  int64_t bytes_read;
  // The chunks that were read last.
  int window_file;
  int64_t window_chunk, window_count;
  unsigned char *window;
  fsdp_box_list *boxes; // by parameter, once it is read (boxes_of)
};

static fsdp_status fail_missing(const char *path, fsdp_error *error) {
  return fsdp_fail(error, FSDP_ERR_INPUT,
                   "%s: cannot be opened (%s), but belongs to the checkpoint; use another one", path,
                   strerror(errno));
}

static fsdp_status check_rank(const fsdp_checkpoint *c, const char *folder, int rank, fsdp_error *error) {
  char path[PATH_BYTES];
  fsdp_checkpoint_ends ends = {.checkpoint = c, .rank = rank};
  int descriptor = open(fsdp_checkpoint_file_path(c, folder, rank, path), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return fail_missing(path, error);
  fsdp_status status = fsdp_checkpoint_ends_measure(path, descriptor, &ends, error);
  close(descriptor);
  return status;
}

static fsdp_status check_carried(const fsdp_checkpoint_file *file, const char *folder, fsdp_error *error) {
  char path[PATH_BYTES];
  struct stat information;
  snprintf(path, sizeof path, "%.4200s/" FSDP_CHECKPOINT_CARRIED "/%s", folder, file->name);
  if (stat(path, &information) != 0) return fail_missing(path, error);
  if (S_ISREG(information.st_mode) && information.st_size == file->bytes) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_INPUT,
                   "%s: has %lld bytes, but the checkpoint says %lld: it is damaged; use another checkpoint",
                   path, (long long)information.st_size, (long long)file->bytes);
}

fsdp_status fsdp_checkpoint_check_files(const fsdp_checkpoint *c, const char *folder, int part, int parts,
                                        fsdp_error *error) {
  fsdp_status status = FSDP_OK;
  for (int r = part; r < c->file_count && status == FSDP_OK; r += parts)
    status = check_rank(c, folder, r, error);
  for (int i = part; i < c->carried_count && status == FSDP_OK; i += parts)
    status = check_carried(&c->carried[i], folder, error);
  return status;
}

fsdp_checkpoint_reader *fsdp_checkpoint_reader_create(const fsdp_checkpoint *checkpoint, const char *folder) {
  fsdp_checkpoint_reader *r = fsdp_alloc_zeroed(1, sizeof *r);
  r->checkpoint = checkpoint;
  r->folder = fsdp_strdup(folder, "a path");
  r->files = fsdp_alloc_zeroed((size_t)checkpoint->file_count, sizeof *r->files);
  r->boxes = fsdp_alloc_zeroed((size_t)checkpoint->param_count, sizeof *r->boxes);
  for (int i = 0; i < checkpoint->file_count; i++) r->files[i].descriptor = -1;
  r->window = fsdp_alloc((size_t)(WINDOW * CHUNK));
  r->window_file = -1;
  return r;
}

void fsdp_checkpoint_reader_destroy(fsdp_checkpoint_reader *r) {
  if (!r) return;
  for (int i = 0; i < r->checkpoint->file_count; i++) {
    if (r->files[i].descriptor >= 0) close(r->files[i].descriptor);
    free(r->files[i].sums);
    free(r->files[i].tail);
    free(r->files[i].offsets);
  }
  for (int p = 0; p < r->checkpoint->param_count; p++) fsdp_box_list_free(&r->boxes[p]);
  free(r->window);
  free(r->boxes);
  free(r->files);
  free(r->folder);
  free(r);
}

int64_t fsdp_checkpoint_reader_bytes(const fsdp_checkpoint_reader *r) {
  return r->bytes_read;
}

static fsdp_status fail_damaged(const fsdp_checkpoint_reader *r, int rank, const char *what,
                                fsdp_error *error) {
  char path[PATH_BYTES];
  return fsdp_fail(error, FSDP_ERR_INPUT, "%s: %s: it is damaged; use another checkpoint",
                   fsdp_checkpoint_file_path(r->checkpoint, r->folder, rank, path), what);
}

static int64_t *make_offsets(const fsdp_checkpoint *c, int rank) {
  int64_t offset = 0, *offsets = fsdp_alloc((size_t)(c->unit_count * c->slot_count) * sizeof *offsets);
  for (int slot = 0; slot < c->slot_count; slot++) {
    for (int u = 0; u < c->unit_count; u++) {
      int64_t first, numel;
      fsdp_checkpoint_piece(c, rank, u, &first, &numel);
      offsets[slot * c->unit_count + u] = offset;
      offset += numel * fsdp_dtype_bytes(c->slots[slot].dtype);
    }
  }
  return offsets;
}

static fsdp_status open_file(fsdp_checkpoint_reader *r, int rank, fsdp_error *error) {
  source_file *file = &r->files[rank];
  char path[PATH_BYTES];
  fsdp_checkpoint_ends ends = {.checkpoint = r->checkpoint, .rank = rank};
  fsdp_checkpoint_file_path(r->checkpoint, r->folder, rank, path);
  // A reader that has found damage must not read on.
  FSDP_CHECK(file->descriptor < 0, "%s: read again after it failed", path);
  file->descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file->descriptor < 0) {
    return fsdp_fail(error, FSDP_ERR_INPUT, "%s: cannot be opened (%s); use another checkpoint", path,
                     strerror(errno));
  }
  fsdp_status status = fsdp_checkpoint_ends_measure(path, file->descriptor, &ends, error);
  if (status == FSDP_OK)
    status = fsdp_checkpoint_ends_read(path, file->descriptor, &ends, &file->sums, error);
  if (status != FSDP_OK) return status;
  file->offsets = make_offsets(r->checkpoint, rank);
  file->data_bytes = ends.data_bytes;
  file->tail = fsdp_alloc((size_t)CHUNK);
  file->tail_chunk = -1;
  file->header_bytes = ends.header_bytes;
  r->bytes_read += fsdp_checkpoint_ends_file_bytes(&ends) - ends.data_bytes;
  file->verified = true;
  return FSDP_OK;
}

// Brings chunk `chunk` of a file, and those after it up to `last`, into the window, each verified.
static fsdp_status fill_window(fsdp_checkpoint_reader *r, int rank, int64_t chunk, int64_t last,
                               fsdp_error *error) {
  source_file *file = &r->files[rank];
  int64_t count = fsdp_min_i64(WINDOW, last - chunk + 1), begin = chunk * CHUNK;
  int64_t bytes = fsdp_min_i64(count * CHUNK, file->data_bytes - begin);
  r->window_file = -1;
  if (!fsdp_read_at(file->descriptor, file->header_bytes + begin, r->window, bytes)) {
    return fail_damaged(r, rank, "it cannot be read to its end", error);
  }
  r->bytes_read += bytes;
  fsdp_progress_mark();
  for (int64_t i = 0; i < count; i++) {
    int64_t size = fsdp_min_i64(CHUNK, bytes - i * CHUNK);
    if (XXH3_64bits(r->window + i * CHUNK, (size_t)size) == file->sums[chunk + i]) continue;
    char what[96];
    snprintf(what, sizeof what, "the checksum of bytes %" PRId64 " to %" PRId64 " of its data does not match",
             begin + i * CHUNK, begin + i * CHUNK + size);
    return fail_damaged(r, rank, what, error);
  }
  r->window_file = rank;
  r->window_chunk = chunk;
  r->window_count = count;
  file->tail_chunk = chunk + count - 1;
  memcpy(file->tail, r->window + (count - 1) * CHUNK, (size_t)(bytes - (count - 1) * CHUNK));
  return FSDP_OK;
}

// Bytes [begin, begin + bytes) of a file's data.
static fsdp_status read_data(fsdp_checkpoint_reader *r, int rank, int64_t begin, int64_t bytes,
                             unsigned char *out, fsdp_error *error) {
  int64_t last = (begin + bytes - 1) / CHUNK;
  while (bytes > 0) {
    int64_t chunk = begin / CHUNK, data_bytes = r->files[rank].data_bytes;
    const source_file *file = &r->files[rank];
    bool held =
        r->window_file == rank && chunk >= r->window_chunk && chunk < r->window_chunk + r->window_count;
    bool tail = !held && chunk == file->tail_chunk;
    if (!held && !tail) {
      fsdp_status status = fill_window(r, rank, chunk, last, error);
      if (status != FSDP_OK) return status;
    }
    int64_t first = tail ? chunk : r->window_chunk, count = tail ? 1 : r->window_count;
    int64_t now = fsdp_min_i64(bytes, fsdp_min_i64((first + count) * CHUNK, data_bytes) - begin);
    memcpy(out, (tail ? file->tail : r->window) + (begin - first * CHUNK), (size_t)now);
    out += now;
    begin += now;
    bytes -= now;
  }
  return FSDP_OK;
}

// A run of elements under way from a file's data to the caller's memory.
typedef struct transfer {
  fsdp_checkpoint_reader *reader;
  int rank;
  int64_t begin, bytes; // in the file's data
  unsigned char *to;
} transfer;

static fsdp_status flush(transfer *t, fsdp_error *error) {
  int64_t bytes = t->bytes;
  t->bytes = 0;
  return bytes > 0 ? read_data(t->reader, t->rank, t->begin, bytes, t->to, error) : FSDP_OK;
}

// Adds a run; one that follows the last on both sides is read together with it.
static fsdp_status transfer_run(transfer *t, int rank, int64_t begin, int64_t bytes, unsigned char *to,
                                fsdp_error *error) {
  if (t->bytes > 0 && t->rank == rank && t->begin + t->bytes == begin && t->to + t->bytes == to) {
    t->bytes += bytes;
    return FSDP_OK;
  }
  fsdp_status status = flush(t, error);
  t->rank = rank, t->begin = begin, t->bytes = bytes, t->to = to;
  return status;
}

// The requested box of a slot, and where its data goes.
typedef struct request {
  fsdp_box wanted; // its offsets count from `out`
  int slot, param;
  int64_t width;
  unsigned char *out;
} request;

// Neighbouring elements of the flat buffer that a rank has of a unit, and where they go.
typedef struct run {
  int rank;
  int64_t first, numel;
  unsigned char *to;
} run;

// Reads them from the files of all ranks that hold some.
static fsdp_status read_run(transfer *t, const request *q, run left, fsdp_error *error) {
  fsdp_checkpoint_reader *r = t->reader;
  const fsdp_checkpoint *c = r->checkpoint;
  const int unit = c->params[q->param].unit;
  while (left.numel > 0) {
    const int holder = fsdp_checkpoint_holder(c, unit, left.rank, left.first);
    int64_t first, numel;
    fsdp_checkpoint_piece(c, holder, unit, &first, &numel);
    const int64_t now = fsdp_min_i64(left.numel, first + numel - left.first);
    fsdp_status status = r->files[holder].verified ? FSDP_OK : open_file(r, holder, error);
    if (status != FSDP_OK) return status;
    const int64_t begin = r->files[holder].offsets[q->slot * c->unit_count + unit];
    status = transfer_run(t, holder, begin + (left.first - first) * q->width, now * q->width, left.to, error);
    if (status != FSDP_OK) return status;
    left.first += now;
    left.numel -= now;
    left.to += now * q->width;
  }
  return FSDP_OK;
}

// Reads what the wanted box shares with a box of the parameter in a rank's flat buffer, row by row.
static fsdp_status read_shared(transfer *t, const request *q, const fsdp_box *stored, fsdp_error *error) {
  fsdp_box from, to;
  if (!fsdp_box_intersect(stored, &q->wanted, &from) || !fsdp_box_intersect(&q->wanted, stored, &to))
    return FSDP_OK;
  int64_t row_elems = from.extent[from.dims - 1], rows = fsdp_box_numel(&from) / row_elems;
  fsdp_status status = FSDP_OK;
  for (int64_t row = 0; row < rows && status == FSDP_OK; row++) {
    int64_t at[FSDP_MAX_DIMS], left = row;
    memcpy(at, from.start, sizeof at);
    for (int d = from.dims - 2; d >= 0; d--) {
      at[d] += left % from.extent[d];
      left /= from.extent[d];
    }
    const run all = {stored->param, fsdp_box_offset_of(&from, at), row_elems,
                     q->out + fsdp_box_offset_of(&to, at) * q->width};
    status = read_run(t, q, all, error);
  }
  return status;
}

// The boxes of a parameter in all flat buffers that have some of it, of ranks with the same one on the first.
static const fsdp_box_list *boxes_of(fsdp_checkpoint_reader *r, int param) {
  const fsdp_checkpoint *c = r->checkpoint;
  const fsdp_axis_set axes = fsdp_cut_axes(&c->params[param].cut);
  fsdp_box_list *list = &r->boxes[param];
  for (int i = 0, count = list->count ? 0 : fsdp_mesh_group_size(&c->mesh, axes); i < count; i++)
    fsdp_checkpoint_boxes(c, param, fsdp_mesh_group_member(&c->mesh, axes, 0, i), list);
  return list;
}

// Reads one box of a parameter; of one in parts, of which q->param is any one, from all of them.
static fsdp_status read_box(transfer *t, const request *q, fsdp_error *error) {
  const fsdp_checkpoint *c = t->reader->checkpoint;
  const fsdp_checkpoint_param *of = &c->params[q->param];
  const bool is_part = of->cut.part_count > 0;
  fsdp_status status = FSDP_OK;
  for (int p = is_part ? 0 : q->param; p < (is_part ? c->param_count : q->param + 1); p++) {
    if (is_part && (!c->params[p].cut.part_count || strcmp(c->params[p].name, of->name) != 0)) continue;
    request part = *q;
    part.param = p;
    const fsdp_box_list *list = boxes_of(t->reader, p);
    for (int b = 0; b < list->count && status == FSDP_OK; b++)
      status = read_shared(t, &part, &list->boxes[b], error);
  }
  return status;
}

fsdp_status fsdp_checkpoint_read(fsdp_checkpoint_reader *r, int slot, int param, int64_t first, int64_t numel,
                                 void *out, fsdp_error *error) {
  const fsdp_checkpoint *c = r->checkpoint;
  const fsdp_checkpoint_param *p = &c->params[param];
  FSDP_CHECK(first >= 0 && numel >= 0 && first <= p->numel - numel, "elements %lld + %lld of %s",
             (long long)first, (long long)numel, p->name);
  fsdp_box wanted[FSDP_BOXES_MAX];
  int count = fsdp_boxes_cut(p->dims, p->shape, first, numel, 0, wanted);
  transfer t = {.reader = r};
  fsdp_status status = FSDP_OK;
  for (int b = 0; b < count && status == FSDP_OK; b++) {
    request q = {wanted[b], slot, param, fsdp_dtype_bytes(c->slots[slot].dtype), out};
    status = read_box(&t, &q, error);
  }
  if (status == FSDP_OK) status = flush(&t, error);
  if (status != FSDP_OK) return status;
  int64_t found = fsdp_first_not_finite(c->slots[slot].dtype, out, numel);
  if (found < 0) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_INPUT,
                   "%s: %s of %s is %s at element %" PRId64
                   ": the run that saved it had diverged; use another checkpoint",
                   r->folder, c->slots[slot].name, p->name,
                   fsdp_not_finite_name(c->slots[slot].dtype, out, found), first + found);
}
