// The CPU device: order within a stream, waits across streams, a full queue, arenas.
#include "runtime/base/check.h"
#include "runtime/base/random.h"
#include "runtime/device/device.h"
#include "runtime/device/gpu.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

static fsdp_device *create(fsdp_device_config config) {
  fsdp_device *device;
  fsdp_error error;
  assert_int_equal(fsdp_device_cpu()->create(&config, &device, &error), FSDP_OK);
  return device;
}

static fsdp_device *create_streams(int queue_capacity) {
  fsdp_device_config config = {.arena_bytes = {4096, 4096}, .queue_capacity = queue_capacity};
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) config.stream_threads[s] = 1;
  return create(config);
}

// A log that all streams write without a lock: only waits make that safe, which a race detector checks.
typedef struct journal {
  int entries[4096];
  int count;
} journal;

static void append(const fsdp_work *work, const fsdp_stream_context *context) {
  journal *log = work->owner;
  log->entries[log->count++] = work->item;
}

// Each piece of work waits for the one before, on a random stream: whatever the threads do, the order is the
// issue's.
TEST(waits_order_streams) {
  fsdp_device *device = create_streams(8);
  journal *log = fsdp_alloc_zeroed(1, sizeof *log);
  fsdp_stream before = FSDP_STREAM_COMPUTE;
  uint64_t ticket = 0;
  for (int i = 0; i < 3000; i++) {
    uint32_t words[4];
    fsdp_random_words(1, 2, (uint64_t)i, words);
    fsdp_stream stream = (fsdp_stream)(words[0] % FSDP_STREAM_COUNT);
    device->table->wait(device, stream, before, ticket);
    ticket = device->table->launch(device, stream, &(fsdp_work){.run = append, .owner = log, .item = i});
    before = stream;
  }
  device->table->synchronize(device, before, ticket);
  assert_int_equal(log->count, 3000);
  for (int i = 0; i < 3000; i++) assert_int_equal(log->entries[i], i);
  device->table->destroy(device);
  free(log);
}

// A queue of two entries: launching sleeps while it is full, and nothing is lost.
TEST(a_full_queue_waits) {
  fsdp_device *device = create_streams(2);
  journal *log = fsdp_alloc_zeroed(1, sizeof *log);
  uint64_t ticket = 0;
  for (int i = 0; i < 4000; i++) {
    fsdp_work work = {.run = append, .owner = log, .item = i};
    ticket = device->table->launch(device, FSDP_STREAM_HOST, &work);
  }
  assert_int_equal(ticket, 4000);
  device->table->synchronize(device, FSDP_STREAM_HOST, ticket);
  for (int i = 0; i < 4000; i++) assert_int_equal(log->entries[i], i);
  device->table->destroy(device);
  free(log);
}

static void h2d(const fsdp_work *work, const fsdp_stream_context *context) {
  fsdp_device *device = work->owner;
  context->table->copy(context, device->arenas.memory[FSDP_SPACE_DEVICE] + 64,
                       device->arenas.memory[FSDP_SPACE_HOST], 128);
}

TEST(copies_cross_arenas) {
  fsdp_device *device = create_streams(8);
  unsigned char values[128], back[128];
  for (int i = 0; i < 128; i++) values[i] = (unsigned char)(i * 3);
  device->table->write(device, device->arenas.memory[FSDP_SPACE_HOST], values, 128);
  uint64_t ticket = device->table->launch(device, FSDP_STREAM_H2D, &(fsdp_work){.run = h2d, .owner = device});
  device->table->synchronize(device, FSDP_STREAM_H2D, ticket);
  device->table->read(device, back, device->arenas.memory[FSDP_SPACE_DEVICE] + 64, 128);
  assert_memory_equal(values, back, 128);
  device->table->destroy(device);
}

