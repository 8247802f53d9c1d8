#pragma once

// How the ranks of a communicator are divided among nodes.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace syncrun::detail::worker::devices::cuda {

/// The place of one rank if there are several nodes, and each has equally many ranks, and more than one.
struct EqualNodes {
  int nodes;
  int ranks_per_node;
  int node;   // from 0, in the order of the ranks
  int place;  // of the rank in its node, from 0
};

/// `nodes` has the node of each rank, in rank order. The ranks of a node follow each other. Returns nothing if the nodes
/// have different numbers of ranks or only one each, or if there is one node.
inline std::optional<EqualNodes> equal_nodes(std::span<const std::int64_t> nodes, int rank) noexcept {
  std::size_t first = 0;
  while (first < nodes.size() && nodes[first] == nodes.front()) ++first;
  if (first < 2 || first == nodes.size() || nodes.size() % first != 0) return std::nullopt;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const bool begins_a_node = i % first == 0;
    if (i != 0 && begins_a_node == (nodes[i] == nodes[i - 1])) return std::nullopt;
  }
  const int per_node = static_cast<int>(first);
  return EqualNodes{static_cast<int>(nodes.size()) / per_node, per_node, rank / per_node, rank % per_node};
}

/// The elements of a vector for which one rank of a node is responsible. Each rank has a part of `part` elements, and the last
/// rank has the remainder too, which follows its part. A part is a multiple of 16 bytes, so all parts begin as well aligned
/// as the vector: NCCL copies such parts faster.
struct NodeDivision {
  static constexpr std::size_t kUnitBytes = 16;
  std::size_t part;
  std::size_t remainder;

  static constexpr NodeDivision of(std::size_t elements, std::size_t element_bytes, int ranks_per_node) noexcept {
    const auto ranks = static_cast<std::size_t>(ranks_per_node);
    const std::size_t unit = kUnitBytes / element_bytes;
    const std::size_t part = elements / ranks / unit * unit;
    return {part, elements - ranks * part};
  }
  constexpr std::size_t begin(int place) const noexcept { return part * static_cast<std::size_t>(place); }
  constexpr std::size_t count(int place, int ranks_per_node) const noexcept {
    return part + (place + 1 == ranks_per_node ? remainder : 0);
  }
};

}  // namespace syncrun::detail::worker::devices::cuda
