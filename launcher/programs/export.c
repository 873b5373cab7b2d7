#include "launcher/programs/export.h"

#include "launcher/options/options.h"
#include "models/graph/stored.h"
#include "runtime/base/check.h"
#include "runtime/base/descriptors.h"
#include "runtime/base/finite.h"
#include "runtime/base/paths.h"
#include "runtime/base/size.h"
#include "runtime/base/text.h"
#include "runtime/checkpoint/checkpoint_file.h"
#include "runtime/checkpoint/checkpoint_folder.h"
#include "runtime/checkpoint/json_file.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/plan/text/option_table.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_BYTES  (FSDP_CHECKPOINT_PATH_BYTES + 128)
#define PIECE_ELEMS ((int64_t)1 << 20)

// ---- The checkpoint

// `path` itself, the newest checkpoint in it, or the one that its last word means; `folder` becomes that of
// the checkpoint.
static fsdp_status open_checkpoint(const char *path, char folder[FSDP_CHECKPOINT_PATH_BYTES],
                                   fsdp_checkpoint **checkpoint, fsdp_error *error) {
  if (!fsdp_checkpoint_at(path, folder)) {
    return fsdp_fail(
        error, FSDP_ERR_INPUT,
        "%s: holds no checkpoint; give a checkpoint's folder, an experiment's, or of one EXPERIMENT/step-N "
        "or EXPERIMENT/best (--list lists them)",
        path);
  }
  fsdp_status status = fsdp_checkpoint_read_manifest(folder, checkpoint, error);
  if (status != FSDP_OK) return status;
  status = fsdp_checkpoint_check_files(*checkpoint, folder, 0, 1, error);
  if (status == FSDP_OK) return status;
  fsdp_checkpoint_destroy(*checkpoint);
  *checkpoint = NULL;
  return status;
}

// ---- Tensors

// In place; `values` has room for fp32. Widening goes downward and narrowing upward, so that no element is
// overwritten before it is read.
static void convert(void *values, fsdp_dtype from, fsdp_dtype to, int64_t numel) {
  if (from == to) return;
  float *floats = values;
  uint16_t *halves = values;
  if (from == FSDP_BF16) {
    for (int64_t i = numel - 1; i >= 0; i--) floats[i] = fsdp_bf16_to_f32(halves[i]);
  }
  if (to == FSDP_F32) return;
  for (int64_t i = 0; i < numel; i++) {
    float value = floats[i];
    halves[i] = to == FSDP_BF16 ? fsdp_bf16_from_f32(value) : fsdp_f16_from_f32(value);
  }
}

typedef struct exporter {
  const fsdp_export_config *config;
  fsdp_checkpoint *checkpoint;
  fsdp_checkpoint_reader *reader;
  char source[FSDP_CHECKPOINT_PATH_BYTES], folder[FSDP_CHECKPOINT_PATH_BYTES];
  fsdp_dtype dtype;
  // Tensors in the order of the state dict: of a parameter of the checkpoint the elements from `first` on.
  struct exported {
    fsdp_stored stored;
    fsdp_dtype dtype;
    int param, file;
    int64_t first;
  } * tensors;
  int tensor_count;
  int file_count;
} exporter;

// The state dict's order is that of the model's graph.
static void order_params(exporter *x) {
  fsdp_checkpoint *c = x->checkpoint;
  fsdp_graph *graph = fsdp_model_graph(&c->model, 1, 1);
  int count = 0, tensors = 0;
  for (int p = 0; p < graph->param_count; p++) tensors += fsdp_stored_count(graph, p);
  x->tensors = fsdp_alloc((size_t)tensors * sizeof *x->tensors);
  x->tensor_count = 0;
  for (int p = 0; p < graph->param_count; p++) {
    int found = fsdp_checkpoint_find(c, graph->params[p].name);
    const int parts = found >= 0 ? fsdp_stored_count(graph, p) : 0;
    count += found >= 0;
    for (int i = 0; i < parts; i++) {
      const fsdp_stored stored = fsdp_stored_at(graph, p, i);
      const fsdp_dtype dtype = graph->params[p].stored_f32 ? FSDP_F32 : x->dtype;
      x->tensors[x->tensor_count++] = (struct exported){stored, dtype, found, 0, i * stored.numel};
    }
  }
  fsdp_graph_destroy(graph);
  FSDP_CHECK(count == fsdp_checkpoint_count_params(c), "%d of the checkpoint's %d parameters are the model's",
             count, fsdp_checkpoint_count_params(c));
}

