#include "master/settings/last_line.hpp"

#include <cstdio>

#include "common/protocol/supervisor_link.hpp"
#include "common/text/joined.hpp"
#include "common/text/log.hpp"
#include "master/devices/host_part.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail::master::settings {

namespace {

protocol::FailureDetails details_of(const Error& error) {
  const Failure& failure = error.failure();
  protocol::FailureDetails details{{"kind", std::string(to_string(error.kind()))}};
  const auto add = [&details](const char* name, const std::string& value) {
    if (!value.empty()) details.emplace_back(name, value);
  };
  // On several nodes, the name of the node stands before that of the device.
  const std::size_t colon = failure.device.find(':');
  const bool has_node = colon != std::string::npos;
  if (failure.rank >= 0) add("rank", std::to_string(failure.rank));
  add("device", has_node ? failure.device.substr(colon + 1) : failure.device);
  add("node", has_node                  ? failure.device.substr(0, colon)
              : !failure.node.empty()   ? failure.node
              : !failure.device.empty() ? devices::own_host_name()
                                        : "");
  if (failure.pid != 0) add("pid", std::to_string(failure.pid));
  add("call", failure.call);
  add("phase", failure.phase);
  add("cause", failure.cause);
  add("stack", text::joined(failure.stack, "\n"));  // of a crash; after a deadline, the rank has it
  for (const RankState& state : failure.ranks) {
    if (state.rank == failure.rank) add("stack", text::joined(state.stack, "\n"));
  }
  add("last_stderr", text::joined(failure.last_stderr, "\n"));
  return details;
}

}  // namespace

void report_details(const std::exception& error) noexcept {
  if (!protocol::supervisor_link().is_connected()) return;
  try {
    const auto* const own = dynamic_cast<const Error*>(&error);
    const auto details = own == nullptr ? protocol::FailureDetails{{"kind", "exception"}} : details_of(*own);
    protocol::supervisor_link().send({protocol::SupervisorMessage::Kind::details, 0, protocol::encoded(details)});
  } catch (const std::exception&) {
    // Without details, the error is still reported.
  }
}

void report_last_line(const std::string& verdict) noexcept {
  const bool is_printed_there =
      protocol::supervisor_link().send({protocol::SupervisorMessage::Kind::verdict, 0, verdict});
  if (is_printed_there) return;
  std::fputs(text::own_line(LogLevel::error, verdict).c_str(), stderr);
}

}  // namespace syncrun::detail::master::settings
