// Collectives among CPU workers that move values and do not compute.

#include <algorithm>
#include <cstring>

#include "worker/comm/collectives.hpp"

namespace syncrun::detail::worker::comm {

// ---- from all -------------------------------------------------------------------------------------------------

void CpuComm::all_gather(const void* part, void* all, const Division& division) { collect(part, all, division, kAll); }

std::uint64_t CpuComm::start_gather_into_pages(const void* part, void* pages, const Division& division) {
  collect(part, pages, division, kAll, true);
  return 0;
}

void CpuComm::gather(const void* part, void* all, const Division& division, int root) {
  collect(part, all, division, root);
}

/// Brings every rank's part to all ranks, or to the root.
void CpuComm::collect(const void* part, void* all, const Division& division, int root, bool maps) {
  const protocol::Contribution mine{
      division.bytes(rank()) == 0 ? 0 : place_of(part),  // an empty part is never read
      division.all_bytes(),
      0,
      division.fingerprint(),
      root == kAll ? protocol::CollectiveKind::all_gather : protocol::CollectiveKind::gather,
      DType::uint8,
      Reduction::gather,
      root,
      {},
      maps};
  const bool takes = root == kAll || root == rank();
  const auto take = [&](int peer, std::size_t done, std::size_t count, const std::byte* from) {
    std::byte* const to = static_cast<std::byte*>(all) + division.begin_bytes(peer) + done;
    if (count != 0 && to != from) std::memcpy(to, from, count);
  };
  const auto* const own = static_cast<const std::byte*>(part);

  if (division.largest_bytes() <= kSmallBytes) {
    reclaim_buffers();
    const std::size_t bytes = division.bytes(rank());
    if (bytes != 0) std::memcpy(small_buffer(rank(), meetings_.next_parity()), own, bytes);
    const std::size_t parity = meet(mine);
    for (int peer = 0; takes && peer < world_size(); ++peer) {
      take(peer, 0, division.bytes(peer), small_buffer(peer, parity));
    }
    return;
  }

  const std::size_t parity = meet(mine);
  const os::Segment& segment = attachment_.segment;
  if (maps && all_can_be_mapped(parity, division)) {
    const bool maps_here = segment.is_intact();
    for (int peer = 0; peer < world_size(); ++peer) {
      const std::uint64_t offset = contribution(peer, parity).offset;
      std::byte* const to = static_cast<std::byte*>(all) + division.begin_bytes(peer);
      if (maps_here) segment.map_privately(to, offset, division.bytes(peer));
      else take(peer, 0, division.bytes(peer), segment.at(offset));
    }
    return;  // the caller sees to it that nobody changes the parts
  }
  if (all_in_segment(parity)) {
    for (int peer = 0; takes && peer < world_size(); ++peer) {
      take(peer, 0, division.bytes(peer), segment.at(contribution(peer, parity).offset));
    }
    step();
    return;
  }
  for (std::size_t done = 0; done < division.largest_bytes(); done += kChunkBytes) {
    const std::size_t bytes = bytes_left(division, rank(), done, kChunkBytes);
    if (bytes != 0) std::memcpy(chunk_buffer(rank()), own + done, bytes);
    step();
    for (int peer = 0; takes && peer < world_size(); ++peer) {
      take(peer, done, bytes_left(division, peer, done, kChunkBytes), chunk_buffer(peer));
    }
    step();
  }
}

/// All ranks get the same answer.
bool CpuComm::all_can_be_mapped(std::size_t parity, const Division& division) const noexcept {
  if (!division.is_equal() || division.bytes(0) < kSmallestMapped) return false;
  const auto is_whole = [page = os::Segment::page_bytes()](std::uint64_t bytes) { return bytes % page == 0; };
  for (int rank = 0; rank < world_size(); ++rank) {
    const protocol::Contribution& theirs = contribution(rank, parity);
    if (!theirs.maps || theirs.offset == protocol::kNotInSegment || !is_whole(theirs.offset)) return false;
  }
  return is_whole(division.bytes(0));
}

// ---- from one -------------------------------------------------------------------------------------------------

void CpuComm::broadcast(void* values, std::size_t elements, DType dtype, int root) {
  const std::size_t bytes = elements * size_of(dtype);
  spread(values, bytes, static_cast<std::byte*>(values), 0, bytes,
         {place_of(values), elements, 0, 0, protocol::CollectiveKind::broadcast, dtype, Reduction::sum, root});
}

void CpuComm::scatter(const void* all, void* part, const Division& division, int root) {
  const std::uint64_t offset = rank() == root ? place_of(all) : protocol::kNotInSegment;
  spread(all, division.all_bytes(), static_cast<std::byte*>(part), division.begin_bytes(rank()), division.bytes(rank()),
         {offset, division.all_bytes(), 0, division.fingerprint(), protocol::CollectiveKind::scatter, DType::uint8,
          Reduction::gather, root});
}

/// Copies bytes [begin, begin + bytes) of the root's values to `part`.
void CpuComm::spread(const void* all, std::size_t all_bytes, std::byte* part, std::size_t begin, std::size_t bytes,
                     const protocol::Contribution& mine) {
  const int root = mine.root;
  const auto* const source = static_cast<const std::byte*>(all);  // the root's
  const auto take = [&](const std::byte* from) {
    if (bytes != 0 && part != from) std::memcpy(part, from, bytes);
  };

  if (all_bytes <= kSmallBytes) {
    reclaim_buffers();
    if (rank() == root && all_bytes != 0) std::memcpy(small_buffer(root, meetings_.next_parity()), source, all_bytes);
    const std::size_t parity = meet(mine);
    take((rank() == root ? source : small_buffer(root, parity)) + begin);
    return;
  }

  const std::size_t parity = meet(mine);
  const std::uint64_t place = contribution(root, parity).offset;
  if (place != protocol::kNotInSegment) {
    take(attachment_.segment.at(place) + begin);
    step();
    return;
  }
  if (rank() == root) take(source + begin);
  for (std::size_t done = 0; done < all_bytes; done += kChunkBytes) {
    const std::size_t count = std::min(kChunkBytes, all_bytes - done);
    if (rank() == root) std::memcpy(chunk_buffer(root), source + done, count);
    step();
    const std::size_t first = std::max(begin, done);
    const std::size_t last = std::min(begin + bytes, done + count);
    if (rank() != root && first < last) {
      std::memcpy(part + (first - begin), chunk_buffer(root) + (first - done), last - first);
    }
    step();
  }
}

}  // namespace syncrun::detail::worker::comm
