// Token files of every kind, and records of JSON as bytes, as samples: against sequences written by hand and
// against the plainest way to cut a stream; what is refused; what is held out for validation.
#include "models/graph/op.h"
#include "runtime/base/random.h"
#include "runtime/data/dataset.h"
#include "runtime/data/sampler.h"
#include "runtime/data/token_source.h"
#include "tests/support/io_files.h"
#include "tests/support/token_bytes.h"
#include "tests/support/unit_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#define ALPACA        FSDP_SOURCE_DIR "/tests/golden/prepare/alpaca.tok"
#define TOKENIZER     FSDP_SOURCE_DIR "/tests/golden/prepare/tokenizer.json"
#define RECORDS       FSDP_SOURCE_DIR "/tests/golden/prepare/records.jsonl"
#define RECORDS_TOK   FSDP_SOURCE_DIR "/tests/golden/prepare/bytes.tok"
#define IGNORED       FSDP_TARGET_IGNORED
#define LENGTH(array) ((int64_t)(sizeof(array) / sizeof *(array)))

static fsdp_status open_bad(const char *path, const char *tokenizer, int64_t vocab_size, fsdp_error *error) {
  fsdp_dataset_config config = {.tokenizer = tokenizer, .seq = 2, .vocab_size = vocab_size, .verify = true};
  return io_dataset_status(path, config, error);
}

// tests/golden/prepare/alpaca.json in the words of its tokenizer.json, written by hand: <s> is 1, </s> 2.
static const uint32_t alpaca_tokens[] = {
    // Below is an instruction that describes a task . Write a response that appropriately completes the
    // request . ### Instruction : Name a bird . ### Response : The wren .
    1, 8, 9, 10, 11, 12, 13, 14, 15, 3, 22, 14, 23, 12, 24, 25, 26, 27, 3, 6, 28, 5, 31, 14, 32, 3, 6, 30, 5,
    33, 34, 3, 2,
    // ... a task , paired with an input that provides further context . Write ... ### Instruction : Add one .
    // ### Input : two ### Response : three
    1, 8, 9, 10, 11, 12, 13, 14, 15, 4, 16, 17, 10, 18, 12, 19, 20, 21, 3, 22, 14, 23, 12, 24, 25, 26, 27, 3,
    6, 28, 5, 35, 36, 3, 6, 29, 5, 37, 6, 30, 5, 38, 2,
    // ... ### Instruction : Say nothing . ### Response :
    1, 8, 9, 10, 11, 12, 13, 14, 15, 3, 22, 14, 23, 12, 24, 25, 26, 27, 3, 6, 28, 5, 39, 40, 3, 6, 30, 5, 2};
static const int64_t alpaca_starts[] = {0, 33, 76}, alpaca_learned[] = {29, 30, 31, 32, 74, 75, 104};

static bool is_learned(int64_t index) {
  for (int64_t i = 0; i < LENGTH(alpaca_learned); i++)
    if (alpaca_learned[i] == index) return true;
  return false;
}

