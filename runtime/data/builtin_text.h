// The text that a run trains on when it is given none: Jane Austen, Northanger Abbey (1817), in the public
// domain; 432,978 bytes of ASCII. It is part of the executable, which needs no file for it.
#pragma once

#include <stdint.h>

extern const unsigned char fsdp_builtin_text[];

// Its length.
int64_t fsdp_builtin_text_bytes(void);
