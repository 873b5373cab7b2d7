// The YAML file of options, through every option's own parser and the checks of combinations; and the lists
// of what layers recompute and offload, through to the fates in a model.
#include "launcher/options/options.h"
#include "models/model.h"
#include "runtime/plan/program/saving.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

static const fsdp_graph *tiny_graph(void) {
  static fsdp_graph *graph;
  if (graph) return graph;
  fsdp_model_config config = {0};
  fsdp_error error;
  FSDP_CHECK(fsdp_model_preset("tiny", &config, &error) == FSDP_OK, "%s", error.message);
  return graph = fsdp_model_graph(&config, 1, 8);
}

// What is accepted is printed as text that gives the same rules.
static void read_saving(const fsdp_options *options) {
  fsdp_saving saving = {0}, again = {0};
  fsdp_error error = {0};
  char text[2][FSDP_SAVING_TEXT_BYTES];
  if (fsdp_saving_parse(options->recompute, "r", FSDP_FATE_RECOMPUTE, &saving, &error) != FSDP_OK ||
      fsdp_saving_parse(options->offload_activations, "o", FSDP_FATE_OFFLOAD, &saving, &error) != FSDP_OK)
    return;
  fsdp_saving_print(&saving, FSDP_FATE_RECOMPUTE, text[0]);
  fsdp_saving_print(&saving, FSDP_FATE_OFFLOAD, text[1]);
  FSDP_CHECK(fsdp_saving_parse(text[0], "r", FSDP_FATE_RECOMPUTE, &again, &error) == FSDP_OK &&
                 fsdp_saving_parse(text[1], "o", FSDP_FATE_OFFLOAD, &again, &error) == FSDP_OK,
             "%s", error.message);
  FSDP_CHECK(again.count == saving.count, "%d rules, then %d", saving.count, again.count);
  for (int i = 0; i < saving.count; i++)
    FSDP_CHECK(strcmp(saving.rules[i].name, again.rules[i].name) == 0 &&
                   saving.rules[i].layers == again.rules[i].layers &&
                   saving.rules[i].fate == again.rules[i].fate,
               "rule %d of %s and %s", i, text[0], text[1]);
  const fsdp_graph *graph = tiny_graph();
  fsdp_fate *fates = fsdp_alloc((size_t)graph->value_count * sizeof *fates);
  fsdp_saving_resolve(&saving, graph, (int)options->prefetch, fates, &error);
  free(fates);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fsdp_options options;
  fsdp_error error = {0};
  char name[] = "fsdp_train", config[] = "--config";
  char *arguments[] = {name, config, (char *)(uintptr_t)fsdp_fuzz_file("run.yaml", data, size), NULL};
  if (fsdp_options_parse(&options, FSDP_PROGRAM_TRAIN, 3, arguments, &error) == FSDP_OK) {
    free(fsdp_options_describe(&options));
    read_saving(&options);
  }
  fsdp_options_destroy(&options);
  return 0;
}
