// Folders that a path names, made with those above them, and the scripts that messages tell a person to run.
#pragma once

#include <stdbool.h>

// Whether FOLDER/NAME is there.
bool fsdp_has_file(const char *folder, const char *name);

// Makes the folder and those above it that are not there; false with the reason in errno.
bool fsdp_make_folders(const char *path);

// Makes the folders above what `path` names; false with the reason in errno.
bool fsdp_make_parents(const char *path);

#define FSDP_PREPARE_DATA fsdp_script("prepare_data.py")

// The whole path of an installed program's, which are in ../share/fsdp/scripts of its folder, or of those of
// the source tree; "scripts/NAME" if the program is run in that tree. It is this thread's until it asks for
// another one's.
const char *fsdp_script(const char *name);
