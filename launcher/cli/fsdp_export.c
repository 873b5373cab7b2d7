// Hands a checkpoint to Transformers as a Hugging Face folder, or says what it holds.
#include "launcher/cli/export.h"
#include "launcher/cli/option_value.h"
#include "launcher/cli/output.h"
#include "runtime/base/plural.h"
#include "runtime/base/print_int.h"

#include <getopt.h>
#include <inttypes.h>
#include <string.h>

static const fsdp_choice dtypes[] = {{"fp32", FSDP_F32, "float32"},
                                     {"bf16", FSDP_BF16, "bfloat16"},
                                     {"fp16", FSDP_F16, "float16"},
                                     {NULL, 0, NULL}};

static const char help[] =
    "Usage: fsdp_export CHECKPOINT --to DIR [--dtype fp32|bf16|fp16] [--max-shard-size SIZE]\n"
    "       fsdp_export CHECKPOINT --inspect\n"
    "\n"
    "CHECKPOINT is a checkpoint's folder (step-...), or an experiment's, whose newest one is used.\n"
    "\n"
    "  --to DIR               write a Hugging Face folder: config.json, *.safetensors, their index,\n"
    "                         tokenizer files; DIR must not exist yet\n"
    "  --dtype TYPE           fp32, bf16 or fp16 (default: that of the checkpoint's parameters)\n"
    "  --max-shard-size SIZE  start a new file above it (default: 5GB)\n"
    "  --inspect              print what the checkpoint holds\n"
    "  --help, --version\n"
    "\n"
    "Exit status: 0 done, 2 a bad option, 3 a bad or missing file\n";

typedef struct arguments {
  fsdp_export_config config;
  bool inspect, help, version;
} arguments;

static fsdp_status take(arguments *a, int option, const char *text, fsdp_error *error) {
  switch (option) {
  case 't':
    a->config.to = text;
    return FSDP_OK;
  case 'd':
    if (fsdp_value_choice(text, dtypes, &a->config.dtype)) return FSDP_OK;
    return fsdp_fail(error, FSDP_ERR_OPTION, "--dtype '%s': use fp32, bf16 or fp16", text);
  case 'm':
    if (fsdp_value_size(text, &a->config.max_shard_bytes) && a->config.max_shard_bytes > 0) return FSDP_OK;
    return fsdp_fail(error, FSDP_ERR_OPTION, "--max-shard-size '%s': use a size such as 5GB or 500MiB", text);
  case 'i':
    a->inspect = true;
    return FSDP_OK;
  case 'h':
    a->help = true;
    return FSDP_OK;
  default:
    a->version = true;
    return FSDP_OK;
  }
}

static fsdp_status parse(arguments *a, int argc, char **argv, fsdp_error *error) {
  static const struct option rows[] = {{"to", required_argument, NULL, 't'},
                                       {"dtype", required_argument, NULL, 'd'},
                                       {"inspect", no_argument, NULL, 'i'},
                                       {"max-shard-size", required_argument, NULL, 'm'},
                                       {"help", no_argument, NULL, 'h'},
                                       {"version", no_argument, NULL, 'v'},
                                       {NULL, 0, NULL, 0}};
  a->config = (fsdp_export_config){.dtype = -1, .max_shard_bytes = INT64_C(5000000000)};
  opterr = 0;
  for (int option; (option = getopt_long(argc, argv, ":h", rows, NULL)) != -1;) {
    if (option == '?' || option == ':') {
      return fsdp_fail(error, FSDP_ERR_OPTION, "%s %s: see --help", argv[optind - 1],
                       option == ':' ? "needs a value" : "is an unknown option");
    }
    fsdp_status status = take(a, option, optarg, error);
    if (status != FSDP_OK || a->help || a->version) return status;
  }
  if (optind + 1 != argc) {
    return fsdp_fail(error, FSDP_ERR_OPTION, "name one checkpoint (%d are given), see --help", argc - optind);
  }
  a->config.checkpoint = argv[optind];
  if (a->inspect == (a->config.to != NULL)) {
    return fsdp_fail(error, FSDP_ERR_OPTION, "give either --to DIR or --inspect, see --help");
  }
  return FSDP_OK;
}

static fsdp_status run(const arguments *a, fsdp_error *error) {
  if (a->help) fputs(help, stdout);
  if (a->version) printf("fsdp_export %s\n", FSDP_VERSION);
  if (a->help || a->version) return FSDP_OK;
  if (a->inspect) return fsdp_export_inspect(a->config.checkpoint, stdout, error);
  fsdp_export_result done;
  fsdp_status status = fsdp_export_run(&a->config, &done, error);
  if (status != FSDP_OK) return status;
  char numel[48], bytes[24];
  printf("exported:   step %" PRId64 " to %s: %s parameters in %s, %s in %d file%s, %d other file%s copied\n",
         done.step, a->config.to, fsdp_print_int(done.parameters, numel, sizeof numel),
         fsdp_dtype_name(done.dtype), fsdp_value_print_bytes(done.bytes, bytes, sizeof bytes), done.files,
         fsdp_plural(done.files), done.carried, fsdp_plural(done.carried));
  return FSDP_OK;
}

int main(int argc, char **argv) {
  arguments a = {0};
  fsdp_error error = {0};
  fsdp_status status = parse(&a, argc, argv, &error);
  if (status == FSDP_OK) status = run(&a, &error);
  status = fsdp_output_finish(status, &error);
  if (status != FSDP_OK) fprintf(stderr, "fsdp_export: error: %s\n", error.message);
  return (int)status;
}
