#include "tests/support/pairwise.h"

#include "runtime/base/check.h"
#include "tests/support/random_program.h"

#include <stdlib.h>

// Of the allowed choices that have a pair, so many are compared; after so many draws without one, the pair
// has none.
enum { COMPARED = 20, DRAWN = 2000 };

typedef struct cover {
  const pairwise *settings;
  random_source random;
  bool *pairs; // by setting, value, setting, value: covered, or without an allowed choice
} cover;

static bool *pair(const cover *c, int a, int x, int b, int y) {
  enum { VALUES = PAIRWISE_VALUES_MAX };
  return &c->pairs[((a * VALUES + x) * PAIRWISE_SETTINGS_MAX + b) * VALUES + y];
}

static int uncovered(const cover *c, const pairwise_choice *choice) {
  int count = 0;
  for (int a = 0; a < c->settings->settings; a++)
    for (int b = a + 1; b < c->settings->settings; b++)
      count += !*pair(c, a, choice->values[a], b, choice->values[b]);
  return count;
}

// Draws what is left open of a choice that has a pair: the allowed one that covers most. False: none.
static bool complete(cover *c, int a, int x, int b, int y, pairwise_choice *best) {
  int found = 0, most = -1;
  for (int draw = 0; draw < DRAWN && found < COMPARED; draw++) {
    pairwise_choice choice;
    for (int s = 0; s < c->settings->settings; s++)
      choice.values[s] = random_int(&c->random, 0, c->settings->value_count[s] - 1);
    choice.values[a] = x;
    choice.values[b] = y;
    if (c->settings->allowed && !c->settings->allowed(choice.values)) continue;
    found++;
    int fresh = uncovered(c, &choice);
    if (fresh > most) most = fresh, *best = choice;
  }
  return found > 0;
}

int pairwise_choices(const pairwise *settings, pairwise_choice **out, int *left_out) {
  size_t cells =
      (size_t)PAIRWISE_SETTINGS_MAX * PAIRWISE_VALUES_MAX * PAIRWISE_SETTINGS_MAX * PAIRWISE_VALUES_MAX;
  cover c = {.settings = settings, .pairs = fsdp_alloc_zeroed(cells, sizeof(bool))};
  int count = 0;
  *out = NULL;
  *left_out = 0;
  for (int a = 0; a < settings->settings; a++) {
    for (int b = a + 1; b < settings->settings; b++) {
      for (int i = 0; i < settings->value_count[a] * settings->value_count[b]; i++) {
        int x = i / settings->value_count[b], y = i % settings->value_count[b];
        pairwise_choice choice;
        if (*pair(&c, a, x, b, y)) continue;
        *pair(&c, a, x, b, y) = true;
        if (!complete(&c, a, x, b, y, &choice)) {
          ++*left_out;
          continue;
        }
        for (int s = 0; s < settings->settings; s++)
          for (int t = s + 1; t < settings->settings; t++)
            *pair(&c, s, choice.values[s], t, choice.values[t]) = true;
        *out = fsdp_realloc(*out, (size_t)(count + 1) * sizeof **out);
        (*out)[count++] = choice;
      }
    }
  }
  free(c.pairs);
  return count;
}
