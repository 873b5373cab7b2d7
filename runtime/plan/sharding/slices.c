#include "runtime/plan/sharding/slices.h"

#include <stdio.h>
#include <string.h>

// ---- The mesh

fsdp_slice_mesh fsdp_slice_mesh_of_ranks(int ranks) {
  fsdp_slice_mesh mesh = {0};
  for (int factor = 2; ranks > 1; factor++)
    for (; ranks % factor == 0; ranks /= factor) {
      mesh.axis[mesh.count] = -1;
      mesh.sizes[mesh.count++] = factor;
    }
  return mesh;
}

fsdp_slice_mesh fsdp_slice_mesh_of(const fsdp_mesh *mesh) {
  fsdp_slice_mesh slices = {0};
  for (int a = 0; a < mesh->count; a++) {
    if (mesh->axes[a].size == 1) continue;
    slices.axis[slices.count] = a;
    slices.sizes[slices.count++] = mesh->axes[a].size;
  }
  return slices;
}

fsdp_axis_set fsdp_slice_axes(const fsdp_slice_mesh *mesh, fsdp_axis_set axes) {
  fsdp_axis_set set = 0;
  for (int a = 0; a < mesh->count; a++)
    if (axes >> a & 1) set |= 1u << mesh->axis[a];
  return set;
}

fsdp_axis_set fsdp_slice_axes_of(const fsdp_slice_mesh *mesh, fsdp_axis_set axes) {
  fsdp_axis_set set = 0;
  for (int a = 0; a < mesh->count; a++)
    if (axes >> mesh->axis[a] & 1) set |= 1u << a;
  return set;
}

// ---- Costs

int64_t fsdp_slice_share(int64_t size, int64_t slices) {
  return (size + slices - 1) / slices;
}

int64_t fsdp_slices(const fsdp_slice_mesh *mesh, fsdp_axis_set axes) {
  int64_t slices = 1;
  for (int a = 0; a < mesh->count; a++)
    if (axes >> a & 1) slices *= mesh->sizes[a];
  return slices;
}

int64_t fsdp_part_bytes(const fsdp_operator_tensor *tensor, const fsdp_slice_mesh *mesh,
                        const fsdp_tensor_axes *axes) {
  int64_t bytes = tensor->item_bytes;
  for (int d = 0; d < tensor->dims; d++)
    bytes *= fsdp_slice_share(tensor->shape[d], fsdp_slices(mesh, axes->dim[d]));
  return bytes;
}

// Whether the axes of `b`, in the mesh's order, begin with those of `a`.
static bool begins(fsdp_axis_set b, fsdp_axis_set a) {
  fsdp_axis_set up_to = 0;
  while (up_to < a) up_to = up_to << 1 | 1;
  return (b & up_to) == a;
}

int64_t fsdp_redistribution_bytes(const fsdp_operator_tensor *tensor, const fsdp_slice_mesh *mesh,
                                  const fsdp_tensor_axes *from, const fsdp_tensor_axes *to) {
  int64_t kept = tensor->item_bytes;
  bool same = true;
  for (int d = 0; d < tensor->dims; d++) {
    fsdp_axis_set a = from->dim[d], b = to->dim[d];
    same = same && a == b;
    int64_t old_part = fsdp_slice_share(tensor->shape[d], fsdp_slices(mesh, a));
    int64_t new_part = fsdp_slice_share(tensor->shape[d], fsdp_slices(mesh, b));
    kept *= begins(a, b) || begins(b, a) ? (old_part < new_part ? old_part : new_part) : 0;
  }
  return same ? 0 : fsdp_part_bytes(tensor, mesh, to) - kept;
}

int64_t fsdp_gradient_bytes(const fsdp_operator_tensor *tensor, const fsdp_slice_mesh *mesh,
                            const fsdp_tensor_axes *from, const fsdp_tensor_axes *to, fsdp_axis_set partial) {
  fsdp_axis_set over = 0;
  if (tensor->role != FSDP_TENSOR_MADE) return 0;
  for (int d = 0; d < tensor->dims; d++) over |= from->dim[d] & partial;
  return fsdp_redistribution_bytes(tensor, mesh, to, from) +
         (fsdp_slices(mesh, over) - 1) * fsdp_part_bytes(tensor, mesh, from);
}

fsdp_tensor_axes fsdp_operand_axes(const fsdp_operator *op, int operand,
                                   const fsdp_operator_strategy *strategy) {
  fsdp_tensor_axes axes = {{0}};
  for (int d = 0; d < FSDP_MAX_DIMS; d++) {
    int letter = op->operands[operand].letter[d];
    if (letter >= 0) axes.dim[d] = fsdp_operator_axes(op, strategy, letter);
  }
  return axes;
}

fsdp_axis_set fsdp_operand_partial(const fsdp_operator *op, int operand,
                                   const fsdp_operator_strategy *strategy) {
  fsdp_axis_set lacking = 0;
  for (int l = 0; l < op->letter_count; l++)
    if (fsdp_operand_dim(&op->operands[operand], l) < 0) lacking |= fsdp_operator_axes(op, strategy, l);
  return lacking;
}

