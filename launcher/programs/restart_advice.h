// What the message of a run that is killed says about going on.
#pragma once

#include "launcher/options/options.h"
#include "runtime/watch/watch.h"

// "Start again with -e pride to resume from the newest checkpoint", or that nothing of the run was saved.
// Returns `out`.
const char *fsdp_restart_advice(const fsdp_options *options, char out[FSDP_WATCH_ADVICE_BYTES]);
