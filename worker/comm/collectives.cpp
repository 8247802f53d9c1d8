#include "worker/comm/collectives.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>

#include "common/arrays/reduce.hpp"
#include "common/arrays/row_range.hpp"
#include "common/text/errors.hpp"

namespace syncrun::detail::worker::comm {

// ---- division -------------------------------------------------------------------------------------------------

Division::Division(std::span<const std::int64_t> lengths, std::size_t element_bytes) noexcept
    : elements_(std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0})),
      ranks_(static_cast<int>(lengths.size())),
      element_bytes_(element_bytes),
      lengths_(lengths) {}

arrays::RowRange Division::of(int rank) const noexcept {
  if (lengths_.empty()) return arrays::share_of(elements_, ranks_, rank);
  const std::int64_t begin = std::accumulate(lengths_.begin(), lengths_.begin() + rank, std::int64_t{0});
  return {begin, begin + lengths_[static_cast<std::size_t>(rank)]};
}

std::size_t Division::largest_bytes() const noexcept {
  if (lengths_.empty()) return bytes(0);
  return static_cast<std::size_t>(*std::max_element(lengths_.begin(), lengths_.end())) * element_bytes_;
}

bool Division::is_equal() const noexcept {
  if (lengths_.empty()) return elements_ % ranks_ == 0;
  return std::adjacent_find(lengths_.begin(), lengths_.end(), std::not_equal_to<>()) == lengths_.end();
}

std::uint64_t Division::fingerprint() const noexcept {
  std::uint64_t hash = element_bytes_;
  for (int rank = 0; rank < ranks_; ++rank) {
    hash = (hash ^ static_cast<std::uint64_t>(of(rank).count() + 1)) * 0x9e3779b97f4a7c15ULL;
    hash ^= hash >> 29U;
  }
  return hash;
}

CpuComm::CpuComm(const process::Attachment& attachment, Meetings& meetings, const process::Interruption& interruption)
    : attachment_(attachment), meetings_(meetings), limits_{interruption} {
  weights_.reserve(static_cast<std::size_t>(attachment.world_size));
  sources_.reserve(weights_.capacity());
  destinations_.reserve(weights_.capacity());
}

void CpuComm::begin(const protocol::Command& command) noexcept { meetings_.begin(command); }

void CpuComm::count(std::size_t bytes) noexcept {
  attachment_.count(protocol::Count::collectives, 1);
  attachment_.count(protocol::Count::collective_bytes, bytes);
}

void CpuComm::set_label(std::string_view text) noexcept { meetings_.set_label(text); }

// ---- buffers --------------------------------------------------------------------------------------------------

std::byte* CpuComm::buffers_of(int session_rank) const noexcept {
  return attachment_.segment.at(attachment_.control.arena_at(session_rank));
}

std::byte* CpuComm::small_buffer(int rank, std::size_t parity) const noexcept {
  return buffers_of(meetings_.rank_at(rank)) + parity * kSmallBytes;
}

std::byte* CpuComm::chunk_buffer(int rank) const noexcept { return small_buffer(rank, 2); }

std::span<std::uint32_t> CpuComm::meeting_words(int session_rank) const noexcept {
  return {reinterpret_cast<std::uint32_t*>(buffers_of(session_rank) + 2 * kSmallBytes + kChunkBytes),
          kMeetingBytes / sizeof(std::uint32_t)};
}

std::uint64_t CpuComm::place_of(const void* values) const noexcept {
  return attachment_.segment.contains(values) ? attachment_.segment.offset_of(values) : protocol::kNotInSegment;
}

bool CpuComm::all_in_segment(std::size_t parity) const noexcept {
  for (int rank = 0; rank < world_size(); ++rank) {
    if (contribution(rank, parity).offset == protocol::kNotInSegment) return false;
  }
  return true;
}

// ---- operations -----------------------------------------------------------------------------------------------

void CpuComm::barrier() { meet({0, 0, 0, 0, protocol::CollectiveKind::barrier, DType::uint8, Reduction::sum, 0}); }

template <class Address>
void CpuComm::collect_sources(std::size_t parity, std::size_t skipped_bytes, Address&& address) {
  const bool averages = contribution(0, parity).reduction == Reduction::avg;
  double total = 0;
  for (int rank = 0; rank < world_size(); ++rank) {
    total += static_cast<double>(contribution(rank, parity).weight);
  }
  sources_.clear();
  weights_.clear();
  for (int rank = 0; rank < world_size(); ++rank) {
    const auto weight = static_cast<double>(contribution(rank, parity).weight);
    if (averages && weight == 0 && total != 0) continue;  // 0 times NaN is not 0
    sources_.push_back(address(rank) + skipped_bytes);
    weights_.push_back(total == 0 ? 0 : weight / total);
  }
}

template <class Address>
void CpuComm::reduce_part(std::size_t parity, std::size_t elements, int root, Address&& address) {
  const protocol::Contribution& shape = contribution(0, parity);
  const std::size_t each = size_of(shape.dtype);
  // Parts are whole cache lines, so that no two ranks write to the same line.
  const std::size_t per_line = 64 / each;
  const auto lines =
      arrays::share_of(static_cast<std::int64_t>((elements + per_line - 1) / per_line), world_size(), rank());
  const std::size_t begin = std::min(elements, static_cast<std::size_t>(lines.begin) * per_line);
  const std::size_t end = std::min(elements, static_cast<std::size_t>(lines.end) * per_line);
  collect_sources(parity, begin * each, address);
  destinations_.clear();
  for (int rank = 0; rank < world_size(); ++rank) {
    if (root == kAll || rank == root) destinations_.push_back(address(rank) + begin * each);
  }
  arrays::reduce_elements(shape.dtype, shape.reduction, destinations_, sources_, weights_, end - begin);
}

