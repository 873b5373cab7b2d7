// Whether attention stays within documents.
#pragma once

#include "launcher/options/options.h"
#include "runtime/plan/plan.h"

#include <stdbool.h>

// --document-mask, or without it: whether a file of --data or --eval-data tells where its documents begin, on a
// CPU (plan.c: check_documents).
bool fsdp_documents_choose(const fsdp_options *options, const fsdp_plan_backend *backend);
