// Checkpoints: every element of every part comes back to the bit, whatever ranks, strategy, wrapping, offload
// and dtype save and load; every damaged byte is found.
//
// Values are a function of part, parameter name and element, so nothing that was saved is kept to compare
// with.
#include "tests/support/draws.h"
#include "tests/support/harness.h"
#include "tests/support/io_files.h"

#include "runtime/base/check.h"
#include "runtime/base/random.h"
#include "runtime/checkpoint/checkpoint_file.h"
#include "runtime/checkpoint/checkpoint_folder.h"
#include "runtime/exec/session.h"
#include "runtime/exec/state.h"
#include "tests/support/unit_test.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// ---- Values

// A finite number, as bits; exact in bf16 if `dtype` is bf16.
static uint32_t bits_of(int part, const char *name, int64_t element, fsdp_dtype dtype) {
  uint64_t x = fsdp_random_stream(name) + (uint64_t)part * 77 + (uint64_t)element * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 31)) * 0xbf58476d1ce4e5b9u;
  uint32_t bits = (uint32_t)(x >> 32);
  bits = (bits & 0x81ffffffu) | 0x3c000000u;
  return dtype == FSDP_BF16 ? bits & 0xffff0000u : bits;
}

static void put_value(void *values, int64_t index, uint32_t bits, fsdp_dtype dtype) {
  if (dtype == FSDP_F32)
    ((uint32_t *)values)[index] = bits;
  else
    ((uint16_t *)values)[index] = (uint16_t)(bits >> 16);
}

static uint32_t get_value(const void *values, int64_t index, fsdp_dtype dtype) {
  return dtype == FSDP_F32 ? ((const uint32_t *)values)[index]
                           : (uint32_t)((const uint16_t *)values)[index] << 16;
}

// ---- Saving

typedef struct maker {
  const fsdp_checkpoint *checkpoint;
  unsigned char values[4 << 20];
} maker;

// A range of a unit's flat buffer: parameters, and zeros between them.
static const void *make_range(void *context, const fsdp_checkpoint_range *range) {
  maker *m = context;
  const fsdp_checkpoint *c = m->checkpoint;
  fsdp_dtype dtype = c->slots[range->slot].dtype;
  memset(m->values, 0, (size_t)(range->numel * fsdp_dtype_bytes(dtype)));
  for (int p = 0; p < c->param_count; p++) {
    const fsdp_checkpoint_param *param = &c->params[p];
    if (param->unit != range->unit) continue;
    for (int64_t i = 0; i < range->numel; i++) {
      int64_t element = range->first_elem + i - param->offset;
      if (element < 0 || element >= param->numel) continue;
      put_value(m->values, i, bits_of(range->slot, param->name, element, dtype), dtype);
    }
  }
  return m->values;
}

// An empty checkpoint of step `step`, whose values `m` makes; the caller destroys both.
static fsdp_checkpoint *create(const fsdp_plan_config *config, int64_t step, maker *m, fsdp_plan **plan) {
  fsdp_error error;
  if (fsdp_plan_create(config, plan, &error) != FSDP_OK) fail_msg("%s", error.message);
  fsdp_checkpoint *c = fsdp_checkpoint_create(*plan, "small");
  c->progress = (fsdp_checkpoint_progress){.step = step, .global_batch = 8, .sample_count = 100};
  c->save = UINT64_C(0x9e3779b97f4a7c15) * (uint64_t)step;
  m->checkpoint = c;
  return c;
}

static void commit(const char *folder, fsdp_checkpoint *c) {
  fsdp_checkpoint_index index = {0};
  fsdp_checkpoint_gone_list gone = {0};
  fsdp_error error;
  if (fsdp_checkpoint_commit(folder, NULL, c, &index, &gone, &error) != FSDP_OK)
    fail_msg("%s", error.message);
  free(index.entries);
}

