// The operands of ops.def's rows, parsed. A malformed row is a broken invariant: it aborts at the start of
// the program.
#include "models/graph/op_row.h"
#include "runtime/base/check.h"

#include <ctype.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static fsdp_op_letters parsed[FSDP_OP_ROW_COUNT];

// ---- Parsing

typedef struct reader {
  const char *text, *at; // the whole row's, for messages
  fsdp_op_letters *op;
} reader;

static bool take(reader *r, const char *token) {
  size_t length = strlen(token);
  if (strncmp(r->at, token, length) != 0) return false;
  r->at += length;
  return true;
}

static void expect(reader *r, const char *token) {
  FSDP_CHECK(take(r, token), "operands '%s': no '%s' at '%s'", r->text, token, r->at);
}

static void read_letter(reader *r, fsdp_op_block *block) {
  char name = *r->at++;
  fsdp_op_letter *letter = (fsdp_op_letter *)fsdp_op_letter_find(r->op, name);
  if (!letter) {
    FSDP_CHECK(r->op->letter_count < FSDP_OP_MAX_LETTERS, "operands '%s': too many letters", r->text);
    letter = &r->op->letters[r->op->letter_count++];
    letter->name = name;
  }
  letter->may_part |= take(r, "/");
  letter->is_whole |= take(r, "!") || letter->may_part;
  size_t count = strlen(block->letters);
  FSDP_CHECK(count + 1 < sizeof block->letters, "operands '%s': too long a product", r->text);
  block->letters[count] = name;
}

static void read_dim(reader *r, fsdp_op_dim *dim) {
  dim->is_slice = take(r, "..");
  do {
    FSDP_CHECK(dim->block_count < FSDP_OP_MAX_BLOCKS, "operands '%s': too many blocks", r->text);
    fsdp_op_block *block = &dim->blocks[dim->block_count++];
    while (islower((unsigned char)*r->at)) read_letter(r, block);
    if (block->letters[0]) continue;
    char *end;
    block->constant = strtoll(r->at, &end, 10);
    FSDP_CHECK(end > r->at && block->constant > 0, "operands '%s': no dimension at '%s'", r->text, r->at);
    r->at = end;
  } while (take(r, "|"));
  if (dim->is_slice) expect(r, "..");
}

static void read_operand(reader *r, bool is_output) {
  FSDP_CHECK(r->op->operand_count < FSDP_OP_MAX_OPERANDS, "operands '%s': too many", r->text);
  fsdp_op_operand *operand = &r->op->operands[r->op->operand_count++];
  operand->access = is_output ? FSDP_WRITE : FSDP_READ;
  operand->may_add = take(r, "+");
  if (take(r, "~")) operand->access = FSDP_UPDATE;
  operand->optional = take(r, "?");
  operand->repeated = take(r, "*");
  operand->is_linear = take(r, "%");
  operand->given = take(r, "@")   ? FSDP_GIVEN_BY_DOCUMENTS
                   : take(r, "#") ? FSDP_GIVEN_BY_LEARNED
                   : take(r, "$") ? FSDP_GIVEN_BY_DRAWS
                                  : FSDP_GIVEN_ALWAYS;
  if (operand->given) operand->access = FSDP_READ;
  operand->transposable = take(r, "^");
  size_t length = strcspn(r->at, "[");
  FSDP_CHECK(length > 0 && length < sizeof operand->name, "operands '%s': no name at '%s'", r->text, r->at);
  memcpy(operand->name, r->at, length);
  r->at += length;
  expect(r, "[");
  do {
    FSDP_CHECK(operand->dim_count < FSDP_OP_MAX_DIMS, "operands '%s': too many dimensions", r->text);
    read_dim(r, &operand->dims[operand->dim_count++]);
  } while (take(r, ","));
  expect(r, "]");
  operand->has_dtype = take(r, ":");
  if (!operand->has_dtype) return;
  operand->dtype = take(r, "i32") ? FSDP_I32 : FSDP_F32;
  if (operand->dtype == FSDP_F32) expect(r, "f32");
}

static void parse(const char *text, fsdp_op_letters *op) {
  reader r = {text, text, op};
  bool is_output = false;
  while (*r.at && *r.at != ';') {
    if (take(&r, " ")) continue;
    if (take(&r, "->")) {
      is_output = true;
    } else {
      read_operand(&r, is_output);
    }
  }
  if (!take(&r, "; ")) return;
  fsdp_op_letter *letter = (fsdp_op_letter *)fsdp_op_letter_find(op, *r.at++);
  expect(&r, " with ");
  FSDP_CHECK(letter && fsdp_op_letter_find(op, *r.at) && !r.at[1], "operands '%s': no such letters", text);
  letter->with = *r.at;
}

// Before main, so that any thread may read the table.
__attribute__((constructor)) static void parse_all(void) {
  for (int kind = 0; kind < FSDP_OP_ROW_COUNT; kind++)
    parse(fsdp_op_row_of((fsdp_op_kind)kind)->operands, &parsed[kind]);
}

// ---- Queries

const fsdp_op_letters *fsdp_op_letters_of(fsdp_op_kind kind) {
  FSDP_CHECK((unsigned)kind < FSDP_OP_ROW_COUNT, "op kind %d has no row", (int)kind);
  return &parsed[kind];
}

