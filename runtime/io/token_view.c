#include "runtime/io/token_view.h"

#include "runtime/base/check.h"
#include "runtime/base/size.h"

#include <string.h>

// One loop per width, so that each is vectorised.
#define WIDEN(type)                                                                                          \
  do {                                                                                                       \
    const type *tokens = (const type *)view->tokens + first;                                                 \
    for (int64_t i = 0; i < count; i++) {                                                                    \
      uint32_t token = tokens[i];                                                                            \
      greatest = token > greatest ? token : greatest;                                                        \
      if (out) out[i] = (int32_t)token;                                                                      \
    }                                                                                                        \
  } while (0)

static uint32_t widen(const fsdp_token_view *view, int64_t first, int64_t count, int32_t *out) {
  uint32_t greatest = 0;
  switch (view->token_bytes) {
  case 1:
    WIDEN(uint8_t);
    break;
  case 2:
    WIDEN(uint16_t);
    break;
  case 4:
    WIDEN(uint32_t);
    break;
  default:
    FSDP_CHECK(false, "tokens of %d bytes", view->token_bytes);
  }
  return greatest;
}

uint32_t fsdp_token_view_read(const fsdp_token_view *view, int64_t first, int64_t count, int32_t *out) {
  FSDP_CHECK(first >= 0 && count >= 0 && first <= view->token_count - count, "tokens %lld + %lld of %lld",
             (long long)first, (long long)count, (long long)view->token_count);
  return widen(view, first, count, out);
}

uint32_t fsdp_token_view_max(const fsdp_token_view *view) {
  return widen(view, 0, view->token_count, NULL);
}

int64_t fsdp_token_view_counted(const fsdp_token_view *view, int64_t first, int64_t count) {
  if (!view->mask) return count;
  int64_t counted = 0, i = first, end = first + count;
  for (; i < end && i % 8; i++) counted += fsdp_token_view_counts(view, i);
  for (; i + 64 <= end; i += 64) {
    uint64_t word;
    memcpy(&word, view->mask + i / 8, sizeof word);
    counted += __builtin_popcountll(word);
  }
  for (; i < end; i++) counted += fsdp_token_view_counts(view, i);
  return counted;
}
