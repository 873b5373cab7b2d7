#include "launcher/programs/restart_advice.h"

#include "runtime/base/text.h"

#include <stdlib.h>
#include <string.h>

#define TO_RESUME "to resume from the newest checkpoint"

const char *fsdp_restart_advice(const fsdp_options *options, char out[FSDP_WATCH_ADVICE_BYTES]) {
  const char *folder = options->save_dir;
  if (!options->experiment || options->ckpt_freq == 0) {
    snprintf(out, FSDP_WATCH_ADVICE_BYTES, "Nothing of this run was saved%s",
             options->experiment ? " (--ckpt-freq 0)" : "; -e NAME saves checkpoints to resume from");
    return out;
  }
  const bool elsewhere = strcmp(folder, fsdp_option_find("save-dir")->fallback) != 0;
  char *name = fsdp_shell_word(options->experiment);
  char *parent = fsdp_shell_word(folder);
  int length = snprintf(out, FSDP_WATCH_ADVICE_BYTES, "Start again with -e %s%s%s " TO_RESUME, name,
                        elsewhere ? " --save-dir " : "", elsewhere ? parent : "");
  if (length >= FSDP_WATCH_ADVICE_BYTES)
    snprintf(out, FSDP_WATCH_ADVICE_BYTES, "Start again with the same -e and --save-dir " TO_RESUME);
  free(name);
  free(parent);
  return out;
}
