#pragma once

// What a worker checks of its GPU before it uses it. The code here does not need CUDA.

#include <string>
#include <string_view>

namespace syncrun::detail::worker::devices::cuda {

/// Throws Error (usage) unless CUDA shows the GPU of this name ("cuda1") to the process. `shown` is how many it shows. The
/// master counts the GPUs by the driver's files and by CUDA_VISIBLE_DEVICES, whose value is `visible_devices` (null: not
/// set). CUDA shows fewer if a name there is wrong, and if a GPU is divided into MIG instances.
void require_shown(const std::string& device, int shown, const char* visible_devices);

/// The kind of a GPU.
struct ComputeCapability {
  int major = 0;
  int minor = 0;
  std::string text() const { return std::to_string(major) + "." + std::to_string(minor); }
};

/// Whether code for these architectures runs on a GPU. The list has the form of CMAKE_CUDA_ARCHITECTURES, with a comma or
/// a semicolon between its entries: "80", "90a-real", "100-virtual". Code for a GPU also runs on GPUs of the same major
/// version with a higher minor version. An entry without "-real" has code that the driver translates for any later GPU. An
/// entry that is no number, such as "native", counts as suitable.
bool runs_on(std::string_view architectures, const ComputeCapability& gpu);

/// Throws Error (usage) unless this Syncrun, which has code for these architectures, runs on the GPU.
void require_code(const std::string& device, const ComputeCapability& gpu, std::string_view architectures);

/// What to do if CUDA refuses to use a GPU at the start of a worker, by the number of the error. Empty if nothing is known.
std::string_view advice_at_start(int cuda_error) noexcept;

/// Whether processes with other GPUs can copy from the memory of a GPU.
struct ExportFacts {
  bool can_export;       // CUDA can make a handle of the memory, which it cannot for some virtual GPUs
  bool is_exclusive;     // only one process may have a context on the GPU
  bool others_reach_it;  // the other GPUs of this machine can read its memory. If not, they need a context on it
};
constexpr bool is_open_to_peers(const ExportFacts& gpu) noexcept {
  return gpu.can_export && (gpu.others_reach_it || !gpu.is_exclusive);
}

}  // namespace syncrun::detail::worker::devices::cuda
