// Tickets of the CUDA device: what is complete when a stream is synchronised with one. The emulated streams
// run their queues only while somebody waits for them, so what nobody waited for shows.
#include "runtime/device/device.h"
#include "tests/support/unit_test.h"

static void count(void *argument) {
  ++*(int *)argument;
}
static void notify(const fsdp_work *work, const fsdp_stream_context *context) {
  context->table->notify(context, count, work->owner);
}

// Ticket N of a stream is its N-th piece of work, whether or not it is marked as awaited; ticket 0 is
// complete before there is any.
TEST(tickets_are_waited_for) {
  for (int awaited = 0; awaited < 2; awaited++) {
    fsdp_device *device = NULL;
    fsdp_error error = {0};
    fsdp_device_config config = {.queue_capacity = 4, .event_capacity = 16};
    config.stream_threads[FSDP_STREAM_COMPUTE] = 1;
    if (fsdp_device_cuda()->create(&config, &device, &error) != FSDP_OK) fail_msg("%s", error.message);
    int over = 0;
    const fsdp_work work = {.run = notify, .owner = &over, .awaited = awaited};
    device->table->synchronize(device, FSDP_STREAM_COMPUTE, 0);
    for (int n = 1; n <= 3; n++) {
      const uint64_t ticket = device->table->launch(device, FSDP_STREAM_COMPUTE, &work);
      assert_int_equal(ticket, n);
      assert_int_equal(over, n - 1);
      device->table->synchronize(device, FSDP_STREAM_COMPUTE, 0);
      assert_int_equal(over, n - 1);
      device->table->synchronize(device, FSDP_STREAM_COMPUTE, ticket);
      assert_int_equal(over, n);
    }
    device->table->destroy(device);
  }
}
