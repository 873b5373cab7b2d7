// Qwen2: what its configurations mean, which are refused, and what its graph has beside a Llama's.
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
  "\"vocab_size\":31,\"hidden_size\":24,\"intermediate_size\":40,\"num_hidden_layers\":3,"                   \
  "\"num_attention_heads\":4"
#define BASE   "{\"model_type\":\"qwen2\"," SIZES ",\"num_key_value_heads\":2"
#define WINDOW BASE ",\"use_sliding_window\":true,\"sliding_window\":5"
#define FULL   "\"full_attention\""
#define SLIDES "\"sliding_attention\""

// As the hub has it.
static const char hub[] =
    "{\"architectures\":[\"Qwen2ForCausalLM\"],\"attention_dropout\":0.0,\"bos_token_id\":151643,"
    "\"eos_token_id\":151643,\"hidden_act\":\"silu\",\"hidden_size\":3584,\"initializer_range\":0.02,"
    "\"intermediate_size\":18944,\"max_position_embeddings\":131072,\"max_window_layers\":28,"
    "\"model_type\":\"qwen2\",\"num_attention_heads\":28,\"num_hidden_layers\":28,\"num_key_value_heads\":4,"
    "\"rms_norm_eps\":1e-06,\"rope_theta\":1000000.0,\"sliding_window\":131072,\"tie_word_embeddings\":false,"
    "\"torch_dtype\":\"bfloat16\",\"transformers_version\":\"4.40.1\",\"use_cache\":true,"
    "\"use_mrope\":false,\"use_sliding_window\":false,\"vocab_size\":152064}";

static void test_configurations(void **state) {
  (void)state;
  char out[512];
  fsdp_error error;
  fsdp_model_config c = model_of_json(hub), preset;
  assert_int_equal(fsdp_model_preset("qwen2.5-7b", &preset, &error), FSDP_OK);
  assert_false(fsdp_model_differs(&c, &preset, FSDP_MODEL_ALL, out, sizeof out));
  assert_true(c.window == 0 && c.head_dim == 128);
  // Defaults of Transformers 5.23.
  c = model_of_json("{\"model_type\":\"qwen2\",\"vocab_size\":31,\"hidden_size\":64,\"intermediate_size\":40,"
                    "\"num_hidden_layers\":3,\"num_attention_heads\":32}");
  assert_true(c.window == 0 && c.num_kv_heads == 32 && c.head_dim == 2 && c.norm_eps == 1e-6);
  assert_true(c.max_position_embeddings == 32768 && c.rope_theta == 10000 && !c.tie_word_embeddings);
  c = model_of_json("{\"model_type\":\"qwen2\"," SIZES ",\"num_key_value_heads\":null,\"head_dim\":10,"
                    "\"tie_word_embeddings\":true}");
  assert_true(c.num_kv_heads == 4 && c.head_dim == 10 && c.tie_word_embeddings);
  expect_model_read_back(&c);
}

