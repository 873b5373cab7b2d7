#include "launcher/train/resume.h"

#include "models/model.h"
#include "runtime/base/check.h"
#include "runtime/base/paths.h"
#include "runtime/base/text.h"
#include "runtime/checkpoint/checkpoint_file.h"
#include "runtime/checkpoint/checkpoint_folder.h"
#include "runtime/exec/state.h"

#include <inttypes.h>
#include <string.h>

struct fsdp_resume {
  fsdp_resume_config config;
  fsdp_checkpoint_entry *entries; // rank 0's
  int count, index;               // candidates, and the one in use; the same on all ranks
  bool named;                     // by --resume PATH: no other will do
  char path[FSDP_CHECKPOINT_PATH_BYTES];
  fsdp_checkpoint *checkpoint;
  int *params; // by the plan's parameter: the checkpoint's
  int64_t bytes_read;
};

// ---- The same model

// How the checkpoint's model differs from the plan's, into `out`; false if it does not. Shapes follow from
// the configuration, and are compared all the same: another program may have written the checkpoint.
static bool model_differs(const fsdp_checkpoint *c, const fsdp_plan *plan, char *out, size_t out_bytes) {
  if (fsdp_model_differs(&c->model, &plan->config.model, FSDP_MODEL_NUMBERS, out, out_bytes)) return true;
  const fsdp_graph *graph = plan->graph;
  for (int p = 0; p < graph->param_count; p++) {
    const fsdp_param *param = &graph->params[p];
    int found = fsdp_checkpoint_find(c, param->name);
    char here[96], there[96];
    if (found < 0) {
      snprintf(out, out_bytes, "it has no parameter %s", param->name);
      return true;
    }
    const fsdp_checkpoint_param *saved = &c->params[found];
    if (saved->dims == param->dims && memcmp(saved->shape, param->shape, 8 * (size_t)param->dims) == 0)
      continue;
    snprintf(out, out_bytes, "its %s is %s, the model's is %s", param->name,
             fsdp_print_shape(saved->dims, saved->shape, here),
             fsdp_print_shape(param->dims, param->shape, there));
    return true;
  }
  const int count = fsdp_checkpoint_count_params(c);
  if (count != graph->param_count) {
    snprintf(out, out_bytes, "it has %d parameters, the model %d", count, graph->param_count);
    return true;
  }
  return false;
}

// ---- Which one

static void find_candidates(fsdp_resume *r, fsdp_error *error) {
  char word[FSDP_CHECKPOINT_PATH_BYTES], names[FSDP_CHECKPOINT_NAMES_BYTES];
  const char *path = r->config.path;
  // A word of this experiment, or a path such as EXPERIMENT/best.
  if (r->named && (fsdp_checkpoint_named(r->config.folder, path, word) ||
                   (!fsdp_has_file(path, FSDP_CHECKPOINT_MANIFEST) && fsdp_checkpoint_below(path, word))))
    path = word;
  const char *folder = r->named ? path : r->config.folder;
  if (r->named && fsdp_has_file(path, FSDP_CHECKPOINT_MANIFEST)) {
    r->entries = fsdp_alloc_zeroed(1, sizeof *r->entries);
    snprintf(r->entries[0].path, sizeof r->entries[0].path, "%.4000s", path);
    r->count = 1;
    return;
  }
  r->count = fsdp_checkpoint_list(folder, &r->entries);
  if (r->count > 0) return;
  fsdp_checkpoint_print_names(r->config.folder, names);
  if (r->named) {
    fsdp_fail(
        error, FSDP_ERR_INPUT,
        "--resume '%s' (%s) holds no checkpoint: give a checkpoint of this experiment by its name or as best "
        "(%s%s), a checkpoint's folder, EXPERIMENT/step-N or EXPERIMENT/best, or the folder of an experiment "
        "that has one",
        path, r->config.place, r->config.folder, names);
  } else if (strcmp(names, " has none") != 0) {
    fsdp_fail(error, FSDP_ERR_INPUT,
              "%s%s and no step-N, so there is no newest checkpoint to resume from: name one with --resume, "
              "or start "
              "over with --resume off --overwrite, which leaves it there",
              r->config.folder, names);
  }
}

