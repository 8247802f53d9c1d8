// Collectives among CPU workers that move values and do not compute.

#include <algorithm>
#include <cstring>
#include <string>

#include "common/errors.hpp"
#include "worker/collectives.hpp"

namespace syncrun::detail {

void CpuComm::broadcast(void* values, std::size_t bytes, int root) {
  if (root < 0 || root >= attachment_.world_size) {
    throw_usage("broadcast: root is a rank from 0 to " + std::to_string(attachment_.world_size - 1) + ", got " +
                std::to_string(root));
  }
  meet({0, bytes, 0, CollectiveKind::broadcast, DType::uint8, Reduction::sum, root});
  auto* const own = static_cast<std::byte*>(values);
  for (std::size_t begin = 0; begin < bytes; begin += kChunkBytes) {
    const std::size_t count = std::min(kChunkBytes, bytes - begin);
    if (attachment_.rank == root) std::memcpy(chunk_buffer(root), own + begin, count);
    step();
    if (attachment_.rank != root) std::memcpy(own + begin, chunk_buffer(root), count);
    step();
  }
}

void CpuComm::all_gather(const void* part, void* all, const Division& division) {
  const Contribution mine{place_of(part),
                          static_cast<std::uint64_t>(division.elements()) * division.element_bytes(),
                          0,
                          CollectiveKind::all_gather,
                          DType::uint8,
                          Reduction::gather,
                          0};
  const auto* const own = static_cast<const std::byte*>(part);
  // `from(rank)`: the bytes of that rank's part from `done` on, `count` of them.
  const auto take = [&](int rank, std::size_t done, std::size_t count, const std::byte* from) {
    std::byte* const to = static_cast<std::byte*>(all) + division.begin_bytes(rank) + done;
    if (count != 0 && to != from) std::memcpy(to, from, count);
  };

  if (division.bytes(0) <= kSmallBytes) {
    reclaim_buffers();
    if (division.bytes(rank()) != 0) {
      std::memcpy(small_buffer(rank(), operations_ % 2), own, division.bytes(rank()));
    }
    const std::size_t parity = meet(mine);
    for (int peer = 0; peer < world_size(); ++peer) take(peer, 0, division.bytes(peer), small_buffer(peer, parity));
    return;
  }

  const std::size_t parity = meet(mine);
  if (all_in_segment(parity)) {
    for (int peer = 0; peer < world_size(); ++peer) {
      take(peer, 0, division.bytes(peer), attachment_.segment.at(contribution(peer, parity).offset));
    }
    step();
    return;
  }
  const auto chunk_of = [&](int rank, std::size_t done) {
    return std::min(kChunkBytes, division.bytes(rank) - std::min(done, division.bytes(rank)));
  };
  for (std::size_t done = 0; done < division.bytes(0); done += kChunkBytes) {
    if (chunk_of(rank(), done) != 0) std::memcpy(chunk_buffer(rank()), own + done, chunk_of(rank(), done));
    step();
    for (int peer = 0; peer < world_size(); ++peer) take(peer, done, chunk_of(peer, done), chunk_buffer(peer));
    step();
  }
}

}  // namespace syncrun::detail
