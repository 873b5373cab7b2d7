// --rank-logs: every rank's output in a file of its own, beside the terminal, and the error file of the job.
//
//   stdout ─► pipe ─┐           ┌─► the terminal (what mpirun reads)
//   stderr ─► pipe ─┴► divider ─┴─► pipe ─► writer ─► FOLDER/rank-N.log
//   fault messages ──► the terminal, and the same pipe (runtime/base/job.h)
//   first failure ───► FOLDER/error.json               (runtime/watch/error_file.h)
//
// Divider and writer are small processes of their own, so that what a rank printed before it was killed is in
// its file. The writer alone touches the disk, and no process waits for it: what a slow disk does not take is
// left out of the file, which says so. A disk that is full is one warning on the terminal.
#pragma once

#include "runtime/comm/world.h"

// From here on. Files are appended to, so that a restarted run keeps them; error.json of an earlier run is
// removed. Every rank must call it; FSDP_ERR_INPUT, on every rank alike, if the folder cannot be written.
fsdp_status fsdp_rank_logs_open(const char *folder, fsdp_world *world, fsdp_error *error);

// Before the end of a run that failed with `error`, on every rank: the one that failed writes the error file.
void fsdp_rank_logs_note(const fsdp_world *world, const fsdp_error *error);