// Each with the window of its three layers.
static void test_windows(void **state) {
  (void)state;
  static const struct {
    const char *json;
    int64_t windows[3];
  } cases[] = {
      {BASE "}", {0, 0, 0}},
      {BASE ",\"sliding_window\":5,\"max_window_layers\":0}", {0, 0, 0}}, // not used
      {WINDOW "}", {0, 0, 0}},                                            // from layer 28 on
      {WINDOW ",\"max_window_layers\":0}", {5, 5, 5}},
      {WINDOW ",\"max_window_layers\":1}", {0, 5, 5}},
      {WINDOW ",\"max_window_layers\":2}", {0, 0, 5}},
      {WINDOW ",\"max_window_layers\":3}", {0, 0, 0}},
      {BASE ",\"use_sliding_window\":true,\"max_window_layers\":2}", {0, 0, 4096}},
      {BASE ",\"use_sliding_window\":true,\"sliding_window\":null,\"max_window_layers\":0}", {0, 0, 0}},
      {BASE ",\"layer_types\":[" FULL "," FULL "," FULL "]}", {0, 0, 0}},
      {WINDOW ",\"layer_types\":[" FULL "," FULL "," FULL "]}", {0, 0, 0}},
      {WINDOW ",\"layer_types\":[" FULL "," SLIDES "," SLIDES "]}", {0, 5, 5}},
      {WINDOW ",\"layer_types\":[" SLIDES "," SLIDES "," SLIDES "]}", {5, 5, 5}},
      // The list counts, as in Transformers.
      {WINDOW ",\"max_window_layers\":0,\"layer_types\":[" FULL "," FULL "," SLIDES "]}", {0, 0, 5}},
      {WINDOW ",\"max_window_layers\":1,\"layer_types\":null}", {0, 5, 5}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    int64_t windows[3];
    fsdp_model_config c = model_of_json(cases[i].json);
    windows_of_model(&c, windows);
    for (int l = 0; l < 3; l++)
      if (windows[l] != cases[i].windows[l])
        fail_msg("%s: layer %d has %lld", cases[i].json, l, (long long)windows[l]);
    expect_model_read_back(&c);
  }
}

static void test_refused(void **state) {
  (void)state;
  static const refused_model models[] = {
      {"{\"model_type\":\"qwen2\"," SIZES "}", {"num_attention_heads 4", "num_key_value_heads 32"}},
      {BASE ",\"use_mrope\":true}", {"\"use_mrope\" is true", "not supported"}},
      {BASE ",\"hidden_act\":\"gelu\"}", {"\"hidden_act\" is \"gelu\"", "silu"}},
      {BASE ",\"attention_dropout\":0.1}", {"\"attention_dropout\" is 0.1"}},
      {BASE ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4.0}}", {"\"rope_type\" is \"yarn\"", "llama3"}},
      {BASE ",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":4.0}}", {"\"rope_type\" is \"dynamic\""}},
      {WINDOW ",\"max_window_layers\":-1}", {"\"max_window_layers\" is -1", "from 0"}},
      {BASE ",\"use_sliding_window\":1}", {"\"use_sliding_window\" is 1", "true or false"}},
      {BASE ",\"use_sliding_window\":true,\"sliding_window\":0}", {"\"sliding_window\" is 0"}},
      {WINDOW ",\"layer_types\":\"full_attention\"}", {"\"layer_types\" is \"full", "list", "3 layers"}},
      {WINDOW ",\"layer_types\":[" FULL "," FULL "]}", {"\"layer_types\" is [", "3 layers"}},
      {WINDOW ",\"layer_types\":[" FULL "," FULL ",\"chunked_attention\"]}",
       {"\"layer_types\" is \"chunked_attention\"", "sliding_attention"}},
      {WINDOW ",\"layer_types\":[" FULL "," FULL ",7]}", {"\"layer_types\" is 7"}},
      {WINDOW ",\"layer_types\":[" SLIDES "," FULL "," SLIDES "]}",
       {"\"layer_types\" is [\"sliding_attention\",\"full_attention\"", "after the first with a window"}},
      {WINDOW ",\"layer_types\":[" FULL "," SLIDES "," FULL "]}", {"after the first with a window"}},
      {BASE ",\"layer_types\":[" FULL "," FULL "," SLIDES "]}", {"there is no window", "use_sliding_window"}},
      {BASE ",\"use_sliding_window\":true,\"sliding_window\":null,\"layer_types\":[" SLIDES "," SLIDES
            "," SLIDES "]}",
       {"there is no window", "\"sliding_window\" its size"}},
  };
  expect_models_refused(models, (int)(sizeof models / sizeof *models));
}

static void test_differences(void **state) {
  (void)state;
  static const compared_key keys[] = {{"tie_word_embeddings", "true", true},
                                      {"head_dim", "8", true},
                                      {"rms_norm_eps", "1e-5", true},
                                      {"max_position_embeddings", "7", false},
                                      {"initializer_range", "0.5", false}};
  expect_keys_compared(BASE, keys, (int)(sizeof keys / sizeof *keys));
  static const compared_key window = {"sliding_window", "6", true};
  expect_keys_compared(BASE ",\"use_sliding_window\":true,\"max_window_layers\":1", &window, 1);
  char out[256];
  fsdp_model_config none = model_of_json(BASE "}"), one = model_of_json(WINDOW ",\"max_window_layers\":1}"),
                    two = model_of_json(WINDOW ",\"max_window_layers\":2}");
  assert_true(fsdp_model_differs(&one, &two, FSDP_MODEL_NUMBERS, out, sizeof out));
  assert_string_equal(out, "max_window_layers 1 → 2");
  assert_true(fsdp_model_differs(&none, &one, FSDP_MODEL_NUMBERS, out, sizeof out));
  assert_non_null(strstr(out, "use_sliding_window false → true, sliding_window none → 5"));
}

