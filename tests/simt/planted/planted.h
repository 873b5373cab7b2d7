// Kernels that are wrong on purpose: FSDP_SIMT_PLANT names them, "mma,wgmma" or, on one rank alone,
// "wgmma@1"; "experts-mma" and "experts-wgmma" are products grouped by expert. Attention's scores are a
// twentieth too large, as by a scale that is not the head dimension's.
#pragma once

#include <cstdlib>
#include <string>

inline bool is_planted(const std::string &name) {
  const char *text = std::getenv("FSDP_SIMT_PLANT"), *rank = std::getenv("OMPI_COMM_WORLD_RANK");
  const std::string all = "," + std::string(text ? text : "") + ",";
  return all.find("," + name + ",") != std::string::npos ||
         all.find("," + name + "@" + (rank ? rank : "0") + ",") != std::string::npos;
}

template <class Call> Call with_planted(const char *name, Call call) {
  if (is_planted(name)) call.shape.scale *= 1.05f;
  return call;
}
