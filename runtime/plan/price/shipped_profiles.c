#include "runtime/plan/price/shipped_profiles.h"

#include <stdbool.h>
#include <string.h>
#include <strings.h>

enum { AMBIGUOUS = -2 }; // several begin so

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
  int found = -1;
  const size_t length = strlen(name);
  for (int i = 0; i < fsdp_shipped_profile_count(); i++) {
    if (!strcasecmp(profiles[i].name, name)) return i;
    const bool begins =
        length >= 3 && !strncasecmp(profiles[i].name, name, length) && profiles[i].name[length] == '-';
    if (begins) found = found == -1 ? i : AMBIGUOUS;
  }
  return found < 0 ? -1 : found;
}
