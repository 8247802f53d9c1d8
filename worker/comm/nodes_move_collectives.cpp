// Collectives among ranks of several nodes that move values and do not compute.

#include <algorithm>
#include <cstring>

#include "worker/comm/nodes_comm.hpp"

namespace syncrun::detail::worker::comm {

// ---- from all -------------------------------------------------------------------------------------------------

void NodesComm::all_gather(const void* part, void* all, const Division& division) {
  collect(part, all, division, kAll);
}

void NodesComm::gather(const void* part, void* all, const Division& division, int root) {
  collect(part, all, division, root);
}

/// Brings every rank's part to all ranks, or to the root.
void NodesComm::collect(const void* part, void* all, const Division& division, int root) {
  const protocol::Contribution mine{
      here_.place_of(part),
      division.all_bytes(),
      0,
      division.fingerprint(),
      root == kAll ? protocol::CollectiveKind::all_gather : protocol::CollectiveKind::gather,
      DType::uint8,
      Reduction::gather,
      root};
  const std::size_t most = division.largest_bytes();
  const bool is_small = most <= CpuComm::kSmallBytes;
  const Payload payload{part, division.bytes(rank()), is_small ? most : 0, is_small ? kAll : world_size()};
  meet(mine, payload);
  if (!is_small) return collect_large(part, all, division, root);
  if (root != kAll && root != rank()) return;
  for (int peer = 0; peer < world_size(); ++peer) {
    std::byte* const to = static_cast<std::byte*>(all) + division.begin_bytes(peer);
    if (division.bytes(peer) != 0) std::memcpy(to, payload_of(peer, payload), division.bytes(peer));
  }
}

/// In each round, every node sends a piece of the parts of its ranks.
void NodesComm::collect_large(const void* part, void* all, const Division& division, int root) {
  const std::size_t block = block_for_all();
  const std::size_t root_section = root == kAll ? nodes() : section_of(root);
  const std::size_t own_begin = division.begin_bytes(rank());
  const std::size_t own_end = own_begin + division.bytes(rank());
  const auto count_of = [&](std::size_t section, std::size_t i) {
    return section_bytes(division, section).next(i * block, block);
  };
  const auto fill = [&](std::size_t i, const Round& round) {
    const std::size_t chunk = section_bytes(division, own_).begin + i * block;
    const std::size_t begin = std::max(own_begin, chunk);
    const std::size_t end = std::min(own_end, chunk + count_of(own_, i));
    if (begin < end)
      std::memcpy(round.out + (begin - chunk), static_cast<const std::byte*>(part) + (begin - own_begin), end - begin);
  };
  const auto plan_round = [&](std::size_t i) {
    plan(block);
    for (std::size_t section = 0; section < nodes(); ++section)
      blocks_[section].from_bytes = root == kAll || section == root_section ? count_of(own_, i) : 0;
  };
  const auto use = [&](std::size_t i, const Round& round) {
    for (std::size_t section = 0; section < nodes() && (root == kAll || root == rank()); ++section) {
      std::byte* const to = static_cast<std::byte*>(all) + section_bytes(division, section).begin + i * block;
      if (const std::size_t count = count_of(section, i); count != 0)
        std::memcpy(to, block_from(round, section, block, 0), count);
    }
  };
  run_rounds((largest_section(division) + block - 1) / block, fill, plan_round, use);
}

// ---- from one -------------------------------------------------------------------------------------------------

void NodesComm::broadcast(void* values, std::size_t elements, DType dtype, int root) {
  const std::size_t bytes = elements * size_of(dtype);
  const bool is_small = bytes <= CpuComm::kSmallBytes;
  const Payload payload{values, bytes, is_small ? bytes : 0, is_small ? root : world_size()};
  meet({here_.place_of(values), elements, 0, 0, protocol::CollectiveKind::broadcast, dtype, Reduction::sum, root},
       payload);
  if (is_small) {
    if (rank() != root && bytes != 0) std::memcpy(values, payload_of(root, payload), bytes);
    return;
  }
  const std::size_t block = block_for_all();
  const std::size_t from = section_of(root);
  auto* const own = static_cast<std::byte*>(values);
  const auto count_of = [&](std::size_t i) { return std::min(block, bytes - i * block); };
  const auto fill = [&](std::size_t i, const Round& round) {
    if (rank() == root) std::memcpy(round.out, own + i * block, count_of(i));
  };
  const auto plan_round = [&](std::size_t i) {
    plan(block);
    for (protocol::NodeBlock& other : blocks_) other.from_bytes = from == own_ ? count_of(i) : 0;
  };
  const auto use = [&](std::size_t i, const Round& round) {
    if (rank() != root) std::memcpy(own + i * block, block_from(round, from, block, 0), count_of(i));
  };
  run_rounds((bytes + block - 1) / block, fill, plan_round, use);
}

void NodesComm::scatter(const void* all, void* part, const Division& division, int root) {
  const std::size_t bytes = division.all_bytes();
  const bool is_small = bytes <= CpuComm::kSmallBytes;
  const Payload payload{all, bytes, is_small ? bytes : 0, is_small ? root : world_size()};
  meet({protocol::kNotInSegment, bytes, 0, division.fingerprint(), protocol::CollectiveKind::scatter, DType::uint8,
        Reduction::gather, root},
       payload);
  const std::size_t own_begin = division.begin_bytes(rank());
  const std::size_t own_end = own_begin + division.bytes(rank());
  auto* const to = static_cast<std::byte*>(part);
  if (is_small) {
    if (own_begin != own_end) std::memmove(to, payload_of(root, payload) + own_begin, own_end - own_begin);
    return;
  }
  const std::size_t block = block_for_each();
  const std::size_t from = section_of(root);
  const auto count_of = [&](std::size_t section, std::size_t i) {
    return section_bytes(division, section).next(i * block, block);
  };
  const auto fill = [&](std::size_t i, const Round& round) {
    for (std::size_t section = 0; section < nodes() && rank() == root; ++section) {
      const std::byte* const piece =
          static_cast<const std::byte*>(all) + section_bytes(division, section).begin + i * block;
      if (const std::size_t count = count_of(section, i); count != 0)
        std::memcpy(round.out + section * block, piece, count);
    }
  };
  const auto plan_round = [&](std::size_t i) {
    plan(block);
    for (std::size_t section = 0; section < nodes() && from == own_; ++section) {
      blocks_[section].from = section * block;
      blocks_[section].from_bytes = count_of(section, i);
    }
  };
  const auto use = [&](std::size_t i, const Round& round) {
    const std::size_t chunk = section_bytes(division, own_).begin + i * block;
    const std::size_t begin = std::max(own_begin, chunk);
    const std::size_t end = std::min(own_end, chunk + count_of(own_, i));
    if (begin < end)
      std::memcpy(to + (begin - own_begin), block_from(round, from, block, own_ * block) + (begin - chunk),
                  end - begin);
  };
  run_rounds((largest_section(division) + block - 1) / block, fill, plan_round, use);
}

}  // namespace syncrun::detail::worker::comm