// Rank 0: the manifest of the candidate. The caller frees it.
static char *read_candidate(fsdp_resume *r, fsdp_error *error) {
  fsdp_checkpoint *c;
  snprintf(r->path, sizeof r->path, "%s", r->entries[r->index].path);
  if (fsdp_checkpoint_read_manifest(r->path, &c, error) != FSDP_OK) return NULL;
  char *text = fsdp_checkpoint_print(c);
  fsdp_checkpoint_destroy(c);
  return text;
}

// Takes the manifest that rank 0 has read, if the files are there too, of which each rank looks for its part.
// FSDP_ERR_INPUT.
static fsdp_status take_candidate(fsdp_resume *r, fsdp_error *error) {
  fsdp_world *world = r->config.world;
  error->status = FSDP_OK;
  char *text = world->rank == 0 ? read_candidate(r, error) : NULL;
  if (fsdp_world_share_error(world, error) != FSDP_OK) {
    free(text);
    return error->status;
  }
  char *first = fsdp_world_broadcast_text(world, text ? text : "");
  fsdp_world_broadcast(world, r->path, (int64_t)sizeof r->path);
  fsdp_checkpoint_destroy(r->checkpoint);
  if (fsdp_checkpoint_parse(r->path, first, &r->checkpoint, error) == FSDP_OK)
    fsdp_checkpoint_check_files(r->checkpoint, r->path, world->rank, world->size, error);
  free(first);
  free(text);
  return fsdp_world_share_error(world, error);
}

// Every slot of the run's optimizer must be there; dtypes may differ.
static fsdp_status check_slots(const fsdp_resume *r, fsdp_error *error) {
  const fsdp_optimizer *optimizer = r->config.plan->optimizer;
  for (int i = 0; i < optimizer->slot_count; i++) {
    if (fsdp_checkpoint_find_slot(r->checkpoint, optimizer->slots[i].name) >= 0) continue;
    return fsdp_fail(
        error, FSDP_ERR_INPUT,
        "%s was saved by optimizer %s, which keeps no '%s'; %s needs it: export its weights with "
        "fsdp_export and start from them with --model",
        r->path, r->checkpoint->optimizer, optimizer->slots[i].name, optimizer->name);
  }
  return FSDP_OK;
}

static fsdp_status check_model(fsdp_resume *r, fsdp_error *error) {
  char what[512], resized[64] = "";
  const fsdp_checkpoint *c = r->checkpoint;
  if (!model_differs(c, r->config.plan, what, sizeof what)) return check_slots(r, error);
  const char *model = json_string_value(json_object_get(c->options, "model"));
  const char *resizes = json_string_value(json_object_get(c->options, "resize-embeddings"));
  if (resizes && *resizes && c->model.vocab_size > r->config.plan->config.model.vocab_size)
    snprintf(resized, sizeof resized, "add --resize-embeddings %" PRId64 ", ", c->model.vocab_size);
  return fsdp_fail(error, FSDP_ERR_INPUT,
                   "%s is a checkpoint of a different model (its configuration → this run's: %s); %suse its "
                   "--model %.300s, a different -e, or --resume off",
                   r->path, what, resized, model ? model : c->model_name);
}

// Reports a candidate that *error says is damaged, and goes to the next one. FSDP_ERR_INPUT if none is left.
static fsdp_status skip(fsdp_resume *r, fsdp_error *error) {
  const fsdp_error wrong = *error;
  if (r->named && r->count == 1) return error->status;
  if (r->config.world->rank == 0) fprintf(stderr, "fsdp_train: warning: %s\n", wrong.message);
  *error = (fsdp_error){0};
  if (++r->index < r->count) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_INPUT,
                   "%s: none of its %d checkpoints can be used (the last: %.600s); start over with --resume "
                   "off or a different -e",
                   r->named ? r->config.path : r->config.folder, r->count, wrong.message);
}

// The next candidate that can be used, from r->index on.
static fsdp_status choose(fsdp_resume *r, fsdp_error *error) {
  while (take_candidate(r, error) != FSDP_OK)
    if (skip(r, error) != FSDP_OK) return error->status;
  return check_model(r, error);
}

fsdp_status fsdp_resume_create(const fsdp_resume_config *config, fsdp_resume **resume, fsdp_error *error) {
  fsdp_resume *r = fsdp_alloc_zeroed(1, sizeof *r);
  fsdp_world *world = config->world;
  r->config = *config;
  r->named = strcmp(config->path, "auto") != 0;
  *resume = r;
  if (world->rank == 0) find_candidates(r, error);
  if (fsdp_world_share_error(world, error) != FSDP_OK) return error->status;
  fsdp_world_broadcast(world, &r->count, (int64_t)sizeof r->count);
  return r->count > 0 ? choose(r, error) : FSDP_OK;
}

