#include "runtime/checkpoint/config_json.h"

#include "runtime/base/check.h"
#include "runtime/checkpoint/json_file.h"

fsdp_status fsdp_config_read(const char *path, fsdp_model_config *config, fsdp_error *error) {
  FSDP_CHECK(path && config, "no path or no place for the configuration");
  const fsdp_json_file file = {.path = path,
                               .missing = "--model takes a preset's name or a folder with config.json",
                               .damaged = "correct it there or copy it again"};
  json_t *root;
  fsdp_status status = fsdp_json_file_read(&file, &root, error);
  if (status == FSDP_OK && !json_is_object(root))
    status = fsdp_fail(error, FSDP_ERR_INPUT, "%s: not a JSON object; a model's config.json is one", path);
  else if (status == FSDP_OK)
    status = fsdp_model_read(root, path, config, error);
  json_decref(root);
  return status;
}
