#include "runtime/base/nearest.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { NEAREST_MAX = 3 };

// The optimal string alignment distance (Damerau-Levenshtein without overlapping swaps); -1 for over-long
// words.
static int distance(const char *a, const char *b) {
  enum { LONGEST = 96 };
  int row[3][LONGEST + 1];
  int length_a = (int)strlen(a), length_b = (int)strlen(b);
  if (length_a > LONGEST || length_b > LONGEST) return -1;
  for (int j = 0; j <= length_b; j++) row[0][j] = j;
  for (int i = 1; i <= length_a; i++) {
    int *now = row[i % 3], *before = row[(i + 2) % 3], *older = row[(i + 1) % 3];
    now[0] = i;
    for (int j = 1; j <= length_b; j++) {
      int best = before[j - 1] + (a[i - 1] != b[j - 1]);
      if (before[j] + 1 < best) best = before[j] + 1;
      if (now[j - 1] + 1 < best) best = now[j - 1] + 1;
      bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped && older[j - 2] + 1 < best) best = older[j - 2] + 1;
      now[j] = best;
    }
  }
  return row[length_a % 3][length_b];
}

// The rows of `names` that are near, the nearest first, into found; of equals, those in front. Returns how
// many, `most` at most.
static int nearest_words(const char *text, const char *const *names, int count, int most, int *found) {
  int kept = 0, distances[NEAREST_MAX];
  for (int i = 0; i < count; i++) {
    int apart = distance(text, names[i]);
    size_t length = strlen(text);
    // A word cut short ("--strat") is near whatever was cut off.
    if (apart != 0 && length >= 3 && strncmp(text, names[i], length) == 0) apart = 1;
    if (apart < 0 || apart > 1 + (int)length / 4) continue;
    int place = kept;
    while (place > 0 && apart < distances[place - 1]) place--;
    if (place == most) continue;
    kept += kept < most;
    for (int k = kept - 1; k > place; k--) {
      found[k] = found[k - 1];
      distances[k] = distances[k - 1];
    }
    found[place] = i;
    distances[place] = apart;
  }
  return kept;
}

int fsdp_nearest_word(const char *text, const char *const *names, int count) {
  int found;
  return nearest_words(text, names, count, 1, &found) ? found : -1;
}

const char *fsdp_nearest_question(const char *text, const char *const *names, int count,
                                  char out[FSDP_NEAREST_TEXT]) {
  int found[NEAREST_MAX], near = nearest_words(text, names, count, NEAREST_MAX, found);
  size_t used = 0;
  out[0] = 0;
  for (int i = 0; i < near; i++) {
    const char *before = i == 0 ? " (did you mean " : i + 1 < near ? ", " : " or ";
    used += (size_t)snprintf(out + used, FSDP_NEAREST_TEXT - used, "%s%.*s%s", before,
                             FSDP_NEAREST_NAME_BYTES - 1, names[found[i]], i + 1 < near ? "" : "?)");
  }
  return out;
}
