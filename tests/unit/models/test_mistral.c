// Mistral: what its configurations mean, which are refused, and what its graph has beside a Llama's.
#include "tests/support/models.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SIZES                                                                                                \
  "\"vocab_size\":31,\"hidden_size\":24,\"intermediate_size\":40,\"num_hidden_layers\":3,"                   \
  "\"num_attention_heads\":4"
#define BASE "{\"model_type\":\"mistral\"," SIZES ",\"num_key_value_heads\":2"

// As the hub has it.
static const char hub[] =
    "{\"architectures\":[\"MistralForCausalLM\"],\"bos_token_id\":1,\"eos_token_id\":2,\"hidden_act\":"
    "\"silu\","
    "\"hidden_size\":4096,\"initializer_range\":0.02,\"intermediate_size\":14336,"
    "\"max_position_embeddings\":32768,\"model_type\":\"mistral\",\"num_attention_heads\":32,"
    "\"num_hidden_layers\":32,\"num_key_value_heads\":8,\"rms_norm_eps\":1e-05,\"rope_theta\":10000.0,"
    "\"sliding_window\":4096,\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\","
    "\"transformers_version\":\"4.34.0.dev0\",\"use_cache\":true,\"vocab_size\":32000}";

static void test_configurations(void **state) {
  (void)state;
  char out[512];
  fsdp_error error;
  fsdp_model_config c = model_of_json(hub), preset;
  assert_int_equal(fsdp_model_preset("mistral-7b", &preset, &error), FSDP_OK);
  assert_false(fsdp_model_differs(&c, &preset, FSDP_MODEL_ALL, out, sizeof out));
  assert_true(c.window == 4096 && c.head_dim == 128);
  // Defaults of Transformers 5.23.
  c = model_of_json(
      "{\"model_type\":\"mistral\",\"vocab_size\":31,\"hidden_size\":64,\"intermediate_size\":40,"
      "\"num_hidden_layers\":3,\"num_attention_heads\":16}");
  assert_true(c.window == 4096 && c.num_kv_heads == 8 && c.head_dim == 4 && c.norm_eps == 1e-6);
  assert_true(c.max_position_embeddings == 131072 && c.rope_theta == 10000 && !c.tie_word_embeddings);
  // null is none, for a window; as many as heads, for key/value heads.
  c = model_of_json("{\"model_type\":\"mistral\"," SIZES ",\"num_key_value_heads\":null,"
                    "\"sliding_window\":null,\"head_dim\":10,\"tie_word_embeddings\":true}");
  assert_true(c.window == 0 && c.num_kv_heads == 4 && c.head_dim == 10 && c.tie_word_embeddings);
  expect_model_read_back(&c);
  char *json = json_of_model(&c);
  assert_non_null(strstr(json, "\"sliding_window\":null"));
  free(json);
  c = model_of_json(BASE ",\"sliding_window\":1}");
  assert_int_equal(c.window, 1);
  expect_model_read_back(&c);
}

static void test_refused(void **state) {
  (void)state;
  static const refused_model models[] = {
      {"{\"model_type\":\"mistral\"," SIZES "}", {"num_attention_heads 4", "num_key_value_heads 8"}},
      {BASE ",\"sliding_window\":0}", {"\"sliding_window\" is 0", "at least 1"}},
      {BASE ",\"sliding_window\":-4096}", {"\"sliding_window\" is -4096"}},
      {BASE ",\"sliding_window\":4.5}", {"\"sliding_window\" is 4.5", "whole number"}},
      {BASE ",\"layer_types\":[\"full_attention\"]}",
       {"\"layer_types\" is [\"full_attention\"]", "ministral"}},
      {BASE ",\"hidden_act\":\"gelu\"}", {"\"hidden_act\" is \"gelu\"", "silu"}},
      {BASE ",\"attention_dropout\":0.1}", {"\"attention_dropout\" is 0.1", "0.0"}},
      {BASE ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0}}",
       {"\"rope_type\" is \"yarn\"", "llama3"}},
      {BASE ",\"rope_parameters\":{\"rope_type\":\"longrope\"}}", {"\"rope_type\" is \"longrope\""}},
      {BASE ",\"architectures\":[\"MistralForSequenceClassification\"]}", {"MistralForCausalLM"}},
      {BASE ",\"quantization_config\":{\"bits\":4}}", {"quantization_config"}},
  };
  expect_models_refused(models, (int)(sizeof models / sizeof *models));
}

