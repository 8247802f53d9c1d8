// Processes that outlived their job. Each process of a job has a mark in its environment that names its master.

#include <algorithm>
#include <filesystem>

#include "common/os/environment.hpp"
#include "master/doctor/checks.hpp"

namespace syncrun::detail::master::doctor {

namespace {

/// The value of SYNCRUN_JOB in the environment of a process. The kernel shows it to the same user only.
std::string mark_of(const System& system, const std::string& pid) {
  const std::string name = std::string(environment::kJob) + "=";
  const std::string variables = '\0' + system.text("/proc/" + pid + "/environ");
  const auto at = variables.find('\0' + name);
  if (at == std::string::npos) return {};
  const auto begin = at + 1 + name.size();
  return variables.substr(begin, variables.find('\0', begin) - begin);
}

/// A zombie has ended. Its parent has not looked yet.
bool is_alive(const System& system, const std::string& pid) {
  const std::string status = system.text("/proc/" + pid + "/stat");
  const auto end_of_name = status.rfind(')');
  return end_of_name != std::string::npos && end_of_name + 2 < status.size() && status[end_of_name + 2] != 'Z';
}

/// A container may have numbers of its own for processes. What the mark of a process there says is not known here.
bool has_own_numbers(const System& system, const std::string& pid) {
  return system.target("/proc/" + pid + "/ns/pid") != system.target("/proc/self/ns/pid");
}

}  // namespace

Findings check_leftovers(const System& system) {
  std::string pids;
  for (const std::string& pid : system.names("/proc")) {
    if (!environment::whole_number(pid.c_str())) continue;
    const std::string mark = mark_of(system, pid);
    if (mark.empty() || !is_alive(system, pid) || has_own_numbers(system, pid)) continue;
    const std::string master = mark.substr(0, mark.find('-'));
    if (!is_alive(system, master)) pids += (pids.empty() ? "" : " ") + pid;
  }
  if (pids.empty()) return {{Level::ok, "leftover processes", "none"}};
  return {{Level::warning, "leftover processes", "their master has ended: " + pids,
           "if nothing needs them, end them: kill " + pids}};
}

}  // namespace syncrun::detail::master::doctor
