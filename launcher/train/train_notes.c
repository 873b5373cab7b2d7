// What is worth knowing before the first step, and what looks like a mistake but is allowed.
#include "launcher/options/run_options.h"
#include "launcher/report/plan_notes.h"
#include "launcher/report/report.h"
#include "launcher/setup/setup_notes.h"
#include "launcher/setup/sharding_file.h"
#include "launcher/train/replicas.h"
#include "launcher/train/trainer.h"
#include "runtime/base/size.h"
#include "runtime/base/text.h"
#include "runtime/plan/text/mesh_choice.h"

#include <inttypes.h>
#include <string.h>

static void print_note(const char *text) {
  printf("note:      %s\n", text);
}

// Whether, and why not, anything of the run will be on the disk.
static void note_checkpoints(const fsdp_trainer *t) {
  if (!t->options->experiment)
    print_note("nothing will be saved: name the experiment with -e NAME");
  else if (t->options->ckpt_freq == 0)
    printf("note:      nothing will be saved: --ckpt-freq 0 (%s)\n",
           fsdp_options_place(t->options, "ckpt-freq"));
}

// What the user may believe that this run has of an earlier one.
static void note_beginning(const fsdp_trainer *t) {
  const fsdp_options *o = t->options;
  if (o->dry_run) return; // which does not look for checkpoints
  if (o->run_left_out) {
    char path[FSDP_TRAIN_PATH_BYTES];
    fsdp_run_options_path(o, path, sizeof path);
    printf("note:      --resume off (%s) begins with the defaults: of %s is left out %s\n",
           fsdp_options_place(o, "resume"), path, o->run_left_out);
  }
  const bool starts_over = strcmp(o->resume, "off") == 0;
  const bool has_begun = starts_over || o->run_note || fsdp_train_checkpoints_found(&t->checkpoints);
  if (o->experiment && !has_begun && !fsdp_options_given(o, "model") && !fsdp_options_given(o, "data")) {
    char question[FSDP_NEAREST_TEXT];
    fsdp_run_options_near(o, question);
    printf("note:      %s/%s is new%s: without --model and --data it trains %s on the built-in text\n",
           o->save_dir, o->experiment, question, t->setup.model_name);
  }
}

// A schedule that a change has unintentionally left at its end: the last steps of an unchanged
// run have rates as low.
static void warn_of_ended_schedule(const fsdp_trainer *t) {
  const fsdp_learning_rate *rate = &t->feed.config.rate;
  int64_t first = t->feed.first_step, warm = rate->first_step + rate->warmup_steps;
  if (!t->checkpoints.changed || first >= t->total_steps) return;
  // It rises to the end of the warm-up and falls from there.
  int64_t top = fsdp_max_i64(first, fsdp_min_i64(warm, t->total_steps - 1));
  double greatest = fsdp_learning_rate_at(rate, top);
  if (greatest >= t->options->lr / 100) return;
  fprintf(stderr,
          "fsdp_train: warning: the learning rate of the remaining %" PRId64
          " step%s is at most %.3g, below 1%% "
          "of --lr %g: the schedule is near its end; --resume-schedule restart begins a new one\n",
          t->total_steps - first, fsdp_plural(t->total_steps - first), greatest, t->options->lr);
}

// A pattern of --data easily matches the files of --eval-data too.
static void warn_of_trained_evaluation(const fsdp_trainer *t) {
  const char *first;
  int common = fsdp_data_paths_common(&t->eval_paths, &t->data_paths, &first);
  if (common == 0) return;
  fprintf(
      stderr,
      "fsdp_train: warning: %d file%s of --eval-data (%s%s) %s in --data too: they are trained on, so the "
      "evaluation says little\n",
      common, fsdp_plural(common), first, common > 1 ? ", ..." : "", common > 1 ? "are" : "is");
}

// What --eval-split holds out of a file that is given twice is trained on by its other samples.
static void warn_of_repeated_files(const fsdp_trainer *t) {
  const char *paths[2];
  if (t->options->eval_split <= 0) return;
  int repeated = fsdp_data_paths_repeated(&t->data_paths, paths);
  if (repeated == 0) return;
  fprintf(
      stderr,
      "fsdp_train: warning: --data has %.300s%s more than once: what --eval-split (%s) holds out is trained "
      "on too, so the evaluation says little; give each file once, or --eval-data FILE\n",
      paths[1], repeated > 1 ? " and other files" : "", fsdp_options_place(t->options, "eval-split"));
}

