#include "launcher/report/memory_profile.h"
#include "runtime/base/size.h"
#include "runtime/base/text.h"
#include "runtime/plan/text/plan_json.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

// Pixels. The plot's columns are at most its width, so a long program is drawn by the greatest of each
// column's positions.
enum {
  WIDTH = 1270,
  LEFT = 88,
  PLOT_WIDTH = 800,
  PLOT_HEIGHT = 340,
  HEAD = 64,
  PANEL_GAP = 92,
  LEGEND_LEFT = LEFT + PLOT_WIDTH + 110,
  LABEL_BYTES = 512
};

// From the bottom of the stack to its top: what stays comes first, so that what comes and goes stands on a
// flat base.
static const struct {
  fsdp_category category;
  const char *label, *color;
} layers[FSDP_CATEGORY_COUNT] = {
    {FSDP_CATEGORY_PARAMETERS, "parameters (shards)", "#1b4f72"},
    {FSDP_CATEGORY_OPTIMIZER, "optimizer state", "#2e86c1"},
    {FSDP_CATEGORY_GATHERED, "gathered parameters", "#f39c12"},
    {FSDP_CATEGORY_GRADIENTS, "gradients", "#c0392b"},
    {FSDP_CATEGORY_ACTIVATIONS, "activations", "#27ae60"},
    {FSDP_CATEGORY_WORKSPACE, "workspace", "#8e44ad"},
    {FSDP_CATEGORY_INPUTS, "inputs", "#7f8c8d"},
};

typedef struct panel {
  const fsdp_memory_profile *profile;
  fsdp_space space;
  const char *title;
  FILE *out;
  int top;          // of the plot, in pixels
  double y_max;     // bytes at the plot's top
  int column_count; // of drawn positions
} panel;

static void print_escaped(const char *text, FILE *out) {
  for (; *text; text++) {
    if (*text == '&')
      fputs("&amp;", out);
    else if (*text == '<')
      fputs("&lt;", out);
    else if (*text == '>')
      fputs("&gt;", out);
    else
      fputc(*text, out);
  }
}

static void print_text(FILE *out, double x, double y, const char *attributes, const char *text) {
  fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, attributes);
  print_escaped(text, out);
  fputs("</text>\n", out);
}

// A label that stands on areas of any colour: its outline in white first, as a text of its own, since not
// every renderer knows `paint-order`.
static void print_label(FILE *out, double x, double y, const char *anchor, const char *class,
                        const char *text) {
  char attributes[96];
  snprintf(attributes, sizeof attributes, "text-anchor=\"%s\" class=\"%s halo\"", anchor, class);
  print_text(out, x, y, attributes, text);
  snprintf(attributes, sizeof attributes, "text-anchor=\"%s\" class=\"%s\"", anchor, class);
  print_text(out, x, y, attributes, text);
}

static double x_of(const panel *p, double position) {
  return LEFT + PLOT_WIDTH * position / (double)p->profile->position_count;
}
static double y_of(const panel *p, double bytes) {
  return p->top + PLOT_HEIGHT * (1 - bytes / p->y_max);
}

static const int64_t *at(const panel *p, int position) {
  return p->profile->bytes[p->space] + (int64_t)position * FSDP_CATEGORY_COUNT;
}

// Of the layers below `layer_end`.
static int64_t stacked(const panel *p, int position, int layer_end) {
  int64_t sum = 0;
  for (int i = 0; i < layer_end; i++) sum += at(p, position)[layers[i].category];
  return sum;
}

// The first position of a column.
static int column_begin(const panel *p, int column) {
  return (int)(column * (int64_t)p->profile->position_count / p->column_count);
}

// The position that stands for a column: the one with most bytes, so that no peak is lost between pixels.
static int column_position(const panel *p, int column) {
  int best = column_begin(p, column);
  for (int i = best + 1; i < column_begin(p, column + 1); i++) {
    if (stacked(p, i, FSDP_CATEGORY_COUNT) > stacked(p, best, FSDP_CATEGORY_COUNT)) best = i;
  }
  return best;
}

// One edge of a layer as a staircase, from left to right or back.
static void print_edge(const panel *p, int layer_end, bool forward) {
  for (int i = 0; i < p->column_count; i++) {
    int column = forward ? i : p->column_count - 1 - i;
    double y = y_of(p, (double)stacked(p, column_position(p, column), layer_end));
    double left = x_of(p, column_begin(p, column)), right = x_of(p, column_begin(p, column + 1));
    fprintf(p->out, "%.1f,%.1f %.1f,%.1f ", forward ? left : right, y, forward ? right : left, y);
  }
}

static void print_layers(const panel *p) {
  for (int layer = 0; layer < FSDP_CATEGORY_COUNT; layer++) {
    fprintf(p->out, "<polygon fill=\"%s\" points=\"", layers[layer].color);
    print_edge(p, layer + 1, true);
    print_edge(p, layer, false);
    fputs("\"/>\n", p->out);
  }
}

