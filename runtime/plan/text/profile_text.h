// Device profiles (device_profile.h) as YAML.
//
//   name: h100-sxm
//   device: cuda                                      # or cpu
//   source: "..."                                     # of every number without one beside it
//   capability: 9.0                                   # compute capability of a GPU
//   processors: 132                                   # or cores; or {value: 132, source: "..."}
//   memory_gb: {value: 80, source: "..."}             # 1e9 bytes; all units are powers of ten
//   peak_tflops: {bf16: 989, fp32: 67}
//   launch_us: 2
//   handoff_us: 4                                     # a start after an end in another stream
//   host_memory_gb: 2000                              # of a node with GPUs, for all of its ranks
//   host_memory_gbps: 300                             # of updates on the host
//   memory_gbps: 2573                                 # read + written
//   copy_gbps: {up: 55, down: 55, up_both: 40, down_both: 40}
//   reserve: {context_gb: 1, communicator_gb: {value: 0.3, estimated: true}}   # of a GPU's, beside the arena
//   contention: {compute: 1.13, collective: 1.3}
//   sustained: {products: 1.15, attention: 1.3}       # how much longer in a step than rates say
//   network: {gbps_per_node: 400, latency_us: 14, node_latency_us: 3.4}
//   tiles: true
//   products:                                         # `ranks` may be absent: any
//   - {ranks: 1, dtype: bf16, form: any, m: 2048, n: 2048, k: 13312, tflops: 794.5}
//   attention:
//   - {kernel: flash2, dtype: bf16, head_dim: 128, direction: both, tflops: {512: 163, 1024: 221}}
//   ops:
//   - {op: rmsnorm, gbps: {1e6: 900, 1e8: 3800}}      # or `any`: those without an entry
//   collectives:
//   - {kind: all_gather, link: node, ranks: 8, ranks_per_node: 8, groups: 1, us: {1048576: 92.8}}
//   grouped:
//   - {kernel: torch, dtype: bf16, form: any, tflops: {64: 196, 1024: 624}}   # by rows of an expert
//   use: {attention: flash2}                          # price this kernel's rows, whichever the plan runs
//   base: h100-sxm                                    # what this file does not have is taken from there
//
// Without `use` a GPU's attention is priced by the rows of the kernel that the plan runs (fsdp-wgmma,
// fsdp-mma, fsdp-general), a CPU's by those of the first kernel, and so are products grouped by expert; where
// fsdp-wgmma has none of these, by fsdp-mma's. `estimated: true`: it is not measured. What a GPU's profile
// does not say of `reserve`, `copy_gbps` and, without products, `peak_tflops`, a plan takes from h100-sxm,
// and says so. A row has a `source` too. With `base`, a number replaces a number and a list the whole list.
#pragma once

#include "runtime/plan/price/device_profile.h"
#include "runtime/plan/text/profile_reader.h"

// The shipped profile `name`, or with `text` (NULL: none) what that says, whose base can be a shipped one
// alone; messages call it `name`. The caller owns *profile. FSDP_ERR_INPUT, with the line, for what is wrong.
fsdp_status fsdp_profile_read_text(const char *name, const char *text, fsdp_device_profile **profile,
                                   fsdp_error *error);

// The same with files: `find` and `visit` know them (launcher/profile/profile_file.h).
fsdp_status fsdp_profile_read_with(const char *name_or_path, fsdp_profile_find *find,
                                   fsdp_yaml_visit_function *visit, fsdp_device_profile **profile,
                                   fsdp_error *error);
