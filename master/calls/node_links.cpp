#include "master/calls/node_links.hpp"

#include <algorithm>

#include "common/text/fixed_text.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail::master::calls {

namespace {

/// A firewall that drops packets costs the first call this time.
constexpr os::Milliseconds kLimit{2000};
/// Each leader is connected to all others.
constexpr int kMostNodes = 64;

}  // namespace

bool NodeLinks::are_useful(const protocol::RankSet& ranks) {
  if (!options_.are_allowed || commands_.comms().are_linked() || !commands_.devices().span_nodes(ranks)) return false;
  return commands_.comms().choose(ranks) == protocol::CommChoice::nodes() && commands_.comms().may_be_linked(ranks);
}

bool NodeLinks::is_a_call_running() const {
  const CommandTable& calls = commands_.calls();
  return std::any_of(calls.entries().begin(), calls.entries().end(), [&](const CommandTable::Entry& entry) {
    return calls.command(entry.id).kind == protocol::CommandKind::call && !calls.is_complete(entry.id);
  });
}

void NodeLinks::prepare(const protocol::RankSet& ranks) {
  if (!are_useful(ranks) || is_a_call_running()) return;
  const protocol::RankSet leaders = commands_.devices().leaders_of(commands_.all_ranks());
  if (leaders.count() > kMostNodes) options_.are_allowed = false;
  else connect(leaders);
}

void NodeLinks::connect(const protocol::RankSet& leaders) {
  const HeapLoan answers(commands_, static_cast<std::size_t>(commands_.world_size()) * sizeof(protocol::ConnectAnswer),
                         "answers about connections");
  commands_.run_system(commands_.settle(leaders), "connect", "nodes", [&](protocol::CommandHead& command, InFlight&) {
    command.has_comm = true;
    command.comm = protocol::CommChoice::nodes();
    auto& request = command.begin<protocol::ConnectPayload>();
    request.answers = answers.offset();
    request.limit_ms = kLimit.count();
    if (command.timeout_ms != 0) request.limit_ms = std::min(request.limit_ms, command.timeout_ms / 4);
    request.silence_ms = options_.silence.count();
    text::put_text(request.interface, options_.interface);
  });
  const auto* const by_rank = commands_.segment().at<const protocol::ConnectAnswer>(answers.offset());
  const std::string problem(text::get_text(by_rank[leaders.first()].problem));
  if (problem.empty()) return commands_.comms().set_linked(leaders);
  options_.are_allowed = false;
  logger_.warn(problem + ". So collectives between hosts pass through the master and the agents, which takes longer. " +
               "SYNCRUN_NODE_LINKS=INTERFACE names the network, and SYNCRUN_NODE_LINKS=off is this without a warning");
}

}  // namespace syncrun::detail::master::calls
