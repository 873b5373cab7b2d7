// The YAML file of options, through every option's own parser and the checks of combinations.
#include "launcher/cli/options.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fsdp_options options;
  fsdp_error error = {0};
  char name[] = "fsdp_train", config[] = "--config";
  char *arguments[] = {name, config, (char *)(uintptr_t)fsdp_fuzz_file("run.yaml", data, size), NULL};
  if (fsdp_options_parse(&options, FSDP_PROGRAM_TRAIN, 3, arguments, &error) == FSDP_OK) {
    free(fsdp_options_describe(&options));
  }
  fsdp_options_destroy(&options);
  return 0;
}
