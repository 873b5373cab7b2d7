// Whether all ranks read the same files, before any of them acts on what they hold.
//
// A path may name a different file on a different node, or in a different working directory. All ranks
// compare sizes and identities (file_identity.h) in one reduction: a file that is the same one everywhere, as
// on a shared file system, is not read. For the others ranks with the same identities of all of them form a
// class. Each class hashes the contents once, its ranks sharing the work, and all compare what came of it:
//
//   file      | slice 0 | slice 1 | slice 2 | slice 3 | ...     16 MiB each, XXH3-64 seeded with its number
//   class A     rank 0    rank 1    rank 0    rank 1            node 0: the sum of its hashes
//   class B     rank 2    rank 3    rank 2    rank 3            node 1
//
// What ranks exchange grows with the files and, of a few bytes where classes differ, with the ranks, and not
// with their product. Who differs is asked for only when something does.
#pragma once

#include "runtime/comm/world.h"

// The files that the result depends on, in an order that is the same on all ranks.
typedef struct fsdp_file_list {
  struct fsdp_listed_file *files; // owned
  int count;
} fsdp_file_list;

typedef struct fsdp_listed_file {
  const char *what; // "data", "weights", ...: a literal
  char *path;
} fsdp_listed_file;

// Whether every rank has rank 0's text, whose lines all end: if not, the first line that differs into `mine`
// and rank 0's into `first`, "" behind the last. Called by all ranks.
bool fsdp_lines_agree(fsdp_world *world, const char *text, char *mine, char *first, size_t line_bytes);

// What the comparison cost.
typedef struct fsdp_file_agreement {
  int64_t bytes; // of files whose contents were compared, each counted once
  double seconds;
} fsdp_file_agreement;

// Appends a copy of `path`.
void fsdp_file_list_add(fsdp_file_list *list, const char *what, const char *path);
void fsdp_file_list_destroy(fsdp_file_list *list);

typedef struct fsdp_file_comparison {
  const fsdp_file_list *list;
  fsdp_world *world;
  bool sizes_only;    // of each file the size and the first slice alone, which holds the header of weights
                      // and of prepared tokens
  const char *mounts; // the path of the mount table; NULL: /proc/self/mountinfo
} fsdp_file_comparison;

// Compares the lists, then the files. Called by all ranks; every rank returns the same. FSDP_ERR_INPUT,
// naming the file and two ranks with their hosts, if they differ or if only some ranks can read one; a file
// that no rank can read is left for its reader to report.
fsdp_status fsdp_file_list_agree(const fsdp_file_comparison *comparison, fsdp_file_agreement *cost,
                                 fsdp_error *error);
