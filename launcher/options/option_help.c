// --help.
#include "launcher/options/option_table.h"
#include "launcher/options/options.h"
#include "models/model.h"
#include "runtime/base/check.h"

#include <string.h>

// Prints `text` in lines of `width` columns, every line but the first behind `indent` spaces.
static void print_wrapped(const char *text, int indent, int width, FILE *out) {
  int column = indent;
  while (*text) {
    int length = (int)strcspn(text, " ");
    if (column > indent && column + 1 + length > width) {
      fprintf(out, "\n%*s", indent, "");
      column = indent;
    }
    column += fprintf(out, "%s%.*s", column > indent ? " " : "", length, text);
    text += length;
    text += strspn(text, " ");
  }
  fputc('\n', out);
}

static void print_presets(FILE *out) {
  const char *name;
  fprintf(out, "\nPresets of --model, and their parameters:\n");
  for (int i = 0; (name = fsdp_model_preset_name(i)); i++) {
    fsdp_model_config config;
    fsdp_error error;
    FSDP_CHECK(fsdp_model_preset(name, &config, &error) == FSDP_OK, "preset %s", name);
    double count = (double)fsdp_model_parameter_count(&config);
    bool billions = count >= 1e9;
    fprintf(out, "  %-12s %6.3g %s\n", name, count / (billions ? 1e9 : 1e6),
            billions ? "billion" : "million");
  }
  fprintf(out, "It also takes Hugging Face folders of these model types:");
  for (int i = 0; (name = fsdp_model_type(i)); i++) fprintf(out, "%s %s", i ? "," : "", name);
  fputc('\n', out);
}

void fsdp_options_print_help(fsdp_program_kind program, FILE *out) {
  if (program == FSDP_PROGRAM_TRAIN) {
    fprintf(
        out,
        "Usage: mpirun -np RANKS fsdp_train [options]\nTrains a language model, sharded over the ranks.\n");
  } else {
    fprintf(
        out,
        "Usage: fsdp_plan --ranks N [options]\nPlans a training step and prints what it costs, without ranks "
        "or a GPU.\n");
  }
  fprintf(out,
          "Numbers may be written 100000000, 100_000_000 or 1e8; sizes 80GB (10^9) or 80GiB (2^30).\n\n");
  int count;
  const fsdp_option_row *table = fsdp_option_table(&count);
  for (int i = 0; i < count; i++) {
    if (!fsdp_option_belongs(&table[i], program)) continue;
    char left[96], help[512];
    char letter[8] = "";
    if (table[i].short_name) snprintf(letter, sizeof letter, "-%c, ", table[i].short_name);
    bool flag = table[i].kind == FSDP_OPTION_FLAG;
    snprintf(left, sizeof left, "  %s--%s%s%s%s", letter, table[i].name, flag ? "[=" : " ", table[i].argument,
             flag ? "]" : "");
    const char *fallback = table[i].fallback;
    snprintf(help, sizeof help, fallback ? "%s (default: %s)" : "%s", table[i].help, fallback);
    enum { INDENT = 34, WIDTH = 110 };
    if ((int)strlen(left) + 2 > INDENT) {
      fprintf(out, "%s\n%*s", left, INDENT, "");
    } else {
      fprintf(out, "%-*s", INDENT, left);
    }
    print_wrapped(help, INDENT, WIDTH, out);
  }
  print_presets(out);

  fprintf(out,
          "\nNames may be written with underscores (--batch_size), and those of other trainers are accepted "
          "if they mean\nthe same (--learning-rate, --num_train_epochs, --gradient-checkpointing). The "
          "same holds "
          "in YAML files.\n");
  fprintf(out, "\nExit status: 0 done, 2 a bad option, 3 a bad input file, 4 does not fit, 5 a device or "
               "peer failed,\n"
               "6 the loss or the gradient's norm is not finite, 130 or 143 stopped by a signal and saved.\n"
               "mpirun returns a rank's status, but 1 if it is sent SIGINT or SIGTERM: send it SIGUSR1.\n");
}
