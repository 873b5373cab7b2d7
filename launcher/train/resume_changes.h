// Which options differ from those that a checkpoint was saved with.
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

// "--lr 0.002 → 0.001, --data a.txt → b.txt" into `out`, cut off if it is too short; false if nothing
// of consequence differs. `saved` is the checkpoint's object of options, `current` fsdp_options_describe's
// text; `data_differs` says whether the contents of --data differ. An option that one side does not have
// (a different version of the program) is not compared.
bool fsdp_resume_changes(const json_t *saved, const char *current, bool data_differs, char *out,
                         size_t out_bytes);

// The options that are not compared: they change no number, or the rounding alone. Ends with NULL.
const char *const *fsdp_resume_unchanging(void);
