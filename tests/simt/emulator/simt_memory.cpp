// Device memory and pinned memory: each allocation of the runtime's has a red zone on either side, filled with NaNs (in fp32
// and bf16 alike), so that a read beside it spoils a result and a write beside it is seen afterwards.
#include "tests/simt/emulator/simt.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace simt {

allocation *memory_last;

namespace {

constexpr size_t zone_bytes = 256;
constexpr unsigned char zone_byte = 0xff;

std::vector<allocation> allocations;

bool holds(const allocation &a, const void *address, size_t bytes) {
  const auto *at = static_cast<const unsigned char *>(address);
  return at >= a.data && at + bytes <= a.data + a.bytes;
}

// The first byte of a zone that was written to, -1: none. Such a zone is made whole again.
long find_damage(unsigned char *zone) {
  static const std::vector<unsigned char> whole(zone_bytes, zone_byte);
  if (memcmp(zone, whole.data(), zone_bytes) == 0) return -1;
  long at = 0;
  while (zone[at] == zone_byte) at++;
  memset(zone, zone_byte, zone_bytes);
  return at;
}

std::string damage_of(const allocation &a) {
  if (!a.start) return "";
  const long before = find_damage(a.start), after = find_damage(a.data + a.bytes);
  char text[160] = "";
  if (after >= 0) {
    snprintf(text, sizeof text, "red zone: byte %ld after the end of an allocation of %zu bytes is written",
             after, a.bytes);
  } else if (before >= 0) {
    snprintf(text, sizeof text,
             "red zone: byte %zu before the start of an allocation of %zu bytes is written",
             zone_bytes - size_t(before), a.bytes);
  }
  return text;
}

} // namespace

void *memory_allocate(size_t bytes, memory_kind kind) {
  allocation a = {};
  a.start = static_cast<unsigned char *>(
      aligned_alloc(zone_bytes, (bytes + 4 * zone_bytes) / zone_bytes * zone_bytes));
  if (!a.start) abort();
  a.data = a.start + zone_bytes;
  a.bytes = bytes;
  a.kind = kind;
  // Large buffers of pinned memory, of which a copy takes a part, are left as they come: the host writes first.
  if (kind == memory_kind::device) memset(a.data, zone_byte, bytes);
  memset(a.start, zone_byte, zone_bytes);
  memset(a.data + bytes, zone_byte, zone_bytes);
  memory_last = nullptr;
  allocations.push_back(a);
  return a.data;
}

bool memory_register(void *address, size_t bytes) {
  allocation a = {};
  a.data = static_cast<unsigned char *>(address);
  a.bytes = bytes;
  a.kind = memory_kind::pinned;
  for (const allocation &other : allocations)
    if (a.data < other.data + other.bytes && other.data < a.data + bytes) return false;
  memory_last = nullptr;
  allocations.push_back(a);
  return true;
}

bool memory_unregister(void *address) {
  for (size_t i = 0; i < allocations.size(); i++) {
    if (allocations[i].data != address || allocations[i].start) continue;
    allocation a = allocations[i];
    memory_last = nullptr;
    allocations.erase(allocations.begin() + long(i));
    global_free_records(&a);
    return true;
  }
  return false;
}

size_t memory_count() {
  return allocations.size();
}

void memory_free_beyond(size_t count) {
  memory_last = nullptr;
  for (; allocations.size() > count; allocations.pop_back()) {
    global_free_records(&allocations.back());
    free(allocations.back().start);
  }
}

size_t memory_taken(memory_kind kind) {
  size_t sum = 0;
  for (const allocation &a : allocations) sum += a.kind == kind ? a.bytes : 0;
  return sum;
}

void memory_free(void *address) {
  if (!address) return;
  for (size_t i = 0; i < allocations.size(); i++) {
    if (allocations[i].data != address || !allocations[i].start) continue;
    allocation a = allocations[i];
    memory_last = nullptr;
    allocations.erase(allocations.begin() + long(i));
    const std::string damage = damage_of(a);
    global_free_records(&a);
    free(a.start);
    if (!damage.empty()) fail("%s, found when it is freed", damage.c_str());
    return;
  }
  fail("memory at %p is freed, but nothing is allocated there", address);
}

allocation *memory_search(const void *address, size_t bytes, size_t alignment) {
  if (reinterpret_cast<uintptr_t>(address) % alignment)
    fail("device memory at %p is not aligned to %zu bytes", address, alignment);
  for (allocation &a : allocations)
    if (holds(a, address, bytes)) return memory_last = &a;
  fail("device memory out of bounds: %zu bytes at %p", bytes, address);
}

void memory_check(const void *address, size_t bytes, size_t alignment) {
  memory_find(address, bytes, alignment);
}

const allocation *memory_near(const void *address) {
  const auto *at = static_cast<const unsigned char *>(address);
  for (const allocation &a : allocations)
    if (a.start ? at >= a.start && at < a.data + a.bytes + zone_bytes : holds(a, address, 1)) return &a;
  return nullptr;
}

std::string memory_damage() {
  std::string first;
  for (const allocation &a : allocations) {
    const std::string damage = damage_of(a);
    if (first.empty()) first = damage;
  }
  return first;
}

} // namespace simt
