// GPT-2: what its configurations mean, which are refused, and what its graph holds.
#include "tests/support/models.h"

#include "models/graph/graph.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SIZES "\"vocab_size\":31,\"n_embd\":12,\"n_layer\":3"
#define BASE  "\"model_type\":\"gpt2\"," SIZES ",\"n_head\":4"

// As the hub has it, with keys that have no meaning here.
static const char hub[] =
    "{\"activation_function\":\"gelu_new\",\"architectures\":[\"GPT2LMHeadModel\"],\"attn_pdrop\":0.1,"
    "\"bos_token_id\":50256,\"embd_pdrop\":0.1,\"eos_token_id\":50256,\"initializer_range\":0.02,"
    "\"layer_norm_epsilon\":1e-05,\"model_type\":\"gpt2\",\"n_ctx\":1024,\"n_embd\":768,\"n_head\":12,"
    "\"n_layer\":12,\"n_positions\":1024,\"resid_pdrop\":0.1,\"summary_activation\":null,"
    "\"summary_first_dropout\":0.1,\"summary_proj_to_labels\":true,\"summary_type\":\"cls_index\","
    "\"summary_use_proj\":true,\"task_specific_params\":{\"text-generation\":{\"do_sample\":true}},"
    "\"vocab_size\":50257}";

TEST(test_configurations) {
  char out[512];
  fsdp_model_config c = model_of_json(hub), preset;
  preset = model_of_preset("gpt2");
  assert_false(fsdp_model_differs(&c, &preset, FSDP_MODEL_ALL, out, sizeof out));
  assert_int_equal(fsdp_model_parameter_count(&c), 124439808);
  // Defaults.
  c = model_of_json("{" BASE "}");
  assert_true(c.max_position_embeddings == 1024 && c.intermediate_size == 48 && c.head_dim == 3);
  assert_true(c.num_kv_heads == 4 && c.norm_eps == 1e-5 && c.initializer_range == 0.02);
  assert_true(c.tie_word_embeddings && c.rope_theta == 0 && c.window == 0);
  c = model_of_json("{" BASE ",\"n_inner\":null,\"n_positions\":7,\"tie_word_embeddings\":false,"
                    "\"reorder_and_upcast_attn\":true,\"attn_pdrop\":0,\"resid_pdrop\":1,\"embd_pdrop\":0.25,"
                    "\"hidden_size\":12,\"num_hidden_layers\":3,\"layer_norm_epsilon\":0.125}");
  assert_true(c.max_position_embeddings == 7 && c.intermediate_size == 48 && !c.tie_word_embeddings);
  expect_model_read_back(&c);
  char *json = json_of_model(&c);
  assert_string_equal(json, "{\"activation_function\":\"gelu_new\",\"add_cross_attention\":false,"
                            "\"architectures\":[\"GPT2LMHeadModel\"],\"attn_pdrop\":0.0,\"embd_pdrop\":0.25,"
                            "\"initializer_range\":0.02,\"layer_norm_epsilon\":0.125,\"model_type\":\"gpt2\","
                            "\"n_embd\":12,\"n_head\":4,\"n_inner\":48,\"n_layer\":3,\"n_positions\":7,"
                            "\"reorder_and_upcast_attn\":true,\"resid_pdrop\":1.0,"
                            "\"scale_attn_by_inverse_layer_idx\":false,\"scale_attn_weights\":true,"
                            "\"tie_word_embeddings\":false,\"vocab_size\":31}");
  free(json);
}

TEST(test_refused) {
  static const refused_model models[] = {
      {"{\"model_type\":\"gpt2\",\"n_embd\":12}", {"\"vocab_size\" is missing", "gpt2"}},
      {"{\"model_type\":\"gpt2\"," SIZES "}", {"\"n_head\" is missing"}},
      {"{\"model_type\":\"gpt2\"," SIZES ",\"n_head\":5}", {"\"n_head\" is 5", "\"n_embd\" = 12"}},
      {"{\"model_type\":\"gpt2\",\"vocab_size\":3,\"n_layer\":1,\"n_embd\":4100,\"n_head\":4}",
       {"\"n_head\" is 4", "1025", "1024"}},
      {"{" BASE ",\"architectures\":[\"GPT2Model\"]}", {"GPT2Model", "GPT2LMHeadModel"}},
      {"{" BASE ",\"activation_function\":\"gelu\"}", {"\"activation_function\" is \"gelu\"", "gelu_new"}},
      {"{" BASE ",\"activation_function\":\"relu\"}", {"relu", "gelu_new"}},
      {"{" BASE ",\"scale_attn_weights\":false}", {"\"scale_attn_weights\" is false", "not supported"}},
      {"{" BASE ",\"scale_attn_by_inverse_layer_idx\":true}",
       {"\"scale_attn_by_inverse_layer_idx\" is true"}},
      {"{" BASE ",\"add_cross_attention\":true}", {"\"add_cross_attention\" is true", "encoders"}},
      {"{" BASE ",\"reorder_and_upcast_attn\":1}", {"\"reorder_and_upcast_attn\" is 1", "true or false"}},
      {"{" BASE ",\"resid_pdrop\":1.5}", {"\"resid_pdrop\" is 1.5", "from 0 to 1"}},
      {"{" BASE ",\"embd_pdrop\":-0.1}", {"\"embd_pdrop\" is -0.1"}},
      {"{" BASE ",\"attn_pdrop\":\"0\"}", {"\"attn_pdrop\" is \"0\""}},
      {"{" BASE ",\"layer_norm_epsilon\":0}", {"\"layer_norm_epsilon\" is 0"}},
      {"{" BASE ",\"n_positions\":0}", {"\"n_positions\" is 0"}},
      {"{" BASE ",\"n_inner\":0}", {"\"n_inner\" is 0"}},
      {"{" BASE ",\"hidden_size\":16}", {"\"hidden_size\" is 16", "\"n_embd\""}},
      {"{" BASE ",\"max_position_embeddings\":512}", {"\"max_position_embeddings\" is 512", "n_positions"}},
      {"{" BASE ",\"quantization_config\":{}}", {"quantization_config"}},
  };
  expect_models_refused(models, (int)(sizeof models / sizeof *models));
}

