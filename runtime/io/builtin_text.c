#include "runtime/io/builtin_text.h"

// C11 has no #embed. The build names the file, and rebuilds this one when that changes.
__asm__(".pushsection .rodata\n"
        ".global fsdp_builtin_text\n"
        ".hidden fsdp_builtin_text\n"
        "fsdp_builtin_text:\n"
        ".incbin \"" FSDP_BUILTIN_TEXT_FILE "\"\n"
        ".hidden fsdp_builtin_text_end\n"
        ".global fsdp_builtin_text_end\n"
        "fsdp_builtin_text_end:\n"
        ".byte 0\n"
        ".popsection\n");

extern const unsigned char fsdp_builtin_text_end[];

int64_t fsdp_builtin_text_bytes(void) {
  // Through integers: the compiler may take two arrays for unrelated objects, whose addresses have no
  // difference.
  return (int64_t)((uintptr_t)fsdp_builtin_text_end - (uintptr_t)fsdp_builtin_text);
}