static int64_t bytes_of(const struct exported *tensor) {
  return tensor->stored.numel * fsdp_dtype_bytes(tensor->dtype);
}

static void assign_files(exporter *x) {
  int64_t filled = 0;
  x->file_count = 0;
  for (int i = 0; i < x->tensor_count; i++) {
    int64_t bytes = bytes_of(&x->tensors[i]);
    if (x->file_count == 0 || filled + bytes > x->config->max_shard_bytes) {
      x->file_count++;
      filled = 0;
    }
    filled += bytes;
    x->tensors[i].file = x->file_count - 1;
  }
}

static const char *file_name(const exporter *x, int file, char name[64]) {
  if (x->file_count == 1)
    snprintf(name, 64, "model.safetensors");
  else
    snprintf(name, 64, "model-%05d-of-%05d.safetensors", file + 1, x->file_count);
  return name;
}

// What is finite in the checkpoint may be too large for a different dtype.
static fsdp_status check_range(const exporter *x, int i, int64_t first, int64_t numel, const void *values,
                               fsdp_error *error) {
  const fsdp_dtype dtype = x->tensors[i].dtype;
  int64_t found = fsdp_first_not_finite(dtype, values, numel);
  if (found < 0) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_INPUT,
                   "%s: element %" PRId64 " of %s is too large for %s: export it with --dtype fp32",
                   x->source, first + found, x->tensors[i].stored.name, fsdp_dtype_name(dtype));
}

static fsdp_status write_tensors(const exporter *x, int file, fsdp_safetensors_writer *writer,
                                 fsdp_error *error) {
  void *values = fsdp_alloc((size_t)PIECE_ELEMS * sizeof(float));
  fsdp_status status = FSDP_OK;
  for (int i = 0; i < x->tensor_count && status == FSDP_OK; i++) {
    const struct exported *tensor = &x->tensors[i];
    if (tensor->file != file) continue;
    int64_t numel = tensor->stored.numel;
    for (int64_t done = 0, now; done < numel && status == FSDP_OK; done += now) {
      now = fsdp_min_i64(PIECE_ELEMS, numel - done);
      status = fsdp_checkpoint_read(x->reader, FSDP_SLOT_MASTER, tensor->param, tensor->first + done, now,
                                    values, error);
      if (status != FSDP_OK) break;
      convert(values, x->checkpoint->slots[FSDP_SLOT_MASTER].dtype, tensor->dtype, now);
      status = check_range(x, i, done, now, values, error);
      if (status != FSDP_OK) break;
      status = fsdp_safetensors_writer_append(writer, values, now * fsdp_dtype_bytes(tensor->dtype), error);
    }
  }
  free(values);
  return status;
}

static fsdp_status write_file(const exporter *x, int file, fsdp_error *error) {
  fsdp_safetensors_tensor *tensors = fsdp_alloc_zeroed((size_t)x->tensor_count, sizeof *tensors);
  char path[PATH_BYTES], name[64];
  int count = 0;
  for (int i = 0; i < x->tensor_count; i++) {
    if (x->tensors[i].file != file) continue;
    fsdp_stored *p = &x->tensors[i].stored;
    tensors[count] =
        (fsdp_safetensors_tensor){.name = p->name, .dtype = x->tensors[i].dtype, .dims = p->dims};
    memcpy(tensors[count++].shape, p->shape, sizeof p->shape);
  }
  snprintf(path, sizeof path, "%s/%s", x->folder, file_name(x, file, name));
  fsdp_safetensors_writer_config config = {
      .path = path, .tensors = tensors, .tensor_count = count, .format = "pt"}; // Transformers asks for it
  fsdp_safetensors_writer *writer;
  fsdp_status status = fsdp_safetensors_writer_create(&config, &writer, error);
  free(tensors);
  if (status != FSDP_OK) return status;
  status = write_tensors(x, file, writer, error);
  if (status == FSDP_OK) return fsdp_safetensors_writer_finish(writer, error);
  fsdp_safetensors_writer_abandon(writer);
  return status;
}

