// A search with the global batch that it is for, and what would be much faster than its best plan.
#pragma once

#include "launcher/setup/search_setup.h"

#define FSDP_SEARCH_NOTE_BYTES 320
#define FSDP_SEARCH_NOTES_MAX  4

typedef struct fsdp_search_found {
  fsdp_search_result result;
  // How the global batch was chosen, and options with which tokens per second would be many more.
  char notes[FSDP_SEARCH_NOTES_MAX][FSDP_SEARCH_NOTE_BYTES];
  int note_count;
  int64_t steps; // of the run whose length the options say; 0: they do not
} fsdp_search_found;

// Runs the search. Where `options` fix no batch (--global-batch, --batch-size, --grad-accum), the global
// batch is the least power of two times the ranks (or part of them) with which tokens per second are within
// 5% of what they are with about 4 million tokens a step (or fewer, as the data fill and --tokens allows),
// the most that is tried: larger steps amortise gathers and updates, but train on fewer steps. Tokens per
// second are taken to rise with the batch, so that it is found by bisection. job->config.global_batch is
// what was chosen. If the best plan then has less than 60% of what bf16 states and reductions, or that
// largest batch, give, a note says so. Errors as fsdp_search_run, fsdp_search_fail_unfit if nothing fits,
// and fsdp_run_length_find. The caller releases found->result.
fsdp_status fsdp_search_find(const fsdp_options *options, fsdp_search_job *job, fsdp_search_found *found,
                             fsdp_error *error);
