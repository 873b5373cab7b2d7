#include "launcher/report/strategies.h"

#include "runtime/base/check.h"
#include "runtime/base/text.h"
#include "runtime/plan/mesh/names.h"

#include <stdlib.h>
#include <string.h>

// What an operator's line says.
typedef struct operator_text {
  char slices[FSDP_SLICES_TEXT], note[2 * FSDP_OPERATOR_TEXT];
} operator_text;

// What is received of something.
typedef struct line {
  char comment[2 * FSDP_OPERATOR_TEXT];
  int64_t forward_bytes, backward_bytes;
} line;

static const char *operator_pattern(const fsdp_dataflow *flow, int op, char out[FSDP_NAME_BYTES]) {
  char name[FSDP_OPERATOR_TEXT];
  fsdp_name_pattern(fsdp_operator_print(flow, op, name), out);
  return out;
}

// ---- Operators

#define DECIDER_TEXT (FSDP_NAME_BYTES + FSDP_STRATEGY_PLACE)

// Who decided an operator's strategy: "given (two.yaml:3)", "forward from NAME". Returns `out`.
static const char *print_decider(const fsdp_propagation *propagation, int op, char out[DECIDER_TEXT]) {
  const fsdp_operator_strategy *s = &propagation->operators[op];
  char from[FSDP_NAME_BYTES] = "";
  if (s->from >= 0 && s->decision != FSDP_DECIDED_GIVEN) operator_pattern(propagation->flow, s->from, from);
  switch (s->decision) {
  case FSDP_DECIDED_GIVEN:
    snprintf(out, DECIDER_TEXT, "given (%s)", s->place);
    break;
  case FSDP_DECIDED_FORWARD:
  case FSDP_DECIDED_BACKWARD:
    snprintf(out, DECIDER_TEXT, "%s from %s", s->decision == FSDP_DECIDED_FORWARD ? "forward" : "backward",
             from);
    break;
  default:
    snprintf(out, DECIDER_TEXT, "default");
  }
  return out;
}

static void print_operators(const fsdp_propagation *propagation, FILE *out) {
  const int count = propagation->flow->operator_count;
  fsdp_name_line *lines = fsdp_alloc((size_t)(count + 1) * sizeof *lines);
  operator_text *texts = fsdp_alloc((size_t)(count + 1) * sizeof *texts);
  for (int o = 0; o < count; o++) {
    char decider[DECIDER_TEXT], name[FSDP_OPERATOR_TEXT];
    snprintf(texts[o].note, sizeof texts->note, "%s, %s", propagation->flow->operators[o].kind,
             print_decider(propagation, o, decider));
    lines[o] = fsdp_name_line_of(fsdp_operator_print(propagation->flow, o, name), -1,
                                 fsdp_slices_print(propagation, o, texts[o].slices), texts[o].note);
  }
  fsdp_name_lines_print(lines, count, true, 40, out);
  free(lines);
  free(texts);
}

// ---- A sharding file

// Who decided a weight: its line, or the operator that reads it.
static void note_param(const fsdp_plan *plan, int param, char out[DECIDER_TEXT]) {
  const char *place = plan->specs->params[param].place;
  int reader = fsdp_dataflow_reader_of(plan->propagation->flow, plan->graph->params[param].value).op;
  if (!strcmp(place, FSDP_COMPLETED_PLACE) && reader >= 0)
    print_decider(plan->propagation, reader, out);
  else
    snprintf(out, DECIDER_TEXT, *place ? "given (%s)" : "replicated", place);
}

void fsdp_strategies_print_sharding(const fsdp_plan *plan, FILE *out) {
  int count = plan->graph->param_count;
  char(*texts)[DECIDER_TEXT] = fsdp_alloc_zeroed((size_t)count + 1, sizeof *texts);
  const char **notes = fsdp_alloc_zeroed((size_t)count + 1, sizeof *notes);
  bool completed = plan->propagation && plan->config.sharding;
  for (int p = 0; p < count && completed; p++) {
    note_param(plan, p, texts[p]);
    notes[p] = texts[p];
  }
  fsdp_specs_print(plan->specs, plan->graph, &plan->config.mesh, completed ? notes : NULL, out);
  free(notes);
  free(texts);
}