// ---- The other files

// The fewest digits, 15 or 17, with which every number reads back as itself.
static size_t digits_of(const json_t *root) {
  char *text = json_dumps(root, JSON_REAL_PRECISION(15));
  json_t *again = text ? json_loads(text, 0, NULL) : NULL;
  const bool same = again && json_equal(again, root);
  json_decref(again);
  free(text);
  return same ? 15 : 17;
}

static fsdp_status write_json(const exporter *x, const char *name, const json_t *root, fsdp_error *error) {
  char path[PATH_BYTES];
  const size_t flags = JSON_INDENT(2) | JSON_REAL_PRECISION(digits_of(root));
  snprintf(path, sizeof path, "%s/%s", x->folder, name);
  FILE *file = fopen(path, "wb");
  bool good = file && json_dumpf(root, file, flags) == 0 && fputc('\n', file) != EOF && fflush(file) == 0 &&
              fsync(fileno(file)) == 0;
  int reason = errno;
  if (file) fclose(file);
  if (good) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_INPUT, "%s: writing failed (%s); make room there or give a different --to",
                   path, strerror(reason));
}

static fsdp_status write_index(const exporter *x, int64_t total_bytes, fsdp_error *error) {
  if (x->file_count == 1) return FSDP_OK;
  json_t *map = json_object();
  char name[64];
  for (int i = 0; i < x->tensor_count; i++)
    json_object_set_new(map, x->tensors[i].stored.name, json_string(file_name(x, x->tensors[i].file, name)));
  json_t *root =
      json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)total_bytes, "weight_map", map);
  fsdp_status status = write_json(x, "model.safetensors.index.json", root, error);
  json_decref(root);
  return status;
}

// config.json as it came, but for what --resize-embeddings changed, the dtype of the weights that stand
// beside it now, and a model_type that only architectures said.
static fsdp_status write_config(const exporter *x, fsdp_error *error) {
  char path[PATH_BYTES];
  snprintf(path, sizeof path, "%s/" FSDP_CHECKPOINT_CARRIED "/config.json", x->source);
  const fsdp_json_file file = {path, "", ""};
  json_t *root;
  fsdp_json_file_read(&file, &root, NULL);
  if (!json_is_object(root)) {
    json_decref(root);
    root = fsdp_model_print(&x->checkpoint->model);
  }
  json_object_set_new(root, "vocab_size", json_integer((json_int_t)x->checkpoint->model.vocab_size));
  const char *name = x->dtype == FSDP_F32 ? "float32" : x->dtype == FSDP_BF16 ? "bfloat16" : "float16";
  const char *key = json_object_get(root, "dtype") ? "dtype" : "torch_dtype"; // Transformers 5, and before
  json_object_del(root, "torch_dtype"); // one of the two is enough, and they would differ
  json_object_set_new(root, key, json_string(name));
  json_t *printed = fsdp_model_print(&x->checkpoint->model);
  if (!json_is_string(json_object_get(root, "model_type")))
    json_object_set(root, "model_type", json_object_get(printed, "model_type"));
  json_decref(printed);
  fsdp_status status = write_json(x, "config.json", root, error);
  json_decref(root);
  return status;
}

