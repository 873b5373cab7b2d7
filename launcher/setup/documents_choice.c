#include "launcher/setup/documents_choice.h"

#include "runtime/base/descriptors.h"
#include "runtime/data/data_paths.h"

#include <errno.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

// By the ending, as token_source.h reads it.
static bool has_documents(const char *path, bool separated) {
  const char *dot = strrchr(path, '.');
  if (!dot) return false;
  return !strcasecmp(dot, ".tok") || !strcasecmp(dot, ".jsonl") || !strcasecmp(dot, ".json") ||
         (separated && !strcasecmp(dot, ".bin"));
}

// A list that cannot be read is reported where the data is opened.
static bool any_has_documents(const char *option, const char *list, bool separated) {
  fsdp_data_paths paths;
  fsdp_error error;
  bool any = false;
  fsdp_status status = fsdp_data_paths_find(option, list, &paths, &error);
  for (int i = 0; i < paths.count && status == FSDP_OK; i++) any |= has_documents(paths.files[i], separated);
  fsdp_data_paths_destroy(&paths);
  return any;
}

bool fsdp_documents_choose(const fsdp_options *options) {
  const bool separated = options->document_separator >= 0;
  if (fsdp_options_given(options, "document-mask")) return options->document_mask;
  return any_has_documents("data", options->data, separated) ||
         any_has_documents("eval-data", options->eval_data, separated);
}

static fsdp_status find(const fsdp_options *options, const char *option, const char *list,
                        fsdp_error *error) {
  fsdp_data_paths paths;
  fsdp_status status = fsdp_data_paths_find(option, list, &paths, error);
  for (int i = 0; i < paths.count && status == FSDP_OK; i++) {
    if (access(paths.files[i], R_OK) != 0)
      status = fsdp_fail(error, FSDP_ERR_INPUT, "--%s %.600s (%s) cannot be read (%s): %s", option,
                         paths.files[i], fsdp_options_place(options, option), strerror(errno),
                         fsdp_read_remedy(errno, "give a file that is there"));
  }
  fsdp_data_paths_destroy(&paths);
  return status;
}

fsdp_status fsdp_documents_find(const fsdp_options *options, fsdp_error *error) {
  fsdp_status status = find(options, "data", options->data, error);
  return status == FSDP_OK ? find(options, "eval-data", options->eval_data, error) : status;
}
