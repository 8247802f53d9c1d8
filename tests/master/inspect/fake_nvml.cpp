// A library with the name and the functions of NVML. It has two GPUs. GPU N is busy for 40 + N percent of the time, and
// process 1000 + N uses it.

#include <cstdint>

#include "master/inspect/nvml.hpp"

namespace {
using syncrun::detail::master::inspect::NvmlProcess;
using syncrun::detail::master::inspect::NvmlUtilization;

unsigned number_of(void* gpu) { return static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(gpu) - 1); }
}  // namespace

extern "C" {

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** gpu) {
  *gpu = reinterpret_cast<void*>(std::uintptr_t{index} + 1);
  return 0;
}
int nvmlDeviceGetUtilizationRates(void* gpu, NvmlUtilization* use) {
  *use = {40 + number_of(gpu), 0};
  return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* gpu, unsigned* count, NvmlProcess* processes) {
  if (*count == 0) return 7;
  *count = 1;
  *processes = {1000 + number_of(gpu), 0, 0, 0};
  return 0;
}

}  // extern "C"
