// Tokens as training samples: T tokens and their next-token targets.
//
//   a stream: files and documents one after the other, nothing put between them
//     t0 t1 t2 ... t(n-1)      sample i: tokens  t[iT] .. t[iT+T-1]
//                                        targets t[iT+1] .. t[iT+T], so there are (n-1)/T samples
//   best fit: a sample is a row of whole documents, as far as they are not longer (packing.h)
//     d0 d1 ... d(m-1) | e0 e1 ...   tokens d0 .. d(m-2) e0 .. and zeros, targets d1 .. d(m-1) e1 ..
//   off: the same of one document
//
// A .tok, .jsonl or .json has the beginnings of its documents; in a .bin the token that ends one marks them,
// if it is given. Without marks a file is one document.
//
// Files of one weight (data_paths.h) are a group: no sample lies in two groups, and those of one are
// neighbours.
//
// A target that the loss does not count (a prompt's, one past a document's end, a document's first token) is
// FSDP_TARGET_IGNORED. Samples of which no target counts are left out, so that every step has one.
// Files are mapped, not read: a rank reads the pages of its own samples only, and filling copies from them.
#pragma once

#include "runtime/base/status.h"
#include "runtime/data/data_paths.h"
#include "runtime/data/packing.h"
#include "runtime/data/token_source.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct fsdp_dataset fsdp_dataset;

typedef struct fsdp_dataset_config {
  const fsdp_data_paths *files; // .txt, .jsonl, .json, .tok, .bin; NULL or without a list: the built-in text
  const char *tokenizer;        // path of the model's tokenizer.json; NULL if it has none: text is then bytes
  bool only_bytes;              // the user asked for bytes: tokens of a tokenizer are refused
  const char
      *no_bytes; // why bytes are refused, and what to do: "the model ...; do ..."; NULL if they are not
  int64_t seq;   // tokens of a sample
  int64_t global_batch; // samples per step; the data must hold at least one step; 1 for evaluation data
  bool searches_batch;  // in messages: --global-batch says it
  int64_t vocab_size;   // of the model; every token must be below it
  fsdp_packing_choice packing;
  fsdp_long_documents longer; // not of a stream
  const char *separates;      // the option that asks for starts of documents; NULL: none does
  bool separates_all;         // of every file; else of one is enough, and others are a document each
  bool has_separator;         // in a .bin, the token `separator` ends a document
  int64_t separator;
  bool verify; // read all tokens first: .tok are compared with their checksums, .bin with the vocabulary
  int share, shares; // of that, this caller does part `share` of `shares` equal ones; 0 of 0: all of it
} fsdp_dataset_config;

// No sample: all padding, nothing counted. It fills the last batch of an evaluation.
#define FSDP_DATASET_NO_SAMPLE (-1)

// Opens and maps the files, which need no handles from then on. FSDP_ERR_INPUT if one is missing, malformed,
// of unknown kind, made for a different tokenizer than the model's (token_source.h), or has a token that the
// model has not. Also if bytes are required or refused, if they were prepared with different chat templates,
// if documents are wanted of data that does not tell them, or if all are too short for one step. The
// configuration is not kept. The caller closes *dataset.
fsdp_status fsdp_dataset_open(const fsdp_dataset_config *config, fsdp_dataset **dataset, fsdp_error *error);
void fsdp_dataset_close(fsdp_dataset *dataset); // NULL is allowed

// How many of the sample's targets the loss counts: at least one, or none of FSDP_DATASET_NO_SAMPLE.
int64_t fsdp_dataset_target_count(const fsdp_dataset *dataset, int64_t sample);

// Neighbouring positions of a sample. Those that it does not have are padding: token 0, target
// FSDP_TARGET_IGNORED.
typedef struct fsdp_dataset_part {
  int64_t sample;       // or FSDP_DATASET_NO_SAMPLE
  int64_t first, count; // positions
} fsdp_dataset_part;

// Writes these positions: `count` tokens and as many targets, in which FSDP_TARGET_IGNORED (op.h) marks those
// that the loss must not count. A token that is not below the vocabulary (it was not verified, or the file
// has changed) ends the job. May be called by several threads at once.
void fsdp_dataset_fill_part(const fsdp_dataset *dataset, const fsdp_dataset_part *part, int32_t *tokens,
                            int32_t *targets);
int64_t fsdp_dataset_part_target_count(const fsdp_dataset *dataset, const fsdp_dataset_part *part);

// The position in the sample of the first token of each position's document, for `positions` positions, at
// least as many as the sample has: those behind its last token are documents of one token each.
void fsdp_dataset_fill_starts(const fsdp_dataset *dataset, int64_t sample, int64_t positions,
                              int32_t *starts);

