#include "launcher/report/activations.h"
#include "launcher/report/device_line.h"
#include "launcher/report/price.h"
#include "launcher/report/report.h"
#include "launcher/report/strategies.h"
#include "launcher/setup/document_work.h"
#include "launcher/train/trainer.h"
#include "runtime/base/text.h"

#include <inttypes.h>

void fsdp_train_print_asked_for(const fsdp_trainer *t) {
  const fsdp_plan *made = t->setup.plan;
  if (t->options->print_model) fsdp_units_print_tree(made->units, made->graph, stdout);
  if (t->options->print_program) fsdp_program_print(made->program, stdout);
  if (t->options->print_sharding) fsdp_strategies_print_sharding(made, stdout);
  if (t->options->dry_run && !t->options->print_sharding)
    fsdp_report_print(made, t->setup.model_name, stdout);
  fflush(stdout);
}

// "data=2, fsdp=8; data across nodes"
static const char *print_mesh(const fsdp_trainer *t, char out[2 * FSDP_MESH_TEXT_BYTES]) {
  const fsdp_mesh *mesh = &t->setup.plan->config.mesh;
  char axes[FSDP_MESH_TEXT_BYTES], sizes[FSDP_MESH_TEXT_BYTES];
  const char *across = fsdp_mesh_across_nodes(mesh, &t->ranks, axes);
  snprintf(out, 2 * FSDP_MESH_TEXT_BYTES, "%s%s%s%s", fsdp_mesh_print(mesh, ", ", sizes), across ? "; " : "",
           across ? across : "", across ? " across nodes" : "");
  return out;
}

// With --profile: what a step is expected to take. A profile without what the plan needs is said as a note.
static void print_predicted(const fsdp_trainer *t) {
  fsdp_error error;
  char line[160];
  if (!t->setup.profile) return;
  fsdp_price_report report = {0};
  fsdp_status status = fsdp_document_work_find(t->options, &t->setup, &t->setup.plan->config, &error);
  if (status == FSDP_OK)
    status =
        fsdp_price_report_create(t->setup.plan, t->setup.profile, t->ranks.ranks_per_node, &report, &error);
  if (status != FSDP_OK)
    printf("predicted: nothing: %s\n", error.message);
  else
    printf("predicted: %s\n", fsdp_price_line(&report, line, sizeof line));
  fsdp_price_report_release(&report);
}

// "best-fit, 99.9% filled, 6.8 documents a sequence, each by itself: 13% of attention"
static void print_packing(const fsdp_trainer *t) {
  static const char *const names[] = {
      [FSDP_PACKING_BEST_FIT] = "best-fit", [FSDP_PACKING_STREAM] = "stream", [FSDP_PACKING_OFF] = "off"};
  const fsdp_dataset_rows *how = &t->dataset->how;
  const fsdp_packing_counts *c = &how->counts;
  if (how->documents == 0) return;
  printf("packing:   %s, %.2f%% filled, %.1f documents a sequence", names[how->packing], 100 * how->fill,
         how->documents);
  if (c->split) printf(", %" PRId64 " split", c->split);
  if (c->cut) printf(", %" PRId64 " cut", c->cut);
  if (c->dropped) printf(", %" PRId64 " dropped", c->dropped);
  if (c->lost_tokens)
    printf(" (%s token%s)", fsdp_print_int(c->lost_tokens).text, fsdp_plural(c->lost_tokens));
  if (t->setup.plan->config.documents)
    printf("; a document sees itself alone: %.1f%% of attention is left", 100 * how->attention);
  putchar('\n');
}

static void print_dropout(const fsdp_trainer *t) {
  const fsdp_dropout *rates = &t->setup.plan->config.dropout;
  if (!fsdp_dropout_any(rates)) return;
  printf("dropout:   embedding %g, attention %g, residual %g\n", (double)rates->embedding,
         (double)rates->attention, (double)rates->residual);
}

