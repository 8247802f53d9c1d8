#include "master/calls/in_flight.hpp"

namespace syncrun::detail::master::calls {

void InFlight::reset() noexcept {
  result = nullptr;
  kept_result.reset();
  function.reset();
  for (std::size_t i = 0; i < arguments_count; ++i) {
    arguments[i].data.reset();
    arguments[i].variable.reset();
  }
  arguments_count = 0;
  host_copy.reset();
  temporaries.clear();
  dependencies.clear();
  inherited = nullptr;
  made.clear();
  constructed.reset();
  fetched = 0;
  brings_to = records::Destination::none();
  what = "";
  subject.clear();
  writes.clear();
}

std::string InFlight::name() const {
  if (function) return function->name;
  return subject.empty() ? what : what + (" of " + subject);
}

std::vector<std::shared_ptr<records::WriteLog>> InFlight::written() const {
  std::vector<std::shared_ptr<records::WriteLog>> logs;
  if (!function) return logs;
  for (std::size_t i = 0; i < arguments_count; ++i) {
    if (!records::is_written(function->signature.arguments[i].kind)) continue;
    logs.emplace_back(arguments[i].variable, &arguments[i].variable->writes);
  }
  if (function->object && function->writes_object) logs.emplace_back(function->object, &function->object->writes);
  return logs;
}

bool InFlight::uses(const void* record) const noexcept {
  const auto* const end = arguments.begin() + static_cast<std::ptrdiff_t>(arguments_count);
  const auto refers = [&](const Argument& one) { return one.data.get() == record || one.variable.get() == record; };
  if (std::any_of(arguments.begin(), end, refers)) return true;
  if (std::any_of(made.begin(), made.end(), [&](const auto& value) { return value.get() == record; })) return true;
  return function && function->object.get() == record;
}

}  // namespace syncrun::detail::master::calls