// Pairs of a query and a key of a document in the sample: what attention does for it.
double fsdp_dataset_sample_pairs(const fsdp_dataset *dataset, int64_t sample);

// How documents lie in samples.
typedef struct fsdp_dataset_rows {
  fsdp_packing_choice packing; // not AUTO
  fsdp_packing_counts counts;  // zeros of a stream
  double fill;                 // of all positions, those with a token
  double documents;            // in a sample, on average; 0: not known
  double attention;            // of all pairs of a query and an earlier key, those within a document
} fsdp_dataset_rows;

// Whether the loss counts parts of documents alone, as of conversations and instructions.
bool fsdp_dataset_learns_parts(const fsdp_dataset *dataset);

// How many of *documents lie in several samples, as long ones do, and many of a stream.
int64_t fsdp_dataset_split_count(const fsdp_dataset *dataset, int64_t *documents);

// How many of the sample's positions hold a token: the others are padding.
int64_t fsdp_dataset_real_count(const fsdp_dataset *dataset, int64_t sample);

// Of all samples of an epoch together.
typedef struct fsdp_dataset_totals {
  int64_t positions;   // of which
  int64_t real;        // hold a token, and of
  int64_t learned;     // the next one counts
  int64_t cut_learned; // targets that would count, but lie behind the end of a sample that is one document
  int64_t left_out;    // samples besides, of which no target counts
} fsdp_dataset_totals;

struct fsdp_dataset {
  int64_t sample_count; // of an epoch, including those of a last partial batch
  fsdp_dataset_totals totals;
  fsdp_dataset_rows how;
  int group_count;     // 1 without weights
  int64_t token_count; // of all files
  // A line for a person: where the tokens come from, how they were made, what is left out or cut off.
  char description[640];
  // For its modules alone (dataset_internal.h).
  struct fsdp_dataset_source *sources;
  struct fsdp_dataset_files *groups;
  int source_count;
  char *list;                              // of the files, for messages; NULL: the built-in text
  int64_t document_count, seq, vocab_size; // a file that knows no documents is one
  fsdp_long_documents longer;
  bool knows_documents;
  int64_t raw_count; // samples, including those without a counted target
  int64_t *kept;     // raw number of each sample; NULL if all are kept
};

// A group: files of one weight, or all of them. Owned by the data set.
typedef struct fsdp_dataset_group {
  const char *name; // NULL: all files, without a weight
  double share;     // of the samples that a run sees; 1 without weights
  int64_t first_sample, sample_count;
  int64_t held_count; // of these the last, which fsdp_dataset_hold_out has made
} fsdp_dataset_group;
fsdp_dataset_group fsdp_dataset_group_at(const fsdp_dataset *dataset, int index);

// Whether a record may lie in several samples: a conversation of which each answer is a document, or a
// document that is split. Not of a stream, which is cut anywhere.
bool fsdp_dataset_divides_records(const fsdp_dataset *dataset);

// Makes the samples anew, so that none to train on has a part of a record that one held out has: whole
// records are held out, drawn by the seed, and each side is packed by itself. Of group g the last samples are
// held out, at most wanted[g] of them, but at least those of one record; none if wanted[g] is 0. For data
// that divides records, once. FSDP_ERR_INPUT if a weighted group is left without a sample.
fsdp_status fsdp_dataset_hold_out(fsdp_dataset *dataset, uint64_t seed, const int64_t *wanted,
                                  fsdp_error *error);

// The chat template that the data was prepared with, if one was given there (--chat-template), of *bytes
// bytes; NULL if not. Owned by the data set.
const char *fsdp_dataset_chat_template(const fsdp_dataset *dataset, int64_t *bytes);

// The tokens that a text of the data begins and ends with: those of the first file that tells.
fsdp_token_ends fsdp_dataset_ends(const fsdp_dataset *dataset);

// Whether the data has files whose documents the separator ends; *without is the first of these that does not
// have it, and so is one document, or NULL. Owned by the data set.
bool fsdp_dataset_takes_separator(const fsdp_dataset *dataset, const char **without);

// The first `.bin` of uint16 if the model's vocabulary has more tokens than these can tell apart; NULL if
// there is none. It is of another tokenizer, or its writer has cut off large tokens. Owned by the data set.
const char *fsdp_dataset_narrow_file(const fsdp_dataset *dataset);

// A hash of the data's content (not of file names) and of its weights, by which a resumed run detects changed
// data. It reads text whole, of a .tok only the header, and .bin files whole if all together have at most 1
// GiB, else the number of tokens, the first and the last 64 KiB of each.
uint64_t fsdp_dataset_fingerprint(const fsdp_dataset *dataset);