TEST(prompts_are_not_learned) {
  fsdp_token_source source;
  fsdp_error error;
  uint64_t hash;
  IO_OK(fsdp_token_file_hash_tokenizer(TOKENIZER, &hash, &error), &error);
  IO_OK(fsdp_token_source_open(ALPACA, TOKENIZER, hash, &source, &error), &error);
  const fsdp_token_view *view = &source.view;
  assert_int_equal(view->token_count, LENGTH(alpaca_tokens));
  assert_int_equal(view->document_count, LENGTH(alpaca_starts));
  assert_int_equal(view->vocab_size, 42);
  for (int64_t i = 0; i < view->token_count; i++) {
    int32_t token;
    fsdp_token_view_read(view, i, 1, &token);
    assert_int_equal(token, alpaca_tokens[i]);
    assert_int_equal(fsdp_token_view_counts(view, i), is_learned(i));
  }
  for (int64_t i = 0; i < view->document_count; i++) assert_int_equal(view->starts[i], alpaca_starts[i]);
  fsdp_token_source_close(&source);

  fsdp_dataset *dataset = io_dataset(
      ALPACA, (fsdp_dataset_config){
                  .tokenizer = TOKENIZER, .seq = 8, .vocab_size = 42, .packing = FSDP_PACKING_STREAM});
  // Thirteen samples of eight, of which three have targets that count: 24..32 (the last of them 32), 72..80,
  // 96..104.
  static const int64_t begins[] = {24, 72, 96};
  assert_int_equal(dataset->sample_count, LENGTH(begins));
  for (int64_t sample = 0; sample < LENGTH(begins); sample++) {
    int32_t tokens[8], targets[8];
    int64_t counted = 0;
    io_fill(dataset, sample, tokens, targets);
    for (int64_t i = 0; i < 8; i++) {
      int64_t at = begins[sample] + i;
      assert_int_equal(tokens[i], alpaca_tokens[at]);
      assert_int_equal(targets[i], is_learned(at + 1) ? (int64_t)alpaca_tokens[at + 1] : IGNORED);
      counted += targets[i] != IGNORED;
    }
    assert_int_equal(fsdp_dataset_target_count(dataset, sample), counted);
  }
  assert_non_null(strstr(dataset->description, "10 samples left out"));
  fsdp_dataset_close(dataset);
}

// A stream of random tokens, documents and mask, written at every width.
typedef struct stream {
  uint32_t tokens[4000];
  uint8_t counts[4000];
  uint64_t starts[4000];
  token_bytes file;
} stream;

static void draw(stream *s, int width, bool packed, uint64_t seed) {
  static const int64_t vocabularies[] = {0, 250, 60000, 0, 200000};
  s->file = (token_bytes){.count = 1000 + (int64_t)seed * 17,
                          .vocab_size = vocabularies[width],
                          .tokens = s->tokens,
                          .counts = s->counts,
                          .starts = s->starts,
                          .width = width,
                          .packed = packed};
  for (int64_t i = 0; i < s->file.count; i++) {
    uint32_t words[4];
    fsdp_random_words(seed, (uint64_t)width, (uint64_t)i, words);
    bool begins = i == 0 || words[0] % 11 == 0;
    if (begins) s->starts[s->file.documents++] = (uint64_t)i;
    s->tokens[i] = words[1] % (uint32_t)s->file.vocab_size;
    // Long stretches that do not count, so that some samples are left out.
    s->counts[i] = !begins && words[2] % 4 && i / 64 % 3;
  }
}

static const char *write_stream(const char *name, const stream *s) {
  int64_t length;
  unsigned char *file = token_bytes_make(&s->file, &length);
  const char *path = io_write(name, file, length);
  free(file);
  return path;
}

// What sample tokens [begin, end) of a stream should be, with `end` at most T + 1 after `begin`.
static int64_t expected(const uint32_t *tokens, const uint8_t *counts, int64_t begin, int64_t end, int64_t T,
                        int32_t *wanted_tokens, int32_t *wanted_targets) {
  int64_t counted = 0;
  for (int64_t i = 0; i < T; i++) {
    bool inside = begin + i + 1 < end;
    wanted_tokens[i] = inside ? (int32_t)tokens[begin + i] : 0;
    wanted_targets[i] = inside && counts[begin + i + 1] ? (int32_t)tokens[begin + i + 1] : IGNORED;
    counted += wanted_targets[i] != IGNORED;
  }
  return counted;
}

