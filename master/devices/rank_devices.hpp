#pragma once

// The device of each rank, as the master checks calls against it.

#include <string>
#include <utility>
#include <vector>

#include "common/protocol/node_place.hpp"
#include "common/protocol/rank_kinds.hpp"
#include "master/devices/chosen_devices.hpp"

namespace syncrun::detail::master::devices {

class RankDevices {
 public:
  RankDevices() = default;
  /// `devices` is by rank. `nodes` may be empty if there is only one.
  explicit RankDevices(std::vector<DeviceId> devices, std::vector<protocol::NodePlace> nodes = {})
      : devices_(std::move(devices)), places_(std::move(nodes)) {
    for (const auto& device : devices_) by_kind_.add(device.kind);
  }

  int world_size() const noexcept { return by_kind_.world_size(); }
  const protocol::RankSet& all_ranks() const noexcept { return by_kind_.all_ranks(); }
  DeviceKind kind_of(int rank) const noexcept { return by_kind_.kind_of(rank); }
  /// The kinds of devices of all ranks, or of some ranks.
  protocol::DeviceKinds kinds() const noexcept { return by_kind_.kinds(); }
  protocol::DeviceKinds kinds_of(const protocol::RankSet& ranks) const noexcept { return by_kind_.kinds_of(ranks); }

  /// Whether these ranks are on more than one node. The set must not be empty.
  bool span_nodes(const protocol::RankSet& ranks) const noexcept;

  /// The first rank of each node.
  protocol::RankSet leaders() const noexcept;

  /// The devices of peers cannot copy from the memory of this rank's device.
  void note_closed_to_peers(int rank) { closed_.add(rank); }
  /// Whether values go from one rank to another through the memory of the host. A CPU device cannot read the memory of a
  /// GPU, and some GPUs cannot either. And what nodes send each other is in the memory of the host.
  bool go_through_host(int from, int to) const noexcept;

  /// The ranks among `ranks` that have a device of this kind, with their devices, for messages: "rank 0 (cuda0), rank 2
  /// (cuda1)". Long lists are cut: "rank 0 (cpu0), rank 1 (cpu1), rank 2 (cpu2) and 5 more".
  std::string describe(const protocol::RankSet& ranks, DeviceKind kind) const;

 private:
  std::vector<DeviceId> devices_;
  std::vector<protocol::NodePlace> places_;
  protocol::RankKinds by_kind_;
  protocol::RankSet closed_;  // to peers
};

}  // namespace syncrun::detail::master::devices
