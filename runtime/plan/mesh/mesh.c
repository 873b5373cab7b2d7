#include "runtime/plan/mesh/mesh.h"

#include "runtime/base/check.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

// In the order in which they are added.
static const char *const always[] = {FSDP_AXIS_DATA, FSDP_AXIS_FSDP, FSDP_AXIS_TENSOR, FSDP_AXIS_CONTEXT,
                                     FSDP_AXIS_EXPERT};
#define ALWAYS_COUNT (int)(sizeof always / sizeof always[0])

// ---- Axes

fsdp_mesh fsdp_mesh_of(int data, int fsdp) {
  fsdp_mesh mesh = {0};
  FSDP_CHECK(fsdp_mesh_add(&mesh, FSDP_AXIS_DATA, data) && fsdp_mesh_add(&mesh, FSDP_AXIS_FSDP, fsdp),
             "mesh data=%d,fsdp=%d", data, fsdp);
  fsdp_mesh_complete(&mesh);
  return mesh;
}

// `null` is no axis in a sharding file.
static bool is_name(const char *name) {
  size_t length = strlen(name);
  if (!strcmp(name, "null")) return false;
  if (length == 0 || length >= FSDP_AXIS_NAME_BYTES || !isalpha((unsigned char)*name)) return false;
  for (const char *at = name; *at; at++)
    if (!isalnum((unsigned char)*at) && *at != '_') return false;
  return true;
}

static void insert_axis(fsdp_mesh *mesh, int index, const char *name, int size) {
  FSDP_CHECK(mesh->count < FSDP_MESH_AXES_MAX, "a mesh of more than %d axes", FSDP_MESH_AXES_MAX);
  memmove(&mesh->axes[index + 1], &mesh->axes[index], (size_t)(mesh->count - index) * sizeof *mesh->axes);
  mesh->axes[index] = (fsdp_mesh_axis){.size = size};
  snprintf(mesh->axes[index].name, sizeof mesh->axes[index].name, "%s", name);
  mesh->count++;
}

static bool is_always(const char *name) {
  for (int i = 0; i < ALWAYS_COUNT; i++)
    if (!strcmp(always[i], name)) return true;
  return false;
}

// Whether the axes that every mesh has still fit beside `name`.
static bool leaves_room(const fsdp_mesh *mesh, const char *name) {
  int others = is_always(name) ? 0 : 1;
  for (int a = 0; a < mesh->count; a++) others += !is_always(mesh->axes[a].name);
  return others <= FSDP_MESH_AXES_MAX - ALWAYS_COUNT;
}

bool fsdp_mesh_add(fsdp_mesh *mesh, const char *name, int size) {
  if (!is_name(name) || size < 1) return false;
  if (!leaves_room(mesh, name)) return false;
  if (fsdp_mesh_find(mesh, name) >= 0 || fsdp_mesh_ranks(mesh) > FSDP_MESH_RANKS_MAX / size) return false;
  insert_axis(mesh, mesh->count, name, size);
  return true;
}

void fsdp_mesh_complete(fsdp_mesh *mesh) {
  for (int i = 0; i < ALWAYS_COUNT; i++) {
    if (fsdp_mesh_find(mesh, always[i]) >= 0) continue;
    int data = fsdp_mesh_find(mesh, FSDP_AXIS_DATA);
    insert_axis(mesh, i == 0 ? 0 : i == 1 ? data + 1 : mesh->count, always[i], 1);
  }
}

void fsdp_mesh_resize(fsdp_mesh *mesh, const char *name, int size) {
  int axis = fsdp_mesh_find(mesh, name);
  FSDP_CHECK(axis >= 0 && size >= 1, "axis %s of size %d", name, size);
  mesh->axes[axis].size = size;
}

int fsdp_mesh_find(const fsdp_mesh *mesh, const char *name) {
  for (int a = 0; a < mesh->count; a++)
    if (!strcmp(mesh->axes[a].name, name)) return a;
  return -1;
}

