// What the master of the model reports, and the properties of it.

#include "tests/model/protocol.hpp"
#include "tests/model/steps.hpp"

namespace model {

void Protocol::check_result(State& state, Byte id, Byte result) const {
  const bool is_ok = result == kOk;
  bool has_failed_dependency = false;
  bool is_reported_of_dependency = false;
  for (Byte earlier = 1; earlier < id; ++earlier) {
    if ((state.dependencies[id] & bit(earlier)) == 0 || state.results[earlier] < kFailed) continue;
    has_failed_dependency = true;
    is_reported_of_dependency = is_reported_of_dependency || state.results[earlier] == result;
  }
  const bool has_failed = state.failed[id] != 0 || has_failed_dependency;
  expect(state, is_ok == !has_failed, Property::failure_iff_one_failed);
  const bool is_known = result >= kFailed && (state.known[id] & bit(result - kFailed)) != 0;
  expect(state, !is_known, Property::no_known_failure);
  for (Byte later = static_cast<Byte>(id + 1); later < state.next; ++later) {
    const bool succeeded_before = (state.dependencies[later] & bit(id)) != 0 && state.results[later] == kOk;
    expect(state, is_ok || !succeeded_before, Property::failure_iff_one_failed);
  }
  if (is_ok) expect(state, state.ran[id] == ranks_of(state, id), Property::success_means_all_ran);
  const bool is_first =
      has_failed_dependency ? is_reported_of_dependency : is_ok || result == kFailed + state.first_failed_at[id];
  expect(state, is_first, Property::first_failure_is_reported);
  check_commits(state, id, is_ok);
}

/// A call may commit before a call fails on which it depends, if that one has a rank that is not in this call (see
/// README.md).
void Protocol::check_commits(State& state, Byte id, bool is_ok) const {
  // A rank that fails after its vote may have committed or not. The other ranks do not depend on that.
  const Byte late = state.failed_late[id];
  const Byte others = ranks_of(state, id) & static_cast<Byte>(~late);
  const Byte committed = state.committed[id] & others;
  expect(state, committed == 0 || committed == others, Property::all_commit_or_none);
  if (late != 0) {
    const bool wanted = call(state, id).wants_vote;
    return expect(state, others == 0 || (committed != 0) == wanted, Property::commit_as_reported);
  }
  const bool should_commit = is_ok && call(state, id).wants_vote;
  const bool is_exact = is_ok || state.failed[id] != 0 || includes_dependencies(state, id);
  expect(state, !is_exact || (state.committed[id] != 0) == should_commit, Property::commit_as_reported);
}

/// True if every rank of the calls on which this one depends, and of those on which these depend, is also in this one.
bool Protocol::includes_dependencies(const State& state, Byte id) const noexcept {
  for (Byte earlier = 1; earlier < id; ++earlier) {
    if ((state.dependencies[id] & bit(earlier)) == 0) continue;
    if ((ranks_of(state, earlier) & ~ranks_of(state, id)) != 0 || !includes_dependencies(state, earlier)) return false;
  }
  return true;
}

}  // namespace model
