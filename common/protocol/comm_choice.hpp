#pragma once

// How the ranks of a command communicate. The master chooses, and the command tells the workers.

#include <cstdint>

namespace syncrun::detail::protocol {

enum class CommPath : std::uint8_t {
  alone,    // one rank, which has no peers
  devices,  // a communicator of their devices: shared memory among CPU devices, NCCL among GPUs
  host,     // host memory, because their devices have no communicator in common
  nodes     // host memory on each of several nodes, and messages between the nodes
};

/// Among devices, also which communicator: each set of GPUs has its own, with an index.
class CommChoice {
  enum class Span : std::uint8_t { node, nodes };

 public:
  /// The index of the communicator of all ranks of the session. CPU devices use it for any set.
  static constexpr int kOfSession = 0;
  /// Indices are below this number.
  static constexpr int kMostComms = 250;

  static constexpr CommChoice alone() noexcept { return CommChoice(kAlone); }
  static constexpr CommChoice host() noexcept { return CommChoice(kHost); }
  static constexpr CommChoice nodes() noexcept { return {kNodes, Span::nodes}; }
  /// The same, and the ranks that lead their nodes use their own connections for the messages.
  static constexpr CommChoice linked_nodes() noexcept { return {kLinkedNodes, Span::nodes}; }
  static constexpr CommChoice devices(int index) noexcept { return CommChoice(static_cast<std::uint8_t>(index)); }
  /// A communicator of GPUs of several nodes.
  static constexpr CommChoice devices_of_nodes(int index) noexcept {
    return {static_cast<std::uint8_t>(index), Span::nodes};
  }

  constexpr CommChoice() noexcept = default;
  constexpr CommPath path() const noexcept {
    if (code_ == kAlone) return CommPath::alone;
    if (code_ == kNodes || code_ == kLinkedNodes) return CommPath::nodes;
    return code_ == kHost ? CommPath::host : CommPath::devices;
  }
  /// Which communicator of devices. Only if the path is `devices`.
  constexpr int index() const noexcept { return code_; }
  /// Whether the leaders of the nodes use their own connections.
  constexpr bool is_linked() const noexcept { return code_ == kLinkedNodes; }
  /// Whether the ranks are on several nodes.
  constexpr bool spans_nodes() const noexcept { return span_ == Span::nodes; }
  friend constexpr bool operator==(CommChoice, CommChoice) noexcept = default;

 private:
  static constexpr std::uint8_t kAlone = 255;
  static constexpr std::uint8_t kHost = 254;
  static constexpr std::uint8_t kNodes = 253;
  static constexpr std::uint8_t kLinkedNodes = 252;
  constexpr explicit CommChoice(std::uint8_t code) noexcept : code_(code) {}
  constexpr CommChoice(std::uint8_t code, Span span) noexcept : code_(code), span_(span) {}

  std::uint8_t code_ = kAlone;
  Span span_ = Span::node;
};

}  // namespace syncrun::detail::protocol
