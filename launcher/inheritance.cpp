#include "launcher/inheritance.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "common/variable_entry.hpp"
#include "launcher/session_core.hpp"
#include "launcher/variables.hpp"

namespace syncrun::detail {

namespace {

bool contains(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

/// A copy of the first survivor's. True if it is what the lost worker had, as far as can be known: the copies were made
/// equal, and those of the other survivors are so now.
bool restore_copy(SessionCore& session, VariableRecord& variable, const std::vector<int>& lost, int rank) {
  std::vector<int> survivors;
  for (const int other : session.all_ranks()) {
    if (!contains(lost, other)) survivors.push_back(other);
  }
  const bool is_replicated = variable.is_replicated && !survivors.empty();
  Extents extents = survivors.empty() ? Extents{} : variable.extents[static_cast<std::size_t>(survivors.front())];
  if (!is_replicated) {
    extents[0] = 0;
    place_copy(variable, rank, 0, extents);
    variable.assigned.remove(static_cast<std::size_t>(rank));  // a shape only: a call that uses it is refused
    return false;
  }
  const std::size_t bytes = bytes_of(variable, extents);
  const HeapLoan values(session, bytes, "a variable on its way to a new worker");
  if (bytes != 0) fetch_copy(variable, survivors.front(), values.offset());
  bool are_equal = true;
  for (std::size_t i = 1; i < survivors.size() && are_equal; ++i) {
    are_equal = variable.extents[static_cast<std::size_t>(survivors[i])] == extents;
    if (!are_equal || bytes == 0) continue;
    const HeapLoan others(session, bytes, "a variable on its way to a new worker");
    fetch_copy(variable, survivors[i], others.offset());
    are_equal = std::memcmp(values.data(), others.data(), bytes) == 0;
  }
  place_copy(variable, rank, values.offset(), extents);
  variable.is_replicated = are_equal;
  return are_equal;
}

void restore_variable(SessionCore& session, VariableRecord& variable, const std::vector<int>& lost, Failure& failure) {
  bool is_concerned = false;
  bool is_whole = true;
  for (const int rank : lost) {
    if (!variable.assigned.has(static_cast<std::size_t>(rank))) continue;  // the lost worker had nothing of it
    is_concerned = true;
    is_whole = restore_copy(session, variable, lost, rank) && is_whole;
  }
  if (!is_concerned) return;
  auto& undefined = failure.undefined;
  if (std::find(undefined.begin(), undefined.end(), variable.name) != undefined.end()) return;
  (is_whole ? failure.restored : undefined).push_back(variable.name);
}

}  // namespace

void pass_on(SessionCore& session, const std::vector<int>& ranks, Failure& failure) {
  session.registry().for_each_variable(
      [&](VariableRecord& variable) { restore_variable(session, variable, ranks, failure); });
  session.registry().for_each_object([&](const ObjectRecord& object) {
    for (const int rank : ranks) construct_object(object, RankSet::only(rank));
  });
}

void forget_copies(SessionCore& session, int rank) {
  session.registry().for_each_entry(
      [&](std::uint64_t entry) { session.segment().at<VariableEntry>(entry)->copies()[rank] = VariableCopy{}; });
  session.registry().for_each_variable(
      [&](VariableRecord& variable) { variable.extents[static_cast<std::size_t>(rank)] = {}; });
}

}  // namespace syncrun::detail
