#include "launcher/report/event_file.h"

#include "runtime/base/check.h"
#include "runtime/base/paths.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct fsdp_event_file {
  char *path;
  int descriptor;
  int64_t bytes; // of whole records
  bool made;     // its folder was not there before
  bool has_step;
  bool torn; // a part of a record is behind them
};

// Bytes that grow.
typedef struct bytes {
  unsigned char *data;
  size_t count;
} bytes;

static void put(bytes *out, const void *data, size_t count) {
  out->data = fsdp_realloc(out->data, out->count + count + 1);
  memcpy(out->data + out->count, data, count);
  out->count += count;
}

// Little-endian, whatever the machine.
static void put_fixed(bytes *out, uint64_t value, int width) {
  for (int i = 0; i < width; i++) put(out, &(unsigned char){(unsigned char)(value >> 8 * i)}, 1);
}
static void put_varint(bytes *out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) put(out, &(unsigned char){(unsigned char)(value | 0x80)}, 1);
  put(out, &(unsigned char){(unsigned char)value}, 1);
}

// Protobuf's wire types, of a field of number `field`.
typedef enum wire { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 } wire;

static void put_key(bytes *out, uint64_t field, wire type) {
  put_varint(out, field << 3 | (uint64_t)type);
}
static void put_bytes(bytes *out, uint64_t field, const void *data, size_t count) {
  put_key(out, field, WIRE_BYTES);
  put_varint(out, count);
  put(out, data, count);
}

static void put_wall_time(bytes *event) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  double seconds = (double)now.tv_sec + (double)now.tv_nsec / 1e9;
  uint64_t bits;
  memcpy(&bits, &seconds, sizeof bits);
  put_key(event, 1, WIRE_64);
  put_fixed(event, bits, 8);
}

static void put_value(bytes *summary, const fsdp_event_scalar *scalar) {
  bytes value = {0};
  float number = (float)scalar->value;
  uint32_t bits;
  memcpy(&bits, &number, sizeof bits);
  put_bytes(&value, 1, scalar->tag, strlen(scalar->tag));
  put_key(&value, 2, WIRE_32);
  put_fixed(&value, bits, 4);
  put_bytes(summary, 1, value.data, value.count);
  free(value.data);
}

// CRC32C (Castagnoli), masked as TFRecord does.
static uint32_t masked_crc(const void *data, int64_t count) {
  const unsigned char *at = data;
  uint32_t crc = ~UINT32_C(0);
  for (int64_t i = 0; i < count; i++) {
    crc ^= at[i];
    for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? UINT32_C(0x82f63b78) : 0);
  }
  crc = ~crc;
  return (crc >> 15 | crc << 17) + UINT32_C(0xa282ead8);
}

static fsdp_status fail_io(const char *path, const char *what, fsdp_error *error) {
  return fsdp_fail(error, FSDP_ERR_INPUT,
                   "%.600s: %s failed (%s); name a different folder with --tensorboard", path, what,
                   strerror(errno));
}

static fsdp_status write_record(fsdp_event_file *file, const bytes *event, fsdp_error *error) {
  bytes record = {0};
  put_fixed(&record, event->count, 8);
  put_fixed(&record, masked_crc(record.data, 8), 4);
  put(&record, event->data, event->count);
  put_fixed(&record, masked_crc(event->data, (int64_t)event->count), 4);
  if (file->torn) file->torn = ftruncate(file->descriptor, (off_t)file->bytes) != 0;
  ssize_t written = -1;
  while (!file->torn && (written = write(file->descriptor, record.data, record.count)) < 0 && errno == EINTR)
    ;
  size_t count = record.count;
  free(record.data);
  if (written == (ssize_t)count) {
    file->bytes += written;
    return FSDP_OK;
  }
  int reason = written >= 0 ? ENOSPC : errno; // what a partial write means
  if (written > 0) file->torn = ftruncate(file->descriptor, (off_t)file->bytes) != 0;
  return fsdp_fail(error, FSDP_ERR_INPUT, "%.600s: writing failed (%s)", file->path, strerror(reason));
}

fsdp_status fsdp_event_file_open(const char *folder, fsdp_event_file **file, fsdp_error *error) {
  const bool made = access(folder, F_OK) != 0;
  *file = NULL;
  if (!fsdp_make_folders(folder)) return fail_io(folder, "making the folder", error);
  size_t path_bytes = strlen(folder) + 96;
  fsdp_event_file *opened = fsdp_alloc_zeroed(1, sizeof *opened);
  opened->path = fsdp_alloc(path_bytes);
  opened->made = made;
  // TensorBoard reads a folder's files in the order of their names, and knows them by "tfevents".
  snprintf(opened->path, path_bytes, "%s/events.out.tfevents.%010lld.fsdp.%ld", folder, (long long)time(NULL),
           (long)getpid());
  opened->descriptor = open(opened->path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
  bytes event = {0};
  put_wall_time(&event);
  put_bytes(&event, 3, "brain.Event:2", strlen("brain.Event:2"));
  fsdp_status status = FSDP_OK;
  fsdp_error why;
  if (opened->descriptor < 0)
    status = fail_io(opened->path, "opening it", error);
  else if (write_record(opened, &event, &why) != FSDP_OK)
    status = fsdp_fail(error, why.status, "%.700s; name a different folder with --tensorboard", why.message);
  free(event.data);
  if (status != FSDP_OK)
    fsdp_event_file_close(opened);
  else
    *file = opened;
  return status;
}

void fsdp_event_file_close(fsdp_event_file *file) {
  if (!file) return;
  if (file->descriptor >= 0) {
    close(file->descriptor);
    if (!file->has_step) unlink(file->path);
  }
  *strrchr(file->path, '/') = 0;
  if (file->made && !file->has_step) rmdir(file->path);
  free(file->path);
  free(file);
}

fsdp_status fsdp_event_file_write(fsdp_event_file *file, int64_t step, const fsdp_event_scalar *scalars,
                                  int count, fsdp_error *error) {
  bytes event = {0}, summary = {0};
  for (int i = 0; i < count; i++) {
    if (isfinite(scalars[i].value)) put_value(&summary, &scalars[i]);
  }
  put_wall_time(&event);
  put_key(&event, 2, WIRE_VARINT);
  put_varint(&event, (uint64_t)step);
  put_bytes(&event, 5, summary.data, summary.count);
  fsdp_status status = write_record(file, &event, error);
  if (status == FSDP_OK) file->has_step = true;
  free(summary.data);
  free(event.data);
  return status;
}
