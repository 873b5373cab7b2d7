#include "runtime/io/dataset.h"

#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/io/builtin_text.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define BYTE_VOCABULARY 256

// One file's bytes, or the built-in ones. Owned where mapped.
typedef struct text {
  const unsigned char *bytes;
  int64_t count;
  int64_t first; // index of its first token among all
  bool mapped;
} text;

struct fsdp_dataset {
  text *texts;
  int text_count;
  int64_t token_count, seq, sample_count;
  char description[256];
};

static fsdp_status check_kind(const char *path, fsdp_error *error) {
  const char *dot = strrchr(path, '.'), *slash = strrchr(path, '/');
  const char *kind = dot && (!slash || dot > slash) ? dot : "";
  if (!strcasecmp(kind, ".txt")) return FSDP_OK;
  if (!strcasecmp(kind, ".jsonl") || !strcasecmp(kind, ".json") || !strcasecmp(kind, ".bin"))
    return fsdp_fail(
        error, FSDP_ERR_INPUT,
        "%s: %s files (conversations and prepared tokens) cannot be read by this version; give plain text "
        "as .txt",
        path, kind);
  return fsdp_fail(error, FSDP_ERR_INPUT,
                   "%s: the ending \"%s\" is not one that --data can read; give plain text as .txt", path,
                   kind);
}

