// A safetensors file: as it is, or as a header whose length is made right and whose data is there. The first
// two bytes say which: 0xffff raw, else bytes of data.
#include "runtime/checkpoint/safetensors.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

static const char *write_whole(const uint8_t *data, size_t size) {
  if (size < 2) return fsdp_fuzz_file("one.safetensors", data, size);
  size_t data_bytes = (size_t)data[0] | (size_t)data[1] << 8;
  data += 2;
  size -= 2;
  if (data_bytes == 0xffff) return fsdp_fuzz_file("one.safetensors", data, size);
  uint64_t header_bytes = size;
  unsigned char *whole = fsdp_alloc_zeroed(8 + size + data_bytes, 1);
  memcpy(whole, &header_bytes, 8);
  memcpy(whole + 8, data, size);
  const char *path = fsdp_fuzz_file("one.safetensors", whole, 8 + size + data_bytes);
  free(whole);
  return path;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fsdp_safetensors *model;
  fsdp_error error = {0};
  if (fsdp_safetensors_open(write_whole(data, size), &model, &error) != FSDP_OK) return 0;
  for (int i = 0; i < model->count; i++) {
    const fsdp_safetensors_tensor *tensor = fsdp_safetensors_at(model, i);
    FSDP_CHECK(fsdp_safetensors_find(model, tensor->name) == i, "tensor %d is not found by its name", i);
    if (tensor->numel == 0) continue;
    // The file holds at most 65534 bytes of data, so a tensor fits.
    unsigned char *values = fsdp_alloc((size_t)(tensor->numel * fsdp_dtype_bytes(tensor->dtype)));
    fsdp_status status = fsdp_safetensors_read_raw(model, i, 0, tensor->numel, values, &error);
    FSDP_CHECK(status == FSDP_OK, "a tensor that was accepted cannot be read: %s", error.message);
    free(values);
  }
  fsdp_safetensors_close(model);
  return 0;
}
