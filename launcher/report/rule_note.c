#include "launcher/report/rule_note.h"

#include <stdio.h>
#include <string.h>

// Whether a module before this one has the same line.
static bool is_known(const fsdp_specs *specs, int module) {
  for (int m = 0; m < module; m++)
    if (specs->modules[m].outcome && !strcmp(specs->modules[m].place, specs->modules[module].place))
      return true;
  return false;
}

bool fsdp_rule_note(const fsdp_plan *plan, int number, char *note, size_t note_bytes) {
  for (int m = 0; plan->config.sharding && m < plan->graph->module_count; m++) {
    const fsdp_spec *rule = &plan->specs->modules[m];
    if (!rule->outcome || is_known(plan->specs, m) || number-- > 0) continue;
    char path[FSDP_NAME_BYTES], text[FSDP_SPEC_TEXT_BYTES];
    fsdp_graph_module_path(plan->graph, m, path);
    snprintf(note, note_bytes, "%s: \"%s\": %s is not followed: %s", rule->place, path,
             fsdp_spec_print(rule, &plan->config.mesh, text),
             rule->outcome == FSDP_RULE_NO_TENSOR
                 ? "the plan has no tensor of this output's own, so the line stores nothing"
                 : "the op that makes this output, maybe with others, stores it otherwise");
    return true;
  }
  return false;
}
