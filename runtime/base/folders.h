// Folders that a path names, made with those above them.
#pragma once

#include <stdbool.h>

// Makes the folder and those above it that are not there; false with the reason in errno.
bool fsdp_make_folders(const char *path);

// Makes the folders above what `path` names; false with the reason in errno.
bool fsdp_make_parents(const char *path);
