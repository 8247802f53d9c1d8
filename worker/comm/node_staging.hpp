#pragma once

// The memory through which NodesComm exchanges bytes with other nodes. It is in the arena of the rank that leads its
// node. All ranks of the node use it. Rounds use its three parts in turn:
//
//   table of blocks | what goes out, what comes in | what goes out, what comes in | what goes out, what comes in

#include <cstddef>

#include "common/protocol/node_request.hpp"
#include "common/protocol/rank_set.hpp"
#include "worker/comm/collectives.hpp"

namespace syncrun::detail::worker::comm {

class NodeStaging {
 public:
  static constexpr std::size_t kOutBytes = std::size_t{3} << 20U;
  static constexpr std::size_t kInBytes = std::size_t{4} << 20U;
  static constexpr std::size_t kTableBytes = sizeof(protocol::NodeBlock) * protocol::kMaxWorldSize;
  static constexpr std::size_t kParts = 3;
  /// The pool makes arenas large enough for this (LocalPool).
  static constexpr std::size_t kBytes = kTableBytes + kParts * (kOutBytes + kInBytes);

  /// What communicators use at the start of each rank's arena.
  static constexpr std::size_t reserved_bytes(const protocol::NodePlace& place) noexcept {
    return CpuComm::kReservedBytes + (place.has_others() ? kBytes : 0);
  }

  /// `arena` is the offset of the leader's arena.
  explicit NodeStaging(std::uint64_t arena) noexcept : begin_(arena + CpuComm::kReservedBytes) {}
  std::uint64_t table() const noexcept { return begin_; }
  std::uint64_t out(std::uint64_t round) const noexcept {
    return begin_ + kTableBytes + round % kParts * (kOutBytes + kInBytes);
  }
  std::uint64_t in(std::uint64_t round) const noexcept { return out(round) + kOutBytes; }

 private:
  std::uint64_t begin_;
};

}  // namespace syncrun::detail::worker::comm
