#include "runtime/checkpoint/weights.h"

#include "models/graph/stored.h"
#include "runtime/base/check.h"
#include "runtime/base/finite.h"
#include "runtime/base/size.h"
#include "runtime/base/text.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

// A parameter of which the file has fewer rows.
typedef struct grown {
  int64_t stored_numel, row_numel;
  float *mean; // a row; NULL until one is asked for
} grown;

struct fsdp_weights {
  fsdp_safetensors *model;
  // Those of parameter p are tensors[first[p]] to tensors[first[p + 1]], each an equal part of its elements.
  int *tensors, *first;
  grown *grown; // by parameter; stored_numel 0: all of it is stored
  int param_count;
  int64_t stored_vocab;
  pthread_mutex_t lock; // of the means
};

// Whether the tensor has all of the parameter but rows of the vocabulary.
static bool lacks_rows(const fsdp_weights *w, const fsdp_stored *param, const fsdp_safetensors_tensor *t) {
  const size_t rest = ((size_t)t->dims - 1) * sizeof *t->shape;
  return w->stored_vocab && t->dims == param->dims && t->shape[0] == w->stored_vocab &&
         param->shape[0] > w->stored_vocab && memcmp(t->shape + 1, param->shape + 1, rest) == 0;
}

static bool has_shape(const fsdp_weights *w, const fsdp_stored *param, const fsdp_safetensors_tensor *t) {
  const size_t bytes = (size_t)t->dims * sizeof *t->shape;
  return (t->dims == param->dims && memcmp(t->shape, param->shape, bytes) == 0) || lacks_rows(w, param, t);
}

// The whole parameter as one tensor.
static fsdp_stored whole_of(const fsdp_param *param) {
  fsdp_stored whole = {.dims = param->dims, .numel = param->numel};
  memcpy(whole.name, param->name, sizeof whole.name);
  memcpy(whole.shape, param->shape, sizeof param->shape);
  return whole;
}

static fsdp_status match_tensor(const fsdp_weights *w, const fsdp_stored *param, int tensor, const char *path,
                                fsdp_error *error) {
  char expected[96], found[96];
  if (tensor < 0)
    return fsdp_fail(
        error, FSDP_ERR_INPUT,
        "%s: tensor \"%s\" of shape %s is missing; take the weights that belong to this config.json", path,
        param->name, fsdp_print_shape(param->dims, param->shape, expected));
  const fsdp_safetensors_tensor *t = fsdp_safetensors_at(w->model, tensor);
  if (!has_shape(w, param, t))
    return fsdp_fail(
        error, FSDP_ERR_INPUT,
        "%s: tensor \"%s\" has shape %s, but the model requires %s; take the weights that belong to this "
        "config.json",
        fsdp_safetensors_path(w->model, tensor), t->name, fsdp_print_shape(t->dims, t->shape, found),
        fsdp_print_shape(param->dims, param->shape, expected));
  if (t->dtype == FSDP_I32)
    return fsdp_fail(
        error, FSDP_ERR_INPUT,
        "%s: tensor \"%s\" has dtype I32, but a weight is F32, BF16 or F16; save the model in one of these",
        fsdp_safetensors_path(w->model, tensor), t->name);
  return FSDP_OK;
}

// The parameter that the stored tensor `name` is tied to ("lm_head.weight" to the embedding's); else -1.
static int tied_param(const fsdp_graph *graph, const char *name) {
  for (int t = 0; t < graph->tie_count; t++)
    if (!strcmp(graph->ties[t].name, name)) return graph->ties[t].param;
  return -1;
}

// A tied weight that is stored too must equal the one that it is tied to in every element: a head of which a
// few rows were trained differs nowhere else.
static fsdp_status check_tied(const fsdp_weights *w, const fsdp_param *param, int owner, int tensor,
                              fsdp_error *error) {
  enum { PART_NUMEL = 1 << 18 };
  const fsdp_safetensors_tensor *t = fsdp_safetensors_at(w->model, tensor);
  const fsdp_stored whole = whole_of(param);
  fsdp_status status = match_tensor(w, &whole, tensor, "", error);
  if (status) return status;
  const int64_t own_numel = fsdp_safetensors_at(w->model, owner)->numel;
  bool same = own_numel == t->numel; // else one of them lacks rows
  float *own = fsdp_alloc(2 * PART_NUMEL * sizeof *own), *stored = own + PART_NUMEL;
  for (int64_t first = 0; first < t->numel && same && !status; first += PART_NUMEL) {
    const int64_t count = fsdp_min_i64(t->numel - first, PART_NUMEL);
    status = fsdp_safetensors_read(w->model, owner, first, count, own, error);
    if (!status) status = fsdp_safetensors_read(w->model, tensor, first, count, stored, error);
    same = status || memcmp(own, stored, (size_t)count * sizeof *own) == 0;
  }
  free(own);
  if (status || same) return status;
  return fsdp_fail(error, FSDP_ERR_INPUT,
                   "%s: tensor \"%s\" has different values than \"%s\", to which config.json ties it; set "
                   "tie_word_embeddings to false, or take the weights that belong to this config.json",
                   fsdp_safetensors_path(w->model, tensor), t->name, param->name);
}

