// The public header of libfsdp_plan: plans a training step, prices it on a machine and searches for the
// fastest, without a device, a rank, a thread or a file.
//
//   fsdp_planner *planner = fsdp_planner_create();
//   fsdp_planner_set(planner, "model", "llama2-7b");          // or a config.json's text
//   fsdp_planner_set(planner, "ranks", "8");
//   fsdp_planner_set(planner, "profile", "h100-sxm");         // or a device profile's text
//   char *plan = fsdp_planner_plan(planner);                  // {"memory": {"peak_bytes": ...}, ...}
//   if (!plan) puts(fsdp_planner_error(planner));
//
// The contract: a planner is opaque, everything goes in and out as text, and no name of a function, of a
// setting or of a key of the JSON objects changes its meaning; new ones may be added. Planners share
// nothing, so each may be used by a thread of its own. The same settings give the same plan, byte for byte.
// Memory that runs out ends the process.
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fsdp_planner fsdp_planner;

// A planner with the defaults of fsdp_plan's options.
fsdp_planner *fsdp_planner_create(void);
void fsdp_planner_destroy(fsdp_planner *planner); // NULL is allowed

// Sets what fsdp_plan's option of that name sets (docs/usage.md):
//
//   model              a preset's name, or the text of a Hugging Face config.json
//   profile            a shipped profile's name, or a device profile's text (YAML)
//   sharding           fsdp, fsdp-tp or fsdpv2, or the text of a sharding file (YAML)
//   shard              NAME=SPEC: one more rule of `sharding`, once per call
//   ranks, ranks-per-node, mesh, tensor-parallel, context-parallel, expert-parallel, sequence-parallel
//   batch-size, seq-length, grad-accum, global-batch
//   strategy, wrap, numel-to-wrap, prefetch, accumulate, recompute, offload-activations, cpu-offload
//   param-dtype, reduce-dtype, master-dtype, moment-dtype, grad-clip, backend
//   memory-limit, host-memory-limit, memory-margin, expert-blocks, expert-capacity
//
// Returns 0, or the exit status that fsdp_plan would end with: 2 for a name or a value, 3 for a text that is
// malformed. What was set before then stays.
int fsdp_planner_set(fsdp_planner *planner, const char *name, const char *text);

// The plan, as fsdp_plan --json prints it: model, mesh, batch, units, memory, comm, program, verified; and
// `fits`, whether it keeps memory-limit and host-memory-limit. A JSON object, which the caller frees
// (fsdp_planner_free), or NULL: fsdp_planner_error says why.
char *fsdp_planner_plan(fsdp_planner *planner);

// The plan's price on the profile's machine: profile, step_ms, tokens_per_s, mfu (null: the machine's peak is
// unknown), work_ms by kind and exposed_ms (communication, copies up and down, others). As above.
char *fsdp_planner_price(fsdp_planner *planner);

// The fastest plans that fit, the fastest first, over all settings that were not set: {plans: [{settings,
// step_ms, tokens_per_s, mfu, device_bytes, host_bytes, hash}]}; each `settings` can be set again, and gives
// the plan of that hash. An empty list: nothing fits. As above.
char *fsdp_planner_search(fsdp_planner *planner);

// What was wrong with the last call that failed: one sentence with the remedy. Valid until the next call.
const char *fsdp_planner_error(const fsdp_planner *planner);

// Frees what plan, price and search return; NULL is allowed.
void fsdp_planner_free(char *json);

#ifdef __cplusplus
}
#endif
