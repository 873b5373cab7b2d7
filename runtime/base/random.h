// Counter-based random numbers: Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
// 2011).
//
// A number is a pure function of (seed, stream, index), so that an initialisation or a data order never
// depends on world size, strategy, wrapping or threads. A stream is a hash of a name (a parameter's, "data
// order", ...).
#pragma once

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
