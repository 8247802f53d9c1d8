#include "launcher/failures/restored_values.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "common/protocol/variable_entry.hpp"
#include "launcher/calls/functions.hpp"
#include "launcher/values/value_copies.hpp"
#include "launcher/variables/transfers.hpp"
#include "launcher/variables/variables.hpp"

namespace syncrun::detail {

namespace {

bool contains(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

/// The survivors whose copies should be equal to that of the lost rank: those with the same kind of device. Devices of
/// different kinds round differently, so their copies differ slightly after they have computed. If there are none, the
/// survivors with the kind of the first one.
std::vector<int> comparable_survivors(const RankDevices& devices, const std::vector<int>& lost, int rank) {
  std::vector<int> survivors;
  for (const int other : devices.all_ranks()) {
    if (!contains(lost, other)) survivors.push_back(other);
  }
  if (survivors.empty()) return survivors;
  const auto is_alike = [&](int other) { return devices.kind_of(other) == devices.kind_of(rank); };
  const auto alike = std::find_if(survivors.begin(), survivors.end(), is_alike);
  const DeviceKind kind = devices.kind_of(alike == survivors.end() ? survivors.front() : *alike);
  std::erase_if(survivors, [&](int other) { return devices.kind_of(other) != kind; });
  return survivors;
}

/// Copies the variable from the first of these survivors. Returns true if this is what the lost worker had, as far as can
/// be known: the master had made all copies equal, and the copies of the survivors are still equal.
bool restore_copy(SystemCommands& commands, VariableRecord& variable, const std::vector<int>& lost, int rank) {
  const std::vector<int> survivors = comparable_survivors(commands.devices(), lost, rank);
  const bool is_replicated = variable.is_replicated && !survivors.empty();
  Extents extents = survivors.empty() ? Extents{} : variable.extents[static_cast<std::size_t>(survivors.front())];
  if (!is_replicated) {
    extents[0] = 0;
    place_copy(commands, variable, rank, 0, extents);
    // only its shape is restored, so a call that uses it is refused
    variable.assigned.remove(static_cast<std::size_t>(rank));
    return false;
  }
  const std::size_t bytes = bytes_of(variable, extents);
  const HeapLoan values(commands, bytes, "a variable on its way to a new worker");
  if (bytes != 0) fetch_copy(commands, variable, survivors.front(), values.offset());
  bool are_equal = true;
  for (std::size_t i = 1; i < survivors.size() && are_equal; ++i) {
    are_equal = variable.extents[static_cast<std::size_t>(survivors[i])] == extents;
    if (!are_equal || bytes == 0) continue;
    const HeapLoan others(commands, bytes, "a variable on its way to a new worker");
    fetch_copy(commands, variable, survivors[i], others.offset());
    are_equal = std::memcmp(values.data(), others.data(), bytes) == 0;
  }
  place_copy(commands, variable, rank, values.offset(), extents);
  variable.is_replicated = are_equal;
  return are_equal;
}

void restore_variable(SystemCommands& commands, VariableRecord& variable, const std::vector<int>& lost,
                      Failure& failure) {
  auto& undefined = failure.undefined;
  const bool is_listed = std::find(undefined.begin(), undefined.end(), variable.name) != undefined.end();
  if (variable.value) {  // copies come to a new worker when a call uses them
    if (variable.value->failure && !is_listed) undefined.push_back(variable.name);
    return;
  }
  bool is_concerned = false;
  bool is_whole = true;
  // A failure that the program has not seen stays with the variable. It does not keep the values from being copied.
  auto failures = std::exchange(variable.writes.failures, {});
  for (const int rank : lost) {
    if (!variable.assigned.has(static_cast<std::size_t>(rank))) continue;  // the lost worker had no values of it
    is_concerned = true;
    is_whole = restore_copy(commands, variable, lost, rank) && is_whole;
  }
  variable.writes.failures = std::move(failures);
  if (!is_concerned || is_listed) return;
  (is_whole ? failure.restored : undefined).push_back(variable.name);
}

}  // namespace

void pass_on(SystemCommands& commands, const Registry& registry, const std::vector<int>& ranks, Failure& failure) {
  registry.for_each_variable([&](VariableRecord& variable) { restore_variable(commands, variable, ranks, failure); });
  registry.for_each_object([&](const ObjectRecord& object) {
    for (const int rank : ranks) construct_object(commands, object, RankSet::only(rank));
  });
}

void forget_copies(SegmentHeap memory, const Registry& registry, int rank) {
  const Segment& segment = memory.segment;
  registry.for_each_variable([&](VariableRecord& variable) {
    if (variable.value) forget_copy(segment, variable, rank);
  });
  registry.for_each_entry([&](std::uint64_t entry) {
    VariableCopy& copy = segment.at<VariableEntry>(entry)->copies()[rank];
    copy = VariableCopy{};
    memory.heap.note_written(segment.offset_of(&copy), sizeof(copy));
  });
  registry.for_each_variable([&](VariableRecord& variable) {
    if (!variable.value) variable.extents[static_cast<std::size_t>(rank)] = {};
  });
}

}  // namespace syncrun::detail
