// What the parts of the world share: communicators that send messages, made by whoever knows the library.
#pragma once

#include "runtime/comm/watch.h"
#include "runtime/comm/world.h"

// Splits the world into groups of equal `color`, ordered by `key`; every rank must call it. A negative color
// takes no part and gets NULL. `piece_bytes` as in fsdp_comms_config.
fsdp_comm *fsdp_world_split_messages(fsdp_world *world, int color, int key, int64_t piece_bytes);

// Makes the node's board and starts the watch; every rank must call it.
void fsdp_world_watch_start(fsdp_world *world);
void fsdp_world_watch_stop(fsdp_world *world); // without a watch: nothing

// Fills world->mail; every rank must call it. The world closes it.
void fsdp_world_open_mail(fsdp_world *world);
