// No written file holds a value that is not finite: a save that finds one fails and names it. A checkpoint or
// weights that hold one are refused, by loading and by export.
#include "launcher/programs/export.h"
#include "runtime/base/check.h"
#include "runtime/base/finite.h"
#include "runtime/checkpoint/checkpoint_file.h"
#include "runtime/checkpoint/checkpoint_folder.h"
#include "tests/support/harness.h"
#include "tests/support/io_files.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

// ---- Which values

static float value_of(fsdp_dtype dtype, uint32_t bits) {
  float value;
  if (dtype == FSDP_BF16) bits <<= 16;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// Every 16-bit pattern, and every exponent of fp32 with the ends of its fractions, against isfinite.
TEST(test_every_pattern) {
  for (uint32_t bits = 0; bits < 65536; bits++) {
    fsdp_bf16 half = (fsdp_bf16)bits;
    assert_int_equal(fsdp_first_not_finite(FSDP_BF16, &half, 1),
                     isfinite(value_of(FSDP_BF16, bits)) ? -1 : 0);
    assert_int_equal(fsdp_first_not_finite(FSDP_F16, &half, 1), (bits & 0x7c00) == 0x7c00 ? 0 : -1);
  }
  static const uint32_t fractions[] = {0, 1, 0x400000, 0x7fffff};
  for (uint32_t exponent = 0; exponent < 512; exponent++)
    for (int f = 0; f < 4; f++) {
      uint32_t bits = exponent << 23 | fractions[f];
      bool finite = isfinite(value_of(FSDP_F32, bits));
      assert_int_equal(fsdp_first_not_finite(FSDP_F32, &bits, 1), finite ? -1 : 0);
      if (finite) continue;
      const char *name = fractions[f] ? "nan" : exponent >= 256 ? "-inf" : "inf";
      assert_string_equal(fsdp_not_finite_name(FSDP_F32, &bits, 0), name);
    }
}

TEST(test_every_place) {
  enum { COUNT = 2500 };
  static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16, FSDP_F16};
  uint32_t values[COUNT];
  for (int d = 0; d < 3; d++)
    for (int at = 0; at < COUNT; at += 7) {
      memset(values, 0x3a, sizeof values);
      if (d == 0) values[at] = 0xff800000u;
      if (d == 1) ((uint16_t *)values)[at] = 0x7f81u;
      if (d == 2) ((uint16_t *)values)[at] = 0x7c00u;
      assert_int_equal(fsdp_first_not_finite(dtypes[d], values, COUNT), at);
      assert_int_equal(fsdp_first_not_finite(dtypes[d], values, at), -1);
    }
}

// ---- A checkpoint with one bad value

typedef struct bad {
  int slot, param;
  int64_t element;
  const fsdp_checkpoint *checkpoint;
  unsigned char values[4 << 20];
} bad;

static const void *make_range(void *context, const fsdp_checkpoint_range *range) {
  bad *b = context;
  const fsdp_checkpoint *c = b->checkpoint;
  bool bf16 = c->slots[range->slot].dtype == FSDP_BF16;
  for (int64_t i = 0; i < range->numel; i++) {
    if (bf16)
      ((uint16_t *)b->values)[i] = 0x3f80;
    else
      ((uint32_t *)b->values)[i] = 0x3f800000;
  }
  if (b->param < 0 || range->slot != b->slot || c->params[b->param].unit != range->unit) return b->values;
  int64_t at = c->params[b->param].offset + b->element - range->first_elem;
  if (at < 0 || at >= range->numel) return b->values;
  if (bf16)
    ((uint16_t *)b->values)[at] = 0xff80;
  else
    ((uint32_t *)b->values)[at] = 0xff800000;
  return b->values;
}

static fsdp_status write_rank(bad *b, int rank, const char *folder, fsdp_error *error) {
  int64_t bytes;
  fsdp_checkpoint_file_config file = {.checkpoint = b->checkpoint,
                                      .rank = rank,
                                      .folder = folder,
                                      .source = make_range,
                                      .context = b,
                                      .piece_bytes = rank % 2 ? 4096 : 0};
  return fsdp_checkpoint_file_write(&file, &bytes, error);
}