// Saves step `step` of `plan` into `folder`, one rank after the other, each in a different way.
static void save(const fsdp_plan_config *config, const char *folder, int64_t step) {
  static maker m;
  fsdp_plan *plan;
  fsdp_error error;
  fsdp_checkpoint *c = create(config, step, &m, &plan);
  char temporary[FSDP_CHECKPOINT_PATH_BYTES];
  fsdp_checkpoint_path(folder, step, FSDP_CHECKPOINT_UNFINISHED, temporary);
  if (fsdp_checkpoint_begin(folder, step, c->save, &error) != FSDP_OK) fail_msg("%s", error.message);
  for (int r = 0; r < c->file_count; r++) {
    fsdp_checkpoint_file_config file = {.checkpoint = c,
                                        .rank = r,
                                        .folder = temporary,
                                        .source = make_range,
                                        .context = &m,
                                        .piece_bytes = r % 2 ? 4096 : 0};
    int64_t bytes;
    if (fsdp_checkpoint_file_write(&file, &bytes, &error) != FSDP_OK) fail_msg("%s", error.message);
    c->files_bytes += bytes;
  }
  commit(folder, c);
  fsdp_checkpoint_destroy(c);
  fsdp_plan_destroy(plan);
}

// ---- Loading

typedef struct loader {
  const fsdp_checkpoint *checkpoint;
  fsdp_checkpoint_reader *reader;
  int slot;
  int64_t seen; // elements compared
} loader;

static fsdp_status load_range(void *context, const fsdp_state_range *range, void *values, fsdp_error *error) {
  loader *l = context;
  int param = fsdp_checkpoint_find(l->checkpoint, range->name);
  return fsdp_checkpoint_read(l->reader, l->slot, param, range->first_elem, range->numel, values, error);
}

static fsdp_status compare_range(void *context, const fsdp_state_range *range, void *values,
                                 fsdp_error *error) {
  loader *l = context;
  for (int64_t i = 0; i < range->numel; i++) {
    uint32_t wanted = bits_of(l->slot, range->name, range->first_elem + i, range->dtype);
    uint32_t found = get_value(values, i, range->dtype);
    if (found != wanted) {
      fail_msg("part %d, %s[%lld]: %08x instead of %08x", l->slot, range->name,
               (long long)(range->first_elem + i), found, wanted);
    }
  }
  l->seen += range->numel;
  return FSDP_OK;
}

// One rank of a plan loads its shards and finds what was saved. Returns the bytes that it read; adds what it
// holds to *numel.
static int64_t load_rank(const fsdp_plan *plan, int rank, const fsdp_checkpoint *c, const char *path,
                         int64_t *numel) {
  fsdp_inproc *inproc = fsdp_session_inproc(plan);
  fsdp_session session;
  fsdp_error error;
  assert_int_equal(
      fsdp_session_create(&(fsdp_session_config){.plan = plan, .inproc = inproc, .rank = rank, .threads = 1},
                          &session, &error),
      FSDP_OK);
  fsdp_executor *executor = session.executor;
  loader l = {.checkpoint = c, .reader = fsdp_checkpoint_reader_create(c, path)};
  for (l.slot = 0; l.slot < c->slot_count; l.slot++) {
    if (fsdp_state_load(executor, l.slot, load_range, &l, &error) != FSDP_OK) {
      fail_msg("%s", error.message);
    }
  }
  for (l.slot = 0; l.slot < c->slot_count; l.slot++) {
    assert_int_equal(fsdp_state_save(executor, l.slot, compare_range, &l, &error), FSDP_OK);
  }
  *numel += l.seen;
  int64_t bytes = fsdp_checkpoint_reader_bytes(l.reader);
  fsdp_checkpoint_reader_destroy(l.reader);
  fsdp_session_destroy(&session);
  fsdp_inproc_destroy(inproc);
  return bytes;
}

static void load_all(const fsdp_plan_config *config, const char *path) {
  fsdp_plan *plan;
  fsdp_checkpoint *c;
  fsdp_error error;
  assert_int_equal(fsdp_plan_create(config, &plan, &error), FSDP_OK);
  if (fsdp_checkpoint_read_manifest(path, &c, &error) != FSDP_OK) fail_msg("%s", error.message);
  assert_int_equal(fsdp_checkpoint_check_files(c, path, 0, 1, &error), FSDP_OK);
  int64_t numel = 0;
  for (int r = 0; r < fsdp_mesh_ranks(&config->mesh); r++) load_rank(plan, r, c, path, &numel);
  int64_t copies = fsdp_mesh_size(&config->mesh, FSDP_AXIS_DATA);
  assert_int_equal(numel, c->slot_count * copies * fsdp_checkpoint_numel(c));
  fsdp_checkpoint_destroy(c);
  fsdp_plan_destroy(plan);
}

typedef struct place {
  fsdp_strategy strategy;
  int data, fsdp;
} place;

