// What --eval-split holds out of data of which a record makes several samples: whole records, by the seed.
#include "launcher/setup/data.h"
#include "models/graph/op.h"
#include "runtime/base/random.h"
#include "tests/support/io_files.h"
#include "tests/support/token_bytes.h"
#include "tests/support/unit_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RECORDS = 300, MOST = 40000, SEQ = 16 };

// Records of one to four documents: every token is its record's number.
typedef struct records {
  uint32_t tokens[MOST];
  uint8_t counts[MOST], joined[4 * RECORDS];
  uint64_t starts[4 * RECORDS];
  token_bytes file;
  int64_t targets;
} records;

static void draw(records *r, uint32_t first, uint32_t documents_most, uint32_t tokens_most) {
  *r = (records){.file = {.vocab_size = 1000,
                          .tokens = r->tokens,
                          .counts = r->counts,
                          .starts = r->starts,
                          .joined = documents_most > 1 ? r->joined : NULL,
                          .width = 2}};
  for (uint32_t record = 0; record < RECORDS; record++) {
    uint32_t words[4];
    fsdp_random_words(11, first, record, words);
    for (uint32_t d = 0; d <= words[0] % documents_most; d++) {
      const uint32_t length = 3 + words[1 + d % 3] % (tokens_most - 2);
      r->joined[r->file.documents] = d > 0;
      r->starts[r->file.documents++] = (uint64_t)r->file.count;
      for (uint32_t i = 0; i < length; i++) {
        r->tokens[r->file.count] = first + record;
        r->counts[r->file.count++] = i > 1; // of conversations: not all is learned
      }
      r->targets += length - 2;
    }
  }
}

static void write_records(const char *name, records *r) {
  int64_t length;
  unsigned char *bytes = token_bytes_make(&r->file, &length);
  io_write(name, bytes, length);
  free(bytes);
}

// Marks the records of a sample, and returns how many of its targets count.
static int64_t mark(const fsdp_dataset *dataset, int64_t sample, bool seen[1000]) {
  int32_t tokens[SEQ], targets[SEQ];
  int64_t count = 0;
  io_fill(dataset, sample, tokens, targets);
  for (int i = 0; i < SEQ; i++)
    if (targets[i] != FSDP_TARGET_IGNORED) seen[targets[i]] = true, count++;
  return count;
}

typedef struct sides {
  bool trained[1000], held[1000];
  int64_t samples, held_samples, targets;
} sides;

static sides sides_of(const fsdp_options *options, fsdp_dataset_config config) {
  sides found = {0};
  fsdp_sampler sampler;
  fsdp_error error;
  config.seq = SEQ, config.vocab_size = 1000;
  fsdp_dataset *dataset = io_dataset(options->data, config);
  IO_OK(fsdp_data_sampler(options, dataset, 1, &sampler, &error), &error);
  found.samples = sampler.sample_count;
  assert_int_equal(found.samples, dataset->sample_count);
  found.held_samples = fsdp_sampler_validation_steps(&sampler);
  for (int64_t i = 0; i < found.held_samples; i++)
    found.targets += mark(dataset, fsdp_sampler_validation_sample(&sampler, i, 0), found.held);
  // Of a mix an epoch does not see every sample, but three see each.
  bool *seen = calloc((size_t)found.samples, sizeof *seen);
  for (int64_t i = 0; i < 3 * fsdp_sampler_steps_per_epoch(&sampler); i++) {
    const int64_t steps = fsdp_sampler_steps_per_epoch(&sampler);
    const int64_t sample = fsdp_sampler_sample(&sampler, i / steps, i % steps, 0);
    if (!seen[sample]) found.targets += mark(dataset, sample, found.trained);
    seen[sample] = true;
  }
  free(seen);
  fsdp_dataset_close(dataset);
  return found;
}

static void expect_apart(const sides *s, int64_t first, int64_t count, double part) {
  int held = 0;
  for (int64_t record = first; record < first + count; record++) {
    assert_true(s->trained[record] != s->held[record]); // one side has it, and all of it
    held += s->held[record];
  }
  // Records are unlike, and so their part is about that of the samples.
  assert_true(held > 0.5 * part * (double)count && held < 2 * part * (double)count);
}

