#include "launcher/report/device_line.h"

#include "runtime/base/text.h"

#include <glob.h>
#include <stdio.h>
#include <string.h>

// Whether the file `name` beside `path` begins with `text`.
static bool says(const char *path, const char *name, const char *text) {
  char beside[512], line[64];
  snprintf(beside, sizeof beside, "%.400s/%s", path, name);
  FILE *file = fopen(beside, "r");
  const bool read = file && fgets(line, (int)sizeof line, file);
  if (file) fclose(file);
  return read && strncmp(line, text, strlen(text)) == 0;
}

bool fsdp_device_line_find_gpu(const char *root, char *sign, size_t sign_bytes) {
  char pattern[512];
  glob_t found;
  bool any = false;
  snprintf(pattern, sizeof pattern, "%s/dev/nvidia[0-9]*", root);
  if (glob(pattern, 0, NULL, &found) == 0) {
    snprintf(sign, sign_bytes, "%s", found.gl_pathv[0] + strlen(root));
    globfree(&found);
    return true;
  }
  snprintf(pattern, sizeof pattern, "%s/sys/bus/pci/devices/*", root);
  if (glob(pattern, 0, NULL, &found) != 0) return false;
  for (size_t i = 0; i < found.gl_pathc && !any; i++) {
    const char *path = found.gl_pathv[i];
    any = says(path, "vendor", "0x10de") && says(path, "class", "0x03");
    if (any) snprintf(sign, sign_bytes, "PCI device %s", strrchr(path, '/') + 1);
  }
  globfree(&found);
  return any;
}

void fsdp_device_line_why_cpu(const char *chosen, const char *failure, char *out, size_t out_bytes) {
  char sign[96];
  bool machine_has_one = fsdp_device_line_find_gpu("", sign, sizeof sign);
  if (chosen) {
    snprintf(out, out_bytes, "%s", chosen);
  } else if (!fsdp_gpu_is_built()) {
    if (machine_has_one) {
      snprintf(out, out_bytes,
               "this machine has an NVIDIA GPU (%s), but this build has no CUDA: scripts/build.sh build "
               "-DFSDP_CUDA=on",
               sign);
    } else {
      snprintf(out, out_bytes, "this build has no CUDA");
    }
  } else if (machine_has_one) {
    snprintf(out, out_bytes, "this machine has an NVIDIA GPU (%s), but it cannot be used: %s", sign,
             failure ? failure : "no reason is known");
  } else {
    const char *reason = failure ? failure : "none is visible to this process";
    // No remedy if there is nothing to mend.
    snprintf(out, out_bytes, "no GPU: %.*s", (int)strcspn(reason, ";"), reason);
  }
}

void fsdp_device_line_print(const fsdp_gpu *gpu, int threads, const char *why_cpu, char *out,
                            size_t out_bytes) {
  if (!gpu->present) {
    snprintf(out, out_bytes, "cpu, %d thread%s per rank; %s", threads, fsdp_plural(threads), why_cpu);
    return;
  }
  int used = snprintf(out, out_bytes, "%s, %s, compute capability %d.%d", gpu->name,
                      fsdp_print_bytes(gpu->total_bytes).text, gpu->capability / 10, gpu->capability % 10);
  if (gpu->sharers > 1 && used > 0 && (size_t)used < out_bytes) {
    snprintf(out + used, out_bytes - (size_t)used, ", shared by %d ranks", gpu->sharers);
  }
}
