#include "runtime/data/token_file.h"

#include "runtime/base/paths.h"

#include "runtime/base/size.h"

#include <string.h>
#include <strings.h>
#include <xxhash.h>
#include <zlib.h>

#define MAGIC       "fsdp-tok"
#define VERSION     1
#define FLAG_PACKED 1u // not read: how rows are made of documents is the run's choice
#define FLAG_BYTES  2u
#define FLAG_JOINED 4u

typedef struct header {
  char magic[8];
  uint32_t version, header_bytes, token_bytes, flags;
  int64_t vocab_size, token_count, document_count, target_count;
  uint64_t tokenizer_hash;
  int64_t first_token, last_token;
  uint32_t checksums[4]; // of the sections
  int64_t file_bytes, template_bytes;
  uint32_t joined_checksum, zero;
  uint64_t hash;
} header;

_Static_assert(sizeof(header) == 128 && offsetof(header, hash) == 120, "the header is a record of the file");

// llm.c: 256 int32, then tokens. Its other files (weights, optimizer, tokenizer, HellaSwag) have magics that
// are dates of the same year.
#define LLMC_HEADER_BYTES 1024
#define LLMC_MAGIC_16     20240520
#define LLMC_MAGIC_32     20240801
#define LLMC_MAGIC_FIRST  20240301
#define LLMC_MAGIC_LAST   20241231

// Tokens of 4 or 8 bytes, read as uint16, have a small number in every second place. How many pairs of them
// are looked at, at most and at least.
#define WIDE_PAIRS_MAX 4096
#define WIDE_PAIRS_MIN 16
#define WIDE_HALF_MAX  3 // the upper half of a token below 2^18

#define PREPARE_AGAIN "prepare it again with %s"

// Whether the sections that the header declares fill the file; their offsets if so.
static bool lay_out(const header *h, int64_t *mask, int64_t *starts, int64_t *template, int64_t *joined) {
  int64_t tokens, documents,
      marks = h->flags & FLAG_JOINED ? fsdp_round_up((h->document_count + 7) / 8, 8) : 0;
  if (h->token_count > INT64_MAX - 8 || !fsdp_mul_checked(h->token_count, h->token_bytes, &tokens) ||
      tokens > INT64_MAX - 1024 || !fsdp_mul_checked(h->document_count, 8, &documents))
    return false;
  *mask = fsdp_round_up((int64_t)sizeof *h + tokens, 8);
  if (!fsdp_add_checked(*mask, (h->token_count + 7) / 8, starts) || *starts > INT64_MAX - 8) return false;
  *starts = fsdp_round_up(*starts, 8);
  if (!fsdp_add_checked(*starts, documents, template) || h->template_bytes < 0 ||
      h->template_bytes > h->file_bytes || *template > h->file_bytes)
    return false;
  *joined = *template + fsdp_round_up(h->template_bytes, 8);
  return *joined == h->file_bytes - marks;
}

// What is wrong with the header itself, or NULL.
static const char *header_fault(const header *h) {
  if (h->header_bytes != sizeof *h) return "its header is not 128 bytes long";
  if (h->hash != XXH64(h, offsetof(header, hash), 0)) return "its header does not match its checksum";
  if (h->token_bytes != 1 && h->token_bytes != 2 && h->token_bytes != 4)
    return "its tokens are not 1, 2 or 4 bytes long";
  if (h->flags & ~(FLAG_PACKED | FLAG_BYTES | FLAG_JOINED)) return "it has unknown flags";
  if (h->vocab_size < 1 || h->vocab_size > (int64_t)1 << (h->token_bytes == 4 ? 31 : 8 * h->token_bytes))
    return "its vocabulary does not fit its tokens";
  if (h->token_count < 1 || h->document_count < 1 || h->document_count > h->token_count ||
      h->target_count < 0 || h->target_count > h->token_count)
    return "its counts contradict one another";
  return NULL;
}

static bool starts_are_in_order(const fsdp_token_view *view) {
  if (view->starts[0] != 0 || view->starts[view->document_count - 1] >= (uint64_t)view->token_count)
    return false;
  for (int64_t i = 1; i < view->document_count; i++)
    if (view->starts[i] <= view->starts[i - 1]) return false;
  return true;
}

