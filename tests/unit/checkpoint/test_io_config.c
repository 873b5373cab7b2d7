// Files of configurations: both generations of keys, and every way in which a config.json can be wrong.
#include "models/model.h"
#include "runtime/checkpoint/json_file.h"
#include "tests/support/io_files.h"
#include "tests/support/models.h"
#include "tests/support/unit_test.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define SIZES "\"vocab_size\":128,\"hidden_size\":32,\"intermediate_size\":64,\"num_hidden_layers\":2"
#define BASE  "\"model_type\":\"llama\"," SIZES ",\"num_attention_heads\":4"

static fsdp_status read_text(const char *text, fsdp_model_config *config, fsdp_error *error) {
  memset(error, 0, sizeof *error);
  return fsdp_config_read(io_write_text("config.json", text), config, error);
}

static void read_good(const char *text, fsdp_model_config *config) {
  fsdp_error error;
  if (read_text(text, config, &error)) fail_msg("refused: %s", error.message);
}

TEST(golden_folders_are_read) {
  fsdp_model_config c;
  fsdp_error error;
  IO_OK(fsdp_config_read(FSDP_SOURCE_DIR "/tests/golden/llama3_rope/config.json", &c, &error), &error);
  assert_int_equal(c.rope_scaling, FSDP_ROPE_LLAMA3);
  assert_true(c.rope_factor == 8 && c.rope_low_freq_factor == 1 && c.rope_high_freq_factor == 4);
  assert_int_equal(c.rope_original_max_position, 32);
  assert_int_equal(c.max_position_embeddings, 256);
  IO_OK(fsdp_config_read(FSDP_SOURCE_DIR "/tests/golden/multi_query_257/config.json", &c, &error), &error);
  assert_int_equal(c.rope_scaling, FSDP_ROPE_LINEAR);
  assert_true(c.rope_factor == 2.5 && c.rope_theta == 10000 && c.norm_eps == 1e-5);
  assert_int_equal(c.num_kv_heads, 1);
  assert_int_equal(c.head_dim, 12);
  IO_OK(fsdp_config_read(FSDP_SOURCE_DIR "/tests/golden/odd/config.json", &c, &error), &error);
  assert_int_equal(c.num_kv_heads, 3);
  assert_int_equal(c.head_dim, 16);
  assert_false(c.tie_word_embeddings);
  IO_OK(fsdp_config_read(FSDP_SOURCE_DIR "/tests/golden/tied/config.json", &c, &error), &error);
  assert_true(c.tie_word_embeddings);
}

TEST(defaults_are_those_of_transformers) {
  fsdp_model_config c;
  read_good("{" BASE "}", &c);
  assert_int_equal(c.num_kv_heads, 4);
  assert_int_equal(c.head_dim, 8);
  assert_int_equal(c.max_position_embeddings, 2048);
  assert_true(c.rope_theta == 10000 && c.norm_eps == 1e-6 && c.initializer_range == 0.02);
  assert_int_equal(c.rope_scaling, FSDP_ROPE_DEFAULT);
  read_good("{" BASE
            ",\"head_dim\":null,\"num_key_value_heads\":null,\"rope_scaling\":null,\"hidden_act\":\"silu\","
            "\"attention_bias\":false,\"initializer_range\":0.01}",
            &c);
  assert_true(c.head_dim == 8 && c.num_kv_heads == 4 && c.initializer_range == 0.01);
  // A model type alone, or architectures alone, suffice.
  read_good("{\"architectures\":[\"LlamaForCausalLM\"]," SIZES ",\"num_attention_heads\":4}", &c);
}

TEST(padding_token_counts_from_either_end) {
  static const struct {
    const char *text;
    int64_t token; // and 1
  } cases[] = {{"null", 0}, {"0", 1}, {"127", 128}, {"-1", 128}, {"-128", 1}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char text[512];
    fsdp_model_config c;
    snprintf(text, sizeof text, "{%s,\"pad_token_id\":%s}", BASE, cases[i].text);
    read_good(text, &c);
    assert_int_equal(c.vocab_size, 128);
    assert_int_equal(c.padding_token, cases[i].token);
    fsdp_graph *graph = fsdp_model_forward(&c, 1, 4);
    const fsdp_param *embedding = &graph->params[0];
    assert_string_equal(embedding->name, "model.embed_tokens.weight");
    char expected[64] = "128, 32";
    if (c.padding_token)
      snprintf(expected, sizeof expected, "128, 32, padding_idx=%d", (int)c.padding_token - 1);
    assert_string_equal(graph->modules[embedding->module].detail, expected);
    assert_int_equal(embedding->zero_numel, c.padding_token ? 32 : 0);
    assert_int_equal(embedding->zero_first, c.padding_token ? 32 * (c.padding_token - 1) : 0);
    fsdp_graph_destroy(graph);
  }
}

