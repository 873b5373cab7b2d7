#include "runtime/plan/proof/sort.h"

#include "runtime/base/size.h"

enum { DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS };

static int digit_of(const fsdp_record *record, int64_t least, int shift) {
  return (int)((((uint64_t)record->key - (uint64_t)least) >> shift) % DIGITS);
}

fsdp_record *fsdp_sort_records(fsdp_record *records, fsdp_record *other, int count) {
  int64_t least = INT64_MAX, most = INT64_MIN;
  for (int i = 0; i < count; i++) {
    least = fsdp_min_i64(least, records[i].key);
    most = fsdp_max_i64(most, records[i].key);
  }
  const uint64_t range = count > 0 ? (uint64_t)most - (uint64_t)least : 0;
  for (int shift = 0; shift < 64 && range >> shift > 0; shift += DIGIT_BITS) {
    int places[DIGITS + 1] = {0};
    for (int i = 0; i < count; i++) places[digit_of(&records[i], least, shift) + 1]++;
    for (int d = 0; d < DIGITS; d++) places[d + 1] += places[d];
    for (int i = 0; i < count; i++) other[places[digit_of(&records[i], least, shift)]++] = records[i];
    fsdp_record *sorted = other;
    other = records;
    records = sorted;
  }
  return records;
}
