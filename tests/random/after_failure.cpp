// Compares what variables and Values have after failures with what the oracle allows.

#include <algorithm>
#include <cmath>

#include "tests/random/program.hpp"

namespace random_test {

void Program::make_certain(Array& array) {
  if (array.is_certain()) return;
  if (!faults_in_flight_.empty() || may_lose()) return settle();
  for (int rank = 0; rank < static_cast<int>(array.copies.size()); ++rank) check_copy(array, rank);
}

void Program::check_copy(Array& array, int rank) {
  Copy& copy = array.copy(rank);
  if (copy.is_certain()) {
    if (copy.is_assigned) copy.set(Numbers(copy.newest()));
    return;
  }
  const std::string what = "'" + array.name + "'" + (array.is_value ? "" : " on rank " + std::to_string(rank));
  // The last state that it has had for certain.
  std::size_t known = copy.states.size() - 1;
  while (known > 0 && !copy.states[known].is_settled()) --known;
  bool is_wild = copy.is_wild;
  bool may_have_no_values = copy.may_have_no_values;
  for (std::size_t state = known + 1; state < copy.states.size(); ++state) {
    is_wild = is_wild || copy.states[state].is_wild;
    may_have_no_values = may_have_no_values || copy.states[state].may_vanish;
  }
  Numbers got;
  try {
    if (may_have_no_values) array.read_on(rank);
    got = array.fetch(rank);
  } catch (const sr::Error& error) {
    if (error.kind() != sr::ErrorKind::usage || !may_have_no_values) {
      throw Difference(what + " cannot be read after a failure: " + error.what());
    }
    copy = Copy();
    return;
  }
  const auto has_shape_of = [&](const Numbers& other) {
    return got.rows == other.rows && got.columns == other.columns;
  };
  bool is_changed = !has_shape_of(copy.states[known].numbers);
  for (std::size_t i = 0; i < got.size() && !is_wild; ++i) {
    bool is_known = false;
    for (std::size_t state = known; state < copy.states.size() && !is_known; ++state) {
      const Numbers& numbers = copy.states[state].numbers;
      is_known = has_shape_of(numbers) && is_close(got.values[i], numbers.values[i], numbers.slack);
      if (is_known && state != known) is_changed = true;
    }
    if (is_known) continue;
    throw Difference(what + ": element " + std::to_string(i) + " is " + std::to_string(got.values[i]) +
                     " after a failure, which no call has written; before, it was " +
                     (has_shape_of(copy.states[known].numbers) ? std::to_string(copy.states[known].numbers.values[i])
                                                               : "in an array of another shape"));
  }
  if (is_changed && !is_wild) {
    const bool is_failed = std::all_of(copy.states.begin() + static_cast<std::ptrdiff_t>(known) + 1, copy.states.end(),
                                       [](const State& state) { return state.by->has_failed; });
    if (is_failed && !undefined_.contains(array.name)) {
      throw Difference(what + " was changed by a call that failed, and no error names it as undefined");
    }
  }
  copy.set(std::move(got));
}

std::vector<int> Program::comparable_survivors() const {
  std::vector<int> survivors = all_ranks();
  std::erase(survivors, lost_rank_);
  if (survivors.empty()) return survivors;
  const bool has_like =
      std::any_of(survivors.begin(), survivors.end(), [&](int rank) { return is_gpu(rank) == is_gpu(lost_rank_); });
  const bool takes_gpus = is_gpu(has_like ? lost_rank_ : survivors.front());
  std::erase_if(survivors, [&](int rank) { return is_gpu(rank) != takes_gpus; });
  return survivors;
}

Copy Program::copy_of_survivor(Array& array) const {
  const std::vector<int> survivors = comparable_survivors();
  return survivors.empty() ? Copy() : array.copy(survivors.front());
}

void Program::check_new_worker(Array& array, const Copy& of_survivor) {
  Copy& copy = array.copy(lost_rank_);
  const std::string what = "'" + array.name + "' on the new worker of rank " + std::to_string(lost_rank_);
  const bool had_values = copy.is_assigned;
  const bool is_undefined = undefined_.contains(array.name);
  const bool is_restored = restored_.contains(array.name);
  bool has_values = true;
  try {
    array.read_on(lost_rank_);
  } catch (const sr::Error& error) {
    if (error.kind() != sr::ErrorKind::usage) throw Difference(what + ": expected a usage error: " + error.what());
    has_values = false;
  }
  if (!has_values) {
    if (!had_values) return;
    if (array.is_replicated == true && ranks() > 1 && !array.is_used_since_kill)
      throw Difference(what + " was not restored");
    if (!is_undefined) throw Difference(what + " has no values, and no error names it as undefined");
    copy = Copy();
    return;
  }
  Numbers got = array.fetch(lost_rank_);
  const std::vector<int> survivors = comparable_survivors();
  const bool has_survivor = !survivors.empty() && array.copy(survivors.front()).is_assigned;
  // What it has in bits, which the oracle may know to rounding only.
  const Numbers now_of_survivor = has_survivor ? array.fetch(survivors.front()) : Numbers();
  const auto is_same = [](const Numbers& a, const Numbers& b) {
    for (std::size_t i = 0; i < a.size() && a.size() == b.size(); ++i) {
      // The library compares bits.
      if (!is_close(a.values[i], b.values[i], 0) || std::signbit(a.values[i]) != std::signbit(b.values[i]))
        return false;
    }
    return a.rows == b.rows && a.size() == b.size();
  };
  if (!array.is_used_since_kill) {
    if (!had_values) throw Difference(what + " has values, although no rank had");
    if (array.is_replicated == false) throw Difference(what + " has values, although those of the ranks differed");
    if (ranks() == 1) throw Difference(what + " has values, although no other rank has any");
    if (!is_same(got, now_of_survivor)) throw Difference(what + " is not a copy of the first survivor's");
    bool differ = false;
    for (const int rank : survivors) {
      if (array.copy(rank).is_assigned) differ = differ || !is_same(got, array.fetch(rank));
    }
    if (differ && !is_undefined) throw Difference(what + " is not named, although the copies of the survivors differ");
    if (!differ && is_undefined && array.is_replicated == true)
      throw Difference(what + " is named as undefined, although it is not");
    if (!differ && !is_restored && array.is_replicated == true) throw Difference(what + " is not named as restored");
    return copy.set(std::move(got));
  }
  // A call has used it meanwhile. Then it may be what the survivor had at some time, or what a call has written.
  const bool is_copy = has_survivor && is_same(got, now_of_survivor);
  const auto may_be_anything = [](const Copy& each) {
    return each.is_wild || std::any_of(each.states.begin(), each.states.end(),
                                       [](const State& state) { return state.is_wild && !state.is_settled(); });
  };
  if (!is_copy && !may_be_anything(copy) && !may_be_anything(of_survivor)) {
    for (std::size_t i = 0; i < got.size(); ++i) {
      const auto is_in = [&](const State& state) {
        return state.numbers.size() == got.size() &&
               is_close(got.values[i], state.numbers.values[i], state.numbers.slack);
      };
      const auto was_in = [&](const Numbers& numbers) {
        return numbers.size() == got.size() && is_close(got.values[i], numbers.values[i], numbers.slack);
      };
      if (std::none_of(copy.states.begin(), copy.states.end(), is_in) &&
          std::none_of(of_survivor.states.begin(), of_survivor.states.end(), is_in) &&
          std::none_of(of_survivor.past.begin(), of_survivor.past.end(), was_in))
        throw Difference(what + ": element " + std::to_string(i) + " is " + std::to_string(got.values[i]) +
                         ", which no call has written");
    }
  }
  copy.set(std::move(got));
}

bool Program::check_value(Array& array) {
  Copy& copy = array.copies[0];
  const std::string what = "'" + array.name + "'";
  const bool was_made = array.made_by == nullptr || !array.made_by->has_failed;
  const bool may_be_lost =
      may_lose() && (array.is_used_since_kill || (!array.is_on_host && array.holders == std::set{lost_rank_}) ||
                     array.moved_among.contains(lost_rank_) || (array.made_by != nullptr && !array.made_by->has_ended));
  if (copy.is_certain() && was_made && !may_lose()) {
    if (array.made_by != nullptr) array.made_by = nullptr;
    return true;
  }
  try {
    Numbers got = array.fetch(0);
    if (!was_made) throw Difference(what + " has values, although the call that makes it has failed");
    if (copy.is_certain()) compare(got, copy.newest(), what + " after a failure");
    else check_copy(array, 0);
    array.made_by = nullptr;
    array.find_holders();
    return true;
  } catch (const sr::Error& error) {
    const std::string text = error.what();
    if (was_made && !may_be_lost) throw Difference(what + " cannot be read after a failure: " + text);
    if (text.find(array.name) == std::string::npos && fault_in(text) < 0)
      throw Difference(what + ": the error does not name it: " + text);
    return false;
  }
}

bool Program::has_lost_two() const {
  if (!may_lose()) return false;
  const std::vector<int> pids = session_.worker_pids();
  bool has = false;
  for (int rank = 0; rank < ranks(); ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    if (rank == lost_rank_ || pids[at] == pids_[at]) continue;
    if (!is_gpu(rank) || !is_gpu(lost_rank_)) throw Difference("rank " + std::to_string(rank) + " was replaced, too");
    has = true;
  }
  return has;
}

bool Program::learn_anew(Array& array) {
  array.made_by = nullptr;
  array.is_replicated.reset();
  for (int rank = 0; rank < static_cast<int>(array.copies.size()); ++rank) {
    try {
      if (!array.is_value) array.read_on(rank);
      array.copy(rank).set(array.fetch(rank));
    } catch (const sr::Error& error) {
      if (error.kind() != sr::ErrorKind::usage && error.kind() != sr::ErrorKind::worker_lost)
        throw Difference("'" + array.name + "' after two workers were lost: " + error.what());
      if (array.is_value) return false;
      array.copy(rank) = Copy();
    }
  }
  if (array.is_value) array.find_holders();
  return true;
}

}  // namespace random_test