TEST(rope_in_every_spelling) {
  fsdp_model_config c;
  read_good("{" BASE ",\"rope_theta\":5e5,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,"
            "\"low_freq_factor\":1,\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192}}",
            &c);
  assert_true(c.rope_scaling == FSDP_ROPE_LLAMA3 && c.rope_theta == 5e5 &&
              c.rope_original_max_position == 8192);
  read_good("{" BASE ",\"original_max_position_embeddings\":16,\"rope_scaling\":{\"rope_type\":\"llama3\","
            "\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4.0,"
            "\"original_max_position_embeddings\":32}}",
            &c);
  assert_int_equal(c.rope_original_max_position, 16); // Transformers 5.23: that of the model, not of its rope
  read_good("{" BASE ",\"rope_parameters\":{\"rope_type\":\"linear\",\"rope_theta\":20000,\"factor\":4}}",
            &c);
  assert_true(c.rope_scaling == FSDP_ROPE_LINEAR && c.rope_theta == 20000 && c.rope_factor == 4);
  read_good("{" BASE ",\"rope_theta\":30000,\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}", &c);
  assert_true(c.rope_scaling == FSDP_ROPE_LINEAR && c.rope_theta == 30000 && c.rope_factor == 2);
  read_good("{" BASE ",\"rope_scaling\":{\"rope_type\":\"default\"}}", &c);
  assert_int_equal(c.rope_scaling, FSDP_ROPE_DEFAULT);
  read_good("{" BASE ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},"
            "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":5.0}}",
            &c);
  assert_true(c.rope_scaling == FSDP_ROPE_LINEAR && c.rope_theta == 10000);
}

typedef struct bad_case {
  const char *text;
  const char *parts[4]; // of the message; NULL ends them
} bad_case;

static const bad_case bad_cases[] = {
    {"{" BASE ",\n  \"x\": }", {"config.json:2:", "not valid JSON"}},
    {"{" BASE, {"config.json:1:", "not valid JSON"}},
    {"", {"not valid JSON"}},
    {"[1, 2]", {"not a JSON object"}},
    {"{" BASE ",\"vocab_size\":3}", {"not valid JSON", "duplicate", "vocab_size"}},
    {"{" SIZES ",\"num_attention_heads\":4}", {"\"model_type\" is missing"}},
    {"{\"model_type\":\"gemma3\"," SIZES "}", {"\"model_type\" is \"gemma3\"", "llama"}},
    {"{" BASE ",\"architectures\":[\"LlamaForSequenceClassification\"]}",
     {"architectures", "LlamaForCausalLM"}},
    {"{" BASE ",\"architectures\":\"LlamaForCausalLM\"}", {"architectures"}},
    {"{\"model_type\":\"llama\"," SIZES "}", {"\"num_attention_heads\" is missing"}},
    {"{\"model_type\":\"llama\",\"vocab_size\":1,\"hidden_size\":null}", {"\"hidden_size\" is missing"}},
    {"{" BASE ",\"attention_bias\":true}", {"\"attention_bias\" is true", "not supported"}},
    {"{" BASE ",\"mlp_bias\":true}", {"\"mlp_bias\" is true"}},
    {"{" BASE ",\"mlp_bias\":\"no\"}", {"\"mlp_bias\" is \"no\"", "true or false"}},
    {"{" BASE ",\"hidden_act\":\"gelu\"}", {"\"hidden_act\" is \"gelu\"", "silu"}},
    {"{" BASE ",\"attention_dropout\":0.1}", {"\"attention_dropout\" is 0.1", "0.0"}},
    {"{" BASE ",\"quantization_config\":{\"bits\":4}}", {"\"quantization_config\"", "original"}},
    {"{" BASE ",\"head_dim\":0}", {"\"head_dim\" is 0", "at least 1"}},
    {"{" BASE ",\"head_dim\":7.5}", {"\"head_dim\" is 7.5", "whole number"}},
    {"{" BASE ",\"num_key_value_heads\":-1}", {"\"num_key_value_heads\" is -1"}},
    {"{" BASE ",\"num_key_value_heads\":3}", {"config.json", "4", "3"}},
    {"{\"model_type\":\"llama\"," SIZES ",\"num_attention_heads\":5}", {"\"hidden_size\" is 32", "5"}},
    {"{" BASE ",\"rms_norm_eps\":0}", {"\"rms_norm_eps\" is 0", "above 0"}},
    {"{" BASE ",\"rms_norm_eps\":1.0}", {"\"rms_norm_eps\" is 1.0", "below 1"}},
    {"{\"model_type\":\"llama\",\"vocab_size\":2147483648}", {"\"vocab_size\" is 2147483648", "2147483647"}},
    {"{" BASE ",\"head_dim\":1025}", {"\"head_dim\" is 1025", "between 1 and 1024"}},
    {"{" BASE ",\"head_dim\":7}", {"head_dim is 7", "even"}},
    {"{" BASE ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":0.5}}", {"\"factor\" is 0.5", "at least 1"}},
    {"{" BASE ",\"rope_theta\":\"big\"}", {"\"rope_theta\" is \"big\""}},
    {"{" BASE ",\"rope_theta\":1e999}", {"not valid JSON"}},
    {"{" BASE ",\"rope_scaling\":3}", {"\"rope_scaling\" is 3", "object"}},
    {"{" BASE ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2}}",
     {"\"rope_type\" is \"yarn\"", "llama3"}},
    {"{" BASE ",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}}", {"\"rope_type\" is \"dynamic\""}},
    {"{" BASE ",\"rope_scaling\":{\"type\":7}}", {"\"rope_type\" is 7"}},
    {"{" BASE ",\"rope_scaling\":{\"type\":\"linear\"}}", {"\"factor\" is missing"}},
    {"{" BASE ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":-2}}", {"\"factor\" is -2"}},
    {"{" BASE ",\"rope_parameters\":{\"rope_type\":\"llama3\",\"factor\":2,\"low_freq_factor\":1}}",
     {"\"high_freq_factor\" is missing"}},
    {"{" BASE ",\"rope_parameters\":{\"rope_type\":\"llama3\",\"factor\":2,\"low_freq_factor\":4,"
     "\"high_freq_factor\":4}}",
     {"\"high_freq_factor\" is 4", "low_freq_factor"}},
    {"{" BASE ",\"partial_rotary_factor\":0.5}", {"\"partial_rotary_factor\" is 0.5"}},
    {"{" BASE ",\"vocab_size_2\":99999999999999999999}", {"not valid JSON"}},
    {"{" BASE ",\"head_dim\":4611686018427387904}", {"config.json"}},
    {"{" BASE ",\"pad_token_id\":128}", {"\"pad_token_id\" is 128", "below vocab_size"}},
    {"{" BASE ",\"pad_token_id\":-129}", {"\"pad_token_id\" is -129", "null"}},
    {"{" BASE ",\"pad_token_id\":[1]}", {"\"pad_token_id\" is [1]"}},
};

