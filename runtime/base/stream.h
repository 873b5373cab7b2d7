// Where and in which queue work is done: the streams of a device and the two memory spaces.
#pragma once

#include <stdbool.h>

typedef enum fsdp_stream {
  FSDP_STREAM_COMPUTE,
  FSDP_STREAM_GATHER,
  FSDP_STREAM_REDUCE,
  FSDP_STREAM_SHARD, // casts, sums and updates of gradient shards, beside the collectives of REDUCE
  FSDP_STREAM_H2D,
  FSDP_STREAM_D2H,
  FSDP_STREAM_SNAPSHOT, // the state to the host, which nothing of a step is to stand behind
  FSDP_STREAM_SAVE,     // offloaded activations to the host
  FSDP_STREAM_LOAD,     // and back
  FSDP_STREAM_TENSOR,   // collectives of activations over axes that cut weights
  FSDP_STREAM_CONTEXT,  // and over axes that cut the sequence
  FSDP_STREAM_HOST,     // runs on the CPU whatever the device
  FSDP_STREAM_COUNT
} fsdp_stream;

typedef enum fsdp_space { FSDP_SPACE_DEVICE, FSDP_SPACE_HOST, FSDP_SPACE_COUNT } fsdp_space;

// "compute", "gather", ...
const char *fsdp_stream_name(fsdp_stream stream);

// Whether collectives run on it.
bool fsdp_stream_communicates(fsdp_stream stream);
