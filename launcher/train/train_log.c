#include "launcher/train/train_log.h"

#include "runtime/base/check.h"

#include <stdlib.h>
#include <string.h>

static void warn_once(bool *warned, const fsdp_error *error, const char *consequence) {
  if (*warned) return;
  *warned = true;
  fprintf(stderr, "fsdp_train: warning: %s; training continues, %s\n", error->message, consequence);
}

// The numbers of the step's JSON line.
static fsdp_status write_event(fsdp_event_file *events, int64_t step, json_t *line, fsdp_error *error) {
  fsdp_event_scalar *scalars = fsdp_alloc(json_object_size(line) * sizeof *scalars);
  json_t *value;
  const char *key;
  int count = 0;
  json_object_foreach(line, key, value) {
    if (!json_is_number(value) || strcmp(key, "global_step") == 0) continue;
    scalars[count++] = (fsdp_event_scalar){.tag = key, .value = json_number_value(value)};
  }
  fsdp_status status = fsdp_event_file_write(events, step, scalars, count, error);
  free(scalars);
  return status;
}

void fsdp_train_log_write(fsdp_train_log *self, const fsdp_step_record *record, const fsdp_plan *plan) {
  if (!self->log && !self->events) return;
  fsdp_error error;
  json_t *line = fsdp_progress_json(record, plan);
  if (self->log && fsdp_metrics_log_write(self->log, line, &error) != FSDP_OK) {
    warn_once(&self->warned_of_log, &error, "the missing lines are written once there is room");
  }
  if (self->events && write_event(self->events, record->step, line, &error) != FSDP_OK) {
    warn_once(&self->warned_of_events, &error, "without its steps until there is room");
  }
  json_decref(line);
}

void fsdp_train_log_close(fsdp_train_log *self) {
  fsdp_error error;
  if (fsdp_metrics_log_close(self->log, &error) != FSDP_OK) {
    fprintf(stderr, "fsdp_train: warning: %s\n", error.message);
  }
  fsdp_event_file_close(self->events);
  *self = (fsdp_train_log){0};
}