// An epoch's last partial step is not trained.
static void print_steps(const fsdp_trainer *t) {
  const fsdp_sampler *sampler = &t->feed.config.sampler;
  const int64_t samples = sampler->sample_count - sampler->held_out, left = samples % sampler->global_batch;
  const int64_t position = t->total_steps + t->feed.sample_shift; // in the data, after the last step
  printf("steps:     %" PRId64 " of %s token%s", t->total_steps, fsdp_print_int(t->step_tokens).text,
         fsdp_plural(t->step_tokens));
  if (t->options->max_steps && t->steps_per_epoch > 0)
    printf(", %.3g epoch%s", (double)position / (double)t->steps_per_epoch,
           fsdp_plural(position == t->steps_per_epoch ? 1 : 2));
  printf(", %" PRId64 " per epoch", t->steps_per_epoch);
  if (left > 0)
    printf(", which leave out %" PRId64 " of %s samples, others each time", left,
           fsdp_print_int(samples).text);
  if (t->total_steps < t->options->max_steps)
    printf("; --num-epochs %g ends it before --max-steps %" PRId64, t->options->num_epochs,
           t->options->max_steps);
  putchar('\n');
}

// What a mix is made of: the share of each group, and how often an epoch sees its samples.
static void print_mix(const fsdp_trainer *t) {
  const fsdp_sampler *sampler = &t->feed.config.sampler;
  for (int g = 0; g < sampler->group_count; g++) {
    const fsdp_sampler_group *group = &sampler->groups[g];
    printf("%s%.1f%% of %.200s, %.3g passes per epoch", g ? "; " : "mix:       ",
           100 * (double)group->quota / (double)(sampler->sample_count - sampler->held_out),
           fsdp_dataset_group_at(t->dataset, g).name,
           (double)group->quota / (double)(group->count - group->held_out));
  }
  if (sampler->group_count) putchar('\n');
}

void fsdp_train_print_place(const fsdp_trainer *t) {
  const fsdp_plan *made = t->setup.plan;
  const fsdp_memory_space_report *device = &made->memory.space[FSDP_SPACE_DEVICE];
  const fsdp_memory_space_report *host = &made->memory.space[FSDP_SPACE_HOST];
  char line[1280];
  char mesh[2 * FSDP_MESH_TEXT_BYTES];
  const char *sharding = t->options->sharding, *strategies = t->options->op_strategies;
  const char *source = sharding ? sharding : strategies;
  fsdp_device_line_print(t->gpu, fsdp_trainer_threads(t), t->why_cpu, line, sizeof line);
  if (t->options->run_note) printf("options:   of %s\n", t->options->run_note);
  printf("device:    %s\n", line);
  if (*t->session.nccl.text) printf("links:     %s\n", t->session.nccl.text);
  printf("model:     %s, %s parameters, %s", t->setup.model_name,
         fsdp_print_int(fsdp_model_parameter_count(&made->config.model)).text,
         fsdp_train_checkpoints_found(&t->checkpoints) ? "weights from the checkpoint"
         : t->weights                                  ? "weights from its folder"
                                                       : "new weights");
  if (t->weights_bytes > 0) printf(", %s read", fsdp_print_bytes(t->weights_bytes).text);
  putchar('\n');
  printf("ranks:     %d (%s), strategy %s, %s%s%s%s%d unit%s, parameters in %s\n", t->world->size,
         print_mesh(t, mesh), fsdp_strategy_name(made->config.strategy),
         made->rows.pieces > 1 ? "sequence parallel, " : "",
         sharding     ? "sharding "
         : strategies ? "strategies of "
                      : "",
         source ? source : "", source ? ", " : "", made->units->count, fsdp_plural(made->units->count),
         fsdp_dtype_name(made->config.param_dtype));
  if (t->gpu->present) {
    const fsdp_op_gpu *target = &made->config.gpu;
    printf("products:  %s", fsdp_product_choice_print(&t->session.products, line, sizeof line));
    if (target->gemm_multiprocessors)
      printf(", cut for %d of %d multiprocessors", target->gemm_multiprocessors, target->multiprocessors);
    putchar('\n');
  }
  printf("memory:    valley %s, peak %s, arena %s per rank, host %s; planned and verified, %d instructions\n",
         fsdp_print_bytes(device->valley_bytes).text, fsdp_print_bytes(device->peak_bytes).text,
         fsdp_print_bytes(device->arena_bytes).text, fsdp_print_bytes(host->arena_bytes).text,
         made->program->instr_count);
  if (t->program == FSDP_PROGRAM_TRAIN && fsdp_activations_line(made, line, sizeof line))
    printf("keeps:     %s\n", line);
}