void CpuComm::all_reduce(void* values, std::size_t elements, DType dtype, Reduction reduction,
                         const RankWeights& weights) {
  if (!arrays::can_reduce(dtype, reduction)) {
    text::throw_usage("all_reduce: " + std::string(to_string(dtype)) + " has no " + std::string(to_string(reduction)));
  }
  reduce_to(kAll, values,
            {place_of(values), elements, weights.own, 0, protocol::CollectiveKind::all_reduce, dtype, reduction, 0});
}

void CpuComm::reduce(void* values, std::size_t elements, DType dtype, Reduction reduction, const RankWeights& weights,
                     int root) {
  reduce_to(root, values,
            {place_of(values), elements, weights.own, 0, protocol::CollectiveKind::reduce, dtype, reduction, root});
}

/// Works in place. Only the root's values are changed, or those of all ranks if `root` is kAll.
void CpuComm::reduce_to(int root, void* values, const protocol::Contribution& mine) {
  const std::size_t each = size_of(mine.dtype);
  const std::size_t bytes = mine.elements * each;
  auto* const own = static_cast<std::byte*>(values);
  const bool gets_result = root == kAll || root == rank();

  if (bytes <= kSmallBytes) {
    // One meeting is enough: every rank reads the copies of all ranks and reduces all elements.
    reclaim_buffers();
    std::byte* const copy = small_buffer(rank(), meetings_.next_parity());
    if (bytes != 0) std::memcpy(copy, own, bytes);
    const std::size_t parity = meet(mine);
    if (!gets_result) return;
    collect_sources(parity, 0, [&](int rank) { return small_buffer(rank, parity); });
    destinations_.assign(1, own);
    arrays::reduce_elements(mine.dtype, mine.reduction, destinations_, sources_, weights_, mine.elements);
    return;
  }

  const std::size_t parity = meet(mine);
  if (all_in_segment(parity)) {
    reduce_part(parity, mine.elements, root,
                [&](int rank) { return attachment_.segment.at(contribution(rank, parity).offset); });
    step();
    return;
  }
  const std::size_t chunk = kChunkBytes / each;
  for (std::size_t begin = 0; begin < mine.elements; begin += chunk) {
    const std::size_t count = std::min(chunk, mine.elements - begin);
    std::byte* const part = own + begin * each;
    std::memcpy(chunk_buffer(rank()), part, count * each);
    step();
    reduce_part(parity, count, root, [&](int rank) { return chunk_buffer(rank); });
    step();
    if (gets_result) std::memcpy(part, chunk_buffer(rank()), count * each);
  }
}

void CpuComm::reduce_scatter(void* values, void* part, const Division& division, DType dtype, Reduction reduction,
                             const RankWeights& weights) {
  const protocol::Contribution mine{place_of(values),
                                    static_cast<std::uint64_t>(division.elements()),
                                    weights.own,
                                    division.fingerprint(),
                                    protocol::CollectiveKind::reduce_scatter,
                                    dtype,
                                    reduction,
                                    0};
  const std::size_t each = size_of(dtype);
  const int own = rank();
  auto* const to = static_cast<std::byte*>(part);
  const auto reduce_into = [&](std::byte* destination, std::size_t count) {
    destinations_.assign(1, destination);
    arrays::reduce_elements(dtype, reduction, destinations_, sources_, weights_, count);
  };

  if (division.all_bytes() <= kSmallBytes) {
    reclaim_buffers();
    if (division.all_bytes() != 0)
      std::memcpy(small_buffer(own, meetings_.next_parity()), values, division.all_bytes());
    const std::size_t parity = meet(mine);
    collect_sources(parity, division.begin_bytes(own), [&](int rank) { return small_buffer(rank, parity); });
    return reduce_into(to, division.bytes(own) / each);
  }

  const std::size_t parity = meet(mine);
  if (all_in_segment(parity)) {
    collect_sources(parity, division.begin_bytes(own),
                    [&](int rank) { return attachment_.segment.at(contribution(rank, parity).offset); });
    reduce_into(to, division.bytes(own) / each);
    step();
    return;
  }
  // Each step handles a piece of every rank's part, so that all ranks have work in every step.
  const std::size_t piece = kChunkBytes / each / static_cast<std::size_t>(world_size()) * each;
  for (std::size_t done = 0; done < division.largest_bytes(); done += piece) {
    for (int rank = 0; rank < world_size(); ++rank) {
      const std::size_t bytes = bytes_left(division, rank, done, piece);
      if (bytes == 0) continue;
      std::memcpy(chunk_buffer(own) + static_cast<std::size_t>(rank) * piece,
                  static_cast<const std::byte*>(values) + division.begin_bytes(rank) + done, bytes);
    }
    step();
    collect_sources(parity, static_cast<std::size_t>(own) * piece, [&](int rank) { return chunk_buffer(rank); });
    const std::size_t bytes = bytes_left(division, own, done, piece);
    if (bytes != 0) reduce_into(to + done, bytes / each);
    step();
  }
}

}  // namespace syncrun::detail::worker::comm
