// --help: every option, in at most thirty lines by task, or with what each does.
#include "launcher/options/options.h"
#include "models/model.h"
#include "tests/support/unit_test.h"

#include <stdlib.h>
#include <string.h>

TEST(presets_in_the_help) {
  char help[32768] = "";
  FILE *out = fmemopen(help, sizeof help, "w");
  fsdp_options_print_help(FSDP_PROGRAM_TRAIN, FSDP_HELP_ALL, out);
  fclose(out);
  // Published sizes.
  const char *const wanted[] = {"tiny               0.804 million", "llama-1b            1.07 billion",
                                "llama2-7b           6.74 billion", "llama2-13b            13 billion",
                                "llama2-70b            69 billion", "llama3-8b           8.03 billion",
                                "llama3-70b          70.6 billion", "llama3-405b          406 billion"};
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
    if (!strstr(help, wanted[i])) fail_msg("no '%s' in: %s", wanted[i], help);
  const char *types = strstr(help, "folders of these model types: ");
  for (int i = 0; fsdp_model_type(i); i++) assert_true(types && strstr(types, fsdp_model_type(i)));
}

// Every option is in the help of its program, its name is unique, and its default is of its own
// kind.
TEST(table_and_help) {
  const fsdp_option_row *const table = fsdp_option_table;
  const fsdp_program_kind programs[] = {FSDP_PROGRAM_TRAIN, FSDP_PROGRAM_PLAN};
  for (int p = 0; p < 4; p++) {
    const bool all = p / 2;
    char *help = NULL;
    size_t bytes;
    int lines = 0;
    FILE *out = open_memstream(&help, &bytes);
    fsdp_options_print_help(programs[p % 2], all ? FSDP_HELP_ALL : FSDP_HELP_TASKS, out);
    fclose(out);
    for (int i = 0; table[i].name; i++) {
      char name[64];
      snprintf(name, sizeof name, table[i].knob ? "  %s=" : "--%s", table[i].name);
      bool has = !table[i].programs || (table[i].programs & (int)programs[p % 2]);
      if (!strstr(help, name) && has && (all || !table[i].knob)) fail_msg("no %s in:\n%s", name, help);
      if (table[i].knob && !all) assert_null(strstr(help, table[i].name));
    }
    for (const char *line = help; *line; line += strcspn(line, "\n") + 1, lines++)
      assert_true(strcspn(line, "\n") <= 110);
    assert_true(all || lines <= 30);
    free(help);
  }
  for (int i = 0; table[i].name; i++) {
    for (int j = 0; j < i; j++) {
      assert_string_not_equal(table[i].name, table[j].name);
      assert_true(!table[i].short_name || table[i].short_name != table[j].short_name);
    }
  }
}
