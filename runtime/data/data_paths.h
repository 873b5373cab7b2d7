// The files that --data or --eval-data names: paths separated by commas, each of which may be a pattern.
//
//   "a.txt,fineweb_train_*.bin"  ->  a.txt, fineweb_train_000001.bin, fineweb_train_000002.bin, ...
//
// A pattern has *, ? or [...] (glob(7)) and stands for every file that it matches, sorted by the bytes of its
// path. An item that is the path of a file is that file, whatever its letters; so is a pattern's folder.
//
// Blanks around an item are not of it, unless a file has that name.
//
// Items may have weights, all of them or none: "a.tok:0.7,b_*.tok:0.3" mixes what one item stands for with
// what the others do, by shares of the weights' sum.
#pragma once

#include "runtime/base/status.h"

// The files of an item with a weight.
typedef struct fsdp_data_group {
  char *name;   // the item without its weight
  double share; // of the sum of all weights
  int first, count;
} fsdp_data_group;

typedef struct fsdp_data_paths {
  char *list;   // as it was given, for messages; NULL: no list
  char **files; // in order
  int count, capacity;
  fsdp_data_group *groups; // NULL: no weights
  int group_count;
} fsdp_data_paths;

// Splits `list` (NULL: none) and expands its patterns; `option` ("data") is for messages. FSDP_ERR_OPTION if
// only some items have weights, or a weight is not above 0; FSDP_ERR_INPUT if an item is empty, if a pattern
// matches no file (the message names files that it may have meant), or if a list with a pattern has a file
// twice. That files exist that are written out is not checked. The caller destroys *paths in any case.
fsdp_status fsdp_data_paths_find(const char *option, const char *list, fsdp_data_paths *paths,
                                 fsdp_error *error);
void fsdp_data_paths_destroy(fsdp_data_paths *paths); // one of zeros is allowed

// How many of the files are there more than once, also by different paths and links; the paths of one of
// them into `pair`, owned by `paths` (as they were if there is none).
int fsdp_data_paths_repeated(const fsdp_data_paths *paths, const char *pair[2]);

// How many files of `paths` are in `others` too, also by different paths and links; one of them into *first,
// owned by `paths` (NULL if there is none).
int fsdp_data_paths_common(const fsdp_data_paths *paths, const fsdp_data_paths *others, const char **first);