// ---- Redistribution

// "h: fc1 -> fc2", with patterns.
static void describe_edge(const fsdp_dataflow *flow, int tensor, int reader, line *l) {
  const fsdp_operator_tensor *t = &flow->tensors[tensor];
  char maker_name[FSDP_NAME_BYTES], reader_name[FSDP_NAME_BYTES];
  if (t->maker < 0)
    snprintf(maker_name, sizeof maker_name, "input %.80s", t->name);
  else
    operator_pattern(flow, t->maker, maker_name);
  snprintf(l->comment, sizeof l->comment, "%s -> %s", maker_name,
           operator_pattern(flow, reader, reader_name));
}

// "1,024 bytes in the forward, 0 in the backward".
static const char *print_bytes(int64_t forward, int64_t backward, char out[160]) {
  snprintf(out, 160, "%s bytes in the forward, %s in the backward", fsdp_print_int(forward).text,
           fsdp_print_int(backward).text);
  return out;
}

static bool moves_as(const line *a, const line *b) {
  return a->forward_bytes == b->forward_bytes && a->backward_bytes == b->backward_bytes &&
         strcmp(a->comment, b->comment) == 0;
}

// Lines that are alike become one.
static void print_transfers(const char *what, const line *lines, int count, FILE *out) {
  char bytes[160];
  for (int i = 0; i < count; i++) {
    int times = 0, first = i;
    for (int j = 0; j < count; j++) {
      if (!moves_as(&lines[i], &lines[j])) continue;
      if (j < first) first = j;
      times++;
    }
    if (first < i) continue;
    fprintf(out, "# %s: %s, %s", what, lines[i].comment,
            print_bytes(lines[i].forward_bytes, lines[i].backward_bytes, bytes));
    fprintf(out, times > 1 ? ", %d times\n" : "\n", times);
  }
}

static void print_sum(const char *what, int64_t forward, int64_t backward, FILE *out) {
  char bytes[160];
  fprintf(out, "# %s in all: %s bytes received by a rank (%s)\n", what,
          fsdp_print_int(forward + backward).text, print_bytes(forward, backward, bytes));
}

static void print_moved(const fsdp_propagation *propagation, FILE *out) {
  int count = propagation->moved_count;
  line *lines = fsdp_alloc_zeroed((size_t)count + 1, sizeof *lines);
  for (int i = 0; i < count; i++) {
    const fsdp_moved_input *moved = &propagation->moved[i];
    describe_edge(propagation->flow, moved->tensor, moved->reader, &lines[i]);
    lines[i].forward_bytes = moved->forward_bytes;
    lines[i].backward_bytes = moved->backward_bytes;
  }
  print_transfers("redistributed", lines, count, out);
  print_sum("redistribution", propagation->forward_bytes, propagation->backward_bytes, out);
  free(lines);
}

// Keys and values of attention whose sequence is cut.
static void print_gathered(const fsdp_propagation *propagation, FILE *out) {
  const fsdp_dataflow *flow = propagation->flow;
  line *lines = fsdp_alloc_zeroed((size_t)flow->operator_count + 1, sizeof *lines);
  int count = 0;
  int64_t sum = 0;
  for (int o = 0; o < flow->operator_count; o++) {
    int64_t bytes =
        fsdp_gathered_bytes(flow, &propagation->mesh, &flow->operators[o], &propagation->operators[o]);
    if (!bytes) continue;
    operator_pattern(flow, o, lines[count].comment);
    lines[count].forward_bytes = lines[count].backward_bytes = bytes;
    sum += bytes;
    count++;
  }
  print_transfers("keys and values gathered", lines, count, out);
  if (count) print_sum("keys and values gathered", sum, sum, out);
  free(lines);
}

