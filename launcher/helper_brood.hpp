#pragma once

// Helper processes as a nursery sees them: the producers of a queue, or a task.

#include <atomic>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/file_descriptor.hpp"
#include "launcher/brood.hpp"

namespace syncrun::detail {

using Variables = std::vector<std::pair<std::string, std::string>>;

/// Throw Error (usage) that names the option: variables have names without '=', a name is one short line.
void check_variables(const Variables& variables, std::string_view option);
void check_name(const std::string& name, std::string_view option);

/// What is the same for all of them.
struct HelperPlan {
  int count = 1;
  KeptDescriptor order;        // see common/helper_order.hpp
  Variables environment;       // the program's
  Variables variables;         // ours, besides those of every helper
  std::vector<int> inherited;  // besides the order
};

class HelperBrood : public Brood {
 public:
  explicit HelperBrood(HelperPlan plan);
  int size() const override { return plan_.count; }
  SpawnRequest request_for(int child, const Ends& ends) const override;
  void on_birth(int child, pid_t pid) noexcept override { pids_[static_cast<std::size_t>(child)].store(pid); }

  /// -1 before its birth. Stays after its death.
  int pid(int child) const noexcept { return pids_[static_cast<std::size_t>(child)].load(); }

 private:
  HelperPlan plan_;
  std::vector<std::atomic<int>> pids_;
};

}  // namespace syncrun::detail