int64_t fsdp_gathered_bytes(const fsdp_dataflow *flow, const fsdp_slice_mesh *mesh, const fsdp_operator *op,
                            const fsdp_operator_strategy *strategy) {
  if (op->gathered_letter < 0) return 0;
  fsdp_operator_tensor gathered = flow->tensors[op->operands[0].tensor];
  gathered.shape[gathered.dims - 1] = op->gathered_columns;
  const fsdp_tensor_axes axes = fsdp_operand_axes(op, 0, strategy);
  int64_t ranks = fsdp_slices(mesh, fsdp_operator_axes(op, strategy, op->gathered_letter));
  return (ranks - 1) * fsdp_part_bytes(&gathered, mesh, &axes);
}

// ---- Axes of counts

// `left` slices of `letter` are still to be made. `next` is the first axis to look at for it.
static bool take_axes(const fsdp_slice_mesh *mesh, const int64_t *counts, int letter_count, int letter,
                      int64_t left, int next, fsdp_axis_set used, fsdp_axis_set *axes) {
  if (letter == letter_count) return true;
  if (left == 1) {
    int64_t following = letter + 1 < letter_count ? counts[letter + 1] : 1;
    return take_axes(mesh, counts, letter_count, letter + 1, following, 0, used, axes);
  }
  for (int a = next; a < mesh->count; a++) {
    fsdp_axis_set bit = 1u << a;
    if (used & bit || left % mesh->sizes[a]) continue;
    axes[letter] |= bit;
    if (take_axes(mesh, counts, letter_count, letter, left / mesh->sizes[a], a + 1, used | bit, axes))
      return true;
    axes[letter] &= ~bit;
  }
  return false;
}

bool fsdp_slices_take_axes(const fsdp_slice_mesh *mesh, const int64_t *counts, int letter_count,
                           fsdp_axis_set used, fsdp_axis_set *axes) {
  return take_axes(mesh, counts, letter_count, 0, letter_count ? counts[0] : 1, 0, used, axes);
}

bool fsdp_slice_group_axes(const fsdp_slice_mesh *mesh, fsdp_slice_group group, fsdp_axis_set *axes) {
  int64_t stride = 1, count = 1;
  *axes = 0;
  for (int a = mesh->count - 1; a >= 0 && count < group.count; a--) {
    if (stride >= group.stride) {
      if (stride != group.stride * count) return false;
      *axes |= 1u << a;
      count *= mesh->sizes[a];
    }
    stride *= mesh->sizes[a];
  }
  return count == group.count;
}

// ---- Text

// Whether an operator's counts alone are read as the axes that they are of.
static bool counts_suffice(const fsdp_operator *op, const fsdp_slice_mesh *mesh,
                           const fsdp_operator_strategy *strategy) {
  int64_t counts[FSDP_OPERATOR_LETTERS];
  fsdp_axis_set axes[FSDP_OPERATOR_LETTERS] = {0};
  for (int l = 0; l < op->letter_count; l++)
    counts[l] = fsdp_slices(mesh, fsdp_operator_axes(op, strategy, l));
  bool same = fsdp_slices_take_axes(mesh, counts, op->letter_count, 0, axes);
  for (int l = 0; l < op->letter_count && same; l++) same = axes[l] == fsdp_operator_axes(op, strategy, l);
  return same;
}

// "2@4+2@1"
static void print_groups(const fsdp_slice_mesh *mesh, fsdp_axis_set axes, FILE *text) {
  int64_t behind = fsdp_slices(mesh, (1u << mesh->count) - 1), count = 1;
  const char *plus = "";
  for (int a = 0; a < mesh->count; a++) {
    behind /= mesh->sizes[a];
    if (!(axes >> a & 1)) continue;
    count *= mesh->sizes[a];
    if (axes >> (a + 1) & 1) continue;
    fprintf(text, "%s%lld@%lld", plus, (long long)count, (long long)behind);
    count = 1;
    plus = "+";
  }
}

const char *fsdp_slices_print(const fsdp_propagation *propagation, int op, char out[FSDP_SLICES_TEXT]) {
  const fsdp_dataflow *flow = propagation->flow;
  const fsdp_operator *o = &flow->operators[op];
  const fsdp_slice_mesh *mesh = &propagation->mesh;
  FILE *text = fmemopen(out, FSDP_SLICES_TEXT, "w");
  int list = -1;
  bool plain = counts_suffice(o, mesh, &propagation->operators[op]);
  fputc('[', text);
  for (int i = 0; i < o->input_count; i++) {
    const fsdp_operator_operand *operand = &o->operands[i];
    if (operand->list == list) continue;
    list = operand->list;
    fputs(list ? ", [" : "[", text);
    fsdp_tensor_axes axes = fsdp_operand_axes(o, i, &propagation->operators[op]);
    int dims = flow->tensors[operand->tensor].dims;
    bool joined = fsdp_operand_joins_rows(flow, o, i) && !axes.dim[1];
    for (int d = 0; d < dims; d++) {
      if (d == 1 && joined) continue;
      if (d) fputs(", ", text);
      if (plain || !axes.dim[d])
        fprintf(text, "%lld", (long long)fsdp_slices(mesh, axes.dim[d]));
      else
        print_groups(mesh, axes.dim[d], text);
    }
    fputc(']', text);
  }
  fputc(']', text);
  fclose(text);
  return out;
}
