// What is said of ranks that hold nothing but padding.
#include "launcher/report/plan_notes.h"
#include "models/family.h"
#include "tests/support/models.h"
#include "tests/support/unit_test.h"

#include <stdio.h>
#include <string.h>

typedef struct note_case {
  int context, tensor;
  int64_t seq;
  const char *begin; // of the note; NULL: there is none
} note_case;

// The note of a model with 6 query heads, 2 key/value heads and 10 intermediate columns.
// `line` is a module, or "input", whose sequence an axis x of four ranks cuts; NULL: there is no such axis.
static void expect_note(const note_case *c, const char *line) {
  fsdp_plan_config config = {.model = {.family = family_of_preset("tiny"),
                                       .vocab_size = 64,
                                       .hidden_size = 48,
                                       .intermediate_size = 10,
                                       .num_layers = 1,
                                       .num_heads = 6,
                                       .num_kv_heads = 2,
                                       .head_dim = 8,
                                       .norm_eps = 1e-5,
                                       .rope_theta = 1e4},
                             .batch = 1,
                             .seq = c->seq,
                             .micro_batches = 1,
                             .mesh = fsdp_mesh_of(1, 1),
                             .sequence_parallel = true,
                             .wrap = {.kind = FSDP_WRAP_BLOCK},
                             .backend = fsdp_plan_backend_cpu()};
  fsdp_mesh_resize(&config.mesh, FSDP_AXIS_CONTEXT, c->context);
  fsdp_mesh_resize(&config.mesh, FSDP_AXIS_TENSOR, c->tensor);
  fsdp_shard_rule rule = {.output = -1, .dims = 3, .dim[1] = {.count = 1, .axes = {"x"}}, .place = "here"};
  const fsdp_sharding sharding = {.rules = &rule, .rule_count = 1};
  if (line) {
    assert_true(fsdp_mesh_add(&config.mesh, "x", 4));
    snprintf(rule.name, sizeof rule.name, "%s", line);
    if (!strcmp(line, "input")) rule.dims = 2;
    config.sharding = &sharding;
  }
  fsdp_plan *plan = plan_of_config(&config);
  char note[512] = "";
  bool found = fsdp_padding_note(plan, note, sizeof note);
  if (found != (c->begin != NULL) || (found && strncmp(note, c->begin, strlen(c->begin)) != 0))
    fail_msg("context=%d,tensor=%d: '%s', not '%s'", c->context, c->tensor, note, c->begin ? c->begin : "");
  fsdp_plan_destroy(plan);
}

TEST(test_notes) {
  const note_case cases[] = {
      {1, 1, 16, NULL},
      {1, 2, 16, NULL},
      // One key/value head on two ranks of three; 4 of 10 columns each.
      {1, 3, 16,
       "on 1 of the 3 ranks over tensor model.layers.0.self_attn.q_proj.weight is nothing but padding "
       "(4 parameters in all): "},
      // Three ranks a key/value head, each with one of its three query heads; 2 columns each.
      {1, 6, 16,
       "on 1 of the 6 ranks over tensor model.layers.0.mlp.gate_proj.weight is nothing but padding "
       "(3 parameters in all): "},
      // Chunks of one token: eight tokens are the heads of eight parts.
      {8, 1, 16, NULL},
      {8, 1, 8, NULL},
      {8, 1, 7, "on 1 of the 8 ranks over context a sequence is nothing but padding: 7 tokens are "},
      {8, 1, 1, "on 7 of the 8 ranks over context a sequence is nothing but padding: 1 token is "},
      // Pieces of two tokens.
      {1, 4, 5, "on 1 of the 4 ranks over tensor a sequence is nothing but padding: 5 tokens "},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) expect_note(&cases[i], NULL);
  const note_case piece = {1, 1, 5,
                           "on 1 of the 4 ranks over x a sequence is nothing but padding: 5 tokens "},
                  part = {1, 1, 3, "on 1 of the 4 ranks over x a sequence is nothing but padding: 3 tokens "};
  expect_note(&piece, "model.norm");
  expect_note(&part, "input");
}
