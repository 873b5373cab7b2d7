// Questions about the options: what was given and where, and what follows from several of them.
#pragma once

#include "runtime/plan/text/option_store.h"

// Note `index` (from 0) about the options, as a sentence: another trainer's names, and what has no effect but
// harms nothing (a threshold beside --wrap block, so that the hint's `--wrap block` can simply be added to a
// command). False behind the last.
bool fsdp_options_note(const fsdp_options *options, int index, char *note, int note_bytes);

// Whether a user gave the option, and where ("command line", "run.yaml:3", or "default").
bool fsdp_options_given(const fsdp_options *options, const char *name);
const char *fsdp_options_place(const fsdp_options *options, const char *name);

// fsdp_fail with options named in the format: {a trace} is "--trace (command line)", {A trace} the same with
// its value behind the name, {Q trace} with the value in quotes.
fsdp_status fsdp_refuse(const fsdp_options *options, fsdp_error *error, fsdp_status status,
                        const char *format, ...) __attribute__((format(printf, 4, 5)));

// FSDP_ERR_OPTION with a text in which {a}, {A} and {Q} are of the option `first`, {b} and {B} of `second`,
// and {n} is the name of `first` alone.
fsdp_status fsdp_options_fail_pair(const fsdp_options *options, fsdp_error *error, const char *first,
                                   const char *second, const char *text);

// Whether there is anything to evaluate on.
bool fsdp_options_evaluate(const fsdp_options *options);