static fsdp_status carry(const exporter *x, fsdp_export_result *result, fsdp_error *error) {
  const fsdp_checkpoint *c = x->checkpoint;
  for (int i = 0; i < c->carried_count; i++) {
    const fsdp_checkpoint_file *file = &c->carried[i];
    char from[PATH_BYTES], to[PATH_BYTES];
    uint64_t checksum[2];
    snprintf(from, sizeof from, "%s/" FSDP_CHECKPOINT_CARRIED "/%s", x->source, file->name);
    snprintf(to, sizeof to, "%s/%s", x->folder, fsdp_checkpoint_place(file->name));
    if (!fsdp_make_parents(to))
      return fsdp_fail(error, FSDP_ERR_INPUT, "%s: its folder cannot be made (%s); make room there", to,
                       strerror(errno));
    fsdp_status status = fsdp_checkpoint_copy_file(from, to, checksum, error);
    if (status != FSDP_OK) return status;
    if (memcmp(checksum, file->checksum, sizeof checksum) != 0) {
      return fsdp_fail(error, FSDP_ERR_INPUT,
                       "%s: its checksum does not match: it is damaged; use another checkpoint", from);
    }
    result->carried++;
  }
  return FSDP_OK;
}

// ---- The whole

static fsdp_status write_all(exporter *x, fsdp_export_result *result, fsdp_error *error) {
  order_params(x);
  assign_files(x);
  fsdp_status status = carry(x, result, error);
  if (status == FSDP_OK) status = write_config(x, error);
  for (int file = 0; file < x->file_count && status == FSDP_OK; file++) status = write_file(x, file, error);
  *result = (fsdp_export_result){.parameters = fsdp_checkpoint_numel(x->checkpoint),
                                 .files = x->file_count,
                                 .carried = result->carried,
                                 .step = x->checkpoint->progress.step,
                                 .dtype = x->dtype};
  for (int i = 0; i < x->tensor_count; i++) result->bytes += bytes_of(&x->tensors[i]);
  return status == FSDP_OK ? write_index(x, result->bytes, error) : status;
}

// Gives the folder its name, if that is free or an empty folder's.
static fsdp_status rename_folder(const exporter *x, fsdp_error *error) {
  if (fsdp_sync_folder(x->folder) && rename(x->folder, x->config->to) == 0) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_INPUT,
                   "--to '%s' cannot be created (%s): give a folder that does not exist yet", x->config->to,
                   strerror(errno));
}

fsdp_status fsdp_export_run(const fsdp_export_config *config, fsdp_export_result *result, fsdp_error *error) {
  exporter x = {.config = config};
  char to[FSDP_CHECKPOINT_PATH_BYTES];
  *result = (fsdp_export_result){0};
  snprintf(to, sizeof to, "%.4000s", config->to);
  for (size_t n = strlen(to); n > 1 && to[n - 1] == '/'; n--) to[n - 1] = 0;
  snprintf(x.folder, sizeof x.folder, "%.4000s.tmp-%ld", to, (long)getpid());
  if (access(to, F_OK) == 0 && rmdir(to) != 0) {
    return fsdp_fail(error, FSDP_ERR_INPUT, "--to '%s' already exists: give a folder that does not exist yet",
                     to);
  }
  fsdp_status status = open_checkpoint(config->checkpoint, x.source, &x.checkpoint, error);
  if (status != FSDP_OK) return status;
  x.dtype = config->dtype < 0 ? x.checkpoint->slots[FSDP_SLOT_MASTER].dtype : (fsdp_dtype)config->dtype;
  x.reader = fsdp_checkpoint_reader_create(x.checkpoint, x.source);
  if (!fsdp_make_parents(x.folder) || mkdir(x.folder, 0777) != 0) {
    status = fsdp_fail(error, FSDP_ERR_INPUT,
                       "--to '%s' cannot be created (%s): give a folder that you may write to", to,
                       strerror(errno));
  } else {
    status = write_all(&x, result, error);
    if (status == FSDP_OK) status = rename_folder(&x, error);
    if (status != FSDP_OK) fsdp_checkpoint_remove_tree(x.folder);
  }
  fsdp_checkpoint_reader_destroy(x.reader);
  fsdp_checkpoint_destroy(x.checkpoint);
  free(x.tensors);
  return status;
}

