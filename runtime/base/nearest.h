// The word that a misspelt one was meant to be.
#pragma once

// The row of `names` (count of them) that differs least from `text` by insertions, deletions, replacements
// and swaps of neighbours, or -1 if none is near.
int fsdp_nearest_word(const char *text, const char *const *names, int count);

// The same of names made of words between dots or dashes, among many: each word begins as it was typed, or
// differs by a letter or two, the more the longer it is, and of fewer than four letters by none.
int fsdp_nearest_phrase(const char *text, const char *const *names, int count);

// " (did you mean fc1, fc2 or fc3?)" with the nearest rows, the nearest first, three at most; "" if none is
// near. Names of up to FSDP_NEAREST_NAME_BYTES; longer ones are cut. Returns `out`.
#define FSDP_NEAREST_NAME_BYTES 200
#define FSDP_NEAREST_TEXT       (3 * FSDP_NEAREST_NAME_BYTES + 32)
const char *fsdp_nearest_question(const char *text, const char *const *names, int count,
                                  char out[FSDP_NEAREST_TEXT]);