void fsdp_resume_destroy(fsdp_resume *r) {
  if (!r) return;
  fsdp_checkpoint_destroy(r->checkpoint);
  free(r->entries);
  free(r->params);
  free(r);
}

// ---- Its state

typedef struct loading {
  const fsdp_resume *resume;
  fsdp_checkpoint_reader *reader;
  int saved_slot; // of the checkpoint
  void *scratch;  // values as saved, if they are converted
  int64_t scratch_bytes;
} loading;

// From bf16 to fp32, or from fp32 to bf16.
static void convert(const void *from, void *to, fsdp_dtype to_dtype, int64_t numel) {
  for (int64_t i = 0; i < numel; i++) {
    if (to_dtype == FSDP_F32)
      ((float *)to)[i] = fsdp_bf16_to_f32(((const fsdp_bf16 *)from)[i]);
    else
      ((fsdp_bf16 *)to)[i] = fsdp_bf16_from_f32(((const float *)from)[i]);
  }
}

static fsdp_status read_range(void *context, const fsdp_state_range *range, void *values, fsdp_error *error) {
  loading *l = context;
  const fsdp_resume *r = l->resume;
  fsdp_dtype saved = r->checkpoint->slots[l->saved_slot].dtype;
  int param = r->params[range->param];
  if (saved == range->dtype) {
    return fsdp_checkpoint_read(l->reader, l->saved_slot, param, range->first_elem, range->numel, values,
                                error);
  }
  int64_t bytes = range->numel * fsdp_dtype_bytes(saved);
  if (bytes > l->scratch_bytes) l->scratch = fsdp_realloc(l->scratch, (size_t)(l->scratch_bytes = bytes));
  fsdp_status status = fsdp_checkpoint_read(l->reader, l->saved_slot, param, range->first_elem, range->numel,
                                            l->scratch, error);
  if (status == FSDP_OK) convert(l->scratch, values, range->dtype, range->numel);
  return status;
}

static void map_params(fsdp_resume *r) {
  const fsdp_graph *graph = r->config.plan->graph;
  r->params = fsdp_realloc(r->params, (size_t)graph->param_count * sizeof *r->params);
  for (int p = 0; p < graph->param_count; p++) {
    r->params[p] = fsdp_checkpoint_find(r->checkpoint, graph->params[p].name);
  }
}

static fsdp_status load_one(fsdp_resume *r, fsdp_executor *executor, fsdp_error *error) {
  fsdp_world *world = r->config.world;
  map_params(r);
  loading l = {.resume = r, .reader = fsdp_checkpoint_reader_create(r->checkpoint, r->path)};
  fsdp_status status = FSDP_OK;
  const fsdp_optimizer *optimizer = r->config.plan->optimizer;
  for (int slot = 0; slot < optimizer->slot_count && status == FSDP_OK; slot++) {
    l.saved_slot = fsdp_checkpoint_find_slot(r->checkpoint, optimizer->slots[slot].name);
    status = fsdp_state_load(executor, slot, read_range, &l, error);
  }
  r->bytes_read = fsdp_world_sum(world, fsdp_checkpoint_reader_bytes(l.reader));
  free(l.scratch);
  fsdp_checkpoint_reader_destroy(l.reader);
  if (fsdp_world_share_error(world, error) != FSDP_OK) return error->status;
  fsdp_executor_run_exchange(executor);
  return FSDP_OK;
}

fsdp_status fsdp_resume_load(fsdp_resume *r, fsdp_executor *executor, fsdp_error *error) {
  while (load_one(r, executor, error) != FSDP_OK)
    if (skip(r, error) != FSDP_OK || choose(r, error) != FSDP_OK) return error->status;
  return FSDP_OK;
}

// ---- Queries

const fsdp_checkpoint *fsdp_resume_checkpoint(const fsdp_resume *r) {
  return r ? r->checkpoint : NULL;
}
const char *fsdp_resume_path(const fsdp_resume *r) {
  return r->path;
}
int64_t fsdp_resume_bytes_read(const fsdp_resume *r) {
  return r->bytes_read;
}
