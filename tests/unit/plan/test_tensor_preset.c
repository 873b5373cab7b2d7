// The preset fsdp-tp of every family, written out from the rule: linear layers after a norm and vocabularies
// are cut in their outputs, linear layers after attention or an activation in their inputs.
#include "models/family.h"
#include "runtime/plan/sharding/sharding.h"
#include "tests/support/models.h"
#include "tests/support/unit_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct preset_case {
  const char *preset;
  bool tied, sequence_parallel;
  int data, tensor, context;
} preset_case;

// What --print-sharding prints for a small model of the preset's family on fsdp=2 and these axes.
static char *printed(const preset_case *c) {
  const fsdp_family *family = family_of_preset(c->preset);
  fsdp_model_config config = {.family = family,
                              .vocab_size = 101,
                              .hidden_size = 60,
                              .intermediate_size = 80,
                              .num_layers = 2,
                              .num_heads = 6,
                              .num_kv_heads = family->decoder ? 2 : 6,
                              .head_dim = 10,
                              .max_position_embeddings = 64,
                              .norm_eps = 1e-5,
                              .rope_theta = 10000,
                              .tie_word_embeddings = c->tied,
                              .initializer_range = 0.02};
  fsdp_graph *graph = fsdp_model_graph(&config, 1, 4);
  fsdp_mesh mesh = fsdp_mesh_of(c->data, 2);
  fsdp_mesh_resize(&mesh, FSDP_AXIS_TENSOR, c->tensor);
  fsdp_mesh_resize(&mesh, FSDP_AXIS_CONTEXT, c->context);
  const fsdp_sharding sharding = {.preset = FSDP_SHARDING_FSDP_TP, .sequence_parallel = c->sequence_parallel};
  fsdp_specs *specs;
  fsdp_error error = {0};
  if (fsdp_sharding_resolve(&sharding, graph, &mesh, &specs, &error)) fail_msg("%s", error.message);
  char *text = NULL;
  size_t bytes = 0;
  FILE *out = open_memstream(&text, &bytes);
  assert_non_null(out);
  fsdp_specs_print(specs, graph, &mesh, NULL, out);
  fclose(out);
  fsdp_specs_destroy(specs);
  fsdp_graph_destroy(graph);
  return text;
}

// A line of a module without any op, whose output stays as by default.
static bool makes_nothing(const char *line) {
  static const char *const names[] = {"rotary_emb: ", "act_fn: ", "dropout: ", "drop: "};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strstr(line, names[i])) return true;
  return false;
}

// Fails unless these are all lines of other modules, in this order. Without sequence parallelism, what
// `lines` have on tensor in the sequence is whole.
static void expect_printed(preset_case c, const char *const *lines) {
  char *text = printed(&c), *rest = text, *line, expected[160];
  while ((line = strsep(&rest, "\n")) && *line) {
    if (makes_nothing(line)) {
      assert_null(strstr(line, "tensor"));
      continue;
    }
    if (!*lines) fail_msg("%s: '%s' is one line too many", c.preset, line);
    const char *cut = c.sequence_parallel ? NULL : strstr(*lines, ", tensor, null]");
    snprintf(expected, sizeof expected, "%.*s%s", cut ? (int)(cut - *lines) : 150, *lines,
             cut ? ", null, null]" : "");
    if (strcmp(line, expected) != 0) fail_msg("%s: '%s', not '%s'", c.preset, line, expected);
    lines++;
  }
  assert_null(*lines);
  free(text);
}

