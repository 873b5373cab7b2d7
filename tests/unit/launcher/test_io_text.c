// launcher/options/yaml_options and launcher/report/metrics_log.
#include "launcher/options/yaml_options.h"
#include "launcher/report/metrics_log.h"
#include "tests/support/io_files.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

// Collects "name=value@line;" and refuses an option called "bad".
static fsdp_status collect(void *context, const char *name, const char *value, int line, fsdp_error *error) {
  char *out = context;
  if (!strcmp(name, "bad")) return fsdp_fail(error, FSDP_ERR_OPTION, "option bad in line %d", line);
  sprintf(out + strlen(out), "%s=%s@%d;", name, value, line);
  return FSDP_OK;
}

static fsdp_status read_text(const char *text, char *out, fsdp_error *error) {
  out[0] = 0;
  memset(error, 0, sizeof *error);
  return fsdp_yaml_read(io_write_text("options.yaml", text), collect, out, error);
}

TEST(options_come_in_order) {
  char out[1024];
  fsdp_error error;
  assert_int_equal(
      read_text("# a run\nmodel: tiny\nlr: 3e-5  # rate\ndata: [a.txt, b.txt]\nwrap:\n  - x\n  - \"y z\"\n"
                "cpu-offload:\nlog: ~\ne: 'null'\nlist: []\n",
                out, &error),
      FSDP_OK);
  assert_string_equal(
      out, "model=tiny@2;lr=3e-5@3;data=a.txt,b.txt@4;wrap=x,y z@5;cpu-offload=@8;log=@9;e=null@10;"
           "list=@11;");
  assert_int_equal(read_text("", out, &error), FSDP_OK);
  assert_int_equal(read_text("# nothing\n", out, &error), FSDP_OK);
  assert_string_equal(out, "");
  assert_int_equal(read_text("base: &x 7\nother: *x\n", out, &error), FSDP_OK);
  assert_string_equal(out, "base=7@1;other=7@2;");
}

TEST(bad_yaml_is_refused_with_its_line) {
  static const struct {
    const char *text, *part, *reason;
  } cases[] = {
      {"a: 1\nb: [1, 2\nc: 3\n", "options.yaml:3", "not valid YAML"},
      {"a: 1\n\tb: 2\n", "options.yaml:2", "not valid YAML"},
      {"a: 1\nb:\n  c: 2\n", "options.yaml:3", "single value or a list"},
      {"- a\n- b\n", "options.yaml:1", "not a list of options"},
      {"just text\n", "options.yaml:1", "not a list of options"},
      {"a: [1, [2]]\n", "options.yaml:1", "item"},
      {"a: ['1,2']\n", "options.yaml:1", "comma"},
      {"a: 1\nb: 2\na: 3\n", "options.yaml:3", "\"a\": the name is in line 1 already"},
      {"[a]: 1\n", "options.yaml:1", "single word"},
      {"\"\": 1\n", "options.yaml:1", "single word"},
      {"a: \"x\\0y\"\n", "options.yaml:1", "single value"},
      {"a: 1\n---\nb: 2\n", "options.yaml:3", "second document"},
      {"a: \xff\n", "options.yaml:1", "not valid YAML"},
      {"a: 1\nbad: 2\n", "option bad", "line 2"},
  };
  char out[1024];
  fsdp_error error;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    fsdp_status status = read_text(cases[i].text, out, &error);
    if (status != FSDP_ERR_OPTION) fail_msg("not refused: %s", cases[i].text);
    IO_EXPECT(status, FSDP_ERR_OPTION, &error, cases[i].part, cases[i].reason);
  }
  IO_EXPECT(fsdp_yaml_read(io_path("no.yaml"), collect, out, &error), FSDP_ERR_INPUT, &error, "no.yaml",
            "YAML file of options");
}

static char *contents(const char *path) {
  static char text[20000];
  FILE *file = fopen(path, "rb");
  assert_non_null(file);
  text[fread(text, 1, sizeof text - 1, file)] = 0;
  fclose(file);
  return text;
}

static fsdp_metrics_log *open_log(const char *path) {
  fsdp_metrics_log *log;
  fsdp_error error;
  IO_OK(fsdp_metrics_log_open(path, &log, &error), &error);
  return log;
}

static void append_step(fsdp_metrics_log *log, int step, double loss) {
  fsdp_error error;
  json_t *record = json_pack("{s:i, s:o}", "global_step", step, "loss", fsdp_metrics_number(loss));
  assert_int_equal(fsdp_metrics_log_write(log, record, &error), FSDP_OK);
  json_decref(record);
}

