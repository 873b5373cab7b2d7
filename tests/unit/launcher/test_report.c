// Reports: the JSON's shape and sums, the page's figures, the memory profile in both forms, and advice that
// is true.
#include "launcher/options/options.h"
#include "launcher/report/memory_profile.h"
#include "launcher/report/report.h"
#include "launcher/setup/capacity.h"
#include "runtime/plan/text/settings.h"
#include "tests/support/models.h"
#include "tests/support/unit_test.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static fsdp_plan_config config_of(const char *preset, int ranks) {
  fsdp_plan_config config = {.batch = 1,
                             .seq = 256,
                             .micro_batches = 1,
                             .strategy = FSDP_FULL,
                             .mesh = fsdp_mesh_of(1, ranks),
                             .wrap = {FSDP_WRAP_BLOCK, 0, NULL},
                             .prefetch = 1,
                             .param_dtype = FSDP_F32,
                             .reduce_dtype = FSDP_F32,
                             .master_dtype = FSDP_F32,
                             .moment_dtype = FSDP_F32,
                             .grad_clip = 1,
                             .hyper = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8f},
                             .backend = fsdp_plan_backend_cpu()};
  config.model = model_of_preset(preset);
  return config;
}

static json_int_t integer(const json_t *object, const char *key) {
  const json_t *value = json_object_get(object, key);
  if (!json_is_integer(value)) fail_msg("'%s' is no integer", key);
  return json_integer_value(value);
}

TEST(report_as_json) {
  fsdp_plan_config config = config_of("tiny", 4);
  fsdp_plan *plan = plan_of_config(&config);
  json_t *report = fsdp_report_json(plan), *unit, *value;
  const json_t *units = json_object_get(report, "units"), *memory = json_object_get(report, "memory");
  assert_int_equal(integer(json_object_get(report, "model"), "parameters"),
                   fsdp_model_parameter_count(&config.model));
  size_t i;
  const char *key;
  json_int_t numel = 0, sum = 0;
  json_array_foreach(units, i, unit) {
    numel += integer(unit, "numel");
    assert_true(json_is_string(json_object_get(unit, "path")) &&
                json_is_string(json_object_get(unit, "class")));
    assert_true(integer(unit, "padded_numel") >= integer(unit, "numel"));
    assert_int_equal(integer(unit, "padded_numel") % (16 * 4), 0);
  }
  assert_int_equal(numel, fsdp_model_parameter_count(&config.model)); // nothing is in two units or in none
  json_t *categories = json_object_get(memory, "by_category");
  json_object_foreach(categories, key, value) sum += json_integer_value(value);
  assert_int_equal(sum, integer(memory, "peak_bytes")); // the categories are the whole of the peak
  assert_true(integer(memory, "arena_bytes") >= sum);
  assert_true(integer(memory, "host_bytes") > 0);
  assert_true(json_string_length(json_object_get(memory, "peak_at")) > 0);
  const json_t *comm = json_object_get(report, "comm");
  assert_true(integer(comm, "all_gather_bytes") > 0 && integer(comm, "reduce_scatter_bytes") > 0);
  assert_int_equal(integer(comm, "all_reduce_bytes"), 0);
  assert_true(integer(comm, "scalar_bytes") > 0);
  assert_int_equal(integer(json_object_get(comm, "by_axis"), "fsdp"),
                   integer(comm, "all_gather_bytes") + integer(comm, "reduce_scatter_bytes") +
                       integer(comm, "scalar_bytes"));
  assert_int_equal(integer(json_object_get(report, "program"), "instructions"), plan->program->instr_count);
  assert_int_equal(json_string_length(json_object_get(json_object_get(report, "program"), "hash")), 16);
  assert_true(json_is_true(json_object_get(report, "verified")));
  json_decref(report);
  fsdp_plan_destroy(plan);
}

static char *page_of(const fsdp_plan *plan) {
  char *text = NULL;
  size_t bytes;
  FILE *out = open_memstream(&text, &bytes);
  fsdp_report_print(plan, "the model", out);
  fclose(out);
  return text;
}

