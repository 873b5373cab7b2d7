#include "tests/support/comm_cases.h"

#include "runtime/base/dtype.h"

#include <stdio.h>
#include <string.h>

typedef struct cases {
  fsdp_comm *comm;
  int64_t numel;
  fsdp_dtype dtype;
  unsigned char *input, *output; // of `size` slots each
  int64_t wrong;
  char *message;
  int message_bytes;
} cases;

int64_t comm_cases_bytes(int size, int64_t numel) {
  return 2 * (size * numel * 4 + 64);
}

// Small integers: sums of up to 16 ranks are exact in bf16, whose integers are exact up to 256.
static float value_of(int rank, int64_t index) {
  return (float)((rank * 5 + index * 7 + index / 16) % 15);
}

static void put(const cases *self, void *to, int64_t index, float value) {
  if (self->dtype == FSDP_F32)
    ((float *)to)[index] = value;
  else
    ((fsdp_bf16 *)to)[index] = fsdp_bf16_from_f32(value);
}

static float get(const cases *self, const void *from, int64_t index) {
  return self->dtype == FSDP_F32 ? ((const float *)from)[index]
                                 : fsdp_bf16_to_f32(((const fsdp_bf16 *)from)[index]);
}

static void expect(cases *self, const char *what, const void *data, int64_t index, float wanted) {
  float got = get(self, data, index);
  if (got == wanted) return;
  if (self->wrong++ > 0) return;
  snprintf(self->message, (size_t)self->message_bytes,
           "%s of %s, %d ranks, slots of %lld: element %lld is %g, not %g", what,
           fsdp_dtype_name(self->dtype), self->comm->size, (long long)self->numel, (long long)index,
           (double)got, (double)wanted);
}

static float sum_of(const cases *self, int64_t index) {
  float sum = 0;
  for (int r = 0; r < self->comm->size; r++) sum += value_of(r, index);
  return sum;
}

static unsigned char *slot_of(const cases *self, unsigned char *whole, int slot) {
  return whole + slot * self->numel * fsdp_dtype_bytes(self->dtype);
}

static fsdp_collective call_of(const cases *self, void *input, void *output, int64_t numel) {
  return (fsdp_collective){.input = input, .output = output, .numel = numel, .dtype = self->dtype};
}

static void gather(cases *self, bool in_place) {
  int rank = self->comm->rank;
  unsigned char *own = in_place ? slot_of(self, self->output, rank) : self->input;
  for (int64_t i = 0; i < self->numel * self->comm->size; i++) put(self, self->output, i, -1);
  for (int64_t i = 0; i < self->numel; i++) put(self, own, i, value_of(rank, i));
  fsdp_collective call = call_of(self, own, self->output, self->numel);
  fsdp_comm_run(self->comm, FSDP_ALL_GATHER, &call);
  for (int64_t i = 0; i < self->numel * self->comm->size; i++) {
    float wanted = value_of((int)(i / self->numel), i % self->numel);
    expect(self, in_place ? "all-gather in place" : "all-gather", self->output, i, wanted);
  }
}

// `slot`: where in the input the result goes; negative: to the output.
static void reduce(cases *self, int slot) {
  for (int64_t i = 0; i < self->numel * self->comm->size; i++) {
    put(self, self->input, i, value_of(self->comm->rank, i));
  }
  unsigned char *result = slot < 0 ? self->output : slot_of(self, self->input, slot);
  fsdp_collective call = call_of(self, self->input, result, self->numel);
  fsdp_comm_run(self->comm, FSDP_REDUCE_SCATTER, &call);
  for (int64_t i = 0; i < self->numel; i++) {
    float wanted = sum_of(self, self->comm->rank * self->numel + i);
    expect(self, slot < 0 ? "reduce-scatter" : "reduce-scatter in place", result, i, wanted);
  }
}

static void reduce_all(cases *self) {
  int64_t numel = self->numel * self->comm->size - (self->numel > 1 ? 1 : 0);
  for (int64_t i = 0; i < numel; i++) put(self, self->output, i, value_of(self->comm->rank, i));
  fsdp_collective call = call_of(self, NULL, self->output, numel);
  fsdp_comm_run(self->comm, FSDP_ALL_REDUCE, &call);
  for (int64_t i = 0; i < numel; i++) expect(self, "all-reduce", self->output, i, sum_of(self, i));
}

// Values whose sum depends on the order and on where it is rounded: in fp32 the small ones vanish beside a
// large one, in bf16 1 vanishes beside 256 unless the sum is rounded at its end alone.
static float ordered_value(const cases *self, int rank, int64_t index) {
  static const float fp32[] = {1e8f, 3, -1e8f, 5, 1e8f, 7, -1e8f, 9};
  if (self->dtype == FSDP_BF16) return rank == 0 ? 256 : 1;
  return fp32[(rank + index) % 8];
}

// What comm.h promises: in fp32, in the order of ranks, rounded once.
static void expect_order(cases *self, const char *what, const void *data, int64_t index, int64_t at) {
  float sum = 0;
  for (int r = 0; r < self->comm->size; r++) sum += ordered_value(self, r, index);
  if (self->dtype == FSDP_BF16) sum = fsdp_bf16_to_f32(fsdp_bf16_from_f32(sum));
  expect(self, what, data, at, sum);
}

static void sum_in_order(cases *self, int64_t numel) {
  int rank = self->comm->rank;
  for (int64_t i = 0; i < numel; i++) put(self, self->output, i, ordered_value(self, rank, i));
  fsdp_collective call = call_of(self, NULL, self->output, numel);
  fsdp_comm_run(self->comm, FSDP_ALL_REDUCE, &call);
  for (int64_t i = 0; i < numel; i++) expect_order(self, "all-reduce in order", self->output, i, i);
}

static void scatter_in_order(cases *self) {
  int64_t first = self->comm->rank * self->numel;
  for (int64_t i = 0; i < self->numel * self->comm->size; i++) {
    put(self, self->input, i, ordered_value(self, self->comm->rank, i));
  }
  fsdp_collective call = call_of(self, self->input, self->output, self->numel);
  fsdp_comm_run(self->comm, FSDP_REDUCE_SCATTER, &call);
  for (int64_t i = 0; i < self->numel; i++) {
    expect_order(self, "reduce-scatter in order", self->output, first + i, i);
  }
}

int64_t comm_cases_run(fsdp_comm *comm, int64_t numel, void *buffer, char *message, int message_bytes) {
  cases self = {.comm = comm, .numel = numel, .message = message, .message_bytes = message_bytes};
  self.input = buffer;
  self.output = (unsigned char *)buffer + comm_cases_bytes(comm->size, numel) / 2;
  static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16};
  for (int d = 0; d < 2; d++) {
    self.dtype = dtypes[d];
    gather(&self, false);
    gather(&self, true);
    reduce(&self, -1);
    reduce(&self, 0);
    reduce(&self, comm->rank);
    reduce_all(&self);
    sum_in_order(&self, 1);
    sum_in_order(&self, numel * comm->size);
    scatter_in_order(&self);
  }
  return self.wrong;
}
