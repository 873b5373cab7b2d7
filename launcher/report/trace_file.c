#include "launcher/report/trace_file.h"

#include "launcher/report/memory_profile.h"
#include "launcher/report/whole_file.h"
#include "runtime/base/check.h"
#include "runtime/plan/price/exposure.h"
#include "runtime/plan/text/plan_json.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// Rows of a process; streams have the numbers between. Thread 0 is the idle one to some viewers.
enum { ROW_STEP = 1, ROW_STREAMS = 2, ROW_EXPOSED = ROW_STREAMS + FSDP_STREAM_COUNT, ROW_COUNT };

// The events of one step of one rank.
typedef struct group {
  int rank;
  int64_t step;
  const fsdp_timeline_event **events; // by place, NULL: none
  fsdp_instr_time *times;             // by place
} group;

typedef struct writer {
  const fsdp_trace_source *source;
  const fsdp_program *program;
  fsdp_whole_file *file;
  bool follows; // an event is written already
  fsdp_exposure_meter *meter;
  const fsdp_issue_order *order;
  fsdp_memory_profile memory;
  double origin_s;
  int64_t flows;
  int rank;             // whose events are being written
  bool rows[ROW_COUNT]; // that have events
  group groups[3];      // the step before, this one, the one after
} writer;

// ---- Events

static void put(json_t *object, const char *key, json_t *value) {
  FSDP_CHECK(value && json_object_set_new(object, key, value) == 0, "JSON member %s", key);
}

// Whole nanoseconds from the trace's begin: so that what touches in time touches in the file.
static int64_t nanoseconds(const writer *w, double time_s) {
  return llround((time_s - w->origin_s) * 1e9);
}

// An event of phase `ph` in a row; times are in microseconds.
static json_t *make_event(const writer *w, const char *ph, const char *name, int row) {
  return json_pack("{s:s, s:s, s:i, s:i}", "ph", ph, "name", name, "pid", w->rank, "tid", row);
}

static void write_event(writer *w, json_t *event) {
  FILE *out = w->file->out;
  fputs(w->follows ? ",\n" : "\n", out);
  json_dumpf(event, out, JSON_COMPACT | JSON_REAL_PRECISION(15));
  if (!w->file->reason && ferror(out)) w->file->reason = errno;
  json_decref(event);
  w->follows = true;
}

static void put_ms(json_t *object, const char *key, double seconds) {
  put(object, key, json_real(round(seconds * 1e9) / 1e6));
}

static void put_time(json_t *event, const char *key, int64_t ns) {
  put(event, key, json_real((double)ns / 1e3));
}

// Takes `args`.
static void write_span(writer *w, const char *name, const char *category, int row, fsdp_instr_time time,
                       json_t *args) {
  int64_t begin_ns = nanoseconds(w, time.begin_s), end_ns = nanoseconds(w, time.end_s);
  json_t *event = make_event(w, "X", name, row);
  put(event, "cat", json_string(category));
  put_time(event, "ts", begin_ns);
  put_time(event, "dur", end_ns - begin_ns);
  put(event, "args", args);
  write_event(w, event);
  w->rows[row] = true;
}

static void write_metadata(writer *w, const char *what, int row, const char *key, json_t *value) {
  json_t *event = make_event(w, "M", what, row), *args = json_object();
  put(args, key, value);
  put(event, "args", args);
  write_event(w, event);
}

// The step `away` steps from the one that is being written, of the same rank; NULL if it has no events.
static const group *neighbour(const writer *w, int away) {
  const group *found = &w->groups[1 + away];
  return found->rank == w->rank && found->step == w->groups[1].step + away ? found : NULL;
}

// ---- Instructions

static const char *category_of(const fsdp_instr *instr) {
  if (fsdp_instr_is_collective(instr)) return "collective";
  if (instr->kind == FSDP_INSTR_H2D || instr->kind == FSDP_INSTR_D2H) return "copy";
  return instr->kind == FSDP_INSTR_OP ? "op" : "host";
}

