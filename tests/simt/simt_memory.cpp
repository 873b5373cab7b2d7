// Device memory: each allocation has a red zone on either side, filled with NaNs (in fp32 and bf16 alike), so
// that a read beside it spoils a result and a write beside it is seen afterwards.
#include "tests/simt/simt.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace simt {

namespace {

constexpr size_t zone_bytes = 256;
constexpr unsigned char zone_byte = 0xff;

struct allocation {
  unsigned char *start; // of the first zone
  unsigned char *data;
  size_t bytes;
};

std::vector<allocation> allocations;
size_t last_hit;

bool holds(const allocation &a, const void *address, size_t bytes) {
  const auto *at = static_cast<const unsigned char *>(address);
  return at >= a.data && at + bytes <= a.data + a.bytes;
}

} // namespace

void *memory_allocate(size_t bytes) {
  allocation a;
  a.start = static_cast<unsigned char *>(
      aligned_alloc(zone_bytes, (bytes + 4 * zone_bytes) / zone_bytes * zone_bytes));
  if (!a.start) abort();
  a.data = a.start + zone_bytes;
  a.bytes = bytes;
  memset(a.start, zone_byte, bytes + 2 * zone_bytes);
  allocations.push_back(a);
  return a.data;
}

void memory_free(void *address) {
  for (size_t i = 0; i < allocations.size(); i++) {
    if (allocations[i].data != address) continue;
    free(allocations[i].start);
    allocations.erase(allocations.begin() + long(i));
    return;
  }
  if (address) abort();
}

void memory_check(const void *address, size_t bytes, size_t alignment) {
  if (reinterpret_cast<uintptr_t>(address) % alignment)
    fail("device memory at %p is not aligned to %zu bytes", address, alignment);
  if (last_hit < allocations.size() && holds(allocations[last_hit], address, bytes)) return;
  for (last_hit = 0; last_hit < allocations.size(); last_hit++)
    if (holds(allocations[last_hit], address, bytes)) return;
  fail("device memory out of bounds: %zu bytes at %p", bytes, address);
}

std::string memory_damage() {
  for (size_t i = 0; i < allocations.size(); i++) {
    const allocation &a = allocations[i];
    for (size_t at = 0; at < zone_bytes; at++) {
      char text[128];
      if (a.start[at] != zone_byte) {
        snprintf(text, sizeof text, "allocation %zu: byte %zu before its start is written", i,
                 zone_bytes - at);
        return text;
      }
      if (a.data[a.bytes + at] != zone_byte) {
        snprintf(text, sizeof text, "allocation %zu of %zu bytes: byte %zu after its end is written", i,
                 a.bytes, at);
        return text;
      }
    }
  }
  return "";
}

} // namespace simt
