#include "master/inspect/gpu_use.hpp"

#include <array>
#include <charconv>
#include <optional>
#include <string_view>

#include "common/code/optional_library.hpp"
#include "master/inspect/nvml.hpp"

namespace syncrun::detail::master::inspect {

namespace {

constexpr int kSuccess = 0;
constexpr unsigned kMostProcesses = 256;

/// The GPU that a process sees under this number, if CUDA_VISIBLE_DEVICES has numbers: 3 for 1 in "2,3".
std::optional<int> number_in(std::string_view visible, int number) {
  if (visible.empty()) return number;
  for (; number > 0; --number) {
    const auto comma = visible.find(',');
    if (comma == std::string_view::npos) return std::nullopt;
    visible.remove_prefix(comma + 1);
  }
  int gpu = -1;
  const char* const end = visible.data() + visible.substr(0, visible.find(',')).size();
  const auto [last, error] = std::from_chars(visible.data(), end, gpu);
  return error == std::errc() && last == end ? std::optional(gpu) : std::nullopt;
}

}  // namespace

struct Nvml {
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*handle)(unsigned, void**) = nullptr;
  int (*utilization)(void*, NvmlUtilization*) = nullptr;
  int (*processes)(void*, unsigned*, NvmlProcess*) = nullptr;
};

GpuUse::GpuUse() {
  auto nvml = std::make_unique<Nvml>();
  code::OptionalLibrary library("libnvidia-ml.so.1");
  library.find(nvml->init, "nvmlInit_v2");
  library.find(nvml->shutdown, "nvmlShutdown");
  library.find(nvml->count, "nvmlDeviceGetCount_v2");
  library.find(nvml->handle, "nvmlDeviceGetHandleByIndex_v2");
  library.find(nvml->utilization, "nvmlDeviceGetUtilizationRates");
  library.find(nvml->processes, "nvmlDeviceGetComputeRunningProcesses_v3");
  if (!library.has_all() || nvml->init() != kSuccess) return;
  nvml_ = std::move(nvml);
  unsigned count = 0;
  if (nvml_->count(&count) != kSuccess) return;
  for (unsigned i = 0; i < count; ++i) {
    void* gpu = nullptr;
    if (nvml_->handle(i, &gpu) != kSuccess) gpu = nullptr;
    gpus_.push_back(gpu);
  }
  percent_.assign(gpus_.size(), -1);
}

GpuUse::~GpuUse() {
  if (nvml_) nvml_->shutdown();
}

void GpuUse::look() {
  gpu_of_process_.clear();
  for (std::size_t i = 0; i < gpus_.size(); ++i) {
    NvmlUtilization use{};
    percent_[i] =
        gpus_[i] != nullptr && nvml_->utilization(gpus_[i], &use) == kSuccess ? static_cast<int>(use.gpu) : -1;
    std::array<NvmlProcess, kMostProcesses> processes{};
    unsigned count = kMostProcesses;
    if (gpus_[i] == nullptr || nvml_->processes(gpus_[i], &count, processes.data()) != kSuccess) continue;
    for (unsigned p = 0; p < count; ++p) {
      gpu_of_process_.emplace(static_cast<int>(processes[p].pid), static_cast<int>(i));
    }
  }
}

int GpuUse::percent_of(int pid, const std::string& device, const std::string& visible) const {
  constexpr std::string_view kCuda = "cuda";
  if (!device.starts_with(kCuda)) return -1;
  int number = -1;
  std::from_chars(device.data() + kCuda.size(), device.data() + device.size(), number);
  auto gpu = number_in(visible, number);
  if (const auto named = gpu_of_process_.find(pid); !gpu && named != gpu_of_process_.end()) gpu = named->second;
  const bool is_there = gpu && *gpu >= 0 && *gpu < static_cast<int>(percent_.size());
  return is_there ? percent_[static_cast<std::size_t>(*gpu)] : -1;
}

}  // namespace syncrun::detail::master::inspect
