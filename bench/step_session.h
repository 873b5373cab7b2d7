// A training run for benches: a plan from the options of fsdp_train, new weights, the built-in text, a
// session of this rank. Its steps are run on session.executor.
#pragma once

#include "launcher/setup/setup.h"
#include "launcher/train/feed.h"
#include "runtime/exec/session.h"

typedef struct step_session {
  fsdp_setup setup;
  fsdp_dataset *dataset;
  fsdp_session session;
  fsdp_feed feed;
} step_session;

// Opens a run of `steps` steps. In a world every rank must call it. *s stays where it is until it is closed,
// which it may be whatever is returned. Errors as those of fsdp_setup_create and fsdp_session_create.
fsdp_status step_session_open(const fsdp_options *options, fsdp_world *world, int threads, int64_t steps,
                              step_session *s, fsdp_error *error);
// One that is all zeros is allowed.
void step_session_close(step_session *s);

// Tokens of a step, of all ranks.
int64_t step_session_tokens(const step_session *s);
