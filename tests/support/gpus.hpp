#pragma once

// The GPUs that a test may use, that is, those that CUDA_VISIBLE_DEVICES allows. The functions make no CUDA calls,
// because a process that has initialised CUDA can no longer fork.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace syncrun::test {

inline int gpus_present() {
  int physical = 0;
  while (std::filesystem::exists("/dev/nvidia" + std::to_string(physical))) ++physical;
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) return physical;
  const std::string list = visible;
  if (list.empty()) return 0;
  return std::min(physical, 1 + static_cast<int>(std::count(list.begin(), list.end(), ',')));
}

/// How much memory of these GPUs is in use, all of them together, in MiB, as nvidia-smi reports it; -1 if nvidia-smi is
/// not available.
inline int used_gpu_memory_mib() {
  std::string command = "nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits 2>/dev/null";
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) command += " -i '" + std::string(visible) + "'";
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return -1;
  int all = -1;
  for (int one = 0; std::fscanf(pipe, "%d", &one) == 1;) all = std::max(all, 0) + one;
  ::pclose(pipe);
  return all;
}

}  // namespace syncrun::test
