// All ranks of a program run at once, with random delays: do they meet in the same order at every collective,
// and does every instruction complete? Each stream runs its instructions in order, independently of the
// others. An instruction starts when what it waits for is done on its rank. A collective joins its
// communicator's queue on its rank, and is done when it is first in the queues of all members.
#pragma once

#include "tests/support/random_program.h"

typedef enum meeting {
  MEETING_COMPLETE, // every rank finished
  MEETING_MISMATCH, // members met with different instructions
  MEETING_STUCK     // no instruction could start
} meeting;

// Two steps and, between them, the sections beside a step. For small programs.
meeting meet(const fsdp_program *program, random_source *random);
