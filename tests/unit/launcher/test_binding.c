// What binding reads of a launcher's environment: Open MPI's mpirun, Slurm's srun --mpi=pmix, mpirun inside
// a Slurm allocation, and srun without PMIx. The variables are those that the launchers set (Open MPI 4.1,
// Slurm 23.11 with PMIx 4).
#include "launcher/train/binding.h"
#include "tests/support/unit_test.h"

#include <stdlib.h>
#include <string.h>

typedef struct variable {
  const char *name, *value;
} variable;

// A name that is NULL ends a list.
static const variable mpirun[] = {{"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                  {"OMPI_COMM_WORLD_SIZE", "4"},
                                  {"PMIX_NAMESPACE", "947388417"},
                                  {"PMIX_RANK", "1"},
                                  {NULL, NULL}};
static const variable srun_pmix[] = {{"SLURM_PROCID", "5"},
                                     {"SLURM_LOCALID", "1"},
                                     {"SLURM_STEP_NUM_TASKS", "8"},
                                     {"SLURM_STEP_GPUS", "0,1,2,3"},
                                     {"PMIX_NAMESPACE", "slurm.pmix.4242.0"},
                                     {"PMIX_RANK", "5"},
                                     {NULL, NULL}};
// Open MPI adds names of its own once it has started.
static const variable srun_ompi[] = {{"SLURM_STEP_NUM_TASKS", "8"},
                                     {"PMIX_NAMESPACE", "slurm.pmix.4242.0"},
                                     {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                     {NULL, NULL}};
// One task of srun is the daemon that starts the ranks.
static const variable mpirun_in_slurm[] = {{"SLURM_STEP_NUM_TASKS", "2"},       {"SLURM_LOCALID", "0"},
                                           {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"},
                                           {"PMIX_NAMESPACE", "1017446401"},    {NULL, NULL}};
static const variable srun_alone[] = {{"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_LOCALID", "3"}, {NULL, NULL}};
static const variable srun_one[] = {{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_LOCALID", "0"}, {NULL, NULL}};
static const variable nobody[] = {{NULL, NULL}};

static void set_environment(const variable *list) {
  static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK",
                                      "OMPI_COMM_WORLD_SIZE",
                                      "PMIX_NAMESPACE",
                                      "PMIX_RANK",
                                      "SLURM_PROCID",
                                      "SLURM_LOCALID",
                                      "SLURM_STEP_NUM_TASKS",
                                      "SLURM_STEP_GPUS"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) unsetenv(names[i]);
  for (; list->name; list++) setenv(list->name, list->value, 1);
}

TEST(test_who_pins) {
  set_environment(mpirun);
  assert_true(fsdp_binding_is_pinned_by_mpirun());
  set_environment(mpirun_in_slurm);
  assert_true(fsdp_binding_is_pinned_by_mpirun());
  const variable *const others[] = {srun_pmix, srun_ompi, srun_alone, srun_one, nobody};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    set_environment(others[i]);
    assert_false(fsdp_binding_is_pinned_by_mpirun());
  }
}

TEST(test_tasks_that_are_alone) {
  const fsdp_world alone = {.size = 1}, together = {.size = 8};
  const variable *const good[] = {mpirun_in_slurm, srun_one, nobody};
  fsdp_error error = {0};
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    set_environment(good[i]);
    assert_int_equal(fsdp_binding_check_tasks(&alone, &error), FSDP_OK);
  }
  set_environment(srun_pmix);
  assert_int_equal(fsdp_binding_check_tasks(&together, &error), FSDP_OK);
  set_environment(srun_alone);
  assert_int_equal(fsdp_binding_check_tasks(&alone, &error), FSDP_ERR_PEER);
  assert_non_null(strstr(error.message, "srun has started 8 tasks"));
  assert_non_null(strstr(error.message, "--mpi=pmix"));
}
