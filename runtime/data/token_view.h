// A run of tokens as it lies in memory or in a mapped file, with what the loss counts and where documents
// begin.
//
//   tokens   t0 t1 t2 | t3 t4 | t5 ...     unsigned integers of 1, 2 or 4 bytes, little-endian
//   mask      0  1  1 |  0  1 |  0 ...     bit i % 8 of byte i / 8: whether token i counts as a target
//   starts    0         3       5          index of each document's first token; a document ends where the
//                                          next one starts
//
// The first token of a document follows nothing that it could be predicted from, so its bit is 0, and without
// a mask it does not count either. Nothing here is owned.
#pragma once

#include <stdbool.h>
#include <stdint.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tokens are read as they lie, little-endian");

typedef struct fsdp_token_view {
  const void *tokens; // aligned to token_bytes
  int token_bytes;    // 1, 2 or 4
  int64_t token_count;
  const uint8_t *mask;    // NULL: every token counts but a document's first
  const uint64_t *starts; // NULL: it is not known where documents begin
  const uint8_t *joined;  // a bit per document: it is of the record of the one before; NULL: none is
  int64_t document_count;
  int64_t target_count; // tokens that the mask lets count; 0 without a mask
  int64_t vocab_size;   // every token is below it; 0: not known
} fsdp_token_view;

// Widens tokens [first, first + count) into `out` and returns the greatest of them (0 if count is 0).
uint32_t fsdp_token_view_read(const fsdp_token_view *view, int64_t first, int64_t count, int32_t *out);

// The first of tokens [first, first + count) that is not below `limit`; -1 if there is none. It reads nothing
// if no token of this width can be.
int64_t fsdp_token_view_find(const fsdp_token_view *view, int64_t first, int64_t count, int64_t limit);

// How many of tokens [first, first + count) the loss counts.
int64_t fsdp_token_view_counted(const fsdp_token_view *view, int64_t first, int64_t count);

// Documents that begin before token `index`; `starts` must be known.
int64_t fsdp_token_view_begun(const fsdp_token_view *view, int64_t index);

// Whether the loss counts token `index`.
static inline bool fsdp_token_view_counts(const fsdp_token_view *view, int64_t index) {
  if (view->mask) return view->mask[index / 8] >> (index % 8) & 1;
  return !view->starts || fsdp_token_view_begun(view, index + 1) == fsdp_token_view_begun(view, index);
}

// Its documents, of which it is one if it does not know where they begin.
static inline int64_t fsdp_token_view_documents(const fsdp_token_view *view) {
  return view->starts ? view->document_count : 1;
}

// Whether document `document` is of the record that the one before it is of.
static inline bool fsdp_token_view_joins(const fsdp_token_view *view, int64_t document) {
  return view->joined && view->joined[document / 8] >> (document % 8) & 1;
}

// The first token of document `document`, and one past its last.
static inline int64_t fsdp_token_view_begin(const fsdp_token_view *view, int64_t document) {
  return view->starts ? (int64_t)view->starts[document] : 0;
}
static inline int64_t fsdp_token_view_end(const fsdp_token_view *view, int64_t document) {
  return document + 1 < view->document_count ? (int64_t)view->starts[document + 1] : view->token_count;
}
