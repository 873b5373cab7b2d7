// Records of completions as bytes, against bytes written by hand, and the messages for records that are not
// read here and for data whose prompts leave nothing to learn.
#include "runtime/data/dataset.h"
#include "runtime/data/token_source.h"
#include "tests/support/io_files.h"
#include "tests/support/unit_test.h"

#include <string.h>

#define COMPLETIONS   FSDP_SOURCE_DIR "/tests/golden/prepare/completions.jsonl"
#define ALPACA        FSDP_SOURCE_DIR "/tests/golden/prepare/alpaca.tok"
#define LENGTH(array) ((int64_t)(sizeof(array) / sizeof *(array)))

// tests/program/scripts/test_prepare_data.py has the same bytes.
TEST(completions_are_bytes) {
  static const char wanted[] = "The wren is a bird.\0"
                               "xy";
  static const char wanted_learned[] = " a bird.\0y";
  static const uint64_t wanted_starts[] = {0, 20};
  fsdp_token_source source;
  fsdp_error error;
  IO_OK(fsdp_token_source_open(COMPLETIONS, NULL, 0, &source, &error), &error);
  const fsdp_token_view *view = &source.view;
  assert_int_equal(view->token_count, sizeof wanted);
  assert_memory_equal(view->tokens, wanted, sizeof wanted);
  char learned[64];
  size_t count = 0;
  for (int64_t i = 0; i < view->token_count; i++)
    if (fsdp_token_view_counts(view, i)) learned[count++] = wanted[i];
  assert_int_equal(count, sizeof wanted_learned);
  assert_memory_equal(learned, wanted_learned, sizeof wanted_learned);
  assert_int_equal(view->document_count, LENGTH(wanted_starts));
  assert_memory_equal(view->starts, wanted_starts, sizeof wanted_starts);
  fsdp_token_source_close(&source);
}

// The prompt that Stanford Alpaca's records have is not learned, though a "text" repeats it.
TEST(alpaca_with_a_text_is_alpaca) {
  static const char *const records[] = {
      "{\"instruction\": \"Say.\", \"input\": \"\", \"output\": \"It.\", \"text\": \"Say. It.\"}",
      "{\"text\": \"Say. It.\", \"instruction\": \"Say.\"}"};
  for (int i = 0; i < 2; i++) {
    fsdp_token_source source;
    fsdp_error error;
    const char *path = io_write_text("both.jsonl", records[i]);
    IO_OK(fsdp_token_source_open(path, NULL, 0, &source, &error), &error);
    const fsdp_token_view *view = &source.view;
    // "It." and the end of text, or all of the text but its first byte.
    assert_int_equal(fsdp_token_view_counted(view, 0, view->token_count), i ? 8 : 4);
    assert_true((memmem(view->tokens, (size_t)view->token_count, "### Response:It.", 16) != NULL) == !i);
    fsdp_token_source_close(&source);
  }
}

static fsdp_status open_with(const char *path, int64_t seq, int64_t global_batch, fsdp_error *error) {
  fsdp_dataset_config config = {.seq = seq, .global_batch = global_batch, .vocab_size = 60000};
  return io_dataset_status(path, config, error);
}

