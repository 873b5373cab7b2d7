#include "runtime/checkpoint/config_json.h"

#include "runtime/base/check.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

fsdp_status fsdp_config_read(const char *path, fsdp_model_config *config, fsdp_error *error) {
  FSDP_CHECK(path && config, "no path or no place for the configuration");
  json_error_t place;
  FILE *file = fopen(path, "rb");
  if (!file)
    return fsdp_fail(error, FSDP_ERR_INPUT,
                     "%s: cannot be opened (%s); --model takes a preset's name or a folder with config.json",
                     path, strerror(errno));
  json_t *root = json_loadf(file, JSON_REJECT_DUPLICATES, &place);
  fclose(file);
  fsdp_status status;
  if (!root)
    status =
        fsdp_fail(error, FSDP_ERR_INPUT, "%s:%d:%d: not valid JSON: %s; correct it there or copy it again",
                  path, place.line, place.column, place.text);
  else if (!json_is_object(root))
    status = fsdp_fail(error, FSDP_ERR_INPUT, "%s: not a JSON object; a model's config.json is one", path);
  else
    status = fsdp_model_read(root, path, config, error);
  json_decref(root);
  return status;
}
