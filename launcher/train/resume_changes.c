#include "launcher/train/resume_changes.h"

#include "runtime/base/check.h"
#include "runtime/plan/text/option_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// An option that is not here is reported, also one that is added later.
static const char *const unchanging[] = {
    // What is printed, logged, checked or refused.
    "log", "log-freq", "tensorboard", "memory-profile", "trace", "trace-steps", "measure", "poison",
    "print-model", "print-program", "print-sharding", "dry-run", "help", "version", "eval-freq",
    "eval-at-start", "stop-after", "print-config", "verify-data", "compare-files", "memory-limit",
    "host-memory-limit", "memory-margin", "comm-timeout", "rank-logs", "ranks", "ranks-per-node", "json",
    "compare", "print-strategies", "graph", "profile", "price", "self-test", "sample-every", "prompt",
    "prompt-tokens", "chat-template", "max-new-tokens", "temperature", "top-p",
    // What chooses other options, which are compared themselves.
    "search", "save-plan", "auto", "global-batch",
    // Where and when it is saved and resumed.
    "save-dir", "experiment-name", "ckpt-freq", "ckpt-keep", "ckpt-async", "ckpt-best", "resume",
    "resume-schedule", "overwrite",
    // What a resumed run has no use for.
    "init",
    // Where it runs.
    "threads", "bind", "nccl-register", "nccl-ctas", "multiprocessors", "gemm-multiprocessors",
    "allow-shared-gpu", "attention",
    // Where what lies: the same numbers but for rounding. `resumed:` names strategy and mesh.
    "strategy", "mesh", "tensor-parallel", "sequence-parallel", "context-parallel", "expert-parallel",
    "expert-blocks", "expert-capacity", "sharding", "shard", "extra-data-axis", "wrap", "numel-to-wrap",
    "prefetch", "cpu-offload", "recompute", "offload-activations", "op-strategies", NULL};

const char *const *fsdp_resume_unchanging(void) {
  return unchanging;
}

typedef struct listing {
  char *out;
  size_t bytes, used;
} listing;

static void add(listing *l, const char *name, const char *from, const char *to, const char *note) {
  if (l->used < l->bytes)
    l->used += (size_t)snprintf(l->out + l->used, l->bytes - l->used, "%s--%s %s%s%s%s", l->used ? ", " : "",
                                name, from, *to ? " → " : "", to, note);
}

// The value as a user would type it: "0.050000000000000003" is 0.05.
static const char *shown(const char *name, const char *text, char out[128]) {
  char *end;
  double value = strtod(text, &end);
  bool none = !*text || (strcmp(name, "max-steps") == 0 && strcmp(text, "0") == 0);
  snprintf(out, 128, "%s", none ? "none" : text);
  if (none || end == text || *end || !strpbrk(text, ".e")) return out;
  for (int digits = 6; digits <= 17; digits++) {
    snprintf(out, 128, "%.*g", digits, value);
    if (strtod(out, NULL) == value) break;
  }
  return out;
}

static void compare(listing *l, const char *name, const char *from, const char *to, bool data_differs) {
  bool data = strcmp(name, "data") == 0, same = strcmp(from, to) == 0;
  char was[128], is[128];
  if (same && !(data && data_differs)) return;
  shown(name, from, was);
  shown(name, to, is);
  if (!data && strcmp(was, is) == 0) return; // 2e+01, as earlier versions wrote it, is 20
  if (!data)
    add(l, name, was, is, "");
  else if (same)
    add(l, name, *to ? is : "of the program", "", " has different contents");
  else
    add(l, name, was, is, data_differs ? "" : " (the same contents)");
}

bool fsdp_resume_changes(const json_t *saved, const char *current, bool data_differs, char *out,
                         size_t out_bytes) {
  listing l = {.out = out, .bytes = out_bytes};
  if (out_bytes) *out = 0;
  while (*current) {
    size_t line = strcspn(current, "\n"), length = strcspn(current, "=");
    FSDP_CHECK(length < line, "an option's description without a value");
    char *name = strndup(current, length), *value = strndup(current + length + 1, line - length - 1);
    FSDP_NEED_MEMORY(name && value, "a text");
    const char *was = json_string_value(json_object_get(saved, name));
    if (was && !fsdp_option_is_one_of(name, unchanging)) compare(&l, name, was, value, data_differs);
    free(name);
    free(value);
    current += line + (current[line] == '\n');
  }
  return l.used > 0;
}