TEST(a_record_is_on_one_side) {
  static records r;
  static const struct {
    uint32_t documents, tokens;
  } kinds[] = {{4, 12}, {4, 60}, {1, 60}}; // conversations, long ones, long documents
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
    draw(&r, 0, kinds[k].documents, kinds[k].tokens);
    write_records("x.tok", &r);
    for (int packing = FSDP_PACKING_AUTO; packing <= FSDP_PACKING_OFF; packing++) {
      if (packing == FSDP_PACKING_STREAM) continue;
      const fsdp_dataset_config config = {.packing = (fsdp_packing_choice)packing};
      fsdp_options options = {.data = (char *)io_path("x.tok"), .eval_split = 0.1, .seed = 3};
      const sides found = sides_of(&options, config), again = sides_of(&options, config);
      expect_apart(&found, 0, RECORDS, 0.1);
      assert_int_equal(found.targets, r.targets); // nothing is lost, and nothing is there twice
      const double wanted = 0.1 * (double)found.samples;
      assert_true((double)found.held_samples <= wanted + 1 && (double)found.held_samples > 0.8 * wanted);
      assert_memory_equal(found.held, again.held, sizeof found.held);
      options.seed = 4;
      assert_memory_not_equal(found.held, sides_of(&options, config).held, sizeof found.held);
      options.eval_split = 1; // not less than a record
      assert_true(sides_of(&options, config).held_samples >= 1);
    }
  }
}

TEST(each_of_a_mix_is_divided) {
  static records r;
  char list[512];
  int64_t targets = 0;
  for (uint32_t i = 0; i < 2; i++) {
    draw(&r, i * RECORDS, 4, i ? 30 : 10);
    write_records(i ? "b.tok" : "a.tok", &r);
    targets += r.targets;
  }
  snprintf(list, sizeof list, "%s:0.5,%s:0.5", io_path("a.tok"), io_path("b.tok"));
  const fsdp_options options = {.data = list, .eval_split = 0.2, .seed = 1};
  const sides found = sides_of(&options, (fsdp_dataset_config){0});
  expect_apart(&found, 0, RECORDS, 0.2);
  expect_apart(&found, RECORDS, RECORDS, 0.2);
  assert_int_equal(found.targets, targets);
}

// Where each record is one sample, samples are held out: exactly as many as are asked for.
TEST(whole_records_are_samples) {
  static records r;
  draw(&r, 0, 1, SEQ);
  write_records("x.tok", &r);
  const fsdp_options options = {.data = (char *)io_path("x.tok"), .eval_split = 37, .seed = 1};
  const sides found = sides_of(&options, (fsdp_dataset_config){0});
  assert_int_equal(found.held_samples, 37);
  assert_int_equal(found.targets, r.targets);
}

TEST(too_few_are_refused) {
  static records r;
  fsdp_sampler sampler;
  fsdp_error error;
  draw(&r, 0, 4, 12);
  r.file.documents = 2; // of one record
  r.joined[1] = 1;
  r.file.count = (int64_t)r.starts[2];
  write_records("x.tok", &r);
  const fsdp_options options = {.data = (char *)io_path("x.tok"), .eval_split = 1};
  fsdp_dataset *dataset = io_dataset(options.data, (fsdp_dataset_config){.seq = 4, .vocab_size = 1000});
  IO_EXPECT(fsdp_data_sampler(&options, dataset, 1, &sampler, &error), FSDP_ERR_OPTION, &error,
            "--eval-split 1", "of whole records", "less than a step");
  fsdp_dataset_close(dataset);
}

TEST(marks_of_records_are_checked) {
  static records r;
  fsdp_error error;
  int64_t length;
  draw(&r, 0, 4, 12);
  unsigned char *bytes = token_bytes_make(&r.file, &length);
  const fsdp_dataset_config config = {.seq = SEQ, .vocab_size = 1000, .verify = true};
  unsigned char *marks = bytes + length - (r.file.documents + 63) / 64 * 8;
  marks[1] ^= 1;
  IO_EXPECT(io_dataset_status(io_write("x.tok", bytes, length), config, &error), FSDP_ERR_INPUT, &error,
            "marks of records", "checksum");
  marks[0] ^= 1;
  IO_EXPECT(io_dataset_status(io_write("x.tok", bytes, length), config, &error), FSDP_ERR_INPUT, &error,
            "first document belongs");
  free(bytes);
}

int main(void) {
  return run_all_tests(io_set_up, io_tear_down);
}
