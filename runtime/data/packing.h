// Rows of `seq` slots from documents: best-fit decreasing (Johnson 1974; for language models Ding et al.,
// "Fewer Truncations Improve Language Modeling", 2024). A pure function of the documents' lengths.
//
//   documents, slots   5 3 2 2 1      rows of 6   5 1 | 3 2 . | 2 ...
//
// A document of L tokens takes L - 1 slots: its last token is a target alone. One of more than `seq` slots
// gives rows that it fills by itself and, if it is split, one piece of what is left. A piece begins with the
// last token of the one before, which is its target there and its first input here, so that splitting loses
// no target. Pieces are placed from the longest to the shortest, those of one length in the documents' order,
// each into the fullest row that has room: of several, the one that has been as full for longest.
#pragma once

#include "runtime/base/choices.h"
#include "runtime/base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct fsdp_packing fsdp_packing;

typedef struct fsdp_packing_config {
  int64_t seq; // slots of a row
  fsdp_long_documents longer;
  bool alone; // every piece has a row of its own, in the documents' order but for those that are split
  int64_t document_count;
  int64_t (*length)(const void *context, int64_t document); // tokens, at least 1
  const void *context;                                      // outlives the packing
} fsdp_packing_config;

// Tokens first .. first + slots of a document, of which the last is a target alone.
typedef struct fsdp_packing_piece {
  int64_t document, first, slots;
} fsdp_packing_piece;

typedef struct fsdp_packing_counts {
  int64_t rows, pieces, slots; // slots that are filled
  int64_t split, cut, dropped; // documents of more than `seq` slots, by what became of them
  int64_t lost_tokens;         // of documents that were cut or dropped
} fsdp_packing_counts;

// FSDP_ERR_INPUT if there are 2^32 documents or more. Needs at most 20 bytes a document; a packing keeps 4
// for each document and 4 for each row. The caller destroys *packing.
fsdp_status fsdp_packing_create(const fsdp_packing_config *config, fsdp_packing **packing, fsdp_error *error);
void fsdp_packing_destroy(fsdp_packing *packing); // NULL is allowed

// Owned by the packing.
const fsdp_packing_counts *fsdp_packing_count(const fsdp_packing *packing);

// Piece `index` of a row, in the order in which they lie there. False: the row has no so many.
bool fsdp_packing_piece_at(const fsdp_packing *packing, int64_t row, int64_t index,
                           fsdp_packing_piece *piece);