static void compare(const fsdp_dataset *dataset, int64_t sample, int64_t T, int64_t counted,
                    const int32_t *wanted_tokens, const int32_t *wanted_targets) {
  int32_t tokens[64], targets[64];
  memset(tokens, 0x55, sizeof tokens);
  memset(targets, 0x55, sizeof targets);
  io_fill(dataset, sample, tokens, targets);
  assert_memory_equal(tokens, wanted_tokens, (size_t)T * sizeof *tokens);
  assert_memory_equal(targets, wanted_targets, (size_t)T * sizeof *targets);
  assert_int_equal(fsdp_dataset_target_count(dataset, sample), counted);
  assert_int_equal(tokens[T], 0x55555555);
  assert_int_equal(targets[T], 0x55555555);
  // In parts, also beyond the sample's end, where all is padding.
  for (int64_t first = 0, count = 1 + (sample + 1) % 7; first < 2 * T; first += count) {
    const fsdp_dataset_part part = {.sample = sample, .first = first, .count = count};
    memset(tokens, 0x55, sizeof tokens);
    fsdp_dataset_fill_part(dataset, &part, tokens, targets);
    for (int64_t i = 0; i < count; i++) {
      bool inside = first + i < T;
      assert_int_equal(tokens[i], inside ? wanted_tokens[first + i] : 0);
      assert_int_equal(targets[i], inside ? wanted_targets[first + i] : IGNORED);
      counted -= targets[i] != IGNORED;
    }
    assert_int_equal(tokens[count], 0x55555555);
    int64_t left = counted + fsdp_dataset_part_target_count(dataset, &part);
    for (int64_t i = 0; i < count; i++) left -= targets[i] != IGNORED;
    assert_int_equal(left, counted);
  }
  assert_int_equal(counted, 0);
}

TEST(stream_samples_run_over_documents_and_files) {
  static stream parts[3];
  static uint32_t tokens[12000];
  static uint8_t counts[12000];
  static const int widths[] = {1, 4, 2};
  char paths[2048] = "";
  int64_t total = 0;
  for (int i = 0; i < 3; i++) {
    char name[16];
    snprintf(name, sizeof name, "%d.tok", i);
    draw(&parts[i], widths[i], true, (uint64_t)i);
    sprintf(paths + strlen(paths), "%s%s", i ? "," : "", write_stream(name, &parts[i]));
    memcpy(tokens + total, parts[i].tokens, (size_t)parts[i].file.count * sizeof *tokens);
    memcpy(counts + total, parts[i].counts, (size_t)parts[i].file.count);
    total += parts[i].file.count;
  }
  for (int64_t T = 1; T < 60; T += 7) {
    fsdp_dataset *dataset = io_dataset(
        paths, (fsdp_dataset_config){.seq = T, .vocab_size = 200000, .packing = FSDP_PACKING_STREAM});
    assert_int_equal(dataset->token_count, total);
    int64_t sample = 0;
    for (int64_t begin = 0; begin + T < total; begin += T) {
      int32_t wanted_tokens[64], wanted_targets[64];
      int64_t counted = expected(tokens, counts, begin, begin + T + 1, T, wanted_tokens, wanted_targets);
      if (counted) compare(dataset, sample++, T, counted, wanted_tokens, wanted_targets);
    }
    assert_int_equal(dataset->sample_count, sample);
    fsdp_dataset_close(dataset);
  }
}