TEST(every_bad_file_is_refused_with_its_reason) {
  for (size_t i = 0; i < sizeof bad_cases / sizeof *bad_cases; i++) {
    fsdp_model_config config;
    fsdp_error error;
    fsdp_status status = read_text(bad_cases[i].text, &config, &error);
    if (status != FSDP_ERR_INPUT) fail_msg("not refused: %s", bad_cases[i].text);
    io_expect(status, FSDP_ERR_INPUT, &error, bad_cases[i].parts);
    IO_EXPECT(status, FSDP_ERR_INPUT, &error, "config.json");
  }
}

TEST(missing_file_is_named) {
  fsdp_model_config config;
  fsdp_error error;
  IO_EXPECT(fsdp_config_read(io_path("none/config.json"), &config, &error), FSDP_ERR_INPUT, &error,
            "none/config.json", "No such file", "--model");
}

// Neither is waited for, and each is called what it is.
TEST(what_is_no_file_is_named) {
  fsdp_model_config config;
  fsdp_error error;
  mkdir(io_path("folder.json"), 0777);
  IO_EXPECT(fsdp_config_read(io_path("folder.json"), &config, &error), FSDP_ERR_INPUT, &error, "folder.json",
            "is a folder, not a file", "--model");
  mkfifo(io_path("pipe.json"), 0666);
  IO_EXPECT(fsdp_config_read(io_path("pipe.json"), &config, &error), FSDP_ERR_INPUT, &error, "pipe.json",
            "is not a regular file", "--model");
}

// White space may follow the value, and nothing else.
TEST(what_follows_the_end_is_refused) {
  static const char text[] = "{" BASE "} \n\0x{}";
  const int64_t length = (int64_t)strlen(text);
  fsdp_model_config config;
  fsdp_error error;
  IO_OK(fsdp_config_read(io_write("end.json", text, length), &config, &error), &error);
  for (int64_t more = 1; more < (int64_t)sizeof text - length; more++)
    IO_EXPECT(fsdp_config_read(io_write("end.json", text, length + more), &config, &error), FSDP_ERR_INPUT,
              &error, "end.json:", "not valid JSON");
}

