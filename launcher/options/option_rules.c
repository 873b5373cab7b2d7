#include "launcher/options/option_check.h"
#include "runtime/base/check.h"
#include "runtime/plan/text/option_query.h"

#include <stdlib.h>
#include <string.h>

// A rule is broken by each of `given` that was given, where all of `where` hold. Names are separated by
// spaces; of a name with a value, it is looked at:
//
//   trace        not "off", and not empty        trace=         empty, off, or 0
//   wrap=block   the same                        resume!auto    another one, and as above
//
// A text is of fsdp_options_fail_pair: of one of `given`, and the first of `where`.
typedef struct rule {
  const char *given, *where;
  int programs; // fsdp_program_kind bits; 0: both
  const char *text;
} rule;

// What does not go with --compare, on the command line or in one of its files.
static const rule of_one_plan[] = {
    {"print-model print-program print-sharding print-strategies graph memory-profile trace search save-plan "
     "global-batch self-test",
     "compare", 0, "{a} is about one plan, {b} about several: leave one out"},
    {"machines", "compare", 0,
     "{a} finds a plan for each machine, {b} makes those of its files: leave one out (a file may name its "
     "own "
     "machine, as in \"ranks: 8\" and \"profile: h100-sxm\")"},
};
// On the command line.
static const rule of_one_file = {"config", "compare", 0,
                                 "{a} is about one plan, {b} about several: leave one out"};

#define BOTH_PRINT "{a} and {b} would both fill the standard output: use one at a time"
#define NO_DATA                                                                                              \
  "{A} counts passes over --data, which is not given: add --data FILE, or give --tokens N or --max-steps N " \
  "in its place"
#define NO_MACHINE                                                                                           \
  "{a} needs a machine to price for: add --profile NAME, such as h100-sxm, or --profile FILE, which "        \
  "fsdp_profile writes"

