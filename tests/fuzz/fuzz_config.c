// config.json: what is accepted survives being printed and read again.
#include "runtime/checkpoint/json_file.h"
#include "tests/fuzz/fuzz.h"

#include <jansson.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fsdp_model_config config, again;
  fsdp_error error = {0};
  if (fsdp_config_read(fsdp_fuzz_file("config.json", data, size), &config, &error) != FSDP_OK) return 0;
  json_t *first = fsdp_model_print(&config);
  fsdp_status status = fsdp_model_read(first, "the printed configuration", &again, &error);
  FSDP_CHECK(status == FSDP_OK, "refused as printed: %s", error.message);
  json_t *second = fsdp_model_print(&again);
  FSDP_CHECK(json_equal(first, second), "the configuration changed by printing and reading");
  FSDP_CHECK(fsdp_model_parameter_count(&config) > 0, "a model without parameters");
  json_decref(first);
  json_decref(second);
  return 0;
}
