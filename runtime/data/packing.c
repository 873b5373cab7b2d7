#include "runtime/data/packing.h"

#include "runtime/base/check.h"
#include "runtime/base/progress.h"
#include "runtime/base/size.h"

#include <inttypes.h>
#include <stdlib.h>

#define NONE       UINT32_MAX
#define MARK_EVERY 4096 // documents between two progress marks

// A document that fills rows by itself, from `first_row` on.
typedef struct filler {
  uint32_t document;
  int64_t first_row;
} filler;

struct fsdp_packing {
  fsdp_packing_config config;
  fsdp_packing_counts counts;
  filler *fillers;
  int64_t filler_count, filler_capacity, full_rows; // which come first
  uint32_t *documents;                              // of the other pieces, row after row: one each at most
  uint32_t *row_first; // of each other row, its first piece; one more at the end. NULL: one piece a row
  int64_t piece_count;
};

// ---- Documents as pieces

static int64_t slots_of(const fsdp_packing *p, int64_t document) {
  int64_t tokens = p->config.length(p->config.context, document);
  FSDP_CHECK(tokens >= 1, "document %" PRId64 " of %" PRId64 " tokens", document, tokens);
  return tokens - 1;
}

// Rows that a document of `slots` fills by itself, and the slots of the piece that is left (0: none).
static int64_t full_rows_of(const fsdp_packing *p, int64_t slots, int64_t *rest) {
  const int64_t seq = p->config.seq;
  const bool alone = p->config.alone, cut = slots > seq && p->config.longer == FSDP_LONG_CUT;
  *rest = slots;
  if (slots < seq) return 0;
  *rest = alone ? seq : 0; // a row of its own, in the documents' order
  if (slots == seq || cut) return !alone;
  *rest = p->config.longer == FSDP_LONG_DROP ? 0 : slots % seq;
  return p->config.longer == FSDP_LONG_DROP ? 0 : slots / seq;
}

static void add_filler(fsdp_packing *p, int64_t document, int64_t rows) {
  if (p->filler_count == p->filler_capacity) {
    p->filler_capacity = 2 * p->filler_capacity + 64;
    p->fillers = fsdp_realloc(p->fillers, (size_t)p->filler_capacity * sizeof *p->fillers);
  }
  p->fillers[p->filler_count++] = (filler){(uint32_t)document, p->full_rows};
  p->full_rows += rows;
}

static void note_long(fsdp_packing *p, int64_t slots) {
  fsdp_packing_counts *counts = &p->counts;
  if (slots <= p->config.seq) return;
  switch (p->config.longer) {
  case FSDP_LONG_SPLIT:
    counts->split++;
    break;
  case FSDP_LONG_CUT:
    counts->cut++;
    counts->lost_tokens += slots - p->config.seq;
    break;
  case FSDP_LONG_DROP:
    counts->dropped++;
    counts->lost_tokens += slots + 1;
    break;
  }
}

// Counts everything; of each number of slots, the pieces into of_slots (seq of them; NULL: not wanted).
static void count_documents(fsdp_packing *p, int64_t *of_slots) {
  for (int64_t d = 0; d < p->config.document_count; d++) {
    int64_t slots = slots_of(p, d), rest, rows = full_rows_of(p, slots, &rest);
    if (d % MARK_EVERY == 0) fsdp_progress_mark();
    note_long(p, slots);
    if (rows) add_filler(p, d, rows);
    p->piece_count += rest > 0;
    p->counts.slots += rows * p->config.seq + rest;
    if (of_slots) of_slots[rest]++;
  }
}

// Documents with a piece: by slots from the most on (`begin` holds the first place of each), or in order.
static uint32_t *list_pieces(const fsdp_packing *p, int64_t *begin) {
  uint32_t *list = fsdp_alloc((size_t)fsdp_max_i64(p->piece_count, 1) * sizeof *list);
  int64_t next = 0;
  for (int64_t d = 0; d < p->config.document_count; d++) {
    int64_t rest;
    full_rows_of(p, slots_of(p, d), &rest);
    if (d % MARK_EVERY == 0) fsdp_progress_mark();
    if (rest > 0) list[begin ? begin[rest]++ : next++] = (uint32_t)d;
  }
  return list;
}

