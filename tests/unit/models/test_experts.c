// Families with routed experts: what their configurations mean, which are refused, and their parameters.
#include "tests/support/models.h"

#include "models/graph/graph.h"
#include "tests/support/unit_test.h"

#include <stdio.h>
#include <string.h>

#define SIZES                                                                                                \
  "\"vocab_size\":31,\"hidden_size\":24,\"intermediate_size\":40,\"num_hidden_layers\":2,"                   \
  "\"num_attention_heads\":4"
#define MIXTRAL "{\"model_type\":\"mixtral\"," SIZES
#define QWEN3   "{\"model_type\":\"qwen3_moe\"," SIZES
#define QWEN2   "{\"model_type\":\"qwen2_moe\"," SIZES
#define GLM     "{\"model_type\":\"glm4_moe\",\"num_key_value_heads\":2,\"head_dim\":8," SIZES
#define OLMOE   "{\"model_type\":\"olmoe\"," SIZES

// Defaults of Transformers 5.23.
TEST(test_defaults) {
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
  // So it reads Mixtral's by the others' name; of Qwen2 no other one.
  c = model_of_json(MIXTRAL ",\"num_key_value_heads\":2,\"num_experts\":5}");
  assert_int_equal(c.experts, 5);
  c = model_of_json(QWEN2 ",\"num_key_value_heads\":2,\"num_local_experts\":5}");
  assert_int_equal(c.experts, 60);
}

TEST(test_shared_experts) {
  fsdp_model_config c = model_of_json(QWEN2 ",\"num_key_value_heads\":2}");
  assert_true(c.experts == 60 && c.expert_slots == 4 && c.expert_size == 1408 && !c.normalises_routes);
  assert_true(c.shared_expert_size == 5632 && c.gates_shared_expert && c.qkv_bias && !c.window);
  expect_model_read_back(&c);
  c = model_of_json(GLM "}");
  assert_true(c.experts == 128 && c.expert_slots == 8 && c.expert_size == 1408 && c.normalises_routes);
  assert_true(c.shared_expert_size == 1408 && !c.gates_shared_expert && !c.qkv_bias && !c.qk_norm);
  assert_true(c.route_score == FSDP_ROUTE_SIGMOID && c.route_bias && c.router_f32 && c.route_scale == 1);
  assert_true(c.head_dim == 8 && c.rotary_dim == 4);
  expect_model_read_back(&c);
}

// As Transformers: the coefficient counts where router logits are output, and GLM has no such loss.
TEST(test_losses) {
  static const struct {
    const char *json;
    double aux, z;
  } models[] = {
      {MIXTRAL ",\"num_key_value_heads\":2}", 0, 0},
      {MIXTRAL ",\"num_key_value_heads\":2,\"output_router_logits\":true}", 1e-3, 0},
      {OLMOE ",\"output_router_logits\":true}", 1e-2, 0},
      {QWEN3 ",\"output_router_logits\":true,\"router_aux_loss_coef\":0.5,\"router_z_loss_coef\":0.25}", 0.5,
       0},
      {QWEN3 ",\"router_aux_loss\":\"micro\",\"router_z_loss_coef\":0.25}", 0, 0.25},
      {QWEN2 ",\"num_key_value_heads\":2,\"output_router_logits\":true,\"router_aux_loss_coef\":0}", 0, 0},
      {QWEN2 ",\"num_key_value_heads\":2,\"router_aux_loss_coef\":0.5}", 0, 0},
      {GLM ",\"output_router_logits\":true}", 0, 0},
      {GLM ",\"output_router_logits\":true,\"router_aux_loss_coef\":0.5,\"router_z_loss_coef\":0.5}", 0, 0},
      {GLM ",\"router_aux_loss\":\"rank\",\"router_aux_loss_coef\":0.5,\"output_router_logits\":true}", 0.5,
       0},
  };
  for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
    const fsdp_model_config c = model_of_json(models[m].json);
    assert_true(c.router_aux_coef == models[m].aux && c.router_z_coef == models[m].z);
    expect_model_read_back(&c);
    fsdp_graph *g = fsdp_model_graph(&c, 1, 2);
    assert_int_equal(g->loss_count, c.router_aux_coef > 0 || c.router_z_coef > 0 ? 3 : 1);
    assert_string_equal(g->values[g->losses[0]].name, "loss");
    assert_int_equal(g->statistic_numel, c.experts * fsdp_model_expert_layers(&c));
    fsdp_graph_destroy(g);
  }
}