static fsdp_status map_file(const char *path, text *out, fsdp_error *error) {
  struct stat information;
  int descriptor = open(path, O_RDONLY | O_CLOEXEC);
  if (descriptor < 0 || fstat(descriptor, &information)) {
    int reason = errno;
    if (descriptor >= 0) close(descriptor);
    return fsdp_fail(error, FSDP_ERR_INPUT,
                     "%s: cannot be opened (%s); --data takes files separated by commas", path,
                     strerror(reason));
  }
  fsdp_status status = FSDP_OK;
  if (S_ISDIR(information.st_mode))
    status = fsdp_fail(error, FSDP_ERR_INPUT,
                       "%s: is a folder; give the .txt files in it, separated by commas", path);
  else if (!S_ISREG(information.st_mode))
    status = fsdp_fail(error, FSDP_ERR_INPUT, "%s: is not a regular file; give a .txt file", path);
  else if (information.st_size == 0)
    status = fsdp_fail(error, FSDP_ERR_INPUT, "%s: is empty; give a text to train on", path);
  else
    status = check_kind(path, error);
  if (!status) {
    void *bytes = mmap(NULL, (size_t)information.st_size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (bytes == MAP_FAILED)
      status = fsdp_fail(error, FSDP_ERR_INPUT, "%s: cannot be mapped (%s); give a smaller file", path,
                         strerror(errno));
    else
      *out = (text){.bytes = bytes, .count = information.st_size, .mapped = true};
  }
  close(descriptor);
  return status;
}

static void add_text(fsdp_dataset *dataset, text added) {
  added.first = dataset->token_count;
  FSDP_CHECK(added.count <= INT64_MAX - dataset->token_count, "more than 2^63 tokens");
  dataset->texts = fsdp_realloc(dataset->texts, (size_t)(dataset->text_count + 1) * sizeof *dataset->texts);
  dataset->texts[dataset->text_count++] = added;
  dataset->token_count += added.count;
}

static fsdp_status add_files(fsdp_dataset *dataset, const char *paths, fsdp_error *error) {
  char *copy = strdup(paths), *rest = copy, *path;
  fsdp_status status = FSDP_OK;
  FSDP_CHECK(copy, "out of host memory for a path");
  while (!status && (path = strsep(&rest, ","))) {
    text added = {0};
    status = *path ? map_file(path, &added, error)
                   : fsdp_fail(error, FSDP_ERR_INPUT,
                               "--data \"%s\": a path between the commas is empty; remove a comma", paths);
    if (!status) add_text(dataset, added);
  }
  free(copy);
  return status;
}

static fsdp_status check_size(const fsdp_dataset *dataset, const fsdp_dataset_config *config,
                              fsdp_error *error) {
  const char *where = config->paths && *config->paths ? config->paths : "the built-in text";
  int64_t needed;
  if (config->vocab_size < BYTE_VOCABULARY)
    return fsdp_fail(
        error, FSDP_ERR_INPUT,
        "%.300s: its tokens are bytes, which need a vocabulary of at least %d, but the model has %lld; take "
        "another model",
        where, BYTE_VOCABULARY, (long long)config->vocab_size);
  if (!fsdp_mul_checked(config->seq, config->global_batch, &needed) || !fsdp_add_checked(needed, 1, &needed))
    needed = INT64_MAX;
  if (dataset->token_count < needed)
    return fsdp_fail(
        error, FSDP_ERR_INPUT,
        "%.300s: has %lld tokens, but one step needs %lld (%lld sequences of %lld, and one more); give more "
        "text, or lower --seq-length, --batch-size or --grad-accum",
        where, (long long)dataset->token_count, (long long)needed, (long long)config->global_batch,
        (long long)config->seq);
  return FSDP_OK;
}

fsdp_status fsdp_dataset_open(const fsdp_dataset_config *config, fsdp_dataset **dataset, fsdp_error *error) {
  FSDP_CHECK(config->seq >= 1 && config->global_batch >= 1, "a step of %lld samples of %lld tokens",
             (long long)config->global_batch, (long long)config->seq);
  fsdp_dataset *opened = fsdp_alloc_zeroed(1, sizeof *opened);
  fsdp_status status = FSDP_OK;
  *dataset = NULL;
  if (config->paths && *config->paths)
    status = add_files(opened, config->paths, error);
  else
    add_text(opened, (text){.bytes = fsdp_builtin_text, .count = fsdp_builtin_text_bytes()});
  if (!status) status = check_size(opened, config, error);
  if (status) {
    fsdp_dataset_close(opened);
    return status;
  }
  opened->seq = config->seq;
  opened->sample_count = (opened->token_count - 1) / config->seq;
  if (opened->texts[0].mapped)
    snprintf(opened->description, sizeof opened->description, "%.180s, as bytes", config->paths);
  else
    snprintf(opened->description, sizeof opened->description, "built-in text (Northanger Abbey), as bytes");
  *dataset = opened;
  return FSDP_OK;
}

void fsdp_dataset_close(fsdp_dataset *dataset) {
  if (!dataset) return;
  for (int i = 0; i < dataset->text_count; i++)
    if (dataset->texts[i].mapped) munmap((void *)dataset->texts[i].bytes, (size_t)dataset->texts[i].count);
  free(dataset->texts);
  free(dataset);
}

void fsdp_dataset_fill(const fsdp_dataset *dataset, int64_t sample, int32_t *tokens, int32_t *targets) {
  FSDP_CHECK(sample >= 0 && sample < dataset->sample_count, "sample %lld of %lld", (long long)sample,
             (long long)dataset->sample_count);
  int64_t begin = sample * dataset->seq, end = begin + dataset->seq + 1;
  for (int i = 0; i < dataset->text_count; i++) {
    const text *t = &dataset->texts[i];
    int64_t from = fsdp_max_i64(begin, t->first), to = fsdp_min_i64(end, t->first + t->count);
    for (int64_t position = from; position < to; position++) {
      int32_t token = t->bytes[position - t->first];
      if (position < end - 1) tokens[position - begin] = token;
      if (position > begin) targets[position - begin - 1] = token;
    }
  }
}

int64_t fsdp_dataset_target_count(const fsdp_dataset *dataset, int64_t sample) {
  FSDP_CHECK(sample >= 0 && sample < dataset->sample_count, "sample %lld of %lld", (long long)sample,
             (long long)dataset->sample_count);
  return dataset->seq;
}

int64_t fsdp_dataset_sample_count(const fsdp_dataset *dataset) {
  return dataset->sample_count;
}
int64_t fsdp_dataset_token_count(const fsdp_dataset *dataset) {
  return dataset->token_count;
}
const char *fsdp_dataset_description(const fsdp_dataset *dataset) {
  return dataset->description;
}

// Over the whole stream of tokens, so that cutting a text into other files changes nothing.
uint64_t fsdp_dataset_fingerprint(const fsdp_dataset *dataset) {
  XXH64_state_t *state = XXH64_createState();
  FSDP_CHECK(state, "out of host memory for a hash");
  XXH64_reset(state, 0);
  for (int i = 0; i < dataset->text_count; i++)
    XXH64_update(state, dataset->texts[i].bytes, (size_t)dataset->texts[i].count);
  uint64_t hash = XXH64_digest(state);
  XXH64_freeState(state);
  return hash;
}