static void print_files(const fsdp_checkpoint *c, FILE *out) {
  fprintf(out, "files:      %d of ranks, %s (%s bytes)", c->file_count, fsdp_print_bytes(c->files_bytes).text,
          fsdp_print_int(c->files_bytes).text);
  for (int i = 0; i < c->carried_count; i++) fprintf(out, "%s%s", i ? ", " : "; ", c->carried[i].name);
  fputc('\n', out);
}

static bool is_default(const fsdp_options *defaults, const fsdp_option_row *row, const char *text) {
  char *value = fsdp_options_value(defaults, row);
  const bool same = strcmp(value, text) == 0;
  free(value);
  return same;
}

// The options of the run that saved, if they are not the defaults.
static void print_options(const fsdp_checkpoint *c, FILE *out) {
  fsdp_options defaults;
  fsdp_options_create(&defaults);
  char number[32];
  const char *name;
  json_t *value;
  int printed = 0;
  json_object_foreach(c->options, name, value) {
    const char *text = json_string_value(value);
    if (!*text) continue;
    const fsdp_option_row *row = fsdp_option_find(name);
    double real;
    if (row && row->kind == FSDP_OPTION_REAL && fsdp_value_real(text, &real)) {
      text = fsdp_print_real(real, number, sizeof number);
    }
    if (row && is_default(&defaults, row, text)) continue;
    fprintf(out, "option:     --%s %s\n", name, text);
    printed++;
  }
  if (!printed) fprintf(out, "options:    all defaults\n");
  fsdp_options_destroy(&defaults);
}

fsdp_status fsdp_export_inspect(const char *path, FILE *out, fsdp_error *error) {
  char folder[FSDP_CHECKPOINT_PATH_BYTES];
  fsdp_checkpoint *c;
  fsdp_status status = open_checkpoint(path, folder, &c, error);
  if (status != FSDP_OK) return status;
  const fsdp_checkpoint_progress *p = &c->progress;
  fprintf(out, "checkpoint: %s (number %" PRId64 " of its experiment)\n", folder, c->sequence);
  fprintf(out,
          "progress:   %" PRId64 " step%s, %" PRId64 " of them skipped; epoch %" PRId64 ", %" PRId64
          " of its samples; seed %" PRId64 "\n",
          p->step, fsdp_plural(p->step), p->step - p->updates, p->epoch, p->epoch_samples, p->seed);
  fprintf(out, "data:       %" PRId64 " sample%s, %" PRId64 " held out, %" PRId64 " per step\n",
          p->sample_count, fsdp_plural(p->sample_count), p->held_out, p->global_batch);
  fprintf(out, "model:      %s, %s parameters in %d tensor%s\n", c->model_name,
          fsdp_print_int(fsdp_checkpoint_numel(c)).text, fsdp_checkpoint_count_params(c),
          fsdp_plural(fsdp_checkpoint_count_params(c)));
  if (p->results.loss > 0) fprintf(out, "loss:       %.4f", p->results.loss);
  if (p->results.eval_loss > 0) fprintf(out, ", evaluation %.4f", p->results.eval_loss);
  if (p->results.loss > 0) fputc('\n', out);
  const fsdp_mesh saved = fsdp_factored_whole(&c->mesh);
  char mesh[FSDP_MESH_TEXT_BYTES];
  fprintf(out, "layout:     strategy %s, %s, %d unit%s\n", c->strategy, fsdp_mesh_print(&saved, " ", mesh),
          c->unit_count, fsdp_plural(c->unit_count));
  fprintf(out, "optimizer:  %s, ", c->optimizer);
  for (int i = 0; i < c->slot_count; i++)
    fprintf(out, "%s%s in %s", i ? ", " : "", c->slots[i].name, fsdp_dtype_name(c->slots[i].dtype));
  fputc('\n', out);
  print_files(c, out);
  print_options(c, out);
  fsdp_checkpoint_destroy(c);
  return FSDP_OK;
}
