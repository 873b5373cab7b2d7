#include "launcher/profile/decimal.h"
#include "launcher/profile/profile_file.h"

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

// A number at the top, or a mapping of those that are not 0.
typedef struct entry {
  const char *key;
  double value;
} entry;

static void print_section(const char *name, const entry *entries, int count, int exponent, FILE *out) {
  bool any = false;
  for (int i = 0; i < count; i++) {
    if (entries[i].value == 0) continue;
    if (any)
      fputs(", ", out);
    else
      fprintf(out, "%s: {", name);
    fputs(entries[i].key, out);
    print_number(": ", entries[i].value, exponent, out);
    any = true;
  }
  if (any) fputs("}\n", out);
}

static void print_top(const fsdp_device_profile *p, FILE *out) {
  const entry peaks[] = {{fsdp_dtype_name(FSDP_F32), p->peak_flops[FSDP_F32]},
                         {fsdp_dtype_name(FSDP_BF16), p->peak_flops[FSDP_BF16]},
                         {fsdp_dtype_name(FSDP_F16), p->peak_flops[FSDP_F16]}};
  const entry copies[] = {{"up", p->up_rate},
                          {"down", p->down_rate},
                          {"up_both", p->up_both_rate},
                          {"down_both", p->down_both_rate}};
  const entry contention[] = {{"compute", p->product_slowdown}, {"collective", p->collective_slowdown}};
  fprintf(out, "device: %s\nprocessors: %d\n", p->device == FSDP_OP_CUDA ? "cuda" : "cpu", p->processors);
  if (p->memory_bytes > 0) print_number("memory_gb: ", p->memory_bytes, 9, out), fputc('\n', out);
  if (p->memory_rate > 0) print_number("memory_gbps: ", p->memory_rate, 9, out), fputc('\n', out);
  if (p->launch_s > 0) print_number("launch_us: ", p->launch_s, -6, out), fputc('\n', out);
  if (p->handoff_s > 0) print_number("handoff_us: ", p->handoff_s, -6, out), fputc('\n', out);
  if (p->host_memory_rate > 0)
    print_number("host_memory_gbps: ", p->host_memory_rate, 9, out), fputc('\n', out);
  print_section("peak_tflops", peaks, 3, 12, out);
  print_section("copy_gbps", copies, 4, 9, out);
  print_section("contention", contention, 2, 0, out);
  fprintf(out, "tiles: %s\n", p->tiles ? "true" : "false");
}

static void print_network(const fsdp_device_profile *p, FILE *out) {
  char rate[FSDP_DECIMAL_BYTES], far[FSDP_DECIMAL_BYTES], near[FSDP_DECIMAL_BYTES];
  const bool parts[] = {p->network_rate > 0, p->network_latency_s > 0, p->node_latency_s > 0};
  if (!parts[0] && !parts[1] && !parts[2]) return;
  fputs("network: {", out);
  if (parts[0]) fprintf(out, "gbps_per_node: %s", fsdp_decimal_print(p->network_rate, 9, rate));
  if (parts[1])
    fprintf(out, "%slatency_us: %s", parts[0] ? ", " : "", fsdp_decimal_print(p->network_latency_s, -6, far));
  if (parts[2])
    fprintf(out, "%snode_latency_us: %s", parts[0] || parts[1] ? ", " : "",
            fsdp_decimal_print(p->node_latency_s, -6, near));
  fputs("}\n", out);
}

static void print_products(const fsdp_device_profile *p, FILE *out) {
  static const char *const forms[] = {"forward", "input", "weight", "any"};
  if (p->product_count) fputs("products:\n", out);
  for (int i = 0; i < p->product_count; i++) {
    const fsdp_profile_product *row = &p->products[i];
    fprintf(out, "- {ranks: %d, dtype: %s, form: %s, m: %lld, n: %lld, k: %lld", row->ranks,
            fsdp_dtype_name(row->dtype), forms[row->form], (long long)row->m, (long long)row->n,
            (long long)row->k);
    print_number(", tflops: ", row->flops_per_s, 12, out);
    fputs("}\n", out);
  }
}

static void print_attention(const fsdp_device_profile *p, FILE *out) {
  static const char *const directions[] = {"forward", "backward", "both"};
  if (p->attention_count) fputs("attention:\n", out);
  for (int i = 0; i < p->attention_count; i++) {
    const fsdp_profile_attention *row = &p->attention[i];
    fputs("- {kernel: ", out);
    print_quoted(row->kernel, out);
    fprintf(out, ", ranks: %d, dtype: %s, head_dim: %d, direction: %s", row->ranks,
            fsdp_dtype_name(row->dtype), row->head_dim, directions[row->direction]);
    print_curve("tflops", &row->rate, 12, out);
  }
}

static void print_ops(const fsdp_device_profile *p, FILE *out) {
  if (p->op_count) fputs("ops:\n", out);
  for (int i = 0; i < p->op_count; i++) {
    const fsdp_profile_op *row = &p->ops[i];
    fprintf(out, "- {ranks: %d, op: %s", row->ranks,
            row->op == FSDP_OP_ROW_COUNT ? "any" : fsdp_op_name(row->op));
    print_curve("gbps", &row->rate, 9, out);
  }
}

static void print_collectives(const fsdp_device_profile *p, FILE *out) {
  static const char *const kinds[] = {"all_gather", "reduce_scatter", "all_reduce"};
  if (p->collective_count) fputs("collectives:\n", out);
  for (int i = 0; i < p->collective_count; i++) {
    const fsdp_profile_collective *row = &p->collectives[i];
    fprintf(out, "- {kind: %s, link: %s, ranks: %d, ranks_per_node: %d, groups: %d",
            kinds[row->kind - FSDP_INSTR_ALL_GATHER], row->link == FSDP_LINK_NODE ? "node" : "network",
            row->ranks, row->ranks_per_node, row->groups);
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
  print_network(profile, out);
  print_products(profile, out);
  print_attention(profile, out);
  print_ops(profile, out);
  print_collectives(profile, out);
}
