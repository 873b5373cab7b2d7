// The mesh that options mean for a number of ranks, on nodes, against meshes written out.
#include "launcher/options/options.h"
#include "runtime/plan/text/mesh_choice.h"
#include "tests/support/unit_test.h"

#include <stdlib.h>
#include <string.h>

typedef struct mesh_case {
  const char *line;
  int ranks, ranks_per_node;
  const char *mesh;   // printed; NULL: refused
  const char *across; // axes across nodes, "" if there is one node; or words of the error, with "|" between
  const char *note;   // a word of it; NULL: none
} mesh_case;

static const mesh_case cases[] = {
    // From the strategy.
    {"", 8, 8, "data=1,fsdp=8", "", NULL},
    {"--strategy grad_op", 8, 4, "data=1,fsdp=8", "fsdp", NULL},
    {"--strategy zero1", 8, 4, "data=1,fsdp=8", "fsdp", NULL},
    {"--strategy no", 8, 4, "data=8,fsdp=1", "data", NULL},
    {"--strategy hybrid", 8, 4, "data=2,fsdp=4", "data", NULL},
    {"--strategy hybrid", 8, 8, "data=1,fsdp=8", "", "same as full here"},
    {"--strategy hybrid", 4, 1, "data=4,fsdp=1", "data", NULL},
    {"--strategy hybrid", 1, 1, "data=1,fsdp=1", "", NULL},
    {"--strategy hybrid", 8, 3, NULL, "hybrid|3 of 8 ranks", NULL},
    {"", 12, 8, "data=1,fsdp=12", "fsdp", NULL},
    {"--tensor-parallel 4", 12, 8, "data=1,fsdp=3,tensor=4", "fsdp", NULL},
    {"--tensor-parallel 3", 12, 8, "data=1,fsdp=4,tensor=3", "fsdp+tensor", NULL},
    {"", 4, 8, "data=1,fsdp=4", "", NULL},
    // The short forms leave the rest to it. Tensor's ranks are neighbours.
    {"--tensor-parallel 2", 8, 8, "data=1,fsdp=4,tensor=2", "", NULL},
    {"--tensor-parallel 8 --context-parallel 2", 64, 8, "data=1,fsdp=4,context=2,tensor=8", "fsdp+context",
     NULL},
    {"--context-parallel 4 --strategy no", 8, 4, "data=2,fsdp=1,context=4", "data", NULL},
    {"--tensor-parallel 2 --strategy grad_op", 2, 2, "data=1,fsdp=1,tensor=2", "", NULL},
    {"--context-parallel 2 --sharding fsdp", 8, 8, "data=1,fsdp=4,context=2", "", NULL},
    {"--tensor-parallel 2 --strategy hybrid", 16, 8, "data=2,fsdp=4,tensor=2", "data", NULL},
    {"--tensor-parallel 2 --context-parallel 2 --strategy hybrid", 16, 8, "data=2,fsdp=2,context=2,tensor=2",
     "data", NULL},
    {"--tensor-parallel 4 --strategy hybrid", 4, 4, "data=1,fsdp=1,tensor=4", "", NULL},
    {"--tensor-parallel 8 --strategy hybrid", 16, 8, "data=2,fsdp=1,tensor=8", "data", "same as no here"},
    {"--tensor-parallel 16 --strategy hybrid", 32, 8, "data=2,fsdp=1,tensor=16", "data+tensor",
     "same as no here"},
    {"--tensor-parallel 3 --strategy hybrid", 24, 8, NULL, "hybrid|8 ranks|--tensor-parallel 3", NULL},
    {"--tensor-parallel 3", 8, 8, NULL, "--tensor-parallel 3 (command line)|8 ranks are|multiple of 3", NULL},
    {"--tensor-parallel 2", 1, 1, NULL, "1 rank is not a multiple of 2", NULL},
    {"--tensor-parallel 1e6 --context-parallel 1e6", 8, 8, NULL, "1048576", NULL},
    // As given.
    {"--strategy zero1 --mesh data=2,fsdp=2", 4, 2, "data=2,fsdp=2", "data", NULL},
    {"--strategy hybrid --mesh tensor=2,data=2,fsdp=2", 8, 4, "tensor=2,data=2,fsdp=2", "tensor", NULL},
    {"--mesh 4,2", 8, 4, "data=1,fsdp=4,tensor=2", "fsdp", NULL},
    {"--mesh fsdp=2 --tensor-parallel 2 --context-parallel 2", 8, 8, "data=1,fsdp=2,context=2,tensor=2", "",
     NULL},
    {"--mesh tensor=2,fsdp=2 --tensor-parallel 2", 4, 4, "data=1,tensor=2,fsdp=2", "", NULL},
    {"--mesh fsdp=4 --tensor-parallel 2", 4, 4, NULL, "--mesh fsdp=4|--tensor-parallel 2|8 ranks|are 4",
     NULL},
    {"--mesh fsdp=4", 1, 1, NULL, "--mesh fsdp=4 (command line) is 4 ranks, but there is 1", NULL},
    {"--mesh tensor=2,context=2", 8, 8, NULL, "4 ranks|are 8", NULL},
};

