#include "master/values/value_copies.hpp"

#include <algorithm>
#include <exception>

#include "common/arrays/extents.hpp"
#include "common/protocol/variable_entry.hpp"
#include "common/text/errors.hpp"
#include "master/records/variables.hpp"

namespace syncrun::detail::master::values {

namespace {

constexpr int kToAndFro = 16;  // so many moves back and forth in a row are worth a warning

protocol::VariableCopy& shared_copy(calls::SystemCommands& commands, const records::VariableRecord& variable,
                                    int rank) {
  return commands.segment().at<protocol::VariableEntry>(variable.entry)->copies()[rank];
}

records::ValueCopy& copy_on(const records::VariableRecord& variable, int rank) {
  return variable.value->copies[static_cast<std::size_t>(rank)];
}

template <class Copy>
void forget_finished_readers(const calls::CommandTable& calls, Copy& copy) {
  std::erase_if(copy.readers, [&](const records::CopyReader& reader) { return !calls.is_in_flight(reader.command); });
}

/// The next command overwrites the copy.
template <class Copy>
void wait_for_readers(calls::SystemCommands& commands, const Copy& copy) {
  for (const records::CopyReader& reader : copy.readers)
    commands.calls().wait_for(reader.command, reader.rank, calls::Requirement::end);
}

/// Counts moves that go back to where the value came from.
bool goes_to_and_fro(records::ValueState& value, int rank) {
  const bool goes_back = value.home == value.last_destination && rank == value.last_source;
  value.moves_to_and_fro = goes_back ? value.moves_to_and_fro + 1 : 0;
  value.last_source = value.home;
  value.last_destination = rank;
  return value.moves_to_and_fro == kToAndFro && !value.moves_are_expected;
}

/// A transfer between the host copy and a rank.
std::uint64_t launch_transfer(calls::SystemCommands& commands, const char* what,
                              const std::shared_ptr<records::VariableRecord>& variable, int rank,
                              protocol::TransferDirection direction, const calls::SystemCommands::Fill& prepare) {
  return commands.launch_system(commands.settle(protocol::RankSet::only(rank)), what, variable->name,
                                [&](protocol::CommandHead& command, calls::InFlight& in_flight) {
                                  in_flight.arguments[0].variable = variable;
                                  in_flight.arguments_count = 1;
                                  calls::begin_transfer(commands, command, in_flight, direction)[rank] = {
                                      variable->entry, variable->value->host.offset, variable->value->extents, true,
                                      false};
                                  prepare(command, in_flight);
                                });
}

std::uint64_t bring_from_host(calls::SystemCommands& commands, const std::shared_ptr<records::VariableRecord>& variable,
                              int rank) {
  records::HostCopy& host = variable->value->host;
  records::ValueCopy& copy = copy_on(*variable, rank);
  const std::uint64_t id =
      launch_transfer(commands, "move", variable, rank, protocol::TransferDirection::to_variable,
                      [&](protocol::CommandHead&, calls::InFlight& in_flight) {
                        commands.calls().wait_for(host.written, host.written_by, calls::Requirement::success);
                        wait_for_readers(commands, copy);
                        in_flight.brings_to = records::Destination::rank(rank);
                      });
  forget_finished_readers(commands.calls(), host);
  host.readers.push_back({id, rank});
  copy.source = records::ValueState::kHost;
  return id;
}

/// The rank from which a copy comes: the home, or a rank on the same node. So a value travels to a node once, however many
/// ranks use it there. Such a copy may still be on its way.
int nearest_source(calls::SystemCommands& commands, records::VariableRecord& variable, int rank) {
  const calls::CommandTable& calls = commands.calls();
  const int home = variable.value->home;
  if (calls.node_of(home) == calls.node_of(rank)) return home;
  for (int near = 0; near < commands.world_size(); ++near) {
    if (calls.node_of(near) != calls.node_of(rank) || !copy_on(variable, near).is_valid) continue;
    if (claim_copy(commands, variable, near)) return near;
  }
  return home;
}

std::uint64_t bring_from_rank(calls::SystemCommands& commands, const std::shared_ptr<records::VariableRecord>& variable,
                              int rank) {
  const int from = nearest_source(commands, *variable, rank);
  records::ValueCopy& source = copy_on(*variable, from);
  records::ValueCopy& copy = copy_on(*variable, rank);
  const std::uint64_t id =
      commands.launch_system(commands.settle(protocol::RankSet::only(rank)), "move", variable->name,
                             [&](protocol::CommandHead& command, calls::InFlight& in_flight) {
                               in_flight.arguments[0].variable = variable;
                               in_flight.arguments_count = 1;
                               in_flight.brings_to = records::Destination::rank(rank);
                               commands.calls().wait_for(source.written, from, calls::Requirement::success);
                               wait_for_readers(commands, copy);
                               auto& payload = command.begin<protocol::MovePayload>();
                               payload.variable = variable->entry;
                               payload.from = from;
                             });
  forget_finished_readers(commands.calls(), source);
  source.readers.push_back({id, rank});
  copy.source = from;
  return id;
}

/// True if the host copy comes from another machine, perhaps. The master cannot send it on before it has come.
bool is_under_way(calls::SystemCommands& commands, const records::HostCopy& host) noexcept {
  return commands.calls().place().has_others() && host.is_valid && commands.calls().is_in_flight(host.written);
}

/// Other nodes do not know when commands that use the host copy are done. So the master waits for them before it lets a
/// rank overwrite the copy.
void await_users_on_nodes(calls::SystemCommands& commands, records::HostCopy& host) {
  if (!commands.calls().place().has_others()) return;
  commands.await(host.written);
  while (!host.readers.empty()) {
    commands.await(host.readers.front().command);
    forget_finished_readers(commands.calls(), host);
  }
}

/// True if the rank has the values already.
bool has_arrived(const calls::CommandTable& calls, const records::ValueCopy& copy) noexcept {
  return copy.is_valid && !calls.is_in_flight(copy.written);
}

/// Waits until a copy can come to the rank by a command that is published without a wait. Each wait may collect a
/// failure, or deal with a loss, so it looks at everything again afterwards. Returns whether the copy comes from the
/// host.
bool await_source(calls::SystemCommands& commands, const std::shared_ptr<records::VariableRecord>& variable, int rank) {
  const records::ValueState& value = *variable->value;
  for (;;) {
    check_is_whole(commands, *variable);
    const bool is_on_host = claim_home(commands, *variable) == records::ValueState::kHost;
    const bool goes_by_host =
        !is_on_host && commands.devices().go_through_host(nearest_source(commands, *variable, rank), rank);
    if (goes_by_host && !value.host.is_valid) {
      settle_extents(commands, *variable);
      bring_to_host(commands, variable);
    } else if ((is_on_host || goes_by_host) && is_under_way(commands, value.host)) {
      commands.await(value.host.written);
    } else if (!commands.make_room(protocol::RankSet::only(rank))) {
      return is_on_host || goes_by_host;
    }
  }
}

void free_host_copy(calls::SystemCommands& commands, records::HostCopy& host) {
  host.is_valid = false;
  forget_finished_readers(commands.calls(), host);
  // The last writer comes after all earlier ones (see bring_to_host), so no other one is in flight.
  if (host.offset == 0 || !host.readers.empty() || commands.calls().is_in_flight(host.written)) return;
  commands.heap().free(host.offset, os::SharedHeap::Giveback::later);
  host.offset = 0;
  host.bytes = 0;
}

/// As free_host_copy(). But if commands in flight use the memory, it is freed when they are over, and the host copy gets
/// other memory.
void leave_host_copy(calls::SystemCommands& commands, records::HostCopy& host) {
  calls::CommandTable& calls = commands.calls();
  free_host_copy(commands, host);
  if (host.offset != 0) {
    const std::shared_ptr<void> memory(nullptr, [&commands, offset = host.offset](void*) {
      if (commands.is_open()) commands.heap().free(offset, os::SharedHeap::Giveback::later);
    });
    for (const records::CopyReader& reader : host.readers) calls.in_flight(reader.command).host_copy = memory;
    if (calls.is_in_flight(host.written)) calls.in_flight(host.written).host_copy = memory;
  }
  host = {};
}

/// The rank is about to overwrite its copy. While moves are in flight that bring it there, the value keeps the places
/// from which they come.
void keep_sources(const calls::CommandTable& calls, records::ValueState& value, int rank) {
  auto& moves = value.risky_moves;
  std::erase_if(moves, [&](const records::RiskyMove& move) { return !calls.is_in_flight(move.command); });
  const std::uint64_t known = moves.empty() ? 0 : moves.back().command;
  const std::size_t first = moves.size();
  const auto at = [&](int place) -> const records::ValueCopy& { return value.copies[static_cast<std::size_t>(place)]; };
  std::uint64_t later = calls.last_published() + 1;
  for (int place = rank;;) {
    const bool is_host = place == records::ValueState::kHost;
    const std::uint64_t brought = is_host ? value.host.written : at(place).brought;
    const int source = is_host ? value.host.written_by : at(place).source;
    if (brought <= known || brought >= later || !calls.is_in_flight(brought) || source == records::ValueState::kNowhere)
      break;
    const std::uint64_t written = source == records::ValueState::kHost ? value.host.written : at(source).written;
    moves.push_back({brought, source, written, value.host.written_by});
    later = brought;
    place = source;
  }
  std::reverse(moves.begin() + static_cast<std::ptrdiff_t>(first), moves.end());
}

}  // namespace

void check_is_whole(calls::SystemCommands& commands, const records::VariableRecord& variable) {
  const std::exception_ptr& failure = variable.value->failure;
  if (!failure) return;
  commands.calls().failures().has_surfaced(failure);
  const std::string& function = variable.value->made_by;
  const std::string value = "value '" + variable.name + "'";
  const std::string what = variable.value->was_never_made
                               ? "there is no " + value + ", which '" + function + "' was to make"
                           : function.empty() ? value + " no longer exists"
                                              : value + ", which '" + function + "' made, no longer exists";
  const Error error = text::as_error(failure, ErrorKind::function);
  throw Error(error.kind(), what + " (its member set() gives it new values): " + error.what(), error.failure(),
              error.native_code());
}

std::exception_ptr unseen_failure(calls::SystemCommands& commands, const records::VariableRecord& variable) {
  const calls::CommandTable& calls = commands.calls();
  const auto is_unseen = [](const std::shared_ptr<records::CallFailure>& failure) {
    return failure && !failure->is_seen;
  };
  for (const std::uint64_t id : variable.writes.calls) {
    if (calls.is_in_flight(id) && is_unseen(calls.in_flight(id).inherited)) return calls.in_flight(id).inherited->error;
  }
  for (const records::WriteFailure& known : variable.writes.failures) {
    if (is_unseen(known.failure)) return known.failure->error;
  }
  return nullptr;
}

void check_is_usable(calls::SystemCommands& commands, const records::VariableRecord& variable) {
  check_is_whole(commands, variable);
  const std::exception_ptr failure = unseen_failure(commands, variable);
  if (!failure) return;
  commands.calls().failures().has_surfaced(failure);
  std::rethrow_exception(failure);
}

void settle_extents(calls::SystemCommands& commands, records::VariableRecord& variable) {
  records::ValueState& value = *variable.value;
  if (value.maker != 0) commands.await(value.maker);
  check_is_whole(commands, variable);
  if (value.maker == 0) return;
  value.extents = shared_copy(commands, variable, value.made_on).extents;
  value.maker = 0;
}

bool claim_copy(calls::SystemCommands& commands, records::VariableRecord& variable, int rank) {
  records::ValueCopy& copy = copy_on(variable, rank);
  const bool is_here = protocol::SpareCopy(shared_copy(commands, variable, rank)).claim();
  if (!is_here) copy.is_valid = false;
  return copy.is_valid;
}

int claim_home(calls::SystemCommands& commands, records::VariableRecord& variable) {
  records::ValueState& value = *variable.value;
  if (value.home == records::ValueState::kHost || claim_copy(commands, variable, value.home)) return value.home;
  value.home = records::ValueState::kHost;
  for (int rank = 0; rank < commands.world_size(); ++rank) {
    if (!copy_on(variable, rank).is_valid || !claim_copy(commands, variable, rank)) continue;
    if (value.home == records::ValueState::kHost) value.home = rank;
    if (!has_arrived(commands.calls(), copy_on(variable, rank))) continue;
    value.home = rank;
    break;
  }
  return value.home;
}

std::string bring_copy(calls::SystemCommands& commands, const std::shared_ptr<records::VariableRecord>& variable,
                       int rank) {
  records::ValueState& value = *variable->value;
  records::ValueCopy& copy = copy_on(*variable, rank);
  const bool is_from_host = await_source(commands, variable, rank);
  // The wait may have collected another move of the value, and that marks copies as spare. The copy that comes to this
  // rank may start while a call runs there. Its memory must not be freed for that call.
  static_cast<void>(claim_copy(commands, *variable, rank));
  forget_finished_readers(commands.calls(), copy);
  const bool comes_from_rank = value.home != records::ValueState::kHost;  // also by the way of the host
  const bool warns = comes_from_rank && goes_to_and_fro(value, rank);
  copy.brought = (is_from_host ? bring_from_host : bring_from_rank)(commands, variable, rank);
  copy.written = copy.used = copy.brought;
  copy.is_valid = true;
  copy.readers.clear();
  if (value.home == records::ValueState::kHost) value.home = rank;
  if (!warns) return {};
  const std::string maker = value.made_by.empty() ? "" : ", which '" + value.made_by + "' made,";
  return "value '" + variable->name + "'" + maker + " has moved back and forth between ranks " +
         std::to_string(value.last_source) + " and " + std::to_string(rank) + " " + std::to_string(kToAndFro) +
         " times in a row: let the calls that write it run on one device";
}

namespace {

/// Waits until the home can get a command without another wait. Returns the home, or kHost if no rank has a copy.
int await_home(calls::SystemCommands& commands, records::VariableRecord& variable) {
  for (;;) {
    check_is_usable(commands, variable);
    const int home = claim_home(commands, variable);
    if (home == records::ValueState::kHost || !commands.make_room(protocol::RankSet::only(home))) return home;
  }
}

}  // namespace

void bring_to_host(calls::SystemCommands& commands, const std::shared_ptr<records::VariableRecord>& variable) {
  records::HostCopy& host = variable->value->host;
  const std::size_t bytes = records::bytes_of(*variable, variable->value->extents);
  if (!host.is_valid) await_users_on_nodes(commands, host);
  if (!host.is_valid && (host.bytes < bytes || host.offset == 0)) {
    free_host_copy(commands, host);
    host.offset =
        commands.allocate(bytes, os::SharedHeap::Contents::any, "the host copy of value '" + variable->name + "'");
    commands.heap().send_by_rows(host.offset);
    host.bytes = bytes;
  }
  const int home = await_home(commands, *variable);
  if (host.is_valid) return;
  const auto depend = [&](protocol::CommandHead&, calls::InFlight& in_flight) {
    in_flight.brings_to = records::Destination::host();
    commands.heap().note_rows_written(host.offset, host.bytes);
    depend_on_copy(commands, *variable, home, Access::reads);
    wait_for_readers(commands, host);
    // Another rank may still write older values to the same memory.
    if (host.written_by != home) commands.calls().wait_for(host.written, host.written_by, calls::Requirement::end);
  };
  host.written =
      launch_transfer(commands, "to_host", variable, home, protocol::TransferDirection::from_variable, depend);
  host.written_by = home;
  host.is_valid = true;
  copy_on(*variable, home).used = host.written;
}

void replace_values(calls::SystemCommands& commands, records::VariableRecord& variable, const Extents& extents,
                    const records::HostCopy& values) {
  records::ValueState& value = *variable.value;
  leave_host_copy(commands, value.host);
  value.host = values;
  for (records::ValueCopy& copy : value.copies) copy.is_valid = false;
  value.home = records::ValueState::kHost;
  value.maker = 0;
  value.made_by.clear();
  value.failure = nullptr;
  value.was_never_made = false;
  value.risky_moves.clear();
  value.extents = extents;
  variable.writes = {.calls = {}, .failures = {}, .copies = {}, .replaced_after = commands.calls().last_published()};
}

void depend_on_copy(calls::SystemCommands& commands, const records::VariableRecord& variable, int rank, Access access) {
  const records::ValueCopy& copy = copy_on(variable, rank);
  commands.calls().depend_on(copy.written);
  if (access == Access::writes) wait_for_readers(commands, copy);
}

void note_use(calls::SystemCommands& commands, records::VariableRecord& variable, int rank, Access access,
              std::uint64_t command) {
  records::ValueCopy& copy = copy_on(variable, rank);
  copy.used = command;
  if (access == Access::reads) return;
  records::ValueState& value = *variable.value;
  keep_sources(commands.calls(), value, rank);
  for (records::ValueCopy& other : value.copies) other.is_valid = false;
  free_host_copy(commands, value.host);
  copy.is_valid = true;
  copy.written = command;
  copy.readers.clear();
  value.home = rank;
}

void mark_spare_copies(calls::SystemCommands& commands, records::VariableRecord& variable) {
  records::ValueState& value = *variable.value;
  if (claim_home(commands, variable) == records::ValueState::kHost) return;
  const calls::CommandTable& calls = commands.calls();
  if (value.pinned && has_arrived(calls, copy_on(variable, *value.pinned))) value.home = *value.pinned;
  bool has_successor = false;
  const auto is_source = [&](int rank) {
    return std::any_of(value.risky_moves.begin(), value.risky_moves.end(), [&](const records::RiskyMove& move) {
      return move.source == rank && calls.is_in_flight(move.command);
    });
  };
  const auto mark = [&](int rank, protocol::SpareCopy::Role role) {
    records::ValueCopy& copy = copy_on(variable, rank);
    if (copy.used == 0 || value.pinned == rank || is_source(rank)) return false;
    forget_finished_readers(calls, copy);
    if (!copy.readers.empty()) return false;
    const bool is_home = role == protocol::SpareCopy::Role::home;
    if (is_home) copy.marked = std::max(copy.used, copy.marked + 1);
    return protocol::SpareCopy(shared_copy(commands, variable, rank)).mark(is_home ? copy.marked : copy.used, role);
  };
  for (int rank = 0; rank < commands.world_size(); ++rank) {
    if (rank == value.home) continue;
    const bool can_follow = has_arrived(calls, copy_on(variable, rank));
    const bool is_marked =
        mark(rank, can_follow ? protocol::SpareCopy::Role::successor : protocol::SpareCopy::Role::none);
    has_successor = has_successor || (can_follow && is_marked);
  }
  // The copy of the home comes last, because the others could not take its place before.
  const bool is_on_host = value.host.is_valid && !calls.is_in_flight(value.host.written);
  if (is_on_host) mark(value.home, protocol::SpareCopy::Role::none);
  else if (has_successor) mark(value.home, protocol::SpareCopy::Role::home);
}

void note_arrival(calls::SystemCommands& commands, records::VariableRecord& variable, records::Destination to) {
  const bool is_home = to.rank() == variable.value->home;
  if (is_home || (to.rank() && !copy_on(variable, *to.rank()).is_valid)) return;  // nothing can take its place
  mark_spare_copies(commands, variable);
}

/// Called when a rank was lost, and nothing is in flight.
void forget_copy(const os::Segment& segment, records::VariableRecord& variable, int rank) {
  records::ValueState& value = *variable.value;
  protocol::VariableCopy* const copies = segment.at<protocol::VariableEntry>(variable.entry)->copies();
  if (value.maker != 0 && value.made_on == rank) {
    value.extents = copies[rank].extents;
    value.maker = 0;
  }
  copy_on(variable, rank) = {};
  const auto is_there = [&](int other) {
    records::ValueCopy& copy = copy_on(variable, other);
    copy.is_valid = copy.is_valid && protocol::SpareCopy(copies[other]).claim();
    return copy.is_valid;
  };
  if (value.home == records::ValueState::kHost || (value.home != rank && is_there(value.home))) return;
  value.home = records::ValueState::kHost;
  for (int other = 0; other < static_cast<int>(value.copies.size()) && value.home == records::ValueState::kHost;
       ++other) {
    if (is_there(other)) value.home = other;
  }
  if (value.is_anywhere() || value.failure) return;
  value.failure = std::make_exception_ptr(
      Error(ErrorKind::worker_lost, "its only copy was on rank " + std::to_string(rank) + ", which was lost"));
}

}  // namespace syncrun::detail::master::values
