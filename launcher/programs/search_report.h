// What a search found, for a person and for a program.
#pragma once

#include "launcher/programs/search_batch.h"

#include <jansson.h>
#include <stdio.h>

// The answer, the plans with the commands that run them, then why other kinds lost. `options` are changed on
// the way: in the end they are those of the best plan.
fsdp_status fsdp_search_print(const fsdp_search_job *job, const fsdp_search_found *found,
                              fsdp_options *options, FILE *out, fsdp_error *error);

// {"plans": [{step_ms, draft_ms, estimate_ms, unhindered_ms, tokens_per_s, mfu, device_bytes, host_bytes,
// bound_by, hash, command, options}], "lost": [{kind, outcome, reason, ...}], "notes", "global_batch",
// "kinds", "drafts", "planned"}. A new reference.
fsdp_status fsdp_search_json(const fsdp_search_job *job, const fsdp_search_found *found,
                             fsdp_options *options, json_t **root, fsdp_error *error);
