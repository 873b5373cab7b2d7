#include "runtime/data/builtin_text.h"

// C11 has no #embed. The build names the file, and rebuilds this one when that changes. The text has a type
// and a size, since an executable that links the shared library may move it into its own memory; the length
// is taken here.
__asm__(".pushsection .rodata\n"
        ".global fsdp_builtin_text\n"
        ".type fsdp_builtin_text, %object\n"
        "fsdp_builtin_text:\n"
        ".incbin \"" FSDP_BUILTIN_TEXT_FILE "\"\n"
        ".size fsdp_builtin_text, . - fsdp_builtin_text\n"
        ".Lfsdp_builtin_text_end:\n"
        ".balign 8\n"
        ".global fsdp_builtin_text_length\n"
        ".hidden fsdp_builtin_text_length\n"
        "fsdp_builtin_text_length:\n"
        ".quad .Lfsdp_builtin_text_end - fsdp_builtin_text\n"
        ".popsection\n");

extern const int64_t fsdp_builtin_text_length __attribute__((visibility("hidden")));

int64_t fsdp_builtin_text_bytes(void) {
  return fsdp_builtin_text_length;
}
