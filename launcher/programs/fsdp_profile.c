// Measures the device profile of the machine at hand.
#include "launcher/options/arguments.h"
#include "launcher/profile/profile_file.h"
#include "launcher/programs/probe_machine.h"
#include "launcher/report/output.h"
#include "launcher/report/whole_file.h"
#include "runtime/base/clock.h"
#include "runtime/exec/gpu_choice.h"
#include "runtime/plan/text/option_fields.h"
#include "runtime/plan/text/value.h"
#include "runtime/watch/start_timer.h"

#include <inttypes.h>
#include <stdio.h>
#include <time.h>

#define START_LIMIT_S 300

static const char help[] =
    "Usage: [mpirun -np N] fsdp_profile [--output FILE] [--seconds S] [--backend auto|cpu|cuda]\n"
    "\n"
    "Measures products, attention, other ops, copies and collectives of this machine, for --profile FILE of\n"
    "fsdp_plan and fsdp_train. On a CPU it measures for 1, 2, 4, ... ranks that compute at the same time, up "
    "to\n"
    "those that mpirun started; without mpirun for one rank, and no collectives.\n"
    "\n"
    "  --output FILE          where the YAML goes (default: standard output)\n"
    "  --seconds S            time to aim at; at least 1 (default: 120). It sets how many sizes are\n"
    "                         measured and how often; some are in any case, and the start is not\n"
    "                         counted: a short time is exceeded (20 took 44 s on an H200)\n"
    "  --backend TYPE         auto, cpu or cuda (default: auto, a GPU where there is one)\n"
    "  --help, --version\n"
    "\n"
    "Exit status: 0 done, 2 a bad option, 3 a file that cannot be written, 4 does not fit, 5 a device, a\n"
    "communicator or a peer failed\n";

static const fsdp_choice backends[] = {{"auto", FSDP_BACKEND_AUTO, NULL},
                                       {"cpu", FSDP_BACKEND_CPU, NULL},
                                       {"cuda", FSDP_BACKEND_CUDA, NULL},
                                       {NULL, 0, NULL}};

typedef struct arguments {
  const char *output; // NULL: standard output
  double seconds;
  int backend;
  fsdp_arguments read;
} arguments;

static fsdp_status take(void *context, int option, const char *text, fsdp_error *error) {
  arguments *a = context;
  switch (option) {
  case 'o':
    a->output = text;
    if (*text) return FSDP_OK;
    return fsdp_fail(error, FSDP_ERR_OPTION, "--output '': name a file");
  case 's':
    if (fsdp_value_real(text, &a->seconds) && a->seconds >= FSDP_PROBE_SECONDS_MIN) return FSDP_OK;
    return fsdp_fail(error, FSDP_ERR_OPTION, "--seconds '%s': use a number of seconds from %d on", text,
                     FSDP_PROBE_SECONDS_MIN);
  default:
    if (fsdp_value_choice(text, backends, &a->backend)) return FSDP_OK;
    return fsdp_fail(error, FSDP_ERR_OPTION, "--backend '%s': use auto, cpu or cuda", text);
  }
}

static fsdp_status parse(arguments *a, int argc, char **argv, fsdp_error *error) {
  static const struct option rows[] = {{"output", required_argument, NULL, 'o'},
                                       {"seconds", required_argument, NULL, 's'},
                                       {"backend", required_argument, NULL, 'b'},
                                       FSDP_ARGUMENTS_END};
  *a = (arguments){.seconds = 120, .backend = FSDP_BACKEND_AUTO};
  fsdp_status status = fsdp_arguments_read(argc, argv, rows, take, a, &a->read, error);
  if (status != FSDP_OK || a->read.word_count == 0) return status;
  return fsdp_fail(error, FSDP_ERR_OPTION, "unexpected '%s': fsdp_profile takes options alone, see --help",
                   a->read.words[0]);
}

// The GPU of this rank; none if the backend is the CPU, or under `auto` if no rank can use one.
static fsdp_status choose_gpu(fsdp_world *world, int backend, fsdp_gpu *gpu, fsdp_error *error) {
  *gpu = (fsdp_gpu){.present = false};
  if (backend == FSDP_BACKEND_CPU || (backend == FSDP_BACKEND_AUTO && !fsdp_gpu_is_built())) return FSDP_OK;
  fsdp_status status = fsdp_gpu_choose(world, false, gpu, error);
  if (status != FSDP_OK && backend == FSDP_BACKEND_AUTO && fsdp_world_sum(world, gpu->shown) == 0) {
    *gpu = (fsdp_gpu){.present = false};
    return FSDP_OK;
  }
  return status;
}

