// weights: a folder's tensors against the model's parameters, and random damage to a header.
#include "models/model.h"
#include "runtime/base/random.h"
#include "runtime/checkpoint/json_file.h"
#include "runtime/checkpoint/weights.h"
#include "tests/support/io_files.h"
#include "tests/support/unit_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN FSDP_SOURCE_DIR "/tests/golden/"

// `vocabulary`: so many tokens; 0: as many as the folder's model has.
static fsdp_graph *graph_with(const char *folder, int64_t vocabulary) {
  char path[512];
  fsdp_model_config config;
  fsdp_error error;
  snprintf(path, sizeof path, GOLDEN "%s/config.json", folder);
  IO_OK(fsdp_config_read(path, &config, &error), &error);
  if (vocabulary) config.vocab_size = vocabulary;
  return fsdp_model_graph(&config, 1, 8);
}

static fsdp_graph *graph_of(const char *folder) {
  return graph_with(folder, 0);
}

TEST(every_golden_folder_is_matched) {
  static const char *const folders[] = {"grouped",         "tied", "llama3_rope",
                                        "multi_query_257", "odd",  "wide_32001"};
  for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
    char path[512];
    fsdp_weights *weights;
    fsdp_error error;
    fsdp_graph *graph = graph_of(folders[i]);
    snprintf(path, sizeof path, GOLDEN "%s", folders[i]);
    IO_OK(fsdp_weights_open(path, graph, 0, &weights, &error), &error);
    for (int p = 0; p < graph->param_count; p++) {
      // In two parts that together are the whole: the same numbers as in one.
      int64_t numel = graph->params[p].numel, cut = numel / 3;
      float *whole = malloc((size_t)numel * sizeof *whole), *parts = malloc((size_t)numel * sizeof *parts);
      int64_t before = fsdp_weights_files(weights)->bytes_read;
      IO_OK(fsdp_weights_read(weights, p, 0, numel, whole, &error), &error);
      int64_t read = fsdp_weights_files(weights)->bytes_read - before;
      assert_true(read == 2 * numel || read == 4 * numel);
      IO_OK(fsdp_weights_read(weights, p, cut, numel - cut, parts + cut, &error), &error);
      IO_OK(fsdp_weights_read(weights, p, 0, cut, parts, &error), &error);
      assert_memory_equal(whole, parts, (size_t)numel * sizeof *whole);
      free(whole);
      free(parts);
    }
    fsdp_weights_close(weights);
    fsdp_graph_destroy(graph);
  }
}

// A file of the graph's parameters (or of all but `skip`), of zeros, with `extra` as a further, last tensor
// of 4 numbers, or of the shape of parameter `like`. `last` is its element with `behind` others behind it.
typedef struct variant {
  const char *skip, *extra, *odd_shape, *integers, *like;
  const char *without; // begins names that are written without it
  float last;
  int64_t behind;
} variant;

