#include "tests/fuzz/propagated.h"

#include "launcher/report/strategies.h"
#include "launcher/setup/strategies_file.h"
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Every operator is given what it had.
static void check_again(const fsdp_dataflow *flow, const fsdp_propagation *propagation, const char *path) {
  fsdp_options options = {.op_strategies = (char *)(uintptr_t)path};
  fsdp_given_strategies *given;
  fsdp_propagation *again;
  fsdp_error error = {0};
  fsdp_status status = fsdp_strategies_read(&options, &given, &error);
  FSDP_CHECK(status == FSDP_OK, "what is printed cannot be read: %s", error.message);
  status = fsdp_propagate(flow, &propagation->mesh, given, &again, &error);
  FSDP_CHECK(status == FSDP_OK, "what is printed is refused: %s", error.message);
  FSDP_CHECK(again->forward_bytes == propagation->forward_bytes &&
                 again->backward_bytes == propagation->backward_bytes,
             "%lld and %lld bytes are moved, then %lld and %lld", (long long)propagation->forward_bytes,
             (long long)propagation->backward_bytes, (long long)again->forward_bytes,
             (long long)again->backward_bytes);
  for (int o = 0; o < flow->operator_count; o++) {
    const fsdp_operator_strategy *a = &propagation->operators[o], *b = &again->operators[o];
    FSDP_CHECK(b->decision == FSDP_DECIDED_GIVEN, "%s is not given", flow->operators[o].names[0]);
    FSDP_CHECK(!memcmp(&a->axes, &b->axes, sizeof a->axes), "%s has another strategy",
               flow->operators[o].names[0]);
  }
  fsdp_propagation_destroy(again);
  fsdp_strategies_destroy(given);
}

void fsdp_fuzz_propagate(const fsdp_dataflow *flow, const fsdp_given_strategies *given) {
  const fsdp_slice_mesh mesh = fsdp_slice_mesh_of_ranks(30);
  fsdp_propagation *propagation;
  fsdp_error error = {0};
  char *text = NULL;
  size_t bytes = 0;
  if (fsdp_propagate(flow, &mesh, given, &propagation, &error) != FSDP_OK) return;
  FSDP_CHECK(propagation->forward_bytes >= 0 && propagation->backward_bytes >= 0, "%lld and %lld bytes",
             (long long)propagation->forward_bytes, (long long)propagation->backward_bytes);
  FILE *out = open_memstream(&text, &bytes);
  FSDP_CHECK(out, "no memory for what is printed");
  fsdp_strategies_print(propagation, NULL, out);
  fclose(out);
  check_again(flow, propagation, fsdp_fuzz_file("printed.yaml", text, bytes));
  free(text);
  fsdp_propagation_destroy(propagation);
}
