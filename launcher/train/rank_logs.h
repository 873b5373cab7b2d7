// --rank-logs: every rank's output in a file of its own, beside the terminal, and the error file of the job.
//
//   stdout ─► pipe ─┬► the terminal (what mpirun reads)
//   stderr ─► pipe ─┴► FOLDER/rank-N.log       by a small process of its own, which ends at the end of both:
//                                               what a rank printed before it was killed is in its file
//   first failure ──► FOLDER/error.json         (runtime/comm/error_file.h)
#pragma once

#include "runtime/comm/world.h"

// From here on. Files are appended to, so that a restarted run keeps them; error.json of an earlier run is
// removed. Every rank must call it; FSDP_ERR_INPUT, on every rank alike, where the folder cannot be written.
fsdp_status fsdp_rank_logs_open(const char *folder, fsdp_world *world, fsdp_error *error);

// Before the end of a run that failed with `error`, on every rank: the one that failed writes the error file.
void fsdp_rank_logs_note(const fsdp_world *world, const fsdp_error *error);
