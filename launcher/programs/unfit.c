#include "launcher/programs/unfit.h"

void fsdp_unfit_print(const char *name, const char *reason, FILE *out) {
  fprintf(out, "\n%s:\n    %s\n", name, reason);
}

fsdp_status fsdp_unfit_fail(const fsdp_options *options, const char *option, const char *what,
                            const char *give, fsdp_error *error) {
  return fsdp_refuse(options, error, FSDP_ERR_CAPACITY,
                     "{Q %s}: %s, for the reasons printed: give %s, or what these say would help", option,
                     what, give);
}
