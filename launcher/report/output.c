#include "launcher/report/output.h"

#include "runtime/base/check.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

void fsdp_output_begin(void) {
  signal(SIGXFSZ, SIG_IGN);
}

fsdp_status fsdp_output_finish(fsdp_status status, fsdp_error *error) {
  errno = 0; // an earlier write may be the one that failed
  bool written = fflush(stdout) == 0 && !ferror(stdout);
  if (written || status != FSDP_OK) return status;
  return fsdp_fail(error, FSDP_ERR_INPUT,
                   "standard output cannot be written (%s): make room there or send it elsewhere",
                   errno ? strerror(errno) : "an earlier write failed");
}

void fsdp_output_json(json_t *root) {
  FSDP_CHECK(root, "JSON that cannot be made");
  json_dumpf(root, stdout, JSON_INDENT(1));
  putchar('\n');
  json_decref(root);
}