// What is trained on, and for how long.
static void print_data(const fsdp_trainer *t) {
  printf("data:      %s\n", t->dataset->description);
  print_packing(t);
  print_dropout(t);
  print_mix(t);
  if (t->tokenizer.notes_bytes) {
    printf("note:      the built-in text is read as bytes, 256 of the model's %" PRId64
           " tokens: enough to try it out or to time it\n",
           t->setup.plan->config.model.vocab_size);
  }
  if (t->feed.config.eval_dataset) {
    char when[64] = "only at the end (--eval-freq 0)";
    if (t->options->eval_freq)
      snprintf(when, sizeof when, "every %" PRId64 " step%s and at the end", t->options->eval_freq,
               fsdp_plural(t->options->eval_freq));
    if (t->options->eval_at_start && !t->options->eval_freq)
      snprintf(when, sizeof when, "and at the end (--eval-freq 0)");
    printf("evaluate:  %s%s, on %s sample%s%s%s\n", t->options->eval_at_start ? "at the start, " : "", when,
           fsdp_print_int(t->feed.config.eval_sampler.held_out).text,
           fsdp_plural(t->feed.config.eval_sampler.held_out),
           t->eval_dataset ? " of " : " held out of the data",
           t->eval_dataset ? t->eval_dataset->description : "");
  }
  print_steps(t);
}

void fsdp_train_print_start(const fsdp_trainer *t) {
  fsdp_train_print_place(t);
  print_data(t);
  print_predicted(t);
  fsdp_train_print_notes(t);
}

void fsdp_train_eval_print_data(const fsdp_trainer *t) {
  const int64_t samples = t->eval_dataset->sample_count;
  printf("evaluate:  on %s sample%s of %s\n", fsdp_print_int(samples).text, fsdp_plural(samples),
         t->eval_dataset->description);
}

void fsdp_train_print_checked(const fsdp_trainer *t) {
  if (t->options->print_sharding) return; // that is all of the output
  if (t->dataset)
    print_data(t);
  else if (t->eval_dataset)
    fsdp_train_eval_print_data(t);
  else if (t->program == FSDP_PROGRAM_TRAIN)
    printf("data:      not opened: none is given, and a run without --data takes the built-in text\n");
  printf("not read:  tokens and weights beyond their headers%s\n",
         t->program == FSDP_PROGRAM_TRAIN && t->options->experiment ? ", checkpoints of -e" : "");
  if (t->program == FSDP_PROGRAM_TRAIN) fsdp_train_print_notes(t);
  fflush(stdout);
}

void fsdp_train_print_memory(const fsdp_trainer *t, const fsdp_measurement *measured) {
  const fsdp_memory_space_report *device = &t->setup.plan->memory.space[FSDP_SPACE_DEVICE];
  printf("memory:    planned valley %s, peak %s bytes per rank", fsdp_print_int(device->valley_bytes).text,
         fsdp_print_int(device->peak_bytes).text);
  if (measured)
    printf("; measured valley %s, peak %s", fsdp_print_int(measured->valley_bytes[FSDP_SPACE_DEVICE]).text,
           fsdp_print_int(measured->peak_bytes[FSDP_SPACE_DEVICE]).text);
  putchar('\n');
}

void fsdp_train_print_summary(const fsdp_trainer *t) {
  const fsdp_step_record *last = &t->record;
  char speed[FSDP_PROGRESS_SPEED_BYTES];
  printf("%s %" PRId64 " step%s in %s, loss %.4f, %s\n",
         last->step < t->total_steps ? "stopped:  " : "done:     ", t->run.steps, fsdp_plural(t->run.steps),
         fsdp_progress_duration(t->run.ms / 1e3).text, last->loss, fsdp_progress_speed(&t->run, speed));
  if (t->skipped > 0)
    printf("skipped:   the updates of %" PRId64 " step%s\n", t->skipped, fsdp_plural(t->skipped));
  fsdp_train_print_memory(t, last->measured ? &last->stats.memory : NULL);
}