TEST(a_sample_without_packing_is_one_document) {
  static stream parts[2];
  char paths[1100];
  for (int i = 0; i < 2; i++) draw(&parts[i], 2 + 2 * i, false, (uint64_t)i + 5);
  snprintf(paths, sizeof paths, "%s", write_stream("a.tok", &parts[0]));
  sprintf(paths + strlen(paths), ",%s", write_stream("b.tok", &parts[1]));
  for (int64_t T = 1; T < 60; T += 6) {
    fsdp_dataset *dataset = io_dataset(
        paths, (fsdp_dataset_config){
                   .seq = T, .vocab_size = 200000, .packing = FSDP_PACKING_OFF, .longer = FSDP_LONG_CUT});
    int64_t sample = 0, cut = 0;
    for (int part = 0; part < 2; part++) {
      const stream *s = &parts[part];
      for (int64_t d = 0; d < s->file.documents; d++) {
        int32_t wanted_tokens[64], wanted_targets[64];
        int64_t begin = (int64_t)s->starts[d];
        int64_t end = d + 1 < s->file.documents ? (int64_t)s->starts[d + 1] : s->file.count;
        cut += end - begin > T + 1;
        if (end - begin > T + 1) end = begin + T + 1;
        int64_t counted = expected(s->tokens, s->counts, begin, end, T, wanted_tokens, wanted_targets);
        if (counted) compare(dataset, sample++, T, counted, wanted_tokens, wanted_targets);
      }
    }
    assert_int_equal(dataset->sample_count, sample);
    assert_int_equal(dataset->how.counts.cut, cut);
    int32_t none_tokens[64] = {0}, none_targets[64];
    for (int64_t i = 0; i < T; i++) none_targets[i] = IGNORED;
    compare(dataset, FSDP_DATASET_NO_SAMPLE, T, 0, none_tokens, none_targets);
    fsdp_dataset_close(dataset);
  }
}

// The same file of records through the built-in reader and through scripts/prepare_data.py.
TEST(records_are_the_prepared_bytes) {
  fsdp_token_source a, b;
  fsdp_error error;
  IO_OK(fsdp_token_source_open(RECORDS, NULL, 0, &a, &error), &error);
  IO_OK(fsdp_token_source_open(RECORDS_TOK, NULL, 0, &b, &error), &error);
  static const char wanted[] =
      "A wren is a bird.\0"
      "Below is an instruction that describes a task, paired with an input that provides further context. "
      "Write a response that appropriately completes the request.\n\n### Instruction:\nAdd one.\n\n"
      "### Input:\ntwo\n\n### Response:three\0"
      "One?\nTwo.\xc3\x84\0"
      "nul \0 and \xf0\x9f\x90\xa6";
  assert_int_equal(a.view.token_count, sizeof wanted);
  assert_memory_equal(a.view.tokens, wanted, sizeof wanted);
  char learned[256];
  int64_t count = 0;
  for (int64_t i = 0; i < a.view.token_count; i++)
    if (fsdp_token_view_counts(&a.view, i)) learned[count++] = wanted[i];
  static const char wanted_learned[] = " wren is a bird.\0three\0\xc3\x84\0ul \0 and \xf0\x9f\x90\xa6";
  assert_int_equal(count, sizeof wanted_learned);
  assert_memory_equal(learned, wanted_learned, sizeof wanted_learned);
  assert_int_equal(a.view.token_count, b.view.token_count);
  assert_memory_equal(a.view.tokens, b.view.tokens, (size_t)a.view.token_count);
  for (int64_t i = 0; i < a.view.token_count; i++)
    assert_int_equal(fsdp_token_view_counts(&a.view, i), fsdp_token_view_counts(&b.view, i));
  assert_int_equal(a.view.document_count, 4);
  assert_int_equal(b.view.document_count, 4);
  assert_memory_equal(a.view.starts, b.view.starts, 4 * sizeof *a.view.starts);
  fsdp_token_source_close(&a);
  fsdp_token_source_close(&b);
}