static const char *const llama[] = {"input: [[data, fsdp], null]",
                                    "model.embed_tokens.weight: [tensor, fsdp]",
                                    "model.layers.*.self_attn.q_proj.weight: [tensor, fsdp]",
                                    "model.layers.*.self_attn.k_proj.weight: [tensor, fsdp]",
                                    "model.layers.*.self_attn.v_proj.weight: [tensor, fsdp]",
                                    "model.layers.*.self_attn.o_proj.weight: [fsdp, tensor]",
                                    "model.layers.*.mlp.gate_proj.weight: [tensor, fsdp]",
                                    "model.layers.*.mlp.up_proj.weight: [tensor, fsdp]",
                                    "model.layers.*.mlp.down_proj.weight: [fsdp, tensor]",
                                    "model.layers.*.input_layernorm.weight: [fsdp]",
                                    "model.layers.*.post_attention_layernorm.weight: [fsdp]",
                                    "model.norm.weight: [fsdp]",
                                    "lm_head.weight: [tensor, fsdp]",
                                    "'': [[data, fsdp], null, tensor]",
                                    "model: [[data, fsdp], tensor, null]",
                                    "model.embed_tokens: [[data, fsdp], tensor, null]",
                                    "model.layers.*: [[data, fsdp], tensor, null]",
                                    "model.layers.*.self_attn: [[data, fsdp], tensor, null]",
                                    "model.layers.*.self_attn.q_proj: [[data, fsdp], null, tensor]",
                                    "model.layers.*.self_attn.k_proj: [[data, fsdp], null, tensor]",
                                    "model.layers.*.self_attn.v_proj: [[data, fsdp], null, tensor]",
                                    "model.layers.*.self_attn.o_proj: [[data, fsdp], tensor, null]",
                                    "model.layers.*.mlp: [[data, fsdp], tensor, null]",
                                    "model.layers.*.mlp.gate_proj: [[data, fsdp], null, tensor]",
                                    "model.layers.*.mlp.up_proj: [[data, fsdp], null, tensor]",
                                    "model.layers.*.mlp.down_proj: [[data, fsdp], tensor, null]",
                                    "model.layers.*.input_layernorm: [[data, fsdp], tensor, null]",
                                    "model.layers.*.post_attention_layernorm: [[data, fsdp], tensor, null]",
                                    "model.norm: [[data, fsdp], tensor, null]",
                                    "lm_head: [[data, fsdp], null, tensor]",
                                    NULL};

TEST(test_llama) {
  expect_printed((preset_case){"llama2-7b", false, true, 2, 2, 1}, llama);
  expect_printed((preset_case){"mistral-7b", false, true, 2, 3, 1}, llama);
  expect_printed((preset_case){"llama2-7b", false, false, 2, 4, 1}, llama);
}

// Biases lie as the outputs of their weights do; the norms of heads are whole in the sequence, as heads are
// cut. Context cuts weights as fsdp does, and the sequence of everything.
TEST(test_qwen) {
  static const char *const qwen2[] = {
      "input: [fsdp, context]",
      "model.embed_tokens.weight: [tensor, [fsdp, context]]",
      "model.layers.*.self_attn.q_proj.weight: [tensor, [fsdp, context]]",
      "model.layers.*.self_attn.q_proj.bias: [[tensor, fsdp, context]]",
      "model.layers.*.self_attn.k_proj.weight: [tensor, [fsdp, context]]",
      "model.layers.*.self_attn.k_proj.bias: [[tensor, fsdp, context]]",
      "model.layers.*.self_attn.v_proj.weight: [tensor, [fsdp, context]]",
      "model.layers.*.self_attn.v_proj.bias: [[tensor, fsdp, context]]",
      "model.layers.*.self_attn.o_proj.weight: [[fsdp, context], tensor]",
      "model.layers.*.mlp.gate_proj.weight: [tensor, [fsdp, context]]",
      "model.layers.*.mlp.up_proj.weight: [tensor, [fsdp, context]]",
      "model.layers.*.mlp.down_proj.weight: [[fsdp, context], tensor]",
      "model.layers.*.input_layernorm.weight: [[fsdp, context]]",
      "model.layers.*.post_attention_layernorm.weight: [[fsdp, context]]",
      "model.norm.weight: [[fsdp, context]]",
      "'': [fsdp, context, tensor]",
      "model: [fsdp, [context, tensor], null]",
      "model.embed_tokens: [fsdp, [context, tensor], null]",
      "model.layers.*: [fsdp, [context, tensor], null]",
      "model.layers.*.self_attn: [fsdp, [context, tensor], null]",
      "model.layers.*.self_attn.q_proj: [fsdp, context, tensor]",
      "model.layers.*.self_attn.k_proj: [fsdp, context, tensor]",
      "model.layers.*.self_attn.v_proj: [fsdp, context, tensor]",
      "model.layers.*.self_attn.o_proj: [fsdp, [context, tensor], null]",
      "model.layers.*.mlp: [fsdp, [context, tensor], null]",
      "model.layers.*.mlp.gate_proj: [fsdp, context, tensor]",
      "model.layers.*.mlp.up_proj: [fsdp, context, tensor]",
      "model.layers.*.mlp.down_proj: [fsdp, [context, tensor], null]",
      "model.layers.*.input_layernorm: [fsdp, [context, tensor], null]",
      "model.layers.*.post_attention_layernorm: [fsdp, [context, tensor], null]",
      "model.norm: [fsdp, [context, tensor], null]",
      "lm_head: [fsdp, context, tensor]",
      NULL};
  expect_printed((preset_case){"qwen2.5-7b", true, true, 1, 2, 2}, qwen2);
}

