#include "master/nodes/row_mirror.hpp"

#include <algorithm>
#include <iterator>

#include "common/arrays/extents.hpp"
#include "common/protocol/row_shares.hpp"
#include "master/nodes/transfer_parts.hpp"

namespace syncrun::detail::master::nodes {

namespace {

/// The array of an argument: its bytes, and those of one row.
struct ArgumentBytes {
  SegmentRange all;
  std::uint64_t row = 0;
  SegmentRange rows(std::int64_t begin, std::int64_t end) const noexcept {
    return {all.begin + static_cast<std::uint64_t>(begin) * row, all.begin + static_cast<std::uint64_t>(end) * row};
  }
};

ArgumentBytes bytes_of(const protocol::ArgumentSlot& slot) {
  const std::span<const std::int64_t> extents(slot.extents.data(), slot.dimensions);
  const std::uint64_t bytes = arrays::elements_in(extents) * size_of(slot.dtype);
  return {{slot.offset, slot.offset + bytes}, arrays::row_bytes_of(slot.dtype, extents)};
}

bool is_in_heap(const protocol::ArgumentSlot& slot) {
  return (slot.kind == ArgumentKind::scattered || slot.kind == ArgumentKind::broadcast) && slot.file == 0;
}

}  // namespace

void RowMirror::note(const os::HeapChange& change) {
  const SegmentRange range{change.offset, change.offset + change.bytes};
  const auto array = array_at(change.offset);
  std::vector<SegmentRange> were_missing;
  switch (change.kind) {
    case os::HeapChange::Kind::mirrored:
      remove_arrays(range);
      arrays_[range.begin].end = range.end;
      break;
    case os::HeapChange::Kind::reserved:
    case os::HeapChange::Kind::freed: remove_arrays(range); break;
    case os::HeapChange::Kind::rows_written:
      if (array != arrays_.end()) array->second.there.remove(range);
      break;
    case os::HeapChange::Kind::rows_there:
      if (array != arrays_.end()) array->second.there.add(range, were_missing);
      break;
    case os::HeapChange::Kind::written: break;
  }
}

/// An array is in one extent, so none is partly in a range that was freed.
void RowMirror::remove_arrays(SegmentRange range) {
  arrays_.erase(arrays_.lower_bound(range.begin), arrays_.lower_bound(range.end));
}

RowMirror::Arrays::iterator RowMirror::array_at(std::uint64_t offset) {
  auto next = arrays_.upper_bound(offset);
  if (next == arrays_.begin()) return arrays_.end();
  const auto array = std::prev(next);
  return offset < array->second.end ? array : arrays_.end();
}

std::vector<SegmentRange> RowMirror::take_missing(const os::Segment& segment, const protocol::Command& command,
                                                  const protocol::NodePlace& node) {
  std::vector<SegmentRange> missing;
  if (command.kind == protocol::CommandKind::call) add_rows_of_call(segment, command, node, missing);
  if (command.kind == protocol::CommandKind::transfer) add_values_of_transfer(segment, command, node, missing);
  std::ranges::sort(missing, [](const SegmentRange& a, const SegmentRange& b) { return a.begin < b.begin; });
  std::vector<SegmentRange> joined;
  for (const SegmentRange& range : missing) {
    if (!joined.empty() && joined.back().end == range.begin) joined.back().end = range.end;
    else joined.push_back(range);
  }
  return joined;
}

/// Several ranks may get the same values.
void RowMirror::add_values_of_transfer(const os::Segment& segment, const protocol::Command& command,
                                       const protocol::NodePlace& node, std::vector<SegmentRange>& missing) {
  if (command.as<protocol::TransferPayload>().direction != protocol::TransferDirection::to_variable) return;
  for_each_part(segment, command, node,
                [&](int, const protocol::VariableEntry& entry, const protocol::TransferSlot& part) {
                  const auto array = part.offset == 0 ? arrays_.end() : array_at(part.offset);
                  if (array != arrays_.end())
                    array->second.there.add({part.offset, part.offset + bytes_of(entry, part)}, missing);
                });
}

void RowMirror::add_rows_of_call(const os::Segment& segment, const protocol::Command& command,
                                 const protocol::NodePlace& node, std::vector<SegmentRange>& missing) {
  const protocol::CallPayload& call = command.call();
  const protocol::RowsSlot& batch = call.batch;
  for (std::size_t i = 0; i < call.arguments_count; ++i) {
    const protocol::ArgumentSlot& slot = command.arguments[i];
    if (!is_in_heap(slot)) continue;
    const auto found = array_at(slot.offset);
    if (found == arrays_.end()) continue;  // an array without rows
    os::RangeSet& there = found->second.there;
    const ArgumentBytes bytes = bytes_of(slot);
    const bool is_list = !slot.is_minibatch && batch.kind == Rows::Kind::list;
    if (slot.kind == ArgumentKind::broadcast) {
      there.add(bytes.all, missing);
      continue;
    }
    for (const int rank : node.ranks_of(command.ranks)) {
      const arrays::RowRange share = protocol::share_in_call(segment, call, command.ranks, rank);
      if (!is_list) {
        const std::int64_t begin = slot.is_minibatch ? 0 : batch.begin;
        there.add(bytes.rows(begin + share.begin, begin + share.end), missing);
        continue;
      }
      const auto* const indices = segment.at<const std::int64_t>(batch.offset);
      for (std::int64_t at = share.begin; at < share.end; ++at)
        there.add(bytes.rows(indices[at], indices[at] + 1), missing);
    }
  }
}

}  // namespace syncrun::detail::master::nodes
