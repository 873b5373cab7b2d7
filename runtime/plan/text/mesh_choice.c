#include "runtime/plan/text/mesh_choice.h"

#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/base/text.h"

#include <stdio.h>

#define FORMS_TEXT_BYTES 512
// A node of a machine made for training has eight GPUs.
#define RANKS_PER_NODE_DEFAULT 8

fsdp_setup_ranks fsdp_setup_ranks_planned(const fsdp_options *options) {
  int ranks = (int)options->ranks;
  int per_node = options->ranks_per_node ? (int)options->ranks_per_node
                                         : (int)fsdp_min_i64(ranks, RANKS_PER_NODE_DEFAULT);
  return (fsdp_setup_ranks){.ranks = ranks, .ranks_per_node = per_node, .fills_nodes = true};
}

// The short forms in the order in which their axes are added.
enum { FORM_COUNT = 3 };
typedef struct short_form {
  const char *option, *axis;
  int64_t size;
} short_form;

static void list_forms(const fsdp_options *options, short_form forms[FORM_COUNT]) {
  forms[0] = (short_form){"context-parallel", FSDP_AXIS_CONTEXT, options->context_parallel};
  forms[1] = (short_form){"expert-parallel", FSDP_AXIS_EXPERT, options->expert_parallel};
  forms[2] = (short_form){"tensor-parallel", FSDP_AXIS_TENSOR, options->tensor_parallel};
}

// "--tensor-parallel 2 (command line)", of those above 1, with " and " between. Returns `out`.
static const char *print_forms(const fsdp_options *options, char out[FORMS_TEXT_BYTES]) {
  short_form forms[FORM_COUNT];
  size_t used = 0;
  list_forms(options, forms);
  out[0] = 0;
  for (int i = FORM_COUNT - 1; i >= 0; i--) {
    if (forms[i].size == 1 || used >= FORMS_TEXT_BYTES) continue;
    used += (size_t)snprintf(out + used, FORMS_TEXT_BYTES - used, "%s--%s %lld (%s)", used ? " and " : "",
                             forms[i].option, (long long)forms[i].size,
                             fsdp_options_place(options, forms[i].option));
  }
  return out;
}

// Adds the short forms' axes that the mesh has not; that it has none of another size is checked with the
// options.
static fsdp_status add_forms(const fsdp_options *options, fsdp_mesh *mesh, fsdp_error *error) {
  short_form forms[FORM_COUNT];
  char text[FORMS_TEXT_BYTES];
  list_forms(options, forms);
  for (int i = 0; i < FORM_COUNT; i++) {
    if (forms[i].size == 1 || fsdp_mesh_find(mesh, forms[i].axis) >= 0) continue;
    if (!fsdp_mesh_add(mesh, forms[i].axis, (int)forms[i].size))
      return fsdp_fail(error, FSDP_ERR_OPTION, "%s: a mesh has at most %d ranks: use less",
                       print_forms(options, text), FSDP_MESH_RANKS_MAX);
  }
  return FSDP_OK;
}

static fsdp_status check_product(const fsdp_options *options, const fsdp_mesh *mesh, int ranks,
                                 fsdp_error *error) {
  char forms[FORMS_TEXT_BYTES];
  int product = fsdp_mesh_ranks(mesh);
  if (product == ranks) return FSDP_OK;
  print_forms(options, forms);
  return fsdp_refuse(
      options, error, FSDP_ERR_OPTION,
      "{A mesh}%s%s is %d rank%s, but there %s %d: make the product of its sizes %d, or start as many ranks",
      *forms ? " with " : "", forms, product, fsdp_plural(product), ranks == 1 ? "is" : "are", ranks, ranks);
}

// Ranks of a shard group under hybrid: those of a node, of which `replica` have one model replica's work.
static fsdp_status divide_nodes(const fsdp_options *options, const fsdp_setup_ranks *ranks, int replica,
                                int *shards, fsdp_error *error) {
  int node = ranks->ranks_per_node;
  char forms[FORMS_TEXT_BYTES];
  if (!ranks->fills_nodes || ranks->ranks % node != 0)
    return fsdp_refuse(options, error, FSDP_ERR_OPTION,
                       "{A strategy}: the nodes do not have the same number of neighbouring ranks (%d of %d "
                       "ranks on this one); set the mesh with --mesh data=R,fsdp=F",
                       node, ranks->ranks);
  if (node % replica != 0 && replica % node != 0)
    return fsdp_refuse(options, error, FSDP_ERR_OPTION,
                       "{A strategy} shards inside a node, but its %d ranks are no multiple of %s: use sizes "
                       "that divide it, or set the mesh with --mesh data=R,fsdp=F,tensor=T",
                       node, print_forms(options, forms));
  *shards = node > replica ? node / replica : 1;
  return FSDP_OK;
}

