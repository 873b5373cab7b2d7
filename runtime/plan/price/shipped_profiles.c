#include "runtime/plan/price/shipped_profiles.h"

#include <stdbool.h>
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

static const struct {
  const char *name, *text;
} profiles[] = {
#define FSDP_SHIPPED_PROFILE(symbol, name, path) {name, fsdp_shipped_##symbol},
#include "shipped_profiles.inc"
#undef FSDP_SHIPPED_PROFILE
};

int fsdp_shipped_profile_count(void) {
  return (int)(sizeof profiles / sizeof *profiles);
}

const char *fsdp_shipped_profile_name(int i) {
  return profiles[i].name;
}

const char *fsdp_shipped_profile_text(int i) {
  return profiles[i].text;
}

int fsdp_shipped_profile_find(const char *name) {
  const size_t length = strlen(name);
  int found = -1, begun = 0;
  for (int i = 0; i < fsdp_shipped_profile_count(); i++) {
    if (strncasecmp(profiles[i].name, name, length) != 0) continue;
    if (!profiles[i].name[length]) return i;
    if (profiles[i].name[length] == '-') found = i, begun++;
  }
  return begun == 1 ? found : -1;
}
