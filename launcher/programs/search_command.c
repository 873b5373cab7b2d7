#include "launcher/programs/search_command.h"

#include "launcher/options/yaml_options.h"
#include "launcher/report/whole_file.h"
#include "runtime/base/check.h"
#include "runtime/base/text.h"

#include <stdlib.h>
#include <string.h>

// Options of the search itself, of where to print, and short forms of the mesh; in a command, what mpirun
// says or only a plan needs; of a plan, the limit that its profile says.
static bool is_left_out(const fsdp_options *options, const char *name, bool of_plan) {
  static const char *const others[] = {"config",           "global-batch",    "tensor-parallel",
                                       "context-parallel", "expert-parallel", "help",
                                       "version",          "dry-run",         NULL};
  static const char *const of_plans[] = {"ranks", "ranks-per-node", "profile", NULL};
  if (fsdp_option_is_one_of(name, of_plans)) return !of_plan;
  if (fsdp_option_is_one_of(name, others)) return true;
  if (of_plan && strcmp(name, "memory-limit") == 0)
    return !strcmp(fsdp_options_place(options, name), "--profile");
  return strcmp(name, "numel-to-wrap") == 0 && strcmp(options->wrap, "size") != 0;
}

// `of_plan`: with what only a plan needs.
static void each_option(const fsdp_options *options, bool of_plan, fsdp_search_visit visit, void *context) {
  for (const fsdp_option_row *row = fsdp_option_table; row->name; row++) {
    if (!fsdp_option_belongs(row, FSDP_PROGRAM_TRAIN) || !fsdp_option_belongs(row, FSDP_PROGRAM_PLAN))
      continue;
    if (row->knob || !fsdp_options_given(options, row->name) || is_left_out(options, row->name, of_plan))
      continue;
    char *value = fsdp_options_value(options, row);
    visit(context, row->name, value);
    free(value);
  }
}

void fsdp_search_each_option(const fsdp_search_job *job, const fsdp_options *options, fsdp_search_visit visit,
                             void *context) {
  each_option(options, false, visit, context);
  // Arenas are packed for what the reserve leaves.
  const fsdp_plan_backend *own = job->config.base.backend, *other = fsdp_plan_backend_cuda();
  if (own->device != FSDP_OP_CUDA || !options->profile) return;
  if (own->reserve_bytes != other->reserve_bytes || own->comm_reserve_bytes != other->comm_reserve_bytes)
    visit(context, "profile", options->profile);
}

static void print_argument(void *context, const char *name, const char *value) {
  char *word = fsdp_shell_word(value);
  fprintf(context, " --%s %s", name, word);
  free(word);
}

char *fsdp_search_command(const fsdp_search_job *job, const fsdp_options *options) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *out = open_memstream(&text, &bytes);
  FSDP_NEED_MEMORY(out, "a command");
  if (job->config.ranks > 1) fprintf(out, "mpirun -np %d ", job->config.ranks);
  fputs("fsdp_train", out);
  fsdp_search_each_option(job, options, print_argument, out);
  fclose(out);
  return text;
}

typedef struct saved_plan {
  FILE *out;
  fsdp_error *error;
} saved_plan;

static void print_pair(void *context, const char *name, const char *value) {
  const saved_plan *plan = context;
  char *path = strcmp(name, "profile") == 0 ? realpath(value, NULL) : NULL; // read from anywhere
  if (path) value = path;
  if (fsdp_yaml_holds(value))
    fsdp_yaml_print(name, value, plan->out);
  else
    fsdp_fail(plan->error, FSDP_ERR_OPTION,
              "--%s '%.300s' is not UTF-8, as the file of --save-plan is: rename the file", name, value);
  free(path);
}

fsdp_status fsdp_search_save(const fsdp_options *options, const char *path, const char *note,
                             fsdp_error *error) {
  char *text = NULL;
  size_t bytes = 0;
  fsdp_whole_file file;
  saved_plan plan = {.out = open_memstream(&text, &bytes), .error = error};
  FSDP_NEED_MEMORY(plan.out, "a plan's options");
  error->status = FSDP_OK;
  each_option(options, true, print_pair, &plan);
  fclose(plan.out);
  fsdp_status status = error->status;
  if (status == FSDP_OK) status = fsdp_whole_file_open("save-plan", path, &file, error);
  if (status == FSDP_OK) {
    fprintf(file.out, "# %s\n%s", note, text);
    status = fsdp_whole_file_close(&file, error);
  }
  free(text);
  return status;
}
