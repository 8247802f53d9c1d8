#pragma once

// Which ranks' copies of a shared variable have been assigned, possibly with zero rows. A call may only use those.

#include <algorithm>
#include <cstddef>
#include <vector>

namespace syncrun::detail {

class AssignedRanks {
 public:
  /// None of `world_size` ranks.
  explicit AssignedRanks(std::size_t world_size = 0) : is_assigned_(world_size), missing_(world_size) {}

  /// One comparison: every call asks.
  bool all() const noexcept { return missing_ == 0; }
  bool any() const noexcept { return missing_ != is_assigned_.size(); }
  bool has(std::size_t rank) const noexcept { return is_assigned_[rank]; }

  void add(std::size_t rank) noexcept {
    missing_ -= is_assigned_[rank] ? 0U : 1U;
    is_assigned_[rank] = true;
  }
  void add_all() noexcept {
    std::fill(is_assigned_.begin(), is_assigned_.end(), true);
    missing_ = 0;
  }
  void remove(std::size_t rank) noexcept {
    missing_ += is_assigned_[rank] ? 1U : 0U;
    is_assigned_[rank] = false;
  }

 private:
  std::vector<bool> is_assigned_;
  std::size_t missing_;
};

}  // namespace syncrun::detail