// Which layers have experts: by steps, by a list, from one on.
TEST(test_layers) {
  static const struct {
    const char *json, *layers;
  } models[] = {
      {"{\"model_type\":\"qwen3_moe\",\"decoder_sparse_step\":2,\"num_hidden_layers\":5,", "01010"},
      {"{\"model_type\":\"qwen3_moe\",\"mlp_only_layers\":[1,3,70],\"num_hidden_layers\":5,", "10101"},
      {"{\"model_type\":\"qwen2_moe\",\"mlp_only_layers\":[3],\"decoder_sparse_step\":2,"
       "\"num_hidden_layers\":6,",
       "010001"},
      {"{\"model_type\":\"glm4_moe\",\"first_k_dense_replace\":2,\"num_hidden_layers\":4,", "0011"},
      {"{\"model_type\":\"glm4_moe\",\"first_k_dense_replace\":0,\"num_hidden_layers\":2,", "11"},
      {"{\"model_type\":\"mixtral\",\"mlp_only_layers\":[0],\"num_hidden_layers\":2,", "11"},
  };
  for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
    char json[512];
    snprintf(json, sizeof json,
             "%s\"vocab_size\":31,\"hidden_size\":24,\"intermediate_size\":40,"
             "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":8}",
             models[m].json);
    const fsdp_model_config c = model_of_json(json);
    fsdp_graph *g = fsdp_model_graph(&c, 1, 2);
    for (int64_t layer = 0; layer < c.num_layers; layer++) {
      char experts[64], dense[64];
      bool found[2] = {false, false};
      assert_int_equal(fsdp_model_has_experts(&c, layer), models[m].layers[layer] == '1');
      snprintf(experts, sizeof experts, "model.layers.%d.mlp.experts.down_proj", (int)layer);
      snprintf(dense, sizeof dense, "model.layers.%d.mlp.down_proj.weight", (int)layer);
      for (int p = 0; p < g->param_count; p++) {
        found[0] |= !strcmp(g->params[p].name, experts);
        found[1] |= !strcmp(g->params[p].name, dense);
      }
      assert_true(found[0] == (models[m].layers[layer] == '1') && found[1] != found[0]);
    }
    int64_t numel = 0;
    for (int p = 0; p < g->param_count; p++) numel += g->params[p].balances ? 0 : g->params[p].numel;
    assert_int_equal(numel, fsdp_model_parameter_count(&c));
    expect_model_read_back(&c);
    fsdp_graph_destroy(g);
  }
}