TEST(bad_records_are_named_by_line) {
  static const struct {
    const char *file, *content, *place, *what;
  } cases[] = {
      {"a.jsonl", "{\"text\": \"x\"}\n\n{\"text\": 5}\n", "a.jsonl:3", "string"},
      {"a.jsonl", "{\"text\": \"x\"\n}\n", "a.jsonl:1", "not valid JSON"},
      {"a.jsonl", "{\"text\": \"x\"} {\"text\": \"y\"}\n", "a.jsonl:1", "something follows"},
      {"a.jsonl", "{\"text\": \"\xff\"}\n", "a.jsonl:1", "not valid JSON"},
      {"a.jsonl", "{\"txt\": \"x\"}\n", "a.jsonl:1", "has the key \"txt\""},
      {"a.jsonl", "\n[1]\n", "a.jsonl:2", "object"},
      {"a.jsonl", "7\n", "a.jsonl:1", "object"},
      {"a.jsonl", "{\"text\": \"\"}\n \n", "a.jsonl", "no record"},
      {"a.json", "{\"text\": \"x\"}", "a.json:1", "list"},
      {"a.json", "[]", "a.json", "no record"},
      {"a.json", "[{\"text\": \"x\"},\n\n{\"instruction\": \"x\"}]", "a.json:3", "output"},
      {"a.json", "[{\"text\": \"x\"}\n{\"text\": \"x\"}]", "a.json:2", "followed by"},
      {"a.json", "[{\"text\": \"x\"},\n{\"text\": \"x\"}", "a.json:2", "truncated"},
      {"a.json", "[{\"text\": \"x\"},\n{\"text\":\n\"x", "a.json:3", "not valid JSON"},
      {"a.json", "[{\"text\": \"x\"},\n]", "a.json:2", "not valid JSON"},
      {"a.json", "[{\"text\": \"x\"}]\n]", "a.json:2", "follows the end"},
      {"a.json", "[", "a.json:1", "not valid JSON"},
  };
  for (int64_t i = 0; i < LENGTH(cases); i++) {
    fsdp_error error;
    const char *path = io_write_text(cases[i].file, cases[i].content);
    IO_EXPECT(open_bad(path, NULL, 256, &error), FSDP_ERR_INPUT, &error, cases[i].place, cases[i].what);
  }
  fsdp_dataset *dataset =
      io_dataset(io_write_text("good.json", "\xef\xbb\xbf [ {\"text\": \"ab\"} ,\r\n{\"text\": \"c\"}]\n"),
                 (fsdp_dataset_config){.seq = 4, .vocab_size = 256});
  int32_t tokens[4], targets[4], wanted_tokens[] = {'a', 'b', 0, 'c'},
                                 wanted_targets[] = {'b', 0, IGNORED, 0};
  io_fill(dataset, 0, tokens, targets);
  assert_memory_equal(tokens, wanted_tokens, sizeof tokens);
  assert_memory_equal(targets, wanted_targets, sizeof targets);
  fsdp_dataset_close(dataset);
}

// A file's kind is its name's ending, whatever dots its folders have.
TEST(dots_in_folders_are_no_ending) {
  static const char *const files[] = {"v1.2/a.jsonl", "v1.2/b.c.jsonl", "v1.2/../a.jsonl"};
  mkdir(io_path("v1.2"), 0777);
  for (int64_t i = 0; i < LENGTH(files); i++) {
    fsdp_dataset *dataset = io_dataset(io_write_text(files[i], "{\"text\": \"ab\"}\n{\"text\": \"c\"}\n"),
                                       (fsdp_dataset_config){.seq = 4, .vocab_size = 256});
    assert_int_equal(dataset->token_count, 5);
    fsdp_dataset_close(dataset);
  }
  fsdp_error error;
  IO_EXPECT(open_bad(io_write_text("v1.2/jsonl", "x"), NULL, 256, &error), FSDP_ERR_INPUT, &error,
            "the ending \"\" is not one");
}

