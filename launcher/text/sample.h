// The text that a sample continues, and what was sampled.
//
//   --prompt ─► rank 0's text codec ─► tokens ─► all ranks ─► (launcher/train) ─► text codec ─► text
#pragma once

#include "launcher/options/options.h"
#include "launcher/setup/setup.h"
#include "launcher/text/text_codec.h"
#include "runtime/comm/world.h"

typedef struct fsdp_sample {
  int32_t *tokens; // the prompt, and behind it what was sampled last
  int64_t prompt_count, new_count, new_max;
  bool as_tokens; // --prompt-tokens: printed as such
  int32_t end;    // the token that ended what was sampled last, where one did
} fsdp_sample;

// Before communication: starts a text codec if this process is rank 0, as its launcher says, and text is
// asked for that something may be the tokenizer of.
void fsdp_sample_start_codec(const fsdp_options *options, fsdp_text_codec *codec);

// The prompt as tokens, and room for --max-new-tokens; nothing if no prompt is given. On rank 0 alone it
// reads the model's configuration and opens the codec, or for --prompt-tokens tells it what ends a text (the
// data's last token, the eos_token_id of the model's files). FSDP_ERR_OPTION, FSDP_ERR_INPUT, FSDP_ERR_PEER;
// every rank returns the same. Destroy it in any case; `codec` (of rank 0) outlives it.
fsdp_status fsdp_sample_create(fsdp_world *world, const fsdp_options *options, fsdp_text_codec *codec,
                               fsdp_sample *sample, fsdp_error *error);
void fsdp_sample_destroy(fsdp_sample *sample);

// FSDP_ERR_OPTION if the text may grow longer than the plan's sequence.
fsdp_status fsdp_sample_check(const fsdp_sample *sample, const fsdp_options *options, fsdp_error *error);

// Rank 0: adds the token, which was sampled behind the others, unless it is one that ends the text. Returns
// whether the text ends. Where a text ends it that is no token, the tokens of that are added.
bool fsdp_sample_add(fsdp_sample *sample, fsdp_text_codec *codec, int32_t token);

// What was sampled, without the prompt and what ends it, for a person: text, or tokens with commas between.
// Rank 0 alone. The caller frees *text.
fsdp_status fsdp_sample_print(const fsdp_sample *sample, fsdp_text_codec *codec, char **text,
                              fsdp_error *error);

// Of a sample that has no token: " (token 2, which ends a text, came first)"; else "". Rank 0's.
// Returns `out`.
enum { FSDP_SAMPLE_ENDING_BYTES = 64 };
const char *fsdp_sample_ending(const fsdp_sample *sample, char out[FSDP_SAMPLE_ENDING_BYTES]);

// What a user may not expect of the prompt, or NULL. Of rank 0.
const char *fsdp_sample_note(const fsdp_sample *sample, const fsdp_options *options,
                             const fsdp_text_codec *codec);

// Replaces what would steer a terminal by "?". Returns `text`.
char *fsdp_sample_shown(char *text);
