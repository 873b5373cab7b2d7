// fsdp_export --list: the checkpoints of an experiment, one a line.
#include "launcher/programs/export.h"
#include "runtime/base/paths.h"
#include "runtime/base/size.h"
#include "runtime/base/text.h"
#include "runtime/checkpoint/checkpoint_folder.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *print_loss(double loss, char out[24]) {
  snprintf(out, 24, loss > 0 ? "%.4f" : "-", loss);
  return out;
}

static const char *print_time(int64_t saved_s, char out[32]) {
  struct tm parts;
  time_t time = (time_t)saved_s;
  snprintf(out, 32, "-");
  if (saved_s > 0 && localtime_r(&time, &parts)) strftime(out, 32, "%Y-%m-%d %H:%M:%S", &parts);
  return out;
}

static int64_t bytes_of(const fsdp_checkpoint *c) {
  int64_t bytes = c->files_bytes;
  for (int i = 0; i < c->carried_count; i++) bytes += c->carried[i].bytes;
  return bytes;
}

static const char *name_of(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

static void print_row(const char *path, int width, const char *remark, FILE *out) {
  char time[32], loss[24], eval[24];
  fsdp_checkpoint *c;
  fsdp_error error;
  if (fsdp_checkpoint_read_manifest(path, &c, &error) != FSDP_OK) {
    fprintf(out, "%-*s cannot be read: %s\n", width, name_of(path), error.message);
    return;
  }
  const fsdp_checkpoint_results *r = &c->progress.results;
  fprintf(out, "%-*s %8" PRId64 "  %-19s  %9s  %15s  %8s  %s\n", width, name_of(path), c->progress.step,
          print_time(r->saved_s, time), print_loss(r->loss, loss), print_loss(r->eval_loss, eval),
          fsdp_print_bytes(bytes_of(c)).text, remark);
  fsdp_checkpoint_destroy(c);
}

static fsdp_status fail_empty(const char *experiment, fsdp_error *error) {
  if (fsdp_has_file(experiment, FSDP_CHECKPOINT_MANIFEST))
    return fsdp_fail(error, FSDP_ERR_INPUT,
                     "%s: is one checkpoint, of which --inspect says what it holds; --list is of the "
                     "experiment's folder, above it",
                     experiment);
  return fsdp_fail(error, FSDP_ERR_INPUT,
                   "%s: holds no checkpoint; give an experiment's folder, as in outputs/NAME --list",
                   experiment);
}

fsdp_status fsdp_export_list(const char *experiment, FILE *out, fsdp_error *error) {
  fsdp_checkpoint_entry *entries, *kept;
  const int count = fsdp_checkpoint_list(experiment, &entries);
  const int kept_count = fsdp_checkpoint_list_kept(experiment, &kept);
  const int best = fsdp_checkpoint_best(entries, count);
  int width = 14;
  for (int i = 0; i < kept_count; i++)
    width = (int)fsdp_max_i64(width, (int64_t)strlen(name_of(kept[i].path)));
  if (count + kept_count > 0)
    fprintf(out, "%-*s %8s  %-19s  %9s  %15s  %8s\n", width, "checkpoint", "step", "saved", "loss",
            "evaluation loss", "size");
  for (int i = count - 1; i >= 0; i--) {
    const char *newest = i == 0 ? "newest" : "";
    print_row(entries[i].path, width, i == best ? (i == 0 ? "newest, best" : "best") : newest, out);
  }
  for (int i = 0; i < kept_count; i++) print_row(kept[i].path, width, "own name: runs leave it", out);
  free(entries);
  free(kept);
  return count + kept_count > 0 ? FSDP_OK : fail_empty(experiment, error);
}
