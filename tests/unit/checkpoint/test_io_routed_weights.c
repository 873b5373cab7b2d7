// Weight files of models with routed experts: a tensor for each expert or all of a layer in one, thousands of
// tensors, and layers behind the model's last, which are left out.
#include "models/graph/stored.h"
#include "models/model.h"
#include "runtime/base/clock.h"
#include "runtime/checkpoint/json_file.h"
#include "runtime/checkpoint/weights.h"
#include "runtime/plan/plan.h"
#include "tests/support/draws.h"
#include "tests/support/io_files.h"
#include "tests/support/models.h"
#include "tests/support/unit_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define GOLDEN FSDP_SOURCE_DIR "/tests/golden/"

static fsdp_graph *graph_of(const char *folder) {
  char path[512];
  fsdp_model_config config;
  fsdp_error error;
  snprintf(path, sizeof path, GOLDEN "%s/config.json", folder);
  IO_OK(fsdp_config_read(path, &config, &error), &error);
  return fsdp_model_graph(&config, 1, 8);
}

// A file of tensors of fp32: its header grows with each, and its data is a hole unless it is written.
typedef struct tensor_file {
  char *header;
  size_t bytes;
  FILE *out;
  int64_t data_bytes;
  int count;
} tensor_file;

static void begin_file(tensor_file *f) {
  *f = (tensor_file){0};
  f->out = open_memstream(&f->header, &f->bytes);
  fputc('{', f->out);
}

static void add_tensor(tensor_file *f, const char *name, int dims, const int64_t *shape) {
  int64_t numel = 1;
  fprintf(f->out, "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[", f->count++ ? "," : "", name);
  for (int d = 0; d < dims; d++) {
    fprintf(f->out, "%s%lld", d ? "," : "", (long long)shape[d]);
    numel *= shape[d];
  }
  fprintf(f->out, "],\"data_offsets\":[%lld,%lld]}", (long long)f->data_bytes,
          (long long)(f->data_bytes + 4 * numel));
  f->data_bytes += 4 * numel;
}

// The file's path; *data_offset: where its data begins.
static const char *end_file(tensor_file *f, int64_t *data_offset) {
  fputc('}', f->out);
  fclose(f->out);
  const char *path = io_write_safetensors("model.safetensors", f->header, -1, 0);
  *data_offset = 8 + (int64_t)strlen(f->header);
  assert_int_equal(truncate(path, *data_offset + f->data_bytes), 0);
  free(f->header);
  return path;
}

// Experts as the hub has them, and the same numbers by the names of Transformers 5: the same bits.
TEST(test_stacked) {
  fsdp_graph *graph = graph_of("qwen2_moe_routed");
  fsdp_weights *hub, *stacked;
  fsdp_error error;
  int64_t offset, most = 0;
  tensor_file f;
  begin_file(&f);
  for (int p = 0; p < graph->param_count; p++) {
    add_tensor(&f, graph->params[p].name, graph->params[p].dims, graph->params[p].shape);
    most = graph->params[p].numel > most ? graph->params[p].numel : most;
  }
  const char *path = end_file(&f, &offset);
  float *values = malloc((size_t)most * sizeof *values), *again = malloc((size_t)most * sizeof *again);
  IO_OK(fsdp_weights_open(GOLDEN "qwen2_moe_routed", graph, 0, &hub, &error), &error);
  FILE *out = fopen(path, "r+b");
  assert_int_equal(fseek(out, (long)offset, SEEK_SET), 0);
  for (int p = 0; p < graph->param_count; p++) {
    IO_OK(fsdp_weights_read(hub, p, 0, graph->params[p].numel, values, &error), &error);
    assert_int_equal(fwrite(values, sizeof *values, (size_t)graph->params[p].numel, out),
                     graph->params[p].numel);
  }
  fclose(out);
  IO_OK(fsdp_weights_open(path, graph, 0, &stacked, &error), &error);
  for (int p = 0; p < graph->param_count; p++) {
    const size_t bytes = (size_t)graph->params[p].numel * sizeof *values;
    IO_OK(fsdp_weights_read(hub, p, 0, graph->params[p].numel, values, &error), &error);
    IO_OK(fsdp_weights_read(stacked, p, 0, graph->params[p].numel, again, &error), &error);
    assert_memory_equal(values, again, bytes);
  }
  fsdp_weights_close(hub);
  fsdp_weights_close(stacked);
  fsdp_graph_destroy(graph);
  free(values), free(again);
}

