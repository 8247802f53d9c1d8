#pragma once

// Where a process is in a job of several nodes.

#include <cstdint>

#include "common/protocol/rank_set.hpp"

namespace syncrun::detail::protocol {

/// The ranks of a session are numbered node by node. On each node, this says which of them are there. The defaults are
/// those of a session on one node, except for local_size.
struct NodePlace {
  std::int32_t node = 0;  // the number of this node; the master is on node 0
  std::int32_t nodes = 1;
  std::int32_t first_rank = 0;
  std::int32_t local_size = 0;  // the number of ranks on this node

  /// The only node of a session.
  static constexpr NodePlace alone(int world_size) noexcept { return {0, 1, 0, world_size}; }
  constexpr bool has_others() const noexcept { return nodes > 1; }
  constexpr int local_rank(int rank) const noexcept { return rank - first_rank; }
  constexpr int rank(int local_rank) const noexcept { return first_rank + local_rank; }
  constexpr int end_rank() const noexcept { return first_rank + local_size; }
  constexpr bool has(int rank) const noexcept { return rank >= first_rank && rank - first_rank < local_size; }
  /// Those ranks of a set that are on this node. A set may have many more.
  RankSet::Part ranks_of(const RankSet& set) const noexcept { return set.between(first_rank, end_rank()); }
};

}  // namespace syncrun::detail::protocol
