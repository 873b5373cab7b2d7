// The table of options: the one place that holds an option's name, type, range, default and meaning.
#pragma once

#include "runtime/plan/text/option_fields.h"
#include "runtime/plan/text/value.h"

#include <stddef.h>

typedef enum fsdp_option_kind {
  FSDP_OPTION_INT,
  FSDP_OPTION_SIZE,
  FSDP_OPTION_REAL,
  FSDP_OPTION_SHARE, // a real, which may be written as a percentage
  FSDP_OPTION_FLAG,
  FSDP_OPTION_CHOICE,
  FSDP_OPTION_TEXT,   // from here on the field is a text that the options own
  FSDP_OPTION_LIST,   // text: all words up to the next option, joined by commas
  FSDP_OPTION_REPEAT, // text: may be given several times; joined by semicolons
  FSDP_OPTION_WRAP,   // text of the form size|block|none|module:NAME,...
  FSDP_OPTION_MESH,   // text, and the axes that it says
  FSDP_OPTION_STEPS,  // text of the form A:B, and the two numbers
  FSDP_OPTION_SET     // text KEY=VALUE, each the name of a knob and its value; separated by semicolons
} fsdp_option_kind;

typedef struct fsdp_option_row {
  const char *name;
  char short_name; // 0: none
  fsdp_option_kind kind;
  size_t offset;        // of its field in fsdp_options
  const char *fallback; // the default as a user would type it; NULL: none
  int64_t low, high;    // INT and SIZE: allowed range, both ends in it
  double real_low, real_high;
  bool open_low, open_high;   // REAL and SHARE: whether an end is outside the range
  const fsdp_choice *choices; // CHOICE; INT: words for some of the numbers
  const char *argument;       // how the help names the value
  const char *bare;           // the value that the name alone stands for; NULL: it needs one
  int programs;               // fsdp_program_kind bits
  bool knob;                  // of experiments: given by --set alone
  const char *help;
  const char *otherwise; // what does what a refused value may have meant; NULL: nothing
} fsdp_option_row;

// The rows, in the order of the help, and one without a name at the end.
extern const fsdp_option_row fsdp_option_table[];

static inline int fsdp_option_index(const fsdp_option_row *row) {
  return (int)(row - fsdp_option_table);
}

// The row of that name, NULL if there is none.
const fsdp_option_row *fsdp_option_find(const char *name);

// Whether the name is one of `names`, which end with NULL.
bool fsdp_option_is_one_of(const char *name, const char *const *names);

// Whether the program has the option.
bool fsdp_option_belongs(const fsdp_option_row *row, fsdp_program_kind program);