// "measured by fsdp_profile 0.1.0 with 4 ranks, 2026-11-22"
static void print_yaml(const fsdp_device_profile *profile, const fsdp_world *world, FILE *out) {
  char day[16], source[128];
  const time_t now = time(NULL);
  struct tm utc;
  strftime(day, sizeof day, "%Y-%m-%d", gmtime_r(&now, &utc));
  snprintf(source, sizeof source, "measured by fsdp_profile %s with %d rank%s, %s", FSDP_VERSION, world->size,
           world->size > 1 ? "s" : "", day);
  fsdp_profile_print(profile, source, out);
}

static fsdp_status write_file(const char *path, const fsdp_device_profile *profile, const fsdp_world *world,
                              fsdp_error *error) {
  fsdp_whole_file file;
  fsdp_status status = fsdp_whole_file_open("output", path, &file, error);
  if (status) return status;
  print_yaml(profile, world, file.out);
  return fsdp_whole_file_close(&file, error);
}

// What is known before anything is measured; collective.
static fsdp_status begin(fsdp_world *world, const arguments *a, fsdp_gpu *gpu, fsdp_error *error) {
  fsdp_status status = fsdp_binding_check_tasks(world, error);
  if (status == FSDP_OK) status = choose_gpu(world, a->backend, gpu, error);
  if (status != FSDP_OK || !a->output) return status;
  error->status = FSDP_OK;
  if (world->rank == 0) fsdp_whole_file_try("output", a->output, error);
  status = fsdp_world_share_error(world, error);
  if (status == FSDP_OK && world->rank == 0)
    printf("measuring %s, aiming at %g s, of which a short time is exceeded; nothing else should run\n",
           gpu->present ? "GPUs" : "this CPU", a->seconds);
  fflush(stdout);
  return status;
}

static void print_measured(const fsdp_device_profile *profile, const char *path, int64_t ms) {
  printf("%s: %s; %d products, %d of experts, %d attentions, %d ops, %d collectives, in %" PRId64 " s\n",
         path, profile->name, profile->product_count, profile->grouped_count, profile->attention_count,
         profile->op_count, profile->collective_count, (ms + 500) / 1000);
}

static fsdp_status measure(fsdp_world *world, const arguments *a, fsdp_error *error) {
  fsdp_gpu gpu;
  const int64_t start_ms = fsdp_now_ms();
  fsdp_status status = begin(world, a, &gpu, error);
  if (status != FSDP_OK) return status;
  fsdp_device_profile *profile = fsdp_device_profile_create();
  status = fsdp_probe_machine(
      &(fsdp_probe_machine_config){.world = world, .gpu = &gpu, .bind = true, .seconds = a->seconds}, profile,
      error);
  error->status = status;
  if (status == FSDP_OK && world->rank == 0) {
    if (a->output)
      error->status = write_file(a->output, profile, world, error);
    else
      print_yaml(profile, world, stdout);
    if (a->output && error->status == FSDP_OK) print_measured(profile, a->output, fsdp_now_ms() - start_ms);
  }
  fsdp_device_profile_destroy(profile);
  return fsdp_world_share_error(world, error);
}

static fsdp_status run(fsdp_world *world, const arguments *a, fsdp_error *error) {
  if (a->read.help && world->rank == 0) fputs(help, stdout);
  if (a->read.version && world->rank == 0) printf("fsdp_profile %s\n", FSDP_VERSION);
  return a->read.help || a->read.version ? FSDP_OK : measure(world, a, error);
}

int main(int argc, char **argv) {
  fsdp_world *world = NULL;
  arguments a;
  fsdp_error error = {0}, start_error = {0};
  fsdp_output_begin();
  fsdp_gpu_set_environment();
  parse(&a, argc, argv, &error);
  fsdp_start_timer_begin(START_LIMIT_S);
  fsdp_status start = fsdp_world_create(&argc, &argv, &world, &start_error);
  fsdp_start_timer_end();
  if (start != FSDP_OK) {
    fprintf(stderr, "fsdp_profile: error: %s\n", start_error.message);
    return (int)start;
  }
  fsdp_status status = fsdp_world_share_error(world, &error);
  if (status == FSDP_OK) status = run(world, &a, &error);
  error.status = status;
  if (world->rank == 0) error.status = fsdp_output_finish(status, &error);
  status = fsdp_world_share_error(world, &error);
  if (status != FSDP_OK && world->rank == 0) fprintf(stderr, "fsdp_profile: error: %s\n", error.message);
  if (status != FSDP_OK) fsdp_watch_set_said(world->watch);
  fsdp_world_destroy(world);
  return (int)status;
}
