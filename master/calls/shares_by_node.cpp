#include "master/calls/shares_by_node.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "common/text/errors.hpp"

namespace syncrun::detail::master::calls {

namespace {

/// How many indices of a list are rows of each node.
std::vector<std::int64_t> count_indices(const RowsOnNodes& rows, std::span<const std::int64_t> indices) {
  std::vector<std::int64_t> counts(rows.there.size());
  std::size_t node = 0;
  for (std::size_t at = 0; at < indices.size(); ++at) {
    const std::int64_t index = indices[at];
    while (node + 1 < counts.size() && index >= rows.there[node].end) ++node;
    if (index < rows.there[node].begin) {
      text::throw_usage("batch has index " + std::to_string(index) + " at position " + std::to_string(at) +
                        ", after one of node " + std::to_string(node) + ". " + rows.argument +
                        " is in a file of each node: list the rows of node 0 first, then those of node 1, and so on "
                        "(Data::rows_of_node)");
    }
    ++counts[node];
  }
  return counts;
}

std::vector<std::int64_t> counts_of(const RowsOnNodes& rows, const protocol::RowsSlot& batch,
                                    const os::Segment& segment) {
  if (batch.kind == Rows::Kind::list && batch.count() != 0) {
    const auto* const first = segment.at<const std::int64_t>(batch.offset);
    return count_indices(rows, {first, static_cast<std::size_t>(batch.count())});
  }
  std::vector<std::int64_t> counts;
  for (const arrays::RowRange& there : rows.there)
    counts.push_back(std::max<std::int64_t>(0, std::min(batch.end, there.end) - std::max(batch.begin, there.begin)));
  return counts;
}

}  // namespace

void divide_by_node(const RowsOnNodes& rows, const protocol::RowsSlot& batch, const os::Segment& segment,
                    const protocol::RankSet& ranks, const RowWeights& weights, std::span<std::int64_t> begins) {
  const std::vector<std::int64_t> counts = counts_of(rows, batch, segment);
  std::int64_t begin = 0;
  for (std::size_t node = 0; node < counts.size(); ++node) {
    protocol::RankSet here;
    for (const int rank : rows.nodes[node].ranks_of(ranks)) here.add(rank);
    if (counts[node] != 0 && (here.is_empty() || !weights.has_weight(here))) {
      text::throw_usage(rows.argument + " is in a file of each node, and the call reads " +
                        std::to_string(counts[node]) + " rows of node " + std::to_string(node) +
                        ", but it has no rank " + (here.is_empty() ? "there" : "of a weight above 0 there") +
                        ": select other rows with batch (Data::rows_of_node)");
    }
    if (here.is_empty()) continue;
    const std::size_t position = static_cast<std::size_t>(ranks.position_of(here.first()));
    const std::span<std::int64_t> own = begins.subspan(position, static_cast<std::size_t>(here.count()) + 1);
    if (counts[node] == 0) std::fill(own.begin(), own.end(), 0);
    else weights.divide(counts[node], here, own);
    for (std::int64_t& each : own) each += begin;
    begin += counts[node];
  }
}

}  // namespace syncrun::detail::master::calls