static const char *write_variant(const fsdp_graph *graph, const variant *v) {
  fsdp_safetensors_tensor *tensors = calloc((size_t)graph->param_count + 1, sizeof *tensors);
  int count = 0;
  int64_t bytes = 0;
  for (int p = 0; p < graph->param_count; p++) {
    const fsdp_param *param = &graph->params[p];
    if (v->skip && !strcmp(param->name, v->skip)) continue;
    fsdp_safetensors_tensor *t = &tensors[count++];
    *t = (fsdp_safetensors_tensor){.name = param->name, .dims = param->dims};
    memcpy(t->shape, param->shape, sizeof param->shape);
    if (v->without && !strncmp(t->name, v->without, strlen(v->without))) t->name += strlen(v->without);
    bool odd = v->odd_shape && !strcmp(param->name, v->odd_shape);
    if (odd) t->shape[0]++;
    if (v->integers && !strcmp(param->name, v->integers)) t->dtype = FSDP_I32;
    bytes += 4 * t->shape[0] * (t->dims > 1 ? t->shape[1] : 1);
  }
  if (v->extra) {
    fsdp_safetensors_tensor *t = &tensors[count++];
    *t = (fsdp_safetensors_tensor){.name = v->extra, .dims = 1, .shape = {4}};
    for (int p = 0; p < graph->param_count && v->like; p++) {
      if (strcmp(graph->params[p].name, v->like) != 0) continue;
      t->dims = graph->params[p].dims;
      memcpy(t->shape, graph->params[p].shape, sizeof t->shape);
    }
    bytes += 4 * t->shape[0] * (t->dims > 1 ? t->shape[1] : 1);
  }
  const char *path = io_path("variant.safetensors");
  fsdp_safetensors_writer_config config = {.path = path, .tensors = tensors, .tensor_count = count};
  fsdp_safetensors_writer *writer;
  fsdp_error error;
  char *zeros = calloc(1, (size_t)bytes);
  memcpy(zeros + bytes - 4 - 4 * v->behind, &v->last, 4);
  IO_OK(fsdp_safetensors_writer_create(&config, &writer, &error), &error);
  IO_OK(fsdp_safetensors_writer_append(writer, zeros, bytes, &error), &error);
  IO_OK(fsdp_safetensors_writer_finish(writer, &error), &error);
  free(zeros);
  free(tensors);
  return path;
}

static fsdp_status match(const fsdp_graph *graph, variant v, fsdp_error *error) {
  fsdp_weights *weights;
  memset(error, 0, sizeof *error);
  fsdp_status status = fsdp_weights_open(write_variant(graph, &v), graph, 0, &weights, error);
  fsdp_weights_close(weights);
  return status;
}

TEST(what_does_not_belong_together_is_named) {
  fsdp_error error;
  fsdp_graph *graph = graph_of("tied");
  const char *norm = "model.layers.1.input_layernorm.weight";
  assert_int_equal(match(graph, (variant){0}, &error), FSDP_OK);
  IO_EXPECT(match(graph, (variant){.skip = norm}, &error), FSDP_ERR_INPUT, &error, norm, "(32)", "missing");
  IO_EXPECT(match(graph, (variant){.odd_shape = norm}, &error), FSDP_ERR_INPUT, &error, norm, "(33)",
            "requires (32)");
  IO_EXPECT(match(graph, (variant){.integers = norm}, &error), FSDP_ERR_INPUT, &error, norm, "I32");
  IO_EXPECT(match(graph, (variant){.extra = "model.layers.2.q"}, &error), FSDP_ERR_INPUT, &error,
            "model.layers.2.q", "no place");
  // A tied head may be stored beside the embedding; a buffer of old conversions too.
  const char *embedding = "model.embed_tokens.weight", *head = "lm_head.weight";
  assert_int_equal(match(graph, (variant){.extra = head, .like = embedding}, &error), FSDP_OK);
  IO_EXPECT(match(graph, (variant){.extra = head}, &error), FSDP_ERR_INPUT, &error, head, "(4)");
  IO_EXPECT(match(graph, (variant){.extra = head, .like = embedding, .last = 1}, &error), FSDP_ERR_INPUT,
            &error, head, "different values", "tie_word_embeddings");
  assert_int_equal(match(graph, (variant){.extra = "model.layers.0.self_attn.rotary_emb.inv_freq"}, &error),
                   FSDP_OK);
  fsdp_graph_destroy(graph);
  graph = graph_of("grouped");
  IO_EXPECT(match(graph, (variant){.skip = "lm_head.weight"}, &error), FSDP_ERR_INPUT, &error,
            "lm_head.weight", "(128, 32)", "missing");
  fsdp_graph_destroy(graph);
}

