#include "master/records/variable_names.hpp"

#include "common/arrays/extents.hpp"
#include "common/text/errors.hpp"

namespace syncrun::detail::master::records {

void VariableNames::add(const std::shared_ptr<VariableRecord>& variable) {
  std::erase_if(variables_, [](const auto& entry) { return entry.second.expired(); });
  variables_.insert_or_assign(variable->name, variable);
}

std::shared_ptr<VariableRecord> VariableNames::find(std::string_view name) const {
  const auto found = variables_.find(name);
  return found == variables_.end() ? nullptr : found->second.lock();
}

std::shared_ptr<VariableRecord> VariableNames::get(std::string_view name, const char* what) const {
  if (auto variable = find(name)) return variable;
  std::string known;
  for (const auto& [other, reference] : variables_) {
    const auto variable = reference.lock();
    if (!variable) continue;
    known += (known.empty() ? "'" : ", '") + other + "' (" +
             arrays::describe_type(variable->dtype, variable->dimensions) + ")";
  }
  text::throw_usage(std::string(what) + ": no shared variable is named '" + std::string(name) + "'; " +
                    (known.empty() ? "none has a name" : "there are " + known));
}

}  // namespace syncrun::detail::master::records
