// What is worth knowing before the first step, and what looks like a mistake but is allowed.
#include "launcher/report.h"
#include "launcher/trainer.h"

#include <inttypes.h>

static void print_note(const char *text) {
  printf("note:      %s\n", text);
}

// Whether, and why not, anything of the run will be on the disk.
static void note_saving(const fsdp_trainer *t) {
  if (!t->options->experiment) {
    print_note("nothing will be saved: name the experiment with -e NAME");
  } else if (t->options->ckpt_freq == 0) {
    char text[192];
    snprintf(text, sizeof text, "nothing will be saved: --ckpt-freq 0 (%s)",
             fsdp_options_place(t->options, "ckpt-freq"));
    print_note(text);
  }
}

static void warn_of_options(const fsdp_trainer *t) {
  const fsdp_options *o = t->options;
  if (o->warmup_steps > t->total_steps) {
    fprintf(stderr,
            "fsdp_train: warning: --warmup-steps %" PRId64 " (%s) is longer than the run's %" PRId64
            " steps: the learning rate only rises and ends at %.3g, below --lr %g\n",
            o->warmup_steps, fsdp_options_place(o, "warmup-steps"), t->total_steps,
            fsdp_learning_rate_at(&t->feed.config.rate, t->total_steps - 1), o->lr);
  }
  if (o->threads > t->placement->core_count) {
    fprintf(stderr,
            "fsdp_train: warning: --threads %" PRId64
            " (%s) is more than the %d core%s of a rank: threads that "
            "wait for each other take turns, which is slow\n",
            o->threads, fsdp_options_place(o, "threads"), t->placement->core_count,
            t->placement->core_count == 1 ? "" : "s");
  }
}

void fsdp_train_print_notes(const fsdp_trainer *t) {
  const fsdp_plan *made = t->setup.plan;
  char text[512];
  note_saving(t);
  if (made->config.seq > made->config.model.max_position_embeddings) {
    snprintf(text, sizeof text,
             "sequences of %" PRId64 " tokens are longer than the %" PRId64
             " positions that the model was made for",
             made->config.seq, made->config.model.max_position_embeddings);
    print_note(text);
  }
  if (fsdp_setup_note(t->options, made, text, sizeof text)) print_note(text);
  for (int i = 0; fsdp_options_note(t->options, i, text, (int)sizeof text); i++) print_note(text);
  if (fsdp_report_hint(made, text, sizeof text)) printf("hint: %s\n", text);
  fflush(stdout);
  warn_of_options(t);
}
