// --help.
#include "launcher/options/options.h"
#include "models/model.h"
#include "runtime/base/check.h"
#include "runtime/plan/text/option_table.h"

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
  int width = 0;
  for (int i = 0; (name = fsdp_model_preset_name(i)); i++)
    width = strlen(name) > (size_t)width ? (int)strlen(name) : width;
  fprintf(out, "\nPresets of --model, and their parameters:\n");
  for (int i = 0; (name = fsdp_model_preset_name(i)); i++) {
    fsdp_model_config config;
    fsdp_error error;
    FSDP_CHECK(fsdp_model_preset(name, &config, &error) == FSDP_OK, "preset %s", name);
    double count = (double)fsdp_model_parameter_count(&config);
    bool billions = count >= 1e9;
    fprintf(out, "  %-*s %6.3g %s\n", width, name, count / (billions ? 1e9 : 1e6),
            billions ? "billion" : "million");
  }
  fprintf(out, "It also takes Hugging Face folders of these model types:");
  for (int i = 0; (name = fsdp_model_type(i)); i++)
    fprintf(out, "%s%s", i == 0 ? " " : i % 6 ? ", " : ",\n  ", name);
  fputc('\n', out);
}

// Every option but knobs, by what one wants to do.
static const struct {
  const char *task, *options;
} tasks[] = {
    {"choose model and data", "model init data tokenizer resize-embeddings verify-data eval-data eval-split "
                              "eval-freq eval-at-start stop-after"},
    {"make rows of documents", "packing long-documents document-mask document-separator loss-mean"},
    {"set batch and length",
     "batch-size seq-length grad-accum num-epochs max-steps seed dropout attention-dropout"},
    {"see what it writes", "sample-every prompt prompt-tokens chat-template max-new-tokens temperature "
                           "top-p"},
    {"set the optimizer", "lr lr-schedule min-lr warmup-steps warmup-ratio lr-decay-ratio weight-decay decay "
                          "beta1 beta2 eps grad-clip"},
    {"balance experts", "router-aux-coef aux-loss router-z-coef router-bias-rate router-dtype "
                        "routing-record routing-replay"},
    {"choose what is sharded", "strategy wrap numel-to-wrap mesh tensor-parallel sequence-parallel "
                               "context-parallel expert-parallel expert-blocks expert-capacity imbalance "
                               "sharding shard "
                               "extra-data-axis op-strategies accumulate"},
    {"use less memory", "recompute offload-activations cpu-offload prefetch param-dtype reduce-dtype "
                        "master-dtype moment-dtype memory-limit host-memory-limit"},
    {"choose device and cores", "backend attention multiprocessors threads bind nccl-register"},
    {"let it be chosen", "auto search save-plan global-batch memory-margin profile"},
    {"save and resume", "experiment-name save-dir ckpt-freq ckpt-keep ckpt-best ckpt-async resume "
                        "resume-schedule overwrite"},
    {"write logs and pictures", "log log-freq rank-logs tensorboard memory-profile trace trace-steps"},
    {"find failures", "comm-timeout check-replicas skip-grad-norm max-skipped self-test"},
    {"look before running",
     "dry-run print-config ranks ranks-per-node price tokens gpu-hour machines compare json graph "
     "print-model print-program "
     "print-sharding print-strategies"},
    {"say it otherwise", "config set help version"},
};

// The next one of the names, which are separated by spaces, that the program has; NULL behind the last.
static const fsdp_option_row *next_row(const char **names, fsdp_program_kind program) {
  while (**names) {
    char name[64];
    const size_t length = strcspn(*names, " ");
    snprintf(name, sizeof name, "%.*s", (int)length, *names);
    *names += length + strspn(*names + length, " ");
    const fsdp_option_row *row = fsdp_option_find(name);
    FSDP_CHECK(row, "no option is called '%s'", name);
    if (fsdp_option_belongs(row, program)) return row;
  }
  return NULL;
}

static void print_tasks(fsdp_program_kind program, FILE *out) {
  fputc('\n', out);
  for (size_t i = 0; i < sizeof tasks / sizeof *tasks; i++) {
    char text[512] = "";
    const char *names = tasks[i].options;
    for (const fsdp_option_row *row; (row = next_row(&names, program));) {
      const size_t used = strlen(text);
      if (row->short_name)
        snprintf(text + used, sizeof text - used, "-%c,--%s ", row->short_name, row->name);
      else
        snprintf(text + used, sizeof text - used, "--%s ", row->name);
    }
    if (!*text) continue;
    fprintf(out, "  %-25s", tasks[i].task);
    print_wrapped(text, 27, 110, out);
  }
  fprintf(out,
          "\n--help all says what each does, its default, the presets of --model and the exit statuses.\n");
}

static void print_row(const fsdp_option_row *row, FILE *out) {
  enum { INDENT = 34, WIDTH = 110 };
  char left[96], help[512], letter[8] = "";
  if (row->short_name) snprintf(letter, sizeof letter, "-%c, ", row->short_name);
  if (row->knob)
    snprintf(left, sizeof left, "  %s=%s", row->name, row->argument);
  else
    snprintf(left, sizeof left, "  %s--%s%s%s%s", letter, row->name, row->bare ? "[=" : " ", row->argument,
             row->bare ? "]" : "");
  snprintf(help, sizeof help, row->fallback ? "%s (default: %s)" : "%s", row->help, row->fallback);
  if ((int)strlen(left) + 2 > INDENT)
    fprintf(out, "%s\n%*s", left, INDENT, "");
  else
    fprintf(out, "%-*s", INDENT, left);
  print_wrapped(help, INDENT, WIDTH, out);
}

static void print_knobs(fsdp_program_kind program, FILE *out) {
  fprintf(out, "\nKnobs of experiments, as in --set poison=on:\n");
  for (const fsdp_option_row *row = fsdp_option_table; row->name; row++)
    if (row->knob && fsdp_option_belongs(row, program)) print_row(row, out);
}

static void print_all(fsdp_program_kind program, FILE *out) {
  fprintf(out, "Numbers may be written 100000000, 100_000_000 or 1e8; sizes 80GB (10^9) or 80GiB (2^30).\n");
  for (size_t i = 0; i < sizeof tasks / sizeof *tasks; i++) {
    bool headed = false;
    const char *names = tasks[i].options;
    for (const fsdp_option_row *row; (row = next_row(&names, program));) {
      if (!headed) fprintf(out, "\nTo %s:\n", tasks[i].task);
      headed = true;
      print_row(row, out);
    }
  }
  print_knobs(program, out);
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

void fsdp_options_print_help(fsdp_program_kind program, fsdp_help help, FILE *out) {
  if (program == FSDP_PROGRAM_TRAIN)
    fprintf(
        out,
        "Usage: mpirun -np RANKS fsdp_train [options]\nTrains a language model, sharded over the ranks.\n");
  else if (program == FSDP_PROGRAM_EVAL)
    fprintf(out,
            "Usage: mpirun -np RANKS fsdp_eval --model DIR|-e NAME [--data FILE ...] [--prompt TEXT] "
            "[options]\nEvaluates a model, or the newest checkpoint of an experiment, on all of --data, and "
            "continues --prompt.\n");
  else
    fprintf(
        out,
        "Usage: fsdp_plan --ranks N [options]\nPlans a training step and prints what it costs, without ranks "
        "or a GPU.\n");
  if (help == FSDP_HELP_ALL)
    print_all(program, out);
  else
    print_tasks(program, out);
}