static const place places[] = {
    {FSDP_FULL, 1, 1},    {FSDP_FULL, 1, 2},    {FSDP_FULL, 1, 3},    {FSDP_FULL, 1, 8},
    {FSDP_GRAD_OP, 1, 1}, {FSDP_GRAD_OP, 1, 2}, {FSDP_GRAD_OP, 1, 3}, {FSDP_GRAD_OP, 1, 8},
    {FSDP_NO, 1, 1},      {FSDP_NO, 2, 1},      {FSDP_NO, 3, 1},      {FSDP_NO, 8, 1},
    {FSDP_HYBRID, 2, 1},  {FSDP_HYBRID, 3, 1},  {FSDP_HYBRID, 2, 4},  {FSDP_HYBRID, 4, 2},
    {FSDP_ZERO1, 1, 1},   {FSDP_ZERO1, 1, 2},   {FSDP_ZERO1, 1, 3},   {FSDP_ZERO1, 2, 4},
};
static const fsdp_wrap_policy wraps[] = {{FSDP_WRAP_SIZE, 6000, NULL},
                                         {FSDP_WRAP_BLOCK, 0, NULL},
                                         {FSDP_WRAP_NONE, 0, NULL},
                                         {FSDP_WRAP_MODULE, 0, "LlamaMLP"}};

static fsdp_plan_config config_of(const place *p, int wrap, bool offload) {
  fsdp_plan_config config = harness_small_plan(1);
  config.strategy = p->strategy;
  fsdp_mesh_resize(&config.mesh, FSDP_AXIS_DATA, p->data);
  fsdp_mesh_resize(&config.mesh, FSDP_AXIS_FSDP, p->fsdp);
  config.wrap = wraps[wrap];
  config.cpu_offload = offload;
  return config;
}

TEST_WITH_FOLDER(saved_on_four_loads_everywhere) {
  const place four = {FSDP_FULL, 1, 4};
  const char *folder = io_folder();
  fsdp_plan_config from = config_of(&four, 1, false);
  save(&from, folder, 7);
  for (size_t p = 0; p < sizeof places / sizeof *places; p++) {
    for (int wrap = test_sanitized() ? (int)p % 4 : 0; wrap < 4; wrap += test_stride(4)) {
      for (int offload = 0; offload < 2; offload++) {
        fsdp_plan_config to = config_of(&places[p], wrap, offload);
        load_all(&to, io_path("step-00000007"));
      }
    }
  }
}

TEST(saved_anywhere_loads_on_three) {
  const place three = {FSDP_FULL, 1, 3};
  fsdp_plan_config to = config_of(&three, 0, false);
  for (size_t p = 0; p < sizeof places / sizeof *places; p += (size_t)test_stride(3)) {
    const char *folder = io_folder_make();
    fsdp_plan_config from = config_of(&places[p], (int)p % 4, p % 2);
    from.master_dtype = from.moment_dtype = p % 3 == 0 ? FSDP_BF16 : FSDP_F32;
    to.master_dtype = from.master_dtype;
    to.moment_dtype = from.moment_dtype;
    save(&from, folder, 7);
    load_all(&to, io_path("step-00000007"));
    io_folder_remove();
  }
}

// Any axes in any order: each saves, and loads what each other has saved.
TEST(saved_on_any_mesh_loads_on_any) {
  static const struct {
    const char *slow, *fast;
    int sizes[2];
  } meshes[] = {
      {"data", "fsdp", {2, 3}}, {"fsdp", "data", {3, 2}}, {"fsdp", "data", {2, 4}}, {"data", "fsdp", {5, 1}}};
  enum { COUNT = sizeof meshes / sizeof *meshes };
  fsdp_plan_config configs[COUNT];
  for (int m = 0; m < COUNT; m++) {
    configs[m] = harness_small_plan(1);
    configs[m].strategy = FSDP_HYBRID;
    configs[m].wrap = wraps[m];
    configs[m].mesh = (fsdp_mesh){0};
    assert_true(fsdp_mesh_add(&configs[m].mesh, "first", 1)); // a further axis before all
    assert_true(fsdp_mesh_add(&configs[m].mesh, meshes[m].slow, meshes[m].sizes[0]));
    assert_true(fsdp_mesh_add(&configs[m].mesh, meshes[m].fast, meshes[m].sizes[1]));
    fsdp_mesh_complete(&configs[m].mesh);
  }
  for (int from = 0; from < COUNT; from++) {
    const char *folder = io_folder_make();
    save(&configs[from], folder, 7);
    for (int to = 0; to < COUNT; to++) load_all(&configs[to], io_path("step-00000007"));
    io_folder_remove();
  }
}