TEST(data_and_model_must_belong_together) {
  static stream s;
  fsdp_error error;
  char other[512], tokens[512], unnamed[512], bytes[512], both[1100];
  snprintf(other, sizeof other, "%s", io_write_text("tokenizer.json", "{}"));
  draw(&s, 2, true, 1);
  s.file.tokenizer_hash = XXH64("{}", 2, 0);
  snprintf(tokens, sizeof tokens, "%s", write_stream("t.tok", &s));
  uint32_t greatest = 0;
  for (int64_t i = 0; i < s.file.count; i++)
    greatest = s.file.tokens[i] > greatest ? s.file.tokens[i] : greatest;
  s.file.tokenizer_hash = 0;
  snprintf(unnamed, sizeof unnamed, "%s", write_stream("u.tok", &s));
  draw(&s, 1, false, 1);
  s.file.bytes = true;
  snprintf(bytes, sizeof bytes, "%s", write_stream("b.tok", &s));
#define REFUSED(path, tokenizer, vocab_size, ...)                                                            \
  IO_EXPECT(open_bad(path, tokenizer, vocab_size, &error), FSDP_ERR_INPUT, &error, __VA_ARGS__)
  assert_int_equal(open_bad(tokens, other, 60000, &error), FSDP_OK);
  assert_int_equal(open_bad(tokens, NULL, 60000, &error), FSDP_OK);
  REFUSED(tokens, TOKENIZER, 60000, "t.tok", "a different tokenizer", "tests/golden/prepare/tokenizer.json");
  REFUSED(unnamed, other, 60000, "u.tok: was made of .bin files without a tokenizer", "--tokenizer", other);
  // A tokenizer may have more tokens than the model, but not the data.
  assert_int_equal(open_bad(tokens, other, greatest + 1, &error), FSDP_OK);
  char size[32];
  snprintf(size, sizeof size, "vocabulary of %u;", greatest);
  REFUSED(tokens, other, greatest, "t.tok", size, "add --resize-embeddings 60000");
  REFUSED(tokens, io_path("none.json"), 60000, "none.json", "tokenizer");
  assert_int_equal(open_bad(bytes, NULL, 256, &error), FSDP_OK);
  REFUSED(bytes, other, 256, "b.tok", "bytes", "prepare_data.py");
  REFUSED(io_write_text("x.txt", "some text"), other, 256, "x.txt", "is text", "prepare_data.py", other,
          "x.tok");
  REFUSED(io_write_text("x.json", "[]"), other, 256, "x.json", "is text", "prepare_data.py");
  REFUSED(io_write_text("x.csv", "a,b"), other, 256, "x.csv: is a table; run ", "--tokenizer", "x.tok");
  REFUSED(io_write_text("x.jsonl.gz", "x"), NULL, 256, "is compressed; run ", "x.jsonl.tok");
  REFUSED(io_write_text("x.parquet", "PAR1"), NULL, 256, "is a table; run ", "scripts/prepare_data.py --out",
          "x.tok");
  REFUSED(NULL, other, 256, "built-in", other);
  snprintf(both, sizeof both, "%s,%s", tokens, bytes);
  assert_int_equal(open_bad(both, NULL, 60000, &error), FSDP_OK);
  // Every document is shorter than three tokens, and none of their targets counts.
  token_bytes none = {.count = 4,
                      .documents = 2,
                      .vocab_size = 9,
                      .tokens = (uint32_t[]){1, 2, 3, 4},
                      .counts = (uint8_t[]){0, 0, 0, 0},
                      .starts = (uint64_t[]){0, 2},
                      .width = 2};
  int64_t length;
  unsigned char *file = token_bytes_make(&none, &length);
  REFUSED(io_write("none.tok", file, length), NULL, 9, "none.tok", "only 0 of its", "sequences");
  free(file);
#undef REFUSED
}