static void print_mesh(const fsdp_slice_mesh *slices, const fsdp_mesh *mesh, FILE *out) {
  int64_t ranks = fsdp_slices(slices, (1u << slices->count) - 1);
  fprintf(out, "# %lld rank%s%s", (long long)ranks, fsdp_plural(ranks), slices->count ? ": " : "");
  for (int a = 0; a < slices->count; a++) {
    fprintf(out, "%s", a ? ", " : "");
    if (mesh) fprintf(out, "%s=", mesh->axes[slices->axis[a]].name);
    fprintf(out, "%d", slices->sizes[a]);
  }
  fputc('\n', out);
}

void fsdp_strategies_print(const fsdp_propagation *propagation, const fsdp_mesh *mesh, FILE *out) {
  print_mesh(&propagation->mesh, mesh, out);
  print_operators(propagation, out);
  print_moved(propagation, out);
  print_gathered(propagation, out);
}

// ---- Warnings

// The axes that cut the sequence of a model's tokens; none of a network that is no model.
static fsdp_axis_set token_parts(const fsdp_propagation *propagation) {
  const fsdp_dataflow *flow = propagation->flow;
  for (int o = 0; o < flow->operator_count && flow->joins_rows; o++) {
    const fsdp_operator *op = &flow->operators[o];
    if (flow->tensors[op->operands[0].tensor].role == FSDP_TENSOR_INPUT)
      return fsdp_strategy_axes(&propagation->operators[o].axes, 't');
  }
  return 0;
}

// Given operators that leave positions whole which ranks do not have. Each line of the file once.
static void warn_of_positions(const fsdp_propagation *propagation, const char *program, FILE *out) {
  const fsdp_dataflow *flow = propagation->flow;
  const fsdp_axis_set parts = token_parts(propagation);
  const char *last = NULL;
  for (int o = 0; o < flow->operator_count; o++) {
    const fsdp_operator_strategy *s = &propagation->operators[o];
    int t = fsdp_operator_letter_find(&flow->operators[o], 't');
    char name[FSDP_NAME_BYTES];
    if (s->decision != FSDP_DECIDED_GIVEN || t < 0 || !(parts & ~fsdp_strategy_axes(&s->axes, 't'))) continue;
    if (last && s->place && strcmp(last, s->place) == 0) continue;
    last = s->place;
    fprintf(
        out,
        "%s: warning: %s: %s leaves the sequence whole over ranks that cut the tokens': it works on their "
        "positions all the same; give it the tokens' slices of the sequence to say so\n",
        program, s->place ? s->place : "--op-strategies", operator_pattern(flow, o, name));
  }
}

void fsdp_strategies_warn(const fsdp_propagation *propagation, const char *program, FILE *out) {
  const fsdp_dataflow *flow = propagation->flow;
  warn_of_positions(propagation, program, out);
  line l, *seen = fsdp_alloc_zeroed((size_t)propagation->moved_count + 1, sizeof *seen);
  char bytes[160];
  int count = 0;
  for (int i = 0; i < propagation->moved_count; i++) {
    const fsdp_moved_input *moved = &propagation->moved[i];
    // Of a backward decision, the edge is the reader's.
    int maker = flow->tensors[moved->tensor].maker;
    bool of_reader = propagation->operators[moved->reader].redistributes;
    if (!of_reader && (maker < 0 || !propagation->operators[maker].redistributes)) continue;
    describe_edge(flow, moved->tensor, moved->reader, &l);
    int known = 0;
    while (known < count && strcmp(seen[known].comment, l.comment) != 0) known++;
    if (known < count) continue;
    seen[count++] = l;
    char name[FSDP_NAME_BYTES];
    fprintf(
        out,
        "%s: warning: no strategy of %s suits all its neighbours: %s is redistributed (a rank receives %s); "
        "give one of them a strategy, or its weight a line, to choose otherwise\n",
        program, operator_pattern(flow, of_reader ? moved->reader : maker, name), l.comment,
        print_bytes(moved->forward_bytes, moved->backward_bytes, bytes));
  }
  free(seen);
}