// ---- Bytes

// Over all ranks each byte of the parts is read once, but for the chunks that two of them need: at most one
// at either end of what a rank reads of a file and part.
TEST_WITH_FOLDER(bytes_are_read_once) {
  const place four = {FSDP_FULL, 1, 4};
  const char *folder = io_folder();
  fsdp_plan_config config = config_of(&four, 2, false);
  config.model.hidden_size = 128;
  config.model.head_dim = 32;
  config.model.intermediate_size = 512;
  config.model.vocab_size = 1003;
  save(&config, folder, 7);
  fsdp_checkpoint *c;
  fsdp_error error;
  assert_int_equal(fsdp_checkpoint_read_manifest(io_path("step-00000007"), &c, &error), FSDP_OK);
  int64_t ends = 0, data = 0;
  for (int r = 0; r < 4; r++) {
    int64_t bytes = fsdp_checkpoint_data_bytes(c, r);
    data += bytes;
  }
  ends = c->files_bytes - data;
  for (int ranks = 1; ranks <= 8; ranks += test_stride(3)) {
    fsdp_mesh_resize(&config.mesh, FSDP_AXIS_FSDP, ranks);
    fsdp_plan *plan;
    assert_int_equal(fsdp_plan_create(&config, &plan, &error), FSDP_OK);
    int64_t read = 0, numel = 0;
    for (int r = 0; r < ranks; r++) read += load_rank(plan, r, c, io_path("step-00000007"), &numel);
    // A rank's shard lies in at most ceil(4 / ranks) + 1 files.
    int files = (3 + ranks) / ranks + 1;
    int64_t bound = data + ranks * (ends + files * 3 * 2 * FSDP_CHECKPOINT_CHUNK_BYTES);
    if (read < data * 99 / 100 || read > bound) {
      fail_msg("%d ranks read %lld bytes of %lld; at most %lld", ranks, (long long)read, (long long)data,
               (long long)bound);
    }
    if (ranks == 4 || ranks == 1) assert_true(read <= data + ends * (ranks == 1 ? 1 : 4));
    fsdp_plan_destroy(plan);
  }
  fsdp_checkpoint_destroy(c);
}

// ---- Damage

static unsigned char *read_file(const char *path, int64_t *bytes) {
  struct stat information;
  assert_int_equal(stat(path, &information), 0);
  *bytes = information.st_size;
  unsigned char *data = fsdp_alloc((size_t)*bytes);
  FILE *file = fopen(path, "rb");
  assert_int_equal(fread(data, 1, (size_t)*bytes, file), *bytes);
  fclose(file);
  return data;
}

// Reads everything of one part, as a rank that holds all of it would.
static fsdp_status read_slot(const fsdp_checkpoint *c, const char *path, int slot, fsdp_error *error) {
  fsdp_checkpoint_reader *reader = fsdp_checkpoint_reader_create(c, path);
  fsdp_status status = fsdp_checkpoint_check_files(c, path, 0, 1, error);
  for (int p = 0; p < c->param_count && status == FSDP_OK; p++) {
    void *values = fsdp_alloc((size_t)c->params[p].numel * 4);
    status = fsdp_checkpoint_read(reader, slot, p, 0, c->params[p].numel, values, error);
    free(values);
  }
  fsdp_checkpoint_reader_destroy(reader);
  return status;
}

static fsdp_status read_everything(const fsdp_checkpoint *c, const char *path, fsdp_error *error) {
  fsdp_status status = FSDP_OK;
  for (int slot = 0; slot < c->slot_count && status == FSDP_OK; slot++) {
    status = read_slot(c, path, slot, error);
  }
  return status;
}

