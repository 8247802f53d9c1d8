#include "master/data/rows_on_nodes.hpp"

#include "common/protocol/row_shares.hpp"
#include "common/text/errors.hpp"
#include "master/calls/describe.hpp"

namespace syncrun::detail::master::data {

namespace {

constexpr const char* kEvenHelp =
    ": let the producers fill all rows and call push(), or divide the rows evenly among all ranks";

std::string rows_text(arrays::RowRange rows) {
  return "[" + std::to_string(rows.begin) + ", " + std::to_string(rows.end) + ")";
}

}  // namespace

void check_has_all_rows(const records::DataRecord& record) {
  if (record.rows_on_nodes.empty()) return;
  if (record.file) {
    text::throw_usage(calls::describe_data(record) + " is in a file of each node: the program requires all " +
                      std::to_string(record.extents[0]) + " rows, and its node has rows " +
                      rows_text(record.rows_on_nodes.front()) + ": only calls can read it, as Scattered");
  }
  text::throw_usage(calls::describe_data(record) +
                    " is part of a batch that was pushed with push_here(): the program requires all " +
                    std::to_string(record.extents[0]) + " rows, and its node has rows " +
                    rows_text(record.rows_on_nodes.front()) + kEvenHelp);
}

void check_rows_on_nodes(const records::DataRecord& record, const std::string& argument,
                         const protocol::ArgumentSlot& slot, const os::Segment& segment,
                         const protocol::CallPayload& call, const protocol::RankSet& ranks,
                         std::span<const protocol::NodePlace> nodes) {
  if (record.rows_on_nodes.empty()) return;
  if (record.file) {  // CallRows gives each rank rows of its node, if they are not those of a batch
    if (slot.kind == ArgumentKind::scattered && !slot.is_minibatch) return;
    text::throw_usage(argument +
                      " is in a file of each node, so it can only be a Scattered argument, and no minibatch: "
                      "a Broadcast argument requires a file that is the same on all nodes");
  }
  const std::string batch = argument + " is part of a batch that was pushed with push_here(): ";
  if (slot.kind == ArgumentKind::broadcast)
    text::throw_usage(batch + "a Broadcast argument requires all rows on each node" + kEvenHelp);
  if (!slot.is_minibatch && call.batch.kind == Rows::Kind::list)
    text::throw_usage(batch + "an index list may name rows of other nodes" + kEvenHelp);
  const std::int64_t first = slot.is_minibatch ? 0 : call.batch.begin;
  for (const protocol::NodePlace& node : nodes) {
    const arrays::RowRange& there = record.rows_on_nodes[static_cast<std::size_t>(node.node)];
    for (const int rank : node.ranks_of(ranks)) {
      const arrays::RowRange share = protocol::share_in_call(segment, call, ranks, rank);
      const arrays::RowRange read{first + share.begin, first + share.end};
      if (read.count() == 0 || (read.begin >= there.begin && read.end <= there.end)) continue;
      text::throw_usage(batch + "rank " + std::to_string(rank) + " reads rows " + rows_text(read) + ", and node " +
                        std::to_string(node.node) + " has rows " + rows_text(there) + kEvenHelp);
    }
  }
}

}  // namespace syncrun::detail::master::data
