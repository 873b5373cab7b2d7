// YAML documents in files.
#pragma once

#include "runtime/plan/text/yaml_document.h"

// As fsdp_yaml_visit, of the file source->path; the source has no text. FSDP_ERR_INPUT if it cannot be opened
// or read; `bad` if it has more than 64 MiB.
fsdp_status fsdp_yaml_visit_file(const fsdp_yaml_source *source, fsdp_yaml_visitor visitor, void *context,
                                 fsdp_error *error);
