// Options: value forms, places, defaults, files under the command line, messages, combinations, help.
#include "launcher/options/option_alias.h"
#include "launcher/options/options.h"
#include "launcher/train/learning_rate.h"
#include "models/model.h"
#include "runtime/base/text.h"
#include "runtime/data/dataset.h"
#include "runtime/plan/text/settings.h"
#include "runtime/plan/text/value.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WORDS_MAX 32

// Parses a command line whose words are separated by spaces; `words` must live as long as `options` is used.
static fsdp_status parse(fsdp_options *options, fsdp_program_kind program, char *words, fsdp_error *error) {
  char *argv[WORDS_MAX] = {(char *)(uintptr_t) "program"};
  int argc = 1;
  for (char *word = strtok(words, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
  memset(error, 0, sizeof *error);
  return fsdp_options_parse(options, program, argc, argv, error);
}

static fsdp_options accept(fsdp_program_kind program, const char *line) {
  char words[512];
  fsdp_options options;
  fsdp_error error;
  snprintf(words, sizeof words, "%s", line);
  fsdp_status status = parse(&options, program, words, &error);
  if (status != FSDP_OK) fail_msg("'%s' is refused: %s", line, error.message);
  return options;
}

// The line must be refused with `status`, in one line that holds every text of `parts` (separated by '|').
static void refuse(fsdp_program_kind program, const char *line, fsdp_status status, const char *parts) {
  char words[512], wanted[512];
  fsdp_options options;
  fsdp_error error;
  snprintf(words, sizeof words, "%s", line);
  snprintf(wanted, sizeof wanted, "%s", parts);
  fsdp_status got = parse(&options, program, words, &error);
  if (got != status)
    fail_msg("'%s': status %d, expected %d (%s)", line, (int)got, (int)status, error.message);
  for (char *part = strtok(wanted, "|"); part; part = strtok(NULL, "|")) {
    if (!strstr(error.message, part)) fail_msg("'%s': no '%s' in: %s", line, part, error.message);
  }
  assert_null(strchr(error.message, '\n'));
  fsdp_options_destroy(&options);
}

TEST(whole_numbers) {
  const struct {
    const char *text;
    bool good;
    int64_t value;
  } cases[] = {{"0", true, 0},
               {"100000000", true, 100000000},
               {"100_000_000", true, 100000000},
               {"1e8", true, 100000000},
               {"1E+8", true, 100000000},
               {"2.5e3", true, 2500},
               {"+7", true, 7},
               {"-3", true, -3},
               {"9223372036854775807", true, INT64_MAX},
               {"9223372036854775808", false, 0},
               {"1e30", false, 0},
               {"2.5", false, 0},
               {"1e-3", false, 0},
               {"", false, 0},
               {"_1", false, 0},
               {"1_", false, 0},
               {"1__0", false, 0},
               {"0x10", false, 0},
               {"12 ", false, 0},
               {" 12", false, 0},
               {"1e", false, 0},
               {"nan", false, 0},
               {"--1", false, 0},
               {"1.2.3", false, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    int64_t value = 0;
    bool good = fsdp_value_int(cases[i].text, &value);
    if (good != cases[i].good || (good && value != cases[i].value)) {
      fail_msg("'%s' gives %d, %lld", cases[i].text, good, (long long)value);
    }
  }
}

TEST(sizes) {
  const struct {
    const char *text;
    bool good;
    int64_t value;
  } cases[] = {{"80GB", true, 80000000000},
               {"80GiB", true, INT64_C(80) << 30},
               {"1.5gb", true, 1500000000},
               {"512", true, 512},
               {"512 MB", true, 512000000},
               {"1_000kB", true, 1000000},
               {"2TiB", true, INT64_C(2) << 40},
               {"80G", false, 0},
               {"GB", false, 0},
               {"8GBs", false, 0},
               {"1e30GB", false, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    int64_t value = 0;
    bool good = fsdp_value_size(cases[i].text, &value);
    if (good != cases[i].good || (good && value != cases[i].value)) {
      fail_msg("'%s' gives %d, %lld", cases[i].text, good, (long long)value);
    }
  }
}

TEST(reals_flags) {
  double real;
  assert_true(fsdp_value_real("3e-5", &real) && real == 3e-5);
  assert_true(fsdp_value_real(".5", &real) && real == 0.5);
  const char *const unreal[] = {"nan", "inf", "1e999", "", "1,5", "3e-5x", "0x1p3", "-"};
  for (size_t i = 0; i < sizeof unreal / sizeof *unreal; i++) assert_false(fsdp_value_real(unreal[i], &real));
  bool flag = false;
  assert_true(fsdp_value_flag("ON", &flag) && flag);
  assert_true(fsdp_value_flag("no", &flag) && !flag);
  assert_false(fsdp_value_flag("maybe", &flag));
}

// What a mesh reads as, printed.
TEST(meshes) {
  static const struct {
    const char *text, *printed;
  } cases[] = {{"data=2,fsdp=4", "data=2,fsdp=4"},
               {"fsdp=4", "data=1,fsdp=4"},
               {"data=2", "data=2,fsdp=1"},
               {"fsdp=3,data=1", "fsdp=3,data=1"},
               {"tensor=2,fsdp=1_0,pipe=3,x=1,y=1", "data=1,tensor=2,fsdp=10,pipe=3"},
               {"4,1", "data=1,fsdp=4"},
               {"4,2", "data=1,fsdp=4,tensor=2"}};
  fsdp_mesh mesh;
  char printed[FSDP_MESH_TEXT_BYTES];
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    if (!fsdp_value_mesh(cases[i].text, &mesh)) fail_msg("'%s' is no mesh", cases[i].text);
    fsdp_mesh_complete(&mesh);
    assert_string_equal(fsdp_mesh_print(&mesh, ",", printed), cases[i].printed);
  }
  const char *const meshless[] = {
      "",         "2",       "2,4,1",           "data=0",   "data=2,",         "data=2,data=2",
      "tensor=x", "data=-1", "data=2;fsdp=2",   "2,fsdp=2", "fsdp=2,2",        "=2",
      "4,",       ",4",      "data=1e6,fsdp=2", "a name=2", "a=1,b=1,c=1,d=1", "tensor_replica=2",
      "null=2"};
  for (size_t i = 0; i < sizeof meshless / sizeof *meshless; i++) {
    if (fsdp_value_mesh(meshless[i], &mesh)) fail_msg("'%s' is taken for a mesh", meshless[i]);
  }
}

TEST(text_for_people) {
  char out[64];
  assert_string_equal(fsdp_print_bytes(0).text, "0 B");
  assert_string_equal(fsdp_print_bytes(999).text, "999 B");
  assert_string_equal(fsdp_print_bytes(1500000000).text, "1.50 GB");
  assert_string_equal(fsdp_print_bytes(999600).text, "1.00 MB");
  assert_string_equal(fsdp_print_bytes(37713258660).text, "37.7 GB");
  assert_string_equal(fsdp_print_real(0.05, out, sizeof out), "0.05");
  assert_string_equal(fsdp_print_real(3e-5, out, sizeof out), "3e-05");
  assert_string_equal(fsdp_print_real(1, out, sizeof out), "1");
  assert_string_equal(fsdp_print_real(0, out, sizeof out), "0");
  const double awkward[] = {0.1 + 0.2, 1.0 / 3, 5e-324, 1.7976931348623157e308, -2.2250738585072014e-308};
  for (size_t i = 0; i < sizeof awkward / sizeof *awkward; i++) {
    assert_true(strtod(fsdp_print_real(awkward[i], out, sizeof out), NULL) == awkward[i]);
  }
}

TEST(defaults) {
  fsdp_options o = accept(FSDP_PROGRAM_TRAIN, "");
  assert_string_equal(o.model, "tiny");
  assert_int_equal(o.batch, 1);
  assert_int_equal(o.seq, 1024);
  assert_int_equal(o.num_epochs, 1);
  assert_int_equal(o.max_steps, 0);
  assert_true(o.lr == 3e-5 && o.min_lr == 0 && o.weight_decay == 0.01 && o.beta1 == 0.9 && o.beta2 == 0.999);
  assert_true(o.eps == 1e-8 && o.grad_clip == 1.0);
  assert_int_equal(o.lr_schedule, FSDP_LR_COSINE);
  assert_int_equal(o.strategy, FSDP_FULL);
  assert_int_equal(fsdp_settings_wrap(&o, NULL, NULL).kind, FSDP_WRAP_SIZE);
  assert_int_equal(fsdp_settings_wrap(&o, NULL, NULL).numel, 100000000);
  assert_int_equal(o.prefetch, 1);
  assert_int_equal(o.param_dtype, FSDP_DTYPE_AUTO);
  assert_int_equal(o.reduce_dtype, FSDP_F32);
  assert_int_equal(o.ckpt_freq, 500);
  assert_int_equal(o.log_freq, 10);
  assert_false(o.cpu_offload);
  assert_string_equal(fsdp_options_place(&o, "lr"), "default");
  assert_false(fsdp_options_given(&o, "lr"));
  fsdp_options_destroy(&o);
}

TEST(forms_of_the_command_line) {
  fsdp_options o = accept(FSDP_PROGRAM_TRAIN,
                          "-b4 -s 128 --lr=1e-3 --cpu-offload --print-model on --dry-run=no --strategy "
                          "HYBRID_SHARD --mesh data=2,fsdp=2 --wrap module:LlamaMLP,Linear");
  assert_int_equal(o.batch, 4);
  assert_int_equal(o.seq, 128);
  assert_true(o.lr == 1e-3);
  assert_true(o.cpu_offload && o.print_model && !o.dry_run);
  assert_int_equal(o.strategy, FSDP_HYBRID);
  assert_int_equal(fsdp_mesh_size(&o.mesh_axes, "data"), 2);
  assert_int_equal(fsdp_settings_wrap(&o, NULL, NULL).kind, FSDP_WRAP_MODULE);
  assert_string_equal(fsdp_settings_wrap(&o, NULL, NULL).classes, "LlamaMLP,Linear");
  assert_string_equal(fsdp_options_place(&o, "batch-size"), "command line");
  fsdp_options_destroy(&o);
  o = accept(FSDP_PROGRAM_TRAIN, "--lr 1 --lr 2"); // the later one wins
  assert_true(o.lr == 2);
  fsdp_options_destroy(&o);
  const char *const names[] = {"FULL_SHARD", "zero3", "full", "SHARD_OPTIMIZER", "zero1"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    char line[64];
    snprintf(line, sizeof line, "--strategy %s", names[i]);
    o = accept(FSDP_PROGRAM_TRAIN, line);
    assert_int_equal(o.strategy, i < 3 ? FSDP_FULL : FSDP_ZERO1);
    fsdp_options_destroy(&o);
  }
  o = accept(FSDP_PROGRAM_TRAIN, "--batch-size 0 --help"); // help is printed whatever else is given
  assert_true(o.help);
  fsdp_options_destroy(&o);
}

TEST(wrong_values) {
  const fsdp_program_kind train = FSDP_PROGRAM_TRAIN;
  refuse(train, "--batch-size 0", FSDP_ERR_OPTION, "--batch-size|'0'|command line|from 1");
  refuse(train, "--batch-size -3", FSDP_ERR_OPTION, "'-3'");
  refuse(train, "-s 1e99", FSDP_ERR_OPTION, "--seq-length|'1e99'");
  refuse(train, "--lr nan", FSDP_ERR_OPTION, "--lr|'nan'");
  refuse(train, "--lr -1", FSDP_ERR_OPTION, "--lr|'-1'");
  refuse(train, "--beta1 1", FSDP_ERR_OPTION, "--beta1|below 1");
  refuse(train, "--skip-grad-norm 0", FSDP_ERR_OPTION, "--skip-grad-norm|above 0");
  refuse(train, "--max-skipped 0", FSDP_ERR_OPTION, "--max-skipped|from 1");
  refuse(train, "--grad-clip 0 --max-skipped 5", FSDP_ERR_OPTION, "--max-skipped|--grad-clip 0|1e30");
  refuse(train, "--skip-grad-norm 2 --grad-clip 0", FSDP_ERR_OPTION, "--skip-grad-norm|--grad-clip 0");
  refuse(train, "--eps 0", FSDP_ERR_OPTION, "--eps|above 0");
  refuse(train, "--strategy zero4", FSDP_ERR_OPTION, "'zero4'|grad_op|hybrid");
  refuse(train, "--cpu-offload maybe", FSDP_ERR_OPTION, "'maybe'|on or off");
  refuse(train, "--wrap blocks", FSDP_ERR_OPTION, "'blocks'|module:NAME");
  refuse(train, "--wrap module:", FSDP_ERR_OPTION, "'module:'");
  refuse(train, "--memory-limit 80G", FSDP_ERR_OPTION, "'80G'|80GiB");
  refuse(train, "--mesh 2x2", FSDP_ERR_OPTION, "'2x2'|data=R,fsdp=F");
  refuse(train, "--seed -1", FSDP_ERR_OPTION, "--seed");
  refuse(train, "--model=", FSDP_ERR_OPTION, "--model|empty");
  refuse(train, "--batchsize 3", FSDP_ERR_OPTION, "--batchsize|did you mean --batch-size");
  refuse(train, "--max 3", FSDP_ERR_OPTION, "--max|did you mean --max-steps"); // no abbreviations
  refuse(train, "--zzzzzz", FSDP_ERR_OPTION, "--zzzzzz|--help");
  refuse(train, "-x", FSDP_ERR_OPTION, "'-x'");
  refuse(train, "--lr", FSDP_ERR_OPTION, "--lr|needs a value");
  refuse(train, "train.txt", FSDP_ERR_OPTION, "train.txt");
}

// A threshold beside a policy that does not use it is reported, not refused: the hint's `--wrap block` can be
// added to a command.
TEST(unused_threshold_is_noted) {
  char note[256];
  fsdp_options o = accept(FSDP_PROGRAM_TRAIN, "--wrap block --numel-to-wrap 1e8");
  assert_true(fsdp_options_note(&o, 0, note, (int)sizeof note));
  assert_non_null(strstr(note, "--wrap block"));
  assert_false(fsdp_options_note(&o, 1, note, (int)sizeof note));
  fsdp_options_destroy(&o);
  o = accept(FSDP_PROGRAM_TRAIN, "--numel-to-wrap 1e8");
  assert_false(fsdp_options_note(&o, 0, note, (int)sizeof note));
  fsdp_options_destroy(&o);
}

TEST(contradictions) {
  const fsdp_program_kind train = FSDP_PROGRAM_TRAIN, plan = FSDP_PROGRAM_PLAN;
  refuse(train, "--min-lr 1 --lr 0.1", FSDP_ERR_OPTION, "--min-lr|--lr");
  refuse(train, "--min-lr 0.11 --lr 0.1", FSDP_ERR_OPTION, "--min-lr|--lr");
  refuse(train, "--lr-schedule constant --min-lr 1e-6", FSDP_ERR_OPTION, "--min-lr|constant");
  refuse(train, "--mesh tensor=2,pipe=2", FSDP_ERR_OPTION, "axis pipe has 2 ranks|--extra-data-axis pipe");
  refuse(train, "--strategy full --mesh data=2,fsdp=2", FSDP_ERR_OPTION, "data=2,fsdp=2|hybrid");
  refuse(train, "--strategy zero2 --mesh data=2", FSDP_ERR_OPTION, "grad_op|hybrid");
  refuse(train, "--strategy no --mesh fsdp=2", FSDP_ERR_OPTION, "fsdp must be 1");
  refuse(train, "--init weights", FSDP_ERR_OPTION, "--init|'tiny'");
  refuse(train, "--memory-profile a.png", FSDP_ERR_OPTION, "a.png|.svg");
  refuse(train, "--resume outputs/a/5", FSDP_ERR_OPTION, "--resume|-e NAME");
  refuse(train, "--ckpt-freq 10", FSDP_ERR_OPTION, "--ckpt-freq|-e NAME");
  refuse(train, "--ckpt-keep 2", FSDP_ERR_OPTION, "--ckpt-keep|-e NAME");
  refuse(train, "-e a/b --ckpt-freq 0", FSDP_ERR_OPTION, "'a/b'|without '/'");
  refuse(train, "-e ..", FSDP_ERR_OPTION, "'..'|name of a folder");
  refuse(train, "-e .", FSDP_ERR_OPTION, "'.'|name of a folder");
  refuse(train, "--eval-split 1.5", FSDP_ERR_OPTION, "--eval-split 1.5|whole number");
  refuse(train, "-b 1000000 -s 1e6", FSDP_ERR_OPTION, "--batch-size|--seq-length");
  refuse(plan, "--json --print-model", FSDP_ERR_OPTION, "--json|--print-model");
  refuse(plan, "--ranks 2 --ranks-per-node 4", FSDP_ERR_OPTION, "--ranks-per-node|--ranks 2");
  fsdp_options o = accept(train, "-e run --ckpt-keep 0 --ckpt-async off --resume outputs/a");
  fsdp_options_destroy(&o);
  o = accept(train, "--trace t.json --trace-steps 1_000:1e3");
  assert_true(o.trace_first == 1000 && o.trace_last == 1000);
  fsdp_options_destroy(&o);
}

static void write_file(const char *path, const char *text) {
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  fputs(text, file);
  fclose(file);
}

TEST(configuration_file) {
  char path[] = "/tmp/fsdp_options_XXXXXX", line[128];
  int descriptor = mkstemp(path);
  assert_true(descriptor >= 0);
  close(descriptor);
  write_file(path, "strategy: zero2\nlr: 1e-4\ncpu-offload:\nbatch-size: 4\nnumel-to-wrap: 5e7\n");
  snprintf(line, sizeof line, "--lr 2e-4 --config %s", path);
  fsdp_options o = accept(FSDP_PROGRAM_TRAIN, line);
  assert_int_equal(o.strategy, FSDP_GRAD_OP);
  assert_true(o.lr == 2e-4); // the command line wins, wherever --config is
  assert_true(o.cpu_offload);
  assert_int_equal(o.batch, 4);
  assert_int_equal(o.numel_to_wrap, 50000000);
  assert_string_equal(fsdp_options_place(&o, "lr"), "command line");
  snprintf(line, sizeof line, "%s:4", path);
  assert_string_equal(fsdp_options_place(&o, "batch-size"), line);
  fsdp_options_destroy(&o);

  snprintf(line, sizeof line, "--config %s", path);
  write_file(path, "lr: 1e-4\nbatch-size: zero\n");
  refuse(FSDP_PROGRAM_TRAIN, line, FSDP_ERR_OPTION, "'zero'|:2");
  write_file(path, "lr: 1e-4\nbatch_sizes: 2\n");
  refuse(FSDP_PROGRAM_TRAIN, line, FSDP_ERR_OPTION, "batch_sizes|:2|--batch-size");
  write_file(path, "learning_rate: 1e-4\ngradient_checkpointing: true\nbatch_size: 2\n");
  fsdp_options other = accept(FSDP_PROGRAM_TRAIN, line);
  assert_true(other.lr == 1e-4 && strcmp(other.recompute, "block") == 0);
  fsdp_options_destroy(&other);
  write_file(path, "resize-embeddings:\nsample_packing:\n"); // each as its name alone on the command line
  other = accept(FSDP_PROGRAM_TRAIN, line);
  assert_string_equal(other.resize_embeddings, "tokenizer");
  assert_int_equal(other.packing, FSDP_PACKING_BEST_FIT);
  fsdp_options_destroy(&other);
  write_file(path, "lr: 1e-4\nlearning_rate: 1e-3\n"); // which of them?
  refuse(FSDP_PROGRAM_TRAIN, line, FSDP_ERR_OPTION, "'learning_rate'|:2|--lr|:1");
  write_file(path, "config: other.yaml\n");
  refuse(FSDP_PROGRAM_TRAIN, line, FSDP_ERR_OPTION, "config|command line");
  unlink(path);
  refuse(FSDP_PROGRAM_TRAIN, line, FSDP_ERR_INPUT, path);
}

// Each as its trainer's documents spell it, beside what it must have set.
TEST(names_of_other_trainers) {
  char note[512];
  fsdp_options o =
      accept(FSDP_PROGRAM_TRAIN,
             "--learning_rate 1e-3 --num_train_epochs 3 --per_device_train_batch_size=4 "
             "--gradient-accumulation-steps 8 --max_grad_norm 0.5 --warmup_steps 7 --weight_decay 0.1 "
             "--max_seq_length 128 --sharding_strategy SHARD_GRAD_OP");
  assert_true(o.lr == 1e-3 && o.grad_clip == 0.5 && o.weight_decay == 0.1);
  assert_int_equal(o.num_epochs, 3);
  assert_int_equal(o.batch, 4);
  assert_int_equal(o.grad_accum, 8);
  assert_int_equal(o.warmup_steps, 7);
  assert_int_equal(o.seq, 128);
  assert_int_equal(o.strategy, FSDP_GRAD_OP);
  assert_true(fsdp_options_note(&o, 0, note, (int)sizeof note));
  assert_string_equal(note, "--learning-rate is --lr, --num-train-epochs is --num-epochs, "
                            "--per-device-train-batch-size is --batch-size, --gradient-accumulation-steps is "
                            "--grad-accum, --max-grad-norm is --grad-clip, --max-seq-length is --seq-length, "
                            "--sharding-strategy is --strategy");
  assert_false(fsdp_options_note(&o, 1, note, (int)sizeof note));
  fsdp_options_destroy(&o);
  o = accept(FSDP_PROGRAM_TRAIN,
             "--model_name_or_path tiny --epochs 2 --save-steps 50 --logging_steps 5 -e x");
  assert_string_equal(o.model, "tiny");
  assert_true(o.num_epochs == 2 && o.ckpt_freq == 50 && o.log_freq == 5);
  fsdp_options_destroy(&o);
  // Underscores alone need no note; the name's value is not changed.
  o = accept(FSDP_PROGRAM_TRAIN, "--batch_size 3 --data a_b.txt --param_dtype=fp32 --cpu_offload");
  assert_true(o.batch == 3 && o.param_dtype == FSDP_F32 && o.cpu_offload);
  assert_string_equal(o.data, "a_b.txt");
  assert_false(fsdp_options_note(&o, 0, note, (int)sizeof note));
  fsdp_options_destroy(&o);
  o = accept(FSDP_PROGRAM_TRAIN, "--data --learning_rate --learning-rate 1 --learning-rate 2");
  assert_string_equal(o.data, "--learning_rate"); // a value, whatever it looks like
  assert_true(o.lr == 2);
  assert_true(fsdp_options_note(&o, 0, note, (int)sizeof note));
  assert_string_equal(note, "--learning-rate is --lr"); // once
  fsdp_options_destroy(&o);
}

TEST(flags_of_other_trainers) {
  const struct {
    const char *line;
    const char *recompute;
    const char *note;
  } cases[] = {
      {"--gradient_checkpointing --seed 1", "block", "--gradient-checkpointing is --recompute block"},
      {"--seed 1 --gradient-checkpointing", "block", "--gradient-checkpointing is --recompute block"},
      {"--gradient_checkpointing True --seed 1", "block", "--gradient-checkpointing is --recompute block"},
      {"--gradient_checkpointing=false --seed 1", "none",
       "--gradient-checkpointing false is --recompute none"},
      {"--gc 0 --seed 1", "none", "--gc 0 is --recompute none"},
      {"--gradient_checkpointing off --seed 1", "none", "--gradient-checkpointing off is --recompute none"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    fsdp_options o = accept(FSDP_PROGRAM_TRAIN, cases[i].line);
    char note[512];
    assert_true(fsdp_options_note(&o, 0, note, (int)sizeof note));
    assert_string_equal(note, cases[i].note);
    if (strcmp(o.recompute, cases[i].recompute) != 0 || o.seed != 1) {
      fail_msg("'%s': recompute %s, seed %d", cases[i].line, o.recompute, (int)o.seed);
    }
    fsdp_options_destroy(&o);
  }
  fsdp_options o = accept(FSDP_PROGRAM_TRAIN, "--resume_from_checkpoint outputs/a -e b");
  assert_string_equal(o.resume, "outputs/a");
  fsdp_options_destroy(&o);
  const fsdp_program_kind train = FSDP_PROGRAM_TRAIN;
  refuse(train, "--learning-rate x", FSDP_ERR_OPTION,
         "--learning-rate (--lr) 'x' (command line): use a number");
  // What was typed, if only its meaning is named.
  refuse(train, "--save_steps 5", FSDP_ERR_OPTION,
         "--ckpt-freq (given as --save_steps, command line)|without -e");
  refuse(train, "--save_total_limit -1 -e x", FSDP_ERR_OPTION, "--save_total_limit (--ckpt-keep) '-1'");
  refuse(train, "--resume_from_checkpoint=a/b", FSDP_ERR_OPTION,
         "--resume 'a/b' (given as --resume_from_checkpoint, command line)");
  // What there is in place of other trainers' options.
  refuse(train, "--optim adamw_torch", FSDP_ERR_OPTION, "unknown option '--optim'|AdamW");
  refuse(train, "--overwrite_output_dir", FSDP_ERR_OPTION, "'--overwrite_output_dir'|--resume off");
  refuse(train, "--num-layers 4", FSDP_ERR_OPTION, "'--num-layers'|--model");
  refuse(train, "--pipeline-model-parallel-size 2", FSDP_ERR_OPTION, "not built yet");
  refuse(train, "--learning-rate", FSDP_ERR_OPTION, "--learning-rate (command line)");
  refuse(train, "--learning-rat 1", FSDP_ERR_OPTION, "'--learning-rat'|did you mean --lr?");
  // What means something else here is answered with what to use.
  refuse(train, "--eval_only", FSDP_ERR_OPTION, "'--eval_only'|fsdp_eval -e NAME");
  refuse(train, "--bf16", FSDP_ERR_OPTION, "'--bf16'|--param-dtype bf16");
  refuse(train, "--fp16 true", FSDP_ERR_OPTION, "'--fp16'|loss scaling");
  refuse(train, "--output_dir outputs/x", FSDP_ERR_OPTION, "'--output_dir'|--save-dir|-e NAME");
  refuse(train, "--dataset-name tatsu-lab/alpaca", FSDP_ERR_OPTION, "'--dataset-name'|--data");
  refuse(train, "--cpu_checkpointing", FSDP_ERR_OPTION, "--offload-activations block_inputs");
}

// No name of another trainer hides one of ours; each alias of an option names one, and the values of a
// flag are values of it; the others say what to use.
TEST(table_of_aliases) {
  int count;
  const fsdp_option_alias *aliases = fsdp_option_alias_table(&count);
  assert_true(count > 50);
  for (int i = 0; i < count; i++) {
    const fsdp_option_alias *a = &aliases[i];
    if (fsdp_option_find(a->alias)) fail_msg("--%s is an option of ours", a->alias);
    if (strspn(a->alias, "abcdefghijklmnopqrstuvwxyz0123456789-") != strlen(a->alias))
      fail_msg("%s", a->alias);
    for (int j = 0; j < i; j++) assert_string_not_equal(a->alias, aliases[j].alias);
    assert_true((a->name == NULL) == (a->advice != NULL));
    if (a->name && !fsdp_option_find(a->name))
      fail_msg("--%s is --%s, which is no option", a->alias, a->name);
    for (int on = 0; on < 2 && a->on; on++) {
      fsdp_options o = accept(FSDP_PROGRAM_TRAIN, "");
      fsdp_error error;
      assert_int_equal(fsdp_options_set(&o, FSDP_PROGRAM_TRAIN, a->alias, on ? "on" : "off", "here", &error),
                       FSDP_OK);
      fsdp_options_destroy(&o);
    }
  }
}

// A list or a file would be dropped unseen; of plain options the later value counts, and a warning says so.
TEST(options_that_are_given_twice) {
  const struct {
    const char *line, *replaced;
  } cases[] = {{"--lr 1 --seed 2 --lr 2", "--lr 2 replaces --lr 1"},
               {"-s 64 --learning_rate 1 --seq-len 128 --lr 2",
                "--seq-len 128 replaces --seq-length 64, --lr 2 replaces --learning_rate 1"},
               {"--lr 1 --lr 1 --gc --recompute block --data a b --data a,b", ""},
               {"--set measure=off --set poison=on --sharding fsdp --shard a=[] --shard b=[]", ""}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    fsdp_options o = accept(FSDP_PROGRAM_TRAIN, cases[i].line);
    assert_string_equal(o.replaced, cases[i].replaced);
    assert_true(i > 1 || o.lr == 2);
    fsdp_options_destroy(&o);
  }
  const fsdp_program_kind train = FSDP_PROGRAM_TRAIN;
  refuse(train, "--data a.tok --data b.tok c.tok", FSDP_ERR_OPTION,
         "--data a.tok and --data b.tok,c.tok (command line)|as in --data a.tok,b.tok,c.tok");
  refuse(train, "--eval-data a --data c --validation-file b", FSDP_ERR_OPTION,
         "--eval-data a and --validation-file b|as in --eval-data a,b");
  refuse(train, "--config a.yaml --config b.yaml", FSDP_ERR_OPTION, "--config a.yaml and --config b.yaml");
}

// Their old names are a hint; a command, a file and a later value set them.
TEST(knobs) {
  const fsdp_program_kind train = FSDP_PROGRAM_TRAIN;
  fsdp_options o = accept(train, "--set poison=on;measure=off --set gemm_multiprocessors=3 --set measure=on");
  assert_true(o.poison && o.measure && o.gemm_multiprocessors == 3);
  assert_string_equal(fsdp_options_place(&o, "poison"), "--set, command line");
  fsdp_options plain = accept(train, "--lr 3e-5");
  assert_false(plain.poison || !plain.measure || fsdp_options_given(&plain, "poison"));
  fsdp_error error; // as from a file
  assert_int_equal(fsdp_options_set(&plain, train, "poison", "on", "run.yaml:3", &error), FSDP_ERR_OPTION);
  assert_non_null(strstr(error.message, "run.yaml:3"));
  fsdp_options_destroy(&plain);
  fsdp_options_destroy(&o);
  refuse(train, "--poison on", FSDP_ERR_OPTION, "--poison|command line|--set poison=on|off");
  refuse(train, "--poison", FSDP_ERR_OPTION, "--poison|knob");
  refuse(train, "--set poison", FSDP_ERR_OPTION, "--set 'poison'|KEY=VALUE");
  refuse(train, "--set poision=on", FSDP_ERR_OPTION, "poision|did you mean poison|--help all");
  refuse(train, "--set lr=3", FSDP_ERR_OPTION, "'lr'|no knob");
  refuse(train, "--set poison=perhaps", FSDP_ERR_OPTION, "--set poison 'perhaps' (command line)|on or off");
  o = accept(train, "--set gemm-multiprocessors=9 --set gemm-multiprocessors=auto");
  assert_int_equal(o.gemm_multiprocessors, 0);
  fsdp_options_destroy(&o);
  refuse(train, "--set gemm-multiprocessors=-1", FSDP_ERR_OPTION, "gemm-multiprocessors|from 0 to 1024");
}

// The words of a list end at the next option; it may stand anywhere.
TEST(lists_of_words) {
  fsdp_options o = accept(FSDP_PROGRAM_PLAN, "--ranks 4 --compare a.yaml b.yaml c_d.yaml --json");
  assert_string_equal(o.compare, "a.yaml,b.yaml,c_d.yaml");
  assert_true(o.json && o.ranks == 4);
  fsdp_options_destroy(&o);
  o = accept(FSDP_PROGRAM_PLAN, "--compare=a.yaml");
  assert_string_equal(o.compare, "a.yaml");
  fsdp_options_destroy(&o);
  const fsdp_program_kind plan = FSDP_PROGRAM_PLAN;
  refuse(plan, "--compare", FSDP_ERR_OPTION, "--compare");
  refuse(plan, "--compare a.yaml --print-model", FSDP_ERR_OPTION, "--compare|--print-model");
  refuse(plan, "--compare a.yaml --memory-profile a.svg", FSDP_ERR_OPTION, "--compare|--memory-profile");
  refuse(FSDP_PROGRAM_TRAIN, "--compare a.yaml", FSDP_ERR_OPTION, "--compare|fsdp_plan");
  // As a shell passes a pattern without quotes.
  o = accept(FSDP_PROGRAM_TRAIN, "--train-file=a.bin b,c_*.bin --eval-data d.bin e.bin -b 3");
  assert_string_equal(o.data, "a.bin,b,c_*.bin");
  assert_string_equal(o.eval_data, "d.bin,e.bin");
  fsdp_options_destroy(&o);
}

TEST(description_tells_options_apart) {
  fsdp_options a = accept(FSDP_PROGRAM_TRAIN, "--lr 1e-4"), b = accept(FSDP_PROGRAM_TRAIN, "--lr 0.0001");
  fsdp_options c = accept(FSDP_PROGRAM_TRAIN, "--lr 1.0000001e-4");
  char *text[3] = {fsdp_options_describe(&a), fsdp_options_describe(&b), fsdp_options_describe(&c)};
  assert_string_equal(text[0], text[1]);
  assert_string_not_equal(text[0], text[2]);
  for (int i = 0; i < 3; i++) free(text[i]);
  fsdp_options_destroy(&a);
  fsdp_options_destroy(&b);
  fsdp_options_destroy(&c);
}

// Against the formulas as they stand in the header, computed by hand.
TEST(learning_rates) {
  fsdp_learning_rate rate = {
      .schedule = FSDP_LR_COSINE, .lr = 1, .min_lr = 0.2, .warmup_steps = 4, .total_steps = 12};
  const double warmup[] = {0.25, 0.5, 0.75, 1};
  for (int i = 0; i < 4; i++) assert_true(fsdp_learning_rate_at(&rate, i) == warmup[i]);
  assert_true(fsdp_learning_rate_at(&rate, 4) == 1);
  // A schedule that begins later is the same one, moved.
  fsdp_learning_rate moved = rate;
  moved.first_step += 1000;
  moved.total_steps += 1000;
  for (int i = 0; i < 12; i++)
    assert_true(fsdp_learning_rate_at(&moved, 1000 + i) == fsdp_learning_rate_at(&rate, i));
  assert_true(fabs(fsdp_learning_rate_at(&rate, 8) - 0.6) < 1e-12); // half way: the mean of both
  assert_true(fabs(fsdp_learning_rate_at(&rate, 6) - (0.6 + 0.4 * sqrt(0.5))) < 1e-12);
  rate.schedule = FSDP_LR_LINEAR;
  assert_true(fabs(fsdp_learning_rate_at(&rate, 6) - 0.8) < 1e-12);
  assert_true(fabs(fsdp_learning_rate_at(&rate, 11) - 0.3) < 1e-12);
  rate.schedule = FSDP_LR_WSD;
  rate.decay_ratio = 0.25; // 3 of 12 steps: lr would be min at step 12
  for (int i = 4; i < 10; i++) assert_true(fsdp_learning_rate_at(&rate, i) == 1);
  assert_true(fabs(fsdp_learning_rate_at(&rate, 10) - (1 - 0.8 / 3)) < 1e-12);
  assert_true(fabs(fsdp_learning_rate_at(&rate, 11) - (1 - 1.6 / 3)) < 1e-12);
  rate.decay_ratio = 1; // no more than the warm-up leaves: linear
  assert_true(fabs(fsdp_learning_rate_at(&rate, 6) - 0.8) < 1e-12);
  // Of 12 steps, and of the 20 that a schedule which begins later has.
  assert_int_equal(fsdp_learning_rate_warmup(&rate, 0.1), 2);
  assert_int_equal(fsdp_learning_rate_warmup(&rate, 0.25), 3);
  moved = (fsdp_learning_rate){.first_step = 10, .total_steps = 40};
  assert_int_equal(fsdp_learning_rate_warmup(&moved, 0.1), 3); // not 4: 0.1 * 30 > 3 in doubles
  rate.schedule = FSDP_LR_CONSTANT;
  assert_true(fsdp_learning_rate_at(&rate, 11) == 1);
  rate.warmup_steps = 20; // longer than the run
  assert_true(fsdp_learning_rate_at(&rate, 11) == 0.6);
}