TEST(report_as_a_page) {
  fsdp_plan_config config = config_of("llama2-7b", 8);
  fsdp_plan *plan = plan_of_config(&config);
  char *page = page_of(plan);
  const char *const wanted[] = {
      "the model: 6,738,415,616 parameters, 8 ranks (data=1, fsdp=8), strategy full",
      "Units: 35",
      "model.layers.{0-31}",
      "valley, between steps",
      "Verified: yes",
      "all-gather",
      "over fsdp",
      "the device's peak is at instruction"};
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
    if (!strstr(page, wanted[i])) fail_msg("no '%s' in:\n%s", wanted[i], page);
  }
  assert_null(strstr(page, "hint:"));
  free(page);
  fsdp_plan_destroy(plan);
  // By size, the unit LlamaModel holds all attention weights and stays gathered.
  config.wrap = (fsdp_wrap_policy){FSDP_WRAP_SIZE, 100000000, NULL};
  plan = plan_of_config(&config);
  page = page_of(plan);
  assert_non_null(strstr(page, "hint: unit model (LlamaModel)"));
  assert_non_null(strstr(page, "--wrap block"));
  free(page);
  fsdp_plan_destroy(plan);
}

// Series sum to the peak at the peak's position and to no more anywhere; phases cover the step without a gap.
TEST(profile_series) {
  fsdp_plan_config config = config_of("tiny", 4);
  config.micro_batches = 4;
  config.cpu_offload = true;
  fsdp_plan *plan = plan_of_config(&config);
  fsdp_memory_profile profile = fsdp_memory_profile_create(plan, "tiny");
  for (int space = 0; space < FSDP_SPACE_COUNT; space++) {
    int64_t most = 0;
    int at = 0;
    for (int i = 0; i < profile.position_count; i++) {
      int64_t sum = 0;
      for (int c = 0; c < FSDP_CATEGORY_COUNT; c++) sum += profile.bytes[space][i * FSDP_CATEGORY_COUNT + c];
      if (sum > most) {
        most = sum;
        at = i;
      }
    }
    assert_int_equal(most, plan->memory.space[space].peak_bytes);
    assert_int_equal(at, plan->memory.space[space].peak_position);
  }
  fsdp_memory_phase phases[2 * FSDP_MAX_SECTIONS];
  int count = fsdp_memory_profile_phases(&profile, phases), next = 0;
  assert_int_equal(count, 7); // forward and backward of first, middle and last; update
  for (int i = 0; i < count; i++) {
    assert_int_equal(phases[i].begin, next);
    next = phases[i].end;
    assert_string_equal(phases[i].name, i == 6 ? "update" : i % 2 ? "backward" : "forward");
    assert_int_equal(phases[i].times, i == 2 || i == 3 ? 2 : 1);
  }
  assert_int_equal(next, profile.position_count);
  fsdp_memory_profile_destroy(&profile);
  fsdp_plan_destroy(plan);
}

TEST(profile_files) {
  fsdp_plan_config config = config_of("tiny", 2);
  fsdp_plan *plan = plan_of_config(&config);
  char folder[] = "/tmp/fsdp_report_XXXXXX", path[64];
  assert_non_null(mkdtemp(folder));
  fsdp_error error;
  snprintf(path, sizeof path, "%s/memory.json", folder);
  assert_int_equal(fsdp_memory_profile_write(plan, "a <model> & \"more\"", path, &error), FSDP_OK);
  json_t *root = json_load_file(path, 0, NULL);
  assert_non_null(root);
  const json_t *device = json_object_get(root, "device"), *bytes = json_object_get(device, "bytes");
  assert_int_equal(integer(device, "peak_bytes"), plan->memory.space[FSDP_SPACE_DEVICE].peak_bytes);
  assert_int_equal(json_array_size(json_object_get(bytes, "activations")),
                   json_array_size(json_object_get(root, "instructions")));
  json_decref(root);
  unlink(path);
  snprintf(path, sizeof path, "%s/memory.svg", folder);
  assert_int_equal(fsdp_memory_profile_write(plan, "a <model> & \"more\"", path, &error), FSDP_OK);
  assert_int_equal(access(path, R_OK), 0);
  unlink(path);
  // Folders are made. Nothing is left of a file that could not be written.
  snprintf(path, sizeof path, "%s/none/memory.svg", folder);
  assert_int_equal(fsdp_memory_profile_write(plan, "tiny", path, &error), FSDP_OK);
  assert_int_equal(unlink(path), 0);
  snprintf(path, sizeof path, "%s/none", folder);
  assert_int_equal(rmdir(path), 0);
  snprintf(path, sizeof path, "/proc/none/memory.svg");
  assert_int_equal(fsdp_memory_profile_write(plan, "tiny", path, &error), FSDP_ERR_INPUT);
  assert_non_null(strstr(error.message, path));
  assert_int_equal(rmdir(folder), 0);
  fsdp_plan_destroy(plan);
}

