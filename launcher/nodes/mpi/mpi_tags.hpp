#pragma once

// The kinds of MPI messages of the transport.
//
// A transfer of bulk of less than kPieceBytes is one MPI message. A longer transfer travels in pieces. Before them, its size
// travels in a message of its own kind. So the receiver always notices if the sender's transfer has another size, before it
// receives anything into the wrong memory. A message of more than kPieceBytes travels in parts, of which the last one has
// another tag.
//
// Only a few pieces and parts are under way to a node at a time. What is sent after them arrives after them, also the signs
// of life. So a node counts as alive as long as pieces arrive from it, and they have to arrive often.

#include <cstddef>

namespace syncrun::detail {

enum MpiTag : int {
  kMessageTag = 1,
  kBulkTag = 2,      // a transfer of bulk, or a piece of one
  kBulkSizeTag = 3,  // the size of a transfer in pieces: std::uint64_t
  kPartTag = 4,      // a part of a message that is not the last one
};

inline constexpr std::size_t kPieceBytes = std::size_t{2} << 20;
/// How many pieces of bulk are under way to a node at a time, and how many parts of messages.
inline constexpr std::size_t kPiecesUnderWay = 4;

}  // namespace syncrun::detail
