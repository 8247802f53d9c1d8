#pragma once

// How a worker asks the process that carries messages on its node, the agent or the master, to exchange bytes with the
// other nodes of a command. The rank that leads its node in the command asks: the lowest one of the command there. An
// offset is one in the segment of the node.
//
//   leader: blocks, fields, asked = n --> carrier: sends, taken = n --> everything has come --> answered = n

#include <atomic>
#include <cstdint>

#include "common/protocol/comm_choice.hpp"

namespace syncrun::detail::protocol {

/// What goes to another node in an exchange, and the room for what comes from there.
struct NodeBlock {
  std::uint64_t from = 0;  // offset of what goes there
  std::uint64_t from_bytes = 0;
  std::uint64_t to = 0;  // offset of the room
  std::uint64_t to_bytes = 0;
};

/// In the slot of each worker. The leader writes it, except for what the carrier writes. Zeros are a valid beginning.
///
/// If the leader has its own connections to the other leaders, it exchanges the blocks itself. In a long wait, it asks the
/// carrier to watch some nodes: those that have not sent their blocks, or have not received its own. If the set of these nodes
/// changes, it asks again. The answer says that one of them has left without this exchange. After the exchange, the leader
/// withdraws the request.
struct NodeRequest {
  enum class Kind : std::uint8_t { exchange, watch };
  /// In a request to watch: NodeBlock::to_bytes of a node to watch. 0: of another one.
  static constexpr std::uint64_t kMissing = 1;

  /// The number of the last request. The leader writes the other fields first, and only while `taken` equals `asked`.
  alignas(64) std::atomic<std::uint64_t> asked;
  std::uint64_t command;
  std::uint64_t step;    // how many exchanges of the command came before
  std::uint64_t blocks;  // offset of one NodeBlock for each node of the command, in order; its own is not used
  Kind kind;
  std::atomic<std::uint64_t> withdrawn;  // the last request to watch that the leader has withdrawn
  /// The last command whose collectives the worker has left. It asks for no more exchanges of it.
  std::atomic<std::uint64_t> left;

  /// The carrier writes these. `taken`: it has read this request and what goes to the others. `answered`: what comes from
  /// the others is there, or one of them has left.
  alignas(64) std::atomic<std::uint64_t> taken;
  std::atomic<std::uint64_t> answered;
  std::int32_t left_rank_plus_one;  // of the answer: the leader of a node that takes no part any more; 0 if all do
};

/// Whether ranks on several nodes wait for each other in collectives of the command.
inline bool meets_across_nodes(CommChoice comm) noexcept { return comm.spans_nodes(); }

}  // namespace syncrun::detail::protocol
