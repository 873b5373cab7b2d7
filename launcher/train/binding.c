#include "launcher/train/binding.h"

#include "runtime/base/check.h"
#include "runtime/base/text.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef FSDP_WITH_HWLOC
#include <hwloc.h>
#endif

// Processors of a machine that these lists have room for.
#define PROCESSORS_MAX CPU_SETSIZE

// A core is a set of processors (hardware threads).
typedef struct core_list {
  int count;
  cpu_set_t *cores;
} core_list;

bool fsdp_binding_is_pinned_by_mpirun(void) {
  const char *job = getenv("PMIX_NAMESPACE");
  return getenv("OMPI_COMM_WORLD_LOCAL_RANK") && !(job && strncmp(job, "slurm", 5) == 0);
}

fsdp_status fsdp_binding_check_tasks(const fsdp_world *world, fsdp_error *error) {
  const char *tasks = getenv("SLURM_STEP_NUM_TASKS");
  if (world->size > 1 || !tasks || atoi(tasks) <= 1 || getenv("OMPI_COMM_WORLD_SIZE")) return FSDP_OK;
  return fsdp_fail(
      error, FSDP_ERR_PEER,
      "srun has started %s tasks (SLURM_STEP_NUM_TASKS), but MPI in this one sees no other: start "
      "them with srun --mpi=pmix (srun --mpi=list shows what this Slurm supports), or with mpirun",
      tasks);
}

// What this rank may run on. Open MPI's mpirun pins ranks by its own rules (a lone one to a single core), so
// there it is what the daemon that started the rank may run on, which is what the user gave to mpirun; else
// it is the rank's own.
static void read_allowed(cpu_set_t *allowed) {
  static cpu_set_t first; // read once: from then on the rank's own is what it was bound to
  static bool known = false;
  pid_t starter = fsdp_binding_is_pinned_by_mpirun() ? getppid() : 0;
  if (!known) {
    CPU_ZERO(&first);
    known = starter > 1 && sched_getaffinity(starter, sizeof first, &first) == 0;
    if (!known) known = sched_getaffinity(0, sizeof first, &first) == 0;
  }
  *allowed = first;
}

#ifdef FSDP_WITH_HWLOC
#define METHOD "hwloc"

// The allowed processors of an object of the topology.
static cpu_set_t allowed_of(hwloc_obj_t object, const cpu_set_t *allowed) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (size_t cpu = 0; cpu < PROCESSORS_MAX; cpu++)
    if (CPU_ISSET(cpu, allowed) && hwloc_bitmap_isset(object->cpuset, (unsigned)cpu)) CPU_SET(cpu, &set);
  return set;
}

// Leaves the allowed processors that are nearest to a PCI device; all of them if none is, or it is not
// known.
static void keep_near(hwloc_topology_t topology, const char *bus, cpu_set_t *allowed) {
  hwloc_obj_t device = hwloc_get_pcidev_by_busidstring(topology, bus);
  if (!device) return;
  const cpu_set_t near = allowed_of(hwloc_get_non_io_ancestor_obj(topology, device), allowed);
  if (CPU_COUNT(&near) > 0) *allowed = near;
}

// The allowed cores (near a PCI device, unless `bus` is NULL) in hwloc's logical order, each with its allowed
// processors; a core without any is left out.
static void list_cores(cpu_set_t *allowed, const char *bus, core_list *list) {
  hwloc_topology_t topology;
  if (hwloc_topology_init(&topology) != 0) return;
  if (bus) hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  if (hwloc_topology_load(topology) != 0) {
    hwloc_topology_destroy(topology);
    return;
  }
  if (bus) keep_near(topology, bus, allowed);
  int depth = hwloc_get_type_or_below_depth(topology, HWLOC_OBJ_CORE);
  int count = (int)hwloc_get_nbobjs_by_depth(topology, depth);
  list->cores = fsdp_alloc_zeroed((size_t)count, sizeof *list->cores);
  for (int i = 0; i < count; i++) {
    const cpu_set_t set = allowed_of(hwloc_get_obj_by_depth(topology, depth, (unsigned)i), allowed);
    if (CPU_COUNT(&set) > 0) list->cores[list->count++] = set;
  }
  hwloc_topology_destroy(topology);
}
#else
#define METHOD "affinity"

