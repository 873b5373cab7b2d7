// The command line of a program with a few options of its own. Those of training and planning: options.h.
#pragma once

#include "runtime/base/status.h"

#include <getopt.h>
#include <stdbool.h>

// Is given an option's `val` and its text, NULL without one; a failure ends the reading.
typedef fsdp_status (*fsdp_argument_take)(void *context, int option, const char *text, fsdp_error *error);

typedef struct fsdp_arguments {
  bool help, version; // asked for: what stands behind is not read
  char **words;       // what is no option, in `argv`
  int word_count;
} fsdp_arguments;

// The options that every such program has, and the end of a table of rows. Their values are reserved.
#define FSDP_ARGUMENTS_END                                                                                   \
  {"help", no_argument, NULL, 'h'}, {"version", no_argument, NULL, 'v'}, {                                   \
    NULL, 0, NULL, 0                                                                                         \
  }

// Reads by getopt_long, which moves the words in `argv` behind the options; `rows` end with
// FSDP_ARGUMENTS_END. FSDP_ERR_OPTION for an unknown option or a missing value, and what `take` returns.
fsdp_status fsdp_arguments_read(int argc, char **argv, const struct option *rows, fsdp_argument_take take,
                                void *context, fsdp_arguments *arguments, fsdp_error *error);