TEST(test_refused) {
  static const refused_model models[] = {
      {MIXTRAL ",\"num_key_value_heads\":2,\"router_aux_loss_coef\":-1}",
       {"\"router_aux_loss_coef\" is -1", "above 0"}},
      {MIXTRAL ",\"num_key_value_heads\":2,\"router_aux_loss\":\"global\"}",
       {"\"router_aux_loss\" is \"global\"", "micro"}},
      {MIXTRAL ",\"num_key_value_heads\":2,\"router_jitter_noise\":0.1}",
       {"\"router_jitter_noise\" is 0.1", "must be 0"}},
      {MIXTRAL ",\"num_key_value_heads\":2,\"num_local_experts\":0}", {"\"num_local_experts\" is 0"}},
      {MIXTRAL ",\"num_key_value_heads\":2,\"num_local_experts\":3,\"num_experts\":4}",
       {"\"num_experts\" is 4", "\"num_local_experts\", which means the same"}},
      {GLM ",\"num_local_experts\":3,\"n_routed_experts\":4}",
       {"\"num_local_experts\" is 3", "another number"}},
      {MIXTRAL ",\"num_key_value_heads\":2,\"num_local_experts\":3,\"num_experts_per_tok\":4}",
       {"num_experts_per_tok 4", "the 3 experts"}},
      {QWEN3 ",\"decoder_sparse_step\":0}", {"\"decoder_sparse_step\" is 0", "at least 1"}},
      {QWEN3 ",\"mlp_only_layers\":3}", {"\"mlp_only_layers\" is 3", "a list"}},
      {QWEN3 ",\"mlp_only_layers\":[0.5]}", {"\"mlp_only_layers\" is [0.5]", "numbers"}},
      {QWEN2 ",\"use_sliding_window\":true}", {"\"use_sliding_window\" is true"}},
      {QWEN2 ",\"layer_types\":[\"full_attention\",\"sliding_attention\"]}", {"\"layer_types\" is", "full"}},
      {QWEN2 ",\"router_z_loss_coef\":\"x\"}", {"\"router_z_loss_coef\" is \"x\"", "above 0"}},
      {GLM ",\"scoring_func\":\"softmax\"}", {"\"scoring_func\" is \"softmax\"", "sigmoid"}},
      {GLM ",\"topk_method\":\"greedy\"}", {"\"topk_method\" is \"greedy\"", "noaux_tc"}},
      {GLM ",\"n_group\":3,\"topk_group\":1}", {"128 experts in 3 groups", "equal"}},
      {GLM ",\"n_group\":64,\"topk_group\":2}", {"64 groups", "of which 2 are kept", "the 8 that"}},
      {GLM ",\"n_routed_experts\":4,\"num_experts_per_tok\":2,\"n_group\":4,\"topk_group\":4}",
       {"4 experts in 4 groups", "at least 2 experts"}},
      {GLM ",\"n_shared_experts\":0}", {"\"n_shared_experts\" is 0"}},
      {GLM ",\"partial_rotary_factor\":1.5}", {"\"partial_rotary_factor\" is 1.5", "at most 1"}},
      {GLM ",\"partial_rotary_factor\":0.4}", {"rotates 3 of the 8", "even"}},
      {QWEN2 ",\"partial_rotary_factor\":0.5}", {"\"partial_rotary_factor\" is 0.5", "1.0"}},
      {QWEN3 ",\"use_sliding_window\":true}", {"\"use_sliding_window\" is true"}},
      {QWEN3 ",\"attention_bias\":true}", {"\"attention_bias\" is true"}},
      {OLMOE ",\"clip_qkv\":8.0}", {"\"clip_qkv\" is 8.0", "null"}},
      {OLMOE ",\"num_key_value_heads\":2}", {"\"num_key_value_heads\" is 2", "norm"}},
      {OLMOE ",\"head_dim\":8}", {"\"head_dim\" is 8", "hidden_size"}},
  };
  expect_models_refused(models, (int)(sizeof models / sizeof *models));
}

TEST(test_differences) {
  static const compared_key keys[] = {{"num_experts", "16", true},
                                      {"num_experts_per_tok", "3", true},
                                      {"moe_intermediate_size", "5", true},
                                      {"norm_topk_prob", "true", true}};
  expect_keys_compared(QWEN3, keys, (int)(sizeof keys / sizeof *keys));
}

// By hand, of the released shapes: 6 for each parameter that a token meets but the embedding, and the pairs.
TEST(test_flops) {
  fsdp_model_config c = model_of_preset("mixtral-8x7b");
  const double active = 46702792704.0 - 32.0 * 6 * 3 * 4096 * 14336 - 32000.0 * 4096;
  assert_true(fsdp_model_flops_per_token(&c, 4096, FSDP_FLOPS_ALL_PAIRS) ==
              6 * active + 12.0 * 32 * 4096 * 4096);
  // Of 46 layers 45 have experts, of which 120 rest; the shared one does not.
  c = model_of_preset("glm-4.5-air");
  const double air = 106852245504.0 - 45.0 * 120 * 3 * 4096 * 1408 - 151552.0 * 4096;
  assert_true(fsdp_model_flops_per_token(&c, 4096, FSDP_FLOPS_CAUSAL) ==
              6 * air + 6.0 * 46 * 96 * 128 * 4096);
}

// In the order of the state dict of Transformers 5, in which the router comes first or last.
TEST(test_parameters) {
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