// Of two weights that are one, programs store both or either; a head of which one row was trained is no copy.
TEST(a_tied_weight_may_be_stored_as_either) {
  fsdp_error error;
  fsdp_graph *graph = graph_with("tied", 4096);
  const char *embedding = "model.embed_tokens.weight", *head = "lm_head.weight";
  assert_int_equal(
      match(graph, (variant){.skip = embedding, .extra = head, .like = embedding, .last = 3}, &error),
      FSDP_OK);
  fsdp_weights *weights;
  float last = 0;
  const int64_t numel = graph->params[0].numel;
  assert_string_equal(graph->params[0].name, embedding);
  IO_OK(fsdp_weights_open(io_path("variant.safetensors"), graph, 0, &weights, &error), &error);
  IO_OK(fsdp_weights_read(weights, 0, numel - 1, 1, &last, &error), &error);
  assert_true(last == 3);
  fsdp_weights_close(weights);
  IO_EXPECT(match(graph, (variant){.skip = embedding}, &error), FSDP_ERR_INPUT, &error, embedding, "missing");
  const variant changed = {.extra = head, .like = embedding, .last = 1, .behind = numel - 1000};
  assert_int_equal(match(graph, (variant){.extra = head, .like = embedding}, &error), FSDP_OK);
  IO_EXPECT(match(graph, changed, &error), FSDP_ERR_INPUT, &error, head, "different values");
  fsdp_graph_destroy(graph);
}

// Files of the model without its head name their tensors without its prefix.
TEST(a_prefix_may_be_left_out) {
  fsdp_error error;
  fsdp_graph *graph = graph_of("tied");
  const variant bare = {.without = "model."};
  IO_EXPECT(match(graph, bare, &error), FSDP_ERR_INPUT, &error, "model.embed_tokens.weight", "missing");
  graph->base_prefix = "model.";
  assert_int_equal(match(graph, bare, &error), FSDP_OK);
  assert_int_equal(match(graph, (variant){0}, &error), FSDP_OK);
  IO_EXPECT(match(graph, (variant){.without = "model.layers."}, &error), FSDP_ERR_INPUT, &error,
            "model.layers.0", "missing");
  // What lies under the bare name is this parameter, and its shape is checked.
  IO_EXPECT(match(graph, (variant){.without = "model.", .odd_shape = "model.norm.weight"}, &error),
            FSDP_ERR_INPUT, &error, "\"norm.weight\"", "(33)");
  fsdp_graph_destroy(graph);
}

// Whatever the bytes are, opening either succeeds or names a reason; the sanitizers check that nothing else
// happens.
TEST(a_damaged_header_never_crashes) {
  fsdp_error error;
  fsdp_graph *graph = graph_of("tied");
  FILE *file = fopen(
      write_variant(graph, &(variant){.extra = "lm_head.weight", .like = "model.embed_tokens.weight"}), "rb");
  static unsigned char good[1 << 20], bad[1 << 20];
  int64_t size = (int64_t)fread(good, 1, sizeof good, file), header = 8 + good[0] + 256 * good[1];
  fclose(file);
  int refused = 0;
  for (uint64_t round = 0; round < 2000; round++) {
    uint32_t words[4];
    memcpy(bad, good, (size_t)size);
    int64_t length = size;
    for (uint64_t flip = 0; flip <= round % 4; flip++) {
      fsdp_random_words(1, fsdp_random_stream("damage"), round * 4 + flip, words);
      // Every few rounds a structural character, which JSON notices least, in place of a random bit.
      int64_t place = words[0] % header;
      unsigned structural = (unsigned char)"0192{}[],:\"-e"[words[2] % 13],
               flipped = bad[place] ^ (1u << words[2] % 8);
      bad[place] = (unsigned char)(words[1] % 3 ? flipped : structural);
    }
    if (round % 5 == 4) length = words[3] % (uint32_t)size;
    fsdp_weights *weights;
    memset(&error, 0, sizeof error);
    fsdp_status status =
        fsdp_weights_open(io_write("damaged.safetensors", bad, length), graph, 0, &weights, &error);
    fsdp_weights_close(weights);
    refused += status == FSDP_ERR_INPUT;
    assert_true(status == FSDP_OK ||
                (status == FSDP_ERR_INPUT && strstr(error.message, "damaged.safetensors")));
  }
  assert_true(refused > 1000); // most damage is found; what is left changed only spaces or the stray names
  fsdp_graph_destroy(graph);
}

int main(void) {
  return run_all_tests(io_set_up, io_tear_down);
}
