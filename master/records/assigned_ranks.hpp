#pragma once

// Which ranks' copies of a shared variable have been assigned, possibly with zero rows. A call may only use those.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "syncrun/array.hpp"

namespace syncrun::detail::master::records {

class AssignedRanks {
 public:
  /// None of `world_size` ranks.
  explicit AssignedRanks(std::size_t world_size = 0) : states_(world_size), missing_(world_size) {}

  /// One comparison: every call asks.
  bool all() const noexcept { return missing_ == 0; }
  bool any() const noexcept { return missing_ != states_.size(); }
  bool has(std::size_t rank) const noexcept { return states_[rank] == State::assigned; }
  /// True if the rank's copy was assigned, and lost since: with its worker, or because a call failed that should have
  /// written it.
  bool has_lost(std::size_t rank) const noexcept { return states_[rank] == State::lost; }
  bool has_lost_any() const noexcept {
    return missing_ != 0 && std::find(states_.begin(), states_.end(), State::lost) != states_.end();
  }

  void add(std::size_t rank) noexcept {
    missing_ -= has(rank) ? 0U : 1U;
    states_[rank] = State::assigned;
  }
  void add_all() noexcept {
    std::fill(states_.begin(), states_.end(), State::assigned);
    missing_ = 0;
  }
  /// The rank has lost its copy.
  void remove(std::size_t rank) noexcept {
    if (!has(rank)) return;
    ++missing_;
    states_[rank] = State::lost;
  }

 private:
  enum class State : std::uint8_t { never_assigned, assigned, lost };
  std::vector<State> states_;
  std::size_t missing_;
};

/// What the master knows of the copies of a shared variable.
struct CopyFacts {
  std::vector<Extents> extents;  // by rank
  AssignedRanks assigned;

  explicit CopyFacts(std::size_t world_size = 0) : extents(world_size), assigned(world_size) {}
};

}  // namespace syncrun::detail::master::records
