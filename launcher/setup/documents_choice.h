// Whether the data is there, and whether attention stays within its documents.
#pragma once

#include "launcher/options/options.h"
#include "runtime/base/status.h"

#include <stdbool.h>

// --document-mask, or without it: whether a file of --data or --eval-data tells where its documents begin.
bool fsdp_documents_choose(const fsdp_options *options);

// A plan does not depend on the data, but what is asked for with it should be there: FSDP_ERR_INPUT if a file
// of --data or --eval-data is not.
fsdp_status fsdp_documents_find(const fsdp_options *options, fsdp_error *error);