TEST(lines_are_whole_at_once) {
  const char *path = io_path("log.jsonl");
  fsdp_metrics_log *log = open_log(path);
  append_step(log, 1, 5.5);
  assert_string_equal(contents(path), "{\"global_step\":1,\"loss\":5.5}\n"); // before it is closed
  append_step(log, 2, NAN);
  append_step(log, 3, 0.1);
  assert_int_equal(fsdp_metrics_log_close(log, NULL), FSDP_OK);
  assert_string_equal(contents(path), "{\"global_step\":1,\"loss\":5.5}\n{\"global_step\":2,\"loss\":null}\n"
                                      "{\"global_step\":3,\"loss\":0.1}\n");
}

TEST(an_unfinished_line_is_cut_off) {
  const char *path = io_path("cut.jsonl");
  char text[10100];
  // An unfinished line longer than the block in which the end is looked for.
  memset(text, 'x', sizeof text);
  static const char first[] = "{\"global_step\":1}\n";
  for (size_t i = 0; i + 1 < sizeof first; i++) text[i] = first[i];
  io_write("cut.jsonl", text, sizeof text);
  fsdp_metrics_log *log = open_log(path);
  append_step(log, 2, 1);
  fsdp_metrics_log_close(log, NULL);
  assert_string_equal(contents(path), "{\"global_step\":1}\n{\"global_step\":2,\"loss\":1.0}\n");
  io_write_text("cut.jsonl", "no line at all");
  fsdp_metrics_log_close(open_log(path), NULL);
  assert_string_equal(contents(path), "");
}

TEST(resuming_drops_later_steps) {
  const char *path = io_path("rewind.jsonl");
  fsdp_error error;
  fsdp_metrics_log *log = open_log(path);
  for (int step = 1; step <= 5; step++) append_step(log, step, step);
  fsdp_metrics_rewound rewound;
  assert_int_equal(fsdp_metrics_log_rewind(log, "global_step", 3, &rewound, &error), FSDP_OK);
  assert_int_equal(rewound.damaged, 0);
  assert_int_equal(rewound.dropped, 2);
  append_step(log, 4, 9);
  fsdp_metrics_log_close(log, NULL);
  assert_non_null(
      strstr(contents(path), "{\"global_step\":3,\"loss\":3.0}\n{\"global_step\":4,\"loss\":9.0}\n"));
  assert_null(strstr(contents(path), ":5"));
  assert_true(fsdp_metrics_log_holds(path));
  log = open_log(path);
  assert_int_equal(fsdp_metrics_log_rewind(log, "global_step", 0, &rewound, &error), FSDP_OK);
  assert_int_equal(rewound.dropped, 4);
  fsdp_metrics_log_close(log, NULL);
  assert_string_equal(contents(path), "");
  assert_false(fsdp_metrics_log_holds(path));
}

// Of a start that fails nothing stays; a file that was there does.
TEST(what_nothing_was_written_to_goes) {
  const char *path = io_path("deep/er/log.jsonl");
  fsdp_metrics_log_close(open_log(path), NULL);
  assert_int_equal(access(path, F_OK), -1);
  assert_int_equal(access(io_path("deep/er"), F_OK), 0);
  path = io_write("empty.jsonl", "", 0);
  fsdp_metrics_log_close(open_log(path), NULL);
  assert_int_equal(access(path, F_OK), 0);
}

// Lines behind a damaged one are not lost with it; damaged ones at the end are.
TEST(a_damaged_line_stays_with_those_behind_it) {
  static const char good[] = "{\"global_step\":1}\n{\"global_st\0\n\n{\"global_step\":3}\n";
  static const char rest[] = "{\"global_step\":\n{\"global_step\":4}\n{\"global_step\":2}\n";
  char text[sizeof good + sizeof rest];
  fsdp_error error;
  fsdp_metrics_rewound rewound;
  memcpy(text, good, sizeof good - 1);
  memcpy(text + sizeof good - 1, rest, sizeof rest - 1);
  const char *path = io_write("damaged.jsonl", text, sizeof good + sizeof rest - 2);
  fsdp_metrics_log *log = open_log(path);
  assert_int_equal(fsdp_metrics_log_rewind(log, "global_step", 3, &rewound, &error), FSDP_OK);
  assert_int_equal(rewound.damaged, 2);
  assert_int_equal(rewound.dropped, 3);
  struct stat information;
  assert_int_equal(stat(path, &information), 0);
  assert_int_equal(information.st_size, sizeof good - 1);
  assert_int_equal(fsdp_metrics_log_rewind(log, "global_step", 2, &rewound, &error), FSDP_OK);
  assert_int_equal(rewound.damaged, 0);
  assert_int_equal(rewound.dropped, 3);
  assert_string_equal(contents(path), "{\"global_step\":1}\n");
  fsdp_metrics_log_close(log, NULL);
}