// The stored tensor of a parameter; files of the model without its head leave the prefix out. -1: none.
static int tensor_of(const fsdp_weights *w, const fsdp_graph *graph, const char *name) {
  int tensor = fsdp_safetensors_find(w->model, name);
  size_t prefix = strlen(graph->base_prefix);
  if (tensor >= 0 || !prefix || strncmp(name, graph->base_prefix, prefix) != 0) return tensor;
  return fsdp_safetensors_find(w->model, name + prefix);
}

// That of a parameter, by its own name or by that of a weight that is tied to it: of two that are one, some
// programs store the other.
static int whole_tensor_of(const fsdp_weights *w, const fsdp_graph *graph, int param) {
  int tensor = tensor_of(w, graph, graph->params[param].name);
  for (int t = 0; t < graph->tie_count && tensor < 0; t++)
    if (graph->ties[t].param == param) tensor = tensor_of(w, graph, graph->ties[t].name);
  return tensor;
}

// A file that has the parameter's own name has it in one piece.
static fsdp_status match_param(fsdp_weights *w, const char *path, const fsdp_graph *graph, int param,
                               bool *wanted, fsdp_error *error) {
  const fsdp_param *p = &graph->params[param];
  const int whole = whole_tensor_of(w, graph, param), first = w->first[param];
  const int count = whole >= 0 ? 1 : fsdp_stored_count(graph, param);
  fsdp_status status = FSDP_OK;
  w->first[param + 1] = first + count;
  for (int i = 0; i < count && !status; i++) {
    const fsdp_stored stored = whole >= 0 ? whole_of(p) : fsdp_stored_at(graph, param, i);
    const int tensor = whole >= 0 ? whole : tensor_of(w, graph, stored.name);
    w->tensors[first + i] = tensor;
    status = match_tensor(w, &stored, tensor, path, error);
    if (status) break;
    wanted[tensor] = true;
    const fsdp_safetensors_tensor *t = fsdp_safetensors_at(w->model, tensor);
    if (lacks_rows(w, &stored, t))
      w->grown[param] = (grown){.stored_numel = t->numel, .row_numel = t->numel / t->shape[0]};
  }
  return status;
}

// Of a layer behind the model's last ("model.layers.46.": multi-token prediction).
static bool is_left_out(const fsdp_graph *graph, const char *name) {
  static const char prefix[] = "model.layers.";
  char *end;
  if (!graph->skips_extra_layers || strncmp(name, prefix, sizeof prefix - 1) != 0) return false;
  const long layer = strtol(name + sizeof prefix - 1, &end, 10);
  return *end == '.' && layer >= graph->block_count;
}

static fsdp_status match_all(fsdp_weights *w, const char *path, const fsdp_graph *graph, fsdp_error *error) {
  int count = w->model->count;
  bool *wanted = fsdp_alloc_zeroed((size_t)count, sizeof *wanted);
  fsdp_status status = FSDP_OK;
  for (int i = 0; i < graph->param_count && !status; i++)
    status = match_param(w, path, graph, i, wanted, error);
  for (int i = 0; i < count && !status; i++) {
    const char *name = fsdp_safetensors_at(w->model, i)->name;
    int tied = wanted[i] ? -1 : tied_param(graph, name);
    if (tied >= 0) {
      status = check_tied(w, &graph->params[tied], w->tensors[w->first[tied]], i, error);
    } else if (!wanted[i] && !is_left_out(graph, name)) {
      status = fsdp_fail(
          error, FSDP_ERR_INPUT,
          "%s: tensor \"%.200s\" has no place in this model of %d tensors; take the weights that belong "
          "to this config.json",
          fsdp_safetensors_path(w->model, i), name, w->first[graph->param_count]);
    }
  }
  free(wanted);
  return status;
}

fsdp_status fsdp_weights_open(const char *path, const fsdp_graph *graph, int64_t stored_vocab,
                              fsdp_weights **weights, fsdp_error *error) {
  fsdp_weights *w = fsdp_alloc_zeroed(1, sizeof *w);
  *weights = NULL;
  const size_t params = (size_t)graph->param_count;
  int most = 0;
  for (int p = 0; p < graph->param_count; p++) most += fsdp_stored_count(graph, p);
  w->tensors = fsdp_alloc_zeroed((size_t)most, sizeof *w->tensors);
  w->first = fsdp_alloc_zeroed(params + 1, sizeof *w->first);
  w->grown = fsdp_alloc_zeroed(params, sizeof *w->grown);
  w->param_count = graph->param_count;
  w->stored_vocab = stored_vocab;
  pthread_mutex_init(&w->lock, NULL);
  fsdp_status status = fsdp_safetensors_open(path, &w->model, error);
  if (!status) status = match_all(w, path, graph, error);
  if (status)
    fsdp_weights_close(w);
  else
    *weights = w;
  return status;
}

