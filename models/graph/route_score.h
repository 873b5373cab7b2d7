// Words of routers: what they make of their logits before experts are chosen by them, and of which rows their
// auxiliary loss is; and what kernels of a GPU for them are cut into.
#pragma once

// Experts at most; slots of a block that orders them; rows of a part of an auxiliary loss's sums.
#define FSDP_ROUTE_EXPERTS_MAX 1024
#define FSDP_ROUTE_ORDER_CHUNK 1024
#define FSDP_ROUTE_SUM_ROWS    64

typedef enum fsdp_route_score {
  FSDP_ROUTE_SOFTMAX, // probabilities over all experts
  FSDP_ROUTE_SIGMOID, // a number from 0 to 1 of each expert by itself
  FSDP_ROUTE_LOGITS   // nothing; the weights are the softmax of the chosen ones
} fsdp_route_score;

typedef enum fsdp_router_aux {
  FSDP_ROUTER_AUX_MICRO,   // of a micro-batch's rows on all ranks
  FSDP_ROUTER_AUX_RANK,    // of each rank's, and then their mean
  FSDP_ROUTER_AUX_SEQUENCE // of each sequence's in each layer, and then their mean
} fsdp_router_aux;