static const rule table[] = {
    {"min-lr", "lr-schedule=constant", 0, "{A} has no effect with {B}: leave one out"},
    {"decay!all", "weight-decay=", 0, "{A} has no effect with {B}: leave it out, or raise that"},
    {"warmup-ratio", "warmup-steps", 0, "{A} and {B} both set the warm-up: leave one out"},
    {"lr-decay-ratio", "lr-schedule!wsd", 0,
     "{A} is of --lr-schedule wsd, and this is {B}: add that, or leave this out"},
    {"shard", "sharding=", 0,
     "{A} changes a line of --sharding, which is not given: add --sharding fsdp, or a file"},
    {"sharding sequence-parallel", "op-strategies", 0,
     "{a} and {B} both say what lies where: leave one of them out"},
    {"graph", "op-strategies=", 0,
     "{a} needs strategies of some operators to propagate: add --op-strategies FILE"},
    {"print-strategies", "op-strategies= sharding= graph=", 0,
     "{a} needs strategies of some operators to propagate: add --op-strategies FILE or --sharding FILE"},
    {"model json print-model print-program print-sharding memory-profile tensor-parallel context-parallel "
     "expert-parallel "
     "strategy memory-limit price profile trace batch-size seq-length recompute self-test",
     "graph", 0,
     "{a} is for models, and {B} is a network of operators, of which strategies are printed: leave one of "
     "them "
     "out"},
    {"trace-steps", "trace=", 0, "{A} has no effect without --trace FILE: add it, or leave this out"},
    {"trace-steps", "", FSDP_PROGRAM_PLAN,
     "{A}: fsdp_plan --trace writes two simulated steps, and later ones are as the second: leave it out, or "
     "trace a run of fsdp_train"},
    {"eval-data", "eval-split", 0, "{Q} and {B} both choose what to evaluate on: leave one out"},
    {"eval-freq eval-at-start stop-after ckpt-best", "eval-data= eval-split=", 0,
     "{A} has nothing to evaluate on: add --eval-data FILE, or --eval-split 0.05"},
    // Those that are read by programs are printed alone.
    {"print-sharding print-strategies print-model print-program", "json", FSDP_PROGRAM_PLAN, BOTH_PRINT},
    {"print-strategies print-model print-program", "print-sharding", FSDP_PROGRAM_PLAN, BOTH_PRINT},
    {"print-model print-program", "print-strategies", FSDP_PROGRAM_PLAN, BOTH_PRINT},
    {"print-strategies", "self-test", FSDP_PROGRAM_PLAN,
     "{a} makes no plan that {b} could test: use one at a time"},
    {"ranks profile compare save-plan trace print-model print-program print-sharding print-strategies "
     "memory-profile self-test graph",
     "machines", FSDP_PROGRAM_PLAN, "{a} is about one machine or plan, {b} about several: leave one out"},
    {"tokens gpu-hour", "price= search= machines=", FSDP_PROGRAM_PLAN,
     "{a} has no effect without a price: add --price or --search, with --profile, or --machines"},
    {"imbalance", "price= search= machines= trace=", FSDP_PROGRAM_PLAN,
     "{A} has no effect without a price: add --price or --search, with --profile, or --machines"},
    {"num-epochs", "price data=", FSDP_PROGRAM_PLAN, NO_DATA},
    {"num-epochs", "search data=", FSDP_PROGRAM_PLAN, NO_DATA},
    {"num-epochs", "machines data=", FSDP_PROGRAM_PLAN, NO_DATA},
    {"gpu-hour", "tokens= max-steps= data=", FSDP_PROGRAM_PLAN,
     "{A} is for a run, and nothing says how long it is: add --tokens N, --max-steps N or --data FILE"},
    {"search price trace", "profile= machines=", FSDP_PROGRAM_PLAN, NO_MACHINE},
    {"price trace print-model print-program print-sharding print-strategies memory-profile op-strategies "
     "self-test",
     "search", 0,
     "{b} prints several plans, and {a} is about one: search with --save-plan FILE first, then give --config "
     "FILE with --{n}"},
    {"auto", "op-strategies", 0, "{a} chooses the mesh that {B} is written for: leave one of them out"},
    {"save-plan", "search=", 0, "{A} writes what a search finds: add --search"},
    {"global-batch", "search= machines=", FSDP_PROGRAM_PLAN,
     "{A} has no effect without --search: add it, or give --batch-size and --grad-accum"},
    {"global-batch", "auto=", FSDP_PROGRAM_TRAIN,
     "{A} has no effect without --auto: add it, or give --batch-size and --grad-accum"},
    {"stop-after", "eval-freq=", 0,
     "{A} counts evaluations, and {b} makes one only at the end: add --eval-freq N"},
    {"ckpt-best", "ckpt-freq=", 0, "{A} saves nothing with {B}: leave one of them out"},
    {"overwrite", "resume", 0,
     "{a} removes what an experiment has, and {B} resumes it: add --resume off, or leave this out"},
    {"prompt-tokens", "prompt", 0, "{a} and {B} both say what to continue: leave one out"},
    {"sample-every", "prompt= prompt-tokens=", FSDP_PROGRAM_TRAIN | FSDP_PROGRAM_PLAN,
     "{A} has nothing to continue: add --prompt TEXT, or --prompt-tokens 1,2,3"},
    {"prompt prompt-tokens", "sample-every=", FSDP_PROGRAM_TRAIN | FSDP_PROGRAM_PLAN,
     "{a} has no effect without samples: add --sample-every N, or leave it out"},
    {"chat-template!plain", "prompt=", 0,
     "{A} is the form of --prompt TEXT, which is not given (conversations of --data get theirs from "
     "prepare_data.py --chat-template): add it, or leave this out"},
    {"max-new-tokens temperature top-p", "prompt= prompt-tokens=", 0,
     "{A} has no effect without a text to continue: add --prompt TEXT, or leave it out"},
    {"top-p!1", "temperature=", 0,
     "{A} has no effect with --temperature 0, which takes the most probable token: give a --temperature"},
    {"model", "experiment-name", FSDP_PROGRAM_EVAL, "{Q} and {B} both say what to evaluate: leave one out"},
    {"print-model print-program print-sharding dry-run", "json", FSDP_PROGRAM_EVAL, BOTH_PRINT},
    {"ckpt-freq ckpt-keep ckpt-async ckpt-best overwrite", "experiment-name=", FSDP_PROGRAM_TRAIN,
     "{a} saves nothing without -e: name the experiment with -e NAME, or leave it out"},
    {"resume!auto", "experiment-name=", 0, "{Q} requires an experiment: add -e NAME, or leave it out"},
    {"resume-schedule!continue", "resume=", 0,
     "{A} requires a run to resume: add -e NAME without --resume off, or leave it out"},
    {"resume-schedule!continue", "experiment-name=", 0,
     "{A} requires a run to resume: add -e NAME, or leave it out"},
    {"skip-grad-norm max-skipped", "grad-clip=", 0,
     "{a}: with {B} updates run before the norm is known, so none can be skipped; use a --grad-clip, 1e30 to "
     "clip nothing"},
    {"nccl-register!auto", "backend=cpu", 0, "{a} is for GPUs, and {B} uses none: leave one out"},
};

