#pragma once

// What the ranks of several nodes tell each other before they make a communicator of NCCL.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace syncrun::detail::worker::devices::cuda {

/// What one rank tells, as whole numbers.
struct NodeFacts {
  static constexpr std::size_t kNumbers = 64;
  using Packed = std::array<std::int64_t, kNumbers>;

  std::int64_t node = 0;
  bool reduces_by_node = true;  // SYNCRUN_REDUCE_BY_NODE
  std::string interfaces;       // of the node's network; longer texts lose their end

  Packed packed() const {
    Packed numbers{node, reduces_by_node ? 1 : 0};
    std::memcpy(&numbers[kFirstOfText], interfaces.data(), std::min(interfaces.size(), kTextBytes - 1));
    return numbers;
  }
  static NodeFacts unpacked(std::span<const std::int64_t> numbers) {
    const auto* const text = reinterpret_cast<const char*>(&numbers[kFirstOfText]);
    return {numbers[0], numbers[1] != 0, std::string(text, ::strnlen(text, kTextBytes))};
  }

 private:
  static constexpr std::size_t kFirstOfText = 2;
  static constexpr std::size_t kTextBytes = (kNumbers - kFirstOfText) * sizeof(std::int64_t);
};

/// "node 0 has the interfaces eth0 10.0.0.1, node 1 has ...". `facts` are in the order of the ranks.
inline std::string interfaces_of(std::span<const NodeFacts> facts) {
  std::string text;
  std::int64_t last = -1;
  for (const NodeFacts& each : facts) {
    if (each.node == last) continue;
    text += (last == -1 ? "node " : "; node ") + std::to_string(each.node) + " has the interfaces " + each.interfaces;
    last = each.node;
  }
  return text;
}

}  // namespace syncrun::detail::worker::devices::cuda
