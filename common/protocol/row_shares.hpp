#pragma once

// How the rows of a call are divided among the ranks that run it. The master and the workers use the same division.

#include "common/arrays/row_range.hpp"
#include "common/os/segment.hpp"
#include "common/protocol/command.hpp"
#include "common/protocol/node_place.hpp"

namespace syncrun::detail::protocol {

/// The rows of a rank of the call. Not for calls without rows, or whose rows are those of the ranks' own copies.
inline arrays::RowRange share_in_call(const os::Segment& segment, const CallPayload& call, const RankSet& ranks,
                                      int rank) {
  const int position = ranks.position_of(rank);
  if (call.share_begins == 0) return arrays::share_of(call.rows, ranks.count(), position);
  const auto* const begins = segment.at<const std::int64_t>(call.share_begins);
  return {begins[position], begins[position + 1]};
}

/// The rows that the ranks of a node have in a call that divides so many rows evenly among all ranks of the session.
constexpr arrays::RowRange rows_of_node(std::int64_t rows, int world_size, const NodePlace& node) noexcept {
  return {arrays::share_of(rows, world_size, node.first_rank).begin,
          arrays::share_of(rows, world_size, node.end_rank() - 1).end};
}

}  // namespace syncrun::detail::protocol
