#include "master/calls/node_links.hpp"

#include <algorithm>
#include <utility>

#include "common/text/fixed_text.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail::master::calls {

namespace {

/// A firewall that drops packets costs the first call this time.
constexpr os::Milliseconds kLimit{2000};
/// Each leader is connected to all others.
constexpr int kMostNodes = 64;

}  // namespace

NodeLinks::NodeLinks(SystemCommands& commands, text::Logger& logger, std::string interface, os::Milliseconds silence)
    : commands_(commands),
      logger_(logger),
      interface_(std::move(interface)),
      silence_(silence),
      leaders_(commands.devices().leaders()),
      tries_left_(leaders_.count() > kMostNodes || commands.devices().kinds().has(DeviceKind::cuda) ? 0 : kTries) {}

bool NodeLinks::is_a_call_running() const {
  const CommandTable& calls = commands_.calls();
  return std::any_of(calls.entries().begin(), calls.entries().end(), [&](const CommandTable::Entry& entry) {
    return calls.command(entry.id).kind == protocol::CommandKind::call && !calls.is_complete(entry.id);
  });
}

/// A failure to connect does not fail the call of the program.
void NodeLinks::prepare(const protocol::RankSet& ranks) {
  if (tries_left_ == 0 || commands_.comms().are_linked() || ranks != leaders_ || is_a_call_running()) return;
  const std::uint64_t replacements = commands_.replacements();
  std::string problem;
  try {
    problem = connect();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::worker_lost || !commands_.is_open()) throw;
    problem = error.what();
  }
  if (commands_.replacements() != replacements) return;  // a new worker has no connections
  if (problem.empty()) {
    tries_left_ = kTries;
    return commands_.comms().set_linked(leaders_);
  }
  if (--tries_left_ != 0) return;
  logger_.warn(problem + ". So collectives between hosts pass through the master and the agents, which takes longer. " +
               "SYNCRUN_NODE_LINKS=INTERFACE names the network, and SYNCRUN_NODE_LINKS=off is this without a warning");
}

/// Returns why the ranks could not connect, or an empty text.
std::string NodeLinks::connect() {
  const HeapLoan answers(commands_, static_cast<std::size_t>(commands_.world_size()) * sizeof(protocol::ConnectAnswer),
                         "answers about connections");
  commands_.run_system(commands_.settle(leaders_), "connect", "nodes", [&](protocol::CommandHead& command, InFlight&) {
    command.has_comm = true;
    command.comm = protocol::CommChoice::nodes();
    auto& request = command.begin<protocol::ConnectPayload>();
    request.answers = answers.offset();
    request.limit_ms = kLimit.count();
    if (command.timeout_ms != 0)
      request.limit_ms = std::clamp<std::int64_t>(command.timeout_ms / 4, 1, request.limit_ms);
    request.silence_ms = silence_.count();
    text::put_text(request.interface, interface_);
  });
  const auto* const by_rank = commands_.segment().at<const protocol::ConnectAnswer>(answers.offset());
  return std::string(text::get_text(by_rank[leaders_.first()].problem));
}

}  // namespace syncrun::detail::master::calls