TEST(bad_records_are_named_by_line) {
  static const struct {
    const char *content, *what;
  } cases[] = {
      {"\n{\"conversations\": []}", "has the key \"conversations\", which is not read here"},
      {"\n{\"messages\": [], \"text\": null}", "has the key \"messages\""},
      {"\n{\"instruction\": \"x\", \"output\": \"y\", \"system\": \"z\"}",
       "prepare_data.py --tokenizer bytes"},
      {"\n{\"prompt\": \"x\", \"completion\": \"y\", \"label\": false}", "has the key \"label\""},
      {"\n[]", "must be an object"},
      {"\n{\"prompt\": \"x\"}", "has \"prompt\" and no \"completion\"; fix the record, or run "},
      {"\n{\"prompt\": \"x\", \"completion\": null}", "has \"prompt\" and no \"completion\""},
      {"\n{\"instruction\": \"x\"}", "has \"instruction\" and no \"output\"; fix the record, or run "},
      {"\n{\"instruction\": \"x\"}", "prepare_data.py --tokenizer bytes --out NAME.tok"},
      {"\n{\"instruction\": \"x\"}", "a.jsonl, which skips it"},
      {"\n{\"instruction\": \"x\", \"output\": 3}",
       "and \"output\" must be strings; fix the record, or run "},
      {"\n{\"prompt\": [], \"completion\": \"x\"}", "\"prompt\" and \"completion\" must be strings"},
      {"\n{\"completion\": \"x\"}", "neither"},
  };
  for (int64_t i = 0; i < LENGTH(cases); i++) {
    fsdp_error error;
    const char *path = io_write_text("a.jsonl", cases[i].content);
    IO_EXPECT(open_with(path, 2, 1, &error), FSDP_ERR_INPUT, &error, "a.jsonl:2: ", cases[i].what);
  }
}

TEST(bad_records_of_a_list_are_numbered) {
  static const char *const lists[] = {"[{\"text\": \"a\"},\n{\"text\": \"b\"}, 5]",
                                      "[{\"text\": \"a\"}, {\"text\": \"b\"},\n{\"text\": }]"};
  for (int64_t i = 0; i < LENGTH(lists); i++) {
    fsdp_error error;
    IO_EXPECT(open_with(io_write_text("a.json", lists[i]), 2, 1, &error), FSDP_ERR_INPUT, &error,
              "a.json:2: record 3: ", i ? "not valid JSON" : "must be an object");
  }
}

// Answers begin behind 29, 41 and 28 tokens of prompt (test_io_tokens.c).
TEST(prompts_that_fill_the_sequence_are_reported) {
  fsdp_error error;
  fsdp_dataset_config config = {.seq = 41, .global_batch = 3, .vocab_size = 60000};
  config.packing = FSDP_PACKING_OFF;
  config.longer = FSDP_LONG_CUT;
  assert_int_equal(io_dataset_status(ALPACA, config, &error), FSDP_OK);
  config.seq = 27;
  IO_EXPECT(io_dataset_status(ALPACA, config, &error), FSDP_ERR_INPUT, &error,
            "only 0 of its 3 sequences of 27", "prompts", "; raise --seq-length, or prepare",
            "--mask-prompt off");
  config.longer = FSDP_LONG_DROP;
  IO_EXPECT(io_dataset_status(ALPACA, config, &error), FSDP_ERR_INPUT, &error,
            "all its 3 documents are longer than --seq-length 27 and dropped (--long-documents drop); raise "
            "--seq-length, or use --long-documents split");
  config.seq = 35; // of the three prompts with answers two fit
  IO_EXPECT(io_dataset_status(ALPACA, config, &error), FSDP_ERR_INPUT, &error,
            ": 1 document is longer than --seq-length 35 and dropped", "the others fill 2 sequences",
            "one step needs 3");
  config.global_batch = 1, config.seq = 27;
  IO_EXPECT(io_dataset_status(ALPACA ":1", config, &error), FSDP_ERR_INPUT, &error,
            "all its 3 documents are longer than --seq-length 27 and dropped");
  config.longer = FSDP_LONG_CUT;
  config.seq = 64;
  config.global_batch = 4;
  IO_EXPECT(io_dataset_status(ALPACA, config, &error), FSDP_ERR_INPUT, &error,
            "its 3 documents fill 3 sequences of 64", "one step needs 4", "give more");
  // A stream: 105 tokens are 26 sequences of 4, three of which hold an answer.
  config =
      (fsdp_dataset_config){.seq = 4, .global_batch = 8, .vocab_size = 60000, .packing = FSDP_PACKING_STREAM};
  IO_EXPECT(io_dataset_status(ALPACA, config, &error), FSDP_ERR_INPUT, &error, "of its 26 sequences",
            "prompts", "one step needs 8; raise --seq-length, give more data", "--grad-accum",
            "--mask-prompt off");
}

int main(void) {
  return run_all_tests(io_set_up, io_tear_down);
}
