// Options as other trainers call them: accepted if they mean the same as one of ours, and otherwise
// answered with what to use instead.
#pragma once

typedef struct fsdp_option_alias {
  const char *alias;
  const char *name; // the option of the same meaning; NULL: there is none, see `advice`
  const char *on,
      *off;           // the alias is a flag, whose two states are these values of the option; NULL: it is not
  const char *advice; // what to use instead, as a clause
  const char *script; // with which advice ends (runtime/base/paths.h); NULL: none
} fsdp_option_alias;

// The alias of that name, which is written with dashes; NULL if there is none.
const fsdp_option_alias *fsdp_option_alias_find(const char *name);

// All of them.
const fsdp_option_alias *fsdp_option_alias_table(int *count);
