#pragma once

// The kind of device that each rank has.

#include <vector>

#include "common/protocol/device_kinds.hpp"
#include "common/protocol/rank_set.hpp"

namespace syncrun::detail::protocol {

class RankKinds {
 public:
  /// Adds the next rank.
  void add(DeviceKind kind) {
    all_ranks_.add(world_size());
    by_rank_.push_back(kind);
    kinds_.add(kind);
  }

  int world_size() const noexcept { return static_cast<int>(by_rank_.size()); }
  const RankSet& all_ranks() const noexcept { return all_ranks_; }
  DeviceKind kind_of(int rank) const noexcept { return by_rank_[static_cast<std::size_t>(rank)]; }
  /// The kinds of devices of all ranks, or of some ranks.
  DeviceKinds kinds() const noexcept { return kinds_; }
  DeviceKinds kinds_of(const RankSet& ranks) const noexcept {
    if (!kinds_.is_mixed()) return ranks.is_empty() ? DeviceKinds() : kinds_;
    DeviceKinds kinds;
    for (const int rank : ranks) kinds.add(kind_of(rank));
    return kinds;
  }

 private:
  RankSet all_ranks_;
  std::vector<DeviceKind> by_rank_;
  DeviceKinds kinds_;
};

}  // namespace syncrun::detail::protocol