// ---- Open rows, by their room

// Rows of equal room are a queue. A bit for each room that has one, and a bit for each word of those.
typedef struct open_rows {
  uint32_t *first, *last; // by room
  uint32_t *next;         // by row
  uint64_t *has, *has_words;
  int64_t words, count, capacity;
} open_rows;

static open_rows open_rows_create(int64_t seq) {
  open_rows o = {.words = seq / 64 + 1};
  o.first = fsdp_alloc((size_t)(seq + 1) * sizeof *o.first);
  o.last = fsdp_alloc((size_t)(seq + 1) * sizeof *o.last);
  o.has = fsdp_alloc_zeroed((size_t)o.words, sizeof *o.has);
  o.has_words = fsdp_alloc_zeroed((size_t)(o.words / 64 + 1), sizeof *o.has_words);
  for (int64_t room = 0; room <= seq; room++) o.first[room] = NONE;
  return o;
}

static void open_rows_free(open_rows *o) {
  free(o->first), free(o->last), free(o->next), free(o->has), free(o->has_words);
}

static void put_row(open_rows *o, uint32_t row, int64_t room) {
  o->next[row] = NONE;
  if (o->first[room] == NONE)
    o->first[room] = row;
  else
    o->next[o->last[room]] = row;
  o->last[room] = row;
  o->has[room / 64] |= UINT64_C(1) << (room % 64);
  o->has_words[room / 4096] |= UINT64_C(1) << (room / 64 % 64);
}

static uint32_t take_row(open_rows *o, int64_t room) {
  uint32_t row = o->first[room];
  o->first[room] = o->next[row];
  if (o->first[room] != NONE) return row;
  o->has[room / 64] &= ~(UINT64_C(1) << (room % 64));
  if (!o->has[room / 64]) o->has_words[room / 4096] &= ~(UINT64_C(1) << (room / 64 % 64));
  return row;
}

// The least room of at least `slots` that a row has; -1: none has.
static int64_t find_room(const open_rows *o, int64_t slots) {
  int64_t word = slots / 64;
  uint64_t bits = o->has[word] >> (slots % 64) << (slots % 64);
  if (bits) return word * 64 + __builtin_ctzll(bits);
  if (++word >= o->words) return -1;
  int64_t group = word / 64;
  for (bits = o->has_words[group] >> (word % 64) << (word % 64); !bits; bits = o->has_words[group])
    if (++group > (o->words - 1) / 64) return -1;
  word = group * 64 + __builtin_ctzll(bits);
  return word * 64 + __builtin_ctzll(o->has[word]);
}

static uint32_t new_row(open_rows *o) {
  if (o->count == o->capacity) {
    o->capacity = o->capacity + o->capacity / 2 + 1024;
    o->next = fsdp_realloc(o->next, (size_t)o->capacity * sizeof *o->next);
  }
  return (uint32_t)o->count++;
}

// ---- Packing

// The row of each piece of the list, which is sorted by slots: the last place of each is in `end`.
static uint32_t *place_pieces(const fsdp_packing *p, const int64_t *end, int64_t *rows) {
  open_rows open = open_rows_create(p->config.seq);
  uint32_t *row_of = fsdp_alloc((size_t)fsdp_max_i64(p->piece_count, 1) * sizeof *row_of);
  int64_t at = 0;
  for (int64_t slots = p->config.seq - 1; slots > 0; slots--)
    for (; at < end[slots]; at++) {
      int64_t room = find_room(&open, slots);
      uint32_t row = room < 0 ? new_row(&open) : take_row(&open, room);
      int64_t left = (room < 0 ? p->config.seq : room) - slots;
      if (at % MARK_EVERY == 0) fsdp_progress_mark();
      if (left > 0) put_row(&open, row, left);
      row_of[at] = row;
    }
  *rows = open.count;
  open_rows_free(&open);
  return row_of;
}

