#pragma once

// Tells a nursery how to start helper processes: the producers of a queue, or a task.

#include <atomic>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/os/file_descriptor.hpp"
#include "master/process/child_watcher.hpp"

namespace syncrun::detail::master::helper_processes {

using Variables = std::vector<std::pair<std::string, std::string>>;

/// Throw Error (usage) that names the option. The name of a variable must not be empty or contain '='. A name of a
/// helper must be one short line.
void check_variables(const Variables& variables, std::string_view option);
void check_name(const std::string& name, std::string_view option);

/// The settings that all helpers of one nursery share.
struct HelperPlan {
  int count = 1;
  os::KeptDescriptor spec;     // describes the work, see common/protocol/helper_spec.hpp
  Variables environment;       // from the program
  Variables variables;         // from Syncrun, besides those that every helper gets
  std::vector<int> inherited;  // descriptors, besides the spec
};

class HelperWatcher : public process::ChildWatcher {
 public:
  explicit HelperWatcher(HelperPlan plan);
  int size() const override { return plan_.count; }
  process::SpawnRequest request_for(int child, const Ends& ends) const override;
  void on_start(int child, pid_t pid) noexcept override { pids_[static_cast<std::size_t>(child)].store(pid); }

  /// Returns -1 before the helper has been started. The number stays after its death.
  int pid(int child) const noexcept { return pids_[static_cast<std::size_t>(child)].load(); }

 private:
  HelperPlan plan_;
  std::vector<std::atomic<int>> pids_;
};

}  // namespace syncrun::detail::master::helper_processes
