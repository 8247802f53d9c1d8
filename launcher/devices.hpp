#pragma once

// Which devices a job runs on: from what the user wrote to one device per rank. Used by `syncrun`, which
// checks the command line before anything starts, and by the master. Makes no CUDA call.

#include <string>
#include <string_view>
#include <vector>

#include "common/environment.hpp"
#include "syncrun/detail/call.hpp"

namespace syncrun::detail {

struct DeviceId {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;
  friend bool operator==(const DeviceId&, const DeviceId&) = default;
};

/// "cpu3", "cuda0".
std::string to_string(const DeviceId& device);

/// Who runs where, in one line: "rank 0 on cpu4, rank 1 on cpu2"; neighbours that count up together are put as
/// "ranks 0 to 7 on cpu0 to cpu7".
std::string describe_mapping(const std::vector<DeviceId>& devices);

/// Where the user wrote a choice of devices, for messages.
struct DevicesSource {
  std::string_view devices;
  std::string_view processes;
};
inline constexpr DevicesSource kFromCommandLine{"--devices", "-n"};
inline constexpr DevicesSource kFromEnvironment{environment::kDevices, environment::kProcesses};
inline constexpr DevicesSource kFromProgram{"SessionOptions::devices", "SessionOptions::processes"};

/// The devices by rank. `devices_text` ("cpu0,cpu3") is taken as it stands; where it is empty
/// `processes_text` decides: "N" (the first N GPUs, or N CPU workers where no GPU is visible), "cpu" (one
/// worker per usable core), "gpu" (every visible one), "auto" or empty (every GPU, else as "cpu"). More CPU
/// workers than cores are allowed. Throws Error (usage) that names the source, what was expected and what was got.
std::vector<DeviceId> resolve_devices(std::string_view devices_text, std::string_view processes_text,
                                      const DevicesSource& source);

/// Whether this build has CUDA devices at all.
bool cuda_is_built() noexcept;

/// GPUs a CUDA program started now would see: by the driver's device files and CUDA_VISIBLE_DEVICES. The
/// driver itself is not asked: a process that has initialised CUDA can no longer fork.
int visible_gpus();

/// The same for `physical` GPUs and a value of CUDA_VISIBLE_DEVICES (null: not set). As in CUDA the list ends
/// at the first entry that names no GPU.
int count_visible_gpus(const char* visible_devices, int physical) noexcept;

}  // namespace syncrun::detail
