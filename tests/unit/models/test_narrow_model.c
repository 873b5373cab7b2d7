// Narrow models: the features and the divisibility of the given one, in few small layers.
#include "models/model.h"
#include "tests/support/models.h"
#include "tests/support/unit_test.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

static fsdp_model_config narrowed(const fsdp_model_config *model, fsdp_narrow_cut cut, int64_t seq,
                                  int *broken) {
  static const int layers[] = {0, 1};
  const fsdp_narrowing narrowing = {
      .cuts = {.items = &cut, .count = 1}, .layers = layers, .layer_count = 2, .seq = seq, .narrow_seq = 12};
  fsdp_model_config out;
  *broken = fsdp_model_narrow(model, &narrowing, &out);
  return out;
}

static void same_cut(const char *what, int64_t size, int64_t narrow, fsdp_narrow_cut cut) {
  if ((size % cut.from == 0) != (narrow % cut.to == 0) || (size < cut.from) != (narrow < cut.to))
    fail_msg("%s %lld over %lld became %lld over %lld", what, (long long)size, (long long)cut.from,
             (long long)narrow, (long long)cut.to);
}

// Every preset over shortened axes of every kind; 12 and 5 become 3, so that what both divide or neither is
// kept by a multiple of 3.
TEST(test_presets) {
  static const fsdp_narrow_cut cuts[] = {{1, 1}, {2, 2}, {4, 2}, {8, 2}, {3, 3}, {12, 3}, {5, 3}};
  const char *name;
  for (int i = 0; (name = fsdp_model_preset_name(i)); i++) {
    for (size_t k = 0; k < sizeof cuts / sizeof *cuts; k++) {
      fsdp_model_config model;
      int broken;
      model = model_of_preset(name);
      if (model.num_heads < cuts[k].from) continue; // 2 ranks and fewer heads, of which several share one
      fsdp_model_config narrow = narrowed(&model, cuts[k], 512, &broken);
      same_cut("vocabulary", model.vocab_size, narrow.vocab_size, cuts[k]);
      same_cut("intermediate", model.intermediate_size, narrow.intermediate_size, cuts[k]);
      same_cut("hidden", model.hidden_size, narrow.hidden_size, cuts[k]);
      same_cut("heads", model.num_heads, narrow.num_heads, cuts[k]);
      same_cut("key/value heads", model.num_kv_heads, narrow.num_kv_heads, cuts[k]);
      assert_int_equal(narrow.num_layers, 2);
      assert_true(fsdp_model_parameter_count(&narrow) < (model.experts ? 1000000 : 200000));
      assert_int_equal(narrow.num_heads % narrow.num_kv_heads, 0);
      assert_int_equal(narrow.num_heads == narrow.num_kv_heads, model.num_heads == model.num_kv_heads);
      assert_int_equal(narrow.tie_word_embeddings, model.tie_word_embeddings);
      assert_int_equal(narrow.rope_scaling, model.rope_scaling);
      assert_int_equal(narrow.head_dim % 2, 0);
      assert_true(narrow.family == model.family);
      expect_model_read_back(&narrow);
    }
  }
}

// 128 heads that share 8 of keys and values, over 16 ranks, of which two share one: over 4 ranks, two share
// one of two.
TEST(test_fewer_heads_than_ranks) {
  fsdp_model_config model;
  int broken;
  model = model_of_preset("llama3-405b");
  fsdp_model_config narrow = narrowed(&model, (fsdp_narrow_cut){16, 4}, 512, &broken);
  assert_int_equal(narrow.num_kv_heads, 2);
  assert_int_equal(narrow.num_heads, 4);
  assert_int_equal(broken, 0);
  // Of 2 ranks, one head cannot be several.
  narrow = narrowed(&model, (fsdp_narrow_cut){16, 2}, 512, &broken);
  assert_int_equal(narrow.num_kv_heads, 1);
  assert_true(broken > 0);
}

static const char gpt2[] =
    "{\"model_type\": \"gpt2\", \"vocab_size\": 32001, \"n_embd\": 600, \"n_layer\": 5, \"n_head\": 25,"
    " \"n_positions\": 100}";