// Without --mesh.
static fsdp_status choose_sizes(const fsdp_options *options, const fsdp_setup_ranks *ranks, fsdp_mesh *mesh,
                                fsdp_error *error) {
  fsdp_mesh inner = {0};
  fsdp_status status = add_forms(options, &inner, error);
  if (status) return status;
  int replica = fsdp_mesh_ranks(&inner), left = ranks->ranks / replica, shards = left;
  char forms[FORMS_TEXT_BYTES];
  if (ranks->ranks % replica != 0)
    return fsdp_fail(error, FSDP_ERR_OPTION,
                     "%s: %d rank%s not a multiple of %d: use sizes whose product divides it, or start a "
                     "multiple of it",
                     print_forms(options, forms), ranks->ranks, ranks->ranks == 1 ? " is" : "s are", replica);
  if (options->strategy == FSDP_NO) shards = 1;
  if (options->strategy == FSDP_HYBRID) status = divide_nodes(options, ranks, replica, &shards, error);
  if (status) return status;
  *mesh = (fsdp_mesh){0};
  bool fits = fsdp_mesh_add(mesh, FSDP_AXIS_DATA, left / shards) &&
              fsdp_mesh_add(mesh, FSDP_AXIS_FSDP, shards) && !add_forms(options, mesh, error);
  FSDP_CHECK(fits, "a mesh of %d ranks", ranks->ranks);
  fsdp_mesh_complete(mesh);
  return FSDP_OK;
}

fsdp_status fsdp_mesh_choose(const fsdp_options *options, const fsdp_setup_ranks *ranks, fsdp_mesh *mesh,
                             fsdp_error *error) {
  if (!options->mesh_axes.count) return choose_sizes(options, ranks, mesh, error);
  *mesh = options->mesh_axes;
  fsdp_status status = add_forms(options, mesh, error);
  if (status == FSDP_OK) status = check_product(options, mesh, ranks->ranks, error);
  if (status == FSDP_OK) fsdp_mesh_complete(mesh);
  return status;
}

fsdp_status fsdp_propagate_mesh(const fsdp_options *options, const fsdp_setup_ranks *ranks,
                                fsdp_plan_config *config, fsdp_error *error) {
  bool open = !options->mesh_axes.count && options->tensor_parallel == 1 && options->context_parallel == 1 &&
              options->expert_parallel == 1;
  if (!config->op_strategies || !open) return FSDP_OK;
  const fsdp_slice_mesh primes = fsdp_slice_mesh_of_ranks(ranks->ranks);
  const char *batch = config->strategy == FSDP_NO ? FSDP_AXIS_DATA : FSDP_AXIS_FSDP;
  fsdp_graph *graph = fsdp_model_forward(&config->model, config->batch, config->seq);
  fsdp_propagation *propagation;
  fsdp_status status =
      fsdp_propagate_graph(graph, &primes, config->op_strategies, config->param_dtype, &propagation, error);
  if (!status) status = fsdp_mesh_of_propagation(propagation, batch, &config->mesh, error);
  fsdp_propagation_destroy(propagation);
  fsdp_graph_destroy(graph);
  return status;
}

const char *fsdp_mesh_across_nodes(const fsdp_mesh *mesh, const fsdp_setup_ranks *ranks,
                                   char out[FSDP_MESH_TEXT_BYTES]) {
  if (!ranks->fills_nodes || ranks->ranks <= ranks->ranks_per_node) return NULL;
  return fsdp_mesh_print_axes(mesh, fsdp_mesh_axes_across(mesh, ranks->ranks_per_node), out);
}

bool fsdp_mesh_note(const fsdp_options *options, const fsdp_mesh *mesh, char *note, size_t note_bytes) {
  int ranks = fsdp_mesh_ranks(mesh), replicas = fsdp_mesh_size(mesh, FSDP_AXIS_DATA);
  int shards = fsdp_mesh_size(mesh, FSDP_AXIS_FSDP);
  char forms[FORMS_TEXT_BYTES];
  if (options->strategy != FSDP_HYBRID || options->mesh_axes.count || replicas * shards == 1) return false;
  if (replicas > 1 && (shards > 1 || ranks == replicas)) return false;
  print_forms(options, forms);
  if (replicas == 1)
    snprintf(note, note_bytes,
             "--strategy hybrid (%s) is the same as full here: all %d ranks are on one node, so there is one "
             "replica; --mesh data=R,fsdp=F divides them differently",
             fsdp_options_place(options, "strategy"), ranks);
  else
    snprintf(note, note_bytes,
             "--strategy hybrid (%s) is the same as no here: %s take a whole node, so nothing is sharded "
             "inside it; --mesh data=R,fsdp=F,tensor=T divides the ranks differently",
             fsdp_options_place(options, "strategy"), forms);
  return true;
}