// Of a collective, its whole buffer; of a copy, what it moves; of others, all operands.
static int64_t bytes_of(const fsdp_program *program, const fsdp_instr *instr) {
  const fsdp_operand *operands = &program->operands[instr->first_operand];
  int64_t sum = 0;
  if (fsdp_instr_is_collective(instr)) return fsdp_program_whole_bytes(program, instr);
  if (instr->kind == FSDP_INSTR_H2D || instr->kind == FSDP_INSTR_D2H) return operands[0].size_bytes;
  for (int o = 0; o < instr->operand_count; o++) sum += operands[o].size_bytes;
  return sum;
}

static json_t *make_args(const writer *w, int position) {
  const fsdp_plan *plan = w->source->plan;
  const fsdp_instr *instr = &w->program->instrs[position];
  json_t *args = json_object();
  put(args, "position", json_integer(position));
  if (instr->kind == FSDP_INSTR_OP) put(args, "op", json_string(fsdp_op_name(instr->op)));
  if (instr->unit >= 0) {
    const char *path = plan->units->units[instr->unit].path;
    put(args, "unit", json_string(*path ? path : "(root)"));
  }
  if (instr->module >= 0) {
    char path[FSDP_NAME_BYTES];
    fsdp_graph_module_path(plan->graph, instr->module, path);
    put(args, "module", json_string(path));
  }
  put(args, "bytes", json_integer(bytes_of(w->program, instr)));
  if (fsdp_instr_is_collective(instr)) {
    char axes[FSDP_MESH_TEXT_BYTES];
    fsdp_mesh_print_axes(&w->program->mesh, w->program->comms[instr->comm].axes, axes);
    put(args, "over", json_string(axes));
    put(args, "ranks", json_integer(fsdp_program_comm_size(w->program, instr)));
  }
  return args;
}

static void write_instr(writer *w, const fsdp_timeline_event *event) {
  const fsdp_instr *instr = &w->program->instrs[event->position];
  json_t *args = make_args(w, event->position);
  const fsdp_section *section = &w->program->sections[w->order->run_section[event->run]];
  put(args, "step", json_integer(event->step));
  put(args, "section", json_string(fsdp_section_name(section->kind)));
  put(args, "run", json_integer(event->run));
  char name[512];
  fsdp_plan_print_instr(w->source->plan, event->position, name, sizeof name);
  write_span(w, name, category_of(instr), ROW_STREAMS + (int)instr->stream,
             (fsdp_instr_time){event->begin_s, event->end_s}, args);
}

// One end of a flow; it belongs to the event of its row that holds its time.
static void write_flow(writer *w, const char *ph, const char *name, const fsdp_timeline_event *event,
                       int64_t ns) {
  int row = ROW_STREAMS + (int)w->program->instrs[event->position].stream;
  json_t *end = make_event(w, ph, name, row);
  put(end, "cat", json_string("wait"));
  put(end, "id", json_integer(w->flows));
  put_time(end, "ts", ns);
  if (*ph == 'f') put(end, "bp", json_string("e"));
  write_event(w, end);
}

static void write_waits(writer *w, int64_t place) {
  static const char *const reasons[] = {"data", "reuse", "policy"};
  const fsdp_timeline_event *event = w->groups[1].events[place];
  const fsdp_instr *instr = &w->program->instrs[event->position];
  for (int i = 0; i < instr->wait_count; i++) {
    const fsdp_wait *wait = &w->program->waits[instr->first_wait + i];
    fsdp_issue issue;
    if (w->program->instrs[wait->position].stream == instr->stream ||
        !fsdp_issue_order_latest(w->order, place, wait->position, &issue))
      continue;
    const group *step = neighbour(w, -issue.steps_back);
    const fsdp_timeline_event *awaited = step ? step->events[issue.place] : NULL;
    if (!awaited) continue;
    int64_t begin_ns = nanoseconds(w, awaited->begin_s), end_ns = nanoseconds(w, awaited->end_s);
    w->flows++;
    write_flow(w, "s", reasons[wait->reason], awaited, end_ns > begin_ns ? end_ns - 1 : begin_ns);
    write_flow(w, "f", reasons[wait->reason], event, nanoseconds(w, event->begin_s));
  }
}

// ---- Memory