// A file's header, changed in one place and given the right checksum.
TEST(contradictions_are_refused) {
  static const struct {
    int offset, bytes;
    uint64_t value;
    const char *what;
  } cases[] = {
      {0, 1, 'F', "no file of tokens"},
      {8, 4, 2, "version 2"},
      {12, 4, 64, "128 bytes"},
      {16, 4, 3, "1, 2 or 4"},
      {16, 4, 4, "do not add up"},
      {20, 4, 8, "flags"},
      {24, 8, 0, "vocabulary"},
      {24, 8, 65537, "vocabulary"},
      {32, 8, 0, "counts"},
      {32, 8, 990, "add up"},
      {32, 8, 1016, "add up"},
      {32, 8, INT64_MAX, "add up"},
      {40, 8, 0, "counts"},
      {40, 8, 1000000, "counts"},
      {48, 8, 5000, "counts"},
      {96, 8, 100, "instead of the 100"},
      {40, 8, UINT64_MAX, "counts"},
      {32, 8, 1ULL << 62, "add up"},
  };
  static stream s;
  int64_t length;
  draw(&s, 2, true, 0);
  s.starts[1] = 2; // so that the second document can be moved before the first
  unsigned char *good = token_bytes_make(&s.file, &length), *file = malloc((size_t)length);
  for (int64_t i = 0; i < LENGTH(cases); i++) {
    fsdp_error error;
    memcpy(file, good, (size_t)length);
    for (int k = 0; k < cases[i].bytes; k++)
      file[cases[i].offset + k] = (unsigned char)(cases[i].value >> (8 * k));
    token_bytes_seal(file);
    IO_EXPECT(open_bad(io_write("x.tok", file, length), NULL, 60000, &error), FSDP_ERR_INPUT, &error, "x.tok",
              cases[i].what);
  }
  fsdp_error error;
  static const uint64_t wrong[] = {0, 1u << 30};
  for (int i = 0; i < 2; i++) {
    memcpy(file, good, (size_t)length);
    memcpy(file + length - 8 * (i ? 1 : s.file.documents - 1), &wrong[i], 8);
    IO_EXPECT(open_bad(io_write("x.tok", file, length), NULL, 60000, &error), FSDP_ERR_INPUT, &error, "x.tok",
              "order");
  }
  free(file);
  free(good);
}

TEST(damage_is_found) {
  static stream s;
  fsdp_error error;
  int64_t length;
  draw(&s, 2, true, 0);
  unsigned char *file = token_bytes_make(&s.file, &length);
  for (int64_t bit = 0; bit < 128 * 8; bit += 5) {
    file[bit / 8] ^= (unsigned char)(1u << (bit % 8));
    IO_EXPECT(open_bad(io_write("x.tok", file, length), NULL, 60000, &error), FSDP_ERR_INPUT, &error,
              "x.tok");
    file[bit / 8] ^= (unsigned char)(1u << (bit % 8));
  }
  for (int64_t left = 1; left < length; left += 97)
    IO_EXPECT(open_bad(io_write("x.tok", file, left), NULL, 60000, &error), FSDP_ERR_INPUT, &error, "x.tok");
  free(file);
}

// Shares of the reading: each prepared file is compared with its checksums by just one of them.
TEST(a_file_is_verified_by_one_share) {
  enum { FILES = 5 };
  static stream s;
  int64_t length;
  draw(&s, 2, true, 0);
  unsigned char *file = token_bytes_make(&s.file, &length);
  for (int bad = 0; bad < FILES; bad++) {
    char list[4096] = "", name[16];
    for (int i = 0; i < FILES; i++) {
      file[200] ^= i == bad; // of a token
      snprintf(name, sizeof name, "%d.tok", i);
      sprintf(list + strlen(list), "%s%s", i ? "," : "", io_write(name, file, length));
      file[200] ^= i == bad;
    }
    for (int shares = 1; shares < 8; shares++) {
      int found = 0;
      for (int share = 0; share < shares; share++) {
        fsdp_dataset_config config = {
            .seq = 2, .vocab_size = 60000, .verify = true, .share = share, .shares = shares};
        fsdp_error error;
        found += io_dataset_status(list, config, &error) == FSDP_ERR_INPUT;
      }
      assert_int_equal(found, 1);
    }
  }
  free(file);
}

static void fill_all(void *dataset) {
  int32_t tokens[50], targets[50];
  for (int64_t i = 0; i < 3; i++) io_fill(dataset, i, tokens, targets);
}

// A token past the vocabulary would read past the embedding, so filling such a sample aborts.
TEST(a_damaged_token_is_not_trained_on) {
  static stream s;
  draw(&s, 2, true, 0);
  s.tokens[100] = 60000;
  s.counts[101] = 1;
  fsdp_dataset *dataset =
      io_dataset(write_stream("x.tok", &s),
                 (fsdp_dataset_config){.seq = 50, .vocab_size = 60000, .packing = FSDP_PACKING_STREAM});
  assert_true(aborts(fill_all, dataset));
  fsdp_dataset_close(dataset);
}