// What a crash has left of a log is one still.
TEST(a_file_that_is_no_log_is_told_apart) {
  static const struct {
    const char *text;
    bool other;
  } files[] = {{"", false},
               {"{\"global_step\":1}\n", false},
               {"{\"global_st", false},
               {"torn\n\n{\"global_step\":1}\n{\"glo", false},
               {"a letter", true},
               {"{\"text\":1}\n{\"text\":2}", true},
               {"\n{\"glo", true}};
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    io_write_text("other", files[i].text);
    assert_int_equal(fsdp_metrics_log_is_other(io_path("other"), "global_step"), files[i].other);
  }
  assert_false(fsdp_metrics_log_is_other(io_path("nothing"), "global_step"));
  assert_false(fsdp_metrics_log_is_other("/dev/null", "global_step"));
}

TEST(places_that_cannot_be_written) {
  fsdp_metrics_log *log;
  fsdp_error error;
  io_write_text("file", "x");
  IO_EXPECT(fsdp_metrics_log_open(io_path("file/log.jsonl"), &log, &error), FSDP_ERR_INPUT, &error,
            "file/log.jsonl", "Not a directory", "--log");
  json_t *record = json_pack("{s:i}", "global_step", 1);
  log = open_log("/dev/full");
  IO_EXPECT(fsdp_metrics_log_write(log, record, &error), FSDP_ERR_INPUT, &error, "/dev/full",
            "No space left");
  fsdp_metrics_log_close(log, NULL);
  log = open_log("/dev/null");
  assert_int_equal(fsdp_metrics_log_write(log, record, &error), FSDP_OK);
  fsdp_metrics_log_close(log, NULL);
  json_decref(record);
}

// Files of this process may not grow beyond `bytes`: as on a disk that is full, a write ends in its middle.
static void limit_files(rlim_t bytes) {
  struct rlimit limit;
  signal(SIGXFSZ, SIG_IGN);
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
  limit.rlim_cur = bytes;
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

TEST(lines_wait_for_room) {
  const char *path = io_path("full.jsonl");
  static const char line[] = "{\"global_step\":1,\"loss\":1.0}\n"; // each of the nine as long
  enum { LINE_BYTES = sizeof line - 1 };
  fsdp_error error;
  for (int spare = 0; spare < LINE_BYTES; spare += LINE_BYTES - 1) { // with and without a torn line
    unlink(path);
    fsdp_metrics_log *log = open_log(path);
    append_step(log, 1, 1);
    limit_files((rlim_t)(2 * LINE_BYTES + spare));
    append_step(log, 2, 1);
    for (int step = 3; step <= 6; step++) {
      json_t *record = json_pack("{s:i, s:f}", "global_step", step, "loss", 1.0);
      IO_EXPECT(fsdp_metrics_log_write(log, record, &error), FSDP_ERR_INPUT, &error, "full.jsonl", "writing");
      json_decref(record);
      assert_int_equal(strlen(contents(path)), 2 * LINE_BYTES); // no part of a line
    }
    limit_files((rlim_t)(4 * LINE_BYTES + spare)); // room for some of them
    json_t *record = json_pack("{s:i, s:f}", "global_step", 7, "loss", 1.0);
    assert_int_equal(fsdp_metrics_log_write(log, record, &error), FSDP_ERR_INPUT);
    json_decref(record);
    assert_int_equal(strlen(contents(path)), 4 * LINE_BYTES);
    limit_files(RLIM_INFINITY);
    append_step(log, 8, 1);
    limit_files(8 * LINE_BYTES);
    record = json_pack("{s:i, s:f}", "global_step", 9, "loss", 1.0);
    assert_int_equal(fsdp_metrics_log_write(log, record, &error), FSDP_ERR_INPUT);
    json_decref(record);
    IO_EXPECT(fsdp_metrics_log_close(log, &error), FSDP_ERR_INPUT, &error, "full.jsonl", "1 of its lines");
    limit_files(RLIM_INFINITY);
    const char *text = contents(path);
    assert_int_equal(strlen(text), 8 * LINE_BYTES);
    for (int step = 1; step <= 8; step++) {
      char wanted[sizeof line];
      snprintf(wanted, sizeof wanted, "{\"global_step\":%d,\"loss\":1.0}\n", step);
      assert_memory_equal(text + (step - 1) * LINE_BYTES, wanted, LINE_BYTES);
    }
  }
}

int main(void) {
  return run_all_tests(io_set_up, io_tear_down);
}
