#include "runtime/data/token_view.h"

#include "runtime/base/check.h"
#include "runtime/base/progress.h"
#include "runtime/base/size.h"

#include <string.h>

#define BLOCK       64
#define FIND_TOKENS ((int64_t)1 << 22) // looked through between two progress marks

// One function per width. The blocks are of fixed size, which compilers vectorize at -O2; finding the
// greatest token of a file is then bound by reading it.
#define DEFINE_WIDEN(type)                                                                                   \
  static uint32_t widen_##type(const type *tokens, int64_t count, int32_t *out) {                            \
    type greatest = 0;                                                                                       \
    int64_t i = 0;                                                                                           \
    for (; i + BLOCK <= count; i += BLOCK) {                                                                 \
      for (int k = 0; k < BLOCK; k++) greatest = tokens[i + k] > greatest ? tokens[i + k] : greatest;        \
      if (!out) continue;                                                                                    \
      for (int k = 0; k < BLOCK; k++) out[i + k] = (int32_t)tokens[i + k];                                   \
    }                                                                                                        \
    for (; i < count; i++) {                                                                                 \
      greatest = tokens[i] > greatest ? tokens[i] : greatest;                                                \
      if (out) out[i] = (int32_t)tokens[i];                                                                  \
    }                                                                                                        \
    return greatest;                                                                                         \
  }
DEFINE_WIDEN(uint8_t)
DEFINE_WIDEN(uint16_t)
DEFINE_WIDEN(uint32_t)

static uint32_t widen(const fsdp_token_view *view, int64_t first, int64_t count, int32_t *out) {
  switch (view->token_bytes) {
  case 1:
    return widen_uint8_t((const uint8_t *)view->tokens + first, count, out);
  case 2:
    return widen_uint16_t((const uint16_t *)view->tokens + first, count, out);
  case 4:
    return widen_uint32_t((const uint32_t *)view->tokens + first, count, out);
  default:
    FSDP_CHECK(false, "tokens of %d bytes", view->token_bytes);
  }
}

uint32_t fsdp_token_view_read(const fsdp_token_view *view, int64_t first, int64_t count, int32_t *out) {
  FSDP_CHECK(first >= 0 && count >= 0 && first <= view->token_count - count, "tokens %lld + %lld of %lld",
             (long long)first, (long long)count, (long long)view->token_count);
  return widen(view, first, count, out);
}

int64_t fsdp_token_view_find(const fsdp_token_view *view, int64_t first, int64_t count, int64_t limit) {
  FSDP_CHECK(first >= 0 && count >= 0 && first <= view->token_count - count, "tokens %lld + %lld of %lld",
             (long long)first, (long long)count, (long long)view->token_count);
  if (view->token_bytes < 4 && limit >= (int64_t)1 << (8 * view->token_bytes)) return -1;
  for (int64_t at = first, end = first + count; at < end; at += FIND_TOKENS) {
    int64_t now = fsdp_min_i64(FIND_TOKENS, end - at);
    fsdp_progress_mark();
    if ((int64_t)widen(view, at, now, NULL) < limit) continue;
    while ((int64_t)widen(view, at, 1, NULL) < limit) at++;
    return at;
  }
  return -1;
}

int64_t fsdp_token_view_begun(const fsdp_token_view *view, int64_t index) {
  int64_t low = 0, high = view->document_count; // that many at least, and at most
  while (low < high) {
    int64_t middle = (low + high) / 2;
    if ((int64_t)view->starts[middle] < index)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

int64_t fsdp_token_view_counted(const fsdp_token_view *view, int64_t first, int64_t count) {
  if (!view->mask && !view->starts) return count;
  if (!view->mask)
    return count - fsdp_token_view_begun(view, first + count) + fsdp_token_view_begun(view, first);
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
