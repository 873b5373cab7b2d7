#include "runtime/base/nearest.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { NEAREST_MAX = 3, LONGEST = 96, FAR = 1000 };

// The optimal string alignment distance (Damerau-Levenshtein without overlapping swaps) of words of these
// lengths; FAR for over-long ones.
static int distance(const char *a, int length_a, const char *b, int length_b) {
  int row[3][LONGEST + 1];
  if (length_a > LONGEST || length_b > LONGEST) return FAR;
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
    size_t length = strlen(text);
    int apart = distance(text, (int)length, names[i], (int)strlen(names[i]));
    // A word cut short ("--strat") is near whatever was cut off.
    if (apart != 0 && length >= 3 && strncmp(text, names[i], length) == 0) apart = 1;
    if (apart > 1 + (int)length / 4) continue;
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

// ---- Phrases

// How far a part of a name is from what was typed, FAR if they are not alike: a short word is hardly ever
// another one mistyped, and all that a word which was cut short ("strat") lacks is what was cut off.
static int part_distance(const char *typed, int length, const char *name, int name_length) {
  const int most = length < 4 ? 0 : length < 8 ? 1 : length < 14 ? 2 : 3;
  if (length >= 3 && length < name_length && strncmp(typed, name, (size_t)length) == 0) return 1;
  const int apart = distance(typed, length, name, name_length);
  return apart <= most ? apart : FAR;
}

static int part_length(const char *text) {
  return (int)strcspn(text, ".-");
}

static int part_count(const char *text) {
  int count = 1;
  for (; *text; text++) count += *text == '.' || *text == '-';
  return count;
}

// Without what separates parts.
static int squeeze(const char *text, char out[LONGEST + 1]) {
  int length = 0;
  for (; *text && length < LONGEST; text++)
    if (*text != '.' && *text != '-') out[length++] = *text;
  out[length] = 0;
  return length;
}

// How far a name is from what was typed: part by part, since "train-steps" is not "trace-steps" mistyped, or
// as a whole where one has more parts ("batchsize").
static int phrase_distance(const char *typed, const char *name) {
  char both[2][LONGEST + 1];
  if (strlen(typed) > LONGEST || strlen(name) > LONGEST) return FAR;
  const size_t length = strlen(typed);
  if (length >= 3 && strncmp(typed, name, length) == 0) return name[length] ? 1 : 0;
  if (part_count(typed) != part_count(name)) {
    const int typed_length = squeeze(typed, both[0]), name_length = squeeze(name, both[1]);
    return part_distance(both[0], typed_length, both[1], name_length);
  }
  int sum = 0;
  for (;; typed++, name++) {
    const int here = part_length(typed), there = part_length(name);
    sum += part_distance(typed, here, name, there);
    typed += here, name += there;
    if (!*typed || sum >= FAR) return sum;
  }
}

int fsdp_nearest_phrase(const char *text, const char *const *names, int count) {
  int nearest = -1, least = FAR;
  for (int i = 0; i < count; i++) {
    const int apart = phrase_distance(text, names[i]);
    if (apart < least) nearest = i, least = apart;
  }
  return nearest;
}