// The least of 1, 2 or 5 times a power of ten that divides `range` into at most `parts` parts.
static double round_step(double range, int parts) {
  double power = pow(10, floor(log10(range / parts)));
  double factors[] = {1, 2, 5};
  for (int i = 0; i < 3; i++) {
    if (factors[i] * power * parts >= range) return factors[i] * power;
  }
  return 10 * power;
}

static void print_axes(const panel *p) {
  double step = round_step(p->y_max, 7);
  char text[64];
  for (double value = 0; value <= p->y_max; value += step) {
    double y = y_of(p, value);
    fprintf(p->out, "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" class=\"grid\"/>\n", LEFT, y,
            LEFT + PLOT_WIDTH, y);
    print_text(p->out, LEFT - 8, y + 4, "text-anchor=\"end\"",
               value == 0 ? "0" : fsdp_print_bytes((int64_t)value).text);
  }
  double count = p->profile->position_count, x_step = fmax(1, round_step(count, 10));
  for (double value = 0; value <= count; value += x_step) {
    snprintf(text, sizeof text, "%.0f", value);
    print_text(p->out, x_of(p, value), p->top + PLOT_HEIGHT + 18, "text-anchor=\"middle\"", text);
  }
  print_text(p->out, LEFT + PLOT_WIDTH / 2.0, p->top + PLOT_HEIGHT + 38, "text-anchor=\"middle\"",
             "instruction of the step, in the order of the list");
  fprintf(p->out,
          "<text transform=\"translate(18 %.1f) rotate(-90)\" text-anchor=\"middle\">bytes live on the "
          "%s</text>\n",
          p->top + PLOT_HEIGHT / 2.0, p->space == FSDP_SPACE_DEVICE ? "device" : "host");
}

static void print_phases(const panel *p) {
  fsdp_memory_phase phases[2 * FSDP_MAX_SECTIONS];
  int count = fsdp_memory_profile_phases(p->profile, phases);
  for (int i = 0; i < count; i++) {
    double left = x_of(p, phases[i].begin), right = x_of(p, phases[i].end);
    fprintf(p->out, "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/>\n", left, p->top,
            right - left, PLOT_HEIGHT, i % 2 ? "#eef1f4" : "#f8f9fa");
  }
}

// Names stand above the areas, and a line parts each phase from the next, over them.
static void print_phase_names(const panel *p) {
  fsdp_memory_phase phases[2 * FSDP_MAX_SECTIONS];
  int count = fsdp_memory_profile_phases(p->profile, phases);
  for (int i = 0; i < count; i++) {
    double left = x_of(p, phases[i].begin), right = x_of(p, phases[i].end);
    if (i) {
      fprintf(p->out, "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" class=\"phase\"/>\n", left,
              p->top - 4, left, p->top + PLOT_HEIGHT);
    }
    char name[64];
    snprintf(name, sizeof name, phases[i].times > 1 ? "%s x%d" : "%s", phases[i].name, phases[i].times);
    double needed = 7.0 * (double)strlen(name);
    if (right - left >= needed) {
      print_text(p->out, (left + right) / 2, p->top - 8, "text-anchor=\"middle\" class=\"name\"",
                 phases[i].name);
    } else if (i + 1 == count) {
      print_text(p->out, right, p->top - 8, "text-anchor=\"end\" class=\"name\"", name);
    }
  }
}

static void print_level(const panel *p, int64_t bytes, const char *name, double label_shift) {
  char text[96];
  double y = y_of(p, (double)bytes);
  snprintf(text, sizeof text, "%s %s", name, fsdp_print_bytes(bytes).text);
  fprintf(p->out, "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" class=\"level\"/>\n", LEFT, y,
          LEFT + PLOT_WIDTH, y);
  print_label(p->out, LEFT + PLOT_WIDTH + 6, y + label_shift, "start", "small", text);
}

static void print_peak(const panel *p) {
  const fsdp_memory_space_report *report = &p->profile->plan->memory.space[p->space];
  if (report->peak_position >= p->profile->position_count) return;
  double x = x_of(p, report->peak_position + 0.5), y = y_of(p, (double)report->peak_bytes);
  char text[LABEL_BYTES], where[LABEL_BYTES];
  bool to_right = x < LEFT + PLOT_WIDTH / 2.0;
  double text_x = to_right ? x + 12 : x - 12;
  const char *anchor = to_right ? "start" : "end";
  fprintf(p->out, "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%.1f\" class=\"mark\"/>\n", x, p->top + 8, x,
          y);
  fprintf(p->out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4.5\" class=\"dot\"/>\n", x, y);
  snprintf(text, sizeof text, "peak %s", fsdp_print_bytes(report->peak_bytes).text);
  print_label(p->out, text_x, p->top + 20, anchor, "peak", text);
  snprintf(text, sizeof text, "at instruction %d: %s", report->peak_position,
           fsdp_plan_print_instr(p->profile->plan, report->peak_position, where, sizeof where));
  print_label(p->out, text_x, p->top + 37, anchor, "small", text);
}