TEST(test_differences) {
  static const compared_key keys[] = {{"n_inner", "49", true},
                                      {"n_positions", "512", true},
                                      {"layer_norm_epsilon", "1e-6", true},
                                      {"tie_word_embeddings", "false", true},
                                      {"initializer_range", "0.5", false},
                                      {"resid_pdrop", "0.2", false},
                                      {"embd_pdrop", "0.2", false},
                                      {"attn_pdrop", "0.2", false},
                                      {"reorder_and_upcast_attn", "true", false}};
  expect_keys_compared("{" BASE, keys, (int)(sizeof keys / sizeof *keys));
}

TEST(test_dropout_is_announced) {
  char out[256];
  fsdp_model_config c = model_of_json("{" BASE ",\"resid_pdrop\":0.0,\"attn_pdrop\":0.25}");
  assert_true(fsdp_model_note(&c, out, sizeof out));
  assert_string_equal(out, "dropout is not applied: the configuration's embd_pdrop 0.1, attn_pdrop 0.25 are "
                           "kept for what is exported; --dropout config applies them");
  c = model_of_json("{" BASE ",\"resid_pdrop\":0.0,\"attn_pdrop\":0.0,\"embd_pdrop\":0}");
  assert_false(fsdp_model_note(&c, out, sizeof out));
}

static const fsdp_param *find_param(const fsdp_graph *graph, const char *name) {
  for (int p = 0; p < graph->param_count; p++)
    if (!strcmp(graph->params[p].name, name)) return &graph->params[p];
  fail_msg("no parameter %s", name);
  return NULL;
}

static void expect_param(const fsdp_graph *graph, const char *name, int dims, const int64_t *shape,
                         double deviation) {
  const fsdp_param *p = find_param(graph, name);
  assert_int_equal(p->dims, dims);
  assert_memory_equal(p->shape, shape, (size_t)dims * sizeof *shape);
  assert_true(fabs((double)p->init_deviation - deviation) < 1e-9);
  bool is_norm = strstr(name, "ln_") && strstr(name, ".weight");
  assert_true(p->init_mean == (is_norm ? 1.0f : 0.0f));
  assert_true(p->transposed == (strstr(name, ".c_") && dims == 2));
}

TEST(test_parameters) {
  fsdp_model_config c = model_of_json("{" BASE ",\"n_positions\":9,\"n_inner\":20}");
  fsdp_graph *g = fsdp_model_graph(&c, 1, 2);
  double residual = 0.02 / sqrt(6.0);
  assert_int_equal(g->param_count, 2 + 3 * 12 + 2);
  expect_param(g, "transformer.wte.weight", 2, (int64_t[]){31, 12}, 0.02);
  expect_param(g, "transformer.wpe.weight", 2, (int64_t[]){9, 12}, 0.02);
  expect_param(g, "transformer.h.2.ln_1.weight", 1, (int64_t[]){12}, 0);
  expect_param(g, "transformer.h.2.ln_1.bias", 1, (int64_t[]){12}, 0);
  expect_param(g, "transformer.h.1.attn.c_attn.weight", 2, (int64_t[]){12, 36}, 0.02);
  expect_param(g, "transformer.h.1.attn.c_attn.bias", 1, (int64_t[]){36}, 0);
  expect_param(g, "transformer.h.0.attn.c_proj.weight", 2, (int64_t[]){12, 12}, residual);
  expect_param(g, "transformer.h.0.attn.c_proj.bias", 1, (int64_t[]){12}, 0);
  expect_param(g, "transformer.h.0.ln_2.bias", 1, (int64_t[]){12}, 0);
  expect_param(g, "transformer.h.0.mlp.c_fc.weight", 2, (int64_t[]){12, 20}, 0.02);
  expect_param(g, "transformer.h.0.mlp.c_fc.bias", 1, (int64_t[]){20}, 0);
  expect_param(g, "transformer.h.0.mlp.c_proj.weight", 2, (int64_t[]){20, 12}, residual);
  expect_param(g, "transformer.ln_f.bias", 1, (int64_t[]){12}, 0);
  const fsdp_param *qkv[2] = {find_param(g, "transformer.h.1.attn.c_attn.weight"),
                              find_param(g, "transformer.h.1.attn.c_attn.bias")};
  for (int i = 0; i < 6; i++) assert_int_equal(qkv[i % 2]->block_sizes[i / 2], 12);
  assert_true(qkv[0]->block_count == 3 && qkv[1]->block_count == 3);
  assert_int_equal(g->tie_count, 1);
  assert_string_equal(g->ties[0].name, "lm_head.weight");
  assert_string_equal(g->params[g->ties[0].param].name, "transformer.wte.weight");
  assert_string_equal(g->base_prefix, "transformer.");
  fsdp_graph_destroy(g);
}