static void test_differences(void **state) {
  (void)state;
  static const compared_key keys[] = {{"sliding_window", "4095", true},
                                      {"sliding_window", "null", true},
                                      {"head_dim", "8", true},
                                      {"rope_theta", "1e6", true},
                                      {"rms_norm_eps", "1e-5", true},
                                      {"tie_word_embeddings", "true", true},
                                      {"max_position_embeddings", "7", false},
                                      {"initializer_range", "0.5", false}};
  expect_keys_compared(BASE, keys, (int)(sizeof keys / sizeof *keys));
}

static void test_windows(void **state) {
  (void)state;
  int64_t windows[3];
  fsdp_model_config c = model_of_json(BASE ",\"sliding_window\":5}");
  windows_of_model(&c, windows);
  for (int i = 0; i < 3; i++) assert_int_equal(windows[i], 5);
  c = model_of_json(BASE ",\"sliding_window\":null}");
  windows_of_model(&c, windows);
  for (int i = 0; i < 3; i++) assert_int_equal(windows[i], 0);
}

// By hand: N = 7241732096 - 32000 * 4096. Of 32768 positions, each token attends to 4096 - 4096 / 16 on
// average; of 4096, to half.
static void test_flops(void **state) {
  (void)state;
  fsdp_model_config c = model_of_json(hub);
  double gemms = 6.0 * 7110660096.0, pair = 12.0 * 32 * 4096;
  assert_true(fsdp_model_flops_per_token(&c, 4096, FSDP_FLOPS_CAUSAL) == gemms + pair * 2048);
  assert_true(fsdp_model_flops_per_token(&c, 32768, FSDP_FLOPS_CAUSAL) == gemms + pair * 3840);
  assert_true(fsdp_model_flops_per_token(&c, 32768, FSDP_FLOPS_ALL_PAIRS) == gemms + pair * 32768);
  c.window = 0;
  assert_true(fsdp_model_flops_per_token(&c, 32768, FSDP_FLOPS_CAUSAL) == gemms + pair * 16384);
}

// What Transformers 5.23 prints of the model.
static void test_tree(void **state) {
  (void)state;
  fsdp_model_config c = model_of_json(BASE "}");
  char *tree = tree_of_model(&c);
  assert_string_equal(tree, "MistralForCausalLM(\n"
                            "  (model): MistralModel(\n"
                            "    (embed_tokens): Embedding(31, 24)\n"
                            "    (layers): ModuleList(\n"
                            "      (0-2): 3 x MistralDecoderLayer(\n"
                            "        (self_attn): MistralAttention(\n"
                            "          (q_proj): Linear(in_features=24, out_features=24, bias=False)\n"
                            "          (k_proj): Linear(in_features=24, out_features=12, bias=False)\n"
                            "          (v_proj): Linear(in_features=24, out_features=12, bias=False)\n"
                            "          (o_proj): Linear(in_features=24, out_features=24, bias=False)\n"
                            "        )\n"
                            "        (mlp): MistralMLP(\n"
                            "          (gate_proj): Linear(in_features=24, out_features=40, bias=False)\n"
                            "          (up_proj): Linear(in_features=24, out_features=40, bias=False)\n"
                            "          (down_proj): Linear(in_features=40, out_features=24, bias=False)\n"
                            "          (act_fn): SiLUActivation()\n"
                            "        )\n"
                            "        (input_layernorm): MistralRMSNorm((24,), eps=1e-06)\n"
                            "        (post_attention_layernorm): MistralRMSNorm((24,), eps=1e-06)\n"
                            "      )\n"
                            "    )\n"
                            "    (norm): MistralRMSNorm((24,), eps=1e-06)\n"
                            "    (rotary_emb): MistralRotaryEmbedding()\n"
                            "  )\n"
                            "  (lm_head): Linear(in_features=24, out_features=31, bias=False)\n"
                            ")\n");
  free(tree);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_configurations), cmocka_unit_test(test_refused),
      cmocka_unit_test(test_differences),    cmocka_unit_test(test_windows),
      cmocka_unit_test(test_flops),          cmocka_unit_test(test_tree),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
