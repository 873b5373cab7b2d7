// Bulk transfers into the arenas of a GPU outside of steps: weights and states, when they are loaded.
//
//   put   source ─► [ pinned | pinned ] ─► arena     a copy into one half while the other is on its way
//
// Everything goes over one stream of its own, in order; the only wait is for a half that is still on its way.
#pragma once

#include <stdint.h>

typedef struct fsdp_transfer fsdp_transfer;

// Bytes of a half: pieces of this size keep both ends busy.
#define FSDP_TRANSFER_PIECE_BYTES ((int64_t)32 << 20)

// For the current device. Never NULL.
fsdp_transfer *fsdp_transfer_create(void);
void fsdp_transfer_destroy(fsdp_transfer *transfer); // NULL is allowed

// From memory of the caller, who may use it again on return.
void fsdp_transfer_put(fsdp_transfer *transfer, void *destination, const void *source, int64_t bytes);
// Zeros.
void fsdp_transfer_clear(fsdp_transfer *transfer, void *destination, int64_t bytes);
// The stream, to enqueue a kernel on.
void *fsdp_transfer_stream(fsdp_transfer *transfer);
// Waits for all of it, and frees the pinned memory.
void fsdp_transfer_flush(fsdp_transfer *transfer);