TEST_WITH_FOLDER(every_flipped_bit_is_found) {
  const place two = {FSDP_FULL, 1, 2};
  const char *folder = io_folder();
  fsdp_plan_config config = config_of(&two, 1, false);
  save(&config, folder, 7);
  fsdp_checkpoint *c, *damaged;
  fsdp_error error;
  char path[512];
  snprintf(path, sizeof path, "%s", io_path("step-00000007"));
  assert_int_equal(fsdp_checkpoint_read_manifest(path, &c, &error), FSDP_OK);
  assert_int_equal(read_everything(c, path, &error), FSDP_OK);
  int64_t bytes;
  unsigned char *data = read_file(io_path("step-00000007/rank-00001.safetensors"), &bytes);
  for (int64_t at = 0; at < bytes; at += test_stride(6) * (at < 4096 || at > bytes - 256 ? 37 : 4099)) {
    data[at] ^= (unsigned char)(1 << at % 8);
    io_write("step-00000007/rank-00001.safetensors", data, bytes);
    IO_EXPECT(read_everything(c, path, &error), FSDP_ERR_INPUT, &error, "rank-00001", "damaged");
    data[at] ^= (unsigned char)(1 << at % 8);
  }
  io_write("step-00000007/rank-00001.safetensors", data, bytes);
  assert_int_equal(read_everything(c, path, &error), FSDP_OK);
  io_write("step-00000007/rank-00001.safetensors", data, bytes - 1);
  IO_EXPECT(fsdp_checkpoint_check_files(c, path, 0, 1, &error), FSDP_ERR_INPUT, &error, "rank-00001",
            "bytes");
  IO_EXPECT(read_everything(c, path, &error), FSDP_ERR_INPUT, &error, "rank-00001");
  unlink(io_path("step-00000007/rank-00001.safetensors"));
  IO_EXPECT(fsdp_checkpoint_check_files(c, path, 0, 1, &error), FSDP_ERR_INPUT, &error, "rank-00001");
  free(data);
  data = read_file(io_path("step-00000007/checkpoint.json"), &bytes);
  for (int64_t at = 0; at < bytes; at += 7 * test_stride(6)) {
    unsigned char before = data[at];
    data[at] ^= 4; // a letter for a letter, a digit for a digit, mostly
    io_write("step-00000007/checkpoint.json", data, bytes);
    bool white = before == ' ' || before == '\n';
    fsdp_status status = fsdp_checkpoint_read_manifest(path, &damaged, &error);
    if (status == FSDP_OK && !white) fail_msg("byte %lld of the manifest was changed", (long long)at);
    if (status == FSDP_OK) fsdp_checkpoint_destroy(damaged);
    data[at] = before;
  }
  for (int64_t cut = 0; cut < bytes; cut += 211 * test_stride(6)) {
    io_write("step-00000007/checkpoint.json", data, cut);
    assert_int_equal(fsdp_checkpoint_read_manifest(path, &damaged, &error), FSDP_ERR_INPUT);
  }
  free(data);
  fsdp_checkpoint_destroy(c);
}

// As make_range, but the value before the last one of the last range of the last slot is not a number.
static const void *make_bad_range(void *context, const fsdp_checkpoint_range *range) {
  maker *m = context;
  make_range(context, range);
  fsdp_dtype dtype = m->checkpoint->slots[range->slot].dtype;
  int64_t first, numel;
  int last = m->checkpoint->unit_count - 1;
  fsdp_checkpoint_piece(m->checkpoint, 0, last, &first, &numel);
  if (range->slot == 2 && range->unit == last && range->first_elem + range->numel == first + numel)
    put_value(m->values, range->numel - 2, 0x7fc00000u, dtype);
  return m->values;
}

// Without the value the file is written.
TEST(no_value_that_is_not_finite_is_saved) {
  static maker m;
  const place one = {FSDP_FULL, 1, 1};
  for (int dtype = 0; dtype < 2; dtype++) {
    const char *folder = io_folder_make();
    fsdp_plan_config config = config_of(&one, 1, false);
    config.moment_dtype = dtype ? FSDP_BF16 : FSDP_F32;
    fsdp_plan *plan;
    fsdp_error error;
    fsdp_checkpoint *c = create(&config, 7, &m, &plan);
    fsdp_checkpoint_file_config file = {.checkpoint = c, .folder = folder, .context = &m};
    for (int bad = 0; bad < 2; bad++) {
      file.source = bad ? make_bad_range : make_range;
      int64_t written;
      assert_int_equal(fsdp_checkpoint_file_write(&file, &written, &error),
                       bad ? FSDP_ERR_NOT_FINITE : FSDP_OK);
    }
    fsdp_checkpoint_destroy(c);
    fsdp_plan_destroy(plan);
    io_folder_remove();
  }
}

