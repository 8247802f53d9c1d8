#include "worker/devices/cuda/gpu_support.hpp"

#include <algorithm>
#include <charconv>

#include "common/text/errors.hpp"

namespace syncrun::detail::worker::devices::cuda {

namespace {

/// One architecture of a list.
bool entry_runs_on(std::string_view entry, const ComputeCapability& gpu) {
  int number = 0;
  const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), number);
  if (error != std::errc()) return true;
  const int own = gpu.major * 10 + gpu.minor;
  const std::string_view rest(end, static_cast<std::size_t>(entry.data() + entry.size() - end));
  const bool is_specific = rest.starts_with('a');  // for this GPU alone
  const bool is_family = rest.starts_with('f');    // for this major version
  if (is_specific) return number == own;
  if (own < number) return false;
  return number / 10 == gpu.major || (!is_family && !rest.ends_with("-real"));
}

}  // namespace

void require_shown(const std::string& device, int shown, const char* visible_devices) {
  int index = 0;
  std::from_chars(device.data() + std::string_view("cuda").size(), device.data() + device.size(), index);
  if (index < shown) return;
  text::throw_usage(
      "CUDA shows " + std::to_string(shown) + (shown == 1 ? " GPU" : " GPUs") + " to this process, expected at least " +
      std::to_string(index + 1) + " for " + device +
      (visible_devices == nullptr ? "; CUDA_VISIBLE_DEVICES is not set"
                                  : "; CUDA_VISIBLE_DEVICES is '" + std::string(visible_devices) + "'") +
      ". Compare it with what nvidia-smi -L prints. Of GPUs that are divided into MIG instances, CUDA shows a "
      "process only one instance: run one worker (-n 1) for each of them");
}

bool runs_on(std::string_view architectures, const ComputeCapability& gpu) {
  for (;;) {
    const auto end = architectures.find_first_of(",;");
    if (entry_runs_on(architectures.substr(0, end), gpu)) return true;
    if (end == std::string_view::npos) return false;
    architectures.remove_prefix(end + 1);
  }
}

void require_code(const std::string& device, const ComputeCapability& gpu, std::string_view architectures) {
  if (runs_on(architectures, gpu)) return;
  constexpr int kLeast = 7;  // what the kernels need: atomic operations with an order
  const std::string number = std::to_string(gpu.major) + std::to_string(gpu.minor);
  const std::string advice = gpu.major < kLeast ? "Syncrun supports GPUs from compute capability 7.0 on"
                                                : "Build Syncrun with -DCMAKE_CUDA_ARCHITECTURES=" + number;
  const bool is_old = gpu.major == kLeast && gpu.minor < 5;
  text::throw_usage(device + " has compute capability " + gpu.text() +
                    ", and this Syncrun has code for the architectures " + std::string(architectures) + ". " + advice +
                    (is_old ? " (CUDA 12 is the last version that compiles for it)" : "") +
                    ", or choose other devices");
}

std::string_view advice_at_start(int cuda_error) noexcept {
  switch (cuda_error) {
    case 35:  // cudaErrorInsufficientDriver
      return ". Update the driver, or build Syncrun with an older CUDA";
    case 46:  // cudaErrorDevicesUnavailable
      return ". Another process uses this GPU in exclusive mode, or computing on it is prohibited: nvidia-smi -q -d "
             "COMPUTE shows the mode, and nvidia-smi -c DEFAULT changes it";
    case 802:  // cudaErrorSystemNotReady
      return ". On machines with NVSwitch, the service nvidia-fabricmanager must run, in the version of the driver";
    default: return "";
  }
}

}  // namespace syncrun::detail::worker::devices::cuda
