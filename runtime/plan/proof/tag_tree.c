#include "runtime/plan/proof/tag_tree.h"

#include "runtime/base/check.h"
#include "runtime/plan/proof/sort.h"

#define MIXED  (-2) // the children's tags count
#define NO_TAG (-3)

fsdp_cuts fsdp_cuts_create(int64_t *at, int count) {
  fsdp_record *records = fsdp_alloc(((size_t)count * 2 + 1) * sizeof *records);
  for (int i = 0; i < count; i++) records[i] = (fsdp_record){.key = at[i]};
  const fsdp_record *sorted = fsdp_sort_records(records, records + count, count);
  int kept = 0;
  for (int i = 0; i < count; i++)
    if (kept == 0 || at[kept - 1] != sorted[i].key) at[kept++] = sorted[i].key;
  free(records);
  return (fsdp_cuts){at, kept};
}

int fsdp_cuts_segment(const fsdp_cuts *cuts, int64_t coordinate) {
  int low = 0, size = cuts->count;
  while (size > 1) {
    int half = size / 2;
    if (cuts->at[low + half] <= coordinate) low += half;
    size -= half;
  }
  return low;
}

fsdp_tag_tree fsdp_tag_tree_create(fsdp_cuts cuts) {
  fsdp_tag_tree tree = {.cuts = cuts, .leaf_count = 1};
  while (tree.leaf_count < cuts.count) tree.leaf_count *= 2;
  tree.tags = fsdp_alloc((size_t)tree.leaf_count * 2 * sizeof *tree.tags);
  for (int i = 0; i < tree.leaf_count * 2; i++) tree.tags[i] = FSDP_NOBODY;
  return tree;
}

void fsdp_tag_tree_destroy(fsdp_tag_tree *tree) {
  free(tree->cuts.at);
  free(tree->tags);
}

// Segments [begin, end) of what a call is about.
typedef struct span {
  int begin, end;
} span;

static span span_of(const fsdp_tag_tree *tree, int64_t begin, int64_t end) {
  return (span){fsdp_cuts_segment(&tree->cuts, begin), fsdp_cuts_segment(&tree->cuts, end)};
}

static void push_down(fsdp_tag_tree *tree, int node) {
  if (tree->tags[node] != MIXED) tree->tags[2 * node] = tree->tags[2 * node + 1] = tree->tags[node];
}

static void pull_up(fsdp_tag_tree *tree, int node) {
  bool uniform = tree->tags[2 * node] == tree->tags[2 * node + 1];
  tree->tags[node] = uniform ? tree->tags[2 * node] : MIXED;
}

// Gives `s` the tag, but for segments that carry `kept`. The node covers segments [first, first + count).
static void set_tags(fsdp_tag_tree *tree, int node, int first, int count, span s, int tag, int kept) {
  if (tree->tags[node] == tag || tree->tags[node] == kept) return;
  const bool covered = s.begin <= first && first + count <= s.end;
  if (covered && (tree->tags[node] != MIXED || kept == NO_TAG)) {
    tree->tags[node] = tag;
    return;
  }
  int half = count / 2, middle = first + half;
  push_down(tree, node);
  if (s.begin < middle) set_tags(tree, 2 * node, first, half, s, tag, kept);
  if (s.end > middle) set_tags(tree, 2 * node + 1, middle, half, s, tag, kept);
  pull_up(tree, node);
}

// The first segment whose tag is not `tag` (its own in *found), or -1.
static int find_other_tag(const fsdp_tag_tree *tree, int node, int first, int count, span s, int tag,
                          int *found) {
  if (tree->tags[node] == tag) return -1;
  if (tree->tags[node] != MIXED) {
    *found = tree->tags[node];
    return s.begin > first ? s.begin : first;
  }
  int half = count / 2, middle = first + half, segment = -1;
  if (s.begin < middle) segment = find_other_tag(tree, 2 * node, first, half, s, tag, found);
  if (segment < 0 && s.end > middle)
    segment = find_other_tag(tree, 2 * node + 1, middle, half, s, tag, found);
  return segment;
}

void fsdp_tag_tree_set(fsdp_tag_tree *tree, int64_t begin, int64_t end, int tag) {
  if (begin == end) return;
  set_tags(tree, 1, 0, tree->leaf_count, span_of(tree, begin, end), tag, NO_TAG);
}

void fsdp_tag_tree_keep(fsdp_tag_tree *tree, int64_t begin, int64_t end, int tag) {
  if (begin == end) return;
  set_tags(tree, 1, 0, tree->leaf_count, span_of(tree, begin, end), FSDP_NOBODY, tag);
}

bool fsdp_tag_tree_all(const fsdp_tag_tree *tree, int64_t begin, int64_t end, int tag, int64_t *where,
                       int *found) {
  if (begin == end) return true;
  int segment = find_other_tag(tree, 1, 0, tree->leaf_count, span_of(tree, begin, end), tag, found);
  if (segment >= 0) *where = tree->cuts.at[segment];
  return segment < 0;
}
