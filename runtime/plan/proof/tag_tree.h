// A segment tree over a line of bytes: which tag each byte carries. Cost of a call: logarithmic in the number
// of cuts, times the number of different tags in the range.
//
//   coordinates that matter (cuts)   0      64     128           512
//   segments                         |  0   |  1   |      2      |
//   tags                                7      7      FSDP_NOBODY
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define FSDP_NOBODY (-1)

// The line cut at every coordinate that matters: segment i is [cuts[i], cuts[i + 1]).
typedef struct fsdp_cuts {
  int64_t *at; // ascending
  int count;
} fsdp_cuts;

// Sorts `at` in place and drops duplicates; the result owns it.
fsdp_cuts fsdp_cuts_create(int64_t *at, int count);
// The segment that begins at a cut, or that holds the coordinate.
int fsdp_cuts_segment(const fsdp_cuts *cuts, int64_t coordinate);

// A node carries one tag throughout or refers to its children.
typedef struct fsdp_tag_tree {
  fsdp_cuts cuts;
  int *tags;
  int leaf_count;
} fsdp_tag_tree;

// Every byte is FSDP_NOBODY's. Takes over the cuts; ranges given later begin and end at cuts.
fsdp_tag_tree fsdp_tag_tree_create(fsdp_cuts cuts);
void fsdp_tag_tree_destroy(fsdp_tag_tree *tree);

// Gives [begin, end) the tag, which is FSDP_NOBODY or not negative.
void fsdp_tag_tree_set(fsdp_tag_tree *tree, int64_t begin, int64_t end, int tag);
// Removes every tag but `tag` from [begin, end).
void fsdp_tag_tree_keep(fsdp_tag_tree *tree, int64_t begin, int64_t end, int tag);
// Whether all of [begin, end) carries `tag`; otherwise *where is the first coordinate with a different tag,
// and *found that tag.
bool fsdp_tag_tree_all(const fsdp_tag_tree *tree, int64_t begin, int64_t end, int tag, int64_t *where,
                       int *found);
