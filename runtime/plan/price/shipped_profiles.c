#include "runtime/plan/price/shipped_profiles.h"

#include <string.h>
#include <strings.h>

// C11 has no #embed: the assembler includes each file, with a zero at its end. The build makes the list, a
// line FSDP_SHIPPED_PROFILE(symbol, "name", "path") for each file.
#define FSDP_SHIPPED_PROFILE(symbol, name, path)                                                             \
  __asm__(".pushsection .rodata\n"                                                                           \
          ".global fsdp_shipped_" #symbol "\n"                                                               \
          ".hidden fsdp_shipped_" #symbol "\n"                                                               \
          ".type fsdp_shipped_" #symbol ", %object\n"                                                        \
          "fsdp_shipped_" #symbol ":\n"                                                                      \
          ".incbin \"" path "\"\n"                                                                           \
          ".byte 0\n"                                                                                        \
          ".size fsdp_shipped_" #symbol ", . - fsdp_shipped_" #symbol "\n"                                   \
          ".popsection\n");                                                                                  \
  extern const char fsdp_shipped_##symbol[] __attribute__((visibility("hidden")));
#include "shipped_profiles.inc"
#undef FSDP_SHIPPED_PROFILE

const fsdp_shipped_profile fsdp_shipped_profiles[] = {
#define FSDP_SHIPPED_PROFILE(symbol, name, path) {name, fsdp_shipped_##symbol},
#include "shipped_profiles.inc"
#undef FSDP_SHIPPED_PROFILE
    {NULL, NULL}};

const fsdp_shipped_profile *fsdp_shipped_profile_find(const char *name) {
  const size_t length = strlen(name);
  const fsdp_shipped_profile *found = NULL;
  int begun = 0;
  for (const fsdp_shipped_profile *p = fsdp_shipped_profiles; p->name; p++) {
    if (strncasecmp(p->name, name, length) != 0) continue;
    if (!p->name[length]) return p;
    if (p->name[length] == '-') found = p, begun++;
  }
  return begun == 1 ? found : NULL;
}