// ---- Conditions

enum { NAME_BYTES = 64 };

// The next condition of a list, and its name; returns what follows, NULL behind the last.
static const char *next_condition(const char *list, char condition[NAME_BYTES], char name[NAME_BYTES]) {
  if (!*list) return NULL;
  const size_t length = strcspn(list, " ");
  FSDP_CHECK(length < NAME_BYTES, "a condition of options: %s", list);
  memcpy(condition, list, length);
  condition[length] = 0;
  snprintf(name, NAME_BYTES, "%.*s", (int)strcspn(condition, "=!"), condition);
  return list + length + strspn(list + length, " ");
}

// Whether a value is none: of a text that is no name, as of --resume, also "off".
static bool is_none(const char *name, const char *value) {
  const fsdp_option_row *row = fsdp_option_find(name);
  const bool is_name = row->kind == FSDP_OPTION_TEXT && !(row->argument && strstr(row->argument, "|off"));
  return !*value || (!is_name && (strcmp(value, "off") == 0 || strcmp(value, "0") == 0));
}

static bool holds(const fsdp_options *options, const char *condition, const char *name) {
  const char *test = condition + strlen(name);
  char *value = fsdp_options_value(options, fsdp_option_find(name));
  bool result = !is_none(name, value);
  if (*test == '=') result = test[1] ? strcmp(value, test + 1) == 0 : !result;
  if (*test == '!') result = result && strcmp(value, test + 1) != 0;
  free(value);
  return result;
}

static bool all_hold(const fsdp_options *options, const char *where) {
  char condition[NAME_BYTES], name[NAME_BYTES];
  for (const char *at = where; (at = next_condition(at, condition, name));)
    if (!holds(options, condition, name)) return false;
  return true;
}

static fsdp_status check_rule(const rule *r, const fsdp_options *options, fsdp_error *error) {
  char condition[NAME_BYTES], name[NAME_BYTES], second[NAME_BYTES] = "";
  if (!all_hold(options, r->where)) return FSDP_OK;
  next_condition(r->where, condition, second);
  for (const char *at = r->given; (at = next_condition(at, condition, name));)
    if (fsdp_options_given(options, name) && holds(options, condition, name))
      return fsdp_options_fail_pair(options, error, name, second, r->text);
  return FSDP_OK;
}

fsdp_status fsdp_options_check_compared(const fsdp_options *options, fsdp_error *error) {
  fsdp_status status = FSDP_OK;
  for (size_t i = 0; i < sizeof of_one_plan / sizeof *of_one_plan && !status; i++)
    status = check_rule(&of_one_plan[i], options, error);
  return status;
}

fsdp_status fsdp_options_check_rules(const fsdp_options *options, fsdp_program_kind program,
                                     fsdp_error *error) {
  fsdp_status status = FSDP_OK;
  if (options->compare) {
    status = check_rule(&of_one_file, options, error);
    return status ? status : fsdp_options_check_compared(options, error);
  }
  for (size_t i = 0; i < sizeof table / sizeof *table && !status; i++)
    if (!table[i].programs || table[i].programs & (int)program)
      status = check_rule(&table[i], options, error);
  return status;
}
