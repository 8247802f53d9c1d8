#include "launcher/calls/in_flight.hpp"

namespace syncrun::detail {

void InFlight::reset() noexcept {
  result = nullptr;
  kept_result.reset();
  function.reset();
  for (std::size_t i = 0; i < arguments_count; ++i) arguments[i].reset();
  arguments_count = 0;
  temporaries.clear();
  dependencies.clear();
  inherited = nullptr;
  made.clear();
  constructed.reset();
  fetched = 0;
  brings_to = Destination::none();
  what = "";
  subject.clear();
  writes.clear();
}

std::string InFlight::name() const {
  if (function) return function->name;
  return subject.empty() ? what : what + (" of " + subject);
}

std::vector<std::shared_ptr<WriteLog>> InFlight::written() const {
  std::vector<std::shared_ptr<WriteLog>> logs;
  if (!function) return logs;
  for (std::size_t i = 0; i < arguments_count; ++i) {
    if (!is_written(function->signature.arguments[i].kind)) continue;
    const auto variable = std::static_pointer_cast<VariableRecord>(arguments[i]);
    logs.emplace_back(variable, &variable->writes);
  }
  if (function->object && function->writes_object) logs.emplace_back(function->object, &function->object->writes);
  return logs;
}

bool InFlight::uses(const void* record) const noexcept {
  const auto* const end = arguments.begin() + static_cast<std::ptrdiff_t>(arguments_count);
  if (std::any_of(arguments.begin(), end, [&](const auto& argument) { return argument.get() == record; })) return true;
  if (std::any_of(made.begin(), made.end(), [&](const auto& value) { return value.get() == record; })) return true;
  return function && function->object.get() == record;
}

}  // namespace syncrun::detail
