// How many rounds of Philox-4x32 what is drawn takes. Seven are the fewest with which its authors found no
// failure in BigCrush; ten are their margin above that.
#pragma once

// New weights and the order of data: drawn once, so a margin costs nothing.
#define FSDP_RANDOM_ROUNDS 10

// Stochastic rounding: 16 bits for every element of every bf16 state in every step, where on a GPU the rounds
// and not memory would take the time. The name is in every checkpoint.
#define FSDP_ROUNDING_ROUNDS    7
#define FSDP_ROUNDING_GENERATOR "philox-4x32-7"

// Dropout: a word for every element of the activations that it drops, likewise.
#define FSDP_DROPOUT_ROUNDS  7
#define FSDP_DROPOUT_WORDS   2 // of a row
#define FSDP_DROPOUT_COLUMNS 4 // that one draw decides
