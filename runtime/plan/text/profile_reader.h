// The parts of reading a device profile: words, numbers, curves and lists of rows. profile_text.c reads the
// whole.
#pragma once

#include "runtime/plan/price/device_profile.h"
#include "runtime/plan/text/yaml_document.h"

#define FSDP_PROFILE_BASES_MAX   8
#define FSDP_PROFILE_PLACE_BYTES 200

#define FSDP_PROFILE_PATH_BYTES 4096

// The path of a file without links and dots, which the caller frees, or NULL: there is none.
typedef char *fsdp_profile_find(const char *path);

typedef struct fsdp_profile_reader {
  fsdp_device_profile *profile;
  char attention_kernel[FSDP_PROFILE_KERNEL_BYTES]; // the one to use; "": the first
  char attention_place[FSDP_PROFILE_PLACE_BYTES];   // file and line that say so
  char grouped_kernel[FSDP_PROFILE_KERNEL_BYTES];   // the same of products grouped by expert
  char grouped_place[FSDP_PROFILE_PLACE_BYTES];
  char *places[FSDP_PROFILE_BASES_MAX]; // of the files being read: each is the base of the one before it
  int depth;
  fsdp_profile_find *find;         // NULL: shipped profiles alone are known
  fsdp_yaml_visit_function *visit; // of files
  yaml_document_t *document;
  fsdp_error *error;
} fsdp_profile_reader;

// The document's node of this index.
const yaml_node_t *fsdp_profile_node(const fsdp_profile_reader *r, int index);

// FSDP_ERR_INPUT, with file and line.
fsdp_status fsdp_profile_fail_at(const fsdp_profile_reader *r, const yaml_node_t *node, const char *format,
                                 ...) __attribute__((format(printf, 3, 4)));

// `what` names the value in messages.

// The index of the scalar's word among `names`.
fsdp_status fsdp_profile_read_word(const fsdp_profile_reader *r, const yaml_node_t *node, const char *what,
                                   const char *const *names, int count, int *index);

// The index of a pair's key among `keys`, which no pair before it has. *seen, at first 0: those read (bits).
fsdp_status fsdp_profile_read_key(const fsdp_profile_reader *r, const yaml_node_pair_t *pair,
                                  const char *const *keys, int count, unsigned *seen, int *key);

// What a number is, and its unit, 10^exponent; `least` is of the result.
typedef struct fsdp_profile_unit {
  const char *what;
  int exponent;
  double least;
} fsdp_profile_unit;

// A number above 0: a scalar, or the value of {value: ..., source: ...}. *mark: whether `estimated: true`
// stands beside it; NULL: it must not.
fsdp_status fsdp_profile_read_number(const fsdp_profile_reader *r, const yaml_node_t *node,
                                     const fsdp_profile_unit *unit, double *number, bool *mark);
fsdp_status fsdp_profile_read_whole(const fsdp_profile_reader *r, const yaml_node_t *node, const char *what,
                                    int64_t least, int64_t *number);

// {size: number, ...} into an empty curve, whose points the caller frees, also after an error.
fsdp_status fsdp_profile_read_curve(const fsdp_profile_reader *r, const yaml_node_t *node, const char *what,
                                    int exponent, fsdp_profile_curve *curve);

// The whole list in place of what the profile has.
fsdp_status fsdp_profile_read_list(const fsdp_profile_reader *r, const yaml_node_t *node,
                                   fsdp_profile_list list);
