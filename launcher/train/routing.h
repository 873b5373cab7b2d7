// The experts that routers choose, in a file: written by a run (--routing-record), and given to another one
// in the place of its own choice (--routing-replay). Weights of experts stay the model's own.
//
//   96 bytes  "fsdprout", then int64: version 2, layers with experts L, experts of a token k, experts E,
//             tokens of a sequence, sequences of a step; the data's fingerprint (0: not known, so that this
//             and the next three are not compared), --seed, samples held out, steps by which the place in the
//             data is ahead of the run's; steps of the run before the record's first
//   uint16    (steps, sequences, tokens, L, k)
//
// Version 1, which is replayed too, says nothing of the data and has 64 bytes.
// Little-endian. Sequences are in the order of the step's samples, whatever the ranks. A record is written as
// FILE.tmp, which takes its name when the run ends. A run that resumes continues the record that has the
// steps before; where there is none, its record begins with its own first step.
#pragma once

#include "runtime/base/status.h"
#include "runtime/data/sampler.h"
#include "runtime/plan/plan.h"

typedef struct fsdp_routing fsdp_routing;

typedef struct fsdp_routing_config {
  const char *path; // of a record it outlives the routing
  const fsdp_plan *plan;
  const fsdp_sampler *sampler;
  uint64_t data;      // its fingerprint; known, as the next two, where a run begins
  int64_t shift;      // of a step's number to its place in the data
  int64_t first_step; // steps before this start's first
  int64_t steps;      // of the whole run: as many are read
} fsdp_routing_config;

// A file that is there and no record would be lost: FSDP_ERR_INPUT.
fsdp_status fsdp_routing_check_path(const char *path, fsdp_error *error);

// Rank 0 calls the first, and all ranks then the second. FSDP_ERR_INPUT. *kept_from: the steps before the
// first one of the record that is continued; first_step if there is none. A file that cannot be continued is
// refused where there are steps before, as it would be lost.
fsdp_status fsdp_routing_begin_record(const fsdp_routing_config *config, int64_t *kept_from,
                                      fsdp_error *error);
fsdp_status fsdp_routing_open_record(const fsdp_routing_config *config, fsdp_routing **routing,
                                     fsdp_error *error);

// Why a row of this rank could not be written, an errno; 0 if all were.
int fsdp_routing_failure(const fsdp_routing *routing);

// When all ranks have written what they will, rank 0 gives the record its name, or removes it if `failure`,
// the greatest of the ranks', is not 0. FSDP_ERR_INPUT: there is none, and an earlier one is as it was.
fsdp_status fsdp_routing_end_record(fsdp_routing *routing, int failure, fsdp_error *error);
// A file of the model's shape up to the run's last step; and, where the run begins, whether it is of the same
// tokens and has the steps from there on. FSDP_ERR_INPUT.
fsdp_status fsdp_routing_open_replay(const fsdp_routing_config *config, fsdp_routing **routing,
                                     fsdp_error *error);
fsdp_status fsdp_routing_check_start(const fsdp_routing *routing, const fsdp_routing_config *config,
                                     fsdp_error *error);
void fsdp_routing_close(fsdp_routing *routing); // NULL is allowed

// The router whose counts an instruction takes, from 0; -1: it takes none.
int64_t fsdp_routing_layer_of(const fsdp_routing *routing, const fsdp_instr *instr);

// Writes the k experts of a position of a sequence in a layer; nothing more once that has failed.
void fsdp_routing_write(fsdp_routing *routing, int64_t step, int64_t sequence, int64_t position,
                        int64_t layer, const int32_t *experts);

// The L * k experts of a position.
void fsdp_routing_read(const fsdp_routing *routing, int64_t step, int64_t sequence, int64_t position,
                       int32_t *experts);

// Numbers of a row.
int64_t fsdp_routing_width(const fsdp_routing *routing);
