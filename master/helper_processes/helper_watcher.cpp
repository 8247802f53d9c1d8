#include "master/helper_processes/helper_watcher.hpp"

#include <unistd.h>

#include <algorithm>

#include "common/os/environment.hpp"
#include "common/text/errors.hpp"

namespace syncrun::detail::master::helper_processes {

void check_variables(const Variables& variables, std::string_view option) {
  for (const auto& [name, value] : variables) {
    const bool is_name = !name.empty() && name.find_first_of(std::string("=\0", 2)) == std::string::npos;
    if (is_name && value.find('\0') == std::string::npos) continue;
    text::throw_usage(std::string(option) + " requires names of variables and their values, got '" + name + "' and '" +
                      value + "'");
  }
}

void check_name(const std::string& name, std::string_view option) {
  constexpr std::size_t kLongest = 100;
  const auto is_control = [](unsigned char letter) { return letter < ' '; };
  if (name.size() <= kLongest && std::none_of(name.begin(), name.end(), is_control)) return;
  text::throw_usage(std::string(option) + " requires one line of up to " + std::to_string(kLongest) +
                    " characters, got '" + name + "'");
}

HelperWatcher::HelperWatcher(HelperPlan plan) : plan_(std::move(plan)), pids_(static_cast<std::size_t>(plan_.count)) {
  for (auto& pid : pids_) pid.store(-1);
}

process::SpawnRequest HelperWatcher::request_for(int child, const Ends& ends) const {
  process::SpawnRequest request;
  request.program = process::own_image();
  request.arguments = process::own_arguments();
  request.environment = {
      {environment::kHelper, std::to_string(child)},
      {environment::kMasterPid, std::to_string(::getpid())},
      {environment::kJob, process::job_mark()},
      {environment::kSocketFd, std::to_string(ends.socket)},
      {environment::kSpecFd, std::to_string(plan_.spec.get())},
  };
  for (const auto& variable : plan_.variables) request.environment.push_back(variable);
  // If a name appears twice, getenv takes the first. So Syncrun's own variables have precedence.
  for (const auto& variable : plan_.environment) request.environment.push_back(variable);
  request.unset = {environment::kSupervisorFd};
  request.inherited = plan_.inherited;
  request.inherited.push_back(ends.socket);
  request.inherited.push_back(plan_.spec.get());
  request.standard_output = ends.output;
  request.standard_error = ends.error;
  request.leads_group = true;
  request.holds_stop_signals = true;
  request.dies_earlier_by = process::kDiesEarlierBy;
  return request;
}

}  // namespace syncrun::detail::master::helper_processes