// Names, shapes and drawing of a layer's parameters, in the order of the state dict.
static void test_parameters(void **state) {
  (void)state;
  static const struct {
    const char *name;
    int64_t shape[2];
  } params[] = {{"q_proj.weight", {24, 24}}, {"q_proj.bias", {24}},       {"k_proj.weight", {12, 24}},
                {"k_proj.bias", {12}},       {"v_proj.weight", {12, 24}}, {"v_proj.bias", {12}},
                {"o_proj.weight", {24, 24}}};
  fsdp_model_config c = model_of_json(BASE "}");
  fsdp_graph *g = fsdp_model_graph(&c, 1, 2);
  assert_int_equal(g->param_count, 1 + 3 * 12 + 2);
  for (int i = 0; i < 7; i++) {
    char name[96];
    const fsdp_param *p = &g->params[1 + 12 + i];
    snprintf(name, sizeof name, "model.layers.1.self_attn.%s", params[i].name);
    assert_string_equal(p->name, name);
    assert_int_equal(p->dims, params[i].shape[1] ? 2 : 1);
    assert_memory_equal(p->shape, params[i].shape, (size_t)p->dims * sizeof(int64_t));
    assert_true(p->init_mean == 0 && p->init_deviation == (p->dims == 2 ? 0.02f : 0));
  }
  fsdp_graph_destroy(g);
}

// By hand, three layers: N = 31 * 24 + 3 * (4 * 24 * 18 + 3 * 24 * 40 + 2 * 24 + 48) + 24, heads of 4 * 6. Of
// 20 positions, each token attends to 10, or to 5 - 25 / 40 with a window of 5.
static void test_flops(void **state) {
  (void)state;
  fsdp_model_config c = model_of_json(WINDOW ",\"max_window_layers\":1}");
  double gemms = 6.0 * (31 * 24 + 3 * (1728 + 2880 + 48 + 48) + 24), pair = 12.0 * 24;
  assert_true(fsdp_model_flops_per_token(&c, 20, FSDP_FLOPS_CAUSAL) == gemms + pair * (10 + 2 * 4.375));
  assert_true(fsdp_model_flops_per_token(&c, 20, FSDP_FLOPS_ALL_PAIRS) == gemms + pair * 60);
  assert_true(fsdp_model_flops_per_token(&c, 5, FSDP_FLOPS_CAUSAL) == gemms + pair * 7.5);
}

// What Transformers 5.23 prints of the model.
static void test_tree(void **state) {
  (void)state;
  fsdp_model_config c = model_of_json(BASE "}");
  char *tree = tree_of_model(&c);
  assert_string_equal(tree, "Qwen2ForCausalLM(\n"
                            "  (model): Qwen2Model(\n"
                            "    (embed_tokens): Embedding(31, 24)\n"
                            "    (layers): ModuleList(\n"
                            "      (0-2): 3 x Qwen2DecoderLayer(\n"
                            "        (self_attn): Qwen2Attention(\n"
                            "          (q_proj): Linear(in_features=24, out_features=24, bias=True)\n"
                            "          (k_proj): Linear(in_features=24, out_features=12, bias=True)\n"
                            "          (v_proj): Linear(in_features=24, out_features=12, bias=True)\n"
                            "          (o_proj): Linear(in_features=24, out_features=24, bias=False)\n"
                            "        )\n"
                            "        (mlp): Qwen2MLP(\n"
                            "          (gate_proj): Linear(in_features=24, out_features=40, bias=False)\n"
                            "          (up_proj): Linear(in_features=24, out_features=40, bias=False)\n"
                            "          (down_proj): Linear(in_features=40, out_features=24, bias=False)\n"
                            "          (act_fn): SiLUActivation()\n"
                            "        )\n"
                            "        (input_layernorm): Qwen2RMSNorm((24,), eps=1e-06)\n"
                            "        (post_attention_layernorm): Qwen2RMSNorm((24,), eps=1e-06)\n"
                            "      )\n"
                            "    )\n"
                            "    (norm): Qwen2RMSNorm((24,), eps=1e-06)\n"
                            "    (rotary_emb): Qwen2RotaryEmbedding()\n"
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
