// Which file a path is, over all nodes of a job.
//
// A file on a disk of a node's own is known by node, device and inode. One on a network's file system is the
// same file on every node that has mounted it from the same source: it is known by the file system's type,
// the source as the mount names it ("server:/export", "10.0.0.1@tcp:/scratch"), and its inode there. Size and
// both times, to the nanosecond, belong to either. Device numbers and fsid are left out of the second:
// clients give them as they like.
#pragma once

#include <stdint.h>
#include <sys/stat.h>

// `mounts` is the text of /proc/self/mountinfo (proc(5)). Of file systems that are not known to have the same
// inodes everywhere (FUSE but a few, 9p, disks shared by a network) the first rule is right: their files are
// compared by their contents.
uint64_t fsdp_file_identity(const struct stat *file, int node, const char *mounts);

// The whole text of a mount table, empty if it cannot be read; the caller frees it.
char *fsdp_file_mounts_read(const char *path);