// The advice is followed word for word, and the plan that it gives fits.
TEST(advice_that_fits) {
  const int64_t shares[] = {90, 60, 40, 25};
  for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
    fsdp_plan_config config = config_of("llama-1b", 4);
    config.batch = 4;
    fsdp_plan *plan = plan_of_config(&config);
    int64_t needed = plan->memory.space[FSDP_SPACE_DEVICE].arena_bytes, limit = needed * shares[i] / 100;
    fsdp_limits limits = {
        .memory.bytes = {limit, 0}, .place = {"the test", "the test"}, .ranks_per_machine = 4};
    fsdp_error error;
    assert_int_equal(fsdp_capacity_check(plan, &limits, &error), FSDP_ERR_CAPACITY);
    char words[1024], *argv[32] = {(char *)(uintptr_t) "plan"};
    int argc = 1;
    const char *advice = strstr(error.message, "or add ");
    if (!advice) fail_msg("no advice in: %s", error.message);
    snprintf(words, sizeof words, "%.*s", (int)(strstr(advice, ", which") - (advice + 7)), advice + 7);
    for (char *word = strtok(words, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
    fsdp_options options;
    assert_int_equal(fsdp_options_parse(&options, FSDP_PROGRAM_PLAN, argc, argv, &error), FSDP_OK);
    if (fsdp_options_given(&options, "wrap")) config.wrap = fsdp_settings_wrap(&options, NULL, NULL);
    const fsdp_setup_ranks ranks = {.ranks = 4, .ranks_per_node = 4};
    assert_int_equal(fsdp_mesh_choose(&options, &ranks, &config.mesh, &error), FSDP_OK);
    if (fsdp_options_given(&options, "batch-size")) config.batch = options.batch;
    if (fsdp_options_given(&options, "grad-accum")) config.micro_batches = (int)options.grad_accum;
    if (fsdp_options_given(&options, "seq-length")) config.seq = options.seq;
    if (fsdp_options_given(&options, "prefetch")) config.prefetch = (int)options.prefetch;
    if (options.param_dtype != FSDP_DTYPE_AUTO) config.param_dtype = (fsdp_dtype)options.param_dtype;
    if (strcmp(options.recompute, "block") == 0) config.saving = fsdp_saving_of_blocks();
    if (options.cpu_offload) config.cpu_offload = true;
    config.master_dtype = (fsdp_dtype)options.master_dtype;
    config.moment_dtype = (fsdp_dtype)options.moment_dtype;
    const int replicas =
        fsdp_mesh_size(&config.mesh, FSDP_AXIS_DATA) * fsdp_mesh_size(&config.mesh, FSDP_AXIS_FSDP);
    assert_int_equal(config.batch * config.micro_batches * replicas, 16); // of a step, as before
    fsdp_plan *helped = plan_of_config(&config);
    if (helped->memory.space[FSDP_SPACE_DEVICE].arena_bytes > limit)
      fail_msg("does not fit after: %s", words);
    fsdp_plan_destroy(helped);
    fsdp_options_destroy(&options);
    // Exactly what is needed is enough.
    limits.memory.bytes[FSDP_SPACE_DEVICE] = needed;
    assert_int_equal(fsdp_capacity_check(plan, &limits, &error), FSDP_OK);
    fsdp_plan_destroy(plan);
  }
  assert_true(fsdp_capacity_machine_bytes() > INT64_C(1) << 28);
}

// Where one memory holds both arenas, their sum counts.
TEST(one_memory_for_both_arenas) {
  fsdp_plan_config config = config_of("tiny", 2);
  config.cpu_offload = true;
  fsdp_plan *plan = plan_of_config(&config);
  int64_t needed = plan->memory.space[FSDP_SPACE_DEVICE].arena_bytes +
                   plan->memory.space[FSDP_SPACE_HOST].arena_bytes + fsdp_plan_reserve_bytes(plan);
  fsdp_limits limits = {.place = {"the test", "the test"},
                        .memory.shared_bytes = needed,
                        .shared_place = "the test",
                        .ranks_per_machine = 2};
  fsdp_error error;
  assert_int_equal(fsdp_capacity_check(plan, &limits, &error), FSDP_OK);
  limits.memory.shared_bytes--;
  assert_int_equal(fsdp_capacity_check(plan, &limits, &error), FSDP_ERR_CAPACITY);
  fsdp_plan_destroy(plan);
}
