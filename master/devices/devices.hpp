#pragma once

// Determines the device of each rank from the user's choice. `syncrun` uses this to check the command line before
// anything starts, and the master uses it too. Makes no CUDA call.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/os/environment.hpp"
#include "master/devices/chosen_devices.hpp"

namespace syncrun::detail::master::devices {

/// The device of each rank in one line: "rank 0 on cpu4, rank 1 on cpu2". Three or more ranks whose devices have
/// consecutive numbers are combined: "ranks 0 to 7 on cpu0 to cpu7".
/// `devices` are those of consecutive ranks, which begin with `first_rank`.
std::string describe_mapping(std::span<const DeviceId> devices, int first_rank = 0);

/// Says that there are far more CPU workers than cores (`cores`), which is allowed but rarely meant. Empty if not.
std::string describe_crowd(std::span<const DeviceId> devices, int cores);

/// The names of the options by which the user has chosen devices, for messages.
struct DevicesSource {
  std::string_view devices;
  std::string_view processes;
};
inline constexpr std::string_view kContextsSource = environment::kContexts;
inline constexpr DevicesSource kFromCommandLine{"--devices", "-n"};
inline constexpr DevicesSource kFromEnvironment{environment::kDevices, environment::kProcesses};
inline constexpr DevicesSource kFromProgram{"SessionOptions::devices", "SessionOptions::processes"};

/// Returns the devices by rank, with their names. If `devices_text` is not empty ("cpu0,cpu3", "dev0=cpu0"), it is the
/// list (see device_list.hpp). Otherwise `processes_text` decides, and no device has a name:
///   "N"              the first N GPUs, or N CPU workers if no GPU is visible
///   "cpu"            one worker per usable core
///   "gpu"            every visible GPU
///   "auto" or empty  every visible GPU, or as "cpu" if there is none
///
/// More CPU workers than cores are allowed. Throws Error (usage) that names the source, what was expected and what was
/// got.
ChosenDevices resolve_devices(std::string_view devices_text, std::string_view processes_text,
                              const DevicesSource& source);

/// Returns a number of workers, or throws Error (usage). `option` is where the text is from. This machine need not have as
/// many devices.
int check_count(std::string_view option, std::string_view text);

/// A choice of devices as the user has written it. The first member that is not empty decides.
struct DevicesChoice {
  std::string devices{};    // a list
  std::string processes{};  // a number of workers, or a word for it
  std::string contexts{};   // a list in Theano's form; only a variable can contain one
  bool is_made() const noexcept { return !devices.empty() || !processes.empty() || !contexts.empty(); }
};

/// The choice that the variables of the environment make. A program with raised privileges ignores them.
DevicesChoice choice_from_environment();

/// The name of the option or variable that decides. Call it only if a choice is made.
std::string_view deciding_source(const DevicesChoice& choice, const DevicesSource& source) noexcept;

/// Returns the devices of a choice, which may be empty. Throws as the function above.
ChosenDevices resolve_devices(const DevicesChoice& choice, const DevicesSource& source);

/// Checks that each GPU of a list exists, if `visible` GPUs are visible. CPU devices may be in the list too. `option`
/// is the option or variable that contains the list. Throws Error (usage).
void check_gpus(const std::vector<DeviceId>& devices, std::string_view option, int visible);

/// True if this build supports CUDA devices.
bool cuda_is_built() noexcept;

/// The number of GPUs that a CUDA program would see if it started now. Reads the device files of the driver and
/// CUDA_VISIBLE_DEVICES. Does not ask the driver itself, because a process that has initialised CUDA can no longer
/// fork.
int visible_gpus();

/// The same for `physical` GPUs and a value of CUDA_VISIBLE_DEVICES (null: not set). As in CUDA, the list ends at the
/// first entry that names no GPU, and of MIG instances only the first one counts. Names of GPUs are not checked here: a
/// worker whose GPU CUDA does not show says so.
int count_visible_gpus(const char* visible_devices, int physical) noexcept;

}  // namespace syncrun::detail::master::devices