// What may be meant, a file that weighs twice as much, or 1 for a sample.
static void note_data(const fsdp_trainer *t) {
  const char *paths[2];
  const int repeated = fsdp_data_paths_repeated(&t->data_paths, paths);
  if (repeated > 0)
    printf("note:      --data has %.300s%s more than once: an epoch learns it as often\n", paths[1],
           repeated > 1 ? " and other files" : "");
  if (t->options->eval_split == 1)
    printf("note:      --eval-split 1 (%s) holds out 1 sample: a fraction is below 1\n",
           fsdp_options_place(t->options, "eval-split"));
}

// Its loss is of two things then: what was learned, and how it is asked for.
static void warn_of_other_template(const fsdp_trainer *t) {
  int64_t bytes = 0, eval_bytes = 0;
  const char *template = fsdp_dataset_chat_template(t->dataset, &bytes);
  const char *of_eval = t->eval_dataset ? fsdp_dataset_chat_template(t->eval_dataset, &eval_bytes) : NULL;
  if (!template || !of_eval || (bytes == eval_bytes && !memcmp(template, of_eval, (size_t)bytes))) return;
  fprintf(stderr,
          "fsdp_train: warning: --eval-data %.300s (%s) was prepared with a different --chat-template than "
          "--data, so the evaluation says little; prepare both with the same one\n",
          t->options->eval_data, fsdp_options_place(t->options, "eval-data"));
}

// A .bin does not name its tokenizer, but the width of its tokens excludes some.
static void warn_of_narrow_tokens(const fsdp_trainer *t) {
  const char *path = fsdp_dataset_narrow_file(t->dataset);
  if (!path && t->eval_dataset) path = fsdp_dataset_narrow_file(t->eval_dataset);
  if (!path) return;
  fprintf(stderr,
          "fsdp_train: warning: %s: has uint16 tokens, but the model has %" PRId64
          ": it was made with another tokenizer, or tokens above 65535 were cut off\n",
          path, t->setup.plan->config.model.vocab_size);
}

// Then the file is one document.
static void warn_of_missing_separator(const fsdp_trainer *t) {
  const fsdp_options *o = t->options;
  const char *path;
  fsdp_dataset_takes_separator(t->dataset, &path);
  if (!path && t->eval_dataset) fsdp_dataset_takes_separator(t->eval_dataset, &path);
  if (path)
    fprintf(stderr,
            "fsdp_train: warning: %s: has no token %" PRId64
            ", so it is one document: give the one that ends its documents with --document-separator (%s)\n",
            path, o->document_separator, fsdp_options_place(o, "document-separator"));
}

static int percent(int64_t part, int64_t whole) {
  return (int)(100.0 * (double)part / (double)whole + 0.5);
}

// What of the data makes no difference to the model.
static void warn_of_lost_tokens(const fsdp_trainer *t) {
  const fsdp_dataset_totals all = t->dataset->totals;
  const int64_t padding = all.positions - all.real, whole = all.learned + all.cut_learned;
  const int64_t samples = t->dataset->sample_count;
  if (5 * padding > all.positions)
    fprintf(stderr,
            "fsdp_train: warning: %d%% of what is computed is padding: a row has %" PRId64
            " tokens on average, and --seq-length (%s) is %" PRId64 "; lower it%s\n",
            percent(padding, all.positions), all.real / samples, fsdp_options_place(t->options, "seq-length"),
            t->options->seq,
            t->dataset->how.packing == FSDP_PACKING_OFF ? ", or use --packing best-fit" : "");
  const bool prompts = fsdp_dataset_learns_parts(t->dataset),
             drops = t->options->long_documents == FSDP_LONG_DROP;
  if (all.left_out > 0)
    fprintf(stderr,
            "fsdp_train: warning: %s of %s samples are left out, for none of their targets counts: %s, which "
            "are not learned, fill them; raise --seq-length (%s)%s\n",
            fsdp_print_int(all.left_out).text, fsdp_print_int(samples + all.left_out).text,
            prompts ? "prompts" : "documents' first tokens", fsdp_options_place(t->options, "seq-length"),
            prompts ? ", or prepare the data with --mask-prompt off" : "");
  if (20 * all.cut_learned > whole)
    fprintf(stderr,
            "fsdp_train: warning: %s of the %s tokens to learn (%d%%) %s %" PRId64
            " %s: raise --seq-length (%s), or use --long-documents split\n",
            fsdp_print_int(all.cut_learned).text, fsdp_print_int(whole).text, percent(all.cut_learned, whole),
            drops ? "are of documents of more than" : "lie behind the first", t->options->seq,
            drops ? "and are left out" : "of their documents and are cut off",
            fsdp_options_place(t->options, "seq-length"));
}

