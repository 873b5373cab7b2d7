// All ranks of a program run at once, with random delays: do they meet in the same order at every collective,
// and does everything come to an end? Streams run their instructions in order, each by itself; an
// instruction starts when what it waits for has been done on its rank; a collective joins its communicator's
// queue on its rank and is done when it is first in the queues of all members.
#pragma once

#include "tests/support/random_program.h"

typedef enum meeting {
  MEETING_COMPLETE, // every rank did everything
  MEETING_MISMATCH, // members met with different instructions
  MEETING_STUCK     // nothing could go on
} meeting;

// Two steps and, between them, whatever sections lie beside a step. For small programs.
meeting meet(const fsdp_program *program, random_source *random);