// Whole files in the places of others.
TEST_WITH_FOLDER(files_of_others_are_found) {
  const place two = {FSDP_FULL, 1, 2};
  const char *folder = io_folder();
  fsdp_plan_config config = config_of(&two, 1, false);
  save(&config, folder, 7);
  save(&config, folder, 8);
  fsdp_checkpoint *c;
  fsdp_error error;
  char path[512];
  snprintf(path, sizeof path, "%s", io_path("step-00000008"));
  assert_int_equal(fsdp_checkpoint_read_manifest(path, &c, &error), FSDP_OK);
  assert_int_equal(read_everything(c, path, &error), FSDP_OK);
  static const char *const others[] = {"step-00000008/rank-00000.safetensors", // of another rank
                                       "step-00000007/rank-00001.safetensors"};
  for (int i = 0; i < 2; i++) {
    int64_t bytes;
    unsigned char *data = read_file(io_path(others[i]), &bytes);
    io_write("step-00000008/rank-00001.safetensors", data, bytes);
    free(data);
    assert_int_equal(fsdp_checkpoint_check_files(c, path, 0, 1, &error), FSDP_OK);
    IO_EXPECT(read_everything(c, path, &error), FSDP_ERR_INPUT, &error, "rank-00001", "damaged",
              "of another save");
  }
  fsdp_checkpoint_destroy(c);
}

// ---- Many ranks

static int count_names(const char *path) {
  DIR *listing = opendir(path);
  int count = 0;
  for (struct dirent *entry; listing && (entry = readdir(listing));) count += entry->d_name[0] != '.';
  if (listing) closedir(listing);
  return count;
}

// More than 256 ranks: 256 files in a folder. They load on few, and few's on them.
TEST_WITH_FOLDER(many_ranks_share_folders) {
  enum { RANKS = 520 };
  const place many = {FSDP_FULL, 1, RANKS}, three = {FSDP_FULL, 1, 3}, most = {FSDP_FULL, 1, 256};
  const char *folder = io_folder();
  fsdp_plan_config from = config_of(&many, 1, false), to = config_of(&three, 0, false);
  save(&from, folder, 7);
  assert_int_equal(count_names(io_path("step-00000007")), 4);
  assert_int_equal(count_names(io_path("step-00000007/ranks-00000")), 256);
  assert_int_equal(count_names(io_path("step-00000007/ranks-00512")), RANKS - 512);
  assert_int_equal(access(io_path("step-00000007/ranks-00256/rank-00511.safetensors"), F_OK), 0);
  load_all(&to, io_path("step-00000007"));
  // Nothing of the manifest is listed by rank.
  struct stat small, large;
  assert_int_equal(stat(io_path("step-00000007/checkpoint.json"), &large), 0);
  from = config_of(&most, 1, false);
  save(&from, folder, 8);
  assert_int_equal(count_names(io_path("step-00000008")), 257);
  assert_int_equal(stat(io_path("step-00000008/checkpoint.json"), &small), 0);
  assert_in_range(large.st_size, small.st_size - 32, small.st_size + 32);
  fsdp_checkpoint *c;
  fsdp_error error;
  assert_int_equal(fsdp_checkpoint_read_manifest(io_path("step-00000007"), &c, &error), FSDP_OK);
  unlink(io_path("step-00000007/ranks-00256/rank-00301.safetensors"));
  int failed = 0; // of 16 ranks that look, each for its part
  for (int part = 0; part < 16; part++)
    failed += fsdp_checkpoint_check_files(c, io_path("step-00000007"), part, 16, &error) != FSDP_OK;
  assert_int_equal(failed, 1);
  assert_non_null(strstr(error.message, "ranks-00256/rank-00301"));
  fsdp_checkpoint_destroy(c);
}

// Versions 4 to 6 store boxes that follow from mesh, units and cuts; older ones stored a different layout.
TEST_WITH_FOLDER(older_versions_are_refused) {
  const place one = {FSDP_FULL, 1, 1};
  const char *folder = io_folder();
  fsdp_plan_config config = config_of(&one, 1, false);
  save(&config, folder, 7);
  fsdp_checkpoint *c;
  fsdp_error error;
  int64_t bytes;
  unsigned char *data = read_file(io_path("step-00000007/checkpoint.json"), &bytes);
  char *number = memmem(data, (size_t)bytes, "\"version\": 6", 12);
  assert_non_null(number);
  number[11] = '3';
  io_write("step-00000007/checkpoint.json", data, bytes);
  IO_EXPECT(fsdp_checkpoint_read_manifest(io_path("step-00000007"), &c, &error), FSDP_ERR_INPUT, &error,
            "checkpoint.json", "format version 3", "reads 4 to 7", "the version that wrote it",
            "fsdp_export");
  free(data);
}
