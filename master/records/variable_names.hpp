#pragma once

// The shared variables by name. Names are unique among the variables that exist.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "master/records/records.hpp"

namespace syncrun::detail::master::records {

class VariableNames {
 public:
  bool is_taken(std::string_view name) const { return find(name) != nullptr; }
  void add(const std::shared_ptr<VariableRecord>& variable);
  /// Null if no variable has this name.
  std::shared_ptr<VariableRecord> find(std::string_view name) const;
  /// Throws Error (usage) if no variable has this name. The message lists the names that exist. `what` names the
  /// caller.
  std::shared_ptr<VariableRecord> get(std::string_view name, const char* what) const;

 private:
  std::map<std::string, std::weak_ptr<VariableRecord>, std::less<>> variables_;
};

}  // namespace syncrun::detail::master::records
