#pragma once

// Shared variables by name: unique among those alive.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "launcher/records.hpp"

namespace syncrun::detail {

class VariableNames {
 public:
  bool is_taken(std::string_view name) const { return find(name) != nullptr; }
  void add(const std::shared_ptr<VariableRecord>& variable);
  /// Null where there is none of that name.
  std::shared_ptr<VariableRecord> find(std::string_view name) const;
  /// Throws Error (usage) with the names there are. `what` asks for it.
  std::shared_ptr<VariableRecord> get(std::string_view name, const char* what) const;

 private:
  std::map<std::string, std::weak_ptr<VariableRecord>, std::less<>> variables_;
};

}  // namespace syncrun::detail