int fsdp_mesh_size(const fsdp_mesh *mesh, const char *name) {
  int axis = fsdp_mesh_find(mesh, name);
  return axis < 0 ? 1 : mesh->axes[axis].size;
}

int fsdp_mesh_ranks(const fsdp_mesh *mesh) {
  int ranks = 1;
  for (int a = 0; a < mesh->count; a++) ranks *= mesh->axes[a].size;
  return ranks;
}

// ---- Ranks and groups

void fsdp_mesh_coordinates(const fsdp_mesh *mesh, int rank, int coordinates[FSDP_MESH_AXES_MAX]) {
  for (int a = FSDP_MESH_AXES_MAX - 1; a >= 0; a--) {
    int size = a < mesh->count ? mesh->axes[a].size : 1;
    coordinates[a] = rank % size;
    rank /= size;
  }
}

int fsdp_mesh_rank(const fsdp_mesh *mesh, const int coordinates[FSDP_MESH_AXES_MAX]) {
  int rank = 0;
  for (int a = 0; a < mesh->count; a++) rank = rank * mesh->axes[a].size + coordinates[a];
  return rank;
}

fsdp_axis_set fsdp_mesh_all_axes(const fsdp_mesh *mesh) {
  fsdp_axis_set axes = 0;
  for (int a = 0; a < mesh->count; a++)
    if (mesh->axes[a].size > 1) axes |= 1u << a;
  return axes;
}

fsdp_axis_set fsdp_mesh_axes(const fsdp_mesh *mesh, const char *names) {
  fsdp_axis_set axes = 0;
  for (const char *name = names; *name;) {
    size_t length = strcspn(name, ",");
    for (int a = 0; a < mesh->count; a++)
      if (strlen(mesh->axes[a].name) == length && !memcmp(mesh->axes[a].name, name, length)) axes |= 1u << a;
    name += length + (name[length] == ',');
  }
  return axes & fsdp_mesh_all_axes(mesh);
}

int fsdp_mesh_group_size(const fsdp_mesh *mesh, fsdp_axis_set axes) {
  int size = 1;
  for (int a = 0; a < mesh->count; a++)
    if (axes >> a & 1) size *= mesh->axes[a].size;
  return size;
}

fsdp_mesh_group fsdp_mesh_group_of(const fsdp_mesh *mesh, fsdp_axis_set axes, int rank) {
  int coordinates[FSDP_MESH_AXES_MAX];
  fsdp_mesh_coordinates(mesh, rank, coordinates);
  fsdp_mesh_group group = {.size = 1};
  for (int a = 0; a < mesh->count; a++) {
    int size = mesh->axes[a].size;
    if (axes >> a & 1) {
      group.size *= size;
      group.rank = group.rank * size + coordinates[a];
    } else {
      group.color = group.color * size + coordinates[a];
    }
  }
  return group;
}

int fsdp_mesh_group_member(const fsdp_mesh *mesh, fsdp_axis_set axes, int rank, int place) {
  int coordinates[FSDP_MESH_AXES_MAX];
  fsdp_mesh_coordinates(mesh, rank, coordinates);
  for (int a = mesh->count - 1; a >= 0; a--) {
    if (!(axes >> a & 1)) continue;
    coordinates[a] = place % mesh->axes[a].size;
    place /= mesh->axes[a].size;
  }
  return fsdp_mesh_rank(mesh, coordinates);
}

fsdp_axis_set fsdp_mesh_axes_across(const fsdp_mesh *mesh, int ranks_per_node) {
  fsdp_axis_set across = 0;
  int ranks = fsdp_mesh_ranks(mesh), step = 1; // between neighbours on the axis
  for (int a = mesh->count - 1; a >= 0; a--) {
    int size = mesh->axes[a].size, reach = (size - 1) * step;
    for (int first = 0; first < ranks; first++) {
      bool begins = first / step % size == 0;
      if (begins && first / ranks_per_node != (first + reach) / ranks_per_node) across |= 1u << a;
    }
    step *= size;
  }
  return across;
}