static fsdp_status read_prepared(const char *path, fsdp_token_file *out, fsdp_error *error) {
  header h;
  if (out->file.count < (int64_t)sizeof h)
    return fsdp_fail(error, FSDP_ERR_INPUT,
                     "%s: has %lld bytes, too few for a file of tokens; " PREPARE_AGAIN, path,
                     (long long)out->file.count, FSDP_PREPARE_DATA);
  memcpy(&h, out->file.bytes, sizeof h);
  if (memcmp(h.magic, MAGIC, sizeof h.magic) != 0)
    return fsdp_fail(error, FSDP_ERR_INPUT,
                     "%s: does not begin with \"" MAGIC "\", so it is no file of tokens; " PREPARE_AGAIN,
                     path, FSDP_PREPARE_DATA);
  if (h.version != VERSION)
    return fsdp_fail(error, FSDP_ERR_INPUT,
                     "%s: has version %u of the format, but this build reads version %d; " PREPARE_AGAIN,
                     path, h.version, VERSION, FSDP_PREPARE_DATA);
  const char *fault = header_fault(&h);
  int64_t mask = 0, starts = 0, template = 0, joined = 0;
  if (!fault && h.file_bytes != out->file.count)
    return fsdp_fail(error, FSDP_ERR_INPUT,
                     "%s: has %lld bytes instead of the %lld that its header declares: it is truncated or "
                     "damaged; copy it again, or " PREPARE_AGAIN,
                     path, (long long)out->file.count, (long long)h.file_bytes, FSDP_PREPARE_DATA);
  if (!fault && !lay_out(&h, &mask, &starts, &template, &joined))
    fault = "its counts do not add up to its size";
  if (!fault) {
    out->view = (fsdp_token_view){.tokens = out->file.bytes + sizeof h,
                                  .token_bytes = (int)h.token_bytes,
                                  .token_count = h.token_count,
                                  .mask = out->file.bytes + mask,
                                  .starts = (const uint64_t *)(const void *)(out->file.bytes + starts),
                                  .joined = h.flags & FLAG_JOINED ? out->file.bytes + joined : NULL,
                                  .document_count = h.document_count,
                                  .target_count = h.target_count,
                                  .vocab_size = h.vocab_size};
    out->bytes = h.flags & FLAG_BYTES;
    out->tokenizer_hash = h.tokenizer_hash;
    out->first_token = h.first_token;
    out->last_token = h.last_token;
    if (h.template_bytes) {
      out->chat_template = (const char *)out->file.bytes + template;
      out->chat_template_bytes = h.template_bytes;
    }
    out->identity = h.hash;
    if (!starts_are_in_order(&out->view)) fault = "its documents are not in order";
    if (fsdp_token_view_joins(&out->view, 0)) fault = "its first document belongs to one before it";
  }
  if (fault)
    return fsdp_fail(error, FSDP_ERR_INPUT, "%s: is damaged: %s; copy it again, or " PREPARE_AGAIN, path,
                     fault, FSDP_PREPARE_DATA);
  return FSDP_OK;
}

static fsdp_status read_llmc(const char *path, const int32_t *words, fsdp_token_file *out,
                             fsdp_error *error) {
  int32_t version = words[0] == LLMC_MAGIC_16 ? 1 : 7;
  int64_t token_bytes = words[0] == LLMC_MAGIC_16 ? 2 : 4;
  if (words[1] != version)
    return fsdp_fail(error, FSDP_ERR_INPUT,
                     "%s: is llm.c's (magic %d) of version %d, but version %d is read; write it again", path,
                     words[0], words[1], version);
  int64_t expected = LLMC_HEADER_BYTES + token_bytes * (int64_t)words[2];
  if (words[2] < 1 || out->file.count != expected)
    return fsdp_fail(
        error, FSDP_ERR_INPUT,
        "%s: its llm.c header declares %d tokens, so %lld bytes, but it has %lld: it is truncated "
        "or damaged; copy it again",
        path, words[2], (long long)expected, (long long)out->file.count);
  out->format = FSDP_TOKENS_LLMC;
  out->view = (fsdp_token_view){.tokens = out->file.bytes + LLMC_HEADER_BYTES,
                                .token_bytes = (int)token_bytes,
                                .token_count = words[2]};
  return FSDP_OK;
}

// Whether the bytes look like tokens wider than uint16.
static bool looks_wide(const uint16_t *halves, int64_t count) {
  int64_t pairs = fsdp_min_i64(count / 2, WIDE_PAIRS_MAX);
  int64_t large = 0;
  for (int64_t i = 0; i < pairs; i++) {
    if (halves[2 * i + 1] > WIDE_HALF_MAX) return false;
    large += halves[2 * i] > WIDE_HALF_MAX;
  }
  return pairs >= WIDE_PAIRS_MIN && large > pairs / 4;
}

