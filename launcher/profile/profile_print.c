#include "launcher/profile/profile_file.h"
#include "runtime/plan/text/decimal.h"
#include "runtime/plan/text/profile_keys.h"

#include <string.h>

// As in a YAML string with double quotes.
static void print_quoted(const char *text, FILE *out) {
  fputc('"', out);
  for (; *text; text++) {
    if ((unsigned char)*text < ' ')
      fprintf(out, "\\x%02x", (unsigned char)*text);
    else
      fprintf(out, strchr("\"\\", *text) ? "\\%c" : "%c", *text);
  }
  fputc('"', out);
}

static void print_number(const char *before, double value, int exponent, FILE *out) {
  char text[FSDP_DECIMAL_BYTES];
  fprintf(out, "%s%s", before, fsdp_decimal_print(value, exponent, text));
}

static void print_curve(const char *name, const fsdp_profile_curve *curve, int exponent, FILE *out) {
  fprintf(out, ", %s: {", name);
  for (int i = 0; i < curve->count; i++) {
    print_number(i ? ", " : "", curve->points[i].size, 0, out);
    print_number(": ", curve->points[i].value, exponent, out);
  }
  fputs("}}\n", out);
}

static double value_of(const fsdp_device_profile *p, const fsdp_profile_number *number) {
  double value;
  memcpy(&value, (const char *)p + number->offset, sizeof value);
  return value;
}

// A mapping of those of its numbers that are not 0.
static void print_section(const fsdp_device_profile *p, const fsdp_profile_section *section, FILE *out) {
  bool any = false;
  for (int i = 0; i < section->count; i++) {
    const fsdp_profile_number *number = &section->numbers[i];
    if (value_of(p, number) == 0) continue;
    if (any)
      fputs(", ", out);
    else
      fprintf(out, "%s: {", section->key);
    const bool marked = number->mark && *((const bool *)p + number->mark);
    fputs(number->key, out);
    print_number(marked ? ": {value: " : ": ", value_of(p, number), number->exponent, out);
    if (marked) fputs(", estimated: true}", out);
    any = true;
  }
  if (any) fputs("}\n", out);
}

static void print_top(const fsdp_device_profile *p, FILE *out) {
  fprintf(out, "device: %s\nprocessors: %d\n", p->device == FSDP_OP_CUDA ? "cuda" : "cpu", p->processors);
  for (int i = 0; i < FSDP_PROFILE_NUMBERS; i++) {
    const fsdp_profile_number *number = &fsdp_profile_numbers[i];
    if (value_of(p, number) == 0) continue;
    fputs(number->key, out);
    print_number(": ", value_of(p, number), number->exponent, out);
    fputc('\n', out);
  }
  for (int i = 0; i < FSDP_PROFILE_SECTIONS; i++) print_section(p, &fsdp_profile_sections[i], out);
  fprintf(out, "tiles: %s\n", p->tiles ? "true" : "false");
}

static void print_products(const fsdp_device_profile *p, FILE *out) {
  if (p->product_count) fputs("products:\n", out);
  for (int i = 0; i < p->product_count; i++) {
    const fsdp_profile_product *row = &p->products[i];
    fprintf(out, "- {ranks: %d, dtype: %s, form: %s, m: %lld, n: %lld, k: %lld", row->ranks,
            fsdp_dtype_name(row->dtype), fsdp_profile_forms[row->form], (long long)row->m, (long long)row->n,
            (long long)row->k);
    print_number(", tflops: ", row->flops_per_s, 12, out);
    fputs("}\n", out);
  }
}

static void print_attention(const fsdp_device_profile *p, FILE *out) {
  if (p->attention_count) fputs("attention:\n", out);
  for (int i = 0; i < p->attention_count; i++) {
    const fsdp_profile_attention *row = &p->attention[i];
    fputs("- {kernel: ", out);
    print_quoted(row->kernel, out);
    fprintf(out, ", ranks: %d, dtype: %s, head_dim: %d, direction: %s", row->ranks,
            fsdp_dtype_name(row->dtype), row->head_dim, fsdp_profile_directions[row->direction]);
    if (row->estimated) fputs(", estimated: true", out);
    print_curve("tflops", &row->rate, 12, out);
  }
}

static void print_grouped(const fsdp_device_profile *p, FILE *out) {
  if (p->grouped_count) fputs("grouped:\n", out);
  for (int i = 0; i < p->grouped_count; i++) {
    const fsdp_profile_grouped *row = &p->grouped[i];
    fputs("- {kernel: ", out);
    print_quoted(row->kernel, out);
    fprintf(out, ", ranks: %d, dtype: %s, form: %s", row->ranks, fsdp_dtype_name(row->dtype),
            fsdp_profile_forms[row->form]);
    if (row->estimated) fputs(", estimated: true", out);
    print_curve("tflops", &row->rate, 12, out);
  }
}

static void print_use(const fsdp_device_profile *p, FILE *out) {
  const char *const kernels[] = {p->attention_kernel, p->grouped_kernel};
  static const char *const names[] = {"attention: ", "grouped: "};
  bool any = false;
  for (int i = 0; i < 2; i++) {
    if (!*kernels[i]) continue;
    fputs(any ? ", " : "use: {", out);
    fputs(names[i], out);
    print_quoted(kernels[i], out);
    any = true;
  }
  if (any) fputs("}\n", out);
}

static void print_ops(const fsdp_device_profile *p, FILE *out) {
  if (p->op_count) fputs("ops:\n", out);
  for (int i = 0; i < p->op_count; i++) {
    const fsdp_profile_op *row = &p->ops[i];
    fprintf(out, "- {ranks: %d, op: %s", row->ranks,
            row->op == FSDP_OP_ROW_COUNT ? "any" : fsdp_op_name(row->op));
    if (row->dtype != FSDP_PROFILE_ANY_DTYPE) fprintf(out, ", dtype: %s", fsdp_dtype_name(row->dtype));
    print_curve("gbps", &row->rate, 9, out);
  }
}

static void print_collectives(const fsdp_device_profile *p, FILE *out) {
  if (p->collective_count) fputs("collectives:\n", out);
  for (int i = 0; i < p->collective_count; i++) {
    const fsdp_profile_collective *row = &p->collectives[i];
    fprintf(out, "- {kind: %s, link: %s, ranks: %d, ranks_per_node: %d, groups: %d",
            fsdp_collective_rows[row->kind].name, fsdp_profile_links[row->link], row->ranks,
            row->ranks_per_node, row->groups);
    print_curve("us", &row->seconds, -6, out);
  }
}

void fsdp_profile_print(const fsdp_device_profile *profile, const char *source, FILE *out) {
  fputs("name: ", out);
  print_quoted(profile->name, out);
  fputs("\nsource: ", out);
  print_quoted(source, out);
  fputc('\n', out);
  print_top(profile, out);
  print_products(profile, out);
  print_grouped(profile, out);
  print_attention(profile, out);
  print_use(profile, out);
  print_ops(profile, out);
  print_collectives(profile, out);
}
