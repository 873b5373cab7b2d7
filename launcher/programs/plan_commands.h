// What fsdp_plan does in place of one plan, as its options ask for it; each prints its answer.
#pragma once

#include "launcher/options/options.h"

// --compare: several plans in one table: what each needs, sends, and whether it fits. The arguments are read
// again for each of its files. A plan that does not fit has its row, and the reason; FSDP_ERR_CAPACITY
// if none fits. FSDP_ERR_OPTION, FSDP_ERR_INPUT.
fsdp_status fsdp_compare_plans(const fsdp_options *options, int argc, char **argv, fsdp_error *error);

// --machines: one model on several machines, the best plan of each or the given plan's price, in one table.
// "16 a100-40, 8 h100-sxm @2.5" are ranks and profiles, and what a rank's hour costs if not --gpu-hour. The
// arguments are read again for each of them. A machine on which nothing fits has its row, and the reason;
// FSDP_ERR_CAPACITY if none fits anywhere. FSDP_ERR_OPTION, FSDP_ERR_INPUT.
fsdp_status fsdp_machines_compare(const fsdp_options *options, int argc, char **argv, fsdp_error *error);

// --search: searches, and writes --save-plan. FSDP_ERR_CAPACITY, with the least memory and the nearest
// change, if nothing fits. The options become those of the best plan.
fsdp_status fsdp_search_and_print(fsdp_options *options, fsdp_error *error);

// --print-strategies and --graph: propagates over a model's operators or those of --graph, without a plan.
// Warnings go to standard error.
fsdp_status fsdp_propagate_and_print(const fsdp_options *options, fsdp_error *error);