// Cuts of a good file are errors, never a crash (sanitizers check that).
TEST(every_truncation_is_refused) {
  const char *text = "{" BASE ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.0},\"rms_norm_eps\":1e-5}";
  for (size_t length = 0; length < strlen(text); length++) {
    fsdp_model_config config;
    fsdp_error error;
    assert_int_equal(fsdp_config_read(io_write("cut.json", text, (int64_t)length), &config, &error),
                     FSDP_ERR_INPUT);
  }
}

// Each field changed by itself, in configurations that use it.
TEST(every_field_that_changes_a_number_is_compared) {
  enum { NUMBERS, NOTHING, LLAMA3_ONLY, SCALED_ONLY };
  fsdp_model_config base, other;
  char out[512];
  for (int scaling = FSDP_ROPE_DEFAULT; scaling <= FSDP_ROPE_LLAMA3; scaling++) {
    base = model_of_preset("llama3-405b");
    base.rope_scaling = (fsdp_rope_scaling)scaling;
#define CHANGED(field, value, kind, key)                                                                     \
  {                                                                                                          \
    other = base;                                                                                            \
    other.field = (value);                                                                                   \
    bool used = (kind) == NUMBERS || ((kind) == LLAMA3_ONLY && scaling == FSDP_ROPE_LLAMA3) ||               \
                ((kind) == SCALED_ONLY && scaling != FSDP_ROPE_DEFAULT);                                     \
    assert_int_equal(fsdp_model_differs(&base, &other, FSDP_MODEL_NUMBERS, out, sizeof out), used);          \
    if (used && !strstr(out, key)) fail_msg("\"%s\" does not name %s", out, key);                            \
    used |= (kind) == NOTHING;                                                                               \
    assert_int_equal(fsdp_model_differs(&base, &other, FSDP_MODEL_ALL, out, sizeof out), used);              \
  }
    CHANGED(vocab_size, 128257, NUMBERS, "vocab_size 128256 → 128257")
    CHANGED(hidden_size, 1, NUMBERS, "hidden_size 16384 → 1")
    CHANGED(intermediate_size, 1, NUMBERS, "intermediate_size 53248 → 1")
    CHANGED(num_layers, 1, NUMBERS, "num_hidden_layers 126 → 1")
    CHANGED(num_heads, 64, NUMBERS, "num_attention_heads 128 → 64")
    CHANGED(num_kv_heads, 16, NUMBERS, "num_key_value_heads 8 → 16")
    CHANGED(head_dim, 64, NUMBERS, "head_dim 128 → 64")
    CHANGED(norm_eps, 1e-6, NUMBERS, "rms_norm_eps 1e-5 → 1e-6")
    CHANGED(rope_theta, 1e4, NUMBERS, "rope_theta 500000.0 → 10000.0")
    CHANGED(rope_theta, 5e5 * (1 + 0x1p-52), NUMBERS, "rope_theta 500000.0 → 500000.0000000001")
    CHANGED(rope_scaling, (fsdp_rope_scaling)((scaling + 1) % 3), NUMBERS, "rope_scaling")
    CHANGED(rope_factor, 4, SCALED_ONLY, "rope_scaling.factor 8.0 → 4.0")
    CHANGED(rope_low_freq_factor, 2, LLAMA3_ONLY, "rope_scaling.low_freq_factor 1.0 → 2.0")
    CHANGED(rope_high_freq_factor, 8, LLAMA3_ONLY, "rope_scaling.high_freq_factor 4.0 → 8.0")
    CHANGED(rope_original_max_position, 4096, LLAMA3_ONLY,
            "rope_scaling.original_max_position_embeddings 8192 → 4096")
    CHANGED(tie_word_embeddings, true, NUMBERS, "tie_word_embeddings false → true")
    CHANGED(padding_token, 3, NUMBERS, "pad_token_id none → 2")
    CHANGED(max_position_embeddings, 1, NOTHING, "")
    CHANGED(initializer_range, 1, NOTHING, "")
#undef CHANGED
    assert_false(fsdp_model_differs(&base, &base, FSDP_MODEL_ALL, out, sizeof out));
  }
  // Every difference is listed, and a buffer that is too short is not overrun.
  other = base;
  other.rope_theta = 1e4;
  other.vocab_size = 5;
  assert_true(fsdp_model_differs(&base, &other, FSDP_MODEL_NUMBERS, out, sizeof out));
  assert_string_equal(out, "vocab_size 128256 → 5, rope_theta 500000.0 → 10000.0");
  memset(out, 'x', sizeof out);
  assert_true(fsdp_model_differs(&base, &other, FSDP_MODEL_NUMBERS, out, 12));
  assert_string_equal(out, "vocab_size ");
  assert_int_equal(out[12], 'x');
}

int main(void) {
  return run_all_tests(io_set_up, io_tear_down);
}
