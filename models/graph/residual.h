// The residual stream's sums, h = x + delta, made by the gemm that makes delta:
//
//   delta = o * weight^T                          h = x + o * weight^T
//   h, y, rstd = x + delta, and its norm    ──►   y, rstd = the norm of h
//
// So the norm reads h alone and writes y alone, in place of x and delta, h and y, and the gemm reads x: of
// 5 passes over rows of the hidden size 4 are left, and 2 of them under the gemm's arithmetic. h is rounded once
// from fp32. What the backward needs is the same, and so the graph's backward is.
#pragma once

#include "models/graph/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

// Lets gemms add the residual wherever delta goes from a gemm of one weight straight into the sum. A partial
// sum over ranks does not: the sum over ranks lies between, and each rank would add the residual. Neither do
// columns that ranks exchange. Once the graph has its placements and its backward.
void fsdp_graph_add_residuals(fsdp_graph *graph);

// Whether the forward node's gemm adds the residual. Its sum belongs to the next node, the norm's.
bool fsdp_node_adds_residual(const fsdp_node *node);

#ifdef __cplusplus
}
#endif