// Heads fill the residual stream, and learned positions are as many as tokens, or more.
TEST(test_gpt2) {
  int broken;
  const fsdp_model_config model = model_of_json(gpt2);
  fsdp_model_config narrow = narrowed(&model, (fsdp_narrow_cut){8, 2}, 100, &broken);
  assert_int_equal(narrow.hidden_size, narrow.num_heads * narrow.head_dim);
  assert_int_equal(narrow.num_heads, narrow.num_kv_heads);
  assert_int_equal(narrow.num_heads % 2, 1);
  assert_int_equal(narrow.vocab_size % 2, 1);
  assert_int_equal(narrow.max_position_embeddings, 12);
  assert_true(narrow.tie_word_embeddings);
  narrow = narrowed(&model, (fsdp_narrow_cut){8, 2}, 50, &broken);
  assert_true(narrow.max_position_embeddings > 12);
}

static fsdp_model_config windowed(int64_t window, int64_t first_layer, int64_t padding) {
  char json[512];
  snprintf(
      json, sizeof json,
      "{\"model_type\": \"qwen2\", \"vocab_size\": 1000, \"hidden_size\": 96, \"intermediate_size\": 200,"
      " \"num_hidden_layers\": 6, \"num_attention_heads\": 6, \"num_key_value_heads\": 3,"
      " \"use_sliding_window\": true, \"sliding_window\": %lld, \"max_window_layers\": %lld,"
      " \"tie_word_embeddings\": true, \"pad_token_id\": %lld}",
      (long long)window, (long long)first_layer, (long long)padding);
  return model_of_json(json);
}

// What a window leaves out of a sequence it leaves out of the narrow one, in layers of the same kind; the
// token of padding stays a token.
TEST(test_windows_and_padding) {
  int broken;
  fsdp_model_config model = windowed(100, 1, 999);
  fsdp_model_config narrow = narrowed(&model, (fsdp_narrow_cut){2, 2}, 400, &broken);
  assert_int_equal(narrow.window, 3); // a quarter of 12
  assert_int_equal(narrow.first_window_layer, 1);
  assert_int_equal(narrow.padding_token, narrow.vocab_size);
  model = windowed(399, 0, 0);
  narrow = narrowed(&model, (fsdp_narrow_cut){2, 2}, 400, &broken);
  assert_int_equal(narrow.window, 11);
  assert_int_equal(narrow.first_window_layer, 0);
  assert_int_equal(narrow.padding_token, 1);
  model = windowed(2, 2, 700);
  narrow = narrowed(&model, (fsdp_narrow_cut){2, 2}, 400, &broken);
  assert_int_equal(narrow.window, 2);
  assert_int_equal(narrow.first_window_layer, 2); // neither of the kept ones
  assert_true(narrow.padding_token >= 1 && narrow.padding_token < narrow.vocab_size);
  model = windowed(400, 0, 0);
  narrow = narrowed(&model, (fsdp_narrow_cut){2, 2}, 400, &broken);
  assert_true(narrow.window >= 12); // cuts nothing off
}

// A size is never made larger, and the nearest is taken where no size has all facts.
TEST(test_sizes) {
  int64_t out;
  const fsdp_narrow_cut contrary[] = {{4, 2}, {8, 2}};
  assert_int_equal(fsdp_narrow_size(5, 12, &(fsdp_narrow_cuts){&(fsdp_narrow_cut){2, 2}, 1}, &out), 0);
  assert_int_equal(out, 5);
  assert_int_equal(fsdp_narrow_size(1001, 12, &(fsdp_narrow_cuts){contrary, 2}, &out), 0);
  assert_int_equal(out, 13);
  // 4 divides 12, and 8 does not: 2 cannot do both.
  assert_int_equal(fsdp_narrow_size(1004, 12, &(fsdp_narrow_cuts){contrary, 2}, &out), 1);
  // Three of four ranks have an item of 3: so of 2 of 3.
  assert_int_equal(fsdp_narrow_size(3, 1, &(fsdp_narrow_cuts){&(fsdp_narrow_cut){4, 3}, 1}, &out), 0);
  assert_int_equal(out, 2);
}
