// What the parts of the world share: communicators that send messages, made by the file of each library.
#pragma once

#include "runtime/comm/world.h"
#include "runtime/watch/watch.h"

// Splits the world into groups of equal `color`, ordered by `key`; every rank must call it. A negative color
// takes no part and gets NULL. `piece_bytes` as in fsdp_comms_config.
fsdp_comm *fsdp_world_split_messages(int color, int key, int64_t piece_bytes);

// Fills what `world` says of nodes, from the lowest rank of this rank's node and the number of its ranks.
// Every rank must call it: a few bytes of every rank go to all, and a name of every node.
void fsdp_world_find_nodes(fsdp_world *world, int first_local);
void fsdp_world_release_nodes(fsdp_world *world);

// Makes the node's board and starts the watch; every rank must call it.
void fsdp_world_watch_start(fsdp_world *world);
void fsdp_world_watch_stop(fsdp_world *world); // without a watch: nothing

// Fills world->mail for mails of `bytes_max`; every rank must call it. The world closes it.
void fsdp_world_open_mail(fsdp_world *world, int bytes_max);
