// Configurations of models that a test makes field by field.
#pragma once

#include "models/model.h"

// The family of the preset `name`.
const fsdp_family *family_of_preset(const char *name);
