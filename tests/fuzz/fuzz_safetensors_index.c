// The index of a model in several safetensors files, beside two shards that are always the same.
#include "runtime/checkpoint/safetensors.h"
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <string.h>

static void write_shard(const char *name, const char *tensor) {
  char header[128];
  unsigned char whole[256] = {0};
  int length = snprintf(header, sizeof header,
                        "{\"%s\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}}", tensor);
  uint64_t header_bytes = (uint64_t)length;
  memcpy(whole, &header_bytes, 8);
  memcpy(whole + 8, header, header_bytes);
  fsdp_fuzz_file(name, whole, 8 + header_bytes + 16);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static int written;
  if (!written++) {
    write_shard("a.safetensors", "model.norm.weight");
    write_shard("b.safetensors", "lm_head.weight");
  }
  fsdp_safetensors *model;
  fsdp_error error = {0};
  const char *path = fsdp_fuzz_file("model.safetensors.index.json", data, size);
  if (fsdp_safetensors_open(path, &model, &error) != FSDP_OK) return 0;
  for (int i = 0; i < model->count; i++) {
    float values[4];
    FSDP_CHECK(fsdp_safetensors_at(model, i)->numel == 4, "a tensor of no shard");
    FSDP_CHECK(fsdp_safetensors_read(model, i, 0, 4, values, &error) == FSDP_OK, "%s", error.message);
  }
  fsdp_safetensors_close(model);
  return 0;
}