// nanoGPT's `.bin`: nothing in it says that it is one, so what is likely something else is refused.
static fsdp_status read_raw(const char *path, fsdp_token_file *out, fsdp_error *error) {
  const unsigned char *bytes = out->file.bytes;
  if (out->file.count >= 4 && memcmp(bytes, "PK\3\4", 4) == 0)
    return fsdp_fail(error, FSDP_ERR_INPUT,
                     "%s: is a ZIP archive, as PyTorch's weights are, and holds no tokens; give a file of "
                     "tokens",
                     path);
  if (out->file.count % 2)
    return fsdp_fail(error, FSDP_ERR_INPUT,
                     "%s: has neither llm.c's header nor, with %lld bytes, whole uint16 tokens like "
                     "nanoGPT's; give one of these, or a .tok of %s",
                     path, (long long)out->file.count, FSDP_PREPARE_DATA);
  if (looks_wide((const uint16_t *)(const void *)bytes, out->file.count / 2))
    return fsdp_fail(error, FSDP_ERR_INPUT,
                     "%s: has no header, so it would be read as uint16 tokens like nanoGPT's, but they look "
                     "like tokens of 4 or 8 bytes; write them as uint16, or as uint32 behind llm.c's header "
                     "(magic %d, version 7)",
                     path, LLMC_MAGIC_32);
  out->format = FSDP_TOKENS_RAW;
  out->view = (fsdp_token_view){.tokens = bytes, .token_bytes = 2, .token_count = out->file.count / 2};
  return FSDP_OK;
}

static fsdp_status read_bin(const char *path, fsdp_token_file *out, fsdp_error *error) {
  int32_t words[3] = {0};
  fsdp_status status;
  if (out->file.count >= LLMC_HEADER_BYTES) memcpy(words, out->file.bytes, sizeof words);
  if (words[0] == LLMC_MAGIC_16 || words[0] == LLMC_MAGIC_32)
    status = read_llmc(path, words, out, error);
  else if (words[0] >= LLMC_MAGIC_FIRST && words[0] <= LLMC_MAGIC_LAST)
    status = fsdp_fail(error, FSDP_ERR_INPUT,
                       "%s: is llm.c's (magic %d), but holds no tokens to train on, which have magic %d "
                       "(uint16) or %d (uint32); give such a file",
                       path, words[0], LLMC_MAGIC_16, LLMC_MAGIC_32);
  else
    status = read_raw(path, out, error);
  return status;
}

fsdp_status fsdp_token_file_open(const char *path, fsdp_token_file *file, fsdp_error *error) {
  *file = (fsdp_token_file){0};
  fsdp_status status = fsdp_mapped_file_open(path, &file->file, error);
  if (status) return status;
  const char *dot = strrchr(path, '.');
  status = dot && !strcasecmp(dot, ".bin") ? read_bin(path, file, error) : read_prepared(path, file, error);
  if (status) fsdp_token_file_close(file);
  return status;
}

void fsdp_token_file_close(fsdp_token_file *file) {
  fsdp_mapped_file_close(&file->file);
  *file = (fsdp_token_file){0};
}

static uint32_t crc_of(const void *bytes, int64_t count) {
  return (uint32_t)crc32_z(0, bytes, (size_t)count);
}

fsdp_status fsdp_token_file_verify(const char *path, const fsdp_token_file *file, fsdp_error *error) {
  if (!file->file.bytes || file->format != FSDP_TOKENS_PREPARED) return FSDP_OK;
  const fsdp_token_view *view = &file->view;
  header h;
  memcpy(&h, file->file.bytes, sizeof h);
  const char *damaged = NULL;
  if (crc_of(view->tokens, view->token_count * view->token_bytes) != h.checksums[0])
    damaged = "its tokens do not match their checksum";
  else if (crc_of(view->mask, (view->token_count + 7) / 8) != h.checksums[1])
    damaged = "its mask does not match its checksum";
  else if (crc_of(view->starts, 8 * view->document_count) != h.checksums[2])
    damaged = "its starts of documents do not match their checksum";
  else if (crc_of(file->chat_template, file->chat_template_bytes) != h.checksums[3])
    damaged = "its chat template does not match its checksum";
  else if (view->joined && crc_of(view->joined, (view->document_count + 7) / 8) != h.joined_checksum)
    damaged = "its marks of records do not match their checksum";
  else if (fsdp_token_view_find(view, 0, view->token_count, view->vocab_size) >= 0)
    damaged = "a token is outside its vocabulary";
  else if (fsdp_token_view_counted(view, 0, view->token_count) != h.target_count)
    damaged = "its mask does not count as many tokens as its header";
  if (!damaged) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_INPUT, "%s: is damaged: %s; copy it again, or " PREPARE_AGAIN, path,
                   damaged, FSDP_PREPARE_DATA);
}

fsdp_status fsdp_token_file_hash_tokenizer(const char *path, uint64_t *hash, fsdp_error *error) {
  fsdp_mapped_file file;
  fsdp_status status = fsdp_mapped_file_open(path, &file, error);
  if (status)
    return fsdp_fail(error, status, "%s: the tokenizer cannot be read; give its tokenizer.json", path);
  *hash = XXH64(file.bytes, (size_t)file.count, 0);
  fsdp_mapped_file_close(&file);
  return FSDP_OK;
}
