// Qwen3: what its configurations mean, which are refused, and what its graph has beside a Llama's.
#include "tests/support/models.h"

#include "models/graph/graph.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SIZES                                                                                                \
  "\"vocab_size\":31,\"hidden_size\":24,\"intermediate_size\":40,\"num_hidden_layers\":2,"                   \
  "\"num_attention_heads\":4"
#define HEADS "{\"model_type\":\"qwen3\"," SIZES ",\"num_key_value_heads\":2"
#define BASE  HEADS ",\"head_dim\":10"

// As the hub has it.
static const char hub[] =
    "{\"architectures\":[\"Qwen3ForCausalLM\"],\"attention_bias\":false,\"attention_dropout\":0.0,"
    "\"bos_token_id\":151643,\"eos_token_id\":151645,\"head_dim\":128,\"hidden_act\":\"silu\","
    "\"hidden_size\":4096,\"initializer_range\":0.02,\"intermediate_size\":12288,"
    "\"max_position_embeddings\":40960,\"max_window_layers\":36,\"model_type\":\"qwen3\","
    "\"num_attention_heads\":32,\"num_hidden_layers\":36,\"num_key_value_heads\":8,\"rms_norm_eps\":1e-06,"
    "\"rope_scaling\":null,\"rope_theta\":1000000,\"sliding_window\":null,\"tie_word_embeddings\":false,"
    "\"torch_dtype\":\"bfloat16\",\"transformers_version\":\"4.51.0\",\"use_cache\":true,"
    "\"use_sliding_window\":false,\"vocab_size\":151936}";

static void test_configurations(void **state) {
  (void)state;
  char out[512];
  fsdp_error error;
  fsdp_model_config c = model_of_json(hub), preset;
  assert_int_equal(fsdp_model_preset("qwen3-8b", &preset, &error), FSDP_OK);
  assert_false(fsdp_model_differs(&c, &preset, FSDP_MODEL_ALL, out, sizeof out));
  // Defaults of Transformers 5.23: heads of 128, whatever the hidden size.
  c = model_of_json("{\"model_type\":\"qwen3\",\"vocab_size\":31,\"hidden_size\":64,\"intermediate_size\":40,"
                    "\"num_hidden_layers\":3,\"num_attention_heads\":32}");
  assert_true(c.window == 0 && c.num_kv_heads == 32 && c.head_dim == 128 && c.norm_eps == 1e-6);
  assert_true(c.max_position_embeddings == 32768 && c.rope_theta == 10000 && !c.tie_word_embeddings);
  c = model_of_json(BASE ",\"tie_word_embeddings\":true,\"attention_bias\":null}");
  assert_true(c.head_dim == 10 && c.tie_word_embeddings);
  expect_model_read_back(&c);
}

static void test_windows(void **state) {
  (void)state;
  int64_t windows[2];
  fsdp_model_config c =
      model_of_json(BASE ",\"use_sliding_window\":true,\"sliding_window\":3,\"max_window_layers\":1}");
  windows_of_model(&c, windows);
  assert_true(windows[0] == 0 && windows[1] == 3);
  expect_model_read_back(&c);
}

static void test_refused(void **state) {
  (void)state;
  static const refused_model models[] = {
      {BASE ",\"attention_bias\":true}", {"\"attention_bias\" is true", "biases are not supported"}},
      {BASE ",\"hidden_act\":\"gelu\"}", {"\"hidden_act\" is \"gelu\"", "silu"}},
      {BASE ",\"attention_dropout\":0.1}", {"\"attention_dropout\" is 0.1"}},
      {BASE ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4.0}}", {"\"rope_type\" is \"yarn\"", "llama3"}},
      {BASE ",\"layer_types\":[\"sliding_attention\",\"full_attention\"]}",
       {"layer_types", "after the first"}},
      {BASE ",\"layer_types\":[\"full_attention\",\"sliding_attention\"]}", {"there is no window"}},
      {HEADS ",\"head_dim\":7}", {"head_dim is 7", "even"}},
      {"{\"model_type\":\"qwen3_next\"," SIZES "}",
       {"\"model_type\" is \"qwen3_next\"", "\"qwen3\"", "\"gpt2\""}},
  };
  expect_models_refused(models, (int)(sizeof models / sizeof *models));
}

static void test_differences(void **state) {
  (void)state;
  static const compared_key keys[] = {{"tie_word_embeddings", "true", true},
                                      {"rms_norm_eps", "1e-5", true},
                                      {"rope_theta", "1e6", true},
                                      {"max_position_embeddings", "7", false},
                                      {"initializer_range", "0.5", false}};
  expect_keys_compared(BASE, keys, (int)(sizeof keys / sizeof *keys));
  static const compared_key head_dim = {"head_dim", "64", true};
  expect_keys_compared(HEADS, &head_dim, 1);
}