// Sorts the list by its rows; within a row it stays in order.
static void group_by_row(fsdp_packing *p, const uint32_t *list, const uint32_t *row_of, int64_t rows) {
  p->row_first = fsdp_alloc_zeroed((size_t)rows + 2, sizeof *p->row_first);
  for (int64_t i = 0; i < p->piece_count; i++) p->row_first[row_of[i] + 2]++;
  for (int64_t r = 0; r < rows; r++) p->row_first[r + 2] += p->row_first[r + 1];
  p->documents = fsdp_alloc((size_t)fsdp_max_i64(p->piece_count, 1) * sizeof *p->documents);
  for (int64_t i = 0; i < p->piece_count; i++) p->documents[p->row_first[row_of[i] + 1]++] = list[i];
}

static void pack(fsdp_packing *p) {
  int64_t rows, *place = fsdp_alloc_zeroed((size_t)p->config.seq + 1, sizeof *place), at = 0;
  count_documents(p, place);
  for (int64_t slots = p->config.seq - 1; slots > 0; slots--) {
    int64_t count = place[slots];
    place[slots] = at;
    at += count;
  }
  uint32_t *list = list_pieces(p, place), *row_of = place_pieces(p, place, &rows);
  group_by_row(p, list, row_of, rows);
  free(list), free(row_of), free(place);
  p->counts.rows = p->full_rows + rows;
}

fsdp_status fsdp_packing_create(const fsdp_packing_config *config, fsdp_packing **packing,
                                fsdp_error *error) {
  FSDP_CHECK(config->seq >= 1 && config->document_count >= 0, "rows of %" PRId64 " slots", config->seq);
  *packing = NULL;
  if (config->document_count >= NONE)
    return fsdp_fail(error, FSDP_ERR_INPUT,
                     "%" PRId64 " documents cannot be packed, only fewer than 2^32: use --packing stream",
                     config->document_count);
  fsdp_packing *p = fsdp_alloc_zeroed(1, sizeof *p);
  p->config = *config;
  if (config->alone) {
    count_documents(p, NULL);
    p->documents = list_pieces(p, NULL);
    p->counts.rows = p->full_rows + p->piece_count;
  } else {
    pack(p);
  }
  p->counts.pieces = p->full_rows + p->piece_count;
  *packing = p;
  return FSDP_OK;
}

void fsdp_packing_destroy(fsdp_packing *p) {
  if (!p) return;
  free(p->fillers);
  free(p->documents);
  free(p->row_first);
  free(p);
}

const fsdp_packing_counts *fsdp_packing_count(const fsdp_packing *p) {
  return &p->counts;
}

// The last filler whose first row is not after `row`.
static const filler *filler_of(const fsdp_packing *p, int64_t row) {
  int64_t low = 0, high = p->filler_count - 1;
  while (low < high) {
    int64_t middle = high - (high - low) / 2;
    if (p->fillers[middle].first_row <= row)
      low = middle;
    else
      high = middle - 1;
  }
  return &p->fillers[low];
}

bool fsdp_packing_piece_at(const fsdp_packing *p, int64_t row, int64_t index, fsdp_packing_piece *piece) {
  FSDP_CHECK(row >= 0 && row < p->counts.rows && index >= 0, "piece %" PRId64 " of row %" PRId64, index, row);
  if (row < p->full_rows) {
    const filler *f = filler_of(p, row);
    *piece = (fsdp_packing_piece){f->document, (row - f->first_row) * p->config.seq, p->config.seq};
    return index == 0;
  }
  int64_t own = row - p->full_rows, at = own + index, end = own + 1, slots, rest;
  if (p->row_first) at = p->row_first[own] + index, end = p->row_first[own + 1];
  if (at >= end) return false;
  slots = slots_of(p, p->documents[at]);
  full_rows_of(p, slots, &rest);
  const bool cut = slots > p->config.seq && p->config.longer == FSDP_LONG_CUT;
  *piece = (fsdp_packing_piece){p->documents[at], cut ? 0 : slots - rest, rest};
  return true;
}
