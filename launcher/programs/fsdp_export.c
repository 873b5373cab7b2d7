// Hands a checkpoint to Transformers as a Hugging Face folder, or says what it holds.
#include "launcher/options/arguments.h"
#include "launcher/programs/export.h"
#include "launcher/report/output.h"
#include "runtime/base/text.h"
#include "runtime/plan/text/value.h"

#include <inttypes.h>

static const fsdp_choice dtypes[] = {{"fp32", FSDP_F32, "float32"},
                                     {"bf16", FSDP_BF16, "bfloat16"},
                                     {"fp16", FSDP_F16, "float16"},
                                     {NULL, 0, NULL}};

static const char help[] =
    "Usage: fsdp_export CHECKPOINT --to DIR [--dtype fp32|bf16|fp16] [--max-shard-size SIZE]\n"
    "       fsdp_export CHECKPOINT --inspect\n"
    "       fsdp_export EXPERIMENT --list\n"
    "\n"
    "CHECKPOINT is an experiment's folder, whose newest one is used, EXPERIMENT/step-N, EXPERIMENT/best (the "
    "one\n"
    "with the least evaluation loss), or any folder that holds one.\n"
    "\n"
    "  --to DIR               write a Hugging Face folder: config.json, *.safetensors, their index,\n"
    "                         tokenizer files; DIR must not exist yet\n"
    "  --dtype TYPE           fp32, bf16 or fp16 (default: that of the checkpoint's parameters)\n"
    "  --max-shard-size SIZE  start a new file above it (default: 5GB)\n"
    "  --inspect              print what the checkpoint holds\n"
    "  --list                 print the experiment's checkpoints: step, time, losses, size\n"
    "  --help, --version\n"
    "\n"
    "Exit status: 0 done, 2 a bad option, 3 a bad or missing file\n";

typedef struct arguments {
  fsdp_export_config config;
  bool inspect, list;
  fsdp_arguments read;
} arguments;

static fsdp_status take(void *context, int option, const char *text, fsdp_error *error) {
  arguments *a = context;
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
  case 'l':
    a->list = true;
    return FSDP_OK;
  default:
    a->inspect = true;
    return FSDP_OK;
  }
}

static fsdp_status parse(arguments *a, int argc, char **argv, fsdp_error *error) {
  static const struct option rows[] = {{"to", required_argument, NULL, 't'},
                                       {"dtype", required_argument, NULL, 'd'},
                                       {"inspect", no_argument, NULL, 'i'},
                                       {"list", no_argument, NULL, 'l'},
                                       {"max-shard-size", required_argument, NULL, 'm'},
                                       FSDP_ARGUMENTS_END};
  a->config = (fsdp_export_config){.dtype = -1, .max_shard_bytes = INT64_C(5000000000)};
  fsdp_status status = fsdp_arguments_read(argc, argv, rows, take, a, &a->read, error);
  if (status != FSDP_OK || a->read.help || a->read.version) return status;
  if (a->read.word_count != 1) {
    return fsdp_fail(error, FSDP_ERR_OPTION, "name one checkpoint (%d are given), see --help",
                     a->read.word_count);
  }
  a->config.checkpoint = a->read.words[0];
  if (a->inspect + a->list + (a->config.to != NULL) != 1) {
    return fsdp_fail(error, FSDP_ERR_OPTION, "give one of --to DIR, --inspect and --list, see --help");
  }
  return FSDP_OK;
}

static fsdp_status run(const arguments *a, fsdp_error *error) {
  if (a->read.help) fputs(help, stdout);
  if (a->read.version) printf("fsdp_export %s\n", FSDP_VERSION);
  if (a->read.help || a->read.version) return FSDP_OK;
  if (a->inspect) return fsdp_export_inspect(a->config.checkpoint, stdout, error);
  if (a->list) return fsdp_export_list(a->config.checkpoint, stdout, error);
  fsdp_export_result done;
  fsdp_status status = fsdp_export_run(&a->config, &done, error);
  if (status != FSDP_OK) return status;
  printf("exported:   step %" PRId64 " to %s: %s parameters in %s, %s in %d file%s, %d other file%s copied\n",
         done.step, a->config.to, fsdp_print_int(done.parameters).text, fsdp_dtype_name(done.dtype),
         fsdp_print_bytes(done.bytes).text, done.files, fsdp_plural(done.files), done.carried,
         fsdp_plural(done.carried));
  return FSDP_OK;
}

int main(int argc, char **argv) {
  arguments a = {0};
  fsdp_error error = {0};
  fsdp_output_begin();
  fsdp_status status = parse(&a, argc, argv, &error);
  if (status == FSDP_OK) status = run(&a, &error);
  status = fsdp_output_finish(status, &error);
  if (status != FSDP_OK) fprintf(stderr, "fsdp_export: error: %s\n", error.message);
  return (int)status;
}
