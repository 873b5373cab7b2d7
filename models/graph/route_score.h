// What a router makes of its logits before experts are chosen by them.
#pragma once

typedef enum fsdp_route_score {
  FSDP_ROUTE_SOFTMAX, // probabilities over all experts
  FSDP_ROUTE_SIGMOID, // a number from 0 to 1 of each expert by itself
  FSDP_ROUTE_LOGITS   // nothing; the weights are the softmax of the chosen ones
} fsdp_route_score;
