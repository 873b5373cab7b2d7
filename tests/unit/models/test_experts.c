// Families with routed experts: what their configurations mean, which are refused, and their parameters.
#include "tests/support/models.h"

#include "models/graph/graph.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SIZES                                                                                                \
  "\"vocab_size\":31,\"hidden_size\":24,\"intermediate_size\":40,\"num_hidden_layers\":2,"                   \
  "\"num_attention_heads\":4"
#define MIXTRAL "{\"model_type\":\"mixtral\"," SIZES
#define QWEN3   "{\"model_type\":\"qwen3_moe\"," SIZES
#define OLMOE   "{\"model_type\":\"olmoe\"," SIZES

// Defaults of Transformers 5.23.
static void test_defaults(void **state) {
  (void)state;
  fsdp_model_config c = model_of_json(
      "{\"model_type\":\"mixtral\",\"vocab_size\":31,\"hidden_size\":64,\"intermediate_size\":40,"
      "\"num_hidden_layers\":2,\"num_attention_heads\":16}");
  assert_true(c.experts == 8 && c.expert_slots == 2 && c.expert_size == 40 && c.normalises_routes);
  assert_true(c.num_kv_heads == 8 && c.head_dim == 4);
  assert_true(c.norm_eps == 1e-5 && c.rope_theta == 1e6 && c.window == 0 && !c.padding_token);
  c = model_of_json(QWEN3 ",\"head_dim\":6}");
  assert_true(c.experts == 128 && c.expert_slots == 8 && c.expert_size == 768 && !c.normalises_routes);
  assert_true(c.num_kv_heads == 4 && c.norm_eps == 1e-6 && c.rope_theta == 1e4);
  c = model_of_json(OLMOE "}");
  assert_true(c.experts == 64 && c.expert_slots == 8 && c.expert_size == 40 && !c.normalises_routes);
  assert_true(c.num_kv_heads == 4 && c.norm_eps == 1e-5 && c.padding_token == 2);
  c = model_of_json(OLMOE ",\"pad_token_id\":null}");
  assert_int_equal(c.padding_token, 0);
  expect_model_read_back(&c);
  // Transformers 5 writes it by this name, whatever the family's own.
  c = model_of_json(QWEN3 ",\"num_local_experts\":16,\"moe_intermediate_size\":9,\"norm_topk_prob\":true}");
  assert_true(c.experts == 16 && c.expert_size == 9 && c.normalises_routes);
  expect_model_read_back(&c);
}

static void test_refused(void **state) {
  (void)state;
  static const refused_model models[] = {
      {MIXTRAL ",\"num_key_value_heads\":2,\"output_router_logits\":true}",
       {"\"output_router_logits\" is true", "auxiliary losses"}},
      {MIXTRAL ",\"num_key_value_heads\":2,\"router_jitter_noise\":0.1}",
       {"\"router_jitter_noise\" is 0.1", "must be 0"}},
      {MIXTRAL ",\"num_key_value_heads\":2,\"num_local_experts\":0}", {"\"num_local_experts\" is 0"}},
      {MIXTRAL ",\"num_key_value_heads\":2,\"num_local_experts\":3,\"num_experts_per_tok\":4}",
       {"num_experts_per_tok 4", "the 3 experts"}},
      {QWEN3 ",\"decoder_sparse_step\":2}", {"\"decoder_sparse_step\" is 2", "every layer"}},
      {QWEN3 ",\"mlp_only_layers\":[0]}", {"\"mlp_only_layers\" is [0]", "every layer"}},
      {QWEN3 ",\"use_sliding_window\":true}", {"\"use_sliding_window\" is true"}},
      {QWEN3 ",\"attention_bias\":true}", {"\"attention_bias\" is true"}},
      {OLMOE ",\"clip_qkv\":8.0}", {"\"clip_qkv\" is 8.0", "null"}},
      {OLMOE ",\"num_key_value_heads\":2}", {"\"num_key_value_heads\" is 2", "norm"}},
      {OLMOE ",\"head_dim\":8}", {"\"head_dim\" is 8", "hidden_size"}},
  };
  expect_models_refused(models, (int)(sizeof models / sizeof *models));
}

static void test_differences(void **state) {
  (void)state;
  static const compared_key keys[] = {{"num_experts", "16", true},
                                      {"num_experts_per_tok", "3", true},
                                      {"moe_intermediate_size", "5", true},
                                      {"norm_topk_prob", "true", true}};
  expect_keys_compared(QWEN3, keys, (int)(sizeof keys / sizeof *keys));
}

// By hand, of the released shapes: 6 for each parameter that a token meets but the embedding, and the pairs.
static void test_flops(void **state) {
  (void)state;
  fsdp_model_config c;
  fsdp_error error;
  assert_int_equal(fsdp_model_preset("mixtral-8x7b", &c, &error), FSDP_OK);
  const double active = 46702792704.0 - 32.0 * 6 * 3 * 4096 * 14336 - 32000.0 * 4096;
  assert_true(fsdp_model_flops_per_token(&c, 4096, FSDP_FLOPS_ALL_PAIRS) ==
              6 * active + 12.0 * 32 * 4096 * 4096);
}

// In the order of the state dict of Transformers 5, in which the router comes first or last.
static void test_parameters(void **state) {
  (void)state;
  static const struct {
    const char *json, *names[3];
    int first;
  } models[] = {
      {MIXTRAL ",\"num_key_value_heads\":2,\"num_local_experts\":3}",
       {"mlp.gate.weight", "mlp.experts.gate_up_proj", "mlp.experts.down_proj"},
       4},
      {QWEN3 ",\"num_experts\":9,\"moe_intermediate_size\":5,\"num_experts_per_tok\":3}",
       {"mlp.experts.gate_up_proj", "mlp.experts.down_proj", "mlp.gate.weight"},
       6},
  };
  for (int m = 0; m < 2; m++) {
    fsdp_model_config c = model_of_json(models[m].json);
    fsdp_graph *g = fsdp_model_graph(&c, 1, 2);
    for (int i = 0; i < 3; i++) {
      const fsdp_param *p = &g->params[1 + models[m].first + i];
      assert_non_null(strstr(p->name, models[m].names[i]));
      const int64_t E = c.experts, I = c.expert_size;
      const int64_t shapes[3][3] = {{E, 24}, {E, 2 * I, 24}, {E, 24, I}};
      const int which = strstr(p->name, "gate.") ? 0 : strstr(p->name, "gate_up") ? 1 : 2;
      assert_int_equal(p->dims, which ? 3 : 2);
      assert_memory_equal(p->shape, shapes[which], (size_t)p->dims * sizeof(int64_t));
      assert_true(p->init_deviation == 0.02f && p->init_mean == 0);
    }
    fsdp_graph_destroy(g);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_defaults), cmocka_unit_test(test_refused),    cmocka_unit_test(test_differences),
      cmocka_unit_test(test_flops),    cmocka_unit_test(test_parameters),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