// Names, shapes and drawing of a layer's parameters, in the order of the state dict.
static void test_parameters(void **state) {
  (void)state;
  static const struct {
    const char *name;
    int64_t shape[2];
  } params[] = {{"q_proj.weight", {40, 24}}, {"k_proj.weight", {20, 24}}, {"v_proj.weight", {20, 24}},
                {"o_proj.weight", {24, 40}}, {"q_norm.weight", {10}},     {"k_norm.weight", {10}}};
  fsdp_model_config c = model_of_json(BASE "}");
  fsdp_graph *g = fsdp_model_graph(&c, 1, 2);
  assert_int_equal(g->param_count, 1 + 2 * 11 + 2);
  for (int i = 0; i < 6; i++) {
    char name[96];
    const fsdp_param *p = &g->params[1 + 11 + i];
    snprintf(name, sizeof name, "model.layers.1.self_attn.%s", params[i].name);
    assert_string_equal(p->name, name);
    assert_int_equal(p->dims, params[i].shape[1] ? 2 : 1);
    assert_memory_equal(p->shape, params[i].shape, (size_t)p->dims * sizeof(int64_t));
    assert_true(p->init_mean == (p->dims == 1) && p->init_deviation == (p->dims == 2 ? 0.02f : 0));
  }
  fsdp_graph_destroy(g);
}

// By hand: N = 8190735360 - 151936 * 4096, heads of 32 * 128.
static void test_flops(void **state) {
  (void)state;
  fsdp_model_config c = model_of_json(hub);
  double gemms = 6.0 * 7568405504.0, pair = 12.0 * 36 * 4096;
  assert_true(fsdp_model_flops_per_token(&c, 4096, FSDP_FLOPS_CAUSAL) == gemms + pair * 2048);
  assert_true(fsdp_model_flops_per_token(&c, 4096, FSDP_FLOPS_ALL_PAIRS) == gemms + pair * 4096);
  c.head_dim = 64; // the pairs are of heads, whatever the hidden size
  double fewer = 6.0 * (7568405504.0 - 36 * (80.0 * 64 * 4096 + 128));
  assert_true(fsdp_model_flops_per_token(&c, 4096, FSDP_FLOPS_CAUSAL) == fewer + pair * 1024);
}

// What Transformers 5.23 prints of the model.
static void test_tree(void **state) {
  (void)state;
  fsdp_model_config c = model_of_json(BASE "}");
  char *tree = tree_of_model(&c);
  assert_string_equal(tree, "Qwen3ForCausalLM(\n"
                            "  (model): Qwen3Model(\n"
                            "    (embed_tokens): Embedding(31, 24)\n"
                            "    (layers): ModuleList(\n"
                            "      (0-1): 2 x Qwen3DecoderLayer(\n"
                            "        (self_attn): Qwen3Attention(\n"
                            "          (q_proj): Linear(in_features=24, out_features=40, bias=False)\n"
                            "          (k_proj): Linear(in_features=24, out_features=20, bias=False)\n"
                            "          (v_proj): Linear(in_features=24, out_features=20, bias=False)\n"
                            "          (o_proj): Linear(in_features=40, out_features=24, bias=False)\n"
                            "          (q_norm): Qwen3RMSNorm((10,), eps=1e-06)\n"
                            "          (k_norm): Qwen3RMSNorm((10,), eps=1e-06)\n"
                            "        )\n"
                            "        (mlp): Qwen3MLP(\n"
                            "          (gate_proj): Linear(in_features=24, out_features=40, bias=False)\n"
                            "          (up_proj): Linear(in_features=24, out_features=40, bias=False)\n"
                            "          (down_proj): Linear(in_features=40, out_features=24, bias=False)\n"
                            "          (act_fn): SiLUActivation()\n"
                            "        )\n"
                            "        (input_layernorm): Qwen3RMSNorm((24,), eps=1e-06)\n"
                            "        (post_attention_layernorm): Qwen3RMSNorm((24,), eps=1e-06)\n"
                            "      )\n"
                            "    )\n"
                            "    (norm): Qwen3RMSNorm((24,), eps=1e-06)\n"
                            "    (rotary_emb): Qwen3RotaryEmbedding()\n"
                            "  )\n"
                            "  (lm_head): Linear(in_features=24, out_features=31, bias=False)\n"
                            ")\n");
  free(tree);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_configurations), cmocka_unit_test(test_windows),
      cmocka_unit_test(test_refused),        cmocka_unit_test(test_differences),
      cmocka_unit_test(test_parameters),     cmocka_unit_test(test_flops),
      cmocka_unit_test(test_tree),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
