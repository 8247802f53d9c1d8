#pragma once

// The system as the checks of `syncrun doctor` see it: files, limits, GPUs and other programs. Tests give the checks a
// system of their own.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace syncrun::detail::master::doctor {

struct Gpu {
  std::string name{};
  std::string pci_address{};  ///< As in /sys/bus/pci/devices: "0000:3b:00.0".
  std::uint64_t memory_bytes = 0;
  int major = 0;  ///< Compute capability.
  int minor = 0;
  int nvlinks = 0;  ///< That are active.
};

/// How two GPUs reach each other.
struct GpuPair {
  bool has_peer_access = false;
  bool has_nvlink = false;
  std::string path{};  ///< What is between them: "PIX", "NODE", "SYS", ..., as nvidia-smi topo -m names it.
};

struct Gpus {
  std::vector<Gpu> devices{};
  std::vector<std::vector<GpuPair>> pairs{};
  std::string driver{};       ///< Its version. Empty: no driver.
  int driver_cuda = 0;        ///< The newest CUDA that it supports: 12040 is 12.4.
  std::string why_unknown{};  ///< Why the driver did not answer. Empty if it did, or if there is none.
};

struct Space {
  std::uint64_t bytes = 0;
  std::uint64_t free_bytes = 0;
};

/// Limits of the process (ulimit). Empty: unlimited.
struct Limits {
  using Limit = std::optional<std::uint64_t>;
  Limit open_files{};
  Limit processes{};
  Limit locked_bytes{};
  Limit core_bytes{};
  Limit address_space_bytes{};
  Limit file_bytes{};
};

/// Something that is missing, and what to do.
struct Missing {
  std::string why{};
  std::string advice{};
};

struct System {
  std::string root{};  ///< Before the paths of /proc and /sys. Empty for the real ones.
  uid_t user = 0;
  std::vector<int> cores{};  ///< That this process may use.
  Limits limits{};
  Gpus gpus{};
  Missing stacks{};  ///< Why stacks cannot be read. Empty if they can.
  std::function<std::optional<Space>(const std::string& folder)> space{};
  /// The output of a program. Empty if it could not be run, or failed.
  std::function<std::string(const std::vector<std::string>& command)> run{};
  std::function<const char*(const char* name)> variable{};

  /// The text of a file below the root, without the newline at its end. Empty if it cannot be read.
  std::string text(const std::string& path) const;
  /// A number in a file. Empty if the file has none: it is missing, or says "max".
  std::optional<std::int64_t> number(const std::string& path) const;
  /// What a link leads to. Empty if it cannot be read.
  std::string target(const std::string& link) const;
  /// The names in a folder, sorted.
  std::vector<std::string> names(const std::string& folder) const;
};

/// The real one.
System this_system();

/// Asks the driver, through NVML. Does not initialise CUDA.
Gpus ask_driver_for_gpus();

}  // namespace syncrun::detail::master::doctor