static fsdp_plan *plan_of(bool bf16) {
  fsdp_plan_config config = harness_small_plan(3);
  fsdp_plan *plan;
  fsdp_error error;
  config.strategy = FSDP_HYBRID;
  config.mesh = fsdp_mesh_of(2, 3);
  if (bf16) config.moment_dtype = FSDP_BF16;
  assert_int_equal(fsdp_plan_create(&config, &plan, &error), FSDP_OK);
  return plan;
}

// One rank's file fails and names the value, and is then not there. The other ranks' files are written.
TEST(test_save_refuses) {
  static bad b;
  for (int i = 0; i < 24; i++) {
    fsdp_plan *plan = plan_of(i % 2);
    fsdp_checkpoint *c = fsdp_checkpoint_create(plan, "small");
    b.checkpoint = c;
    b.slot = i % 3;
    b.param = i * 5 % c->param_count;
    b.element = i % 4 ? c->params[b.param].numel - 1 - i : i;
    const char *folder = io_folder_make();
    char expected[256], path[1024];
    snprintf(expected, sizeof expected, "%s of %s is -inf at element %lld:", c->slots[b.slot].name,
             c->params[b.param].name, (long long)b.element);
    int refused = 0;
    for (int rank = 0; rank < c->file_count; rank++) {
      fsdp_error error = {0};
      fsdp_status status = write_rank(&b, rank, folder, &error);
      snprintf(path, sizeof path, "%s/rank-%05d.safetensors", folder, rank);
      assert_int_equal(access(path, F_OK) == 0, status == FSDP_OK);
      if (status == FSDP_OK) continue;
      refused++;
      assert_int_equal(status, FSDP_ERR_NOT_FINITE);
      if (!strstr(error.message, expected)) fail_msg("'%s' is not in '%s'", expected, error.message);
    }
    assert_int_equal(refused, 1);
    io_folder_remove();
    fsdp_checkpoint_destroy(c);
    fsdp_plan_destroy(plan);
  }
}

// ---- A file that was written before such values were checked

// Of the save, the rank, the header and the chunks' checksums, as docs/checkpoints.md states.
static void hash_ends(const fsdp_checkpoint *c, int rank, const unsigned char *file, int64_t header_bytes,
                      const unsigned char *sums, int64_t sums_bytes) {
  const uint64_t whose[2] = {c->save, (uint64_t)rank};
  XXH3_state_t *hash = XXH3_createState();
  XXH3_128bits_reset(hash);
  XXH3_128bits_update(hash, whose, sizeof whose);
  XXH3_128bits_update(hash, file, (size_t)header_bytes);
  XXH3_128bits_update(hash, sums, (size_t)sums_bytes);
  XXH128_hash_t sum = XXH3_128bits_digest(hash);
  XXH3_freeState(hash);
  memcpy((unsigned char *)(uintptr_t)sums + sums_bytes, &sum.high64, 8);
  memcpy((unsigned char *)(uintptr_t)sums + sums_bytes + 8, &sum.low64, 8);
}

// Puts 4 bytes into the data of a rank's file, with every checksum as it must be then.
static void patch(const fsdp_checkpoint *c, const char *folder, int rank, int64_t offset, uint32_t bits) {
  int64_t data_bytes = fsdp_checkpoint_data_bytes(c, rank), chunk = offset / FSDP_CHECKPOINT_CHUNK_BYTES;
  char path[FSDP_CHECKPOINT_PATH_BYTES + 128];
  snprintf(path, sizeof path, "%s/rank-%05d.safetensors", folder, rank);
  struct stat information;
  assert_int_equal(stat(path, &information), 0);
  int64_t bytes = information.st_size;
  unsigned char *file = fsdp_alloc((size_t)bytes);
  FILE *stream = fopen(path, "r+b");
  assert_int_equal(fread(file, 1, (size_t)bytes, stream), bytes);
  uint64_t length;
  memcpy(&length, file, 8);
  unsigned char *data = file + 8 + length, *sums = data + data_bytes;
  memcpy(data + offset, &bits, sizeof bits);
  int64_t begin = chunk * FSDP_CHECKPOINT_CHUNK_BYTES, left = data_bytes - begin;
  uint64_t sum = XXH3_64bits(
      data + begin, (size_t)(left < FSDP_CHECKPOINT_CHUNK_BYTES ? left : FSDP_CHECKPOINT_CHUNK_BYTES));
  memcpy(sums + chunk * 8, &sum, sizeof sum);
  hash_ends(c, rank, file, 8 + (int64_t)length, sums, file + bytes - sums - 16);
  rewind(stream);
  assert_int_equal(fwrite(file, 1, (size_t)bytes, stream), bytes);
  fclose(stream);
  free(file);
}

