#include "tests/support/models.h"

#include "runtime/base/check.h"

const fsdp_family *family_of_preset(const char *name) {
  fsdp_model_config config;
  fsdp_error error;
  FSDP_CHECK(fsdp_model_preset(name, &config, &error) == FSDP_OK, "%s", error.message);
  return config.family;
}