static void print_legend(const panel *p) {
  const fsdp_memory_space_report *report = &p->profile->plan->memory.space[p->space];
  double y = p->top + 100;
  print_text(p->out, LEGEND_LEFT, y - 14, "class=\"name\"", "at the peak");
  for (int i = FSDP_CATEGORY_COUNT - 1; i >= 0; i--, y += 24) {
    fprintf(p->out, "<rect x=\"%d\" y=\"%.1f\" width=\"14\" height=\"14\" fill=\"%s\"/>\n", LEGEND_LEFT, y,
            layers[i].color);
    print_text(p->out, LEGEND_LEFT + 22, y + 12, "", layers[i].label);
    print_text(p->out, WIDTH - 16, y + 12, "text-anchor=\"end\"",
               fsdp_print_bytes(report->peak_by_category[layers[i].category]).text);
  }
}

static void print_panel(const panel *p) {
  const fsdp_memory_space_report *report = &p->profile->plan->memory.space[p->space];
  print_phases(p);
  print_axes(p);
  print_layers(p);
  print_phase_names(p);
  print_text(p->out, LEFT, p->top - 26, "class=\"title\"", p->title);
  // Labels of levels that lie close together are pushed apart.
  bool close = fabs(y_of(p, (double)report->arena_bytes) - y_of(p, (double)report->valley_bytes)) < 14;
  print_level(p, report->arena_bytes, "arena", close ? -2 : 4);
  print_level(p, report->valley_bytes, "valley", close ? 12 : 4);
  print_peak(p);
  print_legend(p);
}

static const char style[] =
    "text{font-family:Helvetica,Arial,'DejaVu Sans',sans-serif;font-size:12px;fill:#333}"
    ".head{font-size:18px;font-weight:bold}.title{font-size:13px;font-weight:bold}.name{font-weight:bold;"
    "fill:#555}"
    ".peak{font-size:14px;font-weight:bold;fill:#111}.small{font-size:11px;fill:#333}"
    ".halo{fill:none;stroke:#fff;stroke-width:3px;stroke-opacity:.8;stroke-linejoin:round}"
    ".grid{stroke:#d5dade;stroke-width:1}.phase{stroke:#444;stroke-width:1;stroke-dasharray:3 3}"
    ".level{stroke:#111;stroke-width:1;stroke-dasharray:6 3}.mark{stroke:#111;stroke-width:1}"
    ".dot{fill:#fff;stroke:#111;stroke-width:2}";

// The host holds only a step's inputs and results otherwise.
static bool shows_host(const fsdp_plan *plan) {
  return plan->config.cpu_offload ||
         plan->memory.space[FSDP_SPACE_HOST].peak_by_category[FSDP_CATEGORY_ACTIVATIONS] > 0;
}

static double headroom(int64_t bytes) {
  return fmax(1, (double)bytes) * 1.2;
}

void fsdp_memory_svg_print(const fsdp_memory_profile *profile, FILE *out) {
  const fsdp_plan *plan = profile->plan;
  const fsdp_memory_report *memory = &plan->memory;
  bool with_host = shows_host(plan);
  int height = HEAD + (with_host ? 2 : 1) * (PLOT_HEIGHT + PANEL_GAP) + 16;
  int ranks = fsdp_mesh_ranks(&plan->config.mesh);
  char line[LABEL_BYTES], mesh[FSDP_MESH_TEXT_BYTES];
  fprintf(
      out,
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" "
      "height=\"%d\" viewBox=\"0 0 %d %d\">\n<style>%s</style>\n"
      "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n",
      WIDTH, height, WIDTH, height, style, WIDTH, height);
  snprintf(line, sizeof line, "Memory of a rank over one training step: %s", profile->model_name);
  print_text(out, LEFT, 26, "class=\"head\"", line);
  snprintf(line, sizeof line,
           "%d rank%s (%s), strategy %s, %d unit%s, micro-batch %" PRId64 " x %" PRId64 ", %s on %s%s", ranks,
           fsdp_plural(ranks), fsdp_mesh_print(&plan->config.mesh, ", ", mesh),
           fsdp_strategy_name(plan->config.strategy), plan->units->count, fsdp_plural(plan->units->count),
           plan->config.batch, plan->config.seq, fsdp_dtype_name(plan->config.param_dtype),
           plan->config.backend->name, plan->config.cpu_offload ? ", offloaded" : "");
  print_text(out, LEFT, 46, "", line);
  int columns = (int)fsdp_min_i64(profile->position_count, PLOT_WIDTH);
  panel p = {.profile = profile,
             .space = FSDP_SPACE_DEVICE,
             .title = with_host ? "device" : "",
             .out = out,
             .top = HEAD + 36,
             .y_max = headroom(memory->space[FSDP_SPACE_DEVICE].arena_bytes),
             .column_count = columns};
  print_panel(&p);
  if (with_host) {
    p.space = FSDP_SPACE_HOST;
    p.title = "host";
    p.top += PLOT_HEIGHT + PANEL_GAP;
    p.y_max = headroom(memory->space[FSDP_SPACE_HOST].arena_bytes);
    print_panel(&p);
  }
  fputs("</svg>\n", out);
}