static bool is_stream(const fsdp_dataset *dataset) {
  return dataset->how.packing == FSDP_PACKING_STREAM;
}

// Of documents of which parts alone are learned, as of conversations: an answer without its question.
static void warn_of_split_documents(const fsdp_trainer *t) {
  const fsdp_options *o = t->options;
  int64_t documents;
  if (!fsdp_dataset_learns_parts(t->dataset)) return;
  const int64_t split = fsdp_dataset_split_count(t->dataset, &documents);
  if (20 * split <= documents) return;
  if (is_stream(t->dataset))
    fprintf(stderr,
            "fsdp_train: warning: %s of %s documents are split by the rows of a stream: what is learned in a "
            "further part does not see the parts before it; leave --packing stream (%s) out\n",
            fsdp_print_int(split).text, fsdp_print_int(documents).text, fsdp_options_place(o, "packing"));
  else
    fprintf(stderr,
            "fsdp_train: warning: %s documents are longer than --seq-length %" PRId64
            " (%s) and split: what is learned in a further part does not see the parts before it; raise "
            "--seq-length, or use --long-documents cut or drop\n",
            fsdp_print_int(split).text, o->seq, fsdp_options_place(o, "seq-length"));
}

static void warn_of_options(const fsdp_trainer *t) {
  const fsdp_options *o = t->options;
  const fsdp_learning_rate *rate = &t->feed.config.rate;
  const int64_t steps = t->total_steps - rate->first_step, left = steps - rate->warmup_steps;
  if (steps > 0 && o->warmup_steps > steps) {
    fprintf(stderr,
            "fsdp_train: warning: --warmup-steps %" PRId64 " (%s) is longer than the run's %" PRId64
            " step%s: the learning rate only rises and ends at %.3g, below --lr %g\n",
            o->warmup_steps, fsdp_options_place(o, "warmup-steps"), steps, fsdp_plural(steps),
            fsdp_learning_rate_at(rate, t->total_steps - 1), o->lr);
  }
  if (rate->schedule == FSDP_LR_WSD && left >= 0 && rate->decay_ratio * (double)steps >= (double)left + 1) {
    fprintf(stderr,
            "fsdp_train: warning: --lr-decay-ratio %g%% (%s) of the run's %" PRId64
            " steps is more than the %" PRId64
            " behind the warm-up: the learning rate decays in these alone; lower it, or the warm-up\n",
            100 * rate->decay_ratio, fsdp_options_place(o, "lr-decay-ratio"), steps, left);
  }
  if (o->threads > t->binding->core_count) {
    fprintf(stderr,
            "fsdp_train: warning: --threads %" PRId64
            " (%s) is more than the %d core%s of a rank: threads that "
            "wait for each other take turns, which is slow\n",
            o->threads, fsdp_options_place(o, "threads"), t->binding->core_count,
            fsdp_plural(t->binding->core_count));
  }
}

// Options of documents that nothing of the data takes.
static void note_documents(const fsdp_trainer *t) {
  const fsdp_options *o = t->options;
  if (o->long_documents != FSDP_LONG_SPLIT && is_stream(t->dataset) &&
      (!t->eval_dataset || is_stream(t->eval_dataset)))
    printf("note:      --long-documents %s (%s) has no effect: rows are a stream (--packing)\n",
           o->long_documents == FSDP_LONG_CUT ? "cut" : "drop", fsdp_options_place(o, "long-documents"));
  const char *without;
  const bool ends_samples = o->sample_every > 0;
  if (o->document_separator >= 0 && !ends_samples && !fsdp_dataset_takes_separator(t->dataset, &without) &&
      !(t->eval_dataset && fsdp_dataset_takes_separator(t->eval_dataset, &without)))
    printf("note:      --document-separator %" PRId64
           " (%s) has no effect: it is of a .bin, and there is none\n",
           o->document_separator, fsdp_options_place(o, "document-separator"));
}

// What counts or rounds otherwise than a router's rows and biases suggest.
static void note_routers(const fsdp_trainer *t) {
  const fsdp_plan_config *c = &t->setup.plan->config;
  if (!c->model.experts) return;
  if (c->expert_capacity > 0 && !fsdp_options_given(t->options, "expert-capacity"))
    printf("note:      --expert-capacity %g: room for all routed rows that a rank's experts can be sent does "
           "not fit\n",
           c->expert_capacity);
  if (c->model.route_bias && c->param_dtype != FSDP_F32)
    print_note(
        "--param-dtype bf16 rounds the biases by which routers choose, which Transformers keeps in fp32");
}