// Without hwloc a processor is a core, in the order of their numbers.
static void list_cores(cpu_set_t *allowed, const char *bus, core_list *list) {
  (void)bus;
  list->cores = fsdp_alloc_zeroed(PROCESSORS_MAX, sizeof *list->cores);
  for (size_t cpu = 0; cpu < PROCESSORS_MAX; cpu++) {
    if (!CPU_ISSET(cpu, allowed)) continue;
    CPU_ZERO(&list->cores[list->count]);
    CPU_SET(cpu, &list->cores[list->count]);
    list->count++;
  }
}
#endif

// "0-3,8" into out, with "..." if it does not fit.
static void print_set(const cpu_set_t *set, char *out, size_t bytes) {
  size_t used = 0;
  out[0] = 0;
  for (size_t cpu = 0; cpu < PROCESSORS_MAX; cpu++) {
    if (!CPU_ISSET(cpu, set)) continue;
    size_t last = cpu;
    while (last + 1 < PROCESSORS_MAX && CPU_ISSET(last + 1, set)) last++;
    char part[32];
    int length = last > cpu ? snprintf(part, sizeof part, "%s%zu-%zu", used ? "," : "", cpu, last)
                            : snprintf(part, sizeof part, "%s%zu", used ? "," : "", cpu);
    if (used + (size_t)length + 4 >= bytes) {
      memcpy(out + used, "...", 4);
      return;
    }
    memcpy(out + used, part, (size_t)length + 1);
    used += (size_t)length;
    cpu = last;
  }
}

// This rank's place among the ranks of its node that may run on the same processors, and their number: these
// processors are divided among them. `local_ranks` of a node count.
static void find_sharers(fsdp_world *world, const cpu_set_t *near, int local_ranks, int *place, int *count) {
  cpu_set_t *all = fsdp_alloc((size_t)world->local_size * sizeof *all);
  fsdp_world_gather_node(world, near, (int64_t)sizeof *near, all);
  *place = *count = 0;
  for (int i = 0; i < world->local_size && i < local_ranks; i++) {
    if (!CPU_EQUAL(&all[i], near)) continue;
    *place += i < world->local_rank;
    *count += 1;
  }
  free(all);
}

void fsdp_binding_bind(fsdp_world *world, const fsdp_binding_config *config, fsdp_binding *binding) {
  *binding = (fsdp_binding){.core_count = 1, .node_cores = 1};
  if (config->gpu_bus) snprintf(binding->gpu, sizeof binding->gpu, "%s", config->gpu_bus);
  cpu_set_t near, share;
  read_allowed(&near);
  core_list list = {0, NULL};
  list_cores(&near, config->gpu_bus, &list);
  int place, count;
  const int local_ranks = config->local_ranks ? config->local_ranks : world->local_size;
  find_sharers(world, &near, local_ranks, &place, &count);
  binding->node_cores = list.count > 0 ? list.count : 1;
  if (list.count > 0 && world->local_rank < local_ranks) {
    long long cores = list.count;
    int begin = (int)(place * cores / count), end = (int)((place + 1) * cores / count);
    if (end == begin) end = begin + 1; // more ranks than cores
    CPU_ZERO(&share);
    for (int i = begin; i < end; i++) CPU_OR(&share, &share, &list.cores[i]);
    binding->core_count = end - begin;
    binding->bound = config->bind && sched_setaffinity(0, sizeof share, &share) == 0;
    print_set(&share, binding->cores, sizeof binding->cores);
  }
  free(list.cores);
}

void fsdp_binding_print(fsdp_world *world, const fsdp_binding *mine, FILE *out) {
  enum { SHOWN = 16 };
  fsdp_binding all[SHOWN];
  int ranks[SHOWN], shown = world->size < SHOWN ? world->size : SHOWN;
  for (int i = 0; i < shown; i++) ranks[i] = i;
  fsdp_peers first = fsdp_world_among(world, ranks, shown);
  fsdp_exchange_gather_first(&first, mine, (int64_t)sizeof *mine, all);
  if (world->rank == 0) {
    fprintf(out, "placement: %d node%s, %d core%s each; processors of rank", world->node_count,
            fsdp_plural(world->node_count), mine->node_cores, fsdp_plural(mine->node_cores));
    for (int i = 0; i < shown; i++) {
      fprintf(out, "%s %d: %s", i ? "," : "", i, all[i].bound ? all[i].cores : "not bound");
      if (all[i].gpu[0]) fprintf(out, " by GPU %s", all[i].gpu);
    }
    fprintf(out, "%s (" METHOD ")\n", world->size > SHOWN ? ", ..." : "");
  }
}
