#include "launcher/setup/dropout_choice.h"

#include "models/model.h"

#include <stdlib.h>
#include <string.h>

static fsdp_status choose_all(const fsdp_options *options, const fsdp_model_config *model,
                              fsdp_dropout *rates, fsdp_error *error) {
  const char *place = fsdp_options_place(options, "dropout");
  char *end;
  if (!strcmp(options->dropout, "config")) {
    if (fsdp_model_dropout(model, rates)) return FSDP_OK;
    return fsdp_fail(error, FSDP_ERR_OPTION,
                     "--dropout config (%s): configurations of this model's type have no rates here: give a "
                     "number, as in --dropout 0.1",
                     place);
  }
  const double rate = strtod(options->dropout, &end);
  if (end == options->dropout || *end || !(rate >= 0 && (float)rate < 1))
    return fsdp_fail(
        error, FSDP_ERR_OPTION,
        "--dropout %.100s (%s): is neither a rate of 0 or more and below 1 nor \"config\"; use one "
        "of these",
        options->dropout, place);
  *rates = (fsdp_dropout){(float)rate, (float)rate, (float)rate};
  return FSDP_OK;
}

fsdp_status fsdp_dropout_choose(const fsdp_options *options, const fsdp_model_config *model,
                                fsdp_dropout *rates, fsdp_error *error) {
  *rates = (fsdp_dropout){0};
  const fsdp_status status = options->dropout ? choose_all(options, model, rates, error) : FSDP_OK;
  if (status == FSDP_OK && fsdp_options_given(options, "attention-dropout"))
    rates->attention = (float)options->attention_dropout;
  return status;
}
