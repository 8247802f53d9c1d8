#pragma once

// The kind of device that each rank has, and how a set of ranks communicates. The master and the workers follow the
// same rules.

#include <cstdint>
#include <vector>

#include "common/protocol/device_kinds.hpp"
#include "common/protocol/rank_set.hpp"

namespace syncrun::detail {

/// How the ranks of a command communicate.
enum class CommWay : std::uint8_t {
  alone,    // one rank, which has no peers
  devices,  // the communicator of their devices: shared memory among CPU devices, NCCL among GPUs
  host      // host memory, because their devices have no communicator in common
};

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
  /// GPUs have one communicator, which is for all ranks of a session that has only GPUs.
  CommWay way_of(const RankSet& ranks) const noexcept {
    if (ranks.is_single()) return CommWay::alone;
    const DeviceKinds kinds = kinds_of(ranks);
    if (!kinds.has(DeviceKind::cuda)) return CommWay::devices;
    return !kinds.is_mixed() && ranks.count() == world_size() ? CommWay::devices : CommWay::host;
  }

 private:
  RankSet all_ranks_;
  std::vector<DeviceKind> by_rank_;
  DeviceKinds kinds_;
};

}  // namespace syncrun::detail
