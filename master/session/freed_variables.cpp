#include "master/session/freed_variables.hpp"

#include <utility>
#include <vector>

#include "common/protocol/variable_entry.hpp"
#include "master/session/session_core.hpp"

namespace syncrun::detail {

namespace {

/// The ranks that may have memory for a copy.
protocol::RankSet ranks_with_memory(const master::records::VariableRecord& variable, const protocol::RankSet& all) {
  if (!variable.value) return all;
  protocol::RankSet ranks;
  for (const int rank : all) {
    if (variable.value->copies[static_cast<std::size_t>(rank)].used != 0) ranks.add(rank);
  }
  return ranks;
}

}  // namespace

master::records::VariableRecord::~VariableRecord() {
  if (!session || !session->is_open()) return;
  // A later entry into the session frees the memory of the workers, since a destructor must not start a command. No
  // command in flight uses the variable, because such a command would hold this record.
  const protocol::RankSet ranks = ranks_with_memory(*this, session->all_ranks());
  const std::uint64_t host = value ? value->host.offset : 0;
  session->registry().free_later({.entry = entry, .host = host, .ranks = ranks});
}

}  // namespace syncrun::detail

namespace syncrun::detail::master::session {

void free_variables(calls::SystemCommands& commands, records::Registry& registry) {
  // While a rank is too busy for another command, the others free many variables at once. A look at all variables in
  // each call of the program would make calls slower.
  const bool has_busy_ranks = commands.calls().blocker(commands.all_ranks()).has_value();
  if (has_busy_ranks && !registry.has_many_freed()) return;
  protocol::RankSet busy;
  for (const int rank : commands.all_ranks()) {
    if (has_busy_ranks && commands.calls().blocker(protocol::RankSet::only(rank))) busy.add(rank);
  }
  const std::vector<records::FreedVariable> freed = registry.take_freed(busy);
  protocol::RankSet ranks;
  std::uint64_t first = 0;
  for (const records::FreedVariable& variable : freed) {
    registry.forget_variable(variable.entry);
    if (variable.host != 0) commands.heap().free(variable.host, os::SharedHeap::Giveback::later);
    if (variable.ranks.is_empty()) {
      commands.heap().free(variable.entry, os::SharedHeap::Giveback::later);
      continue;
    }
    auto& next = commands.segment().at<protocol::VariableEntry>(variable.entry)->next_freed;
    next = std::exchange(first, variable.entry);
    commands.heap().note_written(commands.segment().offset_of(&next), sizeof(next));
    for (const int rank : variable.ranks) ranks.add(rank);
  }
  if (first == 0) return;
  const records::Room room = commands.settle(ranks);  // none of them is busy
  commands.launch_system(room, "free", "variables", [&](protocol::CommandHead& command, calls::InFlight& in_flight) {
    for (const records::FreedVariable& variable : freed) {
      if (!variable.ranks.is_empty()) in_flight.temporaries.push_back(variable.entry);
    }
    command.begin<protocol::FreePayload>().first = first;
  });
}

}  // namespace syncrun::detail::master::session