TEST(places_are_located) {
  fsdp_device *device = create_streams(8);
  fsdp_space space;
  int64_t offset;
  assert_true(
      fsdp_arenas_locate(&device->arenas, device->arenas.memory[FSDP_SPACE_HOST] + 100, 50, &space, &offset));
  assert_int_equal(space, FSDP_SPACE_HOST);
  assert_int_equal(offset, 100);
  assert_false(fsdp_arenas_locate(&device->arenas, device->arenas.memory[FSDP_SPACE_HOST] + 100, 4000, &space,
                                  &offset));
  assert_false(fsdp_arenas_locate(&device->arenas, &space, 1, &space, &offset));
  device->table->destroy(device);
}

// What a peer would read through the arena's file is what the arena holds.
TEST(shared_arenas_are_files) {
  fsdp_device *device = create((fsdp_device_config){.arena_bytes = {10000, 0}, .shared = true});
  assert_null(device->arenas.memory[FSDP_SPACE_HOST]);
  assert_int_equal(device->arenas.file[FSDP_SPACE_HOST], -1);
  memcpy(device->arenas.memory[FSDP_SPACE_DEVICE] + 5000, "bytes", 6);
  char seen[6];
  assert_int_equal(pread(device->arenas.file[FSDP_SPACE_DEVICE], seen, 6, 5000), 6);
  assert_string_equal(seen, "bytes");
  device->table->destroy(device);
}

TEST(what_does_not_fit_is_refused) {
  fsdp_device_config config = {.arena_bytes = {INT64_C(1) << 60, 0}};
  fsdp_device *device;
  fsdp_error error;
  assert_int_equal(fsdp_device_cpu()->create(&config, &device, &error), FSDP_ERR_CAPACITY);
  assert_non_null(strstr(error.message, "1152921504606846976 bytes"));
}

TEST(poisoned_arenas_hold_no_number) {
  fsdp_device *device = create((fsdp_device_config){.arena_bytes = {4096, 64}, .poisoned = true});
  for (int space = 0; space < FSDP_SPACE_COUNT; space++) {
    for (int64_t i = 0; i < device->arenas.bytes[space] / 4; i++) {
      assert_true(isnan(((const float *)device->arenas.memory[space])[i]));
    }
  }
  device->table->destroy(device);
}

TEST(peaks_are_found_by_name) {
  assert_float_equal(fsdp_gpu_peak_flops("NVIDIA H200", FSDP_BF16), 989.4e12, 1e6);
  assert_float_equal(fsdp_gpu_peak_flops("NVIDIA H100 PCIe", FSDP_BF16), 756e12, 1e6);
  assert_float_equal(fsdp_gpu_peak_flops("NVIDIA H100 80GB HBM3", FSDP_F32), 67e12, 1e6);
  assert_float_equal(fsdp_gpu_peak_flops("NVIDIA A100-SXM4-80GB", FSDP_BF16), 312e12, 1e6);
  assert_float_equal(fsdp_gpu_peak_flops("NVIDIA RTX A4000", FSDP_BF16), 0, 0);
  // 360 and 180 PFLOP/s of bf16 in 72 GPUs, 36 in 8, all with sparsity, which doubles them.
  assert_float_equal(fsdp_gpu_peak_flops("NVIDIA GB300", FSDP_BF16), 360e15 / 72 / 2, 1e6);
  assert_float_equal(fsdp_gpu_peak_flops("NVIDIA GB200", FSDP_BF16), 360e15 / 72 / 2, 1e6);
  assert_float_equal(fsdp_gpu_peak_flops("NVIDIA B300 SXM6 AC", FSDP_BF16), 36e15 / 8 / 2, 1e6);
  assert_float_equal(fsdp_gpu_peak_flops("NVIDIA B200", FSDP_BF16), 36e15 / 8 / 2, 1e6);
  // 188 multiprocessors of 1024 products and sums a clock at 2.617 GHz.
  const double clocked = 188 * 1024 * 2.617e9;
  assert_true(fabs(fsdp_gpu_peak_flops("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", FSDP_BF16) -
                   clocked) < 1e-3 * clocked);
}
