#pragma once

// How the rows of a call are divided among the ranks that run it. The master and the workers use the same division.

#include "common/arrays/rows.hpp"
#include "common/os/segment.hpp"
#include "common/protocol/command.hpp"

namespace syncrun::detail {

/// The rows of a rank of the call. Not for calls without rows, or whose rows are those of the ranks' own copies.
inline RowRange share_in_call(const Segment& segment, const CallPayload& call, const RankSet& ranks, int rank) {
  const int position = ranks.position_of(rank);
  if (call.share_begins == 0) return share_of(call.rows, ranks.count(), position);
  const auto* const begins = segment.at<const std::int64_t>(call.share_begins);
  return {begins[position], begins[position + 1]};
}

}  // namespace syncrun::detail