static fsdp_status parse(const char *text, fsdp_options *options, fsdp_error *error) {
  char line[256], *argv[32] = {(char[]){"fsdp_plan"}};
  int argc = 1;
  snprintf(line, sizeof line, "%s", text);
  for (char *word = strtok(line, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
  return fsdp_options_parse(options, FSDP_PROGRAM_PLAN, argc, argv, error);
}

// Every one of `words`, with "|" between, must be in the message.
static void expect_words(const char *line, const char *words, const char *message) {
  char list[256];
  snprintf(list, sizeof list, "%s", words);
  for (char *word = strtok(list, "|"); word; word = strtok(NULL, "|"))
    if (!strstr(message, word)) fail_msg("'%s': no '%s' in: %s", line, word, message);
}

static void expect(const mesh_case *c) {
  fsdp_options options;
  fsdp_error error;
  fsdp_mesh mesh;
  char printed[FSDP_MESH_TEXT_BYTES], axes[FSDP_MESH_TEXT_BYTES], note[512];
  const fsdp_setup_ranks ranks = {
      .ranks = c->ranks, .ranks_per_node = c->ranks_per_node, .fills_nodes = true};
  if (parse(c->line, &options, &error) != FSDP_OK) fail_msg("'%s': %s", c->line, error.message);
  fsdp_status status = fsdp_mesh_choose(&options, &ranks, &mesh, &error);
  if (!c->mesh) {
    assert_int_equal(status, FSDP_ERR_OPTION);
    expect_words(c->line, c->across, error.message);
  } else {
    if (status != FSDP_OK) fail_msg("'%s': %s", c->line, error.message);
    assert_string_equal(fsdp_mesh_print(&mesh, ",", printed), c->mesh);
    assert_int_equal(fsdp_mesh_ranks(&mesh), c->ranks);
    const char *across = fsdp_mesh_across_nodes(&mesh, &ranks, axes);
    assert_string_equal(across ? across : "", c->across);
    assert_int_equal(fsdp_mesh_note(&options, &mesh, note, sizeof note), c->note != NULL);
    if (c->note) assert_non_null(strstr(note, c->note));
  }
  fsdp_options_destroy(&options);
}

TEST(test_choices) {
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) expect(&cases[i]);
}

static fsdp_options accept(const char *line) {
  fsdp_options options;
  fsdp_error error;
  if (parse(line, &options, &error) != FSDP_OK) fail_msg("'%s' is refused: %s", line, error.message);
  return options;
}

static void refuse(const char *line, const char *words) {
  fsdp_options options;
  fsdp_error error;
  if (parse(line, &options, &error) != FSDP_ERR_OPTION) fail_msg("'%s' is accepted", line);
  expect_words(line, words, error.message);
  fsdp_options_destroy(&options);
}

// The short forms say what a mesh or a sharding file may say too.
TEST(test_short_forms) {
  char note[256];
  fsdp_options o = accept("");
  assert_true(o.tensor_parallel == 1 && o.context_parallel == 1 && o.sequence_parallel);
  assert_false(fsdp_options_note(&o, 0, note, (int)sizeof note));
  fsdp_options_destroy(&o);
  const char *const allowed[] = {"--tensor-parallel 2 --mesh fsdp=4",
                                 "--tensor-parallel 2 --mesh 2,2",
                                 "--context-parallel 3 --mesh context=3,fsdp=2",
                                 "--tensor-parallel 2 --sequence-parallel off --sharding fsdp-tp",
                                 "--tensor-parallel 1 --sharding a.yaml",
                                 "--sharding a.yaml --mesh tensor=2"};
  for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++) {
    o = accept(allowed[i]);
    assert_false(fsdp_options_note(&o, 0, note, (int)sizeof note));
    fsdp_options_destroy(&o);
  }
  refuse("--tensor-parallel 0", "--tensor-parallel|from 1");
  refuse("--tensor-parallel 2 --mesh 4,1", "--tensor-parallel 2|tensor=1|--mesh 4,1");
  refuse("--tensor-parallel 1 --mesh 2,2", "--tensor-parallel 1|tensor=2|leave one");
  refuse("--context-parallel 2 --mesh context=4", "--context-parallel 2|context=4");
  refuse("--tensor-parallel 2 --sharding a.yaml", "--tensor-parallel 2|a.yaml|tensor=2|--mesh");
  refuse("--context-parallel 2 --sharding a.yaml", "a.yaml|context=2|--mesh");
  refuse("--tensor-parallel 2 --sharding fsdp", "--sharding fsdp|fsdp-tp");
  refuse("--context-parallel 2 --sharding fsdpv2", "--sharding fsdpv2|fsdp-tp");
  refuse("--sequence-parallel off --sharding a.yaml", "--sequence-parallel off|a.yaml|leave one");
  o = accept("--sequence-parallel"); // of no effect, which harms nothing
  assert_true(fsdp_options_note(&o, 0, note, (int)sizeof note));
  assert_non_null(strstr(note, "--sequence-parallel (command line) has no effect"));
  fsdp_options_destroy(&o);
  o = accept("--tensor_model_parallel_size 4 --sequence_parallel --context-parallel-size 2");
  assert_true(o.tensor_parallel == 4 && o.context_parallel == 2 && o.sequence_parallel);
  assert_true(fsdp_options_note(&o, 0, note, (int)sizeof note)); // the names alone
  assert_false(fsdp_options_note(&o, 1, note, (int)sizeof note));
  fsdp_options_destroy(&o);
}