TEST_WITH_FOLDER(test_load_and_export_refuse) {
  static bad b;
  fsdp_plan *plan = plan_of(false);
  fsdp_checkpoint *c = fsdp_checkpoint_create(plan, "small");
  const char *folder = io_folder();
  char temporary[FSDP_CHECKPOINT_PATH_BYTES], final[FSDP_CHECKPOINT_PATH_BYTES], to[1024];
  fsdp_error error = {0};
  b = (bad){.checkpoint = c, .param = -1};
  c->progress = (fsdp_checkpoint_progress){.step = 2, .updates = 1, .global_batch = 8, .sample_count = 100};
  fsdp_checkpoint_path(folder, 2, FSDP_CHECKPOINT_UNFINISHED, temporary);
  fsdp_checkpoint_path(folder, 2, "", final);
  assert_int_equal(fsdp_checkpoint_begin(folder, 2, c->save, &error), FSDP_OK);
  for (int rank = 0; rank < c->file_count; rank++)
    assert_int_equal(write_rank(&b, rank, temporary, &error), FSDP_OK);
  // A file's data begins with its piece of unit 0's masters.
  const fsdp_checkpoint_param *param = &c->params[0];
  assert_true(param->unit == 0 && param->offset == 0);
  int holder = fsdp_checkpoint_holder(c, 0, 0, 3);
  int64_t first, numel;
  fsdp_checkpoint_piece(c, holder, 0, &first, &numel);
  patch(c, temporary, holder, 4 * (3 - first), 0x7fc00000);
  fsdp_checkpoint_index index = {0};
  fsdp_checkpoint_gone_list gone = {0};
  assert_int_equal(fsdp_checkpoint_commit(folder, NULL, c, &index, &gone, &error), FSDP_OK);
  free(index.entries);

  fsdp_checkpoint *read;
  assert_int_equal(fsdp_checkpoint_read_manifest(final, &read, &error), FSDP_OK);
  assert_int_equal(read->progress.updates, 1);
  fsdp_checkpoint_reader *reader = fsdp_checkpoint_reader_create(read, final);
  float *values = fsdp_alloc((size_t)param->numel * sizeof *values);
  assert_int_equal(fsdp_checkpoint_read(reader, 1, 0, 0, param->numel, values, &error), FSDP_OK);
  assert_int_equal(fsdp_checkpoint_read(reader, 0, 0, 0, 3, values, &error), FSDP_OK);
  assert_int_equal(fsdp_checkpoint_read(reader, 0, 0, 2, 5, values, &error), FSDP_ERR_INPUT);
  char expected[256];
  snprintf(expected, sizeof expected, "master of %s is nan at element 3", param->name);
  if (!strstr(error.message, expected)) fail_msg("'%s' is not in '%s'", expected, error.message);
  fsdp_checkpoint_reader_destroy(reader);
  fsdp_checkpoint_destroy(read);
  free(values);

  snprintf(to, sizeof to, "%s/exported", folder);
  fsdp_export_result result;
  fsdp_export_config export = {.checkpoint = folder, .to = to, .dtype = -1, .max_shard_bytes = 1 << 30};
  assert_int_equal(fsdp_export_run(&export, &result, &error), FSDP_ERR_INPUT);
  if (!strstr(error.message, expected)) fail_msg("'%s' is not in '%s'", expected, error.message);
  assert_int_not_equal(access(to, F_OK), 0);
  fsdp_checkpoint_destroy(c);
  fsdp_plan_destroy(plan);
}