// Masks that old files hold beside the weights, and names that look like them.
TEST(test_buffers) {
  assert_true(fsdp_model_is_buffer("h.0.attn.bias"));
  assert_true(fsdp_model_is_buffer("transformer.h.11.attn.masked_bias"));
  assert_false(fsdp_model_is_buffer("h.0.attn.c_attn.bias"));
  assert_false(fsdp_model_is_buffer("h.0.attn.c_proj.bias"));
}

TEST(test_positions_end) {
  fsdp_error error;
  fsdp_model_config c = model_of_json("{" BASE ",\"n_positions\":9}");
  assert_int_equal(fsdp_model_check_seq(&c, 9, &error), FSDP_OK);
  assert_int_equal(fsdp_model_check_seq(&c, 10, &error), FSDP_ERR_OPTION);
  assert_non_null(strstr(error.message, "only 9 learned positions"));
}

// By hand: N = 124439808 - 1024 * 768, L C T = 12 * 768 * 1024.
TEST(test_flops) {
  fsdp_model_config c = model_of_json(hub);
  double gemms = 6.0 * 123653376.0, pairs = 9437184.0;
  assert_true(fsdp_model_flops_per_token(&c, 1024, FSDP_FLOPS_CAUSAL) == gemms + 6 * pairs);
  assert_true(fsdp_model_flops_per_token(&c, 1024, FSDP_FLOPS_ALL_PAIRS) == gemms + 12 * pairs);
  c.tie_word_embeddings = false;
  assert_true(fsdp_model_flops_per_token(&c, 1024, FSDP_FLOPS_CAUSAL) == gemms + 6 * pairs);
}

// What Transformers 5.23 prints of the model.
TEST(test_tree) {
  fsdp_model_config c = model_of_json("{" BASE ",\"n_positions\":9,\"attn_pdrop\":0.0,\"embd_pdrop\":0.25}");
  char *tree = tree_of_model(&c);
  assert_string_equal(tree,
                      "GPT2LMHeadModel(\n"
                      "  (transformer): GPT2Model(\n"
                      "    (wte): Embedding(31, 12)\n"
                      "    (wpe): Embedding(9, 12)\n"
                      "    (drop): Dropout(p=0.25, inplace=False)\n"
                      "    (h): ModuleList(\n"
                      "      (0-2): 3 x GPT2Block(\n"
                      "        (ln_1): LayerNorm((12,), eps=1e-05, elementwise_affine=True, bias=True)\n"
                      "        (attn): GPT2Attention(\n"
                      "          (c_attn): Conv1D(nf=36, nx=12)\n"
                      "          (c_proj): Conv1D(nf=12, nx=12)\n"
                      "          (attn_dropout): Dropout(p=0.0, inplace=False)\n"
                      "          (resid_dropout): Dropout(p=0.1, inplace=False)\n"
                      "        )\n"
                      "        (ln_2): LayerNorm((12,), eps=1e-05, elementwise_affine=True, bias=True)\n"
                      "        (mlp): GPT2MLP(\n"
                      "          (c_fc): Conv1D(nf=48, nx=12)\n"
                      "          (c_proj): Conv1D(nf=12, nx=48)\n"
                      "          (act): NewGELUActivation()\n"
                      "          (dropout): Dropout(p=0.1, inplace=False)\n"
                      "        )\n"
                      "      )\n"
                      "    )\n"
                      "    (ln_f): LayerNorm((12,), eps=1e-05, elementwise_affine=True, bias=True)\n"
                      "  )\n"
                      "  (lm_head): Linear(in_features=12, out_features=31, bias=False)\n"
                      ")\n");
  free(tree);
}
