// Counter-based random numbers: Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
// 2011).
//
// A number is a pure function of (seed, stream, index), so that an initialisation or a data order never
// depends on world size, strategy, wrapping or threads. A stream is a hash of a name (a parameter's, "data
// order", ...).
#pragma once

#include "runtime/base/random_rounds.h"

#include <stdint.h>

// 64-bit hash of a name, to be used as a stream.
uint64_t fsdp_random_stream(const char *name);

// Four independent 32-bit words for counter `index`.
void fsdp_random_words(uint64_t seed, uint64_t stream, uint64_t index, uint32_t words[4]);

// Standard normal number `index` of the stream (Box-Muller; one Philox block gives indices 4k .. 4k+3).
// Fills out[0 .. count) with numbers first .. first+count-1, so that any split of a tensor draws the same
// values.
void fsdp_random_normal(uint64_t seed, uint64_t stream, int64_t first, int64_t count, float mean,
                        float deviation, float *out);

// A bijection of [0, size): the image of `index` under the permutation keyed by (seed, stream), in O(1)
// memory (a balanced Feistel network over the next power of four, walked until it lands inside: Black and
// Rogaway 2002).
int64_t fsdp_random_permute(uint64_t seed, uint64_t stream, int64_t size, int64_t index);

// ---- Dropout by counter

// Which elements are dropped is a pure function of (seed, step, sequence, position, op, column): nothing is
// stored, and no mesh, split into micro-batches, recomputation or restart changes it.
//
//   the data source, for each row        two words: a hash of (seed, step, sequence in the step, position)
//   an op, for four columns of the row   Philox-4x32 keyed by the row's words and the op's, at counter
//                                        (head, column / 4): a word below the rate's limit drops its column
//
// The columns of attention's probabilities are the positions of keys, and each head has its own; other ops
// have head 0. A row whose first word is 0 drops nothing: evaluation. random_math.h has the op's part; its
// words are the stream of the path of the module whose output it drops.

// The words of a row, the first of which is odd.
void fsdp_dropout_row(uint64_t seed, int64_t step, int64_t sequence, int64_t position,
                      int32_t words[FSDP_DROPOUT_WORDS]);
