// The scripts that messages tell a person to run, by the path under which they are there.
#pragma once

#define FSDP_PREPARE_DATA fsdp_script("prepare_data.py")

// "scripts/NAME" in a source tree; the whole path of an installed program's, which are in
// ../share/fsdp/scripts of its folder. `name` must be the same text of the program each time; the result
// lives as long as the program.
const char *fsdp_script(const char *name);