// ---- Dimensions

void fsdp_dim_axes_cut(fsdp_dim_axes *dim, fsdp_axis_set axes) {
  for (int a = 0; a < FSDP_MESH_AXES_MAX; a++)
    if (axes >> a & 1) dim->axes[dim->count++] = (signed char)a;
}

int fsdp_dim_axes_part(const fsdp_dim_axes *dim, const fsdp_mesh *mesh, int rank, int *parts) {
  int coordinates[FSDP_MESH_AXES_MAX], part = 0;
  fsdp_mesh_coordinates(mesh, rank, coordinates);
  *parts = 1;
  for (int i = 0; i < dim->count; i++) {
    int axis = dim->axes[i], size = mesh->axes[axis].size;
    part = part * size + coordinates[axis];
    *parts *= size;
  }
  return part;
}

// ---- Text

const char *fsdp_mesh_print(const fsdp_mesh *mesh, const char *separator, char out[FSDP_MESH_TEXT_BYTES]) {
  size_t used = 0;
  out[0] = 0;
  for (int a = 0; a < mesh->count; a++) {
    const fsdp_mesh_axis *axis = &mesh->axes[a];
    bool shown = axis->size > 1 || !strcmp(axis->name, FSDP_AXIS_DATA) || !strcmp(axis->name, FSDP_AXIS_FSDP);
    if (!shown || used >= FSDP_MESH_TEXT_BYTES) continue;
    used += (size_t)snprintf(out + used, FSDP_MESH_TEXT_BYTES - used, "%s%s=%d", used ? separator : "",
                             axis->name, axis->size);
  }
  return out;
}

const char *fsdp_mesh_print_axes(const fsdp_mesh *mesh, fsdp_axis_set axes, char out[FSDP_MESH_TEXT_BYTES]) {
  size_t used = 0;
  snprintf(out, FSDP_MESH_TEXT_BYTES, "-");
  for (int a = 0; a < mesh->count && used < FSDP_MESH_TEXT_BYTES; a++) {
    if (!(axes >> a & 1)) continue;
    used += (size_t)snprintf(out + used, FSDP_MESH_TEXT_BYTES - used, "%s%s", used ? "+" : "",
                             mesh->axes[a].name);
  }
  return out;
}

// ---- What depends on the rank

fsdp_affine fsdp_affine_of_place(const fsdp_mesh *mesh, fsdp_axis_set axes, int64_t base, int64_t step) {
  fsdp_affine affine = {.base = base};
  for (int a = mesh->count - 1; a >= 0; a--) {
    if (!(axes >> a & 1)) continue;
    affine.stride[a] = step;
    step *= mesh->axes[a].size;
  }
  return affine;
}

int64_t fsdp_affine_at(const fsdp_affine *affine, const fsdp_mesh *mesh, int rank) {
  int coordinates[FSDP_MESH_AXES_MAX];
  int64_t value = affine->base;
  fsdp_mesh_coordinates(mesh, rank, coordinates);
  for (int a = 0; a < mesh->count; a++) value += coordinates[a] * affine->stride[a];
  return value;
}

fsdp_axis_set fsdp_affine_axes(const fsdp_affine *affine, const fsdp_mesh *mesh) {
  fsdp_axis_set axes = 0;
  for (int a = 0; a < mesh->count; a++)
    if (affine->stride[a] != 0 && mesh->axes[a].size > 1) axes |= 1u << a;
  return axes;
}

void fsdp_affine_bounds(const fsdp_affine *affine, const fsdp_mesh *mesh, int64_t *low, int64_t *high) {
  *low = *high = affine->base;
  for (int a = 0; a < mesh->count; a++) {
    int64_t reach = (mesh->axes[a].size - 1) * affine->stride[a];
    *(reach < 0 ? low : high) += reach;
  }
}
