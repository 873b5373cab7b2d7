// The YAML file of a device profile. What is accepted is printed as text that reads back equal.
#include "launcher/profile/profile_file.h"
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *print(const fsdp_device_profile *profile) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *out = open_memstream(&text, &bytes);
  FSDP_CHECK(out, "out of host memory for a stream");
  fsdp_profile_print(profile, "fuzz", out);
  fclose(out);
  return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fsdp_device_profile *first, *second;
  fsdp_error error = {0};
  const char *path = fsdp_fuzz_file("profile.yaml", data, size);
  if (fsdp_profile_read(path, &first, &error) != FSDP_OK) return 0;
  char *printed = print(first);
  path = fsdp_fuzz_file("printed.yaml", printed, strlen(printed));
  fsdp_status status = fsdp_profile_read(path, &second, &error);
  FSDP_CHECK(status == FSDP_OK, "refused as printed: %s", error.message);
  char *again = print(second);
  FSDP_CHECK(strcmp(printed, again) == 0, "the profile changed by printing and reading");
  fsdp_device_profile_destroy(first);
  fsdp_device_profile_destroy(second);
  free(printed);
  free(again);
  return 0;
}
