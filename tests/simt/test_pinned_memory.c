// The host arena of the CUDA device: mapped, registered and freed, by what the system says of its pages.
#include "runtime/device/device.h"
#include "tests/support/unit_test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, HUGE_PAGE = 2 << 20 };

static fsdp_status create(int64_t bytes, bool poisoned, fsdp_device **device, fsdp_error *error) {
  return fsdp_device_cuda()->create(&(fsdp_device_config){.arena_bytes[FSDP_SPACE_HOST] = bytes,
                                                          .queue_capacity = 4,
                                                          .event_capacity = 4,
                                                          .poisoned = poisoned},
                                    device, error);
}

// Of the pages that hold [memory, memory + bytes): how many are there; -1 if some are not mapped.
static int64_t resident(const unsigned char *memory, int64_t bytes) {
  const int64_t pages = (bytes + PAGE - 1) / PAGE;
  unsigned char *found = malloc((size_t)pages);
  int64_t count = mincore((void *)(uintptr_t)memory, (size_t)bytes, found) == 0 ? 0 : -1;
  for (int64_t i = 0; count >= 0 && i < pages; i++) count += found[i] & 1;
  free(found);
  return count;
}

// Every page is there before it is registered, none after it is freed, and the arena can be used to its last
// byte.
TEST(pages_come_and_go) {
  static const int64_t sizes[] = {1, PAGE, PAGE + 1, HUGE_PAGE - 1, HUGE_PAGE, 5 * (int64_t)HUGE_PAGE + 4097};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    for (int poisoned = 0; poisoned < 2; poisoned++) {
      fsdp_device *device = NULL;
      fsdp_error error = {0};
      if (create(sizes[i], poisoned, &device, &error) != FSDP_OK) fail_msg("%s", error.message);
      unsigned char *memory = device->arenas.memory[FSDP_SPACE_HOST];
      const int64_t bytes = device->arenas.bytes[FSDP_SPACE_HOST], pages = (bytes + PAGE - 1) / PAGE;
      assert_int_equal(bytes, sizes[i]);
      assert_int_equal((uintptr_t)memory % PAGE, 0);
      if (bytes >= HUGE_PAGE) assert_int_equal((uintptr_t)memory % HUGE_PAGE, 0);
      assert_int_equal(resident(memory, bytes), pages);
      for (int64_t at = 0; poisoned && at < bytes; at++) assert_int_equal(memory[at], 0xff);
      memset(memory, 1, (size_t)bytes);
      fsdp_device_cuda()->destroy(device);
      // A thread's stack or another library may have taken the address again, but not all of it.
      if (bytes >= HUGE_PAGE) assert_int_equal(resident(memory, bytes), -1);
    }
  }
}

// More than there is of addresses.
TEST(too_much_is_said) {
  fsdp_device *device = NULL;
  fsdp_error error = {0};
  assert_int_equal(create(INT64_C(1) << 50, false, &device, &error), FSDP_ERR_CAPACITY);
  assert_non_null(strstr(error.message, "the pinned host arena of 1125899906842624 bytes"));
  assert_non_null(strstr(error.message, strerror(ENOMEM)));
}
