// Reductions among ranks of several nodes.

#include <algorithm>
#include <cstring>
#include <string>

#include "common/arrays/reduce.hpp"
#include "common/arrays/row_range.hpp"
#include "common/text/errors.hpp"
#include "worker/comm/nodes_comm.hpp"

namespace syncrun::detail::worker::comm {

// ---- operations -----------------------------------------------------------------------------------------------

void NodesComm::all_reduce(void* values, std::size_t elements, DType dtype, Reduction reduction,
                           const RankWeights& weights) {
  if (!arrays::can_reduce(dtype, reduction)) {
    text::throw_usage("all_reduce: " + std::string(to_string(dtype)) + " has no " + std::string(to_string(reduction)));
  }
  const std::size_t bytes = elements * size_of(dtype);
  const bool is_small = bytes <= CpuComm::kSmallBytes;
  const std::size_t partial_bytes = elements * size_of(arrays::partial_type(dtype));
  const bool is_medium = !is_small && partial_bytes <= kMediumBytes && nodes() <= kFewNodes;
  Payload payload{values, bytes, is_small ? bytes : 0, is_small ? kAll : world_size()};
  if (is_medium) {
    payload.to_combine = bytes;
    payload.of_node = partial_bytes;
  }
  meet({here_.place_of(values), elements, weights.own, 0, protocol::CollectiveKind::all_reduce, dtype, reduction, 0},
       payload);
  collect_weights();
  if (is_small) return reduce_small(values, 0, elements, payload);
  if (is_medium) return reduce_medium(values, elements);
  if (nodes() <= 2 || bytes < kDividedBytes) return reduce_large(values, kAll);
  const Division division(elements, world_size(), size_of(dtype));
  auto* const own = static_cast<std::byte*>(values) + division.begin_bytes(rank());
  reduce_in_parts(values, own, division);
  collect_large(own, values, division, kAll);
}

void NodesComm::reduce(void* values, std::size_t elements, DType dtype, Reduction reduction, const RankWeights& weights,
                       int root) {
  const std::size_t bytes = elements * size_of(dtype);
  const bool is_small = bytes <= CpuComm::kSmallBytes;
  const Payload payload{values, bytes, is_small ? bytes : 0, is_small ? kAll : world_size()};
  meet({here_.place_of(values), elements, weights.own, 0, protocol::CollectiveKind::reduce, dtype, reduction, root},
       payload);
  collect_weights();
  if (!is_small) return reduce_large(values, root);
  if (rank() == root) reduce_small(values, 0, elements, payload);
}

void NodesComm::reduce_scatter(void* values, void* part, const Division& division, DType dtype, Reduction reduction,
                               const RankWeights& weights) {
  const std::size_t bytes = division.all_bytes();
  const bool is_small = bytes <= CpuComm::kSmallBytes;
  const Payload payload{values, bytes, is_small ? bytes : 0, is_small ? kAll : world_size()};
  meet({here_.place_of(values), static_cast<std::uint64_t>(division.elements()), weights.own, division.fingerprint(),
        protocol::CollectiveKind::reduce_scatter, dtype, reduction, 0},
       payload);
  collect_weights();
  if (!is_small) return reduce_in_parts(values, part, division);
  reduce_small(part, division.begin_bytes(rank()), division.bytes(rank()) / size_of(dtype), payload);
}

// ---- parts of them --------------------------------------------------------------------------------------------

/// Decides whose values count: in an average, those of ranks with weight.
void NodesComm::collect_weights() {
  const bool averages = brought_.front().reduction == Reduction::avg;
  double total = 0;
  for (const protocol::Contribution& contribution : brought_) total += static_cast<double>(contribution.weight);
  weights_.clear();
  counting_.clear();
  counts_.assign(nodes(), 0);
  for (std::size_t section = 0; section < nodes(); ++section) {
    for (int i = 0; i < sections_[section].count; ++i) {
      const int position = sections_[section].first + i;
      const auto weight = static_cast<double>(brought_by(position).weight);
      if (averages && weight == 0 && total != 0) continue;  // 0 times NaN is not 0
      counting_.push_back(position);
      weights_.push_back(total == 0 ? 0 : weight / total);
      counts_[section] = 1;
    }
  }
  const auto own = brought_.begin() + own_section().first;
  is_in_place_ = std::all_of(own, own + own_section().count, [](const protocol::Contribution& contribution) {
    return contribution.offset != protocol::kNotInSegment;
  });
}

/// The values of all ranks have come with the meeting.
void NodesComm::reduce_small(void* to, std::size_t begin_bytes, std::size_t elements, const Payload& payload) {
  sources_.clear();
  for (const int position : counting_) sources_.push_back(payload_of(position, payload) + begin_bytes);
  destinations_.assign(1, to);
  arrays::reduce_elements(brought_.front().dtype, brought_.front().reduction, destinations_, sources_, weights_,
                          elements);
}

/// This rank's share of elements that the ranks of the node handle together. Shares are whole cache lines, so that no two
/// ranks write to the same line.
NodesComm::Range NodesComm::own_lines(std::size_t elements, DType dtype) const noexcept {
  const std::size_t per_line = 64 / size_of(dtype);
  const auto lines = arrays::share_of(static_cast<std::int64_t>((elements + per_line - 1) / per_line),
                                      own_section().count, meetings_.position());
  return {std::min(elements, static_cast<std::size_t>(lines.begin) * per_line),
          std::min(elements, static_cast<std::size_t>(lines.end) * per_line)};
}

/// Before the meeting's exchange: combines the arrays that the ranks of this node have copied to their chunk buffers. In an
/// average, ranks count by their weights, and later nodes by theirs.
void NodesComm::combine_here(std::size_t parity, const Payload& payload) {
  const protocol::Contribution& shape = meetings_.contribution(0, parity);
  double total = 0;
  for (int i = 0; i < own_section().count; ++i) total += static_cast<double>(meetings_.contribution(i, parity).weight);
  const std::size_t each = size_of(shape.dtype);
  const arrays::ElementTypes types{shape.dtype, arrays::partial_type(shape.dtype)};
  const Range lines = own_lines(payload.to_combine / each, shape.dtype);
  sources_.clear();
  weights_.clear();
  for (int i = 0; i < own_section().count; ++i) {
    const auto weight = static_cast<double>(meetings_.contribution(i, parity).weight);
    if (shape.reduction == Reduction::avg && weight == 0 && total != 0) continue;  // 0 times NaN is not 0
    sources_.push_back(here_.chunk_buffer(i) + lines.begin * each);
    weights_.push_back(total == 0 ? 0 : weight / total);
  }
  std::byte* const to = meeting_.out + static_cast<std::size_t>(own_section().count) * kContributionBytes;
  destinations_.assign(1, to + lines.begin * size_of(types.to));
  arrays::reduce_elements(types, shape.reduction, destinations_, sources_, weights_, lines.end - lines.begin);
}

/// What each node has combined has come with the meeting.
void NodesComm::reduce_medium(void* to, std::size_t elements) {
  double total = 0;
  for (const protocol::Contribution& contribution : brought_) total += static_cast<double>(contribution.weight);
  sources_.clear();
  weights_.clear();
  for (std::size_t section = 0; section < nodes(); ++section) {
    if (counts_[section] == 0) continue;
    const Section& ranks = sections_[section];
    double weight = 0;
    for (int i = 0; i < ranks.count; ++i) weight += static_cast<double>(brought_by(ranks.first + i).weight);
    sources_.push_back(meeting_of(meeting_, section) + static_cast<std::size_t>(ranks.count) * kContributionBytes);
    weights_.push_back(total == 0 ? 0 : weight / total);
  }
  destinations_.assign(1, to);
  const protocol::Contribution& shape = brought_.front();
  arrays::reduce_elements({arrays::partial_type(shape.dtype), shape.dtype}, shape.reduction, destinations_, sources_,
                          weights_, elements);
}

/// Combines pieces of the arrays of this node's ranks, and puts them into what goes out.
void NodesComm::reduce_here(const std::byte* values, std::span<const Piece> pieces, const Round& round) {
  const protocol::Contribution& shape = brought_.front();
  const std::size_t each = size_of(shape.dtype);
  const arrays::ElementTypes types{shape.dtype, arrays::partial_type(shape.dtype)};
  if (!is_in_place_) {
    for (const Piece& piece : pieces) {
      if (piece.count == 0) continue;
      std::memcpy(here_.chunk_buffer(meetings_.position()) + piece.at, values + piece.begin * each, piece.count * each);
    }
    step();
  }
  for (const Piece& piece : pieces) {
    const Range lines = own_lines(piece.count, shape.dtype);
    sources_.clear();
    std::size_t first_weight = 0;
    for (std::size_t i = 0; i < counting_.size(); ++i) {
      const int local = counting_[i] - own_section().first;
      if (local < 0 || local >= own_section().count) continue;
      if (sources_.empty()) first_weight = i;
      const std::byte* const from = is_in_place_
                                        ? attachment_.segment.at(brought_by(counting_[i]).offset) + piece.begin * each
                                        : here_.chunk_buffer(local) + piece.at;
      sources_.push_back(from + lines.begin * each);
    }
    if (sources_.empty() || lines.begin == lines.end) continue;
    destinations_.assign(1, round.out + piece.at + lines.begin * size_of(types.to));
    arrays::reduce_elements(types, shape.reduction, destinations_, sources_,
                            std::span(weights_).subspan(first_weight, sources_.size()), lines.end - lines.begin);
  }
}

/// Combines what the nodes have put into their blocks, in the order of the nodes. Writes it to destinations_.
void NodesComm::combine_nodes(const Round& round, std::size_t block, std::size_t own_at, Range elements) {
  const protocol::Contribution& shape = brought_.front();
  if (elements.begin >= elements.end) return;
  const arrays::ElementTypes types{arrays::partial_type(shape.dtype), shape.dtype};
  sources_.clear();
  for (std::size_t section = 0; section < nodes(); ++section) {
    if (counts_[section] == 0) continue;
    sources_.push_back(block_from(round, section, block, own_at) + elements.begin * size_of(types.from));
  }
  // The weights are in the values already.
  const Reduction reduction = shape.reduction == Reduction::avg ? Reduction::sum : shape.reduction;
  arrays::reduce_elements(types, reduction, destinations_, sources_, {}, elements.end - elements.begin);
}

/// Works in place. Only the root's values are changed, or those of all ranks if `root` is kAll.
void NodesComm::reduce_large(void* values, int root) {
  const std::size_t elements = brought_.front().elements;
  const std::size_t chunk = block_for_all() / size_of(arrays::partial_type(brought_.front().dtype));
  auto* const own = static_cast<std::byte*>(values);
  const auto chunk_of = [&](std::size_t i) { return Range{i * chunk, std::min(elements, (i + 1) * chunk)}; };
  const auto fill = [&](std::size_t i, const Round& round) {
    const Piece piece{chunk_of(i).begin, chunk_of(i).end - chunk_of(i).begin, 0};
    reduce_here(own, {&piece, 1}, round);
  };
  run_rounds((elements + chunk - 1) / chunk, fill, [&](std::size_t i) { plan_chunk(chunk_of(i), root); },
             [&](std::size_t i, const Round& round) { use_chunk(round, own, chunk_of(i), root); });
  if (root == kAll && is_in_place_) step();  // other ranks write to this rank's array
}

void NodesComm::plan_chunk(Range elements, int root) {
  const std::size_t root_section = root == kAll ? nodes() : section_of(root);
  plan(block_for_all());
  for (std::size_t section = 0; section < nodes(); ++section) {
    const bool takes = root == kAll || section == root_section;
    const std::size_t bytes = (elements.end - elements.begin) * size_of(arrays::partial_type(brought_.front().dtype));
    blocks_[section].from_bytes = takes && counts_[own_] != 0 ? bytes : 0;
  }
}

/// Combines the blocks of the nodes. If the arrays of all ranks here are in the segment, each rank writes a share of the
/// result to all of them.
void NodesComm::use_chunk(const Round& round, std::byte* values, Range elements, int root) {
  if (root != kAll && root != rank()) return;
  const std::size_t each = size_of(brought_.front().dtype);
  const std::size_t count = elements.end - elements.begin;
  const bool is_shared = root == kAll && is_in_place_;
  const Range lines = is_shared ? own_lines(count, brought_.front().dtype) : Range{0, count};
  destinations_.clear();
  for (int i = 0; is_shared && i < own_section().count; ++i) {
    const std::uint64_t offset = brought_by(own_section().first + i).offset;
    destinations_.push_back(attachment_.segment.at(offset) + (elements.begin + lines.begin) * each);
  }
  if (!is_shared) destinations_.push_back(values + elements.begin * each);
  combine_nodes(round, block_for_all(), 0, lines);
}

/// Each rank gets its part of the result. In each round, every node gets a piece of the parts of its ranks.
void NodesComm::reduce_in_parts(void* values, void* part, const Division& division) {
  const std::size_t each = size_of(brought_.front().dtype);
  const std::size_t partial_each = size_of(arrays::partial_type(brought_.front().dtype));
  const std::size_t block = block_for_each();
  const std::size_t piece = block / partial_each * each;  // what fills a block, once it is combined
  const std::size_t own_begin = division.begin_bytes(rank());
  const std::size_t own_end = own_begin + division.bytes(rank());
  const auto piece_of = [&](std::size_t i, std::size_t section) {
    const Range bytes = section_bytes(division, section);
    return Piece{(bytes.begin + i * piece) / each, bytes.next(i * piece, piece) / each, section * block};
  };
  const auto fill = [&](std::size_t i, const Round& round) {
    pieces_.clear();
    for (std::size_t section = 0; section < nodes(); ++section) pieces_.push_back(piece_of(i, section));
    reduce_here(static_cast<const std::byte*>(values), pieces_, round);
  };
  const auto plan_round = [&](std::size_t i) {
    plan(block);
    for (std::size_t section = 0; section < nodes(); ++section) {
      blocks_[section].from = section * block;
      blocks_[section].from_bytes = counts_[own_] != 0 ? piece_of(i, section).count * partial_each : 0;
    }
  };
  const auto use = [&](std::size_t i, const Round& round) {
    const std::size_t chunk = section_bytes(division, own_).begin + i * piece;
    const std::size_t begin = std::max(own_begin, chunk);
    const std::size_t end = std::min(own_end, chunk + piece_of(i, own_).count * each);
    if (begin >= end) return;
    destinations_.assign(1, static_cast<std::byte*>(part) + (begin - own_begin));
    combine_nodes(round, block, own_ * block, {(begin - chunk) / each, (end - chunk) / each});
  };
  run_rounds((largest_section(division) + piece - 1) / piece, fill, plan_round, use);
}

}  // namespace syncrun::detail::worker::comm