void fsdp_weights_close(fsdp_weights *weights) {
  if (!weights) return;
  fsdp_safetensors_close(weights->model);
  for (int i = 0; i < weights->param_count; i++) free(weights->grown[i].mean);
  free(weights->grown);
  free(weights->tensors);
  free(weights->first);
  pthread_mutex_destroy(&weights->lock);
  free(weights);
}

static fsdp_status read_tensor(fsdp_weights *weights, int tensor, int64_t first, int64_t count, float *out,
                               fsdp_error *error) {
  fsdp_status status = fsdp_safetensors_read(weights->model, tensor, first, count, out, error);
  if (status != FSDP_OK) return status;
  int64_t found = fsdp_first_not_finite(FSDP_F32, out, count);
  if (found < 0) return FSDP_OK;
  return fsdp_fail(
      error, FSDP_ERR_INPUT,
      "%s: tensor \"%s\" is %s at element %lld: a model cannot train from that; take other weights, or "
      "new ones with --init random",
      fsdp_safetensors_path(weights->model, tensor), fsdp_safetensors_at(weights->model, tensor)->name,
      fsdp_not_finite_name(FSDP_F32, out, found), (long long)(first + found));
}

// Of what is stored.
static fsdp_status read_stored(fsdp_weights *weights, int param, int64_t first, int64_t count, float *out,
                               fsdp_error *error) {
  const int64_t numel = fsdp_safetensors_at(weights->model, weights->tensors[weights->first[param]])->numel;
  fsdp_status status = FSDP_OK;
  for (int64_t done = 0, now; done < count && !status; done += now) {
    const int64_t at = first + done, index = at / numel;
    now = fsdp_min_i64(count - done, numel - at % numel);
    status = read_tensor(weights, weights->tensors[weights->first[param] + index], at % numel, now,
                         out + done, error);
  }
  return status;
}

// The mean of the rows that are stored, into `mean`.
static fsdp_status read_mean(fsdp_weights *weights, int param, float *mean, fsdp_error *error) {
  enum { PART_NUMEL = 1 << 20 };
  const grown *g = &weights->grown[param];
  const int64_t rows = g->stored_numel / g->row_numel, part = fsdp_max_i64(PART_NUMEL / g->row_numel, 1);
  double *sums = fsdp_alloc_zeroed((size_t)g->row_numel, sizeof *sums);
  float *values = fsdp_alloc((size_t)(part * g->row_numel) * sizeof *values);
  fsdp_status status = FSDP_OK;
  for (int64_t row = 0; row < rows && !status; row += part) {
    const int64_t count = fsdp_min_i64(part, rows - row) * g->row_numel;
    status = read_stored(weights, param, row * g->row_numel, count, values, error);
    for (int64_t i = 0; i < count && !status; i++) sums[i % g->row_numel] += (double)values[i];
  }
  for (int64_t i = 0; i < g->row_numel; i++) mean[i] = (float)(sums[i] / (double)rows);
  free(values);
  free(sums);
  return status;
}

// Elements [first, first + count), all of them in rows that are not stored.
static fsdp_status read_new(fsdp_weights *weights, int param, int64_t first, int64_t count, float *out,
                            fsdp_error *error) {
  grown *g = &weights->grown[param];
  fsdp_status status = FSDP_OK;
  pthread_mutex_lock(&weights->lock);
  if (!g->mean) {
    float *mean = fsdp_alloc((size_t)g->row_numel * sizeof *mean);
    status = read_mean(weights, param, mean, error);
    if (status)
      free(mean);
    else
      g->mean = mean;
  }
  pthread_mutex_unlock(&weights->lock);
  for (int64_t i = 0; i < count && !status; i++) out[i] = g->mean[(first + i) % g->row_numel];
  return status;
}

fsdp_status fsdp_weights_read(fsdp_weights *weights, int param, int64_t first, int64_t count, float *out,
                              fsdp_error *error) {
  const int64_t end = weights->grown[param].stored_numel;
  if (!end) return read_stored(weights, param, first, count, out, error);
  const int64_t stored = fsdp_max_i64(0, fsdp_min_i64(count, end - first));
  fsdp_status status = stored ? read_stored(weights, param, first, stored, out, error) : FSDP_OK;
  if (status || stored == count) return status;
  return read_new(weights, param, first + stored, count - stored, out + stored, error);
}

const fsdp_safetensors *fsdp_weights_files(const fsdp_weights *weights) {
  return weights->model;
}