static void write_memory(writer *w, fsdp_space space) {
  static const char *const names[FSDP_SPACE_COUNT] = {"device memory", "host memory"};
  const group *step = &w->groups[1];
  const int64_t *shown = NULL;
  double time_s = -INFINITY;
  if (w->program->arena_bytes[space] == 0) return;
  for (int64_t k = 0; k < w->order->count; k++) {
    const fsdp_timeline_event *event = step->events[k];
    if (!event) continue;
    time_s = fmax(time_s, event->begin_s);
    const int64_t *bytes = &w->memory.bytes[space][(int64_t)event->position * FSDP_CATEGORY_COUNT];
    if (shown && memcmp(shown, bytes, FSDP_CATEGORY_COUNT * sizeof *bytes) == 0) continue;
    shown = bytes;
    json_t *sample = make_event(w, "C", names[space], ROW_STEP), *args = json_object();
    for (int c = 0; c < FSDP_CATEGORY_COUNT; c++)
      put(args, fsdp_category_name((fsdp_category)c), json_integer(bytes[c]));
    put_time(sample, "ts", nanoseconds(w, time_s));
    put(sample, "args", args);
    write_event(w, sample);
  }
}

// ---- Steps

static void write_exposed(void *context, const fsdp_exposed_part *part) {
  writer *w = context;
  char name[512];
  fsdp_plan_print_instr(w->source->plan, part->position, name, sizeof name);
  write_span(w, name, "exposed", ROW_EXPOSED, (fsdp_instr_time){part->begin_s, part->end_s},
             make_args(w, part->position));
}

static void write_step(writer *w) {
  const group *this_step = &w->groups[1];
  const fsdp_instr_time *steps[3];
  for (int i = 0; i < 3; i++) steps[i] = neighbour(w, i - 1) ? w->groups[i].times : NULL;
  fsdp_exposure exposure;
  fsdp_exposure_measure(w->meter, steps, &exposure);
  const struct {
    const char *key;
    double seconds;
  } parts[] = {{"work_ms", exposure.work_s},
               {"exposed_comm_ms", exposure.comm_s},
               {"exposed_h2d_ms", exposure.h2d_s},
               {"exposed_d2h_ms", exposure.d2h_s},
               {"other_ms", exposure.other_s}};
  json_t *args = json_object(), *by_axes = json_object();
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) put_ms(args, parts[i].key, parts[i].seconds);
  for (int set = 0; set < 1 << FSDP_MESH_AXES_MAX; set++) {
    char axes[FSDP_MESH_TEXT_BYTES];
    if (exposure.comm_axes_s[set] <= 0) continue;
    fsdp_mesh_print_axes(&w->program->mesh, (fsdp_axis_set)set, axes);
    put_ms(by_axes, axes, exposure.comm_axes_s[set]);
  }
  put(args, "exposed_comm_ms_by_axes", by_axes);
  char name[32];
  snprintf(name, sizeof name, "step %lld", (long long)this_step->step);
  write_span(w, name, "step", ROW_STEP, (fsdp_instr_time){exposure.begin_s, exposure.end_s}, args);
  for (int64_t k = 0; k < w->order->count; k++) {
    if (!this_step->events[k]) continue;
    write_instr(w, this_step->events[k]);
    write_waits(w, k);
  }
  for (int space = 0; space < FSDP_SPACE_COUNT; space++) write_memory(w, (fsdp_space)space);
}

static void write_names(writer *w) {
  char name[64];
  snprintf(name, sizeof name, "rank %d (%s)", w->rank, w->source->kind);
  write_metadata(w, "process_name", ROW_STEP, "name", json_string(name));
  write_metadata(w, "process_sort_index", ROW_STEP, "sort_index", json_integer(w->rank));
  for (int row = ROW_STEP; row < ROW_COUNT; row++) {
    if (!w->rows[row]) continue;
    const char *title = row == ROW_STEP      ? "step"
                        : row == ROW_EXPOSED ? "exposed"
                                             : fsdp_stream_name((fsdp_stream)(row - ROW_STREAMS));
    // "exposed" below compute.
    int place = row == ROW_EXPOSED ? 2 * (ROW_STREAMS + (int)FSDP_STREAM_COMPUTE) + 1 : 2 * row;
    write_metadata(w, "thread_name", row, "name", json_string(title));
    write_metadata(w, "thread_sort_index", row, "sort_index", json_integer(place));
  }
  memset(w->rows, 0, sizeof w->rows);
}

// ---- The file