TEST(fingerprints_tell_data_apart) {
  static stream s;
  uint64_t prints[3];
  for (int i = 0; i < 3; i++) {
    draw(&s, 2, true, i == 1 ? 3 : 4);
    fsdp_dataset *dataset = io_dataset(write_stream(i == 2 ? "again.tok" : "x.tok", &s),
                                       (fsdp_dataset_config){.seq = 50, .vocab_size = 60000});
    prints[i] = fsdp_dataset_fingerprint(dataset);
    fsdp_dataset_close(dataset);
  }
  assert_true(prints[0] != prints[1]);
  assert_true(prints[0] == prints[2]);
}

TEST(held_out_samples_are_never_trained_on) {
  for (int64_t samples = 2; samples < 90; samples += 11) {
    for (int64_t held_out = 0; held_out < samples; held_out += 3) {
      for (int64_t batch = 1; batch <= samples - held_out; batch += 4) {
        fsdp_sampler sampler = {
            .seed = 7, .sample_count = samples, .global_batch = batch, .held_out = held_out};
        int64_t trained[90] = {0}, seen[90] = {0}, none = 0, steps = fsdp_sampler_steps_per_epoch(&sampler);
        assert_int_equal(steps, (samples - held_out) / batch);
        for (int64_t i = 0; i < steps * batch; i++)
          trained[fsdp_sampler_sample(&sampler, 2, i / batch, i % batch)]++;
        int64_t evaluations = fsdp_sampler_validation_steps(&sampler);
        for (int64_t i = 0; i < evaluations * batch; i++) {
          int64_t sample = fsdp_sampler_validation_sample(&sampler, i / batch, i % batch);
          if (sample == FSDP_SAMPLER_NONE)
            none++;
          else
            seen[sample]++;
        }
        int64_t seen_count = 0;
        for (int64_t i = 0; i < samples; i++) {
          assert_true(trained[i] + seen[i] <= 1);
          seen_count += seen[i];
        }
        assert_int_equal(seen_count, held_out);
        assert_true(none < batch);
      }
    }
  }
  // The same ones for every global batch, others for a different seed.
  fsdp_sampler a = {.seed = 1, .sample_count = 1000, .global_batch = 100, .held_out = 100}, b = a, c = a;
  b.global_batch = 1, c.seed = 2;
  int same = 0;
  for (int64_t i = 0; i < 100; i++) {
    int64_t sample = fsdp_sampler_validation_sample(&a, 0, i);
    assert_int_equal(sample, fsdp_sampler_validation_sample(&b, i, 0));
    same += sample == fsdp_sampler_validation_sample(&c, 0, i);
  }
  assert_true(same < 10);
}

TEST(the_part_to_hold_out_is_checked) {
  static const struct {
    double amount;
    int64_t held_out; // -1: refused
  } cases[] = {{0, 0},   {0.1, 10},  {0.001, 1}, {1, 1},    {7, 7},     {96, 96},
               {97, -1}, {0.99, -1}, {-1, -1},   {1.5, -1}, {-0.1, -1}, {1e30, -1}};
  for (int64_t i = 0; i < LENGTH(cases); i++) {
    fsdp_error error;
    fsdp_sampler sampler = {.sample_count = 100, .global_batch = 4};
    fsdp_status status = fsdp_sampler_hold_out(&sampler, cases[i].amount, &error);
    assert_int_equal(status, cases[i].held_out < 0 ? FSDP_ERR_OPTION : FSDP_OK);
    if (!status) assert_int_equal(sampler.held_out, cases[i].held_out);
  }
}

int main(void) {
  return run_all_tests(io_set_up, io_tear_down);
}
