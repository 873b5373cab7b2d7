// Records of text: `.jsonl` if the first byte is even, else `.json`.
#include "runtime/data/json_text.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < 1) return 0;
  const char *name = data[0] % 2 ? "records.json" : "records.jsonl";
  fsdp_json_text text;
  fsdp_error error = {0};
  if (fsdp_json_text_open(fsdp_fuzz_file(name, data + 1, size - 1), &text, &error) != FSDP_OK) return 0;
  fsdp_token_view view = fsdp_json_text_view(&text);
  FSDP_CHECK(view.token_count > 0 && view.document_count > 0, "accepted without a record");
  int64_t counted = fsdp_token_view_counted(&view, 0, view.token_count);
  FSDP_CHECK(counted >= 0 && counted <= view.token_count, "%lld tokens count", (long long)counted);
  for (int64_t d = 0, begin = 0; d < view.document_count; d++) {
    FSDP_CHECK((int64_t)view.starts[d] == begin, "document %lld does not follow its neighbour", (long long)d);
    begin = fsdp_token_view_end(&view, d);
    FSDP_CHECK(begin > (int64_t)view.starts[d], "an empty document");
    FSDP_CHECK(((const unsigned char *)view.tokens)[begin - 1] == 0, "a document without its end");
  }
  fsdp_json_text_close(&text);
  return 0;
}
