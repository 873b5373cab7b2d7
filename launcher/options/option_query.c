#include "launcher/options/option_query.h"

#include "launcher/options/option_store.h"
#include "runtime/base/check.h"

#include <stdio.h>
#include <string.h>

bool fsdp_options_given(const fsdp_options *options, const char *name) {
  const fsdp_option_row *row = fsdp_option_find(name);
  FSDP_CHECK(row, "no option is called '%s'", name);
  return options->place[fsdp_option_index(row)][0] != 0;
}

const char *fsdp_options_place(const fsdp_options *options, const char *name) {
  if (!fsdp_options_given(options, name)) return "default";
  return options->place[fsdp_option_index(fsdp_option_find(name))];
}

char *fsdp_options_value(const fsdp_options *options, const fsdp_option_row *row) {
  FSDP_CHECK(row, "no option has this name");
  char *text = NULL;
  size_t bytes = 0;
  FILE *out = open_memstream(&text, &bytes);
  FSDP_NEED_MEMORY(out, "an option's value");
  fsdp_option_print(options, row, out);
  fclose(out);
  return text;
}

fsdp_wrap_policy fsdp_options_wrap(const fsdp_options *options) {
  fsdp_wrap_policy policy = {.kind = FSDP_WRAP_SIZE, .numel = options->numel_to_wrap};
  bool known = fsdp_value_wrap(options->wrap, &policy);
  FSDP_CHECK(known, "--wrap %s", options->wrap);
  return policy;
}

bool fsdp_options_evaluate(const fsdp_options *options) {
  return options->eval_data || options->eval_split > 0;
}

// Whether a person gave it: what --auto chose needs no note.
static bool typed(const fsdp_options *options, const char *name) {
  return fsdp_options_given(options, name) && strcmp(fsdp_options_place(options, name), "--auto") != 0;
}

bool fsdp_options_note(const fsdp_options *options, int index, char *note, int note_bytes) {
  if (*options->aliases && index-- == 0) {
    snprintf(note, (size_t)note_bytes, "%s", options->aliases);
    return true;
  }
  bool unused = typed(options, "numel-to-wrap") && strcmp(options->wrap, "size") != 0;
  if (unused && index-- == 0) {
    snprintf(note, (size_t)note_bytes,
             "--numel-to-wrap (%s) is the threshold of --wrap size; --wrap %s (%s) does not use it",
             fsdp_options_place(options, "numel-to-wrap"), options->wrap,
             fsdp_options_place(options, "wrap"));
    return true;
  }
  bool no_sequence = typed(options, "sequence-parallel") && options->sequence_parallel &&
                     options->tensor_parallel == 1 &&
                     fsdp_mesh_size(&options->mesh_axes, FSDP_AXIS_TENSOR) == 1;
  if (no_sequence && index-- == 0) {
    snprintf(
        note, (size_t)note_bytes,
        "--sequence-parallel (%s) has no effect: the mesh's axis tensor has one rank (--tensor-parallel)",
        fsdp_options_place(options, "sequence-parallel"));
    return true;
  }
  bool nothing_to_add = typed(options, "accumulate") && options->accumulate == FSDP_ACCUMULATE_LOCAL &&
                        options->grad_accum == 1;
  if (nothing_to_add && index-- == 0) {
    snprintf(note, (size_t)note_bytes,
             "--accumulate local (%s) has no effect: there is one micro-batch per step (--grad-accum 1)",
             fsdp_options_place(options, "accumulate"));
    return true;
  }
  return false;
}
