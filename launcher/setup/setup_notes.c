#include "launcher/setup/setup_notes.h"

#include <inttypes.h>

bool fsdp_resize_note(const fsdp_options *options, const fsdp_setup *setup, char *out, size_t out_bytes) {
  const int64_t tokens = setup->plan->config.model.vocab_size, before = setup->stored_vocab;
  if (!options->resize_embeddings) return false;
  if (before == 0)
    snprintf(out, out_bytes,
             "--resize-embeddings %.60s (%s) has no effect: the model has %" PRId64 " tokens already",
             options->resize_embeddings, fsdp_options_place(options, "resize-embeddings"), tokens);
  else
    snprintf(out, out_bytes,
             "the vocabulary grows from %" PRId64 " to %" PRId64 " tokens (--resize-embeddings)%s", before,
             tokens, setup->load_weights ? ": each new row is the mean of the others" : "");
  return true;
}

void fsdp_note_threads(const fsdp_options *options, const fsdp_device_profile *profile, const char *program,
                       FILE *out) {
  if (!fsdp_options_given(options, "threads") || !profile || profile->device != FSDP_OP_CUDA) return;
  fprintf(out, "%s: note: --threads %" PRId64 " (%s) has no effect on the price: profile %s is of a GPU\n",
          program, options->threads, fsdp_options_place(options, "threads"), profile->name);
}