static int by_step(const void *a, const void *b) {
  const fsdp_timeline_event *x = *(const fsdp_timeline_event *const *)a;
  const fsdp_timeline_event *y = *(const fsdp_timeline_event *const *)b;
  if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
  return x->step < y->step ? -1 : x->step > y->step;
}

// Takes the events from *next on that belong to one step of one rank; an empty group at the end.
static void read_group(const writer *w, const fsdp_timeline_event *const *events, int64_t *next, group *out) {
  int64_t count = w->source->timeline->count;
  out->rank = -1;
  for (int64_t k = 0; k < w->order->count; k++) {
    out->events[k] = NULL;
    out->times[k] = FSDP_INSTR_TIME_NONE;
  }
  if (*next == count) return;
  out->rank = events[*next]->rank;
  out->step = events[*next]->step;
  for (; *next < count && events[*next]->rank == out->rank && events[*next]->step == out->step; ++*next) {
    const fsdp_timeline_event *event = events[*next];
    int64_t place = fsdp_issue_order_place(w->order, event->run, event->position);
    out->events[place] = event;
    out->times[place] = (fsdp_instr_time){event->begin_s, event->end_s};
  }
}

static void write_all(writer *w) {
  const fsdp_timeline *timeline = w->source->timeline;
  const fsdp_timeline_event **events = fsdp_alloc(((size_t)timeline->count + 1) * sizeof *events);
  w->origin_s = INFINITY;
  for (int64_t e = 0; e < timeline->count; e++) {
    events[e] = &timeline->events[e];
    w->origin_s = fmin(w->origin_s, events[e]->begin_s);
  }
  qsort(events, (size_t)timeline->count, sizeof *events, by_step);
  int64_t next = 0;
  read_group(w, events, &next, &w->groups[2]);
  while (w->groups[2].rank >= 0) {
    group oldest = w->groups[0];
    w->groups[0] = w->groups[1];
    w->groups[1] = w->groups[2];
    w->groups[2] = oldest;
    read_group(w, events, &next, &w->groups[2]);
    w->rank = w->groups[1].rank;
    write_step(w);
    if (w->groups[2].rank != w->rank) write_names(w);
  }
  free(events);
}

fsdp_status fsdp_trace_write(const char *path, const fsdp_trace_source *source, fsdp_error *error) {
  const fsdp_plan *plan = source->plan;
  FSDP_CHECK(source->timeline->program == plan->program, "a timeline of another program");
  fsdp_whole_file file;
  fsdp_status status = fsdp_whole_file_open("trace", path, &file, error);
  if (status != FSDP_OK) return status;
  writer w = {.source = source,
              .program = plan->program,
              .file = &file,
              .meter = fsdp_exposure_meter_create(plan->program),
              .memory = fsdp_memory_profile_create(plan, source->model_name)};
  w.order = fsdp_exposure_meter_order(w.meter);
  fsdp_exposure_meter_visit(w.meter, write_exposed, &w);
  for (int i = 0; i < 3; i++) {
    size_t places = (size_t)w.order->count + 1;
    w.groups[i] = (group){.rank = -1,
                          .events = fsdp_alloc_zeroed(places, sizeof *w.groups[i].events),
                          .times = fsdp_alloc_zeroed(places, sizeof *w.groups[i].times)};
  }
  fputs("{\"traceEvents\":[", file.out);
  write_all(&w);
  json_t *about =
      json_pack("{s:s, s:s, s:s, s:o, s:I}", "model", source->model_name, "kind", source->kind, "strategy",
                fsdp_strategy_name(plan->config.strategy), "mesh", fsdp_mesh_json(&plan->config.mesh),
                "planned_peak_bytes", (json_int_t)plan->memory.space[FSDP_SPACE_DEVICE].peak_bytes);
  fputs("\n],\"displayTimeUnit\":\"ms\",\"otherData\":", file.out);
  json_dumpf(about, file.out, JSON_COMPACT);
  fputs("}\n", file.out);
  json_decref(about);
  for (int i = 0; i < 3; i++) {
    free(w.groups[i].events);
    free(w.groups[i].times);
  }
  fsdp_memory_profile_destroy(&w.memory);
  fsdp_exposure_meter_destroy(w.meter);
  return fsdp_whole_file_close(&file, error);
}