// The norms of heads have weights of one head, and their outputs are heads.
TEST(test_norms_of_heads) {
  static const char *const lines[] = {"model.layers.*.self_attn.q_norm.weight: [fsdp]",
                                      "model.layers.*.self_attn.k_norm.weight: [fsdp]",
                                      "model.layers.*.self_attn.o_proj.weight: [fsdp, tensor]",
                                      "model.layers.*.self_attn: [fsdp, tensor, null]",
                                      "model.layers.*.self_attn.q_norm: [fsdp, null, tensor]",
                                      "model.layers.*.self_attn.k_norm: [fsdp, null, tensor]",
                                      "lm_head.weight: [tensor, fsdp]"};
  char *text = printed(&(preset_case){"qwen3-8b", false, true, 1, 2, 1}), line[120];
  for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
    snprintf(line, sizeof line, "\n%s\n", lines[i]);
    if (!strstr(text, line)) fail_msg("no '%s' in:\n%s", lines[i], text);
  }
  free(text);
}

// Weights are stored (in, out). The bias of a product cut in its inputs is added after the sum, and lies as
// norms do, and so do learned positions.
TEST(test_gpt2) {
  static const char *const gpt2[] = {"input: [[data, fsdp], null]",
                                     "transformer.wte.weight: [tensor, fsdp]",
                                     "transformer.wpe.weight: [fsdp, null]",
                                     "transformer.h.*.ln_1.weight: [fsdp]",
                                     "transformer.h.*.ln_1.bias: [fsdp]",
                                     "transformer.h.*.attn.c_attn.weight: [fsdp, tensor]",
                                     "transformer.h.*.attn.c_attn.bias: [[tensor, fsdp]]",
                                     "transformer.h.*.attn.c_proj.weight: [tensor, fsdp]",
                                     "transformer.h.*.attn.c_proj.bias: [fsdp]",
                                     "transformer.h.*.ln_2.weight: [fsdp]",
                                     "transformer.h.*.ln_2.bias: [fsdp]",
                                     "transformer.h.*.mlp.c_fc.weight: [fsdp, tensor]",
                                     "transformer.h.*.mlp.c_fc.bias: [[tensor, fsdp]]",
                                     "transformer.h.*.mlp.c_proj.weight: [tensor, fsdp]",
                                     "transformer.h.*.mlp.c_proj.bias: [fsdp]",
                                     "transformer.ln_f.weight: [fsdp]",
                                     "transformer.ln_f.bias: [fsdp]",
                                     "'': [[data, fsdp], null, tensor]",
                                     "transformer: [[data, fsdp], tensor, null]",
                                     "transformer.wte: [[data, fsdp], tensor, null]",
                                     "transformer.wpe: [[data, fsdp], tensor, null]",
                                     "transformer.h.*: [[data, fsdp], tensor, null]",
                                     "transformer.h.*.ln_1: [[data, fsdp], tensor, null]",
                                     "transformer.h.*.attn: [[data, fsdp], tensor, null]",
                                     "transformer.h.*.attn.c_attn: [[data, fsdp], null, tensor]",
                                     "transformer.h.*.attn.c_proj: [[data, fsdp], tensor, null]",
                                     "transformer.h.*.ln_2: [[data, fsdp], tensor, null]",
                                     "transformer.h.*.mlp: [[data, fsdp], tensor, null]",
                                     "transformer.h.*.mlp.c_fc: [[data, fsdp], null, tensor]",
                                     "transformer.h.*.mlp.c_proj: [[data, fsdp], tensor, null]",
                                     "transformer.h.*.mlp.act: [[data, fsdp], null, tensor]",
                                     "transformer.ln_f: [[data, fsdp], tensor, null]",
                                     "lm_head: [[data, fsdp], null, tensor]",
                                     NULL};
  expect_printed((preset_case){"gpt2", true, true, 2, 2, 1}, gpt2);
  expect_printed((preset_case){"gpt2", true, false, 2, 2, 1}, gpt2);
}

// Without ranks on tensor it is the default.
TEST(test_one_rank) {
  char *text = printed(&(preset_case){"llama2-7b", false, true, 2, 1, 1});
  assert_null(strstr(text, "tensor"));
  assert_non_null(strstr(text, "model.layers.*.self_attn.o_proj.weight: [fsdp, null]\n"));
  assert_non_null(strstr(text, "model.layers.*: [[data, fsdp], null, null]\n"));
  free(text);
}