// --stop-after counts evaluations that are no better than an earlier one, and the last step ends the run
// anyway.
static void note_stop_after(const fsdp_trainer *t) {
  const fsdp_options *o = t->options;
  const fsdp_checkpoint_results *results = &t->checkpoints.results;
  if (o->stop_after == 0 || o->eval_freq == 0 || t->feed.first_step >= t->total_steps) return;
  const int64_t before_end = (t->total_steps - 1) / o->eval_freq - t->feed.first_step / o->eval_freq;
  const bool has_best = results->best_eval_loss > 0 || o->eval_at_start;
  if (results->evaluations_since_best + before_end - !has_best >= o->stop_after) return;
  printf("note:      --stop-after %" PRId64 " (%s) cannot end this run: --eval-freq %" PRId64
         " makes %" PRId64 " evaluation%s before its last step, %" PRId64 "%s\n",
         o->stop_after, fsdp_options_place(o, "stop-after"), o->eval_freq, before_end,
         fsdp_plural(before_end), t->total_steps, has_best ? "" : ", and the first is one to compare with");
}

static void warn_of_run(const fsdp_trainer *t) {
  warn_of_trained_evaluation(t);
  warn_of_repeated_files(t);
  warn_of_other_template(t);
  warn_of_narrow_tokens(t);
  warn_of_missing_separator(t);
  warn_of_lost_tokens(t);
  warn_of_split_documents(t);
  warn_of_options(t);
  warn_of_ended_schedule(t);
}

void fsdp_train_print_notes(const fsdp_trainer *t) {
  char hints[2][FSDP_REPORT_HINT_BYTES];
  const fsdp_plan *made = t->setup.plan;
  char text[512];
  note_checkpoints(t);
  note_beginning(t);
  note_routers(t);
  if (t->dataset) note_documents(t);
  if (t->dataset) note_stop_after(t);
  if (t->feed.config.rate.first_step > 0)
    printf("note:      the learning-rate schedule began after step %" PRId64 " (--resume-schedule)\n",
           t->feed.config.rate.first_step);
  const bool resumed = fsdp_train_checkpoints_found(&t->checkpoints);
  if (!resumed && !t->options->evaluated && fsdp_resize_note(t->options, &t->setup, text, sizeof text))
    print_note(text);
  fsdp_dropout own;
  const bool drops = fsdp_dropout_any(&made->config.dropout) && fsdp_model_dropout(&made->config.model, &own);
  if (!drops && fsdp_model_note(&made->config.model, text, sizeof text)) print_note(text);
  if (fsdp_positions_note(made, text, sizeof text)) print_note(text);
  if (t->options->measure && !t->measures)
    printf("note:      memory is not measured: a trace of --grad-accum %" PRId64 " (%s) would be too large\n",
           t->options->grad_accum, fsdp_options_place(t->options, "grad-accum"));
  if (t->options->nccl_register == FSDP_NCCL_REGISTER_ON && !t->gpu->present)
    printf("note:      --nccl-register (%s) has no effect: there is no GPU\n",
           fsdp_options_place(t->options, "nccl-register"));
  if (fsdp_mesh_note(t->options, &made->config.mesh, text, sizeof text)) print_note(text);
  fsdp_sharding_notes(t->options, t->setup.sharding, &made->config.mesh, "note:      ", stdout);
  if (fsdp_padding_note(made, text, sizeof text)) print_note(text);
  note_data(t);
  const char *prompt = fsdp_sample_note(t->sample, t->options, t->codec);
  if (prompt) print_note(prompt);
  for (int i = 0; fsdp_options_note(t->options, i, text, (int)sizeof text); i++) print_note(text);
  if (t->options->check_replicas > 0 && !fsdp_replicas_present(made))
    printf("note:      there are no replicas that --check-replicas %" PRId64 " (%s) could compare\n",
           t->options->check_replicas, fsdp_options_place(t->options, "check-replicas"));
  fsdp_report_hints(made, hints);
  // A dry run's page has them, and the first is about --wrap, which --auto may have weighed.
  if (strcmp(fsdp_options_place(t->options, "wrap"), "--auto") == 0) *hints[0] = 0;
  for (int i = 0; i < 2 && !t->options->dry_run; i++)
    if (*hints[i]) printf("hint: %s\n", hints[i]);
  fflush(stdout);
  if (*t->options->replaced) fprintf(stderr, "fsdp_train: warning: %s\n", t->options->replaced);
  if (t->dataset) warn_of_run(t);
  fsdp_plan_warn(made, "fsdp_train", stderr);
}