// Layers of multi-token prediction are behind the last; what lies in the model's own and has no place is not.
TEST(test_extra_layers) {
  static const struct {
    const char *folder, *name;
    bool is_left_out;
  } cases[] = {
      {"glm4_moe_routed", "model.layers.2.eh_proj.weight", true},
      {"glm4_moe_routed", "model.layers.2.mlp.experts.0.down_proj.weight", true},
      {"glm4_moe_routed", "model.layers.1.eh_proj.weight", false},
      {"glm4_moe_routed", "model.layers.2x.eh_proj.weight", false},
      {"qwen2_moe_routed", "model.layers.3.eh_proj.weight", false},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    fsdp_graph *graph = graph_of(cases[i].folder);
    fsdp_weights *weights = NULL;
    fsdp_error error = {0};
    const int64_t shape[2] = {3, 5};
    int64_t offset;
    tensor_file f;
    begin_file(&f);
    for (int p = 0; p < graph->param_count; p++)
      add_tensor(&f, graph->params[p].name, graph->params[p].dims, graph->params[p].shape);
    add_tensor(&f, cases[i].name, 2, shape);
    const fsdp_status status = fsdp_weights_open(end_file(&f, &offset), graph, 0, &weights, &error);
    if (cases[i].is_left_out)
      IO_OK(status, &error);
    else
      IO_EXPECT(status, FSDP_ERR_INPUT, &error, cases[i].name, "no place");
    fsdp_weights_close(weights);
    fsdp_graph_destroy(graph);
  }
}

// Qwen3-30B as the hub has it: 18,867 tensors are found, and their training on 8 ranks planned, in 2 s of
// processor time; under a sanitizer in more.
TEST(test_many_tensors) {
  fsdp_plan_config config = {.batch = 1,
                             .seq = 1024,
                             .micro_batches = 1,
                             .strategy = FSDP_FULL,
                             .mesh = fsdp_mesh_of(1, 8),
                             .wrap = {.kind = FSDP_WRAP_BLOCK},
                             .prefetch = 1,
                             .grad_clip = 1,
                             .backend = fsdp_plan_backend_cpu()};
  fsdp_error error;
  fsdp_weights *weights;
  fsdp_plan *plan;
  int64_t offset;
  config.model = model_of_preset("qwen3-30b-a3b");
  fsdp_graph *graph = fsdp_model_graph(&config.model, 1, 8);
  tensor_file f;
  begin_file(&f);
  for (int p = 0; p < graph->param_count; p++)
    for (int i = 0; i < fsdp_stored_count(graph, p); i++) {
      const fsdp_stored stored = fsdp_stored_at(graph, p, i);
      add_tensor(&f, stored.name, stored.dims, stored.shape);
    }
  assert_int_equal(f.count, 18867);
  assert_int_equal(f.data_bytes, 2 * INT64_C(61064245248));
  const char *path = end_file(&f, &offset);
  const clock_t processor = clock();
  const int64_t began = fsdp_now_ns();
  IO_OK(fsdp_weights_open(path, graph, 0, &weights, &error), &error);
  const int64_t opened = fsdp_now_ns();
  IO_OK(fsdp_plan_create(&config, &plan, &error), &error);
  const int64_t planned = fsdp_now_ns();
  const double seconds = (double)(clock() - processor) / CLOCKS_PER_SEC; // others may run beside it
  printf("%d tensors opened in %.2f s, planned in %.2f s, %.2f s of processor time\n", f.count,
         (double)(opened - began) / 1e9, (double)(planned - opened) / 1e9, seconds);
  assert_true(seconds < (test_sanitized() ? 60 : 2));
  fsdp_plan_destroy(plan);
  fsdp_weights_close(weights);
  fsdp_graph_destroy(graph);
}

int main(void) {
  return run_all_tests(io_set_up, io_tear_down);
}
