#pragma once

// How busy the GPUs of this machine are, from NVIDIA's library NVML, which comes with the driver. Syncrun loads it only for
// `syncrun top`.

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace syncrun::detail::master::inspect {

struct Nvml;  // the functions of the library

class GpuUse {
 public:
  /// Nothing is known if there is no library or no GPU.
  GpuUse();
  ~GpuUse();
  GpuUse(const GpuUse&) = delete;
  GpuUse& operator=(const GpuUse&) = delete;

  bool is_known() const noexcept { return !gpus_.empty(); }
  /// Reads how busy each GPU is, and which processes use it.
  void look();
  /// How busy the GPU of this process is, in percent. -1 if that is not known. `device` ("cuda1") and `visible` (the
  /// CUDA_VISIBLE_DEVICES of the process) say which GPU it is. If `visible` has no numbers, the driver's list of processes
  /// says it.
  int percent_of(int pid, const std::string& device, const std::string& visible) const;

 private:
  std::unique_ptr<Nvml> nvml_;
  std::vector<void*> gpus_;
  std::vector<int> percent_;           // by GPU
  std::map<int, int> gpu_of_process_;  // by pid
};

}  // namespace syncrun::detail::master::inspect
