#pragma once

// The kind of device that each rank has.

#include <vector>

#include "common/protocol/device_kinds.hpp"
#include "common/protocol/rank_set.hpp"
#include "launcher/devices/devices.hpp"

namespace syncrun::detail {

class RankDevices {
 public:
  RankDevices() = default;
  /// `devices` is by rank.
  explicit RankDevices(const std::vector<DeviceId>& devices)
      : all_ranks_(RankSet::all(static_cast<int>(devices.size()))) {
    for (const auto& device : devices) {
      by_rank_.push_back(device.kind);
      kinds_.add(device.kind);
    }
  }

  int world_size() const noexcept { return static_cast<int>(by_rank_.size()); }
  const RankSet& all_ranks() const noexcept { return all_ranks_; }
  DeviceKind kind_of(int rank) const noexcept { return by_rank_[static_cast<std::size_t>(rank)]; }
  /// The kinds of devices of all ranks, or of some ranks.
  DeviceKinds kinds() const noexcept { return kinds_; }
  DeviceKinds kinds_of(const RankSet& ranks) const noexcept {
    if (ranks == all_ranks_) return kinds_;
    DeviceKinds kinds;
    for (const int rank : ranks) kinds.add(kind_of(rank));
    return kinds;
  }

 private:
  RankSet all_ranks_;
  std::vector<DeviceKind> by_rank_;
  DeviceKinds kinds_;
};

}  // namespace syncrun::detail
