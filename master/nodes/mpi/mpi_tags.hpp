#pragma once

// The kinds of MPI messages of the transport.
//
// A transfer of bulk of less than kPieceBytes is one MPI message. A longer transfer travels in pieces. Before them, its size
// travels in a message of its own kind. So the receiver always notices if the sender's transfer has another size, before it
// receives anything into the wrong memory. A message of more than kPieceBytes travels in parts, of which the last one has
// another tag. Its size comes before them, so that the receiver need not move the first parts to more and more memory.
//
// Only a few pieces and parts are under way to a node at a time. What is sent after them arrives after them, also the signs
// of life. So a node counts as alive as long as pieces arrive from it, and they have to arrive often.

#include <cstddef>

namespace syncrun::detail::master::nodes::mpi {

enum MpiTag : int {
  kMessageTag = 1,
  kBulkTag = 2,      // a transfer of bulk, or a piece of one
  kBulkSizeTag = 3,  // the size of a transfer in pieces: std::uint64_t
  kPartTag = 4,      // a part of a message that is not the last one
  kPartsTag = 5,     // the size of a message whose parts follow: std::uint64_t
};

/// MPI sends a message of up to 64 KiB, with all headers, at once. Before a larger one it asks the receiver for its memory,
/// and both sides have to call MPI once more for that.
inline constexpr std::size_t kPromptBytes = std::size_t{60} << 10U;
inline constexpr std::size_t kPieceBytes = std::size_t{2} << 20;
/// The kernel accepts many messages of up to this size although nothing reaches the other node. So they do not show that
/// the link works. A sign of life is such a message.
inline constexpr std::size_t kSmallBytes = std::size_t{4} << 10U;
/// How many pieces of bulk are under way to a node at a time, and how many parts of messages.
inline constexpr std::size_t kPiecesUnderWay = 4;

}  // namespace syncrun::detail::master::nodes::mpi
