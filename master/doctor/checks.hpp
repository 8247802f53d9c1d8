#pragma once

// The checks of `syncrun doctor`. Each looks at one thing, and returns what it has found.

#include <string>
#include <vector>

#include "master/doctor/finding.hpp"
#include "master/doctor/system.hpp"

namespace syncrun::detail::master::doctor {

using Findings = std::vector<Finding>;

// ---- devices (hardware.cpp)
Findings check_cpus(const System& system);
Findings check_gpus(const System& system);
Findings check_gpu_links(const System& system);

// ---- limits (limits.cpp)
Findings check_memory(const System& system);
Findings check_cpu_quota(const System& system);
Findings check_process_limits(const System& system);
Findings check_shared_folder(const System& system);
Findings check_debugging(const System& system);

// ---- processes (leftovers.cpp)
/// Processes of this user that belong to a job whose master has ended.
Findings check_leftovers(const System& system);

// ---- versions (versions.cpp)
/// The versions of the libraries that this Syncrun was built with. Empty: built without it.
struct BuiltWith {
  std::string cuda{};
  std::string nccl{};
  std::string cudnn{};
};
BuiltWith built_with();
/// The version of a library as it says itself when it is loaded: "2.28.9". Empty if it cannot be loaded.
using LoadedVersion = std::string (*)(const std::string& library);
std::string loaded_version(const std::string& library);

Findings check_cuda_versions(const System& system, const BuiltWith& built, LoadedVersion loaded);
/// Whether the plugin libraries of Syncrun in `folder` find the libraries that they need.
Findings check_plugins(const System& system, const std::string& folder);
Findings check_mpi(const System& system);
Findings check_hwloc();

/// "8.4 GB". A GB is 10^9 bytes.
std::string in_bytes(std::uint64_t bytes);

}  // namespace syncrun::detail::master::doctor
