// The word that a misspelt one was meant to be.
#pragma once

// The row of `names` (count of them) that differs least from `text` by insertions, deletions, replacements
// and swaps of neighbours, or -1 if none is near.
int fsdp_nearest_word(const char *text, const char *const *names, int count);
