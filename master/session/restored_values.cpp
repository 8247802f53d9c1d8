#include "master/session/restored_values.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "common/protocol/variable_entry.hpp"
#include "master/dispatch/construct_object.hpp"
#include "master/records/variables.hpp"
#include "master/values/value_copies.hpp"
#include "master/variables/transfers.hpp"

namespace syncrun::detail::master::session {

namespace {

bool contains(const std::vector<int>& ranks, int rank) { return std::ranges::find(ranks, rank) != ranks.end(); }

/// The survivors that have a copy that should be equal to that of the lost rank: those with the same kind of device.
/// Devices of different kinds round differently, so their copies differ slightly after they have computed. If there are
/// none, the survivors with the kind of the first one.
std::vector<int> comparable_survivors(const devices::RankDevices& devices, const records::AssignedRanks& assigned,
                                      const std::vector<int>& lost, int rank) {
  std::vector<int> survivors;
  for (const int other : devices.all_ranks()) {
    if (!contains(lost, other) && assigned.has(static_cast<std::size_t>(other))) survivors.push_back(other);
  }
  if (survivors.empty()) return survivors;
  const auto is_alike = [&](int other) { return devices.kind_of(other) == devices.kind_of(rank); };
  const auto alike = std::ranges::find_if(survivors, is_alike);
  const DeviceKind kind = devices.kind_of(alike == survivors.end() ? survivors.front() : *alike);
  std::erase_if(survivors, [&](int other) { return devices.kind_of(other) != kind; });
  return survivors;
}

/// The new worker gets no values. A call that uses them is refused.
void restore_shape(calls::SystemCommands& commands, records::VariableRecord& variable, int rank, Extents extents) {
  extents[0] = 0;
  variables::place_copy(commands, variable, rank, 0, extents);
  variable.copies.change().assigned.remove(static_cast<std::size_t>(rank));
}

/// Copies the variable from the first of the survivors. Returns true if this is what the lost worker had, as far as can be
/// known: the copies of the survivors are still equal.
bool restore_from(calls::SystemCommands& commands, records::VariableRecord& variable, const std::vector<int>& survivors,
                  int rank) {
  const variables::FetchedCopy copy(commands, variable, survivors.front(), "get");
  bool are_equal = true;
  for (std::size_t i = 1; i < survivors.size() && are_equal; ++i) {
    const variables::FetchedCopy other(commands, variable, survivors[i], "get");
    are_equal = other.extents() == copy.extents() &&
                (copy.bytes() == 0 || std::memcmp(copy.values(), other.values(), copy.bytes()) == 0);
  }
  variables::place_copy(commands, variable, rank, copy.offset(), copy.extents());
  variable.is_replicated = true;  // as before, also if functions have written to the copies since: see docs/failures.md
  return are_equal;
}

/// Returns true if the new worker has got what the lost one had, as far as can be known.
bool restore_copy(calls::SystemCommands& commands, records::VariableRecord& variable, const std::vector<int>& lost,
                  int rank) {
  const records::CopyFacts facts = variable.copies(commands.settled());
  const std::vector<int> survivors = comparable_survivors(commands.devices(), facts.assigned, lost, rank);
  if (variable.is_replicated && !survivors.empty()) return restore_from(commands, variable, survivors, rank);
  const auto like = survivors.empty() ? Extents{} : facts.extents[static_cast<std::size_t>(survivors.front())];
  restore_shape(commands, variable, rank, like);
  return false;
}

void restore_variable(calls::SystemCommands& commands, records::VariableRecord& variable, const std::vector<int>& lost,
                      Failure& failure) {
  auto& undefined = failure.undefined;
  const bool is_listed = std::ranges::find(undefined, variable.name) != undefined.end();
  if (variable.value) {  // copies come to a new worker when a call uses them
    if (variable.value->failure && !is_listed) undefined.push_back(variable.name);
    return;
  }
  // A command that the survivors have completed meanwhile may have given its copies other shapes.
  variables::read_extents(commands.segment(), variable);
  bool is_concerned = false;
  bool is_whole = true;
  // A failure that the program has not seen stays with the variable. It does not keep the values from being copied.
  auto failures = std::exchange(variable.writes.failures, {});
  for (const int rank : lost) {
    const records::AssignedRanks& assigned = variable.copies(commands.settled()).assigned;
    if (!assigned.has(static_cast<std::size_t>(rank))) continue;  // the lost worker had no values of it
    is_concerned = true;
    is_whole = restore_copy(commands, variable, lost, rank) && is_whole;
  }
  variable.writes.failures = std::move(failures);
  if (!is_concerned || is_listed) return;
  (is_whole ? failure.restored : undefined).push_back(variable.name);
}

}  // namespace

void pass_on(calls::SystemCommands& commands, const records::Registry& registry, const std::vector<int>& ranks,
             Failure& failure) {
  registry.for_each_variable(
      [&](records::VariableRecord& variable) { restore_variable(commands, variable, ranks, failure); });
  registry.for_each_object([&](records::ObjectRecord& object) {
    if (object.failure) return;  // there is none on the other ranks either
    for (const int rank : ranks) {
      dispatch::construct_object(commands, object, protocol::RankSet::only(rank));
      if (std::ranges::find(object.renewed, rank) == object.renewed.end()) object.renewed.push_back(rank);
    }
  });
}

void forget_copies(pool::SegmentHeap memory, const records::Registry& registry, int rank) {
  const os::Segment& segment = memory.segment;
  registry.for_each_variable([&](records::VariableRecord& variable) {
    if (variable.value) values::forget_copy(segment, variable, rank);
  });
  registry.for_each_entry([&](std::uint64_t entry) {
    protocol::VariableCopy& copy = segment.at<protocol::VariableEntry>(entry)->copies()[rank];
    copy = protocol::VariableCopy{};
    memory.heap.note_written(segment.offset_of(&copy), sizeof(copy));
  });
  registry.for_each_variable([&](records::VariableRecord& variable) {
    if (!variable.value) variable.copies.change().extents[static_cast<std::size_t>(rank)] = {};
  });
}

}  // namespace syncrun::detail::master::session
