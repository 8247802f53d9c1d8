#pragma once

// Messages of the master to several nodes, which travel as one message along the tree of nodes.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "master/nodes/messages.hpp"
#include "master/nodes/node_tree.hpp"

namespace syncrun::detail::master::nodes {

/// The message of each node consists of pieces. A piece that several nodes get travels once. An offset means the same on
/// all nodes, so nearly all pieces of a command are the same for all.
class Bundle {
 public:
  /// The number of a piece.
  using Piece = std::uint16_t;
  /// The most pieces of one node's message.
  static constexpr std::size_t kMostOfEach = 4;

  /// `command` is the number of the command that the messages give, or 0 if they give none. Each node gets `of_each` pieces.
  explicit Bundle(std::uint64_t command = 0, std::size_t of_each = 1) : command_(command), of_each_(of_each) {}
  /// Reads a message of the kind bundle, and refers to its bytes. Throws Error (system) if it cannot be read.
  explicit Bundle(MessageReader& message);
  Bundle(const Bundle&) = delete;
  Bundle& operator=(const Bundle&) = delete;

  std::uint64_t command() const noexcept { return command_; }
  Piece add_piece(std::vector<std::byte> bytes);
  /// Adds a copy of the bytes, unless they are those of the piece `like`. Then it returns that one.
  Piece add_piece_unless(std::optional<Piece> like, std::span<const std::byte> bytes);
  /// The node gets these pieces. Nodes are added in the order of their numbers.
  void add(int node, std::span<const Piece> pieces);

  const std::vector<int>& nodes() const noexcept { return receivers_; }
  /// Returns the message of a node, or nothing if the bundle has none for it.
  std::optional<std::vector<std::byte>> message_of(int node) const;
  /// Returns a message of the kind bundle for the nodes of a branch, or nothing if the bundle has none for them.
  std::optional<std::vector<std::byte>> part_of(const NodeTree::Branch& branch) const;

 private:
  std::span<const Piece> pieces_of(std::size_t at) const { return std::span(rows_).subspan(at * of_each_, of_each_); }

  std::uint64_t command_;
  std::size_t of_each_;
  std::vector<std::span<const std::byte>> pieces_;
  std::deque<std::vector<std::byte>> owned_;  // the bytes of pieces that were added here
  std::vector<int> receivers_;                // numbers of nodes, ascending
  std::vector<Piece> rows_;                   // the pieces of each node, one row after the other
};

}  // namespace syncrun::detail::master::nodes