const fsdp_op_letter *fsdp_op_letter_find(const fsdp_op_letters *op, char letter) {
  for (int i = 0; i < op->letter_count; i++)
    if (op->letters[i].name == letter) return &op->letters[i];
  return NULL;
}

bool fsdp_op_is_grouped(fsdp_op_kind kind) {
  return fsdp_op_makes_gemms(kind) && fsdp_op_letter_find(fsdp_op_letters_of(kind), 'u') != NULL;
}

bool fsdp_op_gathers_keys(fsdp_op_kind kind) {
  const fsdp_op_letter *positions = fsdp_op_letter_find(fsdp_op_letters_of(kind), 't');
  return positions && positions->may_part;
}

bool fsdp_op_operand_has(const fsdp_op_operand *operand, char letter) {
  for (int d = 0; d < operand->dim_count; d++)
    for (int b = 0; b < operand->dims[d].block_count; b++)
      if (strchr(operand->dims[d].blocks[b].letters, letter)) return true;
  return false;
}

bool fsdp_op_contracts(const fsdp_op_letters *op, int operand, char letter) {
  const fsdp_op_letter *found = fsdp_op_letter_find(op, letter);
  if (!found || found->is_whole || !(op->operands[operand].access & FSDP_WRITE)) return false;
  // A letter that is sharded together with one that the output has is not summed over.
  for (int i = 0; i < op->letter_count; i++) {
    const fsdp_op_letter *other = &op->letters[i];
    bool same = other == found || other->with == letter || found->with == other->name;
    if (same && fsdp_op_operand_has(&op->operands[operand], other->name)) return false;
  }
  for (int i = 0; i < op->operand_count; i++)
    if ((op->operands[i].access & FSDP_READ) && fsdp_op_operand_has(&op->operands[i], letter)) return true;
  return false;
}

// The operand of `dims` dimensions whose first one has the letters of the op's slice, or -1.
static int slice_operand(const fsdp_op_letters *op, int dims) {
  const fsdp_op_dim *slice = NULL;
  for (int i = 0; i < op->operand_count; i++)
    for (int d = 0; d < op->operands[i].dim_count; d++)
      if (op->operands[i].dims[d].is_slice) slice = &op->operands[i].dims[d];
  for (int i = 0; slice && i < op->operand_count; i++) {
    const fsdp_op_dim *first = &op->operands[i].dims[0];
    bool same = !first->is_slice && strcmp(first->blocks[0].letters, slice->blocks[0].letters) == 0;
    if (same && op->operands[i].dim_count == dims) return i;
  }
  return -1;
}

int fsdp_op_slice_weight(const fsdp_op_letters *op) {
  return slice_operand(op, 2);
}

int fsdp_op_slice_bias(const fsdp_op_letters *op) {
  return slice_operand(op, 1);
}

// By letter: 1 + the offset of the attribute that is its size; 0: none is.
#define OF(attribute) (1 + offsetof(fsdp_op_attrs, attribute))
static const size_t sizes['z' + 1] = {
    ['b'] = OF(batch),        ['c'] = OF(channels),     ['d'] = OF(head_dim),   ['e'] = OF(experts),
    ['f'] = OF(intermediate), ['g'] = OF(kv_heads),     ['h'] = OF(heads),      ['i'] = OF(in_features),
    ['m'] = OF(positions),    ['o'] = OF(out_features), ['q'] = OF(slots),      ['r'] = OF(ranks),
    ['s'] = OF(kv_seq),       ['t'] = OF(seq),          ['v'] = OF(vocabulary), ['w'] = OF(documents),
    ['z'] = OF(draws)};

int64_t fsdp_op_letter_size(const fsdp_op_attrs *attrs, char letter, int64_t flat_elems) {
  const int64_t rows = attrs->batch * attrs->seq;
  if (letter == 'n') return rows;
  if (letter == 'p') return flat_elems;
  if (letter == 'k') return FSDP_SCALAR_COUNT;
  if (letter == 'a' || (letter == 'u' && !attrs->routed))
    return attrs->arrivals ? attrs->arrivals : rows * attrs->slots;
  if (letter == 'u') return attrs->routed;
  FSDP_CHECK(letter > 0 && letter <= 'z' && sizes[(int)letter], "letter '%c' has no size", letter);
  int64_t size;
  memcpy(&size, (const char *)attrs + sizes[(int)letter] - 1, sizeof size);
  return size;
}

int64_t fsdp_op_dim_size(const fsdp_op_attrs *attrs, const fsdp_op_dim *dim, int64_t flat_elems) {
  int64_t size = 0;
  for (int b = 0; b < dim->block_count; b++) {
    const fsdp_op_block *block = &dim->blocks[b];
    int64_t product = block->letters[0] ? 1 : block->constant;
    for (const char *letter = block->letters; *letter; letter++)
      product *= fsdp_op_letter_size(attrs, *letter, flat_elems);
    size += product;
  }
  return size;
}

int64_t fsdp_op_operand_numel(const fsdp_op_attrs *attrs, const fsdp_op_operand *operand,
                              int64_t flat_elems) {
  int64_t numel = 1;
  for (int d = 0; d < operand->dim_count; d++) {
    const fsdp_op_dim *dim = &operand->dims[d];
    numel *= dim->is_slice ? attrs->out_stride : fsdp_op_dim_size(attrs, dim, flat_elems);
  }
  return numel;
}
